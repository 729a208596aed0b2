"""Rules of succession, of coming back and of recovery, each with a way to take it out; see
`removals`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from swarmfree.policy import patience, recovery
from swarmfree.policy.retention import KeptCopy
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.actions import BuildAction, Copy, Stay
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import Build, Built, Claim, GetPlan, GetState, HeldSnapshot, Hello, Open, PlanAnswer
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint, Founder, Member, Position, Term
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.trainer import election, snapshot_keeper
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator import assignment as assemblies
from swarmfree.trainer.coordinator import coordinator, recovery_choice
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.broadcast import Broadcast
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.participant import Participant, Participants
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge
from swarmfree.trainer.coordinator.quorum_watch import QuorumWatch
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.election import Election, Poll
from swarmfree.trainer.incarnations import Incarnations
from swarmfree.trainer.member import catch_up, queries
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.membership import Membership
from swarmfree.trainer.recovery import builder, state_copy
from swarmfree.trainer.recovery import replay as replaying
from swarmfree.trainer.recovery.builder import Builder, Building
from swarmfree.trainer.recovery.ends_copy import EndsKeeper
from swarmfree.trainer.recovery.replay import StageReplay
from swarmfree.trainer.recovery.state_copy import StateCopy
from swarmfree.trainer.replica_state import ReplicaState


class Fitting(str):
    """A digest that is like any other one."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


# ---- taking the lead -----------------------------------------------------------------------------


def wait_before_forcing(patch: pytest.MonkeyPatch) -> None:
    """A candidate without a majority goes on at once, forced (3.2)."""
    start = Election.__init__

    def hasty(self: Election, context: Context, stage_member: StageMember) -> None:
        timing = dataclasses.replace(context.manifest.timing, split_wait_s=0.001)
        start(self, dataclasses.replace(context, manifest=dataclasses.replace(context.manifest, timing=timing)), stage_member)

    patch.setattr(Election, "__init__", hasty)


def asking_before_claiming(patch: pytest.MonkeyPatch) -> None:
    """A candidate claims without having asked whether it would be followed (3.2)."""
    ask = Election._ask

    async def careless(self: Election, term: Any, plan: Any, *, only_asking: bool) -> Poll:
        return await ask(self, term, plan, only_asking=False)

    patch.setattr(Election, "_ask", careless)


def force_by_the_answers_to_a_claim(patch: pytest.MonkeyPatch) -> None:
    """A candidate goes on without a majority where those that it asked hold every stage, whoever of
    them promises then (3.2).
    """
    ask, may_force, asked = Election._ask, Election._may_force, list[Poll]()

    async def asks(self: Election, term: Any, plan: Any, *, only_asking: bool) -> Poll:
        poll = await ask(self, term, plan, only_asking=only_asking)
        asked[:] = [poll] if only_asking else asked
        return poll

    patch.setattr(Election, "_ask", asks)

    def careless(self: Election, waited_s: float, plan: Any, poll: Poll, *, is_followed: bool = False) -> bool:
        return may_force(self, waited_s, plan, asked[0])

    patch.setattr(Election, "_may_force", careless)


def no_force_before_a_pause(patch: pytest.MonkeyPatch) -> None:
    """A candidate goes on by force though the organiser wants a pause (Stopped by will)."""

    async def careless(context: Context, replica_state: ReplicaState) -> bool:
        del context, replica_state
        return False

    patch.setattr(election, "is_to_pause", careless)


def no_force_beside_a_later_genesis(patch: pytest.MonkeyPatch) -> None:
    """A candidate goes on by force as soon as ever, though a genesis names what comes later (When
    all have died).
    """

    async def careless(self: Election, term: Any, waited_s: float, plan: Any, poll: Poll, *, is_followed: bool = False) -> bool:
        del term
        may_force = self._may_force(waited_s, plan, poll, is_followed=is_followed)
        return may_force and not await election.is_to_pause(self._context, self._stage_member.replica_state)

    patch.setattr(Election, "_forces", careless)


def proof_beside_who_cannot_be_asked(patch: pytest.MonkeyPatch) -> None:
    """The proof that others have died counts, though one of them is back and cannot be asked what
    its disk holds (3.2).
    """
    ask = Election._ask_disk

    async def careless(self: Election, poll: Poll, found: list[int], endpoint: Endpoint, *, is_back: bool) -> None:
        del is_back
        await ask(self, poll, found, endpoint, is_back=False)

    patch.setattr(Election, "_ask_disk", careless)


def force_beside_a_majority(patch: pytest.MonkeyPatch) -> None:
    """A candidate that a majority has just said that it would follow goes on by force as soon as
    one that nobody answers, where the answers to its claim are late (3.2).
    """
    may_force = Election._may_force
    patch.setattr(Election, "_may_force", lambda self, waited_s, plan, poll, **_: may_force(self, waited_s, plan, poll))


def voters_that_are_announced_now(patch: pytest.MonkeyPatch) -> None:
    """A candidate asks no voter that the plan has not got (3.2)."""

    async def careless(self: Election, poll: Poll, plan: object) -> list[Endpoint]:
        return []

    patch.setattr(Election, "_left_out", careless)


def voters_that_nobody_shows(patch: pytest.MonkeyPatch) -> None:
    """Where the directory shows nobody, voters that the plan has not got count as ended (3.2)."""
    left_out = Election._left_out

    async def careless(self: Election, poll: Poll, plan: Any) -> list[Endpoint]:
        return await left_out(self, Poll(), plan)

    patch.setattr(Election, "_left_out", careless)


def number_above_the_highest(patch: pytest.MonkeyPatch) -> None:
    """A candidate that is behind tries the next number, whatever it was told (3.2)."""
    ask = Election._ask

    async def careless(self: Election, term: Any, plan: Any, *, only_asking: bool) -> Poll:
        poll = await ask(self, term, plan, only_asking=only_asking)
        poll.behind = min(poll.behind, 1)
        return poll

    patch.setattr(Election, "_ask", careless)


def hope_for_a_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Whoever has lost its coordinator goes over to a lineage forced sooner before it could have
    claimed alone (3.4).
    """

    def hopes(self: Election) -> bool:
        return self._is_led() or self._context.now_s() - self._alone_since_s < self._context.timing.split_wait_s

    patch.setattr(Election, "hopes", property(hopes))


def claim_over_who_gives_way(patch: pytest.MonkeyPatch) -> None:
    """Members of a lineage that gives way stop whoever leads the one that it gives way to (3.4)."""
    patch.setattr(Election, "note_outranked", lambda self, coordinator: None)


def refusal_of_who_gives_way(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that gives way says no more than that it has no place yet (3.4)."""
    patch.setattr(coordinator, "Refused", lambda _, detail, number: Refused(RefusalKind.NOT_YET, detail))


def coordinator_that_gives_way(patch: pytest.MonkeyPatch) -> None:
    """Who was told once that a coordinator gives way claims over whatever others hear (3.4)."""

    async def careless(self: Election, endpoint: object, number: int) -> bool:
        del endpoint, number
        return bool(self._outranked)

    patch.setattr(Election, "_hears_who_gives_way", careless)


def word_of_long_ago(patch: pytest.MonkeyPatch) -> None:
    """What was said to a peer before it was led by another one counts after that (3.4)."""
    begin = Election.__init__

    class Kept(set[Term]):
        def clear(self) -> None:
            return

    def careless(self: Election, *args: Any) -> None:
        begin(self, *args)
        self._outranked = Kept()

    patch.setattr(Election, "__init__", careless)


def word_of_an_earlier_term(patch: pytest.MonkeyPatch) -> None:
    """What a coordinator has said counts in every later term of that one (3.4)."""
    ask = Election._hears_who_gives_way

    async def careless(self: Election, endpoint: Endpoint, number: int) -> bool:
        del number
        return any([await ask(self, endpoint, term.number) for term in self._outranked])

    patch.setattr(Election, "_hears_who_gives_way", careless)


def hope_of_who_is_stopped(patch: pytest.MonkeyPatch) -> None:
    """A candidate that others stop, who hear a coordinator which it has yet to ask, hopes no more
    for one of its own (3.4).
    """

    def hopes(self: Election) -> bool:
        return self._is_led() or not self._has_waited

    patch.setattr(Election, "hopes", property(hopes))


def hope_of_who_is_stopped_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A candidate that others stop hopes for one of its own for as long as they do (3.4)."""

    def hopes(self: Election) -> bool:
        return self._is_led() or self._is_stopped or not self._has_waited

    patch.setattr(Election, "hopes", property(hopes))


def hope_without_a_plan(patch: pytest.MonkeyPatch) -> None:
    """Whoever has no plan hopes for its lineage for ever, which it cannot lead (3.4)."""
    campaign = Election.campaign

    async def careless(self: Election) -> Takeover | None:
        if self._stage_member.replica_state.known_plan is None:
            return None
        return await campaign(self)

    patch.setattr(Election, "campaign", careless)


def hope_after_a_place(patch: pytest.MonkeyPatch) -> None:
    """Who has got a place in its own lineage, and is put out of it at once, says hello to another
    one as if it had heard nobody (3.4).
    """

    def careless(self: Election) -> None:
        del self

    patch.setattr(Election, "note_place", careless)


def word_that_was_lost(patch: pytest.MonkeyPatch) -> None:
    """A candidate asks the last coordinator once, whether or not that hears it (3.2)."""
    ask = Election._ask_one

    async def careless(self: Election, poll: Poll, endpoint: Endpoint, claim: Claim) -> None:
        await ask(self, poll, endpoint, claim)
        poll.silent = False

    patch.setattr(Election, "_ask_one", careless)


def plan_that_was_left(patch: pytest.MonkeyPatch) -> None:
    """Who was told to join a coordinator claims no more, also where that one has died since, and
    all that it knows were told so (3.4).
    """
    patch.setattr(ReplicaState, "left_plan", property(lambda self: None, lambda self, plan: None), raising=False)


def wait_for_the_successor(patch: pytest.MonkeyPatch) -> None:
    """Who was told to join a coordinator claims by the plan that it has left as soon as it does not
    find that one (3.4).
    """
    campaign = Election.campaign

    async def hasty(self: Election) -> Takeover | None:
        state = self._stage_member.replica_state
        if state.known_plan is None and state.left_plan is not None:
            state.known_plan = state.left_plan
        return await campaign(self)

    patch.setattr(Election, "campaign", hasty)


def term_that_was_renounced(patch: pytest.MonkeyPatch) -> None:
    """Who was told to rejoin, and claims again, asks for a term in which it may not vote (3.4)."""

    def careless(self: Election) -> int:
        promised = self._stage_member.replica_state.promised
        return (promised.term.number if promised is not None else 0) + 1

    patch.setattr(Election, "_next_number", careless)


def term_of_the_one_to_join(patch: pytest.MonkeyPatch) -> None:
    """Who was told to rejoin, and has heard the coordinator that it was to follow, claims above
    that one's term alone (3.4).
    """

    def careless(self: Election) -> int:
        state = self._stage_member.replica_state
        promised = state.promised or state.promises.renounced
        return (promised.term.number if promised is not None else 0) + 1

    patch.setattr(Election, "_next_number", careless)


def plan_of_another_state(patch: pytest.MonkeyPatch) -> None:
    """Who has built another state since forgets who was told to rejoin beside it, and claims
    nothing (3.4).
    """
    install = ReplicaState.install

    def careless(self: ReplicaState, *args: Any, **kwargs: Any) -> None:
        install(self, *args, **kwargs)
        self.left_plan = None

    patch.setattr(ReplicaState, "install", careless)


def patience_of_who_gave_up(patch: pytest.MonkeyPatch) -> None:
    """Who has given up what it held claims as soon as who has not (3.4)."""
    patch.setattr(election, "FORCED_WITHOUT_ALL", 1)


def places_that_were_left(patch: pytest.MonkeyPatch) -> None:
    """A successor gives the places of the plan that it had left, though it has built another state
    since (3.4).
    """
    patch.setattr(Takeover, "places", property(lambda self: self.plan))


def plan_learned_since(patch: pytest.MonkeyPatch) -> None:
    """Who has copied its stage, and knows the plan of those that it was to join, leads nobody, as
    that does not name it (3.4).
    """
    may_lead = election.may_lead
    patch.setattr(election, "may_lead", lambda *known, has_left, **others: may_lead(*known, **others, has_left=False))


def snapshot_from_after_a_lead(patch: pytest.MonkeyPatch) -> None:
    """Whoever is back from its disk takes a place of one that leads from before that (When all have
    died).
    """

    async def careless(self: Membership, endpoint: Endpoint) -> None:
        del self, endpoint

    patch.setattr(Membership, "_require_ahead", careless)


def term_of_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Whoever is back from its disk passes over a later founder's run, which goes on from an older
    set (When all have died).
    """
    has_left_behind = ReplicaState.has_left_behind

    def careless(self: ReplicaState, answer: PlanAnswer) -> bool:
        if answer.plan is None:
            return has_left_behind(self, answer)
        first = dataclasses.replace(answer.plan.position, term=dataclasses.replace(answer.plan.position.term, number=1))
        return has_left_behind(self, dataclasses.replace(answer, plan=dataclasses.replace(answer.plan, position=first)))

    patch.setattr(ReplicaState, "has_left_behind", careless)


def patience_of_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Whoever is back from its disk passes over one that leads from before that without end (When
    all have died).
    """
    require_ahead = Membership._require_ahead

    async def careless(self: Membership, endpoint: Endpoint) -> None:
        self._passes_over_since_s = math.inf
        await require_ahead(self, endpoint)

    patch.setattr(Membership, "_require_ahead", careless)


def records_of_who_waits(patch: pytest.MonkeyPatch) -> None:
    """Whoever is back from its disk passes over a coordinator that has stepped with the record of
    its plan, and waits for a lost stage before it makes the next one (When all have died).
    """
    has_left_behind = ReplicaState.has_left_behind
    patch.setattr(
        ReplicaState, "has_left_behind", lambda self, answer: has_left_behind(self, dataclasses.replace(answer, records=0))
    )


def word_of_who_slept(patch: pytest.MonkeyPatch) -> None:
    """Whoever is back from its disk tells nobody whom it passes over: the bootstrap node names
    nobody while that leads (When all have died).
    """
    patch.setattr(ReplicaState, "pass_over", lambda *_: None)


def lead_of_who_slept(patch: pytest.MonkeyPatch) -> None:
    """Who is named to go on from snapshots gives way to one that leads from before them (When all
    have died).
    """
    who_holds = Membership._who_holds

    async def careless(
        self: Membership, founder: Founder, others: Sequence[Announcement]
    ) -> dict[int, tuple[Endpoint, ...]] | None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(ReplicaState, "has_left_behind", lambda *_: False)
            return await who_holds(self, founder, others)

    patch.setattr(Membership, "_who_holds", careless)


def known_as_it_left(patch: pytest.MonkeyPatch) -> None:
    """Of those that were told to rejoin beside it, who has built another state believes nobody that
    gives it a place (3.4).
    """
    is_believed = Membership._is_believed

    async def careless(self: Membership, endpoint: Endpoint) -> bool:
        state, left = self._stage_member.replica_state, self._stage_member.replica_state.left_plan
        state.left_plan = None
        try:
            return await is_believed(self, endpoint)
        finally:
            state.left_plan = left

    patch.setattr(Membership, "_is_believed", careless)


def told_to_rejoin_as_well(patch: pytest.MonkeyPatch) -> None:
    """A candidate asks nobody that was told to rejoin beside it, and that no newer plan names
    (3.4).
    """
    ask = Election._ask

    async def careless(self: Election, term: Any, plan: Any, *, only_asking: bool) -> Poll:
        state, left = self._stage_member.replica_state, self._stage_member.replica_state.left_plan
        state.left_plan = None
        try:
            return await ask(self, term, plan, only_asking=only_asking)
        finally:
            state.left_plan = left

    patch.setattr(Election, "_ask", careless)


def first_part_of_a_copy(patch: pytest.MonkeyPatch) -> None:
    """Who was told to rejoin gives up what it holds for a copy of which nothing has come (3.10)."""
    begin = Builder._begin_copy

    async def careless(self: Builder, building: Any, donors: Any) -> None:
        await self._stage_member.let_go()
        await begin(self, building, donors)

    patch.setattr(Builder, "_begin_copy", careless)


def older_state_of_a_copier(patch: pytest.MonkeyPatch) -> None:
    """Who holds an older state gives that up for a copy of which nothing has come (3.10)."""
    begin = Builder._begin_copy

    async def careless(self: Builder, building: Any, donors: Any) -> None:
        if self._stage_member.replica_state.left_plan is None:
            await self._stage_member.let_go()
        await begin(self, building, donors)

    patch.setattr(Builder, "_begin_copy", careless)


def candidate_without_a_stage(patch: pytest.MonkeyPatch) -> None:
    """Who has let its stage go claims nothing, though nobody else is left, or can step to where it
    stood (3.2).
    """
    patch.setattr(Membership, "_may_claim", property(lambda self: self._stage_member.replica_state.stage != ABSENT))


def lineage_of_whoever_rebuilt(patch: pytest.MonkeyPatch) -> None:
    """A member that cannot vouch for its state goes over to any lineage, and is led there when its
    own chooses a coordinator (3.4).
    """
    hello = Membership.hello

    def careless(self: Membership) -> Hello:
        said = hello(self)
        return (
            said if self._stage_member.replica_state.is_committed_state else Hello(said.can_feed, said.standby, said.corpus_hash)
        )

    patch.setattr(Membership, "hello", careless)


def voucher_of_a_state(patch: pytest.MonkeyPatch) -> None:
    """What a peer holds counts, though it cannot vouch for it, where its lineage is the one that is
    led (3.3).
    """
    hello = Assignment.hello

    def careless(self: Assignment, sender: Endpoint, said: Any) -> Any:
        place, participant = hello(self, sender, said), self._roster.get(sender.member)
        if participant is not None:
            participant.is_ours = self._lead.past.get(said.iteration) == said.lineage
        return place

    patch.setattr(Assignment, "hello", careless)


def order_of_candidates(patch: pytest.MonkeyPatch) -> None:
    """Everybody claims at once (3.2)."""
    patch.setattr(election, "rank", lambda plan, electorate, me, gone: 0)


def catching_up_before_leading(patch: pytest.MonkeyPatch) -> None:
    """A candidate leads from where it is, though others have committed more (3.2)."""

    async def careless(self: Election, poll: Poll) -> bool:
        return True

    patch.setattr(Election, "_catch_up", careless)


def plan_of_the_latest_iteration(patch: pytest.MonkeyPatch) -> None:
    """Of two plans the one of the later term counts, also where its iteration was decided before
    (3.2).
    """
    patch.setattr(election, "newest_plan", lambda plans: max(filter(None, plans), key=lambda plan: plan.position, default=None))


def word_of_who_is_led(patch: pytest.MonkeyPatch) -> None:
    """A candidate that was told of a coordinator asks others for a place first, and waits for each
    that does not answer (3.2).
    """
    campaign = Election.campaign

    async def careless(self: Election) -> Takeover | None:
        try:
            return await campaign(self)
        finally:
            self.led = ()

    patch.setattr(Election, "campaign", careless)


def plan_of_those_who_promise(patch: pytest.MonkeyPatch) -> None:
    """A candidate forgets the newer plan that others told it, and refuses whom that one names
    (3.2).
    """
    campaign = Election.campaign

    async def careless(self: Election) -> Takeover | None:
        state = self._stage_member.replica_state
        plan = state.known_plan
        try:
            return await campaign(self)
        finally:
            state.known_plan = plan

    patch.setattr(Election, "campaign", careless)


def coordinator_of_others(patch: pytest.MonkeyPatch) -> None:
    """A candidate that may go on forced does so, though others hear the coordinator (3.2)."""
    ask = Election._ask

    async def careless(self: Election, term: Any, plan: Any, *, only_asking: bool) -> Poll:
        poll = await ask(self, term, plan, only_asking=only_asking)
        poll.fresh = []
        return poll

    patch.setattr(Election, "_ask", careless)


def word_of_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    """That the coordinator itself refuses a candidate is like any other refusal (3.2)."""
    ask = Election._ask_one

    async def careless(self: Election, poll: Poll, endpoint: Endpoint, claim: Any) -> None:
        await ask(self, poll, endpoint, claim)
        poll.is_led = False

    patch.setattr(Election, "_ask_one", careless)


def promise_of_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Whoever waits for its rank goes on waiting, though the last coordinator has promised a later
    term (3.2).
    """
    ask = Election._ask_one

    async def careless(self: Election, poll: Poll, endpoint: Endpoint, claim: Any) -> None:
        await ask(self, poll, endpoint, claim)
        poll.behind = 0

    patch.setattr(Election, "_ask_one", careless)


def majority_after_catching_up(patch: pytest.MonkeyPatch) -> None:
    """A claim's majority is one of those who decided before the candidate caught up (3.2)."""
    electorate, first = Election._electorate, dict[int, Any]()

    def careless(self: Election, plan: Any) -> tuple[Member, ...]:
        found: tuple[Member, ...] = first.setdefault(id(self), electorate(self, plan))
        return found

    patch.setattr(Election, "_electorate", careless)


def later_life(patch: pytest.MonkeyPatch) -> None:
    """Of two lives of a peer the one that was heard of last is the later one (3.3)."""

    def careless(self: Incarnations, members: Iterable[Member]) -> None:
        self._latest.update({member.peer_id: member for member in members})

    patch.setattr(Incarnations, "hear", careless)


# ---- coming back ---------------------------------------------------------------------------------


def state_over_rebuild(patch: pytest.MonkeyPatch) -> None:
    """What was rebuilt stays, also when the lost state comes back before anything was sealed
    (3.3).
    """
    welcome = Assignment._welcome_back

    def careless(self: Assignment, sender: Endpoint, hello: Any) -> Participant | None:
        sealing, self._lead.is_sealing = self._lead.is_sealing, True
        try:
            return welcome(self, sender, hello)
        finally:
            self._lead.is_sealing = sealing

    patch.setattr(Assignment, "_welcome_back", careless)


def no_way_back_from_a_seal(patch: pytest.MonkeyPatch) -> None:
    """The lost state replaces what was rebuilt also after the first Seal (3.3)."""
    patch.setattr(Leadership, "is_sealing", property(lambda self: False, lambda self, value: None), raising=False)


def dispute_is_over(patch: pytest.MonkeyPatch) -> None:
    """Of two states that differ, the one that was dropped comes back like one that was lost
    (3.6).
    """
    welcome = Assignment._welcome_back

    def careless(self: Assignment, sender: Endpoint, hello: Any) -> Participant | None:
        self._rebuilt = {stage: dataclasses.replace(rebuilt, disputes=0) for stage, rebuilt in self._rebuilt.items()}
        return welcome(self, sender, hello)

    patch.setattr(Assignment, "_welcome_back", careless)


def lineage_at_readmission(patch: pytest.MonkeyPatch) -> None:
    """Whoever was fenced comes back with whatever it holds (3.3)."""
    hello = Assignment.hello

    def careless(self: Assignment, sender: Endpoint, said: Any) -> Any:
        self._lead.past = {**self._lead.past, said.iteration: said.lineage}
        return hello(self, sender, said)

    patch.setattr(Assignment, "hello", careless)


def bar_at_readmission(patch: pytest.MonkeyPatch) -> None:
    """Who cannot work with its siblings is a member again as soon as it says hello (3.6)."""
    patch.setattr(Roster, "is_barred", lambda self, member: False)


def state_of_a_standby(patch: pytest.MonkeyPatch) -> None:
    """What a standby holds of a lost stage counts for nothing (3.3)."""
    hello = Assignment.hello

    def careless(self: Assignment, sender: Endpoint, said: Any) -> Any:
        place = hello(self, sender, said)
        participant = self._roster.get(sender.member)
        assert participant is not None
        participant.is_ours = participant.is_ours and participant.built
        return place

    patch.setattr(Assignment, "hello", careless)


def state_of_a_joiner(patch: pytest.MonkeyPatch) -> None:
    """What a newcomer holds of a lost stage counts for nothing once it was given another place
    (3.3).
    """
    place = Assignment._place_holders

    def careless(self: Assignment) -> None:
        there = [one for one in self._roster.participants() if one.stage == ABSENT or one.built]
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._roster, "participants", lambda: tuple(there))
            place(self)

    patch.setattr(Assignment, "_place_holders", careless)


def base_of_who_was_told_to_rejoin(patch: pytest.MonkeyPatch) -> None:
    """Who has dropped its plan tells of no base, also of the one that the state it holds was opened
    in (3.3).
    """
    patch.setattr(ReplicaState, "told_base", property(lambda self: self.base))


def base_of_a_newcomer(patch: pytest.MonkeyPatch) -> None:
    """What a newcomer cannot vouch for itself counts for nothing, also where it has worked on what
    was decided (3.3).
    """
    patch.setattr(Leadership, "bases", ())


def places_of_holders(patch: pytest.MonkeyPatch) -> None:
    """All that stand by with the state of a lost stage get a place there (3.3)."""

    def careless(self: Assignment) -> None:
        for participant in self._roster.participants():
            held = participant.hello.stage if participant.stage == ABSENT else ABSENT
            if held != ABSENT and participant.held(held) >= 0 and not self._roster.holders(held):
                self._place(participant, held)

    patch.setattr(Assignment, "_place_holders", careless)


def word_of_a_standby(patch: pytest.MonkeyPatch) -> None:
    """A standby's state counts only once it has answered a heartbeat (3.3)."""
    use = Assignment._use_standbys

    def careless(self: Assignment) -> None:
        for participant in self._roster.participants():
            participant.is_ours = participant.is_ours and participant.answer is not None
        use(self)

    patch.setattr(Assignment, "_use_standbys", careless)


def record_for_who_is_back(patch: pytest.MonkeyPatch) -> None:
    """Who comes back one record behind waits for the next one, which it cannot step with (3.3)."""
    patch.setattr(Assignment, "_bring_up", lambda self, participant, record: asyncio.sleep(0))


def second_word_of_a_barred_one(patch: pytest.MonkeyPatch) -> None:
    """Who is barred tells what it holds with its first hello, or never (3.6)."""
    hello = Assignment.hello

    def careless(self: Assignment, sender: Endpoint, said: Any) -> Any:
        participant = self._roster.get(sender.member)
        before = participant is not None and (participant.hello, participant.is_ours)
        place = hello(self, sender, said)
        if participant is not None and before and self._roster.is_barred(sender.member):
            participant.hello, participant.is_ours = before
        return place

    patch.setattr(Assignment, "hello", careless)


def place_of_a_feeder(patch: pytest.MonkeyPatch) -> None:
    """Who can feed, and serves another stage alone, stays there when stage 0 is lost (A run's
    life).
    """
    move_to = Assignment._move_to

    def careless(self: Assignment, stage: int) -> None:
        able = [participant for participant in self._roster.participants() if self._may_feed(participant.hello)]
        if stage != ENDS_STAGE or any(len(self._roster.holders(participant.stage)) > 1 for participant in able):
            move_to(self, stage)

    patch.setattr(Assignment, "_move_to", careless)


def standby_for_a_feeder(patch: pytest.MonkeyPatch) -> None:
    """Only a spare replica copies the stage of whoever can feed, and no standby (A run's life)."""
    move_to = Assignment._move_to

    def careless(self: Assignment, stage: int) -> None:
        standbys = [participant for participant in self._roster.participants() if participant.stage == ABSENT]
        for participant in standbys:
            participant.leaving = True
        move_to(self, stage)
        for participant in standbys:
            participant.leaving = False

    patch.setattr(Assignment, "_move_to", careless)


def place_of_a_coordinator(patch: pytest.MonkeyPatch) -> None:
    """A coordinator stays where it is, although nobody else can feed (A run's life)."""
    move_to = Assignment._move_to

    def careless(self: Assignment, stage: int) -> None:
        own = self._roster.get(self._context.me)
        if own is None or len(self._roster.holders(own.stage)) == 1:
            move_to(self, stage)

    patch.setattr(Assignment, "_move_to", careless)


def word_of_a_feeder(patch: pytest.MonkeyPatch) -> None:
    """A successor takes those whom it inherits for peers that cannot feed (A run's life)."""

    async def careless(self: Assignment) -> None:
        return

    patch.setattr(Assignment, "_hear_who_can_feed", careless)


def lineage_of_a_shadow(patch: pytest.MonkeyPatch) -> None:
    """A shadow is used whatever lineage it stands on, and however far ahead it is (3.4)."""
    shadows = RecoveryChoice.shadows

    def careless(self: RecoveryChoice, there: Participants) -> Any:
        present, past = self._lead.present, self._lead.past
        self._lead.present, self._lead.past = dataclasses.replace(present, iteration=1 << 30), {}
        try:
            return shadows(self, there)
        finally:
            self._lead.present, self._lead.past = present, past

    patch.setattr(RecoveryChoice, "shadows", careless)


def rate_after_a_merge(patch: pytest.MonkeyPatch) -> None:
    """A merged stage goes on at the rate of the others (CheckFree, section 4)."""
    rebuilt = assemblies.Rebuilt
    patch.setattr(assemblies, "Rebuilt", lambda stage, digest, is_scaled, *more: rebuilt(stage, digest, False, *more))


def steps_of_a_merge(patch: pytest.MonkeyPatch) -> None:
    """A merged stage counts the steps of the one that was lost, though its moments are zero
    (CheckFree, section 4).
    """
    patch.setattr(assemblies, "_steps_held", lambda action: assemblies.ABSENT)


def hello_once_more(patch: pytest.MonkeyPatch) -> None:
    """What a standby could not vouch for when it said hello, it never tells (3.3)."""
    patch.setattr(Membership, "_is_unknown", property(lambda self: False, lambda self, value: None), raising=False)


def founding_once(patch: pytest.MonkeyPatch) -> None:
    """A founder that was started again founds the run once more, whatever it heard and read of the
    run before (3.1).
    """
    found = Membership._found

    async def careless(self: Membership, announced: Sequence[Announcement]) -> bool:
        self._are_led = self._has_begun = False
        return await found(self, announced)

    patch.setattr(Membership, "_found", careless)


def copies_of_older_states(patch: pytest.MonkeyPatch) -> None:
    """What a newcomer has copied counts, whatever its donor was told meanwhile (3.3)."""
    patch.setattr(Assignment, "_void_joins", lambda self, stage, donor=None: None)


def copies_from_a_builder(patch: pytest.MonkeyPatch) -> None:
    """A copy counts that was taken from who then built the lost stage, before that one's answer
    (3.3).
    """
    void = Assignment._void_joins
    patch.setattr(Assignment, "_void_joins", lambda self, stage, donor=None: None if donor is not None else void(self, stage))


def time_for_a_keeper(patch: pytest.MonkeyPatch) -> None:
    """The ends are drawn anew as soon as the last keeper of a copy is silent (3.10)."""
    patch.setattr(Assignment, "_waits_for_a_keeper", lambda self, action: False)


def copies_for_a_late_builder(patch: pytest.MonkeyPatch) -> None:
    """Nobody is asked for copies of the ends where their builder came while members were brought up
    (3.10).
    """
    bring_up, kept, there = Broadcast.bring_up, assemblies.kept_copies, set[Member]()

    async def noting(self: Broadcast, participants: Sequence[Participant], record: Record) -> None:
        there.update(participant.member for participant in self._roster.participants())
        await bring_up(self, participants, record)

    async def careless(context: Context, roster: Roster, iteration: int, past: Mapping[int, str]) -> tuple[KeptCopy, ...]:
        is_known = any(participant.member in there for participant in roster.of_stage(ENDS_STAGE))
        return await kept(context, roster, iteration, past) if is_known else ()

    patch.setattr(Broadcast, "bring_up", noting)
    patch.setattr(assemblies, "kept_copies", careless)


def copies_begun_again(patch: pytest.MonkeyPatch) -> None:
    """A newcomer whose copy came to nothing waits until stages are filled again (3.10)."""
    join = Assignment._join

    async def careless(self: Assignment, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "start_joins", lambda: None)
            await join(self, *args)

    patch.setattr(Assignment, "_join", careless)


def back_during_a_build(patch: pytest.MonkeyPatch) -> None:
    """What was built counts also where a replica came back meanwhile (3.3)."""
    run = Assignment._build

    async def careless(self: Assignment, participant: Participant, *args: Any, **kwargs: Any) -> None:
        holders = Roster.holders
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Roster, "holders", lambda roster, stage: tuple(g for g in holders(roster, stage) if g is participant))
            await run(self, participant, *args, **kwargs)

    patch.setattr(Assignment, "_build", careless)


def own_state_before_a_merge(patch: pytest.MonkeyPatch) -> None:
    """A builder that holds an older state of the lost stage throws it away (3.10)."""
    for module in (patience, assemblies):
        patch.setattr(module, "or_stay", lambda action, held, present: action)


def holders_that_can_stay(patch: pytest.MonkeyPatch) -> None:
    """Who could not keep its older state of the lost stage counts as a holder still, and is asked
    before another one that has it, too (3.3).
    """
    patch.setattr(assemblies, "_kept", lambda participant, stage: participant.held(stage))


def word_of_a_copy(patch: pytest.MonkeyPatch) -> None:
    """What a newcomer has copied counts by the answer to the Build alone (3.3)."""
    begin = Participant.begin_build

    def careless(self: Participant, *, keeps: bool = False, copies: int = ABSENT) -> int:
        del copies
        return begin(self, keeps=keeps)

    patch.setattr(Participant, "begin_build", careless)


def state_before_a_copy(patch: pytest.MonkeyPatch) -> None:
    """A state of which a newcomer told before it began to copy counts as what it has copied."""
    begin = Participant.begin_build

    def careless(self: Participant, *, keeps: bool = False, copies: int = ABSENT) -> int:
        number = begin(self, keeps=keeps, copies=copies)
        self.is_emptied = True
        return number

    patch.setattr(Participant, "begin_build", careless)


def build_that_was_overtaken(patch: pytest.MonkeyPatch) -> None:
    """Who does not answer to a build is fenced, whatever it was told since."""

    async def careless(self: Assignment, participant: Participant, number: int, error: CallFailed) -> None:
        del number
        self._roster.fence(participant.member, str(error))

    patch.setattr(Assignment, "_unanswered", careless)


def patience_for_what_is_held(patch: pytest.MonkeyPatch) -> None:
    """A silent holder of an old state is waited for as one of the present state is."""
    usual = patience.patience_s

    def careless(*asked: Any, held: int, is_over: bool = False) -> float:
        del held
        return usual(*asked, is_over=is_over)

    patch.setattr(patience, "patience_s", careless)


def rebuild_put_off_but_for_a_while(patch: pytest.MonkeyPatch) -> None:
    """Rivals that call in turn put a rebuild off for ever."""
    patch.setattr(Assignment, "_waits_for_kin", lambda self, stage: self._partition_merge.expects_members())


def copies_of_who_is_silent(patch: pytest.MonkeyPatch) -> None:
    """A copy that comes to nothing is its copier's fault, also where nobody hears its donor."""
    patch.setattr(Assignment, "_is_of_a_donor", lambda self, action, refusal: False)


def second_look_after_all_waits(patch: pytest.MonkeyPatch) -> None:
    """A stage that has been put off for long enough is made anew between two looks at a rival."""

    def careless(self: Assignment, stage: int) -> bool:
        now_s, merge = self._context.now_s(), self._partition_merge
        return merge.expects_members() and now_s - self._put_off_s.setdefault(stage, now_s) < merge.expects_at_most_s

    patch.setattr(Assignment, "_waits_for_kin", careless)


def builder_that_may_hold_its_stage(patch: pytest.MonkeyPatch) -> None:
    """Who does not answer to a build is fenced, and called for by nobody, also where it is called
    for already.
    """

    async def careless(self: Assignment, participant: Participant, number: int, error: CallFailed) -> None:
        if participant.builds == number:
            self._roster.fence(participant.member, str(error))

    patch.setattr(Assignment, "_unanswered", careless)


def own_state_before_a_copy(patch: pytest.MonkeyPatch) -> None:
    """Who holds an older state of its stage gives it up for a copy of one that is only called for
    (3.3).
    """
    patch.setattr(assemblies, "_may_be_the_last", lambda participant, holders: False)


def least_wait(patch: pytest.MonkeyPatch) -> None:
    """A silent peer is waited for no longer than what it holds is worth (3.2)."""

    def careless(action: Any, present: int, iteration_s: float, timing: Any, **_: object) -> float:
        return min(timing.join_wait_s, patience.iterations_lost(action, present) * iteration_s)

    for module in (patience, recovery_choice):
        patch.setattr(module, "patience_s", careless)


def wait_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """After the last iteration a silent holder is given up as soon as in training (3.2)."""
    usual = patience.patience_s

    def careless(action: Any, present: int, iteration_s: float, timing: Any, **_: object) -> float:
        return usual(action, present, iteration_s, timing)

    for module in (patience, recovery_choice):
        patch.setattr(module, "patience_s", careless)


def whole_logs(patch: pytest.MonkeyPatch) -> None:
    """A replay is begun with whatever is left of the logs (3.10)."""
    replay = recovery._replay

    def careless(stage: int, replicas: Any, record: Any, shadows: Any, logs: Any) -> Any:
        since = dict.fromkeys((e.member for members in replicas for e in members), 0)
        return replay(stage, replicas, record, shadows, dataclasses.replace(logs, since=since))

    patch.setattr(recovery, "_replay", careless)


def same_depth(patch: pytest.MonkeyPatch) -> None:
    """A block is made from the donor's block of the same number (CheckFree, section 4)."""
    patch.setattr(builder, "donor_block", lambda block, blocks, donor_blocks: min(block, donor_blocks - 1))


# ---- building ------------------------------------------------------------------------------------


def past_with_a_build(patch: pytest.MonkeyPatch) -> None:
    """Whoever builds a state learns no lineage from before it (3.10)."""
    install = ReplicaState.install
    patch.setattr(
        ReplicaState,
        "install",
        lambda self, stage, iteration, lineage, record, _=None: install(self, stage, iteration, lineage, record),
    )


def state_that_stays(patch: pytest.MonkeyPatch) -> None:
    """A member that is to keep its state says yes whatever it holds (3.10)."""
    make = Builder._make

    async def careless(self: Builder, request: Any, building: Any) -> Any:
        if isinstance(request.action, Stay):
            return request.iteration, request.record
        return await make(self, request, building)

    patch.setattr(Builder, "_make", careless)


def newer_state_that_stays(patch: pytest.MonkeyPatch) -> None:
    """A member keeps its state only if that is exactly as old as its coordinator knew (3.2)."""
    patch.setattr(
        Builder,
        "_is_kept",
        lambda self, request, action: self._stage_member.replica_state.iteration == action.iteration,
    )


def state_of_any_lineage(patch: pytest.MonkeyPatch) -> None:
    """A member that is to keep its state says yes whatever lineage that belongs to (3.10)."""
    patch.setattr(Builder, "_check_lineage", lambda self, lineage, record: None)


def lineage_of_a_part(patch: pytest.MonkeyPatch) -> None:
    """A stage takes every part that a shadow has, whatever lineage that stands on, and however far
    ahead it is (3.4).
    """
    patch.setattr(Building, "goes_back_to", lambda self, iteration, lineage: True)


def decided_without_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Who holds what a majority decided, or what counts more, goes back with whoever leads the
    beginning of it, or another lineage (3.4).
    """
    patch.setattr(ReplicaState, "require_following", lambda self, *led: None)


def lineage_before_the_term(patch: pytest.MonkeyPatch) -> None:
    """Who leads the beginning of what a member holds, in a term before the one that it promised,
    hears that the term is too low, and has the member leave its lineage (3.4).
    """
    require = StageMember._require_following

    def careless(
        self: StageMember, term: Term, iteration: int, lineage: str, forced: tuple[int, ...], *, hears_another: bool
    ) -> None:
        promised = self.replica_state.promised
        if promised is None or term > promised.term:
            require(self, term, iteration, lineage, forced, hears_another=hears_another)

    patch.setattr(StageMember, "_require_following", careless)


def hope_that_was_given_up(patch: pytest.MonkeyPatch) -> None:
    """Who said hello as one that hopes for its lineage no more refuses all the same to build
    another one's state (3.4).
    """
    patch.setattr(ReplicaState, "has_given_up", property(lambda self: False, lambda self, value: None), raising=False)


def state_of_a_leaver(patch: pytest.MonkeyPatch) -> None:
    """What a member holds that is about to leave counts as lost as soon as it cannot step (3.2)."""
    patch.setattr(assemblies, "_may_build", lambda participant, stage: not participant.leaving)


def donor_on_its_own_side(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks a donor that gives nothing, and could not be reached, whom it follows (3.4)."""

    async def blind(self: PartitionMerge, stranger: Endpoint) -> None:
        del self, stranger

    patch.setattr(PartitionMerge, "look_at", blind)


def holder_that_has_woken(patch: pytest.MonkeyPatch) -> None:
    """A stage is made anew though its last holder, which was called in vain, answers, and has only
    to notice that it has no place (3.2).
    """
    look_at = PartitionMerge.look_at

    async def careless(self: PartitionMerge, stranger: Endpoint) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_note_leaderless", lambda stranger, met: None)
            await look_at(self, stranger)

    patch.setattr(PartitionMerge, "look_at", careless)


def last_holder_on_its_own_side(patch: pytest.MonkeyPatch) -> None:
    """Nobody calls the last holder of a stage, that was waited for in vain, and may lead a side of
    its own by now (3.4).
    """

    async def blind(self: Assignment, holder: Endpoint) -> None:
        del self, holder

    patch.setattr(Assignment, "_look_for", blind)


def joiner_that_nobody_waits_for(patch: pytest.MonkeyPatch) -> None:
    """Where the last holder of a stage could not be reached, the next copy of that stage has as
    long as one from there would have, though others hold the stage by then (3.4).
    """
    build = Assignment._build

    async def hasty(self: Assignment, participant: Participant, action: Any, present: Any, *, limit_s: float | None) -> None:
        if isinstance(action, Copy) and action.stage in self._roster.out_of_reach:
            limit_s = self._context.timing.silence_s
        await build(self, participant, action, present, limit_s=limit_s)

    patch.setattr(Assignment, "_build", hasty)


def neighbour_that_was_fenced(patch: pytest.MonkeyPatch) -> None:
    """A stage that is made from neighbours waits for one that was fenced meanwhile, though it has a
    sibling (3.9).
    """
    patch.setattr(assemblies, "neighbours_of", lambda action: ())


def deposed_while_it_builds(patch: pytest.MonkeyPatch) -> None:
    """Who leads no longer waits for what it has had built (3.4)."""
    is_outdated = Assignment._is_outdated
    patch.setattr(Assignment, "_is_outdated", lambda self, action: not self._roster.is_deposed and is_outdated(self, action))


def deposed_before_it_builds(patch: pytest.MonkeyPatch) -> None:
    """Who is deposed while members step with the last record has a lost stage built all the same
    (3.4).
    """
    bring_up, check, brought = Broadcast.bring_up, QuorumWatch.check, list[Broadcast]()

    async def noting(self: Broadcast, participants: Sequence[Participant], record: Record) -> None:
        await bring_up(self, participants, record)
        brought.append(self)

    def careless(self: QuorumWatch, **options: Any) -> bool:
        if not brought:
            return check(self, **options)
        brought.clear()
        return True

    patch.setattr(Broadcast, "bring_up", noting)
    patch.setattr(QuorumWatch, "check", careless)


def holder_that_is_waited_for_again(patch: pytest.MonkeyPatch) -> None:
    """Whom the coordinator cannot reach, and has waited for, is waited for once more as a builder
    is told to copy from there (3.4).
    """
    ask_in_time = Assignment._ask_in_time

    async def patient(self: Assignment, participant: Participant, request: Build, limit_s: float | None) -> Built | None:
        timing = self._context.timing
        return await ask_in_time(self, participant, request, timing.join_wait_s if limit_s == timing.silence_s else limit_s)

    patch.setattr(Assignment, "_ask_in_time", patient)


def holder_that_gave_its_state(patch: pytest.MonkeyPatch) -> None:
    """Whom the coordinator cannot reach is asked for a lost stage's state once, also where who
    copies it dies at that, or before the next commit (3.4).
    """
    patch.setattr(Assignment, "_keep_out_of_reach", lambda self, stage, holder: None)


def state_that_was_built_unheard(patch: pytest.MonkeyPatch) -> None:
    """Who was fenced as it was told to build, and is called for, counts by what it tells (3.3)."""
    patch.setattr(Participant, "doubt", lambda self, keeps: None)


def state_of_who_was_told_nothing(patch: pytest.MonkeyPatch) -> None:
    """Who is back with an older state, and is fenced before it is told to build, counts for none
    when it is called for (3.3).
    """
    patch.setattr(Participant, "was_told_nothing", False)


def build_of_another_place(patch: pytest.MonkeyPatch) -> None:
    """Who has built one stage, and was given another one meanwhile, counts as a holder of that
    (3.3).
    """
    patch.setattr(Participant, "is_to_build", lambda self, stage, number: self.builds == number)


def step_after_a_promise(patch: pytest.MonkeyPatch) -> None:
    """Who may have built unheard, and is called for, loses its state with its first step, also
    where it has promised a plan before (3.3).
    """

    def careless(self: Participant, position: Position, builds: int) -> None:
        if self.built and self.builds == builds:
            self.opened = position

    patch.setattr(Participant, "promise", careless)


def step_after_its_word(patch: pytest.MonkeyPatch) -> None:
    """Who is called for, and was told to build nothing, loses its state with its first step, also
    where it has said what it holds before (3.3).
    """
    patch.setattr(Participant, "confirm", lambda self, hello: None)


def word_of_who_is_called_for(patch: pytest.MonkeyPatch) -> None:
    """Who is called for counts as a holder, though it says hello with what another lineage left
    (3.3).
    """
    patch.setattr(Participant, "is_only_called_for", False)


def word_after_a_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """Who is called for counts as a holder, though it has worked on another base, and says hello
    with what another lineage left (3.3).
    """
    patch.setattr(Participant, "may_differ", lambda self, bases: self.is_only_called_for)


def doubt_that_lasts(patch: pytest.MonkeyPatch) -> None:
    """Who may have built unheard, and is called for, counts by what it tells where it is fenced and
    called for once more (3.3).
    """
    doubt = Participant.doubt
    patch.setattr(Participant, "doubt", lambda self, before: None if before.built else doubt(self, before))


def copy_of_what_may_be_built(patch: pytest.MonkeyPatch) -> None:
    """A newcomer is told to copy from a holder that is called for, and may have built its stage
    unheard, as if it held what the last record left (3.3).
    """
    start_joins = Assignment.start_joins

    def careless(self: Assignment) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Participant, "may_make_do", lambda self, iteration: False)
            start_joins(self)

    patch.setattr(Assignment, "start_joins", careless)


def plan_that_gives_way_to_a_disk(patch: pytest.MonkeyPatch) -> None:
    """A plan that is opened as a peer is about to load a snapshot is dropped for that, and what it
    holds (When all have died).
    """
    let_go = StageMember.let_go

    async def careless(self: StageMember, *, unless: object = None) -> bool:
        del unless
        return await let_go(self)

    patch.setattr(StageMember, "let_go", careless)


def open_without_a_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """A peer that is opened with what lay on its disk hears nobody before the next heartbeat (When
    all have died).
    """
    opened = StageMember._open

    async def deaf(self: StageMember, sender: Endpoint, request: Open) -> Reply:
        before = self.silent_ticks
        reply = await opened(self, sender, request)
        self.silent_ticks = before
        return reply

    patch.setattr(StageMember, "_open", deaf)


def step_before_its_answer(patch: pytest.MonkeyPatch) -> None:
    """Who is called for, and was told to build nothing, loses its state where a heartbeat tells of
    a step before the record is answered that it was sent for it (3.3).
    """
    patch.setattr(Participant, "send", lambda self, request: None)


def donors_that_are_fenced(patch: pytest.MonkeyPatch) -> None:
    """A newcomer goes on copying from donors that are all fenced, one of which may hang for ever
    (3.3).
    """
    patch.setattr(Assignment, "_is_in_vain", lambda self, action, idle_s: False)


def copy_that_gets_on(patch: pytest.MonkeyPatch) -> None:
    """A copy that gets on is thrown away where its donor is fenced (3.3)."""
    is_in_vain = Assignment._is_in_vain
    patch.setattr(Assignment, "_is_in_vain", lambda self, action, idle_s: is_in_vain(self, action, math.inf))


def copy_that_nobody_else_gives(patch: pytest.MonkeyPatch) -> None:
    """A joiner is to begin anew where nobody holds its stage any more, so that what it has copied
    counts for nothing (3.3).
    """
    is_in_vain = Assignment._is_in_vain

    def careless(self: Assignment, action: BuildAction, idle_s: float) -> bool:
        return not self._roster.holders(action.stage) or is_in_vain(self, action, idle_s)

    patch.setattr(Assignment, "_is_in_vain", careless)


def join_that_counts_no_more(patch: pytest.MonkeyPatch) -> None:
    """A joiner's answer is waited for, that counts no more by then (3.3)."""
    patch.setattr(Participant, "was_told_else", lambda self, number: False)


def build_that_gave_way(patch: pytest.MonkeyPatch) -> None:
    """A builder is blamed for a build that gave way to a later one (3.3)."""
    refused = Assignment._refused

    async def blaming(self: Assignment, participant: Participant, request: Build, refusal: Refused, number: int) -> None:
        del number
        await refused(self, participant, request, refusal, participant.builds)

    patch.setattr(Assignment, "_refused", blaming)


def word_of_who_follows_another(patch: pytest.MonkeyPatch) -> None:
    """Who has said that it gives way counts as its own coordinator, also where it follows another
    one by now, in a term of the same number (3.2).
    """
    ask = Election._hears_who_gives_way

    async def careless(self: Election, endpoint: Endpoint, number: int) -> bool:
        return Term(number, endpoint.member) in self._outranked or await ask(self, endpoint, number)

    patch.setattr(Election, "_hears_who_gives_way", careless)


def left_out_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Whom the newest plan does not name leads nobody before the run is over, though all that it
    names have ended (3.2).
    """
    may_lead = election.may_lead
    patch.setattr(election, "may_lead", lambda *known, is_over, has_waited: may_lead(*known, is_over=is_over, has_waited=False))


def left_out_beside_another(patch: pytest.MonkeyPatch) -> None:
    """Of two voters that the newest plan does not name each leaves the lead to the other (3.2)."""
    may_lead = election.may_lead

    def careless(plan: Plan, electorate: Sequence[Member], me: Member, there: Iterable[Member], **known: bool) -> bool:
        is_free = plan.stage_of(me) is not None or not {*electorate, me}.difference({me}).intersection(there)
        return is_free and may_lead(plan, electorate, me, [*there], **known)

    patch.setattr(election, "may_lead", careless)


def plan_of_one_that_may_not_claim(patch: pytest.MonkeyPatch) -> None:
    """Whoever holds a stage and knows a plan is waited for by the bootstrap node, though it may
    never lead by that (seed 2704740; When all have died).
    """
    patch.setattr(StageMember, "may_lead_alone", property(lambda self: self.replica_state.stage != ABSENT))


def named_with_something_else(patch: pytest.MonkeyPatch) -> None:
    """Who is named to go on from its disk, and holds what nobody goes on from, waits as it is (When
    all have died).
    """
    is_left_over = Membership._is_left_over

    def careless(self: Membership, founder: Founder) -> bool:
        state = self._stage_member.replica_state
        return (state.iteration, state.lineage) == (founder.iteration, founder.lineage) and is_left_over(self, founder)

    patch.setattr(Membership, "_is_left_over", careless)


def named_before_its_place(patch: pytest.MonkeyPatch) -> None:
    """Who is named by a genesis from before its last place lets what it has copied since go for
    what lies on its disk (When all have died).
    """
    is_left_over = Membership._is_left_over

    def careless(self: Membership, founder: Founder) -> bool:
        self._led_under = 0
        return is_left_over(self, founder)

    patch.setattr(Membership, "_is_left_over", careless)


def claim_by_a_left_plan(patch: pytest.MonkeyPatch) -> None:
    """Who may claim by the plan that it left counts as one that may claim by none (When all have
    died).
    """
    may_lead_alone = StageMember.may_lead_alone

    def careless(self: StageMember) -> bool:
        return self.replica_state.known_plan is not None and may_lead_alone.__get__(self)

    patch.setattr(StageMember, "may_lead_alone", property(careless))


def vote_since_the_genesis(patch: pytest.MonkeyPatch) -> None:
    """Who went on from what the genesis names, and has stored a record since, forgets it (When all
    have died).
    """
    is_left_over = Membership._is_left_over

    def careless(self: Membership, founder: Founder) -> bool:
        state = self._stage_member.replica_state
        state.promises = dataclasses.replace(state.promises, sealed=None)
        return is_left_over(self, founder)

    patch.setattr(Membership, "_is_left_over", careless)


def copy_of_what_was_made(patch: pytest.MonkeyPatch) -> None:
    """What was copied counts as what the last record left where the donor knows a plan that does
    not say otherwise, though that may be older than what the donor made (seed 2722239; 3.10).
    """

    async def careless(context: Context, to: Endpoint, request: GetPlan) -> Reply:
        reply = await Context.call(context, to, request)
        return Reply(dataclasses.replace(reply.expect(PlanAnswer), is_committed_state=True))

    class Careless:
        def __init__(self, context: Context) -> None:
            self.manifest, self.call = context.manifest, partial(careless, context)

    learn = catch_up._learn_plan
    patch.setattr(catch_up, "_learn_plan", lambda context, *rest: learn(Careless(context), *rest))


def donor_vouches_for_anything(patch: pytest.MonkeyPatch) -> None:
    """Who is asked for its plan says of whatever it holds that the last record left it (3.10)."""
    get_plan = queries.get_plan

    async def careless(stage_member: StageMember, snapshots: tuple[HeldSnapshot, ...], *told: str) -> Reply:
        reply = await get_plan(stage_member, snapshots, *told)
        return Reply(dataclasses.replace(reply.expect(PlanAnswer), is_committed_state=True))

    patch.setattr(queries, "get_plan", careless)


def lineage_of_a_voter(patch: pytest.MonkeyPatch) -> None:
    """A voter that has let its stage go tells nobody of its lineage: a side that gives way to that
    takes it in (seed 2722757; 3.8).
    """
    hello = Membership.hello

    def careless(self: Membership) -> Hello:
        found = hello(self)
        if self._stage_member.replica_state.stage != ABSENT:
            return found
        return Hello(found.can_feed, found.standby, found.corpus_hash, host=found.host)

    patch.setattr(Membership, "hello", careless)


def later_snapshot_of_the_same_past(patch: pytest.MonkeyPatch) -> None:
    """What was written last takes the place of what goes on from it (seed 2704740; When all have
    died).
    """
    worth_keeping = snapshot_keeper.worth_keeping
    patch.setattr(snapshot_keeper, "worth_keeping", lambda held, newest, past, _: worth_keeping(held, newest, past))


def state_of_one_that_is_past(patch: pytest.MonkeyPatch) -> None:
    """What a newcomer holds that has stepped since it was asked counts for nothing (3.2)."""
    refused = Assignment._refused

    async def careless(self: Assignment, participant: Participant, request: Build, refusal: Refused, number: int) -> None:
        is_ours = participant.is_ours
        await refused(self, participant, request, refusal, number)
        participant.is_ours = is_ours

    patch.setattr(Assignment, "_refused", careless)


def voucher_of_a_kept_state(patch: pytest.MonkeyPatch) -> None:
    """Who keeps the present state of a lost stage cannot vouch for it from then on (3.3)."""
    install = ReplicaState.install

    def careless(self: ReplicaState, stage: int, iteration: int, *others: Any) -> None:
        install(self, stage, iteration, *others)
        self.is_committed_state = iteration == 0

    patch.setattr(ReplicaState, "install", careless)


def state_as_it_was(patch: pytest.MonkeyPatch) -> None:
    """What was kept for an iteration that nobody opened counts for nothing with the next
    coordinator (3.3).
    """
    patch.setattr(ReplicaState, "take_back", lambda self, asked=None: None)


def state_told_to_another(patch: pytest.MonkeyPatch) -> None:
    """What was kept for an iteration that nobody opened counts for nothing with whoever else is
    asked for a place (3.3).
    """
    take_back = ReplicaState.take_back
    patch.setattr(ReplicaState, "take_back", lambda self, asked=None: take_back(self))


def state_of_who_was_told_to_rejoin(patch: pytest.MonkeyPatch) -> None:
    """What was kept for an iteration that nobody opened counts for nothing with whoever else is
    asked for a place, where its holder was told to rejoin: its promise is gone (3.3).
    """
    take_back = ReplicaState.take_back

    def careless(self: ReplicaState, asked: Member | None = None) -> None:
        if self.promised is not None:
            take_back(self, asked)

    patch.setattr(ReplicaState, "take_back", careless)


def asked_while_kept(patch: pytest.MonkeyPatch) -> None:
    """Whoever had its state kept by a coordinator that it hears asks others for a place all the
    same (3.3).
    """
    patch.setattr(Membership, "_kept_for", lambda self: None)


def claimed_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Whom no majority answers any more as it leads claims again, and asks nobody who leads by
    now (3.3).
    """

    async def careless(self: Membership) -> None:
        while True:
            if await self._ask_for_place():
                await self._listen()
            while self._stage_member.replica_state.stage != ABSENT:
                inheritance = await self._election.campaign()
                if inheritance is None:
                    break
                await self._lead(inheritance)

    patch.setattr(Membership, "keep", careless)


def founder_claimed_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """A founder, or who leads from a snapshot, claims again at once without a majority (3.3)."""
    found = Membership._found

    async def careless(self: Membership, announced: Sequence[Announcement]) -> bool:
        has_led = await found(self, announced)
        while has_led and (inheritance := await self._election.campaign()) is not None:
            await self._lead(inheritance)
        return has_led

    patch.setattr(Membership, "_found", careless)


def kept_before_the_step(patch: pytest.MonkeyPatch) -> None:
    """What is kept counts at once, though a step with it is under way (3.3)."""

    async def careless(self: StageMember, term: Term, *built: Any, is_copy: bool) -> None:
        self.replica_state.install(*built)
        self.replica_state.known_in, self.replica_state.is_copy = term, is_copy

    patch.setattr(StageMember, "install", careless)


def copy_by_a_holder(patch: pytest.MonkeyPatch) -> None:
    """Whoever holds a lost stage as it was one step before is told to copy it from a replica that
    nobody may reach, and so to give up what it holds (3.3).
    """
    patch.setattr(assemblies, "_is_a_step_behind", lambda participant, iteration: False)


def place_of_who_holds(patch: pytest.MonkeyPatch) -> None:
    """Whoever says that it holds a stage's state is believed, also beside others (3.3)."""
    patch.setattr(Assignment, "_had_place", lambda self, sender: True)


def rebuilt_state_of_who_leaves(patch: pytest.MonkeyPatch) -> None:
    """What was made in place of a lost state stays with who is about to leave, once the lost state
    is there again, and is decided on (3.3).
    """
    welcome = Assignment._welcome_back

    def careless(self: Assignment, sender: Endpoint, hello: Hello) -> Participant | None:
        leaving = [participant for participant in self._roster.participants() if participant.leaving and participant.built]
        found = welcome(self, sender, hello)
        for participant in leaving:
            participant.built = True
        return found

    patch.setattr(Assignment, "_welcome_back", careless)


def rebuilt_state_for_a_word(patch: pytest.MonkeyPatch) -> None:
    """What was made in place of a lost state is given up for the word of whoever says that it has
    that, also where it is not believed (3.3).
    """
    welcome = Assignment._welcome_back

    def careless(self: Assignment, sender: Endpoint, hello: Hello) -> Participant | None:
        if hello.stage in self._rebuilt:
            del self._rebuilt[hello.stage]
            for other in self._roster.of_stage(hello.stage):
                other.lose()
        return welcome(self, sender, hello)

    patch.setattr(Assignment, "_welcome_back", careless)


def voucher_of_an_inherited_one(patch: pytest.MonkeyPatch) -> None:
    """A successor that has a newcomer by its claim does not hear what that says it holds (3.3)."""
    patch.setattr(Participant, "vouch_again", lambda self, hello: None)


def answer_of_a_build(patch: pytest.MonkeyPatch) -> None:
    """A builder whose answer was lost is taken for one that leaves the coordinator behind as soon
    as it has stepped (3.4).
    """
    answer = Builder.build

    async def careless(self: Builder, sender: Endpoint, request: Build) -> Reply:
        if self._stage_member.replica_state.counts_more_than(request.iteration, request.lineage, ()):
            raise Refused(RefusalKind.PAST, "it is decided")
        return await answer(self, sender, request)

    patch.setattr(Builder, "build", careless)


def nothing_held_while_building(patch: pytest.MonkeyPatch) -> None:
    """A member that builds says meanwhile that it holds the stage (3.10)."""

    async def careless(self: StageMember) -> None:
        return

    patch.setattr(StageMember, "let_go", careless)


def states_in_a_replay(patch: pytest.MonkeyPatch) -> None:
    """A replay never compares states with those of the records (3.10)."""

    async def careless(self: StageReplay, stage: int, record: Any, before: Any) -> None:
        return

    patch.setattr(StageReplay, "_check_state", careless)


def rebuilds_in_a_near_replay(patch: pytest.MonkeyPatch) -> None:
    """A replay that is not exact goes on over whatever was put in the stage's place (3.10)."""
    patch.setattr(replaying, "base_of", lambda lineage, rebuilt: Fitting(lineage))


def sums_in_a_replay(patch: pytest.MonkeyPatch) -> None:
    """A replay never compares gradients with those of the records (3.10)."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(StageReplay, "_check_sum", nothing)


def norms_in_a_replay(patch: pytest.MonkeyPatch) -> None:
    """A replay that is not exact takes sums of any norm for near (3.10)."""
    patch.setattr(replaying, "NORM_OFF_MAX", math.inf)


# ---- copies --------------------------------------------------------------------------------------


def record_that_fits(patch: pytest.MonkeyPatch) -> None:
    """Whoever copies steps with any record that a donor gives (3.10)."""
    patch.setattr(state_copy, "fitting_record", lambda record, iteration, stage_count: record)


def part_again(patch: pytest.MonkeyPatch) -> None:
    """A part of a copy that has missed an average is left as it is (3.10)."""

    def careless(self: StateCopy, part: int) -> None:
        self._versions[part] = max(self._versions[part], 0) + 1

    patch.setattr(StateCopy, "_again", careless)


def copy_that_goes_on(patch: pytest.MonkeyPatch) -> None:
    """Who is told once more to copy its stage begins anew (3.10)."""
    patch.setattr(Building, "copies_what", lambda self, request, past: False)


def copy_on_the_same_lineage(patch: pytest.MonkeyPatch) -> None:
    """Who is told to copy its stage on another lineage goes on with what it copies (3.10)."""
    copies_what = Building.copies_what
    patch.setattr(Building, "copies_what", lambda self, request, past: copies_what(self, request, self.past))


def copy_on_a_lineage_that_is_unknown(patch: pytest.MonkeyPatch) -> None:
    """Who is told to copy its stage on a lineage of which it knows nothing goes on with what it
    copies (3.10).
    """
    copies_what = Building.copies_what

    def careless(self: Building, request: Build, past: Mapping[int, str]) -> bool:
        return copies_what(self, request, past if past.keys() & self.past.keys() else self.past)

    patch.setattr(Building, "copies_what", careless)


def copy_from_the_same_donors(patch: pytest.MonkeyPatch) -> None:
    """Who is told to copy its stage from others goes on with what it copies, though what it has may
    be of another lineage by now (3.10).
    """
    copies_what = Building.copies_what

    def careless(self: Building, request: Build, past: Mapping[int, str]) -> bool:
        assert isinstance(request.action, Copy)
        donors = request.action.donors + (self.copying.donors if self.copying is not None else ())
        return copies_what(self, dataclasses.replace(request, action=dataclasses.replace(request.action, donors=donors)), past)

    patch.setattr(Building, "copies_what", careless)


def donors_that_are_named_later(patch: pytest.MonkeyPatch) -> None:
    """Who goes on with a copy does not ask the donors that are named last (3.10)."""
    join = Building.join

    def careless(self: Building, request: Build, past: Mapping[int, str]) -> None:
        assert self.copying is not None
        donors = self.copying.donors
        join(self, request, past)
        self.copying.donors = donors

    patch.setattr(Building, "join", careless)


def copy_of_the_same_stage(patch: pytest.MonkeyPatch) -> None:
    """Who is told to copy another stage goes on with what it copies (3.10)."""
    copies_what = Building.copies_what

    def careless(self: Building, request: Build, past: Mapping[int, str]) -> bool:
        return copies_what(self, self.request, past)

    patch.setattr(Building, "copies_what", careless)


def digest_of_a_copy(patch: pytest.MonkeyPatch) -> None:
    """A keeper offers what it has loaded, whatever its digest is (3.10)."""

    async def careless(self: EndsKeeper, copy: Any) -> Any:
        return Fitting()

    patch.setattr(EndsKeeper, "_state_digest", careless)


def old_copy_until_a_new_one(patch: pytest.MonkeyPatch) -> None:
    """A keeper drops its copy as soon as that cannot follow any more (3.10)."""
    load = EndsKeeper._load

    async def careless(self: EndsKeeper) -> None:
        self._offer(None)
        await load(self)

    patch.setattr(EndsKeeper, "_load", careless)


def lineage_of_a_copy(patch: pytest.MonkeyPatch) -> None:
    """A keeper gives its copy whatever lineage is asked for (3.10)."""
    get = EndsKeeper.get_state

    async def careless(self: EndsKeeper, request: GetState) -> Reply:
        lineage = self._offered.lineage if self._offered is not None else ""
        return await get(self, dataclasses.replace(request, lineage=lineage))

    patch.setattr(EndsKeeper, "get_state", careless)


def most_of_a_build(patch: pytest.MonkeyPatch) -> None:
    """Whoever builds has as long as it tells of progress."""
    patch.setattr(assemblies, "most_build_s", lambda *_: None)


def frames_as_they_come(patch: pytest.MonkeyPatch) -> None:
    """Of what a builder receives only whole answers count as progress."""
    patch.setattr(StageMember, "work_done", property(lambda self: self.device.done_count))


def spares_of_a_beginning(patch: pytest.MonkeyPatch) -> None:
    """Before the first plan nobody is moved to a stage that has too few replicas (1)."""
    move = Assignment._move_spares

    async def careless(self: Assignment) -> None:
        if self._opened:
            await move(self)

    patch.setattr(Assignment, "_move_spares", careless)


def replicas_of_a_beginning(patch: pytest.MonkeyPatch) -> None:
    """Before the first plan a stage gives replicas to another one until it has one (1)."""
    patch.setattr(Assignment, "_least", lambda self, stage: 1)
