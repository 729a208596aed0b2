"""Who is a member, as far as one peer knows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.protocol.messages import Heartbeat, Open
from swarmfree.trainer.access_control import AccessControl
from tests.mutants.alone import ME, SIBLING, A, Alone, endpoint, plan, play, record


def test_sides_of_a_split_that_meet_again_are_no_strangers() -> None:
    """Who had a place as the records that are kept were decided, or in a swarm that this peer
    coordinates, does not share with them, and one that was excluded does.
    """
    lost, named, convicted = endpoint("lost"), endpoint("named"), endpoint("convicted")
    gone = {named.member.peer_id: 1, convicted.member.peer_id: 1}
    lead = SimpleNamespace(named=gone, excluded=(convicted.member.peer_id,))

    async def story(alone: Alone) -> list[str]:
        mine: list[Any] = [None]
        access = AccessControl(alone.context, alone.stage_member, lambda: mine[0])
        await alone.stage_member.open(A, Open(plan(1)))
        before = replace(record(), electorate=(ME.member, lost.member))
        alone.replica_state.apply(before)
        alone.replica_state.apply(replace(record(before=before.lineage()), iteration=1, electorate=(ME.member,)))
        asked = (lost, named, convicted)
        found = [" ".join(access.standing_of(one.member.peer_id).name for one in asked)]
        mine[0] = SimpleNamespace(lead=lead, roster=SimpleNamespace(names=lambda: (), participants=lambda: ()))
        return [*found, " ".join(access.standing_of(one.member.peer_id).name for one in asked)]

    assert play(story) == ["FORMER NONE NONE", "FORMER FORMER NONE"]


def test_who_builds_a_stage_is_served_like_a_member() -> None:
    """As the last heartbeat told; who stands by beside it is not."""
    builder, standby = endpoint("builder"), endpoint("standby")

    async def story(alone: Alone) -> list[str]:
        access, found = AccessControl(alone.context, alone.stage_member, lambda: None), list[str]()
        await alone.stage_member.open(A, Open(plan(1)))
        for placed in (1, 0):
            told = Heartbeat(plan(1).position, 0, 0.0, admitted=(builder.member, standby.member), placed=placed)
            await alone.stage_member.heartbeat(A, told)
            found.append(" ".join(access.standing_of(one.member.peer_id).name for one in (builder, standby)))
        return found

    assert play(story) == ["MEMBER ADMITTED", "ADMITTED ADMITTED"]


def test_a_coordinator_knows_by_itself_who_builds() -> None:
    """It may be asked for its weights before any heartbeat has told."""
    there = [
        SimpleNamespace(member=endpoint("builder").member, stage=1),
        SimpleNamespace(member=endpoint("standby").member, stage=-1),
    ]
    roster = SimpleNamespace(names=lambda: [one.member for one in there], participants=lambda: there)
    mine = SimpleNamespace(lead=SimpleNamespace(named={}, excluded=()), roster=roster)

    async def story(alone: Alone) -> list[str]:
        access = AccessControl(alone.context, alone.stage_member, lambda: cast("Any", mine))
        await alone.stage_member.open(A, Open(plan(1)))
        return [access.standing_of(one.member.peer_id).name for one in there]

    assert play(story) == ["MEMBER", "ADMITTED"]


def test_who_has_a_place_is_in_the_plan_or_decides() -> None:
    """Before any plan, and while nobody leads, all are alike: hundreds may ask each other who does.
    Who decides and was left out of the plan still has a word.
    """
    voter, standby = endpoint("voter"), endpoint("standby")

    async def story(alone: Alone) -> list[str]:
        access, found = AccessControl(alone.context, alone.stage_member, lambda: None), list[str]()

        def look() -> None:
            asked = (A, SIBLING, voter, standby, endpoint("stranger"))
            found.append(" ".join(access.standing_of(one.member.peer_id).name for one in asked))

        look()
        alone.stage_member.admitted = {standby.member: 1.0}
        await alone.stage_member.open(A, Open(plan(1)))
        look()
        alone.replica_state.apply(replace(record(), electorate=(ME.member, voter.member)))
        look()
        alone.stage_member.lose_coordinator()
        look()
        return found

    assert play(story) == [
        "MEMBER MEMBER MEMBER MEMBER MEMBER",
        "MEMBER MEMBER NONE ADMITTED NONE",
        "MEMBER MEMBER MEMBER ADMITTED NONE",
        "MEMBER MEMBER MEMBER MEMBER MEMBER",
    ]
