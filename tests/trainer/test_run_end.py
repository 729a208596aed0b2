"""Whose word ends a peer's run: one member, one message, its answer."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.events import Event
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.names import ABSENT, Endpoint, Member
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.loop import run_virtual
from swarmfree.sim.peer_ports import MemoryShelf
from swarmfree.trainer.context import Context
from swarmfree.trainer.member.member import SILENT_FOR_LONG, TICK_S, StageMember
from swarmfree.trainer.run_end import RunEnd
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from swarmfree.trainer.tasks import Tasks
from tests.builders import make_ports
from tests.mutants.alone import Alone, play
from tests.trainer.test_ends_copy import MANIFEST, ME, OTHER, SOURCE, Machine
from tests.trainer.test_ends_copy import Source as Network

SECOND, LONG = round(1 / TICK_S), round(MANIFEST.timing.split_wait_s / TICK_S)
LEAD, NOBODY = SOURCE, None


@pytest.mark.parametrize(
    ("stage", "coordinator", "silent_ticks", "sender", "obeys"),
    [
        (1, LEAD, 0, LEAD, True),
        (1, LEAD, LONG, LEAD, True),
        (1, LEAD, 0, ME, True),
        (1, LEAD, 0, Endpoint(Member(LEAD.member.peer_id, "1" * 16), ()), False),
        (1, LEAD, 0, OTHER, False),
        (1, LEAD, 10 * SECOND, OTHER, False),
        (1, LEAD, LONG, OTHER, True),
        (1, NOBODY, SILENT_FOR_LONG, OTHER, False),
        (1, NOBODY, SILENT_FOR_LONG + LONG, OTHER, True),
        (ABSENT, LEAD, 0, OTHER, False),
        (ABSENT, LEAD, 10 * SECOND, OTHER, True),
        (ABSENT, NOBODY, 0, OTHER, True),
    ],
)
def test_who_may_end_a_run(stage: int, coordinator: Endpoint | None, silent_ticks: int, sender: Endpoint, *, obeys: bool) -> None:
    """One's own coordinator may; anybody may end whoever has followed nobody for long, or has no
    stage and follows nobody.
    """

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            machine, engine = Machine(), IntegerEngine(MANIFEST)
            ports = make_ports(network=Network(), clock=machine, executor=machine, engine=engine, spare_engine=lambda: engine)
            context = Context(ports, MANIFEST, LocalConfig("x"), random.Random(0), "run")
            stage_member = StageMember(context, group)
            stage_member.replica_state.stage, stage_member.silent_ticks = stage, silent_ticks
            stage_member.replica_state.promises = replace(stage_member.replica_state.promises, coordinator=coordinator)
            ending, refused = RunEnd(context, stage_member, Tasks(group), SnapshotKeeper(context, stage_member)), None
            try:
                ending.require_lead(sender)
            except Refused as refusal:
                refused = refusal.kind
            assert refused is (None if obeys else RefusalKind.STALE)

    run_virtual(main)


def test_a_writer_that_was_moved_writes_its_new_stage_too() -> None:
    """What it has written of another stage does not count for the lost one that it was given since;
    of one stage it writes once.
    """
    written: list[int] = []

    class Disk:
        def write(self, stage: int, tensors: object) -> str:
            del tensors
            written.append(stage)
            return "x"

    async def story(alone: Alone) -> None:
        context = replace(alone.context, ports=replace(alone.context.ports, weights=Disk()))
        ending = RunEnd(context, alone.stage_member, alone.tasks, SnapshotKeeper(context, alone.stage_member))
        for stage in (1, 1, 2):
            alone.replica_state.stage, alone.replica_state.iteration = stage, MANIFEST.run.iterations
            await ending.write()

    play(story)
    assert written == [1, 2]


def test_weights_are_kept_with_the_iteration_that_they_are_ready_for() -> None:
    """Whoever asks before the end gets the stage as it is, with its iteration; of a peer without a
    stage nothing is written.
    """
    written: list[tuple[int, int | None]] = []

    class Disk:
        def write(self, stage: int, tensors: object, iteration: int | None = None) -> str:
            del tensors
            written.append((stage, iteration))
            return "x"

    async def story(alone: Alone) -> None:
        context = replace(alone.context, ports=replace(alone.context.ports, weights=Disk()))
        ending = RunEnd(context, alone.stage_member, alone.tasks, SnapshotKeeper(context, alone.stage_member))
        for stage, iteration in ((1, 3), (ABSENT, 4), (2, 5)):
            alone.replica_state.stage, alone.replica_state.iteration = stage, iteration
            await ending.keep()

    play(story)
    assert written == [(1, 3), (2, 5)]


@pytest.mark.parametrize(("refusal", "is_told"), [(FileNotFoundError(2, "no such file"), False), (OSError(28, "full"), True)])
def test_a_folder_of_kept_weights_that_was_taken_meanwhile_is_no_news(refusal: OSError, *, is_told: bool) -> None:
    """Who asked moves a whole model away while another replica still writes the same; a disk that
    refuses is told.
    """
    notes: list[Event] = []

    class Disk:
        def write(self, *_: object) -> str:
            raise SwarmfreeError("writing failed") from refusal

    class Notes:
        def tell(self, event: Event) -> None:
            notes.append(event)

    async def story(alone: Alone) -> None:
        context = replace(alone.context, ports=replace(alone.context.ports, weights=Disk(), journal=Notes()))
        ending = RunEnd(context, alone.stage_member, alone.tasks, SnapshotKeeper(context, alone.stage_member))
        alone.replica_state.stage, alone.replica_state.iteration = 1, 3
        await ending.keep()

    play(story)
    assert bool(notes) == is_told


def test_room_is_made_for_weights_where_the_disk_is_full() -> None:
    """What is kept for others goes before a stage's own weights are given up: refused once, they
    are written once that is gone.
    """
    tried: list[int] = []

    async def story(alone: Alone) -> None:
        shelf = MemoryShelf()
        await shelf.put("shadow-1", b"x" * 100)

        class Disk:
            def write(self, stage: int, tensors: object) -> str:
                del tensors
                tried.append(shelf.size_bytes)
                if shelf.size_bytes:
                    raise SwarmfreeError("no space left on device")
                return f"stage {stage}"

        context = replace(alone.context, ports=replace(alone.context.ports, weights=Disk(), shelf=shelf))
        alone.replica_state.stage, alone.replica_state.iteration = 1, MANIFEST.run.iterations
        ending = RunEnd(context, alone.stage_member, alone.tasks, SnapshotKeeper(context, alone.stage_member))
        await ending.write()
        assert not ending.failure

    play(story)
    assert tried == [100, 0]


async def test_where_a_disk_that_refuses_lies_is_told_to_nobody_else() -> None:
    """Its owner reads the path; the coordinator gets the reason, alike each time."""
    told = list[str]()

    async def write_now() -> None:
        cause = OSError(28, "No space left on device", "peers/one/snapshot")
        raise SwarmfreeError(f"cannot write: {cause}") from cause

    here = SimpleNamespace(
        _stage_member=SimpleNamespace(replica_state=SimpleNamespace(lineage="here")),
        _snapshots=SimpleNamespace(write_now=write_now, tell_refusal=told.append),
        _all_written_of="",
    )
    with pytest.raises(Refused) as refused:
        await RunEnd._write_snapshot(cast("Any", here))
    assert (refused.value.kind, refused.value.detail) == (
        RefusalKind.FAILED,
        "no snapshot is written: No space left on device",
    )
    assert "peers/one" in told[0]
