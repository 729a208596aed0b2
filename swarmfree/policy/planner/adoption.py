"""Which peer takes in a guest for a stage that everybody has left, and when. Pure; the coordinator
asks while a stage is lost.

A guest is a second member in the process of its host, with a stage of its own; see decision 20.
What it costs is said before: how long until the stage is there, and how long an iteration takes
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.policy.planner.estimator import iteration_estimate
from swarmfree.policy.planner.fleet import ExecutionPlan
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, measured_fleet
from swarmfree.policy.planner.model_size import (
    BYTES_PER_PARAMETER,
    FLOAT_BYTES,
    stage_activation_bytes,
    stage_parameters,
)
from swarmfree.policy.planner.scores import STATE_FLOATS
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE, Member
from swarmfree.protocol.split import BlockSplit

ADOPT_WAIT_S = 5.0
"""For a standby or newcomer, before somebody is asked to take in a guest: who is started again in
place of the last replica takes two to four seconds, and is a machine more.
"""
GUEST_WAIT_S = 15.0
"""For a guest, from the first time its host is asked, before another peer is asked instead."""

GUEST_START_S = 1.5
"""From the word to the host until a guest has its place: a directory node, a port, a Hello, the
call back. Measured with real processes on one machine: 1.4 s; 5.5 s under ten times its load.
"""
GONE = ""
"""Stands for who served the lost stage; no peer has this name."""


@dataclass(frozen=True, slots=True)
class HostCandidate:
    """A member that may take in a guest.

    Args:
        member: who.
        stage: that it serves.
        room_bytes: memory that it would give; 0 = it takes in none, or none more.
        can_feed: it holds the text, so that its guest may serve stage 0.
        tries: how often it was asked for this stage, and no guest of its served it.
    """

    member: Member
    stage: int
    room_bytes: int
    can_feed: bool
    tries: int = 0


@dataclass(frozen=True, slots=True)
class ChosenHost:
    """Who takes in a guest for which stage, and why this one."""

    stage: int
    host: Member
    reason: str


def guest_bytes(manifest: Manifest, stage: int, split: BlockSplit | None = None) -> int:
    """Memory of one replica of a stage: its parameters with all that belongs to them, and the
    activations of all microbatches that can be in flight at once.

    Args:
        manifest: of the run.
        stage: any.
        split: how the model is cut; None = as the run began.
    """
    blocks = len((split or manifest.split).blocks_of(stage))
    held = min(manifest.ring.credits * manifest.replicas_max(ENDS_STAGE), manifest.batch.most)
    parameters = stage_parameters(manifest.model, stage, blocks)
    return BYTES_PER_PARAMETER * parameters + held * stage_activation_bytes(manifest, stage, blocks)


def stage_distance(one: int, other: int, stage_count: int) -> int:
    """How many boundaries lie between two stages; the ends stand at both ends of the body."""
    apart = abs(one - other)
    return min(apart, stage_count - apart)


def choose_host(
    stage: int, candidates: Sequence[HostCandidate], manifest: Manifest, split: BlockSplit | None = None
) -> ChosenHost | None:
    """Choose who takes in a guest for a lost stage; None where nobody has room.

    Of those that were asked least often the nearest, which keeps what crossed the boundary of the
    lost stage and sends to its guest without a network; of these the one with most room, then the
    first by name, so that every coordinator would choose alike.

    Args:
        stage: that nobody holds.
        candidates: of the members that are there, those that serve and stay.
        manifest: of the run.
        split: as for `guest_bytes`.
    """
    needed, count = max(1, guest_bytes(manifest, stage, split)), manifest.stage_count  # of one without blocks none
    able = [each for each in candidates if each.room_bytes >= needed and (stage != ENDS_STAGE or each.can_feed)]
    if not able:
        return None
    best = min(able, key=lambda each: (each.tries, stage_distance(each.stage, stage, count), -each.room_bytes, each.member))
    distance = stage_distance(best.stage, stage, count)
    where = f"serves stage {best.stage}, {'the next one' if distance == 1 else f'{distance} boundaries away'}"
    room = f"has room for {best.room_bytes / 1e6:,.0f} MB where {needed / 1e6:,.0f} MB are needed"
    return ChosenHost(stage, best.member, f"stage {stage} is lost, and nobody comes: {best.member} {where}, and {room}")


def predicted_seconds(
    manifest: Manifest, stage: int, bytes_per_s: float | None, replay_s: float = 0.0, split: BlockSplit | None = None
) -> float:
    """From the loss of a stage until a guest holds it: the wait for a newcomer, the start of the
    guest, the transfer of a state, and what is replayed from there.

    Args:
        manifest: of the run.
        stage: that is lost.
        bytes_per_s: at which states came in this run; None = not measured, and the transfer is left
            out.
        replay_s: that the guest computes, from an older state to that which was lost.
        split: as for `guest_bytes`.
    """
    blocks = len((split or manifest.split).blocks_of(stage))
    size = STATE_FLOATS * FLOAT_BYTES * stage_parameters(manifest.model, stage, blocks)
    return ADOPT_WAIT_S + GUEST_START_S + (size / bytes_per_s if bytes_per_s else 0.0) + replay_s


def predicted_iteration_s(
    manifest: Manifest,
    iteration_s: float,
    peers: Sequence[MeasuredPeer],
    lost: int,
    host: str,
    microbatches: int,
    split: BlockSplit | None = None,
) -> float:
    """Seconds of an iteration in which the host of a guest computes two stages.

    As for moves: what the devices compute, by the schedule that is played for any plan, and beside
    that what whole iterations take longer, which is taken to stay as it is.

    Args:
        manifest: of the run.
        iteration_s: measured, before the loss; 0 = not measured, and nothing is predicted.
        peers: all that serve a stage; a guest bears its host's name, since they share a device. Who
            served the lost stage counts as the median of them.
        lost: the stage that is adopted.
        host: name of the peer that takes in the guest.
        microbatches: M, of an iteration.
        split: as for `guest_bytes`.

    Returns:
        Seconds; 0 where too little was measured.

    Differs from a machine that several peers share: each is taken to have one of its own.
    """
    blocks = (0, *(split or manifest.split).counts)
    fleet = measured_fleet([*peers, MeasuredPeer(GONE, lost)], manifest, split=split)
    if fleet is None or not iteration_s:
        return 0.0
    names = [{peer.name for peer in peers if peer.stage == stage} for stage in range(manifest.stage_count)]
    before = ExecutionPlan(blocks, tuple(tuple(sorted(there)) for there in names)).with_replicas({lost: (GONE,)})
    after = before.with_replicas({lost: (host,)})
    if before.empty_stages:
        return 0.0
    before_s, after_s = (
        iteration_estimate(fleet, plan, manifest).seconds * microbatches / manifest.batch.microbatches for plan in (before, after)
    )
    return after_s + max(0.0, iteration_s - before_s)
