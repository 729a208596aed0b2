"""Which peers had better stand by, because everybody in a stage averages at the pace of its slowest
link.

A peer that computes slowly gets less to do, and never holds up the rest. One with a slow link does:
the replicas of its stage average with it in each iteration, whatever little it has done. Where
iterations are shorter without it, it stands by, and is there where a stage is lost. Several at
once: two stages average side by side, so that to leave out one slow link alone may bring nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from swarmfree.policy.planner.estimator import IterationTime, PlanBounds, is_played, iteration_estimate, stage_averaging_s
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.hysteresis import ChangeRules
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.planner.scores import expected_loss, score
from swarmfree.policy.planner.single_moves import PLAYED_TOGETHER_MAX, MoveOutlook
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ABSENT, ENDS_STAGE

LIMITS_MAX, TRIED_MAX = 6, 3
"""So many limits on the seconds of averaging are tried, and so many of the sets that they make are
looked at closely.
"""
WORTH, PRUNED_MAX = 0.05, 32
"""Nobody leaves for less than this share of an iteration; so many are looked at one by one."""
Moves = tuple[MovePeer, ...]
Way = tuple[list[MovePeer], list[float]]
Estimate = Callable[[ExecutionPlan], IterationTime]
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
        rates: bytes a second that each of them sends or receives.
        plan: who serves what then.
        before_s, after_s: seconds of an iteration.
        gain: its score against that of changing nothing.
    """

    moves: Moves
    rates: tuple[float, ...]
    plan: ExecutionPlan
    before_s: float
    after_s: float
    gain: float

    @property
    def reason(self) -> str:
        """For an operator."""
        count = len(self.moves)
        whose, who = ("its link", "it") if count == 1 else (f"the links of {count}", "them")
        return f"others wait for {whose}: an iteration takes {self.before_s:.2f} s, and {self.after_s:.2f} s without {who}"


def best_standbys(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, outlook: MoveOutlook) -> RatedStandbys | None:
    """Find who had better stand by; None where that brings less than `ChangeRules.gain_min`.

    Of stages that keep one peer and stages that keep two the latter, unless iterations get shorter
    by `ALONE_SPEEDUP` for it. Stage 0 is left as it is, since few can feed. Each peer counts by its
    own rate, not by that of single pairs: two may be slow for each other alone, one of them may say
    so of an honest one, and the router goes round them. But what that brings has to be worth it
    with the pairs as well: work that goes round a slow one may go by way of who would leave.

    Args:
        fleet, plan, manifest, outlook: as for `single_moves.best_move`.
    """
    if plan.empty_stages or plan.is_shared:
        return None
    own = replace(fleet, links={})
    looks = [own, fleet] if fleet.links else [own]
    ways = [_leavers(own, plan, manifest, outlook, stage) for stage in range(ENDS_STAGE + 1, len(plan.blocks))]
    sets = {kept: _candidates(plan, ways, kept) for kept in (SAFE, ALONE)}
    if not any(sets.values()):
        return None
    # Each set is rated, and each who is in one of those that are tried is looked at
    each_plays = len(looks) + min(PRUNED_MAX, max(len(moves) for some in sets.values() for moves in some))
    plays = 1 + sum(len(some) + min(len(some), TRIED_MAX) * each_plays for some in sets.values())
    is_played_out = is_played(plan, manifest)
    is_small = manifest.batch.microbatches * len(plan.blocks) * plays <= PLAYED_TOGETHER_MAX

    def quickly(some: Fleet) -> Estimate:
        return (lambda each: iteration_estimate(some, each, manifest, 1)) if is_small else PlanBounds(some, manifest).time

    def exactly(some: Fleet) -> Estimate:
        return partial(iteration_estimate, some, manifest=manifest) if is_played_out else PlanBounds(some, manifest).time

    quick = [(time, time(plan).seconds + outlook.unexplained_s) for time in map(quickly, looks)]
    exact = [(look, time, time(plan).seconds + outlook.unexplained_s) for look in looks for time in [exactly(look)]]

    @cache
    def share_without(moves: Moves, look: int = 0) -> float:
        """Of the seconds of an iteration as it is."""
        time, before_s = quick[look]
        return (time(_without(plan, moves)).seconds + outlook.unexplained_s) / before_s

    def pruned(whole: Moves) -> Moves:
        """Those of a set without whom iterations get longer by their own rates."""
        share, found = share_without(whole), whole
        # The best links first: whoever stays without costing much has nothing to do with it
        for move in sorted(whole, key=lambda move: (-fleet.by_name[move.peer].bytes_per_s, move.peer))[:PRUNED_MAX]:
            fewer = tuple(other for other in found if other != move)
            if share_without(fewer) < share + WORTH:
                found = fewer
        return found

    def best(kept: int) -> list[RatedStandbys]:
        """In each look the first set, by its own rates, that is worth it in others, too."""
        most = 1 / ChangeRules().gain_min
        best_first = sorted(sets[kept], key=share_without)[: TRIED_MAX if is_small else 1]
        for whole in (each for each in best_first if share_without(each) < most):
            few = pruned(whole)
            moves = few if few and share_without(few) < most else whole  # costs that are small add up
            if all(share_without(moves, look) < most for look in range(len(looks))) and _is_worth_it(found := rated(moves)):
                return found
        return []

    def rated(moves: Moves) -> list[RatedStandbys]:
        return [_rated(look, plan, outlook, time, before_s, moves) for look, time, before_s in exact]

    safe, alone = best(SAFE), best(ALONE)
    least_s = [min(each.before_s, safe[k].after_s if safe else math.inf) for k, each in enumerate(alone)]
    if any(each.after_s * ALONE_SPEEDUP > least for each, least in zip(alone, least_s, strict=True)):
        alone = []
    return min(alone or safe, key=lambda each: each.gain, default=None)


def _is_worth_it(looks: Sequence[RatedStandbys]) -> bool:
    """Whether the same standbys gain enough however it is looked at."""
    return bool(looks) and min(each.gain for each in looks) >= ChangeRules().gain_min


def _candidates(plan: ExecutionPlan, all_ways: Sequence[Way], kept: int) -> list[Moves]:
    """For some limits on the seconds of all averaging those who have to leave for that, of each
    stage as few as possible. So nobody leaves whose stage averages as fast as the others without
    that.
    """
    most = [max(0, len(names) - kept) for names in plan.replicas[ENDS_STAGE + 1 :]]
    ways = [(leavers[:count], seconds[: count + 1]) for (leavers, seconds), count in zip(all_ways, most, strict=True)]
    least_s = max((min(seconds) for _, seconds in ways), default=0.0)
    before_s = max((seconds[0] for _, seconds in ways), default=0.0)
    limits_s = sorted({each_s for _, seconds in ways for each_s in seconds if least_s <= each_s < before_s})
    return [
        tuple(move for leavers, seconds in ways for move in leavers[: next(k for k, s in enumerate(seconds) if s <= limit_s)])
        for limit_s in limits_s[:: max(1, math.ceil(len(limits_s) / LIMITS_MAX))]
    ]


def _leavers(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, outlook: MoveOutlook, stage: int) -> Way:
    """Who could leave a stage, each time the one without whom the others average soonest, of equal
    ones the slowest link, then the slower device; and index = how many of them leave: seconds of
    its averaging.
    """

    def averaging_s(members: Sequence[PeerProfile]) -> float:
        return stage_averaging_s(members, manifest, stage, plan.blocks[stage])

    left = [fleet.by_name[name] for name in plan.replicas[stage]]
    able = {peer.name for peer in left if peer.bytes_per_s < math.inf and peer.name in outlook.movable}
    leavers, seconds = list[MovePeer](), [averaging_s(left)]
    while len(left) > ALONE and any(peer.name in able for peer in left):
        without = {peer: averaging_s([other for other in left if other is not peer]) for peer in left if peer.name in able}
        gone = min(without, key=lambda peer: (without[peer], peer.bytes_per_s, -peer.block_s, peer.name))
        left.remove(gone)
        leavers.append(MovePeer(gone.name, stage, ABSENT))
        seconds.append(without[gone])
    return leavers, seconds


def _without(plan: ExecutionPlan, moves: Moves) -> ExecutionPlan:
    return plan.without(frozenset(move.peer for move in moves))


def _rated(
    fleet: Fleet, plan: ExecutionPlan, outlook: MoveOutlook, estimate: Estimate, before_s: float, moves: Moves
) -> RatedStandbys:
    after = _without(plan, moves)
    after_s = estimate(after).seconds + outlook.unexplained_s
    stay, rest = (
        score(0.0, time_s, outlook.horizon_s, iterations_lost=expected_loss(fleet, some, outlook.recovery, time_s))
        for some, time_s in ((plan, before_s), (after, after_s))
    )
    return RatedStandbys(
        moves,
        tuple(fleet.by_name[move.peer].bytes_per_s for move in moves),
        after,
        before_s,
        after_s,
        rest / stay if stay > 0 else 0.0,
    )
