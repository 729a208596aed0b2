"""A body replica's work: forward, pass on, backward, remember; and the same again for repair,
without the ring.

Work is a pure function of its key: whoever asks gets the same answer. Source: design section 3,
protocol sections 3.5, 3.8, 3.9.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.messages import Loss, Pull, Pulled, Redo, Redone, Segment, Train, Trained
from swarmfree.protocol.names import ENDS_STAGE, Endpoint, Side, WorkKey, WorkKind
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.protocol.records import MicrobatchSet
from swarmfree.protocol.routes import Route, routes_of
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.pipeline.gradient_sums import SumBook, SumKind
from swarmfree.trainer.pipeline.hop import Hop, gradient_of
from swarmfree.trainer.pipeline.tensor_digest import digest_of
from swarmfree.trainer.pipeline.work_table import FIRST_RUN, LOSS_RUN, Passage, WorkItem, WorkTable
from swarmfree.trainer.recovery.activation_log import ActivationLog
from swarmfree.trainer.replica_state import ReplicaState

SMOOTHING = 0.2
LOSS_ASKS = 8


class StageReplica:
    """Handles Train, Redo and Pull for the stage this peer holds.

    Attributes:
        seconds_per_microbatch: own compute of one microbatch, smoothed; 0 before the first.
    """

    def __init__(
        self,
        context: Context,
        replica_state: ReplicaState,
        device: Device,
        book: SumBook,
        table: WorkTable,
        hop: Hop,
        activation_log: ActivationLog,
    ) -> None:
        """Nothing measured yet."""
        self._context = context
        self._replica_state = replica_state
        self._device = device
        self._book = book
        self._table = table
        self._hop = hop
        self._activation_log = activation_log
        self._routes = routes_of(context.manifest)
        self._tickets = itertools.count()
        self.seconds_per_microbatch = 0.0

    async def train(self, request: Train, incoming: Incoming) -> Reply:
        """Do the work of this key, join it, or answer again with what came of it."""
        key = request.key
        await self._replica_state.admit(key)
        if key.stage != self._replica_state.stage or key.stage == ENDS_STAGE:
            raise Refused(RefusalKind.STALE, f"this peer serves stage {self._replica_state.stage}, not {key.stage}")
        run = _run_of(request.segment)
        entry = self._table.find(key, run)
        if entry is None:
            activations = await incoming.read()
            self._replica_state.check(key)
            entry = self._table.begin(key, run, lambda begun: self._work(begun, request, activations))
        await self._table.outcome(entry)
        return Reply(Trained(), entry.answer)

    async def redo(self, request: Redo) -> Reply:
        """Do the segments that begin here; each pulls its input from a holder."""
        plan = self._replica_state.plan
        if plan is None or request.base != self._replica_state.base:
            raise Refused(RefusalKind.STALE, "redo for another base")
        first_microbatch = self._replica_state.first_microbatch
        done: list[int] = []
        gone: list[tuple[int, int]] = []

        async def one(segment: Segment) -> None:
            number = first_microbatch + segment.offset
            route = self._routes.route(number)
            key = WorkKey(plan.iteration, request.base, WorkKind.TRAIN, number, route.at(segment.first))
            try:
                entry = self._table.begin(key, _run_of(segment), lambda begun: self._redo_work(begun, segment))
                await self._table.outcome(entry)
            except Refused as refusal:
                # What was pulled may be of no use
                if refusal.kind in {RefusalKind.GONE, RefusalKind.FAILED}:
                    gone.extend((segment.offset, stage) for stage in _body_neighbours(segment, route))
            else:
                done.append(segment.offset)

        async with asyncio.TaskGroup() as group:
            for segment in request.segments:
                group.create_task(one(segment))
        return Reply(Redone(MicrobatchSet.of(done), tuple(sorted(gone))))

    async def pull(self, request: Pull) -> Reply:
        """Return a stored output or answer, of the present iteration or from the activation log.

        Raises:
            Refused: `gone`.
        """
        if request.key.iteration < self._replica_state.iteration:
            data = await self._activation_log.find(request.key, request.side)
            if data is None:
                raise Refused(RefusalKind.GONE, f"no {request.side} of iteration {request.key.iteration} is kept here")
            return Reply(Pulled(), data)
        await self._replica_state.admit(request.key)
        of_loss = request.key.stage == ENDS_STAGE and request.side is not Side.OUTPUT
        entry = self._table.find(request.key, LOSS_RUN) if of_loss else self._table.stored(request.key)
        if entry is None or not entry.finished:
            raise Refused(
                RefusalKind.GONE, f"nothing stored for microbatch {request.key.microbatch} at stage {request.key.stage}"
            )
        data = entry.output if request.side is Side.OUTPUT else entry.answer
        if not data:
            raise Refused(RefusalKind.GONE, f"no {request.side} of microbatch {request.key.microbatch} is kept here")
        return Reply(Pulled(), data)

    async def _work(self, entry: WorkItem, request: Train, activations: bytes) -> None:
        key, engine = entry.key, self._context.ports.engine
        if request.segment is None and request.attempt_number:
            await self._await_next_stage(key)
        if key.kind is WorkKind.EVALUATE:
            output = await self._device.run(Rank.FORWARD, key.microbatch, lambda: engine.forward_only(activations))
            await self._onward(entry, request, output)
            return
        ticket = next(self._tickets)
        entry.output, forward_s = await self._device.timed(
            Rank.FORWARD, key.microbatch, partial(self._forward, entry, ticket, activations)
        )
        try:
            gradient = await self._onward(entry, request, entry.output)
        except CallFailed:
            await self._device.run(Rank.BACKWARD, key.microbatch, lambda: engine.forget(ticket))
            raise
        offset = self._replica_state.offset_of(key)
        kind: SumKind | int | None
        if request.segment is not None:
            kind = request.segment.number if key.stage in request.segment.wanted else None
        else:
            kind = SumKind.SURE if request.attempt_number == 0 else SumKind.RETRIED
        entry.answer, backward_s = await self._device.timed(
            Rank.BACKWARD, key.microbatch, partial(self._backward_noted, entry, ticket, gradient, kind, offset)
        )
        self._measure(forward_s + backward_s)

    async def _await_next_stage(self, key: WorkKey) -> None:
        """Compute nothing for a stage that is lost: the base ends with it, and this device may have
        to give its state to whoever rebuilds it.
        """
        after = self._routes.route(key.microbatch, trains=key.kind is WorkKind.TRAIN).after(key.stage)
        if after != ENDS_STAGE and self._hop.is_lost(after):
            await asyncio.sleep(self._context.timing.hold_s)

    def _forward(self, entry: WorkItem, ticket: int, activations: bytes) -> bytes:
        output = self._context.ports.engine.forward(ticket, activations)
        if self._context.audits:
            entry.digests |= {Passage.ENTERED: digest_of(activations), Passage.SENT: digest_of(output)}
        return output

    def _backward_noted(self, entry: WorkItem, ticket: int, gradient: bytes, kind: SumKind | int | None, offset: int) -> bytes:
        answer = self._backward(ticket, gradient, kind, offset)
        if self._context.audits:
            entry.digests |= {Passage.RETURNED: digest_of(gradient), Passage.ANSWERED: digest_of(answer)}
        return answer

    def _backward(self, ticket: int, gradient: bytes, kind: SumKind | int | None, offset: int) -> bytes:
        """Add to the sum of this kind; None: to none, only the gradient of the input is wanted."""
        number = self._book.number_for(SumKind.SPARE if kind is None else kind, offset)
        whole = False
        try:
            answer = self._context.ports.engine.backward(ticket, gradient, number)
            if kind is not None:
                self._book.enter(number, offset)
                whole = True
        finally:
            if not whole:
                self._book.void(number)
        return answer

    async def _redo_work(self, entry: WorkItem, segment: Segment) -> None:
        before = entry.key.at(self._routes.route(entry.key.microbatch).at(segment.first - 1))
        activations = await self._pull_from(segment.before, before, Side.OUTPUT)
        request = Train(entry.key, 1, segment.after, segment)
        await self._work(entry, request, activations)

    async def _onward(self, entry: WorkItem, request: Train, output: bytes) -> bytes:
        key, segment = entry.key, request.segment
        route = self._routes.route(key.microbatch, trains=key.kind is WorkKind.TRAIN)
        after = route.after(key.stage)
        if segment is not None:
            position = route.position(key.stage)
            if position == segment.last and after == ENDS_STAGE:
                return await self._loss(request, key.at(ENDS_STAGE), output)
            if position == segment.last:
                answer = await self._pull_from(segment.after, key.at(after), Side.ANSWER)
                return gradient_of(output, answer, segment.after)
            redoer = segment.redoers[position + 1 - segment.first]
            onward = Train(key.at(after), request.attempt_number, request.source, segment)
            return gradient_of(output, (await self._hop.calls.call(redoer, onward, output)).payload, redoer)
        if after == ENDS_STAGE:
            return await self._loss(request, key.at(ENDS_STAGE), output)
        offset = self._replica_state.offset_of(key)
        return await self._hop.train(key.at(after), offset, output, request.source, request.attempt_number)

    async def _loss(self, request: Train, key: WorkKey, output: bytes) -> bytes:
        """Ask whoever feeds this microbatch now: a share goes to another source when the first one
        dies.
        """
        again = request.segment is not None
        waits = self._context.backoff_s()
        source = request.source
        for _ in range(LOSS_ASKS):
            source = self._replica_state.source_of(key) or request.source
            try:
                reply = await self._hop.calls.call(source, Loss(key), output, header_first=again)
                return gradient_of(output if key.kind is WorkKind.TRAIN else b"", reply.payload, source)
            except Refused as refusal:
                if refusal.kind in {RefusalKind.PAST, RefusalKind.EXHAUSTED}:
                    raise
            except CallFailed:
                again = True
            await asyncio.sleep(next(waits))
        raise Refused(RefusalKind.EXHAUSTED, f"source {source.member} does not answer")

    async def _pull_from(self, holder: Endpoint, key: WorkKey, side: Side) -> bytes:
        try:
            return (await self._context.call(holder, Pull(key, side))).payload
        except (PeerUnreachable, PeerSilent):
            return (await self._context.call(holder, Pull(key, side))).payload

    def forget_pace(self) -> None:
        """What was measured is of other blocks."""
        self.seconds_per_microbatch = 0.0

    def _measure(self, seconds: float) -> None:
        last = self.seconds_per_microbatch
        self.seconds_per_microbatch = seconds if last == 0 else last + SMOOTHING * (seconds - last)


def _run_of(segment: Segment | None) -> int:
    """A redo is a run of its own, whatever came of the first."""
    return FIRST_RUN if segment is None else FIRST_RUN + segment.number


def _body_neighbours(segment: Segment, route: Route) -> list[int]:
    return [stage for stage in (route.at(segment.first - 1), route.at(segment.last + 1)) if stage != ENDS_STAGE]
