"""What to do when peers are lost, or when a plan has become a bad one: every reaction that there
is, what it costs, and which pays.

A reaction takes a transition, after which iterations take a certain time until the next failure.
Source: Odyssey (arXiv 2508.21613), equation 8. Differs: training may go on during the transition,
and a stage that comes back worse than it was costs iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from swarmfree.policy.planner.allocation import PlanImpossible, ReplicaLimits, allocate, fits, stage_needs
from swarmfree.policy.planner.estimator import IterationTime, is_played, iteration_exact, memory_bytes, stage_work
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.model_size import FLOAT_BYTES, stage_parameters
from swarmfree.policy.planner.moves import MovePeer, MovePlanner, stage_loads
from swarmfree.policy.planner.scores import STATE_FLOATS, StageRecovery, expected_loss, score
from swarmfree.policy.planner.transfer import keep_places
from swarmfree.protocol.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Reroute:
    """The siblings of the lost do their work, and nothing else changes."""

    def __str__(self) -> str:
        """For an operator, as that of each other reaction."""
        return "the siblings go on with all the work"


@dataclass(frozen=True, slots=True)
class AdoptStage:
    """A peer serves a lost stage as well as its own."""

    peer: str
    stage: int

    def __str__(self) -> str:
        """For an operator."""
        return f"{self.peer} adopts stage {self.stage}"


@dataclass(frozen=True, slots=True)
class AwaitNewcomer:
    """The places stay empty until newcomers take all of them.

    Args:
        seconds: expected.
    """

    seconds: float

    def __str__(self) -> str:
        """For an operator."""
        return f"newcomers are waited for, {self.seconds:,.0f} s"


@dataclass(frozen=True, slots=True)
class Replan:
    """All peers get the places of a new plan."""

    moves: int

    def __str__(self) -> str:
        """For an operator."""
        return f"a new plan for everybody, in which {self.moves} place{'s' * (self.moves != 1)} will be others'"


Reaction = Reroute | MovePeer | AdoptStage | AwaitNewcomer | Replan


IterationTimes = Callable[[Fleet, ExecutionPlan, Manifest], IterationTime | None]
NO_NEWCOMER = math.inf


@dataclass(frozen=True, slots=True)
class RatedReaction:
    """One reaction, and what it is expected to cost.

    Args:
        reactions: what is done; one, or several of a kind.
        plan: who serves what then.
        transition_s: until then.
        meanwhile_s: seconds of an iteration during the transition; infinite while training stands
            still.
        iteration_s: seconds of an iteration afterwards.
        iterations_lost: see `StageRecovery`.
        risk: iterations that the next failure is expected to cost, see `expected_loss`.
        score: iterations a second until the next failure.
        is_bound: links are left out of its iterations, see `Outlook.time`.
    """

    reactions: tuple[Reaction, ...]
    plan: ExecutionPlan
    transition_s: float
    meanwhile_s: float
    iteration_s: float
    iterations_lost: float
    risk: float
    score: float
    is_bound: bool = False

    @property
    def reason(self) -> str:
        """For an operator."""
        meanwhile = (
            f", iterations of {self.meanwhile_s:.2f} s meanwhile" if self.meanwhile_s < math.inf and self.transition_s else ""
        )
        lost = f", {self.iterations_lost:.0f} iterations of learning lost" if self.iterations_lost else ""
        risk = f", and the next failure costs {self.risk:.1f}" if self.risk else ""
        return (
            f"{self.transition_s:.1f} s of change{meanwhile}, then iterations of {self.iteration_s:.2f} s{lost}{risk}: "
            f"{3600 * self.score:,.{1 if self.score >= 1 / 3600 else 3}f} iterations an hour until the next failure"
        )


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a reaction depends on beside the plan.

    Args:
        recovery: of a stage that has no replica left.
        newcomer_s: expected wait for one peer like the lost ones; `NO_NEWCOMER` = none is
            expected.
        limits: on replicas; None = the manifest's.
        horizon_s: G; None = the fleet's expected time to the next failure. In a fleet so large that
            somebody dies during every change, that is too short: what counts then is how long a
            plan is in use.
        time: of an iteration of a plan; where it does not know that of one of those that are looked
            at, `iteration_exact` tells those of all.
    """

    recovery: StageRecovery
    newcomer_s: float = NO_NEWCOMER
    limits: ReplicaLimits | None = None
    horizon_s: float | None = None
    time: IterationTimes = iteration_exact


def copy_rounds(donors: int, takers: int) -> int:
    """How many copies one after the other until all takers have a state, where everyone who has it
    gives it to one at a time: ceil(log2((donors + takers) / donors)).
    """
    return math.ceil(math.log2((donors + takers) / donors))


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
    try:
        return _options(fleet, plan, lost, manifest, outlook)
    except _NotKnown:  # what is compared has to be told alike
        return _options(fleet, plan, lost, manifest, replace(outlook, time=iteration_exact))


class _NotKnown(Exception):
    """The time of an iteration is not."""


def _options(
    fleet: Fleet, plan: ExecutionPlan, lost: frozenset[str], manifest: Manifest, outlook: Outlook
) -> tuple[RatedReaction, ...]:
    chooser = _Chooser(fleet, plan, lost, manifest, outlook)
    found = [*chooser.reroute(), *chooser.move(), *chooser.adopt(), *chooser.wait(), *chooser.replan()]
    return tuple(sorted(found, key=lambda option: (-option.score, option.transition_s)))


class _Chooser:
    def __init__(self, fleet: Fleet, plan: ExecutionPlan, lost: frozenset[str], manifest: Manifest, outlook: Outlook) -> None:
        self._whole, self._before = fleet, plan
        self._fleet, self._plan = fleet.without(lost), plan.without(lost)
        self._manifest, self._outlook = manifest, outlook
        self._empty = self._plan.empty_stages
        self._meanwhile_s = self._iteration_s(self._fleet, self._plan)
        self._work = stage_work(manifest, plan.blocks, fleet.ends_blocks)
        self._sizes = [
            STATE_FLOATS * FLOAT_BYTES * stage_parameters(manifest.model, stage, count) for stage, count in enumerate(plan.blocks)
        ]
        self._limits = outlook.limits or ReplicaLimits(manifest.stages.replicas_max, manifest.stages.sources_max)
        self._needs = stage_needs(manifest, plan.blocks, self._limits.sources_max)

    def _iteration_s(self, fleet: Fleet, plan: ExecutionPlan) -> float:
        time = self._outlook.time(fleet, plan, self._manifest)
        if time is None:
            raise _NotKnown
        return time.seconds

    def _rate(self, reactions: Sequence[Reaction], plan: ExecutionPlan, transition_s: float, fleet: Fleet) -> RatedReaction:
        iteration_s = self._iteration_s(fleet, plan)
        recovery = self._outlook.recovery
        lost = recovery.iterations_lost * len(self._empty)
        risk = expected_loss(fleet, plan, recovery, iteration_s)
        horizon_s = fleet.seconds_to_failure if self._outlook.horizon_s is None else self._outlook.horizon_s
        value = score(transition_s, iteration_s, horizon_s, self._meanwhile_s, lost + risk)
        is_bound = self._outlook.time is iteration_exact and not is_played(plan, self._manifest)
        return RatedReaction(tuple(reactions), plan, transition_s, self._meanwhile_s, iteration_s, lost, risk, value, is_bound)

    def _fill_s(self, takers: Mapping[int, Sequence[str]]) -> float:
        """Seconds until these peers hold these stages: the first one of a lost stage has it
        recovered, the others copy.
        """
        longest_s = 0.0
        for stage, names in takers.items():
            donors, copies = len(self._plan.replicas[stage]), len(names)
            seconds = 0.0
            if not donors:
                seconds, donors, copies = self._outlook.recovery.seconds, 1, copies - 1
            if copies:
                slowest = min(self._whole.by_name[name].bytes_per_s for name in (*names, *self._plan.replicas[stage]))
                seconds += copy_rounds(donors, copies) * self._sizes[stage] / slowest
            longest_s = max(longest_s, seconds)
        return longest_s

    def reroute(self) -> list[RatedReaction]:
        return [] if self._empty else [self._rate([Reroute()], self._plan, 0.0, self._fleet)]

    def move(self) -> list[RatedReaction]:
        """As few moves as training needs to go on, one at least; and as many as are worth while."""
        planner = MovePlanner(self._fleet, self._plan, self._work, self._needs, self._limits)
        if not (planner.fill() if self._empty else planner.help_slowest()):
            return []
        found = [self._rate_moves(planner)]
        while planner.help_slowest():
            pass
        return [*found, self._rate_moves(planner)] if len(planner.moves) > len(found[0].reactions) else found

    def _rate_moves(self, planner: MovePlanner) -> RatedReaction:
        takers: dict[int, list[str]] = {}
        for move in planner.moves:
            takers.setdefault(move.taker, []).append(move.peer)
        return self._rate(planner.moves, planner.plan, self._fill_s(takers), self._fleet)

    def adopt(self) -> list[RatedReaction]:
        """Each empty stage to the peer that has room and the least to do."""
        plan, adoptions = self._plan, list[AdoptStage]()
        for stage in self._empty:
            peer = self._adopter(plan, stage)
            if peer is None:
                return []
            adoptions.append(AdoptStage(peer.name, stage))
            plan = plan.with_replicas({stage: (peer.name,)})
        takers = {adoption.stage: [adoption.peer] for adoption in adoptions}
        return [self._rate(adoptions, plan, self._fill_s(takers), self._fleet)] if adoptions else []

    def _adopter(self, plan: ExecutionPlan, stage: int) -> PeerProfile | None:
        """The one with the least to do afterwards; of equal ones the nearest, which has kept what
        crossed the boundary of the lost stage.
        """
        needed, loads = memory_bytes(plan, self._manifest), stage_loads(self._fleet, plan, self._work)
        best: tuple[float, int, str] | None = None
        for name, stages in plan.stages_of.items():
            peer = self._fleet.by_name[name]
            if not fits(peer, stage, [needed[name] + size for size in self._needs]):
                continue
            busy_s = sum(loads[own] for own in stages) + self._work[stage] * peer.block_s
            distance = min(abs(own - stage) for own in stages)
            best = min(best or (math.inf, 0, ""), (busy_s, distance, name))
        return None if best is None else self._fleet.by_name[best[2]]

    def wait(self) -> list[RatedReaction]:
        """The plan as it was, once newcomers like the lost have come, one after the other."""
        takers: dict[int, list[str]] = {}
        for stage, names in enumerate(self._before.replicas):
            if gone := [name for name in names if name not in self._fleet.by_name]:
                takers[stage] = gone
        wait_s = self._outlook.newcomer_s * sum(map(len, takers.values())) if takers else math.inf
        if wait_s == math.inf:
            return []
        return [self._rate([AwaitNewcomer(wait_s)], self._before, wait_s + self._fill_s(takers), self._whole)]

    def replan(self) -> list[RatedReaction]:
        """A plan from nothing, taken with the fewest bytes."""
        try:
            fresh = allocate(self._fleet, self._manifest, self._limits)
        except PlanImpossible:
            return []
        plan = keep_places(self._plan, fresh, self._fleet, self._sizes)
        held, takers = self._plan.stages_of, dict[int, list[str]]()
        for name, stages in plan.stages_of.items():
            for stage in stages:
                if stage not in held.get(name, ()):
                    takers.setdefault(stage, []).append(name)
        moves = sum(map(len, takers.values()))
        return [self._rate([Replan(moves)], plan, self._fill_s(takers), self._fleet)] if moves else []
