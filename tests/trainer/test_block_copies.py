"""Blocks that are copied ahead, for another cut: when the swarm stops for it they are there, or are
fetched as if nothing had been.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

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
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.recovery.block_copies import KEPT_ITERATIONS
from swarmfree.trainer.recovery.recut import read_parts
from tests.builders import make_entry, make_record
from tests.mutants.alone import MANIFEST, SIBLING, Alone, D, at, plan, play, word
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
        alone.engine.draw(TAKER, 0)
        alone.replica_state.install(TAKER, 0, GENESIS_LINEAGE, None)
        alone.replica_state.known_plan = plan(1)
        alone.line.answer = self.answer
        self.preparation = alone.stage_member.preparation

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
            case GetAverage(iteration=iteration, part=part) if self.keeps and iteration == len(self.records) - 1:
                return Reply(Average(), self.giver.read_average(part))
            case _:
                raise Refused(RefusalKind.GONE, "not here")

    @property
    def lineage(self) -> str:
        """After the last record."""
        return self.records[-1].lineage() if self.records else GENESIS_LINEAGE

    def train(self) -> None:
        """One iteration, in which both stages step, and the member hears of it."""
        number, zero = len(self.records), self.giver.contribution([], 0)
        for part in range(self.giver.part_count(GIVER)):
            self.giver.keep_average(part, bytes([number + 1, part]) + zero[2:])
        own = self.alone.engine
        for part in range(own.part_count(TAKER)):
            own.keep_average(part, bytes([number + 2, part]) + zero[2:])
        stages = tuple(
            make_entry(
                sum_digest=engine.average_digest(), state_digest="d", step_count=number + 1, scalars=SCALARS, members=(D.member,)
            )
            for engine in (self.giver, self.giver, own)
        )
        record = make_record(iteration=number, before=self.lineage, stages=stages, electorate=(D.member,))
        for engine in (self.giver, own):
            engine.step(SCALARS)
        self.records.append(record)
        self.alone.replica_state.apply(record)
        self.preparation.drop()  # as a member does that steps
        self.alone.replica_state.moved.tell()

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
        self.preparation.give_up_copies()
        return (await self.prepared(counts))[0]


def parts_asked(asked: list[Request]) -> list[Request]:
    """Of a state, and not their digests."""
    return [request for request in asked if isinstance(request, GetState) and not request.digests_only]


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


def test_copies_that_nobody_asks_for_are_given_up() -> None:
    """With their memory; nothing is followed any more."""

    async def story(swarm: Swarm) -> None:
        swarm.train()
        await swarm.missing()
        for turn in range(KEPT_ITERATIONS + 1):
            assert swarm.preparation._ahead is not None, turn
            swarm.train()
            await asyncio.sleep(1.0)
        assert swarm.preparation._ahead is None
        swarm.asked.clear()
        swarm.train()
        await asyncio.sleep(30.0)
        assert not swarm.asked

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
