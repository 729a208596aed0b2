"""Limits of device work follow what was measured."""

from __future__ import annotations

import pytest

from swarmfree.policy.deadline import LONGEST, MEASURED_MIN, SPREADS, UNMEASURED, alike_limit_s, mixed_limit_s


def test_what_was_hardly_measured_gets_time() -> None:
    """A first piece may have to compile, or to read a whole state."""
    for limit_s in (alike_limit_s, mixed_limit_s):
        assert limit_s([], 15.0) == UNMEASURED * 15.0
        assert limit_s([0.1] * (MEASURED_MIN - 1), 15.0) == UNMEASURED * 15.0


def test_alike_pieces_are_limited_by_median_and_spread() -> None:
    """One that was stopped for a minute does not move the limit; slow devices get a long one, quick
    ones the least.
    """
    steady = [0.1] * 20
    assert alike_limit_s(steady, 15.0) == 15.0
    assert alike_limit_s([*steady, 60.0], 15.0) == 15.0
    slow = [30.0, 31.0, 32.0] * 4
    assert alike_limit_s(slow, 15.0) == pytest.approx(31.0 + SPREADS * 1.0)


def test_mixed_pieces_are_limited_by_the_longest() -> None:
    """A kilobyte says nothing about a state; ten times the longest does."""
    assert mixed_limit_s([0.001] * 20, 15.0) == 30.0
    assert mixed_limit_s([0.001] * 20 + [8.0], 15.0) == LONGEST * 8.0
