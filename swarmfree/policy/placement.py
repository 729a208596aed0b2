"""Who gets which place. Pure; the coordinator asks when a newcomer says hello, and the planner for
each peer of a fleet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ABSENT, ENDS_STAGE
from swarmfree.protocol.split import BlockSplit

RICH = 3
"""A stage with so many replicas can give one to a stage that has one."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a newcomer: a stage, or `ABSENT` for a standby, and the reason."""

    stage: int
    reason: str


def neediest_stage(stages: Collection[int], counts: Sequence[int], speeds: Sequence[float], work: Sequence[float]) -> int:
    """Choose the stage that a further peer does most for.

    In this order: one without a replica; one with a single replica, before another one gets its
    third (`RICH`); the one with the least speed for its work. Ties go to the lower stage, so that
    every coordinator chooses alike.

    Args:
        stages: that may get one; not empty.
        counts: index = stage; replicas.
        speeds: index = stage; of its replicas together, in any unit.
        work: index = stage; of one microbatch, in any unit.
    """
    least = min(counts[stage] for stage in stages)
    chosen = min(stages, key=lambda stage: (counts[stage] > 0, speeds[stage] / work[stage], stage))
    if least == 1 and counts[chosen] >= RICH - 1:
        alone = [stage for stage in stages if counts[stage] == least]
        return min(alone, key=lambda stage: (speeds[stage] / work[stage], stage))
    return chosen


def choose_stage(
    counts: Sequence[int],
    manifest: Manifest,
    *,
    can_feed: bool,
    standby: bool,
    speeds: Sequence[float] | None = None,
    split: BlockSplit | None = None,
) -> Placement:
    """Choose the place of a newcomer.

    In this order: stage 0, if it needs sources and the newcomer can feed it; of the stages that
    lack replicas for the run to open, else of all that have room, the one that `neediest_stage`
    names; else standby. A stage without blocks gets one replica, which has nothing to share.

    Args:
        counts: index = stage; live replicas and newcomers already promised to it.
        manifest: of the run.
        can_feed: only a peer that holds the corpus may serve stage 0.
        standby: the newcomer would rather wait for a lost stage.
        speeds: index = stage; of those that count, together; None = all are taken to be equal.
        split: how the model is cut; None = as the run began.
    """
    if standby:
        return Placement(ABSENT, "asked to wait for a lost stage")
    ends_max = manifest.replicas_max(ENDS_STAGE)
    if can_feed and counts[ENDS_STAGE] < ends_max:
        return Placement(ENDS_STAGE, f"stage 0 has {counts[ENDS_STAGE]} of at most {ends_max} replicas, and few can feed")
    # Stage 0 is full here, or this newcomer cannot feed it
    split = split or manifest.split
    most = [1 if split.is_vacant(stage) else manifest.replicas_max(stage) for stage in range(len(counts))]
    open_stages = [stage for stage, count in enumerate(counts) if stage != ENDS_STAGE and count < most[stage]]
    if not open_stages:
        return Placement(ABSENT, "every stage has its replicas_max")
    lacking = [stage for stage in open_stages if counts[stage] < wanted(stage, manifest)]
    work = [1.0, *(max(1.0, float(blocks)) for blocks in split.counts)]
    stage = neediest_stage(lacking or open_stages, counts, counts if speeds is None else speeds, work)
    return Placement(stage, f"stage {stage} has {counts[stage]} of at most {most[stage]} replicas")


def wanted(stage: int, manifest: Manifest) -> int:
    """Number of replicas that a stage needs before the run can open."""
    return min(manifest.stages.replicas_min, manifest.replicas_max(stage))


def missing_sentence(counts: Sequence[int], manifest: Manifest) -> str:
    """Say for people which replicas the run lacks before it can open; empty if it lacks none."""
    lacking = [
        f"stage {stage} has {count} of {want}" for stage, count in enumerate(counts) if count < (want := wanted(stage, manifest))
    ]
    return "waiting for peers: " + ", ".join(lacking) if lacking else ""
