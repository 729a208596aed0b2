"""The directory in memory: announcements that land late, are read stale and expire, and a genesis record that is made once.

One hub for all peers plays the bootstrap node as well: it names the first peer that can feed data as founder, once. Nothing here is signed;
signatures are `wire`'s.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from swarmfree.sim.faults import FaultPlan
from swarmfree.sim.peer_ports import Pace
from swarmfree.swarm.announcement import Announcement


class DirectoryHub:
    """What the directory of one rehearsal holds.

    Args:
        plan: `stale_rate` and the delays of messages.
        rng: stream of all draws.

    Attributes:
        wait_s: everything takes so much longer at the moment.
        shows_nothing: nobody finds anybody at the moment.
    """

    def __init__(self, plan: FaultPlan, rng: random.Random) -> None:
        """It is empty, and nobody is founder."""
        self.plan, self.rng = plan, rng
        self.founder: str | None = None
        self.wait_s = 0.0
        self.shows_nothing = False
        self.runs_published = 0
        self._newest: dict[str, Announcement] = {}
        self._before: dict[str, Announcement] = {}

    def store(self, announcement: Announcement) -> None:
        """Keep an announcement beside the version before; of two lives of a peer the one with the later expiry stands."""
        peer_id = announcement.endpoint.member.peer_id
        held = self._newest.get(peer_id)
        if held is not None:
            if held.expires_s > announcement.expires_s:
                return
            self._before[peer_id] = held
        self._newest[peer_id] = announcement
        if self.founder is None and announcement.can_feed:
            self.founder = peer_id

    def find(self, wall_s: float) -> tuple[Announcement, ...]:
        """What one read finds: each announcement in its newest version, or at times in the one before, or not at all."""
        found: list[Announcement] = []
        if self.shows_nothing:
            return ()
        for peer_id, newest in self._newest.items():
            stale = self.rng.random() < self.plan.stale_rate
            announcement = self._before.get(peer_id) if stale else newest
            if announcement is not None and announcement.expires_s > wall_s:
                found.append(announcement)
        return tuple(found)


class MemoryDirectory:
    """One peer's `ports.Directory`.

    Args:
        hub: shared by all peers.
        wall_s: this peer's wall clock.
        is_alive: whether this peer still lives; a dead one publishes nothing.
        pace: of this peer's disk; everything takes longer while it is slow.
    """

    def __init__(self, hub: DirectoryHub, wall_s: Callable[[], float], is_alive: Callable[[], bool], pace: Pace) -> None:
        """Connect."""
        self._hub, self._wall_s, self._is_alive, self._pace = hub, wall_s, is_alive, pace

    async def announce(self, announcement: Announcement) -> None:
        """Publish after a delay."""
        await self._travel()
        if self._is_alive():
            self._hub.store(announcement)

    async def announcements(self) -> tuple[Announcement, ...]:
        """Read after a delay."""
        await self._travel()
        return self._hub.find(self._wall_s())

    async def publish_run(self, lease_s: float) -> None:
        """Republish the manifest; counted."""
        await self._travel()
        assert lease_s > 0, "a lease lasts"
        self._hub.runs_published += 1

    async def founder(self) -> str | None:
        """The founder, once there is one."""
        await self._travel()
        return self._hub.founder

    async def _travel(self) -> None:
        plan = self._hub.plan
        travel_s = 2 * self._pace.disk * self._hub.rng.uniform(plan.delay_min_s, plan.delay_max_s)
        await asyncio.sleep(self._hub.wait_s + travel_s)
