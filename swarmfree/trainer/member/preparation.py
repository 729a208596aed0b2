"""A second cut of what this peer holds, at the same iteration: prepared while the present one is in
force, and put in its place by the plan that is cut so; and back, where that comes to nothing.

Blocks that stay are copied here, the others come from the members that have them, at exactly this
iteration and lineage. Source: decision 24.
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
from swarmfree.trainer.recovery.recut import begin_cut, copy_block, exchange, parts_of_block, write_parts
from swarmfree.trainer.replica_state import ReplicaState

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


@dataclass(slots=True)
class _Cost:
    """What a cut has cost so far: seconds of device work, and bytes that came."""

    worked_s: float = 0.0
    received_bytes: int = 0


class Preparation:
    """Handles Prepare, and exchanges the cut in force for the other one."""

    def __init__(self, context: Context, replica_state: ReplicaState, device: Device) -> None:
        """Nothing is prepared."""
        self._context, self._replica_state, self._device = context, replica_state, device
        self._other: OtherCut | None = None
        self._dropped = 0  # how often
        self._preparing = asyncio.Lock()

    async def prepare(self, request: Prepare) -> Reply:
        """Have the stage as another split cuts it, beside what is held.

        Raises:
            Refused: `gone`, what is held is not what is to be cut, or changed meanwhile, or nobody
                gives what is missing; `exhausted`, there is no memory for it.
        """
        async with self._preparing:  # however many are asked for, one is made, beside the one that is there
            return await self._prepare(request)

    async def _prepare(self, request: Prepare) -> Reply:
        context, replica_state, cost, dropped = self._context, self._replica_state, _Cost(), self._dropped
        self._require_held(request)
        new, old, stage = BlockSplit(request.split), replica_state.split, request.stage
        other = self._other
        if other is not None and self._is_present(other) and other.split == new:
            return Reply(Prepared(other.digest, 0.0, 0))
        needed_bytes, free_bytes = cut_bytes(context.manifest, new, stage), context.ports.free_bytes()
        if free_bytes is not None and free_bytes < needed_bytes:
            # A system that is asked for more than there is ends the peer, and its state with it
            what = f"{needed_bytes / 1e6:,.0f} MB for another cut of stage {stage}; {free_bytes / 1e6:,.0f} MB are free"
            raise Refused(RefusalKind.EXHAUSTED, f"this peer needs {what}")
        engine = await self._work(context.ports.spare_engine, cost)
        await self._work(partial(begin_cut, engine, new, stage), cost)
        for block in new.blocks_of(stage):
            if (giver := old.stage_of(block)) == stage:
                await self._work(partial(self._copy, request, engine, block), cost)
            else:
                await self._fetch(request, old, giver, block, engine, cost)
            self._require_held(request)
        digest = await self._work(engine.state_digest, cost)
        self._require_held(request)
        if self._dropped != dropped:
            raise Refused(RefusalKind.GONE, f"stage {stage} was let go meanwhile")
        self._other = OtherCut(engine, new, stage, request.iteration, request.lineage, digest)
        return Reply(Prepared(digest, cost.worked_s, cost.received_bytes))

    async def _work(self, work: Callable[[], T], cost: _Cost) -> T:
        """Device work, and what it cost.

        Raises:
            Refused: `gone`, it failed: what is held has changed, or what was given does not fit.
        """
        try:
            found, took_s = await self._device.timed(Rank.BOOKS, 0, work)
        except WorkFailed as error:
            raise Refused(RefusalKind.GONE, str(error)) from error
        cost.worked_s += took_s
        return found

    def _copy(self, request: Prepare, engine: Engine, block: int) -> None:
        """Copy a block that stays, on the device's thread: plans may be opened, and taken back,
        between two of them.
        """
        self._require_held(request)
        new, held = BlockSplit(request.split), self._replica_state.split
        copy_block(self._context.ports.engine, held, engine, new, request.stage, block)

    def _require_held(self, request: Prepare) -> None:
        held = self._replica_state
        if (held.stage, held.iteration, held.lineage) != (request.stage, request.iteration, request.lineage):
            raise Refused(RefusalKind.GONE, f"this peer is at iteration {held.iteration} of stage {held.stage}")
        if not held.is_cut_as_recorded:
            # What is prepared takes the place of the way back
            raise Refused(RefusalKind.GONE, "the model is cut otherwise here than the last record says")

    async def _fetch(self, request: Prepare, old: BlockSplit, giver: int, block: int, engine: Engine, cost: _Cost) -> None:
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
                    await self._work(partial(write_parts, engine, there[done], found), cost)
                    done, cost.received_bytes = done + len(found), cost.received_bytes + sum(map(len, found))
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
        batch = state_batch(self._context.manifest, weights_only=request.weights_only)
        parts = given(request.count, batch, request.part, count)

        def read() -> list[bytes]:
            if self._other is not other:
                raise Refused(RefusalKind.GONE, "the model was cut anew")
            return [other.engine.read_state(part, weights_only=request.weights_only) for part in parts]

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
