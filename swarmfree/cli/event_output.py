"""Where a process tells its events: JSON lines for machines, lines of text for people. Both end on
stdout, flushed line by line.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

from swarmfree.cli.options import Log
from swarmfree.cli.shutdown import say
from swarmfree.cockpit.lines import describe
from swarmfree.protocol.events import EngineHolds, EngineStepped, Event, Opened, Stepped
from swarmfree.protocol.ports import Journal


class TextJournal:
    """Implements `ports.Journal` for people: local time and a line. A reader that goes away does
    not end the peer.
    """

    def __init__(self, out: TextIO) -> None:
        """Write to `out`."""
        self._out = out
        self._is_open = True

    def tell(self, event: Event) -> None:
        """Show one event, unless it is one that every iteration repeats."""
        if self._is_open and not isinstance(event, Opened | Stepped | EngineHolds | EngineStepped):
            try:
                self._out.write(f"{time.strftime('%H:%M:%S')}  {describe(event)}\n")
                self._out.flush()
            except OSError as error:
                self._is_open = False
                say(f"events are no longer shown: {error.strerror}")


def open_journal(log: Log, text_out: TextIO) -> Journal:
    """The journal that ``--log`` asks for: JSON goes to stdout, text to `text_out`."""
    if log is Log.TEXT:
        return TextJournal(text_out)
    from swarmfree.storage.journal import JsonLinesJournal  # noqa: PLC0415 - help is fast

    return JsonLinesJournal(sys.stdout, time.time)
