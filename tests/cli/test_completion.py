"""What the tab key offers, asked as a shell asks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def _offered(line: str) -> list[str]:
    """What bash would be offered at the end of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_SWARMFREE_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "swarmfree"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=os.environ | asked)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("swarmfree lo", ["local"]),
        ("swarmfree config s", ["show"]),
        ("swarmfree local --st", ["--standbys"]),
        ("swarmfree local --log ", ["text", "json"]),
        ("swarmfree bootstrap --run stdlib", ["stdlib-small"]),
        ("swarmfree local --set run.it", ["run.iterations="]),
    ],
)
def test_a_shell_is_offered_what_may_follow(line: str, offered: list[str]) -> None:
    """Commands, options, choices, runs by name and keys of a run config are completed."""
    assert _offered(line) == offered


def test_a_shell_is_told_how_to_ask() -> None:
    """The script for bash names the command, and the options that install and show it stand in the
    help.
    """
    asked = os.environ | {"_SWARMFREE_COMPLETE": "source_bash"}
    command = [sys.executable, "-m", "swarmfree"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=asked)
    assert "complete -o default -F _swarmfree_completion swarmfree" in done.stdout
    told = subprocess.run([*command, "--help"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert "--install-completion" in told and "--show-completion" in told
