"""What to do when peers are lost, or when a plan has become a bad one: every reaction that there
is, what it costs, and which pays.

A reaction takes a transition, after which iterations take a certain time until the next failure.
Source: Odyssey (arXiv 2508.21613), equation 8. Differs: training may go on during the transition,
and a stage that comes back worse than it was costs iterations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.policy.planner.allocation import PlanImpossible, ReplicaLimits, allocate, fits, moved, stage_needs
from swarmfree.policy.planner.estimator import iteration_bound, memory_bytes, stage_work
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.model_size import FLOAT_BYTES, stage_parameters
from swarmfree.policy.planner.transfer import keep_places
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import NO_STAGE

STATE_FLOATS = 3
"""A copy of a stage is its weights and two moments."""


@dataclass(frozen=True, slots=True)
class Reroute:
    """The siblings of the lost do their work, and nothing else changes."""


@dataclass(frozen=True, slots=True)
class MovePeer:
    """A peer goes to another stage.

    Args:
        peer: its name.
        giver: the stage that it leaves; `NO_STAGE` for a standby.
        taker: the stage that it goes to.
    """

    peer: str
    giver: int
    taker: int


@dataclass(frozen=True, slots=True)
class AdoptStage:
    """A peer of a neighbour stage serves a lost stage as well."""

    peer: str
    stage: int


@dataclass(frozen=True, slots=True)
class AwaitNewcomer:
    """The places stay empty until newcomers take them."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Replan:
    """All peers get the places of a new plan."""

    moves: int


Reaction = Reroute | MovePeer | AdoptStage | AwaitNewcomer | Replan


@dataclass(frozen=True, slots=True)
class StageRecovery:
    """How the state of a stage without a replica would come back.

    Args:
        seconds: until it is there, at a peer that is there.
        iterations_lost: that training needs to be as good as before.
    """

    seconds: float
    iterations_lost: float = 0.0


NO_NEWCOMER = math.inf


@dataclass(frozen=True, slots=True)
class RatedReaction:
    """One reaction, and what it is expected to cost.

    Args:
        reactions: what is done; one, or several of a kind where several stages are lost.
        plan: who serves what then.
        transition_s: until then.
        meanwhile_s: seconds of an iteration during the transition; infinite while training stands
            still.
        iteration_s: seconds of an iteration afterwards.
        iterations_lost: see `StageRecovery`.
        score: iterations a second until the next failure.
    """

    reactions: tuple[Reaction, ...]
    plan: ExecutionPlan
    transition_s: float
    meanwhile_s: float
    iteration_s: float
    iterations_lost: float
    score: float

    @property
    def reason(self) -> str:
        """For an operator."""
        meanwhile = f", {self.meanwhile_s:.2f} s each meanwhile" if self.meanwhile_s < math.inf and self.transition_s else ""
        lost = f", {self.iterations_lost:.0f} iterations of learning lost" if self.iterations_lost else ""
        return (
            f"{self.transition_s:.1f} s of change{meanwhile}, then {self.iteration_s:.2f} s an iteration{lost}: "
            f"{3600 * self.score:,.0f} iterations an hour until the next failure"
        )


def score(
    transition_s: float,
    iteration_s: float,
    seconds_to_failure: float,
    meanwhile_s: float = math.inf,
    iterations_lost: float = 0.0,
) -> float:
    """Iterations a second that a reaction brings until the next failure.

    (1 - t / G) / T + (t / G) / T_meanwhile - lost / G, where t / G is at most 1.

    Args:
        transition_s: t.
        iteration_s: T, afterwards; infinite where training cannot go on.
        seconds_to_failure: G, expected from the beginning of the transition.
        meanwhile_s: T_meanwhile.
        iterations_lost: that training needs to be as good as before.

    Source: equation 8, for one iteration's batch, with G = t + the time that the plan is in use.
    """
    share = 1.0 if transition_s == math.inf else min(1.0, transition_s / seconds_to_failure)
    return (1 - share) / iteration_s + share / meanwhile_s - iterations_lost / seconds_to_failure


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a reaction depends on beside the plan.

    Args:
        recovery: of a stage that has no replica left.
        newcomer_s: expected wait for a peer like the lost one; `NO_NEWCOMER` = none is expected.
        limits: on replicas; None = the manifest's.
    """

    recovery: StageRecovery
    newcomer_s: float = NO_NEWCOMER
    limits: ReplicaLimits | None = None


def options(
    fleet: Fleet, plan: ExecutionPlan, lost: frozenset[str], manifest: Manifest, outlook: Outlook
) -> tuple[RatedReaction, ...]:
    """List the reactions that are possible, the best first; of equal ones that with the shortest
    transition.

    Args:
        fleet: with the lost peers.
        plan: as it was with them.
        lost: names; empty where the plan itself is in question.
        manifest: of the run.
        outlook: see there.
    """
    chooser = _Chooser(fleet, plan, lost, manifest, outlook)
    found = [*chooser.reroute(), *chooser.move(), *chooser.adopt(), *chooser.wait(), *chooser.replan()]
    return tuple(sorted(found, key=lambda option: (-option.score, option.transition_s)))


class _Chooser:
    def __init__(self, fleet: Fleet, plan: ExecutionPlan, lost: frozenset[str], manifest: Manifest, outlook: Outlook) -> None:
        self._whole, self._before = fleet, plan
        self._fleet, self._plan = fleet.without(lost), plan.without(lost)
        self._manifest, self._outlook = manifest, outlook
        self._empty = self._plan.empty_stages
        self._meanwhile_s = iteration_bound(self._fleet, self._plan, manifest).seconds
        self._sizes = [
            STATE_FLOATS * FLOAT_BYTES * stage_parameters(manifest.model, stage, count) for stage, count in enumerate(plan.blocks)
        ]
        limits = outlook.limits
        self._limits = limits or ReplicaLimits(manifest.stages.replicas_max, manifest.stages.sources_max)
        self._needs = stage_needs(manifest, plan.blocks, self._limits.sources_max)

    def _option(self, reactions: Sequence[Reaction], plan: ExecutionPlan, transition_s: float, fleet: Fleet) -> RatedReaction:
        iteration_s = iteration_bound(fleet, plan, self._manifest).seconds
        lost = self._outlook.recovery.iterations_lost * len(self._empty)
        value = score(transition_s, iteration_s, fleet.seconds_to_failure, self._meanwhile_s, lost)
        return RatedReaction(tuple(reactions), plan, transition_s, self._meanwhile_s, iteration_s, lost, value)

    def _fill_s(self, name: str, stage: int) -> float:
        """Seconds until a peer holds a stage: copied from all replicas at once, or recovered."""
        donors = self._plan.replicas[stage]
        if not donors:
            return self._outlook.recovery.seconds
        peer = self._fleet.by_name[name]
        links = [self._fleet.link(donor, name) for donor in donors]
        speed = min(peer.bytes_per_s, sum(link.bytes_per_s for link in links))
        return max(link.latency_s for link in links) + self._sizes[stage] / speed

    def reroute(self) -> list[RatedReaction]:
        return [] if self._empty else [self._option([Reroute()], self._plan, 0.0, self._fleet)]

    def move(self) -> list[RatedReaction]:
        """Standbys, or peers of rich stages, to the empty stages; where none is empty, to the
        slowest.
        """
        plan, moves = self._plan, list[MovePeer]()
        for taker in self._empty or (self._slowest(),):
            if len(plan.replicas[taker]) >= self._limits.of(taker):
                return []
            found = self._best_move(plan, taker)
            if found is None:
                return []
            moves.append(found)
            if found.giver == NO_STAGE:
                plan = plan.with_replicas({taker: (*plan.replicas[taker], found.peer)})
            else:
                plan = moved(plan, found.peer, found.giver, taker)
        return [self._option(moves, plan, max(self._fill_s(m.peer, m.taker) for m in moves), self._fleet)]

    def _slowest(self) -> int:
        ratios = self._ratios(self._plan)
        return max(range(len(ratios)), key=lambda stage: (ratios[stage], -stage))

    def _speeds(self, plan: ExecutionPlan) -> list[float]:
        return [sum(1 / self._fleet.by_name[name].block_s for name in names) for names in plan.replicas]

    def _ratios(self, plan: ExecutionPlan) -> list[float]:
        work = stage_work(self._manifest, plan.blocks)
        return [w / v if v else math.inf for w, v in zip(work, self._speeds(plan), strict=True)]

    def _best_move(self, plan: ExecutionPlan, taker: int) -> MovePeer | None:
        """The peer whose move leaves the slowest stage fastest; a standby before one that serves;
        nobody who serves alone, or several stages.
        """
        work, speed, ratios = stage_work(self._manifest, plan.blocks), self._speeds(plan), self._ratios(plan)
        slowest = sorted(range(len(ratios)), key=lambda stage: -ratios[stage])[:3]
        stages_of = plan.stages_of()
        best: tuple[float, int, str] | None = None
        for peer in self._fleet.peers:
            stages = stages_of.get(peer.name, ())
            giver = stages[0] if stages else NO_STAGE
            if len(stages) > 1 or giver == taker or not fits(peer, taker, self._needs):
                continue
            if stages and len(plan.replicas[giver]) == 1:
                continue
            gained = 1 / peer.block_s
            after = max((ratios[s] for s in slowest if s not in {giver, taker}), default=0.0)
            after = max(after, work[taker] / (speed[taker] + gained))
            if stages:
                after = max(after, work[giver] / (speed[giver] - gained))
            best = min(best or (math.inf, 0, ""), (after, giver, peer.name))
        return None if best is None else MovePeer(best[2], best[1], taker)

    def adopt(self) -> list[RatedReaction]:
        """Each empty stage to the fastest peer with room in the nearest stages that have one."""
        if not self._empty:
            return []
        plan, adoptions = self._plan, list[AdoptStage]()
        for stage in self._empty:
            peer = self._adopter(plan, stage)
            if peer is None:
                return []
            adoptions.append(AdoptStage(peer.name, stage))
            plan = plan.with_replicas({stage: (peer.name,)})
        return [self._option(adoptions, plan, self._outlook.recovery.seconds, self._fleet)]

    def _adopter(self, plan: ExecutionPlan, stage: int) -> PeerProfile | None:
        needed, count = memory_bytes(plan, self._manifest), len(plan.blocks)
        for distance in range(1, count):
            # The ends follow the last stage.
            neighbours = {(stage - distance) % count, (stage + distance) % count}
            peers = [self._fleet.by_name[name] for name in sorted({name for s in neighbours for name in plan.replicas[s]})]
            able = [p for p in peers if fits(p, stage, [needed[p.name] + size for size in self._needs])]
            if able:
                return min(able, key=lambda peer: (peer.block_s, peer.name))
        return None

    def wait(self) -> list[RatedReaction]:
        """The plan as it was, once newcomers have come that are like the lost."""
        wait_s = self._outlook.newcomer_s
        if wait_s == math.inf or self._fleet.peers == self._whole.peers:
            return []
        lost = [(name, s) for name, stages in self._before.stages_of().items() for s in stages if name not in self._fleet.by_name]
        fill_s = [self._newcomer_s(name, stage) for name, stage in lost]
        return [self._option([AwaitNewcomer(wait_s)], self._before, wait_s + max(fill_s, default=0.0), self._whole)]

    def _newcomer_s(self, name: str, stage: int) -> float:
        if not self._plan.replicas[stage]:
            return self._outlook.recovery.seconds
        return self._sizes[stage] / self._whole.by_name[name].bytes_per_s

    def replan(self) -> list[RatedReaction]:
        """A plan from nothing, taken with the fewest bytes."""
        try:
            fresh = allocate(self._fleet, self._manifest, self._limits)
        except PlanImpossible:
            return []
        plan = keep_places(self._plan, fresh, self._fleet, self._sizes)
        held = self._plan.stages_of()
        lacking = [(name, s) for name, stages in plan.stages_of().items() for s in stages if s not in held.get(name, ())]
        # Donors serve one copy after the other.
        fill_s: dict[int, float] = {}
        for name, stage in lacking:
            fill_s[stage] = fill_s.get(stage, 0.0) + self._fill_s(name, stage)
        return [self._option([Replan(len(lacking))], plan, max(fill_s.values(), default=0.0), self._fleet)]
