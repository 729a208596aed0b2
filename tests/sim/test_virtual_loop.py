"""The virtual loop: time jumps, hangs are errors with stacks, order is the same in every process,
owners can be frozen.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextvars import Context

import pytest

from swarmfree.sim.loop import OWNER, DeadlockError, HangError, VirtualLoop, run_virtual


def now_s() -> float:
    """Virtual time inside a coroutine."""
    return asyncio.get_running_loop().time()


def test_time_jumps_to_the_next_timer() -> None:
    """An hour of sleep takes no time, and ends at exactly one hour."""

    async def main() -> float:
        await asyncio.sleep(1800)
        await asyncio.sleep(1799.5)
        return now_s()

    begun_s = time.process_time()
    assert run_virtual(main) == 3599.5
    assert time.process_time() - begun_s < 1


def test_sleepers_wake_in_order_of_time() -> None:
    """Whoever sleeps shorter wakes first, whoever came first wakes first at the same moment."""

    async def main() -> list[str]:
        woken: list[str] = []

        async def sleeper(name: str, duration_s: float) -> None:
            await asyncio.sleep(duration_s)
            woken.append(name)

        async with asyncio.TaskGroup() as group:
            for name, duration_s in (("late", 3.0), ("first", 1.0), ("early", 0.5), ("second", 1.0)):
                group.create_task(sleeper(name, duration_s))
        return woken

    assert run_virtual(main) == ["early", "first", "second", "late"]


def test_timeouts_are_in_virtual_time() -> None:
    """`asyncio.timeout` ends a wait that nothing else would end."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await asyncio.Event().wait()
        return now_s()

    assert run_virtual(main) == 7


def test_deadlock_names_every_task_and_where_it_waits() -> None:
    """When nothing can ever happen again, the error has the stack of each task down to the function
    that waits.
    """

    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_for_ever(), name="the one that waits")

    with pytest.raises(DeadlockError, match="the one that waits") as caught:
        run_virtual(main)
    assert "waits_for_ever" in str(caught.value)
    assert "Event.wait" in str(caught.value)


def test_endless_polling_is_a_hang() -> None:
    """A program that only sleeps again and again passes the limit of virtual time."""

    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(HangError, match="virtual time passed 100 s"):
        run_virtual(main, time_limit_s=100)


def test_spinning_without_time_is_a_hang() -> None:
    """A program that never lets time pass is found by the number of its steps."""

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(HangError, match="without any passing of time"):
        run_virtual(main, still_step_limit=500)


def test_what_is_left_is_cancelled() -> None:
    """After an error every task that was left has run its `finally`."""
    ended: list[str] = []

    async def left() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append("left")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(left())
            await asyncio.sleep(0)
            while True:
                await asyncio.sleep(0)

    with pytest.raises(HangError):
        run_virtual(main, still_step_limit=100)
    assert ended == ["left"]


def test_threads_are_refused() -> None:
    """Work for a thread is a programming error: it belongs to the executor port."""

    async def main() -> None:
        await asyncio.to_thread(time.time)

    with pytest.raises(AssertionError, match="no threads in virtual time"):
        run_virtual(main)


SET_ORDER = """
import asyncio
from swarmfree.sim.loop import run_virtual

padding = [object() for _ in range({padding})]

async def main():
    order = []
    async def worker(n):
        try:
            await asyncio.sleep(100)
        finally:
            order.append(n)
    try:
        async with asyncio.TaskGroup() as group:
            for n in range(40):
                group.create_task(worker(n))
            await asyncio.sleep(1)
            raise ValueError
    except* ValueError:
        pass
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(20)]
    for future in futures:
        future.set_result(None)
    done, _ = await asyncio.wait(futures)
    return order, [futures.index(future) for future in done], [task.get_name() for task in loop.tasks_of("")]

print(run_virtual(main))
"""


def test_order_is_the_same_in_every_process() -> None:
    """Which of many tasks is cancelled first does not depend on hash seeds or addresses."""
    outputs = set()
    for seed, padding in ((1, 0), (2, 1001), (3, 54321)):
        command = [sys.executable, "-c", SET_ORDER.format(padding=padding)]
        child = subprocess.run(command, env={"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=False)
        assert child.returncode == 0, child.stderr
        outputs.add(child.stdout)
    assert len(outputs) == 1


def test_a_frozen_owner_stands_still_and_catches_up() -> None:
    """Nothing of a frozen owner runs, not even timers; when thawed, everything overdue runs at
    once.
    """

    async def main() -> tuple[list[float], list[float]]:
        ticks: dict[str, list[float]] = {"a": [], "b": []}

        async def ticker(name: str) -> None:
            for _ in range(4):
                await asyncio.sleep(1)
                ticks[name].append(now_s())

        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with asyncio.TaskGroup() as group:
            for name in ticks:
                context = Context()
                context.run(OWNER.set, name)
                group.create_task(ticker(name), context=context)
            await asyncio.sleep(1.5)
            loop.freeze("a")
            await asyncio.sleep(10)
            loop.thaw("a")
        return ticks["a"], ticks["b"]

    frozen, other = run_virtual(main)
    assert other == [1, 2, 3, 4]
    assert frozen == [1, 11.5, 12.5, 13.5]


def test_tasks_know_their_owner() -> None:
    """A task belongs to the owner of whoever made it, until it ends."""

    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        async def parent() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(1))

        context = Context()
        context.run(OWNER.set, "peer")
        async with asyncio.TaskGroup() as group:
            group.create_task(parent(), context=context)
            await asyncio.sleep(0.5)
            during = len(loop.tasks_of("peer"))
        return during, len(loop.tasks_of("peer"))

    assert run_virtual(main) == (2, 0)
