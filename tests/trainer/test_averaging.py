"""Sums at the owner of a part: who waits for them, whom they blame, and what is left of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest

from swarmfree.protocol.messages import Open, Reduce, Reduced, RoundFailed, TakeRoll
from swarmfree.protocol.names import Endpoint, Member, PartialSumId
from swarmfree.protocol.records import MicrobatchSet, PartialSum, Roll
from swarmfree.trainer.context import PayloadAtHand
from swarmfree.trainer.member.averaging import Averaging
from tests.mutants.alone import ME, SIBLING, A, Alone, at, endpoint, plan, play

OTHER, THIRD = endpoint("other"), endpoint("third")
GIVERS = (SIBLING, OTHER, THIRD)
ROLL = Roll(
    0,
    "b0",
    1,
    tuple(PartialSum(PartialSumId(giver.member, 0), MicrobatchSet.of([n]), (n,)) for n, giver in enumerate(GIVERS)),
    (ME, *GIVERS),
)
"""This peer owns part 0, and has nothing to add."""


def _summing(story: Callable[[Alone, Averaging], Awaitable[Any]]) -> Any:
    """What comes of a story while the round of `ROLL` is under way, and no other owner answers."""

    async def main(alone: Alone) -> Any:
        averaging = alone.stage_member.averaging
        alone.line.delay_s = 60
        await alone.stage_member.open(A, Open(plan(1)))
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(averaging.take(TakeRoll(at(2), ROLL)))
            await asyncio.sleep(0.02)
            try:
                return await story(alone, averaging)
            finally:
                taking.cancel()

    return play(main)


async def _give(averaging: Averaging, giver: Endpoint, data: bytes) -> bytes:
    """Contribute this to part 0; the sum that comes back."""
    reply = await averaging.reduce(giver.member, Reduce(ROLL.round(), 0, contributes=True), PayloadAtHand(data))
    reply.expect(Reduced)
    return reply.payload


def test_a_sibling_that_hangs_up_takes_the_sum_from_nobody() -> None:
    """Its call ends while others are waited for; they get the sum, and so does it when it calls
    again.
    """

    async def story(alone: Alone, averaging: Averaging) -> list[bytes]:
        zero = alone.engine.contribution([], 0)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_give(averaging, SIBLING, zero))
            staying = group.create_task(_give(averaging, OTHER, zero))
            await asyncio.sleep(0.02)
            waiting.cancel()
            await asyncio.sleep(0.02)
            last = await _give(averaging, THIRD, zero)
        return [await staying, last, await _give(averaging, SIBLING, zero)]

    first, *others = _summing(story)
    assert others == [first, first]


@pytest.mark.parametrize(
    ("wrong", "suspect"),
    [
        ({OTHER}, OTHER.member),
        ({OTHER, THIRD}, OTHER.member),
        ({SIBLING, THIRD}, SIBLING.member),
        (set(GIVERS), None),
    ],
    ids=["one", "the last two", "first and last", "all"],
)
def test_of_sums_that_are_not_finite_the_first_is_blamed(wrong: Collection[Endpoint], suspect: Member | None) -> None:
    """In the roll's order: it leaves after two rounds, and then the next one is blamed. Nobody is
    where all are wrong: they get their sum.
    """

    async def story(alone: Alone, averaging: Averaging) -> Member | None:
        given = {giver: bytes([n]) + alone.engine.contribution([], 0)[1:] for n, giver in enumerate(GIVERS)}
        spoilt = {given[giver] for giver in wrong}

        def reduce(contributions: Sequence[bytes]) -> tuple[bytes, float]:
            return contributions[0], math.nan if spoilt & {*contributions} else 1.0

        alone.engine.reduce = reduce  # type: ignore[method-assign]  # integers are always finite
        async with asyncio.TaskGroup() as group:
            giving = [group.create_task(_give(averaging, giver, data)) for giver, data in given.items()]
            await asyncio.sleep(0.02)
            if all(waiting.done() for waiting in giving):
                return None
            for waiting in giving:
                waiting.cancel()
        outcome = (await averaging.take(TakeRoll(at(2), ROLL))).message
        assert isinstance(outcome, RoundFailed) and outcome.spoilt
        return outcome.suspect

    assert _summing(story) == suspect


def test_an_owner_keeps_no_contribution_once_it_has_the_sum() -> None:
    """Until the next roll comes they would be as large as the state, once for each member. What is
    given again by then is not taken again.
    """

    async def story(alone: Alone, averaging: Averaging) -> list[int]:
        zero, round_ = alone.engine.contribution([], 0), averaging._require_round(ROLL.round())
        kept = []
        async with asyncio.TaskGroup() as group:
            for giver in GIVERS:
                group.create_task(_give(averaging, giver, zero))
                await asyncio.sleep(0.01)
                kept.append(len(round_.sums[0].contributions))
        await _give(averaging, SIBLING, zero)
        return [*kept, len(round_.sums[0].contributions)]

    assert _summing(story) == [1, 2, 0, 0]
