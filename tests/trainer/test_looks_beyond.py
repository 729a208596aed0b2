"""How often a coordinator looks beyond its swarm."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from swarmfree.policy.fork_choice import Tip
from swarmfree.protocol.errors import PeerSilent, PeerUnreachable
from swarmfree.protocol.messages import Hello, Meet, Met, Request
from swarmfree.protocol.names import Endpoint, Term
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge, Rival
from swarmfree.trainer.coordinator.roster import Roster
from tests.mutants.alone import LATER, ME, OTHER_LINEAGE, A, Alone, D, endpoint, play, record
from tests.mutants.tables_lead import LAST, answer, lead
from tests.mutants.tables_roster import _roster, merge_of
from tests.trainer.test_election import announced

LATER_LEADER = endpoint("z")


def test_two_coordinators_that_look_at_each_other_do_not_go_on_for_ever() -> None:
    """The other one loses, and looks back whenever it is looked at: that is answered once, and then
    both wait for the next time.
    """

    async def story(alone: Alone, roster: Roster) -> int:
        def one(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Meet):
                return answer(to, request)
            merge.hear(Rival(loser, LATER, D, is_whole=False))
            return Reply(Met(loser.iterations, loser.lineage, loser.forced, D, LATER, whole=False))

        alone.line.answer, loser = one, Tip((0,), 1, "f" * 64)
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, [announced(D, 2)]))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))  # type: ignore[arg-type]
        merge = PartitionMerge(context, roster._lead, roster)
        merge.hear(Rival(loser, LATER, D, is_whole=False))
        alone.tasks.start(merge.keep(), "meet")
        await asyncio.sleep(alone.context.timing.remeet_s / 2)
        return sum(isinstance(request, Meet) for _, request in alone.line.asked)

    assert _roster(story, ME) <= 2


def test_a_second_look_is_taken_again_where_its_answer_was_lost() -> None:
    """Who waits for the one that gives way waits for two looks: a third one would come too late."""

    async def story(alone: Alone, roster: Roster) -> tuple[int, bool]:
        looks = 0

        def one(to: Endpoint, request: Request) -> Reply:
            nonlocal looks
            if not isinstance(request, Meet):
                return answer(to, request)
            looks += 1
            if looks == 2:
                raise PeerSilent("its answer was lost")
            return Reply(Met(winner.iterations, winner.lineage, winner.forced, D, replace(LATER, member=D.member), whole=True))

        alone.line.answer, winner = one, Tip((), 9, "e" * 64)
        merge = PartitionMerge(alone.context, roster._lead, roster)
        merge.hear(Rival(winner, LATER, D, is_whole=True))
        alone.tasks.start(merge.keep(), "meet")
        await asyncio.sleep(alone.context.timing.coordinator_silence_s + 0.5)
        return looks, roster.is_deposed

    assert _roster(story, ME) == (3, True)


def test_a_directory_that_is_silent_does_not_keep_a_run_from_its_end() -> None:
    """It shows nobody to wait for."""

    async def story(alone: Alone, roster: Roster) -> set[str]:
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 1e6))
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))  # type: ignore[arg-type]
        return await PartitionMerge(context, roster._lead, roster).beyond()

    assert _roster(story, ME) == set()


def test_who_follows_a_coordinator_that_answers_is_not_waited_for_again() -> None:
    """Its coordinator was silent at a first look, long ago, and answers at each one since."""

    async def story(alone: Alone, coordinator: Coordinator) -> list[bool]:
        merge, leader, silent = coordinator.partition_merge, endpoint("y"), [True]
        coordinator.lead.named["x"] = 2
        coordinator.lead.past.update({3: "e" * 64})
        met = Met(3, "e" * 64, (), leader, Term(1, leader.member), whole=True, record=LAST)

        def one(to: Endpoint, request: Request) -> Reply:
            if to == leader and silent[0]:
                raise PeerUnreachable("nobody listens")
            return Reply(met) if isinstance(request, Meet) else answer(to, request)

        alone.line.answer = one
        waited = list[bool]()
        for later_s in (0.0, 0.5 * merge.expects_at_most_s, merge.expects_at_most_s):
            await asyncio.sleep(later_s)
            rival = await merge._rival_of(endpoint("x"), met)
            assert (rival is None) == silent[0]
            waited.append(merge.expects_members())
            silent[0] = False
        return waited

    assert lead(story) == [True, False, False]


@pytest.mark.parametrize(("silent_count", "is_visited"), [(0, True), (1, True), (300, False)])
def test_strangers_that_are_silent_hide_no_rival_before_a_forced_run_ends(silent_count: int, *, is_visited: bool) -> None:
    """One that follows it is announced beside them. One alone may take all the time that there is;
    where they are so many that somebody cannot be asked in time, the run does not end yet.
    """
    behind = Met(1, OTHER_LINEAGE, (), LATER_LEADER, replace(LATER, member=LATER_LEADER.member), whole=True)

    async def story(alone: Alone) -> tuple[bool, int]:
        asked = set[Endpoint]()

        async def call(to: Endpoint, *_: object, silence_s: float, **__: object) -> Reply:
            asked.add(to)
            if to not in {D, LATER_LEADER}:
                await asyncio.sleep(silence_s)
                raise PeerSilent("silent")
            return Reply(replace(behind, whole=to == LATER_LEADER))

        others = [announced(endpoint(f"silent-{number}"), 1) for number in range(silent_count)]
        known = partial(asyncio.sleep, 0, [*others, announced(D, 1)])
        directory = SimpleNamespace(announcements=known, founder=partial(asyncio.sleep, 0))
        network = SimpleNamespace(here=A, call=call, verify=lambda *_: False)
        ports = replace(alone.context.ports, network=network, directory=directory)  # type: ignore[arg-type]
        manifest = replace(alone.context.manifest, timing=replace(alone.context.manifest.timing, silence_s=8.0))
        context = replace(alone.context, ports=ports, manifest=manifest)
        await merge_of(context, alone.tasks, replace(record(), iteration=1, forced=(1,)), {1: OTHER_LINEAGE}).settle()
        return LATER_LEADER in asked, round(context.now_s() / context.timing.split_wait_s)

    assert play(story, A) == (is_visited, 3)


@pytest.mark.parametrize(
    ("steps", "is_awaited"),
    [
        ("look here", False),
        ("look", True),
        ("look here silent", True),
        ("calls here", True),
        ("look calls here", True),
        ("calls look here", True),
        ("gone led here", True),
    ],
)
def test_who_leads_others_is_awaited_though_it_is_here(steps: str, *, is_awaited: bool) -> None:
    """Those that follow it may hold stages. Who follows nobody, and is here, has brought all that
    there is, as long as it is heard.
    """

    async def story(alone: Alone, coordinator: Coordinator) -> bool:
        merge, other, leader = coordinator.partition_merge, endpoint("x"), endpoint("y")
        coordinator.lead.named["x"] = 2
        coordinator.lead.past.update({3: "e" * 64})
        alone_there = Met(3, "e" * 64, (), None, None, whole=False, record=LAST)
        follows = replace(alone_there, coordinator=leader, term=Term(1, leader.member))

        def told(to: Endpoint, request: Request, met: Met, *, is_gone: bool) -> Reply:
            if is_gone and to == leader:
                raise PeerUnreachable("nobody listens")
            return Reply(met) if isinstance(request, Meet) else answer(to, request)

        for step in steps.split():
            match step:
                case "look" | "gone" | "led":
                    met = alone_there if step == "look" else follows
                    alone.line.answer = partial(told, met=met, is_gone=step == "gone")
                    await merge._rival_of(other, met)
                case "calls":
                    merge.hear(Rival(Tip((), 3, "e" * 64), LATER, other, is_whole=False))
                case "here":
                    coordinator.roster.admit(other, Hello(can_feed=False, standby=False, corpus_hash=""), 1, built=True)
                case _:
                    there = coordinator.roster.get(other.member)
                    assert there is not None
                    there.miss(alone.context.now_s())
        return merge.expects_members()

    assert lead(story) == is_awaited
