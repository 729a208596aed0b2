"""How much a holder of shadows keeps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RecoverySection, StagesSection
from swarmfree.protocol.messages import GetShadow, KeptShadow, Request, ShadowPart
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position, Side, Term
from swarmfree.protocol.peer_limits import Standing
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.ports import Handler, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.loop import run_virtual
from swarmfree.sim.peer_ports import MemoryShelf
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Rank
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.recovery.shadows import ShadowKeeper
from swarmfree.trainer.tasks import Tasks
from tests.builders import make_ports

T = TypeVar("T")
EVERY = 5
SOURCE, ME, OTHER = (Endpoint(Member(name, "0" * 16), (f"/memory/{name}",)) for name in ("a-source", "k-keeper", "z-other"))
ROOM_BYTES = 1_000_000
"""`recovery.kept_mb_max`, the least that can be set."""


def manifest_of(kind: str) -> Manifest:
    """Two body stages; the peer serves the first and keeps shadows of the second."""
    return Manifest(
        model=ModelSection(width=8, blocks=2, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
        stages=StagesSection(body=2),
        batch=BatchSection(rows=2, microbatches=4),
        recovery=RecoverySection(mode="auto", shadow_every=EVERY, shadow_kind=kind, kept_mb_max=1),
    )


class Donor:
    """Gives parts of shadows of any size, in no time worth the name."""

    def __init__(self, stage_bytes: int, parts: int) -> None:
        """Of one stage."""
        self.part_bytes = stage_bytes // parts
        self.iteration, self.lineage = 0, GENESIS_LINEAGE
        self.asked: list[int] = []
        self.cuts: list[tuple[tuple[int, ...], int]] = []

    @property
    def here(self) -> Endpoint:
        """Of whoever calls."""
        return ME

    def serve(self, handler: Handler, standing_of: Callable[[str], Standing] | None = None) -> Handler:
        """Nobody calls."""

    async def call(
        self, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float, header_first: bool = False
    ) -> Reply:
        """Implements `Network.call`."""
        del payload, silence_s, header_first
        await asyncio.sleep(0.001)
        assert isinstance(request, GetShadow)
        assert (to, request.stage) == (OTHER, 2)
        self.asked.append(request.iteration)
        if self.cuts:
            sizes, size_bytes = self.cuts.pop(0)
            return Reply(ShadowPart(max(request.iteration, 0), GENESIS_LINEAGE, sizes), bytes(size_bytes))
        sizes = (self.part_bytes,) * request.count
        return Reply(ShadowPart(max(request.iteration, self.iteration), self.lineage, sizes), bytes(sum(sizes)))


class Machine:
    """Device and clock in virtual time."""

    async def run(self, work: Callable[[], T]) -> T:
        """At once."""
        return work()

    def now_s(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    wall_s = now_s


class World:
    """The holder, and what it may ask."""

    def __init__(self, group: asyncio.TaskGroup, kind: str, stage_bytes: int) -> None:
        """The first plan is in force."""
        manifest = manifest_of(kind)
        engine, machine, self.shelf = IntegerEngine(manifest), Machine(), MemoryShelf()
        self.donor = Donor(stage_bytes, engine.part_count(2))
        ports = make_ports(
            network=self.donor,
            clock=machine,
            executor=machine,
            engine=engine,
            shelf=self.shelf,
            spare_engine=lambda: IntegerEngine(manifest),
        )
        self.stage_member = StageMember(Context(ports, manifest, LocalConfig("x"), random.Random(0), "run"), group)
        self.replica_state = self.stage_member.replica_state
        self.keeper = ShadowKeeper(
            self.stage_member.context, self.stage_member.replica_state, self.stage_member.device, self.stage_member.activation_log
        )
        self.replica_state.install(1, 0, GENESIS_LINEAGE, None)
        self.most_bytes = 0

    async def at(self, iteration: int) -> tuple[KeptShadow, ...]:
        """What is kept, a while after this iteration was opened."""
        stages = tuple((Replica(endpoint),) for endpoint in (SOURCE, ME, OTHER))
        position = Position(Term(1, SOURCE.member), iteration, 0, iteration)
        self.replica_state.plan = Plan(position, f"b{iteration}", GENESIS_LINEAGE, stages, (), None, 4, ())
        self.replica_state.iteration = iteration
        self.replica_state.moved.tell()
        for _ in range(200):
            await asyncio.sleep(0.1)
            self.most_bytes = max(self.most_bytes, self.kept_bytes)
        return self.replica_state.shadows

    @property
    def kept_bytes(self) -> int:
        """On the shelf, and logged."""
        return self.donor.part_bytes * len(self.shelf.names) + self.stage_member.activation_log.size_bytes

    def log(self, iteration: int, size_bytes: int) -> None:
        """An iteration's activations, committed."""
        self.stage_member.activation_log.keep(iteration, "b", {(iteration, Side.OUTPUT): bytes(size_bytes)})
        self.most_bytes = max(self.most_bytes, self.kept_bytes)


def play(kind: str, stage_bytes: int, story: Callable[[World], Awaitable[None]]) -> None:
    """Tell a story in virtual time."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            world, tasks = World(group, kind, stage_bytes), Tasks(group)
            tasks.start(world.stage_member.device.serve(), "device")
            tasks.start(world.keeper.keep(), "keeper")
            await story(world)
            for owned in (tasks, *world.stage_member.everything()):
                owned.cancel_all()
            assert world.most_bytes <= ROOM_BYTES

    run_virtual(main)


def test_what_does_not_fit_is_not_kept_and_not_asked_for_all_the_time() -> None:
    """Neither on the shelf nor announced; one try each time a shadow is due."""

    async def story(world: World) -> None:
        parts = IntegerEngine(manifest_of("plain")).part_count(2)
        for iteration in range(1, 2 * EVERY + 1):
            assert await world.at(iteration) == ()
            assert world.kept_bytes == 0
        assert len(world.donor.asked) <= 3 * parts

    play("plain", 2 * ROOM_BYTES, story)


@pytest.mark.parametrize(("share", "kept"), [(0.3, 2), (0.4, 2), (0.6, 1), (0.9, 1), (1.1, 0)])
def test_older_full_shadows_go_first(share: float, kept: int) -> None:
    """Two generations where there is room for two; where there is for one, the newer one; never
    more than may be kept.
    """

    async def story(world: World) -> None:
        for generation in range(1, 6):
            found = await world.at(generation * EVERY)
            iterations = [generation * EVERY - EVERY * age for age in range(min(kept, generation))]
            newest_first = sorted(found, key=lambda shadow: -shadow.iteration)
            assert [(shadow.stage, shadow.iteration, shadow.full) for shadow in newest_first] == [
                (2, i, True) for i in iterations
            ]

    play("full", int(share * ROOM_BYTES), story)


def test_parts_come_as_many_as_the_donor_gives() -> None:
    """All that are asked for in one answer, or fewer, which the next question makes up for."""

    async def story(world: World) -> None:
        parts = IntegerEngine(manifest_of("plain")).part_count(2)
        assert parts > 1
        await world.at(1)
        assert (len(world.donor.asked), len(world.shelf.names)) == (1, parts)
        world.donor.cuts = [((), world.donor.part_bytes)]
        await world.at(1 + EVERY)
        assert (len(world.donor.asked), len(world.shelf.names)) == (3, parts)

    play("plain", ROOM_BYTES // 2, story)


@pytest.mark.parametrize("sizes", [(10, 20), (31,), (30, 0), (10, 10, 10)])
def test_an_answer_that_does_not_add_up_is_not_kept(sizes: tuple[int, ...]) -> None:
    """Parts that are longer or shorter than what came, or more than were asked for; it is asked for
    again later.
    """

    async def story(world: World) -> None:
        world.donor.cuts = [(sizes, 30 if sizes != (10, 20) else 29)]
        found = await world.at(1)
        assert len(world.donor.asked) == 2
        assert [kept.stage for kept in found] == [2]
        assert world.donor.part_bytes * len(world.shelf.names) == ROOM_BYTES // 2

    play("plain", ROOM_BYTES // 2, story)


@pytest.mark.parametrize(
    ("iteration", "lineage"),
    [(1 + EVERY, "f" * 64), (2 + EVERY, "f" * 64), (4 + EVERY, "f" * 64)],
    ids=["of another lineage", "a step ahead of whoever keeps it", "further than anybody here"],
)
def test_what_a_donor_brings_from_another_side_is_not_kept(iteration: int, lineage: str) -> None:
    """A member that was on another side of a split holds what it had there: what is kept of this
    lineage is not written over.
    """

    async def story(world: World) -> None:
        (kept,) = await world.at(1)
        assert (kept.iteration, kept.lineage) == (0, GENESIS_LINEAGE)
        world.donor.iteration, world.donor.lineage = iteration, lineage
        assert await world.at(1 + EVERY) == (kept,)
        world.donor.iteration, world.donor.lineage = 2 + EVERY, GENESIS_LINEAGE
        (newer,) = await world.at(2 + EVERY)
        assert newer.iteration == 2 + EVERY

    play("plain", ROOM_BYTES // 2, story)


def test_what_a_donor_gives_that_has_stepped_first_is_kept_once_the_keeper_has_stepped() -> None:
    """It is asked once, though it answers a moment before this peer's own step."""

    async def story(world: World) -> None:
        await world.at(1)
        asked, world.donor.iteration = len(world.donor.asked), 2 + EVERY
        async with asyncio.TaskGroup() as group:
            group.create_task(world.at(1 + EVERY))
            await asyncio.sleep(0.05)
            (newer,) = await world.at(2 + EVERY)
        assert (newer.iteration, len(world.donor.asked)) == (2 + EVERY, asked + 1)

    play("plain", ROOM_BYTES // 2, story)


@pytest.mark.parametrize(("log_bytes", "shadows", "iterations"), [(10_000, 2, 18), (30_000, 1, 18), (90_000, 2, 0)])
def test_logs_and_shadows_share_one_limit(log_bytes: int, shadows: int, iterations: int) -> None:
    """A whole log goes before a second shadow of a stage; one that can never be whole is not kept,
    and leaves its room to shadows.
    """

    async def story(world: World) -> None:
        for iteration in range(1, 6 * EVERY + 1):
            world.log(iteration, log_bytes)
            found = await world.at(iteration)
        assert len(found) == shadows
        since = world.stage_member.activation_log.since
        assert (6 * EVERY - since + 1 if since >= 0 else 0) == iterations

    play("full", int(0.25 * ROOM_BYTES), story)


def test_a_stage_that_is_let_go_meanwhile_is_given_to_nobody() -> None:
    """What was asked for waits behind what builds another state in its place: parts of that are no
    shadow of what was held (seed 2757571).
    """

    async def story(world: World) -> None:
        device, replica_state = world.stage_member.device, world.replica_state
        engine = world.stage_member.context.ports.engine
        engine.draw(1, 0)

        def let_go() -> None:
            replica_state.stage = ABSENT
            engine.blank(1)

        async def ask() -> RefusalKind:
            with pytest.raises(Refused) as caught:
                await world.keeper.get(GetShadow(1, 0))
            return caught.value.kind

        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask())
            group.create_task(device.run(Rank.BOOKS, 0, let_go))
        assert asking.result() is RefusalKind.GONE
        assert replica_state.stage == ABSENT

    play("plain", 100, story)
