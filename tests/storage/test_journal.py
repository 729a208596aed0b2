"""The journal: one whole line per event, and a full disk that nobody dies of."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import Event, IterationCommitted, Note, Placed, StageLost, event_from_json
from swarmfree.protocol.ports import Journal
from swarmfree.storage.journal import JsonLinesJournal

LimitedRun = Callable[[str, int], "subprocess.CompletedProcess[str]"]


class FullThenFree(io.StringIO):
    """A stream that refuses its first `refusals` writes, as a full disk does."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def write(self, text: str, /) -> int:
        """Refuse or write."""
        if self.refusals:
            self.refusals -= 1
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_events_come_back_from_the_file(tmp_path: Path) -> None:
    """Each event is one line with its time, and reading the lines gives the events back; a second
    journal appends.
    """
    path = tmp_path / "logs" / "events.jsonl"
    events: list[Event] = [
        Placed("abc", 2),
        StageLost(2, 60, "abc"),
        IterationCommitted(60, 0, 1.5, None, 8192, 0.9, [1.0, 2.0], "ff"),
    ]
    for event in events:
        journal = JsonLinesJournal(path, lambda: 12.5)
        port: Journal = journal
        port.tell(event)
        journal.close()
    found = [event_from_json(json.loads(line)) for line in path.read_text().splitlines()]
    assert found == [(12.5, event) for event in events]


@given(texts=st.lists(st.text(), max_size=5))
def test_any_text_stays_on_its_line(texts: list[str]) -> None:
    """Line breaks and strange characters inside an event never break a line."""
    stream = io.StringIO()
    journal = JsonLinesJournal(stream, lambda: 0.0)
    for text in texts:
        journal.tell(Note(text))
    lines = stream.getvalue().split("\n")
    assert lines.pop() == ""
    assert [event_from_json(json.loads(line)) for line in lines] == [(0.0, Note(text)) for text in texts]


def test_a_full_stream_is_told_once_and_the_gap_is_said() -> None:
    """While nothing can be written events are counted; the first line afterwards says how many are
    missing.
    """
    stream, complaints = FullThenFree(3), io.StringIO()
    journal = JsonLinesJournal(stream, lambda: 1.0, complaints)
    for number in range(5):
        journal.tell(Note(str(number)))
    found = [event_from_json(json.loads(line))[1] for line in stream.getvalue().splitlines()]
    assert found == [Note("3 events before this line could not be written"), Note("3"), Note("4")]
    assert complaints.getvalue() == "event stream: events are lost: No space left on device\n"


def test_full_disk_is_told_once_and_leaves_whole_lines(tmp_path: Path, limited_run: LimitedRun) -> None:
    """Under a limit on the file's size the process goes on, complains once, and every line in the
    file is whole.
    """
    path = tmp_path / "events.jsonl"
    code = (
        "from pathlib import Path; from swarmfree.storage.journal import JsonLinesJournal; from swarmfree.protocol.events import Note\n"
        f"journal = JsonLinesJournal(Path({str(path)!r}), lambda: 0.0)\n"
        "for number in range(100): journal.tell(Note('x' * 100))\n"
        "print('alive')\n"
    )
    done = limited_run(code, 1000)
    assert (done.returncode, done.stdout) == (0, "alive\n")
    assert done.stderr.startswith(f"{path}: events are lost: ")
    assert done.stderr.count("\n") == 1
    lines = path.read_text().splitlines()
    assert {json.loads(line)["kind"] for line in lines} == {"Note"}
    assert 0 < path.stat().st_size <= 1000


def test_a_file_that_cannot_be_opened_is_told_in_one_line(tmp_path: Path) -> None:
    """A folder in the file's place is named."""
    with pytest.raises(SwarmfreeError, match=r"events cannot be written: Is a directory"):
        JsonLinesJournal(tmp_path, lambda: 0.0)
