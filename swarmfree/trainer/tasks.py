"""Owned background work and wake-ups. Nothing here knows what the work is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused

W = TypeVar("W")


class Tasks:
    """Background work of one owner inside a `TaskGroup`; it ends with the group or with its
    owner.
    """

    def __init__(self, group: asyncio.TaskGroup) -> None:
        """Start nothing yet."""
        self._group = group
        self._running: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` in the background; an exception in it ends the whole group.

        Raises:
            Refused: `gone`, the owner has ended; a call that is still being answered may come to
                this.
        """
        if self._closed:
            work.close()
            raise Refused(RefusalKind.GONE, "this peer ends")
        task = self._group.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task

    @property
    def is_closed(self) -> bool:
        """Whether the owner has ended."""
        return self._closed

    def cancel_all(self) -> None:
        """Cancel all running tasks, oldest first."""
        for task in list(self._running):
            task.cancel()

    async def end_all(self) -> None:
        """Cancel all running tasks, and wait until they have ended."""
        running = list(self._running)
        self.cancel_all()
        if running:
            await asyncio.wait(running)

    def close(self) -> None:
        """Cancel all running tasks and refuse new ones, so that the group can end."""
        self._closed = True
        self.cancel_all()

    def __len__(self) -> int:
        return len(self._running)


class Signal:
    """Wakes all tasks that wait for a change; they look up what has changed.

    Attributes:
        count: how often it was told; who was busy meanwhile sees by it that it has missed
            something.
    """

    def __init__(self) -> None:
        """Nobody waits yet."""
        self._waiting: dict[asyncio.Future[bool], None] = {}
        self.count = 0

    def tell(self) -> None:
        """Wake all tasks that wait now."""
        self.count += 1
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            _wake(waiter, told=True)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next `tell`; False if `timeout_s` passed first."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = None
        timer = loop.call_later(timeout_s, partial(_wake, waiter, told=False)) if timeout_s is not None else None
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(waiter, None)


def _wake(waiter: asyncio.Future[bool], *, told: bool) -> None:
    if not waiter.done():
        waiter.set_result(told)


async def within(limit_s: float | None, work: Awaitable[W]) -> W:
    """Wait for `work`, at most so many seconds; None: as long as it takes.

    Raises:
        TimeoutError: it took longer, and was cancelled.
    """
    if limit_s is None:
        return await work
    async with asyncio.timeout(limit_s):
        return await work


async def each(work: Iterable[W], one: Callable[[W], Awaitable[object]], in_flight: int | None = None) -> None:
    """Run `one` for each piece of work, in order, at most `in_flight` at a time (None: all of
    them).

    After a failure no further piece is begun.

    Raises:
        CallFailed: the first one.
    """
    waiting, failed = deque(work), list[CallFailed]()

    async def lane() -> None:
        while waiting and not failed:
            try:
                await one(waiting.popleft())
            except CallFailed as error:
                failed.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(len(waiting) if in_flight is None else min(in_flight, len(waiting))):
            group.create_task(lane())
    if failed:
        raise failed[0]
