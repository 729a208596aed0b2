"""`swarmfree plan` and the live coordinator decide by the same functions: for the documented fleet
of twelve mixed machines they come to the same plan.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from swarmfree.lab.fleet_file import read_fleet
from swarmfree.policy.placement import choose_stage
from swarmfree.policy.planner.allocation import ReplicaLimits, allocate
from swarmfree.policy.planner.estimator import iteration_estimate, stage_work
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, Link
from swarmfree.policy.planner.forecast import chosen_plan
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, horizon_s, measured_fleet
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.policy.planner.single_moves import MoveOutlook, settled, unexplained_s
from swarmfree.policy.planner.slow_links import best_standbys
from swarmfree.protocol.config import read_run
from swarmfree.protocol.message_bounds import LINKS_MAX
from swarmfree.protocol.messages import LinkRate
from swarmfree.protocol.names import ENDS_STAGE
from tests import tidy
from tests.cli.test_plan_command import MODEL

MANIFEST = read_run(MODEL, "test").manifest
FLEET = read_fleet(
    re.findall(r"```toml\n(.*?)```", (tidy.ROOT / "docs/planning.md").read_text(encoding="utf-8"), re.DOTALL)[0], "test", MANIFEST
)
WORK = stage_work(MANIFEST, [len(MANIFEST.blocks_of(stage)) for stage in range(MANIFEST.stage_count)])


def arriving(order: list[str], *, measured: bool) -> ExecutionPlan:
    """Where the coordinator puts peers that come in this order, each measured before the next one
    comes, or none of them.
    """
    stage_count = MANIFEST.stage_count
    members: list[list[str]] = [[] for _ in range(stage_count)]
    for name in order:
        speeds = [sum(1 / FLEET.by_name[n].block_s for n in names) for names in members] if measured else None
        counts = [len(names) for names in members]
        stage = choose_stage(counts, MANIFEST, can_feed=FLEET.by_name[name].can_feed, standby=False, speeds=speeds).stage
        assert stage >= 0
        members[stage].append(name)
    blocks = tuple(len(MANIFEST.blocks_of(stage)) for stage in range(stage_count))
    return ExecutionPlan(blocks, tuple(tuple(sorted(names)) for names in members))


def as_measured(plan: ExecutionPlan, real: Fleet) -> Fleet:
    """The fleet, as a coordinator learns of it from heartbeats: who gets gradients or averages from
    whom tells how fast those came, and the nearest source coordinates.
    """
    there = [(name, stage) for stage, names in enumerate(plan.replicas) for name in names]
    near_s = min(real.by_name[name].latency_s for name in plan.replicas[ENDS_STAGE])
    peers = []
    for name, stage in there:
        partners = [other for other, at in there if other != name and at in {stage, (stage + 1) % len(plan.blocks)}][-LINKS_MAX:]
        links = tuple(LinkRate(other, real.link(name, other).bytes_per_s) for other in partners)
        profile = real.by_name[name]
        peers.append(MeasuredPeer(name, stage, profile.block_s * WORK[stage], near_s + profile.latency_s, links))
    fleet = measured_fleet(peers, MANIFEST, 0.1)
    assert fleet is not None
    return fleet


def moved_on(plan: ExecutionPlan, real: Fleet = FLEET) -> ExecutionPlan:
    """What the coordinator makes of a plan, one move after the other, if iterations really take as
    long as the forecast says.
    """
    fleet = as_measured(plan, real)
    iteration_s = iteration_estimate(real, plan, MANIFEST).seconds
    outlook = MoveOutlook(
        {p.name for p in fleet.peers},
        ReplicaLimits(MANIFEST.stages.replicas_max, MANIFEST.stages.sources_max),
        Link(0.0, 25e6).seconds,
        unexplained_s(iteration_s, fleet, plan, MANIFEST),
        StageRecovery(20.0),
        horizon_s(fleet),
    )
    while True:
        plan = settled(fleet, plan, MANIFEST, outlook)
        standbys = best_standbys(fleet, plan, MANIFEST, outlook)
        if standbys is None:
            return plan
        plan = standbys.plan


def test_the_printed_plan_is_what_the_coordinator_comes_to() -> None:
    """Fastest first, as the planner takes them: by places alone it comes to the planner's first
    plan, and by moves to the one that is printed.
    """
    order = [peer.name for peer in sorted(FLEET.peers, key=lambda peer: (peer.block_s, peer.name))]
    assert arriving(order, measured=True) == allocate(FLEET, MANIFEST)
    assert moved_on(arriving(order, measured=True)) == chosen_plan(FLEET, MANIFEST)


def test_the_printed_plan_is_one_that_the_coordinator_leaves_as_it_is() -> None:
    """No move is worth while."""
    assert moved_on(chosen_plan(FLEET, MANIFEST)) == chosen_plan(FLEET, MANIFEST)


@pytest.mark.parametrize("seed", range(8))
def test_whoever_comes_first_moves_make_it_nearly_as_fast(seed: int) -> None:
    """Twelve that come in any order, before anything is measured, but that the fastest feeds: after
    some moves, one at a time, iterations take at most a sixth longer than with the printed plan,
    and then nobody moves any more. Links are a hundred times as good as documented: over those,
    which the coordinator knows as a sum only, averaging takes nearly the whole iteration.
    """
    near = replace(FLEET, peers=tuple(replace(p, bytes_per_s=100 * p.bytes_per_s) for p in FLEET.peers))
    printed = chosen_plan(near, MANIFEST)
    source = printed.replicas[0][0]
    order = sorted(peer.name for peer in FLEET.peers if peer.name != source)
    random.Random(seed).shuffle(order)
    plan = moved_on(arriving([source, *order], measured=False), near)
    expected_s, printed_s = (iteration_estimate(near, each, MANIFEST).seconds for each in (plan, printed))
    assert expected_s <= 1.167 * printed_s
    assert moved_on(plan, near) == plan
