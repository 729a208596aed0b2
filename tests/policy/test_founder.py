"""Whom the organiser names, and how long it leaves a founder alone."""

from __future__ import annotations

from typing import Any, cast

from swarmfree.policy.election import founders_term, is_founders
from swarmfree.policy.founder import Patience, next_founder
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import PlanAnswer
from swarmfree.protocol.names import Endpoint, Founder, Member

TIMING = TimingSection()
LEADER = Endpoint(Member("a", "1"), ("/memory/a",))


def answer(*, coordinator: Endpoint | None = None, records: int = 0) -> PlanAnswer:
    """What a peer says."""
    return PlanAnswer(None, "", coordinator, records)


def test_a_later_founder_leads_in_a_higher_term_than_any_candidate_before() -> None:
    """Its term is a founder's, and above those that candidates claimed meanwhile."""
    terms = [founders_term(number) for number in (1, 2, 3)]
    assert terms == [1, 1001, 2001]
    assert all(map(is_founders, terms))
    assert not any(map(is_founders, (0, 2, 999, 1000, 1002)))


def test_the_first_feeder_that_answers_is_named() -> None:
    """Nobody is named where nobody answers; the number grows by one."""
    assert next_founder(None, [], {}) is None
    assert next_founder(None, ["a", "b"], {}) == Founder(1, "a")
    assert next_founder(Founder(1, "a"), ["a", "b"], {"a": 1}) == Founder(2, "b")


def test_whoever_was_named_least_often_comes_next() -> None:
    """Three that cannot begin take turns; one that is alone is named again."""
    assert next_founder(Founder(2, "b"), ["a", "b", "c"], {"a": 1, "b": 1}) == Founder(3, "c")
    assert next_founder(Founder(3, "c"), ["a", "b", "c"], {"a": 1, "b": 1, "c": 1}) == Founder(4, "a")
    assert next_founder(Founder(4, "a"), ["a"], {"a": 2}) == Founder(5, "a")


def test_a_founder_is_given_up_after_a_while() -> None:
    """Silence counts for five seconds, not leading for ten, later for longer, with the limits that
    the product ships.
    """
    first, third, tenth = (Patience.of(TIMING, number) for number in (1, 3, 10))
    assert not first.is_over(4.9, 9.9)
    assert first.is_over(5.0, 5.0)
    assert first.is_over(0.0, 10.0)
    assert not third.is_over(0.0, 29.9)
    assert third.is_over(5.0, 5.0)
    assert not tenth.is_over(0.0, 59.9)
    assert tenth.is_over(0.0, 60.0)


def test_who_has_more_than_the_organiser_can_give_is_left_alone() -> None:
    """Who holds a record goes on by itself; who hears somebody has forty seconds; who has neither
    is not waited for.
    """
    patience = Patience.of(TIMING, 1)
    assert not patience.leaves_it_to([], 10.0)
    assert not patience.leaves_it_to([answer()], 10.0)
    assert patience.leaves_it_to([answer(), answer(coordinator=LEADER)], 39.0)
    assert not patience.leaves_it_to([answer(coordinator=LEADER)], 40.0)
    follows = PlanAnswer(cast("Any", "a plan"), "")
    assert patience.leaves_it_to([follows], 39.0)
    assert not patience.leaves_it_to([follows], 40.0)
    assert patience.leaves_it_to([answer(records=1)], 1000.0)
