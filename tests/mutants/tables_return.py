"""One peer alone that takes the lead, or gives others their places back: what each rule of
succession and of coming back is there for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TypeVar, cast

from swarmfree.policy import patience, recovery
from swarmfree.policy.build_time import PIECES
from swarmfree.policy.permissions import refusal
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.actions import BuildAction, Copy, CopyNeighbour, Fresh, Merge, Stay, givers_of
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.events import Event, StageLost
from swarmfree.protocol.manifest import RecoverySection
from swarmfree.protocol.messages import (
    Build,
    Built,
    Claim,
    Commit,
    Committed,
    GetPlan,
    GetRecord,
    Heartbeat,
    HeartbeatAnswer,
    HeldSnapshot,
    Hello,
    KeptShadow,
    Meet,
    Met,
    Open,
    Place,
    PlanAnswer,
    Promise,
    RecordAnswer,
    Request,
)
from swarmfree.protocol.names import ABSENT, PROTOCOL_REVISION, Endpoint, Founder, Position, Term
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.plan import Plan, Rebuilt, Replica
from swarmfree.protocol.ports import Reply, Snapshots
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, float32_bits
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.sim.loop import run_virtual
from swarmfree.sim.peer_ports import MemorySnapshots, Pace
from swarmfree.trainer import election
from swarmfree.trainer.access_control import AccessControl
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.broadcast import Broadcast
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.leadership import Present
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Deposed, Roster
from swarmfree.trainer.election import Election
from swarmfree.trainer.incarnations import Incarnations
from swarmfree.trainer.member import catch_up, queries
from swarmfree.trainer.membership import Membership
from swarmfree.trainer.recovery import builder as build
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from tests.builders import signed
from tests.mutants.alone import (
    LATER,
    MANIFEST,
    ME,
    OTHER_LINEAGE,
    SIBLING,
    A,
    Alone,
    D,
    assigning,
    at,
    beat_answer,
    endpoint,
    leading,
    plan,
    play,
    record,
    second_life,
)
from tests.mutants.tables_lead import PLACES, answer
from tests.mutants.tables_roster import merge_of
from tests.trainer import test_election, test_ends_copy
from tests.trainer.test_election import announced

T = TypeVar("T")
LINEAGE, BEFORE = "1" * 64, "2" * 64
E, F = endpoint("e"), endpoint("f")
"""Of the record that the swarm stands on, before iteration 5."""


# ---- taking the lead -----------------------------------------------------------------------------


def _campaign(
    promises: Callable[[Endpoint, Claim], Promise],
    judge: Callable[[Alone, Election], Awaitable[T]],
    *,
    here: Endpoint = ME,
    heard: PlanAnswer | None = None,
) -> T:
    """A candidate of four; the others say this to a claim, or nothing, and tell whom they hear."""

    async def main(alone: Alone) -> T:
        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, GetPlan) and heard is not None:
                return Reply(heard)
            if not isinstance(request, Claim):
                raise Refused(RefusalKind.GONE, "not here")
            return Reply(signed(promises(to, request), request, to.member))

        async def own(header: object, request: Request, incoming: object) -> Reply:
            assert isinstance(request, Claim)
            return await alone.stage_member.claim(alone.context.here, request)

        alone.line.answer, alone.context.handler = one, own
        alone.replica_state.records = [replace(record(), iteration=-1)]
        alone.replica_state.known_plan = plan(1)
        alone.replica_state.promises = replace(alone.replica_state.promises, promised=at(1))
        alone.stage_member.lose_coordinator()
        return await judge(alone, Election(alone.context, alone.stage_member))

    return play(main, here)


def _silent(to: Endpoint, claim: Claim) -> Promise:
    raise PeerSilent(f"{to.member} says nothing")


_VOTE = Promise(0, None, None, None, 1, "b0", is_committed_state=True)


def _promising(to: Endpoint, claim: Claim) -> Promise:
    return _VOTE


def candidate_without_majority() -> object:
    """Nobody answers a candidate: whether it leads within half of `split_wait_s`, and whether it
    has claimed in earnest by then.
    """

    async def judge(alone: Alone, election: Election) -> tuple[bool, bool]:
        asked, own = list[Claim](), alone.context.handler
        assert own is not None

        async def watch(header: object, request: Request, incoming: object) -> Reply:
            assert isinstance(request, Claim)
            asked.append(request)
            return await own(header, request, incoming)  # type: ignore[arg-type]

        alone.context.handler, leads = watch, False  # type: ignore[assignment]
        while alone.context.now_s() < alone.context.timing.split_wait_s / 2 and not leads:
            leads = await election.campaign() is not None
        return leads, not all(claim.only_asking for claim in asked)

    return _campaign(_silent, judge)


def candidate_that_has_promised_another() -> object:
    """All promise a candidate at once. After how many `silence_s` it leads: where it has promised
    nobody; where it has just promised D; where D claims once more whenever half of that has passed;
    where D only asks; and where it promises D as it asks the others itself.
    """

    async def judge(alone: Alone, election: Election, kind: str) -> float:
        async def claim(*, only_asking: bool = False) -> None:
            number = alone.stage_member.replica_state.promises.promised.term.number + 1  # type: ignore[union-attr]
            with suppress(CallFailed):
                await alone.stage_member.claim(D, Claim(at(1, Term(number, D.member)), only_asking=only_asking))

        async def again() -> None:
            while True:
                await asyncio.sleep(alone.context.timing.silence_s / 2)
                await claim()

        if kind in {"promised", "again", "asked"}:
            await claim(only_asking=kind == "asked")
        if kind == "again":
            alone.tasks.start(again(), "claims again and again")
        if kind == "meanwhile":
            asked_s = alone.context.timing.silence_s / 2 + 0.02
            asyncio.get_running_loop().call_later(asked_s, lambda: alone.tasks.start(claim(), "claims meanwhile"))
        leads = None
        while leads is None and alone.context.now_s() < 10 * alone.context.timing.silence_s:
            leads = await election.campaign()
        return round(alone.context.now_s() / alone.context.timing.silence_s, 1)

    return [_campaign(_promising, partial(judge, kind=kind)) for kind in ("", "promised", "again", "asked", "meanwhile")]


def candidate_that_is_refused_in_earnest() -> object:
    """All would promise, and do not as a candidate claims: three of four say nothing, or that it is
    no member here; of six, who hold each stage twice, one of each stage says nothing, then or at
    all. How many times `split_wait_s` pass until it leads all the same, four at most.
    """
    second = {SIBLING, E, F}
    six = replace(plan(1), replicas=tuple(tuple(map(Replica, pair)) for pair in ((E, A), (ME, SIBLING), (D, F))))

    def silent(to: Endpoint, claim: Claim) -> Promise:
        return _promising(to, claim) if claim.only_asking else _silent(to, claim)

    def forbidding(to: Endpoint, claim: Claim) -> Promise:
        if claim.only_asking:
            return _promising(to, claim)
        raise Refused(RefusalKind.FORBIDDEN, "that is none of the members here")

    def half(to: Endpoint, claim: Claim) -> Promise:
        return silent(to, claim) if to in second else _promising(to, claim)

    def half_alone(to: Endpoint, claim: Claim) -> Promise:
        return _silent(to, claim) if to in second else _promising(to, claim)

    async def judge(alone: Alone, election: Election) -> int:
        begun_s, leads = alone.context.now_s(), False
        while alone.context.now_s() - begun_s < 4 * alone.context.timing.split_wait_s and not leads:
            leads = await election.campaign() is not None
        return round((alone.context.now_s() - begun_s) / alone.context.timing.split_wait_s) if leads else -1

    async def of_six(alone: Alone, election: Election) -> int:
        alone.replica_state.known_plan = six
        electorate = tuple(six.names())
        alone.replica_state.records = [replace(record(), iteration=-1, electorate=electorate)]
        return await judge(alone, election)

    return [_campaign(silent, judge), _campaign(forbidding, judge), _campaign(half, of_six), _campaign(half_alone, of_six)]


def candidate_whose_lineage_counts_more() -> object:
    """All others hear D. How many `split_wait_s` pass until a candidate leads all the same, four at
    most: where nobody has said that it gives way, where D has, or another one has in a term of the
    same number, or D had before somebody led the candidate, or D has, and they hear nobody by now,
    or do not say whom, or D has in an earlier term. And whether it hopes for a coordinator of its
    own after that.
    """

    def led(to: Endpoint, claim: Claim) -> Promise:
        raise Refused(RefusalKind.FRESH, "another one is heard", 7)

    async def judge(
        alone: Alone, election: Election, *, said: Endpoint | None, is_led: bool, number: int = 7
    ) -> tuple[int, bool]:
        begun_s, leads = alone.context.now_s(), False
        while alone.context.now_s() - begun_s < 4 * alone.context.timing.split_wait_s and not leads:
            leads = await election.campaign() is not None
            if said is not None:
                election.note_outranked(Term(number, said.member))
            if is_led:
                said, is_led, begun_s = None, False, alone.context.now_s()
                alone.stage_member.heartbeat_count += 1
        return round((alone.context.now_s() - begun_s) / alone.context.timing.split_wait_s) if leads else -1, election.hopes

    hears = PlanAnswer(None, "", D)
    asked = (None, False, hears), (D, False, hears), (E, False, hears), (D, True, hears)
    asked += (D, False, replace(hears, coordinator=None)), (D, False, None)
    found = [_campaign(led, partial(judge, said=said, is_led=is_led), heard=heard) for said, is_led, heard in asked]
    return [*found, _campaign(led, partial(judge, said=D, is_led=False, number=6), heard=hears)]


def who_is_heard_by_those_that_stop() -> object:
    """D has said that it gives way; D itself, then another one, says that it hears a coordinator in
    a term of that number: whether that is D, where it is, and where it is E.
    """

    async def judge(alone: Alone, election: Election, *, asked: Endpoint) -> bool:
        del alone
        election.note_outranked(Term(7, D.member))
        return await election._hears_who_gives_way(asked, 7)

    cases = ((asked, heard) for asked in (D, SIBLING) for heard in (D, E))
    return [_campaign(_silent, partial(judge, asked=asked), heard=PlanAnswer(None, "", heard)) for asked, heard in cases]


def hope_of_a_candidate() -> object:
    """Nobody answers a candidate of a stage that all others lack, or all say that they hear a
    coordinator: whether it hopes for one of its own after two, four and seven `split_wait_s`.
    """

    def led(to: Endpoint, claim: Claim) -> Promise:
        raise Refused(RefusalKind.FRESH, "another one is heard", 7)

    def behind(to: Endpoint, claim: Claim) -> Promise:
        raise Refused(RefusalKind.BEHIND, "a later term is promised", claim.position.term.number)

    async def judge(alone: Alone, election: Election) -> list[bool]:
        begun_s, hopes = alone.context.now_s(), list[bool]()
        for times in (2, 4, 7):
            while alone.context.now_s() - begun_s < times * alone.context.timing.split_wait_s:
                assert await election.campaign() is None
            hopes.append(election.hopes)
        return hopes

    return [_campaign(said, judge) for said in (behind, led)]


def word_of_who_gives_way() -> object:
    """A peer says hello to a coordinator whose lineage was forced sooner than its own: of whom it
    knows by then that they stop no claim of its own, and what is said to people: nothing, as it is
    to lead itself.
    """

    async def judge(alone: Alone, election: Election) -> tuple[list[Term], list[Event]]:
        async def lead(inherited: object) -> None:
            raise AssertionError(inherited)

        mine = merge_of(alone.context, alone.tasks, replace(record(), forced=(0,)), {})
        roster = SimpleNamespace(is_deposed=False, is_superseded=lambda member: False)
        coordinator = SimpleNamespace(roster=roster, partition_merge=mine, lead=mine._lead, _is_excluded=lambda *_: False)
        hello = Hello(False, standby=False, corpus_hash="", stage=1, iteration=1, lineage=OTHER_LINEAGE, forced=())
        alone.line.answer = lambda to, request: Reply(Coordinator.hello(coordinator, ME, hello))  # type: ignore[arg-type]
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead)
        assert not await membership._ask(A)
        return sorted(membership._election._outranked), alone.line.told

    return _campaign(_silent, judge)


def candidate_that_was_left_out() -> object:
    """The newest plan does not name a peer that votes, or one that does not: whether it may lead at
    once, after a long wait, and after that beside a peer that promises; then beside one that the
    plan alone names, one that only votes as it does itself, and one that is a stranger.
    """
    stages = tuple((Replica(one),) for one in (A, SIBLING, D))
    others, alone, beside = replace(plan(1), replicas=stages), {ME.member}, {ME.member, D.member}
    electorate = tuple(one.member for one in (A, ME, SIBLING, D))
    only_votes, stranger = {ME.member, E.member}, {ME.member, endpoint("f").member}
    asked = (
        (electorate, alone, False),
        (electorate, alone, True),
        (electorate, beside, True),
        (electorate[2:], alone, True),
        (electorate[:2], beside, True),
        ((*electorate, E.member), only_votes, True),
        (electorate, stranger, True),
    )
    return [
        election.may_lead(others, electors, ME.member, there, is_over=False, has_waited=has_waited)
        for electors, there, has_waited in asked
    ]


def plan_told_where_nobody_leads() -> object:
    """The plan that a peer knows names it, or others; it votes, or does not, or was told to rejoin,
    or has nothing left to do, or holds no stage: whether it tells of that plan, by which the
    bootstrap node leaves the run to it.
    """

    async def story(alone: Alone) -> list[bool]:
        state, told = alone.replica_state, list[bool]()
        stages = tuple((Replica(one),) for one in (A, SIBLING, D))
        alone.stage_member.lose_coordinator()
        others = replace(plan(1), replicas=stages)
        voters = (A.member, SIBLING.member, D.member)
        for known, electorate, left, is_paused, stage in (
            (plan(1), voters, None, False, 1),
            (others, voters, None, False, 1),
            (others, (*voters, ME.member), None, False, 1),
            (others, voters, plan(1), False, 1),
            (others, voters, None, True, 1),
            (plan(1), voters, None, False, ABSENT),
        ):
            state.known_plan, state.left_plan, state.is_paused, state.stage = known, left, is_paused, stage
            state.records = [replace(record(), iteration=-1, electorate=electorate)]
            answered = (await queries.get_plan(alone.stage_member, ())).expect(PlanAnswer)
            told.append(answered.plan is not None)
        return told

    return play(story)


def named_while_it_holds_something_else() -> object:
    """A genesis names a peer that has its set on the disk and holds another state, with which it
    may not claim; or names somebody else, or what it has not got, or it may claim, also by a plan
    that it was told to leave, or has heard somebody lately, or was led under that genesis: whether
    it holds what was named.
    """

    async def story(alone: Alone) -> list[bool]:
        disk = cast("Snapshots", SimpleNamespace(held=lambda: (HeldSnapshot(1, 4, LINEAGE),)))
        alone.context.ports = replace(alone.context.ports, snapshots=disk)
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead=lambda _: asyncio.sleep(0))
        others = replace(plan(1), replicas=tuple((Replica(one),) for one in (A, SIBLING, D)))
        electorate, found = (A.member, SIBLING.member, D.member), list[bool]()
        alone.replica_state.install(1, 6, OTHER_LINEAGE, replace(record(), iteration=5, electorate=electorate))
        for known, left, named, iteration, silent_ticks, led_under in (
            (others, None, ME, 4, 10_000, 1),
            (others, None, A, 4, 10_000, 1),
            (others, None, ME, 5, 10_000, 1),
            (plan(1), None, ME, 4, 10_000, 1),
            (None, plan(1), ME, 4, 10_000, 1),
            (others, None, ME, 4, 1, 1),
            (others, None, ME, 4, 10_000, 2),
        ):
            alone.replica_state.known_plan, alone.stage_member.silent_ticks = known, silent_ticks
            alone.replica_state.left_plan, membership._led_under = left, led_under
            found.append(membership._is_left_over(Founder(2, named.member.peer_id, iteration, LINEAGE)))
        return found

    return play(story)


def holder_of_what_was_named() -> object:
    """A peer that nobody leads holds what the newest genesis names, and has stored a record since
    or not: whether it holds that from its disk again.
    """

    async def story(alone: Alone, *, has_stored: bool) -> bool:
        disk = cast("Snapshots", SimpleNamespace(held=lambda: (HeldSnapshot(1, 5, LINEAGE),)))
        alone.context.ports = replace(alone.context.ports, snapshots=disk)
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead=lambda _: asyncio.sleep(0))
        state = alone.replica_state
        state.install(1, 5, LINEAGE, replace(record(), iteration=4))
        alone.stage_member.silent_ticks = 10_000
        state.promises = replace(state.promises, sealed=replace(record(), iteration=5) if has_stored else None)
        return membership._is_left_over(Founder(2, A.member.peer_id, 5, LINEAGE))

    return [play(partial(story, has_stored=has_stored)) for has_stored in (False, True)]


def _holding_a_snapshot(alone: Alone, led: Plan | None, forced: tuple[int, ...] = (), *, is_snapshot: bool = True) -> Membership:
    """A peer that stands at iteration 5, by a record of term 4, beside A, which has this plan."""
    state, last = alone.replica_state, replace(record(forced=forced), iteration=4, term=Term(4, SIBLING.member))
    state.install(1, 5, LINEAGE, last, {4: BEFORE})
    state.is_committed_state, state.is_from_disk = True, is_snapshot
    alone.line.answer = lambda to, request: Reply(
        PlanAnswer(led, "") if isinstance(request, GetPlan) else Place(A, ABSENT, "", accepted=True)
    )
    return Membership(alone.context, alone.stage_member, alone.tasks, lead=lambda _: asyncio.sleep(0))


def place_of_one_that_stays_behind() -> object:
    """A peer with a snapshot asks for a place one that leads from before it: at once, shortly
    before `join_wait_s` is over, and after that. Whether it has said hello by then.
    """

    async def story(alone: Alone) -> list[bool]:
        membership = _holding_a_snapshot(alone, plan(3, Term(3, A.member), iteration=4, lineage=BEFORE))
        said, wait_s = list[bool](), alone.context.timing.join_wait_s
        for pause_s in (0.0, wait_s - 1, 2.0):
            await asyncio.sleep(pause_s)
            await membership._ask(A)
            said.append(any(isinstance(request, Hello) for _, request in alone.line.asked))
        return said

    return play(story)


def place_of_one_that_is_behind() -> object:
    """A peer with a snapshot for iteration 5 is about to ask for a place one that leads by a plan:
    from iteration 4 of its lineage in a term before that of its record, in that, in a later one,
    and in that of a later founder; from where it stands itself; from another lineage; by none; and
    from iteration 4 where a majority had not decided, or where the state is no snapshot. Whether it
    says hello.
    """

    async def story(alone: Alone, led: Plan | None, *, forced: tuple[int, ...], is_snapshot: bool) -> bool:
        membership = _holding_a_snapshot(alone, led, forced, is_snapshot=is_snapshot)
        await membership._ask(A)
        return any(isinstance(request, Hello) for _, request in alone.line.asked)

    behind = plan(3, Term(3, A.member), iteration=4, lineage=BEFORE)
    return [
        play(partial(story, led=led, forced=forced, is_snapshot=is_snapshot))
        for led, forced, is_snapshot in (
            (behind, (), True),
            (plan(3, Term(4, SIBLING.member), iteration=4, lineage=BEFORE), (), True),
            (plan(3, Term(7, A.member), iteration=4, lineage=BEFORE), (), True),
            (plan(3, Term(1001, A.member), iteration=4, lineage=BEFORE), (), True),
            (plan(3, Term(3, A.member), iteration=5, lineage=LINEAGE), (), True),
            (plan(3, Term(3, A.member), iteration=4, lineage=OTHER_LINEAGE), (), True),
            (None, (), True),
            (behind, (4,), True),
            (behind, (), False),
        )
    ]


def place_of_one_that_waits() -> object:
    """A peer with a snapshot for iteration 5 is about to ask for a place one whose plan is of
    iteration 4, and that holds five records and waits for something; five, and waits for nothing;
    and four, and waits. Whether it says hello.
    """

    async def story(alone: Alone, *, records: int, waiting_for: str) -> bool:
        membership = _holding_a_snapshot(alone, None)
        answer = PlanAnswer(plan(3, Term(3, A.member), iteration=4, lineage=BEFORE), waiting_for, A, records)
        place = Place(A, ABSENT, "", accepted=True)
        alone.line.answer = lambda to, request: Reply(answer if isinstance(request, GetPlan) else place)
        await membership._ask(A)
        return any(isinstance(request, Hello) for _, request in alone.line.asked)

    told = ((5, "stage 2 is lost"), (5, ""), (4, "stage 2 is lost"))
    return [play(partial(story, records=records, waiting_for=waiting_for)) for records, waiting_for in told]


def word_of_one_that_passes_over() -> object:
    """A peer with a snapshot asks others for a place: nobody yet; D, which follows A, and answers a
    plan from before the snapshot; A, which leads by that; A again, which has stepped on; A as
    before; and then it follows D. After each whom it tells that it passes over.
    """

    async def story(alone: Alone) -> list[str]:
        membership, told = _holding_a_snapshot(alone, None), list[str]()
        behind = plan(3, Term(3, A.member), iteration=4, lineage=BEFORE)
        place = Place(D, ABSENT, "", accepted=False)
        on = replace(behind, lineage=OTHER_LINEAGE)
        for asked, found in ((None, None), (D, behind), (A, behind), (A, on), (A, behind), (None, None)):
            answer = PlanAnswer(found, "", A)
            alone.line.answer = lambda to, request, answer=answer: Reply(answer if isinstance(request, GetPlan) else place)
            if asked is not None:
                await membership._ask(asked)
            if len(told) == 5:
                alone.replica_state.hear_of(D)
                alone.stage_member.silent_ticks = 0
            passed_over = (await queries.get_plan(alone.stage_member, ())).expect(PlanAnswer).passed_over
            told.append({"": "", A.member.peer_id: "A", D.member.peer_id: "D"}[passed_over])
        return told

    return play(story)


def founder_beside_one_that_leads() -> object:
    """Who is named to go on from its snapshot of iteration 5 asks around: one leads from iteration
    4 of its lineage, from where it stands itself, or from another lineage; or the first of these
    beside the second. Whether it gives way.
    """

    async def story(alone: Alone, *led: Plan) -> bool:
        membership, plans = _holding_a_snapshot(alone, None), dict(zip((A, D), led, strict=False))
        alone.line.answer = lambda to, request: Reply(PlanAnswer(plans[to], "", to))
        membership._asked_s = -math.inf  # whoever has the other stages was waited for
        there = [Announcement(one, PeerState.SERVING, 0, 5, LINEAGE, 1.0, 0.0, True, PROTOCOL_REVISION, 1e12) for one in plans]
        return await membership._who_holds(Founder(2, ME.member.peer_id, 5, LINEAGE), there) is None

    where = ((4, BEFORE), (5, LINEAGE), (4, OTHER_LINEAGE))
    behind, level, other = (plan(3, Term(3, A.member), iteration=iteration, lineage=lineage) for iteration, lineage in where)
    return [play(lambda alone, led=led: story(alone, *led)) for led in ((behind,), (level,), (other,), (behind, level))]


def copier_of_what_was_made() -> object:
    """A donor answers a peer that has just copied its stage with a plan, and vouches or does not:
    whether the copy counts as what the last record left, by a plan of that record, one that says
    that the stage was rebuilt, and one of another lineage.
    """
    rebuilt = Rebuilt(1, "state", rate_scaled=False, steps=ABSENT)

    async def story(alone: Alone, known: Plan, *, vouches: bool) -> bool:
        answer = PlanAnswer(known, "", is_committed_state=vouches)
        alone.line.answer = lambda to, request: Reply(answer)
        alone.replica_state.install(1, 5, LINEAGE, replace(record(), iteration=4))
        await catch_up._learn_plan(alone.context, alone.stage_member, (SIBLING,))
        return alone.replica_state.is_committed_state

    opened = plan(3, iteration=5, lineage=LINEAGE)
    plans = opened, replace(opened, rebuilt=(rebuilt,)), plan(3, iteration=5, lineage=OTHER_LINEAGE)
    return [play(partial(story, known=known, vouches=vouches)) for known in plans for vouches in (True, False)]


def donor_that_vouches() -> object:
    """What a peer says of its state to who asks for its plan: with a stage that a record left, one
    that was made, and none.
    """

    async def story(alone: Alone) -> list[bool]:
        told = list[bool]()
        for stage, is_committed in ((1, True), (1, False), (ABSENT, True)):
            alone.replica_state.stage, alone.replica_state.is_committed_state = stage, is_committed
            told.append((await queries.get_plan(alone.stage_member, ())).expect(PlanAnswer).is_committed_state)
        return told

    return play(story)


def hello_of_a_voter_without_a_stage() -> object:
    """The stage, iteration and lineage that a peer tells of in its Hello: one that has let its
    stage go for a build, and votes on the next record or does not; a newcomer.
    """

    async def story(alone: Alone, *, votes: bool, has_stepped: bool) -> tuple[int, int, str]:
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead=lambda _: asyncio.sleep(0))
        if has_stepped:
            electorate = (A.member, ME.member) if votes else (A.member,)
            alone.replica_state.install(1, 5, LINEAGE, replace(record(), iteration=4, electorate=electorate))
        alone.replica_state.stage = ABSENT
        hello = membership.hello()
        return hello.stage, hello.iteration, hello.lineage[:1]

    kinds = ((True, True), (False, True), (False, False))
    return [play(partial(story, votes=votes, has_stepped=stepped)) for votes, stepped in kinds]


def snapshot_beside_a_later_one() -> object:
    """A peer writes an older state than lies on its disk, which goes on from that or does not: the
    iterations of what lies there then.
    """

    async def story(alone: Alone) -> list[list[int]]:
        found, before = list[list[int]](), replace(record(), iteration=8)
        for past in ({9: before.lineage()}, {9: OTHER_LINEAGE}):
            port = MemorySnapshots({}, lambda: True, Pace())
            later = Snapshot(1, replace(record(), iteration=9), past, 0)
            await port.write(later, [], [])
            alone.context.ports = replace(alone.context.ports, snapshots=port)
            await SnapshotKeeper(alone.context, alone.stage_member)._write(Snapshot(1, before, {}, 0), [])
            found.append([held.iteration for held in port.held()])
        return found

    return play(story)


def plan_opened_before_a_snapshot() -> object:
    """A peer with a snapshot on its disk is to load it, and a plan is opened as it reads that, or
    was opened before, or none is: the stage that it holds afterwards, whether it has a plan, and
    whether what it holds is from its disk.
    """

    async def story(alone: Alone, *, before: Plan | None, meanwhile: Plan | None) -> tuple[int, bool, bool]:
        class Shelf(MemorySnapshots):
            async def read(self, held: HeldSnapshot) -> Snapshot:
                alone.replica_state.plan = meanwhile
                return await super().read(held)

        port, engine, held = Shelf({}, lambda: True, Pace()), alone.engine, alone.replica_state
        parts = [engine.read_state(part, weights_only=False) for part in range(engine.part_count(1))]
        await port.write(Snapshot(1, replace(record(), iteration=8), {}, len(parts)), parts, [])
        alone.context.ports = replace(alone.context.ports, snapshots=port)
        held.plan = before
        await SnapshotKeeper(alone.context, alone.stage_member).load(port.held())
        return held.stage, held.plan is not None, held.is_from_disk

    opened = plan(1)
    cases = ((None, opened), (opened, opened), (None, None))
    return [play(partial(story, before=before, meanwhile=meanwhile)) for before, meanwhile in cases]


def open_that_is_heard() -> object:
    """A peer that has heard no heartbeat for long is opened with what it holds from its disk, or
    with another state: whether it hears its coordinator then.
    """

    async def story(alone: Alone, *, is_from_disk: bool) -> bool:
        alone.stage_member.silent_ticks, alone.replica_state.is_from_disk = 500, is_from_disk
        alone.replica_state.promises = replace(alone.replica_state.promises, promised=at(1), coordinator=A)
        await alone.stage_member.open(A, Open(plan(1)))
        return alone.stage_member.hears_coordinator

    return [play(partial(story, is_from_disk=is_from_disk)) for is_from_disk in (True, False)]


def candidate_that_is_called_elsewhere() -> object:
    """A candidate is told to join another coordinator while it asks: in how many rounds the other
    source is asked.
    """

    async def judge(alone: Alone, election: Election) -> int:
        own = alone.context.handler
        assert own is not None

        async def called(header: object, request: Request, incoming: object) -> Reply:
            if alone.replica_state.known_plan is not None:
                alone.tasks.start(alone.stage_member.rejoin(A, D), "another coordinator calls")
            return await own(header, request, incoming)  # type: ignore[arg-type]

        alone.context.handler = called  # type: ignore[assignment]
        await election.campaign()
        return [member for member, _ in alone.line.asked].count(A.member)

    return _campaign(_silent, judge)


def plan_that_a_candidate_missed() -> object:
    """A newcomer is in a plan that another member has got, and a candidate has not: whether it may
    claim before and after that one's campaign.
    """
    newcomer = endpoint("e")
    newer = plan(2)
    newer = replace(newer, replicas=(*newer.replicas[:2], (*newer.replicas[2], Replica(newcomer))))

    def told(to: Endpoint, claim: Claim) -> Promise:
        return replace(_promising(to, claim), plan=newer) if to == D else _silent(to, claim)

    async def judge(alone: Alone, election: Election) -> list[bool]:
        access = AccessControl(alone.context, alone.stage_member, lambda: None)

        def may_claim() -> bool:
            claim = Claim(at(1, Term(3, newcomer.member)), only_asking=False)
            return refusal(claim, newcomer.member, access.view()) is None

        before = may_claim()
        await election.campaign()
        return [before, may_claim()]

    return _campaign(told, judge)


def candidate_with_a_kept_state() -> object:
    """A candidate kept its state for iteration 6, which its coordinator never opened: where it
    leads from, what it says that it holds, and whether it vouches.
    """

    async def judge(alone: Alone, election: Election) -> tuple[int, int, bool]:
        state = alone.replica_state
        state.install(1, 5, LINEAGE, replace(record(), iteration=4))
        state.is_committed_state, state.known_in = True, at(1).term
        newest = replace(record(), iteration=5)
        state.install(1, 6, newest.lineage(), newest)
        found = await election.campaign()
        assert found is not None
        own = found.promises[ME]
        return found.iteration, own.iteration, own.is_committed_state

    return _campaign(_promising, judge)


def vote_of_an_excluded_peer() -> object:
    """A plan excludes one of four that vote, and another is proven dead: whether the excluded one
    is asked, and whether the two that are left decide.
    """
    newest = replace(plan(2), excluded=(D.member.peer_id,), replicas=(*plan(2).replicas[:2], (Replica(endpoint("e")),)))

    async def judge(alone: Alone, election: Election) -> list[bool]:
        election._announced = [announced(D, 0)]
        alone.context.incarnations.hear([second_life(A).member])
        poll = await election._ask(Term(3, ME.member), newest, only_asking=True)
        return [D in poll.promises, election._may_decide(newest, replace(poll, promises=dict.fromkeys((ME, SIBLING), _VOTE)))]

    return _campaign(_promising, judge)


def candidate_beside_one_that_has_lost_its_place() -> object:
    """The run is over. Of those that vote one has ended, two are there, and the last one is in no
    plan any more: whether a candidate goes on soon, and whether by force, where the
    directory shows that one, others alone, and nobody.
    """

    def left(to: Endpoint, claim: Claim) -> Promise:
        if to not in {SIBLING, D}:
            raise PeerUnreachable(f"nobody listens for {to.member}", refused=True)
        return replace(_VOTE, iteration=claim.position.iteration)

    async def judge(alone: Alone, election: Election, shown: tuple[Endpoint, ...]) -> str:
        iterations, last = MANIFEST.run.iterations, alone.replica_state.newest_record
        assert last is not None
        last = replace(last, iteration=iterations - 1)
        alone.replica_state.install(1, iterations, last.lineage(), last)
        alone.replica_state.known_plan = replace(plan(2), replicas=(*plan(2).replicas[:2], (Replica(E),)))

        async def announcements() -> tuple[Announcement, ...]:
            return tuple(announced(one, iterations) for one in shown)

        alone.context.ports.directory.announcements = announcements  # type: ignore[method-assign]
        with suppress(TimeoutError):
            async with asyncio.timeout(6.0):
                found = await election.campaign()
            return "none" if found is None else "forced" if found.forced else "by majority"
        return "waits"

    return [_campaign(left, partial(judge, shown=shown)) for shown in ((D, E), (E,), ())]


def number_that_others_have_promised() -> object:
    """A member has promised term 9 to somebody: the first two numbers of terms that a candidate
    asks about.
    """

    def behind(to: Endpoint, claim: Claim) -> Promise:
        if to == A:
            raise Refused(RefusalKind.BEHIND, "promised term 9", 9)
        return _silent(to, claim)

    async def judge(alone: Alone, election: Election) -> list[int]:
        await election.campaign()
        claims = [request for _, request in alone.line.asked if isinstance(request, Claim)]
        return list(dict.fromkeys(claim.position.term.number for claim in claims))[:2]

    return _campaign(behind, judge)


def place_in_the_order() -> object:
    """The third in rank notices that the coordinator is silent: whether it asks for promises within
    the first instant.
    """

    async def judge(alone: Alone, election: Election) -> bool:
        try:
            async with asyncio.timeout(0.5):
                await election.campaign()
        except TimeoutError:
            pass
        return bool(alone.line.asked)

    return _campaign(_silent, judge, here=D)


def record_that_was_missed() -> object:
    """Another member is a record further, and nobody gives that record: whether the candidate
    leads, and whether it has claimed in earnest.
    """

    def further(to: Endpoint, claim: Claim) -> Promise:
        return replace(_promising(to, claim), iteration=1)

    async def judge(alone: Alone, election: Election) -> tuple[bool, bool]:
        leads = await election.campaign() is not None
        return leads, not all(request.only_asking for _, request in alone.line.asked if isinstance(request, Claim))

    return _campaign(further, judge)


def plan_of_a_term_that_began_further_back() -> object:
    """Members have a plan of a later term, of an iteration that is decided, without the candidate,
    which is further: whether it leads.
    """
    back = replace(plan(1, LATER), replicas=(plan(1).replicas[0], (Replica(SIBLING),), plan(1).replicas[2]))

    def behind(to: Endpoint, claim: Claim) -> Promise:
        return replace(_promising(to, claim), plan=back)

    async def judge(alone: Alone, election: Election) -> bool:
        alone.replica_state.apply(record())
        alone.replica_state.known_plan = plan(2, iteration=1, lineage=record().lineage())
        return await election.campaign() is not None

    return _campaign(behind, judge)


def coordinator_that_others_hear() -> object:
    """Somebody hears the coordinator, and says so: whether the candidate leads after it has waited
    for long.
    """

    def fresh(to: Endpoint, claim: Claim) -> Promise:
        if to == SIBLING:
            raise Refused(RefusalKind.FRESH, "the coordinator is heard")
        return _silent(to, claim)

    async def judge(alone: Alone, election: Election) -> bool:
        leads = False
        while alone.context.now_s() < 4 * alone.context.timing.split_wait_s and not leads:
            leads = await election.campaign() is not None
        return leads

    return _campaign(fresh, judge)


def hello_of_a_refused_candidate() -> object:
    """The last coordinator is silent, and somebody hears another one, and says so until the
    candidate gives up: whom that asks for a place first.
    """

    def fresh(to: Endpoint, claim: Claim) -> Promise:
        if to == SIBLING:
            raise Refused(RefusalKind.FRESH, "another coordinator is heard")
        return _silent(to, claim)

    async def judge(alone: Alone, election: Election) -> str:
        async def lead(inherited: object) -> None:
            raise AssertionError(inherited)

        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead)
        membership._election = election
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=A)
        assert await election.campaign() is None
        return membership._whom_it_knows()[0].member.peer_id

    return _campaign(fresh, judge)


async def _gives_up_at_once(alone: Alone, election: Election) -> bool:
    """Whether a candidate whose last coordinator is A leaves its campaign without waiting."""
    alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=A)
    try:
        async with asyncio.timeout(0.5):
            return await election.campaign() is None
    except TimeoutError:
        return False


def coordinator_that_fenced_a_candidate() -> object:
    """Whether a candidate gives up at once, to ask for its place: the last coordinator leads still,
    or another one, in a later term.
    """

    def fresh(to: Endpoint, claim: Claim) -> Promise:
        if to == A:
            raise Refused(RefusalKind.FRESH, "the coordinator is heard")
        return _silent(to, claim)

    def later(to: Endpoint, claim: Claim) -> Promise:
        if to == SIBLING:
            raise Refused(RefusalKind.FRESH, "another coordinator is heard", 2)
        return _silent(to, claim)

    return _campaign(fresh, _gives_up_at_once), _campaign(fresh, _gives_up_at_once, here=D), _campaign(later, _gives_up_at_once)


def coordinator_that_was_out_of_reach() -> object:
    """The last coordinator cannot be called at first, and refuses later: how long a candidate that
    has twenty seconds to wait for its rank does, in seconds, and whether it asks for its place.
    """
    asked = list[Claim]()

    def fresh(to: Endpoint, claim: Claim) -> Promise:
        asked.append(claim)
        if len(asked) == 1:
            return _silent(to, claim)
        raise Refused(RefusalKind.FRESH, "the coordinator is heard")

    async def judge(alone: Alone, election: Election) -> tuple[int, bool]:
        alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=A)
        begun_s = alone.context.now_s()
        is_fenced = await election._waits(20.0)
        return round(alone.context.now_s() - begun_s), is_fenced

    return _campaign(fresh, judge, here=D)


def coordinator_that_follows_another() -> object:
    """The last coordinator has promised a later term to somebody else: whether a candidate that is
    not the first asks for its place at once.
    """

    def behind(to: Endpoint, claim: Claim) -> Promise:
        if to == A:
            raise Refused(RefusalKind.BEHIND, "promised term 9", 9)
        return _silent(to, claim)

    return _campaign(behind, _gives_up_at_once, here=D)


def lineage_that_nobody_leads() -> object:
    """What a peer that nobody leads any more tells of forced records: early, late between two
    campaigns, after the next; a member, one that the plan does not name, and one without a plan;
    one that has got a place right before that next campaign, soon after it, and long after it; one
    that has got it right after the campaign.
    """

    async def judge(alone: Alone, election: Election, kind: str) -> list[tuple[int, ...]]:
        async def lead(inherited: object) -> None:
            raise AssertionError(inherited)

        wait_s, membership = alone.context.timing.split_wait_s, Membership(alone.context, alone.stage_member, alone.tasks, lead)
        membership._election, alone.replica_state.is_committed_state, told = election, True, []
        if kind == "without":
            alone.replica_state.known_plan = None
        await asyncio.sleep(4 * wait_s)
        alone.stage_member.heartbeat_count += 1
        while alone.context.now_s() < 6 * wait_s:
            await election.campaign()
            await asyncio.sleep(0.1)
        told.append(membership.hello().forced)
        if kind == "left out":
            alone.replica_state.known_plan = replace(plan(2), replicas=(plan(2).replicas[0],) * 3)
        await asyncio.sleep(2 * wait_s)
        told.append(membership.hello().forced)
        silent = alone.line.answer
        if kind == "placed":
            alone.line.answer = lambda to, request: Reply(Place(to, 1, "", accepted=True))
            assert await membership._ask_each([A])
            alone.line.answer = silent
        await election.campaign()
        told.append(membership.hello().forced)
        if kind == "placed late":
            alone.line.answer = lambda to, request: Reply(Place(to, 1, "", accepted=True))
            assert await membership._ask_each([A])
            told.append(membership.hello().forced)
        for later_s in (2 * wait_s, wait_s) if kind == "placed" else ():
            await asyncio.sleep(later_s)
            told.append(membership.hello().forced)
        return told

    return [_campaign(_silent, partial(judge, kind=kind)) for kind in ("member", "left out", "without", "placed", "placed late")]


def candidate_that_was_told_to_rejoin() -> object:
    """A member that has promised term 7 is told to join a coordinator that says nothing, and the
    others would promise: how it leads within 0.8, 1.5 and 3.5 times `split_wait_s`, None where it
    does not: the term, how many follow, whether places are as they were; the same where it has
    built another state since, and where it knows the plan by then of those that it was to join,
    which say nothing, or promise; where it has let its stage go, also without being told to rejoin,
    where another founder has been named, where it is told so twice, and where that coordinator, of
    term 5, was heard once.
    """
    joined = replace(plan(9, iteration=5, lineage=LINEAGE), replicas=((Replica(E),),) * 3)

    async def judge(alone: Alone, election: Election, then: str) -> list[object]:
        state, wait_s = alone.replica_state, alone.context.timing.split_wait_s
        state.promises = replace(state.promises, promised=at(1, Term(7, A.member)))
        if then != "lets go unasked":
            await alone.stage_member.rejoin(A, D)
        if then == "again":
            await alone.stage_member.rejoin(D, A)
        if then == "another founder":
            await alone.stage_member.forget_plan()
        if then in {"lets go", "lets go unasked"}:
            await alone.stage_member.let_go()
        if then in {"builds", "learns", "is answered"}:
            last = replace(record(), iteration=4, electorate=(E.member,))
            state.install(1, 5, LINEAGE, last, {0: OTHER_LINEAGE})
        if then in {"learns", "is answered"}:
            state.known_plan, state.is_committed_state = joined, True
        if then == "hears":
            await alone.stage_member.heartbeat(D, Heartbeat(at(1, Term(5, D.member)), 0, 0.0, lineage=OTHER_LINEAGE))
            alone.stage_member.lose_coordinator()
        found = list[object]()
        for until_s in (0.8 * wait_s, 1.5 * wait_s, 3.5 * wait_s):
            takeover: Takeover | None = None
            while takeover is None and alone.context.now_s() < until_s:
                takeover = await election.campaign()
                await asyncio.sleep(1.0)
            found.append(takeover and (takeover.term.number, len(takeover.promises), takeover.places is not None))
            if takeover is not None:
                break
        return found

    def promises(to: Endpoint, claim: Claim, then: str) -> Promise:
        return _silent(to, claim) if to == E and then != "is answered" else _VOTE

    cases = ("", "builds", "learns", "is answered", "lets go", "lets go unasked", "another founder", "again", "hears")
    return [_campaign(partial(promises, then=then), partial(judge, then=then)) for then in cases]


def candidate_that_holds_nothing() -> object:
    """Whether a peer may claim that has let its stage go: with no plan, with one that it knows,
    and with one that it left as it was told to rejoin.
    """

    async def story(alone: Alone) -> list[bool]:
        async def lead(inherited: object) -> None:
            raise AssertionError(inherited)

        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead)
        await alone.stage_member.let_go()
        found = [membership._may_claim]
        alone.replica_state.known_plan = plan(1)
        found.append(membership._may_claim)
        await alone.stage_member.rejoin(A, D)
        return [*found, membership._may_claim]

    return play(story)


def place_from_one_that_was_left() -> object:
    """Whom a peer believes that was told to rejoin, and has built another state since: who was in
    the plan that it left, and somebody else; whether it asks the first for a place.
    """

    async def story(alone: Alone) -> list[bool]:
        async def lead(inherited: object) -> None:
            raise AssertionError(inherited)

        membership, state = Membership(alone.context, alone.stage_member, alone.tasks, lead), alone.replica_state
        state.known_plan = plan(1)
        await alone.stage_member.rejoin(A, E)
        state.install(1, 5, LINEAGE, replace(record(), iteration=4, electorate=(E.member,)))
        believed = [await membership._is_believed(other) for other in (SIBLING, endpoint("f"))]
        return [*believed, SIBLING in membership._whom_it_knows()]

    return play(story)


def state_that_is_not_vouched_for() -> object:
    """What a peer says that was told to build a stage, before an Open and after it; whether its
    state counts where it says so.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> tuple[object, ...]:
        async def lead(inherited: object) -> None:
            raise AssertionError(inherited)

        membership, told = Membership(alone.context, alone.stage_member, alone.tasks, lead), []
        alone.replica_state.install(1, 5, LINEAGE, replace(record(forced=(2,)), iteration=4))
        for in_force in (None, plan(2, iteration=5, lineage=LINEAGE)):
            alone.replica_state.plan = in_force
            hello = membership.hello()
            told.append((hello.stage, hello.iteration, hello.forced))
        assignment.hello(ME, hello)
        participant = roster.get(ME.member)
        return *told, participant is not None and participant.is_ours

    return _assignment(story)


def electorate_of_a_missed_record() -> object:
    """By a record that the candidate missed others decide than by its own last one, and they do not
    answer: whether it leads.
    """

    async def judge(alone: Alone, election: Election) -> bool:
        newest = replace(record(), electorate=(endpoint("x").member, endpoint("y").member, A.member))

        def further(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, GetRecord):
                return Reply(RecordAnswer(newest))
            assert isinstance(request, Claim)
            return Reply(signed(Promise(1, None, None, None, 1, "b0", is_committed_state=True), request, to.member))

        async def step(request: object) -> Reply:
            alone.replica_state.apply(newest)
            return Reply(Committed(1))

        alone.line.answer, alone.stage_member.commit = further, step  # type: ignore[assignment]
        return await election.campaign() is not None

    return _campaign(_silent, judge)


def life_that_was_heard_of_late() -> object:
    """Word of a peer's first life comes after word of its second one: whether the first one has
    ended.
    """
    lives = Incarnations()
    lives.hear([second_life(A).member])
    lives.hear([A.member])
    return lives.ended([A.member]) == {A.member}


# ---- coming back ---------------------------------------------------------------------------------


def _assignment(story: Callable[[Alone, Assignment, Roster], Awaitable[T]]) -> T:
    """The places of a swarm at iteration 5; A, SIBLING and D hold the ends and both stages of the
    body.
    """

    async def main(alone: Alone) -> T:
        alone.line.answer = answer
        lead = leading(alone.context, present=Present(5, LINEAGE, replace(record(), iteration=4)), decided=record())
        assignment, roster = assigning(alone.context, alone.tasks, lead)
        lead.past |= {5: LINEAGE}
        for stage, one in enumerate((A, SIBLING, D)):
            participant = roster.admit(one, Hello(False, False, ""), stage, built=True)
            participant.opened, participant.built_at, participant.is_ours = at(1), 5, True
        return await story(alone, assignment, roster)

    return play(main, second_life(A))


def _hello(stage: int, lineage: str = LINEAGE) -> Hello:
    return Hello(False, False, "", stage, 5, lineage)


def stranger_that_says_it_holds() -> object:
    """A peer says hello with the state of stage 1, and is in a record, or in the newest plan, or in
    neither; another one holds the stage, or nobody does: whether it counts as a holder.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, who: Endpoint, is_held: bool) -> bool:
        planned = replace(plan(1), replicas=(*plan(1).replicas[:2], (*plan(1).replicas[2], Replica(endpoint("planned")))))
        assignment._lead.follow(planned)
        assignment._lead.decide(record())
        if not is_held:
            roster.fence(SIBLING.member, "it is gone")
        assignment.hello(who, _hello(1))
        participant = roster.get(who.member)
        return participant is not None and participant.built

    asked = (
        (second_life(SIBLING), True),
        (endpoint("planned"), True),
        (endpoint("stranger"), True),
        (endpoint("stranger"), False),
    )
    return [_assignment(partial(story, who=who, is_held=is_held)) for who, is_held in asked]


def called_for_that_holds_something_else() -> object:
    """A peer is called for as the only holder of stage 1, and says hello: with what another lineage
    left, forced or not, or one that was forced and is further, after it has answered a heartbeat,
    with what belongs here, or is further, without a word of what it holds. Whether it counts as a
    holder; then one that is not called for; and one whose heartbeat told of another base, also
    where it has been told to build since, or has said before what belongs here. With that what it
    holds of this lineage, how often the loss is told (once more where it counts no longer), and
    whether its own word stands for what was guessed of it.
    """

    async def story(
        alone: Alone,
        assignment: Assignment,
        roster: Roster,
        *,
        hello: Hello,
        is_heard: bool,
        is_called: bool = True,
        base: str = "b0",
        since: str = "",
    ) -> tuple[bool, int, int, bool]:
        roster.fence(SIBLING.member, "it is gone")
        roster.call_for(ME, 1, 5)
        if since == "said":
            assignment.hello(ME, _hello(1))
        called = roster.get(ME.member)
        assert called is not None
        if is_heard:
            called.hear(replace(beat_answer(1), stage=1, iteration=5, base=base), 0.0)
        if since == "told":
            called.begin_build()
        if not is_called:
            called.miss(None)
        assert assignment.hello(ME, hello) == assignment.hello(ME, hello)
        losses = sum(isinstance(event, StageLost) for event in alone.line.told)
        return called.built, called.held(1), losses, called.hello is hello

    other, nothing = _hello(1, OTHER_LINEAGE), Hello(False, False, "")
    further = replace(other, iteration=6, forced=())
    asked = (
        (other, False),
        (replace(other, forced=()), False),
        (replace(further, forced=(3,)), False),
        (other, True),
        (_hello(1), False),
        (further, False),
        (nothing, False),
    )
    found = [_assignment(partial(story, hello=hello, is_heard=is_heard)) for hello, is_heard in asked]
    found.append(_assignment(partial(story, hello=other, is_heard=False, is_called=False)))
    elsewhere = partial(story, hello=other, is_heard=True, base="elsewhere")
    return [*found, *(_assignment(partial(elsewhere, since=since)) for since in ("", "told", "said"))]


def _back(rebuilt: Rebuilt | None, *, sealing: bool = False, lineage: str = LINEAGE, barred: bool = False) -> object:
    """A member of stage 1 says hello with its state: whether it is a member again, and what is
    rebuilt still.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> tuple[bool, int]:
        if rebuilt is not None:
            assignment._rebuilt = {1: rebuilt}
        assignment._lead.is_sealing = sealing
        if barred:
            roster.bar(ME.member, "it cannot average with its sibling")
        assignment.hello(ME, _hello(1, lineage))
        participant = roster.get(ME.member)
        return participant is not None and participant.built, len(assignment.rebuilt_stages())

    return _assignment(story)


MERGED = Rebuilt(1, "merged", rate_scaled=True)


def stranger_after_a_rebuild() -> object:
    """Stage 1 was merged, and one says hello with the state that was lost: whether who holds what
    was made holds it still; where that one is in no record and no plan, and where it is.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, who: Endpoint) -> bool:
        assignment._lead.decide(record())
        assignment._rebuilt = {1: MERGED}
        assignment.hello(who, _hello(1))
        holder = roster.get(SIBLING.member)
        return holder is not None and holder.built

    return [_assignment(partial(story, who=who)) for who in (endpoint("stranger"), ME)]


def back_after_a_rebuild_by_one_that_leaves() -> object:
    """Stage 1 was merged by one that is about to leave, and a member says hello with the state that
    was lost: whether the one that leaves holds what was made still.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> bool:
        assignment._lead.decide(record())
        assignment._rebuilt = {1: MERGED}
        holder = roster.get(SIBLING.member)
        assert holder is not None
        holder.leave()
        assignment.hello(ME, _hello(1))
        return holder.built

    return _assignment(story)


def back_after_a_rebuild() -> object:
    """Its stage was merged meanwhile, and nothing was sealed yet."""
    return _back(MERGED)


def back_after_a_seal() -> object:
    """Its stage was merged meanwhile, and a record of that was sent out."""
    return _back(MERGED, sealing=True)


def back_after_a_dispute() -> object:
    """Of two states of its stage the other one was taken."""
    return _back(replace(MERGED, disputes=1))


def back_with_another_lineage() -> object:
    """What it holds stands on another lineage."""
    return _back(None, lineage=OTHER_LINEAGE)


def back_while_barred() -> object:
    """It cannot work with its sibling."""
    return _back(None, barred=True)


def back_one_record_behind() -> object:
    """A member of stage 1 says hello with the state before the last record, beside its sibling. It
    steps with that record as it is told, or the first word to it gets lost, or it cannot: what it
    is told first, until the coordinator has looked who has caught up, and whether it has.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, failure: CallFailed | None) -> tuple[list[str], bool]:
        def one(to: Endpoint, request: Request) -> Reply:
            if to == ME and isinstance(request, Heartbeat):
                return Reply(beat_answer(1, iteration=4))
            is_first = sum(isinstance(asked, Commit) for _, asked in alone.line.asked) == 1
            if to == ME and isinstance(request, Commit) and failure is not None and is_first:
                raise failure
            return answer(to, request)

        alone.line.answer = one
        assignment._lead.past |= {4: OTHER_LINEAGE}
        assignment.hello(ME, replace(_hello(1, OTHER_LINEAGE), iteration=4))
        participant = roster.get(ME.member)
        assert participant is not None
        await asyncio.sleep(1.0)
        assignment.admissible(participant)
        await asyncio.sleep(1.0)
        asked = [type(request).__name__ for member, request in alone.line.asked if member == ME.member]
        return [name for name in asked if name in {"Commit", "Build"}][:2], assignment.admissible(participant)

    cases = (None, PeerSilent("lost"), Refused(RefusalKind.GONE, "nobody keeps the average"))
    return [_assignment(partial(story, failure=failure)) for failure in cases]


def silent_holder_of_a_copied_stage() -> object:
    """The only replica of a stage does not answer, and somebody joins it, with its state or
    without: whether the first is in the next plan.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, built: bool) -> bool:
        silent = roster.get(SIBLING.member)
        assert silent is not None
        silent.silent_since_s, assignment._choice.patience_s = alone.context.now_s(), lambda stage, there, held: 60.0
        roster.admit(ME, Hello(False, False, ""), 1, built=built).built_at = 5
        await assignment.fill()
        return roster.get(SIBLING.member) is silent

    return [_assignment(partial(story, built=built)) for built in (True, False)]


def standby_before_the_first_open() -> object:
    """Each stage has one replica of two, somebody stands by, and nobody else has come for long: its
    place before the first Open, and after it.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, opened: bool) -> int:
        alone.context.manifest = replace(MANIFEST, stages=replace(MANIFEST.stages, replicas_min=2))
        participant, assignment._opened = roster.admit(ME, Hello(False, True, ""), ABSENT), opened
        assignment._begun_s -= 60.0
        assignment._use_standbys()
        return participant.stage

    return [_assignment(partial(story, opened=opened)) for opened in (False, True)]


def standby_for_its_link() -> object:
    """A member has left its stage, which has room, for its link: its place, that as it says hello
    again with its state after it was fenced, that a moment later, that once its sibling is lost,
    and whether it is still one that gets no place by itself. Then where its sibling is lost before
    it says hello, with its state and with one of another lineage: its place, and that again.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> tuple[int, int, int, int, bool]:
        participant = roster.admit(ME, Hello(False, False, ""), 1, built=True)
        assignment.stand_by(participant)
        assignment._opened = True
        assignment._use_standbys()
        before = participant.stage
        roster.fence(ME.member, "nothing for 2 s")
        place = assignment.hello(ME, _hello(1))
        assignment._use_standbys()
        again = roster.get(ME.member)
        assert again is not None
        after = again.stage
        roster.fence(SIBLING.member, "nobody listens")
        assignment._use_standbys()
        return before, place.stage, after, again.stage, again.rests

    async def lost(alone: Alone, assignment: Assignment, roster: Roster, *, lineage: str) -> tuple[int, bool]:
        assignment.stand_by(roster.admit(ME, Hello(False, False, ""), 1, built=True))
        for gone in (ME, SIBLING):
            roster.fence(gone.member, "nothing for 2 s")
        place = assignment.hello(ME, _hello(1, lineage))
        again = roster.get(ME.member)
        assert again is not None
        return place.stage, again.rests

    return _assignment(story), *(_assignment(partial(lost, lineage=lineage)) for lineage in (LINEAGE, BEFORE))


def standby_that_holds_a_lost_stage() -> object:
    """A barred member stands by, and its sibling is lost beside a newcomer: who builds the stage,
    and how.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> tuple[str, str]:
        roster.bar(ME.member, "it cannot average with its sibling")
        assignment.hello(ME, _hello(1))
        barred = roster.get(ME.member)
        assert barred is not None
        assert barred.stage == ABSENT
        barred.answer = replace(beat_answer(1), iteration=5)
        roster.admit(endpoint("newcomer"), Hello(False, False, ""), 1)
        roster.fence(SIBLING.member, "nobody listens")
        assignment._use_standbys()
        ((builder, action),) = assignment._work()
        return builder.member.peer_id, type(action).__name__

    return _assignment(story)


def standbys_that_hold_a_lost_stage() -> object:
    """The ends, of one replica, are lost, and two stand by that served them before, of which the
    later one holds more steps; a newcomer has the place, or nobody. Who is placed there.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, newcomer: bool) -> list[str]:
        roster.fence(A.member, "it is gone")
        assignment._lead.past |= {4: LINEAGE}
        if newcomer:
            roster.admit(endpoint("newcomer"), Hello(True, False, ""), 0)
        for name, iteration in (("first", 4), ("second", 5)):
            roster.admit(endpoint(name), replace(_hello(0), can_feed=True, iteration=iteration), ABSENT, is_ours=True)
        assignment._opened = True
        assignment._use_standbys()
        assignment._use_standbys()
        return [one.member.peer_id for one in roster.of_stage(0)]

    return [_assignment(partial(story, newcomer=newcomer)) for newcomer in (False, True)]


def joiner_that_holds_a_lost_stage() -> object:
    """A newcomer was given a place in stage 2, has not built that yet, and holds stage 1 as it
    tells; stage 1 is lost, and a standby that holds nothing is there: who is placed there.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[str]:
        roster.admit(endpoint("standby"), Hello(False, True, ""), ABSENT)
        roster.admit(endpoint("joiner"), _hello(1), 2, is_ours=True)
        roster.fence(SIBLING.member, "it is gone")
        assignment._opened = True
        assignment._use_standbys()
        return [one.member.peer_id for one in roster.of_stage(1)]

    return _assignment(story)


def newcomer_away_at_a_commit() -> object:
    """A peer comes back that cannot vouch for its state, as it was away while what it had worked on
    was decided; its first answer tells the base of that, or another one: what it holds, as far as
    is known.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, base: str) -> int:
        assignment._lead.present = Present(5, LINEAGE, replace(record(), iteration=4, base="worked on"))
        participant = roster.admit(endpoint("back"), replace(_hello(1), stage=ABSENT), 1)
        participant.hear(beat_answer(1, iteration=5, base=base), 0.0, assignment._lead.bases)
        return participant.held(1)

    return [_assignment(partial(story, base=base)) for base in ("worked on", "another")]


def newcomer_that_is_known_by_a_claim() -> object:
    """A successor has a newcomer of a lost stage by its claim, which has answered as one that keeps
    what is not its lineage's; it says hello with its state of before: whether that is kept.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> tuple[str, int]:
        newcomer = roster.admit(ME, Hello(False, False, ""), 1)
        newcomer.hear(replace(beat_answer(1), iteration=6), 0.0)
        roster.fence(SIBLING.member, "nobody listens")
        assignment.hello(ME, _hello(1))
        ((_, action),) = assignment._work()
        return type(action).__name__, newcomer.held(1)

    return _assignment(story)


def barred_that_says_hello_once_more() -> object:
    """A barred member stands by with a state that it can vouch for only later; its sibling is lost
    beside another standby: who is placed there.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[str]:
        roster.admit(endpoint("e"), Hello(False, True, ""), ABSENT)
        roster.bar(ME.member, "it cannot average with its sibling")
        assignment.hello(ME, Hello(False, False, ""))
        assignment.hello(ME, _hello(1))
        roster.fence(SIBLING.member, "nobody listens")
        assignment._use_standbys()
        return [one.member.peer_id for one in roster.of_stage(1)]

    return _assignment(story)


def past_of_a_builder() -> object:
    """A newcomer is to build a stage, and coordinates later: of which iterations it knows the
    lineage then.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[int]:
        assignment._lead.past |= {1: "far", 3: "three", 4: "four", 6: "decided since"}
        participant = roster.admit(ME, Hello(False, False, ""), 1)
        await assignment._build(participant, Fresh(1, 0, "draw it"), assignment._lead.present, limit_s=9.0)
        request = next(asked for _, asked in alone.line.asked if isinstance(asked, Build))
        await alone.builder.build(A, request)
        return sorted(alone.replica_state.past)

    return _assignment(story)


def keeper_that_is_missed() -> object:
    """The ends are lost beside a silent keeper: whether they are drawn at once, where its copy is
    of another past, and after a minute.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[bool]:
        roster.fence(A.member, "nobody listens")
        roster.admit(ME, Hello(False, False, ""), 1, built=True).opened = at(1)
        found = []
        for lineage, wait_s in ((LINEAGE, 0.0), (OTHER_LINEAGE, 0.0), (LINEAGE, 60.0)):
            keeper = roster.admit(SIBLING, Hello(False, False, ""), 1, built=True)
            keeper.answer = replace(beat_answer(1), ends_iteration=5, ends_lineage=lineage)
            await roster.judge(keeper, PeerSilent("it hangs"))
            await asyncio.sleep(wait_s)
            found.append(not assignment._waits_for_a_keeper(Fresh(0, 0, "draw it")))
        return found

    return _assignment(story)


def feeder_that_comes_while_members_step() -> object:
    """The ends are lost, somebody keeps a copy, and a feeder comes while a member makes its last
    step: how the ends are brought back.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[str]:
        found, feeder = list[str](), endpoint("e")

        def one(to: Endpoint, request: Request) -> Reply:
            match request:
                case Commit():
                    assignment.hello(feeder, Hello(True, False, MANIFEST.data.corpus_hash, 0))
                case Build(action=action):
                    found.append(type(action).__name__)
                    return Reply(Built("digest", 1.0, 0, 5))
                case Heartbeat():
                    stage = PLACES.get(to.member, ABSENT)
                    return Reply(
                        replace(beat_answer(stage, iteration=5), ends_iteration=5 if to == D else -1, ends_lineage=LINEAGE)
                    )
            return answer(to, request)

        alone.line.answer = one
        roster.fence(A.member, "nobody listens")
        roster.admit(ME, Hello(False, False, "", 0), 1, built=True).built_at = 4
        await assignment.fill()
        return found

    return _assignment(story)


def feeder_that_serves_alone() -> object:
    """The last source is lost, and the one that can feed, as it announces, serves a stage alone:
    where a spare and it are, twice.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[tuple[int, int]]:
        async def shown() -> list[Announcement]:
            return [replace(announced(D, 5), can_feed=True)]

        directory = SimpleNamespace(announcements=shown)
        assignment._context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))  # type: ignore[arg-type]
        spare = roster.admit(ME, Hello(False, False, ""), 1, built=True)
        roster.fence(A.member, "nobody listens")
        assignment._lost_since_s, found, feeder = {0: -100.0}, list[tuple[int, int]](), roster.get(D.member)
        assert feeder is not None
        for _ in range(2):
            await assignment._move_spares()
            found.append((spare.stage, feeder.stage))
            spare.built = True  # it has copied what the other one holds
        return found

    return _assignment(story)


def spare_before_the_first_plan() -> object:
    """Before the first plan a stage has too few replicas for longer than anybody waits: where the
    youngest of another one's three is then, and of another one's two, which it needs itself.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, count: int) -> int:
        manifest = alone.context.manifest
        stages = replace(manifest.stages, replicas_min=2)
        assignment._context = replace(alone.context, manifest=replace(manifest, stages=stages))
        assignment._opened = False
        youngest = None
        for number in range(count):
            youngest = roster.admit(endpoint(f"n{number}"), Hello(False, False, ""), 1, built=True)
        for member in (ME.member, SIBLING.member):
            roster.fence(member, "nobody listens")
        alone.line.answer = lambda to, request: Reply(beat_answer(PLACES.get(to.member, 1)))
        assignment._lost_since_s = {2: -100.0}
        await assignment._move_spares()
        assert youngest is not None
        return youngest.stage

    return [_assignment(partial(story, count=count)) for count in (3, 2)]


def feeder_that_coordinates() -> object:
    """The last source is lost, and the coordinator alone can feed, and serves a stage alone: where
    a standby and it are, twice.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[tuple[int, int]]:
        roster.fence(A.member, "nobody listens")
        roster.fence(SIBLING.member, "nobody listens")
        able = Hello(True, False, alone.context.manifest.data.corpus_hash)
        feeder = roster.admit(alone.context.here, able, 1, built=True)
        standby = roster.admit(ME, Hello(False, True, ""), ABSENT)
        found = list[tuple[int, int]]()
        for _ in range(2):
            assignment._move_to(0)
            found.append((standby.stage, feeder.stage))
            standby.built = True  # it has copied what the coordinator holds
        return found

    return _assignment(story)


def shadow_of_another_lineage() -> object:
    """A member keeps a shadow that stands on a lineage that gave way: how many shadows can be
    used.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> int:
        participant = roster.get(D.member)
        assert participant is not None
        shadows = (KeptShadow(1, 5, full=True, lineage=OTHER_LINEAGE), KeptShadow(1, 7, full=True, lineage=LINEAGE))
        participant.answer = replace(beat_answer(2), shadows=shadows)
        return len(assignment._choice.shadows(roster))

    return _assignment(story)


def rate_of_a_merged_stage() -> object:
    """A stage is merged anew: whether it starts with the run's rate factor, and without moments."""

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> tuple[bool, int]:
        def built(to: Endpoint, request: Request) -> Reply:
            return Reply(Built("digest", 1.0, 0, 5)) if isinstance(request, Build) else answer(to, request)

        alone.line.answer = built
        roster.fence(SIBLING.member, "it is gone")
        participant = roster.admit(ME, Hello(False, False, ""), 1)
        half = float32_bits(0.5)
        action = Merge(1, A, D, 0, 2, half, half, 1.0, 1.0, "both neighbours live")
        await assignment._build(participant, action, assignment._lead.present, limit_s=None)
        (rebuilt,) = assignment.rebuilt_stages()
        return rebuilt.rate_scaled, rebuilt.steps

    return _assignment(story)


def build_beside_one_that_came_back() -> object:
    """While a stage is merged, its replica comes back: what is rebuilt then."""

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> int:
        def built(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Build):
                assignment.hello(SIBLING, _hello(1))
                return Reply(Built("digest", 1.0, 0, 5))
            return answer(to, request)

        alone.line.answer = built
        roster.fence(SIBLING.member, "it does not answer")
        participant = roster.admit(ME, Hello(False, False, ""), 1)
        action = Fresh(1, 5, "nobody is left")
        await assignment._build(participant, action, assignment._lead.present, limit_s=None)
        return len(assignment.rebuilt_stages())

    return _assignment(story)


def _standby_with_a_state(told: HeartbeatAnswer | None) -> object:
    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[str]:
        for one in (endpoint("e"), ME):
            roster.admit(one, Hello(False, True, ""), ABSENT)
        assignment.hello(ME, _hello(1))
        participant = roster.get(ME.member)
        assert participant is not None
        participant.answer = told
        roster.fence(SIBLING.member, "it is gone")
        assignment._use_standbys()
        return [one.member.peer_id for one in roster.of_stage(1)]

    return _assignment(story)


def standby_with_a_state() -> object:
    """Two stand by, and the junior tells of a state of stage 1, which then is lost: who is placed
    there.
    """
    return _standby_with_a_state(beat_answer(1, iteration=5))


def standby_that_has_just_said_hello() -> object:
    """As before, with a junior that has not answered a heartbeat yet."""
    return _standby_with_a_state(None)


def state_that_is_vouched_for_later() -> object:
    """A standby steps with a state that it could not vouch for when it said hello: the stages that
    it tells.
    """

    async def story(alone: Alone) -> list[int]:
        async def lead(inherited: object) -> None:
            raise AssertionError(inherited)

        alone.line.answer = lambda to, request: Reply(Place(to, ABSENT, "", accepted=True))
        alone.replica_state.is_committed_state = False
        membership = Membership(alone.context, alone.stage_member, alone.tasks, lead)
        assert await membership._ask_each([A])
        alone.tasks.start(membership._listen(), "listen")
        alone.stage_member.tied.tell()
        await asyncio.sleep(0.2)
        alone.replica_state.is_committed_state = True
        alone.stage_member.tied.tell()
        await asyncio.sleep(0.2)
        return [request.stage for _, request in alone.line.asked if isinstance(request, Hello)]

    return play(story)


def _shown(of: Endpoint, state: PeerState) -> Announcement:
    return Announcement(of, state, -1, 0, "", 0.0, 0.0, True, PROTOCOL_REVISION, 1e9)


def founder_that_was_started_again() -> object:
    """The second life of the founder hears of a coordinator, or reads once that others serve, then
    nothing of it: whether it founds.
    """
    here, before, now = _shown(ME, PeerState.STANDBY), _shown(A, PeerState.STANDBY), _shown(A, PeerState.SERVING)

    async def story(alone: Alone) -> list[bool]:
        async def lead(inherited: object) -> None:
            return inherited is not None

        async def founder() -> Founder:
            return Founder(1, ME.member.peer_id)

        ports = replace(alone.context.ports, directory=SimpleNamespace(founder=founder))  # type: ignore[arg-type]
        placed, planned = Place(D, ABSENT, "", accepted=False), PlanAnswer(None, "")
        alone.line.answer = lambda to, request: Reply(planned if isinstance(request, GetPlan) else placed)
        alone.replica_state.stage, founds = ABSENT, []
        for heard, first in ((False, before), (True, before), (False, now)):
            membership = Membership(replace(alone.context, ports=ports), alone.stage_member, alone.tasks, lead)
            if heard:
                await membership._ask(A)
            await membership._found([first])
            founds.append(await membership._found([here, before]))
        return founds

    return play(story)


def founder_that_no_majority_answers() -> object:
    """A founder has looked for others for long, and leads until no majority answers it: what it
    does one after the other.
    """

    async def story(alone: Alone) -> list[str]:
        done: list[str] = []

        async def founder() -> Founder:
            return Founder(1, ME.member.peer_id)

        async def announcements() -> list[Announcement]:
            await asyncio.sleep(2 * alone.context.timing.silence_s)
            return [_shown(ME, PeerState.STANDBY), _shown(A, PeerState.STANDBY)]

        async def lead(inherited: object) -> None:
            done.append("leads")
            alone.replica_state.stage, membership._has_begun = 1, inherited is None

        async def campaign() -> None:
            done.append("claims")
            raise asyncio.CancelledError

        def one(to: Endpoint, request: Request) -> Reply:
            done.append(f"asks {to.member.peer_id}")
            raise Refused(RefusalKind.NOT_YET, "this peer hears no coordinator")

        directory = SimpleNamespace(founder=founder, announcements=announcements)
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))  # type: ignore[arg-type]
        alone.line.answer, alone.replica_state.stage = one, ABSENT
        membership = Membership(context, alone.stage_member, alone.tasks, lead)
        membership._election.campaign = campaign  # type: ignore[method-assign, assignment]
        with suppress(asyncio.CancelledError):
            await membership.keep()
        return done[done.index("leads") :]

    return play(story)


def _copy_from_who_stays(
    answers: Callable[[Alone, Assignment, list[Participant]], Awaitable[T]],
    *,
    slow: bool = False,
    order: BuildAction | None = None,
) -> T:
    """A newcomer copies from a replica that is one step behind, and stays there for good, or builds
    something else by this `order`; a `slow` copy ends after that.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> T:
        def built(to: Endpoint, request: Request) -> Reply:
            return Reply(Built("older", 1.0, 0, 5)) if isinstance(request, Build) else answer(to, request)

        alone.line.answer = built
        newcomer, participant = roster.get(SIBLING.member), roster.admit(ME, _hello(1), 1)
        assert newcomer is not None
        newcomer.built = False
        assignment._joining[newcomer.member] = (ME.member,)
        joins = alone.tasks.start(assignment._join(newcomer, Copy(1, (ME,), ""), Present(5, LINEAGE)), "join")
        await asyncio.sleep(alone.line.delay_s / 2)
        alone.line.delay_s /= 4 if slow else 1
        await assignment._build(participant, order or Stay(1, 4, ""), assignment._lead.present, limit_s=None)
        await joins
        return await answers(alone, assignment, [newcomer, participant])

    return _assignment(story)


def copy_from_who_stays() -> object:
    """What is rebuilt then, and who holds it."""

    async def answers(alone: Alone, assignment: Assignment, participants: list[Participant]) -> tuple[int, list[bool]]:
        del alone
        return len(assignment.rebuilt_stages()), [one.built for one in participants]

    return _copy_from_who_stays(answers)


def copy_from_who_builds() -> object:
    """The replica is told to copy a neighbour instead: what is rebuilt then, and who holds it."""

    async def answers(alone: Alone, assignment: Assignment, participants: list[Participant]) -> tuple[int, list[bool]]:
        del alone
        return len(assignment.rebuilt_stages()), [one.built for one in participants]

    return _copy_from_who_stays(answers, order=CopyNeighbour(1, D, 2, "copy stage 2"))


def copy_once_more() -> object:
    """How often the newcomer is told to copy a tenth of a second later, and whether it holds the
    stage.
    """

    async def answers(alone: Alone, assignment: Assignment, participants: list[Participant]) -> tuple[int, bool]:
        del assignment
        await asyncio.sleep(0.1)
        copies = [asked for _, asked in alone.line.asked if isinstance(asked, Build) and isinstance(asked.action, Copy)]
        return len(copies), participants[0].built

    return _copy_from_who_stays(answers, slow=True)


def own_older_state() -> object:
    """A stage is lost, and its builder holds its state of one iteration ago: what it does."""
    neighbour = CopyNeighbour(1, D, 2, "copy stage 2")
    return type(patience.or_stay(neighbour, 99, 100)).__name__


def holder_that_cannot_stay() -> object:
    """A stage is lost, and two hold its state of one iteration ago; the senior has begun to copy
    the other's, so that it cannot keep its own: who is asked, one after the other, and to do what.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[tuple[str, str]]:
        roster.holders(1)[0].lose()
        roster.admit(ME, Hello(False, False, ""), 1, is_ours=True)
        asked = []
        for _ in range(3):
            for participant in roster.of_stage(1):
                participant.answer = replace(beat_answer(1), iteration=4)
            ((builder, action),) = assignment._work()
            asked.append((builder.member.peer_id, type(action).__name__))
            await assignment._build(builder, action, assignment._lead.present, limit_s=9.0)
        return asked

    return _assignment(story)


def older_state_beside_one_that_is_called_for() -> object:
    """The last holder of a stage is only called for, and a member of it is one step behind; then
    the first is heard: how often the other one was told to copy from it.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[int]:
        last, behind, copies = roster.holders(1)[0], roster.admit(ME, Hello(False, False, ""), 1, is_ours=True), []
        behind.answer = replace(beat_answer(1), iteration=4)
        for last.silent_since_s in (alone.context.now_s(), None):
            assignment.start_joins()
            copies.append(len(assignment._joining))
        return copies

    return _assignment(story)


def copy_whose_answer_is_lost() -> object:
    """A newcomer copies stage 1, and its heartbeats tell which stage it holds, the answer to the
    Build never comes: which iteration of stage 1 it is known to hold, where it held nothing before;
    where it held an older state of that stage, and tells of it still, or of none and then of one;
    where it was to make the stage in another way; and where its copy was void, or kept, by then.
    """

    def held(before: int, *then: int, copies: int = 1, later: dict[str, bool] | None = None) -> int:
        newcomer = Participant(ME, Hello(False, False, ""), 1, 0)
        newcomer.hear(replace(beat_answer(before), iteration=4), 0.0)
        newcomer.begin_build(copies=copies)
        for stage in then:
            newcomer.hear(replace(beat_answer(stage), iteration=5), 1.0)
        if later is not None:
            newcomer.begin_build(**later)
        return newcomer.held(1)

    by_word = [held(ABSENT, 1), held(1, 1), held(1, ABSENT, 1), held(ABSENT, 1, copies=ABSENT)]
    return [*by_word, held(ABSENT, 1, later={}), held(ABSENT, 1, later={"keeps": True})]


def copies_that_come_to_nothing() -> object:
    """A newcomer's copies of stage 1 fail, one after the other, since nothing comes: as the holder
    is heard, is only called for, says that it is not there yet before that, or is gone; since its
    own device fails, as the holder is called for; or as another donor is heard: whether it is
    barred.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, how: str) -> bool:
        newcomer, copy = roster.admit(ME, Hello(False, False, ""), 1), Copy(1, (SIBLING,), "copy it")
        kind = {"own": RefusalKind.EXHAUSTED, "not yet": RefusalKind.NOT_YET}.get(how, RefusalKind.FAILED)
        if how == "another":
            copy = replace(copy, donors=(SIBLING, D))
        if how == "gone":
            roster.fence(SIBLING.member, "nobody listens")
        elif how != "heard":
            roster.holders(1)[0].silent_since_s = alone.context.now_s()
        for _ in range(9):
            await assignment._refused(newcomer, Build(at(2), copy, 5, LINEAGE, record()), Refused(kind, "x"), newcomer.builds)
        return roster.is_barred(ME.member)

    ways = ("heard", "silent", "not yet", "gone", "own", "another")
    return [_assignment(partial(story, how=how)) for how in ways]


def builder_that_does_not_answer() -> object:
    """A newcomer that copies cannot be called; then one that was told meanwhile to keep what it
    has: whether it is there still.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, is_overtaken: bool) -> bool:
        newcomer = roster.admit(ME, Hello(False, False, ""), 1)

        def answered(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Build):
                return answer(to, request)
            if is_overtaken:
                newcomer.begin_build(keeps=True)
            raise PeerUnreachable("nobody listens")

        alone.line.answer = answered
        await assignment._build(newcomer, Copy(1, (SIBLING,), "copy it"), assignment._lead.present, limit_s=None)
        return roster.get(ME.member) is newcomer

    return [_assignment(partial(story, is_overtaken=is_overtaken)) for is_overtaken in (False, True)]


def builder_that_has_another_place() -> object:
    """A newcomer copies stage 1, and is given stage 2 before its answer comes, or none: which
    stages it is told to copy, and whether it counts as a holder at the end.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, place: int) -> tuple[list[int], bool]:
        newcomer, told = roster.admit(ME, Hello(False, False, ""), 1), list[int]()

        def built(to: Endpoint, request: Request) -> Reply:
            if not isinstance(request, Build):
                return answer(to, request)
            told.append(request.action.stage)
            newcomer.place(place)
            return Reply(Built("digest", 1.0, 0, 5))

        alone.line.answer = built
        assignment.start_joins()
        await asyncio.sleep(5.0)
        return told, newcomer.built

    return [_assignment(partial(story, place=place)) for place in (1, 2, ABSENT)]


def leaver_that_cannot_step() -> object:
    """The last member of a stage is about to leave, and nobody keeps the average that it needs; one
    that has just come is there, too: who is asked, and to do what.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> tuple[str, str]:
        last = roster.holders(1)[0]
        last.answer = replace(beat_answer(1), iteration=4)
        last.leave()
        roster.demote(last, "nobody keeps the average")
        roster.admit(ME, Hello(False, False, ""), 1)
        ((builder, action),) = assignment._work()
        return builder.member.peer_id, type(action).__name__

    return _assignment(story)


def copy_that_costs_a_state() -> object:
    """The last holder of a stage is out of the coordinator's reach; a member holds the stage as it
    is, as it was one step before, or three, alone or beside a newcomer that holds nothing: who is
    asked, and to do what.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, held: int, beside: bool) -> tuple[bool, str]:
        del alone
        roster.fence(SIBLING.member, "it is silent")
        roster.out_of_reach[1] = SIBLING
        member = roster.admit(ME, Hello(False, False, ""), 1, is_ours=True)
        member.hear(replace(beat_answer(1), stage=1, iteration=held), 0.0)
        if beside:
            roster.admit(D, Hello(False, False, ""), 1)
        ((builder, action),) = assignment._work()
        return builder is member, type(action).__name__

    asked = ((5, False), (4, False), (4, True), (2, False), (2, True))
    return [_assignment(partial(story, held=held, beside=beside)) for held, beside in asked]


def joiner_that_is_past() -> object:
    """A joiner's answer was lost, and it has stepped with the others as it is told once more to
    build the state of before; then its only sibling dies: how the stage comes back.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> str:
        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Build):
                raise Refused(RefusalKind.PAST, "lineage 0 at iteration 4 gives way to 1 at 5, held here")
            return answer(to, request)

        alone.line.answer = one
        participant = roster.admit(ME, Hello(False, False, ""), 1)
        participant.answer = replace(beat_answer(1), iteration=5)
        before = Present(4, "0" * 64, replace(record(), iteration=3))
        await assignment._build(participant, Copy(1, (SIBLING,), "copy it"), before, limit_s=None)
        roster.fence(SIBLING.member, "nobody listens")
        ((_, action),) = assignment._work()
        return type(action).__name__

    return _assignment(story)


def donor_that_leads_others() -> object:
    """The last holder of a stage, out of the coordinator's reach till now, gives its state to
    nobody of another side, since it leads its own, in this term and in a later one, or follows one
    that does; or the builder cannot reach it, either: how often its coordinator is visited, and
    what is built first.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, term: Term, why: RefusalKind) -> tuple[int, list[str]]:
        leader = SIBLING if term.member == SIBLING.member else D

        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Meet) and to in {SIBLING, leader}:
                return Reply(Met(5, LINEAGE, (), leader, term, whole=False))
            if isinstance(request, Build):
                raise Refused(why, "build of stage 1 came to nothing")
            return answer(to, request)

        alone.line.answer = one
        roster.fence(SIBLING.member, "it is silent")
        roster.out_of_reach[1] = SIBLING
        roster.admit(ME, Hello(False, False, ""), 1)
        alone.tasks.start(assignment.fill(), "fill")
        await asyncio.sleep(2.0)
        built = [type(request.action).__name__ for _, request in alone.line.asked if isinstance(request, Build)]
        visits = sum(isinstance(request, Meet) and to == leader.member for to, request in alone.line.asked)
        return min(visits, 1), built[:2]

    late, not_yet = Term(2, SIBLING.member), RefusalKind.NOT_YET
    asked = (Term(1, SIBLING.member), not_yet), (late, not_yet), (LATER, not_yet), (late, RefusalKind.FAILED)
    return [_assignment(partial(story, term=term, why=why)) for term, why in asked]


def last_holder_of_a_lost_stage() -> object:
    """The last holder of a stage was waited for in vain, and nobody can build the stage yet:
    whether it is called again and again before the Seal, and after it.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> tuple[bool, bool]:
        def one(to: Endpoint, request: Request) -> Reply:
            if to == SIBLING:
                raise PeerUnreachable("no way to it")
            return answer(to, request)

        def calls() -> int:
            return sum(isinstance(request, Meet) and to == SIBLING.member for to, request in alone.line.asked)

        alone.line.answer = one
        called = roster.get(SIBLING.member)
        assert called is not None
        called.miss(alone.context.now_s() - 1000)
        called.called_s = alone.context.now_s() - 1000
        await roster.judge(called, PeerSilent("it does not answer"))
        alone.tasks.start(assignment.fill(), "fill")
        await asyncio.sleep(8.0)
        before = calls()
        assignment._lead.seal()
        await asyncio.sleep(8.0)
        return before > 1, calls() > before

    return _assignment(story)


def copy_after_one_that_was_out_of_reach() -> object:
    """A joiner copies its stage from one that holds it, for longer than a peer may be silent; and
    where the last holder before could not be reached: whether what it has copied counts.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, is_left: bool) -> bool:
        alone.line.delay_s = 1.5 * alone.context.timing.silence_s
        alone.line.answer = lambda to, request: (
            Reply(Built("c" * 64, 0.1, 0, 5)) if isinstance(request, Build) else answer(to, request)
        )
        if is_left:
            roster.out_of_reach[1] = endpoint("e")
        joiner = roster.admit(ME, Hello(False, False, ""), 1)
        assignment.start_joins()
        await asyncio.sleep(2 * alone.line.delay_s)
        return joiner.built

    return [_assignment(partial(story, is_left=is_left)) for is_left in (False, True)]


async def _outlasts(alone: Alone, assignment: Assignment, roster: Roster, *, happens: Callable[[Roster], None]) -> bool:
    """A stage is made from D's, nothing comes of it for long, and something happens meanwhile:
    whether the builder is still there after it, not fenced as one that did nothing.
    """
    alone.line.delay_s = 100.0
    roster.fence(SIBLING.member, "it is silent")
    roster.admit(ME, Hello(False, False, ""), 1)
    ((builder, action),) = assignment._work()
    assert action == CopyNeighbour(1, D, 2, action.reason)
    async with asyncio.TaskGroup() as group:
        group.create_task(assignment._build(builder, action, assignment._lead.present, limit_s=20.0))
        await asyncio.sleep(1.0)
        happens(roster)
    return roster.get(ME.member) is builder


def neighbour_that_hangs() -> object:
    """A neighbour that is to give its weights is fenced beside a sibling, or its sibling is, or it
    alone was left of its stage: whether the build ends without blame.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, fenced: Endpoint, is_alone: bool) -> bool:
        if not is_alone:
            roster.admit(E, Hello(False, False, ""), 2, built=True, built_at=5, is_ours=True)
        return await _outlasts(alone, assignment, roster, happens=lambda roster: roster.fence(fenced.member, "its device hangs"))

    return [
        _assignment(partial(story, fenced=fenced, is_alone=is_alone)) for fenced, is_alone in ((D, False), (E, False), (D, True))
    ]


def build_of_who_leads_no_longer() -> object:
    """A coordinator is deposed while a stage is made, or is not: whether the build ends without
    blame.
    """

    def depose(roster: Roster) -> None:
        roster.depose("another one leads")

    return [_assignment(partial(_outlasts, happens=happens)) for happens in (depose, lambda roster: None)]


def deposed_as_others_step() -> object:
    """A stage is lost, and while a member that missed the last record steps with it, the
    coordinator is deposed, or is not: whether the stage is built.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, deposed: bool) -> bool:
        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Commit) and deposed:
                roster.depose("another one leads")
            return Reply(Built("c" * 64, 0.1, 0, 5)) if isinstance(request, Build) else answer(to, request)

        alone.line.answer = one
        roster.fence(SIBLING.member, "it is silent")
        roster.admit(ME, Hello(False, False, ""), 1)
        behind = roster.get(D.member)
        assert behind is not None
        behind.built_at = 4
        with suppress(Deposed):
            await assignment.fill()
        return any(isinstance(request, Build) for _, request in alone.line.asked)

    return [_assignment(partial(story, deposed=deposed)) for deposed in (True, False)]


def copier_that_dies() -> object:
    """A newcomer has copied a lost stage from its last holder, which the coordinator cannot reach,
    and dies, before the next commit or after it; or it falls silent, and is called for in vain;
    or the holder is given up as members are told of a record, and the stage is lost, or has been
    copied by then: from whom the next newcomers are to copy the stage.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, how: str) -> list[str]:
        built, donors = Built("c" * 64, 0.1, 0, 5), list[str]()

        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Build) and to == ME:
                return Reply(built)
            if isinstance(request, Build):
                raise Refused(RefusalKind.FAILED, "it cannot be reached from here, either")
            return answer(to, request)

        alone.line.answer = one
        roster.fence(SIBLING.member, "it is silent")
        roster.out_of_reach[1] = SIBLING
        roster.admit(ME, Hello(False, False, ""), 1)
        if how != "is told":
            ((copier, action),) = assignment._work()
            await assignment._build(copier, action, assignment._lead.present, limit_s=1.0)
            assert copier.built, "it has copied the stage"
        if how in {"is silent", "is copied"}:
            roster.out_of_reach[1] = ME
        if how in {"commits", "is told", "is copied"}:
            assignment.committed()
        roster.fence(ME.member, "nobody listens")
        newcomer = roster.admit(D, Hello(False, False, ""), 1)
        for _ in range(2):
            ((_, action),) = assignment._work()
            donors += [donor.member.peer_id for donor in action.donors] if isinstance(action, Copy) else ["nobody"]
            await assignment._build(newcomer, action, assignment._lead.present, limit_s=1.0)
        return donors

    return [_assignment(partial(story, how=how)) for how in ("dies", "commits", "is silent", "is told", "is copied")]


def copier_that_dies_as_it_copies() -> object:
    """A newcomer is told to copy a lost stage from its last holder, which the coordinator cannot
    reach, and dies at that, or falls silent, or was fenced before it says that it has built it, or
    says that the holder says nothing: what the next newcomer is to build; and how many are to copy
    where all of them die, also after a commit.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, error: CallFailed | None, count: int) -> list[str]:
        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Build) and error is None:
                roster.fence(to.member, "it is silent")
                return Reply(Built("c" * 64, 0.1, 0, 5))
            if error is not None and (isinstance(request, Build) or isinstance(error, PeerSilent)):
                raise error
            return answer(ME if to.member.peer_id == ME.member.peer_id else to, request)

        async def build(newcomer: Endpoint) -> str:
            roster.admit(newcomer, Hello(False, False, ""), 1)
            ((builder, action),) = assignment._work()
            await assignment._build(builder, action, assignment._lead.present, limit_s=1.0)
            if not isinstance(error, Refused):
                roster.fence(builder.member, "nobody listens")
            return type(action).__name__

        alone.line.answer, alone.line.delay_s = one, 3.0 if isinstance(error, PeerSilent) else 0.05
        roster.fence(SIBLING.member, "it is silent")
        roster.out_of_reach[1] = SIBLING
        found = [await build(endpoint("b", life)) for life in range(1, count + 1)]
        assignment.committed()
        roster.out_of_reach[1] = SIBLING
        return [*found, *[await build(endpoint("b", life)) for life in range(count + 1, 2 * count + 1)]]

    failed = Refused(RefusalKind.FAILED, "x")
    asked = (PeerUnreachable("x"), 2), (PeerSilent("x"), 2), (None, 2), (failed, 2), (PeerUnreachable("x"), 9)
    stories = [_assignment(partial(story, error=error, count=count)) for error, count in asked]
    return [*(one[:2] for one in stories[:4]), stories[4].count("Copy")]


def holder_that_says_nothing() -> object:
    """The last holder of a lost stage, which the coordinator cannot reach, gives nothing to the
    newcomer that is told to copy from there, and makes room: whether the stage is built in another
    way in half of the time that a build may take.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> bool:
        call = alone.line.call

        async def silent(to: Endpoint, request: Request, payload: bytes = b"", *, silence_s: float, header_first: bool) -> Reply:
            if isinstance(request, Build) and isinstance(request.action, Copy):
                await asyncio.Event().wait()
            return await call(to, request, payload, silence_s=silence_s, header_first=header_first)

        alone.line.answer = answer
        roster.fence(SIBLING.member, "it is silent")
        roster.out_of_reach[1] = SIBLING
        roster.admit(ME, Hello(False, False, ""), 1)
        alone.line.call = silent  # type: ignore[method-assign, assignment]
        alone.tasks.start(assignment.fill(), "fill")
        await asyncio.sleep(alone.context.timing.join_wait_s / 2)
        return any(isinstance(request, Build) for _, request in alone.line.asked)

    return _assignment(story)


def builder_that_is_called_for() -> object:
    """A peer was told to keep its state of iteration 3 for iteration 5, or to build another one, or
    holds it as a member, and was fenced before it answered; it is called for, and tells of
    iteration 5: whether it counts as a holder of what the last record left, and as of which
    iteration it may be told to keep what it has.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, built: bool, keeps: bool) -> tuple[bool, int]:
        roster.fence(SIBLING.member, "nobody listens")
        builder = roster.admit(ME, _hello(1), 1, built=built, built_at=3 if built else ABSENT, is_ours=True)
        builder.hear(replace(beat_answer(1), stage=1, iteration=3), 0.0)
        builder.begin_build(keeps=keeps)
        roster._absent.add(builder)
        roster.fence(ME.member, "it does not answer")
        called = roster.get(ME.member)
        assert called is not None, "nobody else holds the stage"
        called.hear(replace(beat_answer(2), stage=1, iteration=5), 0.0)
        return called.built, called.held(1)

    asked = (False, True), (False, False), (True, False)
    return [_assignment(partial(story, built=built, keeps=keeps)) for built, keeps in asked]


def newcomer_that_was_told_nothing() -> object:
    """A peer that is back with its state of iteration 3 for iteration 5 is fenced before its first
    answer, and before it was told to build, or after that; it is called for, and tells of iteration
    3, or of 5, which an earlier coordinator had it build: as of which iteration it may be told to
    keep what it has.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, is_told: bool, iteration: int = 3) -> int:
        roster.fence(SIBLING.member, "nobody listens")
        back = roster.admit(ME, Hello(False, False, "", stage=1, iteration=3, lineage="3" * 64), 1, is_ours=True)
        if is_told:
            back.begin_build(copies=1)
        roster._absent.add(back)
        roster.fence(ME.member, "it promised a higher term")
        called = roster.get(ME.member)
        assert called is not None, "nobody else holds the stage"
        called.hear(replace(beat_answer(2), stage=1, iteration=iteration), 0.0)
        return called.held(1)

    asked = (False, 3), (True, 3), (False, 5)
    return [_assignment(partial(story, is_told=is_told, iteration=iteration)) for is_told, iteration in asked]


def stepping_of_who_is_called_for() -> object:
    """A peer that was demoted with its state of iteration 5, or was told to build since, is fenced
    and called for; it says hello with that state, or promises a plan, or does neither, and its next
    answer tells of iteration 6: whether it counts as a holder still, and of this lineage, and since
    when. Then hellos with an older state, another stage, or one further; at last it is called for
    twice.
    """

    async def story(
        alone: Alone, assignment: Assignment, roster: Roster, *, is_told: bool, says: str, hello: Hello, times: int = 1
    ) -> tuple[bool, bool, int]:
        assignment._lead.past |= {4: "4" * 64}
        roster.fence(SIBLING.member, "it is gone")
        member = roster.admit(ME, _hello(1), 1, built=True, built_at=5, is_ours=True)
        roster.admit(SIBLING, _hello(1), 1, built=True, built_at=5, is_ours=True)
        roster.demote(member, "nobody keeps the average")
        if is_told:
            member.begin_build(copies=1)
        roster._absent.add(member)
        roster.fence(ME.member, "it does not answer")
        roster.fence(SIBLING.member, "it does not answer")
        called = roster.get(ME.member)
        for _ in range(times - 1):
            assert called is not None
            roster._absent.add(called)
            roster.fence(ME.member, "it does not answer")
            called = roster.get(ME.member)
        assert called is not None, "nobody else holds the stage"
        if says == "hello":
            assignment.hello(ME, hello)
        if says == "promise":
            called.promise(at(2), called.builds)
        called.hear(replace(beat_answer(2), stage=1, iteration=6), 0.0)
        return called.built, called.is_ours, called.built_at

    asked = ((False, ""), (False, "hello"), (True, "hello"), (False, "promise"), (True, "promise"))
    found = [_assignment(partial(story, is_told=is_told, says=says, hello=_hello(1))) for is_told, says in asked]
    older = replace(_hello(1), iteration=4, lineage="4" * 64)
    further = replace(_hello(1, OTHER_LINEAGE), iteration=6)
    found += [_assignment(partial(story, is_told=False, says="hello", hello=hello)) for hello in (older, _hello(2), further)]
    return [*found, _assignment(partial(story, is_told=True, says="hello", hello=_hello(1), times=2))]


def step_that_is_told_before_its_answer() -> object:
    """A peer that is called for with its state of iteration 5 is sent a record, then a plan, of an
    iteration, and its next heartbeat tells of iteration 6: whether it counts as a holder still; at
    last where it was told to build something before.
    """

    def story(request: Request, *, is_told: bool = False) -> bool:
        before, called = (Participant(ME, _hello(1), 1, 0, built=True, built_at=5, is_ours=True) for _ in range(2))
        if is_told:
            before.begin_build(copies=1)
        called.doubt(before)
        called.send(request)
        called.hear(replace(beat_answer(2), stage=1, iteration=6), 0.0)
        return called.built

    records = [Commit(replace(record(), iteration=iteration)) for iteration in (4, 5)]
    plans = [Open(replace(plan(1), position=at(1, iteration=iteration))) for iteration in (5, 6)]
    return [*map(story, (*records, *plans)), story(records[1], is_told=True)]


def step_whose_answer_is_lost() -> object:
    """A holder is sent the record of iteration 5, then the plan of iteration 8, and no answer
    comes: up to which iteration it may step after each.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[int]:
        def silent(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Commit | Open):
                raise PeerSilent(f"nothing from {to.member}")
            return answer(to, request)

        del assignment
        alone.line.answer = silent
        holder, broadcast, sent = roster.get(SIBLING.member), Broadcast(alone.context, roster), list[int]()
        assert holder is not None
        await broadcast.bring_up([holder], replace(record(), iteration=5))
        sent.append(holder.sent_to)
        await broadcast.one(holder, Open(replace(plan(1), position=at(1, iteration=8))))
        return [*sent, holder.sent_to]

    return _assignment(story)


def newcomer_whose_donors_are_fenced() -> object:
    """A newcomer copies from one holder of a stage, and is answered after 30 s if it copies from
    `c`, fenced or not, and at once if from `b`: from whom it was told to copy, and after how many
    seconds; and whether it holds the stage at last. At first nobody is fenced, then `c` is, with
    `b` there since, or from the start; then the copy gets on, or its answer counts no more; then
    nobody holds the stage any more.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, case: str) -> tuple[dict[str, float], bool]:
        told, begun_s = dict[str, float](), alone.context.now_s()

        async def ask(participant: Participant, request: Build) -> Built:
            donors = "".join(donor.member.peer_id for donor in givers_of(request.action))
            told.setdefault(donors, round(alone.context.now_s() - begun_s))
            while SIBLING in givers_of(request.action) and alone.context.now_s() - begun_s < 30.0:
                await asyncio.sleep(1.0)
            return Built("digest", 1.0, 0, 5)

        def beat(to: Endpoint, request: Request) -> Reply:
            work_done = int(alone.context.now_s()) if case == "gets on" else 0
            said = answer(to if to.member in PLACES else SIBLING, request)
            return Reply(replace(said.message, work_done=work_done)) if isinstance(said.message, HeartbeatAnswer) else said

        assignment._ask = ask  # type: ignore[method-assign]
        alone.line.answer = beat
        newcomer = roster.admit(endpoint("newcomer"), _hello(1), 1)
        if case == "two":
            roster.admit(ME, _hello(1), 1, built=True, built_at=5, is_ours=True)
        assignment.start_joins()
        await asyncio.sleep(1.0)
        if case not in {"two", "alone"}:
            roster.admit(ME, _hello(1), 1, built=True, built_at=5, is_ours=True)
        holder = roster.get(SIBLING.member)
        assert holder is not None
        if case == "voided":
            newcomer.begin_build()
        elif case == "alone":
            holder.lose()
        elif case != "there":
            roster.fence(SIBLING.member, "its device hangs")
        await asyncio.sleep(60.0)
        return told, newcomer.built

    return [_assignment(partial(story, case=case)) for case in ("there", "one", "two", "gets on", "voided", "alone")]


def copy_that_gives_way() -> object:
    """A newcomer refuses to go on copying, as another build was asked for, and was told to build
    something else, or not: how many builds it is blamed for.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, is_told: bool) -> int:
        del alone

        async def ask(participant: Participant, request: Build) -> Built:
            del request
            if is_told:
                participant.begin_build()
            assignment._joining[participant.member] = (SIBLING.member,)  # it is told nothing more
            raise Refused(RefusalKind.SUPERSEDED, "another build was asked for")

        assignment._ask = ask  # type: ignore[method-assign]
        newcomer = roster.admit(endpoint("newcomer"), _hello(1), 1)
        action = Copy(1, (SIBLING,), "a live replica")
        await assignment._build(newcomer, action, assignment._lead.present, limit_s=None)
        return newcomer.failed_builds

    return [_assignment(partial(story, is_told=is_told)) for is_told in (True, False)]


def builder_that_is_called_for_again() -> object:
    """A peer that may have built its stage unheard is called for, a sibling comes, and dies: how
    many newcomers were told to copy from the first before, and whether it counts as a holder where
    it tells of a later iteration then; where it was not told to build, too.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, is_told: bool) -> tuple[int, bool]:
        called = roster.get(SIBLING.member)
        assert called is not None
        called.hold(3, is_ours=True)
        if is_told:
            called.doubt(called)
        roster.admit(endpoint("newcomer"), _hello(1), 1)
        assignment.start_joins()
        copiers = len(assignment._joining)
        roster.admit(ME, _hello(1), 1, built=True, built_at=5, is_ours=True)
        roster._absent.add(called)
        roster.fence(SIBLING.member, "a sibling is there")
        roster.fence(ME.member, "nobody listens")
        again = roster.get(SIBLING.member)
        assert again is not None, "nobody else holds the stage"
        again.hear(replace(beat_answer(2), stage=1, iteration=5), 0.0)
        return copiers, again.built

    return [_assignment(partial(story, is_told=is_told)) for is_told in (True, False)]


def builder_that_is_silent() -> object:
    """The last holder of a stage is told to keep it, and falls silent: its heartbeats say so before
    the build does, or not at all; whether it is called for afterwards.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, is_seen: bool) -> bool:
        roster.fence(SIBLING.member, "nobody listens")
        builder = roster.admit(ME, _hello(1), 1, built_at=4, is_ours=True)
        builder.hear(replace(beat_answer(1), stage=1, iteration=4), 0.0)

        def one(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Build) and is_seen:
                roster._absent.add(builder)
                roster.fence(ME.member, "it does not answer")
            raise PeerSilent("x")

        alone.line.answer = one
        await assignment._build(builder, Stay(1, 4, ""), assignment._lead.present, limit_s=1.0)
        return roster.get(ME.member) is not None

    return [_assignment(partial(story, is_seen=is_seen)) for is_seen in (True, False)]


def rivals_one_after_the_other() -> object:
    """A stage is lost, and rivals of this lineage call in turn, for ever: whether it is put off at
    first, after one and a half times what one of them is waited for, after five times that, and for
    the next loss, after a commit.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> list[bool]:
        merge, found = assignment._partition_merge, list[bool]()
        is_put_off = partial(assignment._waits_for_others, Merge(1, A, D, 0, 2, 0, 0, 1.0, 1.0, "both neighbours live"))
        within_s = merge._yields_within_s
        for life, wait_s in enumerate((0.0, *[within_s / 2] * 10)):
            await asyncio.sleep(wait_s)
            merge._await_kin(f"Qm{life}")
            found.append(is_put_off())
        assignment.committed()
        return [found[0], found[3], found[-1], is_put_off()]

    return _assignment(story)


def second_look_that_is_due() -> object:
    """A stage has been put off for as long as it may be, and the coordinator has looked once at a
    rival to give way to, shortly before that, or shortly after: whether it is put off still.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, late_s: float) -> bool:
        merge, now_s = assignment._partition_merge, alone.context.now_s()
        assignment._put_off_s[1] = now_s - merge.expects_at_most_s - 1.0
        merge.yields_since_s = now_s - 1.0 + late_s
        return assignment._waits_for_others(Merge(1, A, D, 0, 2, 0, 0, 1.0, 1.0, "both neighbours live"))

    return [_assignment(partial(story, late_s=late_s)) for late_s in (-0.5, 0.5)]


def least_patience() -> object:
    """First weights, at the beginning: whether a silent peer is waited for until it can have said
    hello.
    """
    timing = test_ends_copy.MANIFEST.timing
    waits_s = patience.patience_s(Fresh(1, 0, "nothing was learned yet"), 1, 0.1, timing)
    return waits_s >= timing.coordinator_silence_s + timing.silence_s


def patience_with_an_old_state() -> object:
    """A stage would be made from a neighbour, and its silent holder is as far as the swarm, or some
    iterations behind: for how many iterations it is waited for.
    """
    timing = replace(test_ends_copy.MANIFEST.timing, join_wait_s=1e6)
    action = CopyNeighbour(1, D, 2, "stage 1 is an end of the body")
    waits_s = [patience.patience_s(action, 40, 100.0, timing, held=held) for held in (40, 37, 0)]
    least_s = timing.coordinator_silence_s + timing.silence_s
    return [(waits_s[0] - wait_s) / 100.0 for wait_s in waits_s[:2]], waits_s[2] == least_s


def patience_at_the_end() -> object:
    """Stage 1 is lost, and a shadow of one iteration before is kept: how long its silent holder is
    called for as the present iteration is one of the run, and as all are committed.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster, *, iteration: int) -> float:
        assignment._lead.present = replace(assignment._lead.present, iteration=iteration)
        return assignment._choice.patience_s(1, roster, iteration)

    iterations = test_ends_copy.MANIFEST.run.iterations
    timing = test_ends_copy.MANIFEST.timing
    waits_s = [_assignment(partial(story, iteration=iteration)) for iteration in (1, iterations)]
    return waits_s == [timing.coordinator_silence_s + timing.silence_s, timing.join_wait_s]


def log_with_a_gap() -> object:
    """A full shadow is two iterations old, and the stage after has no log of the first of them: how
    the stage comes back.
    """
    shadow = recovery.StageShadow(A, 1, 3, full=True)
    section = RecoverySection(shadow_every=10, shadow_kind="full", best="replay")
    logs = recovery.Logs({A.member: 3, D.member: 4})
    last = replace(record(), iteration=4)
    return type(recovery.choose_recovery(1, ((A,), (), (D,)), last, section, (), (shadow,), logs)).__name__


def depth_of_a_donor() -> object:
    """A stage of four blocks is made from one of two: which of the donor's blocks each one comes
    from.
    """
    return [build.donor_block(block, 4, 2) for block in range(4)]


def builder_that_never_ends() -> object:
    """Its device does one piece of work after the other, for ever: whether it is barred, so that
    another one builds.
    """

    async def story(alone: Alone, assignment: Assignment, roster: Roster) -> bool:
        participant = roster.admit(ME, Hello(False, False, ""), 1)
        roster.holders(1)[0].built = False
        action = Merge(1, A, D, 0, 2, 0, 0, 1.0, 1.0, "both neighbours live")

        async def call(to: Endpoint, request: Request, payload: bytes = b"", **_: object) -> Reply:
            while True:
                told = participant.answer or beat_answer(1)
                participant.answer = replace(told, work_done=told.work_done + 1)
                await asyncio.sleep(1.0)

        alone.line.call = call  # type: ignore[assignment, method-assign]
        limit_s = alone.context.timing.join_wait_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * PIECES * limit_s):
                await assignment._build(participant, action, assignment._lead.present, limit_s=limit_s)
        return roster.is_barred(ME.member)

    return _assignment(story)


def frames_of_a_long_answer() -> object:
    """Nothing is done at a builder, and a frame of an answer comes: by how much what it tells
    grows.
    """

    async def story(alone: Alone) -> int:
        told = []
        for _ in range(2):
            reply = await alone.stage_member.heartbeat(A, Heartbeat(at(1), 0, 0.0))
            assert isinstance(reply.message, HeartbeatAnswer)
            told.append(reply.message.work_done)
            alone.line.frames_received += 1
        return told[1] - told[0]

    return play(story)


def force_where_others_may_have_gone_on() -> object:
    """A candidate that two of five follow: how many times `split_wait_s` it waits before it goes on
    by force; where the organiser wants a pause, and where the record that pauses, or another one,
    is stored then; where a later genesis names what comes later, and where one names what it holds.
    Last, before the first record of a run that is to pause, where nobody has more, where somebody
    has, and where one cannot be asked.
    """
    everybody = (test_election.ME, test_election.A, test_election.B, test_election.C, test_election.D)
    before = test_election.record(0, GENESIS_LINEAGE, *everybody).lineage()
    stored = test_election.record(1, before, *everybody)

    def story(
        ordered: Order | None = None,
        genesis: Founder | None = None,
        sealed: Record | None = None,
        others: Sequence[Announcement] | None = None,
    ) -> float:
        at, iteration = Position(test_election.FOUNDER, 1, 0, 1) if sealed is not None else None, 1 if others is None else 0
        told = Promise(iteration, sealed, at, stage=1, is_committed_state=True)
        answers = {test_election.A: lambda _: told, test_election.E: test_election.silent}
        world = test_election.World(everybody, answers, announcements=others or ())
        if others is not None:
            first = replace(plan(0, term=Term(1, test_election.B.member)), replicas=world.replica_state.known_plan.replicas)  # type: ignore[union-attr]
            world.replica_state.install(1, 0, GENESIS_LINEAGE, None)
            world.replica_state.known_plan = first
        world.ordered, world.genesis = ordered, genesis

        async def campaigns() -> float:
            election = Election(world.context, world)  # type: ignore[arg-type]
            split_wait_s = world.context.timing.split_wait_s
            while world.now_s() < 8 * split_wait_s:
                if await election.campaign() is not None:
                    return world.now_s() // split_wait_s
            return math.inf

        return run_virtual(campaigns)

    later, same = Founder(2, "p-b", 2, "ab" * 32, 0), Founder(2, "p-b", 1, "ab" * 32, 0)
    pause = Order(9, Halting.PAUSE)
    halted = story(pause, sealed=replace(stored, halt=Halting.PAUSE)), story(pause, sealed=stored)
    further = replace(test_election.announced(test_election.E, 1), state=PeerState.STANDBY)
    silent = test_election.announced(test_election.E, 0)
    first = story(pause, others=()), story(pause, others=[further]), story(pause, others=[silent])
    return [story(), story(pause), *halted, story(genesis=later), story(genesis=same), *first]


def proof_beside_one_that_cannot_be_asked() -> object:
    """All others of an electorate have died, and one of them is announced again; another announced
    peer never had a vote. Whether the last one goes on by that proof alone, where the first one
    answers, is silent, or listens nowhere yet, and where the other does not.
    """

    def story(**answers: test_election.Answer) -> bool:
        lives = {"a": Endpoint(test_election.later(test_election.A), ("/memory/p-a",)), "e": test_election.E}
        waiting = [replace(test_election.announced(life, 1), state=PeerState.STANDBY) for life in lives.values()]
        told = {lives[name]: answer for name, answer in answers.items()}
        world = test_election.World((test_election.ME, test_election.A, test_election.B), told, announcements=waiting)
        found = world.campaign(test_election.A, test_election.B)
        return found is not None and not found.forced

    answers = test_election.at(1)
    alone = [story(a=test_election.silent), story()]
    return [story(a=answers, e=answers), *alone, story(a=answers, e=test_election.silent), story(a=answers)]
