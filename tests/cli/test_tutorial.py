"""The tutorial, run as it is written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swarmfree.cli.sample import shown

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SMALLER = {"VOCABULARY": "300", "ITERATIONS": "3", "PEERS": "4"}
"""Of what the page says that it may be smaller."""


def test_what_the_tutorial_makes_in_a_clone_is_ignored() -> None:
    """Git sees neither the reader's books nor the folders that its commands make."""
    made = {place.partition("/")[0] for place in re.findall(r"--out (\S+)", PAGE)}
    assert "books-model" in made
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    assert made | {"books"} <= ignored


@pytest.mark.timeout(900)
def test_the_tutorial_runs_as_it_is_written(tmp_path: Path) -> None:
    """All its commands, in one shell, with smaller numbers where the page says that they may be
    taken: it ends with the same text of `sample` and of transformers.
    """
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
    values = dict(re.findall(r"^(\w+)=(\S+) ", blocks[0][1], re.MULTILINE))
    assert values.keys() == {"BOOKS", *SMALLER} and "of the last three smaller numbers as well" in PAGE
    assert all(int(SMALLER[name]) <= int(values[name]) for name in SMALLER)
    books = tmp_path / values["BOOKS"]
    books.mkdir()
    for page in ("protocol.md", "glossary.md", "architecture.md"):
        shutil.copyfile(ROOT / "docs" / page, books / page)
    script = ["set -eu", f"BOOKS={values['BOOKS']}", *(f"{name}={value}" for name, value in SMALLER.items())]
    script += [text if kind == "sh" else f"python - <<'END'\n{text}END\n" for kind, text in blocks[1:]]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # One thread: two that wait for each other on a busy machine took ten times as long to write
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=840, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout[done.stdout.rindex(" bits per byte") :].partition("\n")[2]
    ours, theirs = said[: len(said) // 2], said[len(said) // 2 :]
    assert ours.startswith("It was a") and ours == shown(theirs)
