"""Writing this peer's stage to its own disk now and then, and holding it again when the peer comes
back.

So a run outlives all its peers: a peer that starts in the folder of an earlier life holds what that
one had written, as a member that was away for long holds what it had. Nobody waits for a disk; a
step waits while its state is copied in memory.
Source: elastic harness, tiers of snapshots; protocol, "When all have died".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial

from swarmfree.policy.block_split import split_after
from swarmfree.policy.halt import SAID_AGAIN_S
from swarmfree.policy.resume import worth_keeping
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.names import ABSENT
from swarmfree.protocol.records import Record
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Rank
from swarmfree.trainer.member.member import StageMember


class SnapshotKeeper:
    """Writes snapshots, and loads them."""

    def __init__(
        self, context: Context, stage_member: StageMember, on_written: Callable[[HeldSnapshot], None] | None = None
    ) -> None:
        """Nothing is due; `on_written` is told of what has come to lie on the disk."""
        self._on_written = on_written
        self._context, self._stage_member = context, stage_member
        self._port = context.ports.snapshots
        self._every = context.manifest.recovery.snapshot_every if self._port is not None else 0
        self._due: tuple[Snapshot, list[bytes]] | None = None
        self._told, self._said_s, self._writing = "", -math.inf, asyncio.Lock()
        self._passing: HeldSnapshot | None = None
        self._damaged: set[HeldSnapshot] = set()
        self._records: dict[HeldSnapshot, Record] = {}

    def held(self) -> tuple[HeldSnapshot, ...]:
        """On this peer's disk, newest first, but for those that could not be read."""
        return tuple(one for one in self._port.held() if one not in self._damaged) if self._port is not None else ()

    async def record_of(self, lineage: str) -> Record:
        """The record that a snapshot here was left by, also while it is loaded, or another one is
        held; it is read once.

        Raises:
            Refused: `not_yet`, none of this lineage lies here, or it cannot be read.
        """
        for held in self.held():
            if held.lineage != lineage or self._port is None:
                continue
            try:
                record = self._records.get(held) or (await self._port.read(held)).record
            except SwarmfreeError as error:
                raise Refused(RefusalKind.NOT_YET, f"the snapshot of that lineage cannot be read: {error}") from error
            self._records = {one: known for one, known in {**self._records, held: record}.items() if one in self.held()}
            return record
        raise Refused(RefusalKind.NOT_YET, "no snapshot of that lineage lies here")

    def arrived(self, held: HeldSnapshot) -> None:
        """It was written anew: what was wrong with the one before counts no more."""
        self._damaged.discard(held)

    def after_step(self) -> None:
        """Copy the whole state, where a snapshot is due.

        It runs in the device work of the step, so that no later step changes what it reads.
        """
        replica_state = self._stage_member.replica_state
        if self._every and replica_state.iteration % self._every == 0 and not replica_state.is_over:
            self._due = self._copied() or self._due

    def _copied(self) -> tuple[Snapshot, list[bytes]] | None:
        """The state as it is now; None where nothing is held that a record has left."""
        replica_state, engine = self._stage_member.replica_state, self._context.ports.engine
        record = replica_state.newest_record
        if record is None or replica_state.stage == ABSENT:
            return None
        parts = [engine.read_state(part, weights_only=False) for part in range(engine.part_count(replica_state.stage))]
        return Snapshot(replica_state.stage, record, dict(replica_state.past), len(parts)), parts

    async def write_now(self) -> None:
        """Have the present state on the disk, since the run is about to pause; where it lies there
        already nothing is written.

        Raises:
            SwarmfreeError: the disk refuses, or this peer keeps no snapshots.
            CallFailed: the device failed.
        """
        if self._port is None:
            raise SwarmfreeError("this peer keeps no snapshots")
        replica_state = self._stage_member.replica_state
        if HeldSnapshot(replica_state.stage, replica_state.iteration, replica_state.lineage) in self.held():
            return
        await self._stage_member.hold_as_recorded()
        # Not in the midst of a step; and whatever waits for the disk is older than this
        copied, self._due = await self._stage_member.device.run(Rank.BOOKS, 0, self._copied), None
        if copied is not None:
            await self._write(*copied)
            self._passing = copied[0].held

    async def keep_now(self) -> bool:
        """Have the present state on the disk, if a record has left it; a disk that refuses is told
        of. Whether it lies there, or need not.
        """
        if self._stage_member.replica_state.is_committed_state and not self._stage_member.replica_state.is_from_disk:
            try:
                await self.write_now()
            except (SwarmfreeError, CallFailed) as error:
                self.tell_refusal(f"no snapshot is written: {error}")
                return False
        return True

    def tell_refusal(self, words: str) -> None:
        """Say of the disk that it refuses, if that was not said a moment ago."""
        if self._context.now_s() >= self._said_s + SAID_AGAIN_S:
            self._said_s = self._context.now_s()
            self._context.tell(Note(words))

    async def _write(self, snapshot: Snapshot, parts: list[bytes]) -> None:
        assert self._port is not None, "something is to be written"
        async with self._writing:
            # A pause that a disk refuses is tried again and again: what is written for it goes
            # first, and the newest set that all have stays.
            there = [one for one in self.held() if one != self._passing]
            descendants = [one for one in there if await self._goes_on_from(one, snapshot.held)]
            await self._port.write(snapshot, parts, worth_keeping(there, snapshot.held.iteration, snapshot.past, descendants))
        self._told, self._said_s = "", -math.inf
        self.arrived(snapshot.held)
        if self._on_written is not None:
            self._on_written(snapshot.held)

    async def _goes_on_from(self, one: HeldSnapshot, other: HeldSnapshot) -> bool:
        """Whether one that lies on the disk was left by records after those of another."""
        assert self._port is not None, "something is to be written"
        if one.iteration <= other.iteration:
            return False
        try:
            snapshot = await self._port.read(one)
        except SwarmfreeError:
            return False
        return snapshot.past.get(other.iteration) == other.lineage

    async def keep(self) -> None:
        """Run for ever: write what is due. A disk that refuses is told of once, and tried again
        with the next snapshot.
        """
        while self._port is not None and self._every:
            if self._due is None:
                await self._stage_member.replica_state.moved.wait()
                continue
            due, self._due = self._due, None
            try:
                await self._write(*due)
            except SwarmfreeError as error:
                if not self._told:
                    self._told = f"no snapshot is written, and training goes on: {error}"
                    self._context.tell(Note(self._told))

    async def load(self, chosen: Sequence[HeldSnapshot]) -> None:
        """Hold the first of these that can be read, unless this peer hears a coordinator and holds
        nothing from its disk, or another plan was opened meanwhile: then it holds what that begins
        with. Where none can be read, nothing is held.
        """
        replica_state = self._stage_member.replica_state
        was_from_disk, plan = replica_state.is_from_disk, replica_state.plan

        def is_opened() -> bool:
            return replica_state.plan is not None and replica_state.plan is not plan

        for held in chosen:
            if replica_state.coordinator is not None and self._stage_member.hears_coordinator and not was_from_disk:
                return
            try:
                is_held = await self._load(held, is_opened)
            except (SwarmfreeError, CallFailed) as error:
                self._context.tell(Note(f"a snapshot is passed over: {error}"))
                if isinstance(error, SwarmfreeError):
                    self._damaged.add(held)
                await self._stage_member.let_go(unless=is_opened)
                continue
            if is_held:
                self._context.tell(Note(f"holds stage {held.stage} as it was before iteration {held.iteration}, from its disk"))
            return

    async def _load(self, held: HeldSnapshot, is_opened: Callable[[], bool]) -> bool:
        assert self._port is not None, "something is held on a disk"
        engine, device, stage_member = self._context.ports.engine, self._stage_member.device, self._stage_member
        snapshot = await self._port.read(held)
        split = split_after(snapshot.record, self._context.manifest)
        if not await stage_member.let_go(unless=is_opened):
            return False

        def follow() -> None:
            engine.follow(split)
            stage_member.replica_state.cut(split)

        if split != stage_member.replica_state.split:
            await device.run(Rank.BOOKS, 0, follow)
        if held.stage >= self._context.manifest.stage_count or snapshot.part_count != engine.part_count(held.stage):
            raise SwarmfreeError(f"one of stage {held.stage} in {snapshot.part_count} parts does not fit this run")
        await device.run(Rank.BOOKS, 0, lambda: engine.blank(held.stage))
        for part in range(snapshot.part_count):
            data = await self._port.read_part(held, part)
            await device.run(Rank.BOOKS, 0, partial(engine.write_state, part, data, weights_only=False))
        await stage_member.hold_snapshot(snapshot)
        return True
