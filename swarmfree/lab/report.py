"""The report folder of a run: ``events.jsonl``, ``run.toml``, ``summary.json``, ``summary.txt``;
`figure` and `page` draw from them.

Every line is on disk before the next one is written. A full disk takes nothing that is already
there, and ends in one line for a person.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, observed_event_from_json, observed_event_to_json
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.summary import TEXT_FILE, summary_text
from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.json_values import finite
from swarmfree.storage.atomic_files import refusal_words

EVENTS_FILE = "events.jsonl"
CONFIG_FILE = "run.toml"
SUMMARY_FILE = "summary.json"
SAMPLES_FILE = "samples.json"
TAIL_BYTES = 1 << 16
DAMAGED_SHOWN = 3


class ReportError(SwarmfreeError):
    """The report could not be written; what was written before is still there."""


def make_folder(path: Path) -> Path:
    """Make the folder of a new report.

    Raises:
        ConfigError: there is something in it already, or it cannot be made.
    """
    try:
        if path.is_file():
            raise ConfigError(f"--out {path}: is a file; a folder, or the name of a new one, is expected")
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"--out {path}: the folder is not empty, and a report is not written over another: name a new one")
    except OSError as error:
        raise ConfigError(f"--out {path}: the folder cannot be made: {refusal_words(error, path)}") from error
    return path


def new_folder(parent: Path, name: str) -> Path:
    """Make a folder for a report that nobody else has, in `parent`: `name`, or with a number behind
    it where that is taken, in the same second too.

    Raises:
        ConfigError: it cannot be made.
    """
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError:
            if parent.is_dir():
                continue
            raise ConfigError(f"{path}: the folder of the report cannot be made: {parent} is no folder") from None
        except OSError as error:
            raise ConfigError(f"{path}: the folder of the report cannot be made: {refusal_words(error, path)}") from error
        return path
    raise AssertionError("numbers do not end")


class EventLog:
    """Appends events to ``events.jsonl``, one line each, whole or not at all."""

    def __init__(self, folder: Path) -> None:
        """Open the file; a line that an earlier process was killed in is taken back.

        Raises:
            ReportError: it cannot be opened.
        """
        self._path = folder / EVENTS_FILE
        try:
            self._file: IO[bytes] | None = self._path.open("a+b", buffering=0)
            self._kept_bytes = _whole_lines_bytes(self._file)
            if self._kept_bytes != self._file.tell():
                self._file.truncate(self._kept_bytes)
        except OSError as error:
            raise ReportError(f"{self._path} cannot be opened: {refusal_words(error, self._path)}") from error

    def write(self, observed_event: ObservedEvent, state: SwarmState) -> None:
        """Append one event; nothing is written after the first failure.

        Raises:
            ReportError: the disk is full or gone; a torn last line is taken back.
        """
        if self._file is None:
            return
        stage = state.stage_of(observed_event.name) if isinstance(observed_event, PeerEvent) else None
        line = json.dumps(observed_event_to_json(observed_event, stage), separators=(",", ":")).encode() + b"\n"
        try:
            left = line
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            file, self._file = self._file, None
            with file, contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), self._kept_bytes)
            why = refusal_words(error, self._path)
            raise ReportError(f"{self._path} cannot be written: {why}; what was written before is kept") from error
        self._kept_bytes += len(line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _whole_lines_bytes(file: IO[bytes]) -> int:
    """Size of a file, which is left at its end, without what stands behind its last line break."""
    end = size = file.seek(0, os.SEEK_END)
    kept = 0
    while end and not kept:
        begin = max(0, end - TAIL_BYTES)
        file.seek(begin)
        kept = begin + found + 1 if (found := file.read(end - begin).rfind(b"\n")) >= 0 else 0
        end = begin
    file.seek(size)
    return kept


def tell_on_stderr(line: str) -> None:
    """Say something to a person."""
    print(f"swarmfree: {line}", file=sys.stderr)


def read_events(folder: Path, tell: Callable[[str], object] = tell_on_stderr) -> Iterator[ObservedEvent]:
    """The events of a report, in order; a torn last line is left out.

    A line that is no event, since a disk or a hand has damaged it, is passed over: the report lacks
    what it said, and a run that goes on takes nothing else from here.

    Args:
        folder: of the report.
        tell: told in one line how many were passed over, and where.

    Raises:
        ConfigError: there is no such report, or no line of it is ours.
    """
    path = folder / EVENTS_FILE
    damaged, count, is_ours = list[int](), 0, False
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    continue
                if (event := _observed_event(line)) is not None:
                    is_ours = True
                    yield event
                else:
                    count += 1
                    damaged += [number] if len(damaged) < DAMAGED_SHOWN else []
    except OSError as error:
        raise ConfigError(f"{folder}: the folder of a report is expected, but {path} cannot be read: {error.strerror}") from error
    if damaged and not is_ours:
        raise ConfigError(f"{path}, line {damaged[0]}: not an event, nor is any other line; events of a report expected")
    if damaged:
        which = f"line {damaged[0]} is" if count == 1 else f"{count:,} lines are"
        where = "" if count == 1 else f" (the first: {', '.join(map(str, damaged))})"
        tell(f"{path}: {which} not an event{where}, and passed over: the report lacks what was told there")


def _observed_event(line: bytes) -> ObservedEvent | None:
    try:
        return observed_event_from_json(json.loads(line.decode()))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write ``summary.json`` and ``summary.txt``.

    Raises:
        ReportError: the disk is full or gone.
    """
    write_whole(folder / SUMMARY_FILE, (json.dumps(finite(summary), indent=2) + "\n").encode())
    write_whole(folder / TEXT_FILE, (summary_text(summary, str(folder)) + "\n").encode())


def read_ending(folder: Path) -> tuple[int, str]:
    """Exit code and reason of a report's run, as its summary says; a run that did not come to write
    one was cut off.
    """
    try:
        said = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
        return int(said["exit_code"]), str(said.get("why", ""))
    except (OSError, KeyError, TypeError, ValueError):
        return 1, "it was cut off, or still goes on"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        ReportError: the disk is full or gone; an older file of this name is still there.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ReportError(f"{path} cannot be written: {refusal_words(error, path, len(content))}") from error
