"""Who keeps what for others: exact copies of the ends, so that they survive their last source,
shadows of body stages, activation logs. Pure.

Source: CheckFree+ keeps copies of the ends at the stages next to them; protocol section 3.10.
Differs: the copies are exact, moments included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from zlib import crc32

from swarmfree.protocol.manifest import LogDtype, Manifest
from swarmfree.protocol.names import ENDS_STAGE, Endpoint, Member
from swarmfree.protocol.plan import Plan, Replica

FULL_SHARE_MAX = 0.05
"""Full shadows are the default where they add at most this share to what a stage sends in
training.
"""
FULL_BYTES, WIRE_BYTES = 12, 4
SPARE_ITERATIONS = 8
MEMBER_SHADOWS = 4
"""Full shadows that a member has to find room for: its own state, one of each neighbour stage, and
the one that is being fetched.
"""
ITERATIONS_BESIDE = 2
"""Of an iteration's activations as they came, so many are in memory beside what is kept: the
newest, and what was let go and is used again.
"""
PLAIN_BYTES, BATCH_BYTES = 1, 1 << 20
"""Parts of plain shadows travel so many bytes at a time: asking for one costs as much as its bytes
do.
"""
STANDBY_STAGES = 3
"""Of which one standby keeps shadows: three adjacent ones can be lost at once and still be
replayed.
"""


@dataclass(frozen=True, slots=True)
class StageShadow:
    """A complete shadow of a body stage: who has it, how old it is, and whether it has moments."""

    holder: Endpoint
    stage: int
    iteration: int
    full: bool = False


def body_parameters(manifest: Manifest) -> int:
    """Number of weights of the largest body stage."""
    model = manifest.model
    heads_width = model.width // model.heads * model.kv_heads
    block = 2 * model.width * (model.width + heads_width) + 3 * model.width * model.mlp_width + 2 * model.width
    return block * max(len(manifest.blocks_of(stage)) for stage in range(1, manifest.stage_count))


def has_full_shadows(manifest: Manifest) -> bool:
    """Whether this run keeps full shadows: because it says so, or because they are cheap enough.

    With `auto`, shadows are full if two holders of each add at most `FULL_SHARE_MAX` to a stage's
    traffic and four of them fit in `recovery.kept_mb_max`.
    """
    recovery = manifest.recovery
    if not recovery.keeps_shadows or recovery.shadow_kind != "auto":
        return recovery.keeps_shadows and recovery.shadow_kind == "full"
    model, batch = manifest.model, manifest.batch
    shadows_bytes = 2 * FULL_BYTES * body_parameters(manifest) / recovery.shadow_every
    ring_bytes = 2 * WIRE_BYTES * batch.microbatches * batch.rows * model.tokens_per_row * model.width
    return shadows_bytes <= FULL_SHARE_MAX * ring_bytes and _log_room_bytes(manifest) >= 0


def shadow_batch(manifest: Manifest) -> int:
    """Number of parts of a plain shadow that one call asks for and returns."""
    return max(1, WIRE_BYTES * BATCH_BYTES // (PLAIN_BYTES * manifest.ring.part_bytes))


def replays_exactly(manifest: Manifest) -> bool:
    """Whether a lost stage can be replayed bit for bit.

    That takes full shadows, activation logs as the tensors crossed the wire, and the order of every
    sum in the record.
    """
    return logged_iteration_count(manifest) > 0 and log_dtype(manifest) == "wire"


def log_dtype(manifest: Manifest) -> LogDtype:
    """Type in which activation logs keep tensors; "wire" if that is already the wire's own type."""
    wanted = manifest.recovery.border_dtype
    return "wire" if wanted == manifest.ring.wire_dtype else wanted


def logged_iteration_count(manifest: Manifest) -> int:
    """Number of iterations that an activation log covers; 0 if the run never replays.

    Since a full shadow was put by until all holders have the next one: they fetch one stage after
    the other, each in a quarter of the time between two shadows, and a standby keeps three of them.
    """
    recovery = manifest.recovery
    is_replayed = recovery.best == "replay" and has_full_shadows(manifest)
    return 2 * recovery.shadow_every + SPARE_ITERATIONS if is_replayed else 0


@dataclass(frozen=True, slots=True)
class LogLength:
    """How long a peer's activation log may be.

    Args:
        iterations: of which it is kept; 0 = none is.
        size_bytes: that it takes of the limit then.
        reason: why it is not as long as the run has it; empty where it is.
    """

    iterations: int
    size_bytes: int = 0
    reason: str = ""


def log_length(manifest: Manifest, came_bytes: int, kept_bytes: int, own_mb_max: int | None = None) -> LogLength:
    """Decide how many iterations of activations fit beside this peer's shadows.

    The answer is all that a replay can need, fewer, or none at all.

    Shadows come first, since without one no log is of use: one of each stage, this peer's own
    state, and the one that is being fetched. A log that does not reach from one full shadow to
    where both neighbours have the next one is of no use when it is needed: then none is kept.

    Args:
        came_bytes, kept_bytes: of one iteration at this peer, as it crossed the wire, and as it is
            kept.
        own_mb_max: what this peer's owner allows, None for no limit of its own.
    """
    wanted, every = logged_iteration_count(manifest), manifest.recovery.shadow_every
    if not wanted:
        return LogLength(0)
    least = every + every // 2 + SPARE_ITERATIONS
    beside_bytes = ITERATIONS_BESIDE * came_bytes
    room_bytes, kept_by = _log_room_bytes(manifest), f"recovery.kept_mb_max = {manifest.recovery.kept_mb_max}"
    if own_mb_max is not None and own_mb_max < manifest.recovery.kept_mb_max:
        room_bytes -= (manifest.recovery.kept_mb_max - own_mb_max) * 10**6
        kept_by = f"--max-disk {own_mb_max}"
    fits = (room_bytes - beside_bytes) // kept_bytes if kept_bytes else wanted
    limit = f"{kept_by} leaves room for {max(0, fits)} of {wanted} iterations"
    if fits < least:
        return LogLength(0, reason=f"no activation log is kept: {limit}, and fewer than {least} are of no use")
    iterations = min(wanted, fits)
    return LogLength(iterations, iterations * kept_bytes + beside_bytes, "" if iterations == wanted else limit)


def _log_room_bytes(manifest: Manifest) -> int:
    """What the limit leaves for a log once there is room for shadows; below 0 where there is none
    for them.
    """
    return manifest.recovery.kept_mb_max * 10**6 - MEMBER_SHADOWS * FULL_BYTES * body_parameters(manifest)


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """A complete copy of stage 0: who has it, the iteration it is ready for, and the lineage that
    it stands on.
    """

    holder: Endpoint
    iteration: int
    lineage: str = ""


def of_this_run(copies: Iterable[KeptCopy], past: Mapping[int, str]) -> tuple[KeptCopy, ...]:
    """Select the copies that belong to the present lineage.

    The others belong to a lineage that lost, or to records that were never decided.

    Args:
        past: iteration -> lineage of the last record before it.
    """
    return tuple(copy for copy in copies if past.get(copy.iteration) == copy.lineage)


def keepers_of_ends(plan: Plan, count: int) -> tuple[Member, ...]:
    """Choose at most `count` members of the body that keep an exact copy of the ends.

    In this order: the first replica of stage 1, the first of the last stage, then their second
    ones, and so on; but those that are not half as fast as the fastest of their stage come last in
    it: following the ends would make them, and so everybody, slower still. A source is never
    chosen.
    """
    ends_of_body = [plan.replicas[1], plan.replicas[-1]] if len(plan.replicas) > 2 else list(plan.replicas[1:2])
    stages = [sorted(replicas, key=lambda replica: _is_slow(replica, replicas)) for replicas in ends_of_body]
    in_turn = (replica.endpoint.member for pair in zip_longest(*stages) for replica in pair if replica is not None)
    sources = {replica.endpoint.member for replica in plan.replicas[ENDS_STAGE]} if plan.replicas else set()
    return tuple(member for member in in_turn if member not in sources)[:count]


def _is_slow(replica: Replica, stage: Sequence[Replica]) -> bool:
    """Whether it is not half as fast as the fastest of its stage; a finer measure would change its
    mind from plan to plan, and each time a copy be loaded anew.
    """
    return 2 * replica.speed < max(other.speed for other in stage)


def shadow_holders(plan: Plan, stage: int) -> tuple[Member, ...]:
    """Members that keep a shadow of a body stage: the last replica of each neighbour stage.

    The ends are the neighbour of both ends of the body.

    Any two adjacent stages may die at once: one holder of each is left.
    """
    after = stage + 1 if stage + 1 < len(plan.replicas) else ENDS_STAGE
    there = [plan.replicas[neighbour][-1].endpoint.member for neighbour in (stage - 1, after) if plan.replicas[neighbour]]
    return tuple(dict.fromkeys(there))


def standby_shadows(plan: Plan, member: Member) -> tuple[int, ...]:
    """Adjacent stages of which this standby keeps a shadow; different standbys begin at different
    stages.
    """
    body = len(plan.replicas) - 1
    first = crc32(str(member).encode()) % body if body else 0
    return tuple(sorted(1 + (first + place) % body for place in range(min(STANDBY_STAGES, body))))


def shadows_of(plan: Plan, member: Member) -> tuple[int, ...]:
    """Stages of which this member keeps a shadow as a replica of a neighbour stage."""
    return tuple(stage for stage in range(1, len(plan.replicas)) if member in shadow_holders(plan, stage))
