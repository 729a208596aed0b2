"""Routing and shares: proportional, evenly spread, the same for every caller."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.router import candidates, deal_shares, interleave, speeds
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica

WEIGHTS = st.lists(st.integers(1, 16), min_size=1, max_size=8)


def _replicas(weights: list[int]) -> tuple[Replica, ...]:
    return tuple(Replica(Endpoint(Member(f"p{k}", "0" * 16), ()), w) for k, w in enumerate(weights))


def _plan(weights: list[int], count: int) -> Plan:
    source = Member("s", "0" * 16)
    replicas = ((Replica(Endpoint(source, ()), 1),), _replicas(weights))
    return Plan(Position(Term(1, source), 0, 0, 1), "b", "l", replicas, (), None, count)


@given(WEIGHTS, st.integers(1, 20))
def test_turns_follow_weights_exactly_over_a_whole_cycle(weights: list[int], cycles: int) -> None:
    """Over any number of whole cycles everyone has exactly its share of turns."""
    turns = interleave(weights, sum(weights) * cycles)
    assert [turns.count(k) for k in range(len(weights))] == [w * cycles for w in weights]


@given(WEIGHTS, st.integers(0, 40))
def test_no_taker_is_ever_a_whole_turn_ahead_of_its_share_by_more_than_the_others_number(weights: list[int], count: int) -> None:
    """Turns are spread: after any prefix a taker is less than the number of takers away from its
    ideal share.
    """
    turns = interleave(weights, count)
    for k, weight in enumerate(weights):
        assert abs(turns.count(k) - count * weight / sum(weights)) < len(weights)


@given(WEIGHTS, st.integers(1, 12))
def test_every_replica_is_a_candidate_once_for_every_microbatch(weights: list[int], count: int) -> None:
    """A caller that keeps failing has asked each replica of the stage once."""
    plan = _plan(weights, count)
    for offset in range(count):
        assert sorted(candidates(plan, 1, offset), key=lambda e: e.member) == [r.endpoint for r in plan.replicas[1]]


@given(WEIGHTS, st.integers(0, 30))
def test_shares_deal_every_microbatch_to_one_source(weights: list[int], count: int) -> None:
    """The sources' shares are a partition of the iteration."""
    shares = deal_shares(_replicas(weights), count)
    assert sorted(offset for share in shares for offset in share) == list(range(count))


def test_a_peer_half_as_fast_gets_half_the_speed_and_an_unknown_one_the_median() -> None:
    """Speeds are relative to the fastest; nobody is ever at zero."""
    assert speeds([0.1, 0.2, 0.0]) == (8, 4, 4)
    assert speeds([0.0, 0.0]) == (1, 1)
    assert speeds([0.001, 10.0]) == (8, 1)


def test_a_replica_that_only_holds_its_stage_up_is_asked_for_nothing() -> None:
    """It is left out exactly where the others are through sooner without it, and asked again where
    nothing is dealt by it.
    """
    assert speeds([0.1, 0.1, 10.0], 24) == (8, 8, 0)
    assert speeds([0.1, 0.1, 10.0]) == (8, 8, 1)
    assert speeds([0.1, 0.2], 24) == (8, 4)
    assert speeds([0.1, 0.1, 10.0], 6) == (8, 8, 1)  # no microbatch would be its anyway
    assert speeds([1.0, 30.0, 40.0], 1) == (8, 1, 1)
    assert speeds([5.0], 8) == (8,)


@given(st.lists(st.floats(0.01, 50.0), min_size=1, max_size=6), st.integers(1, 40))
def test_leaving_the_slow_ones_out_never_makes_a_stage_slower(seconds: list[float], count: int) -> None:
    """By the dealt turns and the measured seconds; and somebody is always asked."""

    def through_s(dealt: tuple[int, ...]) -> float:
        turns = interleave(dealt, count)
        return max(turns.count(k) * seconds[k] for k in range(len(seconds)))

    dealt = speeds(seconds, count)
    assert any(dealt)
    assert through_s(dealt) <= through_s(speeds(seconds))
    assert set(interleave(dealt, count)) <= {k for k, level in enumerate(dealt) if level}
