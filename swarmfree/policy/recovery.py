"""How a stage's state comes to a newcomer: copy of a sibling, a kept copy, replay, a shadow, a
merge, copy of a neighbour, or first weights.

Source: design section 6; CheckFree Algorithm 1. Differs: weights are bounded; the ends of the body
copy their body neighbour also without swapped routes; before the first commit nothing is merged,
since first weights can be drawn again exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarmfree.policy.retention import KeptCopy, StageShadow
from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, MergeMode, Replay, Restore
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.manifest import RecoverySection
from swarmfree.protocol.names import ENDS_STAGE, Endpoint, Member
from swarmfree.protocol.records import Record, float32_bits

CLIPPED_TO, CLIPPED_ADDS = 1.0, 1e-4
"""A stage's norm is clipped to this, and this is added, as in CheckFree's published code."""
NORM_OFF_MAX = 0.01
"""A replay that is not bit for bit is near as long as no sum's squared norm is off by more than
this share of its record's.
"""
STUDY_SHADOW_PERCENT = (-0.03, 0.28)
"""Least and greatest mean gap of shadows in the committed study, docs/studies/recovery/full; a test
holds them together.
"""


@dataclass(frozen=True, slots=True)
class MergeWeights:
    """Weights of the stages before and after in a merge; they sum to 1."""

    before: float
    after: float


def merge_weights(
    mode: MergeMode, norm_before: float, norm_after: float, ratio_max: float, nearness: float = 1.0
) -> MergeWeights:
    """Compute the merge weights of two neighbours from the squared norms of their last gradients.

    The norms are those before clipping.

    ``norm2``: w = ||g||^2 (the paper's omega); ``norm``: w = ||g||; ``clipped``: w = min(1, ||g||)
    + 1e-4, the norm after each stage is clipped to 1,
    as in the published code; ``uniform``: w = 1; ``copy``: all on the stage before.
    Neither may weigh more than `ratio_max` times the other. Norms that are not positive and finite
    count as unknown: both weigh the same.

    Args:
        nearness: how many times nearer the stage before is than the one after, where stages between
            them are lost, too.

    Source: CheckFree, Algorithm 1 lines 1-2. Differs: the bound, and that the neighbours need not
    be adjacent.
    """
    if mode is MergeMode.COPY:
        return MergeWeights(1.0, 0.0)
    usable = all(math.isfinite(n) and n > 0 for n in (norm_before, norm_after))
    ratio = 1.0 if mode is MergeMode.UNIFORM or mode is MergeMode.RANDOM or not usable else norm_before / norm_after
    if mode is MergeMode.NORM:
        ratio = math.sqrt(ratio)
    if mode is MergeMode.CLIPPED and usable:
        ratio = _clipped(norm_before) / _clipped(norm_after)
    ratio *= nearness
    ratio = min(max(ratio, 1.0 / ratio_max), ratio_max)
    return MergeWeights(ratio / (1.0 + ratio), 1.0 / (1.0 + ratio))


def _clipped(squared_norm: float) -> float:
    return min(CLIPPED_TO, math.sqrt(squared_norm)) + CLIPPED_ADDS


def weights_between(recovery: RecoverySection, stage: int, sides: tuple[int, int], norms: tuple[float, float]) -> MergeWeights:
    """Compute the merge weights of the nearest live stages before and after `stage`.

    The squared norms are the basis; the nearer stage weighs more.
    """
    nearness = (sides[1] - stage) / (stage - sides[0])
    return merge_weights(recovery.merge, *norms, recovery.weight_ratio_max, nearness)


def signed_norms(
    announced: Iterable[Announcement], neighbours: Mapping[int, Member], iteration: int, lineage: str
) -> dict[int, float]:
    """Squared norms that these neighbours signed for the last record before `iteration`, by stage.

    Norms of older records are left out.
    """
    return {
        said.stage: said.squared_norm
        for said in announced
        if neighbours.get(said.stage) == said.endpoint.member and (said.iteration, said.lineage) == (iteration, lineage)
    }


def norm_off(squared_norm: float, recorded: float) -> float:
    """Relative error of a recomputed squared norm; infinite or NaN if the two cannot be
    compared.
    """
    difference = abs(squared_norm - recorded)
    return difference / recorded if recorded else math.inf if difference else 0.0


@dataclass(frozen=True, slots=True)
class Logs:
    """What the coordinator knows of activation logs, and how long a replay with them takes.

    Args:
        since: member -> the iteration from which on its log is whole; who has none is not in it.
        packed: what activations were rounded to; empty for those that are kept as they crossed the
            wire.
        stage_s: that one stage computes for one iteration.
        limit_s: what is expected to compute longer is not begun.
    """

    since: Mapping[Member, int]
    packed: str = ""
    stage_s: float = 0.0
    limit_s: float = math.inf


NO_LOGS = Logs({})
NOTHING_SIGNED: Mapping[int, float] = {}


def choose_recovery(
    stage: int,
    replicas: Sequence[Sequence[Endpoint]],
    record: Record | None,
    recovery: RecoverySection,
    kept: Sequence[KeptCopy] = (),
    shadows: Sequence[StageShadow] = (),
    logs: Logs = NO_LOGS,
    signed: Mapping[int, float] = NOTHING_SIGNED,
) -> BuildAction:
    """Choose how to make the state of `stage`, with the reason.

    In this order: a copy of a live replica, a replay, the youngest shadow, and what the neighbours
    allow. Of a stage without blocks every replica of any stage has all there is.

    Args:
        stage: the stage to be filled.
        replicas: index = stage; live members that hold the stage's state, senior first.
        record: the last sealed record; its norms weigh the merge.
        recovery: the run's settings.
        kept: complete copies of the ends that the present lineage goes back to, in order of
            preference among those that are as new.
        shadows: complete ones of body stages, in order of preference among those that are as new.
        logs: of all members.
        signed: squared norms by stage that count instead of the record's, since the neighbours have
            signed them.
    """
    if replicas[stage]:
        return Copy(stage, tuple(replicas[stage]), f"stage {stage} has a live replica: copy it")
    if record is None:
        return Fresh(stage, 0, "no iteration committed yet: first weights are drawn")
    if stage == ENDS_STAGE:
        return _choose_for_ends(record, kept)
    if stage in _vacant(record) and (anybody := next((members[0] for members in replicas if members), None)) is not None:
        return Restore(stage, anybody, record.iteration + 1, f"stage {stage} has no blocks: nothing of it is lost", full=True)
    if recovery.keeps_shadows:
        replay = _replay(stage, replicas, record, shadows, logs) if recovery.best == "replay" else None
        if (found := replay or _restore(stage, record, shadows)) is not None:
            return found
    return _from_neighbours(stage, replicas, record, recovery, signed)


def _vacant(record: Record) -> frozenset[int]:
    """Stages that have no blocks in a record's iteration and after it."""
    counts = record.split.counts if record.split is not None else ()
    return frozenset(stage for stage, count in enumerate(counts, start=ENDS_STAGE + 1) if not count)


def _from_neighbours(
    stage: int, replicas: Sequence[Sequence[Endpoint]], record: Record, recovery: RecoverySection, signed: Mapping[int, float]
) -> Merge | CopyNeighbour | Fresh:
    """What is possible without anything that was kept: CheckFree, and drawing anew where no
    neighbour is left.
    """
    if recovery.merge is MergeMode.RANDOM:
        return Fresh(stage, record.iteration + 1, "recovery.merge = random: drawn anew")
    in_use = [s for s in range(ENDS_STAGE + 1, len(replicas)) if s not in _vacant(record)]
    before_stage = next((s for s in reversed(in_use) if s < stage and replicas[s]), None)
    after_stage = next((s for s in in_use if s > stage and replicas[s]), None)
    ends, copies = stage in {in_use[0], in_use[-1]}, recovery.merge is MergeMode.COPY
    if before_stage is None and after_stage is None:
        return Fresh(stage, record.iteration + 1, "no body stage is left: drawn anew")
    if before_stage is None or after_stage is None or ends or copies:
        donor_stage = before_stage if before_stage is not None else after_stage
        assert donor_stage is not None, "one of the two is there"
        why = "an end of the body" if ends else "lost and recovery.merge = copy" if copies else "left with neighbours on one side"
        return CopyNeighbour(stage, replicas[donor_stage][0], donor_stage, f"stage {stage} is {why}: copy stage {donor_stage}")
    before, after = replicas[before_stage][0], replicas[after_stage][0]
    norm_before, norm_after = (signed.get(s, record.stages[s].squared_norm) for s in (before_stage, after_stage))
    weights = weights_between(recovery, stage, (before_stage, after_stage), (norm_before, norm_after))
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
    """Replay this stage and the lost ones next to it.

    All of them that have blocks need full shadows of one iteration, and the logs of both outer
    boundaries have to reach back to it. Where the ends are lost next to them there is nothing to
    replay from: a shadow that is as new as the record is restored by itself.
    """
    first = last = stage
    while first > 1 and not replicas[first - 1]:
        first -= 1
    while last + 1 < len(replicas) and not replicas[last + 1]:
        last += 1
    before, after = replicas[first - 1], replicas[last + 1 if last + 1 < len(replicas) else ENDS_STAGE]
    stages, present = range(first, last + 1), record.iteration + 1
    held = {(s.stage, s.iteration): s.holder for s in reversed(shadows) if s.full and s.iteration <= present}
    with_blocks = [s for s in stages if s not in _vacant(record)]
    common = [iteration for s, iteration in held if s == stage and all((other, iteration) in held for other in with_blocks)]
    if not common:
        return None
    newest = max(common)
    # Of one without blocks nothing is asked for
    count, holders = present - newest, tuple(held[s if s in with_blocks else stage, newest] for s in stages)
    kept = [any(logs.since.get(e.member, newest + 1) <= newest for e in members) for members in (before, after)]
    if not (before and after) or (count and not all(kept)) or count * len(stages) * logs.stage_s > logs.limit_s:
        return None
    alone = "" if first == last else f" together with stages {first} to {last},"
    packed = f" kept as {logs.packed}" if logs.packed and count else ""
    exact = "near, not exact" if packed else "bit for bit if this builder rounds as they did"
    what = f"its full shadow of iteration {newest},{alone} and {count} logged iterations{packed} since: {exact}"
    return Replay(stage, first, holders, newest, tuple(before), tuple(after), f"stage {stage} has no live replica: replay {what}")


def _restore(stage: int, record: Record, shadows: Sequence[StageShadow]) -> Restore | None:
    shadow = max((s for s in shadows if s.stage == stage), key=lambda s: (s.iteration, s.full), default=None)
    if shadow is None:
        return None
    iterations = record.iteration + 1
    reason = _restore_reason(shadow, iterations - shadow.iteration, iterations)
    return Restore(stage, shadow.holder, shadow.iteration, reason, shadow.full)


def _restore_reason(shadow: StageShadow, age: int, iterations: int) -> str:
    """With what the study measured: ages of up to a fifteenth of the run, late in training."""
    low, high = STUDY_SHADOW_PERCENT
    measured = f"which changed the loss by {low:+} to {high:+} % on average, late in training, in a study with a small model"
    cost = measured if 15 * age <= iterations else "older for its run than any that was studied"
    old = f"{age} iteration{'s' * (age != 1)} old in a run of {iterations}"
    found = f"stage {shadow.stage} has no live replica: {shadow.holder.member} keeps a shadow of it, {old}"
    return f"{found}, {cost}"


def _choose_for_ends(record: Record, kept: Sequence[KeptCopy]) -> BuildAction:
    """The newest kept copy, however many steps are lost with it; first weights only where there is
    none.
    """
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
    """Index of the donor's block at the same relative depth.

    It is the same index where both stages have the same number of blocks.

    Args:
        block: index in the stage to be rebuilt, from 0.
        donor_block_count: at least one; of a donor without blocks the first one is asked for, in
            vain.
    """
    depth = (block + 0.5) / block_count * donor_block_count
    return max(0, min(donor_block_count - 1, int(depth)))
