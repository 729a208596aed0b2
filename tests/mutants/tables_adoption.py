"""A stage that nobody comes for: who is asked to take in a guest, when, where a guest is placed,
and when it may go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import TypeVar

from swarmfree.protocol.errors import PeerSilent, PeerUnreachable, Refused
from swarmfree.protocol.events import StageAdopted
from swarmfree.protocol.messages import Farewell, Goodbye, Heartbeat, Hello, PlanAnswer, Request
from swarmfree.protocol.names import ABSENT, Endpoint
from swarmfree.protocol.plan import Replica
from swarmfree.protocol.ports import Reply
from swarmfree.trainer import guest
from swarmfree.trainer.coordinator.adoption import StageAdoption
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Roster
from tests.mutants.alone import ME, SIBLING, A, Alone, D, assigning, at, beat_answer, endpoint, leading, plan, play

T = TypeVar("T")
GIB = 1 << 30
LONG_S = 60.0
OF_D = endpoint("e")
"""The guest in the process of the only replica of stage 2."""


def _playing(story: Callable[[Alone, Assignment, Roster], Awaitable[T]], rooms: dict[Endpoint, int]) -> T:
    """The coordinator with the only replicas of stages 0 and 2, which tell of so much room; nobody
    has stage 1.
    """

    async def begin(alone: Alone) -> T:
        def answer(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Heartbeat) or to not in rooms:
                raise PeerSilent(f"{to.member} says nothing")
            host = "d" if to == OF_D else ""
            return Reply(replace(beat_answer({A: 0, OF_D: 1}.get(to, 2)), room_bytes=rooms[to], host=host))

        alone.line.answer = answer
        assignment, roster = assigning(alone.context, alone.tasks, leading(alone.context))
        for stage, member in ((0, A), (2, D)):
            roster.admit(member, Hello(False, False, ""), stage, built=True, is_ours=True, opened=at(1))
        await asyncio.sleep(1.0)
        return await story(alone, assignment, roster)

    return play(begin)


def _adoption(alone: Alone, roster: Roster) -> StageAdoption:
    lead = leading(alone.context)
    return StageAdoption(alone.context, lead, roster, RecoveryChoice(alone.context, lead))


def _deserted(alone: Alone, roster: Roster, spared: Collection[int] = ()) -> StageAdoption:
    """Stage 1 has been deserted for long."""
    adoption = _adoption(alone, roster)
    adoption._note_deserted([1], alone.context.now_s() - LONG_S)
    adoption.look({1}, spared)
    return adoption


def _asked(roster: Roster) -> list[str]:
    return [member.peer_id for member in roster._adopted]


def asked_after_a_while() -> object:
    """Who is asked four, and six, seconds after a stage was lost."""

    async def story(alone: Alone, _: Assignment, roster: Roster) -> list[list[str]]:
        adoption, found = _adoption(alone, roster), list[list[str]]()
        adoption.look({1}, ())
        for waits_s in (4.0, 2.0):
            await asyncio.sleep(waits_s)
            adoption.look({1}, ())
            found.append(_asked(roster))
        return found

    return _playing(story, {A: GIB, D: 2 * GIB})


def asked_after_a_guest() -> object:
    """A guest serves the stage for long, and is lost: who is asked at once, and four and six
    seconds after that, and what is told of how long the next adoption took.
    """

    async def story(alone: Alone, _: Assignment, roster: Roster) -> tuple[list[list[str]], list[int]]:
        adoption, found = _adoption(alone, roster), list[list[str]]()
        adoption.look({1}, ())
        guest_of_d = roster.admit(OF_D, Hello(False, True, "", host="d"), 1, built=True, opened=at(1))
        guest_of_d.leave()
        for _ in range(2):
            await asyncio.sleep(LONG_S)
            adoption.look({1}, ())
        roster.fence(OF_D.member, "it is gone")
        for waits_s in (0.0, 4.0, 2.0):
            await asyncio.sleep(waits_s)
            adoption.look({1}, ())
            found.append(_asked(roster))
        adoption.tell_adopted(1, 0, guest_of_d)
        return found, [round(told.seconds) for told in alone.line.told if isinstance(told, StageAdopted)]

    return _playing(story, {A: GIB, D: 2 * GIB, OF_D: 0})


def told_after_a_newcomer() -> object:
    """A host is asked, a newcomer takes the stage first, and is lost: what is told of a late guest,
    how long its adoption took, and was to take.
    """

    async def story(alone: Alone, _: Assignment, roster: Roster) -> list[tuple[float, float]]:
        adoption = _deserted(alone, roster)
        guest_of_d = roster.admit(OF_D, Hello(False, True, "", host="d"), ABSENT)
        newcomer = endpoint("n")
        roster.admit(newcomer, Hello(False, False, ""), 1)
        adoption.look({1}, ())
        roster.fence(newcomer.member, "it is gone")
        adoption.look({1}, ())
        adoption.tell_adopted(1, 0, guest_of_d)
        return [(told.seconds, told.predicted_s) for told in alone.line.told if isinstance(told, StageAdopted)]

    return _playing(story, {A: GIB, D: 2 * GIB})


def asked_beside_a_holder() -> object:
    """A guest that says goodbye serves the stage, which counts as without a replica that stays: who
    is asked for another one.
    """

    async def story(alone: Alone, _: Assignment, roster: Roster) -> list[str]:
        roster.admit(OF_D, Hello(False, True, "", host="d"), 1, built=True, opened=at(1)).leave()
        _deserted(alone, roster)
        return _asked(roster)

    return _playing(story, {A: GIB, D: GIB})


def asked_beside_a_spare() -> object:
    """Another stage has a replica to spare: who is asked."""

    async def story(alone: Alone, _: Assignment, roster: Roster) -> list[str]:
        _deserted(alone, roster, {1})
        return _asked(roster)

    return _playing(story, {A: GIB, D: GIB})


def asked_next() -> object:
    """Two have room, and no guest comes: who is asked, one after the other."""

    async def story(alone: Alone, _: Assignment, roster: Roster) -> list[str]:
        adoption, found = _deserted(alone, roster), list[str]()
        for _ in range(3):
            adoption.look({1}, ())
            found += _asked(roster)
            await asyncio.sleep(15.0)
        return found

    return _playing(story, {A: GIB, D: 2 * GIB})


def asked_without_room() -> object:
    """One has too little room, the other none: who is asked."""

    async def story(alone: Alone, _: Assignment, roster: Roster) -> list[str]:
        _deserted(alone, roster)
        return _asked(roster)

    return _playing(story, {A: 0, D: 10})


def second_guest() -> object:
    """Stage 1 is served by a guest that says goodbye, and another guest comes: where it is
    placed.
    """

    async def story(_: Alone, assignment: Assignment, roster: Roster) -> int:
        roster.admit(endpoint("g"), Hello(False, True, "", host="a"), 1, built=True, opened=at(1)).leave()
        guest_of_a = roster.admit(OF_D, Hello(False, True, "", host="c"), ABSENT)
        assignment._use_standbys()
        return guest_of_a.stage

    return _playing(story, {A: GIB, D: GIB})


def newcomer_beside_a_guest() -> object:
    """Stage 1 is served by a guest that says goodbye, stage 2 is lost, and a peer stands by: where
    it is placed.
    """

    async def story(_: Alone, assignment: Assignment, roster: Roster) -> int:
        roster.fence(SIBLING.member, "it is gone")
        roster.fence(D.member, "it is gone")
        roster.admit(endpoint("g"), Hello(False, True, "", host="a"), 1, built=True, opened=at(1)).leave()
        newcomer = roster.admit(endpoint("n"), Hello(False, True, ""), ABSENT)
        assignment._use_standbys()
        return newcomer.stage

    return _playing(story, {A: GIB, D: GIB})


def guest_that_is_let_go() -> object:
    """A guest's goodbye is answered by a coordinator whose plan names it, by one whose plan names
    another one in its place, and by one whose plan is older than the death of that one: whether it
    goes.
    """

    async def story(alone: Alone) -> list[bool]:
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=A)
        peer, found = SimpleNamespace(context=alone.context, stage_member=alone.stage_member, coordinator=None), list[bool]()
        for there, is_up in ((ME, True), (SIBLING, True), (SIBLING, False)):
            told = replace(plan(2), replicas=(plan(2).replicas[0], (Replica(there),), plan(2).replicas[2]))

            def answer(to: Endpoint, request: Request, told: object = told, is_up: object = is_up) -> Reply:
                if to == SIBLING and not is_up:
                    raise PeerUnreachable("nobody listens")
                return Reply(Farewell() if isinstance(request, Goodbye) else PlanAnswer(told, ""))  # type: ignore[arg-type]

            alone.line.answer = answer
            found.append(await guest._is_let_go(peer))  # type: ignore[arg-type]
        return found

    return play(story)


def hello_of_an_excluded_host_s_guest() -> object:
    """A peer says hello as the guest of one that was excluded, and as the guest of another: what it
    hears.
    """

    async def story(alone: Alone) -> list[str]:
        coordinator, found = Coordinator(alone.context, alone.tasks), list[str]()
        coordinator.lead.exclude(["c"])
        for host in ("c", "d"):
            try:
                coordinator.hello(endpoint(f"guest of {host}"), Hello(False, True, "", host=host))
                found.append("placed")
            except Refused as refusal:
                found.append(str(refusal.kind))
        return found

    return play(story)
