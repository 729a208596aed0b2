"""The files of a recovery study: tables as CSV, figures as PNG, and one HTML page with both.

Figures follow those of the paper: 2 (ways of making a lost stage from its neighbours), 3 (against checkpoints), 4a (rates of failure), 4b (how often
a checkpoint is taken), 5b (what swapped routes cost). A figure without data is left out.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from swarmfree.lab.failures import ITERATION_S
from swarmfree.lab.report import write_whole
from swarmfree.lab.study_table import REDUNDANT, Row, Summary, kind_of

LABELS = {"none": "no failures", "norm2": "CheckFree (squared norms)", "norm": "CheckFree (norms)", "checkfree+": "CheckFree+"}
RATES = {"middle5": "5 % an hour", "middle10": "10 % an hour"}
"""Kinds of traces -> what sets them apart from the others, for a curve that is named `strategy@kind`."""
RESTART_S = 30.0
"""How long the others wait for a recovery, as the paper counts it."""
DASHED = {"replay"}
"""Lies on the curve without failures, and would hide it."""
Results = Sequence[Mapping[str, Any]]
FIGURES = {
    "figure-2": (
        "Ways of making a lost stage from its neighbours",
        "middle",
        ("none", "random", "copy", "uniform", "norm", "norm2"),
    ),
    "figure-3": (
        "Strategies under the same losses",
        "middle",
        ("none", "norm2", "checkpoint-100", "shadow-100", "refit", "replay"),
    ),
    "figure-3-ends": ("Every body stage may be lost", "all", ("none", "norm2", "checkfree+", "shadow-100", "replay")),
    "figure-4a": (
        "CheckFree at several rates of failure",
        "middle",
        ("none", "norm2@middle5", "norm2@middle10", "norm2"),
    ),
    "figure-4b": (
        "How often a checkpoint is taken",
        "middle",
        ("none", "norm2", "checkpoint-10", "checkpoint-50", "checkpoint-100"),
    ),
    "figure-5b": ("What swapped routes cost without any loss", "none", ("none", "swapped")),
}


def _csv(rows: Sequence[Any]) -> bytes:
    out = io.StringIO()
    names = [field.name for field in fields(rows[0])]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in asdict(row).items()})
    return out.getvalue().encode()


def _mean_curve(results: Results, strategy: str, kind: str) -> list[tuple[float, float]]:
    """Mean over traces and seeds, at the iterations that all have; runs without failures count for every kind."""
    chosen = [
        result["curve"]
        for result in results
        if result["trial"]["strategy"] == strategy and (kind_of(result["trial"]["trace"]) in {kind, "none"})
    ]
    by_iteration: dict[float, list[float]] = {}
    for curve in chosen:
        for iteration, loss in curve:
            by_iteration.setdefault(iteration, []).append(loss)
    return [(at, statistics.fmean(found)) for at, found in sorted(by_iteration.items()) if len(found) == len(chosen)]


def _draw(results: Results, title: str, kind: str, strategies: Sequence[str]) -> bytes | None:
    import matplotlib as mpl  # noqa: PLC0415 - takes a second to load

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    named = {strategy: strategy.partition("@") for strategy in strategies}
    curves = {strategy: _mean_curve(results, alone, other or kind) for strategy, (alone, _, other) in named.items()}
    drawn = {strategy: curve for strategy, curve in curves.items() if curve}
    if len(drawn) < 2 or any(other and strategy not in drawn for strategy, (_, _, other) in named.items()):
        return None  # a figure of several rates says nothing with one of them
    figure, axes = plt.subplots(figsize=(7.5, 4.2), dpi=120)
    for strategy, curve in drawn.items():
        style = "--" if strategy in DASHED else "-"
        alone, _, other = named[strategy]
        label = ", ".join(part for part in (LABELS.get(alone, alone), RATES.get(other, "")) if part)
        axes.plot([at for at, _ in curve], [loss for _, loss in curve], style, label=label, linewidth=1.4)
    axes.set(title=title, xlabel="iterations after the base", ylabel="held-out loss, nats per byte")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    out = io.BytesIO()
    figure.tight_layout()
    figure.savefig(out, format="png")
    plt.close(figure)
    return out.getvalue()


def time_rows(found: Sequence[Summary], results: Results, restart_s: float = RESTART_S) -> list[tuple[str, str, float, float]]:
    """Hours for the iterations of a trial, as the paper counts: iterations of 91.3 s, and each recovery's wait.

    Returns:
        (kind, strategy, hours, final gap in per cent), redundant computation by the paper's factor and by a mild one.
    """
    hours = []
    length = max(result["trial"]["iterations"] for result in results)
    for summary in found:
        losses = [
            len(r["recoveries"])
            for r in results
            if r["trial"]["strategy"] == summary.strategy and kind_of(r["trial"]["trace"]) == summary.kind
        ]
        seconds = length * ITERATION_S + restart_s * statistics.fmean(losses) + summary.recovery_s
        hours.append((summary.kind, summary.strategy, seconds / 3600, summary.gap_percent))
    hours += [("any", name, factor * length * ITERATION_S / 3600, 0.0) for name, factor in REDUNDANT.items()]
    return hours


def write_report(
    folder: Path, results: Results, rows: Sequence[Row], found: Sequence[Summary], about: Sequence[str]
) -> list[Path]:
    """Write everything; the paths.

    Args:
        about: sentences for the page: what was run, and what follows.
    """
    paths = [folder / "trials.csv", folder / "summary.csv"]
    write_whole(paths[0], _csv(rows))
    write_whole(paths[1], _csv(found))
    pictures = []
    for name, (title, kind, strategies) in FIGURES.items():
        picture = _draw(results, title, kind, strategies)
        if picture is not None:
            paths.append(folder / f"{name}.png")
            write_whole(paths[-1], picture)
            pictures.append((title, picture))
    paths.append(folder / "index.html")
    write_whole(paths[-1], _page(found, time_rows(found, results), pictures, about).encode())
    return paths


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def cell(value: object) -> str:
        return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))

    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _page(
    found: Sequence[Summary],
    hours: Sequence[tuple[str, str, float, float]],
    pictures: Sequence[tuple[str, bytes]],
    about: Sequence[str],
) -> str:
    names = (
        "strategy",
        "traces",
        "trials",
        "gap %",
        "spread %",
        "largest spike %",
        "iterations back",
        "redone",
        "recovery compute s",
    )
    rows = [
        (s.strategy, s.kind, s.trials, s.gap_percent, s.spread_percent, s.spike_percent, s.back, s.redone, s.recovery_s)
        for s in found
    ]
    images = "".join(
        f'<h2>{html.escape(title)}</h2><img alt="{html.escape(title)}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        for title, data in pictures
    )
    sentences = "".join(f"<p>{html.escape(line)}</p>" for line in about)
    style = (
        "body{font:15px sans-serif;max-width:60em;margin:2em auto}td,th{padding:.2em .7em;text-align:right}img{max-width:100%}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Recovery study</title><style>{style}</style>'
        f"<h1>Recovery study</h1>{sentences}<h2>Gap to the run without failures</h2>{_table(names, rows)}"
        f"<h2>Time</h2>{_table(('traces', 'strategy', 'hours', 'gap %'), hours)}{images}</html>\n"
    )
