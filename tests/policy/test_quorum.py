"""When an iteration is decided."""

from __future__ import annotations

from swarmfree.policy.quorum import is_majority
from swarmfree.protocol.names import Member

FOUR = tuple(Member(f"p{k}", "0" * 16) for k in range(4))


def test_more_than_half_decides_and_exactly_half_only_with_the_senior() -> None:
    """Three of four always; two of four with the first; a stranger's or an older life's vote does
    not count.
    """
    assert is_majority(FOUR, set(FOUR[1:]))
    assert is_majority(FOUR, {FOUR[0], FOUR[3]})
    assert not is_majority(FOUR, {FOUR[1], FOUR[3]})
    assert not is_majority(FOUR, {FOUR[1], FOUR[2], Member("p0", "1" * 16)})


def test_nobody_decides_for_an_electorate_of_nobody() -> None:
    """A record with an empty electorate hands the run to no one who comes along."""
    assert not is_majority((), set())
    assert not is_majority((), set(FOUR))
