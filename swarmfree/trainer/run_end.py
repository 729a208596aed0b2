"""How the end of the run comes to one peer: whose word that is, and the weights of its stage,
written before anybody ends.
"""

from __future__ import annotations

import asyncio

from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.events import Note, WeightsWritten
from swarmfree.protocol.messages import Farewell
from swarmfree.protocol.names import ABSENT, Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Rank
from swarmfree.trainer.member.member import SILENT_FOR_LONG, TICK_S, StageMember
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from swarmfree.trainer.tasks import Tasks


class RunEnd:
    """This peer's part in the end of the run.

    Attributes:
        failure: why the weights that this peer was to write are not written; empty while nothing
            went wrong.
    """

    def __init__(self, context: Context, stage_member: StageMember, tasks: Tasks, snapshots: SnapshotKeeper) -> None:
        """Nothing was written."""
        self._snapshots = snapshots
        self._context = context
        self._stage_member = stage_member
        self._tasks = tasks
        self._writing: asyncio.Task[str] | None = None
        self._writes = ABSENT, ""
        self._all_written_of = ""
        self.failure = ""

    def require_lead(self, sender: Endpoint) -> None:
        """Refuse an end of the run from any peer but this peer's own coordinator.

        Any peer may end the run here if this one has followed no coordinator for long.

        Raises:
            Refused: `stale`; the sender may lead another side of a split, which is through, and
                this side is not.
        """
        stage_member, coordinator = self._stage_member, self._stage_member.replica_state.coordinator
        is_own = sender.member == self._context.me or (coordinator is not None and coordinator.member == sender.member)
        follows_nobody = coordinator is None or not stage_member.hears_coordinator
        # A peer that has lost its coordinator at a stroke counts from there.
        silent_s = stage_member.silent_ticks % SILENT_FOR_LONG * TICK_S
        is_alone = stage_member.replica_state.stage == ABSENT or silent_s >= self._context.timing.split_wait_s
        if not is_own and not (follows_nobody and is_alone):
            raise Refused(RefusalKind.STALE, f"{sender.member} is not this peer's coordinator")

    @property
    def is_all_written(self) -> bool:
        """Whether the last weights of every stage of this peer's lineage are written."""
        return self._stage_member.replica_state.is_over and self.is_on_a_disk

    @property
    def is_on_a_disk(self) -> bool:
        """Whether a coordinator has said so of what is held here; a sibling's disk counts."""
        return self._all_written_of == self._stage_member.replica_state.lineage

    def hear_all_written(self) -> Reply:
        """A coordinator has said that every stage is written, with the last states of the lineage
        that this peer stands on.
        """
        self._all_written_of = self._stage_member.replica_state.lineage
        return Reply(Farewell())

    async def write(self) -> Reply:
        """Write the stage's weights, or its snapshot where the run only pauses, or wait until they
        are written; the peer stays.

        Raises:
            Refused: `gone`, what is held here is not the last state of a stage; `failed`, with the
                reason.
        """
        replica_state = self._stage_member.replica_state
        if replica_state.stage != ABSENT and replica_state.is_paused:
            return await self._write_snapshot()
        if replica_state.stage == ABSENT or not replica_state.is_over:
            raise Refused(
                RefusalKind.GONE, f"this peer holds stage {replica_state.stage}, ready for iteration {replica_state.iteration}"
            )
        writes = replica_state.stage, replica_state.lineage
        # It was moved to a lost stage, or has joined another lineage, after it had written
        if self._writes != writes:
            self._writing, self._writes = None, writes
        note = "it was written before" if self._writing is not None and self._writing.done() else ""
        if self._writing is None:
            self._writing = self._tasks.start(self._write(replica_state.stage), "write weights")
        self.failure = await asyncio.shield(self._writing)
        if self.failure:
            self._writing = None  # it may be asked again
            raise Refused(RefusalKind.FAILED, self.failure)
        return Reply(Farewell(note, self.is_all_written))

    async def _write_snapshot(self) -> Reply:
        """A disk that refuses is no failure of this peer's: the run goes on until it does not."""
        lineage = self._stage_member.replica_state.lineage
        try:
            await self._snapshots.write_now()
        except (SwarmfreeError, CallFailed) as error:
            self._snapshots.tell_refusal(f"the run is to pause, and waits for this disk: {error}")
            cause = error.__cause__
            # Without the path, which is nobody else's, and is another one after each iteration
            reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else cause or error
            raise Refused(RefusalKind.FAILED, f"no snapshot is written: {reason}") from error
        return Reply(Farewell("", self._all_written_of == lineage))

    async def keep(self) -> None:
        """Write the present weights of the stage before the run ends; without a stage, nothing."""
        replica_state, ports = self._stage_member.replica_state, self._context.ports

        def export() -> str:
            # Iteration and weights change in one piece of device work, so here they are of one
            # moment.
            return ports.weights.write(replica_state.stage, ports.engine.export(), replica_state.iteration)

        if replica_state.stage == ABSENT:
            return
        try:
            await self._stage_member.device.run(Rank.BOOKS, 0, export)
        except CallFailed as error:
            reason = error.__cause__ or error
            # Who asked has taken the folder meanwhile, with this stage as a sibling wrote it
            if not isinstance(reason.__cause__, FileNotFoundError):
                self._context.tell(Note(f"the weights of stage {replica_state.stage} are not kept: {reason}"))

    async def _write(self, stage: int) -> str:
        ports, device = self._context.ports, self._stage_member.device
        try:
            tensors = await device.run(Rank.BOOKS, 0, ports.engine.export)
            try:
                path = await device.run(Rank.BOOKS, 0, lambda: ports.weights.write(stage, tensors))
            # The disk may be full of what is kept for others, which is worth less than the weights
            except CallFailed:
                await ports.shelf.clear()
                path = await device.run(Rank.BOOKS, 0, lambda: ports.weights.write(stage, tensors))
        except CallFailed as error:
            return f"the weights of stage {stage} are not written: {error.__cause__ or error}"
        self._context.tell(WeightsWritten(stage, path))
        return ""
