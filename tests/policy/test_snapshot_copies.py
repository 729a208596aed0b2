"""Who copies a snapshot to the store, what goes there, and who fetches what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.snapshot_store import FETCHED_WITHIN_S, is_keeper, missing_stages, removed_before, to_fetch, turns_before
from swarmfree.protocol.messages import HeldSnapshot
from tests.policy.test_resume import L, M, held

REPLICAS = ("a", "b", "c")


@given(st.integers(0, 50), st.sets(st.sampled_from(REPLICAS), min_size=1))
def test_of_the_replicas_that_live_one_copies_at_once(turn: int, living: set[str]) -> None:
    """The same for all; with nobody dead they take turns, and each one does after a while."""
    before = {peer: turns_before(peer, REPLICAS, living, turn) for peer in sorted(living)}
    assert sorted(len(others) for others in before.values()) == list(range(len(living)))
    first = [peer for peer, others in before.items() if not others]
    assert living < set(REPLICAS) or first == [REPLICAS[turn % 3]]
    assert all(others[0] == first[0] for others in before.values() if others)


def test_who_is_in_no_plan_copies_what_it_has() -> None:
    """A replica that nobody names is alone."""
    assert not turns_before("d", (), (), 7)


@pytest.mark.parametrize(
    ("stored", "before"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([held(0, 4), held(1, 4)], 0, id="one set"),
        pytest.param([held(0, 4), held(1, 4), held(0, 6), held(1, 6)], 4, id="two sets"),
        pytest.param(
            [held(0, 2), held(1, 4), held(0, 4), held(0, 6), held(1, 6), held(0, 8), held(1, 8)], 6, id="the third goes"
        ),
        pytest.param([held(0, 4), held(1, 4), held(0, 6), held(1, 8), held(0, 8)], 4, id="what is torn is no set"),
        pytest.param([held(0, 4), held(1, 4), held(0, 6), held(1, 6, M)], 0, id="lineages are not mixed"),
        pytest.param([held(s, 6, x) for s in (0, 1) for x in (L, M)] + [held(0, 4), held(1, 4)], 4, id="two lineages count once"),
        pytest.param([held(s, i, M) for s in (0, 1) for i in (8, 10)] + [held(0, 4), held(1, 4)], 0, id="another one is ahead"),
        pytest.param([held(s, i, M) for s in (0, 1) for i in (4, 6)] + [held(0, 8), held(1, 8)], 0, id="another one is behind"),
    ],
)
def test_what_is_older_than_the_last_two_sets_goes(stored: list[HeldSnapshot], before: int) -> None:
    """Nothing that is as new as they are, whole or not."""
    assert removed_before(stored, 2, dict.fromkeys(range(20), L)) == before


STORED = [held(0, 8), held(1, 8), held(2, 8)]


def chosen_by(
    peer: str,
    offers: Mapping[str, Sequence[HeldSnapshot]],
    feeders: Collection[str],
    stored: Sequence[HeldSnapshot],
    waited_s: float = 0.0,
) -> HeldSnapshot | None:
    """What it fetches, once all that is missing has been so for a while."""
    missing = missing_stages(offers, stored, 3)
    return to_fetch(peer, offers, feeders, missing, dict.fromkeys(missing.stages, waited_s))


@pytest.mark.parametrize(
    ("offers", "stored", "expected"),
    [
        pytest.param({"a": [], "b": [], "c": []}, STORED, {"a": 0, "b": 1, "c": 2}, id="all disks are empty"),
        pytest.param({"b": [], "c": [], "d": [], "a": []}, STORED, {"a": 0, "b": 1, "c": 2}, id="one more than stages"),
        pytest.param({"a": [held(0, 8)], "b": [held(1, 8)], "c": []}, STORED, {"c": 2}, id="one disk is empty"),
        pytest.param({"a": [held(0, 8)], "b": [held(1, 8)], "c": [held(1, 8)]}, STORED, {"c": 2}, id="two have the same"),
        pytest.param(
            {"a": [held(0, 4)], "b": [held(1, 4)], "c": [held(2, 4)]}, STORED, {"a": 0, "b": 1, "c": 2}, id="older disks"
        ),
        pytest.param({"a": [held(0, 8)], "b": [held(1, 8)], "c": [held(2, 8)]}, STORED, {}, id="all is on disks"),
        pytest.param({"a": [held(0, 9)], "b": [held(1, 9)], "c": [held(2, 9)]}, STORED, {}, id="disks have more"),
        pytest.param({"a": [held(0, 9)], "b": [held(1, 9)], "c": []}, STORED, {"a": 0, "b": 1, "c": 2}, id="whole before newer"),
        pytest.param({"a": [held(0, 9)], "b": [], "c": []}, [held(1, 9), held(2, 9)], {"b": 1, "c": 2}, id="half and half"),
        pytest.param({"a": [], "b": [], "c": []}, [held(1, 9)], {"b": 1}, id="what there is of a set"),
        pytest.param({"b": [], "c": []}, STORED, {"b": 1, "c": 2}, id="nobody who feeds is back"),
        pytest.param({"a": [], "b": [], "c": []}, [], {}, id="nothing is stored"),
    ],
)
def test_each_stage_that_no_disk_has_is_fetched_by_one_peer(
    offers: dict[str, list[HeldSnapshot]], stored: list[HeldSnapshot], expected: dict[str, int]
) -> None:
    """The ends by one that can feed, here a."""
    chosen = {peer: chosen_by(peer, offers, {"a"}, stored) for peer in offers}
    assert {peer: held.stage for peer, held in chosen.items() if held is not None} == expected
    assert {held.iteration for held in chosen.values() if held is not None} == ({stored[0].iteration} if expected else set())


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.sampled_from([*STORED, held(0, 4), held(1, 9)]), max_size=2)))
def test_every_stage_comes_to_a_disk(disks: dict[str, list[HeldSnapshot]]) -> None:
    """Whatever lies where: with peers enough, each fetches once and the newest set that is whole
    somewhere is whole on disks.
    """
    offers = {f"peer {number}": list[HeldSnapshot]() for number in range(3)} | disks
    feeders = {"peer 0", *(peer for peer in disks if peer < "c")}
    for _ in range(2):
        chosen = {peer: chosen_by(peer, offers, feeders, STORED) for peer in offers}
        fetched = [held for held in chosen.values() if held is not None]
        assert len(fetched) == len(set(fetched)), "no stage twice"
        assert all(held.stage or peer in feeders for peer, held in chosen.items() if held is not None)
        offers = {peer: [held] if (held := chosen[peer]) is not None else offers[peer] for peer in offers}
    assert not fetched, "one round is enough"
    first = [next((held.stage for held in snapshots if held.iteration == 8), None) for snapshots in offers.values()]
    assert set(first) >= {0, 1, 2}


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.sampled_from([*STORED, held(0, 4), held(1, 9)]), max_size=2)))
def test_of_those_that_have_a_stage_one_keeps_it(disks: dict[str, list[HeldSnapshot]]) -> None:
    """And fetches nothing in its place, however late that is: two that have the same might both."""
    stages = {peer: one.stage for peer, disk in disks.items() for one in reversed(disk) if one.iteration == 8}
    keepers = [peer for peer in disks if is_keeper(held(2, 8), disks, peer, disks)]
    assert sorted(stages[peer] for peer in keepers) == sorted(set(stages.values()))
    for peer in keepers:
        fetched = chosen_by(peer, disks, set(disks), STORED, 9 * FETCHED_WITHIN_S)
        assert fetched is None or fetched.iteration != 8


def test_who_has_the_same_and_fetches_nothing_keeps_it() -> None:
    """Whoever comes first by name; who has none of that set, or another stage, keeps nothing."""
    disks = {"a": [held(0, 8)], "b": [held(0, 8)], "c": [held(1, 8)], "d": [held(0, 6)], "e": list[HeldSnapshot]()}

    def keeps(peer: str, *fetching: str) -> bool:
        return is_keeper(held(2, 8), disks, peer, fetching)

    assert not keeps("a")
    assert not keeps("b")
    assert keeps("a", "b")
    assert not keeps("b", "a")
    assert keeps("c", "a", "b")
    assert not keeps("d")
    assert not keeps("e")
    del disks["b"]
    assert keeps("a")


def test_what_nobody_fetches_in_time_is_fetched_by_others() -> None:
    """Whoever was to do so may not reach the store: each of the others takes each stage in turn."""
    offers = {"a": [held(0, 8)], "b": [], "c": [], "d": []}
    assert chosen_by("d", offers, {"a"}, STORED) is None
    late = [chosen_by("d", offers, {"a"}, STORED, rounds * FETCHED_WITHIN_S) for rounds in (1.5, 2.5)]
    stages = {one.stage for one in late if one is not None}
    assert stages == {1, 2}
    assert chosen_by("a", offers, {"a"}, STORED, 9 * FETCHED_WITHIN_S) is None, "who has its stage is not free"


def test_the_only_one_that_can_fetch_the_ends_fetches_nothing_in_their_place() -> None:
    """However late others are with the rest; where another one can feed they take turns."""
    offers: dict[str, list[HeldSnapshot]] = {"a": [], "b": [], "c": []}
    waits_s = [rounds * FETCHED_WITHIN_S for rounds in (1.5, 2.5, 3.5, 4.5)]
    assert {chosen_by("a", offers, {"a"}, STORED, wait_s) for wait_s in waits_s} == {held(0, 8)}
    assert len({chosen_by("a", offers, {"a", "b"}, STORED, wait_s) for wait_s in waits_s}) == 3


def test_each_stage_has_a_clock_of_its_own() -> None:
    """Another one that has just gone begins nobody's anew, and is nobody's to fetch but its own
    one's: of those that can feed where it is the ends.
    """
    offers: dict[str, list[HeldSnapshot]] = {"a": [], "b": [], "c": [], "d": []}
    missing = missing_stages(offers, STORED, 3)
    for rounds in (1.0, 2.0, 3.0):
        waited_s = {0: 0.0, 1: rounds * FETCHED_WITHIN_S, 2: 0.5 * FETCHED_WITHIN_S}
        assert to_fetch("d", offers, {"a"}, missing, waited_s) == held(1, 8)
    assert to_fetch("d", offers, {"a"}, missing, {0: 99.0, 1: 0.0, 2: 0.0}) is None
    both = [to_fetch("d", offers, {"a"}, missing, {0: 0.0, 1: rounds * FETCHED_WITHIN_S, 2: 25.0}) for rounds in (1.3, 2.3)]
    assert both == [held(1, 8), held(2, 8)], "the one that is missing for longer tells whose turn it is"
    assert to_fetch("d", offers, {"a"}, missing, {0: 0.0, 1: 0.99 * FETCHED_WITHIN_S, 2: 0.0}) is None


def test_one_that_can_feed_and_keeps_what_it_has_fetches_no_ends() -> None:
    """So the one that can as well, and is free, is the only one for them, however late it is."""
    offers: dict[str, list[HeldSnapshot]] = {"a": [], "b": [held(1, 8)], "c": []}
    waits_s = [rounds * FETCHED_WITHIN_S for rounds in (1.5, 2.5, 3.5, 4.5)]
    assert {chosen_by("a", offers, {"a", "b"}, STORED, wait_s) for wait_s in waits_s} == {held(0, 8)}
