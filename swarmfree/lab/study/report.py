"""The files of a recovery study: tables as CSV, figures as PNG, and one HTML page with both.

Figures and tables follow those of the paper: 2 (ways of making a lost stage from its neighbours), 3
(against checkpoints), 4a (rates of failure), 4b (how often a checkpoint is taken), 5b (what swapped
routes cost); Table 2 (time to a loss), Table 3 (finished models). Without data none is there.
"""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from swarmfree.lab.plot_style import Curve, as_png, curves_figure, mean_curve
from swarmfree.lab.report import write_whole
from swarmfree.lab.study.paper_tables import Results, target_rows, text_rows
from swarmfree.lab.study.table import TrialRow, kind_of, pairs_of, summaries

LABELS = {"none": "no failures", "norm2": "CheckFree (squared norms)", "norm": "CheckFree (norms)", "checkfree+": "CheckFree+"}
RATES = {f"scratch{rate}": f"{rate} % an hour" for rate in (5, 10, 16)}
"""Kinds of traces -> what sets them apart from the others, for a curve that is named
`strategy@kind`.
"""
FIGURES = {
    "figure-2": (
        "Ways of making a lost stage from its neighbours",
        "middle",
        ("none", "random", "copy", "uniform", "clipped", "norm2"),
    ),
    "figure-3": (
        "Strategies under the same losses",
        "middle",
        ("none", "norm2", "checkpoint-100", "shadow-100", "refit", "replay"),
    ),
    "figure-3-ends": ("Every body stage may be lost", "all", ("none", "norm2", "checkfree+", "shadow-100")),
    "figure-3-pairs": (
        "Two stages at once, twice",
        "pairs",
        ("none", "norm2", "checkfree+", "checkpoint-100", "shadow-100", "replay"),
    ),
    "figure-4a": (
        "CheckFree+ at several rates of failure, from scratch",
        "scratch",
        ("none", "swapped", "checkfree+@scratch5", "checkfree+@scratch10", "checkfree+@scratch16"),
    ),
    "figure-4b": (
        "How often a checkpoint is taken",
        "middle",
        ("none", "checkfree+", "norm2", "checkpoint-10", "checkpoint-50", "checkpoint-100"),
    ),
    "figure-5b": ("What swapped routes cost without any loss", "none", ("none", "swapped")),
}


def csv_bytes(rows: Sequence[Any]) -> bytes:
    """A table of equal records: a line for each, under the names of their fields."""
    out = io.StringIO()
    names = [field.name for field in fields(rows[0])]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in asdict(row).items()})
    return out.getvalue().encode()


def _of(results: Results, strategy: str, kind: str) -> dict[tuple[str, int], list[tuple[int, float]]]:
    """Trace and seed -> the curve; runs without failures count for every kind, as they are from a
    base or not.
    """
    without = "scratch" if kind.startswith("scratch") else "none"
    return {
        (result["trial"]["trace"], result["trial"]["base_seed"]): result["curve"]
        for result in results
        if result["trial"]["strategy"] == strategy and kind_of(result["trial"]["trace"]) in {kind, without}
    }


def figure_curves(results: Results, kind: str, strategies: Sequence[str]) -> list[Curve]:
    """The curves of a figure, each the mean over the traces and seeds that all of its kind have:
    the same losses for all.

    Args:
        kind: of traces.
        strategies: in order; `strategy@kind` for one of another kind.
    """
    named = {strategy: strategy.partition("@") for strategy in strategies}
    found = {strategy: _of(results, alone, other or kind) for strategy, (alone, _, other) in named.items()}
    drawn = {strategy: curves for strategy, curves in found.items() if curves}
    if len(drawn) < 2 or any(other and strategy not in drawn for strategy, (_, _, other) in named.items()):
        return []  # a figure of several rates says nothing with one of them
    struck = [
        set(curves) for strategy, curves in drawn.items() if not named[strategy][2] and kind_of(next(iter(curves))[0]) == kind
    ]
    shared = set.intersection(*struck) if struck else set()
    made = []
    for strategy, curves in drawn.items():
        alone, _, other = named[strategy]
        mine = [curve for key, curve in curves.items() if key in shared or kind_of(key[0]) != kind]
        made.append(mean_curve(RATES.get(other) or LABELS.get(alone, alone), mine))
    return made


def _draw(results: Results, title: str, kind: str, strategies: Sequence[str]) -> bytes | None:
    curves = [curve for curve in figure_curves(results, kind, strategies) if curve.points]
    if len(curves) < 2:
        return None
    least, most = (chosen(curve.trials for curve in curves) for chosen in (min, max))
    counted = f"{least}" if least == most else f"{least} to {most}"
    about = f"means of {counted} trials, bands of one standard deviation" if most > 1 else "one trial each"
    return as_png(
        curves_figure(
            curves,
            title,
            about,
            x_label="iterations, stalled and redone ones counted",
            y_label="held-out loss, nats per byte",
        )
    )


def write_report(folder: Path, results: Results, rows: Sequence[TrialRow], about: Sequence[str]) -> list[Path]:
    """Write everything; the paths.

    Args:
        about: sentences for the page: what was run, and what follows.
    """
    tables: dict[str, Sequence[Any]] = {
        "trials": rows,
        "summary": summaries(rows),
        "pairs": pairs_of(rows),
        "target": target_rows(results),
        "texts": text_rows(results),
    }
    tables = {name: table for name, table in tables.items() if table}
    for name, table in tables.items():
        write_whole(folder / f"{name}.csv", csv_bytes(table))
    pictures = []
    for name, (title, kind, strategies) in FIGURES.items():
        picture = _draw(results, title, kind, strategies)
        if picture is not None:
            write_whole(folder / f"{name}.png", picture)
            pictures.append((name, title, picture))
    page = study_page("Recovery study", TITLES, tables, [(title, picture) for _, title, picture in pictures], about)
    write_whole(folder / "index.html", page.encode())
    names = [f"{name}.csv" for name in tables] + [f"{name}.png" for name, _, _ in pictures] + ["index.html"]
    return [folder / name for name in names]


TITLES = {
    "summary": "Gap to the run without failures, at equal time or equal iterations, whichever is larger",
    "pairs": "Paired differences",
    "target": "From scratch to a held-out loss",
    "texts": "Finished models on several texts",
}


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def cell(value: object) -> str:
        return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))

    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def study_page(
    title: str,
    titles: Mapping[str, str],
    tables: Mapping[str, Sequence[Any]],
    pictures: Sequence[tuple[str, bytes]],
    about: Sequence[str],
) -> str:
    """One HTML page without outside parts.

    Args:
        title: of the page.
        titles: name of a table -> its heading, in order.
        tables: name -> equal records, one at least.
        pictures: heading and PNG.
        about: sentences at the beginning.
    """
    told = ""
    for name, heading in titles.items():
        if name in tables:
            names = [field.name for field in fields(tables[name][0])]
            told += f"<h2>{html.escape(heading)}</h2>{_table(names, [list(asdict(row).values()) for row in tables[name]])}"
    images = "".join(
        f'<h2>{html.escape(heading)}</h2><img alt="{html.escape(heading)}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        for heading, data in pictures
    )
    sentences = "".join(f"<p>{html.escape(line)}</p>" for line in about)
    style = (
        "body{font:15px sans-serif;max-width:60em;margin:2em auto}td,th{padding:.2em .7em;text-align:right}img{max-width:100%}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{style}</style>'
        f"<h1>{html.escape(title)}</h1>{sentences}{told}{images}</html>\n"
    )
