"""Virtual time: an asyncio event loop whose clock jumps to the next timer when nothing is ready.

What it is for: a rehearsal of minutes runs in a fraction of a second, a hang is an error with the
stack of every task, and the order of everything is a function of the program alone. asyncio keeps
tasks in sets (`TaskGroup`, `wait`); here tasks and futures hash to a counter, so that such a set
has the same order in every process. An *owner* (a peer) can be frozen, as SIGSTOP would: nothing of
it runs until thawed.

What it does not do: sockets, pipes, signals, threads. Real time never enters.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from pathlib import PurePath
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OWNER: ContextVar[str] = ContextVar("owner", default="")
"""Whose code is running: the name that `VirtualLoop.freeze` and `tasks_of` use. Empty for the
rehearsal itself.
"""

Timer = tuple[float, int, "Turn"]

_RESOLUTION_S = 1e-9


class StuckError(Exception):
    """The program in virtual time does not end; the text has the stack of every task."""


class DeadlockError(StuckError):
    """Every task waits and no timer is set: nothing can ever happen again."""


class HangError(StuckError):
    """A limit on virtual time or on steps was passed."""


class VirtualFuture(asyncio.Future[T]):
    """A future that hashes to a counter, which whoever makes it sets."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class VirtualTask(asyncio.Task[T]):
    """A task that hashes to a counter and knows its owner."""

    __slots__ = ("number", "owner")

    def __init__(
        self, work: Coroutine[Any, Any, T], *, loop: VirtualLoop, name: str, context: Context | None, number: int
    ) -> None:
        """Number it; the owner is that of `context`, or of the code that makes the task."""
        self.number = number
        self.owner = OWNER.get() if context is None else context.get(OWNER, "")
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number


class Turn:
    """One call that the loop is to make, soon or at a time: what asyncio's handles are, and no
    more; most of a rehearsal's time goes by here.
    """

    __slots__ = ("args", "callback", "context", "is_cancelled", "when_s")
    _source_traceback = None  # asyncio looks for it
    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    is_cancelled: bool
    when_s: float

    def cancel(self) -> None:
        """It is not to be called."""
        if not self.is_cancelled:
            self.is_cancelled, self.callback, self.args = True, _nothing, ()

    def cancelled(self) -> bool:
        """Whether it is not to be called."""
        return self.is_cancelled

    def when(self) -> float:
        """Virtual time in seconds at which this turn is due."""
        return self.when_s


def _nothing() -> None:
    """Called in place of what was cancelled."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time: turns of its own, since asyncio's spend most of their time on
    input that never comes.

    Args:
        time_limit_s: virtual seconds after which it is a hang.
        step_limit: turns of the loop after which it is a hang.
        still_step_limit: turns of the loop without any passing of time after which it is a hang.
    """

    _ready: deque[Turn]
    _stopping: bool
    _scheduled: list[Timer]  # by time, then in the order in which they were set

    def __init__(self, *, time_limit_s: float = 3600.0, step_limit: int = 5_000_000, still_step_limit: int = 20_000) -> None:
        """Start at time zero."""
        super().__init__()
        self._now_s = 0.0
        self._time_limit_s, self._step_limit, self._still_step_limit = time_limit_s, step_limit, still_step_limit
        self.step_count, self._still_since, self._number, self._timer_number = 0, 0, 0, 0
        self._frozen: dict[str, tuple[list[Turn], list[Turn]]] = {}
        self._newly_frozen = False

    # -- time
    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now_s

    get_debug = staticmethod(bool)  # never; asyncio asks for each future and each task, and `bool` costs least

    def _jump(self, when_s: float) -> None:
        """To the time of the next timer."""
        self._now_s, self._still_since = when_s, self.step_count
        if when_s > self._time_limit_s:
            self._raise(HangError, f"virtual time passed {self._time_limit_s:g} s")

    def _require_progress(self) -> None:
        """No limit on steps is passed.

        Raises:
            HangError: one is.
        """
        if self.step_count - self._still_since > self._still_step_limit:
            self._raise(HangError, f"{self._still_step_limit} steps without any passing of time")
        if self.step_count > self._step_limit:
            self._raise(HangError, f"{self._step_limit} steps")

    def _run_once(self) -> None:
        """All steps until it is to stop: asyncio asks for one at a time, and again after each."""
        ready, scheduled, take, fall_due = self._ready, self._scheduled, self._ready.popleft, heapq.heappop
        while True:
            self.step_count += 1
            if self.step_count - self._still_since > self._still_step_limit or self.step_count > self._step_limit:
                self._require_progress()
            if self._frozen:
                self._park_ready()
                if self._newly_frozen:
                    self._newly_frozen = False
                    self._park_timers()
            while scheduled and scheduled[0][2].is_cancelled:
                fall_due(scheduled)
            if scheduled:
                when_s = scheduled[0][0]
                if when_s > self._now_s and not ready and not self._stopping:
                    self._jump(when_s)
                due_s = self._now_s + _RESOLUTION_S
                while when_s < due_s:
                    ready.append(fall_due(scheduled)[2])
                    if not scheduled:
                        break
                    when_s = scheduled[0][0]
            elif not ready and not self._stopping:
                self._raise(DeadlockError, "every task waits and no timer is set")
            for _ in range(len(ready)):
                turn = take()
                if turn.is_cancelled:
                    continue
                try:
                    turn.context.run(turn.callback, *turn.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio's handles do
                    self.call_exception_handler({"message": f"exception in {turn.callback!r}", "exception": error})
            if self._stopping:
                return

    def _raise(self, kind: type[StuckError], why: str) -> NoReturn:
        raise kind(f"at {self._now_s:.6f} s: {why}\n{self.stacks()}")

    # -- tasks
    def create_task(
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Make a task and number it."""
        self._number += 1
        work = cast("Coroutine[Any, Any, T]", coro)  # else asyncio says so
        return VirtualTask(work, loop=self, name=str(name or f"task {self._number}"), context=context, number=self._number)

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future and number it."""
        self._number += 1
        future: VirtualFuture[Any] = VirtualFuture(loop=self)
        future.number = self._number
        return future

    def _all_tasks(self) -> list[VirtualTask[Any]]:
        """Tasks that have not ended, oldest first."""
        return sorted((task for task in asyncio.all_tasks(self) if isinstance(task, VirtualTask)), key=lambda task: task.number)

    def tasks_of(self, owner: str) -> list[VirtualTask[Any]]:
        """Tasks of this owner that have not ended, oldest first."""
        return [task for task in self._all_tasks() if task.owner == owner]

    def stacks(self, owner: str | None = None) -> str:
        """Where every task (of one owner) waits, a line per task and one per frame, outermost
        first.
        """
        lines = []
        for task in self._all_tasks():
            if owner is None or task.owner == owner:
                lines.append(f"  {task.owner or '-'}: {task.get_name()}")
                lines.extend(f"      {frame}" for frame in _frames(task.get_coro()))
        return "\n".join(lines) or "  (no task)"

    # -- freezing
    def freeze(self, owner: str) -> None:
        """Stop everything of this owner, as SIGSTOP does; takes effect with the next turn of the
        loop.
        """
        assert owner, "the rehearsal itself cannot be frozen"
        self._frozen.setdefault(owner, ([], []))
        self._newly_frozen = True

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Turn:  # type: ignore[override]
        """As asyncio's, without its looks for a closed loop."""
        turn = Turn()
        turn.callback, turn.args, turn.is_cancelled = callback, args, False
        turn.context = contextvars.copy_context() if context is None else context
        self._ready.append(turn)
        return turn

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Turn:
        """Call back after `delay` virtual seconds."""
        return self._timer(self._now_s + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Turn:
        """Call back at a virtual time in seconds."""
        return self._timer(when, callback, args, context)

    def _timer(self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> Turn:
        """One of a frozen owner is put aside at once, so that nobody has to look for it among all
        the others.
        """
        timer = Turn()
        timer.callback, timer.args, timer.is_cancelled = callback, args, False
        timer.when_s, timer.context = when_s, contextvars.copy_context() if context is None else context
        if self._frozen and (parked := self._frozen.get(_owner_of(timer))) is not None:
            parked[1].append(timer)
        else:
            self._timer_number += 1
            heapq.heappush(self._scheduled, (when_s, self._timer_number, timer))
        return timer

    def _schedule(self, timer: Turn) -> None:
        self._timer_number += 1
        heapq.heappush(self._scheduled, (timer.when_s, self._timer_number, timer))

    def thaw(self, owner: str) -> None:
        """Let it go on: what became ready meanwhile runs, and every timer that is overdue fires."""
        ready, timers = self._frozen.pop(owner, ([], []))
        self._ready.extend(ready)
        for timer in timers:
            if not timer.is_cancelled:
                self._schedule(timer)

    def _park_ready(self) -> None:
        ready = list(self._ready)
        self._ready.clear()
        for turn in ready:
            parked = self._frozen.get(_owner_of(turn))
            if parked is None:
                self._ready.append(turn)
            else:
                parked[0].append(turn)

    def _park_timers(self) -> None:
        kept = []
        for entry in sorted(self._scheduled):
            timer = entry[2]
            parked = self._frozen.get(_owner_of(timer))
            if parked is None:
                kept.append(entry)
            else:
                parked[1].append(timer)
        self._scheduled[:] = kept  # sorted, and so a heap

    # -- ending
    def abandon(self) -> None:
        """Cancel every task that is left and let it end; one that does not is dropped."""
        for owner in tuple(self._frozen):
            self.thaw(owner)
        for task in self._all_tasks():
            task.cancel()
        self._still_since = self.step_count
        self._step_limit = self.step_count + self._still_step_limit
        try:
            self.run_until_complete(self._until_no_task())
        except StuckError:
            for task in self._all_tasks():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001

    async def _until_no_task(self) -> None:
        while len(self._all_tasks()) > 1:
            await asyncio.sleep(0.1)

    # -- what asyncio asks of a loop with sockets
    def _write_to_self(self) -> None:
        """There is no thread to wake."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        """Threads have no place in virtual time.

        Raises:
            AssertionError: always.
        """
        del executor, func, args
        raise AssertionError("no threads in virtual time: device work goes through the Executor port")


def _owner_of(turn: Turn) -> str:
    return turn.context.get(OWNER, "")


def _frames(work: Any) -> list[str]:
    """Where a suspended coroutine stands, outermost first; a generator or future at the end is left
    out.
    """
    found = []
    while work is not None and getattr(work, "cr_frame", None) is not None:
        code = work.cr_code
        place = "/".join(PurePath(code.co_filename).parts[-2:])
        found.append(f"{place}:{work.cr_frame.f_lineno} {code.co_qualname}")
        work = work.cr_await
    return found


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    time_limit_s: float = 3600.0,
    step_limit: int = 5_000_000,
    still_step_limit: int = 20_000,
) -> T:
    """Run `main()` in virtual time, in a fresh loop, and clean up behind it.

    Raises:
        DeadlockError: nothing can ever happen again.
        HangError: a limit was passed.
    """
    loop = VirtualLoop(time_limit_s=time_limit_s, step_limit=step_limit, still_step_limit=still_step_limit)
    try:
        return loop.run_until_complete(loop.create_task(main(), name="main"))
    finally:
        loop.abandon()
        loop.close()
