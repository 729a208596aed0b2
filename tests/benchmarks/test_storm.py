"""What a storm's figures are made of; the storm itself is part of `make check`."""

from __future__ import annotations

from benchmarks.storm import Again, committed_twice, done_again
from swarmfree.protocol.events import IterationCommitted


def commit(iteration: int, loss: float, lineage: str, seconds: float = 1.0) -> IterationCommitted:
    """One commit."""
    return IterationCommitted(iteration, 0, loss, None, 100, seconds, [], lineage)


def test_what_is_done_again_is_counted_from_the_furthest_commit() -> None:
    """A successor that tells the last record once more does nothing again."""
    once = [commit(0, 3.0, "a"), commit(1, 2.0, "b"), commit(2, 1.0, "c"), commit(2, 1.0, "c", seconds=0.0)]
    assert not done_again(once)
    assert not committed_twice(once)
    again = [*once, commit(0, 3.0, "a", seconds=0.0), commit(1, 2.0, "x"), commit(2, 1.5, "y"), commit(3, 1.0, "z")]
    assert done_again(again) == (Again(1, 2),)
    assert committed_twice(again) == {1: 0.0, 2: 0.5 / 1.5}
