"""Each protocol rule, taken out alone, is missed: the rehearsal that holds with it finds a
violation without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from swarmfree.sim.rehearsal import RehearsalResult
from tests.mutants import removals, removals_begin, situations, situations_begin
from tests.mutants.removals import Removal


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule, a situation in which it matters, and what is found where it is missing.

    Args:
        rule: takes it out.
        situation: holds every invariant with it.
        found: words of the transcript, of the violation where there is one.
    """

    rule: Removal
    situation: Callable[[], RehearsalResult]
    found: str


MUTANTS = (
    Mutant(removals.single_flight, situations.calls_twice, "I6 at"),
    Mutant(removals.partial_sum_for_retries, situations.answers_lost, "Repaired iteration=1"),
    Mutant(removals.disjoint_cover, situations.answers_lost, "microbatch 7 counts 2 times"),
    Mutant(removals.repair, situations.dies_with_its_sum, "counts 0 times"),
    Mutant(removals.round_name, situations.chunk_of_an_old_round, "I1 at"),
    Mutant(removals.majority_for_seal, situations.coordinator_parted_at_seal, "before a majority stored it"),
    Mutant(removals.sealed_record_at_the_claim, situations.commit_reaches_nobody, "two records of iteration 1 were committed"),
    Mutant(removals.own_pause, situations.coordinator_naps, "MemberLost"),
    Mutant(removals.vouched_state, situations.builder_is_left_alone, "hold gradients of other weights"),
    Mutant(removals.term_at_members, situations.coordinator_sleeps_long, "I3 at"),
    Mutant(removals_begin.another_founder, situations_begin.first_is_gone, "I6 at"),
    Mutant(removals_begin.plan_behind, situations_begin.first_is_gone, "I6 at"),
    Mutant(removals_begin.later_sign_of_a_beginning, situations_begin.first_is_gone, "I6 at"),
    Mutant(removals_begin.founder_that_answers, situations_begin.first_cannot_be_called, "(genesis 2)"),
    Mutant(removals_begin.call_back, situations_begin.first_cannot_be_called, "MemberLost member=Peer01"),
    Mutant(removals_begin.term_of_a_later_founder, situations_begin.first_sleeps, "I6 at"),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.rule.__name__)
def test_without_the_rule_something_breaks(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule every invariant holds; without it the transcript tells of a violation, or of
    work that was done for nothing.
    """
    whole = mutant.situation()
    assert whole.violation is None
    assert not [line for line in whole.transcript if mutant.found in line]
    mutant.rule(monkeypatch)
    lacking = mutant.situation()
    assert [line for line in lacking.transcript if mutant.found in line], "nothing misses this rule"
