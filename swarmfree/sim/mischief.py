"""Who falls when: the schedule of faults meets the plans that the coordinator sends.

A fault is set off by the first opening of its iteration. Whom it hits is decided when it strikes, among those that the newest plan names, so that
stage 0 and the coordinator are spared and never more stages go down at once than the plan of faults allows.
"""

from __future__ import annotations

from swarmfree.sim.cast import Cast
from swarmfree.sim.faults import Crash, Fault, Freeze, Join, LoseStage, calm_iteration
from swarmfree.sim.life import Life
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.setup import Setup
from swarmfree.sim.transcript import Transcript
from swarmfree.swarm.plan import Plan

FIRST_ITERATION_S = 0.5
ITERATION_MAX_S = 5.0
NO_PLACE = -1


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
    """

    def __init__(self, setup: Setup, schedule: tuple[Fault, ...], hub: MemoryHub, cast: Cast, transcript: Transcript) -> None:
        """Nothing has been opened yet."""
        self._setup, self._hub, self._cast, self._transcript = setup, hub, cast, transcript
        self._schedule: dict[int, list[Fault]] = {}
        for fault in schedule:
            self._schedule.setdefault(fault.iteration, []).append(fault)
        self._opened_s: dict[int, float] = {}
        self._iteration_s = FIRST_ITERATION_S
        self.plan: Plan | None = None

    def see(self, plan: Plan) -> None:
        """A plan is sent: who may fall is known, and the faults of its iteration are set off."""
        if self.plan is None or plan.position > self.plan.position:
            self.plan = plan
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
                candidates = self._replicas(stage)
                if self._may_fall(stage, candidates, 1):
                    self._cast.kill(candidates[int(fault.pick * len(candidates))], "kill", f"crash at stage {stage}")
            case LoseStage(stage=stage):
                candidates = self._replicas(stage)
                if self._may_fall(stage, candidates, len(candidates)):
                    for life in candidates:
                        self._cast.kill(life, "stage kill", f"stage {stage} lost")
            case Freeze(stage=stage, duration_s=duration_s):
                candidates = [life for life in self._replicas(stage) if not self._hub.is_frozen(life.member)]
                if self._may_fall(stage, candidates, 1):
                    self._cast.freeze(candidates[int(fault.pick * len(candidates))], duration_s)
            case Join(standby=standby):
                self._cast.join(standby=standby)

    def _replicas(self, stage: int) -> list[Life]:
        """Living replicas of a stage by the newest plan; `NO_PLACE`: peers that it does not name."""
        assert self.plan is not None, "faults follow plans"
        lives = [life for life in self._cast.lives.values() if life.is_alive and life.member.peer_id not in self._hub.spared]
        if stage == NO_PLACE:
            named = {endpoint.member for endpoint in self.plan.members()}
            return [life for life in lives if life.member not in named and not life.can_feed]
        named = {replica.endpoint.member for replica in self.plan.replicas[stage]}
        return [life for life in lives if life.member in named]

    def _may_fall(self, stage: int, candidates: list[Life], count: int) -> bool:
        """Whether so many of them may fall without taking down more stages than allowed."""
        if not candidates or stage == NO_PLACE:
            return bool(candidates)
        moving = [life for life in candidates if not self._hub.is_frozen(life.member)]
        if len(moving) > count:
            return True
        assert self.plan is not None, "faults follow plans"
        down = [s for s in range(1, len(self.plan.replicas)) if s != stage and not self._stands(s)]
        return len(down) < self._setup.faults.stages_down_max

    def _stands(self, stage: int) -> bool:
        return any(not self._hub.is_frozen(life.member) for life in self._replicas(stage))
