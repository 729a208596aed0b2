"""A loop in a thread of its own: what is asked of it has its time, and no more."""

from __future__ import annotations

import asyncio
import threading
import time

from swarmfree.wire.loop_thread import TICK_S, LoopThread


async def attempted(work_s: float, limit_s: float, stopped_s: float) -> object:
    """What comes of work that takes so long, while the loop that waits for it stands still from its
    beginning on for so long, as that of a process that is stopped does.
    """
    thread = LoopThread("worker")
    thread.start()

    async def work() -> str:
        await asyncio.sleep(work_s)
        return "done"

    asyncio.get_running_loop().call_soon(threading.Event().wait, stopped_s)
    found = await thread.attempt(work, limit_s)
    assert await thread.stop(1.0)
    return found


async def test_a_process_that_was_stopped_has_not_waited() -> None:
    """The limit is over on the clock before this loop has looked a second time."""
    assert await attempted(work_s=5 * TICK_S, limit_s=3 * TICK_S, stopped_s=4 * TICK_S) == "done"


async def test_work_that_takes_too_long_is_given_up() -> None:
    """Also where the limit is no whole number of looks."""
    began_s = time.monotonic()
    assert isinstance(await attempted(work_s=10.0, limit_s=1.5 * TICK_S, stopped_s=0.0), TimeoutError)
    assert 1.4 * TICK_S < time.monotonic() - began_s < 5.0
