"""The coordinator's audits: between the averages and the Seal it has a sibling compute a member's
share again, and ends the attempt where somebody is convicted.

Who is audited and what follows is decided in `policy.audit`; here it is asked, counted and told.
Source: decision 18.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from swarmfree.policy import audit
from swarmfree.policy.audit import Verdict, Waited
from swarmfree.policy.record import StageAverage
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.events import Note, PeerExcluded, PeersSuspected
from swarmfree.protocol.messages import Account, Audit, AuditAnswer, GetAccount
from swarmfree.protocol.names import ENDS_STAGE, Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Roll, bits_float64
from swarmfree.protocol.routes import Route, routes_of
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.coordinator.rounds import StatesDiffer
from swarmfree.trainer.tasks import each

GONE_MAX = 32
"""Peers that are there no more, and whose last audit is remembered: who comes again is as due as it
was.
"""
CONFLICTS_MAX = 48
"""Peers whose conflicts are remembered; those that began first are forgotten first."""
WITHHELD_MAX = 3
"""Audits running to which a member that stands by its base has given no whole account; then it is
barred, and what it contributed goes with it.
"""
REPEATS_MAX = 3
"""Averages made again in one base since a member and the owner of a part say otherwise what it
contributed.
"""


class LiarFound(StatesDiffer):
    """A member computed wrongly: whatever it touched in this base is void, in every stage.

    Args:
        is_own: it is this very peer.
    """

    def __init__(self, stage: int, state_digest: str, *, is_own: bool) -> None:
        super().__init__(stage, state_digest)
        self.is_own = is_own


@dataclass(frozen=True, slots=True)
class _Case:
    """One member whose share of this iteration is looked at."""

    plan: Plan
    roll: Roll
    subject: Member
    number: int


class Audits:
    """Audits of one coordinator."""

    def __init__(self, context: Context, lead: Leadership, roster: Roster) -> None:
        """Nobody was audited yet."""
        self._context, self._lead, self._roster = context, lead, roster
        self._routes = routes_of(context.manifest)
        self._share = context.manifest.run.audit_share
        self._since: dict[str, int] = {}  # peer id -> iteration of its last audit, or in which it was first seen
        self._tried: dict[str, int] = {}  # the same, of audits that came to something or nothing
        self._withheld = Counter[str]()  # peer id -> accounts that it has not given since the last one
        self._slow: dict[str, None] = {}  # peer ids of those that did not finish an audit
        # Base -> plans made for it, of the present iteration. Who takes over in the middle of one
        # does not know what was before.
        self._opened = {lead.plan.base: 1} if lead.plan is not None else dict[str, int]()
        self._begun_s, self._repeats = context.now_s(), 0
        self._again: set[int] = set()
        self._conflicts: dict[str, dict[str, None]] = {}  # peer id -> peers of which, with it, one has lied

    def begin(self, plan: Plan) -> None:
        """A plan is about to be opened."""
        if self._share:
            count = self._opened.get(plan.base, 0)
            self._opened = {plan.base: count + 1}
            if not count:
                self._begun_s, self._repeats = self._context.now_s(), 0

    async def examine(
        self, plan: Plan, rolls: Mapping[int, Roll], averages: Sequence[StageAverage], *, redone: int
    ) -> tuple[int, ...]:
        """Audit this iteration's work.

        Args:
            plan: in force.
            rolls: by stage, those whose averages stand.
            averages: index = stage.
            redone: contributions that were redone in this base.

        Returns:
            Stages to be averaged again, with other owners of the parts.

        Raises:
            LiarFound: the attempt is void.
        """
        if not self._share or not plan.microbatches:
            return ()
        number = self._context.rng.getrandbits(64)
        cases = self._all_cases(plan, rolls, number) if self._is_alarmed(plan, averages) else self._cases(plan, rolls, number)
        self._again.clear()
        is_undisturbed = not redone and self._opened.get(plan.base) == 1 and not any(share.taken for share in plan.shares)
        verdicts = await self._verdicts(plan, rolls, cases, is_undisturbed=is_undisturbed)
        convicted = [stage for stage, verdict in verdicts if self._carry_out(plan, stage, verdict)]
        if convicted:
            is_own = any(self._context.me in verdict.convicted for _, verdict in verdicts)
            raise LiarFound(convicted[0], averages[convicted[0]].state_digest, is_own=is_own)
        return tuple(sorted(self._again))

    def _cases(self, plan: Plan, rolls: Mapping[int, Roll], number: int) -> list[_Case]:
        present = {endpoint.member.peer_id for endpoint in plan.members()}
        if len(self._since) > len(present) + GONE_MAX:
            self._since = {peer_id: since for peer_id, since in self._since.items() if peer_id in present}
            self._tried = {peer_id: since for peer_id, since in self._tried.items() if peer_id in present}
            self._withheld = Counter({peer_id: count for peer_id, count in self._withheld.items() if peer_id in present})
            self._slow = {peer_id: None for peer_id in self._slow if peer_id in present}
        there = {stage: self._there(roll) for stage, roll in sorted(rolls.items())}
        members = [member for found in there.values() for member in found]
        waited = {
            member: Waited(
                plan.iteration - self._since.setdefault(member.peer_id, plan.iteration),
                plan.iteration - self._tried.setdefault(member.peer_id, plan.iteration),
            )
            for member in members
        }
        subjects = audit.choose_subjects(there, waited, self._share, plan.base, number)
        return [_Case(plan, rolls[stage], subject, number) for stage, subject in subjects.items()]

    def _is_alarmed(self, plan: Plan, averages: Sequence[StageAverage]) -> bool:
        """Whether some stage's gradient is far larger than in the record before."""
        last = plan.last_record
        if last is None or any(not stage.disputes for stage in plan.rebuilt):
            return False
        pairs = zip(averages, last.stages, strict=True)
        return any(audit.is_alarming(bits_float64(average.squared_norm_bits), before.squared_norm) for average, before in pairs)

    def _all_cases(self, plan: Plan, rolls: Mapping[int, Roll], number: int) -> list[_Case]:
        """Everybody who has a sibling."""
        there = {stage: self._there(roll) for stage, roll in sorted(rolls.items())}
        return [_Case(plan, rolls[stage], member, number) for stage, found in there.items() if found[1:] for member in found]

    def _there(self, roll: Roll) -> list[Member]:
        """Members of a stage that made its average and are still there."""
        return [
            endpoint.member
            for endpoint in roll.members
            if (participant := self._roster.get(endpoint.member)) is not None and participant.is_heard
        ]

    async def _verdicts(
        self, plan: Plan, rolls: Mapping[int, Roll], cases: Sequence[_Case], *, is_undisturbed: bool
    ) -> list[tuple[int, Verdict]]:
        """Of each case its stage and what follows, by stage."""
        for case in cases:
            self._note_due(case)
        # Before they are asked, as somebody may have gone when all have answered
        there = {member: self._roster.get(member) for roll in rolls.values() for member in self._there(roll)}
        accounts = await self._accounts(plan, rolls, cases)
        verdicts: list[tuple[int, Verdict]] = []

        async def one(case: _Case) -> None:
            verdicts.append((case.roll.stage, await self._look(case, accounts, there, is_undisturbed=is_undisturbed)))

        await each(cases, one)
        return sorted(verdicts, key=lambda found: (found[0], found[1].convicted))

    # ---- one audit -------------------------------------------------------------------------------

    def _note_due(self, case: _Case) -> None:
        """It is due until it has been audited: nobody gains by going, or by saying nothing."""
        peer_id, iteration = case.subject.peer_id, case.plan.iteration
        self._tried[peer_id] = iteration
        self._since[peer_id] = min(self._since.get(peer_id, iteration), iteration - math.ceil(1 / self._share))

    async def _look(
        self,
        case: _Case,
        accounts: Mapping[int, Mapping[Member, Account]],
        there: Mapping[Member, Participant | None],
        *,
        is_undisturbed: bool,
    ) -> Verdict:
        """Ask one sibling after the other, until nobody else could change what follows."""
        roll, subject = case.roll, case.subject
        accounts = {stage: accounts[stage] for stage in self._around(case)}
        mine = accounts[roll.stage].get(subject)
        part_count = self._context.ports.engine.part_count(roll.stage)
        if mine is None or not audit.is_complete(mine, roll, subject, part_count):
            await self._note_withheld(case, there)
            return Verdict()
        self._withheld.pop(subject.peer_id, None)
        routes = self._routes_of(case)
        if is_undisturbed and (verdict := self._border_verdict(case, accounts, routes)).convicted:
            return verdict
        told = audit.received(roll, subject, accounts[roll.stage])
        work = tuple(digests for digests in mine.work if digests.offset in routes)
        request = Audit(case.plan.position, roll, subject, work, told)
        siblings = audit.auditors(subject, (e.member for e in roll.members), case.plan.base, case.number, self._slow)
        answers: dict[Member, AuditAnswer] = {}
        in_vain: list[AuditAnswer] = []
        for sibling in siblings:
            answer = await self._ask(sibling, request) if sibling in there else None
            if answer is None or not audit.is_of_use(answer):
                in_vain += [answer] if answer is not None else []
                continue
            answers[sibling] = answer
            if audit.judge(subject, answers, siblings).is_final:
                break
        if audit.is_withheld(in_vain, len(roll.members)) and await self._are_still_there(case.plan, (subject,), there):
            self._roster.bar(subject, "what it contributed differs from what its siblings compute, and it does not show it")
            return Verdict()
        verdict = audit.judge(subject, answers, siblings)
        if verdict.convicted and not await self._are_still_there(case.plan, verdict.convicted, there):
            return Verdict()
        if answers and verdict.is_final:
            self._since[subject.peer_id] = case.plan.iteration
        if verdict.suspects:
            return self._conflict(case.plan, subject, [m for m in verdict.suspects if m != subject], verdict.evidence)
        return verdict

    async def _note_withheld(self, case: _Case, there: Mapping[Member, Participant | None]) -> None:
        """A member gave no whole account: who has gone has contributed nothing. Once, word of it
        may be lost, or what it dropped be made anew just now.
        """
        if await self._are_still_there(case.plan, (case.subject,), there):
            self._withheld[case.subject.peer_id] += 1
            if self._withheld[case.subject.peer_id] == WITHHELD_MAX:
                del self._withheld[case.subject.peer_id]
                self._roster.bar(case.subject, f"it does not account for its work, asked {WITHHELD_MAX} times")

    async def _are_still_there(self, plan: Plan, members: Collection[Member], there: Mapping[Member, Participant | None]) -> bool:
        """Whether members have had this base all the while: who has left it can show nothing of
        it.
        """
        for member in members:
            participant = self._roster.get(member)
            if participant is None or participant is not there.get(member):
                return False
            answer = await self._roster.ask(participant)
            if answer is None or answer.base != plan.base or self._roster.get(member) is not participant:
                return False
        return True

    def _routes_of(self, case: _Case) -> dict[int, Route]:
        """By offset, the routes of the microbatches that the subject worked on."""
        first = case.plan.iteration * self._context.manifest.batch.most
        return {offset: self._routes.route(first + offset) for offset in audit.offsets_of(case.roll, case.subject)}

    def _around(self, case: _Case) -> set[int]:
        """The subject's stage, and those that its microbatches came from and went to."""
        stage, routes = case.roll.stage, self._routes_of(case).values()
        if stage == ENDS_STAGE:
            return {stage, *(route.last for route in routes), *(route.first for route in routes)}
        return {stage, *(route.at(route.position(stage) + step) for route in routes for step in (-1, 1))}

    async def _accounts(self, plan: Plan, rolls: Mapping[int, Roll], cases: Sequence[_Case]) -> dict[int, dict[Member, Account]]:
        """Of the subjects' stages and of those around them, by stage and member; each is asked
        once, however many cases it says something of.
        """
        found: dict[int, dict[Member, Account]] = {stage: {} for case in cases for stage in self._around(case)}

        async def one(where: tuple[int, Participant]) -> None:
            stage, participant = where
            request = GetAccount(plan.position, plan.base, rolls[stage].round())
            try:
                async with asyncio.timeout(audit.limit_s(0.0, self._context.timing)):
                    account = (await self._roster.calls.call(participant.endpoint, request)).expect(Account)
            except (CallFailed, TimeoutError):
                return
            found[stage][participant.member] = account

        asked = [
            (stage, participant)
            for stage in sorted(found)
            if stage in rolls
            for member in self._there(rolls[stage])
            if (participant := self._roster.get(member)) is not None
        ]
        await each(asked, one)
        return found

    async def _ask(self, sibling: Member, request: Audit) -> AuditAnswer | None:
        """What a sibling finds; None where it finds nothing out."""
        participant = self._roster.get(sibling)
        if participant is None:
            return None
        limit_s = audit.limit_s(self._context.now_s() - self._begun_s, self._context.timing)
        try:
            async with asyncio.timeout(limit_s):
                answer = (await self._roster.calls.call(participant.endpoint, request)).expect(AuditAnswer)
        except CallFailed:
            return None
        except TimeoutError:
            self._slow[sibling.peer_id] = None
            self._context.tell(Note(f"{sibling} did not finish an audit of stage {request.roll.stage} within {limit_s:.1f} s"))
            return None
        self._slow.pop(sibling.peer_id, None)
        return answer

    # ---- borders ---------------------------------------------------------------------------------

    def _border_verdict(
        self, case: _Case, accounts: Mapping[int, Mapping[Member, Account]], routes: Mapping[int, Route]
    ) -> Verdict:
        """Who is in dispute with whom by their accounts alone. Only where nobody was lost since the
        Open, and each replica accounts: what another one has done as well may round otherwise.
        """
        subject, stage, plan = case.subject, case.roll.stage, case.plan
        found = audit.disputes(stage, subject, accounts, routes) | audit.disputed_sums(case.roll, subject, accounts[stage])
        is_whole = all(len(told) == len(plan.replicas[there]) for there, told in accounts.items())
        if not (found and is_whole) or any(self._roster.get(endpoint.member) is None for endpoint in plan.members()):
            return Verdict()
        evidence = [f"{subject} and {other} account otherwise for what passed between them" for other in sorted(found)]
        verdict = self._conflict(plan, subject, found, tuple(evidence))
        if verdict.convicted:
            return verdict
        names = [str(subject), *(str(member) for member in sorted(found))]
        self._context.tell(PeersSuspected(stage, plan.iteration, names, evidence))
        is_new = stage not in self._again  # the other one in the dispute may be audited as well
        if is_new and self._repeats < REPEATS_MAX and audit.disputed_sums(case.roll, subject, accounts[stage]):
            self._repeats += 1
            self._again.add(stage)
        return Verdict()

    def _conflict(self, plan: Plan, subject: Member, others: Collection[Member], evidence: tuple[str, ...]) -> Verdict:
        """Of the subject and each of the others one lies. By who was in conflict with whom so far,
        somebody may be convicted.
        """
        for member in sorted(others):
            self._conflicts.setdefault(subject.peer_id, {})[member.peer_id] = None
            self._conflicts.setdefault(member.peer_id, {})[subject.peer_id] = None
        while len(self._conflicts) > CONFLICTS_MAX:
            del self._conflicts[next(iter(self._conflicts))]
        for one in (subject, *sorted(others)):
            for replicas in plan.replicas:
                by = [r.endpoint.member for r in replicas if r.endpoint.member.peer_id in self._conflicts.get(one.peer_id, {})]
                if audit.is_liar_by_disputes(by, len(replicas)):
                    return Verdict((one,), (), tuple(by), evidence)
        return Verdict((), (subject, *sorted(others)), (), evidence)

    # ---- what follows ----------------------------------------------------------------------------

    def _carry_out(self, plan: Plan, stage: int, verdict: Verdict) -> bool:
        """Tell, and exclude; whether somebody was convicted."""
        by, evidence = [str(member) for member in verdict.by], list(verdict.evidence)
        if verdict.suspects:
            self._context.tell(PeersSuspected(stage, plan.iteration, [str(m) for m in verdict.suspects], evidence))
        for member in verdict.convicted:
            if member.peer_id in self._lead.excluded:
                continue
            place = plan.stage_of(member)
            where = stage if place is None else place  # on a border the neighbour may be the one
            self._context.tell(PeerExcluded(member.peer_id, str(member), where, plan.iteration, by, evidence))
            self._conflicts.pop(member.peer_id, None)
            self._roster.exclude(member, f"an audit of iteration {plan.iteration} convicts it: {evidence[0] if evidence else ''}")
        return bool(verdict.convicted)
