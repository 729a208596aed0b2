"""How fast payloads come from each peer, as somebody who gets them sees it.

What counts is from the first word of an answer to the last byte of its payload, with all that has
come from that peer meanwhile: several payloads share one link. How long the question was under way,
and how long the answer took to make, is no part of it.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from swarmfree.protocol.message_bounds import BYTES_S_MAX, BYTES_S_MIN, LINKS_MAX
from swarmfree.protocol.messages import LinkRate

SAMPLES, AGE_S = 15, 120.0
"""The median of so many payloads counts, of those that are not older: a link that breaks off for a
while is no slow one, and what was measured long ago tells nothing.
"""
LEAST_S = 1e-6


@dataclass(slots=True)
class _Arrivals:
    """What comes from one peer.

    Args:
        open: payloads that are measured and under way.
        since_s: when the first of them began, or the last one ended.
        arrived_bytes: since then.
        rates: when a payload was there, and bytes a second, of the last ones.
    """

    open: int = 0
    since_s: float = 0.0
    arrived_bytes: int = 0
    rates: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def rate(self, now_s: float) -> float:
        """Bytes a second; 0 where nothing was measured lately."""
        lately = [rate for at_s, rate in self.rates if now_s - at_s <= AGE_S]
        return statistics.median(lately) if lately else 0.0


class LinkMeter:
    """Measures what comes from whom. Seconds are those of any clock that does not go back."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._links: dict[str, _Arrivals] = {}

    def begin(self, peer_id: str, now_s: float) -> None:
        """An answer is there, and its payload follows."""
        link = self._links.setdefault(peer_id, _Arrivals())
        if not link.open:
            link.since_s, link.arrived_bytes = now_s, 0
        link.open += 1

    def arrive(self, peer_id: str, size_bytes: int) -> None:
        """So much of a payload is there, of one that is measured or of another one."""
        link = self._links.get(peer_id)
        if link is not None:
            link.arrived_bytes += size_bytes

    def end(self, peer_id: str, now_s: float, *, whole: bool) -> None:
        """Nothing more comes of a payload that is measured; counted where it is `whole`, and where
        not all of it was counted with another one that ended a moment ago.
        """
        link = self._links[peer_id]
        arrived_bytes, seconds = link.arrived_bytes, now_s - link.since_s
        link.open, link.since_s, link.arrived_bytes = link.open - 1, now_s, 0
        if whole and arrived_bytes:
            self.add(peer_id, arrived_bytes, seconds, now_s)
        elif not link.open and not link.rates:
            del self._links[peer_id]

    def add(self, peer_id: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """So much has come in so many seconds, just now."""
        link = self._links.pop(peer_id, None) or _Arrivals()
        link.rates.append((now_s, min(max(BYTES_S_MIN, size_bytes / max(seconds, LEAST_S)), BYTES_S_MAX)))
        self._links[peer_id] = link  # at the end: the last ones count
        done = [known for known, other in self._links.items() if not other.open]
        for known in done[: max(0, len(done) - LINKS_MAX)]:
            del self._links[known]

    def rates(self, now_s: float) -> tuple[LinkRate, ...]:
        """Of the last `LINKS_MAX` peers from whom something was measured lately, by their ids."""
        told = [LinkRate(peer_id, rate) for peer_id, link in self._links.items() if (rate := link.rate(now_s))]
        return tuple(sorted(told[-LINKS_MAX:], key=lambda each: each.peer_id))
