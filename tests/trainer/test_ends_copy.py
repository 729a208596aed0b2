"""A keeper's copy of the ends, beside one source that is told what to do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from swarmfree.protocol.errors import PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, StagesSection
from swarmfree.protocol.messages import Average, GetAverage, GetRecord, GetState, LinkRate, RecordAnswer, Request, State
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position, Term
from swarmfree.protocol.peer_limits import Standing
from swarmfree.protocol.plan import Plan, Rebuilt, Replica
from swarmfree.protocol.ports import Handler, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, StepScalars
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.context import Context
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.recovery.ends_copy import EndsKeeper
from swarmfree.trainer.tasks import Tasks
from tests.builders import make_entry, make_ports, make_record

T = TypeVar("T")
MANIFEST = Manifest(
    model=ModelSection(width=8, blocks=2, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=2),
    batch=BatchSection(rows=2, microbatches=4),
)
SCALARS = StepScalars(1, 2, 3, 4, 5, 6, 7, 8, 9)
SOURCE, ME, OTHER = (Endpoint(Member(name, "0" * 16), (f"/memory/{name}",)) for name in ("a-source", "k-keeper", "z-other"))
TERM = Term(1, SOURCE.member)
ENOUGH_S = 5.0
"""Virtual; for everything that can happen by itself."""


class Source:
    """Stage 0 in one place: trains when it is told, answers as a member does.

    Attributes:
        is_up: somebody listens.
        spoils: the first part of its state is given away wrong.
        asked: every request, by type.
    """

    frames_received = 0

    def __init__(self) -> None:
        """First weights."""
        self.engine = IntegerEngine(MANIFEST)
        self.engine.draw(0, 0)
        self.records: list[Record] = []
        self.is_up, self.spoils = True, False
        self.asked: list[type[Request]] = []

    @property
    def here(self) -> Endpoint:
        """Of whoever calls: the keeper."""
        return ME

    def link_rates(self) -> tuple[LinkRate, ...]:
        """Nothing comes."""
        return ()

    def serve(self, handler: Handler, standing_of: Callable[[str], Standing] | None = None) -> Handler:
        """Nobody calls the keeper."""

    def train(self) -> Record:
        """One iteration; its average is kept until the next."""
        before, stages, number = self.engine.state_digest(), [], len(self.records)
        zero = self.engine.contribution([], 0)
        for part in range(self.engine.part_count(0)):
            self.engine.keep_average(part, bytes([number + 1, part]) + zero[2:])
        digest = self.engine.average_digest()
        for stage in range(3):
            named = (digest, before) if stage == 0 else ("s", "d")
            stages.append(
                make_entry(
                    sum_digest=named[0], state_digest=named[1], step_count=number + 1, scalars=SCALARS, members=(SOURCE.member,)
                )
            )
        self.engine.step(SCALARS)
        lineage = self.records[-1].lineage() if self.records else GENESIS_LINEAGE
        record = make_record(iteration=number, before=lineage, term=TERM, stages=tuple(stages), electorate=(SOURCE.member,))
        self.records.append(record)
        return record

    async def call(
        self, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float, header_first: bool = False
    ) -> Reply:
        """Implements `Network.call`."""
        del payload, silence_s, header_first
        await asyncio.sleep(0.01)
        if not self.is_up or to != SOURCE:
            raise PeerUnreachable(f"nobody listens for {to.member}")
        self.asked.append(type(request))
        match request:
            case GetState(part=part):
                data = self.engine.read_state(part, weights_only=False)
                wrong = self.spoils and part == 0
                return Reply(State(self.engine.part_count(0), len(self.records)), bytes(len(data)) if wrong else data)
            case GetRecord(iteration=-1) if self.records:
                return Reply(RecordAnswer(self.records[-1]))
            case GetRecord(iteration=iteration) if 0 <= iteration < len(self.records):
                return Reply(RecordAnswer(self.records[iteration]))
            case GetAverage(iteration=iteration, part=part) if iteration == len(self.records) - 1:
                return Reply(Average(), self.engine.read_average(part))
            case _:
                raise Refused(RefusalKind.GONE, "not here")


class Machine:
    """Device and clock in virtual time."""

    async def run(self, work: Callable[[], T]) -> T:
        """A millisecond each."""
        await asyncio.sleep(0.001)
        return work()

    def now_s(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        """The same."""
        return self.now_s()


class World:
    """A member of stage 1 that keeps the ends, and one source."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        """The first plan is in force; nothing has been loaded yet."""
        self.source, machine = Source(), Machine()
        engine = IntegerEngine(MANIFEST)
        ports = make_ports(
            network=self.source, clock=machine, executor=machine, engine=engine, spare_engine=lambda: IntegerEngine(MANIFEST)
        )
        context = Context(ports, MANIFEST, LocalConfig("x"), random.Random(0), "run")
        self.stage_member = StageMember(context, group)
        self.replica_state = self.stage_member.replica_state
        self.keeper = EndsKeeper(context, self.stage_member.replica_state, self.stage_member.device, Tasks(group))
        self.replica_state.install(1, 0, GENESIS_LINEAGE, None)
        self.open(plan())

    def open(self, new: Plan) -> None:
        """This plan is in force."""
        self.replica_state.plan, self.replica_state.base = new, new.base
        self.replica_state.moved.tell()

    def commit(self, record: Record) -> None:
        """The keeper's own stage steps."""
        self.replica_state.apply(record)
        self.replica_state.moved.tell()

    async def kept(self) -> int:
        """What the keeper says about its copy, after a while."""
        await asyncio.sleep(ENOUGH_S)
        return self.replica_state.ends_iteration

    async def refused(self, iteration: int, lineage: str) -> RefusalKind:
        """Why no part is given for this iteration."""
        with pytest.raises(Refused) as caught:
            await self.keeper.get_state(GetState(0, iteration, lineage, 0, weights_only=False))
        return caught.value.kind

    async def state(self) -> list[bytes]:
        """The whole copy, as a builder asks for it."""
        lineage = self.source.records[self.replica_state.ends_iteration - 1].lineage()
        asked = [
            GetState(0, self.replica_state.ends_iteration, lineage, part, weights_only=False)
            for part in range(self.source.engine.part_count(0))
        ]
        return [(await self.keeper.get_state(request)).payload for request in asked]

    def right_state(self) -> list[bytes]:
        """That of the source."""
        return [self.source.engine.read_state(part, weights_only=False) for part in range(self.source.engine.part_count(0))]


def plan(keeper: Endpoint = ME, iteration: int = 0, lineage: str = GENESIS_LINEAGE, rebuilt: str = "") -> Plan:
    """Stage 1 is served by this one; `rebuilt` is the digest that the ends came back with."""
    stages = tuple((Replica(endpoint),) for endpoint in (SOURCE, keeper, OTHER))
    marks = (Rebuilt(0, rebuilt, rate_scaled=False, steps=ABSENT),) if rebuilt else ()
    return Plan(Position(TERM, iteration, 0, iteration), f"b{iteration}{rebuilt}", lineage, stages, (), None, 4, marks)


def play(story: Callable[[World], Awaitable[None]]) -> None:
    """Tell a story in virtual time."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            world = World(group)
            tasks = Tasks(group)
            tasks.start(world.stage_member.device.serve(), "device")
            tasks.start(world.keeper.keep(), "keeper")
            await story(world)
            for owned in (tasks, world.keeper.tasks, *world.stage_member.everything()):
                owned.cancel_all()

    run_virtual(main)


def test_a_copy_is_complete_once_a_record_has_its_digest_and_then_follows() -> None:
    """A downloaded copy is not told of before a record began in its state; from then on it has the
    source's bytes after each record.
    """

    async def story(world: World) -> None:
        assert await world.kept() == -1
        for iteration in (1, 2, 3):
            world.commit(world.source.train())
            assert await world.kept() == iteration
            assert await world.state() == world.right_state()
        assert world.source.asked.count(GetState) == world.source.engine.part_count(0), "downloaded once"

    play(story)


def test_a_peer_that_ends_in_the_middle_of_a_load_begins_no_other() -> None:
    """Its tasks are closed, which ends the load before the keeper itself: no word of that is
    raised.
    """

    async def story(world: World) -> None:
        while GetState not in world.source.asked:
            await asyncio.sleep(0.001)
        world.keeper.tasks.close()
        asked = len(world.source.asked)
        await asyncio.sleep(ENOUGH_S)
        assert len(world.source.asked) == asked

    play(story)


def test_what_is_asked_of_a_copy_is_answered_exactly_or_not_at_all() -> None:
    """No part of another iteration or lineage leaves the keeper, and none of a copy that nobody
    vouched for.
    """

    async def story(world: World) -> None:
        await world.kept()
        assert await world.refused(0, GENESIS_LINEAGE) is RefusalKind.GONE
        world.commit(world.source.train())
        assert await world.kept() == 1
        right = world.source.records[0].lineage()
        assert await world.refused(2, right) is RefusalKind.NOT_YET
        assert await world.refused(0, GENESIS_LINEAGE) is RefusalKind.GONE
        assert await world.refused(1, "f" * 64) is RefusalKind.GONE

    play(story)


def test_a_stored_record_brings_the_average_before_the_source_dies() -> None:
    """A source that dies between Seal and Commit takes no step with it; one that dies before leaves
    the copy a step behind, and whole.
    """

    async def story(world: World) -> None:
        await world.kept()
        world.commit(world.source.train())
        assert await world.kept() == 1
        record = world.source.train()
        world.replica_state.promises = replace(world.replica_state.promises, sealed=record)
        world.keeper.look()
        assert await world.kept() == 1
        world.source.is_up = False
        world.commit(record)
        assert await world.kept() == 2
        assert await world.state() == world.right_state()
        before = world.right_state()
        world.commit(world.source.train())
        assert await world.kept() == 2
        assert await world.state() == before != world.right_state()

    play(story)


def test_a_copy_that_missed_an_average_is_loaded_again() -> None:
    """The source is out of reach for an iteration and keeps its average no longer: the old copy is
    given away until the new one is complete.
    """

    async def story(world: World) -> None:
        await world.kept()
        world.commit(world.source.train())
        assert await world.kept() == 1
        world.source.is_up = False
        for _ in range(2):
            world.commit(world.source.train())
            assert await world.kept() == 1
        old, lineage = await world.state(), world.source.records[0].lineage()
        world.source.is_up = True
        assert await world.kept() == 1
        assert world.replica_state.ends_lineage == lineage
        assert await world.state() == old
        world.commit(world.source.train())
        assert await world.kept() == 4
        assert await world.refused(1, lineage) is RefusalKind.GONE
        assert await world.state() == world.right_state()

    play(story)


def test_a_copy_with_wrong_bytes_is_never_complete() -> None:
    """What a donor gave wrongly is found by the next record's digest, and loaded again."""

    async def story(world: World) -> None:
        world.source.spoils = True
        await world.kept()
        world.source.spoils = False
        world.commit(world.source.train())
        assert await world.kept() == -1
        world.commit(world.source.train())
        assert await world.kept() == 2
        assert await world.state() == world.right_state()

    play(story)


def test_a_plan_ends_and_begins_the_copy() -> None:
    """A keeper that is none any more, or has no stage, loads nothing, and gives its copy away until
    a plan four iterations further.
    """

    async def story(world: World) -> None:
        await world.kept()
        world.commit(world.source.train())
        assert await world.kept() == 1
        old, lineage = await world.state(), world.replica_state.lineage
        world.open(plan(OTHER, 1, lineage))
        for iteration in (2, 3, 4):
            world.commit(world.source.train())
            world.open(plan(OTHER, iteration, world.replica_state.lineage))
            assert await world.kept() == 1
        world.replica_state.stage, world.replica_state.plan = ABSENT, None
        world.replica_state.moved.tell()
        assert await world.kept() == 1
        assert await world.state() == old
        world.replica_state.stage = 1
        world.commit(world.source.train())
        world.open(plan(OTHER, 5, world.replica_state.lineage))
        assert await world.kept() == -1
        assert not len(world.keeper.tasks)
        assert await world.refused(1, lineage) is RefusalKind.GONE
        world.open(plan(ME, 5, world.replica_state.lineage))
        world.commit(world.source.train())
        await world.kept()
        world.commit(world.source.train())
        assert await world.kept() == 7

    play(story)


def test_ends_that_were_rebuilt_are_kept_from_then_on() -> None:
    """The plan names the rebuilt state: a copy that has it is ready at once, also where it was a
    step behind; another one is loaded again.
    """

    async def story(world: World) -> None:
        await world.kept()
        world.commit(world.source.train())
        assert await world.kept() == 1
        digest, before = world.source.engine.state_digest(), world.right_state()
        world.source.is_up = False
        world.commit(world.source.train())
        assert await world.kept() == 1
        world.open(plan(ME, 2, world.replica_state.lineage, digest))
        assert await world.kept() == 2
        assert await world.state() == before
        world.source.is_up = True
        world.open(plan(ME, 2, world.replica_state.lineage, world.source.engine.state_digest()))
        assert await world.kept() == 2
        assert await world.state() == world.right_state() != before
        plan_of_both = replace(
            plan(ME, 2, world.replica_state.lineage, world.source.engine.state_digest()), base="another stage, too"
        )
        world.source.is_up = False
        world.open(plan_of_both)
        assert await world.kept() == 2, "it is not given up while another stage is rebuilt"
        # It is told to join another lineage: in that one nobody has had these ends
        world.replica_state.base = ""
        world.replica_state.moved.tell()
        assert await world.kept() == -1

    play(story)
