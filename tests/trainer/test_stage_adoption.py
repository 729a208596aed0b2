"""Whom a coordinator asks to take in a guest, beside what the tables of adoption say, and what it
foresees of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pytest

from swarmfree.policy.planner.adoption import predicted_iteration_s, predicted_seconds
from swarmfree.policy.planner.measured_fleet import MeasuredPeer
from swarmfree.protocol.actions import Copy, Fresh, Replay
from swarmfree.protocol.errors import PeerSilent
from swarmfree.protocol.events import AdoptionAsked
from swarmfree.protocol.messages import Build, Built, Heartbeat, Hello, Request
from swarmfree.protocol.names import ENDS_STAGE, Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.coordinator.adoption import MEASURED_BYTES_MIN, StageAdoption
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from tests.mutants.alone import MANIFEST, SIBLING, A, Alone, D, assigning, at, beat_answer, endpoint, leading, play

T = TypeVar("T")
GIB = 1 << 30
GUEST = endpoint("g")
TEXT = MANIFEST.data.corpus_hash
SINCE_S = 60.0
A_S, D_S = 0.02, 0.05
"""What A computes for a microbatch at the ends, and D at stage 2."""


class Scene:
    """A coordinator, with A at the ends and D at stage 2, who have room; nobody has stage 1."""

    def __init__(self, alone: Alone) -> None:
        self.alone, self.context = alone, alone.context
        self.stages = {A: ENDS_STAGE, D: 2}
        alone.line.answer = self._answer
        self.assignment, self.roster = assigning(alone.context, alone.tasks, leading(alone.context))
        self.lead = leading(alone.context)
        self.choice = RecoveryChoice(alone.context, self.lead)
        self.adoption = StageAdoption(alone.context, self.lead, self.roster, self.choice)
        self.admit(A, Hello(True, False, TEXT))
        self.admit(D, Hello(False, False, ""))

    def _answer(self, to: Endpoint, request: Request) -> Reply:
        if not isinstance(request, Heartbeat) or to not in self.stages:
            raise PeerSilent(f"{to.member} says nothing")
        answer = replace(beat_answer(self.stages[to]), room_bytes=GIB, host="d" if to == GUEST else "")
        return Reply(replace(answer, seconds_per_microbatch=A_S if to == A else D_S))

    def admit(self, member: Endpoint, hello: Hello, *, built: bool = True) -> None:
        """A member of its stage."""
        self.roster.admit(member, hello, self.stages[member], built=built, is_ours=True, opened=at(1) if built else None)

    def look(self, *stages: int) -> list[str]:
        """These have been deserted for long, and it looks: who is asked."""
        self.adoption._deserted_since_s = dict.fromkeys(stages, self.context.now_s() - SINCE_S)
        self.adoption.look(stages, ())
        return [member.peer_id for member in self.roster._adopted]

    def asked(self) -> AdoptionAsked:
        """What was told last."""
        return [told for told in self.alone.line.told if isinstance(told, AdoptionAsked)][-1]


def scene(story: Callable[[Scene], Awaitable[T]]) -> T:
    """What comes of a story, a second after everybody has come."""

    async def begin(alone: Alone) -> T:
        found = Scene(alone)
        await asyncio.sleep(1.0)
        return await story(found)

    return play(begin)


def test_of_two_that_are_as_near_the_first_by_name_is_asked() -> None:
    """Both have as much room; the tests below take away what keeps A first."""

    async def story(here: Scene) -> list[str]:
        return here.look(1)

    assert scene(story) == ["a"]


@pytest.mark.parametrize("reason", ["leaves", "is silent", "has no stage yet", "has said nothing yet"])
def test_who_is_not_asked(reason: str) -> None:
    """One that is about to go, is waited for, has yet to build its own stage or has told nothing of
    its memory takes in nobody.
    """

    async def story(here: Scene) -> list[str]:
        participant = here.roster.get(A.member)
        assert participant is not None
        match reason:
            case "leaves":
                participant.leave()
            case "is silent":
                participant.miss(here.context.now_s())
            case "has no stage yet":
                participant.lose()
            case _:
                participant.answer = None
        return here.look(1)

    assert scene(story) == ["d"]


def test_a_peer_is_asked_for_one_stage_at_a_time_and_for_none_that_is_lost_no_more() -> None:
    """Two stages are lost, and A alone is left: it is asked for one of them; as soon as somebody is
    about to build that one, for the other.
    """

    async def story(here: Scene) -> list[dict[str, int]]:
        found = list[dict[str, int]]()
        here.roster.fence(D.member, "it is gone")
        here.look(1, 2)
        found.append({member.peer_id: stage for member, stage in here.roster._adopted.items()})
        here.stages[SIBLING] = 1
        here.admit(SIBLING, Hello(False, False, ""), built=False)
        here.look(1, 2)
        found.append({member.peer_id: stage for member, stage in here.roster._adopted.items()})
        return found

    assert scene(story) == [{"a": 1}, {"a": 2}]


def test_one_that_is_gone_is_not_waited_for() -> None:
    """The next one is asked at once."""

    async def story(here: Scene) -> list[list[str]]:
        found = [here.look(1)]
        here.roster.fence(A.member, "it is gone")
        return [*found, here.look(1)]

    assert scene(story) == [["a"], ["d"]]


@pytest.mark.parametrize(("commits", "asked"), [(False, "d"), (True, "a")])
def test_after_a_commit_nobody_was_asked_in_vain(*, commits: bool, asked: str) -> None:
    """Who was asked for one loss is not the last to be asked for the next one."""

    async def story(here: Scene) -> list[str]:
        here.look(1)
        await asyncio.sleep(16.0)
        if commits:
            here.adoption.commit()
        return here.look(1)

    assert scene(story) == [asked]


@pytest.mark.parametrize(("corpus_hash", "asked"), [(TEXT, ["d"]), ("another text", [])])
def test_the_ends_go_to_who_has_the_run_s_text(corpus_hash: str, asked: list[str]) -> None:
    """Another one is of no use."""

    async def story(here: Scene) -> list[str]:
        here.roster.fence(A.member, "it is gone")
        participant = here.roster.get(D.member)
        assert participant is not None
        participant.greet(Hello(True, False, corpus_hash))
        return here.look(ENDS_STAGE)

    assert scene(story) == asked


def test_what_is_foreseen_of_an_iteration_counts_a_guest_for_its_host() -> None:
    """D's guest serves stage 1 already, and the ends are lost: D will compute three stages. What
    members have measured goes in, with what an iteration took by the last commits.
    """

    async def story(here: Scene) -> tuple[float, float]:
        for _ in range(2):
            await asyncio.sleep(7.0)
            here.choice.commit()
        here.stages[GUEST] = 1
        here.admit(GUEST, Hello(False, True, "", host="d"))
        await asyncio.sleep(1.0)
        here.roster.fence(A.member, "it is gone")
        for member in (D, GUEST):
            participant = here.roster.get(member.member)
            assert participant is not None
            participant.greet(replace(participant.hello, can_feed=True, corpus_hash=TEXT))
        here.look(ENDS_STAGE)
        peers = [MeasuredPeer("d", 1, D_S), MeasuredPeer("d", 2, D_S)]
        return here.asked().predicted_iteration_s, predicted_iteration_s(MANIFEST, 7.0, peers, ENDS_STAGE, "d", 4)

    found, right = scene(story)
    assert found == pytest.approx(right)
    assert found > 7.0


@pytest.mark.parametrize(("size", "is_measured"), [(MEASURED_BYTES_MIN, True), (MEASURED_BYTES_MIN - 1, False)])
def test_a_transfer_is_foreseen_by_the_last_large_one(size: int, *, is_measured: bool) -> None:
    """A small one says nothing of a link."""

    async def story(here: Scene) -> float:
        here.adoption.note_build(size, 2.0)
        here.look(1)
        return here.asked().predicted_s

    assert scene(story) == predicted_seconds(MANIFEST, 1, size / 2.0 if is_measured else None)


@pytest.mark.parametrize("is_replayed", [True, False])
def test_what_the_guest_replays_is_foreseen(monkeypatch: pytest.MonkeyPatch, *, is_replayed: bool) -> None:
    """Two iterations of two lost stages by its shadows, or nothing where it is
    drawn anew.
    """

    async def story(here: Scene) -> float:
        replay = Replay(1, 1, (A, A), here.lead.iteration - 2, (A,), (D,), "they are lost")
        action = replay if is_replayed else Fresh(1, 0, "it is lost")
        monkeypatch.setattr(here.choice, "choose", lambda *_: action)
        here.look(1)
        return here.asked().predicted_s

    replayed_s = 2 * 2 * MANIFEST.batch.microbatches * D_S if is_replayed else 0.0
    assert scene(story) == pytest.approx(predicted_seconds(MANIFEST, 1, None) + replayed_s)


@pytest.mark.parametrize("is_adopted", [True, False])
def test_an_adopted_stage_holds_nothing_up(*, is_adopted: bool) -> None:
    """Where no replica can be spared for a stage that nobody serves who stays, all are asked
    whether they are there before each iteration; not while a guest serves it, for however long.
    """

    async def story(here: Scene) -> float:
        here.stages[GUEST] = 1
        if is_adopted:
            here.admit(GUEST, Hello(False, True, "", host="d"))
            participant = here.roster.get(GUEST.member)
            assert participant is not None
            participant.leave()
        here.assignment._lost_since_s = {1: here.context.now_s() - SINCE_S}
        begun_s = here.context.now_s()
        await here.assignment._move_spares()
        return here.context.now_s() - begun_s

    assert (scene(story) > 0) is not is_adopted


@pytest.mark.parametrize("has_begun", [False, True])
def test_nobody_is_asked_before_the_run_begins(*, has_begun: bool) -> None:
    """Peers come one by one then, and each would only be replaced; later a stage that is missing
    for half a minute is lost.
    """

    async def story(here: Scene) -> list[str]:
        here.assignment._opened = has_begun
        with suppress(TimeoutError):
            async with asyncio.timeout(30.0):
                await here.assignment.fill()
        return [member.peer_id for member in here.roster._adopted]

    assert bool(scene(story)) is has_begun


def test_every_state_that_comes_says_how_fast_states_come() -> None:
    """Whatever it was built for."""

    async def story(here: Scene) -> float | None:
        here.stages[GUEST] = 2
        newcomer = here.roster.admit(GUEST, Hello(False, False, ""), 2)
        before = here.alone.line.answer

        def built(to: Endpoint, request: Request) -> Reply:
            return Reply(Built("digest", 2.0, MEASURED_BYTES_MIN, 0)) if isinstance(request, Build) else before(to, request)

        here.alone.line.answer = built
        await here.assignment._build(newcomer, Copy(2, (D,), "copy it"), here.lead.present, limit_s=None)
        return here.assignment._adoption._bytes_per_s

    assert scene(story) == MEASURED_BYTES_MIN / 2.0
