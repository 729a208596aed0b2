"""The files of a planning study: a table as CSV, figures as PNG, and one HTML page with both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from swarmfree.lab.plot_style import Curve, as_png, curves_figure
from swarmfree.lab.report import write_whole
from swarmfree.lab.study.goodput import PlayedTrace
from swarmfree.lab.study.planning_results import PlanningRow
from swarmfree.lab.study.planning_scenarios import (
    AWAY,
    EQUAL,
    LARGE,
    OOBLECK,
    RECYCLE_BOTTLENECK,
    RECYCLE_SUM,
    REJOIN,
    RESTART,
    SIZES,
    SWARM,
    SYSTEMS,
)
from swarmfree.lab.study.report import csv_bytes, study_page

DRAWN = tuple(name for name in SYSTEMS if name != RESTART)
"""A plain restart lies a little below Varuna, and is in the table alone."""
FIGURES = {
    "figure-rates-away": (AWAY, "Goodput at several rates of failure, nobody comes back"),
    "figure-rates-rejoin": (REJOIN, "Goodput at several rates of failure, others come within ten minutes"),
    "figure-transitions": (EQUAL, "Goodput by the seconds that a change takes"),
    "figure-sizes": (SIZES, "Goodput by size of the cluster, 5 % an hour, others come"),
    "figure-large": (LARGE, "Goodput by size of the cluster, 1 % an hour, others come"),
}
TIMELINE, TIMELINE_SYSTEMS = "figure-time", (SWARM, OOBLECK, RECYCLE_SUM, RECYCLE_BOTTLENECK)
BINS = 54
SPARSE = 10
"""A sweep that reaches so many times its least number is drawn by the count of doublings."""
GOODPUT = "goodput, share of nodes that always compute"
COLUMNS = {"summary": "Every system at every point"}


def point_curves(rows: Sequence[PlanningRow], group: str) -> list[Curve]:
    """A curve for each drawn system: goodput by the number in which a group's scenarios differ."""
    found = []
    for name in DRAWN:
        mine = sorted((row for row in rows if row.system == name and row.group == group), key=lambda row: row.x)
        if len(mine) > 1:
            places = [math.log2(row.x) if is_sparse(mine) else row.x for row in mine]
            points = tuple(zip(places, (row.goodput for row in mine), strict=True))
            found.append(Curve(name, points, tuple(row.spread for row in mine), mine[0].traces))
    return found


def is_sparse(rows: Sequence[PlanningRow]) -> bool:
    """Whether a sweep is drawn by doublings."""
    return rows[0].group in {SIZES, LARGE} and rows[-1].x >= SPARSE * rows[0].x


def time_curves(plays: Mapping[str, Sequence[PlayedTrace]], span_s: float, ideal_s: float) -> list[Curve]:
    """Share of ideal throughput over time of some systems, means over traces, in equal spans."""
    step_s = span_s / BINS
    found = []
    for name in TIMELINE_SYSTEMS:
        if name not in plays:
            continue
        means = [0.0] * BINS
        for play in plays[name]:
            for number, share in enumerate(_binned(play, step_s)):
                means[number] += share * ideal_s / len(plays[name])
        points = tuple(((number + 0.5) * step_s / 3600, mean) for number, mean in enumerate(means))
        found.append(Curve(name, points, (), len(plays[name])))
    return found


def _binned(play: PlayedTrace, step_s: float) -> list[float]:
    """Mean iterations a second in each of `BINS` spans."""
    sums = [0.0] * BINS
    ends = [at_s for at_s, _ in play.curve[1:]] + [BINS * step_s]
    for (from_s, pace), until_s in zip(play.curve, ends, strict=True):
        at_s = from_s
        while pace and at_s < until_s:
            number = min(BINS - 1, int(at_s / step_s + 1e-9))
            next_s = min(until_s, (number + 1) * step_s) if number < BINS - 1 else until_s
            sums[number] += pace * (next_s - at_s)
            at_s = next_s
    return [total / step_s for total in sums]


def write_planning_report(
    folder: Path, rows: Sequence[PlanningRow], timeline: Sequence[Curve], about: Sequence[str]
) -> list[Path]:
    """Write everything; the paths.

    Args:
        folder: that exists.
        rows: of all scenarios.
        timeline: of one scenario; empty = no such figure.
        about: sentences for the page.

    Raises:
        ReportError: the disk is full or gone.
    """
    write_whole(folder / "summary.csv", csv_bytes(rows))
    pictures = []
    for name, (group, title) in FIGURES.items():
        curves = point_curves(rows, group)
        if curves:
            sparse = is_sparse(sorted((row for row in rows if row.group == group), key=lambda row: row.x))
            label = f"{group}, doublings" if sparse else group
            pictures.append((name, title, _picture(curves, title, label)))
    if timeline:
        title = "Throughput over time, 32 nodes, nobody comes back"
        pictures.append((TIMELINE, title, _picture(timeline, title, "hours")))
    for name, _, picture in pictures:
        write_whole(folder / f"{name}.png", picture)
    page = study_page("Planning study", COLUMNS, {"summary": rows}, [(title, data) for _, title, data in pictures], about)
    write_whole(folder / "index.html", page.encode())
    return [folder / name for name in ("summary.csv", *(f"{name}.png" for name, _, _ in pictures), "index.html")]


def _picture(curves: Sequence[Curve], title: str, x_label: str) -> bytes:
    trials = max(curve.trials for curve in curves)
    about = f"means of {trials} traces" + (", bands of one standard deviation" if curves[0].spreads else "")
    return as_png(curves_figure(curves, title, about, x_label=x_label, y_label=GOODPUT, shows_all=True))
