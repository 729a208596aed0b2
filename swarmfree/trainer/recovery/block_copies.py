"""Blocks that a member lacks for another cut of the model, copied while training goes on.

They lie in an engine of their own, are downloaded from the members that have them as a joiner's
stage is, and are stepped by each iteration's average from then on. So when the swarm stops for the
cut, what is left to fetch is the last average. Whether they are what those members hold is looked
up by digest then, and nothing depends on them before. All their device work goes last.
Source: decision 24. Kin: `ends_copy`, which follows the ends.
"""

from __future__ import annotations

import asyncio
from asyncio import Lock
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.messages import GetState, State
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.pieces import parts_of
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.recovery.recut import begin_cut, copy_block, digests_of_parts, parts_of_block
from swarmfree.trainer.recovery.state_copy import CopyTarget, StateCopy
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import Signal, each

LANES = 2
LOOK_S = 0.5
UNASKED_SILENCES = 2
"""Copies that nobody has asked for in so many times `coordinator_silence_s` are given up: who
wanted them leads no longer, or wants something else.
"""


@dataclass(frozen=True, slots=True)
class _Origin:
    """What comes from one stage.

    Args:
        giver: that stage.
        blocks: consecutive.
        first: their first part, as that stage counts.
        parts: of them, as the engine counts here.
        copy: follows them.
        following: held by whoever does; each on its own, since a donor keeps one average, and a
            stage that gives slowly would have the others fall behind.
    """

    giver: int
    blocks: range
    first: int
    parts: range
    copy: StateCopy
    following: Lock = field(default_factory=Lock)


class BlockCopies:
    """One stage as another split cuts it, in an engine of its own: what it lacks is followed.

    Attributes:
        stage, split: which one, and the other split.
        turned: told when all has come, or nothing more comes.
        stirred: to be told when this peer has stored a record, or has stepped.
    """

    def __init__(self, context: Context, replica_state: ReplicaState, device: Device, split: BlockSplit) -> None:
        """Nothing is here yet."""
        self._context, self._replica_state, self._device = context, replica_state, device
        self.stage, self.split = replica_state.stage, split
        self.turned, self.stirred = Signal(), Signal()
        self._old = replica_state.split
        self._asked_s = context.now_s()
        self._laying_out = Lock()
        self._engine: Engine | None = None  # until there is room for them
        self._sources: tuple[_Origin, ...] = ()
        self._is_taken = self._has_failed = False

    def ask(self) -> None:
        """They are wanted still."""
        self._asked_s = self._context.now_s()

    @property
    def missing(self) -> int:
        """How many parts have not come yet, or lack more than the last average; 1 until there is
        room for them.
        """
        last = max(0, self._replica_state.iteration - 1)
        return 1 if self._engine is None else sum(source.copy.missing(last) for source in self._sources)

    async def keep(self) -> None:
        """Follow the blocks until they are given up, or taken, or cannot be had."""
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow_all())
            while not following.done():
                await asyncio.wait({following}, timeout=LOOK_S)
                if self.is_over and not self._is_taken:
                    following.cancel()  # a download may take long
        self._has_failed |= not self._is_taken
        self.turned.tell()

    async def _follow_all(self) -> None:
        try:
            async with self._laying_out:
                await self._lay_out()
            self._look()
            await each(self._sources, self._follow)
            while not self.is_over:
                await self.stirred.wait(self._context.timing.silence_s)
        except CallFailed:  # nobody gives what is missing, or it is of another lineage
            self._has_failed, self._engine = True, None

    async def _follow(self, source: _Origin) -> None:
        while not self.is_over:
            seen = self.stirred.count
            async with source.following:
                if not self.is_over:
                    await self._bring_on(source)
            self._look()
            if self.stirred.count == seen:
                await self.stirred.wait(self._context.timing.silence_s)

    async def _bring_on(self, source: _Origin) -> None:
        """Step what comes from one stage by what was decided; and while a record is about to be,
        have its averages here.
        """
        copy = source.copy
        copy.donors = self._donors(source.giver)
        try:
            await copy.catch_up()
        except CallFailed:
            self._has_failed = True  # what comes from others is of no use either
            raise
        sealed = self._replica_state.sealed
        if sealed is not None and sealed.iteration == copy.level:
            with suppress(CallFailed):  # they come once it is decided
                await copy.fetch_averages(sealed)

    def _look(self) -> None:
        """Whoever waits until all has come is told."""
        if not self.missing:
            self.turned.tell()

    @property
    def is_over(self) -> bool:
        """Whether they are of no use any more, or were taken."""
        held, limit_s = self._replica_state, UNASKED_SILENCES * self._context.timing.coordinator_silence_s
        is_other = (held.stage, held.split) != (self.stage, self._old)
        return self._is_taken or self._has_failed or is_other or self._context.now_s() > self._asked_s + limit_s

    async def _lay_out(self) -> None:
        """Take the memory of all blocks while nobody waits for that: of those that stay by a copy,
        which is made once more when it counts.
        """
        idle = partial(self._device.run, Rank.IDLE, 0)
        engine = await idle(self._context.ports.spare_engine)
        await idle(partial(begin_cut, engine, self.split, self.stage))
        blocks = self.split.blocks_of(self.stage)
        stay = [block for block in blocks if self._old.stage_of(block) == self.stage]
        for block in stay:
            await idle(partial(self._copy_staying, engine, block))
        givers = dict.fromkeys(self._old.stage_of(block) for block in blocks if block not in stay)
        self._sources = tuple(self._begin(engine, giver) for giver in givers)
        self._engine = engine

    def _copy_staying(self, engine: Engine, block: int) -> None:
        held = self._replica_state
        if (held.stage, held.split) == (self.stage, self._old):
            copy_block(self._context.ports.engine, self._old, engine, self.split, self.stage, block)

    def _begin(self, engine: Engine, giver: int) -> _Origin:
        """Have its blocks downloaded, from where this peer is."""
        held, theirs = self._replica_state, self._old.blocks_of(giver)
        blocks = [block for block in self.split.blocks_of(self.stage) if block in theirs]
        one = parts_of_block(engine, self.split, self.stage, blocks[0])
        first, parts = len(one) * theirs.index(blocks[0]), range(one.start, one.start + len(one) * len(blocks))
        places = {first + turn: part for turn, part in enumerate(parts)}
        target = CopyTarget(engine, self._device, Rank.IDLE, LANES, places)
        where = giver, self._donors(giver), held.iteration, held.newest_record
        copy = StateCopy(self._context, target, *where, decided=lambda: held.newest_record)
        copy.begin_all()
        return _Origin(giver, range(blocks[0], blocks[-1] + 1), first, parts, copy)

    def _donors(self, giver: int) -> tuple[Endpoint, ...]:
        plan = self._replica_state.known_plan
        return tuple(replica.endpoint for replica in plan.replicas[giver]) if plan is not None else ()

    async def take(self, iteration: int, lineage: str) -> tuple[Engine, frozenset[int]] | None:
        """Follow the blocks to this iteration, and no further.

        Returns:
            The engine, and those blocks in it that are what a member holds that gives them, at
            exactly this iteration of this lineage; None where there is no room yet.
        """
        found: set[int] = set()
        async with self._laying_out:
            self._is_taken, engine = True, self._engine
        if engine is None:
            return None

        async def bring(source: _Origin) -> None:
            with suppress(CallFailed):  # what is not here is fetched
                async with source.following:
                    source.copy.donors = self._donors(source.giver)
                    if source.copy.missing(iteration):
                        await source.copy.catch_up()
                if await self._is_proven(engine, source, iteration, lineage):
                    found.update(source.blocks)

        await each(self._sources, bring)
        return engine, frozenset(found)

    async def _is_proven(self, engine: Engine, source: _Origin, iteration: int, lineage: str) -> bool:
        """Whether what came from one stage is what its members hold, by the word of one of them."""
        asked = GetState(
            source.giver,
            iteration,
            lineage,
            source.first,
            weights_only=False,
            count=len(source.parts),
            split=self._old.counts,
            digests_only=True,
        )
        own = await self._device.run(Rank.BOOKS, 0, partial(digests_of_parts, engine, source.parts))
        for donor in self._donors(source.giver):
            try:
                reply = await self._context.call(donor, asked)
                told = parts_of(reply.pieces, reply.expect(State).sizes, len(source.parts))
            except CallFailed:
                continue
            return [b"".join(pieces) for pieces in told] == own
        return False
