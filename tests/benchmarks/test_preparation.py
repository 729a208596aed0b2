"""The text that the benchmark of preparations makes, and how it sees how far a process is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.preparation import Side, documents, read_bytes


def test_documents_are_as_long_as_asked_for_and_no_two_alike() -> None:
    """The same each time."""
    text = "".join(f"word{number} " for number in range(5000))
    made = list(documents(text, 100_000))
    assert made == list(documents(text, 100_000))
    assert len(set(made)) == len(made) > 30
    assert 100_000 <= sum(map(len, made)) < 105_000


def test_it_is_seen_how_far_a_process_has_read(tmp_path: Path) -> None:
    """By the place in the file that it has open; nothing where it has not."""
    source = tmp_path / "text"
    source.write_bytes(bytes(1000))
    code = "import os, sys; d = os.open(sys.argv[1], 0); os.read(d, 300); print('read', flush=True); sys.stdin.read()"
    command = [sys.executable, "-S", "-c", code, str(source)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert read_bytes(Side("it", process), source) == 300
        assert read_bytes(Side("it", process), tmp_path / "other") == 0
        process.communicate(b"")
