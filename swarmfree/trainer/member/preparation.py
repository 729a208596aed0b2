"""A second cut of what this peer holds, at the same iteration: prepared while the present one is in
force, and put in its place by the plan that is cut so; and back, where that comes to nothing.

Blocks that stay are copied here, the others come from the members that have them, at exactly this
iteration and lineage: while training goes on, where they are copied ahead, and followed from then
on; what was not is fetched now. Source: decision 24.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from swarmfree.policy.part_batches import given, state_batch
from swarmfree.policy.planner.model_size import BYTES_PER_PARAMETER, block_parameters
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import CallFailed, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetState, Prepare, Prepared, State
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint
from swarmfree.protocol.pieces import parts_of, sizes_of
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank, WorkFailed
from swarmfree.trainer.recovery.block_copies import BlockCopies
from swarmfree.trainer.recovery.recut import (
    begin_cut,
    copy_block,
    digests_of_parts,
    exchange,
    parts_of_block,
    read_parts,
    write_parts,
)
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import Tasks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OtherCut:
    """The stage that is held, as another split cuts it.

    Args:
        engine: that holds it.
        split: that it follows.
        stage: which.
        iteration, lineage: that the state is ready for, and of the record before.
        digest: of it.
    """

    engine: Engine
    split: BlockSplit
    stage: int
    iteration: int
    lineage: str
    digest: str


def cut_bytes(manifest: Manifest, new: BlockSplit, stage: int) -> int:
    """Memory that a stage takes, at most, as this split cuts it, beside what is there."""
    return BYTES_PER_PARAMETER * block_parameters(manifest.model) * len(new.blocks_of(stage))


class Preparation:
    """Handles Prepare, and exchanges the cut in force for the other one."""

    def __init__(self, context: Context, replica_state: ReplicaState, device: Device, following: Tasks) -> None:
        """Nothing is prepared; what is copied ahead is followed in `following`."""
        self._context, self._replica_state, self._device = context, replica_state, device
        self._following = following
        self._other: OtherCut | None = None
        self._making: BlockSplit | None = None
        self._ahead: BlockCopies | None = None
        self._dropped = 0  # how often
        self._preparing, self._beginning = asyncio.Lock(), asyncio.Lock()

    async def prepare(self, request: Prepare) -> Reply:
        """Have the stage as another split cuts it, beside what is held; or only begin to copy what
        it lacks, and tell how much of that is missing.

        Raises:
            Refused: `gone`, what is held is not what is to be cut, or changed meanwhile, or nobody
                gives what is missing; `exhausted`, there is no memory for it.
        """
        if request.ahead:
            return await self._copy_ahead(request)
        async with self._preparing:  # however many are asked for, one is made, beside the one that is there
            self._making = BlockSplit(request.split)
            try:
                return await self._prepare(request)
            finally:
                self._making = None

    async def _copy_ahead(self, request: Prepare) -> Reply:
        """Answer once all is there that is copied ahead, or after `hold_s`."""
        async with self._beginning:  # however many ask, there is one copy
            copies = await self._copies_for(request)
        if copies is None:
            return Reply(Prepared("", 0 if self._is_prepared(BlockSplit(request.split)) else 1))
        copies.ask()
        if copies.missing:
            await copies.turned.wait(self._context.timing.hold_s)
        return Reply(Prepared("", copies.missing))

    async def _copies_for(self, request: Prepare) -> BlockCopies | None:
        """The copies for this cut; they are begun where there are none. None while a cut is being
        prepared, or where this one is there: the order comes late.

        Raises:
            Refused: `gone`, the stage is not held as the last record cuts it; `exhausted`, there is
                no memory for them.
        """
        copies, split = self._ahead, BlockSplit(request.split)
        if copies is not None and not copies.is_over and copies.split == split:
            return copies
        if not self._preparing.locked():
            await self.give_up_copies()
        # Only now: what is held, or prepared, may have changed meanwhile
        held = self._replica_state
        if held.stage != request.stage or not held.is_cut_as_recorded:
            raise Refused(RefusalKind.GONE, f"stage {request.stage} is not held here as the last record cuts it")
        if self._preparing.locked() or self._is_prepared(split):
            return None
        self._require_memory(split, held.stage)
        copies = self._ahead = BlockCopies(self._context, held, self._device, split)
        self._following.start(self._follow_copies(copies), "copy blocks ahead")
        return copies

    def _is_prepared(self, split: BlockSplit) -> bool:
        """Whether this cut is there, or is being prepared."""
        other = self._other
        return self._making == split or (other is not None and self._is_present(other) and other.split == split)

    async def _follow_copies(self, copies: BlockCopies) -> None:
        await copies.keep()
        if self._ahead is copies:
            self._ahead = None

    async def give_up_copies(self) -> None:
        """What is copied ahead is not wanted any more; its memory is free then."""
        self._ahead = None
        await self._following.end_all()

    def _require_memory(self, split: BlockSplit, stage: int) -> None:
        """Look whether there is memory for another cut.

        Raises:
            Refused: `exhausted`, there is not.
        """
        needed_bytes, free_bytes = cut_bytes(self._context.manifest, split, stage), self._context.ports.free_bytes()
        if free_bytes is not None and free_bytes < needed_bytes:
            # A system that is asked for more than there is ends the peer, and its state with it
            what = f"{needed_bytes / 1e6:,.0f} MB for another cut of stage {stage}; {free_bytes / 1e6:,.0f} MB are free"
            raise Refused(RefusalKind.EXHAUSTED, f"this peer needs {what}")

    async def _begun(self, request: Prepare) -> tuple[Engine, frozenset[int]]:
        """An engine for the other cut, and the blocks that are in it already: those that were
        copied ahead.
        """
        new, copies = BlockSplit(request.split), self._ahead
        if copies is not None and not copies.is_over and (copies.stage, copies.split) == (request.stage, new):
            self._ahead = None
            taken = await copies.take(request.iteration, request.lineage)
            self._require_held(request)
            if taken is not None:
                return taken
        await self.give_up_copies()
        self._require_memory(new, request.stage)
        engine = await self._work(self._context.ports.spare_engine)
        await self._work(partial(begin_cut, engine, new, request.stage))
        return engine, frozenset()

    async def _prepare(self, request: Prepare) -> Reply:
        replica_state, dropped = self._replica_state, self._dropped
        self._require_held(request)
        new, old, stage = BlockSplit(request.split), replica_state.split, request.stage
        other = self._other
        if other is not None and self._is_present(other) and other.split == new:
            return Reply(Prepared(other.digest))
        engine, there = await self._begun(request)
        for block in new.blocks_of(stage):
            if (giver := old.stage_of(block)) == stage:
                await self._work(partial(self._copy, request, engine, block))
            elif block not in there:
                await self._fetch(request, old, giver, block, engine)
            self._require_held(request)
        digest = await self._work(engine.state_digest)
        self._require_held(request)
        if self._dropped != dropped:
            raise Refused(RefusalKind.GONE, f"stage {stage} was let go meanwhile")
        self._other = OtherCut(engine, new, stage, request.iteration, request.lineage, digest)
        return Reply(Prepared(digest))

    async def _work(self, work: Callable[[], T]) -> T:
        """Device work.

        Raises:
            Refused: `gone`, it failed: what is held has changed, or what was given does not fit.
        """
        try:
            return await self._device.run(Rank.BOOKS, 0, work)
        except WorkFailed as error:
            raise Refused(RefusalKind.GONE, str(error)) from error

    def _copy(self, request: Prepare, engine: Engine, block: int) -> None:
        """Copy a block that stays, on the device's thread: plans may be opened, and taken back,
        between two of them.
        """
        self._require_held(request)
        new, held, own = BlockSplit(request.split), self._replica_state.split, self._context.ports.engine
        digests_of_parts(own, parts_of_block(own, held, request.stage, block))  # they go along: hashed once, for both cuts
        copy_block(own, held, engine, new, request.stage, block)

    def _require_held(self, request: Prepare) -> None:
        held = self._replica_state
        if (held.stage, held.iteration, held.lineage) != (request.stage, request.iteration, request.lineage):
            raise Refused(RefusalKind.GONE, f"this peer is at iteration {held.iteration} of stage {held.stage}")
        if not held.is_cut_as_recorded:
            # What is prepared takes the place of the way back
            raise Refused(RefusalKind.GONE, "the model is cut otherwise here than the last record says")

    async def _fetch(self, request: Prepare, old: BlockSplit, giver: int, block: int, engine: Engine) -> None:
        """Have an engine hold one block, from a member that has it."""
        plan = self._replica_state.known_plan
        donors: tuple[Endpoint, ...] = tuple(r.endpoint for r in plan.replicas[giver]) if plan is not None else ()
        # Counted by the engine that nobody cuts meanwhile; blocks have equally many parts
        there = parts_of_block(engine, BlockSplit(request.split), request.stage, block)
        first = len(there) * old.blocks_of(giver).index(block)
        last: CallFailed = PeerUnreachable(f"stage {giver} has no donor")
        for donor in donors:
            done = 0
            try:
                while done < len(there):
                    left = len(there) - done
                    asked = GetState(
                        giver,
                        request.iteration,
                        request.lineage,
                        first + done,
                        weights_only=False,
                        count=left,
                        split=old.counts,
                    )
                    reply = await self._context.call(donor, asked)
                    found = [b"".join(pieces) for pieces in parts_of(reply.pieces, reply.expect(State).sizes, left)]
                    if not found:
                        raise ProtocolViolation(f"{donor.member} gave no part of block {block}")
                    await self._work(partial(write_parts, engine, there[done], found))
                    done += len(found)
            except CallFailed as error:
                last = error
                continue
            return
        raise Refused(RefusalKind.GONE, f"nobody gives block {block}: {last}")

    async def get_state(self, request: GetState) -> Reply:
        """Return parts of the other cut: who makes a stage that is lost, or prepares what comes to
        nothing, goes by the last record, whatever was opened since.

        Raises:
            Refused: `gone`, there is none, or it is at another iteration; `failed`, there is no
                such part.
        """
        other = self._other
        if other is None or not self._is_present(other) or other.split.counts != request.split:
            raise Refused(RefusalKind.GONE, f"the model is cut as {list(self._replica_state.split.counts)} here")
        if other.iteration < request.iteration or (request.lineage and other.lineage != request.lineage):
            raise Refused(RefusalKind.GONE, f"the other cut is at iteration {other.iteration}, lineage {other.lineage[:8]}")
        count = other.engine.part_count(request.stage)
        if request.part not in range(count):
            raise Refused(RefusalKind.FAILED, f"part {request.part} of stage {request.stage}, which has {count}")
        batch = count if request.digests_only else state_batch(self._context.manifest, weights_only=request.weights_only)
        parts = given(request.count, batch, request.part, count)

        def read() -> list[bytes]:
            if self._other is not other:
                raise Refused(RefusalKind.GONE, "the model was cut anew")
            return read_parts(other.engine, parts, request)

        pieces = await self._device.run(Rank.BOOKS, 0, read)
        return Reply(State(count, other.iteration, sizes_of(pieces)), pieces=pieces)

    def _is_present(self, other: OtherCut) -> bool:
        """Whether it is what is held, cut otherwise: at the same iteration of the same lineage."""
        held = self._replica_state
        return (other.stage, other.iteration, other.lineage) == (held.stage, held.iteration, held.lineage)

    def require(self, split: BlockSplit) -> None:
        """Look whether what is held can be cut so.

        Raises:
            Refused: `gone`, it was not prepared.
        """
        held, other = self._replica_state, self._other
        is_body = held.stage not in {ENDS_STAGE, ABSENT}
        if not is_body or held.split.blocks_of(held.stage) == split.blocks_of(held.stage):
            return
        if other is None or other.split != split or not self._is_present(other):
            raise Refused(RefusalKind.GONE, f"stage {held.stage} is not held here as {list(split.counts)} cut it")

    async def follow(self, split: BlockSplit) -> None:
        """Have what is held cut so; the work of the other cut has ended.

        Raises:
            Refused: `gone`, it was not prepared.
        """
        held, other, engine = self._replica_state, self._other, self._context.ports.engine
        old = held.split
        self.require(split)
        if other is None or held.stage == ENDS_STAGE or old.blocks_of(held.stage) == split.blocks_of(held.stage):
            await self._device.run(Rank.BOOKS, 0, self._cutting(split, partial(engine.follow, split)))
        else:
            work = partial(exchange, engine, old, other.engine, split)
            before = await self._device.run(Rank.BOOKS, 0, engine.state_digest)
            self._other = None  # half an exchange is no state
            await self._device.run(Rank.BOOKS, 0, self._cutting(split, work))
            self._other = OtherCut(other.engine, old, held.stage, held.iteration, held.lineage, before)

    def _cutting(self, split: BlockSplit, work: Callable[[], None]) -> Callable[[], None]:
        """The same work, with the books in one piece with it."""

        def cut() -> None:
            work()
            self._replica_state.cut(split)

        return cut

    def drop(self) -> None:
        """What was prepared, or is about to be, is not needed any more."""
        self._other = None
        self._dropped += 1
        self.look()

    def look(self) -> None:
        """A record was stored, or stepped by: what is copied ahead is followed."""
        if self._ahead is not None:
            self._ahead.stirred.tell()
