"""The border log: whole since an iteration, bounded, and found by name."""

from __future__ import annotations

from swarmfree.sim.peer_ports import MemoryShelf
from swarmfree.swarm.names import WorkKey, WorkKind
from swarmfree.trainer.ring.borders import NONE, Borders


def key(iteration: int, microbatch: int, base: str = "b") -> WorkKey:
    """A microbatch of stage 1."""
    return WorkKey(iteration, base, WorkKind.TRAIN, microbatch, 1)


def kept(iterations: range, *, iterations_max: int = 10, bytes_max: int = 1000) -> Borders:
    """A log of two microbatches of ten bytes each, one output and one answer."""
    borders = Borders(MemoryShelf(), iterations_max, bytes_max)
    for iteration in iterations:
        borders.keep(iteration, "b", {2 * iteration: b"o" * 10}, {2 * iteration: b"a" * 10})
    return borders


async def test_what_was_sent_on_and_back_is_found() -> None:
    """By iteration, base and microbatch; nothing else is."""
    borders = kept(range(3, 6))
    assert borders.since == 3
    assert await borders.find(key(4, 8), answer=False) == b"o" * 10
    assert await borders.find(key(4, 8), answer=True) == b"a" * 10
    for other in (key(4, 9), key(4, 8, "c"), key(7, 14)):
        assert await borders.find(other, answer=False) is None


def test_the_oldest_iterations_go_first() -> None:
    """By number, and by bytes: twenty per iteration."""
    assert kept(range(9), iterations_max=4).since == 5
    assert kept(range(9), bytes_max=70).since == 6
    assert kept(range(9), bytes_max=10).since == NONE
    assert kept(range(9), iterations_max=0).since == NONE


def test_after_a_gap_the_log_begins_anew() -> None:
    """Iteration 5 was missed."""
    borders = kept(range(5))
    borders.keep(6, "b", {}, {})
    assert borders.since == 6
    borders.clear()
    assert borders.since == NONE
    assert borders.size_bytes == 0
