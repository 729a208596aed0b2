"""Which peers had better stand by, because everybody in a stage averages at the pace of its slowest
link.

A peer that computes slowly gets less to do, and never holds up the rest. One with a slow link does:
the replicas of its stage average with it in each iteration, whatever little it has done. Where
iterations are shorter without it, it stands by, and is there where a stage is lost. Several at
once: two stages average side by side, so that to leave out one slow link alone may bring nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from swarmfree.policy.planner.estimator import PlanBounds, is_played, iteration_estimate
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet
from swarmfree.policy.planner.hysteresis import ChangeRules
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.planner.scores import expected_loss, score
from swarmfree.policy.planner.single_moves import PLAYED_TOGETHER_MAX, MoveOutlook
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ABSENT, ENDS_STAGE

RATES_MAX = 6
"""So many rates are tried as the slowest that is good enough."""
NEARLY = 1.05
"""Nobody stands by for less than this."""
TRUST = 1.25
"""What is expected of iterations as they are is at most so many times what they take: else nobody
knows what they wait for.
"""
SAFE, ALONE = 2, 1
"""Replicas that are kept of each stage."""
ALONE_SPEEDUP = 1.25
"""Iterations have to be so many times shorter for stages to hang on one peer. A standby comes to
those where iterations get longer by `allocation.RISK_SLOWDOWN_MAX` at most, so none comes and goes.
"""


@dataclass(frozen=True, slots=True)
class RatedStandbys:
    """Peers that would stand by, and what is expected of it.

    Args:
        moves: who leaves which stage.
        plan: who serves what then.
        before_s, after_s: seconds of an iteration.
        gain: its score against that of changing nothing.
    """

    moves: tuple[MovePeer, ...]
    plan: ExecutionPlan
    before_s: float
    after_s: float
    gain: float

    @property
    def reason(self) -> str:
        """For an operator."""
        who = "it" if len(self.moves) == 1 else f"the {len(self.moves)} with the slowest links"
        return f"others wait for its link: an iteration takes {self.before_s:.2f} s, and {self.after_s:.2f} s without {who}"


def best_standbys(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, outlook: MoveOutlook) -> RatedStandbys | None:
    """Find who had better stand by; None where that brings less than `ChangeRules.gain_min`.

    Of stages that keep one peer and stages that keep two the latter, unless iterations get shorter
    by `ALONE_SPEEDUP` for it. Stage 0 is left as it is, since few can feed.

    Args:
        fleet, plan, manifest, outlook: as for `single_moves.best_move`.
    """
    if plan.empty_stages or plan.is_shared:
        return None
    kept = {count: tuple(_candidates(fleet, plan, outlook, count)) for count in (SAFE, ALONE)}
    is_small = manifest.batch.microbatches * len(plan.blocks) * (1 + sum(map(len, kept.values()))) <= PLAYED_TOGETHER_MAX
    quick = (lambda some: iteration_estimate(fleet, some, manifest, 1)) if is_small else PlanBounds(fleet, manifest).time

    def best(candidates: Sequence[tuple[MovePeer, ...]]) -> RatedStandbys | None:
        seconds = [quick(_without(plan, moves)).seconds + outlook.unexplained_s for moves in candidates]
        enough = (moves for moves, each_s in zip(candidates, seconds, strict=True) if each_s <= NEARLY * min(seconds))
        found = min(enough, key=len, default=None)
        return None if found is None else _rated(fleet, plan, manifest, outlook, found)

    safe, alone = best(kept[SAFE]), best(kept[ALONE])
    if alone is not None and safe is not None and alone.after_s * ALONE_SPEEDUP > safe.after_s:
        alone = None
    if alone is not None and alone.after_s * ALONE_SPEEDUP > alone.before_s:
        alone = None
    found = alone or safe
    is_known = found is not None and found.before_s <= TRUST * outlook.iteration_s
    return found if found is not None and is_known and found.gain >= ChangeRules().gain_min else None


def _candidates(fleet: Fleet, plan: ExecutionPlan, outlook: MoveOutlook, kept: int) -> Iterator[tuple[MovePeer, ...]]:
    """For some rates whoever has a slower link, or one as slow, but for the best of each stage."""
    able: list[tuple[float, MovePeer]] = []
    for stage, names in enumerate(plan.replicas[ENDS_STAGE + 1 :], ENDS_STAGE + 1):
        worst_first = sorted(names, key=lambda name: (fleet.by_name[name].bytes_per_s, -fleet.by_name[name].block_s, name))
        slow = [(fleet.by_name[name].bytes_per_s, name) for name in worst_first[: max(0, len(names) - kept)]]
        able += [(rate, MovePeer(name, stage, ABSENT)) for rate, name in slow if rate < math.inf and name in outlook.movable]
    rates = sorted({rate for rate, _ in able})
    step = max(1, math.ceil(len(rates) / RATES_MAX))
    for least in rates[step - 1 :: step]:
        yield tuple(move for rate, move in able if rate <= least)


def _without(plan: ExecutionPlan, moves: tuple[MovePeer, ...]) -> ExecutionPlan:
    return plan.without(frozenset(move.peer for move in moves))


def _rated(
    fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, outlook: MoveOutlook, moves: tuple[MovePeer, ...]
) -> RatedStandbys:
    bounds, after = PlanBounds(fleet, manifest), _without(plan, moves)
    estimate = partial(iteration_estimate, fleet, manifest=manifest) if is_played(plan, manifest) else bounds.time
    before_s, after_s = (estimate(some).seconds + outlook.unexplained_s for some in (plan, after))
    stay, rest = (
        score(0.0, time_s, outlook.horizon_s, iterations_lost=expected_loss(fleet, some, outlook.recovery, time_s))
        for some, time_s in ((plan, before_s), (after, after_s))
    )
    return RatedStandbys(moves, after, before_s, after_s, rest / stay if stay > 0 else 0.0)
