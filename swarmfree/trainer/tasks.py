"""Owned background work and wake-ups. Nothing here knows what the work is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Background work of one owner inside a `TaskGroup`: ends with the group, or when the owner says so."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        """Start nothing yet."""
        self._group = group
        self._running: dict[asyncio.Task[Any], None] = {}

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` in the background; an exception in it ends the whole group."""
        task = self._group.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    def cancel_all(self) -> None:
        """Cancel what still runs, oldest first."""
        for task in list(self._running):
            task.cancel()

    def __len__(self) -> int:
        return len(self._running)


class Signal:
    """Wakes everyone who waits when something changed; what changed is looked up, not carried."""

    def __init__(self) -> None:
        """Nothing has changed yet."""
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wake all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next `tell`; False when `timeout_s` ran out first."""
        event = self._event
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        return True
