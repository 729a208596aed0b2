"""Which partial sums count: disjoint, covering, and the same wherever it is decided."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.reduction import choose_partial_sums
from swarmfree.protocol.names import Member, PartialSumId
from swarmfree.protocol.records import MicrobatchSet, PartialSum


def _partial_sum(peer: str, number: int, offsets: set[int]) -> PartialSum:
    return PartialSum(PartialSumId(Member(peer, "0" * 16), number), MicrobatchSet.of(offsets))


PARTIAL_SUMS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.sets(st.integers(0, 11))), max_size=10, unique_by=lambda a: a[:2]
)


@given(PARTIAL_SUMS, st.integers(1, 12))
def test_chosen_partial_sums_are_disjoint_and_what_they_lack_is_said(drawn: list[tuple[str, int, set[int]]], count: int) -> None:
    """No microbatch stands in two chosen partial sums, and chosen plus missing is all of them."""
    partial_sums = [_partial_sum(peer, number, {o for o in offsets if o < count}) for peer, number, offsets in drawn]
    cover = choose_partial_sums(partial_sums, count)
    seen = MicrobatchSet()
    for partial_sum in cover.partial_sums:
        assert not len(partial_sum.microbatches & seen)
        seen |= partial_sum.microbatches
    assert seen | cover.missing == MicrobatchSet.full(count)
    assert not len(seen & cover.missing)


@given(PARTIAL_SUMS, st.integers(0, 1000))
def test_the_choice_does_not_depend_on_the_order_of_answers(drawn: list[tuple[str, int, set[int]]], seed: int) -> None:
    """Members answer in any order; the roll is the same."""
    partial_sums = [_partial_sum(*a) for a in drawn]
    shuffled = random.Random(seed).sample(partial_sums, len(partial_sums))
    assert choose_partial_sums(partial_sums, 12) == choose_partial_sums(shuffled, 12)


def test_a_retried_microbatch_held_twice_counts_once() -> None:
    """Two replicas hold microbatch 3: one partial sum is left out, and only what else it held is
    missing.
    """
    cover = choose_partial_sums([_partial_sum("a", 0, {0, 1, 2, 3}), _partial_sum("b", 0, {4, 5}), _partial_sum("b", 1, {3})], 6)
    assert [(a.id.member.peer_id, a.id.number) for a in cover.partial_sums] == [("a", 0), ("b", 0)]
    assert cover.missing == MicrobatchSet()
