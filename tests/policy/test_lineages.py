"""Which of two lineages goes on."""

from __future__ import annotations

import itertools

import pytest

from swarmfree.policy.lineages import Tip, wins
from swarmfree.swarm.books import GENESIS_LINEAGE

NOTHING = Tip(0, 0, GENESIS_LINEAGE)
SHORT, LONG = Tip(0, 3, "b" * 64), Tip(0, 5, "c" * 64)
FORCED, SISTER = Tip(1, 9, "a" * 64), Tip(1, 9, "d" * 64)


@pytest.mark.parametrize(
    ("winner", "loser"),
    [(SHORT, FORCED), (LONG, SHORT), (FORCED, SISTER), (SHORT, NOTHING), (FORCED, NOTHING)],
    ids=["fewer forced", "more iterations", "smaller hash", "any record", "any record, also a forced one"],
)
def test_one_of_two_goes_on(winner: Tip, loser: Tip) -> None:
    """Both sides decide alike: the one goes on, the other gives way."""
    assert wins(winner, loser)
    assert not wins(loser, winner)


def test_there_is_always_a_winner() -> None:
    """Of any two different lineages exactly one goes on, and of three the order is the same whoever meets first."""
    tips = (NOTHING, SHORT, LONG, FORCED, SISTER)
    for one, other in itertools.permutations(tips, 2):
        assert wins(one, other) != wins(other, one)
    for one, other, third in itertools.permutations(tips, 3):
        assert not (wins(one, other) and wins(other, third)) or wins(one, third)
