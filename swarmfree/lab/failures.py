"""Failure traces: which stage is lost in which iteration, drawn once and played to every strategy alike. Pure.

Source: CheckFree, section 5: each stage fails with a given chance per hour, an iteration of its medium model takes 91.3 s.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

ITERATION_S = 91.3


@dataclass(frozen=True, slots=True)
class Failure:
    """One stage is lost as one iteration begins."""

    iteration: int
    stage: int


def chance_per_iteration(rate_per_hour: float, iteration_s: float = ITERATION_S) -> float:
    """Chance that a stage is lost in one iteration, where it is lost with `rate_per_hour` within an hour."""
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
