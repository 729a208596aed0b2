"""Two lineages of one run, after a forced continuation, find each other, and one gives way.

Every `remeet_s` the coordinator calls one announced peer that is not in its swarm. Nothing is done about a peer that follows nobody else: it says
hello by itself. Source: protocol section 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarmfree.policy.lineages import Tip, wins
from swarmfree.swarm.books import Record
from swarmfree.swarm.errors import CallFailed
from swarmfree.swarm.events import LineageDropped
from swarmfree.swarm.messages import Goodbye, Meet, Met
from swarmfree.swarm.names import Endpoint, Term
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.roster import Guest, Roster


class Meeting:
    """A coordinator's look beyond its own swarm; `term` is that of its claim."""

    def __init__(self, context: Context, roster: Roster, term: Term, last_record: Callable[[], Record | None]) -> None:
        """Nobody was met."""
        self._context = context
        self._roster = roster
        self.term = term
        self._last_record = last_record
        self._winner: tuple[Tip, Endpoint] | None = None
        self._turn = 0

    def tip(self) -> Tip:
        """The end of this coordinator's lineage."""
        return Tip.of(self._last_record())

    def judge(self, theirs: Tip, term: Term, coordinator: Endpoint) -> None:
        """Give way to another coordinator, if its lineage wins, or its term where the lineage is the same."""
        if theirs.lineage == self.tip().lineage:
            if term > self.term:
                self._roster.depose(f"{coordinator.member} leads this lineage in term {term.number}")
        elif wins(theirs, self.tip()):
            self._winner = (theirs, coordinator)
            self._roster.depose("another lineage wins")

    async def keep(self) -> None:
        """Look beyond, until another lineage wins; then this peer is deposed."""
        while self._winner is None:
            await asyncio.sleep(self._context.timing.remeet_s * (0.75 + 0.5 * self._context.rng.random()))
            await self._look_beyond()

    async def _look_beyond(self) -> None:
        announced = await self._context.ports.directory.announcements()
        strangers = [a.endpoint for a in announced if self._is_stranger(a.endpoint)]
        if not strangers:
            return
        self._turn += 1
        met = await self._meet(strangers[self._turn % len(strangers)])
        if met is None or met.coordinator is None or met.coordinator.member == self._context.me:
            return
        leader = await self._meet(met.coordinator)
        if leader is None or leader.coordinator is None or leader.term is None:
            return
        if leader.coordinator.member == met.coordinator.member == leader.term.member:
            self.judge(Tip(leader.forced, leader.iteration, leader.lineage), leader.term, met.coordinator)

    def _is_stranger(self, endpoint: Endpoint) -> bool:
        return endpoint.member != self._context.me and self._roster.get(endpoint.member) is None

    async def _meet(self, endpoint: Endpoint) -> Met | None:
        tip = self.tip()
        request = Meet(tip.iterations, tip.lineage, tip.forced, self.term)
        try:
            reply = await self._context.call(endpoint, request, silence_s=self._context.timing.silence_s / 2)
        except CallFailed:
            return None
        assert isinstance(reply.message, Met), "the network checks response types"
        return reply.message

    async def give_way(self) -> None:
        """Where another lineage has won: have everyone join it. Nobody is beaten any more when this is called."""
        if self._winner is None:
            return
        (theirs, coordinator), mine = self._winner, self.tip()
        self._context.tell(LineageDropped(mine.iterations, mine.forced, mine.lineage, theirs.iterations, theirs.lineage))
        request = Goodbye(run_over=False, finished=False, why="another lineage won", heir=coordinator, rejoin=True)

        async def one(guest: Guest) -> None:
            try:
                await self._context.call(guest.endpoint, request, silence_s=self._context.timing.silence_s / 2)
            except CallFailed:
                return  # it hears no beat from now on, and finds the other coordinator by itself

        async with asyncio.TaskGroup() as group:
            for guest in self._roster.guests():
                group.create_task(one(guest))
