"""A peer that stands by takes memory for a stage; one that serves does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from swarmfree.protocol.events import Event, Note
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, StagesSection
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.context import Context
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.recovery.preallocation import keep_room
from swarmfree.trainer.tasks import Tasks
from tests.builders import make_ports

T = TypeVar("T")
ME, LEADER = (Endpoint(Member(name, "0" * 16), (f"/memory/{name}",)) for name in ("m-me", "z-leader"))
MANIFEST = Manifest(
    model=ModelSection(width=8, blocks=5, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=2),
    batch=BatchSection(rows=2, microbatches=4),
)
LONG_S = 30.0


class Engine(IntegerEngine):
    """Remembers what was reserved, and may have no memory."""

    def __init__(self, *, is_small: bool) -> None:
        """Nothing reserved."""
        super().__init__(MANIFEST)
        self.is_small = is_small
        self.reserved: list[tuple[int, int]] = []

    def reserve(self, stage: int, part: int) -> None:
        """Remember it."""
        if self.is_small:
            raise MemoryError
        self.reserved.append((stage, part))


class Outside:
    """Network, device, clock and journal in virtual time."""

    here = ME

    def __init__(self) -> None:
        """Nothing told."""
        self.told: list[Event] = []

    async def run(self, work: Callable[[], T]) -> T:
        """A millisecond each."""
        await asyncio.sleep(0.001)
        return work()

    def now_s(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    wall_s = now_s

    def tell(self, event: Event) -> None:
        """Keep it."""
        self.told.append(event)


@pytest.mark.parametrize("is_small", [False, True])
def test_who_stands_by_takes_the_memory_of_the_largest_stage(is_small: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Once each time it stands by, not before it knows whom to wait for; where there is none, it
    says so and stands by.
    """

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            engine, outside, tasks = Engine(is_small=is_small), Outside(), Tasks(group)
            ports = make_ports(
                network=outside, clock=outside, executor=outside, engine=engine, journal=outside, spare_engine=lambda: engine
            )
            context = Context(ports, MANIFEST, LocalConfig("x"), random.Random(0), "run")
            stage_member = StageMember(context, group)
            tasks.start(stage_member.device.serve(), "device")
            tasks.start(keep_room(context, stage_member.replica_state, stage_member.device), "room")
            await asyncio.sleep(LONG_S)
            assert not engine.reserved
            assert not outside.told
            stage_member.replica_state.promises = replace(stage_member.replica_state.promises, coordinator=LEADER)
            largest = max((1, 2), key=lambda stage: len(MANIFEST.blocks_of(stage)))
            whole = [] if is_small else [(largest, part) for part in range(engine.part_count(largest))]
            for times in (1, 2):
                await asyncio.sleep(LONG_S)
                assert engine.reserved == whole * times
                assert len([event for event in outside.told if isinstance(event, Note)]) == (times if is_small else 0)
                stage_member.replica_state.install(1, 0, GENESIS_LINEAGE, None)
                await asyncio.sleep(LONG_S)
                assert engine.reserved == whole * times
                stage_member.replica_state.stage = -1
                stage_member.replica_state.moved.tell()
            for owned in (tasks, *stage_member.everything()):
                owned.cancel_all()

    run_virtual(main)
