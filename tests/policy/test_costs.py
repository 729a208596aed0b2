"""What recoveries are expected to cost, and what is learned from what they did."""

from __future__ import annotations

import pytest

from swarmfree.policy.costs import AFTER, WATCHED, Costs, Seen, regained


def test_an_estimate_counts_seconds_and_lost_learning() -> None:
    """100 MB at 50 MB/s, three seconds of compute, ten iterations of half a second."""
    costs = Costs(iteration_s=0.5, bytes_per_s=50e6)
    estimate = costs.estimate("Merge", 100e6, 3.0, 10.0)
    assert (estimate.seconds, estimate.lost, estimate.total_s) == (5.0, 10.0, 10.0)
    assert str(estimate) == "5.0 s and 10 iterations' learning"


def test_what_was_measured_moves_the_next_estimate() -> None:
    """Twice as slow as expected twice, on top of the expectation itself: 5/3; of another kind nothing is learned."""
    seen = Seen().with_time(2.0).with_time(2.0)
    assert seen.count == 2
    assert seen.time_ratio == pytest.approx(5 / 3)
    assert Seen().with_time(1.0).with_lost(0.0).lost_ratio == pytest.approx(0.5)
    costs = Costs(iteration_s=1.0, seen={"Merge": seen})
    assert costs.estimate("Merge", 0.0, 3.0, 1.0).seconds == pytest.approx(5.0)
    assert costs.estimate("Refit", 0.0, 3.0, 1.0).seconds == pytest.approx(3.0)


def test_a_loss_is_back_when_some_iterations_are_no_worse_than_before() -> None:
    """Within what they vary; too early nothing is said, and in the end that it is not back."""
    before = [2.0, 2.1, 1.9, 2.0]
    assert regained(before, [3.0] * (AFTER - 1)) is None
    assert regained([], [3.0] * WATCHED) is None
    same = regained(before, before)
    assert same is not None
    assert (same.iterations, same.is_back) == (0, True)
    later = regained(before, [3.0] * 10 + [2.0] * AFTER)
    assert later is not None
    assert (later.iterations, later.is_back, later.after) == (10, True, 3.0)
    never = regained(before, [3.0] * WATCHED)
    assert never is not None
    assert (never.iterations, never.is_back) == (WATCHED, False)
    assert regained(before, [3.0] * (WATCHED - 1)) is None
