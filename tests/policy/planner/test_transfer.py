"""Who takes which place, and which averagings go together, held against all possibilities."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.planner.averaging_rounds import SharedBlocks, averaging_rounds, shared_blocks
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.transfer import copy_costs, keep_places, least_copies

COSTS = st.integers(1, 4).flatmap(
    lambda places: st.lists(
        st.lists(st.integers(0, 9), min_size=places + 1, max_size=places + 1), min_size=places, max_size=places
    )
)


def all_costs(costs: list[list[int]]) -> list[list[int]]:
    """The costs of every way to give each place a peer of its own."""
    return [
        [costs[place][peer] for place, peer in enumerate(chosen)]
        for chosen in itertools.permutations(range(len(costs[0])), len(costs))
    ]


@given(COSTS)
def test_the_sum_is_the_least(costs: list[list[int]]) -> None:
    """Of all matchings; no peer twice."""
    found = least_copies(costs)
    assert sum(match.cost for match in found) == min(map(sum, all_costs(costs)))
    assert len({match.peer for match in found}) == len(costs)


@given(COSTS)
def test_at_once_the_largest_copy_is_the_least_and_then_the_sum(costs: list[list[int]]) -> None:
    """Links that copy at the same time are through when the last one is."""
    found = [match.cost for match in least_copies(costs, at_once=True)]
    assert (max(found), sum(found)) == min((max(each), sum(each)) for each in all_costs(costs))


def test_the_sum_and_the_largest_copy_can_disagree() -> None:
    """One copy of 4 is less than two of 3, but takes longer than both together."""
    costs = [[0, 3], [3, 4]]
    assert [match.cost for match in least_copies(costs)] == [0, 4]
    assert [match.cost for match in least_copies(costs, at_once=True)] == [3, 3]


def test_a_place_without_a_peer_is_said() -> None:
    """More places than peers."""
    with pytest.raises(ValueError, match="2 places need as many peers, and there are 1"):
        least_copies([[1], [2]])


def test_bytes_weigh_more_than_numbers() -> None:
    """Whoever has the large block stays with it, even for two small ones."""
    assert copy_costs([(0,), (1, 2)], [(1, 2), (0,)], {0: 100, 1: 1, 2: 1}) == [[100, 0], [0, 2]]


def peers(count: int) -> Fleet:
    """Equal peers p0, p1, .."""
    return Fleet(tuple(PeerProfile(f"p{n}", 1.0, 2.0, 1, 1.0) for n in range(count)))


@given(st.data())
def test_equal_peers_keep_what_they_hold(data: st.DataObject) -> None:
    """A plan over four stages becomes another: the copies are as few as a matching finds."""
    count = data.draw(st.integers(4, 9))
    fleet, names = peers(count), [f"p{n}" for n in range(count)]
    stages = st.lists(st.integers(0, 3), min_size=count, max_size=count)

    def plan(places: list[int]) -> ExecutionPlan:
        return ExecutionPlan(
            (0, 1, 1, 1), tuple(tuple(n for n, p in zip(names, places, strict=True) if p == s) for s in range(4))
        )

    old, new, sizes = plan(data.draw(stages)), plan(data.draw(stages)), (5.0, 1.0, 1.0, 2.0)
    found = keep_places(old, new, fleet, sizes)
    assert [len(r) for r in found.replicas] == [len(r) for r in new.replicas]
    held = old.stages_of
    copied = sum(sizes[s] for name, places in found.stages_of.items() for s in places if s not in held[name])
    costs = copy_costs([new.stages_of[n] for n in names], [held[n] for n in names], dict(enumerate(sizes)))
    assert copied == sum(match.cost for match in least_copies(costs))


def test_a_peer_of_several_stages_keeps_most_of_them() -> None:
    """Where each serves two, the matching decides."""
    old = ExecutionPlan((0, 1, 1, 1), (("p0",), ("p0",), ("p1",), ("p1",)))
    new = ExecutionPlan((0, 1, 1, 1), (("p1",), ("p1",), ("p0",), ("p2",)))
    assert keep_places(old, new, peers(3), (1, 1, 1, 1)).replicas[:2] == (("p0",), ("p0",))


def test_a_standby_takes_a_place_before_a_peer_that_serves_elsewhere() -> None:
    """A place is free, and another one is given up: whoever gives it up may just as well rest."""
    old = ExecutionPlan((0, 1, 1), (("p0",), ("p1",), ()))
    new = ExecutionPlan((0, 1, 1), (("p0",), (), ("p1",)))
    assert keep_places(old, new, peers(3), (1, 1, 1)).replicas[2] == ("p2",)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(4, 12), st.integers(0, 99))
def test_rounds_are_as_few_as_possible(pipelines: list[int], blocks: int, seed: int) -> None:
    """Nobody has two averagings in a round, each has its turn once, and there are as many rounds
    as one peer has averagings.
    """
    owners: list[set[tuple[int, int]]] = [set() for _ in range(blocks)]
    for number, stages in enumerate(pipelines):
        cuts = sorted(random.Random(f"{seed} {number}").sample(range(1, blocks), min(stages, blocks) - 1))
        for block in range(blocks):
            owners[block].add((number, sum(cut <= block for cut in cuts)))
    found = shared_blocks(owners)
    rounds = averaging_rounds(found)
    assert sorted(part.blocks.start for together in rounds for part in together) == [part.blocks.start for part in found]
    for together in rounds:
        assert len({owner for part in together for owner in part.owners}) == sum(len(part.owners) for part in together)
    assert len(rounds) == max(sum(owner in part.owners for part in found) for group in owners for owner in group)


def test_rounds_of_owners_with_gaps() -> None:
    """A circle of five averagings needs three rounds, whatever their order."""
    circle = [SharedBlocks(range(n, n + 1), frozenset({n, (n + 1) % 5})) for n in range(5)]
    assert len(averaging_rounds(circle)) == 3
    assert averaging_rounds([]) == ()
