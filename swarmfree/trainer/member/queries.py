"""Questions about a member's books and state, which change nothing: its state, its records, its
plan.
"""

from __future__ import annotations

from swarmfree.policy.part_batches import given, state_batch
from swarmfree.protocol.errors import RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.message_bounds import SNAPSHOTS_MAX
from swarmfree.protocol.messages import GetRecord, GetState, HeldSnapshot, PlanAnswer, RecordAnswer, State
from swarmfree.protocol.names import ABSENT, Member
from swarmfree.protocol.pieces import sizes_of
from swarmfree.protocol.ports import FirstWeights, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Rank
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.recovery.recut import read_parts


async def get_state(stage_member: StageMember, request: GetState, asker: Member | None = None) -> Reply:
    """Return parts of the state at the iteration asked for, or at the present one without a
    lineage; of what the run begins with, whoever has it on its disk.

    Whoever exports is no builder: nothing waits for it, and no stage beside this one is lost.

    Args:
        asker: for whom what it asks for over and over is read once.

    Raises:
        Refused: `gone` or `not_yet`, this member is elsewhere; `failed`, there is no such part.
    """
    replica_state, first_weights = stage_member.replica_state, stage_member.context.ports.first_weights
    is_first = request.to_export and request.weights_only and (request.iteration, request.lineage) == (0, GENESIS_LINEAGE)
    if is_first and stage_member.context.manifest.model.init_digests and first_weights is not None:
        return await _get_first_weights(stage_member.context, first_weights, request)
    if replica_state.stage == request.stage and replica_state.iteration < request.iteration:
        await replica_state.moved.wait(stage_member.context.timing.hold_s)
    if replica_state.stage != request.stage:
        raise Refused(RefusalKind.GONE, f"this peer holds stage {replica_state.stage}, not {request.stage}")
    if request.split and BlockSplit(request.split).blocks_of(request.stage) != replica_state.split.blocks_of(request.stage):
        return await stage_member.preparation.get_state(request)
    if replica_state.iteration < request.iteration:
        raise Refused(RefusalKind.NOT_YET, f"this peer is at iteration {replica_state.iteration}")
    engine = stage_member.context.ports.engine
    parts = _parts_of(stage_member.context, request)
    if not (request.to_export or request.digests_only):
        replica_state.give_part(stage_member.context.now_s(), to_rebuild=request.weights_only)

    split = replica_state.split

    def read() -> tuple[int, str, list[bytes]]:
        if replica_state.split != split:
            raise Refused(RefusalKind.GONE, "the model was cut anew")
        return replica_state.iteration, replica_state.lineage, read_parts(engine, parts, request)

    def read_proven() -> tuple[tuple[int, str, list[bytes]], tuple[str, ...]]:
        return read(), tuple(digest for part in parts for digest in engine.digest_part(part)[1:])

    digests: tuple[str, ...] = ()
    if request.weights_only and request.to_export:
        (iteration, lineage, pieces), digests = await stage_member.device.run(Rank.BOOKS, 0, read_proven)
    elif request.digests_only:
        iteration, lineage, pieces = await stage_member.device.run(Rank.BOOKS, 0, read)
    else:
        iteration, lineage, pieces = await stage_member.device.read((asker, parts, request.weights_only, split), read)
    if request.lineage and (iteration, lineage) != (request.iteration, request.lineage):
        raise Refused(RefusalKind.GONE, f"this peer is at iteration {iteration}, lineage {lineage[:8]}")
    return Reply(State(engine.part_count(request.stage), iteration, sizes_of(pieces), digests), pieces=pieces)


async def _get_first_weights(context: Context, first_weights: FirstWeights, request: GetState) -> Reply:
    """Return parts of what the run begins with, from the disk: of any stage, at any time."""
    parts = _parts_of(context, request)
    try:
        pieces, digests = await first_weights.read(request.stage, parts)
    except SwarmfreeError as error:
        raise Refused(RefusalKind.FAILED, str(error)) from error
    return Reply(State(context.ports.engine.part_count(request.stage), 0, sizes_of(pieces), digests), pieces=pieces)


def _parts_of(context: Context, request: GetState) -> range:
    """The parts that one answer gives.

    Raises:
        Refused: `failed`, there is no such part.
    """
    part_count = context.ports.engine.part_count(request.stage)
    if request.part not in range(part_count):
        raise Refused(RefusalKind.FAILED, f"part {request.part} of stage {request.stage}, which has {part_count}")
    batch = part_count if request.digests_only else state_batch(context.manifest, weights_only=request.weights_only)
    return given(request.count, batch, request.part, part_count)


async def get_record(stage_member: StageMember, request: GetRecord) -> Reply:
    """Return an applied record; if it is the next one to come, wait for it a while.

    Raises:
        Refused: `not_yet`, it is not held.
    """
    replica_state = stage_member.replica_state
    if request.iteration == replica_state.iteration:
        await replica_state.moved.wait(stage_member.context.timing.hold_s)
    asked = request.iteration
    record = replica_state.newest_record if asked == ABSENT else replica_state.record_of(asked)
    if record is None:
        raise Refused(RefusalKind.NOT_YET, f"no record of iteration {request.iteration} is held here")
    return Reply(RecordAnswer(record))


async def get_plan(
    stage_member: StageMember,
    snapshots: tuple[HeldSnapshot, ...],
    last_move: str = "",
    held_up: str = "",
    fetching: HeldSnapshot | None = None,
) -> Reply:
    """Return the plan in force, the coordinator, what the run waits for and the number of records;
    a coordinator adds its last move and what holds up an order, a guest its host.

    Without a coordinator this peer tells of the snapshots on its disk, the one that it holds first,
    and of the plan only if it holds a stage and may claim by that plan.
    """
    replica_state = stage_member.replica_state
    leader = replica_state.coordinator if stage_member.hears_coordinator else None
    records = 0 if replica_state.is_from_disk else replica_state.records_held
    held = HeldSnapshot(replica_state.stage, replica_state.iteration, replica_state.lineage)
    told = tuple(sorted(snapshots, key=lambda one: one != held))[:SNAPSHOTS_MAX] if leader is None else ()
    plan = replica_state.known_plan if leader is not None or stage_member.may_lead_alone else None
    host = stage_member.guest_room.host
    vouches = replica_state.stage != ABSENT and replica_state.is_committed_state
    passed_over = replica_state.passed_over if replica_state.is_from_disk and leader is None else ""
    waits = stage_member.waiting_for
    return Reply(PlanAnswer(plan, waits, leader, records, told, last_move, host, vouches, passed_over, held_up, fetching))
