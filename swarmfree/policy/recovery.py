"""How a stage's state comes to a newcomer: copy of a sibling, merge of the neighbours, copy of a neighbour, or first weights.

Source: CheckFree section 4, Algorithm 1. Differs: weights are bounded; the ends of the body copy their body neighbour also without swapped
routes; before the first commit nothing is merged, since first weights can be drawn again exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.swarm.actions import Copy, CopyNeighbour, Fresh, Merge, MergeMode, RecoveryAction, Wait
from swarmfree.swarm.books import Record, float32_bits
from swarmfree.swarm.manifest import RecoverySection
from swarmfree.swarm.names import ENDS_STAGE, Endpoint


@dataclass(frozen=True, slots=True)
class MergeWeights:
    """Normalised weights of the stage before and after; they sum to 1."""

    before: float
    after: float


def merge_weights(mode: MergeMode, norm_before: float, norm_after: float, ratio_max: float) -> MergeWeights:
    """Weights of the two neighbours from the squared norms of their last gradients, before clipping.

    ``norm2``: w = ||g||^2 (the paper's omega); ``norm``: w = ||g|| (its code); ``uniform``: w = 1; ``copy``: all on the stage before.
    Neither may weigh more than `ratio_max` times the other. Norms that are not positive and finite count as unknown: both weigh the same.

    Source: CheckFree, Algorithm 1 lines 1-2. Differs: the bound.
    """
    if mode is MergeMode.COPY:
        return MergeWeights(1.0, 0.0)
    usable = all(math.isfinite(n) and n > 0 for n in (norm_before, norm_after))
    if mode is MergeMode.UNIFORM or mode is MergeMode.RANDOM or not usable:
        return MergeWeights(0.5, 0.5)
    ratio = norm_before / norm_after
    if mode is MergeMode.NORM:
        ratio = math.sqrt(ratio)
    ratio = min(max(ratio, 1.0 / ratio_max), ratio_max)
    return MergeWeights(ratio / (1.0 + ratio), 1.0 / (1.0 + ratio))


def choose_recovery(
    stage: int, replicas: Sequence[Sequence[Endpoint]], record: Record | None, recovery: RecoverySection
) -> RecoveryAction:
    """Decide how `stage`'s state is made, and say why.

    Args:
        stage: the stage to be filled.
        replicas: index = stage; live members that hold the stage's state, senior first.
        record: the last sealed record; its norms weigh the merge.
        recovery: the run's settings.
    """
    if replicas[stage]:
        return Copy(stage, tuple(replicas[stage]), f"stage {stage} has a live replica: copy it")
    if record is None:
        return Fresh(stage, 0, "no iteration committed yet: first weights are drawn")
    if stage == ENDS_STAGE:
        return Wait(stage, "stage 0 is lost: its embedding and head cannot be merged from blocks")
    body = len(replicas) - 1
    if recovery.merge is MergeMode.RANDOM:
        return Fresh(stage, record.iteration + 1, "recovery.merge = random: drawn anew")
    before_stage, after_stage = stage - 1, stage + 1
    before = replicas[before_stage][0] if before_stage >= 1 and replicas[before_stage] else None
    after = replicas[after_stage][0] if after_stage <= body and replicas[after_stage] else None
    ends, copies = stage in {1, body}, recovery.merge is MergeMode.COPY
    if ends or copies or before is None or after is None:
        donor, donor_stage = (after, after_stage) if before is None else (before, before_stage)
        if donor is not None:
            why = "an end of the body" if ends else "lost and recovery.merge = copy" if copies else "left with one live neighbour"
            return CopyNeighbour(stage, donor, donor_stage, f"stage {stage} is {why}: copy stage {donor_stage}")
        if any(replicas[s] for s in range(1, body + 1)):
            return Wait(stage, f"both neighbours of stage {stage} are lost: they are rebuilt first")
        return Fresh(stage, record.iteration + 1, "no body stage is left: drawn anew")
    norm_before, norm_after = record.stages[before_stage].squared_norm, record.stages[after_stage].squared_norm
    weights = merge_weights(recovery.merge, norm_before, norm_after, recovery.weight_ratio_max)
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


def donor_block(block: int, block_count: int, donor_block_count: int) -> int:
    """The donor's block at the same relative depth; the same index where both have as many.

    Args:
        block: index in the stage to be rebuilt, from 0.
    """
    depth = (block + 0.5) / block_count * donor_block_count
    return min(donor_block_count - 1, int(depth))
