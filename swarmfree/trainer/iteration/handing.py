"""Handing over: a member that leaves in the middle of an iteration gives its sums to a sibling, so that nothing it did has to be done again.

Source: protocol sections 3.5 and 6 (HandOver). Differs: a sum keeps its own number at the sibling and counts as the sibling's addend; it is offered
when the iteration lasts longer than the leaver is willing to wait, since until its end the leaver is a member like any other.
"""

from __future__ import annotations

import asyncio

from swarmfree.swarm.books import Addend
from swarmfree.swarm.errors import CallFailed, RefusalKind, Refused
from swarmfree.swarm.messages import HandedOver, HandOver
from swarmfree.swarm.names import ENDS_STAGE, AddendId, Endpoint
from swarmfree.swarm.ports import Incoming, Reply
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.member import MemberBooks
from swarmfree.trainer.ring.device import Rank

FINISH_POLL_S = 0.05
PARTS_IN_FLIGHT = 4


class Handing:
    """Handles HandOver, and gives this peer's own sums away."""

    def __init__(self, context: Context, books: MemberBooks) -> None:
        """Nothing was handed over."""
        self._context, self._books = context, books
        self._parts: dict[tuple[str, AddendId], set[int]] = {}

    async def take(self, request: HandOver, incoming: Incoming) -> Reply:
        """Hold one part of a sibling's sum.

        Raises:
            Refused: `stale`, it belongs to other work than this peer's.
        """
        self._check(request)
        data = await incoming.read()
        await self._books.device.run(Rank.BOOKS, 0, lambda: self._hold(request, data))
        self._books.tell_news()
        return Reply(HandedOver())

    def _check(self, request: HandOver) -> None:
        standing = self._books.standing
        if (request.iteration, request.base, request.stage) != (standing.iteration, standing.base, standing.stage):
            raise Refused(RefusalKind.STALE, f"this peer is at iteration {standing.iteration}, base {standing.base}")

    def _hold(self, request: HandOver, data: bytes) -> None:
        self._check(request)  # the work may have ended while the part was on its way
        engine, origin = self._context.ports.engine, (request.base, request.addend.id)
        number = self._books.book.adopt(request.addend.id)
        engine.write_sum(number, request.part, data)
        if origin not in self._parts:
            self._parts = {held: parts for held, parts in self._parts.items() if held[0] == request.base}
        parts = self._parts.setdefault(origin, set())
        parts.add(request.part)
        if len(parts) == engine.part_count(request.stage):
            self._books.book.complete(number, request.addend)

    async def give(self, until_s: float) -> bool:
        """Begin nothing more, finish what is under way, and give every sum to the first sibling that takes them; whether one did.

        Args:
            until_s: monotonic; there is no sense in it after that.
        """
        books, standing = self._books, self._books.standing
        plan, base = standing.plan, standing.base
        if plan is None or not base or standing.stage == ENDS_STAGE:
            return False  # a source's share is dealt again
        siblings = [r.endpoint for r in plan.replicas[standing.stage] if r.endpoint.member != self._context.me]
        books.worker.closed = bool(siblings)
        try:
            async with asyncio.timeout(max(0.0, until_s - self._context.now_s())):
                finish_until_s = (self._context.now_s() + until_s) / 2  # what comes back later is done again by somebody else
                while siblings and books.table.is_busy and self._context.now_s() < finish_until_s:
                    await asyncio.sleep(FINISH_POLL_S)
                for sibling in siblings:
                    if await self._give_to(sibling, base):
                        return True
        except TimeoutError:
            pass
        books.worker.closed = False
        return False

    async def _give_to(self, sibling: Endpoint, base: str) -> bool:
        """All sums to one sibling; False where it does not take them all."""
        books, standing = self._books, self._books.standing

        def freeze() -> tuple[Addend, ...]:
            books.book.freeze()
            return books.book.addends()

        addends = await books.device.run(Rank.BOOKS, 0, freeze)
        parts = [(addend, part) for addend in addends for part in range(self._context.ports.engine.part_count(standing.stage))]
        waiting = iter(parts)

        async def lane() -> None:
            for addend, part in waiting:
                if standing.base != base:
                    raise Refused(RefusalKind.STALE, "the iteration is over")
                data = await books.device.run(
                    Rank.BOOKS,
                    0,
                    lambda a=addend, p=part: self._context.ports.engine.contribution((a.id.number,), p),  # type: ignore[misc]
                )
                request = HandOver(standing.iteration, base, standing.stage, addend, part)
                await self._context.call(sibling, request, data)

        taken = True
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(PARTS_IN_FLIGHT):
                    group.create_task(lane())
        except* CallFailed:
            taken = False
        return taken
