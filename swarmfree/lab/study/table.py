"""What a recovery study found, as numbers: gaps to the run without failures, their means and
spreads, and the figures of its last line. Pure.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LAST_EVALUATIONS = 5
BASELINE, MERGE = "none", "norm2"
SHADOW, SCRATCH = "shadow-", "scratch"
COMPARED = (
    ("middle", "norm2", "uniform"),
    ("middle", "uniform", "random"),
    ("middle", "norm2", "random"),
    ("middle", "norm2", "clipped"),
    ("middle", "norm2", "norm"),
    ("middle", "norm2", "copy"),
    ("middle", "checkfree+", "norm2"),
    ("middle", "checkpoint-100", "checkfree+"),
    ("middle", "checkpoint-100", "norm2"),
    ("middle", "refit", "norm2"),
    ("middle", "checkpoint-100", "refit"),
    ("middle", "shadow-10", "shadow-100"),
    ("all", "shadow-10", "shadow-100"),
    ("middle", "shadow-100", "checkpoint-100"),
    ("all", "checkfree+", "norm2"),
    ("pairs", "checkfree+", "norm2"),
)
"""Kind of traces, what should be better, and what worse."""
ORDER = COMPARED[:2]
"""What the paper says of the weights of a merge."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial.

    Args:
        strategy, trace, seed: which.
        losses: stages that were lost.
        final: mean of the last held-out losses, nats per token.
        time_percent: gap to the run without failures, of the same base, after as many iterations as
            took place: stalled and redone ones counted.
        learned_percent: the same after as many iterations as were learned from, each counted once.
        excess: mean difference to it over the whole trial, nats.
        spike_percent: largest rise of the held-out loss at a recovery.
        back: median over its recoveries of the iterations until the held-out loss was again what it
            had been; 0 where it did not rise, infinite where the trial ended before, as coarse as
            the curve.
        redone, stalled: iterations that were done again, and that went by while a recovery
            computed.
        cost: iterations that all recoveries would have stalled, had the trial been long enough.
        merges, bounded: recoveries that weighed two neighbours, and those of them whose weights the
            bound changed.
        distance: largest difference of a weight from what was lost, over all recoveries.
    """

    strategy: str
    trace: str
    seed: int
    losses: int
    final: float
    time_percent: float
    learned_percent: float
    excess: float
    spike_percent: float
    back: float
    redone: int
    stalled: int
    cost: float
    merges: int
    bounded: int
    distance: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One strategy over the trials of one kind of trace.

    `gap_percent` is the larger of the mean gaps at equal time and at equal iterations, with its
    standard deviation and standard error. `checkfree_percent` is that of CheckFree under the same
    traces, no number where it was not played under all of them. Of the rest the largest spike, the
    median of `back`, and means.
    """

    strategy: str
    kind: str
    trials: int
    gap_percent: float
    checkfree_percent: float
    spread_percent: float
    error_percent: float
    time_percent: float
    learned_percent: float
    spike_percent: float
    back: float
    redone: float
    stalled: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two strategies under the same traces: by how much the gap of the one that was expected to be
    worse is larger, percent, with standard error and t = difference / error.

    `t` takes every trace for independent, though those of one seed go on from the same base;
    `bases_t` is that of the means over each of the `bases`, 0 where there is one base. With three
    of them it takes 4.3 for one chance in twenty.
    """

    kind: str
    expected_better: str
    expected_worse: str
    pairs: int
    difference_percent: float
    error_percent: float
    t: float
    bases: int
    bases_t: float

    @property
    def least_t(self) -> float:
        """The smaller one, where both are known."""
        return min(self.t, self.bases_t) if self.bases > 1 else self.t


def final_loss(curve: Sequence[Sequence[float]]) -> float:
    """Mean of the last held-out losses, nats per token; infinite where one is no number."""
    values = [float(loss) for _, loss in curve[-LAST_EVALUATIONS:]]
    return sum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def iterations_back(recovery: Mapping[str, Any], curve: Sequence[Sequence[float]]) -> float:
    """How many iterations after a recovery the held-out loss is again what it was before the loss
    of the stage.
    """
    if recovery["after"] <= recovery["before"]:
        return 0.0
    later = (at - recovery["iteration"] for at, loss in curve if at > recovery["iteration"] and loss <= recovery["before"])
    return float(next(later, math.inf))


def rows_of(results: Sequence[Mapping[str, Any]]) -> list[TrialRow]:
    """A row for each trial; its baseline is the run `none` of the same seed, from a base or from
    scratch as it is, cut to its length.
    """
    baselines = {
        (r["trial"]["base_seed"], r["trial"]["is_from_scratch"]): r["curve"]
        for r in results
        if r["trial"]["strategy"] == BASELINE
    }
    rows = []
    for result in results:
        trial, curve, recoveries = result["trial"], result["curve"], result["recoveries"]
        baseline = [point for point in baselines[trial["base_seed"], trial["is_from_scratch"]] if point[0] <= trial["iterations"]]
        known = dict(map(tuple, baseline))
        excess = [loss - known[at] for at, loss in curve if at in known]
        final, right = final_loss(curve), final_loss(baseline)
        learned = final_loss(result["learned"] or curve)
        rows.append(
            TrialRow(
                strategy=trial["strategy"],
                trace=trial["trace"],
                seed=trial["base_seed"],
                losses=len(recoveries),
                final=final,
                time_percent=100 * (final / right - 1),
                learned_percent=100 * (learned / right - 1),
                excess=sum(excess) / len(excess),
                spike_percent=max((100 * (one["after"] / one["before"] - 1) for one in recoveries), default=0.0),
                back=statistics.median([iterations_back(one, curve) for one in recoveries] or [0.0]),
                redone=result["redone"],
                stalled=result["stalled"],
                cost=sum(one["cost"] for one in recoveries),
                merges=sum(one["is_merge"] for one in recoveries),
                bounded=sum(one["is_bounded"] for one in recoveries),
                distance=max((one["distance"] for one in recoveries), default=0.0),
            )
        )
    return rows


def kind_of(trace: str) -> str:
    """The kind of a trace, without its number: `middle-1` is `middle`."""
    return trace.rpartition("-")[0] or trace


def _by_group(rows: Sequence[TrialRow]) -> dict[tuple[str, str], list[TrialRow]]:
    groups: dict[tuple[str, str], list[TrialRow]] = {}
    for row in rows:
        groups.setdefault((kind_of(row.trace), row.strategy), []).append(row)
    return groups


def _gaps(members: Sequence[TrialRow]) -> dict[tuple[str, int], float]:
    """(trace, seed) -> gap, at equal time or at equal iterations: whichever has the larger mean."""
    time, learned = ({(row.trace, row.seed): getattr(row, f"{name}_percent") for row in members} for name in ("time", "learned"))
    return max(time, learned, key=lambda gaps: statistics.fmean(gaps.values()))


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 of a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def summaries(rows: Sequence[TrialRow]) -> list[Summary]:
    """By kind of trace, then by gap."""
    found, groups = [], _by_group(rows)
    for (kind, strategy), members in groups.items():
        by_trace, merged = _gaps(members), _gaps(groups.get((kind, MERGE), members))
        gaps = list(by_trace.values())
        is_known = (kind, MERGE) in groups and by_trace.keys() <= merged.keys()
        found.append(
            Summary(
                strategy=strategy,
                kind=kind,
                trials=len(members),
                gap_percent=statistics.fmean(gaps),
                checkfree_percent=statistics.fmean(merged[trace] for trace in by_trace) if is_known else math.nan,
                spread_percent=statistics.stdev(gaps) if len(gaps) > 1 else 0.0,
                error_percent=_error(gaps),
                time_percent=statistics.fmean(row.time_percent for row in members),
                learned_percent=statistics.fmean(row.learned_percent for row in members),
                spike_percent=max(row.spike_percent for row in members),
                back=statistics.median(row.back for row in members),
                redone=statistics.fmean(row.redone for row in members),
                stalled=statistics.fmean(row.stalled for row in members),
            )
        )
    return sorted(found, key=lambda s: (s.kind, s.gap_percent))


def pairs_of(rows: Sequence[TrialRow], compared: Sequence[tuple[str, str, str]] = COMPARED) -> list[Pair]:
    """Differences under the traces that both were played under; comparisons without two such traces
    are left out.
    """
    groups = _by_group(rows)
    found = []
    for kind, better, worse in compared:
        if (kind, better) not in groups or (kind, worse) not in groups:
            continue
        low, high = _gaps(groups[kind, better]), _gaps(groups[kind, worse])
        differences = {trace: high[trace] - low[trace] for trace in sorted(low.keys() & high.keys())}
        if len(differences) < 2:
            continue
        each = list(differences.values())
        bases = [
            statistics.fmean(d for (_, seed), d in differences.items() if seed == base) for base in {s for _, s in differences}
        ]
        bases_t = _t(bases) if len(bases) > 1 else 0.0
        found.append(
            Pair(
                kind, better, worse, len(each), statistics.fmean(each), _error(each), _t(each), bases=len(bases), bases_t=bases_t
            )
        )
    return found


def _t(values: Sequence[float]) -> float:
    """Mean over its standard error."""
    mean, error = statistics.fmean(values), _error(values)
    return mean / error if error else math.copysign(math.inf, mean) if mean else 0.0


def last_line(rows: Sequence[TrialRow]) -> dict[str, float]:
    """The figures that the study is judged by: of shadows the worst age, of them and of replays the
    worst kind of traces; the rest strike the middle.

    A gap is the larger of those at equal time and at equal iterations. A refit is set over
    CheckFree under the same traces. `order_t` is the smallest t of what the paper says of merges,
    by traces or by bases, 0 where it cannot be told.
    """
    found = summaries(rows)
    (refit,) = (s for s in found if (s.strategy, s.kind) == ("refit", "middle"))
    order = pairs_of(rows, ORDER)
    return {
        "shadow_gap_percent": round(max(s.gap_percent for s in found if s.strategy.startswith(SHADOW)), 4),
        "replay_gap_percent": round(max(s.gap_percent for s in found if s.strategy == "replay"), 4),
        "refit_over_checkfree": round(refit.gap_percent / refit.checkfree_percent, 4) if refit.checkfree_percent else math.inf,
        "order_t": round(min((pair.least_t for pair in order), default=0.0), 3) if len(order) == len(ORDER) else 0.0,
    }


def pipeline_stall(rows: Sequence[TrialRow], strategy: str, body: int) -> float:
    """Iterations that recoveries would stall a full pipeline, where a stage takes as long as all;
    the mean of a trial at the middle of the body.
    """
    return statistics.fmean(body * row.cost for row in rows if (row.strategy, kind_of(row.trace)) == (strategy, "middle"))


def unpaid_stall(rows: Sequence[TrialRow], strategy: str) -> float:
    """Iterations that recoveries still had to stall when a trial was over, the mean at the middle
    of the body: no trial pays more than its length, so a gap at equal time lacks them.
    """
    return statistics.fmean(
        max(0.0, row.cost - row.stalled) for row in rows if (row.strategy, kind_of(row.trace)) == (strategy, "middle")
    )


def pipeline_gap_percent(results: Sequence[Mapping[str, Any]], body: int) -> tuple[float, float]:
    """What exact replays would have cost had each replayed iteration of a stage stalled a whole
    iteration, as in a pipeline that is full.

    An exact replay leaves the curve without failures as it is but late, so the loss is read there,
    that many iterations earlier.

    Args:
        body: stages over which the cost of a pass was shared.

    Returns:
        Mean gap in per cent, at equal time, and mean iterations stalled, both under traces at the
        middle of the body.
    """
    baselines = {
        r["trial"]["base_seed"]: r["curve"]
        for r in results
        if r["trial"]["trace"] == BASELINE and r["trial"]["strategy"] == BASELINE
    }
    gaps, stalls = [], []
    for result in results:
        trial = result["trial"]
        if (trial["strategy"], kind_of(trial["trace"])) != ("replay", "middle"):
            continue
        baseline = baselines[trial["base_seed"]]
        stalled = body * sum(one["cost"] for one in result["recoveries"])
        late = [(at, _at(baseline, max(0.0, at - stalled))) for at, _ in baseline]
        gaps.append(100 * (final_loss(late) / final_loss(baseline) - 1))
        stalls.append(stalled)
    return statistics.fmean(gaps), statistics.fmean(stalls)


def _at(curve: Sequence[Sequence[float]], iteration: float) -> float:
    """The loss there, on the straight line between its neighbours."""
    for (first, left), (last, right) in itertools.pairwise(curve):
        if first <= iteration <= last:
            return float(left + (right - left) * (iteration - first) / (last - first))
    raise AssertionError(f"iteration {iteration} lies within the curve")
