"""The paper's Tables 2 and 3 from the trials of a recovery study: time to a held-out loss, and
finished models on several texts. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarmfree.lab.study.failure_trace import ITERATION_S
from swarmfree.lab.study.table import BASELINE, MERGE, SCRATCH, kind_of

RESTART_S = 30.0
"""How long all wait for a recovery, as the paper counts it."""
REDUNDANT = {"redundant, 1.654 x (paper)": 1.654, "redundant, 1.2 x": 1.2}
"""Redundant computation learns as a run without failures, and each iteration takes so many times as
long.
"""
COUNTED = {"checkpoint-10": (10, None), "replay-50, as one process": (50, 1 / 6), "replay-50, full pipeline": (50, 1.0)}
"""Not played from scratch: they leave the curve without failures as it is but late, so the losses
alone say when they come to the target. Iterations from one checkpoint, or full copy that a replay
begins with, to the next; and iterations that each replayed one stalls the swarm, where nothing is
rolled back: of one of the study's six body stages, or all of it. Every copy is whole at once.
"""
Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Reached:
    """How long a strategy took from scratch to the target, at one rate of failure.

    Args:
        kind: of traces, `scratch16` for 16 % an hour; `scratch` for those without failures.
        trials, reached: how many there were, and how many came to the target; the others count with
            all their iterations, which is too few.
        iterations: that took place, redone ones counted, mean.
        hours: of 91.3 s an iteration and 30 s a recovery, mean; infinite where one did not come to
            it.
        ratio: of the iterations to those without failures, mean; likewise.
    """

    kind: str
    strategy: str
    trials: int
    reached: int
    iterations: float
    hours: float
    ratio: float


@dataclass(frozen=True, slots=True)
class TextLoss:
    """What finished models make of one text.

    Args:
        loss: mean, nats per token.
        perplexity: of the mean loss, per token.
        gap_percent, error_percent: of the loss, over that of the run without failures of the same
            seed, mean and standard error.
    """

    kind: str
    strategy: str
    text: str
    trials: int
    loss: float
    perplexity: float
    gap_percent: float
    error_percent: float


def _first(curve: Sequence[Sequence[float]], target: float) -> float:
    return next((float(at) for at, loss in curve if loss <= target), math.inf)


def iterations_taken(losses: Iterable[tuple[int, int]], target: float, every: int, stall: float | None) -> int:
    """Iterations until a strategy of `COUNTED` has trained `target` ones.

    Args:
        losses: (iteration that takes place, stage).
        every, stall: see `COUNTED`.
    """
    lost = Counter(iteration for iteration, _ in losses)
    clock, trained, owed = 0, 0, 0.0
    while trained < target:
        for _ in range(lost[clock]):
            if stall is None:
                trained -= trained % every
            else:
                owed += stall * (trained % every)
        if owed >= 1:
            owed -= 1
        else:
            trained += 1
        clock += 1
    return clock


def _counted(trial: Mapping[str, Any], right: float, step: float) -> Iterator[tuple[str, tuple[bool, float, float, float]]]:
    """What of `COUNTED` would have come to the target under the trace of a trial, looked at every
    `step` iterations as the trials are.
    """
    for strategy, (every, stall) in COUNTED.items():
        found = step * math.ceil(iterations_taken(trial["losses"], right, every, stall) / step)
        taken = min(found, trial["iterations"])
        waits = len({iteration for iteration, _ in trial["losses"] if iteration < taken})
        yield strategy, (found <= trial["iterations"], taken, waits, taken / right)


def target_rows(results: Results) -> list[Reached]:
    """Table 2. The target of a seed is the loss of its run without failures after half of the
    iterations of a trial. Where CheckFree was played, what is counted stands beside it.
    """
    scratch = [r for r in results if r["trial"]["trace"].startswith(SCRATCH)]
    plain = {r["trial"]["base_seed"]: r["curve"] for r in scratch if r["trial"]["strategy"] == BASELINE}
    groups: dict[tuple[str, str], list[tuple[bool, float, float, float]]] = {}
    for result in scratch:
        trial = result["trial"]
        curve = plain[trial["base_seed"]]
        target = next(loss for at, loss in curve if at >= trial["iterations"] / 2)
        right, found = _first(curve, target), _first(result["curve"], target)
        taken = min(found, trial["iterations"])
        restarts = len({one["iteration"] for one in result["recoveries"] if one["iteration"] < taken})
        groups.setdefault((kind_of(trial["trace"]), trial["strategy"]), []).append(
            (found < math.inf, taken, restarts, taken / right)
        )
        if trial["strategy"] == MERGE and right < math.inf:
            for name, counted in _counted(trial, right, curve[1][0] - curve[0][0]):
                groups.setdefault((kind_of(trial["trace"]), name), []).append(counted)
    rows = []
    for (kind, strategy), members in groups.items():
        came, iterations, waits, ratios = zip(*members, strict=True)
        names = {strategy: 1.0} | (REDUNDANT if strategy == BASELINE else {})
        for name, factor in names.items():
            mean, late = statistics.fmean(iterations), 0.0 if all(came) else math.inf
            hours = late + (factor * ITERATION_S * mean + RESTART_S * statistics.fmean(waits)) / 3600
            rows.append(Reached(kind, name, len(members), sum(came), mean, hours, late + statistics.fmean(ratios)))
    return sorted(rows, key=lambda row: (int(row.kind.removeprefix(SCRATCH) or 0), row.hours))


def text_rows(results: Results) -> list[TextLoss]:
    """Table 3; of each kind of traces those that all its strategies were played under."""
    tried = [r for r in results if r.get("texts")]
    played: dict[str, dict[str, set[tuple[str, int]]]] = {}
    for trial in (r["trial"] for r in tried):
        played.setdefault(kind_of(trial["trace"]), {}).setdefault(trial["strategy"], set()).add(
            (trial["trace"], trial["base_seed"])
        )
    shared = {kind: set.intersection(*by_strategy.values()) for kind, by_strategy in played.items()}
    tried = [r for r in tried if (r["trial"]["trace"], r["trial"]["base_seed"]) in shared[kind_of(r["trial"]["trace"])]]
    plain = {r["trial"]["base_seed"]: r["texts"] for r in tried if r["trial"]["strategy"] == BASELINE}
    groups: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for result in tried:
        trial = result["trial"]
        for text, loss in result["texts"].items():
            gap = 100 * (loss / plain[trial["base_seed"]][text] - 1)
            groups.setdefault((text, kind_of(trial["trace"]), trial["strategy"]), []).append((loss, gap))
    rows = []
    for (text, kind, strategy), members in sorted(groups.items()):
        losses, gaps = zip(*members, strict=True)
        loss, count = statistics.fmean(losses), len(members)
        error = statistics.stdev(gaps) / math.sqrt(count) if count > 1 else 0.0
        rows.append(TextLoss(kind, strategy, text, count, loss, math.exp(min(loss, 700.0)), statistics.fmean(gaps), error))
    return rows
