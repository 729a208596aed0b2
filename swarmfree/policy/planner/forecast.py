"""What a fleet would do with a run: its plan, and what that yields, needs and costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from swarmfree.policy.planner.allocation import PlanImpossible, ReplicaLimits, allocate
from swarmfree.policy.planner.estimator import (
    IterationTime,
    Uplink,
    chains,
    is_played,
    iteration_bound,
    iteration_estimate,
    iteration_exact,
    memory_bytes,
    stage_work,
)
from swarmfree.policy.planner.extended_time import extended_time, iteration_extended
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, Link
from swarmfree.policy.planner.list_schedule import list_schedule
from swarmfree.policy.planner.measured_fleet import horizon_s
from swarmfree.policy.planner.moves import stage_loads
from swarmfree.policy.planner.reactions import Outlook
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.policy.planner.single_moves import SETTLING_MAX, MoveOutlook, settled
from swarmfree.policy.planner.slow_links import best_standbys
from swarmfree.protocol.manifest import Manifest, StagesSection

LEANER_PEERS_MAX = 64
"""Of a larger fleet no further plans are made: each takes up to a second."""
FORECAST_PLAYS = 25
"""Nobody waits for a forecast: by then a mean wavers by half a percent."""
EXTENDED_PLAYS = 5
"""Of as many microbatches as are played, and of half of them."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of a fleet.

    Args:
        plan: who serves what.
        time: of one iteration.
        memory: name -> bytes that this peer needs, at most.
        busy: index = stage; share of an iteration in which its replicas compute for it.
        busiest_uplink: who sends for the longest, and for which share of an iteration; None where
            that was not played through.
        is_bound: it was too large to be played: links are left out, and an iteration takes this
            long at least.
        tokens_per_s: that are learned.
        standbys: names of those without a place.
        slow_links: of these, who would hold up the others by its link.
        alone: (stage, name) where one peer serves a stage alone.
        price_per_hour: of everybody, standbys as well.
        seconds_to_failure: expected until somebody dies; infinite where nobody does.
    """

    plan: ExecutionPlan
    time: IterationTime
    memory: Mapping[str, int]
    busy: tuple[float, ...]
    busiest_uplink: tuple[str, float] | None
    is_bound: bool
    tokens_per_s: float
    standbys: tuple[str, ...]
    slow_links: tuple[str, ...]
    alone: tuple[tuple[int, str], ...]
    price_per_hour: float
    seconds_to_failure: float

    @property
    def price_per_million(self) -> float:
        """Price of a million tokens."""
        return self.price_per_hour / (3600 * self.tokens_per_s) * 1e6

    @property
    def slowest_stage(self) -> int:
        """The stage that all others wait for."""
        return max(range(len(self.busy)), key=lambda stage: (self.busy[stage], -stage))


def chosen_plan(fleet: Fleet, manifest: Manifest) -> ExecutionPlan:
    """The plan that a swarm of these peers comes to: by places first, then by moves, and by having
    those stand by whose links hold up the others.

    Raises:
        allocation.PlanImpossible: no plan fits.
    """
    return _chosen(fleet, manifest)[0]


def _chosen(fleet: Fleet, manifest: Manifest) -> tuple[ExecutionPlan, frozenset[str]]:
    """That plan, and who stands by for its link."""
    outlook = MoveOutlook(
        movable=fleet.by_name.keys(),
        limits=ReplicaLimits(manifest.stages.replicas_max, manifest.stages.sources_max),
        copy_s=Link(0.0, statistics.median(peer.bytes_per_s for peer in fleet.peers)).seconds,
        unexplained_s=0.0,
        recovery=StageRecovery(manifest.timing.join_wait_s),
        horizon_s=horizon_s(fleet),
    )
    plan = settled(fleet, allocate(fleet, manifest), manifest, outlook)
    served = plan.stages_of.keys()
    for _ in range(SETTLING_MAX):
        standbys = best_standbys(fleet, plan, manifest, outlook)
        if standbys is None:
            break
        plan = settled(fleet, standbys.plan, manifest, outlook)
    return plan, frozenset(served - plan.stages_of.keys())


def outlook_of(fleet: Fleet, manifest: Manifest, *, is_bound: bool) -> Outlook:
    """What reactions to a loss in this fleet depend on; no newcomer is expected. Their iterations
    are told as that of the forecast is.
    """
    return Outlook(
        StageRecovery(manifest.timing.join_wait_s),
        horizon_s=horizon_s(fleet),
        time=iteration_exact if is_bound else iteration_extended,
    )


def forecast(fleet: Fleet, manifest: Manifest) -> Forecast:
    """Plan a fleet, and say what comes of it.

    Raises:
        allocation.PlanImpossible: no plan fits.
    """
    plan, slow = _chosen(fleet, manifest)
    time, is_bound = _time(fleet, plan, manifest)
    loads = stage_loads(fleet, plan, stage_work(manifest, plan.blocks, fleet.ends_blocks))
    return Forecast(
        plan=plan,
        time=time,
        memory=memory_bytes(plan, manifest),
        busy=tuple(manifest.batch.microbatches * load / time.seconds for load in loads),
        busiest_uplink=_busiest_uplink(fleet, plan, manifest, time),
        is_bound=is_bound,
        tokens_per_s=manifest.tokens_per_iteration / time.seconds,
        standbys=tuple(sorted(peer.name for peer in fleet.peers if peer.name not in plan.stages_of)),
        slow_links=tuple(sorted(slow)),
        alone=tuple((stage, names[0]) for stage, names in enumerate(plan.replicas) if len(names) == 1),
        price_per_hour=sum(peer.price_per_hour for peer in fleet.peers),
        seconds_to_failure=fleet.seconds_to_failure,
    )


def _time(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> tuple[IterationTime, bool]:
    """Of one iteration, and whether that is a bound, without links."""
    if is_played(plan, manifest):
        return iteration_estimate(fleet, plan, manifest, FORECAST_PLAYS), False
    found = extended_time(fleet, plan, manifest, lambda shorter: iteration_estimate(fleet, plan, shorter, EXTENDED_PLAYS))
    return (found, False) if found is not None else (iteration_bound(fleet, plan, manifest), True)


def leaner(fleet: Fleet, manifest: Manifest) -> tuple[Forecast, StagesSection] | None:
    """Where no plan fits, the fastest one with fewer places, and its limits: fewer sources have
    fewer microbatches in flight, and so every stage needs less memory.
    """
    if len(fleet.peers) > LEANER_PEERS_MAX:
        return None
    stages, found = manifest.stages, list[tuple[Forecast, StagesSection]]()
    for replicas in sorted({max(1, stages.replicas_min), max(2, stages.replicas_min), stages.replicas_max}):
        for sources in sorted({1, stages.sources_max}):
            fewer = replace(stages, replicas_max=min(replicas, stages.replicas_max), sources_max=sources)
            if fewer == stages:
                continue
            with suppress(PlanImpossible):
                found.append((forecast(fleet, replace(manifest, stages=fewer)), fewer))
    return max(found, key=lambda each: each[0].tokens_per_s, default=None)


def _busiest_uplink(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, time: IterationTime) -> tuple[str, float] | None:
    if not is_played(plan, manifest):
        return None
    busy_s = list_schedule(chains(fleet, plan, manifest), manifest.ring.credits).busy_s
    sending = [(seconds / time.seconds, device.peer) for device, seconds in busy_s.items() if isinstance(device, Uplink)]
    return max(((name, share) for share, name in sending), key=lambda each: (each[1], each[0]), default=None)
