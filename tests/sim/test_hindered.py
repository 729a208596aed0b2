"""Whom faults may hit, and who was kept from hearing until when, as the check of the end of a run
asks it (I7).
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.election import founders_term
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.events import Placed
from swarmfree.protocol.messages import Claim, GetPlan, Goodbye, Hello, Redo
from swarmfree.protocol.names import Endpoint, Founder, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.ports import Reply
from swarmfree.sim import bounds, partitions
from swarmfree.sim.fault_injector import Mischief
from swarmfree.sim.faults import CALM
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.loop import VirtualLoop
from swarmfree.sim.population import Cast
from swarmfree.sim.rehearsal import Factories, _Rehearsal
from swarmfree.sim.setup import Setup
from swarmfree.sim.simulated_peer import Life
from swarmfree.sim.startup_faults import Opening
from tests.mutants.alone import beat_answer
from tests.sim.test_liveness import MANIFEST, Scene


def test_a_break_that_ends_frees_nobody_whom_another_one_holds() -> None:
    """One peer is cut off by a partition and by a cut: it is hindered until both are over."""
    scene = Scene()
    stage, silent = SimpleNamespace(hub=scene.hub, loop=scene.loop), SimpleNamespace(tell=lambda who, what: None)
    troupe = Cast(cast("Any", stage), cast("Any", None), cast("Any", silent), random.Random)
    troupe.lives = cast("dict[Any, Life]", scene.troupe.lives)
    partition, cut = partitions.partition({"one"}), partitions.cut("one", "leader")
    troupe.begin_break(partition, "partition", None)
    troupe.begin_break(cut, "cut", None)
    troupe.end_break(cut)
    assert troupe.hindered_s["one"] == math.inf, "the partition lasts"
    assert troupe.hindered_s["leader"] == math.inf, "it does not reach the one"
    troupe.end_break(partition)
    assert set(troupe.hindered_s.values()) == {0.0}, "nothing lasts"
    scene.loop.close()


def test_a_plan_of_a_side_that_loses_names_nobody_who_has_to_hear_of_the_end() -> None:
    """The lesser side of a split has the higher term: who follows it alone is no member."""
    scene, (tip, old) = Scene(), ("1" * 64, "0" * 64)
    silent = SimpleNamespace(tell=lambda who, what: None)
    mischief = Mischief(
        Setup(MANIFEST, CALM), (), scene.hub, cast("Cast", scene.troupe), cast("Any", silent), lambda plan: plan.lineage == tip
    )
    for number, name, lineage in ((1, "leader", old), (2, "other", old), (1, "leader", tip), (2, "other", old)):
        member = Member(name, "1")
        position = Position(Term(number, member), 5, 0, 1)
        mischief.see(Plan(position, "0" * 16, lineage, ((Replica(Endpoint(member, ())),),), (), None, 4), member)
    assert mischief.plan is not None
    assert [endpoint.member.peer_id for endpoint in mischief.plan.members()] == ["leader"]
    scene.loop.close()


def test_a_member_is_told_who_else_there_is_by_a_plan_that_it_promises() -> None:
    """Of whom N3 asks that they forbid nobody: of the coordinator, of who has promised a plan,
    also where a newer one names it that has not come, and not of who was left out meanwhile. Whom
    they may not forbid: those that the promised plans name, unless they were left out since.
    """
    scene, silent = Scene(), SimpleNamespace(tell=lambda who, what: None)
    mischief = Mischief(Setup(MANIFEST, CALM), (), scene.hub, cast("Cast", scene.troupe), cast("Any", silent), lambda plan: True)

    def see(revision: int, *names: str) -> Plan:
        leader, stages = Member("leader", "1"), tuple((Replica(Endpoint(Member(name, "1"), ())),) for name in names)
        plan = Plan(Position(Term(1, leader), 0, 0, revision), "0" * 16, "1" * 64, stages, (), None, 4)
        mischief.see(plan, leader)
        return plan

    def told() -> dict[str, list[str]]:
        return {member.peer_id: sorted(one.peer_id for one in those) for member, those in mischief.told.items()}

    everybody = ["leader", "one", "two"]
    first = see(1, "leader", "one", "two")
    assert told() == {"leader": everybody}
    mischief.promised(Member("one", "1"), first)
    assert told() == {"leader": everybody, "one": everybody}
    see(2, "leader", "one", "two")
    assert told() == {"leader": everybody, "one": everybody}
    see(3, "leader", "two")
    mischief.promised(Member("one", "1"), first)
    fourth = see(4, "leader", "one", "two")
    assert told() == {"leader": everybody}, "an earlier plan came late, and the one that calls it back is on its way"
    mischief.promised(Member("one", "1"), fourth)
    mischief.promised(Member("two", "1"), fourth)
    assert told() == dict.fromkeys(everybody, everybody)
    see(5, "leader", "one")
    sixth = see(6, "leader", "one", "two", "new")
    assert told()["one"] == ["leader", "one"], "nobody has told it of the others since they are there"
    mischief.promised(Member("one", "1"), sixth)
    assert told()["one"] == ["leader", "new", "one", "two"]
    scene.loop.close()


def test_who_leads_or_follows_another_side_knows_whom_that_names() -> None:
    """The side that goes on names all four. Two of them have gone over to another one, which one of
    them leads: both may forbid whom that has not got, and know each other still.
    """
    scene, (tip, other) = Scene(), ("1" * 64, "2" * 64)
    silent = SimpleNamespace(tell=lambda who, what: None)
    mischief = Mischief(
        Setup(MANIFEST, CALM), (), scene.hub, cast("Cast", scene.troupe), cast("Any", silent), lambda plan: plan.lineage == tip
    )
    leader, rival, one, two = (Member(name, "1") for name in ("leader", "rival", "one", "two"))

    def plan(term: Term, lineage: str, *members: Member) -> Plan:
        return Plan(Position(term, 5, 0, 1), "0" * 16, lineage, tuple((Replica(Endpoint(m, ())),) for m in members), (), None, 4)

    whole = plan(Term(1, leader), tip, leader, rival, one, two)
    mischief.see(whole, leader)
    for member in (rival, one, two):
        mischief.promised(member, whole)
    part = plan(Term(2, rival), other, rival, one)
    mischief.see(part, rival)
    mischief.promised(one, part)
    assert mischief.told == {
        leader: {leader, rival, one, two},
        rival: {rival, one},
        one: {rival, one},
        two: {leader, rival, one, two},
    }
    scene.loop.close()


def test_what_a_member_may_not_forbid() -> None:
    """Nothing of whom it was told; of one that was left out since, all but what that one does while
    it has not heard so: it claims, leads, and sums up. Nor the word of a coordinator that leaves,
    but of one that has sent no plan. Anything, once it has dropped its plan.
    """
    scene, silent = Scene(), SimpleNamespace(tell=lambda who, what: None)
    mischief = Mischief(Setup(MANIFEST, CALM), (), scene.hub, cast("Cast", scene.troupe), cast("Any", silent), lambda plan: True)
    leader, one, two = (Member(name, "1") for name in ("leader", "one", "two"))
    at = Position(Term(1, leader), 0, 0, 1)
    claim, question, order = Claim(at, only_asking=False), GetPlan(), Redo(at, "0" * 16, ())
    for revision, names, owed in ((1, (leader, one, two), (claim, question, order)), (2, (leader, one), (question,))):
        stages = tuple((Replica(Endpoint(member, ())),) for member in names)
        position = Position(Term(1, leader), 0, 0, revision)
        plan = Plan(position, "0" * 16, "1" * 64, stages, (), None, 4)
        assert not mischief.may_not_forbid(two, one, question), "nothing is promised"
        mischief.see(plan, leader)
        mischief.promised(one, plan)
        assert tuple(r for r in (claim, question, order) if mischief.may_not_forbid(two, one, r)) == owed
        assert mischief.may_not_forbid(leader, one, claim)
        leaves = Goodbye(run_over=False, finished=False, why="it leaves", successor=Endpoint(one, ()))
        assert mischief.may_not_forbid(leader, one, leaves)
        assert not mischief.may_not_forbid(two, one, leaves)
        assert mischief.may_not_forbid(leader, one, replace(leaves, rejoin=True))
        mischief.dropped(one)
        assert not mischief.may_not_forbid(leader, one, claim), "it has dropped its plan"
    scene.loop.close()


@pytest.mark.parametrize("leads_on", [False, True])
def test_whose_sender_follows_another_is_not_the_newest_plan(leads_on: bool) -> None:  # noqa: FBT001 - a pytest parameter
    """The sender of a plan of term 3 has promised one of term 1: a later plan of term 3, of whom a
    lower name leads, is newer. Not where it leads on.
    """
    scene, silent = Scene(), SimpleNamespace(tell=lambda who, what: None)
    mischief = Mischief(Setup(MANIFEST, CALM), (), scene.hub, cast("Cast", scene.troupe), cast("Any", silent), lambda plan: True)
    lower, higher = Member("a", "1"), Member("b", "1")

    def planned(number: int, leader: Member) -> Plan:
        stages = ((Replica(Endpoint(lower, ())),), (Replica(Endpoint(higher, ())),))
        return Plan(Position(Term(number, leader), 0, 0, 1), "0" * 16, "1" * 64, stages, (), None, 4)

    mischief.see(planned(3, higher), higher)
    mischief.promised(lower if leads_on else higher, planned(1, lower))
    mischief.see(planned(3, lower), lower)
    assert mischief.plan == planned(3, higher if leads_on else lower)
    scene.loop.close()


@pytest.mark.parametrize("number", [1, 7, founders_term(2)])
def test_who_begins_with_a_later_founder_may_forbid_what_the_first_one_planned(number: int) -> None:
    """For good as soon as it has a place there, and from when that one is named until it leads;
    nobody may while the plan is of the newest founder, also in a term after it, or nobody is named.
    """
    scene, silent = Scene(), SimpleNamespace(tell=lambda who, what: None)
    mischief = Mischief(Setup(MANIFEST, CALM), (), scene.hub, cast("Cast", scene.troupe), cast("Any", silent), lambda plan: True)
    leader, one = (Member(name, "1") for name in ("leader", "one"))
    position, first = Position(Term(number, leader), 0, 0, 1), Founder(1, "leader")
    stages = tuple((Replica(Endpoint(member, ())),) for member in (leader, one))
    plan = Plan(position, "0" * 16, "1" * 64, stages, (), None, 4)
    mischief.see(plan, leader)
    mischief.promised(one, plan)
    found, replaced = [], []
    for geneses in ((), (first,), (first, Founder(2, "one"))):
        replaced.append(mischief.is_replaced(geneses))
        mischief.placed(one, geneses)
        found.append(mischief.may_not_forbid(leader, one, Claim(position, only_asking=False)))
    assert found == [True, True, number == founders_term(2)]
    assert replaced == [False, False, number != founders_term(2)]
    scene.loop.close()


def test_what_is_forbidden_between_two_founders_counts_for_nothing() -> None:
    """Who has read of the second one follows no plan any more; once something is committed nobody
    begins anew.
    """
    loop = VirtualLoop()
    stage = _Rehearsal(1, draw_setup(1), Factories(), None, loop, full=False)
    found = list[str]()
    a, b = (Member(name, "1") for name in "ab")
    claim, forbidden = Claim(Position(Term(1, a), 0, 0, 1), only_asking=False), Refused(RefusalKind.FORBIDDEN, "nobody here")
    loop.run_until_complete(asyncio.sleep(bounds.REACHED_S))
    for is_replaced in (True, False):
        stage._mischief = cast(
            "Any", SimpleNamespace(is_replaced=lambda _, is_it=is_replaced: is_it, may_not_forbid=lambda *_: True)
        )
        for committed in ({}, {0: "1" * 64}):
            stage.checks = cast("Any", SimpleNamespace(committed=committed, violated=lambda which, _: found.append(which)))
            stage._forbidden(a, b, claim, forbidden)
            found.append("-")
    assert found == ["-", "N3", "-", "N3", "-", "N3", "-"]
    loop.close()


def test_who_has_or_gives_a_place_before_anything_is_committed_may_leave_its_plan() -> None:
    """Not who is refused one, nor anybody once a record is committed."""
    loop, placed = VirtualLoop(), list[str]()
    stage = _Rehearsal(1, draw_setup(1), Factories(), None, loop, full=False)
    stage._mischief = cast(
        "Any", SimpleNamespace(placed=lambda member, _: placed.append(member.peer_id), answered=lambda *_: None)
    )
    stage.checks = checks = cast("Any", SimpleNamespace(committed={}, told=lambda *_: None, answered=lambda *_: None))
    a, b, c = (Endpoint(Member(name, "1"), ()) for name in "abc")
    for committed in ({}, {0: "1" * 64}):
        checks.committed = committed
        stage._told(a.member, Placed("b.1", 1))
        stage.answered(b, a, Hello(False, False, ""), Reply(beat_answer(1)))
        stage.answered(c, a, Hello(False, False, ""), Refused(RefusalKind.NOT_YET, "it waits"))
        stage.answered(c, a, GetPlan(), Reply(beat_answer(1)))
    assert placed == ["a", "b"]
    loop.close()


def test_the_last_that_know_of_a_plan_live_where_nobody_names_another_founder() -> None:
    """Two of three members were told of the first plan: one of them may fall, then the one that
    knows of none; with an organiser, or once something is committed, any may.
    """
    told, untold = ("leader", "one"), "two"
    for iteration, opening, may_fall in ((0, None, False), (1, None, True), (0, Opening(), True)):
        scene, silent = Scene(), SimpleNamespace(tell=lambda who, what: None)
        living = SimpleNamespace(is_alive=True, leaving=False, can_feed=False, pace=SimpleNamespace(stuck=False))
        lives = {member: SimpleNamespace(**vars(living), member=member) for member in scene.troupe.lives}
        scene.troupe.lives = cast("Any", lives)
        setup = Setup(MANIFEST, replace(CALM, stages_down_max=9), opening=opening)
        mischief = Mischief(setup, (), scene.hub, cast("Cast", scene.troupe), cast("Any", silent), lambda plan: True)
        leader = Member("leader", "1")
        stages = tuple((Replica(Endpoint(Member(name, "1"), ())),) for name in (*told, untold))
        plan = Plan(Position(Term(1, leader), iteration, 0, 1), "0" * 16, "1" * 64, stages, (), None, 4)
        mischief.see(plan, leader)
        for name in told:
            mischief.promised(Member(name, "1"), plan)
        fallen = cast("Any", [lives[Member("one", "1")]])
        assert mischief._may_fall(1, fallen, 1)
        lives[leader].is_alive = False
        assert mischief._may_fall(1, fallen, 1) == may_fall
        scene.loop.close()


def test_a_disk_has_room_where_the_device_of_every_sibling_is_broken() -> None:
    """A disk is full only beside a sibling that could write: one that hangs never could."""
    scene, silent = Scene(), SimpleNamespace(tell=lambda who, what: None)
    full, sibling = Member("one", "1"), Member("two", "1")
    nobody = set[Member]()
    life = SimpleNamespace(member=full)
    troupe = SimpleNamespace(killed=nobody, full={full}, broken=set[Member](), life_of={full: life}.get)
    mischief = Mischief(Setup(MANIFEST, CALM), (), scene.hub, cast("Cast", troupe), cast("Any", silent), lambda plan: True)
    leader = Member("leader", "1")
    stages = (tuple(Replica(Endpoint(member, ())) for member in (full, sibling)),)
    mischief.see(Plan(Position(Term(1, leader), 5, 0, 1), "0" * 16, "1" * 64, stages, (), None, 4), leader)
    refuses = mischief._refusal(cast("Any", life))
    assert refuses(0)
    troupe.broken.add(sibling)
    assert not refuses(0)
    scene.loop.close()


def test_who_was_left_behind_in_a_hard_ending_may_wait_for_newcomers_twice() -> None:
    """It took over alone when all others had ended; one that came had as long again to build a
    stage, and as long was waited for another one.
    """
    timing = replace(MANIFEST.timing, join_wait_s=20.0, split_wait_s=8.0)
    for ending_rate, least_s in ((0.0, 1), (1.0, 3)):
        scene, silent = Scene(), SimpleNamespace(tell=lambda who, what: None)
        setup = Setup(replace(MANIFEST, timing=timing), replace(CALM, ending_rate=ending_rate))
        mischief = Mischief(setup, (), scene.hub, cast("Cast", scene.troupe), cast("Any", silent), lambda plan: True)
        assert mischief.end_grace_s >= least_s * timing.join_wait_s + timing.split_wait_s
        scene.loop.close()


def test_a_side_that_lost_a_stage_after_the_end_of_the_run_waits_in_vain() -> None:
    """Nobody is sent once one side has all iterations: where the other one lacks a stage then, it
    cannot end. The side that won has only weights to wait for, and one that lacks nothing goes on.
    """
    scene, silent = Scene(), SimpleNamespace(tell=lambda who, what: None)
    won = "1" * 64
    checks = SimpleNamespace(has_won=lambda plan: plan.lineage == won)
    stage = SimpleNamespace(hub=scene.hub, loop=scene.loop, checks=checks)
    troupe = Cast(cast("Any", stage), cast("Any", None), cast("Any", silent), random.Random)
    lives = {Member(name, "1"): SimpleNamespace(is_alive=True, member=Member(name, "1")) for name in ("one", "two", "three")}
    troupe.lives = cast("dict[Any, Life]", lives)
    stages = tuple(tuple(Replica(Endpoint(Member(name, "1"), ())) for name in names) for names in (("one", "two"), ("three",)))
    lost, winning = (
        Plan(Position(Term(1, Member("one", "1")), 5, 0, 1), "0" * 16, lineage, stages, (), None, 4)
        for lineage in ("0" * 64, won)
    )
    lives[Member("two", "1")].is_alive = False
    for left, is_open, found in ((True, False, False), (False, True, False), (False, False, True)):
        lives[Member("three", "1")].is_alive = left
        troupe._is_open = is_open
        assert troupe.waits_in_vain(lost) is found
        assert not troupe.waits_in_vain(winning)
    scene.loop.close()
