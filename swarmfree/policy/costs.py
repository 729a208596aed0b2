"""What a recovery costs: the time until the stage is there, and the learning that is lost with a worse starting point, both in seconds. Pure.

The estimates begin with what was measured with small models, and follow what the recoveries of this run really came to.
Source: design section 6. Differs: the learning that an old copy loses is taken to be all steps of that stage since, as long as nothing was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

BYTES_PER_S = 50e6
"""A transfer is expected to have this rate as long as none was measured."""
REFIT_LOST, MERGE_LOST, NEIGHBOUR_LOST, FRESH_LOST = 60.0, 300.0, 500.0, 1000.0
"""Iterations until the loss is what it was, with a small model: after a refit, a merge, a copy of one neighbour, new weights."""
WATCHED = 60
"""Iterations after a recovery that are looked at; a loss that is not back by then counts as so many."""
BEFORE, AFTER = 8, 4
"""Losses that are averaged on both sides of a recovery: one microbatch is harder than another."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the recoveries of one kind came to in this run: means of measured over expected, the expectation itself counted once."""

    count: int = 0
    time_ratio: float = 1.0
    lost_ratio: float = 1.0

    def with_time(self, ratio: float) -> Seen:
        """One more recovery, and how long it took."""
        mean = (self.time_ratio * (self.count + 1) + ratio) / (self.count + 2)
        return replace(self, count=self.count + 1, time_ratio=mean)

    def with_lost(self, ratio: float) -> Seen:
        """What the last one that was counted cost in learning."""
        return replace(self, lost_ratio=(self.lost_ratio * self.count + ratio) / (self.count + 1))


@dataclass(frozen=True, slots=True)
class Costs:
    """What is known of the run.

    Args:
        iteration_s: of one iteration of the swarm; 0 where none was measured, and then the rungs are taken in their order.
        stage_s: that one stage computes for one iteration.
        weights_bytes: of the largest body stage, float32.
        bytes_per_s: of a transfer.
        limit_s: what is expected to take longer is not begun.
        seen: kind of recovery -> what it came to so far.
    """

    iteration_s: float = 0.0
    stage_s: float = 0.0
    weights_bytes: int = 0
    bytes_per_s: float = BYTES_PER_S
    limit_s: float = math.inf
    seen: Mapping[str, Seen] = field(default_factory=dict)

    def estimate(self, kind: str, moved_bytes: float, compute_s: float, lost: float) -> Estimate:
        """What a recovery is expected to cost.

        Args:
            kind: of recovery, the name of its action.
            moved_bytes: to the newcomer.
            compute_s: of the newcomer.
            lost: iterations until the loss is what it was.
        """
        seen = self.seen.get(kind, Seen())
        seconds = (moved_bytes / self.bytes_per_s + compute_s) * seen.time_ratio
        return Estimate(seconds, lost * seen.lost_ratio, self.iteration_s)


NO_COSTS = Costs()


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds until the stage is there, and iterations until the loss is what it was."""

    seconds: float
    lost: float
    iteration_s: float

    @property
    def total_s(self) -> float:
        """Both, in seconds."""
        return self.seconds + self.lost * self.iteration_s

    def __str__(self) -> str:
        """For people."""
        return f"{self.seconds:.1f} s and {self.lost:.0f} iterations' learning"


@dataclass(frozen=True, slots=True)
class Regained:
    """What a recovery did to the training loss, nats per token.

    Args:
        before, after: means of the losses before it, and right after it.
        iterations: until it was back.
        is_back: False where it was not, in the iterations that were looked at.
    """

    before: float
    after: float
    iterations: int
    is_back: bool


def regained(before: Sequence[float], after: Sequence[float]) -> Regained | None:
    """Compare the losses on both sides of a recovery; None where it is too early to tell.

    The loss is back when the mean of the last few is no more than that of the last ones before, within what these vary from one to the next.

    Args:
        before: of the iterations before it, oldest first.
        after: of those since.
    """
    if not before or len(after) < AFTER:
        return None
    last = list(before[-BEFORE:])
    level = statistics.fmean(last)
    allowed = level + (statistics.stdev(last) / math.sqrt(AFTER) if len(last) > 1 else 0.0)
    first = statistics.fmean(after[:AFTER])
    for end in range(AFTER, len(after) + 1):
        if statistics.fmean(after[end - AFTER : end]) <= allowed:
            return Regained(level, first, end - AFTER, is_back=True)
    return Regained(level, first, len(after), is_back=False) if len(after) >= WATCHED else None
