"""Several reports side by side: one figure with all curves, one table, the same as CSV.

Runs that differ in their seed alone are trials of one curve, which then has a band of one standard
deviation either side. What a run was is taken from its own report: its events, its config where it
was kept, and where it was struck.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.state import SwarmState, bits_per_byte
from swarmfree.lab.outcome import cost_of, headline, iteration_of, seconds_of
from swarmfree.lab.plot_style import Curve, as_png, curves_figure, mean_curve
from swarmfree.lab.report import CONFIG_FILE, read_ending, read_events, write_whole

FIGURE_FILE = "comparison.png"
TABLE_FILE = "comparison.csv"
JUMP = 1e-3
"""So many iterations before a rebuild stands what was last known before it."""
_SEED = re.compile(r"^seed = .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compared:
    """One report among several.

    Args:
        name: short, and no other one has it.
        folder: of the report.
        state: the run.
        outcome: in one sentence.
        like: what it has in common with its other trials: config without seed, and strikes; empty
            where that is not known.
    """

    name: str
    folder: Path
    state: SwarmState
    outcome: str
    like: tuple[str, ...] = ()

    @property
    def held_out(self) -> list[tuple[float, float]]:
        """(iteration, held-out bits per byte); of several of one iteration the last. At a rebuild
        it jumps, and does not rise from the one before.
        """
        found: dict[float, float] = {}
        for each in sorted(self.state.evaluations, key=lambda e: e.time_s):
            if each.after_rebuild and found:
                found[each.iteration - JUMP] = found[max(found)]
            found[float(each.iteration)] = bits_per_byte(each.loss)
        return sorted(found.items())

    @property
    def final(self) -> float | None:
        """The last held-out loss, bits per byte."""
        return bits_per_byte(self.state.evaluations[-1].loss) if self.state.evaluations else None


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the table, as in the CSV; empty where a value is not known."""

    name: str
    iterations: int
    tokens: int
    seconds: float
    tokens_per_s: float | None
    held_out_final_bits_per_byte: float | None
    stages_lost: int
    longest_return_s: float | None
    cost_bits_per_byte: float | None
    outcome: str


def read_reports(folders: Sequence[Path]) -> list[Compared]:
    """The reports, by the order in which they were named.

    Raises:
        ConfigError: one of them is no report.
    """
    found = []
    for folder, name in zip(folders, _names(folders), strict=True):
        state = fold_all(read_events(folder))
        outcome = headline(state, *read_ending(folder)).partition(": ")[2]
        try:
            config = _SEED.sub("", (folder / CONFIG_FILE).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            config = ""
        strikes = [f"stage {story.stage} at {iteration_of(story, state)}" for story in state.lost_stages]
        found.append(Compared(name, folder, state, outcome, (config, *strikes) if config else ()))
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path; as many more as it takes for all to differ."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def curves_of(reports: Sequence[Compared]) -> list[Curve]:
    """A held-out curve for each kind of run, in the order of their first reports."""
    groups: dict[tuple[str, ...], list[Compared]] = {}
    for report in reports:
        groups.setdefault(report.like or (report.name,), []).append(report)
    curves = []
    for trials in groups.values():
        name = trials[0].name if len(trials) == 1 else f"{trials[0].name}\nand {len(trials) - 1} more"
        curves.append(mean_curve(name, [trial.held_out for trial in trials]))
    return [curve for curve in curves if curve.points]


def lines_of(reports: Sequence[Compared]) -> list[TableRow]:
    """Format the comparison as the lines of a table."""
    lines = []
    for report in reports:
        state = report.state
        stories = state.lost_stages
        tokens = sum(c.tokens for c in state.commits)
        span_s = state.training_s
        back = [seconds for story in stories if (seconds := seconds_of(story)) is not None]
        costs = [cost for story in stories if (cost := cost_of(story)) is not None]
        cost = sum(max(0.0, cost) for cost in costs) if len(costs) == len(stories) else None
        speed = tokens / span_s if span_s > 0 else None
        lines.append(
            TableRow(
                report.name,
                state.committed_count,
                tokens,
                round(span_s, 3),
                speed,
                report.final,
                len(stories),
                max(back, default=None),
                cost,
                report.outcome,
            )
        )
    return lines


def finding(reports: Sequence[Compared]) -> str:
    """What comes out, in one sentence: which ended lowest, and by how much."""
    groups: dict[tuple[str, ...], list[Compared]] = {}
    for report in reports:
        if report.final is not None:
            groups.setdefault(report.like or (report.name,), []).append(report)
    ends = sorted((statistics.fmean(r.final or 0.0 for r in group), group[0].name) for group in groups.values())
    if len(ends) < 2:
        return (
            f"{len(reports)} runs that differ in their seed alone: {ends[0][0]:.3f} bits per byte at the end"
            if ends
            else f"{len(reports)} runs"
        )
    (low, best), (high, worst) = ends[0], ends[-1]
    if high - low < 0.0005:
        return f"all end at {low:.3f} bits per byte"
    lengths = sorted({line.iterations for line in lines_of(reports)})
    unlike = f" (they trained {lengths[0]} to {lengths[-1]} iterations)" if len(lengths) > 1 else ""
    return f"{best} ends lowest, at {low:.3f} bits per byte; {worst} ends {high - low:.3f} above it{unlike}"


def write_comparison(reports: Sequence[Compared], into: Path) -> list[Path]:
    """Write the figure and the CSV; the paths.

    Raises:
        SwarmfreeError: the disk is full.
    """
    lines = lines_of(reports)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(TableRow.__dataclass_fields__)
    writer.writerow(names)
    for line in lines:
        values = [getattr(line, name) for name in names]
        writer.writerow(["" if value is None else f"{value:.6g}" if isinstance(value, float) else value for value in values])
    write_whole(into / TABLE_FILE, out.getvalue().encode())
    paths = [into / TABLE_FILE]
    curves = curves_of(reports)
    if curves:
        is_banded = any(curve.trials > 1 for curve in curves)
        about = "held-out loss" + ("; bands of one standard deviation over trials" if is_banded else "")
        figure = curves_figure(curves, finding(reports), about, x_label="iteration", y_label="bits per byte")
        write_whole(into / FIGURE_FILE, as_png(figure))
        paths.insert(0, into / FIGURE_FILE)
    return paths


def table_rows(lines: Sequence[TableRow]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of the table for people."""

    def told(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    header = ("run", "iterations", "tokens/s", "held out", "losses", "back in", "cost")
    rows: list[tuple[str, ...]] = []
    for line in lines:
        back = "-" if line.longest_return_s is None else f"{line.longest_return_s:.1f} s"
        numbers = (
            f"{line.iterations:,}",
            told(line.tokens_per_s, 0),
            told(line.held_out_final_bits_per_byte, 3),
            f"{line.stages_lost}",
        )
        rows.append((line.name, *numbers, back, told(line.cost_bits_per_byte, 2) if line.stages_lost else "-"))
    return header, rows
