"""``swarmfree report``: draw a report again, or compare several."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from swarmfree.cli.early_checks import require_lab
from swarmfree.cli.options import DieOption, bind_to_parent

SAMPLE_PROMPT = "def "
SAMPLE_TOKENS = 72


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="Folders of reports; with several, they are compared.", show_default=False),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where to write. Default: one report in its own folder; a comparison in reports/comparison-DATE-TIME.",
            show_default=False,
        ),
    ] = None,
    hasty: Annotated[
        bool, typer.Option("--hasty", hidden=True, help="Have nothing written by the model: whoever waits wants to go.")
    ] = False,
    only_samples: Annotated[
        bool, typer.Option("--only-samples", hidden=True, help="Print what the model writes, and nothing else.")
    ] = False,
    parent: DieOption = 0,
) -> None:
    """Draw the figure and the page of a report again, or compare several reports: one figure, one
    table, one CSV.

    Works from any folder, on reports of runs that were cut off too.
    """
    bind_to_parent(parent)
    require_lab("report")
    if len(folders) == 1:
        _one(folders[0], out, only_samples=only_samples, hasty=hasty)
    else:
        _several(folders, out)


def _one(folder: Path, out: Path | None, *, only_samples: bool, hasty: bool) -> None:
    from swarmfree.lab.page import write_page  # noqa: PLC0415 - help is fast
    from swarmfree.lab.summary import PAGE_FILE  # noqa: PLC0415 - help is fast

    into = out or folder
    if out is not None:
        _make(out)
    samples = [] if hasty else write_samples(folder, into)
    summary = write_page(folder, into, samples)
    if not only_samples:
        typer.echo(summary["outcome"])
    for line in sample_lines(samples):
        typer.echo(line)
    if not only_samples:
        typer.echo(f"page: {into / PAGE_FILE}")


def _several(folders: list[Path], out: Path | None) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - help is fast
    from rich.console import Console  # noqa: PLC0415 - help is fast
    from rich.table import Table  # noqa: PLC0415 - help is fast

    from swarmfree.lab.comparison import finding, lines_of, read_reports, table_rows, write_comparison  # noqa: PLC0415
    from swarmfree.lab.report import new_folder  # noqa: PLC0415 - help is fast

    reports = read_reports(folders)
    into = _make(out) if out is not None else new_folder(Path("reports"), f"comparison-{time.strftime('%Y%m%d-%H%M%S')}")
    paths = write_comparison(reports, into)
    header, rows = table_rows(lines_of(reports))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=bool(number))
    for row in rows:
        table.add_row(*row)
    typer.echo(finding(reports))
    Console().print(table)
    typer.echo("\n".join(str(path) for path in paths))


def _make(folder: Path) -> Path:
    from swarmfree.protocol.errors import ConfigError  # noqa: PLC0415 - help is fast

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: the folder cannot be made: {error.strerror}") from error
    return folder


def write_samples(folder: Path, into: Path) -> list[dict[str, str]]:
    """Let each model of the report write a short text, and keep the texts in ``samples.json``.

    Texts that are there already are not written again.

    Raises:
        SwarmfreeError: weights are there and cannot be read, or the disk is full.
    """
    from swarmfree.lab.page import read_samples  # noqa: PLC0415 - help is fast
    from swarmfree.lab.report import SAMPLES_FILE, write_whole  # noqa: PLC0415 - help is fast

    known = read_samples(folder)
    if known:
        return known
    samples = [_sample(when, place) for when, place in models_of(folder)]
    if samples:
        write_whole(into / SAMPLES_FILE, (json.dumps(samples, indent=2) + "\n").encode())
    return samples


def models_of(folder: Path) -> list[tuple[str, Path]]:
    """(when, folder) of each whole model in a report, in order of time; the last one is the one at
    the end.
    """
    from swarmfree.lab.kept_weights import BEFORE, models_beside  # noqa: PLC0415 - help is fast
    from swarmfree.storage.weights import INDEX_NAME  # noqa: PLC0415 - help is fast

    found = [("before the loss" if prefix == BEFORE else "after it", place) for prefix, _, place in models_beside(folder)]
    return found + ([("at the end", folder / "weights")] if (folder / "weights" / INDEX_NAME).is_file() else [])


def _sample(when: str, place: Path) -> dict[str, str]:
    from swarmfree.cli.writer import written  # noqa: PLC0415 - help is fast

    text = "".join(written(place, SAMPLE_PROMPT, tokens=SAMPLE_TOKENS, temperature=0.7, seed=0))
    return {"when": when, "prompt": SAMPLE_PROMPT, "text": text}


def sample_lines(samples: list[dict[str, Any]]) -> list[str]:
    """A line for each sample: line breaks are arrows, control characters dots, so that no terminal
    obeys what a model writes.
    """
    width = max((len(sample["when"]) for sample in samples), default=0)
    shown = [(sample["when"], f"{sample['prompt']}{sample['text']}") for sample in samples]
    return [f"it writes {when:<{width}}: {one_line(text)}" for when, text in shown]


def one_line(text: str) -> str:
    """Text of a model on one line."""
    plain = "".join(
        letter if letter.isprintable() or letter.isspace() else "\N{MIDDLE DOT}" for letter in text.replace("\n", " ⏎ ")
    )
    return " ".join(plain.split())
