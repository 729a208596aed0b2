"""Failure traces: the paper's chances, the same for all."""

from __future__ import annotations

import pytest

from swarmfree.lab.study.failure_trace import chance_per_iteration, draw_failures


@pytest.mark.parametrize(("rate", "chance"), [(0.05, 0.00130), (0.10, 0.00267), (0.16, 0.00441)])
def test_the_chance_per_iteration_is_that_of_the_paper(rate: float, chance: float) -> None:
    """5, 10 and 16 % an hour, iterations of 91.3 s."""
    assert chance_per_iteration(rate) == pytest.approx(chance, abs=5e-6)


def test_a_trace_is_a_function_of_its_seed_and_as_dense_as_it_says() -> None:
    """A longer run has the same failures at first; nobody fails who may not, or too early."""
    short, long = (draw_failures(0.16, (2, 3, 4, 5), 60, count, 7) for count in (300, 20_000))
    assert short == tuple(f for f in long if f.iteration < 360)
    assert len(long) == pytest.approx(4 * 20_000 * chance_per_iteration(0.16), rel=0.15)
    assert min(f.iteration for f in long) >= 60
    assert {f.stage for f in long} == {2, 3, 4, 5}
    assert draw_failures(0.0, (1, 2), 0, 1000, 1) == ()
