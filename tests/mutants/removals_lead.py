"""Rules of leading, each with a way to take it out; see `removals`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from swarmfree.policy import fork_choice, quorum
from swarmfree.policy.takeover import InheritedParticipant, Takeover
from swarmfree.protocol.actions import BuildAction, CopyNeighbour, Fresh, Merge
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.messages import Claim, HeartbeatAnswer, Hello, Met, Promise, Report
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.trainer import election
from swarmfree.trainer.coordinator import absent, broadcast, leadership, meetings, partition_merge, rounds
from swarmfree.trainer.coordinator import coordinator as coordination
from swarmfree.trainer.coordinator import roster as rosters
from swarmfree.trainer.coordinator.absent import Absent
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.leadership import Leadership, Present
from swarmfree.trainer.coordinator.meetings import is_whole
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge, Rival
from swarmfree.trainer.coordinator.quorum_watch import QuorumWatch
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.coordinator.rounds import Replanned, Rounds
from swarmfree.trainer.election import Election
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.peer import End, Peer


def followers_while_building(patch: pytest.MonkeyPatch) -> None:
    """A stage is rebuilt only where a majority can vote already (3.2)."""
    check = QuorumWatch.check

    def careless(self: QuorumWatch, *, building: bool = False, **limits: Any) -> bool:
        return check(self, **limits)

    patch.setattr(QuorumWatch, "check", careless)


def majority_for_open(patch: pytest.MonkeyPatch) -> None:
    """An iteration is opened without a majority's promises (3.1)."""
    opens = Coordinator._open

    async def careless(self: Coordinator, plan: Plan) -> Record | None:
        forced, self.lead.may_force = self.lead.may_force, True
        try:
            return await opens(self, plan)
        finally:
            self.lead.may_force = forced

    patch.setattr(Coordinator, "_open", careless)


def promise_of_what_gave_way(patch: pytest.MonkeyPatch) -> None:
    """Who has promised counts as a member, though it holds another state by now."""

    def careless(self: Participant, position: Position, _builds: int) -> None:
        if self.built:
            self.opened = position

    patch.setattr(Participant, "promise", careless)


def forced_but_once(patch: pytest.MonkeyPatch) -> None:
    """Who was forced once may always (3.2)."""
    decide = Coordinator._decide

    async def careless(self: Coordinator, record: Record) -> None:
        forced = self.lead.may_force
        await decide(self, record)
        self.lead.may_force = forced

    patch.setattr(Coordinator, "_decide", careless)


def forced_after_proof_of_death(patch: pytest.MonkeyPatch) -> None:
    """Who has finished a record without a majority, by proof that others have died, decides the
    next one as if nobody could be further (3.2).
    """
    finish = Coordinator._finish

    async def careless(self: Coordinator, sealed: Record) -> None:
        await finish(self, sealed)
        self.lead.may_force = False

    patch.setattr(Coordinator, "_finish", careless)


def silence_without_majority(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that has lost its majority goes on beating (3.2)."""
    patch.setattr(QuorumWatch, "check", lambda self, **limits: True)


def highest_sealed_record(patch: pytest.MonkeyPatch) -> None:
    """Of several stored records the first one told counts (3.1)."""

    def first(promises: Iterable[Promise], lineage: str) -> Record | None:
        return next((promise.sealed for promise in promises if promise.sealed is not None), None)

    patch.setattr(coordination, "newest_sealed", first)
    patch.setattr(election, "newest_sealed", first)


def lineage_of_a_vote(patch: pytest.MonkeyPatch) -> None:
    """A stored record counts whatever lineage it follows (3.1)."""
    newest = coordination.newest_sealed

    def of_any(promises: Iterable[Promise], lineage: str) -> Record | None:
        said = list(promises)
        found = [newest(said, promise.sealed.before) for promise in said if promise.sealed is not None]
        return found[-1] if found else None

    patch.setattr(coordination, "newest_sealed", of_any)
    patch.setattr(election, "newest_sealed", of_any)


def share_of_this_plan(patch: pytest.MonkeyPatch) -> None:
    """What a source says of any plan of this base counts for this one (3.7)."""

    def careless(answer: HeartbeatAnswer | None, plan: Plan) -> bool:
        return answer is not None and answer.base == plan.base and answer.share_done

    patch.setattr(coordination, "has_fed", careless)


def senior_half(patch: pytest.MonkeyPatch) -> None:
    """Any half decides (3.1)."""

    def half(electorate: Sequence[Member], answered: Collection[Member]) -> bool:
        return 2 * sum(member in answered for member in electorate) >= len(electorate) > 0

    patch.setattr(quorum, "is_majority", half)


def proven_ends(patch: pytest.MonkeyPatch) -> None:
    """A life that is proven to have ended goes on being waited for (3.1)."""

    def by_majority(electorate: Sequence[Member], answered: Collection[Member], ended: Collection[Member]) -> bool:
        return quorum.is_majority(electorate, answered)

    patch.setattr(leadership, "may_decide", by_majority)


def nobody_decides_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """An electorate of nobody is decided by anybody (3.1)."""
    majority = quorum.is_majority
    patch.setattr(quorum, "is_majority", lambda electorate, answered: not electorate or majority(electorate, answered))


def seniority_in_a_record(patch: pytest.MonkeyPatch) -> None:
    """Those who decide next are named in any order (3.1)."""
    make = coordination.make_record

    def careless(plan: Plan, averages: Any, manifest: Any, around: Any) -> Record:
        return make(plan, averages, manifest, replace(around, seniority={}))

    patch.setattr(coordination, "make_record", careless)


def proof_before_the_claim(patch: pytest.MonkeyPatch) -> None:
    """Whoever goes on by force is not forced any more once all others are proven to have ended
    (3.1).
    """
    patch.setattr(coordination, "is_majority", lambda electorate, answered: electorate[0] in answered)


def source_that_is_only_called_for(patch: pytest.MonkeyPatch) -> None:
    """A holder that is called for, and has promised nothing, is in a plan beside one that has."""
    admitted = Coordinator._admitted

    def careless(self: Coordinator, stage: int) -> list[Participant]:
        found = admitted(self, stage)
        return found + [g for g in self.roster.holders(stage) if not g.is_heard and g not in found]

    patch.setattr(Coordinator, "_admitted", careless)


def state_that_a_promise_tells(patch: pytest.MonkeyPatch) -> None:
    """What a member holds counts for nothing where it has told that in its promise alone (3.2)."""
    participants = Takeover.participants

    def careless(self: Takeover) -> tuple[InheritedParticipant, ...]:
        return tuple(replace(g, hello=replace(g.hello, stage=ABSENT, iteration=0)) for g in participants(self))

    patch.setattr(Takeover, "participants", careless)


def vouched_voters(patch: pytest.MonkeyPatch) -> None:
    """A successor takes what anybody has built for the state of its stage (3.1)."""
    participants = Takeover.participants

    def careless(self: Takeover) -> tuple[InheritedParticipant, ...]:
        return participants(replace(self, promises={e: replace(p, is_committed_state=True) for e, p in self.promises.items()}))

    patch.setattr(Takeover, "participants", careless)


def state_that_a_record_begins_with(patch: pytest.MonkeyPatch) -> None:
    """What a member had built, and missed the record of, counts for nothing (3.1)."""
    participants = Takeover.participants
    patch.setattr(Takeover, "participants", lambda self: participants(replace(self, record=None, sealed=None)))


def state_of_the_newest_base(patch: pytest.MonkeyPatch) -> None:
    """Who is in the newest plan holds its stage, also where that was rebuilt since (3.1)."""
    participants = Takeover.participants

    def careless(self: Takeover) -> tuple[InheritedParticipant, ...]:
        plan = replace(self.plan, rebuilt=()) if self.plan is not None else None
        return participants(replace(self, plan=plan))

    patch.setattr(Takeover, "participants", careless)


# ---- rounds --------------------------------------------------------------------------------------


def _reports_as(patch: pytest.MonkeyPatch, change: Callable[[Report, Report], Report]) -> None:
    judge = Rounds._judge

    def careless(self: Rounds, roll: Any, participants: list[Participant], replies: Mapping[Member, Any]) -> Any:
        first = next(reply for reply in replies.values() if isinstance(reply, Report))
        alike = {m: change(reply, first) if isinstance(reply, Report) else reply for m, reply in replies.items()}
        return judge(self, roll, participants, alike)

    patch.setattr(Rounds, "_judge", careless)


def states_alike(patch: pytest.MonkeyPatch) -> None:
    """Siblings' state digests are not compared (3.6)."""
    _reports_as(patch, lambda report, first: replace(report, state_digest=first.state_digest))


def averages_alike(patch: pytest.MonkeyPatch) -> None:
    """Siblings' averages are not compared (3.6)."""
    _reports_as(patch, lambda report, first: replace(report, sum_digest=first.sum_digest))


def average_of_everybody(patch: pytest.MonkeyPatch) -> None:
    """An average is complete when one member has it (3.6)."""
    judge = Rounds._judge

    def careless(self: Rounds, roll: Any, participants: list[Participant], replies: Mapping[Member, Any]) -> Any:
        return judge(
            self,
            roll,
            [participant for participant in participants if isinstance(replies.get(participant.member), Report)],
            replies,
        )

    patch.setattr(Rounds, "_judge", careless)


def pause_after_an_unreachable_member(patch: pytest.MonkeyPatch) -> None:
    """A member that cannot be called is sent one roll after another, without a pause (3.6)."""
    judge = Rounds._judge

    def careless(self: Rounds, roll: Any, participants: list[Participant], replies: Mapping[Member, Any]) -> Any:
        pause_s = self._pause_s
        found = judge(self, roll, participants, replies)
        self._pause_s = pause_s
        return found

    patch.setattr(Rounds, "_judge", careless)


def redone_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """What is missing is redone also for stages of which nobody answers (3.4)."""
    patch.setattr(Rounds, "_heard_stages", lambda self, plan: set(range(len(plan.replicas))))


# ---- who is there --------------------------------------------------------------------------------


def patience_with_the_last(patch: pytest.MonkeyPatch) -> None:
    """Silence is death, also that of a stage's last replica (3.2)."""
    patch.setattr(Roster, "_is_worth_waiting_for", lambda self, participant, error: False)


def silent_joiners(patch: pytest.MonkeyPatch) -> None:
    """A plan is made anew for one that is called for and does not answer, as often as it is looked
    (3.3).
    """

    def careless(self: Coordinator) -> None:
        if any(g.is_joiner and self.assignment.admissible(g) for g in self.roster.participants()):
            raise Replanned("a joiner")

    patch.setattr(Coordinator, "_look_for_joiners", careless)


def joiners_that_cannot_step(patch: pytest.MonkeyPatch) -> None:
    """A joiner that has missed an average for good stays as it is until the next iteration begins
    (3.3).
    """

    async def careless(self: Coordinator, joiners: Sequence[Participant], record: Record) -> None:
        await self._broadcast.bring_up(joiners, record)

    patch.setattr(Coordinator, "_tell_joiners", careless)


def old_state_that_is_called_for(patch: pytest.MonkeyPatch) -> None:
    """Whoever is called for as the last of its stage holds nothing where it is far behind; it is
    called for anew at once, and plan after plan is made with it (3.3).
    """
    admissible = Assignment.admissible

    def careless(self: Assignment, participant: Participant) -> bool:
        silent_since_s, participant.silent_since_s = participant.silent_since_s, None
        try:
            return admissible(self, participant)
        finally:
            participant.silent_since_s = silent_since_s

    patch.setattr(Assignment, "admissible", careless)


def open_to_who_is_back(patch: pytest.MonkeyPatch) -> None:
    """Whoever was silent when a plan was opened goes on by the one before it (3.3)."""
    patch.setattr(Roster, "_is_heard_again", lambda self, participant: setattr(participant, "silent_since_s", None))


def open_to_who_dropped_it(patch: pytest.MonkeyPatch) -> None:
    """Whoever has promised a plan counts as one of its members, whatever it tells since (3.3)."""
    patch.setattr(Participant, "has_dropped", lambda self, plan, now_s, silence_s: False)


def call_after_a_leave(patch: pytest.MonkeyPatch) -> None:
    """The last replica of a stage leaves, and nobody calls for one that was fenced beside it
    (3.2).
    """
    recall, let_go = Roster._recall, Roster.let_go

    def careless(self: Roster, participant: Participant) -> None:
        patch.setattr(Roster, "_recall", lambda self, stage: None)
        let_go(self, participant)
        patch.setattr(Roster, "_recall", recall)

    patch.setattr(Roster, "let_go", careless)


def call_for_who_was_missed(patch: pytest.MonkeyPatch) -> None:
    """Whoever did not promise, and had a sibling that did, is never called for (3.2)."""
    miss = Roster.miss

    def careless(self: Roster, endpoint: Endpoint, stage: int | None, hello: Hello) -> None:
        miss(self, endpoint, stage, hello)
        self._absent.discard(endpoint.member.peer_id)

    patch.setattr(Roster, "miss", careless)


def average_that_somebody_has(patch: pytest.MonkeyPatch) -> None:
    """An average counts, though everybody who had it is gone (3.8)."""
    patch.setattr(Rounds, "_drop_lost", lambda self, plan: None)


def absent_in_a_record(patch: pytest.MonkeyPatch) -> None:
    """A rebuilt state counts for nothing where its holder was fenced before that was decided,
    whatever is decided then (3.3).
    """
    patch.setattr(Absent, "vouch", lambda self, base: None)


def refused_is_dead(patch: pytest.MonkeyPatch) -> None:
    """A life that has ended is waited for like one that is silent (3.2)."""
    worth = Roster._is_worth_waiting_for

    def careless(self: Roster, participant: Participant, error: CallFailed) -> bool:
        return worth(self, participant, PeerSilent(str(error)) if isinstance(error, PeerUnreachable) else error)

    patch.setattr(Roster, "_is_worth_waiting_for", careless)


def stranger_is_dead(patch: pytest.MonkeyPatch) -> None:
    """Who does not know this coordinator, and forbids its words, is given up like one that refuses
    (3.2).
    """
    is_over = rosters.is_over
    patch.setattr(rosters, "is_over", lambda error: isinstance(error, Refused) or is_over(error))


def older_state_of_the_silent(patch: pytest.MonkeyPatch) -> None:
    """A peer that cannot come to the present iteration is forgotten where it does not answer, with
    the state that it holds (3.3).
    """
    add = Absent.add
    patch.setattr(Absent, "add", lambda self, participant: add(self, participant) if participant.built else None)


def call_before_it_is_given_up(patch: pytest.MonkeyPatch) -> None:
    """Who was fenced for its silence long ago is given up as it is called for, before it can have
    answered (3.3).
    """
    patience_left_s = Roster._patience_left_s

    def careless(self: Roster, participant: Participant) -> float | None:
        participant.called_s = -math.inf
        return patience_left_s(self, participant)

    patch.setattr(Roster, "_patience_left_s", careless)


def copy_of_what_made_do(patch: pytest.MonkeyPatch) -> None:
    """A copy is taken from a holder out of reach that was told to make do with an older state, as
    if it held the present one (3.3).
    """
    calls_for = Roster._calls_for

    def careless(self: Roster, participant: Participant, error: CallFailed) -> bool:
        participant.may_have_built = False
        return calls_for(self, participant, error)

    patch.setattr(Roster, "_calls_for", careless)


def called_once(patch: pytest.MonkeyPatch) -> None:
    """Who may have built its stage unheard is called for in vain, and then once more, again and
    again (3.3).
    """
    calls_for = Roster._calls_for

    def careless(self: Roster, participant: Participant, error: CallFailed) -> bool:
        calls = calls_for(self, participant, error)
        if not calls and participant.may_have_built:
            self.given_up.remove(participant)
        return calls

    patch.setattr(Roster, "_calls_for", careless)


def silent_copier(patch: pytest.MonkeyPatch) -> None:
    """A peer that falls silent as it copies a stage is forgotten, though it may hold it by now
    (3.3).
    """
    add = Absent.add

    def careless(self: Absent, participant: Participant) -> None:
        if participant.built or participant.held(participant.stage) >= 0:
            add(self, participant)

    patch.setattr(Absent, "add", careless)


def claim_beside_a_promise(patch: pytest.MonkeyPatch) -> None:
    """Who has just promised another one the lead claims it all the same (3.2)."""
    patch.setattr(Election, "_promise_left_s", property(lambda self: 0.0))


def promise_that_is_asked_for_again(patch: pytest.MonkeyPatch) -> None:
    """Who claims again and again keeps those that have promised it from claiming (3.2)."""
    claim = StageMember._claim

    async def careless(self: StageMember, sender: Endpoint, request: Claim) -> Reply:
        reply = await claim(self, sender, request)
        if sender.member != self.context.me and not request.only_asking:
            self.promised_s = self.context.now_s()
        return reply

    patch.setattr(StageMember, "_claim", careless)


def refused_before_it_knew(patch: pytest.MonkeyPatch) -> None:
    """Who refuses what it is told as it does not know yet who leads, or what proves it, is
    forgotten, with the state that it holds (3.3).
    """
    patch.setattr(rosters, "knows_too_little", lambda error: False)


def gone_before_a_word(patch: pytest.MonkeyPatch) -> None:
    """Who cannot step, and has not told yet what it holds, is forgotten with that, and its stage is
    made anew (3.3).
    """

    async def careless(self: Roster, participant: Participant, refusal: Refused) -> CallFailed:
        del self, participant
        return refusal

    patch.setattr(Roster, "_failure_of_unheard", careless)


def refused_again_and_again(patch: pytest.MonkeyPatch) -> None:
    """Who refuses what it is told, and is called for, is called for each time that it refuses
    (3.3).
    """
    patch.setattr(Participant, "recall", lambda self, before: None)


def copiers_go_first(patch: pytest.MonkeyPatch) -> None:
    """Of many that fell silent those that went first are forgotten, also where they held a stage
    and later ones only began to copy it (3.3).
    """
    patch.setattr(absent, "_has_held", lambda _: True)


def barred_and_alone(patch: pytest.MonkeyPatch) -> None:
    """Who was barred is forgotten, also where its siblings are lost (3.3)."""
    bar = Roster.bar

    def careless(self: Roster, member: Member, why: str) -> None:
        bar(self, member, why)
        self._absent.discard(member.peer_id)

    patch.setattr(Roster, "bar", careless)


def sibling_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A silent replica is waited for also where its sibling lives (3.2)."""
    worth, holders = Roster._is_worth_waiting_for, Roster.holders

    def careless(self: Roster, participant: Participant, error: CallFailed) -> bool:
        patch.setattr(Roster, "holders", lambda self, stage: (participant,))
        try:
            return worth(self, participant, error)
        finally:
            patch.setattr(Roster, "holders", holders)

    patch.setattr(Roster, "_is_worth_waiting_for", careless)


def sibling_of_today(patch: pytest.MonkeyPatch) -> None:
    """A silent replica is given up for any other one, however old its state is (3.2)."""
    worth = Roster._is_worth_waiting_for

    def careless(self: Roster, participant: Participant, error: CallFailed) -> bool:
        for other in self.holders(participant.stage):
            other.built_at = participant.iteration
        return worth(self, participant, error)

    patch.setattr(Roster, "_is_worth_waiting_for", careless)


def step_since_its_answer(patch: pytest.MonkeyPatch) -> None:
    """A member that falls silent stands where it stood as it answered last, though it has stepped
    since (3.2).
    """
    worth = Roster._is_worth_waiting_for

    def careless(self: Roster, participant: Participant, error: CallFailed) -> bool:
        for other in self.holders(participant.stage):
            if other.iteration >= participant.iteration:
                other.opened = self._lead.position
        return worth(self, participant, error)

    patch.setattr(Roster, "_is_worth_waiting_for", careless)


def called_for_again(patch: pytest.MonkeyPatch) -> None:
    """A silent replica for which a sibling came is forgotten, also where that sibling dies at once
    (3.2).
    """
    add = Absent.add
    patch.setattr(
        Absent, "add", lambda self, participant: None if participant.silent_since_s is not None else add(self, participant)
    )


def silent_beside_a_joiner(patch: pytest.MonkeyPatch) -> None:
    """A plan names one that does not answer, though a joiner holds its stage by now, and waits for
    its promise (3.2).
    """

    async def careless(self: Roster) -> None:
        del self

    patch.setattr(Roster, "look_who_is_silent", careless)


def vote_to_depose(patch: pytest.MonkeyPatch) -> None:
    """Whoever has promised a higher term deposes the coordinator, with a vote or without (3.2)."""
    yield_to = Roster.yield_to

    async def careless(self: Roster, member: Member, error: CallFailed) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._lead, "electorate", lambda: (member,))
            await yield_to(self, member, error)

    patch.setattr(Roster, "yield_to", careless)


def patience_with_a_led_holder(patch: pytest.MonkeyPatch) -> None:
    """Who holds its stage alone is given up as soon as it says that it hears another coordinator
    (3.2).
    """
    patch.setattr(Roster, "_calls_for", lambda self, participant, error: False)


def members_before_the_first_record(patch: pytest.MonkeyPatch) -> None:
    """Before the first record nobody deposes a successor, since nobody has a vote (3.2)."""
    patch.setattr(Leadership, "yields_to", lambda self, member: member in self.electorate())


def own_promise_of_a_higher_term(patch: pytest.MonkeyPatch) -> None:
    """A coordinator tells whoever claims to join it anew, also where it has promised that claim
    itself (3.2).
    """
    yield_to = Roster.yield_to

    async def careless(self: Roster, member: Member, error: CallFailed) -> None:
        async def nothing(participant: Participant) -> None:
            del participant

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_ask_for_higher_term", nothing)
            await yield_to(self, member, error)

    patch.setattr(Roster, "yield_to", careless)


def votes_before_others_rejoin(patch: pytest.MonkeyPatch) -> None:
    """A coordinator tells who has promised a higher term to join it anew before it has asked those
    with a vote (3.2).
    """
    yield_to = Roster.yield_to

    async def careless(self: Roster, member: Member, error: Refused) -> None:
        ask = self._ask_for_higher_term

        async def mine(participant: Participant) -> None:
            if participant.member == self._context.me:
                await ask(participant)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_ask_for_higher_term", mine)
            await yield_to(self, member, error)

    patch.setattr(Roster, "yield_to", careless)


def asked_for_others_alone(patch: pytest.MonkeyPatch) -> None:
    """Who is asked for a higher term for somebody else's sake, and has left as well, has all others
    asked in turn (3.2).
    """
    patch.setattr(Roster, "_ask_for_higher_term", Roster.ask)


def lineage_of_a_deposer(patch: pytest.MonkeyPatch) -> None:
    """Whoever decides here deposes the coordinator, whatever lineage it has joined meanwhile
    (3.4).
    """

    async def nobody(self: Roster, participant: Participant) -> bool:
        del self, participant
        return False

    patch.setattr(Roster, "_has_left", nobody)


def lineage_of_its_leader(patch: pytest.MonkeyPatch) -> None:
    """Whoever builds a state of another lineage counts as one of the lineage that it had before
    (3.4).
    """
    meet = meetings.meet

    async def careless(*asked: Any) -> Met | None:
        met = await meet(*asked)
        return replace(met, coordinator=None) if met is not None else None

    patch.setattr(meetings, "meet", careless)


def past_of_a_decision(patch: pytest.MonkeyPatch) -> None:
    """What a decided record gives is of this lineage when everybody was told of it, and not before
    (3.3).
    """
    decide, commit = Leadership.decide, Leadership.commit

    def careless(self: Leadership, record: Record) -> None:
        past, self.past = self.past, {}
        decide(self, record)
        self.past = past

    def late(self: Leadership, record: Record) -> None:
        decide(self, record)
        commit(self, record)

    patch.setattr(Leadership, "decide", careless)
    patch.setattr(Leadership, "commit", late)


def holder_of_a_higher_term(patch: pytest.MonkeyPatch) -> None:
    """Whoever has promised a higher term and has no vote is fenced before it is told to come back,
    also where it holds its stage alone (3.2).
    """
    yield_to = Roster.yield_to

    async def careless(self: Roster, member: Member, error: Refused) -> None:
        self.holders = lambda stage: self.participants()  # type: ignore[method-assign]
        await yield_to(self, member, error)

    patch.setattr(Roster, "yield_to", careless)


def forgotten_as_it_rejoins(patch: pytest.MonkeyPatch) -> None:
    """Who is told to join anew beside another replica is not called for where that one is lost
    before it has (3.3).
    """
    yield_to = Roster.yield_to

    async def careless(self: Roster, member: Member, error: Refused) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._absent, "add", lambda participant: None)
            await yield_to(self, member, error)

    patch.setattr(Roster, "yield_to", careless)


def one_life_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """A peer that was started again is a participant beside its earlier life (3.3)."""

    def also(self: Roster, endpoint: Endpoint, hello: Hello, stage: int, *, built: bool = False) -> Participant:
        participant = Participant(endpoint, hello, stage, self._admitted, built)
        self._admitted += 1
        self._participants[endpoint.member] = participant
        return participant

    patch.setattr(Roster, "admit", also)


def later_life_stays(patch: pytest.MonkeyPatch) -> None:
    """A Hello that was long on its way puts a life that has ended in the place of the one that goes
    on (3.3).
    """
    patch.setattr(Roster, "is_superseded", lambda self, member: False)


def losses_only_grow(patch: pytest.MonkeyPatch) -> None:
    """The last answer of a source counts, also one that was overtaken (3.7)."""

    def last(self: Roster, member: Member, answer: HeartbeatAnswer) -> None:
        self.told[member, answer.base] = answer

    patch.setattr(Roster, "_keep_told", last)


def lateness_beside_a_sibling(patch: pytest.MonkeyPatch) -> None:
    """A device that hangs is waited for (3.9)."""
    patch.setattr(rosters, "is_given_up", lambda late, others: False)


def lateness_of_the_last(patch: pytest.MonkeyPatch) -> None:
    """A device that hangs costs its stage also where nobody else holds that (3.9)."""
    patch.setattr(rosters, "is_given_up", lambda late, others: late > 1)


def digest_of_a_joiner(patch: pytest.MonkeyPatch) -> None:
    """What a joiner has copied is compared with nobody's (3.10)."""
    patch.setattr(Roster, "compare", lambda self, record: None)


def bar_for_arithmetic(patch: pytest.MonkeyPatch) -> None:
    """A member whose state differs again and again loads it again and again (3.6)."""
    patch.setattr(rosters, "DIFFERS_MAX", 1 << 30)


# ---- two coordinators ----------------------------------------------------------------------------


def fewer_forced_first(patch: pytest.MonkeyPatch) -> None:
    """More iterations win, whatever was forced there (3.4)."""
    patch.setattr(fork_choice, "_order", lambda tip: (tip.iterations == 0, -tip.iterations, tip.lineage))


def rival_that_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Whoever calls while another rival is about to be given way to is asked in its place (3.4)."""
    visit = PartitionMerge._visit

    async def careless(self: PartitionMerge, coordinator: Endpoint) -> Rival | None:
        return await visit(self, self._heard.coordinator if self._heard is not None else coordinator)

    patch.setattr(PartitionMerge, "_visit", careless)


def _meets(patch: pytest.MonkeyPatch, first: Callable[[PartitionMerge, Rival], bool | None]) -> None:
    gives_way = PartitionMerge._gives_way_to

    def careless(self: PartitionMerge, rival: Rival, *, is_outranked: bool = True) -> bool:
        found = first(self, rival)
        return gives_way(self, rival, is_outranked=is_outranked) if found is None else found

    patch.setattr(PartitionMerge, "_gives_way_to", careless)


def lead_of_a_stranger(patch: pytest.MonkeyPatch) -> None:
    """Whoever says that it leads may lead, though nobody says so who had a place here (3.4)."""
    patch.setattr(PartitionMerge, "_may_lead", lambda self, member: True)


def leader_of_those_that_split_off(patch: pytest.MonkeyPatch) -> None:
    """A coordinator never gives way to whom those follow that split off from it, where that one
    came to them later (3.4).
    """
    patch.setattr(PartitionMerge, "_is_followed", lambda self, leader, by: asyncio.sleep(0, False))


def word_of_the_founder(patch: pytest.MonkeyPatch) -> None:
    """Those that parted before their first record, and whose coordinator has changed since, do not
    believe the founder, and never give way to whom it follows (3.4).
    """
    followed = PartitionMerge._is_followed

    async def careless(self: PartitionMerge, leader: Member, by: Collection[str]) -> bool:
        return await followed(self, leader, [peer_id for peer_id in by if peer_id in self._lead.named])

    patch.setattr(PartitionMerge, "_is_followed", careless)


def word_of_who_is_excluded(patch: pytest.MonkeyPatch) -> None:
    """A coordinator gives way to whom an excluded peer says that it follows (3.4)."""
    followed = PartitionMerge._is_followed

    async def careless(self: PartitionMerge, leader: Member, by: Collection[str]) -> bool:
        return await followed(self, leader, {*by, *self._lead.excluded})

    patch.setattr(PartitionMerge, "_is_followed", careless)


def founder_that_is_excluded(patch: pytest.MonkeyPatch) -> None:
    """A coordinator gives way to the founder, though its own swarm has excluded it (3.4)."""

    async def careless(self: PartitionMerge) -> set[str]:
        founder = await self._context.ports.directory.founder()
        return set() if founder is None else {founder.peer_id}

    patch.setattr(PartitionMerge, "_founders", careless)


def voter_that_is_excluded(patch: pytest.MonkeyPatch) -> None:
    """A coordinator gives way within its lineage to a voter that its own swarm has excluded
    (3.4).
    """
    patch.setattr(PartitionMerge, "_voters", lambda self: {member.peer_id for member in self._lead.electorate()})


def lineages_before_wholeness(patch: pytest.MonkeyPatch) -> None:
    """The swarm that goes on wins, whatever was forced there (3.4)."""
    _meets(
        patch, lambda self, rival: rival.is_whole if rival.is_whole != is_whole(self._context, self._lead, self._roster) else None
    )


def fewer_forced_records(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes from a lineage that a majority went on with has to drop it for a forced one, as
    its own coordinator has just fallen (3.4).
    """
    patch.setattr(PartitionMerge, "counts_less_than", lambda *_: False)


def decided_before_it_is_told(patch: pytest.MonkeyPatch) -> None:
    """A record that is decided counts against a rival only once everybody was told of it (3.4)."""
    decide = Coordinator._decide

    async def careless(self: Coordinator, record: Record) -> None:
        before = self.lead.tip()
        patch.setattr(self.lead, "tip", lambda: before)
        await decide(self, record)

    patch.setattr(Coordinator, "_decide", careless)


def state_behind_a_bar(patch: pytest.MonkeyPatch) -> None:
    """Whoever stood by for a bar, and is let go to say hello again, is forgotten until it does,
    with the state that it holds (3.3).
    """
    end_bars = Roster.end_bars

    def careless(self: Roster) -> None:
        end_bars(self)
        for participant, _ in list(self._absent._gone.values()):
            self._absent.discard(participant.member.peer_id)

    patch.setattr(Roster, "end_bars", careless)


def state_of_a_silent_standby(patch: pytest.MonkeyPatch) -> None:
    """A standby that was fenced as it was silent is forgotten with what it holds (3.3)."""
    judge = Roster.judge

    async def careless(self: Roster, participant: Participant, error: CallFailed) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Roster, "_remember_standby", lambda self, participant: None)
            await judge(self, participant, error)

    patch.setattr(Roster, "judge", careless)


def loss_behind_a_bar(patch: pytest.MonkeyPatch) -> None:
    """Whose bar ends after its siblings were lost is not called for: that was tried as they went
    (3.3).
    """
    end_bars = Roster.end_bars

    def careless(self: Roster) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Roster, "_recall", lambda self, stage: None)
            end_bars(self)

    patch.setattr(Roster, "end_bars", careless)


def iteration_of_a_joiner(patch: pytest.MonkeyPatch) -> None:
    """A successor has newcomers copy for the first iteration until it fills its stages: who is
    further refuses, and deposes it (3.10).
    """
    joins, fill = Assignment.start_joins, Assignment.fill

    def early(self: Assignment) -> None:
        present, self._lead.present = self._lead.present, Present()
        joins(self)
        self._lead.present = present

    async def late(self: Assignment, *limits: float) -> None:
        patch.setattr(Assignment, "start_joins", joins)
        await fill(self, *limits)

    patch.setattr(Assignment, "start_joins", early)
    patch.setattr(Assignment, "fill", late)


def beginning_never_wins(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that has slept may win with the beginning of this very lineage (3.4)."""
    patch.setattr(PartitionMerge, "follows", lambda self, iterations, lineage: False)


def run_that_ended(patch: pytest.MonkeyPatch) -> None:
    """A coordinator refuses to end whoever says so, also one that it would give way to a moment
    later (3.4).
    """

    async def careless(self: PartitionMerge, coordinator: Endpoint) -> bool:
        del self, coordinator
        return False

    patch.setattr(PartitionMerge, "loses_to", careless)


def pause_with_what_no_disk_has(patch: pytest.MonkeyPatch) -> None:
    """A peer leaves in a pause, though its disk refuses what it holds, and nobody has said that a
    sibling's has taken it (Stopped by will).
    """
    told = Peer._end_of_pause

    async def careless(self: Peer, why: str) -> End:
        return await told(self, why) or End(0, why, paused=True)

    patch.setattr(Peer, "_end_of_pause", careless)


def look_before_the_end(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that is through ends the run, though it is about to give way (3.4)."""

    async def careless(self: PartitionMerge) -> None:
        del self

    patch.setattr(PartitionMerge, "settle", careless)


def record_before_leaving(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that leaves ends while a record is on its way, which it has decided a moment
    later, and tells nobody (3.2).
    """
    told = Roster.hand_over

    async def careless(self: Roster, *, is_sound: bool = False) -> None:
        del is_sound
        await told(self)

    patch.setattr(Roster, "hand_over", careless)


def look_around_before_the_end(patch: pytest.MonkeyPatch) -> None:
    """A coordinator of a lineage that was forced ends the run without a look at whom those follow
    that are announced (3.4).
    """

    async def careless(self: PartitionMerge) -> bool:
        del self
        return False

    patch.setattr(PartitionMerge, "_finds_more", careless)


def look_around_for_leaders_alone(patch: pytest.MonkeyPatch) -> None:
    """A run ends beside peers of a lineage that counts more, since whom they follow does not answer
    for a moment, or leads no longer (3.4).
    """
    patch.setattr(PartitionMerge, "counts_less_than", lambda self, tip: False)


def look_around_without_end(patch: pytest.MonkeyPatch) -> None:
    """Who leads at every first look, and at no second one, keeps a run from ending for ever, as
    does who follows nobody (3.4).
    """
    patch.setattr(partition_merge, "FORCED_WITHOUT_ALL", math.inf)


def hope_of_others(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that is through ends the run, though a peer of a lineage that counts more says
    hello, and hopes for a coordinator (3.4).
    """

    def careless(self: PartitionMerge) -> None:
        del self

    patch.setattr(PartitionMerge, "note_hope", careless)


def hope_in_silence(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that is through waits for those that hope, and does not say so: its members
    believe that it stalls (3.4).
    """
    told = PartitionMerge.settle

    async def careless(self: PartitionMerge) -> None:
        self._roster = SimpleNamespace(wait_for=lambda what: None, check=self._roster.check)  # type: ignore[assignment]
        await told(self)

    patch.setattr(PartitionMerge, "settle", careless)


def hope_between_hellos(patch: pytest.MonkeyPatch) -> None:
    """Who asks for the lead, and says no hello meanwhile, hopes no more (3.4)."""
    patch.setattr(PartitionMerge, "_hope_lasts_s", property(lambda self: 2 * self._context.timing.silence_s))


def next_stranger(patch: pytest.MonkeyPatch) -> None:
    """Of the announced strangers one is called at a time, whether or not it answers (3.4)."""

    async def careless(self: PartitionMerge) -> Rival | None:
        found = await self._context.ports.directory.announcements()
        self._turn += 1
        met = await self._meet(found[self._turn % len(found)].endpoint)
        return None if met is None or met.coordinator is None else await self._visit(met.coordinator)

    patch.setattr(PartitionMerge, "_look_beyond", careless)


def members_of_a_rival(patch: pytest.MonkeyPatch) -> None:
    """A stage is made anew while members of another coordinator of this lineage, that gives way,
    are on their way here (3.4).
    """
    patch.setattr(PartitionMerge, "expects_members", lambda self: False)


def leaderless_stranger(patch: pytest.MonkeyPatch) -> None:
    """A stage is made anew though a peer of this lineage that follows nobody, and may hold it, has
    just been met (3.4).
    """
    patch.setattr(PartitionMerge, "_note_leaderless", lambda self, stranger, met: None)


def stranger_that_has_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """A stage is made anew though a peer of this lineage that may hold it, and takes itself for a
    member of this swarm, has just been met (3.4).
    """
    note = PartitionMerge._note_leaderless

    def careless(self: PartitionMerge, stranger: Member, met: Met) -> None:
        if met.coordinator is None or met.coordinator.member != self._context.me:
            note(self, stranger, met)

    patch.setattr(PartitionMerge, "_note_leaderless", careless)


def stranger_whose_coordinator_is_gone(patch: pytest.MonkeyPatch) -> None:
    """A stage is made anew though a peer of this lineage that may hold it, and follows one that
    leads no longer, has just been met (3.4).
    """
    note = PartitionMerge._note_leaderless

    def careless(self: PartitionMerge, stranger: Member, met: Met) -> None:
        if met.coordinator is None or met.coordinator.member == self._context.me:
            note(self, stranger, met)

    patch.setattr(PartitionMerge, "_note_leaderless", careless)


def rival_that_calls_again(patch: pytest.MonkeyPatch) -> None:
    """Nothing is made anew as long as a coordinator of this lineage goes on calling (3.4)."""
    hear = PartitionMerge.hear

    def careless(self: PartitionMerge, rival: Rival) -> None:
        self._kin_since_s.clear()
        hear(self, rival)

    patch.setattr(PartitionMerge, "hear", careless)


def word_alone(patch: pytest.MonkeyPatch) -> None:
    """A stage is put off as often as somebody says that it leads a swarm that wins (3.4)."""
    patch.setattr(PartitionMerge, "_was_refuted", lambda self, rival: False)


def word_of_who_replaces(patch: pytest.MonkeyPatch) -> None:
    """A member that leaves is let go though whoever replaces it has just died (Leaving)."""
    release = Coordinator.release

    async def nobody(participant: Participant) -> None:
        del participant

    async def careless(self: Coordinator, sender: Endpoint) -> None:
        patch.setattr(self.roster, "ask", nobody)
        await release(self, sender)

    patch.setattr(Coordinator, "release", careless)


def whatever_the_way(patch: pytest.MonkeyPatch) -> None:
    """A stage is brought back from a shadow or a copy of the ends while members of a rival, that
    may hold it, are on their way (3.4).
    """
    waits = Assignment._waits_for_others

    def careless(self: Assignment, action: BuildAction) -> bool:
        return isinstance(action, (Merge, CopyNeighbour, Fresh)) and waits(self, action)

    patch.setattr(Assignment, "_waits_for_others", careless)


def stage_on_a_disk_that_is_away(patch: pytest.MonkeyPatch) -> None:
    """A stage of the snapshots that a run goes on from is made anew where its holder has just died
    once more.
    """
    patch.setattr(Leadership, "is_on_whole_set", False)


def nothing_anew_before_giving_way(patch: pytest.MonkeyPatch) -> None:
    """A stage is made anew by a coordinator that is about to give way (3.4)."""
    expects = PartitionMerge.expects_members

    def careless(self: PartitionMerge) -> bool:
        since_s, self.yields_since_s = self.yields_since_s, math.inf
        try:
            return expects(self)
        finally:
            self.yields_since_s = since_s

    patch.setattr(PartitionMerge, "expects_members", careless)


def higher_term_of_a_lineage(patch: pytest.MonkeyPatch) -> None:
    """Of two coordinators of one lineage nobody gives way (3.4)."""
    _meets(patch, lambda self, rival: False if rival.tip.lineage == self._lead.tip().lineage else None)


def kin_by_terms_alone(patch: pytest.MonkeyPatch) -> None:
    """Of two coordinators of one lineage the higher term wins, voter or not (3.4)."""
    gives_way = PartitionMerge._gives_way_to

    def careless(self: PartitionMerge, rival: Rival, *, is_outranked: bool = True) -> bool:
        return gives_way(self, rival, is_outranked=is_outranked and rival.term > self._lead.term)

    patch.setattr(PartitionMerge, "_gives_way_to", careless)


def kin_that_takes_itself_for_a_voter(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that is no voter, and followed by none, yields to higher terms only (3.4)."""
    patch.setattr(PartitionMerge, "_has_voters", lambda self: True)


def kin_that_voters_follow(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that is no voter gives way to a lower term though voters follow it (3.4)."""
    patch.setattr(PartitionMerge, "_has_voters", lambda self: False)


def kin_whose_voters_rebuild(patch: pytest.MonkeyPatch) -> None:
    """A coordinator does not count voters that follow it and rebuild, though they say that they do
    when they are asked (3.4).
    """

    def careless(self: PartitionMerge) -> bool:
        return any(
            participant.member.peer_id in self._voters() and participant.is_heard for participant in self._roster.members()
        )

    patch.setattr(PartitionMerge, "_has_voters", careless)


def kin_that_anybody_follows(patch: pytest.MonkeyPatch) -> None:
    """A coordinator counts as of its lineage where anybody follows it that had a place: it does not
    count itself so, and both give way (3.4).
    """
    followed = PartitionMerge._is_followed

    async def careless(self: PartitionMerge, leader: Member, by: Collection[str]) -> bool:
        del by
        return await followed(self, leader, self._lead.named.keys())

    patch.setattr(PartitionMerge, "_is_followed", careless)


def strangers_that_may_end(patch: pytest.MonkeyPatch) -> None:
    """Whoever is through tells every stranger to end, whatever lineage it comes from (3.4)."""

    async def careless(self: PartitionMerge, stranger: Endpoint) -> bool:
        del self, stranger
        return True

    patch.setattr(PartitionMerge, "may_end", careless)


def office_after_a_past(patch: pytest.MonkeyPatch) -> None:
    """A coordinator fences the member that holds what counts more than what it leads, and goes on
    (3.4).
    """
    judge = Roster.judge

    async def careless(self: Roster, participant: Participant, error: CallFailed) -> None:
        if isinstance(error, Refused) and error.kind is RefusalKind.PAST:
            self.fence(participant.member, str(error))
            return
        await judge(self, participant, error)

    patch.setattr(Roster, "judge", careless)


def plan_that_did_not_come(patch: pytest.MonkeyPatch) -> None:
    """Heartbeats name nobody who is in the newest plan, also to a member which that has not reached
    (Who may say what).
    """

    def careless(self: Roster, participant: Participant) -> tuple[tuple[Member, ...], int]:
        plan = self._lead.plan
        return tuple(g.member for g in self.participants() if plan is None or plan.stage_of(g.member) is None), 0

    patch.setattr(Roster, "_newly_admitted", careless)


def builders_among_those_that_stand_by(patch: pytest.MonkeyPatch) -> None:
    """Heartbeats do not say who of those without a place in the plan builds a stage: names that
    stand by keep it from asking for that (What is looked at before anybody acts).
    """
    newly_admitted = Roster._newly_admitted
    patch.setattr(Roster, "_newly_admitted", lambda self, participant: (newly_admitted(self, participant)[0], 0))


def stranger_on_the_roster(patch: pytest.MonkeyPatch) -> None:
    """A coordinator looks beyond whom it waits for only, though these forbid its words and follow
    another one (3.4).
    """
    patch.setattr(Participant, "forbid", lambda self: None)


def look_at_once(patch: pytest.MonkeyPatch) -> None:
    """A coordinator whose words are forbidden looks beyond no sooner than usual (3.4)."""
    judge = Roster.judge

    async def careless(self: Roster, participant: Participant, error: CallFailed) -> None:
        if isinstance(error, Refused) and error.kind is RefusalKind.FORBIDDEN:
            participant.forbid()
        await judge(self, participant, error)

    patch.setattr(Roster, "judge", careless)


def stranger_that_does_not_rejoin(patch: pytest.MonkeyPatch) -> None:
    """Who will not join anew, since it is led elsewhere or leads, is not looked at (3.4)."""
    note = Roster._note_rivalry

    def careless(self: Roster, participant: Participant, refusal: Refused) -> None:
        if refusal.kind is RefusalKind.FORBIDDEN:
            note(self, participant, refusal)

    patch.setattr(Roster, "_note_rivalry", careless)


def forbidden_while_it_looks(patch: pytest.MonkeyPatch) -> None:
    """A coordinator whose words are forbidden while it looks beyond does not look again (3.4)."""
    patch.setattr(PartitionMerge, "_was_forbidden_since", lambda self, count: False)


def record_that_is_ahead(patch: pytest.MonkeyPatch) -> None:
    """A coordinator leaves its office where a member has only heard first of the record that it is
    about to decide (3.4).
    """
    patch.setattr(Leadership, "may_have_decided", lambda self, present: False)


def plan_before_a_build(patch: pytest.MonkeyPatch) -> None:
    """Who was told to build while it had still to answer an older plan is fenced for refusing that
    (3.3).
    """
    patch.setattr(broadcast, "_obeys_a_later_word", lambda failure: False)


def sums_that_overlap(patch: pytest.MonkeyPatch) -> None:
    """What a source has done in a sum that does not count is not dealt to another one (3.7)."""
    patch.setattr(rounds, "deal_elsewhere", lambda shares, missing, sums: shares)


def sums_that_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """What is redone for a source again and again, and is in no sum that it tells, is not dealt to
    another one (3.7).
    """
    patch.setattr(rounds, "REDONE_MAX", 1 << 30)


def record_before_it_is_known(patch: pytest.MonkeyPatch) -> None:
    """Who is called for, and cannot step with the last record, holds nothing before it says what it
    holds (3.3).
    """
    patch.setattr(Participant, "is_only_called_for", False)


def record_before_a_build(patch: pytest.MonkeyPatch) -> None:
    """Who could not step with a record, and has built its stage since, holds nothing once word of
    the first has come (3.3).
    """
    patch.setattr(broadcast, "_was_told_to_build", lambda participant, builds: False)
