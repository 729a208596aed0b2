"""Blocks that are copied ahead, for another cut: when the swarm stops for it they are there, or are
fetched as if nothing had been.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.errors import PeerUnreachable, RefusalKind, Refused
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
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.device import Rank, WorkFailed
from swarmfree.trainer.recovery import state_copy
from swarmfree.trainer.recovery.block_copies import UNASKED_SILENCES
from swarmfree.trainer.recovery.recut import read_parts
from swarmfree.trainer.recovery.state_copy import StateCopy
from tests.builders import make_entry, make_record
from tests.mutants.alone import MANIFEST, ME, SIBLING, Alone, D, at, plan, play, word
from tests.trainer.test_ends_copy import SCALARS

FOUR = replace(MANIFEST, model=replace(MANIFEST.model, blocks=4))
AHEAD, OTHER = (1, 3), (0, 4)
"""Other cuts of two stages of two blocks each."""
GIVER, TAKER = 1, 2


class Swarm:
    """A member of stage 2, and stage 1 in one place, which trains when it is told and answers.

    Attributes:
        asked: what the member has asked, since that was looked at last.
        keeps: averages are kept until the next iteration.
        is_up: somebody answers.
    """

    def __init__(self, alone: Alone) -> None:
        self.alone, self.giver = alone, IntegerEngine(FOUR)
        self.giver.draw(GIVER, 0)
        self.records: list[Record] = []
        self.asked: list[Request] = []
        self.keeps = self.is_up = True
        self.averaged = {0}
        alone.engine.draw(TAKER, 0)
        alone.replica_state.install(TAKER, 0, GENESIS_LINEAGE, None)
        alone.replica_state.known_plan = plan(1)
        alone.line.answer = self.answer
        self.preparation = alone.stage_member.preparation

    def give_states_in(self, seconds: float) -> None:
        """A part of a state, or its digests, takes so long from now on."""
        call = self.alone.line.call

        async def slow(to: Endpoint, request: Request, *given: Any, **named: Any) -> Reply:
            await asyncio.sleep(seconds if isinstance(request, GetState) else 0.0)
            return await call(to, request, *given, **named)

        self.alone.line.call = slow  # type: ignore[method-assign,assignment]

    def answer(self, to: Endpoint, request: Request) -> Reply:
        """As the members of stage 1 do."""
        if not self.is_up:
            raise PeerUnreachable(f"nobody listens for {to.member}")
        self.asked.append(request)
        match request:
            case GetState(stage=stage, part=part, count=count) if stage == GIVER:
                if request.lineage not in {"", self.lineage}:
                    raise Refused(RefusalKind.GONE, "another lineage")
                pieces = read_parts(self.giver, range(part, part + count), request)
                return Reply(State(self.giver.part_count(GIVER), len(self.records), sizes_of(pieces)), pieces=pieces)
            case GetRecord(iteration=-1) if self.records:
                return Reply(RecordAnswer(self.records[-1]))
            case GetRecord(iteration=iteration) if 0 <= iteration < len(self.records):
                return Reply(RecordAnswer(self.records[iteration]))
            case GetAverage(iteration=iteration, part=part) if self.keeps and iteration in self.averaged:
                return Reply(Average(), self.giver.read_average(part))
            case _:
                raise Refused(RefusalKind.GONE, "not here")

    @property
    def lineage(self) -> str:
        """After the last record."""
        return self.records[-1].lineage() if self.records else GENESIS_LINEAGE

    def train(self) -> None:
        """One iteration, in which both stages step, and the member hears of it."""
        self.step(self.sealed())

    def sealed(self) -> Record:
        """All averages of the next iteration are there, and its record is about to be decided."""
        number, zero = len(self.records), self.giver.contribution([], 0)
        for part in range(self.giver.part_count(GIVER)):
            self.giver.keep_average(part, bytes([number + 1, part]) + zero[2:])
        own = self.alone.engine
        for part in range(own.part_count(TAKER)):
            own.keep_average(part, bytes([number + 2, part]) + zero[2:])
        self.averaged = {number}
        stages = tuple(
            make_entry(
                sum_digest=engine.average_digest(), state_digest="d", step_count=number + 1, scalars=SCALARS, members=(D.member,)
            )
            for engine in (self.giver, self.giver, own)
        )
        return make_record(iteration=number, before=self.lineage, stages=stages, electorate=(D.member,))

    def seal(self) -> Record:
        """The same, and the member has stored the record."""
        record, held = self.sealed(), self.alone.replica_state
        held.promises = replace(held.promises, sealed=record)
        self.preparation.look()
        return record

    def step(self, record: Record) -> None:
        """It is decided."""
        self.step_here(record)
        self.step_there(record)

    def step_here(self, record: Record) -> None:
        """The member has heard of it."""
        held = self.alone.replica_state
        self.alone.engine.step(SCALARS)
        held.promises = replace(held.promises, sealed=None)
        held.apply(record)
        self.preparation.drop()  # as a member does that steps
        held.moved.tell()

    def step_there(self, record: Record) -> None:
        """The others have."""
        self.giver.step(SCALARS)
        self.records.append(record)

    def request(self, counts: tuple[int, ...] = AHEAD, *, ahead: bool = False) -> Prepare:
        """As a coordinator asks now."""
        return Prepare(at(1), TAKER, len(self.records), self.lineage, counts, ahead)

    async def missing(self, counts: tuple[int, ...] = AHEAD) -> int:
        """How many parts, as it says once it is asked to copy ahead."""
        answer = (await self.preparation.prepare(self.request(counts, ahead=True))).message
        assert isinstance(answer, Prepared)
        assert not answer.state_digest
        return answer.missing

    async def prepared(self, counts: tuple[int, ...] = AHEAD) -> tuple[str, list[Request]]:
        """What it prepares now, and what it asks for that."""
        self.asked.clear()
        answer = (await self.preparation.prepare(self.request(counts))).message
        assert isinstance(answer, Prepared)
        return answer.state_digest, [*self.asked]

    async def right(self, counts: tuple[int, ...] = AHEAD) -> str:
        """What that has to be."""
        self.preparation.drop()
        await self.preparation.give_up_copies()
        return (await self.prepared(counts))[0]


def parts_asked(asked: list[Request]) -> list[Request]:
    """Of a state, and not their digests."""
    return [request for request in asked if isinstance(request, GetState) and not request.digests_only]


def averages_asked(asked: list[Request]) -> list[GetAverage]:
    """One for each part."""
    return [request for request in asked if isinstance(request, GetAverage)]


def play_swarm(story: Callable[[Swarm], Any]) -> Any:
    """What comes of a story."""

    async def begin(alone: Alone) -> Any:
        return await story(Swarm(alone))

    return play(begin, here=D, manifest=FOUR)


@pytest.mark.parametrize("counts", [AHEAD, OTHER])
@pytest.mark.parametrize("iterations", [0, 1, 5])
@pytest.mark.parametrize("waits_s", [0.0, 1.0])
def test_what_was_copied_ahead_is_what_the_others_hold(counts: tuple[int, ...], iterations: int, waits_s: float) -> None:
    """After any number of iterations, and whether the last one was followed yet or not; nothing of
    it is fetched again.
    """

    async def story(swarm: Swarm) -> None:
        swarm.train()
        assert await swarm.missing(counts) == 0
        for _ in range(iterations):
            assert await swarm.missing(counts) == 0
            swarm.train()
            await asyncio.sleep(1.0)
        if iterations:
            swarm.train()
            await asyncio.sleep(waits_s)
        digest, asked = await swarm.prepared(counts)
        assert not parts_asked(asked)
        assert [request for request in asked if isinstance(request, GetState)], "nothing was proven"
        assert digest == await swarm.right(counts)

    play_swarm(story)


def test_a_part_that_has_missed_an_average_is_copied_once_more() -> None:
    """While training goes on; and where that comes too late, when the swarm stops."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        swarm.keeps = False
        swarm.train()
        await asyncio.sleep(2.0)
        assert parts_asked(swarm.asked[-20:])
        assert await swarm.missing() == 0
        assert not parts_asked((await swarm.prepared())[1])
        await swarm.missing()
        swarm.train()
        digest, asked = await swarm.prepared()
        assert parts_asked(asked)
        assert digest == await swarm.right()

    play_swarm(story)


def test_what_was_rebuilt_since_is_fetched() -> None:
    """By the record nothing has changed, but what the members hold is another state."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        assert await swarm.missing() == 0
        swarm.giver.draw(GIVER, 7)
        digest, asked = await swarm.prepared()
        assert parts_asked(asked)
        assert digest == await swarm.right()

    play_swarm(story)


@pytest.mark.parametrize("trains", [True, False])
def test_copies_that_nobody_asks_for_are_given_up(*, trains: bool) -> None:
    """With their memory, whether the swarm goes on or stands; nothing is followed any more."""

    async def story(swarm: Swarm) -> None:
        limit_s = UNASKED_SILENCES * FOUR.timing.coordinator_silence_s
        swarm.train()
        await swarm.missing()
        for _ in range(int(limit_s) - 1):
            assert swarm.preparation._ahead is not None
            if trains:
                swarm.train()
            await asyncio.sleep(1.0)
        await swarm.missing()
        await asyncio.sleep(limit_s - 0.5)
        assert swarm.preparation._ahead is not None
        await asyncio.sleep(FOUR.timing.silence_s + 1.0)
        assert swarm.preparation._ahead is None
        swarm.asked.clear()
        swarm.train()
        await asyncio.sleep(30.0)
        assert not swarm.asked

    play_swarm(story)


@pytest.mark.parametrize("iteration_s", [0.3, 2.0])
def test_a_slow_copy_is_followed_however_fast_iterations_are(iteration_s: float) -> None:
    """It takes many of them, and is begun once: whoever asks is held as long as it is not there."""

    async def story(swarm: Swarm) -> None:
        swarm.give_states_in(3.0)
        swarm.train()
        begun, copies = asyncio.get_running_loop().time(), set[int]()

        async def train() -> None:
            while True:
                await asyncio.sleep(iteration_s)
                swarm.train()

        async with asyncio.TaskGroup() as group:
            training = group.create_task(train())
            while await swarm.missing():
                copies.add(id(swarm.preparation._ahead))
                await asyncio.sleep(0.5)
                assert asyncio.get_running_loop().time() < begun + 20.0
            training.cancel()
        assert len(copies) == 1

    play_swarm(story)


def test_an_order_to_copy_that_comes_late_begins_nothing() -> None:
    """The cut is being prepared, or is there already: no third engine is laid out."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        async with asyncio.TaskGroup() as group:
            preparing = group.create_task(swarm.prepared())
            await asyncio.sleep(0.01)
            assert swarm.preparation._preparing.locked()
            assert await swarm.missing() == 0
        assert await swarm.missing() == 0
        assert swarm.preparation._ahead is None
        assert not parts_asked(preparing.result()[1])

    play_swarm(story)


def test_many_that_ask_at_once_have_one_copy_made() -> None:
    """Also for another cut than the last one, whose copies end first."""

    async def story(swarm: Swarm) -> None:
        engines, spare = list[object](), swarm.alone.context.ports.spare_engine

        def counted() -> IntegerEngine:
            engines.append(None)
            return spare()  # type: ignore[return-value]

        swarm.alone.context.ports = replace(swarm.alone.context.ports, spare_engine=counted)
        swarm.train()
        for counts in (AHEAD, OTHER):
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(swarm.missing(counts))
        assert len(engines) == 2
        assert len(swarm.alone.stage_member.preparation._following) == 1

    play_swarm(story)


def test_what_nobody_proves_is_fetched() -> None:
    """No donor tells digests."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        answer = swarm.answer

        def silent(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, GetState) and request.digests_only:
                raise PeerUnreachable("it is gone")
            return answer(to, request)

        swarm.alone.line.answer = silent
        digest, asked = await swarm.prepared()
        assert parts_asked(asked)
        assert digest == await swarm.right()

    play_swarm(story)


def test_one_cut_is_copied_ahead_at_a_time() -> None:
    """The last one that is asked for; another one is prepared as if nothing had been copied."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        first = swarm.preparation._ahead
        await swarm.missing(OTHER)
        assert swarm.preparation._ahead is not first
        digest, asked = await swarm.prepared()
        assert parts_asked(asked)
        assert swarm.preparation._ahead is None
        assert digest == await swarm.right()

    play_swarm(story)


def test_where_nobody_gives_it_is_said_that_all_is_missing() -> None:
    """It is begun anew by the next one that asks."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        swarm.is_up = False
        assert await swarm.missing() > 0
        await asyncio.sleep(100.0)
        assert swarm.preparation._ahead is None
        swarm.is_up = True
        assert await swarm.missing() == 0

    play_swarm(story)


def test_copies_end_with_what_is_held() -> None:
    """The stage is let go, as another state is to be built here."""

    async def story(swarm: Swarm) -> tuple[object, str]:
        swarm.train()
        await swarm.missing()
        await swarm.alone.stage_member.let_go()
        return swarm.preparation._ahead, await word(swarm.preparation.prepare(swarm.request(ahead=True)))

    assert play_swarm(story) == (None, "gone")


def test_nothing_is_copied_ahead_without_memory() -> None:
    """It says so, and lays out nothing."""

    async def story(swarm: Swarm) -> tuple[str, object]:
        context = swarm.alone.context
        context.ports = replace(context.ports, free_bytes=lambda: 1)
        return await word(swarm.preparation.prepare(swarm.request(ahead=True))), swarm.preparation._ahead

    assert play_swarm(story) == ("exhausted", None)


def test_a_donor_that_tells_no_digest_is_passed_over() -> None:
    """The next one is asked."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        answer = swarm.answer

        def silent(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, GetState) and to != SIBLING:
                raise PeerUnreachable("it is gone")
            return answer(to, request)

        swarm.alone.line.answer = silent
        digest, asked = await swarm.prepared()
        assert not parts_asked(asked)
        assert digest == await swarm.right()

    play_swarm(story)


def test_what_was_taken_is_not_followed_any_more() -> None:
    """It is what the member promises, and its digest is told."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        digest, _ = await swarm.prepared()
        other = swarm.preparation._other
        assert other is not None
        swarm.asked.clear()
        swarm.train()
        await asyncio.sleep(5.0)
        assert not swarm.asked
        assert other.engine.state_digest() == digest

    play_swarm(story)


def test_moments_are_proven_too() -> None:
    """One bit of the last one is another."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        for part in range(swarm.giver.part_count(GIVER)):
            data = bytearray(swarm.giver.read_state(part, weights_only=False))
            data[-1] ^= 1
            swarm.giver.write_state(part, bytes(data), weights_only=False)
        digest, asked = await swarm.prepared()
        assert parts_asked(asked)
        assert digest == await swarm.right()

    play_swarm(story)


def test_copies_of_another_lineage_are_not_said_to_be_there() -> None:
    """The donors stand on another record than this peer."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        swarm.records[-1] = replace(swarm.records[-1], base="another")
        assert await swarm.missing() > 0

    play_swarm(story)


def test_digests_are_asked_for_at_this_iteration_of_this_lineage() -> None:
    """Of no other state."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        _, asked = await swarm.prepared()
        proofs = [request for request in asked if isinstance(request, GetState) and request.digests_only]
        assert proofs
        assert {(proof.iteration, proof.lineage) for proof in proofs} == {(len(swarm.records), swarm.lineage)}

    play_swarm(story)


def test_nothing_is_copied_ahead_of_what_only_a_plan_has_cut() -> None:
    """Parts are counted by the last record."""

    async def story(swarm: Swarm) -> str:
        swarm.train()
        swarm.alone.replica_state.cut(BlockSplit(OTHER))
        return await word(swarm.preparation.prepare(swarm.request(ahead=True)))

    assert play_swarm(story) == "gone"


def test_copies_are_of_no_use_for_another_stage_or_cut() -> None:
    """Than is held, and than it was cut as they were begun."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        copies, held = swarm.preparation._ahead, swarm.alone.replica_state
        assert copies is not None
        assert not copies.is_over
        held.stage = GIVER
        assert copies.is_over
        held.stage = TAKER
        assert not copies.is_over
        held.cut(BlockSplit(OTHER))
        assert copies.is_over

    play_swarm(story)


def test_donors_are_those_of_the_newest_plan() -> None:
    """One has left since blocks began to be copied."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        held, answer, asked = swarm.alone.replica_state, swarm.answer, set[Endpoint]()
        known = held.known_plan
        assert known is not None
        left = tuple(replica for replica in known.replicas[GIVER] if replica.endpoint == SIBLING)
        held.known_plan = replace(known, replicas=(known.replicas[0], left, *known.replicas[GIVER + 1 :]))

        def noted(to: Endpoint, request: Request) -> Reply:
            asked.add(to)
            return answer(to, request)

        swarm.alone.line.answer = noted  # type: ignore[method-assign,assignment]
        swarm.train()
        await asyncio.sleep(2.0)
        assert asked == {SIBLING}

    play_swarm(story)


def test_who_takes_what_is_laid_out_just_then_follows_it_alone() -> None:
    """The cut is prepared while its memory is taken: the blocks are followed once, by whoever takes
    them.
    """

    async def story(swarm: Swarm) -> None:
        swarm.train()
        async with asyncio.TaskGroup() as group:
            group.create_task(swarm.missing())
            while (copies := swarm.preparation._ahead) is None or not copies._laying_out.locked():
                await asyncio.sleep(0)
            catch_up, followed = StateCopy.catch_up, list[int]()

            async def noted(self: StateCopy) -> None:
                followed.append(len(swarm.records))
                await catch_up(self)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(StateCopy, "catch_up", noted)
                await swarm.prepared()
                await asyncio.sleep(5.0)
        assert len(followed) == 1

    play_swarm(story)


def test_copies_that_are_given_up_keep_no_memory() -> None:
    """Also where the device has nothing to do afterwards."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        copies = swarm.preparation._ahead
        assert copies is not None
        engine = weakref.ref(copies._engine)
        del copies
        await swarm.preparation.give_up_copies()
        gc.collect()
        assert engine() is None

    play_swarm(story)


def test_copies_that_nobody_asks_for_end_also_while_they_come() -> None:
    """A download takes long, and a swarm that has lost a stage may need the memory."""

    async def story(swarm: Swarm) -> None:
        swarm.give_states_in(60.0)
        swarm.train()
        assert await swarm.missing() > 0
        await asyncio.sleep(UNASKED_SILENCES * FOUR.timing.coordinator_silence_s + 1.0)
        assert swarm.preparation._ahead is None
        assert not len(swarm.preparation._following)
        assert not parts_asked(swarm.asked)

    play_swarm(story)


def test_orders_for_two_cuts_at_once_lay_out_no_third_engine() -> None:
    """One to copy waits until other copies have ended, and by then a cut is being prepared."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        async with asyncio.TaskGroup() as group:
            copying = group.create_task(swarm.missing(OTHER))
            group.create_task(swarm.prepared())
        assert copying.result() == 1
        assert swarm.preparation._ahead is None

    play_swarm(story)


def test_an_order_that_waited_until_the_stage_was_let_go_is_refused() -> None:
    """Nothing is laid out for what is held no longer."""

    async def story(swarm: Swarm) -> tuple[str, object]:
        swarm.train()
        await swarm.missing()
        async with swarm.preparation._beginning, asyncio.TaskGroup() as group:
            asking = group.create_task(word(swarm.preparation.prepare(swarm.request(OTHER, ahead=True))))
            await asyncio.sleep(0.1)
            await swarm.alone.stage_member.let_go()
            swarm.preparation._beginning.release()
            answer = await asking
            await swarm.preparation._beginning.acquire()
        return answer, swarm.preparation._ahead

    assert play_swarm(story) == ("gone", None)


def test_another_cut_than_the_one_that_is_prepared_is_not_said_to_be_there() -> None:
    """It is begun; while the first one is being prepared that is said to be missing."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        async with asyncio.TaskGroup() as group:
            group.create_task(swarm.prepared(OTHER))
            await asyncio.sleep(0.01)
            assert await swarm.missing(AHEAD) == 1
            assert await swarm.missing(OTHER) == 0
        assert swarm.preparation._ahead is None
        assert await swarm.missing(AHEAD) == 0
        assert swarm.preparation._ahead is not None

    play_swarm(story)


def test_a_device_keeps_nothing_of_what_was_cancelled_or_failed() -> None:
    """A whole stage may hang on it."""

    class Engine:
        def fail(self) -> None:
            """As one does that is given too few bytes."""
            raise ValueError("wrong length")

    async def story(swarm: Swarm) -> None:
        device = swarm.alone.stage_member.device
        engine = Engine()
        kept = weakref.ref(engine)
        with pytest.raises(WorkFailed):
            await device.run(Rank.IDLE, 0, engine.fail)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(device.run(Rank.BOOKS, 0, lambda: None))
            second = group.create_task(device.run(Rank.IDLE, 0, engine.fail))
            await asyncio.sleep(0)
            second.cancel()
            await first
        await asyncio.sleep(1.0)
        del engine, first, second
        gc.collect()
        assert kept() is None

    play_swarm(story)


@pytest.mark.parametrize("is_decided", [True, False])
def test_averages_are_fetched_before_they_are_decided(*, is_decided: bool) -> None:
    """When the swarm stops they are here; where another record was decided they do not count."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        swarm.asked.clear()
        sealed = swarm.seal()
        await asyncio.sleep(1.0)
        assert len(averages_asked(swarm.asked)) == 2, "a block has two parts"
        await asyncio.sleep(5.0)
        assert await swarm.missing() == 0
        assert len(averages_asked(swarm.asked)) == 2, "once"
        if not is_decided:  # by others, of other contributions
            zero = swarm.giver.contribution([], 0)
            for part in range(swarm.giver.part_count(GIVER)):
                swarm.giver.keep_average(part, bytes([77, part]) + zero[2:])
            entry = replace(sealed.stages[GIVER], sum_digest=swarm.giver.average_digest())
            sealed = replace(sealed, stages=(sealed.stages[0], entry, sealed.stages[2]))
        swarm.step(sealed)
        digest, asked = await swarm.prepared()
        assert bool(averages_asked(asked)) != is_decided
        assert not parts_asked(asked)
        assert digest == await swarm.right()

    play_swarm(story)


async def iterate(swarm: Swarm, late_s: float) -> None:
    """One iteration of a second, as messages tell of it; the others step so much later."""
    record = swarm.seal()
    await asyncio.sleep(0.3)
    swarm.step_here(record)
    await asyncio.sleep(late_s)
    swarm.step_there(record)
    await asyncio.sleep(0.7 - late_s)


@pytest.mark.parametrize("late_s", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("gives_in_s", [0.0, 3.0])
def test_donors_that_step_later_than_this_peer_cost_no_download(late_s: float, gives_in_s: float) -> None:
    """It steps what it follows by the record that it has stepped by itself."""

    async def story(swarm: Swarm) -> None:
        swarm.give_states_in(gives_in_s)
        swarm.train()
        while await swarm.missing():
            await iterate(swarm, late_s)
        swarm.asked.clear()
        for _ in range(10):
            await iterate(swarm, late_s)
            assert await swarm.missing() == 0
        assert not parts_asked(swarm.asked)
        assert len(averages_asked(swarm.asked)) == 10 * 2
        assert (await swarm.prepared())[0] == await swarm.right()

    play_swarm(story)


def test_averages_of_a_wrong_length_are_had_from_the_next_donor() -> None:
    """Nothing is downloaded again for them."""

    async def story(swarm: Swarm) -> None:
        answer = swarm.answer

        def short(to: Endpoint, request: Request) -> Reply:
            reply = answer(to, request)
            return Reply(Average(), reply.payload[:-1]) if isinstance(request, GetAverage) and to == ME else reply

        swarm.train()
        assert await swarm.missing() == 0
        swarm.alone.line.answer = short
        swarm.asked.clear()
        for _ in range(6):
            await iterate(swarm, 0.0)
            assert await swarm.missing() == 0
        assert not parts_asked(swarm.asked)
        assert (await swarm.prepared())[0] == await swarm.right()

    play_swarm(story)


def test_averages_that_nobody_gives_yet_are_asked_for_once_more() -> None:
    """When they are decided."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        copies = swarm.preparation._ahead
        swarm.keeps = False
        record = swarm.seal()
        await asyncio.sleep(1.0)
        assert averages_asked(swarm.asked)
        swarm.keeps = True
        swarm.asked.clear()
        swarm.step(record)
        await asyncio.sleep(1.0)
        assert len(averages_asked(swarm.asked)) == 2
        assert not parts_asked(swarm.asked)
        assert swarm.preparation._ahead is copies

    play_swarm(story)


def test_a_record_that_takes_the_place_of_another_has_its_averages_fetched() -> None:
    """Another attempt, after a member was lost: what was fetched for the first one does not do."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        swarm.seal()
        await asyncio.sleep(1.0)
        zero = swarm.giver.contribution([], 0)
        for part in range(swarm.giver.part_count(GIVER)):
            swarm.giver.keep_average(part, bytes([77, part]) + zero[2:])
        held, first = swarm.alone.replica_state, swarm.alone.replica_state.sealed
        assert first is not None
        entry = replace(first.stages[GIVER], sum_digest=swarm.giver.average_digest())
        second = replace(first, stages=(first.stages[0], entry, first.stages[2]))
        held.promises = replace(held.promises, sealed=second)
        swarm.asked.clear()
        swarm.preparation.look()
        await asyncio.sleep(1.0)
        assert len(averages_asked(swarm.asked)) == 2
        swarm.step(second)
        digest, asked = await swarm.prepared()
        assert not averages_asked(asked)
        assert digest == await swarm.right()

    play_swarm(story)


def test_a_step_while_averages_are_fetched_is_followed_at_once() -> None:
    """By the record that this peer has stepped by, whether those that give have yet or not; nothing
    of what was fetched stays in memory.
    """

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        call, copies = swarm.alone.line.call, swarm.preparation._ahead
        assert copies is not None

        async def slow(to: Endpoint, request: Request, *given: Any, **named: Any) -> Reply:
            await asyncio.sleep(0.5 if isinstance(request, GetAverage) else 0.0)
            return await call(to, request, *given, **named)

        swarm.alone.line.call = slow  # type: ignore[method-assign,assignment]
        record, (source,) = swarm.seal(), copies._sources
        await asyncio.sleep(0.2)
        swarm.step_here(record)
        await asyncio.sleep(0.5)
        assert source.copy.level == record.iteration + 1
        assert not source.copy.missing(record.iteration + 1)
        assert not source.copy._ahead
        swarm.step_there(record)
        assert (await swarm.prepared())[0] == await swarm.right()

    play_swarm(story)


def test_a_step_that_fails_has_its_parts_copied_again() -> None:
    """Nobody knows how many of them were stepped."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        copies = swarm.preparation._ahead
        assert copies is not None
        engine = copies._engine
        assert engine is not None
        record, step_part, failures = swarm.seal(), engine.step_part, [1]
        await asyncio.sleep(1.0)

        def failing(part: int, *given: Any) -> None:
            if failures:
                raise ArithmeticError(failures.pop())
            step_part(part, *given)

        engine.step_part = failing  # type: ignore[method-assign]
        swarm.asked.clear()
        swarm.step(record)
        await asyncio.sleep(2.0)
        assert parts_asked(swarm.asked)
        assert await swarm.missing() == 0
        assert (await swarm.prepared())[0] == await swarm.right()

    play_swarm(story)


@pytest.mark.parametrize(("size_bytes", "pieces"), [(1, 2), (1 << 30, 1)])
def test_passes_wait_for_a_few_followed_parts_at_most(monkeypatch: pytest.MonkeyPatch, size_bytes: int, pieces: int) -> None:
    """A block has two; as many as are so large in all are one piece of device work."""
    monkeypatch.setattr(state_copy, "STEPPED_BYTES", size_bytes)

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        record, device, ranks = swarm.seal(), swarm.alone.stage_member.device, list[Rank]()
        await asyncio.sleep(1.0)
        run = device.run

        async def noted(rank: Rank, age: int, work: Callable[[], Any]) -> Any:
            ranks.append(rank)
            return await run(rank, age, work)

        monkeypatch.setattr(device, "run", noted)
        swarm.step(record)
        await asyncio.sleep(1.0)
        assert ranks == [Rank.IDLE] * pieces

    play_swarm(story)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("is_held", [False, True])
def test_an_average_that_is_not_there_is_refused(*, at_once: bool, is_held: bool) -> None:
    """Of a part that a stage of torch has not, or of a stage that was let go."""

    async def story(alone: Alone) -> str:
        engine = TorchEngine(FOUR, 1)
        alone.context.ports = replace(alone.context.ports, engine=engine)
        engine.draw(TAKER, 0)
        alone.replica_state.install(TAKER, 0, GENESIS_LINEAGE, None)
        for part in range(engine.part_count(TAKER)):
            engine.keep_average(part, engine.contribution([], part))
        averaging, digest = alone.stage_member.averaging, "d" * 64
        averaging.kept = (0, digest)
        if not is_held:
            await alone.stage_member.let_go()
        return await word(averaging.get_average(GetAverage(0, digest, 10**4 if is_held else 0, at_once)))

    assert play(story, here=D, manifest=FOUR) == "gone"
