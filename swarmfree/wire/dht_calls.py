"""What hivemind's control connection to p2pd remembers of calls.

One task reads all that p2pd says: answers to this node's calls, and what others call it for. A
fault in it ends both for good, and hivemind does not say so.
"""

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


class UnfinishedCalls(dict[Any, asyncio.Future[Any]]):
    """hivemind's calls that wait for an answer. One that was given up stays until its task has
    gone on; the answer that comes in between would be set all the same, which ends the reader.
    """

    def __contains__(self, call_id: object) -> bool:
        """Whether an answer is still waited for."""
        future = self.get(call_id)
        return future is not None and not future.done()
