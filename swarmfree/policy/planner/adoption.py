"""Which peer takes in a guest for a stage that everybody has left, and when. Pure; the coordinator
asks while a stage is lost.

A guest is a second member in the process of its host, with a stage of its own; see decision 20.
What it costs is said before: how long until the stage is there, and how long an iteration takes
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.policy.planner.model_size import (
    BYTES_PER_PARAMETER,
    FLOAT_BYTES,
    head_blocks,
    stage_activation_bytes,
    stage_parameters,
)
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE, Member

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
STATE_FLOATS = 3
"""A state is weights and two moments; no way of bringing a stage back takes more."""


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


def guest_bytes(manifest: Manifest, stage: int) -> int:
    """Memory of one replica of a stage: its parameters with all that belongs to them, and the
    activations of all microbatches that can be in flight at once.
    """
    blocks = len(manifest.blocks_of(stage))
    held = min(manifest.ring.credits * manifest.replicas_max(ENDS_STAGE), manifest.batch.most)
    parameters = stage_parameters(manifest.model, stage, blocks)
    return BYTES_PER_PARAMETER * parameters + held * stage_activation_bytes(manifest, stage, blocks)


def stage_distance(one: int, other: int, stage_count: int) -> int:
    """How many boundaries lie between two stages; the ends stand at both ends of the body."""
    apart = abs(one - other)
    return min(apart, stage_count - apart)


def choose_host(stage: int, candidates: Sequence[HostCandidate], manifest: Manifest) -> ChosenHost | None:
    """Choose who takes in a guest for a lost stage; None where nobody has room.

    Of those that were asked least often the nearest, which keeps what crossed the boundary of the
    lost stage and sends to its guest without a network; of these the one with most room, then the
    first by name, so that every coordinator would choose alike.

    Args:
        stage: that nobody holds.
        candidates: of the members that are there, those that serve and stay.
        manifest: of the run.
    """
    needed, count = guest_bytes(manifest, stage), manifest.stage_count
    able = [each for each in candidates if each.room_bytes >= needed and (stage != ENDS_STAGE or each.can_feed)]
    if not able:
        return None
    best = min(able, key=lambda each: (each.tries, stage_distance(each.stage, stage, count), -each.room_bytes, each.member))
    distance = stage_distance(best.stage, stage, count)
    where = f"serves stage {best.stage}, {'the next one' if distance == 1 else f'{distance} boundaries away'}"
    room = f"has room for {best.room_bytes / 1e6:,.0f} MB where {needed / 1e6:,.0f} MB are needed"
    return ChosenHost(stage, best.member, f"stage {stage} is lost, and nobody comes: {best.member} {where}, and {room}")


def predicted_seconds(manifest: Manifest, stage: int, bytes_per_s: float | None) -> float:
    """From the loss of a stage until a guest holds it: the wait for a newcomer, the start of the
    guest, and the transfer of a state.

    Args:
        manifest: of the run.
        stage: that is lost.
        bytes_per_s: at which states came in this run; None = not measured, and the transfer is left
            out.
    """
    size = STATE_FLOATS * FLOAT_BYTES * stage_parameters(manifest.model, stage, len(manifest.blocks_of(stage)))
    return ADOPT_WAIT_S + GUEST_START_S + (size / bytes_per_s if bytes_per_s else 0.0)


def predicted_iteration_s(
    manifest: Manifest, iteration_s: float, busy_s: Sequence[float], lost: int, host: int, microbatches: int
) -> float:
    """Seconds of an iteration in which the host of a guest computes two stages.

    T is the fill and drain of a pipeline, and its slowest peer: sum(b) + (M - 1) max(b), with b the
    seconds of a microbatch at each stage. What is predicted is iteration_s * T(with the guest) /
    T(before).

    Args:
        manifest: of the run.
        iteration_s: measured, before the loss; 0 = not measured, and nothing is predicted.
        busy_s: index = stage; seconds of one microbatch there, of all its replicas together; 0 =
            not measured. That of the lost stage follows from the others.
        lost: the stage that is adopted.
        host: the stage that its host serves.
        microbatches: M, of an iteration.

    Returns:
        Seconds; 0 where too little was measured.
    """
    work = [head_blocks(manifest.model) if s == ENDS_STAGE else len(manifest.blocks_of(s)) for s in range(manifest.stage_count)]
    there = [stage for stage in range(manifest.stage_count) if stage != lost and busy_s[stage] > 0]
    if not iteration_s or host not in there:
        return 0.0
    before = list(busy_s)
    before[lost] = work[lost] * sum(busy_s[stage] for stage in there) / sum(work[stage] for stage in there)
    with_guest = before[host] + work[lost] * before[host] / work[host]
    after = [seconds for stage, seconds in enumerate(before) if stage not in {lost, host}] + [with_guest]
    return iteration_s * _pipeline_s(after, microbatches) / _pipeline_s(before, microbatches)


def _pipeline_s(busy_s: Sequence[float], microbatches: int) -> float:
    return sum(busy_s) + (microbatches - 1) * max(busy_s)
