"""A stage that takes blocks from two others, of which one gives more slowly: what came first is
followed meanwhile, since donors keep one average.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.manifest import StagesSection
from swarmfree.protocol.messages import (
    Average,
    GetAverage,
    GetRecord,
    GetState,
    Prepare,
    Prepared,
    RecordAnswer,
    Request,
    State,
)
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.pieces import sizes_of
from swarmfree.protocol.plan import Replica
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.recovery.recut import read_parts
from tests.builders import make_entry, make_record
from tests.mutants.alone import MANIFEST, ME, SIBLING, A, Alone, D, at, plan, play
from tests.trainer.test_ends_copy import SCALARS

SIX = replace(MANIFEST, model=replace(MANIFEST.model, blocks=6), stages=StagesSection(body=3, replicas_max=2))
NEW = (1, 4, 1)
GIVERS, TAKER = {1: ME, 3: SIBLING}, 2


class Swarm:
    """D holds the middle one of three stages, and hears of each iteration; the other two have as
    many parts as it lacks, and give one in so many seconds.
    """

    def __init__(self, alone: Alone, slow_s: dict[int, float]) -> None:
        self.alone, self.records, self.fetched = alone, list[Record](), dict.fromkeys(GIVERS, 0)
        self.engines = {stage: IntegerEngine(SIX) for stage in GIVERS}
        for stage, engine in self.engines.items():
            engine.draw(stage, 0)
        alone.engine.draw(TAKER, 0)
        alone.replica_state.install(TAKER, 0, GENESIS_LINEAGE, None)
        replicas = tuple((Replica(endpoint),) for endpoint in (A, ME, D, SIBLING))
        alone.replica_state.known_plan = replace(plan(1), replicas=replicas)
        alone.line.answer, call = self.answer, alone.line.call

        async def slow(to: Endpoint, request: Request, *given: Any, **named: Any) -> Reply:
            if isinstance(request, GetState) and not request.digests_only:
                await asyncio.sleep(slow_s[request.stage])
            return await call(to, request, *given, **named)

        alone.line.call = slow  # type: ignore[method-assign,assignment]

    @property
    def lineage(self) -> str:
        """After the last record."""
        return self.records[-1].lineage()

    def answer(self, to: Endpoint, request: Request) -> Reply:
        """As the members of both stages do."""
        stage = next(stage for stage, member in GIVERS.items() if member == to)
        engine, last = self.engines[stage], len(self.records) - 1
        match request:
            case GetState(part=part, count=count):
                self.fetched[stage] += not request.digests_only
                pieces = read_parts(engine, range(part, part + count), request)
                return Reply(State(engine.part_count(stage), last + 1, sizes_of(pieces)), pieces=pieces)
            case GetRecord(iteration=iteration):
                return Reply(RecordAnswer(self.records[iteration]))
            case GetAverage(iteration=iteration, part=part) if iteration == last:
                return Reply(Average(), engine.read_average(part))
            case _:
                raise Refused(RefusalKind.GONE, "not here")

    def train(self) -> None:
        """One iteration."""
        number, own = len(self.records), self.alone.engine
        for engine in (*self.engines.values(), own):
            zero = engine.contribution([], 0)
            for part in range(engine.part_count(engine.stage)):
                engine.keep_average(part, bytes([number + engine.stage, part]) + zero[2:])
        stages = tuple(
            make_entry(
                sum_digest=engine.average_digest(), state_digest="d", step_count=number + 1, scalars=SCALARS, members=(D.member,)
            )
            for engine in (own, self.engines[1], own, self.engines[3])
        )
        before = self.lineage if self.records else GENESIS_LINEAGE
        record = make_record(iteration=number, before=before, stages=stages, electorate=(D.member,))
        for engine in (*self.engines.values(), own):
            engine.step(SCALARS)
        self.records.append(record)
        self.alone.replica_state.apply(record)
        self.alone.stage_member.preparation.drop()  # as a member does that steps

    async def prepared(self, *, ahead: bool) -> Prepared:
        """What it says to a coordinator that asks now."""
        request = Prepare(at(1), TAKER, len(self.records), self.lineage, NEW, ahead)
        answer = (await self.alone.stage_member.preparation.prepare(request)).message
        assert isinstance(answer, Prepared)
        return answer


@pytest.mark.parametrize("slow_s", [(3.0, 9.0), (20.0, 5.0), (5.0, 5.0)])
def test_who_gives_slowly_has_nobody_else_fall_behind(slow_s: tuple[float, float]) -> None:
    """Each part comes once; when nothing is missing, the stop fetches one average."""

    async def story(alone: Alone) -> None:
        swarm = Swarm(alone, dict(zip(GIVERS, slow_s, strict=True)))
        swarm.train()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()

        async def train() -> None:
            while True:
                await asyncio.sleep(1.0)
                swarm.train()

        async with asyncio.TaskGroup() as group:
            training = group.create_task(train())
            while (await swarm.prepared(ahead=True)).missing:
                await asyncio.sleep(0.5)
                assert loop.time() < begun_s + 2 * max(slow_s)
            for _ in range(20):
                await asyncio.sleep(1.0)
                assert (await swarm.prepared(ahead=True)).missing == 0
            training.cancel()
        assert swarm.fetched == {1: 2, 3: 2}
        begun_s = loop.time()
        digest = (await swarm.prepared(ahead=False)).state_digest
        assert loop.time() < begun_s + 0.5
        assert swarm.fetched == {1: 2, 3: 2}
        alone.stage_member.preparation.drop()
        assert (await swarm.prepared(ahead=False)).state_digest == digest
        assert swarm.fetched != {1: 2, 3: 2}

    play(story, here=D, manifest=SIX)


def test_one_stage_that_gives_nothing_costs_its_own_blocks() -> None:
    """Those of the other one are there."""

    async def story(alone: Alone) -> None:
        swarm = Swarm(alone, dict.fromkeys(GIVERS, 0.0))
        swarm.train()
        assert (await swarm.prepared(ahead=True)).missing == 0
        answer = swarm.answer

        def silent(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, GetState) and request.digests_only and to == ME:
                raise Refused(RefusalKind.GONE, "it tells none")
            return answer(to, request)

        alone.line.answer = silent
        await swarm.prepared(ahead=False)
        assert swarm.fetched == {1: 3, 3: 2}

    play(story, here=D, manifest=SIX)


def test_copies_are_given_up_where_one_stage_gives_none() -> None:
    """What comes from the other one is of no use; whoever asks is told that all is missing."""

    async def story(alone: Alone) -> None:
        swarm = Swarm(alone, dict.fromkeys(GIVERS, 0.0))
        swarm.train()
        answer = swarm.answer

        def silent(to: Endpoint, request: Request) -> Reply:
            if to == ME:
                raise Refused(RefusalKind.GONE, "it gives nothing")
            return answer(to, request)

        alone.line.answer = silent
        preparation, loop = alone.stage_member.preparation, asyncio.get_running_loop()

        async def keep_asking() -> None:
            while True:
                assert (await swarm.prepared(ahead=True)).missing
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            asking = group.create_task(keep_asking())
            await asyncio.sleep(0.1)
            first, begun_s = preparation._ahead, loop.time()
            while preparation._ahead is first:
                assert loop.time() < begun_s + 10.0
                await asyncio.sleep(0.1)
            asking.cancel()

    play(story, here=D, manifest=SIX)
