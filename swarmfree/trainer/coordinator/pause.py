"""How a run pauses: which order the next record obeys, and once one has, every stage lies on a disk
before the first peer leaves.

Source: protocol, "Stopped by will".
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection

from swarmfree.policy import halt
from swarmfree.policy.quorum import is_majority
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import Goodbye
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.order import Halting, Order
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.handoff import end_run, tell_all_written, write_weights
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge
from swarmfree.trainer.coordinator.roster import Deposed, Roster
from swarmfree.trainer.tasks import each

AGAIN_S = 5.0
"""Between two tries to pause where a disk refuses: a stage is copied for each."""
PAUSED = "paused by its organiser"
GO_ON = "the same commands in the same folders go on from there"
NOWHERE = "but what this peer holds lies on no disk that it knows of, and is lost"
"""How the reason begins with which peers end, how it goes on, and how for one that its disk has
refused.
"""


class RunPause:
    """One coordinator's part in a pause.

    Attributes:
        is_left_over: this peer waits for others that have paused: it ends.
    """

    def __init__(self, context: Context, lead: Leadership, roster: Roster, partition_merge: PartitionMerge) -> None:
        """Nobody has ordered anything."""
        self._context, self._lead, self._roster, self._partition_merge = context, lead, roster, partition_merge
        self._held_up, self._said_s, self._again_s = "", -math.inf, -math.inf
        self._missing: Collection[int] = ()
        self._is_rest, self.is_left_over = False, False
        self._alone_since_s = math.inf
        self._unmet = 0  # number of the order of which that was told
        self._batch_order: Order | None = None  # the newest one that was seen

    async def due_order(self) -> Order | None:
        """The order that the record of the present iteration obeys. After the last iteration there
        is nothing to stop.
        """
        order, last = self._context.ports.directory.order(), self._lead.decided
        self._look_for_replaced()
        if halt.due_order(order, last, 0) is None:
            return None  # the directory is asked for nothing while nobody wants anything
        due = halt.due_order(order, last, await self._spent())
        if due is None:
            self._note_unmet(
                order, "was given before the run went on from snapshots that did not know it, and is not obeyed: set them again"
            )
        if self._lead.iteration + 1 >= self._context.manifest.run.iterations:
            self._note_unmet(due, "came in the last iteration, after which there is none that could have them")
            return None
        return due

    def _look_for_replaced(self) -> None:
        """Say so where a halt has taken the place of a batch that no record has obeyed."""
        order, last, before = self._context.ports.directory.order(), self._lead.decided, self._batch_order
        if order is not None and order.microbatches:
            self._batch_order = order
        elif order is not None and before is not None and (last is None or last.order < before.number):
            self._batch_order = None
            self._note_unmet(before, f"was replaced by order {order.number} to {order.halt} before an iteration began with them")

    def _note_unmet(self, order: Order | None, why: str) -> None:
        if order is not None and order.microbatches and order.number != self._unmet:
            self._unmet = order.number
            self._context.tell(Note(f"order {order.number} to set {order.microbatches} microbatches {why}"))

    async def keep(self) -> None:
        """Run for ever: where this peer waits for others that have paused meanwhile, it gives up
        its lead.
        """
        while True:
            await asyncio.sleep(self._context.timing.silence_s)
            self._look_for_replaced()
            if await self._is_left_over():
                self._roster.depose("the others have paused, by the organiser's order")

    async def is_due(self) -> bool:
        """Whether the run stops here for a while: its last record says so, and every stage lies on
        a disk, or those that are there could not go on in any case.

        Raises:
            Deposed: this peer leads no longer.
        """
        if not halt.is_paused(self._lead.decided, 0):
            return await self._is_left_over()
        if not halt.is_paused(self._lead.decided, await self._spent()):
            return False
        if self._missing and self._has_majority() and self._context.now_s() < self._again_s:
            return False
        # What could not be written before is tried first: all others would write for nothing
        written = await write_weights(self._context, self._roster, self._lead.decided, self._missing) if self._missing else None
        if written is None or not written.missing or not self._has_majority():
            written = await write_weights(self._context, self._roster, self._lead.decided)
        self._is_rest = not self._has_majority()
        if written.missing and self._is_rest:
            self._require_force()
        elif written.missing:
            self._missing, self._again_s = tuple(written.missing), self._context.now_s() + AGAIN_S
            self._tell_missing("; ".join(f"stage {stage}: {why}" for stage, why in sorted(written.missing.items())))
            return False
        if not written.missing:
            await tell_all_written(self._context, self._roster)
        return True

    def _require_force(self) -> None:
        """End without a majority only where this coordinator may go on without: who is missing has
        not left by its word, and goes on under another one for as long as a disk refuses.

        Raises:
            Deposed: it claimed with a majority.
        """
        if not self._lead.may_force:
            raise Deposed("no majority answers")

    def _tell_missing(self, why: str) -> None:
        """Say what a pause waits for, and once a minute that it does still."""
        now_s, before = self._context.now_s(), self._held_up
        self._held_up = why
        if before != why or now_s >= self._said_s + halt.SAID_AGAIN_S:
            self._said_s = now_s
            self._context.tell(Note(f"cannot pause yet, and goes on until each stage lies on a disk: {why}"))

    @property
    def held_up(self) -> str:
        """What a pause that is ordered waits for; empty where nothing, or none comes any more."""
        is_last = self._lead.iteration + 1 >= self._context.manifest.run.iterations
        is_held_up = self._held_up and halt.is_paused(self._lead.decided, 0) and not is_last
        return f"cannot pause yet: {self._held_up}" if is_held_up else ""

    async def end(self) -> str:
        """Have everybody leave; what they hold lies on their disks.

        Returns:
            Why they leave.
        """
        if self._is_rest:
            return await self._end_rest()
        await self._partition_merge.settle()
        strangers = [a.endpoint for a in await self._context.ports.directory.announcements()]
        may_end = self._partition_merge.may_end
        await end_run(self._context, self._roster, (), strangers, self._why, paused=True, may_end=may_end)
        return self._why

    async def _end_rest(self) -> str:
        """Only those leave that were in the last plan, and have not heard of the pause before:
        whoever has come back meanwhile stays.
        """
        self._roster.close()
        request = Goodbye(run_over=True, finished=True, why=self._why, paused=True)

        async def one(endpoint: Endpoint) -> None:
            with contextlib.suppress(CallFailed):
                await self._context.call(endpoint, request, silence_s=self._context.timing.silence_s / 2)

        others = self._lead.plan.members() if self._lead.plan is not None else ()
        await each([endpoint for endpoint in others if endpoint.member != self._context.me], one)
        return self._why

    @property
    def _why(self) -> str:
        return f"{PAUSED} before iteration {self._lead.iteration}: {GO_ON}"

    async def _is_left_over(self) -> bool:
        """Whether all others have paused while this peer was away: it leads without a majority, and
        without a stage, for so long that those who have died would have been replaced.
        """
        now_s = self._context.now_s()
        if self._lead.plan is None or not self._roster.lost() or self._has_majority():
            self._alone_since_s = math.inf
            return False
        self._alone_since_s = min(self._alone_since_s, now_s)
        if now_s < self._alone_since_s + self._context.timing.split_wait_s:
            return False  # whoever has died a moment ago has not paused
        order = await self.due_order()
        self.is_left_over = self._is_rest = order is not None and order.halt is Halting.PAUSE
        return self._is_rest

    def _has_majority(self) -> bool:
        """Whether most of those who decide next are there: whoever follows counts, also one that
        stood still and is in no plan, or is a step behind. Proof that the others have ended does
        not count: they have, where they have paused.
        """
        return is_majority(self._lead.electorate(), {g.member for g in self._roster.participants() if g.is_heard})

    async def _spent(self) -> int:
        """Orders up to this number were given before the run last went on from snapshots."""
        return halt.spent_before(await self._context.ports.directory.founder(), self._lead.decided)
