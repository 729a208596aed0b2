"""Who falls when: the schedule of faults meets the plans that the coordinator sends.

A fault is set off by the first opening of its iteration. Whom it hits is decided when it strikes, among those that the newest plan names, so that
never more stages go down at once, and never more sources, than the plan of faults allows. Who coordinates is whoever sent the newest plan.
"""

from __future__ import annotations

import random
from typing import assert_never

from swarmfree.sim import breaks
from swarmfree.sim.breaks import Break
from swarmfree.sim.cast import Cast
from swarmfree.sim.faults import calm_iteration
from swarmfree.sim.life import Life
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.schedule import (
    COORDINATOR,
    NO_PLACE,
    SOURCES,
    Crash,
    Fault,
    Freeze,
    Impair,
    Join,
    Leave,
    LoseStage,
    Part,
    Sever,
    Slow,
    Stick,
)
from swarmfree.sim.setup import Setup
from swarmfree.sim.transcript import Transcript
from swarmfree.swarm.names import Member
from swarmfree.swarm.plan import Plan

FIRST_ITERATION_S = 0.5
ITERATION_MAX_S = 5.0


class Mischief:
    """Brings the faults about.

    Args:
        setup: what is played.
        schedule: the faults of peers.
        hub: the network.
        cast: the peers.
        transcript: when the calm begins.

    Attributes:
        plan: the newest that was sent.
        coordinators: everybody who ever sent a plan, the first one first.
    """

    def __init__(self, setup: Setup, schedule: tuple[Fault, ...], hub: MemoryHub, cast: Cast, transcript: Transcript) -> None:
        """Nothing has been opened yet."""
        self._setup, self._hub, self._cast, self._transcript = setup, hub, cast, transcript
        self._schedule: dict[int, list[Fault]] = {}
        for fault in schedule:
            self._schedule.setdefault(fault.iteration, []).append(fault)
        self._opened_s: dict[int, float] = {}
        self._iteration_s = FIRST_ITERATION_S
        self._drawn: list[Break] = []
        self.plan: Plan | None = None
        self.coordinators: dict[Member, None] = {}

    def see(self, plan: Plan, sender: Member) -> None:
        """A plan is sent: who may fall is known, and the faults of its iteration are set off."""
        self.coordinators.setdefault(sender)
        if self.plan is None or plan.position > self.plan.position:
            self.plan, self._cast.coordinator = plan, sender
        if plan.iteration in self._opened_s:
            return
        now_s = self._hub.loop.time()
        self._opened_s[plan.iteration] = now_s
        if plan.iteration - 1 in self._opened_s:
            self._iteration_s = min(ITERATION_MAX_S, now_s - self._opened_s[plan.iteration - 1])
        calm_from = calm_iteration(self._setup.faults, self._setup.manifest.run.iterations)
        if plan.iteration >= calm_from and not self._hub.calm:
            self._transcript.tell("network", "calm from here on")
            self._hub.calm = True
            for lasting in self._drawn:
                self._cast.end_break(lasting)
        for fault in self._schedule.pop(plan.iteration, []):
            self._hub.later(fault.moment * self._iteration_s, self._strike, fault)

    def members(self) -> list[Life]:
        """Living members of the newest plan."""
        named = {endpoint.member for endpoint in self.plan.members()} if self.plan is not None else set()
        return [life for member, life in self._cast.lives.items() if member in named and life.is_alive]

    def _strike(self, fault: Fault) -> None:
        if self._hub.calm:
            return
        match fault.what:
            case Crash(stage=stage):
                kind = {SOURCES: "source kill", COORDINATOR: "coordinator kill"}.get(stage, "kill")
                for life in self._falling(fault, stage):
                    self._cast.kill(life, kind, f"crash at stage {stage}" if stage != COORDINATOR else "crash of the coordinator")
            case LoseStage(stage=stage):
                candidates = self._replicas(stage)
                if self._may_fall(stage, candidates, len(candidates)):
                    for life in candidates:
                        self._cast.kill(life, "stage kill", f"stage {stage} lost")
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
                    self._cast.slow(life, factor, duration_s, disk=disk)
            case Part() | Impair() | Sever():
                self._break(fault, fault.what)
            case _:
                assert_never(fault.what)

    def _break(self, fault: Fault, what: Part | Impair | Sever) -> None:
        """Break the network somewhere."""
        match what:
            case Part(share=share, salt=salt, refused=refused):
                rng = random.Random(salt)
                group = [life.member.peer_id for life in self._breakable() if rng.random() < share]
                new = breaks.partition(group, refused=refused) if group else None
            case Impair(stage=stage, deaf=is_deaf):
                found = [life.member.peer_id for life in _picked(fault, self._breakable(stage))]
                new = (breaks.deaf if is_deaf else breaks.mute)(found[0]) if found else None
            case Sever(stage=stage, other=other, refused=refused):
                one = [life.member.peer_id for life in _picked(fault, self._breakable(stage))]
                two = [life for life in self._breakable(other) if life.member.peer_id not in one]
                new = breaks.cut(one[0], _picked(fault, two)[0].member.peer_id, refused=refused) if one and two else None
        if new is not None:
            self._drawn.append(new)
            kind = (
                "partition" if isinstance(what, Part) else "cut" if isinstance(what, Sever) else "deaf" if what.deaf else "mute"
            )
            self._cast.begin_break(new, kind, what.duration_s)

    def _falling(self, fault: Fault, stage: int, *, moving: bool = False) -> list[Life]:
        """The one that a fault takes down, if it may."""
        candidates = [life for life in self._replicas(stage) if not (moving and self._hub.is_frozen(life.member))]
        return _picked(fault, candidates) if self._may_fall(stage, candidates, 1) else []

    def _at(self, stage: int) -> list[Life]:
        """Living replicas of a stage by the newest plan."""
        assert self.plan is not None, "faults follow plans"
        named = {replica.endpoint.member for replica in self.plan.replicas[stage]}
        return [life for member, life in self._cast.lives.items() if member in named and life.is_alive]

    def _breakable(self, stage: int | None = None) -> list[Life]:
        """Living members of the newest plan, or of one stage, that a break may hit."""
        spares = self._setup.faults.ends_spared
        return [life for life in (self.members() if stage is None else self._at(stage)) if not (spares and life.can_feed)]

    def _replicas(self, stage: int) -> list[Life]:
        """Whom a fault at `stage` may take down: living replicas by the newest plan, peers without a place, or the coordinator."""
        assert self.plan is not None, "faults follow plans"
        coordinator = self._cast.coordinator
        if stage == COORDINATOR:
            return [life for member, life in self._cast.lives.items() if member == coordinator and life.is_alive]
        if stage == NO_PLACE:
            named = {endpoint.member for endpoint in self.plan.members()}
            lives = [life for life in self._cast.lives.values() if life.is_alive]
            return [life for life in lives if life.member not in named and not life.can_feed]
        faults, lives = self._setup.faults, self._at(stage)
        if stage != SOURCES and not faults.strikes_ends:
            lives = [life for life in lives if not life.can_feed]  # one that could feed and serves the body
        spares = stage == SOURCES or not faults.coordinator_crash_rate
        return [life for life in lives if not (spares and life.member == coordinator)]

    def _may_fall(self, stage: int, candidates: list[Life], count: int) -> bool:
        """Whether so many of them may fall without taking down more stages, or sources, than allowed, or the last that hold any state."""
        assert self.plan is not None, "faults follow plans"
        if stage != NO_PLACE and sum(not life.leaving for life in self.members()) <= count:
            return False
        if stage == COORDINATOR and candidates:
            place = self.plan.stage_of(candidates[0].member)
            stage = place if place is not None else NO_PLACE
        if not candidates or stage == NO_PLACE:
            return bool(candidates)
        if stage == SOURCES:
            return len(self._moving(stage)) - count >= self._setup.faults.sources_left_min
        if len(self._moving(stage)) > count:
            return True
        down = [s for s in range(1, len(self.plan.replicas)) if s != stage and not self._moving(s)]
        return len(down) < self._setup.faults.stages_down_max

    def _moving(self, stage: int) -> list[Life]:
        return [
            life for life in self._at(stage) if not self._hub.is_frozen(life.member) and not life.leaving and not life.pace.stuck
        ]


def _picked(fault: Fault, candidates: list[Life]) -> list[Life]:
    """One of them, as the fault says; nobody where there is nobody."""
    return [candidates[int(fault.pick * len(candidates))]] if candidates else []
