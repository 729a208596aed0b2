"""What an iteration takes and what peers need, by hand for small plans and in general."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.planner.estimator import (
    averaging_s,
    chains,
    commit_s,
    iteration_bound,
    iteration_estimate,
    iteration_time,
    memory_bytes,
    stage_work,
)
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, Link, PeerProfile
from swarmfree.policy.planner.list_schedule import list_schedule
from swarmfree.policy.planner.model_size import boundary_bytes, stage_activation_bytes, stage_parameters
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, StagesSection

MODEL = ModelSection(blocks=6)
MANIFEST = Manifest(model=MODEL, stages=StagesSection(body=3), batch=BatchSection(microbatches=4), ring=RingSection(credits=4))
BLOCKS = (0, 2, 2, 2)


def peer(name: str, speed: float = 1.0, bytes_per_s: float = math.inf, latency_s: float = 0.0) -> PeerProfile:
    """A peer that takes one second for a block's forward and two for its backward, at speed 1."""
    return PeerProfile(name, 1 / speed, 2 / speed, 1 << 40, bytes_per_s, latency_s, can_feed=True)


def fleet_of(*peers: PeerProfile) -> Fleet:
    """Peers without measured links."""
    return Fleet(tuple(peers))


ONE_EACH = ExecutionPlan(BLOCKS, (("a",), ("b",), ("c",), ("d",)))


def test_one_replica_each_is_a_pipeline() -> None:
    """Three stages of two blocks, four microbatches: the last stage waits for two forwards, has 24
    seconds of work, and two backwards follow; the head stands between its ways.
    """
    found = iteration_time(fleet_of(*map(peer, "abcd")), ONE_EACH, MANIFEST)
    head_s = 3 * stage_work(MANIFEST, BLOCKS)[0]
    assert 36.0 <= found.compute_s <= 36.0 + 4 * head_s
    assert (found.averaging_s, found.commit_s) == (0.0, 0.0)


def test_a_second_replica_of_every_stage_nearly_halves_the_time() -> None:
    """Each does half of the microbatches; filling and draining stay."""
    names = "abcdefgh"
    double = ExecutionPlan(BLOCKS, (("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")))
    many = dataclasses.replace(MANIFEST, batch=BatchSection(microbatches=40), ring=RingSection(credits=8))
    one, two = (iteration_time(fleet_of(*map(peer, names)), plan, many).compute_s for plan in (ONE_EACH, double))
    assert 0.5 < two / one < 0.6


def test_a_slow_replica_is_dealt_less() -> None:
    """As the router deals: one of a third of the speed gets a quarter of the microbatches."""
    slow = fleet_of(peer("a"), peer("b"), peer("c"), peer("c2", 1 / 3), peer("d"))
    plan = ExecutionPlan(BLOCKS, (("a",), ("b",), ("c", "c2"), ("d",)))
    many = dataclasses.replace(MANIFEST, batch=BatchSection(microbatches=40))
    forwards = [work.device for chain in chains(slow, plan, many) for work in chain if not work.is_backward]
    assert forwards.count("c2") == pytest.approx(10, abs=1)


def test_sources_are_dealt_equal_shares() -> None:
    """A source of a third of the speed feeds, and takes the loss of, every second microbatch, as
    the coordinator deals them.
    """
    fleet = fleet_of(peer("a"), peer("a2", 1 / 3), peer("b"), peer("c"), peer("d"))
    plan = ExecutionPlan(BLOCKS, (("a", "a2"), ("b",), ("c",), ("d",)))
    many = dataclasses.replace(MANIFEST, batch=BatchSection(microbatches=7))
    assert [chain[0].device for chain in chains(fleet, plan, many)] == ["a", "a2", "a", "a2", "a", "a2", "a"]


def test_an_estimate_hardly_depends_on_who_comes_first() -> None:
    """Links that take a hundredth of a piece longer change an exact play by a thirteenth at times,
    since another piece comes first; the estimate, the same every time, by a fiftieth at most.
    """
    manifest = dataclasses.replace(MANIFEST, batch=BatchSection(microbatches=12), ring=RingSection(credits=6))
    head_s = 3 * stage_work(MANIFEST, BLOCKS)[0]
    fleets = [
        fleet_of(peer("a", head_s / 1.7, latency_s=0.02 * step), *(peer(name, latency_s=0.02 * step) for name in "bcd"))
        for step in range(8)
    ]
    for play, jump_s in ((iteration_time, (0.07, 0.09)), (iteration_estimate, (0.0, 0.02))):
        took_s = [play(fleet, ONE_EACH, manifest).compute_s for fleet in fleets]
        assert jump_s[0] < max(abs(later / before - 1) for before, later in pairwise(took_s)) < jump_s[1]
        assert took_s == [play(fleet, ONE_EACH, manifest).compute_s for fleet in fleets]


def test_links_cost_their_latency_and_their_bytes() -> None:
    """A measured link counts for its pair alone; the others follow from the peers."""
    fleet = Fleet((peer("a", 1, 1e6, 0.1), peer("b", 1, 2e6, 0.2), peer("c", 1, 3e6)), {("b", "a"): Link(0.5, 1e3)})
    assert fleet.link("a", "b") == Link(0.5, 1e3)
    assert fleet.link("b", "c") == Link(0.2, 2e6)
    assert fleet.link("a", "a").seconds(1e9) == 0.0
    assert fleet.link("a", "b").seconds(2e3) == pytest.approx(2.5)
    quick, slow = fleet_of(*map(peer, "abcd")), fleet_of(*(peer(name, latency_s=0.5) for name in "abcd"))
    one = dataclasses.replace(MANIFEST, batch=BatchSection(microbatches=1))
    gap_s = iteration_time(slow, ONE_EACH, one).compute_s - iteration_time(quick, ONE_EACH, one).compute_s
    assert gap_s == pytest.approx(8.0), "eight hops of a second"
    assert boundary_bytes(one) == one.batch.rows * MODEL.tokens_per_row * MODEL.width * 4


def test_a_peer_sends_one_tensor_after_the_other() -> None:
    """The source of two replicas is what they wait for, where its way out takes ten seconds a
    tensor and nobody else's takes any time.
    """
    size = boundary_bytes(MANIFEST)
    fleet = fleet_of(peer("a", 1e3, size / 10), *(peer(name, 1e3) for name in "bcde"))
    plan = ExecutionPlan(BLOCKS, (("a",), ("b", "e"), ("c",), ("d",)))
    one, four = (dataclasses.replace(MANIFEST, batch=BatchSection(microbatches=count)) for count in (1, 4))
    first_s, all_s = (iteration_time(fleet, plan, manifest).compute_s for manifest in (one, four))
    assert all_s - first_s == pytest.approx(2 * 3 * 10, rel=0.1), "there, and with the gradient of the head"


def test_averaging_moves_the_stage_twice_but_for_ones_own_part() -> None:
    """2 V (n - 1) / n bytes for each, and two ways of latency; stages average at the same time,
    those of one peer in turn.
    """
    fleet = fleet_of(*(peer(name, bytes_per_s=1e6, latency_s=0.1) for name in "abcdef"))
    stage_s = 2 * (4 * stage_parameters(MODEL, 1, 2) / 2 / 1e6 + 0.2)
    twins = ExecutionPlan(BLOCKS, (("a",), ("b", "c"), ("d", "e"), ("f",)))
    shared = ExecutionPlan(BLOCKS, (("a",), ("b", "c"), ("b", "e"), ("f",)))
    assert averaging_s(fleet, twins, MANIFEST) == pytest.approx(stage_s)
    assert averaging_s(fleet, shared, MANIFEST) == pytest.approx(2 * stage_s)
    assert averaging_s(fleet, ONE_EACH, MANIFEST) == 0.0
    assert commit_s(fleet, twins) == pytest.approx(4 * 2 * 0.2)


def test_a_stage_without_a_peer_never_ends() -> None:
    """By both estimates."""
    plan = ONE_EACH.without(frozenset("c"))
    for estimate in (iteration_time, iteration_bound):
        assert estimate(fleet_of(*map(peer, "abd")), plan, MANIFEST).seconds == math.inf


PLANS = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True), min_size=4, max_size=4)


@given(PLANS, st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=6, max_size=6), st.integers(1, 9), st.integers(1, 5))
def test_no_plan_is_faster_than_its_bound_or_holds_more_than_its_memory(
    replicas: list[list[str]], speeds: list[float], microbatches: int, credits: int
) -> None:
    """Whoever serves what, several stages at a peer among them."""
    manifest = dataclasses.replace(MANIFEST, batch=BatchSection(microbatches=microbatches), ring=RingSection(credits=credits))
    fleet = fleet_of(*(peer(name, speed) for name, speed in zip("abcdef", speeds, strict=True)))
    plan = ExecutionPlan(BLOCKS, tuple(tuple(sorted(names)) for names in replicas))
    played = list_schedule(chains(fleet, plan, manifest), credits)
    assert iteration_bound(fleet, plan, manifest).compute_s <= played.seconds * (1 + 1e-9)
    needed = memory_bytes(plan, manifest)
    for name, stages in plan.stages_of.items():
        held = played.held_max.get(name, 0)
        activations = max(stage_activation_bytes(manifest, stage, BLOCKS[stage]) for stage in stages)
        assert needed[name] >= held * activations + sum(28 * stage_parameters(MODEL, stage, BLOCKS[stage]) for stage in stages)
