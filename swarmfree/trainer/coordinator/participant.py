"""Peers as the coordinator knows them: their places, what they hold, what they promised, how they
answered last.

Source: protocol sections 3.3, 6 (Heartbeat).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from operator import attrgetter

from swarmfree.protocol.messages import Commit, HeartbeatAnswer, Hello, Open, Request
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record

MISSED_SILENCES = 1.5
ROUND_TRIPS = 16


@dataclass(slots=True, eq=False)
class Participant:
    """One peer that said hello; it changes by its own methods only.

    Args:
        endpoint: who and where.
        hello: what it said.
        stage: its place, `ABSENT` for none.
        admitted: order of admission; smaller is senior.
        built: holds its stage's state at the present iteration.
        answer: its last heartbeat's answer.
        built_at: the iteration its state was ready for when it was built, or told by a member that
            came back.
        builds: how often it was told to build; only the last one's answer counts.
        failed_builds: builds in a row that came to nothing.
        leaving: it has said goodbye, and goes as soon as it is no longer needed.
        passed_over: plans that were made without it while it held its stage's state.
        built_digest: of the state it built, a copy of its siblings'; compared with the record of
            iteration `built_at`.
        opened: the newest claim of this coordinator that it promised; None for a joiner, and for a
            member that came back, until the next Open.
        is_ours: what it holds belongs to this coordinator's lineage, or to the past of it.
        silent_since_s: it is its stage's only holder, does not answer since then, and is waited
            for.
        heard_s: when it answered a heartbeat last.
        called_s: when it was called first, by this coordinator or after it was fenced.
        cannot_write: its stage's weights at the end; one that was fenced, or is silent, may be able
            to.
        forbids: this coordinator's words, since it answered last: it was away, or follows another.
        may_have_built: it was fenced while it was told to build its stage, and is called for, for
            what it held before; should it tell of a later iteration than it was sent a record for,
            that is what it has built.
        was_told: it was fenced after this coordinator had told it to build something.
        keeps: it was told last to keep the state that it held, and to build no other.
        copies: the stage that it was told last to copy from others; `ABSENT` where it was told
            something else.
        is_emptied: it has told since, or just before, that it holds no state of that stage, so that
            the next one of which it tells is the copy.
        sent_to: the iteration up to which it was sent what it steps with.
        was_recalled: it was fenced before, and is called for.
        progress: news and microbatches of which its last answer has told.
        is_proven: here it has said that its state is of this lineage, or built or promised one.
        rests: it stands by for its link, and gets a place where that is worth it, or a stage is
            lost.
        elsewhere_since_s: it tells of another base than that of the plan that it promised.
        round_trips_s: that its last answers were under way, there and back.
    """

    endpoint: Endpoint
    hello: Hello
    stage: int
    admitted: int
    built: bool = False
    answer: HeartbeatAnswer | None = None
    built_at: int = ABSENT
    built_digest: str = ""
    builds: int = 0
    failed_builds: int = 0
    leaving: bool = False
    passed_over: int = 0
    opened: Position | None = None
    is_ours: bool = False
    silent_since_s: float | None = None
    heard_s: float = -math.inf
    called_s: float = -math.inf
    cannot_write: bool = False
    forbids: bool = False
    may_have_built: bool = False
    was_told: bool = False
    keeps: bool = False
    copies: int = ABSENT
    is_emptied: bool = False
    sent_to: int = ABSENT
    was_recalled: bool = False
    progress: int = 0
    is_proven: bool = False
    rests: bool = False
    elsewhere_since_s: float = math.inf
    round_trips_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUND_TRIPS))

    def place(self, stage: int) -> None:
        """It serves this stage, or is to."""
        self.stage, self.rests = stage, False

    def rest(self) -> None:
        """It serves no stage, since its link would hold up the others."""
        self.lose()
        self.stage, self.rests = ABSENT, True

    def end_rest(self) -> None:
        """It is to get a place like everybody."""
        self.rests = False

    def hold(self, iteration: int, state_digest: str = "", *, is_ours: bool) -> None:
        """It holds its stage's state, ready for this iteration; `state_digest` of a copy that is to
        be compared with the record.
        """
        self.built, self.built_at, self.built_digest, self.is_ours, self.failed_builds = True, iteration, state_digest, is_ours, 0
        self.may_have_built, self.is_proven = False, True  # what it holds is known again

    def reach(self, iteration: int) -> None:
        """It has stepped, and is ready for this iteration at least."""
        self.built_at = max(self.built_at, iteration)

    def send(self, request: Request) -> None:
        """It is about to be sent this, and steps with the record in it before it answers."""
        match request:
            case Commit(record=record):
                self.sent_to = max(self.sent_to, record.iteration + 1)
            case Open(plan=plan):
                self.sent_to = max(self.sent_to, plan.iteration)
            case _:
                pass

    def lose(self) -> None:
        """It holds its stage's state no more, and has promised nothing with it."""
        self.built, self.opened = False, None

    def begin_build(self, *, keeps: bool = False, copies: int = ABSENT) -> int:
        """A further build counts, and none before it; its number.

        Args:
            keeps: it keeps what it holds.
            copies: the stage that it copies from others; `ABSENT` where it makes it otherwise.
        """
        self.builds, self.keeps = self.builds + 1, keeps
        if not keeps:
            told = self.answer.stage if self.answer is not None else self.hello.stage
            self.copies, self.is_emptied = copies, told != copies
        return self.builds

    def is_to_build(self, stage: int, number: int) -> bool:
        """Whether the build of this number is the last that it was told, and of the place that it
        has by now.
        """
        return self.builds == number and self.stage == stage

    def was_told_else(self, number: int) -> bool:
        """Whether the build of this number counts no more."""
        return self.builds > number

    def fail_build(self) -> None:
        """A build came to nothing."""
        self.failed_builds += 1

    @property
    def was_told_nothing(self) -> bool:
        """Whether no build was begun at it, by this coordinator."""
        return self.builds == 0 and not self.was_told

    def promise(self, position: Position, builds: int) -> None:
        """It has promised this claim, with what it held after so many builds, and what the plan
        begins with; that may have given way since, also to what it holds by now.
        """
        if self.built and self.builds == builds:
            self.opened, self.may_have_built, self.is_proven = position, False, True

    def pass_over(self) -> int:
        """A plan is made without it; how many were by now."""
        self.passed_over += 1
        return self.passed_over

    def greet(self, hello: Hello) -> None:
        """It has said more of itself."""
        self.hello = hello

    def hear(self, answer: HeartbeatAnswer, now_s: float, bases: Collection[str] = (), asked_s: float | None = None) -> None:
        """It has answered a heartbeat, that it was asked by at `asked_s`.

        Who was away while what it has worked on was decided cannot vouch for its state; where its
        first answer tells one of the lead's `bases`, it holds what that begins with.
        """
        if self.answer is None and not self.built and answer.base in bases:
            self.vouch()
        self.answer, self.forbids, self.heard_s = answer, False, now_s
        if asked_s is not None:
            self.round_trips_s.append(max(0.0, now_s - asked_s - answer.held_s))
        self.progress = answer.news + sum(len(partial_sum.microbatches) for partial_sum in answer.partial_sums)
        self.is_emptied |= answer.stage != self.copies
        has_stepped = self.was_told_nothing and answer.iteration <= self.sent_to  # before it has said so
        if self.may_have_built and self.built and answer.iteration > self.built_at and not has_stepped:
            self.lose()  # a stage that is built counts by the answer to that alone
            self.is_ours &= self.keeps

    def has_dropped(self, plan: Plan | None, now_s: float, silence_s: float) -> bool:
        """Whether it has promised this plan, and tells of another base for longer than a word is
        under way: it holds something that it has loaded since.
        """
        is_there = plan is None or self.opened != plan.position or self.answer is None or self.answer.base == plan.base
        self.elsewhere_since_s = math.inf if is_there else min(self.elsewhere_since_s, now_s)
        return now_s >= self.elsewhere_since_s + silence_s

    def doubt(self, before: Participant) -> None:
        """It may have built its stage, or kept what it held, as it was told `before`; nobody has
        heard that.
        """
        self.may_have_built, self.keeps, self.was_told = True, before.keeps, not before.was_told_nothing
        self.copies, self.is_emptied = before.copies, before.is_emptied

    def recall(self, before: Participant) -> None:
        """It was fenced, as this, and is called for."""
        self.was_recalled, self.is_proven = True, before.is_proven

    def prove(self) -> None:
        """It has said that what it holds is of this lineage."""
        self.is_proven = True

    def forbid(self) -> None:
        """It forbids what this coordinator says."""
        self.forbids = True

    def miss(self, since_s: float | None) -> None:
        """It is waited for since then; None, it is heard again."""
        self.silent_since_s = since_s

    def vouch(self, *, is_ours: bool = True) -> None:
        """What it holds is this lineage's, or differs from it."""
        self.is_ours = is_ours

    def matches(self, record: Record) -> bool:
        """Whether what it has copied for a decided record's iteration is what that says; asked once
        of each copy.
        """
        if not (self.is_joiner and self.stage != ABSENT and self.built_digest and self.built_at == record.iteration):
            return True
        digest, self.built_digest = self.built_digest, ""
        if record.split is not None and record.split.since == record.iteration:
            return True  # it has copied its stage as it was before it was cut anew
        return digest == record.stages[self.stage].state_digest

    def vouch_again(self, hello: Hello) -> None:
        """It says itself what it holds, of this lineage; what it answered before was of what an
        earlier coordinator had it keep.
        """
        self.greet(hello)
        self.vouch()
        if self.answer is not None:
            self.answer = replace(self.answer, stage=hello.stage, iteration=hello.iteration)

    def confirm(self, hello: Hello) -> None:
        """It says itself what it holds of its stage and of this lineage: unless it was told to
        build another since, what it tells later is what it has stepped to.
        """
        if self.may_have_built and self.was_told_nothing:
            self.hold(hello.iteration, is_ours=True)

    def leave(self) -> None:
        """It has said goodbye."""
        self.leaving = True

    def excuse(self) -> None:
        """It cannot write its stage's weights."""
        self.cannot_write = True

    @property
    def is_only_called_for(self) -> bool:
        """Whether it counts as a holder, and is waited for, though it has not said a word to this
        coordinator yet.
        """
        return self.built and self.answer is None and not self.is_heard

    def may_differ(self, bases: Collection[str]) -> bool:
        """Whether its hello counts for more than what it was taken to hold: it has not said a word
        yet, or it works on none of the lead's `bases`, was told to build nothing, and has never
        shown here that what it holds is of this lineage: an old hello may come late.
        """
        told = self.answer
        is_elsewhere = self.built and not self.is_proven and self.was_told_nothing and told is not None and told.base not in bases
        return self.is_only_called_for or is_elsewhere

    @property
    def is_member(self) -> bool:
        """Whether it holds its stage's state and has promised a plan with it."""
        return self.built and self.opened is not None

    @property
    def is_joiner(self) -> bool:
        """Whether it holds its stage's state, and the next Open is its first."""
        return self.built and self.opened is None

    def may_make_do(self, iteration: int) -> bool:
        """Whether it may hold by now what it has built, or kept with the loss of a step, instead of
        what this iteration begins with.
        """
        return self.may_have_built and self.iteration < iteration

    def missing_since_s(self, now_s: float, silence_s: float) -> float:
        """Since when one that was found silent just now is missing: since its last answer.

        No longer than a heartbeat, asked again for half as long, takes to be missed: where this
        peer itself slept meanwhile, that was no silence.

        Args:
            now_s: by the clock of `heard_s`.
            silence_s: the run's.
        """
        return now_s if self.heard_s == -math.inf else max(self.heard_s, now_s - MISSED_SILENCES * silence_s)

    def silent_s(self, now_s: float) -> float:
        """How long it has been waited for."""
        return 0.0 if self.silent_since_s is None else now_s - self.silent_since_s

    @property
    def is_heard(self) -> bool:
        """Whether it is not one that is waited for."""
        return self.silent_since_s is None

    @property
    def host(self) -> str:
        """Peer id of the peer whose guest it is; empty where it is none."""
        return self.answer.host if self.answer is not None else self.hello.host

    @property
    def work_done(self) -> int:
        """By its device, as it told last."""
        return self.answer.work_done if self.answer is not None else 0

    @property
    def latency_s(self) -> float:
        """How long a word is under way to it: half of its fastest answer, since the others have
        waited for somebody's processor. 0 where it has not answered yet.
        """
        return min(self.round_trips_s, default=0.0) / 2

    @property
    def stands_in(self) -> bool:
        """Whether it can do what another holder of its stage would do, so that nobody waits for
        that one.
        """
        return self.is_heard and not self.cannot_write

    @property
    def iteration(self) -> int:
        """The iteration that its state is ready for, as far as is known; it never goes back while
        the state is held.
        """
        told = self.answer.iteration if self.answer is not None and self.answer.stage == self.stage else ABSENT
        return max(told, self.built_at)

    def held(self, stage: int) -> int:
        """The iteration that its own state of a lost stage is ready for, of this lineage; `ABSENT`
        where it has none.
        """
        if not (self.is_ours or self._has_copied):
            return ABSENT
        if self.answer is not None:
            return self.answer.iteration if self.answer.stage == stage else ABSENT
        return self.hello.iteration if self.hello.stage == stage else ABSENT

    @property
    def _has_copied(self) -> bool:
        """Whether it tells that it holds what it was told last to copy, whatever becomes of the
        answer to that.
        """
        return self.is_emptied and self.answer is not None and self.answer.stage == self.copies != ABSENT

    @property
    def member(self) -> Member:
        """Its name."""
        return self.endpoint.member


class Participants:
    """All that said hello, by member."""

    def __init__(self) -> None:
        """Nobody is there."""
        self._participants: dict[Member, Participant] = {}
        self._known: list[Participant] = []
        self._seniors: tuple[Participant, ...] = ()

    def get(self, member: Member) -> Participant | None:
        """The participant of this name, if it is there."""
        return self._participants.get(member)

    def participants(self) -> tuple[Participant, ...]:
        """Everyone, senior first."""
        there = [*self._participants.values()]
        if there != self._known:  # they are asked for much more often than somebody comes or goes
            self._known, self._seniors = there, tuple(sorted(there, key=attrgetter("admitted")))
        return self._seniors

    def names(self) -> Collection[Member]:
        """Everyone's name."""
        return self._participants.keys()

    def of_stage(self, stage: int) -> tuple[Participant, ...]:
        """Everyone with a place in this stage who stays, built or not, senior first."""
        return tuple(g for g in self.participants() if g.stage == stage and not g.leaving)

    def holders(self, stage: int) -> tuple[Participant, ...]:
        """Those that hold the stage's state, senior first; those about to leave come last."""
        there = [g for g in self.participants() if g.stage == stage and g.built]
        return tuple(sorted(there, key=lambda g: g.leaving))

    def members(self) -> list[Participant]:
        """Those that hold their stage's state and have promised a plan with it, senior first; no
        joiners.
        """
        return [g for g in self.participants() if g.is_member]
