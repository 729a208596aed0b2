"""Copying a stage's state while training goes on: nobody waits for whoever copies, a joiner or a
keeper of the ends.

Parts come from several donors, each at the iteration it is at just then. The optimizer is
elementwise, so a part that has arrived is stepped alone, by the average of each iteration that
commits meanwhile; a part that has not needs no history. An average that nobody keeps any more costs
that part a second download. Source: protocol section 3.10. Differs: averages are pulled by the
joiner, not pushed by the parts' owners.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from swarmfree.policy.answer_checks import fitting_record
from swarmfree.policy.block_split import split_after
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import CallFailed, PeerSilent, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.messages import GetAverage, GetRecord, GetState, RecordAnswer, State
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.recovery.hedged_calls import BRIEF_S, Asked, HedgedCalls
from swarmfree.trainer.tasks import each

LOOK_S = 0.05
LOOK_MAX_S = 0.4
RECORD_S = 1.0
"""A record of another donor is of less use, where that is behind."""
CUT_ANEW = "the model was cut anew meanwhile"
AVERAGES_IN_FLIGHT = 8
STEPPED_BYTES = 4 << 20
"""Averages that are here, of one piece of device work, which passes wait for."""
IDLE_SILENCES = 4
"""A copy that nobody brings further for so many times `silence_s` has come to nothing."""


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """Target of a state download: the engine to fill, and how much of the peer the download may
    use.

    Args:
        engine: that holds the stage, blank.
        device: the peer's; all its engines share it.
        rank: of the copy's device work.
        lanes: parts in flight.
        parts: number as the donors count it -> as the engine does, of those that are wanted; None =
            all, and both count alike.
    """

    engine: Engine
    device: Device
    rank: Rank = Rank.BOOKS
    lanes: int = 2
    parts: Mapping[int, int] | None = None

    def own(self, part: int) -> int:
        """Number of one part as the engine counts it."""
        return part if self.parts is None else self.parts[part]


class StateCopy:
    """One download of a stage's state while training goes on.

    Attributes:
        donors: live replicas of the stage; never empty.
        level: the iteration that every part is ready for, once `run` has returned.
        record: the one before it; None before the first.
        received_bytes: what came from donors.
        past: iteration -> lineage, what whoever ordered the copy knows, and what was stepped by
            since.
    """

    def __init__(
        self,
        context: Context,
        place: CopyTarget,
        stage: int,
        donors: Sequence[Endpoint],
        iteration: int,
        record: Record | None,
        decided: Callable[[], Record | None] | None = None,
    ) -> None:
        """Nothing is here yet.

        Args:
            iteration, record: where the swarm is as the copy begins.
            decided: the newest record that this peer has stepped by, where it is a member; else
                donors are asked for theirs.
        """
        self._context = context
        self._place = place
        self._stage, self._decided = stage, decided
        self.donors = tuple(donors)
        self._versions: dict[int, int] = {}
        self._waiting = deque[int]()
        self.level = iteration
        self.record = record
        self.received_bytes = 0
        self.past: dict[int, str] = {}
        self._turn = 0
        self._parts = HedgedCalls(context, context.timing.coordinator_silence_s, is_needed=True)
        self._averages = HedgedCalls(context, BRIEF_S, larger=self._parts)
        self._records = HedgedCalls(context, RECORD_S, late_last=False)
        self._ahead: dict[int, tuple[str, bytes]] = {}  # part -> digest of the sum that it is of, and its average
        self._first: Reply | None = None
        self._is_other = self._is_cut = False
        # The ends are the same however the body is cut
        self._split = () if stage == ENDS_STAGE else split_after(record, context.manifest).counts

    async def begin(self) -> None:
        """Have the first part, before anything is given up for this copy: donors may be gone. Of
        a stage without blocks, which has none, their last record.

        Raises:
            CallFailed: no donor answers.
        """
        if self._split and not BlockSplit(self._split).blocks_of(self._stage):
            if await self._record(ABSENT) is None:
                raise PeerSilent(f"no donor of stage {self._stage} tells its last record")
            return

        async def keep(_: Asked, reply: Reply) -> None:
            self._first = reply

        await self._parts.ask(partial(self._in_turn, 0), partial(self._of_part, 0), keep)

    def missing(self, iteration: int) -> int:
        """How many parts are not here as of this iteration, or of a later one."""
        return sum(version < iteration for version in self._versions.values())

    async def run(self) -> None:
        """Download all parts and step them until all are at the newest committed iteration.

        Raises:
            CallFailed: no donor answers, or one stands on another record than whoever ordered the
                copy.
        """
        self.begin_all()
        await self.catch_up()

    def begin_all(self) -> None:
        """All parts are to be downloaded."""
        place = self._place
        numbers = range(place.engine.part_count(self._stage)) if place.parts is None else place.parts
        self._versions = dict.fromkeys(numbers, ABSENT)
        self._waiting.extend(self._versions)

    async def catch_up(self) -> None:
        """Download the parts that are missing, and step all until they are at the newest committed
        iteration; again and again, for whoever follows the donors.

        Raises:
            CallFailed: as `run` does.
        """
        seen, since_s = None, self._context.now_s()
        while True:
            failed: list[CallFailed] = []
            async with asyncio.TaskGroup() as group:
                lanes = [
                    group.create_task(self._lane(turn, failed)) for turn in range(min(self._place.lanes, len(self._waiting)))
                ]
                while not all(lane.done() for lane in lanes) and not failed:
                    await self._advance()
                    await asyncio.wait(lanes, timeout=LOOK_S)
            if failed:
                raise failed[0]
            await self._advance()
            if self._is_other:
                raise Refused(
                    RefusalKind.DISPUTED, f"a donor of stage {self._stage} is of another lineage than whoever ordered the copy"
                )
            if self._is_cut:
                raise Refused(RefusalKind.GONE, CUT_ANEW)
            # A part may have come from a donor that was already further than what this peer has
            # heard of.
            if not self._waiting and all(version == self.level for version in self._versions.values()):
                return
            if seen != (seen := (self.level, *self._versions.values())):
                since_s = self._context.now_s()
            elif self._context.now_s() - since_s > IDLE_SILENCES * self._context.timing.silence_s:
                raise PeerSilent(f"no donor of stage {self._stage} brings its parts to one iteration")
            await asyncio.sleep(LOOK_S)

    async def _lane(self, turn: int, failed: list[CallFailed]) -> None:
        while self._waiting and not failed:
            part = self._waiting.popleft()
            try:
                await self._fetch(part, turn)
            except CallFailed as error:
                failed.append(error)

    async def _fetch(self, part: int, turn: int) -> None:
        """One part, from one donor or another, or at hand; a donor's death costs its transfer."""
        place, engine = self._place, self._place.engine

        async def write(asked: Asked, reply: Reply) -> int:
            iteration = reply.expect(State).iteration
            if isinstance(asked, GetState) and iteration < asked.iteration:
                raise ProtocolViolation(f"a donor gave its state at iteration {iteration}, of {asked.iteration}")
            await place.device.run(
                place.rank, part, partial(engine.write_state, place.own(part), reply.payload, weights_only=False)
            )
            self.received_bytes += len(reply.payload)
            return iteration

        if part == 0 and self._first is not None:
            reply, self._first = self._first, None
            with suppress(CallFailed):
                self._versions[part] = await write(self._of_part(part), reply)
                return
        self._versions[part] = await self._parts.ask(partial(self._in_turn, turn + part), partial(self._of_part, part), write)

    def _of_part(self, part: int) -> GetState:
        if self._is_cut:  # nobody has these blocks in this stage any more
            raise Refused(RefusalKind.GONE, CUT_ANEW)
        return GetState(self._stage, self.level, "", part, weights_only=False, split=self._split)

    def _of_average(self, record: Record, part: int) -> GetAverage:
        """A member that follows another stage's blocks waits for nobody's step."""
        sum_digest = record.stages[self._stage].sum_digest
        return GetAverage(record.iteration, sum_digest, part, at_once=self._decided is not None)

    def _in_turn(self, turn: int) -> Sequence[Endpoint]:
        """All donors, from this one on."""
        first = turn % len(self.donors) if self.donors else 0
        return (*self.donors[first:], *self.donors[:first])

    async def _advance(self) -> None:
        """Step the parts that are here by what was committed since."""
        newest = await self._newest()
        if self.record is not None:
            is_as_far = newest is not None and newest.iteration == self.record.iteration
            # Both are hashed only where they may differ
            if newest is not None and is_as_far and newest != self.record:
                self._is_other |= newest.lineage() != self.record.lineage()
            # Parts that were under way, from a donor that had not stepped yet
            await self._step_by(self.record)
        for part, version in self._versions.items():
            if ABSENT < version < self.level:
                self._again(part)
        while newest is not None and newest.iteration >= self.level:
            record = newest if newest.iteration == self.level else await self._record(self.level)
            if record is None:
                return
            if self._split:
                split = split_after(record, self._context.manifest)
                if split.blocks_of(self._stage) != BlockSplit(self._split).blocks_of(self._stage):
                    self._is_cut = True
                    return
                self._split = split.counts
            await self._step_by(record)
            if self.past.get(record.iteration) != record.before:
                self.past.clear()  # the donors are of another lineage than whoever ordered the copy
            lineage = record.lineage()
            self._is_other |= self.past.get(record.iteration + 1, lineage) != lineage  # than who joined it later
            self.past |= {record.iteration: record.before, record.iteration + 1: lineage}
            self.level, self.record = record.iteration + 1, record

    async def _newest(self) -> Record | None:
        """The newest record: this peer's own, where all parts are at one iteration. As long as any
        are under way a donor's, since what comes has to be of the same lineage.
        """
        is_here = not self._waiting and all(version == self.level for version in self._versions.values())
        if self._decided is not None and is_here:
            return self._decided()
        return await self._record(ABSENT)

    async def _step_by(self, record: Record) -> None:
        """Several parts at a time: one call and one piece of device work after the other could take
        longer than an iteration.
        """
        await self._step_ahead(record)
        while ready := deque(part for part, version in self._versions.items() if version == record.iteration):
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._place.lanes, len(ready))):
                    group.create_task(self._step_all(ready, record))

    async def _step_ahead(self, record: Record) -> None:
        """Step the parts whose averages were fetched before they were decided."""
        place, entry = self._place, record.stages[self._stage]
        ready = [
            (part, average)
            for part, (sum_digest, average) in self._ahead.items()
            if sum_digest == entry.sum_digest and self._versions[part] == record.iteration
        ]

        def step(some: Sequence[tuple[int, bytes]]) -> None:
            for part, average in some:
                place.engine.step_part(place.own(part), average, entry.scalars)

        at_once = max(1, STEPPED_BYTES // self._context.manifest.ring.part_bytes)
        while ready:
            some, ready = ready[:at_once], ready[at_once:]
            for part, _ in some:
                del self._ahead[part]
            try:
                await place.device.run(place.rank, 0, partial(step, some))
            except CallFailed:
                for part, _ in some:  # nobody knows how many were stepped
                    self._again(part)
            else:
                for part, _ in some:
                    self._versions[part] += 1

    async def _step_all(self, ready: deque[int], record: Record) -> None:
        while ready:
            await self._step(ready.popleft(), record)

    async def _step(self, part: int, record: Record) -> None:
        """A second download costs less than a donor's silence, in which all parts fall behind."""
        place, entry = self._place, record.stages[self._stage]
        request = self._of_average(record, part)

        async def step(_: Asked, reply: Reply) -> None:
            step_by = partial(place.engine.step_part, place.own(part), reply.payload, entry.scalars)
            await place.device.run(place.rank, part, step_by)
            self._versions[part] += 1
            self.received_bytes += len(reply.payload)

        try:
            self._ahead.pop(part, None)  # of a record that was not decided
            await self._averages.ask(partial(self._in_turn, part), lambda: request, step)
        except CallFailed:
            self._again(part)

    async def fetch_averages(self, record: Record) -> None:
        """Download the averages of an iteration that is about to be decided, and that all parts are
        ready for; they count only where that record is decided.

        Raises:
            CallFailed: not all could be had.
        """
        place, entry = self._place, record.stages[self._stage]
        held = {part for part, (sum_digest, _) in self._ahead.items() if sum_digest == entry.sum_digest}
        parts = [part for part in self._versions if part not in held]

        async def one(part: int) -> None:
            async def keep(_: Asked, reply: Reply) -> None:
                expected = place.engine.sum_bytes(place.own(part))
                if len(reply.payload) != expected:
                    raise ProtocolViolation(f"{len(reply.payload):,} bytes of an average; {expected:,} expected")
                self._ahead[part] = entry.sum_digest, reply.payload
                self.received_bytes += len(reply.payload)

            request = self._of_average(record, part)
            await self._averages.ask(partial(self._in_turn, part), lambda: request, keep)

        await each(parts, one, AVERAGES_IN_FLIGHT)

    def _again(self, part: int) -> None:
        """This part has fallen behind: it is downloaded once more."""
        self._versions[part] = ABSENT
        self._waiting.append(part)

    async def _record(self, iteration: int) -> Record | None:
        """Of one donor at a time, in turn: one that is behind is asked less often than those that
        are not.
        """
        self._turn += 1

        async def read(_: Asked, reply: Reply) -> Record:
            answer = reply.expect(RecordAnswer)
            record = fitting_record(answer.record, iteration, self._context.manifest.stage_count)
            if record is None:
                raise ProtocolViolation(f"the record of iteration {iteration} does not fit")
            return record

        try:
            return await self._records.ask(partial(self._in_turn, self._turn - 1), lambda: GetRecord(iteration), read)
        except CallFailed:
            return None


async def record_at(context: Context, donor: Endpoint, iteration: int) -> Record | None:
    """Fetch a donor's record of an iteration; None if the donor has none or does not answer."""
    try:
        answer = (await context.call(donor, GetRecord(iteration))).expect(RecordAnswer)
    except CallFailed:
        return None
    return fitting_record(answer.record, iteration, context.manifest.stage_count)
