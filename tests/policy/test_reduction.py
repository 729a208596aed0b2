"""Which addends count: disjoint, covering, and the same wherever it is decided."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.reduction import choose_addends
from swarmfree.protocol.names import AddendId, Member
from swarmfree.protocol.records import Addend, MicrobatchSet


def _addend(peer: str, number: int, offsets: set[int]) -> Addend:
    return Addend(AddendId(Member(peer, "0" * 16), number), MicrobatchSet.of(offsets))


ADDENDS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.sets(st.integers(0, 11))), max_size=10, unique_by=lambda a: a[:2]
)


@given(ADDENDS, st.integers(1, 12))
def test_chosen_addends_are_disjoint_and_what_they_lack_is_said(drawn: list[tuple[str, int, set[int]]], count: int) -> None:
    """No microbatch stands in two chosen addends, and chosen plus missing is all of them."""
    addends = [_addend(peer, number, {o for o in offsets if o < count}) for peer, number, offsets in drawn]
    cover = choose_addends(addends, count)
    seen = MicrobatchSet()
    for addend in cover.addends:
        assert not len(addend.microbatches & seen)
        seen |= addend.microbatches
    assert seen | cover.missing == MicrobatchSet.full(count)
    assert not len(seen & cover.missing)


@given(ADDENDS, st.integers(0, 1000))
def test_the_choice_does_not_depend_on_the_order_of_answers(drawn: list[tuple[str, int, set[int]]], seed: int) -> None:
    """Members answer in any order; the roll is the same."""
    addends = [_addend(*a) for a in drawn]
    shuffled = random.Random(seed).sample(addends, len(addends))
    assert choose_addends(addends, 12) == choose_addends(shuffled, 12)


def test_a_retried_microbatch_held_twice_counts_once() -> None:
    """Two replicas hold microbatch 3: one addend is left out, and only what else it held is missing."""
    cover = choose_addends([_addend("a", 0, {0, 1, 2, 3}), _addend("b", 0, {4, 5}), _addend("b", 1, {3})], 6)
    assert [(a.id.member.peer_id, a.id.number) for a in cover.addends] == [("a", 0), ("b", 0)]
    assert cover.missing == MicrobatchSet()
