"""Threads for reads that may wait for minutes: they end with the process, which does not wait for
them, as it would for those of `concurrent.futures`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonPool:
    """A few threads that do what they are given, in that order.

    Args:
        threads: at most so many, each started once there is work for it.
        name: of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        """No thread runs yet."""
        self._threads, self._name = threads, name
        self._work = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()
        self._begun = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have it done by the next thread that is free."""
        future = Future[T]()
        self._work.put((future, work))
        with self._lock:
            if self._begun < self._threads:
                self._begun += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._begun}", daemon=True).start()
        return future

    def close(self) -> None:
        """Each thread ends behind the work that was given before."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            with _ToldTo(future):
                future.set_result(work())
            del future, work, item


class _ToldTo:
    """Whatever the block raises is raised where its future is waited for: else that would be for
    ever.
    """

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
