"""What `--help` of each command shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from swarmfree.cli.main import app, whole_command

WITH_EXAMPLES = {"local", "report", "sample", "bootstrap", "peer", "doctor", "status", "rehearse", "chaos"}


def _helps(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*path, "--help"], prog_name="swarmfree")
    assert done.exit_code == 0, done.output
    yield path, done.stdout
    for name, each in getattr(command, "commands", {}).items():
        yield from _helps(each, *path, name)


@pytest.fixture(scope="module")
def helps() -> dict[tuple[str, ...], str]:
    """The help of each command, by its path, in a window of 80 columns."""
    found = dict(_helps(whole_command()))
    assert len(found) > 24
    return found


def test_every_command_and_option_has_help(helps: dict[tuple[str, ...], str]) -> None:
    """Help says something about every option."""
    for shown in helps.values():
        lines = shown.splitlines()
        options = [line.split()[0] for line in lines if line.startswith("  --")]
        assert "--help" in options
        for option in options:
            at = next(i for i, line in enumerate(lines) if line.startswith(f"  {option}"))
            assert len((lines[at] + " " + lines[min(at + 1, len(lines) - 1)]).split()) > 3, option


def test_help_fits_a_window_of_80_columns(helps: dict[tuple[str, ...], str]) -> None:
    """No line is longer and no summary is cut off; no placeholder is the name of a type, or has its
    brackets or dots twice.
    """
    for path, shown in helps.items():
        lines = [line for line in shown.splitlines() if not line.startswith("Usage:")]
        assert all(len(line) <= 80 and not line.endswith("...") for line in lines), path
        options = shown.partition("Options:\n")[2].partition("\n\n")[0]
        assert not re.search(r"<(str|path|int range|float range)>", options), path
        assert not re.search(r"\[\[[A-Z]|\.\.\.}", shown), path


def test_help_ends_with_examples_as_they_are_typed(helps: dict[tuple[str, ...], str]) -> None:
    """Each stands on a line of its own, or goes on behind a backslash."""
    for path, shown in helps.items():
        examples = shown.partition("Examples:\n")[2].strip("\n").splitlines()
        assert len(examples) >= 2 or path not in {(name,) for name in WITH_EXAMPLES}, path
        begins = "    " + " ".join(("swarmfree", *path))
        for before, line in zip(["", *examples], examples, strict=False):
            assert line.startswith(begins) or before.endswith("\\"), line
