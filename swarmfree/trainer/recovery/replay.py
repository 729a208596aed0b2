"""Replaying a lost stage: from its full shadow alone through the iterations since, by the
activation logs of the stages around it.

Bit for bit: the records say in which order gradients were added and with which numbers each step
was done, and their digests are compared at every iteration. On hardware that rounds otherwise, or
from logs that were packed, the result is near, and says so; it is given up where a sum's squared
norm is not within 1 % of its record's, or where sums of the stage were bit for bit until then,
since then it is something else that was computed. Adjacent lost stages are replayed together: each
builder runs all of them, since what crossed the boundaries between them is gone. Source: design
section 6, method 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from swarmfree.policy.block_split import split_after
from swarmfree.policy.recovery import NORM_OFF_MAX, norm_off
from swarmfree.policy.retention import replays_exactly
from swarmfree.protocol.actions import Replay
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import Build, GetShadow, ShadowPart
from swarmfree.protocol.names import Side, base_of
from swarmfree.protocol.records import Record, StageEntry
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.recovery.activation_log import ActivationLog
from swarmfree.trainer.recovery.logged_iterations import IN_FLIGHT, Around, Past, Tensors
from swarmfree.trainer.tasks import each

W = TypeVar("W")


class StageReplay:
    """One replay of a lost stage, or of adjacent ones, in engines of its own.

    Attributes:
        exact: so far every sum and state was that of the record.
    """

    def __init__(self, context: Context, device: Device, activation_log: ActivationLog, request: Build, action: Replay) -> None:
        """Nothing is here yet; the peer's engine holds the stage, blank."""
        self._context, self._device, self._activation_log = context, device, activation_log
        self._request, self._action = request, action
        self._past = Past(context, Around(action.first, action.last, action.before, action.after), activation_log)
        self._engines: dict[int, Engine] = {}
        self._lineage = ""
        self._shadow_bytes = 0
        self._in_order = replays_exactly(context.manifest)
        self._off = 0.0
        # Stages with a sum that was bit for bit: this builder rounds as their members did
        self._alike = set[int]()
        self.exact = self._in_order

    @property
    def received_bytes(self) -> int:
        """Bytes downloaded so far, from holders of shadows and from neighbours."""
        return self._shadow_bytes + self._past.received_bytes

    async def run(self) -> None:
        """Replay the stage from its shadow to the present iteration.

        Raises:
            CallFailed: something that is needed is not kept any more, or does not fit together.
        """
        action = self._action
        for stage in range(action.first, action.last + 1):
            self._engines[stage] = await self._engine_of(stage)
        await each(self._shadow_parts(), self._load, IN_FLIGHT)
        records = await self._records()
        self.exact = self._in_order or not records
        failed: list[CallFailed] = []
        begun_s = self._context.now_s()
        # One iteration ahead
        fetched: asyncio.Queue[tuple[Tensors, Tensors]] = asyncio.Queue(maxsize=1)

        async def fetch() -> None:
            for record in records:
                try:
                    activations = await self._past.activations(record)
                except CallFailed as error:
                    failed.append(error)
                    activations = {}, {}
                await fetched.put(activations)
                if failed:
                    return

        async def compute() -> None:
            for place, record in enumerate(records):
                activations = await fetched.get()
                if not failed:
                    try:
                        await self._iteration(record, records[place - 1] if place else None, *activations)
                        self._look_at_pace(place + 1, len(records), self._context.now_s() - begun_s)
                    except CallFailed as error:
                        failed.append(error)
                if failed:
                    fetching.cancel()
                    return

        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(fetch())
            group.create_task(compute())
        if failed:
            raise failed[0]
        if not self.exact:
            sums = f"each squared norm of its {len(records)} sums is within {100 * self._off:.2g} % of the record's"
            self._context.tell(Note(f"replay of stage {action.stage} is near, but not bit for bit, what it was: {sums}"))
        for stage, engine in self._engines.items():
            if stage != action.stage:
                await self._work(engine.unload)

    def _look_at_pace(self, done: int, count: int, spent_s: float) -> None:
        """Give up at once what would not be done in time: `done` of `count` iterations took
        `spent_s`, transfers included.
        """
        limit_s = self._context.timing.join_wait_s
        if done < count and spent_s / done * count > limit_s:
            each_s = spent_s / done
            raise Refused(
                RefusalKind.TOO_SLOW, f"a replay of {count} iterations at {each_s:.1f} s each, and {limit_s:g} s are the limit"
            )

    async def _engine_of(self, stage: int) -> Engine:
        if stage == self._action.stage:
            return self._context.ports.engine
        engine = await self._device.run(Rank.BOOKS, 0, self._context.ports.spare_engine)
        await self._work(partial(engine.follow, split_after(self._request.record, self._context.manifest)))
        await self._work(partial(engine.blank, stage))
        return engine

    async def _work(self, work: Callable[[], W]) -> W:
        return await self._device.run(Rank.BOOKS, 0, work)

    # ---- what is needed --------------------------------------------------------------------------

    def _shadow_parts(self) -> list[tuple[int, int]]:
        return [(stage, part) for stage, engine in self._engines.items() for part in range(engine.part_count(stage))]

    async def _load(self, which: tuple[int, int]) -> None:
        stage, part = which
        holder, engine = self._action.holders[stage - self._action.first], self._engines[stage]
        reply = await self._context.call(holder, GetShadow(stage, part, self._action.iteration))
        lineage = reply.expect(ShadowPart).lineage
        self._shadow_bytes += len(reply.payload)
        self._lineage = self._lineage or lineage
        if lineage != self._lineage:
            raise Refused(RefusalKind.FAILED, f"the shadow of stage {stage} stands on another record than the others")
        await self._work(partial(engine.write_state, part, reply.payload, weights_only=False))

    async def _records(self) -> list[Record]:
        """Those that the shadows lack, oldest first."""
        request, first = self._request, self._action.iteration
        found, lineage = await self._past.records(request.record, request.lineage, first)
        if self._lineage and lineage != self._lineage:
            raise Refused(RefusalKind.FAILED, f"the shadows are not of this lineage; iteration {first}")
        return found

    # ---- one iteration ---------------------------------------------------------------------------

    async def _iteration(self, record: Record, before: Record | None, entered: Tensors, returned: Tensors) -> None:
        """Every lost stage computes its gradients again, in the order of the record, and steps."""
        stages = list(self._engines)
        inputs = {stages[0]: entered}
        for stage in stages:
            await self._check_state(stage, record, before)
            if stage != stages[-1]:
                engine, here = self._engines[stage], inputs[stage]
                inputs[stage + 1] = {
                    offset: await self._work(partial(engine.forward_only, data)) for offset, data in here.items()
                }
        gradients = returned
        for stage in reversed(stages):
            gradients = await self._stage(record, stage, inputs[stage], gradients)

    async def _check_state(self, stage: int, record: Record, before: Record | None) -> None:
        entry, engine = record.stages[stage], self._engines[stage]
        goes_on = before is None or entry.step_count == before.stages[stage].step_count + 1
        if before is None or self.exact:
            # As long as every sum was that of its record, another state is no matter of rounding:
            # something else was put in its place.
            same = await self._work(engine.state_digest) == entry.state_digest
        else:
            # Else some stage was rebuilt here, and it may have been this one
            same = record.base == base_of(record.before, ())
        if not goes_on or not same:
            raise Refused(RefusalKind.FAILED, f"stage {stage} was rebuilt before iteration {record.iteration}, after its shadow")

    async def _check_sum(self, stage: int, record: Record, squared_norm: float) -> None:
        """Bit for bit as in the record, or near it; anything else is not what the swarm has added
        up.
        """
        entry, was_exact, where = record.stages[stage], self.exact, f"stage {stage}'s gradient in iteration {record.iteration}"
        self.exact = was_exact and await self._work(self._engines[stage].average_digest) == entry.sum_digest
        if self.exact:
            self._alike.add(stage)
            return
        if was_exact and stage in self._alike:
            raise Refused(RefusalKind.DISPUTED, f"{where} is another one than the record's, after others that were bit for bit")
        off = norm_off(squared_norm, entry.squared_norm)
        if not off <= NORM_OFF_MAX:
            found = f"{squared_norm:.6g} is not within {100 * NORM_OFF_MAX:g} % of the recorded {entry.squared_norm:.6g}"
            raise Refused(RefusalKind.DISPUTED, f"the squared norm of {where}: {found}")
        self._off = max(self._off, off)

    async def _stage(self, record: Record, stage: int, inputs: Tensors, gradients: Tensors) -> Tensors:
        """One stage's gradients, average and step; the gradients of what went in, by offset."""
        entry, engine, first = record.stages[stage], self._engines[stage], record.iteration * len(inputs)
        sums = entry.sums if self._in_order else ((tuple(sorted(inputs)),),)
        if sorted(offset for partial_sums in sums for order in partial_sums for offset in order) != sorted(inputs):
            raise Refused(RefusalKind.GONE, f"record {record.iteration} does not say how the sums of stage {stage} were added up")
        outputs: Tensors = {}
        answers: Tensors = {}
        contributors: list[list[int]] = []
        number = 0
        for partial_sums in sums:
            contributors.append([])
            for order in partial_sums:
                contributors[-1].append(number)
                for offset in order:
                    outputs[offset], answers[offset] = await self._device.run(
                        Rank.BOOKS, 0, partial(_there_and_back, engine, first + offset, inputs[offset], gradients[offset], number)
                    )
                number += 1
        squared_norm = await self._work(partial(_add_up, engine, engine.part_count(stage), contributors))
        await self._check_sum(stage, record, squared_norm)
        await self._work(partial(_step, engine, entry))
        if stage == self._action.stage:
            sides = ((Side.OUTPUT, outputs), (Side.ANSWER, answers))
            tensors = {(first + offset, side): data for side, found in sides for offset, data in found.items()}
            self._activation_log.keep(record.iteration, record.base, tensors)
        return answers


def _there_and_back(engine: Engine, ticket: int, data: bytes, gradient: bytes, partial_sum: int) -> tuple[bytes, bytes]:
    return engine.forward(ticket, data), engine.backward(ticket, gradient, partial_sum)


def _add_up(engine: Engine, part_count: int, contributors: list[list[int]]) -> float:
    """The average, part by part; its squared norm, part norms added in order of parts."""
    total = 0.0
    for part in range(part_count):
        average, squared_norm = engine.reduce([engine.contribution(numbers, part) for numbers in contributors])
        engine.keep_average(part, average)
        total += squared_norm
    return total


def _step(engine: Engine, entry: StageEntry) -> None:
    engine.step(entry.scalars)
    engine.clear()
