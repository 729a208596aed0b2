"""What comes to one member while it waits for its device: nothing that it promised meanwhile is
overwritten when it goes on.

Open, Claim, Seal and Commit come one at a time, and so does the end of the work on a plan. A
Heartbeat, a Build and the call to another lineage wait for none of them. What comes of all of them
is what would have come of them one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from swarmfree.protocol.actions import Fresh
from swarmfree.protocol.errors import Refused
from swarmfree.protocol.messages import Build, Claim, Heartbeat, Open, Place, Seal
from swarmfree.protocol.names import Endpoint, Position, Term
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.member.member import SILENT_FOR_LONG
from swarmfree.trainer.membership import Membership
from tests.mutants.alone import LATER, ME, SIBLING, A, Alone, D, at, plan, play, record, word

WAIT_S = 0.0005
"""Less than one piece of the device's work takes."""


async def _beside(first: Awaitable[str], *words: Callable[[], Awaitable[str]]) -> list[str]:
    """The answers to a word that waits for the device, and to those that come meanwhile."""
    async with asyncio.TaskGroup() as group:

        async def answer(word: Awaitable[str]) -> str:
            return await word

        waiting = [group.create_task(answer(first))]
        for later in words:
            await asyncio.sleep(WAIT_S / len(words))
            waiting.append(group.create_task(answer(later())))
    return [task.result() for task in waiting]


async def _rejoin(alone: Alone, successor: Endpoint = D) -> str:
    """What a call by A to another coordinator comes to."""
    try:
        await alone.stage_member.rejoin(A, successor)
    except Refused as refusal:
        return str(refusal.kind)
    return "rejoined"


def _build(position: Position) -> Build:
    return Build(position, Fresh(1, 0, "lost"), 0, GENESIS_LINEAGE, None)


@pytest.mark.parametrize("later", ["heartbeat", "build"])
def test_a_higher_promise_ends_an_open_that_is_under_way(later: str) -> None:
    """A Heartbeat or a Build of a higher term comes while an Open waits: the Open is refused, and
    the higher promise stays.
    """

    async def story(alone: Alone) -> tuple[str, Position | None, object]:
        words = {
            "heartbeat": lambda: word(alone.stage_member.heartbeat(D, Heartbeat(at(1, LATER), 0, 0.0))),
            "build": lambda: word(alone.builder.build(D, _build(at(1, LATER)))),
        }
        alone.stage_member.silent_ticks = SILENT_FOR_LONG
        opened, _ = await _beside(word(alone.stage_member.open(A, Open(plan(1)))), words[later])
        return opened, alone.replica_state.promised, alone.replica_state.plan

    assert play(story) == ("behind", at(1, LATER), None)


def test_a_later_word_of_the_same_coordinator_ends_an_open_that_is_under_way() -> None:
    """A Build of the same term in a later position comes while an Open waits: the Open is an older
    word, and says so.
    """

    async def story(alone: Alone) -> tuple[str, Position | None]:
        opening = word(alone.stage_member.open(A, Open(plan(1))))
        opened, _ = await _beside(opening, lambda: word(alone.builder.build(A, _build(at(2)))))
        return opened, alone.replica_state.promised

    assert play(story) == ("superseded", at(2))


def test_a_heartbeat_ends_the_call_to_another_lineage_that_is_under_way() -> None:
    """A higher term is promised while a member leaves its coordinator: it stays promised, and the
    old coordinator's Seal is not stored.
    """

    async def story(alone: Alone) -> tuple[list[str], Position | None, str]:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        alone.stage_member.lose_coordinator()
        heartbeat = Heartbeat(at(1, LATER), 0, 0.0)
        words = await _beside(_rejoin(alone, SIBLING), lambda: word(alone.stage_member.heartbeat(D, heartbeat)))
        return words, alone.replica_state.promised, await word(alone.stage_member.seal(Seal(at(2), record())))

    assert play(story) == (["stale", "HeartbeatAnswer"], at(1, LATER), "behind")


def test_a_promise_to_a_candidate_is_renounced_with_the_lineage() -> None:
    """A Claim was ahead of the call to another lineage: what was promised to it counts for the
    vote, as if the call had come last.
    """

    async def story(alone: Alone) -> tuple[list[str], Position | None, list[str]]:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        alone.stage_member.silent_ticks = SILENT_FOR_LONG
        third, second = Term(3, D.member), Term(2, ME.member)
        words = await _beside(
            word(alone.stage_member.open(A, Open(plan(1)))),
            lambda: word(alone.stage_member.claim(D, Claim(at(1, third), only_asking=False))),
            lambda: _rejoin(alone, SIBLING),
        )
        promised = alone.replica_state.promised
        votes = [await word(alone.stage_member.seal(Seal(at(2, term), record()))) for term in (second, third)]
        return words, promised, votes

    words, promised, votes = play(story)
    assert words[1:] == ["Promise", "rejoined"]
    assert promised is None
    assert votes == ["behind", "not_yet"]


def test_an_open_of_a_lineage_that_is_left_meanwhile_is_refused() -> None:
    """A member is called to another lineage while an Open of its coordinator waits: it promises
    that one nothing more.
    """

    async def story(alone: Alone) -> list[str]:
        await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
        return await _beside(word(alone.stage_member.open(A, Open(plan(2)))), lambda: _rejoin(alone))

    assert play(story) == ["behind", "rejoined"]


def test_a_later_founders_open_is_not_forgotten_with_the_plan_before() -> None:
    """A later founder opens its plan while an earlier one's is about to be forgotten: the new plan
    stays in force.
    """

    async def story(alone: Alone) -> tuple[list[str], bool]:
        await alone.stage_member.open(A, Open(plan(1)))
        alone.stage_member.silent_ticks = SILENT_FOR_LONG
        later = plan(1, LATER, "b1")

        async def forget() -> str:
            await alone.stage_member.forget_plan()
            return "forgotten"

        words = await _beside(word(alone.stage_member.open(D, Open(later))), forget)
        return words, alone.replica_state.plan == alone.replica_state.known_plan == later

    assert play(story) == (["Promise", "forgotten"], True)


def test_a_place_does_not_take_a_member_from_whoever_heartbeats_meanwhile() -> None:
    """A higher term heartbeats while a Hello is under way: the member follows that one, whoever
    gave it a place.
    """

    async def story(alone: Alone) -> tuple[Endpoint | None, Endpoint | None]:
        async def lead(inherited: object) -> bool:
            raise AssertionError(inherited)

        alone.line.answer = lambda to, _: Reply(Place(to, 1, "", accepted=True))
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead)
        await membership._ask(A)
        placed = alone.replica_state.coordinator
        async with asyncio.TaskGroup() as group:
            group.create_task(membership._ask(SIBLING))
            await asyncio.sleep(alone.line.delay_s / 2)
            await alone.stage_member.heartbeat(D, Heartbeat(at(1, LATER), 0, 0.0))
        return placed, alone.replica_state.coordinator

    assert play(story) == (A, D)
