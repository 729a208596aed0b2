"""What the neighbours of lost stages know of past iterations: records and logged activations.

A replay reads both from here. Source: design section 6, method 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from swarmfree.policy.answer_checks import fitting_record
from swarmfree.policy.batch import microbatches_of
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import GetRecord, Pull, RecordAnswer
from swarmfree.protocol.names import ENDS_STAGE, Endpoint, Side, WorkKey, WorkKind
from swarmfree.protocol.records import Record
from swarmfree.trainer.context import Context
from swarmfree.trainer.recovery.activation_log import ActivationLog
from swarmfree.trainer.tasks import each

IN_FLIGHT = 4
Tensors = dict[int, bytes]


@dataclass(frozen=True, slots=True)
class Around:
    """Adjacent lost stages, and the members that hold the stages before and after them."""

    first: int
    last: int
    before: tuple[Endpoint, ...]
    after: tuple[Endpoint, ...]


class Past:
    """Fetches past records and activations for a replay of adjacent lost stages.

    Attributes:
        received_bytes: of logged activations.
    """

    def __init__(self, context: Context, around: Around, own: ActivationLog) -> None:
        """Nothing is here yet; `own` is the builder's log."""
        self._context, self._around, self._own = context, around, own
        self.received_bytes = 0

    async def records(self, last: Record | None, lineage: str, first: int) -> tuple[list[Record], str]:
        """Fetch the records from iteration `first` on, oldest first, and the lineage before them.

        Args:
            last: the last committed one.
            lineage: of it.

        Raises:
            Refused: they do not follow each other, or nobody keeps one of them.
        """
        found, record = deque[Record](), last
        while record is not None and record.iteration >= first:
            if record.lineage() != lineage:
                raise Refused(RefusalKind.FAILED, f"record {record.iteration} is not of this lineage")
            found.appendleft(record)
            lineage = record.before
            if record.iteration == first:
                break
            record = await self._record(record.iteration - 1)
        return list(found), lineage

    async def _record(self, iteration: int) -> Record:
        for donor in (*self._around.before, *self._around.after):
            try:
                answer = (await self._context.call(donor, GetRecord(iteration))).expect(RecordAnswer)
            except CallFailed:
                continue
            found = fitting_record(answer.record, iteration, self._context.manifest.stage_count)
            if found is not None:
                return found
        raise Refused(RefusalKind.GONE, f"nobody around keeps record {iteration}")

    async def activations(self, record: Record) -> tuple[Tensors, Tensors]:
        """Fetch the inputs of the first lost stage and the output gradients of the last one, by
        offset.

        Raises:
            CallFailed: it is not kept any more.
        """
        manifest = self._context.manifest
        around, count, first = self._around, microbatches_of(record, manifest), record.iteration * manifest.batch.most
        after = around.last + 1 if around.last < manifest.stages.body else ENDS_STAGE
        sides = ((Side.OUTPUT, around.first - 1, around.before), (Side.ANSWER, after, around.after))
        entered: Tensors = {}
        left: Tensors = {}

        async def one(which: tuple[int, int]) -> None:
            offset, place = which
            side, stage, holders = sides[place]
            key = WorkKey(record.iteration, record.base, WorkKind.TRAIN, first + offset, stage)
            (entered, left)[place][offset] = await self._pull(key, holders, side)

        wanted: Iterable[tuple[int, int]] = [(offset, place) for offset in range(count) for place in (0, 1)]
        await each(wanted, one, IN_FLIGHT)
        return entered, left

    async def _pull(self, key: WorkKey, holders: tuple[Endpoint, ...], side: Side) -> bytes:
        # The builder was a replica of a neighbour until now
        own = await self._own.find_former(key, side)
        if own is not None:
            return own
        last: CallFailed = Refused(RefusalKind.GONE, f"stage {key.stage} has no member")
        for turn in range(len(holders)):
            try:
                data = (await self._context.call(holders[(key.microbatch + turn) % len(holders)], Pull(key, side))).payload
            except CallFailed as error:
                last = error
                continue
            self.received_bytes += len(data)
            return data
        raise last
