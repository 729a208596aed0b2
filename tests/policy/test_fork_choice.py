"""Which of two lineages goes on."""

from __future__ import annotations

import itertools

import pytest

from swarmfree.policy.fork_choice import Tip, forced_later, wins
from swarmfree.protocol.records import GENESIS_LINEAGE

NOTHING = Tip((), 0, GENESIS_LINEAGE)
SHORT, LONG = Tip((), 3, "b" * 64), Tip((), 5, "c" * 64)
FORCED, SISTER, LATER = Tip((2,), 9, "a" * 64), Tip((2,), 9, "d" * 64), Tip((3, 4), 6, "e" * 64)

# Every lineage of up to five iterations: whether each was forced.
HISTORIES = [history for length in range(6) for history in itertools.product((False, True), repeat=length)]


def tip_of(history: tuple[bool, ...], side: str) -> Tip:
    """The end of a lineage with these iterations, each forced or not."""
    return Tip(tuple(itertools.compress(itertools.count(), history)), len(history), side * 64 if history else GENESIS_LINEAGE)


@pytest.mark.parametrize(
    ("winner", "loser"),
    [(SHORT, FORCED), (LATER, FORCED), (LONG, SHORT), (FORCED, SISTER), (SHORT, NOTHING), (FORCED, NOTHING)],
    ids=["never forced", "forced later", "more iterations", "smaller hash", "any record", "any record, also a forced one"],
)
def test_one_of_two_goes_on(winner: Tip, loser: Tip) -> None:
    """Both sides decide alike: the one goes on, the other gives way."""
    assert wins(winner, loser)
    assert not wins(loser, winner)


def test_there_is_always_a_winner() -> None:
    """Of any two different lineages exactly one goes on, and of three the order is the same whoever
    meets first.
    """
    tips = [tip_of(history, "a") for history in HISTORIES if len(history) < 5]
    tips += [tip_of(history, "b") for history in HISTORIES if 0 < len(history) < 4]
    for one, other in itertools.permutations(tips, 2):
        assert wins(one, other) != wins(other, one)
    for one, other, third in itertools.permutations(tips, 3):
        assert not (wins(one, other) and wins(other, third)) or wins(one, third)


def test_what_a_majority_committed_never_gives_way_to_what_was_forced() -> None:
    """Wherever two lineages part, the one whose next record had a majority wins against the one
    that forced its next, whatever either did later.
    """
    for common, mine, theirs in itertools.product([h for h in HISTORIES if len(h) < 4], HISTORIES, HISTORIES):
        decided, forced = tip_of((*common, False, *mine), "b"), tip_of((*common, True, *theirs), "a")
        assert wins(decided, forced)
        assert not wins(forced, decided)
        assert forced_later(decided.forced, forced.forced)


def test_a_lineage_that_is_given_up_counts_least() -> None:
    """It was not forced later than any that is led."""
    assert not any(forced_later((-1,), tip_of(history, "a").forced) for history in HISTORIES)
