"""What a peer's folder says of runs that are over."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmfree.cli.finished_run import FINISHED_FILE, note_finished, require_unfinished
from swarmfree.protocol.errors import ConfigError, RunEnded


def test_a_run_that_is_finished_is_not_joined_again(tmp_path: Path) -> None:
    """By the same folder; another run is, and the end of that is noted as well."""
    first, second = "a" * 64, "b" * 64
    require_unfinished(str(tmp_path), first)
    note_finished(str(tmp_path), first)
    require_unfinished(str(tmp_path), second)
    note_finished(str(tmp_path), second)
    note_finished(str(tmp_path), second)
    assert (tmp_path / FINISHED_FILE).read_text() == f"{first}\n{second}\n"
    for run in (first, second):
        with pytest.raises(RunEnded, match="--folder"):
            require_unfinished(str(tmp_path), run)


def test_a_note_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A folder in its place."""
    (tmp_path / FINISHED_FILE).mkdir()
    with pytest.raises(ConfigError, match=FINISHED_FILE):
        require_unfinished(str(tmp_path), "a" * 64)
