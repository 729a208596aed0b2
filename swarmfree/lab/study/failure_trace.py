"""Failure traces: which stages are lost in which iteration, drawn once and played to every strategy
alike. Pure.

Source: CheckFree, section 5: each stage fails with a given chance per hour, an iteration of its
medium model takes 91.3 s.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ITERATION_S = 91.3


@dataclass(frozen=True, slots=True)
class Failure:
    """One stage is lost as one iteration begins."""

    iteration: int
    stage: int


def chance_per_iteration(rate_per_hour: float, iteration_s: float = ITERATION_S) -> float:
    """Chance that a stage is lost in one iteration, where it is lost with `rate_per_hour` within an
    hour.
    """
    return float(1.0 - (1.0 - rate_per_hour) ** (iteration_s / 3600.0))


def draw_failures(rate_per_hour: float, stages: Sequence[int], first: int, count: int, seed: int) -> tuple[Failure, ...]:
    """Failures of a run, by iteration and stage.

    Args:
        rate_per_hour: of each stage.
        stages: that may fail.
        first: the first iteration in which one may.
        count: how many iterations.
        seed: of the draws; another number of iterations changes no earlier failure.
    """
    rng, chance = random.Random(f"failures {seed}"), chance_per_iteration(rate_per_hour)
    found = [Failure(iteration, stage) for iteration in range(first, first + count) for stage in stages if rng.random() < chance]
    return tuple(found)


def draw_pairs(stages: Sequence[int], first: int, count: int, seed: int) -> tuple[Failure, ...]:
    """Two stages at once, twice: two adjacent ones in one half of the run, two that are not
    adjacent in the other; which comes first is drawn.

    Args:
        stages: that may fail, ascending, at least three.
        first: the first iteration in which they may.
        count: how many iterations.
        seed: of the draws.
    """
    rng = random.Random(f"pairs {seed}")
    pairs = list(itertools.combinations(stages, 2))
    chosen = [rng.choice([(a, b) for a, b in pairs if (b - a == 1) is adjacent]) for adjacent in (True, False)]
    rng.shuffle(chosen)
    half = count // 2
    moments = [first + half * place + rng.randrange(half) for place in range(2)]
    return tuple(Failure(moment, stage) for moment, pair in zip(moments, chosen, strict=True) for stage in pair)


def distinct_traces(draw: Callable[[int], tuple[Failure, ...]], count: int) -> list[tuple[Failure, ...]]:
    """So many traces, each with a loss and none like another, from the first seeds from 1 on that
    give such ones.
    """
    found: list[tuple[Failure, ...]] = []
    for seed in itertools.count(1):
        if len(found) == count:
            break
        trace = draw(seed)
        if trace and trace not in found:
            found.append(trace)
    return found
