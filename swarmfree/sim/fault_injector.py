"""Who falls when: the schedule of faults meets the plans that the coordinator sends.

A fault is set off by the first opening of its iteration, those of the ending by the closing Open
and by what follows it (`ending`). Whom it hits is decided when it strikes, among those that the
newest plan names, so that never more stages go down at once, and never more sources, than the plan
of faults allows, and where nobody comes for the dead, never more peers than can be done without.
Who coordinates is whoever sent the newest plan.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import assert_never

from swarmfree.policy.election import founders_term
from swarmfree.policy.permissions import term_of
from swarmfree.protocol.messages import Commit, Goodbye, Open, Reduce, Request
from swarmfree.protocol.names import ABSENT, Founder, Member
from swarmfree.protocol.order import Halting
from swarmfree.protocol.plan import Plan
from swarmfree.sim import partitions
from swarmfree.sim.aimed_faults import AimedFault, MessageTriggers, aimed
from swarmfree.sim.faults import calm_iteration
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.partitions import Break
from swarmfree.sim.population import Cast
from swarmfree.sim.schedule import (
    COORDINATOR,
    HEARER,
    LONE,
    RESET_S,
    SOURCES,
    WRITER,
    Crash,
    Fail,
    Fault,
    Fill,
    Freeze,
    Hide,
    Impair,
    Join,
    Lag,
    Last,
    Leave,
    LosePair,
    LoseStage,
    PartitionFault,
    Sever,
    Shelve,
    Slow,
    Split,
    Stick,
)
from swarmfree.sim.setup import Setup
from swarmfree.sim.shutdown_faults import CALM_S, ShutdownFaults
from swarmfree.sim.simulated_peer import Life
from swarmfree.sim.transcript import Transcript

FIRST_ITERATION_S = 0.5
ITERATION_MAX_S = 5.0
USUAL_WORK_S = 0.008
"""Where devices are slower than this, iterations last longer, and so may the time until a fault
strikes.
"""
END_GRACE_S = 12.0
BREAK_NAMES = {PartitionFault: "partition", Split: "split", Sever: "link cut"}


class Mischief:
    """Brings the faults about.

    Args:
        setup: what is played.
        schedule: the faults of peers.
        hub: the network.
        cast: the peers.
        transcript: when the calm begins.
        goes_on: whether a plan goes on from the run's last record; sides of a split that lose send
            others, at times of a higher term.

    Attributes:
        plan: the newest that was sent, of those that go on where there are some.
        coordinators: everybody who ever sent a plan, the first one first.
        told: members of the newest plan that have promised a plan since the newest ones name them,
            and its coordinator; of each whom of that plan it was told of so.
    """

    def __init__(
        self,
        setup: Setup,
        schedule: tuple[Fault, ...],
        hub: MemoryHub,
        cast: Cast,
        transcript: Transcript,
        goes_on: Callable[[Plan], bool],
    ) -> None:
        """Nothing has been opened yet."""
        self._setup, self._hub, self._cast, self._transcript, self._goes_on = setup, hub, cast, transcript, goes_on
        self._schedule: dict[int, list[Fault]] = {}
        for fault in schedule:
            self._schedule.setdefault(fault.iteration, []).append(fault)
        self._opened_s: dict[int, float] = {}
        self._iteration_s = FIRST_ITERATION_S
        self._over_s = 0.0
        self._drawn: list[Break] = []
        self._ending = ShutdownFaults(hub, self._strike_last)
        self._aimed = MessageTriggers(setup.aims, self._aim)
        self.plan: Plan | None = None
        self.coordinators: dict[Member, None] = {}
        self.told: dict[Member, frozenset[Member]] = {}
        self._knowing = set[Member]()

    @property
    def end_grace_s(self) -> float:
        """Seconds within which every able peer must end after the first one has ended normally.

        The time counts from when all iterations are done and no fault is active any more. A peer
        that stood still cannot know that the others ended well: it waits `join_wait_s` for
        newcomers to the stages they held. So does one that was left behind in an ending in which
        somebody fell; and where such a newcomer comes, it has as long again, and once more for the
        stages that are lost still.
        """
        return (self._setup.progress_bound_s if self._is_hard else END_GRACE_S) + self._setup.manifest.timing.join_wait_s

    @property
    def _is_hard(self) -> bool:
        """Whether anything goes wrong after the last commit."""
        faults = self._setup.faults
        return faults.calm_share == 1 or faults.ending_rate > 0

    def asked(self, request: Request, sender: Member, receiver: Member) -> None:
        """A request sets out: plans and the end of the run set faults off."""
        match request:
            case Open(plan=plan):
                self.see(plan, sender)
            case Goodbye(run_over=True, finished=True, write_weights=writes, all_written=False):
                self._ending.told(receiver, writes=writes)
            case _:
                pass
        self._aimed.hear(request, sender, receiver, answered=False)

    def answered(self, request: Request, sender: Member, receiver: Member) -> None:
        """A request is answered."""
        self._aimed.hear(request, sender, receiver, answered=True)

    def _aim(self, aim: AimedFault, sender: Member, receiver: Member) -> None:
        """A message has come that sets a fault off."""
        self._transcript.tell("network", f"{aim.name} of {sender} to {receiver}: a fault in {aim.delay_s:.3f} s")

        def strike() -> None:
            fault = aimed(aim, self.plan, sender, receiver) if self.plan is not None else None
            if fault is not None:
                self._strike(fault)

        self._hub.later(aim.delay_s, strike)

    def may_not_forbid(self, sender: Member, receiver: Member, request: Request) -> bool:
        """Whether an honest receiver that has heard the honest sender for a while takes this.

        It need not where the newest plan has not got it, nor where it has promised no plan since it
        is a member, or has dropped its last one, or since the sender is one: whom it may obey it
        learns when it says hello, and that it is let back is asked by N2. A sender that the newest
        plan has not got any more may still take itself for a replica, and sum up with its siblings,
        or lead as if it had not been left out. A coordinator that leaves before its first plan
        names its successor to some who have promised the next term meanwhile, and to whom it is
        nobody.
        """
        told = self.told.get(receiver)
        if self.plan is None or told is None:
            return False
        names_successor = isinstance(request, Goodbye) and request.successor is not None and not request.rejoin
        if names_successor and sender != self._cast.coordinator:
            return False
        is_order = isinstance(request, Commit | Goodbye | Reduce) or term_of(request) is not None
        return sender in told or (self.plan.stage_of(sender) is None and not is_order)

    def promised(self, member: Member, plan: Plan) -> None:
        """A member has promised a plan, so that it knows who else is in that. Where it has sent the
        newest one itself, its side has given way to this one's, whatever the terms: before the
        first record two sides may choose in terms of one number.
        """
        self._knowing.add(member)
        leader = plan.position.term.member
        if (
            self.plan is not None
            and member == self._cast.coordinator != leader
            and self._goes_on(plan) >= self._goes_on(self.plan)
        ):
            self._take(plan, leader)
        if self.plan is not None and self.plan.stage_of(member) is not None:
            # Where it follows another side by now, that plan alone counts
            known = self.told.get(member, frozenset()) if leader == self.plan.position.term.member else frozenset()
            self.told[member] = known | (_named(plan) & _named(self.plan))

    def placed(self, member: Member, geneses: Sequence[Founder]) -> None:
        """A member has a place, or gives one, while nothing is committed: where a later founder is
        named than the newest plan's, it begins anew with that one.
        """
        if self.is_replaced(geneses):
            self.dropped(member)

    def is_replaced(self, geneses: Sequence[Founder]) -> bool:
        """Whether a later founder is named than the newest plan's: while nothing is committed, who
        has read of it follows no plan, and who has not cannot be told from here.
        """
        return self.plan is not None and bool(geneses) and self.plan.position.term.number < founders_term(geneses[-1].number)

    def dropped(self, member: Member) -> None:
        """A member has dropped its plan."""
        self.told.pop(member, None)

    def see(self, plan: Plan, sender: Member) -> None:
        """A plan is sent: who may fall is known, and the faults of its iteration are set off."""
        self.coordinators.setdefault(sender)
        if self.plan is None or (self._goes_on(plan), plan.position) > (self._goes_on(self.plan), self.plan.position):
            self._take(plan, sender)
        elif sender != self._cast.coordinator and self.told.pop(sender, None) is not None:
            self.told[sender] = _named(plan) & _named(self.plan)  # it leads another side by now
        if plan.iteration in self._opened_s:
            return
        now_s = self._hub.loop.time()
        self._opened_s[plan.iteration] = now_s
        if plan.iteration - 1 in self._opened_s:
            longest_s = ITERATION_MAX_S * max(1.0, self._setup.work_max_s / USUAL_WORK_S)
            self._iteration_s = min(longest_s, now_s - self._opened_s[plan.iteration - 1])
        iterations = self._setup.manifest.run.iterations
        if plan.iteration >= calm_iteration(self._setup.faults, iterations):
            self._calm_down()
        elif plan.iteration == iterations:
            self._hub.later(CALM_S, self._calm_down)
        blackout = self._setup.blackout
        if blackout is not None and plan.iteration == blackout.iteration:
            self._hub.later(blackout.moment * self._iteration_s, self._cast.black_out, blackout)
        pause = self._setup.pause
        if pause is not None and plan.iteration == pause.iteration:
            self._hub.later(pause.moment * self._iteration_s, self._cast.give_order, Halting.PAUSE)
        for change in self._setup.batches:
            if plan.iteration == change.iteration:
                self._hub.later(change.moment * self._iteration_s, self._cast.set_batch, change.microbatches)
        for fault in self._schedule.pop(plan.iteration, []):
            if isinstance(fault.what, Last):
                self._ending.expect(fault, fault.what)
            else:
                self._hub.later(fault.moment * self._iteration_s, self._strike, fault)

    def _take(self, plan: Plan, sender: Member) -> None:
        self.plan, self._cast.coordinator = plan, sender
        named = _named(plan)
        self.told = {member: those & named for member, those in (self.told | {sender: named}).items() if member in named}

    def _calm_down(self) -> None:
        if not self._hub.calm:
            self._transcript.tell("network", "calm from here on")
            self._hub.calm = True
            for lasting in self._drawn:
                self._cast.end_break(lasting)

    def thaw(self) -> None:
        """The run is over: whoever stands still goes on, but for whom the ending stopped on
        purpose.
        """
        self._over_s = self._hub.loop.time()
        if not self._setup.faults.ending_rate:
            for life in self._cast.lives.values():
                self._cast.thaw(life)

    def is_ending(self) -> bool:
        """Whether somebody may still end: everybody gets a while, and whoever can end as everybody
        does `end_grace_s`.
        """
        for_s = self._hub.loop.time() - max(self._over_s, self._cast.changed_s)
        return bool(self.members() if for_s < END_GRACE_S else for_s < self.end_grace_s and self.stragglers())

    def stragglers(self) -> list[Life]:
        """Living members of the newest plan; where the ending is hard, those that nothing kept from
        hearing since the last iteration began.

        Nobody, where a side that loses has ended before the one that goes on was in its last
        iteration: that one is not through; nor where a side that loses waits in vain.
        """
        if self.plan is not None and self.plan.iteration < self._setup.manifest.run.iterations - 1:
            return []
        if self.plan is not None and self._cast.waits_in_vain(self.plan):
            return []
        if not self._is_hard:
            return self.members()
        since_s = self._opened_s.get(self._setup.manifest.run.iterations - 1, 0.0)
        return [life for life in self.members() if self._cast.hindered_s.get(life.member.peer_id, -1.0) < since_s]

    def members(self) -> list[Life]:
        """Living members of the newest plan."""
        named = self.plan.names() if self.plan is not None else ()
        return [life for member, life in self._cast.lives.items() if member in named and life.is_alive]

    def _strike(self, fault: Fault) -> None:
        if self._hub.calm and not isinstance(fault.what, Fill):
            return
        match fault.what:
            case Crash(stage=stage):
                kind = {SOURCES: "source kill", COORDINATOR: "coordinator kill"}.get(stage, "kill")
                for life in self._falling(fault, stage):
                    self._cast.kill(life, kind, f"crash at stage {stage}" if stage != COORDINATOR else "crash of the coordinator")
            case LoseStage(stage=stage):
                self._lose(stage)
            case LosePair(one=one, other=other):
                if self._lose(one):
                    self._cast.faults["two stages lost"] += self._lose(other)
            case Freeze(stage=stage, duration_s=duration_s):
                for life in self._falling(fault, stage, moving=True):
                    self._cast.freeze(life, duration_s)
            case Join(standby=standby):
                self._cast.join(standby=standby)
            case Leave(stage=stage):
                for life in self._falling(fault, stage, moving=True):
                    self._cast.leave(life)
            case Stick(stage=stage):
                for life in self._falling(fault, stage, moving=True):
                    self._cast.stick(life)
            case Slow(stage=stage, factor=factor, duration_s=duration_s, disk=disk):
                for life in _picked(fault, self._at(stage)):
                    if disk or not self._cast.looks_stuck(factor) or self._cast.leaves_enough([life]):
                        self._cast.slow(life, factor, duration_s, disk=disk)
            case PartitionFault() | Split() | Impair() | Sever():
                self._break(fault, fault.what)
            case Last():
                raise AssertionError("the ending strikes by itself")
            case _:
                self._trouble(fault, fault.what)

    def _trouble(self, fault: Fault, what: Fail | Shelve | Hide | Lag | Fill) -> None:
        """What befalls devices, disks, the directory and links, though nobody falls by it at
        once.
        """
        match what:
            case Fail(stage=stage):
                for life in self._falling(fault, stage, moving=True):
                    self._cast.fail(life)
            case Shelve(stage=stage, wait_s=wait_s, duration_s=duration_s):
                for life in _picked(fault, self._at(stage)):
                    self._cast.shelve(life, wait_s, duration_s)
            case Hide(wait_s=wait_s, duration_s=duration_s):
                self._cast.hide(wait_s, duration_s)
            case Lag(stage=stage, other=other, factor=factor, duration_s=duration_s):
                for sender in _picked(fault, self._at(stage)):
                    for receiver in _picked(fault, [life for life in self._at(other) if life is not sender]):
                        self._cast.lag(sender, receiver, factor, duration_s)
            case Fill(stage=stage):
                for life in _picked(fault, self._at(stage)):
                    self._cast.fill(life, self._refusal(life))
            case _:
                assert_never(what)

    def _refusal(self, life: Life) -> Callable[[int], bool]:
        """Its disk is full for as long as another replica of the stage is there that could write,
        or has ended although nobody had written; one whose device is broken never could.
        """

        def refuses(stage: int) -> bool:
            assert self.plan is not None, "faults follow plans"
            others = [replica.endpoint.member for replica in self.plan.replicas[stage]]
            unable = self._cast.killed | self._cast.full | self._cast.broken
            return any(self._cast.life_of(other) is not life and other not in unable for other in others)

        return refuses

    def _strike_last(self, fault: Fault, last: Last, hearer: Member | None) -> None:
        """Somebody falls in the ending; a sibling lives, or its stage's weights are written."""
        assert self.plan is not None, "faults follow plans"
        if last.whom in {WRITER, HEARER}:
            found = [life for member, life in self._cast.lives.items() if member == hearer and life.is_alive]
        else:
            found = _picked(fault, self._replicas(last.whom))
        for life in found:
            stage = self.plan.stage_of(life.member)
            spared = stage is None or self._cast.is_written(stage) or any(other is not life for other in self._moving(stage))
            # Its guest goes with it, and is mostly the last of its stage
            spared &= all(self._cast.is_written(stage) for stage in self._guest_stages(life))
            if not spared or self._hub.is_frozen(life.member) or not self._cast.leaves_enough([life]):
                continue
            if last.frozen_s:
                self._cast.faults["freeze in the ending"] += 1
                self._cast.freeze(life, last.frozen_s)
            else:
                self._cast.kill(life, "kill in the ending", "in the ending")

    def _guest_stages(self, life: Life) -> list[int]:
        """Stages that guests of this one serve."""
        stages = enumerate(self.plan.replicas) if self.plan is not None else ()
        return [stage for stage, replicas in stages if any(life.has_guest(replica.endpoint.member) for replica in replicas)]

    def _lose(self, stage: int) -> bool:
        """All replicas of a stage die, if they may."""
        candidates = self._replicas(stage)
        if not self._may_fall(stage, candidates, len(candidates)) or not self._cast.leaves_enough(candidates):
            return False
        for life in candidates:
            self._cast.kill(life, "stage kill", f"stage {stage} lost")
        return True

    def _break(self, fault: Fault, what: PartitionFault | Split | Impair | Sever) -> None:
        """Break the network somewhere."""
        match what:
            case Split(salt=salt, refused=refused):
                rng = random.Random(salt)
                group = [life.member.peer_id for life in self._cast.lives.values() if life.is_alive and rng.random() < 0.5]
                new = partitions.partition(group, refused=refused) if group and self._cast.may_part(group) else None
            case PartitionFault(share=share, salt=salt, refused=refused):
                rng = random.Random(salt)
                group = [life.member.peer_id for life in self._breakable() if rng.random() < share]
                new = partitions.partition(group, refused=refused) if group and self._cast.may_part(group) else None
            case Impair(stage=stage, deaf=is_deaf):
                found = [life.member.peer_id for life in _picked(fault, self._breakable(stage))]
                new = (partitions.deaf if is_deaf else partitions.mute)(found[0]) if found else None
            case Sever(stage=stage, other=other, refused=refused):
                one = [life.member.peer_id for life in _picked(fault, self._breakable(stage))]
                two = [life for life in self._breakable(other) if life.member.peer_id not in one]
                new = partitions.cut(one[0], _picked(fault, two)[0].member.peer_id, refused=refused) if one and two else None
        if new is not None:
            self._drawn.append(new)
            kind = BREAK_NAMES.get(type(what)) or ("deaf" if isinstance(what, Impair) and what.deaf else "mute")
            if isinstance(what, Sever) and what.other == LONE:
                self._cast.faults["cut from the only replica"] += 1
            elif isinstance(what, Sever) and what.duration_s == RESET_S:
                self._cast.faults["reset"] += 1
            self._cast.begin_break(new, kind, what.duration_s)

    def _falling(self, fault: Fault, stage: int, *, moving: bool = False) -> list[Life]:
        """The one that a fault takes down, if it may."""
        candidates = [life for life in self._replicas(stage) if not (moving and self._hub.is_frozen(life.member))]
        if stage == LONE:
            found = [life for life in _picked(fault, candidates) if len(self._down(self._stage_of(life))) < self._down_max]
            self._cast.faults["freeze of the only replica"] += len(found)
        else:
            found = _picked(fault, candidates) if self._may_fall(stage, candidates, 1) else []
        return found if self._cast.leaves_enough(found) else []

    def _at(self, stage: int) -> list[Life]:
        """Living replicas of a stage by the newest plan; of `LONE`, those that are their stage's
        only one; of `COORDINATOR`, who coordinates.
        """
        assert self.plan is not None, "faults follow plans"
        if stage == COORDINATOR:
            return [life for member, life in self._cast.lives.items() if member == self._cast.coordinator and life.is_alive]
        if stage == LONE:
            body = [self._at(body_stage) for body_stage in range(1, len(self.plan.replicas))]
            return [lives[0] for lives in body if len(lives) == 1]
        named = {replica.endpoint.member for replica in self.plan.replicas[stage]}
        return [life for member, life in self._cast.lives.items() if member in named and life.is_alive]

    def _breakable(self, stage: int | None = None) -> list[Life]:
        """Living members of the newest plan, or of one stage, that a break may hit."""
        spares = self._setup.faults.ends_spared and stage != COORDINATOR
        return [life for life in (self.members() if stage is None else self._at(stage)) if not (spares and life.can_feed)]

    def _replicas(self, stage: int) -> list[Life]:
        """Whom a fault at `stage` may take down: living replicas by the newest plan, peers without
        a place, or the coordinator.
        """
        assert self.plan is not None, "faults follow plans"
        coordinator = self._cast.coordinator
        if stage in {COORDINATOR, LONE}:
            return self._at(stage)
        if stage == ABSENT:
            named = self.plan.names()
            lives = [life for life in self._cast.lives.values() if life.is_alive]
            return [life for life in lives if life.member not in named and not life.can_feed]
        faults, lives = self._setup.faults, self._at(stage)
        if stage != SOURCES and not faults.strikes_ends:
            # One that could feed and serves the body
            lives = [life for life in lives if not life.can_feed]
        spares = stage == SOURCES or not faults.coordinator_crash_rate
        return [life for life in lives if not (spares and life.member == coordinator)]

    def _may_fall(self, stage: int, candidates: list[Life], count: int) -> bool:
        """Whether so many of them may fall without taking down more stages, or sources, than
        allowed, or the last that hold any state.

        Where nothing is committed, and no organiser is there to name another founder, neither may
        the last that know of a plan: whoever is left waits for that founder for ever, by "A run
        that always begins" of the protocol.
        """
        assert self.plan is not None, "faults follow plans"
        is_first = self.plan.iteration == 0 and self._setup.opening is None
        there = [life for life in self.members() if not life.leaving]
        left = [life for life in there if not is_first or life.member in self._knowing or life.member in self.coordinators]
        if stage != ABSENT and len(left) <= count:
            return False
        if stage == COORDINATOR and candidates:
            place = self.plan.stage_of(candidates[0].member)
            stage = place if place is not None else ABSENT
        if not candidates or stage == ABSENT:
            return bool(candidates)
        if stage == SOURCES:
            return len(self._moving(stage)) - count >= self._setup.faults.sources_left_min
        if len(self._moving(stage)) > count:
            return True
        return len(self._down(stage)) < self._down_max

    @property
    def _down_max(self) -> int:
        return self._setup.faults.stages_down_max

    def _down(self, besides: int) -> list[int]:
        """Body stages without a replica that moves, besides this one."""
        assert self.plan is not None, "faults follow plans"
        return [stage for stage in range(1, len(self.plan.replicas)) if stage != besides and not self._moving(stage)]

    def _stage_of(self, life: Life) -> int:
        assert self.plan is not None, "faults follow plans"
        stage = self.plan.stage_of(life.member)
        return ABSENT if stage is None else stage

    def _moving(self, stage: int) -> list[Life]:
        return [
            life for life in self._at(stage) if not self._hub.is_frozen(life.member) and not life.leaving and not life.pace.stuck
        ]


def _picked(fault: Fault, candidates: list[Life]) -> list[Life]:
    """One of them, as the fault says; nobody where there is nobody."""
    return [candidates[int(fault.pick * len(candidates))]] if candidates else []


def _named(plan: Plan) -> frozenset[Member]:
    return frozenset(plan.names())
