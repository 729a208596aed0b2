"""A source: feeds its share of microbatches into the ring, computes their loss, and takes the
embedding's gradient when they come back.

Credits are its only limit: so many microbatches in flight, and nobody down the ring ever refuses
one. Source: design section 3, protocol 3.9.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import TypeGuard

from swarmfree.policy.deadline import lateness
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import Loss, LossAnswer, Pull
from swarmfree.protocol.names import ENDS_STAGE, Side, WorkKey, WorkKind
from swarmfree.protocol.plan import Plan, Share
from swarmfree.protocol.ports import Incoming, Reply, Tokens, WaitingTokens
from swarmfree.protocol.records import Evaluation, Microloss, bits_float64, float64_bits
from swarmfree.protocol.routes import routes_of
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.pipeline.gradient_sums import GradientHalf, SumBook, SumKind
from swarmfree.trainer.pipeline.hop import Hop
from swarmfree.trainer.pipeline.tensor_digest import digest_of
from swarmfree.trainer.pipeline.work_table import FIRST_RUN, LOSS_RUN, Passage, WorkItem, WorkTable
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import Tasks

PULLS = 4
SMOOTHING = 0.2


@lru_cache(maxsize=16)
def _is_elsewhere(kind: type) -> bool:
    """Whether tokens of this class lie elsewhere. A look at a protocol takes some 70 µs, and every
    heartbeat asks.
    """
    return issubclass(kind, WaitingTokens)


def _are_waited_for(tokens: Tokens | None) -> TypeGuard[WaitingTokens]:
    return _is_elsewhere(type(tokens))  # type: ignore[arg-type]  # classes hash


async def microbatch_text(tokens: Tokens, number: int, place: int) -> bytes:
    """The tokens of a microbatch; of a corpus that lies elsewhere, once they are there."""
    if _are_waited_for(tokens):
        return await tokens.microbatch_once_there(number, place)
    return tokens.microbatch(number, place)


async def window_text(tokens: Tokens, number: int) -> bytes:
    """The tokens of a held-out window, as `microbatch_text`."""
    return await tokens.window_once_there(number) if _are_waited_for(tokens) else tokens.window(number)


class Source:
    """Handles Loss and drives this peer's share of the plan.

    Attributes:
        share_done: every microbatch of the share came back.
        evaluation: held-out loss of this plan's windows, once they came back.
        measured_s: smoothed seconds of each piece of work that a microbatch is at a source.
    """

    def __init__(
        self,
        context: Context,
        replica_state: ReplicaState,
        device: Device,
        book: SumBook,
        table: WorkTable,
        hop: Hop,
        tasks: Tasks,
        news: Callable[[], None],
    ) -> None:
        """Nothing to feed yet; `news` is called when the share or the evaluation is done."""
        self._context = context
        self._replica_state = replica_state
        self._device = device
        self._feeding = 0
        self._begun: set[int] = set()
        self._taken: set[int] = set()
        self._window_losses: dict[int, float] = {}
        self._windows_begun: set[int] = set()
        self._windows: tuple[int, ...] = ()
        self._followed: Plan | None = None
        self._book = book
        self._table = table
        self._hop = hop
        self._tasks = tasks
        self._news = news
        self._routes = routes_of(context.manifest)
        self._sums: dict[int, int] = {}
        self._embedded: set[int] = set()
        self._losses: dict[int, float] = {}
        self.share_done = False
        self.evaluation: Evaluation | None = None
        self.measured_s: dict[str, float] = {}

    @property
    def seconds_per_microbatch(self) -> float:
        """Compute of the embedding and the head, with their ways back, smoothed; 0 if not
        measured.
        """
        return sum(self.measured_s.values())

    def _measure(self, piece: str, seconds: float) -> None:
        last = self.measured_s.get(piece, seconds)
        self.measured_s[piece] = last + SMOOTHING * (seconds - last)

    def data_lateness(self) -> float:
        """How many times a read of a corpus that lies elsewhere has exceeded its limit; 0 = not
        yet.
        """
        tokens = self._context.ports.tokens
        if not _are_waited_for(tokens):
            return 0.0
        return lateness(tokens.waited_s(), (), self._context.timing.silence_s, alike=False)

    def losses(self) -> tuple[Microloss, ...]:
        """List the losses that this peer computed, by offset; the device adds meanwhile."""
        return tuple(Microloss(offset, float64_bits(loss)) for offset, loss in sorted(self._losses.copy().items()))

    def stop(self) -> None:
        """Stop feeding and forget the share. What the device is at may still end: it writes to what
        is forgotten here.
        """
        self._tasks.cancel_all()
        self._sums, self._embedded, self._losses = {}, set(), {}
        self._feeding, self._begun, self._taken, self._window_losses, self._windows_begun = 0, set(), set(), {}, set()
        self.share_done, self.evaluation, self._followed = False, None, None

    def follow(self, plan: Plan) -> None:
        """Start this plan's share, or the rest of it that an earlier plan of the same base did not
        contain.
        """
        self._followed = plan
        for share in plan.shares:
            if share.source != self._context.me or self._context.ports.tokens is None:
                # Nobody deals a share to a peer without a corpus but by mistake, or to harm it
                continue
            windows = tuple(window for window in share.windows if window not in self._windows_begun)
            offsets = tuple(offset for offset in share.offsets if offset not in self._begun)
            self._windows = share.windows
            self._sum_up()  # of fewer windows, where those are back already
            if self._begun and not offsets and not windows:
                continue
            self._begun.update(offsets)
            self._windows_begun.update(windows)
            self._taken.update(share.taken)
            self.share_done = False
            self._feeding += 1
            self._tasks.start(self._feed(plan, share, windows, offsets), f"share of iteration {plan.iteration}")

    async def loss(self, request: Loss, incoming: Incoming) -> Reply:
        """Compute the loss of one microbatch, and the gradient of the activations that came in."""
        key = request.key
        await self._replica_state.admit(key)
        tokens = self._context.ports.tokens
        if self._replica_state.stage != ENDS_STAGE or tokens is None:
            raise Refused(RefusalKind.STALE, "this peer is no source")
        if key.kind is WorkKind.TRAIN and self._replica_state.offset_of(key) not in self._begun:
            # Half a contribution, to which the other half never comes, would keep its whole sum
            # from being told.
            raise Refused(RefusalKind.STALE, "another source feeds this microbatch")
        entry = self._table.find(key, LOSS_RUN)
        if entry is None:
            activations = await incoming.read()
            self._replica_state.check(key)
            entry = self._table.begin(key, LOSS_RUN, lambda begun: self._loss_work(begun, activations, tokens))
        await self._table.outcome(entry)
        return Reply(LossAnswer(entry.loss_bits), entry.answer)

    async def _loss_work(self, entry: WorkItem, activations: bytes, tokens: Tokens) -> None:
        key, engine = entry.key, self._context.ports.engine
        if key.kind is WorkKind.EVALUATE:
            window = await window_text(tokens, key.microbatch)
            loss = await self._device.run(Rank.FORWARD, key.microbatch, lambda: engine.loss_only(activations, window))
            entry.loss_bits = float64_bits(loss)
            return
        offset, sums, losses = self._replica_state.offset_of(key), self._sums, self._losses
        text = await microbatch_text(tokens, key.microbatch, self._replica_state.place_of(key))

        def work() -> tuple[bytes, float]:
            number = self._number_for(offset, sums)
            found = engine.loss(activations, text, number)
            if self._context.audits:
                entry.digests |= {Passage.ENTERED: digest_of(activations), Passage.ANSWERED: digest_of(found[0])}
            # Before it counts: whoever sees it counted finds its loss, too
            losses[offset] = found[1]
            self._book.half(number, offset, GradientHalf.LOSS)
            return found

        (entry.answer, loss), seconds = await self._device.timed(Rank.BACKWARD, key.microbatch, work)
        self._measure("head", seconds)
        entry.loss_bits = float64_bits(loss)

    def _number_for(self, offset: int, sums: dict[int, int]) -> int:
        """Both halves of a microbatch go to one sum: that of the loss, and that of the embedding;
        `sums` is what was known of that when the work began, since the base may end while the
        device is at it.

        One that was dealt to another before, who may come back with it, has a sum of its own: so
        what sources have done can always be put together from disjoint sums.
        """
        if offset not in sums:
            sums[offset] = self._book.number_for(offset if offset in self._taken else SumKind.SURE, offset)
        return sums[offset]

    async def _feed(self, plan: Plan, share: Share, windows: tuple[int, ...], offsets: tuple[int, ...]) -> None:
        tokens, begun, is_over = self._context.ports.tokens, self._begun, False
        assert tokens is not None, "a share was dealt to a peer without tokens"
        try:
            if _are_waited_for(tokens):
                tokens.expect([self._replica_state.place_of(self._key(plan, offset)) for offset in offsets])
            if windows:
                losses = self._window_losses
                await self._in_flight(windows, share.credits, partial(self._evaluate, plan, tokens, losses))
                self._sum_up()
            await self._in_flight(offsets, share.credits, partial(self._drive, plan, tokens))
        except* Refused as refusals:
            # The base ended under the share: the books have moved on, and a new share comes with
            # the next Open.
            _, other = refusals.split(lambda e: isinstance(e, Refused) and e.kind in {RefusalKind.PAST, RefusalKind.STALE})
            if other is not None and not self._tasks.is_closed:  # else this peer ends
                raise other from None
            is_over = True
        if is_over:
            self._put_back(begun, offsets, windows)
            # Or it has not: who refused may be of another side, and no Open comes for that
            await asyncio.sleep(self._context.timing.heartbeat_s)
            if begun is self._begun and self._followed is not None and not self._tasks.is_closed:
                self.follow(self._followed)
        if begun is self._begun:
            self._feeding -= 1
            if not self._feeding:
                self.share_done = True
                self._news()

    def _sum_up(self) -> None:
        """Tell the mean over the newest plan's windows once each has come back; of none, nothing:
        others tell of those that it had before.
        """
        losses, windows = self._window_losses, self._windows
        if not windows:
            self.evaluation = None
        is_told = self.evaluation is not None and self.evaluation.windows == windows
        if windows and not is_told and all(window in losses for window in windows):
            mean = sum(losses[window] for window in windows) / len(windows)
            self.evaluation = Evaluation(float64_bits(mean), len(windows), windows)
            self._news()

    def _put_back(self, begun: set[int], offsets: tuple[int, ...], windows: tuple[int, ...]) -> None:
        """Members that are another side's, or were for a while, end a share that goes on: it is
        begun anew.
        """
        if begun is self._begun:
            begun.difference_update(offsets)
            self._windows_begun.difference_update(set(windows) - self._window_losses.keys())

    async def _in_flight(self, numbers: tuple[int, ...], credits: int, one: Callable[[int], Awaitable[None]]) -> None:
        waiting = deque(numbers)

        async def lane() -> None:
            while waiting:
                await one(waiting.popleft())

        async with asyncio.TaskGroup() as group:
            for _ in range(min(credits, len(numbers))):
                group.create_task(lane())

    async def _drive(self, plan: Plan, tokens: Tokens, offset: int) -> None:
        key = self._key(plan, offset)
        place = self._replica_state.place_of(key)
        entry = self._table.begin(key, FIRST_RUN, lambda begun: self._drive_work(begun, tokens, place))
        await self._table.outcome(entry)

    def _key(self, plan: Plan, offset: int) -> WorkKey:
        number = plan.iteration * self._context.manifest.batch.most + offset
        return WorkKey(plan.iteration, plan.base, WorkKind.TRAIN, number, ENDS_STAGE)

    async def _drive_work(self, entry: WorkItem, tokens: Tokens, place: int) -> None:
        key, engine = entry.key, self._context.ports.engine
        text = await microbatch_text(tokens, key.microbatch, place)
        offset = self._replica_state.offset_of(key)
        if self._has_embedded(offset):
            # The share is begun anew, as its base has come back: only the loss's half may lack
            entry.output = await self._device.run(Rank.FORWARD, key.microbatch, lambda: engine.embed_only(text))
        else:
            await self._embedding_half(entry, text)
        if self._context.audits and Passage.SENT not in entry.digests:
            entry.digests[Passage.SENT] = digest_of(entry.output)
        await self._loss_half(key, offset)

    def _has_embedded(self, offset: int) -> bool:
        return offset in self._embedded

    async def _embedding_half(self, entry: WorkItem, text: bytes) -> None:
        key, engine, sums, embedded = entry.key, self._context.ports.engine, self._sums, self._embedded
        ticket, offset = key.microbatch, self._replica_state.offset_of(key)
        entry.output, seconds = await self._device.timed(Rank.FORWARD, ticket, lambda: engine.embed(ticket, text))
        self._measure("embedding", seconds)
        try:
            gradient = await self._round(key, offset, entry.output)
        except Refused:
            await self._device.run(Rank.BACKWARD, ticket, lambda: engine.forget(ticket))
            raise

        def work() -> None:
            number = self._number_for(offset, sums)
            engine.embed_backward(ticket, gradient, number)
            if self._context.audits:
                entry.digests |= {Passage.SENT: digest_of(entry.output), Passage.RETURNED: digest_of(gradient)}
            self._book.half(number, offset, GradientHalf.EMBEDDING)
            embedded.add(offset)

        _, seconds = await self._device.timed(Rank.BACKWARD, ticket, work)
        self._measure("embedding back", seconds)

    async def _loss_half(self, key: WorkKey, offset: int) -> bool:
        """Where another source computed this loss, and is gone: compute it again from the last
        stage's stored output.

        Returns:
            False where nobody has it any more; then the coordinator has the last stage redo it,
            which asks for its loss anew.
        """
        tokens, waits = self._context.ports.tokens, self._context.backoff_s()
        assert tokens is not None, "only a source drives"
        there = key.at(self._routes.route(key.microbatch).last)
        for _ in range(PULLS):
            for holder in self._hop.order(there.stage, offset):
                try:
                    if (entry := self._table.find(key, LOSS_RUN)) is None:
                        activations = (await self._context.call(holder, Pull(there, Side.OUTPUT))).payload
                        self._replica_state.check(key)
                        work = partial(self._loss_work, activations=activations, tokens=tokens)
                        entry = self._table.begin(key, LOSS_RUN, work)
                    await self._table.outcome(entry)
                except CallFailed as error:
                    if isinstance(error, Refused) and error.kind in {RefusalKind.PAST, RefusalKind.STALE}:
                        raise
                else:
                    return True
            await asyncio.sleep(next(waits))
        return False

    async def _round(self, key: WorkKey, offset: int, output: bytes) -> bytes:
        """Round the ring, as often as it takes: a stage without anybody is rebuilt under another
        base, which ends this work.
        """
        waits = self._context.backoff_s()
        trains = key.kind is WorkKind.TRAIN
        attempt_number, first = int(offset in self._taken and trains), self._routes.route(key.microbatch, trains=trains).first
        while True:
            try:
                return await self._hop.train(key.at(first), offset, output, self._context.here, attempt_number)
            except Refused as refusal:
                if refusal.kind is RefusalKind.PAST:
                    raise
            attempt_number = min(attempt_number + 1, 2)
            await asyncio.sleep(next(waits))

    async def _evaluate(self, plan: Plan, tokens: Tokens, losses: dict[int, float], window: int) -> None:
        key = WorkKey(plan.iteration, plan.base, WorkKind.EVALUATE, window, ENDS_STAGE)
        engine, text = self._context.ports.engine, await window_text(tokens, window)
        output = await self._device.run(Rank.FORWARD, window, lambda: engine.embed_only(text))
        await self._round(key, window, output)
        waits = self._context.backoff_s()
        while (entry := self._table.find(key, LOSS_RUN)) is None:
            if self._replica_state.source_of(key) != self._context.here:
                # The newest plan of this base has dealt it to another, who is asked for its loss
                self._windows_begun.discard(window)
                return
            await asyncio.sleep(next(waits))
            await self._round(key, window, output)
        await self._table.outcome(entry)
        losses[window] = bits_float64(entry.loss_bits)
