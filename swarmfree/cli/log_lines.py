"""So many lines in the log in each minute: what others do to this peer does not fill its disk.
And where that log is.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable

MINUTE_S = 60.0
LINE_CHARS = 300
"""So much of what is said of an exception."""


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
    """What is logged of an exception that came from libraries alone takes one line: a call that its
    caller has given up is no fault, and a traceback looks like one.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record is written; one that cannot be put so is written as it is."""
        with contextlib.suppress(Exception):
            error = record.exc_info[1] if record.exc_info else None
            if error is not None and not _is_ours(error):
                said = " ".join(f"{record.getMessage()}: {type(error).__name__}: {error}".split())
                record.msg, record.args, record.exc_info, record.exc_text = said[:LINE_CHARS], (), None, None
        return True


def _is_ours(error: BaseException) -> bool:
    """Whether it, one that it was made of, or one that it came in place of, went through code of
    this package: then it may be a fault here.
    """
    seen, left = set[int](), [error]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        modules = (frame.f_globals.get("__name__") or "" for frame, _ in traceback.walk_tb(each.__traceback__))
        if any(str(name).partition(".")[0] == "swarmfree" for name in modules):
            return True
        left += [other for other in (each.__cause__, each.__context__) if other is not None]
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return False


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
