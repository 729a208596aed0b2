"""`swarmfree report` and `swarmfree sample` as a person types them, from any folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarmfree.cli.main import app
from swarmfree.cli.report import sample_lines
from swarmfree.cli.writer import written
from swarmfree.cockpit.observed_events import observed_event_to_json
from swarmfree.lab.kept_weights import BEFORE
from swarmfree.lab.report import EVENTS_FILE
from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.manifest import Manifest
from swarmfree.storage.weights import FolderWeights
from tests.cockpit.stories import whole_story


def write_events(folder: Path) -> Path:
    """A report of which nothing is left but its events."""
    folder.mkdir()
    (folder / EVENTS_FILE).write_text("".join(json.dumps(observed_event_to_json(h)) + "\n" for h in whole_story()))
    return folder


def write_weights(folder: Path, manifest: Manifest) -> None:
    """First weights of a run."""
    for stage in range(manifest.stage_count):
        engine = TorchEngine(manifest, 1)
        engine.draw(stage, 0)
        FolderWeights(folder, manifest).write(stage, engine.export())


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and everything that is said."""
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


def test_a_report_is_drawn_again_from_its_events_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure, page and summary come back, also of a run that was cut off, from another folder; with
    `--out` the report stays as it was.
    """
    write_events(tmp_path / "r")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, said = run("report", "../r", "--out", "new")
    assert (code, sorted(os.listdir("new")), os.listdir("../r")) == (0, ["loss.png", "report.html", "summary.txt"], [EVENTS_FILE])
    assert said.startswith(
        "made-up: ended uncleanly, after 6 of 6 iterations: it was cut off, or still goes on; stage 2 was lost"
    )
    assert run("report", "../r")[0] == 0
    assert (tmp_path / "r" / "report.html").exists()


def test_several_reports_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, a table, and where figure and CSV lie; by default in a new folder of reports."""
    monkeypatch.chdir(tmp_path)
    write_events(tmp_path / "one")
    write_events(tmp_path / "two")
    code, said = run("report", "one", "two")
    assert code == 0
    assert "all end at 2.800 bits per byte" in said
    assert said.count("comparison-") == 2
    assert len(list((tmp_path / "reports").glob("*/comparison.csv"))) == 1


def test_a_folder_that_is_no_report_is_one_line(tmp_path: Path) -> None:
    """Neither command shows a traceback."""
    for command in ("report", "sample"):
        done = subprocess.run(
            [sys.executable, "-m", "swarmfree", command, str(tmp_path / "no")],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_a_model_writes(tmp_path: Path, small_manifest: Manifest) -> None:
    """The prompt, and then as many bytes as were asked for; the same for the same seed; from the
    report or from its weights.
    """
    write_weights(tmp_path / "weights", small_manifest)
    asked = ("sample", str(tmp_path), "def main(", "--tokens", "30", "--temperature", "1")
    code, said = run(*asked)
    assert code == 0
    assert said.startswith("def main(")
    assert run(*asked)[1] == said
    assert run(*asked, "--seed", "1")[1] != said
    assert run("sample", str(tmp_path / "weights"), *asked[2:])[1] == said


def test_samples_are_of_before_after_and_the_end(tmp_path: Path, small_manifest: Manifest) -> None:
    """Each model that was kept writes once; the page has what it wrote; what was not kept is not
    made up.
    """
    folder = write_events(tmp_path / "r")
    write_weights(folder / "weights", small_manifest)
    assert "it writes before" not in run("report", str(folder), "--out", str(tmp_path / "alone"))[1]
    write_weights(folder / f"{BEFORE}29", small_manifest)
    code, said = run("report", str(folder))
    assert code == 0
    kept = json.loads((folder / "samples.json").read_text())
    assert [sample["when"] for sample in kept] == ["before the loss", "at the end"]
    assert "it writes before the loss: def" in said
    assert "before the loss" in (folder / "report.html").read_text()


def test_a_sample_is_one_line() -> None:
    """Line breaks are shown as arrows, control characters as dots, and white space is drawn
    together.
    """
    lines = sample_lines([{"when": "at the end", "prompt": "def ", "text": "f(x):\n    return\x1b[2J \x00x"}])
    assert lines == ["it writes at the end: def f(x): ⏎ return·[2J ·x"]


def test_what_breaks_off_in_the_middle_of_a_letter_is_shown(tmp_path: Path, small_manifest: Manifest) -> None:
    """A last byte that is no text by itself is shown as one that is none, and not left out."""
    write_weights(tmp_path, small_manifest)
    drawn = ["".join(written(tmp_path, "x", tokens=1, temperature=10.0, seed=seed)) for seed in range(12)]
    assert all(drawn)
    assert "\N{REPLACEMENT CHARACTER}" in drawn
