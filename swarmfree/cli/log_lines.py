"""So many lines in the log in each minute: what others do to this peer does not fill its disk.
And where that log is.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

MINUTE_S = 60.0
WHAT_CHARS = 200
"""So much of what an exception says."""


class LineQuota(logging.Filter):
    """Lets so many records pass in each minute; the next one then says how many were left out.

    Args:
        lines_max: of one minute.
        now_s: monotonic seconds.
    """

    def __init__(self, lines_max: int, now_s: Callable[[], float] = time.monotonic) -> None:
        """Nothing was written yet."""
        super().__init__()
        self._lines_max, self._now_s = lines_max, now_s
        self._since_s, self._count = now_s(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one is written."""
        now_s = self._now_s()
        if now_s - self._since_s >= MINUTE_S:
            left_out = max(0, self._count - self._lines_max)
            self._since_s, self._count = now_s, 0
            if left_out:
                record.msg, record.args = f"{record.getMessage()} (before that, {left_out:,} lines were left out)", ()
        self._count += 1
        return self._count <= self._lines_max


class OneLine(logging.Filter):
    """What libraries log of an exception takes one line: a call that its caller has given up is no
    fault, and a traceback looks like one.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record is written."""
        if record.exc_info and record.exc_info[1] is not None and not record.name.startswith("swarmfree"):
            kind, what = type(record.exc_info[1]).__name__, " ".join(str(record.exc_info[1]).split())
            record.msg, record.args = f"{record.getMessage()}: {kind}: {what[:WHAT_CHARS]}", ()
            record.exc_info = record.exc_text = None
        return True


def bound_log(lines_max: int) -> None:
    """From now on everything that is written to the log is counted, and takes a line each."""
    quota = LineQuota(lines_max)
    for handler in logging.getLogger().handlers or filter(None, [logging.lastResort]):
        handler.addFilter(quota)
        handler.addFilter(OneLine())


def log_descriptor() -> int:
    """The open file of the log, or stderr."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            with contextlib.suppress(OSError, ValueError):
                return int(handler.stream.fileno())
    return 2
