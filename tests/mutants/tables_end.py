"""A run's end, as one member or one coordinator sees it: what each of its rules is there for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Commit, Farewell, Goodbye, Hello, Meet, Met, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Directory, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.coordinator import coordinator as coordination
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.handoff import Written
from swarmfree.trainer.coordinator.leadership import Present
from swarmfree.trainer.run_end import RunEnd
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from tests.mutants.alone import MANIFEST, OTHER_LINEAGE, SIBLING, Alone, D, endpoint, play
from tests.mutants.tables_lead import answer, lead


class Disk:
    """Room for weights.

    Attributes:
        written: stages, in order.
    """

    def __init__(self) -> None:
        """Empty."""
        self.written: list[int] = []

    def write(self, stage: int, tensors: object) -> str:
        """Implements `Weights.write`."""
        del tensors
        self.written.append(stage)
        return "x"


def weights_of_a_lineage_that_was_left() -> object:
    """Told to write, that all is written, and after it has joined another lineage to write again:
    what is written, and that all was.
    """

    async def story(alone: Alone) -> tuple[list[int], list[bool]]:
        disk, said, state = Disk(), list[bool](), alone.replica_state
        context = replace(alone.context, ports=replace(alone.context.ports, weights=disk))
        ending = RunEnd(context, alone.stage_member, alone.tasks, SnapshotKeeper(context, alone.stage_member))
        state.iteration = MANIFEST.run.iterations
        await ending.write()
        ending.hear_all_written()
        for lineage in (state.lineage, OTHER_LINEAGE):
            state.lineage = lineage
            said.append((await ending.write()).expect(Farewell).all_written)
        return disk.written, said

    return play(story)


def lost_stage_without_a_majority() -> object:
    """All iterations are committed, a stage is lost, and who leads has no majority: what is given
    up, and whether only after `join_wait_s`.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> tuple[set[int], bool]:
        for one in (SIBLING, D):
            coordinator.roster.fence(one.member, "nobody listens")
        coordinator.lead.present, begun_s = Present(MANIFEST.run.iterations), alone.context.now_s()
        return await coordinator._closing(), alone.context.now_s() - begun_s >= MANIFEST.timing.join_wait_s

    return lead(story, forced=True)


def stage_that_is_given_up() -> object:
    """Nobody has come for a lost stage, and the others are written: how many times the end is begun
    where nobody else answers; where one does that had a place, and one that had none; and where one
    comes as the others write.
    """

    async def story(alone: Alone, coordinator: Coordinator, *, beyond: tuple[Endpoint, ...], comes: bool) -> int:
        begun, lead, merge = 0, coordinator.lead, coordinator.partition_merge
        announced = tuple(Announcement(one, PeerState.STANDBY, -1, 0, "", 0.0, 0.0, False, 1, 1e9) for one in beyond)
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, announced))
        merge._context = replace(alone.context, ports=replace(alone.context.ports, directory=cast("Directory", directory)))
        lead.named["x"] = 0
        coordinator.roster.fence(D.member, "nobody listens")

        async def closing() -> set[int]:
            nonlocal begun
            begun += 1
            return {2}

        async def write() -> Written:
            if comes:
                coordinator.roster.admit(endpoint("y"), Hello(can_feed=False, standby=False, corpus_hash=""), 2)
            return Written({}, {2: "nobody holds it"})

        def met(to: Endpoint, request: Request) -> Reply:
            return (
                Reply(Met(0, GENESIS_LINEAGE, (), None, None, whole=False)) if isinstance(request, Meet) else answer(to, request)
            )

        alone.line.answer = met
        coordinator._closing, coordinator._write = closing, write  # type: ignore[method-assign]
        await coordinator._evaluate_and_write()
        return begun

    cases = (((), False), ((endpoint("x"),), False), ((endpoint("z"),), False), ((), True))
    return [lead(partial(story, beyond=beyond, comes=comes)) for beyond, comes in cases]


def holder_of_an_older_state() -> object:
    """The only holder of a stage is told to write and is behind: it missed the last record, or
    further ones. Stages that nobody has written, and those that nobody holds.
    """

    async def story(alone: Alone, coordinator: Coordinator, *, missed: int) -> tuple[list[int], set[int]]:
        left = missed

        def behind(to: Endpoint, request: Request) -> Reply:
            nonlocal left
            if isinstance(request, Goodbye) and (to != D or not left):
                return Reply(Farewell())
            if isinstance(request, Commit) and to == D:
                if left > 1:
                    raise Refused(RefusalKind.NOT_YET, "a record is missing here")
                left = 0
            return answer(to, request)

        alone.line.answer = behind
        written = await coordinator._write()
        return sorted(written.missing), coordinator.roster.lost()

    return [lead(partial(story, missed=missed)) for missed in (1, 2)]


def who_knows_that_all_is_written() -> object:
    """Every stage is written: which peers are told so before the first one ends."""

    async def story(alone: Alone, coordinator: Coordinator) -> list[str]:
        told: list[str] = []

        def listen(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Goodbye) and request.all_written:
                told.append(to.member.peer_id)
                return Reply(Farewell())
            return answer(to, request)

        alone.line.answer = listen
        await coordination.tell_all_written(alone.context, coordinator.roster)
        return sorted(told)

    return lead(story)
