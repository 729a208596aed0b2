"""Who gets which place. Pure; the coordinator asks when a newcomer says hello."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE, NO_STAGE


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a newcomer: a stage, or `NO_STAGE` for a standby, and the reason."""

    stage: int
    reason: str


def choose_stage(counts: Sequence[int], manifest: Manifest, *, can_feed: bool, standby: bool) -> Placement:
    """Choose the place of a newcomer.

    In this order: stage 0, if it needs sources and the newcomer can feed it; a stage without a
    replica; the stage with the fewest replicas; else standby.

    Args:
        counts: index = stage; live replicas and newcomers already promised to it.
        manifest: of the run.
        can_feed: only a peer that holds the corpus may serve stage 0.
        standby: the newcomer would rather wait for a lost stage.

    Ties go to the lower stage, so that every coordinator would choose alike.
    """
    if standby:
        return Placement(NO_STAGE, "asked to wait for a lost stage")
    ends_max = manifest.replicas_max(ENDS_STAGE)
    if can_feed and counts[ENDS_STAGE] < ends_max:
        return Placement(ENDS_STAGE, f"stage 0 has {counts[ENDS_STAGE]} of at most {ends_max} replicas, and few can feed")
    open_stages = [
        (count, stage)
        for stage, count in enumerate(counts)
        if count < manifest.replicas_max(stage) and (stage != ENDS_STAGE or can_feed)
    ]
    if not open_stages:
        return Placement(NO_STAGE, "every stage has its replicas_max")
    count, stage = min(open_stages)
    return Placement(stage, f"stage {stage} has {count} of at most {manifest.replicas_max(stage)} replicas")


def wanted(stage: int, manifest: Manifest) -> int:
    """Number of replicas that a stage needs before the run can open."""
    return min(manifest.stages.replicas_min, manifest.replicas_max(stage))


def missing_sentence(counts: Sequence[int], manifest: Manifest) -> str:
    """Say for people which replicas the run lacks before it can open; empty if it lacks none."""
    lacking = [
        f"stage {stage} has {count} of {want}" for stage, count in enumerate(counts) if count < (want := wanted(stage, manifest))
    ]
    return "waiting for peers: " + ", ".join(lacking) if lacking else ""
