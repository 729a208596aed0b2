"""The activation log: whole since an iteration, bounded, and found by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from swarmfree.policy.retention import LogLength
from swarmfree.protocol.engine_port import Writable
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.names import ABSENT, Side, WorkKey, WorkKind
from swarmfree.sim.peer_ports import MemoryShelf
from swarmfree.trainer.recovery import activation_log as log_module
from swarmfree.trainer.recovery.activation_log import ActivationLog, LogLimits


def key(iteration: int, microbatch: int, base: str = "b") -> WorkKey:
    """A microbatch of stage 1."""
    return WorkKey(iteration, base, WorkKind.TRAIN, microbatch, 1)


def at_once() -> float:
    """A clock that stands still: what is kept need not wait."""
    return 0.0


def kept(
    iterations: range, *, iterations_max: int = 10, bytes_max: int = 1000, ram_max: int = 1000, shelf: MemoryShelf | None = None
) -> ActivationLog:
    """A log of one microbatch, one output and one answer of ten bytes each."""
    log = ActivationLog(shelf or MemoryShelf(), LogLimits(iterations_max, bytes_max, ram_max), at_once)
    for iteration in iterations:
        number = 2 * iteration
        log.keep(iteration, "b", {(number, Side.OUTPUT): b"o" * 10, (number, Side.ANSWER): b"%10d" % iteration})
    return log


async def test_what_was_sent_on_and_back_is_found() -> None:
    """By iteration, base and microbatch; nothing else is."""
    log = kept(range(3, 6))
    assert log.since == 3
    assert await log.find(key(4, 8), Side.OUTPUT) == b"o" * 10
    assert await log.find(key(4, 8), Side.ANSWER) == b"%10d" % 4
    for other in (key(4, 9), key(4, 8, "c"), key(7, 14)):
        assert await log.find(other, Side.OUTPUT) is None


class Halves:
    """Keeps the first half of each tensor, and says how many it has packed."""

    packed = 0

    def size_bytes(self, data: bytes) -> int:
        """The half."""
        return len(data) // 2

    async def pack(self, tensors: Sequence[tuple[bytes, Writable]]) -> None:
        """Half of each, after a while; what begins with x cannot be packed."""
        await asyncio.sleep(0)
        if any(data.startswith(b"x") for data, _ in tensors):
            raise CallFailed("not to be packed")
        self.packed += len(tensors)
        for data, room in tensors:
            room[:] = data[: len(room)]

    async def unpack(self, data: bytes) -> bytes:
        """As long as it was."""
        return data + b"?" * len(data)


async def turns(count: int) -> None:
    """Let others run so often."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_packed_activations_take_less_memory_and_are_unpacked_when_they_are_found() -> None:
    """Those in memory and those on the shelf; what is not packed yet is found as it came."""
    shelf, packing = MemoryShelf(), Halves()
    log = ActivationLog(shelf, LogLimits(10, 1000, 25), at_once, packing)
    for iteration in range(4):
        log.keep(iteration, "b", {(iteration, Side.OUTPUT): b"o" * 10, (iteration, Side.ANSWER): b"i" * 10})
    assert log.size_bytes == log.ram_bytes == 80
    assert await log.find(key(3, 3), Side.OUTPUT) == b"o" * 10
    serving = asyncio.get_running_loop().create_task(log.serve())
    await turns(40)
    assert packing.packed == 8
    assert (log.ram_bytes, log.size_bytes) == (10, 40)
    assert len(shelf.names) == 3
    for iteration in range(4):
        assert await log.find(key(iteration, iteration), Side.OUTPUT) == b"o" * 5 + b"?" * 5
        assert await log.find(key(iteration, iteration), Side.ANSWER) == b"i" * 5 + b"?" * 5
    log.keep(4, "b", {(4, Side.OUTPUT): b"x" * 10})  # cannot be packed: the log begins anew
    await turns(10)
    assert (log.since, log.size_bytes, shelf.names) == (ABSENT, 0, ())
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


class SlowShelf(MemoryShelf):
    """Takes its time."""

    async def put(self, name: str, data: bytes) -> bool:
        """Keep it, later."""
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().put(name, data)


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("packing", [None, Halves()])
@pytest.mark.parametrize("ram_tensors", [0, 5])
async def test_the_log_is_right_while_it_moves(size: int, packing: Halves | None, ram_tensors: int) -> None:
    """Iterations come while others go to a slow shelf or are dropped; large tensors lie apart. All
    that is kept is found.
    """
    shelf, share = SlowShelf(), 1 if packing is None else 2
    log = ActivationLog(shelf, LogLimits(6, 1 << 30, ram_tensors * size), at_once, packing)
    serving = asyncio.get_running_loop().create_task(log.serve())
    numbers = [*range(9), *range(20, 40)]
    for iteration in numbers:
        tensors = {
            (iteration, side): bytes([iteration, place]) * (size // 2) for place, side in enumerate((Side.OUTPUT, Side.ANSWER))
        }
        log.keep(iteration, "b", tensors)
        await turns(iteration % 4)
    await turns(200)
    assert log.since == 34
    assert log.ram_bytes <= ram_tensors * size
    assert log.ram_bytes + shelf.size_bytes == log.size_bytes
    assert len(shelf.names) == sum(each.is_shelved for each in log._logged)
    for iteration in range(34, 40):
        found = await log.find(key(iteration, iteration), Side.OUTPUT)
        assert found is not None
        assert found[: size // share] == (bytes([iteration, 0]) * (size // 2))[: size // share]
    log.clear()
    await turns(20)
    assert (log.size_bytes, shelf.names) == (0, ())
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_what_is_forgotten_while_it_is_packed_stays_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap, and the bounds: nothing comes back, and no byte is counted twice."""
    monkeypatch.setattr(log_module, "BATCH_BYTES", 10)  # one by one
    log = ActivationLog(MemoryShelf(), LogLimits(2, 1000, 1000), at_once, Halves())
    serving = asyncio.get_running_loop().create_task(log.serve())
    for iteration in (0, 1, 2, 3, 7, 8):
        sides = (Side.OUTPUT, Side.ANSWER)
        log.keep(iteration, "b", {(iteration, side): b"o" * 10 for side in sides})
        await turns(2)  # about one tensor
    await turns(40)
    assert log.since == 7
    assert log.size_bytes == log.ram_bytes == 2 * 5 + 2 * 5
    log.clear()
    assert log.size_bytes == 0
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_memory_holds_the_newest_and_the_shelf_the_others() -> None:
    """Every one of them is found the same; what is dropped leaves the shelf."""
    shelf = MemoryShelf()
    log = kept(range(8), ram_max=50, shelf=shelf)
    serving = asyncio.get_running_loop().create_task(log.serve())
    await turns(40)
    assert log.ram_bytes == 40
    assert len(shelf.names) == 6
    for iteration in range(8):
        assert await log.find(key(iteration, 2 * iteration), Side.ANSWER) == b"%10d" % iteration
    log.clear()
    assert not shelf.names
    assert log.ram_bytes == log.size_bytes == 0
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


def test_the_oldest_iterations_go_first() -> None:
    """By number, and by bytes: twenty per iteration."""
    assert kept(range(9), iterations_max=4).since == 5
    assert kept(range(9), bytes_max=70).since == 6
    assert kept(range(9), bytes_max=10).since == ABSENT
    assert kept(range(9), iterations_max=0).since == ABSENT


def test_after_a_gap_the_log_begins_anew() -> None:
    """Iteration 5 was missed."""
    log = kept(range(5))
    log.keep(6, "b", {})
    assert log.since == 6
    log.clear()
    assert log.since == ABSENT
    assert log.size_bytes == log.ram_bytes == 0


def test_shadows_beside_it_shorten_the_log() -> None:
    """What they take is not there for the log, whichever came first; forty bytes hold two
    iterations, and none where nothing is left.
    """
    log = kept(range(3), bytes_max=70)
    log.beside_bytes = 30
    log.keep(3, "b", {(6, Side.OUTPUT): b"o" * 10, (6, Side.ANSWER): b"i" * 10})
    assert (log.since, log.size_bytes) == (2, 40)
    log.beside_bytes = 60
    log.keep(4, "b", {(8, Side.OUTPUT): b"o" * 10, (8, Side.ANSWER): b"i" * 10})
    assert (log.since, log.size_bytes) == (ABSENT, 0)


async def test_the_log_of_the_stage_before_stays_until_another_is_built() -> None:
    """It is found by its own stage's number, and gives way when memory is short."""
    log = kept(range(3, 6), bytes_max=100, shelf=MemoryShelf())
    log.set_aside(1)
    assert log.since == ABSENT
    log.keep(3, "b", {(6, Side.OUTPUT): b"n" * 10, (6, Side.ANSWER): b"n" * 10})
    other = replace(key(3, 6), stage=2)
    assert await log.find_former(key(3, 6), Side.OUTPUT) == b"o" * 10
    assert await log.find_former(other, Side.OUTPUT) is None
    assert await log.find(other, Side.OUTPUT) == b"n" * 10
    assert log.size_bytes == 80
    log.set_aside(ABSENT)
    assert (log.since, log.size_bytes) == (ABSENT, 60)
    for iteration in range(3, 6):
        log.keep(iteration, "b", {(2 * iteration, Side.OUTPUT): b"n" * 20})
    assert (log.since, log.size_bytes) == (3, 100), "the oldest of before made room"
    assert await log.find_former(key(3, 6), Side.OUTPUT) is None
    assert await log.find_former(key(5, 10), Side.OUTPUT) == b"o" * 10
    log.forget_former()
    assert log.size_bytes == 60
    assert await log.find_former(key(5, 10), Side.OUTPUT) is None


async def test_what_lies_spare_counts_and_goes_first() -> None:
    """Memory that was let go and waits for its next use is memory: it is given back before an
    iteration is.
    """
    log = ActivationLog(MemoryShelf(), LogLimits(3, 60, 1 << 20), at_once)
    serving = asyncio.get_running_loop().create_task(log.serve())
    for iteration in range(9):
        log.keep(iteration, "b", {(iteration, Side.OUTPUT): b"o" * 20})
        await turns(5)
        assert log.size_bytes + log._pool.spare_bytes <= 60
    assert log.since == 6
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


def test_a_log_that_does_not_fit_is_not_begun() -> None:
    """As long as its iterations are too large; the first one that is small enough begins it."""
    log = ActivationLog(MemoryShelf(), LogLimits(9, 1000, 1000, lambda _, kept: LogLength(3 if kept <= 10 else 0, 30)), at_once)
    for iteration, size in enumerate((20, 20, 10, 10, 10, 10)):
        log.keep(iteration, "b", {(iteration, Side.OUTPUT): b"o" * size})
        assert log.claim_bytes == (30 if size == 10 else 0)
    assert (log.since, log.size_bytes) == (3, 30)
    log.keep(6, "b", {(6, Side.OUTPUT): b"o" * 20})
    assert (log.since, log.size_bytes) == (ABSENT, 0)
