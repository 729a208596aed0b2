"""What a recovery study found, as numbers: gaps to the run without failures, their means and spreads, and the figures of its last line. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LAST_EVALUATIONS = 5
BASELINE = "none"
REDUNDANT = {"redundant (paper's 1.654 x)": 1.654, "redundant (1.2 x)": 1.2}
"""Redundant computation learns as a run without failures, and each iteration takes so many times as long."""


@dataclass(frozen=True, slots=True)
class Row:
    """One trial.

    Args:
        strategy, trace, seed: which.
        losses: stages that were lost.
        final: mean of the last held-out losses, nats per token.
        gap_percent: over the run without failures, of the same base and length.
        excess: mean difference to it over the whole trial, nats.
        spike_percent: largest rise of the held-out loss at a recovery.
        back: median over its recoveries of the iterations until the held-out loss was again what it had been; 0 where it did not rise,
            infinite where the trial ended before, as coarse as the curve.
        redone: iterations that were done again.
        recovery_s: compute of all recoveries.
        distance: largest difference of a weight from what was lost, over all recoveries.
    """

    strategy: str
    trace: str
    seed: int
    losses: int
    final: float
    gap_percent: float
    excess: float
    spike_percent: float
    back: float
    redone: int
    recovery_s: float
    distance: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One strategy over the trials of one kind of trace.

    Mean and standard deviation of the gap in per cent; of the rest the largest spike, the median of `back`, and means.
    """

    strategy: str
    kind: str
    trials: int
    gap_percent: float
    spread_percent: float
    spike_percent: float
    back: float
    redone: float
    recovery_s: float


def final_loss(curve: Sequence[Sequence[float]]) -> float:
    """Mean of the last held-out losses, nats per token; infinite where one is no number."""
    values = [float(loss) for _, loss in curve[-LAST_EVALUATIONS:]]
    return sum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def iterations_back(recovery: Mapping[str, Any], curve: Sequence[Sequence[float]]) -> float:
    """How many iterations after a recovery the held-out loss is again what it was before the loss of the stage."""
    if recovery["after"] <= recovery["before"]:
        return 0.0
    later = (at - recovery["iteration"] for at, loss in curve if at > recovery["iteration"] and loss <= recovery["before"])
    return float(next(later, math.inf))


def rows_of(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each trial; its baseline is the trial `none` of the same seed, on the same kind of trace or any."""
    baselines = {r["trial"]["base_seed"]: r["curve"] for r in results if r["trial"]["strategy"] == BASELINE}
    rows = []
    for result in results:
        trial, curve = result["trial"], result["curve"]
        baseline = baselines[trial["base_seed"]]
        known = dict(map(tuple, baseline))
        excess = [loss - known[at] for at, loss in curve if at in known]
        rises = [100 * (one["after"] / one["before"] - 1) for one in result["recoveries"]]
        final, right = final_loss(curve), final_loss(baseline)
        rows.append(
            Row(
                strategy=trial["strategy"],
                trace=trial["trace"],
                seed=trial["base_seed"],
                losses=result["failures"],
                final=final,
                gap_percent=100 * (final / right - 1),
                excess=sum(excess) / len(excess),
                spike_percent=max(rises, default=0.0),
                back=statistics.median([iterations_back(one, curve) for one in result["recoveries"]] or [0.0]),
                redone=result["redone"],
                recovery_s=sum(one["seconds"] for one in result["recoveries"]),
                distance=max((one["distance"] for one in result["recoveries"]), default=0.0),
            )
        )
    return rows


def kind_of(trace: str) -> str:
    """The kind of a trace, without its number: `middle-1` is `middle`."""
    return trace.rpartition("-")[0] or trace


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """By kind of trace, then by gap."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((kind_of(row.trace), row.strategy), []).append(row)
    found = []
    for (kind, strategy), members in groups.items():
        gaps = [row.gap_percent for row in members]
        found.append(
            Summary(
                strategy=strategy,
                kind=kind,
                trials=len(members),
                gap_percent=statistics.fmean(gaps),
                spread_percent=statistics.stdev(gaps) if len(gaps) > 1 else 0.0,
                spike_percent=max(row.spike_percent for row in members),
                back=statistics.median(row.back for row in members),
                redone=statistics.fmean(row.redone for row in members),
                recovery_s=statistics.fmean(row.recovery_s for row in members),
            )
        )
    return sorted(found, key=lambda s: (s.kind, s.gap_percent))


def last_line(found: Sequence[Summary], kind: str = "middle") -> dict[str, float]:
    """The figures that the study is judged by, from the traces that strike the middle of the body."""
    gaps = {s.strategy: s.gap_percent for s in found if s.kind == kind}
    order = gaps["norm2"] < gaps["uniform"] < gaps["random"]
    return {
        "shadow_gap_percent": round(gaps["shadow-100"], 4),
        "replay_gap_percent": round(gaps["replay"], 6),
        "refit_over_checkfree": round(gaps["refit"] / gaps["norm2"], 4) if gaps["norm2"] else math.inf,
        "order_holds": int(order),
    }
