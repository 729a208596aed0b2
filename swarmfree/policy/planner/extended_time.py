"""How long iterations take that are too large to be played: their first microbatches are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swarmfree.policy.planner.estimator import (
    PLAYED_MAX,
    IterationTime,
    is_played,
    iteration_exact,
    iteration_time,
    stage_work,
)
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet
from swarmfree.policy.planner.moves import stage_loads
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE


def extended_time(
    fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, play: Callable[[Manifest], IterationTime]
) -> IterationTime | None:
    """Seconds of an iteration that is too large to be played, by two shorter ones.

    Once all stages are at work, everything repeats itself each time that every replica of the
    busiest stage has got one microbatch more. So both have a whole number of such rounds fewer.

    Args:
        fleet, plan, manifest: as for `iteration_time`.
        play: an iteration with the batch of this manifest.

    Returns:
        None where as many as can be played do not fill the stages.
    """
    loads = stage_loads(fleet, plan, stage_work(manifest, plan.blocks, fleet.ends_blocks))
    busiest = max(range(len(loads)), key=loads.__getitem__)
    each, due = len(plan.replicas[busiest]), manifest.batch.microbatches
    whole = PLAYED_MAX // len(plan.blocks)
    whole -= (whole - due) % each
    half = whole - each * -(-whole // (2 * each))
    if half < manifest.ring.credits * len(plan.replicas[ENDS_STAGE]) + len(plan.blocks):
        return None
    first, last = (play(replace(manifest, batch=replace(manifest.batch, microbatches=n))) for n in (half, whole))
    further = (due - whole) / (whole - half)
    return replace(last, compute_s=last.compute_s + further * (last.compute_s - first.compute_s))


def iteration_extended(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> IterationTime | None:
    """As `iteration_exact`, but where an iteration is too large to be played, what is played of it
    is extended, a hundred times as slow; None where that cannot be.
    """
    if plan.empty_stages or is_played(plan, manifest):
        return iteration_exact(fleet, plan, manifest)
    return extended_time(fleet, plan, manifest, lambda shorter: iteration_time(fleet, plan, shorter))
