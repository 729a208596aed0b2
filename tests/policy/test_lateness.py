"""When a device counts as late, and what follows from it."""

from __future__ import annotations

import pytest

from swarmfree.policy.deadline import is_given_up, lateness

SILENCE_S = 2.0
STEADY = [0.05] * 8


@pytest.mark.parametrize(
    ("ran_s", "measured_s", "alike", "late"),
    [
        (1.9, STEADY, True, 0.0),
        (3.0, STEADY, True, 1.5),
        (9.9, STEADY[:7], True, 0.0),
        (20.0, STEADY[:7], True, 2.0),
        (5.9, [], False, 0.0),
        (9.0, STEADY, False, 1.5),
        (9.0, [*STEADY, 1.0], False, 0.0),
        (15.0, [*STEADY, 1.0], False, 1.5),
    ],
)
def test_late_is_what_is_long_over_what_was_measured(ran_s: float, measured_s: list[float], alike: bool, late: float) -> None:  # noqa: FBT001
    """Passes by their spread, or five silences while few are measured; other work by three silences
    or ten times the longest.
    """
    assert lateness(ran_s, measured_s, SILENCE_S, alike=alike) == pytest.approx(late)


def test_a_late_member_is_given_up_only_where_another_can_do_its_work() -> None:
    """A sole holder is left to its own limit, and so are several that are all late."""
    assert is_given_up(1.5, [0.0])
    assert is_given_up(1.5, [3.0, 0.0])
    assert not is_given_up(1.5, [])
    assert not is_given_up(1.5, [1.2])
    assert not is_given_up(0.0, [0.0])
