"""Plans for whole fleets."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from swarmfree.policy.planner.allocation import PlanImpossible, ReplicaLimits, allocate, stage_needs
from swarmfree.policy.planner.estimator import iteration_bound, memory_bytes
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.forecast import forecast
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.planner.reactions import Outlook, options
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, StagesSection

MANIFEST = Manifest(
    model=ModelSection(blocks=6),
    stages=StagesSection(body=3, replicas_max=4, sources_max=1),
    batch=BatchSection(microbatches=16),
)
ROOM = 1 << 40


def peer(name: str, speed: float = 1.0, memory: int = ROOM, *, can_feed: bool = False) -> PeerProfile:
    """A peer that takes a second for a block's forward and two for its backward, at speed 1."""
    return PeerProfile(name, 1 / speed, 2 / speed, memory, 1e9, can_feed=can_feed)


def random_fleet(seed: int, count: int) -> Fleet:
    """Peers of speeds up to eight times apart; the first can feed."""
    rng = random.Random(seed)
    return Fleet(tuple(peer(f"p{n}", 2 ** rng.uniform(0, 3), can_feed=n == 0) for n in range(count)))


def test_each_stage_gets_a_peer_and_the_work_is_level() -> None:
    """Nine equal peers: one feeds, and the three stages get the others as evenly as it goes."""
    plan = allocate(Fleet(tuple(peer(f"p{n}", can_feed=n == 4) for n in range(9))), MANIFEST)
    assert plan.replicas[0] == ("p4",)
    assert sorted(len(names) for names in plan.replicas[1:]) == [2, 3, 3]


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_much_faster_than_the_greedy_one(seed: int) -> None:
    """Of all places of seven unequal peers, none takes an iteration more than a third away; with
    a second replica of each stage, which not all of those have.
    """
    fleet = random_fleet(seed, 7)
    found = allocate(fleet, MANIFEST)
    source = found.replicas[0][0]
    others = [p.name for p in fleet.peers if p.name != source]
    best_s = float("inf")
    for places in itertools.product((1, 2, 3), repeat=len(others)):
        groups = tuple(tuple(n for n, s in zip(others, places, strict=True) if s == stage) for stage in (1, 2, 3))
        plan = ExecutionPlan(found.blocks, ((source,), *groups))
        best_s = min(best_s, iteration_bound(fleet, plan, MANIFEST).seconds)
    assert iteration_bound(fleet, found, MANIFEST).seconds <= 1.34 * best_s


def test_everything_that_plans_goes_by_what_sources_were_found_to_do() -> None:
    """Where the ends take four blocks' time, stage 0 gets more peers of those that come, of
    standbys the next one, and is said to be what all others wait for.
    """
    light = Fleet(tuple(peer(f"p{n}", can_feed=True) for n in range(9)))
    plan = ExecutionPlan((0, 2, 2, 2), (("p0",), ("p1", "p2"), ("p3", "p4"), ("p5", "p6")))
    outlook, limits = Outlook(StageRecovery(seconds=10.0), limits=ReplicaLimits(4, 4)), ReplicaLimits(4, 4)
    found = []
    for fleet in (light, dataclasses.replace(light, ends_blocks=4.0)):
        takers = {
            r.taker for o in options(fleet, plan, frozenset(), MANIFEST, outlook) for r in o.reactions if isinstance(r, MovePeer)
        }
        sources = len(allocate(fleet, MANIFEST, limits).replicas[0])
        found.append((sources > 2, 0 in takers, forecast(fleet, MANIFEST).slowest_stage == 0))
    assert found == [(False,) * 3, (True,) * 3]


def test_memory_decides_before_speed() -> None:
    """The only peer with room for the larger stage serves it, though another is faster."""
    manifest = dataclasses.replace(MANIFEST, model=ModelSection(blocks=4))
    needs = stage_needs(manifest, (0, 2, 1, 1), 1)
    small = max(needs[0], needs[2])
    fleet = Fleet(
        (peer("fast", 8, small), peer("large", 1, needs[1]), peer("source", 1, small, can_feed=True), peer("d", 1, small))
    )
    plan = allocate(fleet, manifest)
    assert plan.replicas[1] == ("large",)
    assert all(needed <= fleet.by_name[name].memory_bytes for name, needed in memory_bytes(plan, manifest).items())


def test_the_source_gives_way_where_another_stage_needs_its_memory() -> None:
    """Both could feed; the faster one is the only one with room for the body."""
    needs = stage_needs(MANIFEST, (0, 2, 2, 2), 1)
    fleet = Fleet((peer("a", 8, can_feed=True), peer("b", 1, needs[0], can_feed=True), peer("c"), peer("d")))
    assert needs[0] < needs[1]
    assert allocate(fleet, MANIFEST).replicas[0] == ("b",)


def test_what_is_missing_is_said() -> None:
    """A source, or memory, with how much of it."""
    with pytest.raises(PlanImpossible, match="stage 0 needs a peer that can feed, and nobody here can"):
        allocate(Fleet(tuple(peer(f"p{n}") for n in range(4))), MANIFEST)
    poor = Fleet((peer("s", can_feed=True), *(peer(f"p{n}", 1, 1000) for n in range(3))))
    with pytest.raises(PlanImpossible, match=r"stage 1 needs a peer with 0\.\d\d GB, and the largest that is left has 0\.00 GB"):
        allocate(poor, MANIFEST)
    with pytest.raises(PlanImpossible, match=r"2 peers for 4 stages: p would serve stages \d to 3, which need"):
        allocate(Fleet((peer("s", can_feed=True), peer("p", 1, 1000))), MANIFEST)


def test_no_stage_hangs_on_one_peer_while_another_has_three() -> None:
    """A very fast peer alone would do; it gets a second one beside it."""
    fleet = Fleet((peer("s", 8, can_feed=True), peer("fast", 8), *(peer(f"p{n}") for n in range(5))))
    plan = allocate(fleet, MANIFEST)
    counts = [len(names) for names in plan.replicas[1:]]
    assert max(counts) < 3 or min(counts) > 1


def test_fewer_peers_than_stages_serve_runs_of_them() -> None:
    """Two peers for four stages; one peer for all."""
    plan = allocate(Fleet((peer("s", 1, can_feed=True), peer("p", 1))), MANIFEST)
    assert plan.replicas == (("s",), ("s",), ("p",), ("p",))
    assert allocate(Fleet((peer("s", can_feed=True),)), MANIFEST).replicas == (("s",),) * 4


def test_the_limits_on_replicas_hold() -> None:
    """Whoever is left over stands by."""
    fleet = Fleet(tuple(peer(f"p{n}", can_feed=True) for n in range(30)))
    assert [len(names) for names in allocate(fleet, MANIFEST).replicas] == [1, 4, 4, 4]
    assert [len(names) for names in allocate(fleet, MANIFEST, ReplicaLimits(2, 3)).replicas] == [3, 2, 2, 2]
