"""Between two iterations: lost stages are rebuilt, and what is missing is said. All the while
newcomers load the state of their stage.

The swarm waits, at most `join_wait_s`, for whoever rebuilds a stage that nobody holds, and for
nobody else.
Source: protocol sections 3.3 and 3.10; design section 6.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from swarmfree.policy.block_split import split_after
from swarmfree.policy.build_time import most_build_s
from swarmfree.policy.patience import or_stay
from swarmfree.policy.placement import choose_stage, missing_sentence, wanted
from swarmfree.policy.planner.measured_fleet import MeasuredCopy
from swarmfree.policy.planner.single_moves import state_bytes
from swarmfree.policy.retention import KeptCopy
from swarmfree.protocol.actions import (
    BuildAction,
    Copy,
    CopyKept,
    CopyNeighbour,
    Fresh,
    Merge,
    Replay,
    Restore,
    Stay,
    givers_of,
    neighbours_of,
)
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.events import LOST_ENDS, LOST_ON_DISK, EndsDrawnAnew, Note, Placed, RecoveryDecided, StageBuilt
from swarmfree.protocol.messages import Build, Built, Hello, Place
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint, Member
from swarmfree.protocol.plan import Rebuilt
from swarmfree.protocol.records import Record, bits_float32
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.adoption import StageAdoption
from swarmfree.trainer.coordinator.broadcast import Broadcast
from swarmfree.trainer.coordinator.ends_copies import kept_copies
from swarmfree.trainer.coordinator.leadership import Leadership, Present
from swarmfree.trainer.coordinator.measured_peers import stage_speeds
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge
from swarmfree.trainer.coordinator.quorum_watch import QuorumWatch
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.tasks import Tasks, each

STANDBY_WAIT_S = 10.0
MOVE_WAIT_S = 10.0
"""For a standby or newcomer, before a replica of another stage is moved to one that is lost."""
FAILED_BUILDS_MAX = 5
FAILED_STAYS_MAX = 2
COPIERS_MAX = 4
"""So many may die until the next commit, of one holder's state that this peer cannot reach."""
ASKED_AT_ONCE = 64
MINORITY_WAIT_S = 0.2
PASSED_OVER_MAX = 4
ASKS = 4
LOOKS_IN_TIME = 8
"""So often, in what a builder may take without progress, it is looked whether it makes any: members
depose a coordinator after half as long again.
"""
COPIES_MEASURED = 16
OF_A_DONOR = frozenset({RefusalKind.FAILED, RefusalKind.NOT_YET})
"""What a copier says where its donors gave nothing."""
FALLEN_BEHIND = 3
"""Iterations a joiner with its state may be behind; siblings keep an average for one only."""


def _draws_ends(action: BuildAction) -> bool:
    return isinstance(action, Fresh) and action.stage == ENDS_STAGE


class Assignment:
    """Handles Hello at the coordinator, and fills stages before an iteration opens.

    Attributes:
        copied_s: when each member had copied its stage's state.
        copies: the last copies of body stages.
    """

    def __init__(
        self,
        context: Context,
        lead: Leadership,
        roster: Roster,
        tasks: Tasks,
        choice: RecoveryChoice,
        quorum: QuorumWatch,
        partition_merge: PartitionMerge,
    ) -> None:
        """Goes on where the last coordinator was; joiners load their state in `tasks`."""
        self._context, self._lead, self._roster, self._tasks = context, lead, roster, tasks
        self._choice, self._quorum, self._partition_merge = choice, quorum, partition_merge
        self._broadcast = Broadcast(context, roster)
        self._adoption = StageAdoption(context, lead, roster, choice)
        self._joining: dict[Member, tuple[Member, ...]] = {}  # and from whom each copies
        self._opened = lead.plan is not None
        self._begun_s = context.now_s()
        self._rebuilt = {stage.stage: stage for stage in lead.plan.rebuilt} if lead.plan is not None else dict[int, Rebuilt]()
        self._cut = dict[int, Rebuilt]()  # counts as long as the lead has a cut
        self._lost_since_s: dict[int, float] = {}
        self._put_off_s: dict[int, float] = {}
        self._gave: dict[int, Endpoint] = {}
        self._given = Counter[int]()
        self._resting: dict[str, float] = {}  # since when a peer stands by for its link
        self.copied_s: dict[Member, float] = {}
        self.copies: deque[MeasuredCopy] = deque(maxlen=COPIES_MEASURED)

    def rebuilt_stages(self) -> tuple[Rebuilt, ...]:
        """Stages built from something else than a sibling since the last commit, and those that are
        cut anew.
        """
        rebuilt = self._rebuilt | (self._cut if self._lead.cut else {})
        return tuple(rebuilt[stage] for stage in sorted(rebuilt))

    def cut(self, digests: Mapping[int, str]) -> None:
        """Members have prepared these stages as the next plan cuts them."""
        self._cut = {stage: Rebuilt(stage, digest, rate_scaled=False, steps=ABSENT) for stage, digest in sorted(digests.items())}

    def dispute(self, stage: int, state_digest: str) -> None:
        """Of two states that a stage's replicas had, this one counts: the base changes, and what
        the other one had a part in is done again.
        """
        known = self._rebuilt.get(stage)
        if known is None or known.state_digest != state_digest:
            known = Rebuilt(
                stage, state_digest, rate_scaled=False, steps=ABSENT, disputes=known.disputes if known is not None else 0
            )
        self._rebuilt[stage] = replace(known, disputes=known.disputes + 1)

    @property
    def _split(self) -> BlockSplit:
        return split_after(self._lead.present.record, self._context.manifest)

    @property
    def has_rebuilt(self) -> bool:
        """Whether a stage was built from something else than a sibling since the last commit."""
        return bool(self._rebuilt)

    def committed(self) -> None:
        """An iteration is committed: what was rebuilt before it has become a state like any
        other.
        """
        self._rebuilt = {}
        self._put_off_s.clear()
        self._gave.clear()
        self._given.clear()
        for stage in self._roster.out_of_reach.keys() - self._roster.lost():
            del self._roster.out_of_reach[stage]
        self._choice.commit()
        self._adoption.commit()

    def hello(self, sender: Endpoint, hello: Hello) -> Place:
        """Give a newcomer its place; the same newcomer twice gets the same answer.

        Who holds a state of this lineage takes its place again, without a download where nothing or
        one step is missing, or where nobody else holds the stage. Until the first Seal what was
        built in its absence gives way to it.
        """
        is_ours = hello.stage != ABSENT and self._lead.past.get(hello.iteration) == hello.lineage
        participant = self._roster.get(sender.member)
        is_other = hello.iteration <= self._lead.iteration or hello.forced != self._lead.tip().forced  # and not only further
        is_foreign = hello.stage != ABSENT and is_other and not is_ours
        if participant is not None and is_foreign and participant.may_differ(self._lead.bases):
            participant.greet(hello)
            participant.vouch(is_ours=False)
            self._roster.demote(participant, "it holds what another lineage left")
        # Then it has nobody to differ from
        is_alone = hello.stage != ABSENT and not self._roster.holders(hello.stage)
        rests = self.is_resting(sender.member.peer_id)
        is_barred = (self._roster.is_barred(sender.member) or rests) and not is_alone
        if participant is None and is_ours and hello.stage != ABSENT and not is_barred:
            participant = self._welcome_back(sender, hello)
        if participant is None:
            manifest = self._context.manifest
            place = choose_stage(
                self._counts(without=sender.member.peer_id),
                manifest,
                can_feed=self._may_feed(hello),
                standby=hello.standby or is_barred,
                speeds=stage_speeds(self._roster, manifest, without=sender.member.peer_id, split=self._split),
                split=self._split,
            )
            if place.stage == ABSENT and self._standbys() >= self._context.local.limits.standbys_max:
                raise Refused(RefusalKind.NOT_YET, "as many peers stand by here as may")
            participant = self._roster.admit(sender, hello, place.stage, is_ours=is_ours)
            if rests and place.stage == ABSENT:
                participant.rest()
            self._context.tell(Placed(sender.member.peer_id, place.stage))
            self.start_joins()
        if is_ours:
            participant.prove()
        if participant.stage in {ABSENT, hello.stage} and hello.stage != ABSENT and is_ours and not participant.built:
            participant.vouch_again(hello)  # it is no use now, and may be the last one soon
        elif participant.stage == hello.stage and is_ours:
            participant.confirm(hello)
        return Place(self._context.here, participant.stage, self._roster.waiting_for, accepted=True)

    def _standbys(self) -> int:
        return sum(g.stage == ABSENT for g in self._roster.participants())

    def _welcome_back(self, sender: Endpoint, hello: Hello) -> Participant | None:
        """Its old place, for a peer that holds a state of this lineage; None where it has to load
        the state anew.
        """
        stage, rebuilt, holders = hello.stage, self._rebuilt.get(hello.stage), self._roster.holders(hello.stage)
        iteration = self._lead.iteration
        if self._lead.present.record is None and (holders or self._is_to_feed(hello)):
            return None  # first weights are the same whoever draws them
        may_hold, built = not holders or self._had_place(sender), hello.iteration >= iteration - 1 and rebuilt is None
        is_better = rebuilt is not None and not rebuilt.disputes and hello.iteration == iteration
        if is_better and may_hold and not self._lead.is_sealing:
            del self._rebuilt[stage]  # its bytes are better than whatever was made in their place
            for other in self._roster.participants():
                if other.stage == stage:  # who is about to leave, too
                    other.lose()
                    other.begin_build()
            built = True
        if holders and not (built and may_hold):
            return None
        held = hello.iteration if built else ABSENT
        participant = self._roster.admit(sender, hello, stage, built=built, built_at=held, is_ours=True)
        self._resting.pop(sender.member.peer_id, None)
        self._context.tell(Placed(sender.member.peer_id, stage))
        self.start_joins()
        return participant

    def _had_place(self, sender: Endpoint) -> bool:
        """Whether a peer may hold a state of this lineage, as far as is known here: that it does is
        a word. One that has copied a state, and was opened nowhere, loads it anew.
        """
        return sender.member.peer_id in self._lead.named

    async def fill(self, until_s: float = math.inf) -> None:
        """Return once every stage has its replicas, or, when the run has begun, one; nobody waits
        for those who load a state that others hold.

        Raises:
            Deposed, TimeoutError: see `QuorumWatch.check`; a lost stage is not rebuilt by a
                minority.
        """
        iteration, record = self._lead.iteration, self._lead.present.record
        # A successor goes on with whoever is there
        self._opened = self._opened or record is not None
        while True:
            for stage in self._put_off_s.keys() - self._roster.lost():
                del self._put_off_s[stage]  # it is there: what is lost after that is put off again
            if not self._quorum.check(building=True, until_s=until_s):
                await self._roster.changed.wait(MINORITY_WAIT_S)
                continue
            for participant in self._roster.participants():
                if participant.is_joiner:
                    # One that has fallen behind for good holds nothing
                    self.admissible(participant)
            await self._roster.look_who_is_silent()
            while self._roster.given_up:
                holder = self._roster.given_up.popleft().endpoint
                self._tasks.start(self._look_for(holder), f"look for {holder.member}")
            self._roster.end_bars()
            self._use_standbys()
            if not self._waits_for_disks:
                await self._move_spares()
            if self._opened and not self._waits_for_disks:
                self._adoption.look(self._lost_since_s, [s for s in self._lost_since_s if self._spares(s)])
            self.start_joins()
            work = self._work()
            if record is not None and (work or self._missing()):  # else the Open brings them up
                behind = [g for g in self._roster.participants() if g.built and g.iteration < iteration]
                await self._broadcast.bring_up(behind, record)
                kept: Sequence[KeptCopy] = ()
                # Somebody may have come meanwhile
                if any(participant.stage == ENDS_STAGE for participant, _ in self._work()):
                    kept = await kept_copies(self._context, self._roster, iteration, self._lead.past)
                    if self._context.manifest.recovery.ends_copies and any(_draws_ends(action) for _, action in self._work(kept)):
                        await self._partition_merge.beyond()  # a keeper that has just woken says hello to nobody yet
                self._quorum.check(building=True, until_s=until_s)  # it may have been deposed meanwhile
                work = [(participant, action) for participant, action in self._work(kept) if not self._waits_for_others(action)]
            join_wait_s = self._context.timing.join_wait_s
            if work:
                async with asyncio.TaskGroup() as group:
                    for participant, action in work:
                        group.create_task(self._build(participant, action, self._lead.present, limit_s=join_wait_s))
                continue
            missing = self._missing()
            self._roster.wait_for(missing)
            if not missing:
                self._opened = True
                return
            await self._roster.changed.wait(1.0)

    def _may_feed(self, hello: Hello) -> bool:
        return hello.can_feed and hello.corpus_hash == self._context.manifest.data.corpus_hash

    def _is_to_feed(self, hello: Hello) -> bool:
        """Whether this one can, and too few do: it got another place while they were there."""
        lacks = self._counts()[ENDS_STAGE] < wanted(ENDS_STAGE, self._context.manifest)
        return hello.stage != ENDS_STAGE and lacks and self._may_feed(hello)

    def _counts(self, without: str = "") -> list[int]:
        """Participants by stage; `without` is a peer whose older life is about to be fenced, so
        that it fills no place. Who is about to leave counts as long as a stage has nobody at all.
        """
        stages = range(self._context.manifest.stage_count)
        stay = [sum(g.member.peer_id != without for g in self._roster.of_stage(stage)) for stage in stages]
        held = [len(self._roster.holders(stage)) for stage in stages]
        if any(not counted and not holders for counted, holders in zip(stay, held, strict=True)):
            return [counted or holders for counted, holders in zip(stay, held, strict=True)]
        return stay

    def _missing(self) -> str:
        counts = [len(self._roster.holders(stage)) for stage in range(self._context.manifest.stage_count)]
        if not self._opened:
            return missing_sentence(counts, self._context.manifest)
        lost = [f"stage {stage}" for stage, count in enumerate(counts) if not count]
        return f"{', '.join(lost)}{LOST_ON_DISK if self._waits_for_disks else LOST_ENDS}" if lost else ""

    def _place_holders(self) -> None:
        """Who stands by with the state of a lost stage, or was given another place and has not
        built that yet, gets its place again, the newest first, no more of them than the stage may
        have replicas; one, also where newcomers have all places.
        """
        for stage in range(self._context.manifest.stage_count):
            if self._roster.holders(stage):
                continue
            placed = self._roster.of_stage(stage)
            room = self._context.manifest.replicas_max(stage) - len(placed)
            if room <= 0 and all(participant.held(stage) < 0 for participant in placed):
                room = 1
            there = [p for p in self._roster.participants() if p.stage != stage and not p.built and p.held(stage) >= 0]
            for participant in sorted(there, key=lambda p: -p.held(stage))[: max(room, 0)]:
                self._place(participant, stage)

    def _use_standbys(self) -> None:
        """Give empty stages to standbys at once after a loss; before the first Open those that lack
        replicas, when nobody else came for a while.

        Who came when every place was taken, and did not ask to stand by, gets any place that is
        free since; not who stands by for its link.
        """
        if not self._opened and self._context.now_s() - self._begun_s < STANDBY_WAIT_S:
            return
        self._place_holders()
        for stage, count in enumerate(self._counts()):
            if count >= self._least(stage):
                self._lost_since_s.pop(stage, None)
                continue
            waiting = [
                g
                for g in self._roster.participants()
                if g.stage == ABSENT and self._may_take(g, stage) and not self._roster.is_barred(g.member)
            ]
            if waiting:
                self._place(waiting[0], stage)
            else:
                self._lost_since_s.setdefault(stage, self._context.now_s())
        for participant in self._roster.participants():
            is_kept = participant.hello.standby or participant.rests or self._roster.is_barred(participant.member)
            if participant.stage == ABSENT and not is_kept:
                manifest, can_feed = self._context.manifest, self._may_feed(participant.hello)
                speeds = stage_speeds(self._roster, manifest, split=self._split)
                counts, split = self._counts(), self._split
                place = choose_stage(counts, manifest, can_feed=can_feed, standby=False, speeds=speeds, split=split)
                if place.stage != ABSENT:
                    self._place(participant, place.stage)

    def _may_take(self, participant: Participant, stage: int) -> bool:
        """Whether a peer can serve a stage; a guest only one that nobody holds, since it would take
        the place of another guest.
        """
        can_serve = stage != ENDS_STAGE or self._may_feed(participant.hello)
        return can_serve and not (participant.host and self._roster.holders(stage))

    def _is_adopted(self, stage: int) -> bool:
        """Whether a guest holds this stage."""
        return any(holder.host for holder in self._roster.holders(stage))

    def _place(self, participant: Participant, stage: int) -> None:
        participant.place(stage)
        self._resting.pop(participant.member.peer_id, None)
        self._context.tell(Placed(participant.member.peer_id, stage))

    def move(self, participant: Participant, stage: int) -> None:
        """A member leaves its stage for another one, and copies that while the others train on."""
        participant.lose()
        self._place(participant, stage)
        self.start_joins()

    def stand_by(self, participant: Participant) -> None:
        """A member leaves its stage, and serves none."""
        participant.rest()
        self._resting[participant.member.peer_id] = self._context.now_s()
        self._context.tell(Placed(participant.member.peer_id, ABSENT))

    def is_resting(self, peer_id: str) -> bool:
        """Whether a peer stands by for its link; also one that is away for a moment."""
        return peer_id in self._resting

    def end_rests(self, after_s: float) -> None:
        """Who has stood by for its link for so long gets a place again: nothing is measured of it
        meanwhile, and its link may have become better.
        """
        now_s = self._context.now_s()
        self._resting = {peer_id: since_s for peer_id, since_s in self._resting.items() if now_s - since_s <= after_s}
        for participant in self._roster.participants():
            if participant.rests and not self.is_resting(participant.member.peer_id):
                participant.end_rest()

    async def _move_spares(self) -> None:
        """Nobody has come for a lost stage: the youngest replica of the stage that has most of them
        goes there, if one can be spared.

        Everybody is asked first: one of them may have died a moment ago, and the other be the last.
        """
        late = [s for s, since_s in self._lost_since_s.items() if self._context.now_s() - since_s >= MOVE_WAIT_S]
        late = [s for s in late if self._spares(s) or not self._is_adopted(s)]
        if not late:
            return
        await each(self._roster.participants(), self._roster.ask, ASKED_AT_ONCE)
        if ENDS_STAGE in late:
            await self._hear_who_can_feed()
        for stage in late:
            if self._counts()[stage] < self._least(stage):
                self._move_to(stage)

    async def _hear_who_can_feed(self) -> None:
        """A successor has not had the hellos of those whom it inherited: what they announce says
        so, too.
        """
        if any(
            self._may_feed(participant.hello)
            for participant in self._roster.participants()
            if participant.member != self._context.me
        ):
            return
        feeders = {a.endpoint.member for a in await self._context.ports.directory.announcements() if a.can_feed}
        for participant in self._roster.participants():
            if participant.member in feeders:
                corpus_hash = self._context.manifest.data.corpus_hash
                participant.greet(replace(participant.hello, can_feed=True, corpus_hash=corpus_hash))

    def _move_to(self, stage: int) -> None:
        """Take a standby, else the youngest replica of the stage that has most of them; this peer,
        which coordinates, only where nobody else can.
        """
        me, able = self._context.me, [g for g in self._roster.participants() if self._may_take(g, stage)]
        held, spares = self._held(), self._spares(stage)
        if spares:
            fit = Counter(g.member for g in spares if not self._roster.is_barred(g.member))
            spare = max(
                spares, key=lambda g: (fit[g.member], g.stage == ABSENT, g.member != me, held[g.stage], -g.stage, g.admitted)
            )
            spare.lose()
            self._place(spare, stage)
        elif stage == ENDS_STAGE:
            body = [g for g in able if g.stage not in {ABSENT, ENDS_STAGE} and not g.leaving]
            if body and not self._opened:  # few can feed, and anybody can do what it was to do
                feeder = max(body, key=lambda g: (g.member != me, g.admitted))
                feeder.lose()
                self._place(feeder, stage)
                return
            # Who could feed serves another stage alone: somebody copies that first
            alone = [(g.member == me, g.stage) for g in body if self._counts()[g.stage] == 1]
            if alone:
                self._move_to(min(alone)[1])

    def _held(self) -> Counter[int]:
        """Stage -> how many hold it and stay."""
        return Counter(g.stage for g in self._roster.participants() if g.built and not g.leaving)

    def _spares(self, stage: int) -> list[Participant]:
        """Who can be moved to a stage that is lost; before the first Open nobody whom its own stage
        needs to begin.
        """
        held, able = self._held(), [g for g in self._roster.participants() if self._may_take(g, stage)]
        return [g for g in able if not g.leaving and (g.stage == ABSENT or (g.built and held[g.stage] > self._least(g.stage)))]

    def _least(self, stage: int) -> int:
        """How many replicas a stage needs for the swarm to go on, and before the first Open to
        begin.
        """
        return 1 if self._opened else wanted(stage, self._context.manifest)

    def _work(self, kept: Sequence[KeptCopy] = ()) -> list[tuple[Participant, BuildAction]]:
        """What has to be built before the swarm can go on: one newcomer of each stage that nobody
        holds; `kept` are copies of the ends.
        """
        usable = self._choice.usable(kept)
        work: list[tuple[Participant, BuildAction]] = []
        for stage in range(self._context.manifest.stage_count):
            newcomers = [g for g in self._roster.participants() if g.stage == stage and not g.built and _may_build(g, stage)]
            if not newcomers or self._roster.holders(stage):
                continue
            # Of several that hold as new a state, or none, one that stays, and the senior
            builder = max(newcomers, key=lambda g: (_kept(g, stage), not g.leaving))
            held, cut_off = _kept(builder, stage), self._roster.out_of_reach.get(stage, self._gave.get(stage))
            if cut_off is not None and cut_off.member != builder.member and held < self._lead.iteration:
                copier = min((g for g in newcomers if g.member != cut_off.member), key=lambda g: (_kept(g, stage), g.leaving))
                if not _is_a_step_behind(copier, self._lead.iteration):
                    reason = f"stage {stage} has a replica that this peer cannot reach; perhaps another one can: copy it"
                    work.append((copier, Copy(stage, (cut_off,), reason)))
                    continue
            action = self._choice.choose(stage, self._roster, usable)
            may_stay = self._lead.present.record is not None
            work.append((builder, or_stay(action, held if may_stay else ABSENT, self._lead.iteration)))
        return work

    def _waits_for_others(self, action: BuildAction) -> bool:
        """Whether a stage would be made anew, whatever the way, before somebody that may hold
        something better has said hello.
        """
        if isinstance(action, Copy):
            return False
        is_as_it_was = isinstance(action, Stay) and action.iteration == self._lead.iteration
        waits_for_disks = self._waits_for_disks and not is_as_it_was
        return waits_for_disks or self._waits_for_a_keeper(action) or self._waits_for_kin(action.stage)

    def _waits_for_kin(self, stage: int) -> bool:
        """Whether members of a rival may soon say hello with something better; not for ever: rivals
        may call one after the other. A second look that is due by then is waited for.
        """
        if not self._partition_merge.expects_members():
            self._put_off_s.pop(stage, None)
            return False
        now_s = self._context.now_s()
        until_s = self._put_off_s.setdefault(stage, now_s) + self._partition_merge.expects_at_most_s
        return min(now_s, self._partition_merge.yields_since_s) < until_s

    @property
    def _waits_for_disks(self) -> bool:
        """Whether somebody who holds a stage of a whole set of snapshots, and has died once more,
        may still come back with it.
        """
        waited_s = self._context.now_s() - self._begun_s
        return self._lead.is_on_whole_set and waited_s < self._context.timing.join_wait_s

    def _waits_for_a_keeper(self, action: BuildAction) -> bool:
        """Whether the ends would be drawn anew before a keeper of a copy, that merely paused, has
        noticed it and said hello.
        """
        timing = self._context.timing
        missed_s = self._context.now_s() - self._roster.keeper_missed_s(self._lead.past)
        return _draws_ends(action) and missed_s < timing.coordinator_silence_s + timing.silence_s

    def start_joins(self) -> None:
        """Newcomers of stages that others hold load their state meanwhile; who is one record behind
        is told that.
        """
        record = self._lead.present.record
        for participant in self._roster.participants():
            is_behind = participant.iteration == self._lead.iteration - 1
            is_told = participant.member in self._joining or not participant.is_heard
            if record is not None and participant.is_joiner and is_behind and not is_told:
                self._joining[participant.member] = ()
                self._tasks.start(self._bring_up(participant, record), f"{participant.member} steps")
                continue
            holders = self._roster.holders(participant.stage) if participant.stage != ABSENT else ()
            current = self._choice.current(holders)
            donors = tuple(g.endpoint for g in current if not g.may_make_do(self._lead.iteration))
            if participant.built or not donors or participant.member in self._joining:
                continue
            if _may_be_the_last(participant, holders):
                continue
            action = Copy(participant.stage, donors, f"stage {participant.stage} has a live replica: copy it")
            self._joining[participant.member] = tuple(donor.member for donor in donors)
            self._tasks.start(
                self._join(participant, action, self._lead.present), f"{participant.member} joins stage {participant.stage}"
            )

    async def _join(self, participant: Participant, action: Copy, present: Present) -> None:
        before, number = self._rebuilt.get(participant.stage), participant.builds + 1
        try:
            await self._build(participant, action, present, limit_s=None)
        finally:
            self._joining.pop(participant.member, None)
        rebuilt = self._rebuilt.get(participant.stage) not in {before, None}
        if rebuilt and participant.builds == number:
            # Its donors are gone, and the stage was rebuilt with other bytes meanwhile
            participant.lose()
        if rebuilt or not participant.is_to_build(action.stage, number):
            self.start_joins()  # what it has loaded counts for nothing: it begins again
        self._roster.changed.tell()

    async def _bring_up(self, participant: Participant, record: Record) -> None:
        """A joiner steps with the last record; who cannot loads its state at once."""
        before = participant.iteration
        try:
            await self._broadcast.bring_up([participant], record)
        finally:
            self._joining.pop(participant.member, None)
        if not participant.built:
            self.start_joins()
        elif participant.iteration > before:
            self._roster.changed.tell()

    def replace_leavers(self) -> None:
        """Somebody said goodbye: where it is the last of its stage, a standby takes its place."""
        self._use_standbys()
        self.start_joins()

    def admissible(self, participant: Participant) -> bool:
        """Whether a joiner that holds its stage's state is where the swarm is; one that has fallen
        behind loads it anew, unless it is called for: nobody else holds the stage then.
        """
        if self._lead.cut and participant.opened is None:
            return False  # it has not prepared what the present plan has
        if participant.is_heard and 0 <= participant.iteration < self._lead.iteration - FALLEN_BEHIND:
            participant.lose()
        if participant.iteration != self._lead.iteration:
            self.start_joins()
        return participant.iteration == self._lead.iteration

    def admits(self, participant: Participant) -> bool:
        """Whether the next plan has it: a member, a joiner that has caught up, or one that was
        passed over a few times and is one record behind.

        Where iterations are short a joiner is one behind whenever a plan is made; the others wait
        then while it fetches that average.
        """
        if participant.opened is not None or self.admissible(participant):
            return True
        return participant.pass_over() > PASSED_OVER_MAX and participant.iteration == self._lead.iteration - 1

    async def _build(self, participant: Participant, action: BuildAction, present: Present, *, limit_s: float | None) -> None:
        iteration, record = present.iteration, present.record
        stage, name = action.stage, type(action).__name__
        lost = name != "Copy"
        # Asked once, unless it answers, and waited for already; a joiner copies from others
        cut_off = self._take_out_of_reach(stage) if limit_s is not None else None
        if cut_off is not None and isinstance(action, Copy):
            limit_s = self._context.timing.silence_s
        if lost:
            self._context.tell(_decided(action, iteration, participant))
            self._void_joins(stage, donor=participant.member)  # of what it held, or of what it builds unheard
        if isinstance(action, Fresh) and stage == ENDS_STAGE and record is not None:
            self._context.tell(EndsDrawnAnew(iteration, action.reason))
        if isinstance(action, CopyKept) and limit_s is not None:
            limit_s *= 1 + self._choice.lateness(action)
        number = participant.begin_build(
            keeps=isinstance(action, Stay), copies=action.stage if isinstance(action, Copy) else ABSENT
        )
        self._roster.tell_admitted(givers_of(action))
        known = tuple(takewhile(bool, (self._lead.past.get(before, "") for before in range(iteration - 1, -1, -1))))
        request = Build(self._lead.claim(), action, iteration, present.lineage, record, known[::-1])
        is_waited_for = limit_s is not None or not self._opened
        most = asyncio.timeout(most_build_s(action, self._context.manifest) if is_waited_for else None)
        try:
            async with most:
                built = await self._ask_in_time(participant, request, limit_s)
        except TimeoutError:
            self._timed_out(participant, action, limit_s or 0.0, is_endless=most.expired())
            if cut_off is not None and isinstance(action, Copy) and await self._roster.ask(participant) is None:
                self._keep_out_of_reach(stage, cut_off)  # it was the builder that was silent
            return
        except Refused as refusal:
            await self._refused(participant, request, refusal, number)
            return
        except CallFailed as error:
            await self._unanswered(participant, number, error)
            self._keep_out_of_reach(stage, cut_off)
            return
        if built is None or self._roster.get(participant.member) is not participant or not participant.is_to_build(stage, number):
            self._keep_out_of_reach(stage, cut_off)
            return
        if lost and self._roster.holders(stage):
            return  # a replica that was taken for dead came back: its bytes are better than any merge
        is_ours = not lost or record is None  # first weights are the same, whoever draws them
        participant.hold(built.iteration, "" if lost else built.state_digest, is_ours=is_ours)
        if self._lead.present.record is not None:
            self._roster.compare(self._lead.present.record)  # it may be of the iteration before
        if isinstance(action, Copy):
            self._note_copy(participant.member, stage, built)
            self._keep_out_of_reach(stage, cut_off)
        if lost:
            self._note_rebuilt(action, present, built)
        self._context.tell(
            StageBuilt(
                stage,
                built.iteration,
                name,
                participant.member.peer_id,
                built.seconds,
                built.received_bytes,
                built.state_digest,
                built.exact,
            )
        )
        self._adoption.note_build(built.received_bytes, built.seconds)
        if lost and participant.host:
            self._adoption.tell_adopted(stage, iteration, participant)

    def _take_out_of_reach(self, stage: int) -> Endpoint | None:
        """The last holder of a stage, that this peer cannot reach; where that one had copied it,
        the one that gave it is next.
        """
        return self._roster.out_of_reach.pop(stage, None) or self._gave.pop(stage, None)

    def _keep_out_of_reach(self, stage: int, holder: Endpoint | None) -> None:
        """A holder that this peer cannot reach has given its state, or who was to copy it has died:
        until the next commit it is asked once more where a copier dies, for a few of them.
        """
        if holder is not None and self._given[stage] < COPIERS_MAX:
            self._gave[stage] = holder
            self._given[stage] += 1

    async def _unanswered(self, participant: Participant, number: int, error: CallFailed) -> None:
        """A builder does not answer: it may have held its stage, so that it is called for. Where it
        was told to build something else since, the answer to that counts.
        """
        if participant.builds == number:
            await self._roster.judge(participant, error)

    def _note_rebuilt(self, action: BuildAction, present: Present, built: Built) -> None:
        """A lost stage is there again, and counts until what it was comes back."""
        stage = action.stage
        is_as_it_was = isinstance(action, (Restore, Replay, Stay)) or (
            isinstance(action, CopyKept) and action.iteration == present.iteration
        )
        is_scaled = present.record is not None and not is_as_it_was
        self._rebuilt[stage] = Rebuilt(stage, built.state_digest, is_scaled, _steps_held(action))
        self._void_joins(stage)

    def _note_copy(self, member: Member, stage: int, built: Built) -> None:
        self.copied_s = {known: at_s for known, at_s in self.copied_s.items() if self._roster.get(known) is not None}
        self.copied_s[member] = self._context.now_s()
        if built.seconds > 0 and (blocks := self._split.blocks_of(stage)):  # where nothing comes nothing is measured
            size_bytes, is_first = state_bytes(self._context.manifest, stage, len(blocks)), self._lead.present.record is None
            self.copies.append(MeasuredCopy(size_bytes, built.seconds, is_first))

    async def _look_for(self, holder: Endpoint) -> None:
        """Who held a stage, and was waited for in vain, may lead a side of its own by now: call it
        until the Seal. What it holds counts where one of the two gives way in time.
        """
        iteration = self._lead.iteration
        while self._lead.iteration == iteration and not self._lead.is_sealing and self._roster.get(holder.member) is None:
            await self._partition_merge.look_at(holder)
            await asyncio.sleep(self._context.timing.silence_s)

    def _timed_out(self, participant: Participant, action: BuildAction, limit_s: float, *, is_endless: bool) -> None:
        """A build did nothing for long, or went on for ever; of the latter nobody knows whether it
        is the builder's fault or the holder's.
        """
        if isinstance(action, Copy) and not is_endless:
            return  # it reaches the silent holder no more than this peer does
        if isinstance(action, CopyKept) and not is_endless:
            self._choice.put_off(action)
        else:
            self._failed(participant, action, is_final=False)
        if self._roster.get(participant.member) is not participant:
            return  # it was fenced, and is called for since
        if is_endless:
            most_s = most_build_s(action, self._context.manifest)
            self._roster.bar(participant.member, f"it has not built stage {action.stage} within {most_s:.0f} s")
        else:
            self._roster.fence(participant.member, f"it did nothing for stage {action.stage} within {limit_s:g} s")

    async def _refused(self, participant: Participant, request: Build, refusal: Refused, number: int) -> None:
        """A build came to nothing: a donor may have died, and it is decided again with those who
        are left, or this peer leads no longer. One that gave way to a later build is nobody's
        fault.
        """
        if refusal.kind is RefusalKind.SUPERSEDED and participant.was_told_else(number):
            return
        if refusal.kind is RefusalKind.BEHIND:
            await self._roster.yield_to(participant.member, refusal)
            return
        if refusal.kind is RefusalKind.PAST:
            # A majority went on without this peer: whoever claims next finds what it decided. Else
            # it has only heard first of what this peer decides, and holds that; or, without a vote,
            # says so and builds nothing.
            if request.iteration == self._lead.iteration and not self._lead.is_sealing:
                if not self._lead.yields_to(participant.member):
                    self._roster.fence(participant.member, f"it builds nothing, and has no vote here: {refusal}")
                    return
                self._roster.depose(f"{participant.member}: {refusal}")
            participant.vouch()
            return
        if refusal.kind is RefusalKind.DISPUTED and not await self._choice.stands(request):
            self._context.tell(Note(f"gives up the lead: {refusal}"))
            await self._roster.hand_over()
        action = request.action
        if isinstance(action, Copy) and refusal.kind is RefusalKind.NOT_YET and not self._roster.holders(action.stage):
            for donor in action.donors:  # this peer could not reach it, and it gives to its own side only
                await self._partition_merge.look_at(donor)
        if isinstance(action, Replay) and refusal.kind is RefusalKind.FAILED:
            # Whoever gave nothing may have died: after a heartbeat that is known, and the next try
            # does without it.
            await asyncio.sleep(self._context.timing.heartbeat_s)
        if self._is_of_a_donor(action, refusal):
            return
        self._failed(participant, action, is_final=refusal.kind in {RefusalKind.TOO_SLOW, RefusalKind.DISPUTED})
        if refusal.kind is RefusalKind.EXHAUSTED and isinstance(action, (CopyKept, Restore)):
            self._choice.excuse(action, participant.member)
        if participant.failed_builds > FAILED_BUILDS_MAX:
            self._roster.bar(participant.member, str(refusal))

    def _is_of_a_donor(self, action: BuildAction, refusal: Refused) -> bool:
        """Whether a copy came to nothing though nobody knows that a donor could have given it: none
        answers this peer, either. The copier may have reached one, and is not at fault.
        """
        donors = [self._roster.get(donor.member) for donor in givers_of(action)]
        is_there = any(donor is not None and donor.is_heard for donor in donors)
        return isinstance(action, Copy) and refusal.kind in OF_A_DONOR and not is_there

    def _failed(self, participant: Participant, action: BuildAction, *, is_final: bool) -> None:
        """A try came to nothing; one that is final is not made again for this loss."""
        participant.fail_build()
        self._choice.fail(action, participant.member, is_final=is_final)

    def _void_joins(self, stage: int, donor: Member | None = None) -> None:
        """What joiners of a stage load, or those of them that copy from `donor`, is gone: their
        answers count no more, and they begin again.
        """
        for other in self._roster.of_stage(stage):
            if other.member in self._joining and (donor is None or donor in self._joining[other.member]):
                other.begin_build()

    async def _ask_in_time(self, participant: Participant, request: Build, limit_s: float | None) -> Built | None:
        """Ask for a build. What makes progress may take longer than `limit_s`; a replay may not: a
        shadow is at hand. A joiner has no limit.

        How long it may take in all, see `policy.build_time`. None where nobody waits for it any
        more.

        Raises:
            TimeoutError: the builder's device has done nothing for `limit_s`, or as it replays for
                the last half of it.
            Refused: `too_slow`, a replay has taken that long.
        """
        number, action, begun_s = participant.builds, request.action, self._context.now_s()
        # That a copy makes room does not say that anything comes
        idle = _Idle(participant.work_done + isinstance(action, Copy), begun_s)
        is_replay = isinstance(action, Replay)

        def is_given_up(now_s: float) -> bool:
            idle.look(participant.work_done, now_s)
            if limit_s is not None:
                return self._is_outdated(action) or now_s - (begun_s if is_replay else idle.since_s) >= limit_s
            if self._is_in_vain(action, now_s - idle.since_s) and not participant.was_told_else(number):
                participant.begin_build()
            return participant.was_told_else(number)

        look_s = self._context.timing.coordinator_silence_s if limit_s is None else limit_s / LOOKS_IN_TIME
        built = await self._ask_until(participant, request, look_s, is_given_up)
        if built is not None or limit_s is None or self._is_outdated(action):
            return built
        if is_replay and self._context.now_s() - idle.since_s < limit_s / 2:
            raise Refused(RefusalKind.TOO_SLOW, f"a replay takes longer than {limit_s:g} s")
        raise TimeoutError

    async def _ask_until(
        self, participant: Participant, request: Build, look_s: float, is_given_up: Callable[[float], bool]
    ) -> Built | None:
        """Ask once, and look all the while whether the answer is given up; None where it is."""
        giving_up = asyncio.timeout(None)

        async def watch() -> None:
            while True:
                await asyncio.sleep(look_s)
                if is_given_up(self._context.now_s()):
                    giving_up.reschedule(asyncio.get_running_loop().time())
                    return

        watching = self._tasks.start(watch(), f"watch over the build of {participant.member}")
        try:
            async with giving_up:
                return await self._ask(participant, request)
        except TimeoutError:
            return None
        finally:
            watching.cancel()

    def _is_in_vain(self, action: BuildAction, idle_s: float) -> bool:
        """Whether a joiner, to which nothing has come for so long, waits for donors none of which
        holds the stage any more, while somebody else does: one that was fenced as its device hangs
        may hear nobody here, and never answer.
        """
        there = {holder.member for holder in self._roster.holders(action.stage)}
        is_alone = there.isdisjoint(donor.member for donor in givers_of(action))
        return bool(there) and is_alone and idle_s > self._context.timing.silence_s

    def _is_outdated(self, action: BuildAction) -> bool:
        """Whether nobody waits for a build any more: this peer leads no longer, somebody that is
        heard holds the stage, or a neighbour that was to give its weights is fenced, perhaps as its
        device hangs, and has a sibling.
        """
        fenced = [stage for stage, giver in neighbours_of(action) if self._roster.get(giver.member) is None]
        is_there = any(g.is_heard for stage in (action.stage, *fenced) for g in self._roster.holders(stage))
        return is_there or self._roster.is_deposed

    async def _ask(self, participant: Participant, request: Build) -> Built:
        """Ask for a build, and once more where the link breaks: that joins it. Given up where it
        breaks again and again while the builder does nothing.
        """
        waits, failures, done = self._context.backoff_s(), 0, participant.work_done
        while True:
            try:
                return (await self._context.call(participant.endpoint, request)).expect(Built)
            except (PeerUnreachable, PeerSilent):
                failures, done = (1 if participant.work_done > done else failures + 1), participant.work_done
                if failures == ASKS or self._roster.get(participant.member) is not participant:
                    raise
            await asyncio.sleep(next(waits))


@dataclass(slots=True)
class _Idle:
    """Since when a builder has done nothing, as looks at it tell.

    Args:
        done: by its device and its downloads, at the last look.
        since_s: when that was more than before.
    """

    done: int
    since_s: float

    def look(self, done: int, now_s: float) -> None:
        """It has done so much by now."""
        if done > self.done:
            self.done, self.since_s = done, now_s


def _may_build(participant: Participant, stage: int) -> bool:
    """Whether a lost stage may be made at this newcomer. Who is about to leave makes nothing, but
    what it holds is there until it has left.
    """
    return not participant.leaving or _kept(participant, stage) != ABSENT


def _kept(participant: Participant, stage: int) -> int:
    """The iteration that a newcomer's own state of a lost stage is ready for; `ABSENT` where
    it has none, or could not keep it: what it said last may be older than a copy it has begun.
    """
    return participant.held(stage) if participant.failed_builds < FAILED_STAYS_MAX else ABSENT


def _is_a_step_behind(participant: Participant, iteration: int) -> bool:
    """Whether a newcomer holds its stage as it was one step before: it has asked in vain for the
    average of that step, and a copy from there would begin by giving up what it has.
    """
    return ABSENT != _kept(participant, participant.stage) == iteration - 1


def _may_be_the_last(participant: Participant, holders: Sequence[Participant]) -> bool:
    """Whether a newcomer has a state of its stage, and those that have a newer one are only called
    for: a copy begins by giving up what is there.
    """
    return _kept(participant, participant.stage) != ABSENT and not any(holder.is_heard for holder in holders)


def _steps_held(action: BuildAction) -> int:
    """Optimizer steps that the moments of what was built hold."""
    match action:
        case CopyKept() | Replay() | Restore(full=True) | Stay():
            return ABSENT
    return 0


def _decided(action: BuildAction, iteration: int, participant: Participant) -> RecoveryDecided:
    if isinstance(action, Merge):
        return RecoveryDecided(
            action.stage,
            iteration,
            type(action).__name__,
            action.reason,
            participant.member.peer_id,
            bits_float32(action.weight_before),
            bits_float32(action.weight_after),
            action.norm_before,
            action.norm_after,
            made_of=[action.before_stage, action.after_stage],
        )
    older = action.iteration if isinstance(action, CopyKept | Replay | Restore | Stay) else None
    name, builder = type(action).__name__, participant.member.peer_id
    made_of = [action.donor_stage] if isinstance(action, CopyNeighbour) else []
    return RecoveryDecided(action.stage, iteration, name, action.reason, builder, taken_from=older, made_of=made_of)
