"""Who is excluded when members hold different averages, or a sum is not finite."""

from __future__ import annotations

import math

from swarmfree.policy.fault_attribution import spoilt, two_faced
from swarmfree.protocol.names import Member

A, B, C = (Member(name, "00") for name in ("QmA", "QmB", "QmC"))
OWNERS = (A, B, C, A, B, C)
SAME = ("p0", "p1", "p2", "p3", "p4", "p5")


def differing(*parts: int) -> tuple[str, ...]:
    """All parts as others have them but these."""
    return tuple("other" if part in parts else digest for part, digest in enumerate(SAME))


def test_nobody_is_named_where_all_have_the_same() -> None:
    """No difference, no suspect."""
    assert two_faced(OWNERS, {A: SAME, B: SAME, C: SAME}, (A, B, C)) is None


def test_an_owner_that_gives_one_member_other_bytes_is_named() -> None:
    """Only its own parts differ, and they differ at one of the others."""
    assert two_faced(OWNERS, {A: differing(2, 5), B: SAME, C: SAME}, (A, B, C)) == C
    assert two_faced(OWNERS, {A: SAME, B: differing(0), C: SAME}, (A, B, C)) == A


def test_a_member_that_reports_nonsense_is_named() -> None:
    """It differs in everybody's parts."""
    assert two_faced(OWNERS, {A: SAME, B: differing(*range(6)), C: SAME}, (A, B, C)) == B
    assert two_faced(OWNERS, {A: SAME, B: ("short",), C: SAME}, (A, B, C)) == B


def test_of_two_the_owner_is_named_and_the_junior_where_that_says_nothing() -> None:
    """Two members cannot outvote each other."""
    assert two_faced((A, B), {A: ("x", "y"), B: ("z", "y")}, (A, B)) == A
    assert two_faced((A, B), {A: ("x", "y"), B: ("z", "w")}, (A, B)) == B


def test_spoilt_are_those_that_are_not_finite_beside_others_that_are() -> None:
    """Where none is finite it is the model."""
    assert spoilt([1.0, math.nan, math.inf, 2.0]) == (1, 2)
    assert spoilt([math.nan, math.nan]) == ()
    assert spoilt([1.0]) == ()
