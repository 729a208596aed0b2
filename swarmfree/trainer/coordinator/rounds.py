"""From finished microbatches to one average per stage: ledger, repair, roll, round; again until
every stage has a complete average.

Source: protocol sections 3.6 and 3.8. Differs: a round is one nested call per member, whose
response is the report.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from swarmfree.policy.fault_attribution import two_faced
from swarmfree.policy.record import StageAverage, agreed_norm, is_norm
from swarmfree.policy.reduction import Cover, choose_partial_sums
from swarmfree.policy.repair import Ledger, plan_segments
from swarmfree.policy.router import deal_elsewhere
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.events import Repaired, RoundRetried
from swarmfree.protocol.messages import Redo, Redone, Report, Response, RoundFailed, Segment, TakeRoll
from swarmfree.protocol.names import ENDS_STAGE, Endpoint, Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import MicrobatchSet, PartialSum, Roll
from swarmfree.protocol.routes import routes_of
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.quorum_watch import QuorumWatch
from swarmfree.trainer.coordinator.roster import Deposed, Roster
from swarmfree.trainer.tasks import each

IDLE_WAIT_S = 0.2
PARTED_AFTER_S = 1.0
"""Two members that fail with each other still, so long after the first time, are parted: what lasts
no longer parts nobody.
"""
PAUSE_S, PAUSE_MAX_S = 0.1, 1.0
"""After a round in which members could not reach each other, or one could not be reached; doubled
each time until a round succeeds.
"""
SPOILT_MAX = 2
REDONE_MAX = 2
"""So often a microbatch is redone for its source; where the source then still does not tell of it,
it goes to another one.
"""
STALE_ROLLS_MAX = 4
ROUNDS_OF_A_TERM = 1 << 12


class StageGone(Exception):
    """A stage of the plan has no live replica: this attempt cannot commit."""


class StatesDiffer(Exception):
    """Replicas of a stage started this iteration from different states: whatever went through the
    wrong one is wrong in every stage.

    Args:
        stage: whose.
        state_digest: of the one that counts, the larger group's or the senior's.
    """

    def __init__(self, stage: int, state_digest: str) -> None:
        super().__init__(f"members of stage {stage} reported different states")
        self.stage, self.state_digest = stage, state_digest


class Replanned(Exception):
    """The plan is made again, for the same base and attempt: with a joiner that has caught up, or
    without a member that others may wait for.
    """


class SourceGone(Exception):
    """A source of the plan is gone: its share goes to the others."""


class Rounds:
    """The coordinator's averaging.

    Attributes:
        redone: contributions redone in this base.
        rolls: by stage, those whose averages stand.
    """

    def __init__(self, context: Context, lead: Leadership, roster: Roster, quorum: QuorumWatch) -> None:
        """Nothing is averaged."""
        self._context, self._lead, self._roster, self._quorum = context, lead, roster, quorum
        self._redos = itertools.count(1)
        self._failed_since_s: dict[tuple[Member, Member], float] = {}
        self._pause_s = 0.0
        self._stale: Counter[Member] = Counter()
        self._spoilt: Counter[Member] = Counter()
        self._differing: set[int] = set()
        self._redone: Counter[tuple[Member, int]] = Counter()
        self._averages: dict[int, StageAverage] = {}
        self._failures: dict[int, int] = {}
        self.redone = 0
        self.rolls: dict[int, Roll] = {}

    def live(self, plan: Plan) -> list[Participant]:
        """Members of the plan that still count, senior first."""
        named = plan.names()
        return [g for g in self._roster.members() if g.member in named]

    def check(self, plan: Plan) -> None:
        """Stop what cannot commit as it is.

        Raises:
            Deposed: this peer leads no longer.
            StageGone: a stage has no live replica.
            SourceGone: a source is gone whose share still matters.
            Replanned: a member was fenced that answers still.
        """
        self._quorum.check()
        if self._roster.must_replan:
            raise Replanned("a member was fenced that others may wait for, or missed the last plan")
        live = {g.member for g in self.live(plan)}
        for stage, replicas in enumerate(plan.replicas):
            if not any(r.endpoint.member in live for r in replicas):
                raise StageGone(f"stage {stage}")
        if ENDS_STAGE not in self._averages:
            self._check_sources(plan)

    def _check_sources(self, plan: Plan) -> None:
        live = {g.member for g in self.live(plan)}
        gone = [share.source for share in plan.shares if share.source not in live]
        if gone:
            raise SourceGone(", ".join(map(str, gone)))

    def forget(self) -> None:
        """Another base was opened: whoever follows it forgets its work, so that nothing is left of
        a base which comes back.
        """
        self._averages, self._failures, self.rolls, self.redone = {}, {}, {}, 0
        self._redone.clear()

    async def average(self, plan: Plan) -> tuple[StageAverage, ...]:
        """Average every stage.

        Returns:
            Index = stage.

        Raises:
            Deposed, Replanned, StageGone, SourceGone: see `check`.
            StatesDiffer: the work of this base is void.
        """
        self._failed_since_s.clear()
        self._pause_s = 0.0
        self._stale.clear()
        self._spoilt.clear()
        self._differing.clear()
        self._drop_lost(plan)
        averages = self._averages
        gone: set[tuple[int, int]] = set()
        stages = range(len(plan.replicas))
        while len(averages) < len(stages):
            self.check(plan)
            await self._ask_all(plan)
            self.check(plan)
            open_stages = [stage for stage in stages if stage not in averages]
            covers = {stage: self.choose(self._partial_sums(plan, stage), plan.microbatches) for stage in open_stages}
            if ENDS_STAGE in covers:
                self._deal_elsewhere(plan, covers[ENDS_STAGE].missing)
            if any(len(cover.missing) for cover in covers.values()):
                heard = self._heard_stages(plan)
                missing = [covers[s].missing if s in covers and s in heard else MicrobatchSet() for s in stages]
                if not await self._repair(plan, missing, gone):
                    gone.clear()
                    self._check_sources(
                        plan
                        # Nobody keeps what a repair would begin with: a source that is there feeds
                        # it again
                    )
                    await self._roster.changed.wait(IDLE_WAIT_S)
                continue
            async with asyncio.TaskGroup() as group:
                rounds = {
                    s: group.create_task(self._round(plan, s, covers[s], _first_of(plan) + self._failures.get(s, 0)))
                    for s in open_stages
                }
            for stage, task in rounds.items():
                outcome = task.result()
                if isinstance(outcome, StatesDiffer):
                    raise outcome
                if isinstance(outcome, StageAverage):
                    averages[stage] = outcome
                else:
                    self._failures[stage] = self._failures.get(stage, 0) + 1
                    self._context.tell(RoundRetried(plan.iteration, stage, outcome))
            await self._pause(plan)
        return tuple(averages[stage] for stage in stages)

    def _deal_elsewhere(self, plan: Plan, missing: MicrobatchSet) -> None:
        sums: dict[Member, MicrobatchSet] = {}
        for partial_sum in self._partial_sums(plan, ENDS_STAGE):
            member = partial_sum.id.member
            sums[member] = sums.get(member, MicrobatchSet()) | partial_sum.microbatches
        for (member, offset), count in self._redone.items():
            if count >= REDONE_MAX:  # its sum has half of another one in it, which may stay a half
                sums[member] = sums.get(member, MicrobatchSet()) | MicrobatchSet.of([offset])
        shares = deal_elsewhere(plan.shares, missing, sums)
        if shares != plan.shares:
            self._lead.follow(replace(plan, shares=shares))
            raise Replanned("sources have done what counts in none of their sums: it is dealt to others")

    def _drop_lost(self, plan: Plan) -> None:
        """Who reported an average may be gone since, and who holds its stage now have come later,
        without it: it is made again.
        """
        there = {participant.member for participant in self.live(plan)}
        gone = {stage for stage, average in self._averages.items() if there.isdisjoint(average.members)}
        self.drop(gone | set(self.unaccounted(plan)))

    def drop(self, stages: Collection[int]) -> None:
        """These averages are made again, with other owners of the parts."""
        for stage in sorted(stages):
            del self._averages[stage]
            self._failures[stage] = self._failures.get(stage, 0) + 1

    def unaccounted(self, plan: Plan) -> list[int]:
        """Stages whose average has a contributor that has left, where members audit each other: a
        peer must not escape an audit by leaving.
        """
        there = {participant.member for participant in self.live(plan)}
        return [
            stage
            for stage in sorted(self._averages)
            if self._context.audits and not there.issuperset(self.rolls[stage].contributors())
        ]

    async def _pause(self, plan: Plan) -> None:
        """Let members be that could not reach each other, or be reached, unless somebody falls
        meanwhile: then the next roll goes without it.
        """
        until_s, there = self._context.now_s() + self._pause_s, self.live(plan)
        self._pause_s = min(PAUSE_MAX_S, 2 * self._pause_s)
        while (left_s := until_s - self._context.now_s()) > 0 and self.live(plan) == there:
            await self._roster.changed.wait(left_s)

    def _heard_stages(self, plan: Plan) -> set[int]:
        """Stages of which somebody answers: what is redone for another one is counted by nobody, so
        it would be redone again and again.
        """
        return {stage for g in self.live(plan) if g.is_heard and (stage := plan.stage_of(g.member)) is not None}

    def choose(self, partial_sums: list[PartialSum], count: int) -> Cover:
        """Which partial sums count; see `policy.reduction`."""
        return choose_partial_sums(partial_sums, count)

    async def _ask_all(self, plan: Plan) -> None:
        await each(self.live(plan), self._roster.ask)

    def _partial_sums(self, plan: Plan, stage: int) -> list[PartialSum]:
        members = {r.endpoint.member for r in plan.replicas[stage]}
        answers = [g.answer for g in self.live(plan) if g.member in members and g.answer is not None]
        return [partial_sum for answer in answers if answer.base == plan.base for partial_sum in answer.partial_sums]

    # ---- repair ----------------------------------------------------------------------------------

    async def _repair(self, plan: Plan, missing: list[MicrobatchSet], gone: set[tuple[int, int]]) -> bool:
        """Have what is missing redone; whether anything was."""
        live = {g.member: g for g in self.live(plan)}
        replicas = tuple(tuple(r.endpoint for r in stage if r.endpoint.member in live) for stage in plan.replicas)
        stored = {g.endpoint: g.answer.stored for g in live.values() if g.answer is not None and g.answer.base == plan.base}
        number = _first_of(plan) + next(self._redos)
        owners = {
            offset: endpoint for share in plan.shares for offset in share.offsets if (endpoint := plan.endpoint(share.source))
        }
        first_microbatch = plan.iteration * self._context.manifest.batch.most
        routes = routes_of(self._context.manifest).of_offsets(first_microbatch, plan.microbatches)
        segments = plan_segments(missing, Ledger(replicas, stored, frozenset(gone), owners, routes), number)
        by_redoer: dict[Endpoint, list[Segment]] = {}
        for segment in segments:
            by_redoer.setdefault(segment.redoers[0], []).append(segment)
        done: list[tuple[int, list[int]]] = []

        async def one(redoer: Endpoint) -> None:
            work = by_redoer[redoer]
            try:
                reply = await self._roster.calls.call(redoer, Redo(plan.position, plan.base, tuple(work)))
            except CallFailed:
                return
            if isinstance(reply.message, Redone):
                gone.update(reply.message.gone)
                done.append((work[0].first, list(reply.message.done.offsets())))
                self._redone.update((s.after.member, s.offset) for s in work if s.offset in reply.message.done)

        await each(by_redoer, one)
        count = sum(len(offsets) for _, offsets in done)
        self.redone += count
        if count:
            self._context.tell(Repaired(plan.iteration, sorted(done)))
        return count > 0

    # ---- one round -------------------------------------------------------------------------------

    async def _round(self, plan: Plan, stage: int, cover: Cover, rotation: int) -> StageAverage | StatesDiffer | str:
        """One roll of one stage: the average, or why there is none."""
        participants = [g for g in self.live(plan) if plan.stage_of(g.member) == stage]
        members = tuple(sorted((g.endpoint for g in participants), key=lambda e: e.member))
        roll = Roll(plan.iteration, plan.base, stage, cover.partial_sums, members, rotation)
        request = TakeRoll(self._lead.claim(), roll, stage in self._differing)
        replies: dict[Member, Response | CallFailed] = {}

        async def one(participant: Participant) -> None:
            replies[participant.member] = _checked(roll, participant.member, await self._take(participant, request))
            self._roster.changed.tell()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(participant)) for participant in participants]
            while not all(task.done() for task in tasks):
                # Nobody can finish a round that one member does not take part in: end it, the next
                # roll says who is left.
                out = any(not isinstance(reply, Report) for reply in replies.values())
                if out or self._cannot_go_on(plan) or any(self._roster.get(g.member) is not g for g in participants):
                    for task in tasks:
                        task.cancel()
                    break
                await self._roster.changed.wait(1.0)
        return self._judge(roll, participants, replies)

    def _cannot_go_on(self, plan: Plan) -> bool:
        try:
            self.check(plan)
        except (Deposed, Replanned, StageGone, SourceGone):
            return True
        return False

    async def _take(self, participant: Participant, request: TakeRoll) -> Response | CallFailed:
        failure: CallFailed = PeerSilent("not asked")
        for _ in range(3):
            try:
                return (await self._roster.calls.call(participant.endpoint, request)).message
            except (PeerUnreachable, PeerSilent) as error:
                failure = error
            except Refused as refusal:
                if refusal.kind is RefusalKind.BEHIND:
                    await self._roster.yield_to(participant.member, refusal)
                return refusal
            except ProtocolViolation as violation:
                return RoundFailed(request.roll.round(), participant.member, str(violation), spoilt=True)
        return failure

    def _judge(
        self, roll: Roll, participants: list[Participant], replies: dict[Member, Response | CallFailed]
    ) -> StageAverage | StatesDiffer | str:
        stage = roll.stage
        reports = {
            g.member: reply
            for g in participants
            if self._roster.get(g.member) is g and isinstance(reply := replies.get(g.member), Report)
        }
        failures = {m: r for m, r in sorted(replies.items()) if isinstance(r, RoundFailed) and r.round == roll.round()}
        self._bar_spoilt(stage, participants, failures)
        self._part_pairs(stage, participants, failures)
        self._fence_strays(replies)
        if any(isinstance(reply, PeerUnreachable) for reply in replies.values()):
            self._pause_s = self._pause_s or PAUSE_S  # that comes at once, and would again
        # Who is there and has not reported has not got the average: should all die that have it,
        # the stage would be lost beside it.
        lacking = [g for g in participants if self._roster.get(g.member) is g and g.member not in reports]
        if lacking or not reports:
            return "; ".join(f"{m}: {_why(r)}" for m, r in sorted(replies.items())) or f"nobody of stage {stage} reported"
        groups: dict[str, list[Member]] = {}
        for participant in participants:
            if participant.member in reports:
                groups.setdefault(reports[participant.member].state_digest, []).append(participant.member)
        # Ties: the group of the most senior, which was entered first
        kept = max(groups.values(), key=len)
        # What the others added was computed with other weights: without it, once more
        if len(groups) > 1:
            for participant in [
                participant for participant in participants if participant.member in reports and participant.member not in kept
            ]:
                self._roster.differ(participant, f"its state of stage {stage} differs from its siblings'")
            return StatesDiffer(stage, reports[kept[0]].state_digest)
        digests = {reports[member].sum_digest for member in kept}
        if len(digests) > 1:
            self._blame(roll, participants, {member: reports[member].part_digests for member in kept})
            return f"members of stage {stage} reported {len(digests)} different averages"
        for member in kept:
            self._roster.agree(member, roll.iteration)
        self.rolls[stage] = roll
        first = reports[kept[0]]
        norm_bits = agreed_norm([reports[member].squared_norm_bits for member in kept])
        return StageAverage(first.sum_digest, norm_bits, first.state_digest, tuple(sorted(kept)), roll.sums())

    def _fence_strays(self, replies: Mapping[Member, Response | CallFailed]) -> None:
        """Who says again and again that it does not know this base was built anew since its Open:
        it says hello, and is a member again.
        """
        for member, reply in sorted(replies.items()):
            if isinstance(reply, Refused) and reply.kind is RefusalKind.STALE:
                self._stale[member] += 1
                if self._stale[member] == STALE_ROLLS_MAX:
                    self._roster.fence(member, f"it does not take part: {reply}")

    def _blame(self, roll: Roll, participants: list[Participant], reported: Mapping[Member, Sequence[str]]) -> None:
        """Members have different averages: the next roll has other owners and asks for details; by
        these somebody is excluded.
        """
        self._differing.add(roll.stage)
        if not all(reported.values()):
            return
        owners = [roll.owner(part).member for part in range(max(map(len, reported.values())))]
        liar = two_faced(owners, reported, [g.member for g in participants])
        if liar is not None:
            self._roster.bar(liar, f"what it gave the members of stage {roll.stage} as one sum differs")

    def _bar_spoilt(self, stage: int, participants: Sequence[Participant], failures: Mapping[Member, RoundFailed]) -> None:
        """Who gave twice what is of no use, where others did not, leaves this stage."""
        wrong = {failure.suspect: failure.why for failure in failures.values() if failure.spoilt}
        for suspect in sorted(wrong.keys() & {participant.member for participant in participants}):
            self._spoilt[suspect] += 1
            if self._spoilt[suspect] == SPOILT_MAX:
                self._roster.bar(suspect, f"averaging stage {stage}: {wrong[suspect]}")

    def _part_pairs(self, stage: int, participants: Sequence[Participant], failures: Mapping[Member, RoundFailed]) -> None:
        """Two members that go on failing with each other are parted: the junior leaves this
        stage.
        """
        seniority = [g.member for g in participants]
        wrong = {failure.suspect for failure in failures.values() if failure.spoilt}
        for member, reply in failures.items():
            if wrong & {member, reply.suspect} or member not in seniority or reply.suspect not in seniority:
                continue
            pair, now_s = (min(member, reply.suspect), max(member, reply.suspect)), self._context.now_s()
            self._pause_s = self._pause_s or PAUSE_S
            if now_s - self._failed_since_s.setdefault(pair, now_s) >= PARTED_AFTER_S:
                junior = max(pair, key=seniority.index)
                self._roster.bar(junior, f"it cannot average stage {stage} with {pair[0] if junior == pair[1] else pair[1]}")


def _first_of(plan: Plan) -> int:
    """Rounds and redos are counted from here: no name is used twice, nor by two coordinators;
    members still know what bore the first one.
    """
    return ROUNDS_OF_A_TERM * (plan.position.term.number - 1)


def _checked(roll: Roll, member: Member, reply: Response | CallFailed) -> Response | CallFailed:
    """The reply; where it is a report that nothing can be made of, a failure that names its
    sender.
    """
    if not isinstance(reply, Report) or (reply.round == roll.round() and is_norm(reply.squared_norm_bits)):
        return reply
    why = f"its report is of round {reply.round}, squared norm {reply.squared_norm_bits}"
    return RoundFailed(roll.round(), member, why, spoilt=True)


def _why(reply: Response | CallFailed) -> str:
    return f"{reply.suspect}: {reply.why}" if isinstance(reply, RoundFailed) else str(reply)
