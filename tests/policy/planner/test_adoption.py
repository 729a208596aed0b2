"""Who takes in a guest for a stage that everybody has left."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.planner.adoption import (
    ADOPT_WAIT_S,
    GUEST_START_S,
    HostCandidate,
    choose_host,
    guest_bytes,
    predicted_iteration_s,
    predicted_seconds,
    stage_distance,
)
from swarmfree.policy.planner.allocation import stage_needs
from swarmfree.policy.planner.measured_fleet import MeasuredPeer
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, StagesSection
from swarmfree.protocol.names import ENDS_STAGE, Member
from swarmfree.protocol.split import BlockSplit

MANIFEST = Manifest(
    model=ModelSection(blocks=4),
    stages=StagesSection(body=4, replicas_max=2, sources_max=2),
    batch=BatchSection(microbatches=16),
)
ROOM, NEEDED = 1 << 40, guest_bytes(MANIFEST, 2)
EQUAL = [MeasuredPeer("s", 0, 1e-9), MeasuredPeer("a", 1, 1.0), MeasuredPeer("b", 2, 1.0), MeasuredPeer("c", 4, 1.0)]
"""Four stages of the body take as long, and the ends no time; nobody serves stage 3."""


def candidate(name: str, stage: int, room: int = ROOM, *, can_feed: bool = False, tries: int = 0) -> HostCandidate:
    """A member that serves this stage."""
    return HostCandidate(Member(name, "1" * 16), stage, room, can_feed, tries)


def chosen(stage: int, *candidates: HostCandidate) -> str:
    """Name of who takes in the guest; empty where nobody does."""
    found = choose_host(stage, candidates, MANIFEST)
    return found.host.peer_id if found is not None else ""


@pytest.mark.parametrize(
    ("lost", "there", "host"),
    [
        (2, [candidate("a", 0), candidate("b", 1), candidate("d", 4)], "b"),
        (4, [candidate("a", 0), candidate("b", 1), candidate("c", 2)], "a"),
        (2, [candidate("b", 1), candidate("c", 3, 2 * ROOM)], "c"),
        (2, [candidate("c", 3), candidate("b", 1)], "b"),
        (2, [candidate("b", 1, NEEDED - 1), candidate("d", 4)], "d"),
        (2, [candidate("b", 1, NEEDED), candidate("d", 4)], "b"),
        (2, [candidate("b", 1, tries=1), candidate("d", 4)], "d"),
        (2, [candidate("b", 1, 0), candidate("d", 4, 0)], ""),
        (2, [], ""),
        (ENDS_STAGE, [candidate("b", 1), candidate("c", 3, can_feed=True)], "c"),
        (ENDS_STAGE, [candidate("b", 1)], ""),
    ],
    ids=[
        "near",
        "the ends are near both ends",
        "room",
        "name",
        "too little",
        "enough",
        "in vain",
        "none",
        "nobody",
        "feeds",
        "no text",
    ],
)
def test_who_is_asked(lost: int, there: list[HostCandidate], host: str) -> None:
    """The nearest that has room, of equal ones that with most of it, then the first by name; who
    was asked in vain comes later.
    """
    assert chosen(lost, *there) == host


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, ROOM), st.booleans(), st.integers(0, 2)), max_size=6), st.integers(0, 4)
)
def test_every_coordinator_chooses_alike(there: list[tuple[int, int, bool, int]], lost: int) -> None:
    """The order in which members are known changes nothing, and whoever is chosen can take it."""
    candidates = [candidate(f"p{n}", s, room, can_feed=feeds, tries=tries) for n, (s, room, feeds, tries) in enumerate(there)]
    shuffled = random.Random(lost).sample(candidates, len(candidates))
    host = chosen(lost, *candidates)
    assert host == chosen(lost, *shuffled)
    able = {c.member.peer_id for c in candidates if c.room_bytes >= guest_bytes(MANIFEST, lost) and (lost or c.can_feed)}
    assert host in able if able else host == ""


def test_a_guest_needs_what_a_replica_of_its_stage_does() -> None:
    """The memory is that which the planner reckons with for every peer."""
    blocks = [len(MANIFEST.blocks_of(stage)) for stage in range(MANIFEST.stage_count)]
    needs = stage_needs(MANIFEST, blocks, MANIFEST.replicas_max(ENDS_STAGE))
    assert tuple(guest_bytes(MANIFEST, stage) for stage in range(MANIFEST.stage_count)) == needs


def test_distance_goes_round_by_way_of_the_ends() -> None:
    """The last stage of the body is as near to stage 0 as the first one."""
    assert [stage_distance(0, stage, 5) for stage in range(5)] == [0, 1, 2, 2, 1]


def test_the_reason_names_who_and_why() -> None:
    """An operator reads where the host serves, and how much room there is."""
    found = choose_host(2, [candidate("b", 1, 10**9)], MANIFEST)
    assert found is not None
    assert "stage 2 is lost" in found.reason and "serves stage 1" in found.reason and "1,000 MB" in found.reason


def test_a_large_stage_takes_as_long_as_its_state() -> None:
    """To the wait and the start comes the transfer of weights and moments, if it was measured."""
    start_s = ADOPT_WAIT_S + GUEST_START_S
    assert predicted_seconds(MANIFEST, 2, None) == start_s
    longer_s = predicted_seconds(MANIFEST, 2, 1e6) - start_s
    assert longer_s == pytest.approx(2 * (predicted_seconds(MANIFEST, 2, 2e6) - start_s))


def test_an_iteration_is_slower_by_the_host_of_two_stages() -> None:
    """Four equal stages of the body and ends that cost nothing: with sixteen microbatches the host
    is busy twice as long, and everything waits for it. Half as many microbatches take half of that;
    what an iteration took beside the devices' work it takes still.
    """
    found = predicted_iteration_s(MANIFEST, 1.0, EQUAL, 3, "b", 16)
    assert 16 * 2.0 < found < 16 * 2.0 + 4
    assert predicted_iteration_s(MANIFEST, 1.0, EQUAL, 3, "b", 8) == pytest.approx(found / 2)
    later, much_later = (predicted_iteration_s(MANIFEST, seconds, EQUAL, 3, "b", 16) for seconds in (100.0, 107.0))
    assert much_later - later == pytest.approx(7.0)
    assert later > 100.0


def test_a_source_is_as_good_a_host_as_a_peer_of_the_body() -> None:
    """Its ends take a third of a block, where the head alone is half of that: it computes less than
    a neighbour that would compute two blocks. The next guest of one that has a slow one will be
    slow.
    """
    peers = [replace(peer, microbatch_s=0.3) if peer.name == "s" else peer for peer in EQUAL]
    in_body, in_source = (predicted_iteration_s(MANIFEST, 1.0, peers, 3, host, 16) for host in ("b", "s"))
    assert 16 * 1.3 < in_source < in_body
    fast, slow = ([*peers[:-1], MeasuredPeer("s", 4, seconds)] for seconds in (1.0, 2.0))
    assert 16 * 2.3 < predicted_iteration_s(MANIFEST, 1.0, fast, 3, "s", 16) < 16 * 4.3
    assert predicted_iteration_s(MANIFEST, 1.0, slow, 3, "s", 16) > 16 * 4.3


def test_a_host_of_two_guests_computes_three_stages() -> None:
    """Its guest of before bears its name: they share a device. Where several have told how long
    they take, the guest of a fast host is a fast one.
    """
    shared = [peer if peer.name != "c" else MeasuredPeer("b", 4, 1.0) for peer in EQUAL]
    assert 16 * 3.0 < predicted_iteration_s(MANIFEST, 1.0, shared, 3, "b", 16) < 16 * 3.0 + 4
    fast = [peer if peer.name != "b" else MeasuredPeer("b", 2, 0.1) for peer in EQUAL]
    assert predicted_iteration_s(MANIFEST, 1.0, fast, 3, "b", 16) < predicted_iteration_s(MANIFEST, 1.0, fast, 3, "a", 16)


@pytest.mark.parametrize(
    ("iteration_s", "peers"),
    [(0.0, EQUAL), (2.0, [replace(peer, microbatch_s=0.0) for peer in EQUAL]), (2.0, EQUAL[1:])],
    ids=["time", "nobody", "another stage is lost"],
)
def test_what_was_not_measured_is_not_predicted(iteration_s: float, peers: list[MeasuredPeer]) -> None:
    """Nothing is said of an iteration where none, or no peer, was measured, or a second stage has
    nobody.
    """
    assert predicted_iteration_s(MANIFEST, iteration_s, peers, 3, "b", 16) == 0.0


def test_a_stage_is_as_large_as_the_model_is_cut_now() -> None:
    """Where a stage has got other blocks since the run began, a guest needs memory for these, and a
    host that has room for what it had is not asked.
    """
    run, split = replace(MANIFEST, model=ModelSection(blocks=8)), BlockSplit((1, 5, 1, 1))
    before = guest_bytes(run, 2)
    assert guest_bytes(run, 2, run.split) == before
    assert guest_bytes(run, 2, split) > before > guest_bytes(run, 1, split)
    host = candidate("a", 1, before)
    assert choose_host(2, [host], run) is not None
    assert choose_host(2, [host], run, split) is None
    start_s = predicted_seconds(run, 2, None)
    vacant, near, far = BlockSplit((4, 0, 2, 2)), candidate("b", 1, 0), candidate("d", 4, 1)
    found = choose_host(2, [near, far], run, vacant)
    assert found is not None, "a guest without blocks needs no memory"
    assert found.host == far.member, "who takes in none is not asked for one without blocks either"
    assert choose_host(2, [near], run, vacant) is None
    copies_s = [predicted_seconds(run, 2, 1e6, split=cut) - start_s for cut in (None, split)]
    assert copies_s[1] / copies_s[0] == pytest.approx(5 / 2)
    as_begun_s, as_cut_s = (predicted_iteration_s(run, 1.0, EQUAL, 3, "b", 16, cut) for cut in (None, split))
    assert as_cut_s != as_begun_s
