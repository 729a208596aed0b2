"""The story of one rehearsal: a line per event with its virtual time, and a digest of everything
that happened, for "same seed, same story" (I8).

Two levels: `tell` is for people and is kept; `trace` (every call and every answer) goes into the
digest only, unless all of it is asked for.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

from swarmfree.protocol.events import Event

LINES_MAX = 100_000
DIGESTED_TOGETHER = 1024


class Transcript:
    """Collects lines.

    Args:
        now_s: virtual time.
        full: keep traced lines as well.
    """

    def __init__(self, now_s: Callable[[], float], *, full: bool = False) -> None:
        """Empty."""
        self._now_s, self._full = now_s, full
        self._digest = hashlib.sha256()
        self._lines: list[str] = []
        self._undigested: list[str] = []

    def tell(self, who: str, what: str) -> None:
        """One line that people read."""
        self._add(f"{self._now_s():12.6f}  {who:<10}  {what}", keep=True)

    def tell_event(self, who: str, event: Event) -> None:
        """An event of a peer's journal."""
        self.tell(who, event_line(event))

    def trace(self, what: str) -> None:
        """Something too frequent to read."""
        self._add(f"{self._now_s():12.6f}              {what}", keep=self._full)

    def _add(self, line: str, *, keep: bool) -> None:
        self._undigested.append(line)
        if len(self._undigested) > DIGESTED_TOGETHER:
            self._catch_up()
        if not keep:
            return
        if len(self._lines) < LINES_MAX:
            self._lines.append(line)

    def _catch_up(self) -> None:
        self._digest.update("".join(self._undigested).encode())
        self._undigested.clear()

    @property
    def lines(self) -> tuple[str, ...]:
        """The kept lines."""
        return tuple(self._lines)

    def digest(self) -> str:
        """64 hex digits over everything told and traced so far."""
        self._catch_up()
        return self._digest.hexdigest()


def event_line(event: Event) -> str:
    """An event as one line: its kind, then its fields; long hashes shortened, empty fields left
    out.
    """
    fields = []
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if value is None or value in ("", []):
            continue
        fields.append(f"{field.name}={_shown(field.name, value)}")
    return " ".join([type(event).__name__, *fields])


def _shown(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if name in ("lineage", "base", "state_digest", "incarnation"):
        return str(value)[:8]
    return repr(value) if isinstance(value, str) and " " in value else str(value)
