"""The device: one piece of work at a time, in the right order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from swarmfree.policy.deadline import MEASURED_MIN
from swarmfree.trainer.device import BESIDE_AVERAGE, Device, Rank, WorkFailed

T = TypeVar("T")


class Here:
    """Runs work at once, and is the clock."""

    async def run(self, work: Callable[[], T]) -> T:
        """Do it now."""
        await asyncio.sleep(0)
        return work()

    def now_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Unix seconds."""
        return time.time()


async def test_backward_goes_before_forward_and_older_before_newer() -> None:
    """Whatever order work is handed in, the device takes books, then backward, then forward, each
    oldest first.
    """
    device, order = Device(Here(), Here()), []

    async def one(rank: Rank, age: int) -> None:
        await device.run(rank, age, lambda: order.append((rank, age)))

    wanted = [(Rank.IDLE, 0), (Rank.FORWARD, 5), (Rank.BACKWARD, 7), (Rank.FORWARD, 2), (Rank.BOOKS, 9), (Rank.BACKWARD, 3)]
    async with asyncio.TaskGroup() as group:
        for rank, age in wanted:
            group.create_task(one(rank, age))
        await asyncio.sleep(0)
        serving = group.create_task(device.serve())
        while len(order) < len(wanted):
            await asyncio.sleep(0)
        serving.cancel()
    assert order == sorted(wanted)


async def test_an_exception_in_work_reaches_who_asked_and_the_device_goes_on() -> None:
    """Work that raises fails its own caller with the reason; the next piece of work runs."""
    device = Device(Here(), Here())
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(device.serve())
        with pytest.raises(WorkFailed, match="ZeroDivisionError"):
            await device.run(Rank.FORWARD, 0, lambda: 1 // 0)
        assert await device.run(Rank.FORWARD, 0, lambda: 7) == 7
        serving.cancel()


async def test_work_whose_caller_was_cancelled_is_skipped() -> None:
    """What nobody waits for any more is not computed."""
    device, done = Device(Here(), Here()), []
    async with asyncio.TaskGroup() as group:
        dropped = group.create_task(device.run(Rank.FORWARD, 0, lambda: done.append("dropped")))
        await asyncio.sleep(0)
        dropped.cancel()
        serving = group.create_task(device.serve())
        await device.run(Rank.FORWARD, 1, lambda: done.append("kept"))
        serving.cancel()
    assert done == ["kept"]


class Stopped(Here):
    """Its clock goes on for an hour in each piece of work, as the process stands still."""

    def __init__(self) -> None:
        """At the beginning."""
        self.time_s = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """Do it, an hour later."""
        await asyncio.sleep(0)
        self.time_s += 3600.0
        return work()

    def now_s(self) -> float:
        """By that clock."""
        return self.time_s


async def test_time_for_which_the_process_stood_still_is_not_measured() -> None:
    """A piece of work may hang for a multiple of what others took, by ticks of its own process."""
    machine, hung = Stopped(), Hung()
    device = Device(machine, machine)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(device.serve())
        assert not device.count_tick(0.25, 1.0)
        for number in range(MEASURED_MIN):
            await device.run(Rank.BOOKS, number, lambda: None)
        device._executor = hung
        work = group.create_task(device.run(Rank.BOOKS, 0, lambda: None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        told = [device.count_tick(0.25, 1.0) for _ in range(20)]
        assert told[-1] == "a books piece of work has run for 5 s, 2 s is the most"
        hung.go.set()
        await work
        serving.cancel()


async def test_work_between_two_ticks_is_measured_by_the_clock() -> None:
    """A piece that ends before the next tick has not taken nothing."""
    machine = Stopped()
    device = Device(machine, machine)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(device.serve())
        device.count_tick(0.25, 1.0)
        await device.run(Rank.BOOKS, 0, lambda: None)
        serving.cancel()
    assert list(device._measured[Rank.BOOKS]) == [0.25], "an hour by the clock, less than one tick by its own"


class Held(Here):
    """Runs work when it is let."""

    def __init__(self) -> None:
        """Nothing may run yet."""
        self.go = asyncio.Event()

    async def run(self, work: Callable[[], T]) -> T:
        """Wait, then do it."""
        await self.go.wait()
        return work()


class Hung(Held):
    """Begins work, and ends it when it is let."""

    async def run(self, work: Callable[[], T]) -> T:
        """Do it, then wait."""
        result = work()
        await self.go.wait()
        return result


async def test_a_wait_for_another_peer_s_piece_of_work_is_not_its_own() -> None:
    """Two peers of one process share a thread: the one whose piece has yet to begin is neither
    stuck nor late; of the one whose piece runs that is said.
    """
    for machine, is_own in ((Hung(), True), (Held(), False)):
        device = Device(machine, machine)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(device.serve())
            work = group.create_task(device.run(Rank.BOOKS, 0, lambda: None))
            for _ in range(3):
                await asyncio.sleep(0)
            told = [device.count_tick(0.25, 0.5) for _ in range(40)]
            assert bool(told[-1]) is is_own
            assert (device.lateness(1.0) > 1) is is_own
            machine.go.set()
            await work
            serving.cancel()


@pytest.mark.parametrize("rank", list(Rank))
async def test_state_is_read_beside_a_pass_but_not_beside_a_step(rank: Rank) -> None:
    """A donor's long pass does not keep a builder waiting; books' work and a step, which change
    state, are waited for. An average, which a step leaves as it is, is read beside that too.
    """
    machine, order = Held(), []
    device = Device(machine, machine)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(device.serve())
        work = group.create_task(device.run(rank, 0, lambda: order.append("work")))
        for _ in range(5):
            await asyncio.sleep(0)
        reading = group.create_task(device.read("state", lambda: order.append("read")))
        average = group.create_task(device.read("average", lambda: order.append("average"), BESIDE_AVERAGE))
        for _ in range(5):
            await asyncio.sleep(0)
        assert reading.done() is (rank not in {Rank.BOOKS, Rank.STEP})
        assert average.done() is (rank is not Rank.BOOKS)
        machine.go.set()
        await asyncio.wait((work, reading, average))
        serving.cancel()
    expected = {Rank.BOOKS: ["work", "read", "average"], Rank.STEP: ["average", "work", "read"]}
    assert order == expected.get(rank, ["read", "average", "work"])


async def test_a_step_waits_and_is_measured_as_books_are() -> None:
    """What comes first is done first, of both."""
    device, order = Device(Here(), Here()), list[str]()
    async with asyncio.TaskGroup() as group:
        for turn, rank in enumerate((Rank.FORWARD, Rank.STEP, Rank.BOOKS, Rank.STEP)):
            group.create_task(device.run(rank, 0, partial(order.append, f"{rank.name} {turn}")))
        await asyncio.sleep(0)
        serving = group.create_task(device.serve())
        await device.run(Rank.IDLE, 0, lambda: None)
        serving.cancel()
    assert order == ["STEP 1", "BOOKS 2", "STEP 3", "FORWARD 0"]
    assert len(device._measured[Rank.BOOKS]) == 3


async def test_an_average_is_read_at_once_while_the_device_does_nothing() -> None:
    """A state is read in its turn."""
    device, order = Device(Here(), Here()), list[str]()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(device.read("state", lambda: order.append("read")))
        await device.read("average", lambda: order.append("average"), BESIDE_AVERAGE)
        assert order == ["average"]
        serving = group.create_task(device.serve())
        await reading
        serving.cancel()


async def test_what_many_ask_for_is_read_once_for_all_of_them() -> None:
    """Also where whoever asked first has gone; what reading raises comes to each, and what is asked
    for later is read again.
    """
    device, order, told = Device(Here(), Here()), list[str](), list[str]()

    def read(what: str) -> str:
        order.append(what)
        return what if what != "bad" else str(1 // 0)

    async def ask(what: str) -> None:
        try:
            told.append(await device.read(what, lambda: read(what)))
        except WorkFailed:
            told.append("failed")

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(what)) for what in ("a", "a", "b", "a", "bad", "bad")]
        await asyncio.sleep(0)
        asked[0].cancel()
        serving = group.create_task(device.serve())
        await asyncio.wait(asked)
        assert order == ["a", "b", "bad"]
        assert told == ["a", "a", "b", "failed", "failed"]
        assert await device.read("a", lambda: "later") == "later"
        assert not device._reads
        serving.cancel()
