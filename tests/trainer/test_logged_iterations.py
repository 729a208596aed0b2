"""What a replay and a build refuse, and whom they ask, one message at a time: rules that whole
swarms seldom come to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from swarmfree.protocol.actions import Replay
from swarmfree.protocol.errors import PeerSilent, RefusalKind, Refused
from swarmfree.protocol.manifest import Manifest, ModelSection, StagesSection
from swarmfree.protocol.messages import Build, Built, GetRecord, GetShadow, Pull, Pulled, RecordAnswer, Request, ShadowPart
from swarmfree.protocol.names import Endpoint, Side, WorkKey, WorkKind, base_of
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.peer_ports import MemoryShelf
from swarmfree.trainer.recovery.activation_log import ActivationLog, LogLimits
from swarmfree.trainer.recovery.builder import Builder
from swarmfree.trainer.recovery.logged_iterations import Around, Past
from swarmfree.trainer.recovery.replay import StageReplay
from tests.mutants.alone import OTHER_LINEAGE, SIBLING, A, Alone, D, at, play, record

T = TypeVar("T")


def replaying(story: Callable[[Alone, StageReplay], Awaitable[T]]) -> T:
    """A replay of stages 1 and 2 whose engines are blank."""

    async def main(alone: Alone) -> T:
        action = Replay(1, 1, (A, D), 0, (A,), (A,), "shadows and logs")
        request = Build(at(2), action, 1, GENESIS_LINEAGE, record())
        found = StageReplay(alone.context, alone.stage_member.device, alone.stage_member.activation_log, request, action)
        other = IntegerEngine(alone.context.manifest)
        alone.engine.blank(1)
        other.blank(2)
        found._engines = {1: alone.engine, 2: other}
        return await story(alone, found)

    return play(main)


def test_a_near_replay_stops_where_the_stage_began_to_count_anew() -> None:
    """Its step count does not follow from the record before: it was merged or drawn there, whatever
    the base says.
    """

    async def story(_: Alone, found: StageReplay) -> None:
        one = replace(record(), base=base_of(record().before, ()))
        found.exact = False
        with pytest.raises(Refused, match="stage 1 was rebuilt before iteration 0"):
            await found._check_state(1, one, one)
        two = replace(one, stages=tuple(replace(entry, step_count=entry.step_count + 1) for entry in one.stages))
        await found._check_state(1, two, one)

    replaying(story)


def test_shadows_of_adjacent_stages_stand_on_one_record() -> None:
    """Two holders kept them at the same iteration, one of them on a lineage that gave way."""

    async def story(alone: Alone, found: StageReplay) -> None:
        def holders(to: Endpoint, request: Request) -> Reply:
            assert isinstance(request, GetShadow)
            lineage = OTHER_LINEAGE if to == D else GENESIS_LINEAGE
            return Reply(ShadowPart(0, lineage), alone.engine.read_state(0, weights_only=False))

        alone.line.answer = holders
        await found._load((1, 0))
        await found._load((1, 1))
        with pytest.raises(Refused, match="the shadow of stage 2 stands on another record"):
            await found._load((2, 0))

    replaying(story)


def test_shadows_are_of_the_lineage_that_is_replayed() -> None:
    """The records lead back to another beginning than theirs."""

    async def story(alone: Alone, found: StageReplay) -> None:
        last = record()
        found._request = replace(found._request, lineage=last.lineage(), record=last)
        for lineage in (GENESIS_LINEAGE, OTHER_LINEAGE):
            found._lineage = lineage
            if lineage == last.before:
                assert await found._records() == [last]
            else:
                with pytest.raises(Refused, match="the shadows are not of this lineage"):
                    await found._records()

    replaying(story)


def around(alone: Alone) -> Past:
    """Of stage 1, between two members before it and one after."""
    return Past(
        alone.context, Around(1, 1, (A, SIBLING), (D,)), ActivationLog(MemoryShelf(), LogLimits(1, 1, 1), alone.context.now_s)
    )


def test_records_follow_each_other_and_whoever_has_one_gives_it() -> None:
    """The first member is silent, the next one has a record of another lineage, which is refused;
    the right one is taken from the last one asked.
    """

    async def story(alone: Alone) -> None:
        first = record()
        second = replace(first, iteration=1, before=first.lineage())
        given = {SIBLING: replace(first, before=OTHER_LINEAGE)}

        def members(to: Endpoint, request: Request) -> Reply:
            assert request == GetRecord(0)
            if to not in given:
                raise PeerSilent("nothing is heard")
            return Reply(RecordAnswer(given[to]))

        alone.line.answer = members
        with pytest.raises(Refused, match="record 0 is not of this lineage"):
            await around(alone).records(second, second.lineage(), 0)
        given.clear()
        given[D] = first
        assert await around(alone).records(second, second.lineage(), 0) == ([first, second], GENESIS_LINEAGE)
        given.clear()
        with pytest.raises(Refused, match="nobody around keeps record 0"):
            await around(alone).records(second, second.lineage(), 0)

    play(story)


def test_a_logged_tensor_comes_from_any_holder() -> None:
    """Who has lost it refuses, and the other one is asked; each microbatch begins with another
    holder.
    """

    async def story(alone: Alone) -> None:
        def members(to: Endpoint, request: Request) -> Reply:
            assert isinstance(request, Pull)
            if to == A:
                raise Refused(RefusalKind.GONE, "it is not kept")
            return Reply(Pulled(), b"12345678")

        alone.line.answer = members
        past = around(alone)
        for microbatch, asked in ((2, [A, SIBLING]), (3, [SIBLING])):
            alone.line.asked.clear()
            key = WorkKey(0, "b0", WorkKind.TRAIN, microbatch, 0)
            assert await past._pull(key, (A, SIBLING), Side.OUTPUT) == b"12345678"
            assert [member for member, _ in alone.line.asked] == [endpoint.member for endpoint in asked]
        assert past.received_bytes == 16

    play(story)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_an_iteration_is_replayed_with_the_batch_that_it_had(count: int) -> None:
    """Not with that of the manifest, nor with the present one: so many inputs and gradients are
    fetched as its record counts, by names that leave room for the largest batch.
    """

    async def story(alone: Alone) -> None:
        manifest = alone.context.manifest
        past = around(alone)
        past._context = replace(alone.context, manifest=replace(manifest, batch=replace(manifest.batch, microbatches_max=9)))
        one = replace(record(), iteration=5, tokens=count * manifest.batch.rows * manifest.model.tokens_per_row)

        def members(to: Endpoint, request: Request) -> Reply:
            assert isinstance(request, Pull)
            return Reply(Pulled(), str(request.key.microbatch).encode())

        alone.line.answer = members
        expected = {offset: str(5 * 9 + offset).encode() for offset in range(count)}
        assert await past.activations(one) == (expected, expected)

    play(story)


@pytest.mark.parametrize(
    ("stage", "donor_stage", "parts"),
    [(1, 2, [0, 1, 2, 3]), (2, 3, [0, 1, 0, 1]), (3, 2, [2, 3])],
    ids=["equal", "fewer", "more"],
)
def test_parts_come_from_the_donors_block_at_the_same_depth(stage: int, donor_stage: int, parts: list[int]) -> None:
    """Five blocks in three stages, two parts each: the only block of the last stage is both of
    those before it, and comes from the second of them.
    """
    manifest = Manifest(
        model=ModelSection(width=8, blocks=5, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3), stages=StagesSection(body=3)
    )
    engine = IntegerEngine(manifest)
    context = cast("Any", SimpleNamespace(manifest=manifest, ports=SimpleNamespace(engine=engine)))
    builder = Builder(context, cast("Any", None), cast("Any", None), cast("Any", None))
    request = SimpleNamespace(action=SimpleNamespace(stage=stage), iteration=7, lineage="l", record=None)
    building = cast("Any", SimpleNamespace(request=request))
    asked = [builder._weights_of(building, donor_stage, range(part, part + 1)) for part in range(engine.part_count(stage))]
    assert [one.part for one in asked] == parts


@pytest.mark.parametrize("kind", RefusalKind)
def test_a_coordinator_hears_that_a_replay_is_not_to_be_tried_again(kind: RefusalKind) -> None:
    """What was disputed or took too long is told as that; any other reason is a failure, which may
    pass.
    """

    async def story(alone: Alone) -> None:
        builder = alone.builder

        async def make(request: Build, building: object) -> Built:
            raise Refused(kind, "it cannot be made")

        builder._make = make  # type: ignore[method-assign, assignment]
        action = Replay(1, 1, (A,), 0, (A,), (D,), "shadow and logs")
        with pytest.raises(Refused) as refused:
            await builder.build(A, Build(at(2), action, 1, GENESIS_LINEAGE, record()))
        final = {RefusalKind.TOO_SLOW, RefusalKind.DISPUTED}
        assert refused.value.kind is (kind if kind in final else RefusalKind.FAILED)

    play(story)


def test_a_donor_that_says_nothing_is_asked_again() -> None:
    """It may only have been slow: a build is not given up for one answer, but it is when it
    refuses.
    """

    async def story(alone: Alone) -> None:
        answers: list[Reply | Exception] = [
            PeerSilent("slow"),
            Reply(ShadowPart(4), b"part"),
            Refused(RefusalKind.GONE, "not kept"),
        ]

        def donor(to: Endpoint, request: Request) -> Reply:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        alone.line.answer = donor
        builder, building = alone.builder, cast("Any", SimpleNamespace(received_bytes=0))
        assert (await builder._get(building, (A,), GetShadow(1, 0, 4))).payload == b"part"
        assert building.received_bytes == len(b"part")
        with pytest.raises(Refused, match="not kept"):
            await builder._get(building, (A,), GetShadow(1, 0, 4))

    play(story)


def test_a_replay_gives_up_as_soon_as_it_is_clear_that_it_takes_too_long() -> None:
    """After any iteration but the last one: at the pace so far, all of them are not done within
    `join_wait_s`.
    """

    async def story(alone: Alone, found: StageReplay) -> None:
        limit_s = alone.context.timing.join_wait_s
        found._look_at_pace(1, 4, limit_s / 4)
        found._look_at_pace(4, 4, 2 * limit_s)
        for done in (1, 3):
            with pytest.raises(Refused, match="a replay of 4 iterations at") as refused:
                found._look_at_pace(done, 4, 1.01 * done / 4 * limit_s)
            assert refused.value.kind is RefusalKind.TOO_SLOW

    replaying(story)


class Noting:
    """An engine that keeps what it is asked to add up."""

    def __init__(self) -> None:
        self.added: list[tuple[int, int]] = []
        self.reduced: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: b""

    def part_count(self, _: int) -> int:
        """One."""
        return 1

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """Which microbatch goes into which partial sum."""
        self.added.append((ticket, partial_sum))
        return b""

    def contribution(self, partial_sums: list[int], part: int) -> bytes:
        """Which partial sums are added up."""
        self.reduced.append(partial_sums)
        return b""

    def reduce(self, contributions: list[bytes]) -> tuple[bytes, float]:
        """As in the record."""
        return b"", 1.0

    def average_digest(self) -> str:
        """The same."""
        return record().stages[1].sum_digest


def test_gradients_are_added_in_the_order_of_the_record() -> None:
    """Two members' contributions, the first one of two partial sums: floats added in another order
    are other floats.
    """

    async def story(_: Alone, found: StageReplay) -> None:
        sums = (((2, 0), (3,)), ((1,),))
        one = record()
        one = replace(one, stages=tuple(replace(entry, sums=sums) for entry in one.stages))
        engine, tensors = Noting(), dict.fromkeys(range(4), b"")
        found._engines, found._in_order, found.exact = cast("Any", {1: engine}), True, True
        await found._stage(one, 1, tensors, tensors)
        assert engine.added == [(2, 0), (0, 0), (3, 1), (1, 2)]
        assert engine.reduced == [[0, 1], [2]]
        assert found.exact

    replaying(story)
