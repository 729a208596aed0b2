"""The border log: whole since an iteration, bounded, and found by name."""

from __future__ import annotations

import asyncio

import pytest

from swarmfree.sim.peer_ports import MemoryShelf
from swarmfree.swarm.names import Side, WorkKey, WorkKind
from swarmfree.trainer.ring.borders import NONE, Borders, Bounds


def key(iteration: int, microbatch: int, base: str = "b") -> WorkKey:
    """A microbatch of stage 1."""
    return WorkKey(iteration, base, WorkKind.TRAIN, microbatch, 1)


def kept(
    iterations: range, *, iterations_max: int = 10, bytes_max: int = 1000, ram_max: int = 1000, shelf: MemoryShelf | None = None
) -> Borders:
    """A log of one microbatch, one output and one answer of ten bytes each."""
    borders = Borders(shelf or MemoryShelf(), Bounds(iterations_max, bytes_max, ram_max, 4))
    for iteration in iterations:
        number = 2 * iteration
        borders.keep(iteration, "b", {(number, Side.OUTPUT): b"o" * 10, (number, Side.ANSWER): b"%10d" % iteration})
    return borders


async def test_what_was_sent_on_and_back_is_found() -> None:
    """By iteration, base and microbatch; nothing else is."""
    borders = kept(range(3, 6))
    assert borders.since == 3
    assert await borders.find(key(4, 8), Side.OUTPUT) == b"o" * 10
    assert await borders.find(key(4, 8), Side.ANSWER) == b"%10d" % 4
    assert await borders.find(key(4, 8), Side.INPUT) is None
    for other in (key(4, 9), key(4, 8, "c"), key(7, 14)):
        assert await borders.find(other, Side.OUTPUT) is None


async def test_memory_holds_the_newest_and_the_shelf_the_others() -> None:
    """Every one of them is found the same; what is dropped leaves the shelf."""
    shelf = MemoryShelf()
    borders = kept(range(8), ram_max=50, shelf=shelf)
    serving = asyncio.get_running_loop().create_task(borders.serve())
    for _ in range(20):
        await asyncio.sleep(0)
    assert borders.ram_bytes == 40
    assert len(shelf.names) == 6
    for iteration in range(8):
        assert await borders.find(key(iteration, 2 * iteration), Side.ANSWER) == b"%10d" % iteration
    assert await borders.find(key(1, 2), Side.INPUT) is None
    borders.clear()
    assert not shelf.names
    assert borders.ram_bytes == borders.size_bytes == 0
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


def test_the_oldest_iterations_go_first() -> None:
    """By number, and by bytes: twenty per iteration."""
    assert kept(range(9), iterations_max=4).since == 5
    assert kept(range(9), bytes_max=70).since == 6
    assert kept(range(9), bytes_max=10).since == NONE
    assert kept(range(9), iterations_max=0).since == NONE


def test_after_a_gap_the_log_begins_anew() -> None:
    """Iteration 5 was missed."""
    borders = kept(range(5))
    borders.keep(6, "b", {})
    assert borders.since == 6
    borders.clear()
    assert borders.since == NONE
    assert borders.size_bytes == borders.ram_bytes == 0


async def test_inputs_are_kept_for_a_few_iterations_only() -> None:
    """Four of them here; what is sent on stays."""
    borders = Borders(MemoryShelf(), Bounds(10, 1000, 1000, 4))
    for iteration in range(6):
        borders.keep(iteration, "b", {(iteration, Side.INPUT): b"i" * 10, (iteration, Side.OUTPUT): b"o" * 10})
    assert [await borders.find(key(iteration, iteration), Side.INPUT) is None for iteration in range(6)] == [True] * 2 + [
        False
    ] * 4
    assert all([await borders.find(key(iteration, iteration), Side.OUTPUT) for iteration in range(6)])
    assert borders.size_bytes == borders.ram_bytes == 100
