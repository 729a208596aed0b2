"""How a stage's state comes to a newcomer: copy of a sibling, a kept copy, replay, a shadow, a refit, a merge, copy of a neighbour, or first weights.

Source: design section 6; CheckFree Algorithm 1. Differs: weights are bounded; the ends of the body copy their body neighbour also without swapped
routes; before the first commit nothing is merged, since first weights can be drawn again exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from swarmfree.policy.costs import FRESH_LOST, MERGE_LOST, NEIGHBOUR_LOST, NO_COSTS, REFIT_LOST, Costs, Estimate
from swarmfree.policy.keepers import KeptCopy, StageShadow
from swarmfree.policy.refit import REFIT_ITERATIONS, WARM_ITERATIONS, refit_steps
from swarmfree.swarm.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, MergeMode, Refit, Replay, Restore
from swarmfree.swarm.books import Record, float32_bits
from swarmfree.swarm.manifest import RecoverySection
from swarmfree.swarm.names import ENDS_STAGE, Endpoint, Member


@dataclass(frozen=True, slots=True)
class MergeWeights:
    """Normalised weights of the stage before and after; they sum to 1."""

    before: float
    after: float


def merge_weights(
    mode: MergeMode, norm_before: float, norm_after: float, ratio_max: float, nearness: float = 1.0
) -> MergeWeights:
    """Weights of the two neighbours from the squared norms of their last gradients, before clipping.

    ``norm2``: w = ||g||^2 (the paper's omega); ``norm``: w = ||g|| (its code); ``uniform``: w = 1; ``copy``: all on the stage before.
    Neither may weigh more than `ratio_max` times the other. Norms that are not positive and finite count as unknown: both weigh the same.

    Args:
        nearness: how many times nearer the stage before is than the one after, where stages between them are lost, too.

    Source: CheckFree, Algorithm 1 lines 1-2. Differs: the bound, and that the neighbours need not be adjacent.
    """
    if mode is MergeMode.COPY:
        return MergeWeights(1.0, 0.0)
    usable = all(math.isfinite(n) and n > 0 for n in (norm_before, norm_after))
    ratio = 1.0 if mode is MergeMode.UNIFORM or mode is MergeMode.RANDOM or not usable else norm_before / norm_after
    if mode is MergeMode.NORM:
        ratio = math.sqrt(ratio)
    ratio *= nearness
    ratio = min(max(ratio, 1.0 / ratio_max), ratio_max)
    return MergeWeights(ratio / (1.0 + ratio), 1.0 / (1.0 + ratio))


LADDER = ("replay", "restore", "refit", "merge")
"""Rungs of `recovery.best`, best first."""
PAIRS_MIN = 4
"""Iterations of borders; a stage that is fitted to fewer learns these by heart."""
LADDER_WORDS = {
    "Replay": "a replay",
    "Restore": "the shadow as it is",
    "Refit": "a merge and a refit",
    "Merge": "a merge",
    "CopyNeighbour": "a copy of the neighbour",
    "Fresh": "new weights",
}
"""What a reason calls the rung that was not taken."""


@dataclass(frozen=True, slots=True)
class Logs:
    """What is known of border logs, and of what things cost.

    Args:
        since: member -> the iteration from which on its log is whole; who has none is not in it.
        costs: what is known of the run.
        packed: what borders were rounded to; empty for those that are kept as they crossed the wire.
    """

    since: Mapping[Member, int]
    costs: Costs = NO_COSTS
    packed: str = ""


NO_LOGS = Logs({})


def choose_recovery(
    stage: int,
    replicas: Sequence[Sequence[Endpoint]],
    record: Record | None,
    recovery: RecoverySection,
    kept: Sequence[KeptCopy] = (),
    shadows: Sequence[StageShadow] = (),
    logs: Logs = NO_LOGS,
) -> BuildAction:
    """Decide how `stage`'s state is made, and say why: what is expected to cost least, of what is possible and allowed.

    Args:
        stage: the stage to be filled.
        replicas: index = stage; live members that hold the stage's state, senior first.
        record: the last sealed record; its norms weigh the merge.
        recovery: the run's settings.
        kept: complete copies of the ends that the present lineage goes back to, in order of preference among those that are as new.
        shadows: complete ones of body stages, in order of preference among those that are as new.
        logs: of all members, and what things cost.
    """
    if replicas[stage]:
        return Copy(stage, tuple(replicas[stage]), f"stage {stage} has a live replica: copy it")
    if record is None:
        return Fresh(stage, 0, "no iteration committed yet: first weights are drawn")
    if stage == ENDS_STAGE:
        return _choose_for_ends(record, kept)
    last_resort = _from_neighbours(stage, replicas, record, recovery)
    rungs: dict[str, BuildAction | None] = {"merge": last_resort}
    if recovery.keeps_shadows:
        rungs["replay"] = _replay(stage, replicas, record, shadows, logs)
        rungs["restore"] = _restore(stage, record, shadows)
    if recovery.refits and isinstance(last_resort, Merge | CopyNeighbour):
        rungs["refit"] = _refit(last_resort, replicas, record, logs, recovery.inputs_every)
    allowed = LADDER[LADDER.index(recovery.best) :]
    possible = [action for rung in allowed if (action := rungs.get(rung)) is not None]
    costs = logs.costs
    if recovery.choose == "highest" or costs.iteration_s <= 0 or len(possible) == 1:
        return possible[0]
    estimates = [expected(action, record, costs) for action in possible]
    best, second = sorted(range(len(possible)), key=lambda place: estimates[place].total_s)[:2]
    told = f"; about {estimates[best]}, against {estimates[second]} for {LADDER_WORDS[type(possible[second]).__name__]}"
    return replace(possible[best], reason=possible[best].reason + told)


def expected(action: BuildAction, record: Record, costs: Costs) -> Estimate:
    """What a recovery is expected to cost.

    Args:
        record: the last sealed one: no more can be lost than was learned so far, and less of it early in a run.
    """
    kind, done = type(action).__name__, record.iteration + 1
    weights, lost, moved, compute_s = costs.weights_bytes, 0.0, 0.0, 0.0
    match action:
        case Replay():
            moved = (3 if action.full else 1 / 4) * weights * len(action.holders)
            compute_s = (done - action.iteration) * len(action.holders) * costs.stage_s
        case Restore():
            moved, lost = (3 if action.full else 1 / 4) * weights, done - action.iteration
        case Refit():
            moved, compute_s, lost = 2 * weights, action.steps * costs.stage_s, REFIT_LOST
        case Merge():
            moved, lost = 2 * weights, MERGE_LOST
        case CopyNeighbour():
            moved, lost = weights, NEIGHBOUR_LOST
        case Fresh():
            lost = FRESH_LOST
        case Copy() | CopyKept():
            moved = 3 * weights
    return costs.estimate(kind, moved, compute_s, lost * done / (lost + done))


def _from_neighbours(
    stage: int, replicas: Sequence[Sequence[Endpoint]], record: Record, recovery: RecoverySection
) -> Merge | CopyNeighbour | Fresh:
    """What is possible without anything that was kept: CheckFree, and drawing anew where no neighbour is left."""
    body = len(replicas) - 1
    if recovery.merge is MergeMode.RANDOM:
        return Fresh(stage, record.iteration + 1, "recovery.merge = random: drawn anew")
    before_stage = next((s for s in range(stage - 1, 0, -1) if replicas[s]), None)
    after_stage = next((s for s in range(stage + 1, body + 1) if replicas[s]), None)
    ends, copies = stage in {1, body}, recovery.merge is MergeMode.COPY
    if before_stage is None and after_stage is None:
        return Fresh(stage, record.iteration + 1, "no body stage is left: drawn anew")
    if before_stage is None or after_stage is None or ends or copies:
        donor_stage = before_stage if before_stage is not None else after_stage
        assert donor_stage is not None, "one of the two is there"
        why = "an end of the body" if ends else "lost and recovery.merge = copy" if copies else "left with neighbours on one side"
        return CopyNeighbour(stage, replicas[donor_stage][0], donor_stage, f"stage {stage} is {why}: copy stage {donor_stage}")
    before, after = replicas[before_stage][0], replicas[after_stage][0]
    norm_before, norm_after = record.stages[before_stage].squared_norm, record.stages[after_stage].squared_norm
    nearness = (after_stage - stage) / (stage - before_stage)
    weights = merge_weights(recovery.merge, norm_before, norm_after, recovery.weight_ratio_max, nearness)
    return Merge(
        stage=stage,
        before=before,
        after=after,
        before_stage=before_stage,
        after_stage=after_stage,
        weight_before=float32_bits(weights.before),
        weight_after=float32_bits(weights.after),
        norm_before=norm_before,
        norm_after=norm_after,
        reason=(
            f"stage {stage} has no live replica and no copy: merge stages {before_stage} and {after_stage} by {recovery.merge}, "
            f"weights {weights.before:.3f} and {weights.after:.3f}"
        ),
    )


def _replay(
    stage: int, replicas: Sequence[Sequence[Endpoint]], record: Record, shadows: Sequence[StageShadow], logs: Logs
) -> Replay | None:
    """Replay this stage and the lost ones next to it, if there are shadows of all and both outer borders were kept since.

    Full ones of one iteration give back what was lost to the bit; plain ones may be of several, and come near.
    """
    first = last = stage
    while first > 1 and not replicas[first - 1]:
        first -= 1
    while last + 1 < len(replicas) and not replicas[last + 1]:
        last += 1
    before, after = replicas[first - 1], replicas[last + 1 if last + 1 < len(replicas) else ENDS_STAGE]
    stages, present, costs = range(first, last + 1), record.iteration + 1, logs.costs
    usable = [s for s in reversed(shadows) if s.iteration <= present]
    held = {(s.stage, s.iteration): s.holder for s in usable if s.full}
    common = [iteration for s, iteration in held if s == first and all((other, iteration) in held for other in stages)]
    newest, holders = max(common, default=-1), tuple[Endpoint, ...]()
    if newest >= 0:
        holders = tuple(held[s, newest] for s in stages)
    else:
        plain = {s.stage: s for s in sorted(usable, key=lambda s: s.iteration) if not s.full}
        if not all(s in plain for s in stages):
            return None
        shadowed = min(plain[s].iteration for s in stages)
        if shadowed == present:
            return None  # nothing has happened since: it is taken as it is
        since = [min((logs.since.get(e.member, present) for e in members), default=present) for members in (before, after)]
        newest = min(shadowed, max(*since, shadowed - WARM_ITERATIONS))
        holders = tuple(plain[s].holder for s in stages)
    count = present - newest
    kept = [any(logs.since.get(e.member, newest + 1) <= newest for e in members) for members in (before, after)]
    if (count and not all(kept)) or count * len(stages) * costs.stage_s > costs.limit_s:
        return None
    alone = "" if first == last else f" together with stages {first} to {last},"
    packed = f" kept as {logs.packed}" if logs.packed and count else ""
    if common:
        exact = "near, not exact" if packed else "bit for bit on like hardware"
        what = f"its full shadow of iteration {newest},{alone} and {count} logged iterations{packed} since: {exact}"
    else:
        since_then = f"{count} logged iterations{packed} from iteration {newest} on"
        what = f"its plain shadow,{alone} and {since_then}: near, not exact, int8 without moments"
    reason = f"stage {stage} has no live replica: replay {what}"
    return Replay(stage, first, holders, newest, tuple(before), tuple(after), reason, full=bool(common))


def _restore(stage: int, record: Record, shadows: Sequence[StageShadow]) -> Restore | None:
    shadow = max((s for s in shadows if s.stage == stage), key=lambda s: s.iteration, default=None)
    if shadow is None:
        return None
    iterations = record.iteration + 1
    reason = _restore_reason(shadow, iterations - shadow.iteration, iterations)
    return Restore(stage, shadow.holder, shadow.iteration, reason, shadow.full)


def _restore_reason(shadow: StageShadow, age: int, iterations: int) -> str:
    """As measured with a small model: a copy younger than a tenth of the run costs nothing, one of two fifths 2 %, less than any merge."""
    cost = "which costs nothing that can be measured" if 10 * age <= iterations else "which costs less than a merge"
    found = f"stage {shadow.stage} has no live replica: {shadow.holder.member} keeps a shadow of it, {age} iterations old in a run of {iterations}"
    return f"{found}, {cost}"


def _refit(
    start: Merge | CopyNeighbour, replicas: Sequence[Sequence[Endpoint]], record: Record, logs: Logs, every: int
) -> Refit | None:
    """Fit what comes of the neighbours, if those next to it kept enough of what went in and out, and there is time for it.

    Args:
        every: what came out is kept of one in so many iterations.
    """
    stage, present = start.stage, record.iteration + 1
    before, after = replicas[stage - 1], replicas[stage + 1 if stage + 1 < len(replicas) else ENDS_STAGE]
    oldest = [min((logs.since.get(e.member, present) for e in members), default=present) for members in (before, after)]
    first = max(*oldest, present - REFIT_ITERATIONS)
    steps = refit_steps(logs.costs.stage_s, logs.costs.limit_s)
    count = len([iteration for iteration in range(first, present) if iteration % every == 0])
    if count < PAIRS_MIN or not steps:
        return None
    pairs = f"{steps} steps on what went in and came out in {count} iterations, as its neighbours kept it"
    return Refit(stage, start, first, steps, tuple(before), tuple(after), f"{start.reason}; then fit it, {pairs}")


def _choose_for_ends(record: Record, kept: Sequence[KeptCopy]) -> BuildAction:
    """The newest kept copy, however many steps are lost with it; first weights only where there is none."""
    present = record.iteration + 1
    newest = max(kept, key=lambda copy: copy.iteration, default=None)
    if newest is None:
        return Fresh(ENDS_STAGE, present, "no copy of the ends is left: embedding and head are drawn anew")
    found = f"the ends have no live replica: {newest.holder.member} keeps a copy that is ready for iteration {newest.iteration}"
    lost, age = present - newest.iteration, "no step is lost"
    if lost:
        age = f"{lost} behind: the steps of iterations {newest.iteration} to {record.iteration} are lost"
    if lost == 1:
        age = f"one behind: the step of iteration {record.iteration} is lost"
    return CopyKept(ENDS_STAGE, newest.holder, newest.iteration, f"{found}, {age}", newest.lineage)


def donor_block(block: int, block_count: int, donor_block_count: int) -> int:
    """The donor's block at the same relative depth; the same index where both have as many.

    Args:
        block: index in the stage to be rebuilt, from 0.
    """
    depth = (block + 0.5) / block_count * donor_block_count
    return min(donor_block_count - 1, int(depth))
