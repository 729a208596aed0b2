"""FlexiTrain's two tables: the share of a fault-free run's work that restarts from checkpoints
leave, and that going on with fewer ranks leaves.

Pure. Source: FlexiTrain, section 2.1: 10,000 GPUs in 64 data-parallel ranks, 0.15 failures an hour
in all, a checkpoint every three hours, twenty minutes to load one; a month in steps of ten minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """What the paper assumes.

    Args:
        failures_per_hour: of the whole cluster; lambda.
        checkpoint_hours: between two checkpoints; h.
        load_hours: to load one.
        ranks: data-parallel ranks.
        step_hours: of the simulation.
        steps: of the simulation.
    """

    failures_per_hour: float = 0.15
    checkpoint_hours: float = 3.0
    load_hours: float = 1 / 3
    ranks: int = 64
    step_hours: float = 1 / 6
    steps: int = 4320

    @property
    def steps_per_checkpoint(self) -> int:
        """Steps between two checkpoints."""
        return round(self.checkpoint_hours / self.step_hours)

    @property
    def load_steps(self) -> int:
        """Steps to load one."""
        return round(self.load_hours / self.step_hours)

    @property
    def failures_per_step(self) -> float:
        """Failures that a step brings, on average."""
        return self.failures_per_hour * self.step_hours


def failure_chance(run: ClusterRun) -> float:
    """Chance of a failure between two checkpoints: 1 - exp(-lambda h)."""
    return 1.0 - math.exp(-run.failures_per_hour * run.checkpoint_hours)


def mean_failure_hours(run: ClusterRun) -> float:
    """Expected hours since the last checkpoint, where a failure comes before the next:
    E[T | T < h] = 1 / lambda - h exp(-lambda h) / (1 - exp(-lambda h)).
    """
    hours, chance = run.checkpoint_hours, failure_chance(run)
    return 1 / run.failures_per_hour - hours * (1 - chance) / chance


def restart_share(run: ClusterRun, chance: float, failure_hours: float) -> float:
    """Share that is left with restarts from checkpoints: 1 - p (E[T] + t_load) / h.

    Table 2's formula. It allows one failure between two checkpoints, and divides what is wasted by
    h though the interval has become longer by it.

    Args:
        run: see there.
        chance: p; the paper rounds it to 0.36.
        failure_hours: E[T | T < h].
    """
    return 1 - chance * (failure_hours + run.load_hours) / run.checkpoint_hours


def fewer_ranks_share(run: ClusterRun) -> float:
    """Share that is left at the end of an interval with ranks that stay away: 1 - lambda h / D, of
    which Table 2 says that it is a lower bound.
    """
    return 1 - run.failures_per_hour * run.checkpoint_hours / run.ranks


@dataclass(frozen=True, slots=True)
class RestartRuns:
    """Simulated runs with restarts.

    Args:
        share: mean share over the runs.
        spread: standard deviation between runs.
        failure_minutes: mean time since the last checkpoint at a failure.
    """

    share: float
    spread: float
    failure_minutes: float


def simulate_restarts(run: ClusterRun, runs: int, seed: int) -> RestartRuns:
    """Simulate with the bookkeeping of the paper's code.

    A step without a failure does its work. A failure takes the time since the last checkpoint and
    the loading; what was done before is not undone instead. The checkpoint's clock starts again
    after a failure, and after more steps than lie between two checkpoints.
    """
    rng = np.random.default_rng(seed)
    chance = 1 - math.exp(-run.failures_per_step)
    since, elapsed, done = np.zeros(runs), np.zeros(runs), np.zeros(runs)
    ages = []
    for _ in range(run.steps):
        fails = rng.random(runs) < chance
        ages.append(since[fails])
        elapsed += np.where(fails, since + run.load_steps, 1.0)
        done += ~fails
        since = np.where(fails | (since + 1 > run.steps_per_checkpoint), 0.0, since + 1)
    shares = done / elapsed
    minutes = 60 * run.step_hours * float(np.concatenate(ages).mean())
    return RestartRuns(float(shares.mean()), float(shares.std(ddof=1)), minutes)


def simulate_fewer_ranks(run: ClusterRun, runs: int, seed: int) -> tuple[float, float]:
    """Simulate by the paper's text: the rank of a failure does nothing until the next checkpoint,
    the step of the failure included.

    Returns:
        Mean share over the runs, and the standard deviation between them.
    """
    rng = np.random.default_rng(seed)
    failures = rng.poisson(run.failures_per_step, (runs, run.steps))
    left = run.steps_per_checkpoint - np.arange(run.steps) % run.steps_per_checkpoint
    shares = 1 - (failures * left).sum(axis=1) / (run.ranks * run.steps)
    return float(shares.mean()), float(shares.std(ddof=1))
