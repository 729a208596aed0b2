"""The device: one piece of work at a time, backward before forward, older before newer; 1F1B
emerges without a table.

It does not know what the work is. Work already begun is never interrupted; work whose caller was
cancelled is skipped. It knows how long pieces of one rank take, and so when one is stuck: a hung
driver leaves the event loop alive, which would answer for a device that never will.

Several peers of one process share one device thread, each with a queue of its own. What the thread
does for another one counts as that one's work: here it is time before a piece has begun.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Hashable
from typing import Any, TypeVar

from swarmfree.policy.deadline import alike_limit_s, lateness, mixed_limit_s
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.ports import Clock, Executor

T = TypeVar("T")

MEASURED_MAX = 64


class Rank(enum.IntEnum):
    """Priority of device work; the lowest rank runs first, and a step as books are."""

    BOOKS = 0
    STEP = 1
    BACKWARD = 2
    FORWARD = 3
    IDLE = 4

    @property
    def line(self) -> Rank:
        """In which it waits, and by which it is measured."""
        return Rank.BOOKS if self is Rank.STEP else self


BESIDE = (Rank.BACKWARD, Rank.FORWARD, Rank.IDLE)
"""Work under which weights and moments stay as they are."""
BESIDE_AVERAGE = (None, Rank.STEP, *BESIDE)
"""Work under which a complete average stays as it is; none at all among it."""
ALIKE = (Rank.BACKWARD, Rank.FORWARD)
"""Ranks whose pieces are alike; under the others there is anything from a few bytes to a whole
state.
"""


class WorkFailed(CallFailed):
    """A piece of device work raised an exception."""


class Device:
    """A priority queue in front of the executor.

    `serve` must run in the peer's task group while `run` is used.
    """

    def __init__(self, executor: Executor, clock: Clock) -> None:
        """Nothing queued."""
        self._executor = executor
        self._clock = clock
        self._heap: list[tuple[Rank, int, int, Rank, Callable[[], Any], asyncio.Future[Any]]] = []
        self._reads: dict[Hashable, asyncio.Future[Any]] = {}  # that wait, or run in their turn
        self._sequence = itertools.count()
        self._filled = asyncio.Event()
        self._running: Rank | None = None
        self._has_begun = False
        self._ran_s, self._tick_s = 0.0, math.inf
        self._measured: dict[Rank, deque[float]] = {rank: deque(maxlen=MEASURED_MAX) for rank in Rank}
        self.done_count = 0

    async def run(self, rank: Rank, age: int, work: Callable[[], T]) -> T:
        """Run `work` on the device thread when its turn comes.

        Args:
            rank: what goes first.
            age: within a rank the smaller goes first, e.g. the microbatch's number.

        Raises:
            WorkFailed: `work` raised.
        """
        return await self._queued(rank, age, work)

    def _queued(self, rank: Rank, age: int, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (rank.line, age, next(self._sequence), rank, work, future))
        self._filled.set()
        return future

    async def timed(self, rank: Rank, age: int, work: Callable[[], T]) -> tuple[T, float]:
        """Run `work` like `run`, and also return the seconds that it took."""

        def measured() -> tuple[T, float]:
            begun_s = self._clock.now_s()
            return work(), self._clock.now_s() - begun_s

        return await self.run(rank, age, measured)

    async def read(self, what: Hashable, work: Callable[[], T], beside: Collection[Rank | None] = BESIDE) -> T:
        """Run `work` that only reads.

        While work of certain ranks runs, which changes nothing of that, it runs at once on this
        thread; else in turn, once for all calls for the same until it is done: somebody may have
        asked again and again while this peer stood still.

        Whoever rebuilds a stage does not wait for a long pass of its neighbours. Nothing else can
        begin meanwhile, so it must be short.

        Args:
            what: it reads, and for whom.
            beside: which ranks; None among them is no work at all.

        Raises:
            WorkFailed: `work` raised, in its turn; what it raised, at once.
        """
        if self._running in beside:
            return work()
        future = self._reads.get(what)
        if future is None:
            future = self._reads[what] = self._queued(Rank.BOOKS, 0, work)
            future.add_done_callback(lambda _: self._reads.pop(what))
        result: T = await asyncio.shield(future)
        return result

    async def serve(self) -> None:
        """Run for ever: do queued work, the lowest rank first."""
        while True:
            while not self._heap:
                self._filled.clear()
                await self._filled.wait()
            *_, rank, work, future = heapq.heappop(self._heap)
            await self._do(rank, work, future)
            del work, future

    async def _do(self, rank: Rank, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        """One piece; an idle device keeps nothing of what it has done, or what was cancelled."""
        if not future.done():
            begun_s = self._clock.now_s()
            self._running, self._ran_s, self._has_begun = rank, 0.0, False
            try:
                result = await self._executor.run(self._noted(work))
            except Exception as error:  # noqa: BLE001 - whatever the work raised belongs to whoever asked for it
                if not future.done():
                    failure = WorkFailed(f"{type(error).__name__}: {error}")
                    failure.__cause__ = error
                    future.set_exception(failure)
            else:
                if not future.done():
                    future.set_result(result)
            # Without the time for which the process stood still: a later piece might hang as long
            took_s = min(self._clock.now_s() - begun_s, self._ran_s + self._tick_s)
            self.done_count += 1
            self._measured[rank.line].append(took_s)
            self._running = None

    def _noted(self, work: Callable[[], T]) -> Callable[[], T]:
        """Work that says when it begins: the executor may have something else to do first."""

        def noted() -> T:
            self._has_begun = True
            return work()

        return noted

    def count_tick(self, tick_s: float, least_s: float) -> str:
        """Count `tick_s` of this peer's own time; return why the device is stuck, empty while it is
        not.

        Time is counted, not read from a clock: a process that was stopped has not computed
        meanwhile.

        Args:
            tick_s: since the last tick.
            least_s: see `policy.deadline`.
        """
        self._tick_s = tick_s
        if self._running is None or not self._has_begun:
            return ""
        self._ran_s += tick_s
        if self._ran_s <= least_s:
            return ""
        limit_s = alike_limit_s if self._running in ALIKE else mixed_limit_s
        most_s = limit_s(self._measured[self._running.line], least_s)
        if self._ran_s <= most_s:
            return ""
        return f"a {self._running.name.lower()} piece of work has run for {self._ran_s:.0f} s, {most_s:.0f} s is the most"

    def lateness(self, silence_s: float) -> float:
        """How many times the present piece of work has exceeded its limit, by counted time; 0 = not
        yet.
        """
        if self._running is None or not self._has_begun:
            return 0.0
        return lateness(self._ran_s, self._measured[self._running.line], silence_s, alike=self._running in ALIKE)
