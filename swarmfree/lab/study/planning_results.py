"""What the planning study found, as numbers and sentences: shares, paired differences, where the
swarm is not ahead and why. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarmfree.lab.study.cluster_model import StepTimes
from swarmfree.lab.study.flexitrain import (
    ClusterRun,
    failure_chance,
    fewer_ranks_share,
    mean_failure_hours,
    restart_share,
)
from swarmfree.lab.study.planning_scenarios import (
    AWAY,
    BASELINES,
    LARGE,
    LIVE_NODES_MAX,
    OOBLECK,
    RECYCLE_BOTTLENECK,
    RECYCLE_FILLED,
    RECYCLE_SUM,
    SIZES,
    SWARM,
    Scenario,
    SystemPlays,
)

PAPER = {OOBLECK: 1.229, RECYCLE_SUM: 1.355, RECYCLE_BOTTLENECK: 1.355}
"""What Odyssey gains over these in its simulation of 32 nodes, 10 % an hour, nine hours."""
PAPER_RATE = 10.0
SURE = 2.0
"""A mean paired difference of so many standard errors counts."""


@dataclass(frozen=True, slots=True)
class PlanningRow:
    """How one system did in one scenario.

    Args:
        group, x: the scenario.
        nodes: at the beginning.
        system, setting: which.
        traces: how many.
        goodput: iterations that count, as a share of what that many nodes could do that always
            compute and never wait; mean over traces.
        spread: its standard deviation.
        healthy: the same share while nobody is lost.
        kept: goodput over healthy.
        ratio: the swarm's mean goodput over this one's; infinite where this one did nothing.
        ratio_error: its standard error, over pairs of the same trace.
        difference: the swarm's goodput less this one's, mean over traces.
        difference_error: its standard error.
        stood: share of the time that nothing was done.
        redone: iterations that were done again.
    """

    group: str
    x: float
    nodes: int
    system: str
    setting: str
    traces: int
    goodput: float
    spread: float
    healthy: float
    kept: float
    ratio: float
    ratio_error: float
    difference: float
    difference_error: float
    stood: float
    redone: float

    @property
    def verdict(self) -> str:
        """Whether the swarm is `ahead`, `behind` or neither (`level`)."""
        if abs(self.difference) <= SURE * self.difference_error:
            return "level"
        return "ahead" if self.difference > 0 else "behind"


def ideal_s(times: StepTimes, nodes: int) -> float:
    """Seconds of an iteration in which every node computes all the time and nothing is sent."""
    return times.cluster.microbatches * times.blocks * 3 * times.forward_s / nodes


def rows_of(scenario: Scenario, systems: Mapping[str, SystemPlays], times: StepTimes) -> list[PlanningRow]:
    """A row for each system of a scenario, the swarm first."""
    best_s, span_s = ideal_s(times, scenario.nodes), 3600 * scenario.hours
    swarm = [play.iterations * best_s / span_s for play in systems[SWARM].plays]
    rows = []
    for name, plays in systems.items():
        shares = [play.iterations * best_s / span_s for play in plays.plays]
        healthy = best_s / plays.healthy_s
        ratio, ratio_error = ratio_of_means(swarm, shares)
        ahead_by = [ours - theirs for ours, theirs in zip(swarm, shares, strict=True)]
        rows.append(
            PlanningRow(
                scenario.group,
                scenario.x,
                scenario.nodes,
                name,
                plays.setting,
                len(shares),
                statistics.fmean(shares),
                _spread(shares),
                healthy,
                statistics.fmean(shares) / healthy,
                ratio,
                ratio_error,
                statistics.fmean(ahead_by),
                _error(ahead_by),
                statistics.fmean(play.stood_s for play in plays.plays) / span_s,
                statistics.fmean(play.redone for play in plays.plays),
            )
        )
    return rows


def ratio_of_means(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """R = mean(ours) / mean(theirs) of pairs, and its standard error: that of the mean of
    ours - R theirs, over mean(theirs).
    """
    mean = statistics.fmean(theirs)
    if not mean:
        return math.inf, math.inf
    ratio = statistics.fmean(ours) / mean
    return ratio, _error([our - ratio * their for our, their in zip(ours, theirs, strict=True)]) / mean


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _error(values: Sequence[float]) -> float:
    return _spread(values) / math.sqrt(len(values))


def sentences(rows: Sequence[PlanningRow]) -> list[str]:
    """Where the swarm is ahead and where not, why, and what stands beside Odyssey's figures."""
    others = [row for row in rows if row.system != SWARM]
    points = len({(row.group, row.x) for row in rows})
    found = [f"{points} points, {max(row.traces for row in rows)} traces each; a difference counts from two standard errors on."]
    found += [line for name in BASELINES if (line := _against(name, [row for row in others if row.system == name]))]
    found += _reasons(rows)
    found += _beside_paper(others)
    return found


def _against(name: str, rows: Sequence[PlanningRow]) -> str:
    behind = [row for row in rows if row.verdict == "behind"]
    level = [row for row in rows if row.verdict == "level"]
    line = f"Over {name}: ahead at {len(rows) - len(behind) - len(level)} of {len(rows)} points"
    line += f", neither at {len(level)}" if level else ""
    if not behind:
        return line + ", behind at none."
    worst = min(behind, key=lambda row: row.ratio)
    where: dict[str, list[str]] = {}
    for row in behind:
        where.setdefault(row.group, []).append(f"{row.x:g}")
    told = "; ".join(f"{group}: {', '.join(xs)}" for group, xs in where.items())
    return f"{line}, BEHIND at {len(behind)} ({told}), worst with {worst.ratio:.3f} of its goodput."


def _reasons(rows: Sequence[PlanningRow]) -> list[str]:
    swarm = {(row.group, row.x): row for row in rows if row.system == SWARM}
    behind = [(swarm[row.group, row.x], row) for row in rows if row.verdict == "behind" and row.system != SWARM]
    if not behind:
        return []
    slower = [(ours, row) for ours, row in behind if ours.healthy < row.healthy]
    lossier = [(ours, row) for ours, row in behind if ours.kept < row.kept]
    found = []
    if slower:
        most = max(row.healthy / ours.healthy for ours, row in slower)
        found.append(
            f"Why: at {len(slower)} of the {len(behind)} comparisons in which it is behind, an iteration takes it up to {most:.2f} times as "
            "long while nobody is lost: peers of their own serve the ends, and whole peers serve whole stages, so that the stage with "
            "the fewest replicas sets the pace."
        )
    if lossier:
        stood = statistics.fmean(ours.stood for ours, _ in lossier)
        longest = max((ours for ours, _ in lossier), key=lambda ours: ours.stood)
        kept = statistics.fmean(row.kept - ours.kept for ours, row in lossier)
        found.append(
            f"{'Why: at' if not slower else 'At'} {len(lossier)} of the {len(behind)} it keeps less of that, {100 * kept:.1f} points in the "
            "mean: a stage that has lost one of n replicas makes every iteration up to n / (n - 1) times as long until another peer has "
            "loaded it, where Oobleck cuts all blocks anew and ReCycle does the work of the lost in bubbles. That it stands still is "
            f"{100 * stood:.1f} % of the time there in the mean, and {100 * longest.stood:.1f} % at most ({longest.group}: {longest.x:g})."
        )
    return [*found, "Here the swarm's blocks stay where they are: what a living one does with --cut-after is not played."]


def _beside_paper(others: Sequence[PlanningRow]) -> list[str]:
    at = {row.system: row for row in others if row.group == AWAY and row.x == PAPER_RATE}
    told = [
        f"{at[name].ratio:.3f} +- {at[name].ratio_error:.3f} over {name} (paper: {gain})"
        for name, gain in PAPER.items()
        if name in at
    ]
    if RECYCLE_FILLED in at:
        told.append(f"{at[RECYCLE_FILLED].ratio:.3f} +- {at[RECYCLE_FILLED].ratio_error:.3f} over {RECYCLE_FILLED}")
    if not told:
        return []
    return [
        f"Beside Odyssey's figures (32 nodes, 10 % an hour, nobody comes back): {'; '.join(told)}.",
        (
            "Those two figures cannot be reproduced as stated: the paper names neither grid nor batch, transition times, repair or trace. "
            "By a computation of its scenario 1.229 needs Oobleck to stand four to six minutes for each failure, 25 to 35 times what its "
            "own code has for such a model; 1.355 depends on the grid, and on the model of ReCycle, of which the paper's adds up what "
            "failures in different stages cost."
        ),
    ]


def flexitrain_sentence() -> str:
    """FlexiTrain's second table, and what has to be assumed for it."""
    run = ClusterRun()
    rounded = restart_share(run, 0.36, 83.2 / 60)
    exact = restart_share(run, failure_chance(run), mean_failure_hours(run))
    return (
        f"FlexiTrain's Table 2 (99.30 and 79.36 %): {100 * fewer_ranks_share(run):.2f} % with ranks that stay away, by its formula for "
        f"the end of an interval; restarts {100 * rounded:.2f} % with its roundings, {100 * exact:.2f} % without."
    )


def last_line(rows: Sequence[PlanningRow]) -> dict[str, object]:
    """The figures of a study that a script may want."""
    others = [row for row in rows if row.system != SWARM]
    verdicts = [row.verdict for row in others]
    worst = min(others, key=lambda row: row.ratio)
    found: dict[str, object] = {
        "points": len({(row.group, row.x) for row in rows}),
        "comparisons": len(others),
        **{verdict: verdicts.count(verdict) for verdict in ("ahead", "level", "behind")},
        "worst_ratio": round(worst.ratio, 4),
        "worst_over": f"{worst.system}: {worst.group} {worst.x:g}",
    }
    names = {OOBLECK: "oobleck", RECYCLE_SUM: "recycle_sum", RECYCLE_BOTTLENECK: "recycle_bottleneck"}
    for row in others:
        if row.group == AWAY and row.x == PAPER_RATE and row.system in names:
            found |= {f"{names[row.system]}_ratio": round(row.ratio, 4), f"{names[row.system]}_error": round(row.ratio_error, 4)}
            found[f"{names[row.system]}_paper"] = PAPER[row.system]
    return found


def size_note(rows: Sequence[PlanningRow]) -> list[str]:
    """What has to be said of clusters that a live run cannot have."""
    if not any(row.group in {SIZES, LARGE} and row.nodes > LIVE_NODES_MAX for row in rows):
        return []
    return [
        (
            f"A live run takes at most eight replicas of a stage, about {LIVE_NODES_MAX} peers of this model; the rest would stand by. At larger "
            "sizes that limit is lifted here, and an iteration of the swarm is its bound, times what a play of the largest live one takes "
            "longer than that."
        )
    ]
