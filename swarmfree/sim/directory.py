"""The directory in memory: announcements that land late, are read stale and expire, and a genesis
record that is made once.

One hub for all peers. Who founds is named by the bootstrap node (`bootstrap`), or at once where
nothing befalls the beginning; a read of it may find the genesis before the newest, as one of an
announcement may. Nothing here is signed; signatures are `wire`'s.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Order
from swarmfree.sim.faults import FaultPlan
from swarmfree.sim.peer_ports import Pace

GENESIS_S = 2.0
ORDER_READ_S_MAX = 5.0
"""Until a peer has read an order, at most, on its own clock."""
"""A peer reads no genesis again before; as `wire`'s."""


class DirectoryHub:
    """What the directory of one rehearsal holds.

    Args:
        plan: `stale_rate` and the delays of messages.
        rng: stream of all draws.
        names_first: nobody plays the bootstrap node: the first peer that can feed founds as soon as
            it is announced.

    Attributes:
        geneses: who was named, in order.
        wait_s: everything takes so much longer at the moment.
        shows_nothing: nobody finds anybody at the moment.
        is_over: the organiser has said that the run is over.
        order: of the organiser, and when it was given.
    """

    def __init__(self, plan: FaultPlan, rng: random.Random, *, names_first: bool = False) -> None:
        """It is empty, and nobody is founder."""
        self.plan, self.rng, self._names_first = plan, rng, names_first
        self.geneses: list[Founder] = []
        self.wait_s = 0.0
        self.shows_nothing = False
        self.is_over = False
        self.order: tuple[Order, float] | None = None
        self._newest: dict[str, Announcement] = {}
        self._before: dict[str, Announcement] = {}

    def store(self, announcement: Announcement) -> None:
        """Keep an announcement beside the version before; of two lives of a peer the one with the
        later expiry stands.
        """
        peer_id = announcement.endpoint.member.peer_id
        held = self._newest.get(peer_id)
        if held is not None:
            if held.expires_s > announcement.expires_s:
                return
            self._before[peer_id] = held
        self._newest[peer_id] = announcement
        if self._names_first and not self.geneses and announcement.can_feed:
            self.geneses.append(Founder(1, peer_id))

    def find(self, wall_s: float) -> tuple[Announcement, ...]:
        """What one read finds: each announcement in its newest version, or at times in the one
        before, or not at all.
        """
        found: list[Announcement] = []
        if self.shows_nothing:
            return ()
        for peer_id, newest in self._newest.items():
            stale = self.rng.random() < self.plan.stale_rate
            announcement = self._before.get(peer_id) if stale else newest
            if announcement is not None and announcement.expires_s > wall_s:
                found.append(announcement)
        return tuple(found)

    def founder(self) -> Founder | None:
        """What one read finds: the newest genesis, or at times the one before."""
        if self.shows_nothing or not self.geneses:
            return None
        is_stale = len(self.geneses) > 1 and self.rng.random() < self.plan.stale_rate
        return self.geneses[-1 - is_stale]


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
        self._founder: Founder | None = None
        self._founder_s = -math.inf
        self._order: Order | None = None
        self._order_waits: tuple[Order, float] | None = None

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
        """Republish the manifest: here it is known."""
        await self._travel()
        assert lease_s > 0, "a lease lasts"

    async def founder(self) -> Founder | None:
        """Who founds, once somebody is named; what was read once is never replaced by what is
        older.
        """
        await self._travel()
        if self._founder is None or self._wall_s() - self._founder_s >= GENESIS_S:
            found = self._hub.founder()
            self._founder_s = self._wall_s()
            if found is not None and (self._founder is None or found.number > self._founder.number):
                self._founder = found
        return self._founder

    async def is_over(self) -> bool:
        """Whether the organiser has said so; it comes with the genesis, so it takes no time of its
        own.
        """
        return self._hub.is_over and not self._hub.shows_nothing

    def order(self) -> Order | None:
        """The newest order, some time after it was given; once it was read it stays known."""
        given = self._hub.order
        if given is not None and given[0] != self._order and not self._hub.shows_nothing:
            order, given_s = given
            if self._order_waits is None or self._order_waits[0] != order:
                self._order_waits = order, given_s + self._hub.rng.uniform(0, ORDER_READ_S_MAX)
            if self._wall_s() >= self._order_waits[1]:
                self._order = order
        return self._order

    async def _travel(self) -> None:
        plan = self._hub.plan
        travel_s = 2 * self._pace.disk * self._hub.rng.uniform(plan.delay_min_s, plan.delay_max_s)
        await asyncio.sleep(self._hub.wait_s + travel_s)
