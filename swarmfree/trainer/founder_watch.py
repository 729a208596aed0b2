"""The organiser's watch: a run has a founder that can be called, until its first record is sealed.

It knows ports only, so that rehearsals play it as the bootstrap node runs it. It keeps nothing but
what it has named. Source: protocol, "A run that always begins".
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from swarmfree.policy.founder import Patience, next_founder
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import GetPlan, PlanAnswer
from swarmfree.protocol.names import Founder
from swarmfree.protocol.ports import Clock, Directory, Network

LOOK_S, FIRST_LOOK_S = 1.0, 0.25
"""Where nobody is named yet, the first one that comes waits for nothing else."""
ASKED_MAX = 256
"""At once; where there are more, each in its turn, and those that can feed first."""
SHOWN_MAX = 3


class OrganisersDirectory(Directory, Protocol):
    """The directory as the organiser's bootstrap node uses it."""

    async def name(self, founder: Founder) -> None:
        """Write the founder's name to disk, then publish it."""
        ...


async def ask_plans(network: Network, announced: Iterable[Announcement], silence_s: float) -> dict[str, PlanAnswer]:
    """What those say that answer GetPlan at the address that they announce, by peer id."""
    answers: dict[str, PlanAnswer] = {}

    async def one(a: Announcement) -> None:
        try:
            reply = await network.call(a.endpoint, GetPlan(), silence_s=silence_s)
        except CallFailed:
            return
        answers[a.endpoint.member.peer_id] = reply.expect(PlanAnswer)

    async with asyncio.TaskGroup() as group:
        for a in announced:
            group.create_task(one(a))
    return answers


class FoundersWatch:
    """Names a founder, and another one if that peer disappears before the first record is sealed.

    Args:
        directory: of the organiser.
        network: to call peers.
        clock: monotonic.
        timing: of the run.
        tell: is told each sentence for people once.
    """

    def __init__(
        self,
        directory: OrganisersDirectory,
        network: Network,
        clock: Clock,
        timing: TimingSection,
        tell: Callable[[str], None],
    ) -> None:
        """Nobody has been seen."""
        self._directory, self._network, self._clock, self._timing = directory, network, clock, timing
        self._tell, self._said = tell, ""
        self._seen: dict[str, Announcement] = {}
        self._have_answered: set[str] = set()
        self._named, self._calls = Counter[str](), Counter[str]()
        self._present: Founder | None = None
        self._answered_s = self._led_s = 0.0
        self._looked_s = math.inf

    async def keep(self) -> None:
        """Run until a peer announces that it has applied a record, or has a snapshot of one."""
        while not await self._look():
            await asyncio.sleep(LOOK_S if self._present is not None else FIRST_LOOK_S)

    async def _look(self) -> bool:
        """One look; whether the run has begun."""
        announced = {a.endpoint.member.peer_id: a for a in await self._directory.announcements()}
        known = [peer for peer in self._seen if peer in announced]
        self._seen = {peer: announced[peer] for peer in (*known, *announced)}
        self._have_answered &= self._seen.keys()
        if any(a.iteration > 0 for a in announced.values()):
            return True
        present, now_s = await self._directory.founder(), self._clock.now_s()
        # Who does not look hears nobody
        stood_s = max(0.0, now_s - self._looked_s - self._timing.silence_s - LOOK_S)
        self._answered_s, self._led_s, self._looked_s = self._answered_s + stood_s, self._led_s + stood_s, now_s
        if present != self._present:
            self._present, self._answered_s, self._led_s = present, now_s, now_s
        asked = dict[str, PlanAnswer]()
        patience = Patience.of(self._timing, present.number if present is not None else 1)
        if present is not None:
            asked = await self._ask([present.peer_id])
            self._note(asked.values())
            now_s = self._clock.now_s()
            is_given_time = not patience.is_over(now_s - self._answered_s, now_s - self._led_s)
            if is_given_time and not any(answer.snapshots for answer in asked.values()):
                return False
        others = [peer for peer in self._seen if peer not in asked]
        others.sort(key=lambda peer: (self._calls[peer], not self._seen[peer].can_feed))
        self._calls.update(others[:ASKED_MAX])
        asked |= await self._ask(others[:ASKED_MAX])
        if any(answer.snapshots for answer in asked.values()):
            return True  # of a life of this node before this one
        if present is not None and patience.leaves_it_to(asked.values(), now_s - self._led_s):
            self._say("waits for those who have a plan to go on with it")
            return False
        feeders = [peer for peer, shown in self._seen.items() if shown.can_feed]
        chosen = next_founder(present, [peer for peer in feeders if peer in asked], self._named)
        if chosen is None:
            self._say(self._waits_for(feeders))
            return False
        if self._named[chosen.peer_id] == 0 or present is None or chosen.peer_id != present.peer_id:
            gone = f"{present.short} is gone before anything was sealed: " if present is not None else ""
            self._say(f"{gone}{self._seen[chosen.peer_id].endpoint.member} is the founder (genesis {chosen.number})")
        self._named[chosen.peer_id] += 1
        await self._directory.name(chosen)
        return False

    def _note(self, answers: Iterable[PlanAnswer]) -> None:
        """The founder has answered, or not."""
        for answer in answers:
            self._answered_s = self._clock.now_s()
            if answer.coordinator is not None:
                self._led_s = self._answered_s

    async def _ask(self, peers: Iterable[str]) -> dict[str, PlanAnswer]:
        """What those of these say that answer."""
        announced = [self._seen[peer] for peer in peers if peer in self._seen]
        answers = await ask_plans(self._network, announced, self._timing.silence_s / 2)
        self._have_answered |= answers.keys()
        return answers

    def _waits_for(self, feeders: Iterable[str]) -> str:
        """Who has answered once can be called, and has left or died since."""
        silent = [self._seen[peer].endpoint for peer in feeders if peer not in self._have_answered][:SHOWN_MAX]
        if not silent:
            return "waits for a peer that can feed"
        shown = ", ".join(f"{endpoint.member} at {endpoint.where}" for endpoint in silent)
        return f"waits for a peer that can feed and can be called; nobody answers for {shown}: its port is closed, or --announce is missing"

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._tell(what)
