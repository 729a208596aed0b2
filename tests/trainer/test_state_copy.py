"""A joiner's copy of a stage, beside donors that are told what to do."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.protocol.errors import PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import StagesSection
from swarmfree.protocol.messages import Average, GetAverage, GetRecord, GetState, RecordAnswer, Request, State
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, SetSplit
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device
from swarmfree.trainer.recovery.state_copy import CopyTarget, StateCopy
from tests.builders import make_ports
from tests.trainer.test_ends_copy import MANIFEST, Machine, Source

GOOD, BAD = (Endpoint(Member(name, "0" * 16), (f"/memory/{name}",)) for name in ("a-donor", "b-donor"))


class Donors(Source):
    """Two donors of stage 0 with one engine: one is right, the other one gives what it is told to.

    Attributes:
        wrong: what the bad one does: "short", "other record", or nothing.
        trains_after: so many parts of the state are given before the next iteration commits; None =
            it never does.
        dies: they answer nothing from then on.
        lanes: parts that whoever copies asks for at a time.
    """

    def __init__(self) -> None:
        """Right, both of them, after one iteration."""
        super().__init__()
        self.first = self.train()
        self.wrong, self.dies = "", False
        self.trains_after: int | None = None
        self.given = 0
        self.lanes = 1

    async def call(
        self, to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float, header_first: bool = False
    ) -> Reply:
        """Implements `Network.call`."""
        del payload, silence_s, header_first
        await asyncio.sleep(0.01)
        if self.dies and self.trains_after == self.given:
            raise PeerUnreachable(f"nobody listens for {to.member}")
        reply = self._answer(request)
        if to == BAD and self.wrong == "short" and reply.payload:
            return Reply(reply.message, reply.payload[:-8])
        if to == BAD and self.wrong == "other record" and isinstance(reply.message, RecordAnswer):
            return Reply(RecordAnswer(replace(reply.message.record, stages=())))
        return reply

    def _answer(self, request: Request) -> Reply:
        match request:
            case GetState(part=part):
                reply = Reply(
                    State(self.engine.part_count(0), len(self.records)), self.engine.read_state(part, weights_only=False)
                )
                self.given += 1
                if self.given == self.trains_after:
                    self.train()
                return reply
            case GetRecord(iteration=iteration) if iteration < len(self.records):
                return Reply(RecordAnswer(self.records[iteration]))
            case GetAverage(iteration=iteration, part=part) if iteration == len(self.records) - 1:
                return Reply(Average(), self.engine.read_average(part))
            case _:
                raise Refused(RefusalKind.GONE, "not here")


def _copy(
    donors: Donors, past: dict[int, str] | None = None, record: Record | None = None, trained: int | None = None
) -> IntegerEngine:
    """What a joiner has that begins after the first iteration, or this record; `past` is what it
    knows of lineages, and comes to know. It has its first part so many iterations before the rest.
    """
    machine, engine = Machine(), IntegerEngine(MANIFEST)
    engine.blank(0)
    ports = make_ports(network=donors, clock=machine, executor=machine, engine=engine)
    context = Context(ports, MANIFEST, LocalConfig("memory"), random.Random(1), MANIFEST.fingerprint())
    device = Device(machine, machine)
    copying = StateCopy(context, CopyTarget(engine, device, lanes=donors.lanes), 0, (BAD, GOOD), 1, record or donors.first)
    copying.past = {} if past is None else past

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(device.serve())
            if trained is not None:
                await copying.begin()
            for _ in range(trained or 0):
                donors.train()
            try:
                await copying.run()
            finally:
                serving.cancel()

    run_virtual(main)
    return engine


@pytest.mark.parametrize("wrong", ["", "short", "other record"])
def test_what_does_not_fit_comes_from_the_next_donor(wrong: str) -> None:
    """Parts, averages and records of one donor are of no use: the copy is what the other one has,
    an iteration later.
    """
    donors = Donors()
    donors.wrong, donors.trains_after = wrong, 2
    engine = _copy(donors)
    assert engine.state == donors.engine.state
    assert len(donors.records) == 2


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_copy_goes_on_with_the_past_that_its_donors_follow(*, is_ours: bool) -> None:
    """An iteration commits meanwhile: its lineage is known beside those before it, which count for
    nothing where it does not follow them.
    """
    donors = Donors()
    donors.trains_after = 2
    past = {0: GENESIS_LINEAGE, 1: donors.first.lineage() if is_ours else "another"}
    _copy(donors, past)
    assert past == {i: record.before for i, record in enumerate(donors.records) if is_ours or i} | {
        2: donors.records[1].lineage()
    }


def test_a_state_of_another_lineage_is_not_copied() -> None:
    """The donors have parted from whoever orders the copy, and are as far: no commit would show
    that what they hold is another stage's past.
    """
    donors = Donors()
    with pytest.raises(ExceptionGroup) as failure:
        _copy(donors, record=replace(donors.first, forced=(0,)))
    assert failure.group_contains(Refused, match="disputed.*another lineage")


def test_a_copy_whose_donors_part_from_who_joined_it_fails() -> None:
    """Who ordered it once more knows a later lineage, and the donors step to another one."""
    donors = Donors()
    donors.trains_after = 2
    with pytest.raises(ExceptionGroup) as failure:
        _copy(donors, {1: donors.first.lineage(), 2: "another"})
    assert failure.group_contains(Refused, match="disputed.*another lineage")


def test_a_copy_whose_donors_have_died_between_two_iterations_fails() -> None:
    """Its parts are of two iterations, and nobody has the average between them any more: it does
    not wait for ever.
    """
    donors = Donors()
    donors.trains_after, donors.dies = donors.engine.part_count(0), True

    def last_part_is_newer(request: Request) -> Reply:
        newer = isinstance(request, GetState) and request.part == donors.engine.part_count(0) - 1
        reply = Donors._answer(donors, request)
        return Reply(State(reply.message.part_count, 2), reply.payload) if newer else reply  # type: ignore[union-attr]

    donors._answer = last_part_is_newer  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as failure:
        _copy(donors)
    assert failure.group_contains(PeerSilent, match="to one iteration")


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_part_that_was_under_way_as_others_stepped_is_brought_further(iterations: int) -> None:
    """Nothing commits later: it is stepped by the average that is kept, or comes once more where a
    second iteration has taken that.
    """

    class Slow(Donors):
        async def call(self, to: Endpoint, request: Request, payload: bytes = b"", **how: Any) -> Reply:
            reply = await super().call(to, request, payload, **how)
            if isinstance(request, GetState) and self.given == self.trains_after:
                self.trains_after = None
                for _ in range(iterations - 1):
                    self.train()
                await asyncio.sleep(1.0)
            return reply

    donors = Slow()
    donors.trains_after = donors.engine.part_count(0)
    assert _copy(donors).state == donors.engine.state
    assert len(donors.records) == 1 + iterations


@pytest.mark.parametrize(("trained", "asked_again"), [(0, 0), (1, 0), (2, 1)])
def test_the_first_part_is_asked_for_once(trained: int, asked_again: int) -> None:
    """It is at hand as the others come, unless a second iteration has taken the average that it
    lacks.
    """
    donors = Donors()
    assert _copy(donors, trained=trained).state == donors.engine.state
    assert donors.given == donors.engine.part_count(0) + asked_again


@pytest.mark.parametrize(("counts", "goes_on"), [((1, 2, 1), True), ((2, 1, 1), False)])
def test_a_copy_goes_on_where_a_cut_leaves_its_blocks_alone(counts: tuple[int, ...], *, goes_on: bool) -> None:
    """The body is cut anew as its first stage is copied: that is asked for by the new cut where it
    has the blocks that it had, and given up where it has not.
    """
    manifest = replace(MANIFEST, model=replace(MANIFEST.model, blocks=4), stages=StagesSection(body=3))
    first = Donors().first
    before = replace(first, stages=(*first.stages, first.stages[-1]), split=SetSplit((1, 1, 2), 0))
    after = replace(before, iteration=1, before=before.lineage(), split=SetSplit(counts, 1))
    engine, asked = IntegerEngine(manifest), list[tuple[int, ...]]()
    engine.follow(BlockSplit((1, 1, 2)))
    engine.blank(1)

    class Cut(Donors):
        def _answer(self, request: Request) -> Reply:
            match request:
                case GetState(iteration=iteration, part=part, split=split):
                    asked.append(split)
                    return Reply(State(engine.part_count(1), iteration), engine.read_state(part, weights_only=False))
                case GetRecord(iteration=0):
                    return Reply(RecordAnswer(before))
                case GetRecord():
                    return Reply(RecordAnswer(after))
                case _:
                    raise Refused(RefusalKind.GONE, "not here")

    machine = Machine()
    ports = make_ports(network=Cut(), clock=machine, executor=machine, engine=engine)
    context = Context(ports, manifest, LocalConfig("memory"), random.Random(1), manifest.fingerprint())
    copying = StateCopy(context, CopyTarget(engine, Device(machine, machine), lanes=1), 1, (GOOD,), 1, before)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(copying._place.device.serve())
            try:
                await copying.run()
            finally:
                serving.cancel()

    if goes_on:
        run_virtual(main)
        assert asked[-1] == counts
        return
    with pytest.raises(ExceptionGroup) as failure:
        run_virtual(main)
    assert failure.group_contains(Refused, match="cut anew meanwhile")


@pytest.mark.parametrize("answers", [True, False])
def test_a_stage_without_blocks_is_copied_though_nobody_has_a_part_of_it(*, answers: bool) -> None:
    """Its members joined it before a cut took its blocks; who is asked for a part refuses. But a
    donor has to answer before anything is given up.
    """
    manifest = replace(MANIFEST, model=replace(MANIFEST.model, blocks=4), stages=StagesSection(body=3))
    first = Donors().first
    record = replace(first, stages=(*first.stages, first.stages[-1]), split=SetSplit((0, 2, 2), 0))
    engine = IntegerEngine(manifest)
    engine.follow(BlockSplit((0, 2, 2)))
    engine.blank(1)

    class Without(Donors):
        def _answer(self, request: Request) -> Reply:
            if isinstance(request, GetRecord) and request.iteration <= 0 and answers:
                return Reply(RecordAnswer(record))
            raise Refused(RefusalKind.FAILED, "part 0 of stage 1, which has 0")

    machine = Machine()
    ports = make_ports(network=Without(), clock=machine, executor=machine, engine=engine)
    context = Context(ports, manifest, LocalConfig("memory"), random.Random(1), manifest.fingerprint())
    copying = StateCopy(context, CopyTarget(engine, Device(machine, machine), lanes=1), 1, (GOOD,), 1, record)

    async def main() -> None:
        await copying.begin()
        await copying.run()

    if answers:
        run_virtual(main)
        assert copying.level == 1
        return
    with pytest.raises(PeerSilent, match="no donor of stage 1"):
        run_virtual(main)
