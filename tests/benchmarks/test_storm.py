"""What a storm's figures are made of; the storm itself is part of `make check`."""

from __future__ import annotations

import pytest

from benchmarks.storm import Again, Resumed, committed_twice, done_again, longest_gap_s, made_anew, new_times_s
from swarmfree.protocol.events import IterationCommitted, StageBuilt


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
    times_s = new_times_s([(10.0 + number, event) for number, event in enumerate(again)])
    assert times_s == [10.0, 11.0, 12.0, 17.0], "what is done again is nothing new"
    assert longest_gap_s(times_s) == 5.0


@pytest.mark.parametrize(
    ("time_s", "at", "action", "exact", "excused"),
    [
        (5.0, 13, "Restore", False, True),  # before all died: what is done again has the stage as it was
        (5.0, 10, "Merge", False, True),  # after the snapshot was written
        (5.0, 9, "Merge", False, False),  # which the set has
        (5.0, 16, "Restore", False, False),  # later
        (5.0, 13, "Replay", True, False),  # bit for bit
        (5.0, 13, "Copy", False, False),
        (15.0, 10, "CopyNeighbour", False, False),  # what goes on from a set begins with it
        (15.0, 12, "CopyNeighbour", False, True),
    ],
)
def test_a_loss_is_excused_by_a_stage_that_was_made_anew(
    time_s: float, at: int, action: str, *, exact: bool, excused: bool
) -> None:
    """The run has gone on with iteration 10 at 10 s; iteration 15 was done before and after."""
    built = [(time_s, StageBuilt(1, at, action, "Qm", 1.0, 0, "", exact))]
    assert made_anew(built, [Resumed(1.0, 2, 0), Resumed(10.0, 10, 6), Resumed(20.0, 30, 0)], 15) == excused
