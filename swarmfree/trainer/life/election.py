"""Taking the lead when the coordinator has fallen silent: wait for one's rank, ask, claim, and see what there is to go on from.

A candidate asks everybody first whether they would promise, and claims only when a majority would: so one that merely hears nobody disturbs
nobody. Without a majority for `split_wait_s` it goes on with whoever is there, forced. Source: protocol sections 3.1, 3.2.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

from swarmfree.policy.commit import is_majority
from swarmfree.policy.election import electorate_of, rank
from swarmfree.swarm.errors import CallFailed, PeerUnreachable, RefusalKind, Refused
from swarmfree.swarm.events import Note
from swarmfree.swarm.messages import Claim, Commit, GetRecord, Promise, RecordAnswer
from swarmfree.swarm.names import Endpoint, Member, Position, Term
from swarmfree.swarm.plan import Plan
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.inheritance import Inheritance, newest_plan, newest_sealed
from swarmfree.trainer.iteration.member import MemberBooks

FORCED_WITHOUT_ALL = 3
"""A minority that does not hold every stage waits so many times `split_wait_s`: going on costs it those stages."""
PAUSE_GROWTH = 1.15
"""Nobody is asked as often at the end of a long split as at its beginning."""
REFUSED_MAX = 6
"""Rounds in which somebody refused because it hears a coordinator; then that one is asked for a place."""


@dataclass(slots=True)
class Poll:
    """What came of asking everybody once."""

    promises: dict[Endpoint, Promise] = field(default_factory=dict)
    behind: bool = False
    fresh: bool = False
    silent: bool = False

    def covers(self, plan: Plan) -> bool:
        """Whether every stage of the plan has somebody among them."""
        there = self.members()
        return all(any(replica.endpoint.member in there for replica in stage) for stage in plan.replicas)

    def members(self) -> set[Member]:
        """Who promised, or would."""
        return {endpoint.member for endpoint in self.promises}


class Election:
    """One member's candidacy."""

    def __init__(self, context: Context, books: MemberBooks) -> None:
        """No candidate yet."""
        self._context = context
        self._books = books
        self._revisions = itertools.count(1)
        self._beats_before = 0

    async def campaign(self) -> Inheritance | None:
        """Try to become coordinator; None where there is one after all, or this member is no use as one."""
        standing, timing = self._books.standing, self._context.timing
        plan = standing.known_plan
        if plan is None or (plan.stage_of(self._context.me) is None and not standing.is_over):
            return None  # a joiner that no Open has made a member would only keep the members from it
        last = standing.coordinator
        gone = {last.member} if last is not None and last.member != self._context.me else set()
        heir = self._books.heir
        place = 0 if heir == self._context.me else rank(plan, self._electorate(plan), self._context.me, gone)
        if place and await self._books.beaten.wait(place * timing.silence_s / 2):
            return None
        begun_s, refused, pause_s = self._context.now_s(), 0, timing.silence_s / 4
        self._beats_before = self._books.beat_count
        number = (standing.promised.term.number if standing.promised is not None else 0) + 1
        while not self._is_led():
            waited_s = self._context.now_s() - begun_s
            term = Term(number, self._context.me)
            poll = await self._ask(term, plan, only_asking=True)
            if self._is_led() or not await self._catch_up(poll):
                return None
            plan = newest_plan((plan, *(p.plan for p in poll.promises.values()))) or plan
            if plan.stage_of(self._context.me) is None and not standing.is_over:
                standing.known_plan = plan
                return None  # it was a member once
            may_force = waited_s >= timing.split_wait_s * (1 if poll.covers(plan) or standing.is_over else FORCED_WITHOUT_ALL)
            may_force |= standing.is_over and not poll.silent  # nothing is left to decide, and who is missing has ended
            if poll.behind:
                number += 1
            elif (may_force and not poll.fresh) or is_majority(self._electorate(plan), poll.members()):
                inheritance = await self._claim(term, plan, may_force=may_force)
                if inheritance is not None:
                    return inheritance
                number += 1
            elif poll.fresh:
                refused += 1
                if refused >= REFUSED_MAX:
                    return None
            if await self._books.beaten.wait(pause_s * (0.5 + self._context.rng.random())):
                return None
            pause_s = min(PAUSE_GROWTH * pause_s, timing.silence_s / 2)
        return None

    def _is_led(self) -> bool:
        """Whether a coordinator has been heard since the campaign began."""
        return self._books.beat_count != self._beats_before

    def _electorate(self, plan: Plan) -> tuple[Member, ...]:
        return electorate_of(self._books.standing.record_of(-1), plan)

    async def _claim(self, term: Term, plan: Plan, *, may_force: bool) -> Inheritance | None:
        poll = await self._ask(term, plan, only_asking=False)
        majority = is_majority(self._electorate(plan), poll.members())
        if poll.behind or not (majority or may_force) or not await self._catch_up(poll):
            return None
        standing = self._books.standing
        promised = standing.promised
        if promised is None or promised.term != term:
            return None  # this peer has promised somebody else meanwhile
        known = [p for p in poll.promises.values() if p.iteration == standing.iteration]
        newest = newest_plan((plan, *(p.plan for p in poll.promises.values())))
        if not majority and not standing.is_over:
            self._context.tell(
                Note(f"no majority for {self._context.timing.split_wait_s:g} s: going on with {len(poll.promises)} members")
            )
        order = {member: place for place, member in enumerate(self._electorate(plan))}
        return Inheritance(
            term=term,
            revision=next(self._revisions),
            iteration=standing.iteration,
            lineage=standing.lineage,
            record=standing.record_of(-1),
            plan=newest,
            sealed=newest_sealed(known),
            forced=not majority,
            promises=poll.promises,
            seniority=tuple(sorted(poll.promises, key=lambda e: (order.get(e.member, len(order)), e.member))),
            past={standing.iteration: standing.lineage, **{record.iteration: record.before for record in standing.records}},
        )

    async def _ask(self, term: Term, plan: Plan, *, only_asking: bool) -> Poll:
        """Ask every member of the plan, this one included."""
        poll = Poll()
        position = Position(term, self._books.standing.iteration, 0, next(self._revisions))

        async def one(endpoint: Endpoint) -> None:
            try:
                reply = await self._context.call(
                    endpoint, Claim(position, only_asking), silence_s=self._context.timing.silence_s / 2
                )
            except Refused as refusal:
                poll.behind |= refusal.kind is RefusalKind.BEHIND
                poll.fresh |= refusal.kind is RefusalKind.FRESH
            except CallFailed as error:
                poll.silent |= not (isinstance(error, PeerUnreachable) and error.refused)
            else:
                assert isinstance(reply.message, Promise), "the network checks response types"
                poll.promises[endpoint] = reply.message

        async with asyncio.TaskGroup() as group:
            for endpoint in dict.fromkeys((*plan.members(), self._context.here)):
                group.create_task(one(endpoint))
        return poll

    async def _catch_up(self, poll: Poll) -> bool:
        """Apply what others have committed already; False where this peer cannot, so that somebody else has to lead."""
        standing = self._books.standing
        ahead = sorted(((p.iteration, e.member, e) for e, p in poll.promises.items()), reverse=True)
        while ahead and ahead[0][0] > standing.iteration:
            try:
                reply = await self._context.call(ahead[0][2], GetRecord(standing.iteration))
                assert isinstance(reply.message, RecordAnswer), "the network checks response types"
                await self._books.commit(Commit(reply.message.record))
            except CallFailed as error:
                self._context.tell(Note(f"cannot lead from iteration {standing.iteration}: {error}"))
                return False
        return True
