"""Of the norms that members report of one average, one counts: that of most of them."""

from __future__ import annotations

import math

import pytest

from swarmfree.policy.record import agreed_norm
from swarmfree.protocol.records import float64_bits

ONE, TWO, NAN, INFINITE = (float64_bits(value) for value in (1.0, 2.0, math.nan, math.inf))


@pytest.mark.parametrize(
    ("reported", "agreed"),
    [
        ((ONE,), ONE),
        ((NAN,), NAN),
        ((NAN, ONE), ONE),
        ((ONE, NAN), ONE),
        ((TWO, ONE), TWO),
        ((TWO, ONE, ONE), ONE),
        ((NAN, NAN, ONE), NAN),
        ((INFINITE, ONE, ONE), ONE),
    ],
)
def test_one_member_alone_changes_no_norm(reported: tuple[str, ...], agreed: str) -> None:
    """Most count; of as many the finite one, and then the senior's. Where all say that training
    diverges, it does.
    """
    assert agreed_norm(reported) == agreed
