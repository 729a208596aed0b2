"""What a member prepares is the stage as another split cuts it, whatever happens meanwhile; or it
says that it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from swarmfree.protocol.errors import Refused
from swarmfree.protocol.messages import GetState, Open, Prepare, Prepared, Request, State
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.pieces import sizes_of
from swarmfree.protocol.plan import Plan, Rebuilt
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.recovery.recut import begin_cut
from tests.mutants.alone import MANIFEST, ME, SIBLING, A, Alone, D, at, plan, play, word

FOUR = replace(MANIFEST, model=replace(MANIFEST.model, blocks=4))
X, Y = (1, 3), (0, 4)
"""Other cuts of two stages of two blocks each."""
GIVER, TAKER = 1, 2

Answer = Callable[[Endpoint, GetState], list[bytes]]


def held(stage: int) -> IntegerEngine:
    """An engine with the first weights of a stage."""
    engine = IntegerEngine(FOUR)
    engine.draw(stage, 0)
    return engine


def part(number: int) -> bytes:
    """What the giver's stage has there."""
    return held(GIVER).read_state(number, weights_only=False)


def parts(request: GetState, count: int) -> list[bytes]:
    """So many parts from the one that is asked for on."""
    return [part(request.part + index) for index in range(count)]


def wanted(counts: Sequence[int]) -> Prepare:
    """The taker's stage cut so."""
    return Prepare(at(1), TAKER, 0, GENESIS_LINEAGE, tuple(counts))


def digest_of(counts: Sequence[int]) -> str:
    """What that is."""

    async def story(alone: Alone) -> str:
        begin(alone, lambda _, request: parts(request, request.count))
        return await prepared(alone, counts)

    return play(story, here=D, manifest=FOUR)


async def prepared(alone: Alone, counts: Sequence[int]) -> str:
    """Prepare it; its digest."""
    answer = (await alone.stage_member.preparation.prepare(wanted(counts))).message
    assert isinstance(answer, Prepared)
    return answer.state_digest


def begin(alone: Alone, answer: Answer) -> list[Member]:
    """D holds the taker's stage, and all follow a plan; who was asked, in order."""
    asked: list[Member] = []

    def given(to: Endpoint, request: Request) -> Reply:
        assert isinstance(request, GetState)
        asked.append(to.member)
        assert len(asked) < 20, "donors are asked for ever"
        pieces = answer(to, request)
        return Reply(State(4, 0, sizes_of(pieces)), pieces=pieces)

    alone.engine.draw(TAKER, 0)
    alone.replica_state.install(TAKER, 0, GENESIS_LINEAGE, None)
    alone.replica_state.known_plan = plan(1)
    alone.line.answer = given
    return asked


def cut_plan(revision: int, counts: Sequence[int], digest: str) -> Plan:
    """A plan that is cut so."""
    return replace(
        plan(revision, base=f"cut {revision}"),
        split=tuple(counts),
        rebuilt=(Rebuilt(TAKER, digest, rate_scaled=False, steps=-1),),
    )


BAD: dict[str, Callable[[GetState], list[bytes]]] = {
    "none": lambda _: [],
    "short": lambda request: [part(request.part)[:-1]],
    "long": lambda request: [part(request.part) + b"x"],
    "one, then short": lambda request: parts(request, 1) if request.part % 2 == 0 else [b"x"],
    "another one, then none": lambda request: [part(0)] if request.part % 2 == 0 else [],
    "too many": lambda request: [*parts(request, request.count), part(request.part)],
}


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_donor_that_gives_no_block_is_passed_over(bad: Callable[[GetState], list[bytes]], at_once: int) -> None:
    """The next one is asked for all of it, in one call or in several; of the first one nothing
    stays.
    """

    async def story(alone: Alone) -> tuple[str, list[Member]]:
        good = lambda request: parts(request, min(at_once, request.count))  # noqa: E731 - as the bad ones are
        asked = begin(alone, lambda to, request: bad(request) if to == ME else good(request))
        return await prepared(alone, X), asked

    digest, asked = play(story, here=D, manifest=FOUR)
    assert digest == digest_of(X)
    assert asked[0] == ME.member
    assert asked[-1] == SIBLING.member


def test_a_block_that_nobody_gives_is_not_prepared() -> None:
    """That is said, and no way back is left of it."""

    async def story(alone: Alone) -> tuple[str, object]:
        begin(alone, lambda *_: [])
        return await word(alone.stage_member.preparation.prepare(wanted(X))), alone.stage_member.preparation._other

    assert play(story, here=D, manifest=FOUR) == ("gone", None)


def step(alone: Alone) -> None:
    """The next iteration has begun."""
    alone.replica_state.iteration = 1


def build(alone: Alone) -> None:
    """The stage is held again, otherwise."""
    alone.stage_member.preparation.drop()
    alone.engine.draw(TAKER, 7)


@pytest.mark.parametrize("happens", [step, build])
@pytest.mark.parametrize("when", ["first", "last"])
def test_what_is_held_no_longer_is_not_prepared(happens: Callable[[Alone], None], when: str) -> None:
    """Neither where that goes while a block is on its way, nor where it does under the digest."""

    async def story(alone: Alone) -> str:
        preparation = alone.stage_member.preparation

        def given(_: Endpoint, request: GetState) -> list[bytes]:
            if when == "first":
                happens(alone)
            return parts(request, request.count)

        begin(alone, given)
        run = alone.stage_member.device.run

        async def late(rank: Any, age: int, work: Callable[[], Any]) -> Any:
            if when == "last" and getattr(work, "__name__", "") == "state_digest":
                happens(alone)
            return await run(rank, age, work)

        alone.stage_member.device.run = late  # type: ignore[method-assign,assignment]
        return await word(preparation.prepare(wanted(X)))

    assert play(story, here=D, manifest=FOUR) == "gone"


def test_a_copy_that_fails_is_refused() -> None:
    """What was held is gone by the time that a block which stays is copied."""

    async def story(alone: Alone) -> str:
        def given(_: Endpoint, request: GetState) -> list[bytes]:
            alone.engine.unload()
            return parts(request, request.count)

        begin(alone, given)
        return await word(alone.stage_member.preparation.prepare(wanted(X)))

    assert play(story, here=D, manifest=FOUR) == "gone"


def test_no_block_is_copied_of_what_is_not_to_be_cut() -> None:
    """Its iteration is another one, on the very thread that copies."""

    async def story(alone: Alone) -> None:
        begin(alone, lambda *_: [])
        spare = IntegerEngine(FOUR)
        begin_cut(spare, BlockSplit(X), TAKER)
        alone.stage_member.preparation._copy(wanted(X), spare, 2)
        alone.replica_state.iteration = 1
        alone.stage_member.preparation._copy(wanted(X), spare, 3)

    with pytest.raises(ExceptionGroup) as found:
        play(story, here=D, manifest=FOUR)
    assert found.group_contains(Refused)


@pytest.mark.parametrize("is_given", [True, False])
def test_a_cut_that_cannot_be_prepared_costs_none_that_is(is_given: bool) -> None:  # noqa: FBT001 - by a donor
    """A record that is cut as the one before may be stored here; one that is prepared takes its
    place.
    """

    async def story(alone: Alone) -> tuple[str, str]:
        preparation, gives = alone.stage_member.preparation, [True]
        begin(alone, lambda _, request: parts(request, request.count) if gives[0] else [])
        first = await prepared(alone, X)
        gives[0] = is_given
        answer = await word(preparation.prepare(wanted(Y)))
        return answer, await word(alone.stage_member.open(A, Open(cut_plan(2, X, first))))

    assert play(story, here=D, manifest=FOUR) == (("Prepared", "gone") if is_given else ("gone", "Promise"))


@pytest.mark.parametrize("turns", range(6))
def test_a_plan_that_is_opened_and_taken_back_meanwhile_changes_nothing(turns: int) -> None:
    """Another cut is prepared as the one before comes into force, and goes again while a donor is
    slow: what is prepared is that cut, or it is refused.
    """
    right = digest_of(Y)

    async def story(alone: Alone) -> tuple[str, str, str]:
        asked = begin(alone, lambda _, request: parts(request, request.count))
        member, tasks = alone.stage_member, list[asyncio.Task[str]]()
        preparation, call, run = member.preparation, alone.line.call, member.device.run
        await member.open(A, Open(plan(1)))
        first, before = await prepared(alone, X), alone.engine.state_digest()

        async def slow(to: Endpoint, request: Request, *given: Any, **named: Any) -> Reply:
            await asyncio.sleep(0.5)
            return await call(to, request, *given, **named)

        alone.line.call = slow  # type: ignore[method-assign,assignment]
        async with asyncio.TaskGroup() as group:

            async def as_it_follows(rank: Any, age: int, work: Callable[[], Any]) -> Any:
                if getattr(work, "__name__", "") == "state_digest" and not tasks:
                    tasks.append(group.create_task(prepared_or_refused(partial(preparation.prepare, wanted(Y)))))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                return await run(rank, age, work)

            member.device.run = as_it_follows  # type: ignore[method-assign,assignment]
            opened = await word(member.open(A, Open(cut_plan(2, X, first))))
            await asyncio.sleep(0.2)
            back = await word(member.open(A, Open(plan(3, base="back"))))
            assert alone.engine.state_digest() == before
        assert len(asked) <= 4
        return opened, back, tasks[0].result()

    opened, back, found = play(story, here=D, manifest=FOUR)
    assert (opened, back) == ("Promise", "Promise")
    assert found in {right, "gone"}


async def prepared_or_refused(prepare: Callable[[], Any]) -> str:
    """The digest, or why there is none."""
    answers: list[Reply] = []

    async def asked() -> Reply:
        answers.append(await prepare())
        return answers[0]

    told = await word(asked())
    if not answers:
        return told
    message = answers[0].message
    assert isinstance(message, Prepared)
    return message.state_digest
