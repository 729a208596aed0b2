"""What hivemind's control connection to p2pd remembers of calls."""

from __future__ import annotations

import asyncio
from typing import Any


class EndingHandlers(dict[Any, asyncio.Task[Any]]):
    """hivemind's tasks that answer calls, by call. It takes out none that was cancelled, as those
    are whose caller hangs up early: they would stay for good, each with what it was sent.
    """

    def __setitem__(self, call_id: Any, task: asyncio.Task[Any]) -> None:
        super().__setitem__(call_id, task)
        task.add_done_callback(lambda _: self.pop(call_id, None))
