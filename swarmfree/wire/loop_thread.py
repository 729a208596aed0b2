"""An event loop in a thread of its own, and how other loops ask it to do something. It knows
nothing of what is done there.

Child processes started in that loop get a process group of their own: Ctrl-C in a terminal is for
this program, which then ends its children in order.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
TICK_S = 0.25
_CLEAN_UP_LIMIT_S = 2.0
_log = logging.getLogger(__name__)


class ThreadEnded(Exception):
    """The thread is not there any more, or was never started."""


class LoopThread:
    """One thread with one loop. When it is stopped, whatever still runs in the loop is cancelled
    and the thread ends.
    """

    def __init__(self, name: str) -> None:
        """Name the thread; nothing runs yet."""
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._owned_tasks: set[asyncio.Task[Any]] = set()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    def start(self) -> None:
        """Start the thread. Called once."""
        assert self._loop is None, "a loop thread is started once"
        self._loop = _OwnGroupLoop()
        self._loop.set_exception_handler(_log_stray)
        # A daemon thread: a process that must end does not wait for the network.
        threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True).start()

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T] | None:
        """Run the coroutine that `make` makes in the loop; None if the thread has ended or was
        never started.
        """
        if self._loop is None or self._ended.done():
            return None
        begun = self._owned(make)
        try:
            return asyncio.run_coroutine_threadsafe(begun, self._loop)
        except RuntimeError:  # the loop was closed this moment
            begun.close()
            return None

    def tell(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the loop soon, if it still runs."""
        if self._loop is not None and not self._ended.done():
            with contextlib.suppress(RuntimeError):  # the loop was closed this moment
                self._loop.call_soon_threadsafe(callback)

    async def attempt(self, make: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T | BaseException:
        """Do something in the loop and wait for it here, at most `limit_s`; a failure of any kind
        is returned, not raised.

        The time is counted in ticks of this loop: a process that was stopped for a while has not
        waited meanwhile.
        """
        future = self.submit(make)
        if future is None:
            return ThreadEnded(f"{self._name} has ended")
        here = asyncio.wrap_future(future)
        try:
            for tick in range(math.ceil(limit_s / TICK_S)):
                if (await asyncio.wait((here,), timeout=min(TICK_S, limit_s - tick * TICK_S)))[0]:
                    break
        finally:
            here.cancel()  # if it is not done; the coroutine is cancelled in its own loop
        if here.cancelled():
            return TimeoutError(f"no answer from {self._name} within {limit_s:g} s")
        fault = here.exception()
        return here.result() if fault is None else fault

    async def stop(self, limit_s: float) -> bool:
        """Let the thread end and wait for it, at most `limit_s`; whether it has ended."""
        if self._loop is None:
            return True
        self.tell(self._stop.set)
        here = asyncio.wrap_future(_following(self._ended))
        await asyncio.wait((here,), timeout=limit_s)
        return self._ended.done()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._until_stopped())
        finally:
            self._ended.set_result(None)

    async def _owned(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that was submitted is a task"
        self._owned_tasks.add(task)
        try:
            return await make()
        finally:
            self._owned_tasks.discard(task)

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        for task in self._owned_tasks:
            # What was cancelled before is cleaning up: a second time would cut that short
            if not task.cancelling():
                task.cancel()
        if self._owned_tasks:
            await asyncio.wait(self._owned_tasks, timeout=_CLEAN_UP_LIMIT_S)
        assert isinstance(self._loop, _OwnGroupLoop), "the loop was made here"
        self._loop.drop_connections()
        await asyncio.sleep(0)


class _OwnGroupLoop(asyncio.SelectorEventLoop):
    """Starts every child process in a process group of its own, and knows the connections that a
    library leaves open.
    """

    def __init__(self) -> None:
        super().__init__()
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

    def _make_socket_transport(self, *args: Any, **options: Any) -> asyncio.Transport:
        transport: asyncio.Transport = super()._make_socket_transport(*args, **options)  # type: ignore[misc]  # asyncio's own hook
        self._connections.add(transport)
        return transport

    def drop_connections(self) -> None:
        """Close what is still open: streams to a daemon that died, for one, which hivemind
        forgets.
        """
        for transport in tuple(self._connections):
            if not transport.is_closing():
                transport.abort()

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        options.setdefault("process_group", 0)
        return await super().subprocess_exec(*args, **options)


def _following(future: concurrent.futures.Future[None]) -> concurrent.futures.Future[None]:
    """A future that ends with another and can be cancelled without harm to it."""
    follower: concurrent.futures.Future[None] = concurrent.futures.Future()

    def follow(_: concurrent.futures.Future[None]) -> None:
        if follower.set_running_or_notify_cancel():
            follower.set_result(None)

    future.add_done_callback(follow)
    return follower


def _log_stray(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tasks that a library left alone fail when a connection goes: no news for a person."""
    _log.debug("%s: %r", context.get("message"), context.get("exception"))
