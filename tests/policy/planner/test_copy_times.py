"""How long the next copy is expected to take."""

from __future__ import annotations

import pytest

from swarmfree.policy.planner.measured_fleet import COPY_BYTES_S, MeasuredCopy, copy_s


def test_those_nearest_in_size_count_and_first_ones_only_alone() -> None:
    """By the median of their rates."""
    copies = [MeasuredCopy(1e6, 9.0, is_first=True), MeasuredCopy(1e7, 5.0), MeasuredCopy(1e6, 2.0), MeasuredCopy(1e7, 5.0)]
    assert copy_s(copies, 1e6) == pytest.approx(2.0)
    assert copy_s(copies, 2e7) == pytest.approx(10.0)
    assert copy_s([*copies, MeasuredCopy(1e6, 1.0), MeasuredCopy(1e6, 1.0)], 1e6) == pytest.approx(1.0)
    assert copy_s(copies[:1], 1e6) == pytest.approx(9.0)
    assert copy_s([], 1e6) == pytest.approx(1e6 / COPY_BYTES_S)
    assert copy_s(copies, 0) == 0.0
