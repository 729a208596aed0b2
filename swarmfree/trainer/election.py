"""Taking the lead when the coordinator has fallen silent: wait for one's rank, ask, claim, and see
what there is to go on from.

A candidate asks everybody first whether they would promise, and claims only when a majority would:
so one that merely hears nobody disturbs nobody. Without a majority for `split_wait_s` it goes on
with whoever is there, forced. Source: protocol sections 3.1, 3.2.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from swarmfree.policy.answer_checks import fitting_plan, fitting_record
from swarmfree.policy.election import FORCED_WITHOUT_ALL, LOOK_S, electorate_of, founders_term, may_lead, rank
from swarmfree.policy.evidence import is_promised
from swarmfree.policy.permissions import believed_number
from swarmfree.policy.quorum import is_majority, may_decide
from swarmfree.policy.takeover import Takeover, newest_plan, newest_sealed
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import CallFailed, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.events import Note
from swarmfree.protocol.evidence import Evidence, Vote
from swarmfree.protocol.messages import Claim, Commit, GetPlan, GetRecord, PlanAnswer, Promise, RecordAnswer
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position, Term
from swarmfree.protocol.order import Halting
from swarmfree.protocol.plan import Plan
from swarmfree.trainer.context import Context
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.pause_watch import is_to_pause
from swarmfree.trainer.tasks import within

PAUSE_GROWTH = 1.15
"""Nobody is asked as often at the end of a long split as at its beginning."""
REFUSED_MAX = 6
"""Rounds in which somebody refused because it hears a coordinator; then that one is asked for a
place.
"""


@dataclass(slots=True)
class Poll:
    """The answers after a candidate has asked every member once.

    Attributes:
        behind: the highest number of a term that somebody has promised, 0 where nobody told one.
        fresh: who hears a coordinator.
        is_led: the coordinator itself does, or it is one of a higher term than this peer has
            promised: it leads, and has fenced this peer.
    """

    promises: dict[Endpoint, Promise] = field(default_factory=dict)
    behind: int = 0
    fresh: list[Endpoint] = field(default_factory=list)
    is_led: bool = False
    silent: bool = False

    def covers(self, plan: Plan) -> bool:
        """Whether every stage of the plan has a member among those that promised."""
        there = self.members()
        return all(any(replica.endpoint.member in there for replica in stage) for stage in plan.replicas)

    def members(self) -> set[Member]:
        """Members that promised, or would promise."""
        return {endpoint.member for endpoint in self.promises}

    def evidence(self, term: Term) -> Evidence:
        """What they signed."""
        promises = sorted((endpoint.member, promise.signature) for endpoint, promise in self.promises.items())
        return Evidence(term, tuple(Vote(member, signature) for member, signature in promises))


class Election:
    """One member's candidacy for the lead.

    Attributes:
        led: who said last, in the present campaign or the one that has ended, that it hears a
            coordinator.
    """

    def __init__(self, context: Context, stage_member: StageMember) -> None:
        """No candidate yet."""
        self._context = context
        self._stage_member = stage_member
        self._revisions = itertools.count(1)
        self._beats_before: int | None = None
        self._alone_since_s = 0.0
        self._has_waited = self._has_hoped = self._is_stopped = False
        self._placed_s = -math.inf
        self._outranked = set[Term]()
        self._announced: Sequence[Announcement] = ()
        self.led: Sequence[Endpoint] = ()

    async def campaign(self) -> Takeover | None:
        """Try to become coordinator.

        Returns None if another coordinator is heard, or if this member cannot lead.
        """
        replica_state, timing = self._stage_member.replica_state, self._context.timing
        self.led, self._announced, is_new = (), (), self._is_led()
        if is_new:  # else this peer goes on with a campaign that it only interrupted
            self._outranked.clear()
            self._beats_before, self._alone_since_s = self._stage_member.heartbeat_count, self._context.now_s()
        alone_s = self._context.now_s() - self._alone_since_s
        long_s = FORCED_WITHOUT_ALL * timing.split_wait_s
        self._has_waited, self._has_hoped, self._is_stopped = alone_s >= long_s, alone_s >= 2 * long_s, False
        left, holds = replica_state.left_plan, replica_state.stage != ABSENT
        is_as_left = holds and left is not None and replica_state.past.get(left.iteration) == left.lineage
        # Whom it was told to follow may be gone, and only those that were told so are left; who has
        # given up what it held waits longer, as others may have it
        is_late = self._has_waited or (is_as_left and alone_s >= timing.split_wait_s)
        plan = replica_state.known_plan or (left if is_late else None)
        if plan is None or not (holds or is_late) or not self._may_lead(plan, Poll()):
            # A joiner that no Open has made a member would only keep the members from it
            return None
        last = replica_state.coordinator
        gone = {last.member} if last is not None and last.member != self._context.me else set()
        gone |= self._context.incarnations.ended(self._electorate(plan))
        successor = self._stage_member.successor
        place = 0 if successor == self._context.me else rank(plan, self._electorate(plan), self._context.me, gone)
        if is_new:
            is_fenced = place > 0 and await self._waits(place * timing.silence_s / 2)
            self._alone_since_s = self._context.now_s()
            if is_fenced:
                return None
        refused, pause_s, look_at_s = 0, timing.silence_s / 4, self._context.now_s() + LOOK_S
        number = self._next_number()
        while not (self._is_led() or await self._is_passed_over(plan)):
            if await self._hears_promised(pause_s):
                return None
            waited_s = self._context.now_s() - self._alone_since_s
            term = Term(number, self._context.me)
            poll = await self._ask(term, plan, only_asking=True)
            self.led, self._is_stopped = poll.fresh, bool(poll.fresh)
            if self._is_led() or poll.is_led or not await self._catch_up(poll) or self._is_led():
                return None
            plan = newest_plan((plan, replica_state.known_plan, *(p.plan for p in poll.promises.values()))) or plan
            replica_state.know(plan)  # whom an Open named that did not come here may claim, too
            if not self._may_lead(plan, poll):
                return None  # it was a member once
            may_claim = not poll.behind and await self._may_claim(term, plan, poll)
            if poll.behind:
                number = max(number, poll.behind) + 1
            elif not self._promise_left_s and (may_claim or await self._forces(term, waited_s, plan, poll)):
                is_followed = is_majority(self._electorate(plan), poll.members())
                inheritance = await self._claim(term, plan, waited_s, is_followed=is_followed)
                if inheritance is not None:
                    return inheritance
                number += 1
            elif poll.fresh:
                refused += 1
                if refused >= REFUSED_MAX:
                    return None
            if self._context.now_s() >= look_at_s:
                return None  # others may lead elsewhere: look into the directory, and then go on
            if await self._stage_member.heartbeat_came.wait(pause_s * (0.5 + self._context.rng.random())):
                return None
            pause_s = min(PAUSE_GROWTH * pause_s, timing.silence_s / 2)
        return None

    @property
    def hopes(self) -> bool:
        """Whether a coordinator of this peer's own lineage may still come.

        It may until a campaign began in which this peer could have claimed the lead without any
        other; for as long again where others stopped it who hear a coordinator that this peer has
        yet to ask, and as long after one has given it a place.
        """
        is_placed = self._context.now_s() - self._placed_s < FORCED_WITHOUT_ALL * self._context.timing.split_wait_s
        return self._is_led() or is_placed or not self._has_waited or (self._is_stopped and not self._has_hoped)

    def note_place(self) -> None:
        """A coordinator has given this peer a place, and knew what it hopes for."""
        self._placed_s = self._context.now_s()

    def note_outranked(self, term: Term) -> None:
        """Who leads in this term has said that it gives way to this peer's lineage: that others
        hear it stops no claim.
        """
        self._outranked.add(term)

    def _is_led(self) -> bool:
        """Whether a coordinator has been heard since the campaign began."""
        return self._stage_member.heartbeat_count != self._beats_before

    @property
    def _promise_left_s(self) -> float:
        """How much longer this peer waits for whom it has promised the lead last: the first
        heartbeat may be under way for long, and would be refused, by one that has claimed since.
        """
        return max(0.0, self._stage_member.promised_s + self._context.timing.silence_s - self._context.now_s())

    async def _hears_promised(self, pause_s: float) -> bool:
        """Wait for whom this peer has promised the lead, and a moment more, since two may have
        promised each other; whether one is heard.
        """
        left_s = self._promise_left_s
        return left_s > 0 and await self._stage_member.heartbeat_came.wait(left_s + pause_s * self._context.rng.random())

    async def _is_passed_over(self, plan: Plan) -> bool:
        """Whether a later founder was named than this plan's, and nothing is sealed: nobody goes on
        with it.
        """
        if self._stage_member.replica_state.records_held:
            return False
        founder = await self._context.ports.directory.founder()
        return founder is not None and plan.position.term.number < founders_term(founder.number)

    def _next_number(self) -> int:
        replica_state = self._stage_member.replica_state
        promised, renounced = replica_state.promised, replica_state.promises.renounced
        terms = [promised.term.number] if promised is not None else []
        # Who was told to rejoin votes in no lower term than it had promised in its lineage
        terms += [renounced.term.number] if renounced is not None and renounced.lineage == replica_state.lineage else []
        return max(terms, default=0) + 1

    async def _waits(self, wait_s: float) -> bool:
        """Let those claim that are before this peer in rank; whether somebody leads, or the last
        coordinator has promised that to somebody.

        The last coordinator is asked meanwhile, and again where that call is lost: if it has fenced
        this peer, or follows another one, a stage may be lost before this one's rank comes that is
        held here.
        """
        until_s, coordinator = self._context.now_s() + wait_s, self._stage_member.replica_state.coordinator
        silence_s = self._context.timing.silence_s
        while True:
            poll = Poll()
            if coordinator is not None:
                term = Term(self._next_number(), self._context.me)
                await self._ask_one(poll, coordinator, Claim(self._position(term), only_asking=True))
            left_s = until_s - self._context.now_s()
            if poll.is_led or poll.behind > 0 or left_s <= 0:
                return poll.is_led or poll.behind > 0
            is_again = poll.silent and left_s > 2 * silence_s
            if await self._stage_member.heartbeat_came.wait(silence_s if is_again else left_s):
                return True
            if not is_again:
                return False

    async def _may_claim(self, term: Term, plan: Plan, poll: Poll) -> bool:
        """Whether these decide: where it takes proof that others have died, only if nobody is
        further, since they may have decided before that.
        """
        if is_majority(self._electorate(plan), poll.members()):
            return True
        return self._may_decide(plan, poll) and await self._is_nobody_further(term, plan, poll)

    async def _is_nobody_further(self, term: Term, plan: Plan, poll: Poll) -> bool:
        """Whether nobody who is announced has more than this peer, on a disk or in memory, nor may
        have, or hears a coordinator. A directory that is empty says nothing.

        An announcement may be `lease_s / 3` old: whoever serves, and was not asked yet, is asked as
        well, and only then is nobody further.
        """
        announced = await self._context.ports.directory.announcements()
        others, on_disks, electorate = Poll(), list[int](), self._electorate(plan)
        decided = {member.peer_id for member in electorate}
        async with asyncio.TaskGroup() as group:
            for a in announced:
                if a.state is PeerState.SERVING and a.endpoint not in poll.promises:
                    group.create_task(self._ask_one(others, a.endpoint, Claim(self._position(term), only_asking=True)))
                elif a.endpoint.member != self._context.me and a.state is not PeerState.SERVING:
                    is_back = a.endpoint.member.peer_id in decided and a.endpoint.member not in electorate
                    group.create_task(self._ask_disk(others, on_disks, a.endpoint, is_back=is_back))
        poll.behind = max(poll.behind, others.behind)
        told = [a.iteration for a in announced] + [promise.iteration for promise in others.promises.values()] + on_disks
        is_further = max(told, default=0) > self._stage_member.replica_state.announced_iteration
        return bool(announced) and not (is_further or others.behind or others.fresh or others.silent)

    def _may_lead(self, plan: Plan, poll: Poll) -> bool:
        is_over, electorate = self._stage_member.replica_state.is_through, self._electorate(plan)
        has_left = self._stage_member.replica_state.left_plan is not None
        return may_lead(
            plan,
            electorate,
            self._context.me,
            poll.members(),
            is_over=is_over,
            has_waited=self._has_waited,
            has_left=has_left,
        )

    def _may_decide(self, plan: Plan, poll: Poll) -> bool:
        electorate = self._electorate(plan)
        excluded = [member for member in electorate if member.peer_id in plan.excluded]
        return may_decide(electorate, poll.members(), [*self._context.incarnations.ended(electorate), *excluded])

    def _electorate(self, plan: Plan) -> tuple[Member, ...]:
        return electorate_of(self._stage_member.replica_state.newest_record, plan)

    def _may_force(self, waited_s: float, plan: Plan, poll: Poll, *, is_followed: bool = False) -> bool:
        """Whether this peer goes on with those that promised, or would promise, without a majority:
        nobody that answered hears a coordinator. Where a majority has just said that it would
        promise (`is_followed`), it is there, and is asked again for as long as if a stage were
        missing.
        """
        is_through = self._stage_member.replica_state.is_through
        times = 1 if (poll.covers(plan) and not is_followed) or is_through else FORCED_WITHOUT_ALL
        has_waited = waited_s >= times * self._context.timing.split_wait_s
        # Where it is through, nothing is left to decide, and who is missing has ended
        return not poll.fresh and (has_waited or (is_through and not poll.silent))

    async def _forces(self, term: Term, waited_s: float, plan: Plan, poll: Poll, *, is_followed: bool = False) -> bool:
        """Whether this peer goes on without a majority: not where the organiser wants a pause, as
        that is what the others may have decided, and left, unless the record that says so is stored
        here; nor, for twice as long as is waited else, where a genesis lets the run go on from
        something later. Before the first record the founder's death alone takes a majority: there
        it waits as long only where somebody has more, or may have.
        """
        replica_state = self._stage_member.replica_state
        may_force = self._may_force(waited_s, plan, poll, is_followed=is_followed)
        known = [p for p in poll.promises.values() if p.iteration == replica_state.iteration]
        sealed = newest_sealed(known, replica_state.lineage)
        if not may_force or replica_state.is_through or (sealed is not None and sealed.halt is Halting.PAUSE):
            return may_force
        is_late = waited_s >= 2 * FORCED_WITHOUT_ALL * self._context.timing.split_wait_s
        if await is_to_pause(self._context, replica_state):
            if replica_state.newest_record is not None:
                return False
            return is_late or await self._is_nobody_further(term, plan, poll)
        founder = await self._context.ports.directory.founder()
        if founder is None or founder.iteration <= replica_state.iteration:
            return True
        is_of_that = plan.position.term.number >= founders_term(founder.number)
        return is_of_that or is_late

    async def _claim(self, term: Term, plan: Plan, waited_s: float, *, is_followed: bool) -> Takeover | None:
        # Who knows of one record only may stand where a genesis lets the run go on from
        is_soon = len(self._stage_member.replica_state.records) == 1
        founder = await self._context.ports.directory.founder() if is_soon else None
        poll = await self._ask(term, plan, only_asking=False)
        if poll.behind or not await self._catch_up(poll):
            return None
        # Of the electorate that the last record names, which may just have been fetched.
        majority = await self._may_claim(term, plan, poll)
        if not (majority or await self._forces(term, waited_s, plan, poll, is_followed=is_followed)):
            return None
        replica_state = self._stage_member.replica_state
        promised = replica_state.promised
        if promised is None or promised.term != term:
            return None  # this peer has promised somebody else meanwhile
        here = replica_state.iteration, replica_state.lineage
        known = [p for p in poll.promises.values() if p.iteration == replica_state.iteration]
        newest = newest_plan((plan, *(p.plan for p in poll.promises.values())))
        if not majority and not replica_state.is_through:
            self._context.tell(
                Note(f"no majority for {self._context.timing.split_wait_s:g} s: going on with {len(poll.promises)} members")
            )
        order = {member: place for place, member in enumerate(self._electorate(plan))}
        takeover = Takeover(
            term=term,
            revision=next(self._revisions),
            iteration=replica_state.iteration,
            lineage=replica_state.lineage,
            record=replica_state.newest_record,
            plan=newest,
            sealed=newest_sealed(known, replica_state.lineage),
            forced=not majority,
            promises=poll.promises,
            seniority=tuple(sorted(poll.promises, key=lambda e: (order.get(e.member, len(order)), e.member))),
            past=dict(replica_state.past),
            records=tuple(replica_state.records),
            is_whole=founder is not None and founder.is_whole and (founder.iteration, founder.lineage) == here,
            evidence=poll.evidence(term) if majority else None,
        )
        if (own := poll.promises.get(self._context.here)) is not None:
            replica_state.take_back()  # it leads from where it stood, with the state as it was
            vouches = replica_state.is_committed_state
            poll.promises[self._context.here] = replace(own, iteration=replica_state.iteration, is_committed_state=vouches)
        return takeover

    async def _ask(self, term: Term, plan: Plan, *, only_asking: bool) -> Poll:
        """Ask every member of the plan, this one included, and who else decides: one that was away
        has its vote, though the plan has not got it; one that is excluded has none.
        """
        poll, claim = Poll(), Claim(self._position(term), only_asking)
        left = self._stage_member.replica_state.left_plan
        told = left.members() if left is not None else ()  # to rejoin, as this peer was
        asked = dict.fromkeys((*plan.members(), self._context.here, *told))
        async with asyncio.TaskGroup() as group:
            for endpoint in asked:
                group.create_task(self._ask_one(poll, endpoint, claim))
            for endpoint in await self._left_out(poll, plan):
                if endpoint not in asked:
                    group.create_task(self._ask_one(poll, endpoint, claim))
        return poll

    async def _left_out(self, poll: Poll, plan: Plan) -> list[Endpoint]:
        """Who decides and is not in the plan, as the directory shows them: it is read in each
        campaign once, since what it showed before may be as old as this peer's place. Where it
        shows nobody at all, they are silent.
        """
        excluded, named = plan.excluded, {*plan.names(), self._context.me}
        missing = [m for m in self._electorate(plan) if m not in named and m.peer_id not in excluded]
        if missing and not self._announced:
            with suppress(TimeoutError):
                self._announced = await within(self._context.timing.silence_s, self._context.ports.directory.announcements())
            poll.silent |= not self._announced
        return [a.endpoint for a in self._announced if a.endpoint.member in missing]

    def _position(self, term: Term) -> Position:
        return Position(term, self._stage_member.replica_state.iteration, 0, next(self._revisions))

    async def _ask_one(self, poll: Poll, endpoint: Endpoint, claim: Claim) -> None:
        timing = self._context.timing
        try:
            # Also for one whose device hangs as it steps
            async with asyncio.timeout(timing.silence_s):
                reply = await self._context.call(endpoint, claim, silence_s=timing.silence_s / 2)
        except Refused as refusal:
            if refusal.kind is RefusalKind.BEHIND:
                told = believed_number(refusal.term_number, self._next_number())
                poll.behind = max(poll.behind, told, claim.position.term.number)
            elif refusal.kind is RefusalKind.FRESH and not await self._hears_who_gives_way(endpoint, refusal.term_number):
                poll.fresh.append(endpoint)
                is_led = endpoint == self._stage_member.replica_state.coordinator or refusal.term_number >= self._next_number()
                poll.is_led |= is_led and not self._stage_member.is_stalled
        except (CallFailed, TimeoutError) as error:
            poll.silent |= not (isinstance(error, PeerUnreachable) and error.refused)
        else:
            promise, count = reply.expect(Promise), self._context.manifest.stage_count
            if not (claim.only_asking or self._is_signed(endpoint.member, promise, claim.position.term)):
                poll.silent = True  # it has not promised anything that others would believe
                return
            plan_there = fitting_plan(promise.plan, count)
            sealed = fitting_record(promise.sealed, promise.iteration, count)
            poll.promises[endpoint] = replace(promise, plan=plan_there, sealed=sealed)
            self._context.incarnations.hear(promise.newer_lives)

    async def _hears_who_gives_way(self, endpoint: Endpoint, number: int) -> bool:
        """Whether the coordinator that a peer hears, in a term of this number, is one that gives
        way to this lineage. The number alone would not say that, nor who says it: two sides may
        have the same, and who led one may have given way to the other.
        """
        outranked = {term.member for term in self._outranked if term.number == number}
        if not outranked:
            return False
        with suppress(CallFailed):
            reply = await self._context.call(endpoint, GetPlan(), silence_s=self._context.timing.silence_s / 2)
            heard = reply.expect(PlanAnswer).coordinator
            return heard is not None and heard.member in outranked
        return False

    def _is_signed(self, member: Member, promise: Promise, term: Term) -> bool:
        return is_promised(Vote(member, promise.signature), term, self._context.run, self._context.ports.network.verify)

    async def _ask_disk(self, poll: Poll, found: list[int], endpoint: Endpoint, *, is_back: bool) -> None:
        """What those who decided have done lies on their disks, where they have died since; one of
        them may lead from there by now. One that `is_back`, and cannot be asked, may have more: its
        port may be closed still.
        """
        try:
            reply = await self._context.call(endpoint, GetPlan(), silence_s=self._context.timing.silence_s / 2)
        except CallFailed:
            poll.silent |= is_back
            return
        answer = reply.expect(PlanAnswer)
        found.extend(held.iteration for held in answer.snapshots)
        poll.fresh += [endpoint] * (answer.coordinator is not None)

    async def _catch_up(self, poll: Poll) -> bool:
        """Apply what others have committed already; False where this peer cannot, so that somebody
        else has to lead. A promise of one whose record is not proven counts for nothing.
        """
        replica_state = self._stage_member.replica_state
        while poll.promises:
            iteration, _, giver = max(((p.iteration, e.member, e) for e, p in poll.promises.items()), key=lambda one: one[:2])
            if iteration <= replica_state.iteration:
                break
            try:
                answer = (await self._context.call(giver, GetRecord(replica_state.iteration))).expect(RecordAnswer)
                record = fitting_record(answer.record, replica_state.iteration, self._context.manifest.stage_count)
                if record is None:
                    raise ProtocolViolation(f"{giver.member} gave another record than {replica_state.iteration}")
                await self._stage_member.commit(Commit(record))
            except CallFailed as error:
                if isinstance(error, Refused) and error.kind is RefusalKind.UNPROVEN:
                    self._context.tell(Note(f"what {giver.member} says that was decided is not proven: {error.detail}"))
                    del poll.promises[giver]
                    continue
                self._context.tell(Note(f"cannot lead from iteration {replica_state.iteration}: {error}"))
                return False
        return True
