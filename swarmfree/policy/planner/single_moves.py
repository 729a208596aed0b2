"""Whether one peer of a running swarm should serve another stage, which one, and what that costs
and brings.

One move at a time, between stages of the body: few can feed stage 0. A peer leaves its stage as an
iteration begins and copies the other one while the rest goes on, so nothing waits for it.
Source: Odyssey (arXiv 2508.21613), equation 8, as in `reactions.score`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from swarmfree.policy.placement import RICH
from swarmfree.policy.planner.allocation import RISK_SLOWDOWN_MAX, ReplicaLimits, fits, moved, stage_needs
from swarmfree.policy.planner.estimator import IterationTime, PlanBounds, is_played, iteration_estimate, stage_work
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet
from swarmfree.policy.planner.hysteresis import ChangeRules
from swarmfree.policy.planner.model_size import FLOAT_BYTES, stage_parameters
from swarmfree.policy.planner.moves import MovePeer, stage_loads
from swarmfree.policy.planner.scores import STATE_FLOATS, StageRecovery, expected_loss, score
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ABSENT, ENDS_STAGE

SETTLING_MAX = 32
PLAYED_TOGETHER_MAX = 4_000
"""Microbatches times stages times plans, up to which all schedules are played: a tenth of a second
or so, once each; else bounds are compared. What is best by these is played more often.
"""
TRUST = 1.25
"""So many times what an iteration takes it may be expected to by its links, to be believed."""
SLOWEST, GIVERS = 2, 3
"""So many stages with the most work for their speed may get a peer, from so many with the least."""


@dataclass(frozen=True, slots=True)
class MoveOutlook:
    """What a move depends on beside fleet and plan.

    Args:
        movable: names of peers that may move.
        limits: on replicas.
        copy_s: seconds that a copy of so many bytes takes.
        unexplained_s: of an iteration, beyond what devices compute: messages, averaging, the
            commit; taken to be the same with every plan.
        recovery: of a stage that has no replica left.
        horizon_s: expected until the next failure.
    """

    movable: Collection[str]
    limits: ReplicaLimits
    copy_s: Callable[[float], float]
    unexplained_s: float
    recovery: StageRecovery
    horizon_s: float


@dataclass(frozen=True, slots=True)
class RatedMove:
    """One move, and what is expected of it.

    Args:
        move: who goes from where to where.
        plan: who serves what then.
        before_s: seconds of an iteration without it.
        meanwhile_s: while the peer copies, and serves nothing.
        after_s: afterwards.
        transition_s: that the copy takes.
        gain: its score against that of changing nothing.
        spreads_risk: it gives a second replica to a stage that has one, while another has `RICH`,
            or this one stands by.
    """

    move: MovePeer
    plan: ExecutionPlan
    before_s: float
    meanwhile_s: float
    after_s: float
    transition_s: float
    gain: float
    spreads_risk: bool

    @property
    def reason(self) -> str:
        """For an operator."""
        why = (
            f"stage {self.move.taker} hangs on one peer, and {self._spare}"
            if self.spreads_risk
            else f"stage {self.move.taker} has the least speed for its work"
        )
        return (
            f"{why}: an iteration takes {self.before_s:.2f} s, {self.meanwhile_s:.2f} s for the {self.transition_s:.1f} s of the "
            f"copy, then {self.after_s:.2f} s"
        )

    @property
    def _spare(self) -> str:
        return "this one stands by" if self.move.giver == ABSENT else f"stage {self.move.giver} has {RICH} or more"


def is_safe_move(before: ExecutionPlan, move: MovePeer) -> bool:
    """Whether a move leaves the stages no closer to their loss than the rule on risk allows: nobody
    moves from a stage that has one peer; and it leaves one alone only where as many stages hang on
    one peer as before, and none has `RICH`.
    """
    if move.giver == ABSENT:
        return True
    after = moved(before, move.peer, move.giver, move.taker)
    left = len(after.replicas[move.giver])
    if left != 1:
        return left > 1
    return _alone(after) <= _alone(before) and max(map(len, after.replicas)) < RICH


def _alone(plan: ExecutionPlan) -> int:
    return sum(len(names) == 1 for names in plan.replicas)


def best_move(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, outlook: MoveOutlook) -> RatedMove | None:
    """Find the move with the highest score that is safe and makes iterations shorter; where that is
    not worth it, the best one that spreads risk and makes them hardly longer, if there is one; None
    where there is neither.

    Args:
        fleet: who serves.
        plan: who serves what, one stage each, once all have come that are on their way.
        manifest: of the run.
        outlook: see there.
    """
    if plan.empty_stages:
        return None
    candidates = tuple(_candidates(fleet, plan, manifest, outlook))

    # A coordinator asks between two iterations: what all plays together take counts
    is_small = manifest.batch.microbatches * len(plan.blocks) * (1 + 2 * len(candidates)) <= PLAYED_TOGETHER_MAX
    quick = (lambda some: iteration_estimate(fleet, some, manifest, 1)) if is_small else PlanBounds(fleet, manifest).time
    found = _best_of(candidates, fleet, plan, manifest, outlook, quick)
    if found is None or not is_played(plan, manifest):
        return found
    # What was measured beside devices is what an estimate leaves, and not what a bound does
    return _best_of((found.move,), fleet, plan, manifest, outlook, lambda some: iteration_estimate(fleet, some, manifest))


def _best_of(
    candidates: Sequence[MovePeer],
    fleet: Fleet,
    plan: ExecutionPlan,
    manifest: Manifest,
    outlook: MoveOutlook,
    estimate: Callable[[ExecutionPlan], IterationTime],
) -> RatedMove | None:
    before_s = estimate(plan).seconds + outlook.unexplained_s
    stay = score(0.0, before_s, outlook.horizon_s, iterations_lost=expected_loss(fleet, plan, outlook.recovery, before_s))
    if stay <= 0:
        return None
    rated = [_rated(fleet, plan, manifest, outlook, move, before_s, stay, estimate) for move in candidates]
    faster = [each for each in rated if each.after_s < before_s and each.gain > 1]
    safer = [each for each in rated if each.spreads_risk and each.after_s <= RISK_SLOWDOWN_MAX * before_s]
    worth = [each for each in faster if each.gain >= ChangeRules().gain_min]
    return max(worth or safer or faster, key=lambda each: (each.gain, -each.move.giver, each.move.peer), default=None)


def is_worth_it(rated: RatedMove) -> bool:
    """Whether a move is worth a change, once it has been the best one for long enough."""
    return rated.spreads_risk or rated.gain >= ChangeRules().gain_min


def settled(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, outlook: MoveOutlook) -> ExecutionPlan:
    """Return the plan that a running swarm comes to from another one, by as many moves as are worth
    it.
    """
    if any(len(stages) > 1 for stages in plan.stages_of.values()):
        return plan
    for _ in range(SETTLING_MAX):
        best = best_move(fleet, plan, manifest, outlook)
        if best is None or not is_worth_it(best):
            break
        plan = best.plan
    return plan


def _rated(
    fleet: Fleet,
    plan: ExecutionPlan,
    manifest: Manifest,
    outlook: MoveOutlook,
    move: MovePeer,
    before_s: float,
    stay: float,
    estimate: Callable[[ExecutionPlan], IterationTime],
) -> RatedMove:
    after, is_standby = moved(plan, move.peer, move.giver, move.taker), move.giver == ABSENT
    meanwhile = plan if is_standby else plan.with_replicas({move.giver: after.replicas[move.giver]})
    after_s, meanwhile_s = (estimate(p).seconds + outlook.unexplained_s for p in (after, meanwhile))
    transition_s = outlook.copy_s(state_bytes(manifest, move.taker, plan.blocks[move.taker]))
    # The next failure may come while the peer copies, and the stage that it has left hangs on one
    share = min(1.0, transition_s / outlook.horizon_s)
    risk = share * expected_loss(fleet, meanwhile, outlook.recovery, meanwhile_s)
    risk += (1 - share) * expected_loss(fleet, after, outlook.recovery, after_s)
    value = score(transition_s, after_s, outlook.horizon_s, meanwhile_s, risk)
    is_spare = is_standby or len(plan.replicas[move.giver]) >= RICH
    spreads_risk = len(plan.replicas[move.taker]) == 1 and is_spare
    return RatedMove(move, after, before_s, meanwhile_s, after_s, transition_s, value / stay, spreads_risk)


def state_bytes(manifest: Manifest, stage: int, blocks: int | None = None) -> int:
    """Size of a stage's weights and moments, with so many blocks; None = as the run began."""
    count = len(manifest.blocks_of(stage)) if blocks is None else blocks
    return STATE_FLOATS * FLOAT_BYTES * stage_parameters(manifest.model, stage, count)


def _candidates(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, outlook: MoveOutlook) -> Iterator[MovePeer]:
    """Safe moves to the slowest stages and to those with one replica, from those with the most
    speed for their work; of each of these the two peers that would level both stages best, and its
    slowest; and the standbys with the best links. Nobody moves to a stage without blocks.
    """
    work = stage_work(manifest, plan.blocks)
    loads = stage_loads(fleet, plan, work)
    open_stages = [stage for stage, names in enumerate(plan.replicas) if work[stage] and len(names) < outlook.limits.of(stage)]
    open_stages = [stage for stage in open_stages if stage != ENDS_STAGE]
    needs = stage_needs(manifest, plan.blocks, outlook.limits.sources_max)
    slowest_first = sorted(open_stages, key=lambda stage: (-loads[stage], stage))
    standbys = [peer for peer in fleet.peers if peer.name in outlook.movable and peer.name not in plan.stages_of]
    standbys.sort(key=lambda peer: (-peer.bytes_per_s, peer.block_s, peer.name))
    alone = [stage for stage in slowest_first[SLOWEST:] if len(plan.replicas[stage]) == 1][:SLOWEST]
    for taker in (*slowest_first[:SLOWEST], *alone):
        able = [stage for stage, names in enumerate(plan.replicas) if stage not in {ENDS_STAGE, taker} and len(names) > 1]
        for giver in sorted(able, key=lambda stage: (loads[stage], stage))[:GIVERS]:
            speeds = {name: 1 / fleet.by_name[name].block_s for name in plan.replicas[giver]}
            gap = work[taker] / loads[taker]
            wanted = (work[taker] * sum(speeds.values()) - work[giver] * gap) / (work[taker] + work[giver])
            movable = sorted(
                (speed, name)
                for name, speed in speeds.items()
                if name in outlook.movable and fits(fleet.by_name[name], taker, needs)
            )
            for name in _levelling(movable, wanted):
                if is_safe_move(plan, move := MovePeer(name, giver, taker)):
                    yield move
        for peer in standbys[:GIVERS]:
            if fits(peer, taker, needs):
                yield MovePeer(peer.name, ABSENT, taker)


def _levelling(movable: Sequence[tuple[float, str]], wanted: float) -> list[str]:
    """The next slower and the next faster than `wanted`, and the slowest of all, each once.

    Args:
        movable: speed and name, slowest first.
        wanted: speed that would level the two stages.
    """
    slower = [each for each in movable if each[0] <= wanted][-1:]
    faster = [each for each in movable if each[0] > wanted][:1]
    return list(dict.fromkeys(name for _, name in (*slower, *faster, *movable[:1])))


def explained(measured_s: float, fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> tuple[Fleet, float]:
    """What of an iteration that was measured is not expected.

    Returns:
        The fleet with its links, where by them an iteration takes at most `TRUST` times what it
        did; else without: it is not they that all wait for, or somebody lies. And the seconds that
        it does not explain, 0 where it took less.
    """
    expected_s = iteration_estimate(fleet, plan, manifest).seconds
    if expected_s <= TRUST * measured_s:
        return fleet, max(0.0, measured_s - expected_s)
    bare = fleet.without_links()
    return bare, unexplained_s(measured_s, bare, plan, manifest)


def unexplained_s(measured_s: float, fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> float:
    """Seconds of an iteration beyond what its devices are expected to compute; 0 where it took
    less.
    """
    return max(0.0, measured_s - iteration_estimate(fleet, plan, manifest).seconds)
