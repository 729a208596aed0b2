"""The coordinator's roster: who is there, how they stand, and who is fenced. One watch per
participant: a heartbeat is always under way.

A broken heartbeat is noticed at once, a silent one after `silence_s`; the directory never removes
anyone. Source: protocol sections 3.3, 6 (Heartbeat).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from swarmfree.policy.deadline import is_given_up
from swarmfree.policy.election import claim_order
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.events import MemberLeft, MemberLost, Note, StageLost, Waiting
from swarmfree.protocol.evidence import Evidence
from swarmfree.protocol.message_bounds import ADMITTED_MAX
from swarmfree.protocol.messages import Goodbye, Heartbeat, HeartbeatAnswer, Hello
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint, Member, Position
from swarmfree.protocol.records import Record
from swarmfree.trainer.calls import Calls
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.absent import Absent, is_over, knows_too_little
from swarmfree.trainer.coordinator.bars import Bars
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.meetings import has_left
from swarmfree.trainer.coordinator.participant import MISSED_SILENCES, Participant, Participants
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.tasks import Signal, Tasks, each, within

ASKED_AGAIN = 1
KNOCK_S = 0.25
"""Between two calls to a silent peer that is waited for."""
DIFFERS_MAX = 2
GIVEN_UP_MAX = 32
HEARS_ANOTHER = frozenset({RefusalKind.NOT_YET})
"""With a heartbeat: who refuses it so hears another coordinator still. That is no more than
silence, as the other one falls silent soon.
"""


class Deposed(Exception):
    """This peer leads no longer; the text says why, for people."""


class Roster(Participants):
    """Participants, and a watch on each.

    Attributes:
        changed: told whenever a participant comes, goes, or has news.
        calls: to participants, given up when they are fenced.
        must_replan: a member that is still there was fenced, or one came back that missed an Open,
            or has dropped the plan since: they hear of it by the next plan only.
        waiting_for: what the swarm waits for; told to everyone with the heartbeats.
        told: last answer of each source to the present base, those that are gone since included.
        rivalry: told when another coordinator may lead: a participant forbids what this one says,
            or that one has called.
        out_of_reach: the last holder of a stage, that was waited for in vain: others may reach it.
        given_up: all holders that were waited for in vain, until somebody looks for them.
    """

    def __init__(self, context: Context, tasks: Tasks, lead: Leadership, choice: RecoveryChoice) -> None:
        """Nobody is there."""
        super().__init__()
        self._context, self._tasks, self._lead, self._choice = context, tasks, lead, choice
        self._absent = Absent(context)
        self._admitted = 0
        self._bars = Bars()
        self._differs: Counter[str] = Counter()
        self._deposed = ""
        self._progress = 0
        self._progress_of: tuple[Position, int, int, int] | None = None
        self.calls = Calls(context)
        self.must_replan = False
        self.changed, self.rivalry = Signal(), Signal()
        self.waiting_for = ""
        self.out_of_reach: dict[int, Endpoint] = {}
        self.given_up: deque[Participant] = deque(maxlen=GIVEN_UP_MAX)
        self._adopted: Mapping[Member, int] = {}
        self.told: dict[tuple[Member, str], HeartbeatAnswer] = {}

    def depose(self, why: str) -> None:
        """This peer leads no longer."""
        self._deposed = self._deposed or why
        self.calls.close()
        self.changed.tell()

    async def hand_over(self, *, is_sound: bool = False) -> None:
        """This peer leaves: name the next in rank, who claims at once and goes on in the middle of
        the iteration; who does not hear it waits.

        Args:
            is_sound: it leaves by will, and what is on its way to be stored is told first where it
                is decided: nobody else may know, and its own vote may be what decides.
        """
        plan, me = self._lead.plan, self._context.me
        order = claim_order(plan, self._lead.electorate()) if plan is not None else ()
        successor = next((member for member in order if member != me and self.get(member) is not None), None)
        if plan is not None and successor is not None:
            why = "the coordinator leaves"
            request = Goodbye(run_over=False, finished=False, why=why, successor=plan.endpoint(successor))

            async def one(participant: Participant) -> None:
                try:
                    await self._context.call(participant.endpoint, request, silence_s=self._context.timing.silence_s / 2)
                except CallFailed as error:
                    self._context.tell(Note(f"{participant.member} did not hear who is next: {error}"))

            await each([participant for participant in self.participants() if participant.member != me], one)
        until_s = self._context.now_s() + (self._context.timing.coordinator_silence_s if is_sound else 0.0)
        while self._lead.is_sealing and not self.is_deposed and self._context.now_s() < until_s:
            await self.changed.wait(0.1)
        self.depose("this peer leaves")

    @property
    def is_deposed(self) -> bool:
        """Whether this peer leads no longer."""
        return bool(self._deposed)

    def lost(self) -> set[int]:
        """Stages that nobody holds."""
        return {stage for stage in range(self._context.manifest.stage_count) if not self.holders(stage)}

    def wait_for(self, what: str) -> None:
        """The swarm waits for this; everybody is told, with the heartbeats."""
        if what != self.waiting_for:
            self.waiting_for = what
            self._context.tell(Waiting(what))

    def ask_for_guests(self, adopted: Mapping[Member, int]) -> None:
        """From now on these are asked with each heartbeat, for these lost stages; who was not asked
        before is at once.
        """
        fresh = [participant for participant in self.participants() if participant.member in adopted.keys() - self._adopted]
        self._adopted = adopted
        for participant in fresh:
            self._tasks.start(self._tell(participant), f"ask {participant.member} for a guest")

    def begin_plan(self, *, is_new_base: bool) -> None:
        """A plan is made; what sources told of another base counts no more."""
        self.must_replan = False
        if is_new_base:
            self.told.clear()

    def check(self) -> None:
        """Go on only as coordinator.

        Raises:
            Deposed: it is none any more.
        """
        if self._deposed:
            raise Deposed(self._deposed)

    def admit(
        self,
        endpoint: Endpoint,
        hello: Hello,
        stage: int,
        *,
        built: bool = False,
        built_at: int = ABSENT,
        is_ours: bool = False,
        opened: Position | None = None,
        silent_since_s: float | None = None,
    ) -> Participant:
        """A newcomer has a place from now on, or a member with its state; its older incarnation is
        fenced.
        """
        for participant in self.participants():
            if participant.member.peer_id == endpoint.member.peer_id and participant.member != endpoint.member:
                self.fence(participant.member, "it was started again")
        participant = Participant(
            endpoint,
            hello,
            stage,
            self._admitted,
            built,
            built_at=built_at,
            is_ours=is_ours,
            opened=opened,
            silent_since_s=silent_since_s,
            called_s=self._context.now_s(),
        )
        self._admitted += 1
        self._participants[endpoint.member] = participant
        self._absent.discard(endpoint.member.peer_id)
        self._context.incarnations.hear([endpoint.member])
        self._tasks.start(self._watch(participant), f"watch {endpoint.member}")
        self.changed.tell()
        return participant

    def is_superseded(self, member: Member) -> bool:
        """Whether a later life of this peer is known: what comes from this one now was on its way
        for long, or its folder was copied.
        """
        return bool(self._context.incarnations.ended([member]))

    def fence(self, member: Member, why: str) -> None:
        """This member no longer counts. It may say hello again."""
        participant = self._participants.pop(member, None)
        if participant is None:
            return
        self.calls.give_up(member)
        self._recall(participant.stage)
        self._context.tell(MemberLost(str(member), member.peer_id, participant.stage, why))
        if participant.stage != ABSENT and participant.built and not self.holders(participant.stage):
            self._context.tell(StageLost(participant.stage, self._lead.position.iteration, str(member)))
        self.changed.tell()

    def _recall(self, stage: int) -> None:
        """Nobody who holds this stage is heard and of use: call for those that were fenced while it
        had others.
        """
        if stage == ABSENT or self._deposed or any(participant.stands_in for participant in self.holders(stage)):
            return
        for participant, since_s in self._absent.take(stage):
            held, is_ours = participant.iteration, participant.is_ours
            if not (participant.built or participant.may_have_built) and participant.was_told_nothing:
                held = participant.held(stage)  # what it said
            hello = replace(participant.hello, stage=stage, iteration=held)
            called = self.admit(
                participant.endpoint, hello, stage, built=True, built_at=held, is_ours=is_ours, silent_since_s=since_s
            )
            called.recall(participant)
            if participant.may_have_built or not participant.built:
                called.doubt(participant)

    def excuse(self, participant: Participant) -> None:
        """A participant cannot write its stage's weights: whoever was fenced while the stage had it
        may be able to.
        """
        participant.excuse()
        self._recall(participant.stage)

    def demote(self, participant: Participant, why: str) -> None:
        """A participant cannot come to the present iteration: it holds its stage no more, and keeps
        what it has until something better is there.
        """
        participant.lose()
        self._recall(participant.stage)
        if not self.holders(participant.stage):
            self._context.tell(StageLost(participant.stage, self._lead.position.iteration, f"{participant.member}: {why}"))
        self.changed.tell()

    def miss(self, endpoint: Endpoint, stage: int | None, hello: Hello, *, later: bool = True) -> None:
        """A member of the last plan has promised nothing: it is called for where it may hold its
        stage alone, at once or `later`; else it is lost.
        """
        member, place = endpoint.member, ABSENT if stage is None else stage
        alone = not any(other.is_heard for other in self.holders(place))
        if place != ABSENT and alone and not self._context.incarnations.ended([member]):
            position, now_s = self._lead.position, self._context.now_s()
            self.admit(endpoint, hello, place, built=True, is_ours=True, opened=position, silent_since_s=now_s)
            return
        if later:
            self._absent.add(Participant(endpoint, hello, place, self._admitted, built=True, is_ours=True))
        self._context.tell(MemberLost(str(member), member.peer_id, place, "it does not answer the new coordinator"))
        if place != ABSENT and not self.holders(place):
            self._context.tell(StageLost(place, self._lead.position.iteration, str(member)))

    def call_for(self, endpoint: Endpoint, stage: int, iteration: int) -> None:
        """A peer that has said hello to nobody yet holds a stage's state: it is waited for, like a
        member that is silent.
        """
        hello = Hello(stage == ENDS_STAGE, standby=False, corpus_hash="", stage=stage, iteration=iteration)
        now_s = self._context.now_s()
        self.admit(endpoint, hello, stage, built=True, built_at=iteration, is_ours=True, silent_since_s=now_s)

    def let_go(self, participant: Participant) -> None:
        """A participant that said goodbye is no longer needed."""
        if self._participants.get(participant.member) is participant:
            del self._participants[participant.member]
            self._recall(participant.stage)
            self._context.tell(MemberLeft(str(participant.member), participant.member.peer_id, participant.stage))
            self.changed.tell()

    def close(self) -> None:
        """Watch nobody any more, and take nobody in: the run is over, or this peer leads no
        longer.
        """
        self._deposed = self._deposed or "this peer leads no longer"
        self._tasks.cancel_all()

    def bar(self, member: Member, why: str) -> None:
        """Fence a member that cannot work with its siblings: it may only stand by, for a while, or
        serve where it is alone.
        """
        self._bars.add(member.peer_id, self._context.now_s())
        if (participant := self._participants.get(member)) is not None and participant.is_ours:
            self._absent.add(participant)
        self.fence(member, why)

    def exclude(self, member: Member, why: str) -> None:
        """Fence a member for the rest of the run: what it holds counts for nothing any more."""
        self._lead.exclude([member.peer_id])
        self._absent.discard(member.peer_id)
        self.fence(member, why)

    def differ(self, participant: Participant, why: str) -> None:
        """Its state is not its siblings': it loads it again. One that differs twice, without having
        been right in between, computes otherwise.
        """
        self._differs[participant.member.peer_id] += 1
        participant.vouch(is_ours=False)
        if self._differs[participant.member.peer_id] >= DIFFERS_MAX:
            self.bar(participant.member, "its arithmetic differs from its siblings'")
        elif participant.opened is None:
            participant.lose()
        else:
            self.fence(participant.member, why)

    def agree(self, member: Member, iteration: int) -> None:
        """It began this iteration in the same state as its siblings; that says something of its
        arithmetic, if it has stepped since it built it.
        """
        participant = self.get(member)
        if participant is not None and participant.built_at < iteration:
            self._differs.pop(member.peer_id, None)

    def compare(self, record: Record) -> None:
        """A record is decided: what joiners had built for its iteration is what it says, or they
        load it again.
        """
        self._absent.vouch(record.base)
        for participant in self.participants():
            if not participant.matches(record):
                self.differ(participant, "")

    def keeper_missed_s(self, past: Mapping[int, str]) -> float:
        """Since when the last keeper of a copy of the ends is missing; see `Absent`."""
        return self._absent.keeper_missed_s(past)

    def is_barred(self, member: Member) -> bool:
        """Whether this peer may only stand by."""
        return self._bars.holds(member.peer_id, self._context.now_s())

    def end_bars(self) -> None:
        """Whoever stands by for a bar that is over may say hello again; until then it is called for
        where the state that it holds is lost.
        """
        for participant in self.participants():
            was_barred = self._bars.is_known(participant.member.peer_id) and not self.is_barred(participant.member)
            if was_barred and participant.stage == ABSENT and not participant.hello.standby:
                self.fence(participant.member, "it was barred for a while, and may have a place again")
                self._remember_standby(participant)

    def _remember_standby(self, participant: Participant) -> None:
        """One that stood by was fenced: it is called for where the state that it holds is lost, or
        was while it stood by.
        """
        held = (participant.answer or participant.hello).stage
        if participant.stage == ABSENT and held != ABSENT and participant.held(held) >= 0:
            participant.place(held)
            participant.hold(participant.built_at, is_ours=True)
            self._absent.add(participant)
            self._recall(held)

    async def ask(self, participant: Participant) -> HeartbeatAnswer | None:
        """How a participant stands right now; None, and it is fenced, if it does not answer."""
        try:
            return await self._heartbeat(participant, 0.0)
        except CallFailed as error:
            await self.judge(participant, error)
            return None

    def _keep_told(self, member: Member, answer: HeartbeatAnswer) -> None:
        """Losses of one base only become more: an answer with fewer was overtaken on its way.
        Windows may become fewer with a later plan.
        """
        if answer.position is None or not (answer.losses or answer.evaluation is not None or (member, answer.base) in self.told):
            return
        held = self.told.get((member, answer.base))
        if held is None or held.position is None or _amount(answer, answer.position) >= _amount(held, held.position):
            self.told[member, answer.base] = answer

    async def _watch(self, participant: Participant) -> None:
        timing = self._context.timing
        hold_s = min(timing.heartbeat_s, timing.silence_s / 2)
        while self._participants.get(participant.member) is participant and not self._deposed:
            before = participant.answer
            try:
                answer = await within(self._patience_left_s(participant), self._heartbeat(participant, hold_s))
            except (CallFailed, TimeoutError) as error:
                why = error if isinstance(error, CallFailed) else PeerSilent(f"{participant.member} does not answer")
                await self.judge(participant, why)
                if not participant.is_heard:
                    await asyncio.sleep(KNOCK_S)
                continue
            if not participant.is_heard:
                self._is_heard_again(participant)
            await self._look_whether_late(participant, answer.lateness)
            self.must_replan |= participant.has_dropped(self._lead.plan, self._context.now_s(), timing.silence_s)
            if before is None or before.news != answer.news:
                self.changed.tell()

    def _is_heard_again(self, participant: Participant) -> None:
        """One that was waited for answers. If it missed an Open it works by an older plan, and may
        send its work to a source of that.
        """
        participant.miss(None)
        self.must_replan = self.must_replan or (participant.opened is not None and participant.opened < self._lead.position)
        self.changed.tell()

    async def _look_whether_late(self, participant: Participant, late: float) -> None:
        """A device that hangs, or a corpus that does not come, stops everybody who waits for it:
        where a sibling can do its work, it is not waited for.
        """
        members = [g for g in self.holders(participant.stage) if g.is_member and g.is_heard]
        others = [g.answer.lateness for g in members if g is not participant and g.answer is not None]
        if participant not in members or not is_given_up(late, others):
            return
        if participant.member == self._context.me:
            await self.hand_over()  # as coordinator it would not come back
            return
        self.must_replan = True
        self._absent.add(participant)
        self.fence(
            participant.member, f"its device has worked on one thing, or waited for data, {late:.1f} times as long as it may"
        )

    async def judge(self, participant: Participant, error: CallFailed) -> None:
        """A participant answers no more, refuses, or follows somebody else: it is fenced, waited
        for, or right.
        """
        if self._participants.get(participant.member) is not participant:
            return
        if isinstance(error, Refused) and error.kind is RefusalKind.GONE and participant.answer is None:
            error = await self._failure_of_unheard(participant, error)
            if self._participants.get(participant.member) is not participant:
                return
        if isinstance(error, Refused) and error.kind is RefusalKind.FORBIDDEN:
            self._note_rivalry(participant, error)
        if self._is_fresh_to_one_elected(error):
            error = PeerSilent(f"{participant.member}: {error}")
        if isinstance(error, Refused) and self._is_of_higher_term(error):
            await self.yield_to(participant.member, error)
        elif isinstance(error, Refused) and self._is_overtaken(participant, error):
            self.depose(f"{participant.member}: {error}")
        elif isinstance(error, Refused) and error.kind is RefusalKind.GONE and participant.held(participant.stage) >= 0:
            self.demote(participant, str(error))
        elif not self._is_worth_waiting_for(participant, error):
            may_hold_on = not is_over(error) or (knows_too_little(error) and not participant.was_recalled)
            if may_hold_on and participant not in self.given_up:  # else it was called for in vain
                self._absent.add(participant)
            self.fence(participant.member, str(error))
            if may_hold_on:
                self._remember_standby(participant)

    async def _failure_of_unheard(self, participant: Participant, refusal: Refused) -> CallFailed:
        """What counts where one cannot step that has not said yet what it holds: its refusal once
        it has told that; else what keeps it from telling.
        """
        try:  # who says `past` is asked again and again, which would hold up a broadcast
            await within(MISSED_SILENCES * self._context.timing.silence_s, self._heartbeat(participant, 0.0))
        except CallFailed as failure:
            return failure
        except TimeoutError:
            return PeerSilent(f"{participant.member} does not say what it holds")
        if not participant.is_heard and self._participants.get(participant.member) is participant:
            self._is_heard_again(participant)
        return refusal

    def _note_rivalry(self, participant: Participant, refusal: Refused) -> None:
        """A participant that refuses so follows another coordinator, or leads itself: whoever looks
        beyond this swarm looks there, too.
        """
        if refusal.kind in {RefusalKind.FORBIDDEN, RefusalKind.STALE} and not participant.forbids:
            participant.forbid()
            self.rivalry.tell()

    def _is_fresh_to_one_elected(self, error: CallFailed) -> bool:
        """Whether a participant hears another coordinator, though a majority has promised this one:
        whom it hears leads no longer, so that its word deposes nobody, and is no more than silence.
        """
        return isinstance(error, Refused) and error.kind is RefusalKind.FRESH and self._lead.evidence is not None

    def _is_of_higher_term(self, error: Refused) -> bool:
        """Whether a participant that refuses so has promised a higher term than this lead's."""
        return error.kind in {RefusalKind.BEHIND, RefusalKind.FRESH} and not self._is_fresh_to_one_elected(error)

    def _is_overtaken(self, participant: Participant, error: Refused) -> bool:
        """Whether others decided without this peer: whoever claims next finds what. Who has no vote
        took no part in that.
        """
        return error.kind is RefusalKind.PAST and self._lead.yields_to(participant.member)

    async def look_who_is_silent(self) -> None:
        """Whoever is called for is waited for no longer where another holds its stage by now:
        nobody asks it for a promise, or for work.
        """
        for participant in self.participants():
            if not participant.is_heard:
                await self.judge(participant, PeerSilent(f"{participant.member} does not answer"))

    async def yield_to(self, member: Member, error: Refused) -> None:
        """Handle a participant that has promised a higher term: step down if this lead yields to
        it, else make it join again.

        The only holder of a stage keeps its place unless it hears another coordinator: its state
        would be rebuilt before it says hello.
        """
        participant, why = self._participants.get(member), f"it promised a higher term, and has no vote here: {error}"
        if self._lead.yields_to(member) and (participant is None or not await self._has_left(participant)):
            self.depose(str(error))
            return
        # Where those with a vote, or this peer itself, have promised that term, nobody is to join
        # it anew: one that has slept learns from them that it leads no longer
        others = [known for known in self.participants() if known is not participant and known.is_heard]
        await each(
            [known for known in others if known.member == self._context.me or self._lead.yields_to(known.member)],
            self._ask_for_higher_term,
        )
        if self._deposed:
            return
        is_alone = (
            participant is not None
            and participant.built
            and all(other is participant or not other.is_heard for other in self.holders(participant.stage))
        )
        if not is_alone:
            if participant is not None:
                self._absent.add(participant)  # until it has joined anew
            self.fence(member, why)
        if participant is None:
            return
        request = Goodbye(run_over=False, finished=False, why="this swarm goes on", successor=self._context.here, rejoin=True)
        try:
            await self._context.call(participant.endpoint, request, silence_s=self._context.timing.silence_s / 2)
        except Refused as refusal:
            self._note_rivalry(participant, refusal)
            if not is_alone or not self._calls_for(participant, refusal):
                self.fence(member, why)
            return
        except CallFailed:
            return
        self.must_replan = self.must_replan or is_alone  # it has dropped its plan

    async def _ask_for_higher_term(self, voter: Participant) -> None:
        """Be deposed where it follows one. What else it says is for its own heartbeat to judge: two
        that have left would be asked for each other's sake for ever.
        """
        try:
            await self._heartbeat(voter, 0.0)
        except Refused as error:
            if self._is_overtaken(voter, error) or (self._is_of_higher_term(error) and not await self._has_left(voter)):
                self.depose(f"{voter.member}: {error}")
        except CallFailed:
            return

    async def _has_left(self, participant: Participant) -> bool:
        return await has_left(self._context, self._lead, self, participant.endpoint)

    def _is_worth_waiting_for(self, participant: Participant, error: CallFailed) -> bool:
        """Silence is not death: what the only holder of a stage has is lost with it, so it is
        called for a while.

        A life that has ended is known by its address: nobody listens there, or somebody else does.
        One that came back further behind is no sibling. Its last answer may be older than its last
        step: a member stands where the swarm does.
        """
        stands_at = self._stands_at(participant)
        others = [g for g in self.holders(participant.stage) if g is not participant and (g.opened or g.iteration >= stands_at)]
        if is_over(error) or participant.stage == ABSENT or not participant.built or any(other.stands_in for other in others):
            return False
        return self._calls_for(participant, error)

    def _calls_for(self, participant: Participant, error: CallFailed) -> bool:
        """Whether the only holder of a stage, silent or in another's following, is still waited
        for.
        """
        if participant.is_heard:
            participant.miss(participant.missing_since_s(self._context.now_s(), self._context.timing.silence_s))
            self._recall(participant.stage)
            self._context.tell(
                Note(f"{participant.member} does not answer; nobody else holds stage {participant.stage}: {error}")
            )
        if self._patience_left_s(participant):
            return True
        if not participant.may_make_do(self._lead.iteration):
            self.out_of_reach[participant.stage] = participant.endpoint
        self.given_up.append(participant)
        return False

    def _patience_left_s(self, participant: Participant) -> float | None:
        """How much longer a silent participant is waited for, for one call at least; None for one
        that is heard.
        """
        if participant.is_heard:
            return None
        patience_s = self._choice.patience_s(participant.stage, self, self._stands_at(participant))
        now_s, timing = self._context.now_s(), self._context.timing
        return max(0.0, patience_s - participant.silent_s(now_s), participant.called_s + timing.silence_s - now_s)

    def _stands_at(self, participant: Participant) -> int:
        """The iteration that its state is ready for: where the swarm stands, if it is a member."""
        return max(participant.iteration, self._lead.position.iteration if participant.opened else ABSENT)

    def _count_progress(self) -> int:
        """Grows with the position, with whoever comes and goes, with what a builder does, and with
        every microbatch and news of anybody.
        """
        done = 0
        for participant in self._participants.values():
            done += participant.progress if participant.built else participant.progress + participant.work_done
        present = (self._lead.position, len(self._participants), self._admitted, done)
        if present != self._progress_of:
            self._progress, self._progress_of = self._progress + 1, present
        return self._progress

    def tell_admitted(self, givers: Collection[Endpoint]) -> None:
        """Those who are about to be asked for their state hear at once who has come: the heartbeat
        that is under way was sent before that.
        """
        me = self._context.me
        for member in sorted({giver.member for giver in givers} - {me}):
            if (giver := self.get(member)) is not None and giver.is_heard:
                self._tasks.start(self._tell(giver), f"tell {member}")

    async def _tell(self, participant: Participant) -> None:
        with suppress(CallFailed):  # whoever watches it sees that, too
            await self._heartbeat(participant, 0.0)

    def _newly_admitted(self, participant: Participant) -> tuple[tuple[Member, ...], int]:
        """Who is in no plan that this participant has promised: a plan may have reached nobody. And
        how many of the first of them have a stage, or make or copy it.

        A standby promises none: it hears also of members that have to build their stage again, and
        may ask it for a shadow. Where there are too many, those that build a stage come first,
        since they are about to ask for it.
        """
        plan, stands_by = self._lead.plan, participant.stage == ABSENT
        if plan is not None and not stands_by and participant.opened != plan.position:
            plan = None
        named = plan.names() if plan is not None else ()
        there = [g for g in self.participants() if g.member not in named or (stands_by and not g.built and g.stage != ABSENT)]
        there.sort(key=lambda g: (g.stage == ABSENT, g.built))
        told = there[:ADMITTED_MAX]
        return tuple(g.member for g in told), sum(g.stage != ABSENT for g in told)

    async def _heartbeat(self, participant: Participant, hold_s: float) -> HeartbeatAnswer:
        seen = participant.answer.news if participant.answer is not None else 0
        silence_s = self._context.timing.silence_s
        again = ASKED_AGAIN
        while True:
            present = self._lead.present
            forced = present.record.forced if present.record is not None else ()
            admitted, placed = self._newly_admitted(participant)
            news = (self.waiting_for, self._count_progress(), admitted)
            adopted = self._adopted.get(participant.member, ABSENT)
            evidence = self._evidence_for(participant)
            request = Heartbeat(self._lead.position, seen, hold_s, *news, present.lineage, forced, adopted, evidence, placed)
            asked_s = self._context.now_s()
            try:
                reply = await self._context.call(participant.endpoint, request, silence_s=silence_s)
            except (PeerUnreachable, PeerSilent):
                if not again:
                    raise
                again -= 1
                hold_s, silence_s = 0.0, self._context.timing.silence_s / 2
            except Refused as refusal:
                if refusal.kind in HEARS_ANOTHER:
                    raise PeerSilent(f"{participant.member}: {refusal}") from refusal
                # Perhaps it has only heard first of what this peer decides
                if refusal.kind is not RefusalKind.PAST or self._deposed or not self._lead.may_have_decided(present):
                    raise
                await asyncio.sleep(KNOCK_S)
            else:
                answer = reply.expect(HeartbeatAnswer)
                participant.hear(answer, self._context.now_s(), self._lead.bases, asked_s)
                self._keep_told(participant.member, answer)
                return answer

    def _evidence_for(self, participant: Participant) -> Evidence | None:
        """The promises by which this lead stands, for one that has neither given one nor answered;
        a newcomer, which holds nothing, has asked for a place, and needs none.
        """
        evidence = self._lead.evidence
        if evidence is None or participant.answer is not None or not participant.is_ours:
            return None
        return None if any(vote.member == participant.member for vote in evidence.votes) else evidence


def _amount(answer: HeartbeatAnswer, position: Position) -> tuple[int, Position, bool]:
    return len(answer.losses), position, answer.evaluation is not None
