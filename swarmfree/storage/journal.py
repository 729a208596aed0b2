"""The journal port as JSON lines: one event per line, for machines and for the report.

A full disk must not end a peer: it is told once, and the events go on being tried. Reading is left
to whoever reports.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import Event, Note, event_to_json


class _Stream(Protocol):
    """What a journal needs of a text stream."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class JsonLinesJournal:
    """Implements `ports.Journal`: a line is there whole or not at all.

    Numbers that JSON has not got stand as NaN and Infinity, which Python's reader knows.
    """

    def __init__(self, place: Path | _Stream, wall_s: Callable[[], float], complaints: _Stream | None = None) -> None:
        """Append to a file, which is made if missing, or write to a stream.

        Args:
            place: the file, owned by this journal alone, or an open text stream.
            wall_s: Unix time in seconds.
            complaints: where a refusal is told, once; standard error if None.

        Raises:
            SwarmfreeError: the file cannot be opened.
        """
        self._place = place
        self._wall_s = wall_s
        self._complaints = complaints
        self._lost = 0
        self._told = False
        self._descriptor: int | None = None
        if isinstance(place, Path):
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError as error:
                raise SwarmfreeError(f"{place}: events cannot be written: {error.strerror}") from error

    def tell(self, event: Event) -> None:
        """Append one event. What could not be written is counted, and the count is the first line
        once there is room again.
        """
        try:
            if self._lost:
                self._append(Note(f"{self._lost} events before this line could not be written"))
                self._lost = 0
            self._append(event)
        except OSError as error:
            self._lost += 1
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            where = self._place if isinstance(self._place, Path) else "event stream"
            with contextlib.suppress(OSError):
                print(f"{where}: events are lost: {error.strerror or error}", file=self._complaints or sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file; a stream stays open. Nothing can be told afterwards."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, event: Event) -> None:
        line = json.dumps(event_to_json(event, self._wall_s())) + "\n"
        if not isinstance(self._place, Path):
            self._place.write(line)
            self._place.flush()
            return
        if self._descriptor is None:
            raise OSError("the journal is closed")
        content = line.encode()
        size_before = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, content) != len(content):
            os.ftruncate(self._descriptor, size_before)
            raise OSError("no room for the whole line")
