"""What the samples of a soak say: how fast each quantity of a process grows, how sure that is, and
whether it is more than may be. Pure functions.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOUR_S = 3600.0
ERRORS = 2.0
"""A slope of fewer standard errors than this is not told from none."""
JUDGED_MIN = 20
"""A process of which there are fewer samples is not judged."""
ALL_FOLDERS = "folders"
FOLDERS = 6
"""Of five peers and the bootstrap node: what one may have on top on disk, all may six times."""
GROWTH_MAX: Mapping[str, float] = {
    "rss_mb": 5.0,
    "handles": 1.0,
    "threads": 1.0,
    "grpc_threads": 1.0,
    "children": 1.0,
    "disk_mb": 1.0,
}
"""How much of each there may come on top in an hour."""
RISE_MIN: Mapping[str, float] = {"handles": 2.0, "threads": 2.0, "grpc_threads": 8.0, "children": 2.0}
"""What comes in whole ones has to rise by so many while it is judged: one thread more that stays is
a pool that grew. gRPC's own pool has one more whenever all of it were busy at once, and lets that
go where it is idle for long.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process.

    Args:
        time_s: Unix seconds.
        name: whose.
        pid: another one is another process of that name.
        values: quantity -> how much of it there is.
    """

    time_s: float
    name: str
    pid: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through a quantity over time.

    Args:
        per_h: how much there comes on top in an hour.
        error: standard error of that.
        last: where the line ends.
        rise: from where it begins to there.
    """

    per_h: float
    error: float
    last: float
    rise: float

    def exceeds(self, most: float, rise_min: float = 0.0) -> bool:
        """Whether it rises by more than `most` in an hour, and by `rise_min` at least, and that is
        told from none.
        """
        return self.per_h > most and self.rise >= rise_min and self.per_h > ERRORS * self.error


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """Fit a line by least squares.

    A sample is much like the one before, which leaves fewer that are independent; so the error is
    widened by the correlation r of residuals with the next one::

        error^2 = sum(residual^2) / (n - 2) / sum((t - mean t)^2) * (1 + r) / (1 - r)

    Args:
        points: (seconds, quantity), three at least, at different times.
    """
    assert len(points) > 2, "a line with an error needs three points"
    times_h = [time_s / HOUR_S for time_s, _ in points]
    values = [value for _, value in points]
    line = statistics.linear_regression(times_h, values)
    rest = [value - (line.slope * time + line.intercept) for time, value in zip(times_h, values, strict=True)]
    squares, middle = sum(r * r for r in rest), statistics.fmean(times_h)
    spread = sum((time - middle) ** 2 for time in times_h)
    together = sum(a * b for a, b in itertools.pairwise(rest))
    correlation = min(0.99, max(0.0, together / squares)) if squares else 0.0
    error = math.sqrt(squares / (len(points) - 2) / spread * (1 + correlation) / (1 - correlation))
    rise = line.slope * (times_h[-1] - times_h[0])
    return Slope(line.slope, error, line.slope * times_h[-1] + line.intercept, rise)


def slopes(samples: Sequence[Sample], since_s: float) -> dict[tuple[str, str], Slope]:
    """(name, quantity) -> its slope from `since_s` on, of the process that bore that name last; one
    that was seen too seldom is left out.
    """
    last = {sample.name: sample.pid for sample in samples}
    points: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        if sample.time_s >= since_s and sample.pid == last[sample.name]:
            for quantity, value in sample.values.items():
                points[sample.name, quantity].append((sample.time_s, value))
    return {key: slope(found) for key, found in sorted(points.items()) if len(found) >= JUDGED_MIN}


def grown(found: Mapping[tuple[str, str], Slope], spared: Sequence[str] = ()) -> list[str]:
    """One line for each quantity that rises faster than it may; processes in `spared` may."""
    lines = []
    for (name, quantity), rise in found.items():
        most = GROWTH_MAX[quantity] * (FOLDERS if name == ALL_FOLDERS else 1)
        if name not in spared and rise.exceeds(most, RISE_MIN.get(quantity, 0.0)):
            lines.append(f"{name}: {quantity} grows by {rise.per_h:.2f} +- {rise.error:.2f} an hour; at most {most:g} expected")
    return lines


def undecided(samples: Sequence[Sample], since_s: float, spared: Sequence[str] = ()) -> list[str]:
    """One line for each quantity that is not shown to hold: whose slope might exceed what it may by
    two standard errors, though it is not told from less; or of which there were too few samples.
    """
    found = slopes(samples, since_s)
    seen = {(sample.name, quantity) for sample in samples for quantity in sample.values}
    lines = [f"{name}: {quantity} was seen too seldom" for name, quantity in sorted(seen - found.keys()) if name not in spared]
    for (name, quantity), rise in found.items():
        most = GROWTH_MAX[quantity] * (FOLDERS if name == ALL_FOLDERS else 1)
        might = rise.per_h + ERRORS * rise.error
        if name not in spared and might > most and not rise.exceeds(most, RISE_MIN.get(quantity, 0.0)):
            lines.append(f"{name}: {quantity} may grow by {might:.2f} an hour; at most {most:g} expected")
    return lines


def by_minute(times_s: Sequence[float], begun_s: float, ended_s: float) -> list[int]:
    """How many commits there were in each whole minute."""
    counts = [0] * int((ended_s - begun_s) / 60)
    for time_s in times_s:
        minute = int((time_s - begun_s) // 60)
        if 0 <= minute < len(counts):
            counts[minute] += 1
    return counts


def longest_gap_s(times_s: Sequence[float], begun_s: float, ended_s: float) -> float:
    """The longest time without a commit, seconds."""
    within = [time_s for time_s in times_s if begun_s <= time_s <= ended_s]
    return max(after - before for before, after in itertools.pairwise([begun_s, *sorted(within), ended_s]))
