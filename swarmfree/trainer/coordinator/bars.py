"""Who may only stand by for a while: peers that cannot work with their siblings. What barred one
may be over; what bars it again lasts longer.
"""

from __future__ import annotations

FIRST_S, LONGEST_S = 15.0, 600.0


class Bars:
    """Bars by peer id, of one coordinator's term."""

    def __init__(self) -> None:
        """Nobody is barred."""
        self._bars: dict[str, tuple[float, float]] = {}  # until when, and how long in all

    def add(self, peer_id: str, now_s: float) -> None:
        """Bar it, twice as long as the last time."""
        lasts_s = min(LONGEST_S, 2 * self._bars[peer_id][1]) if peer_id in self._bars else FIRST_S
        self._bars[peer_id] = now_s + lasts_s, lasts_s

    def holds(self, peer_id: str, now_s: float) -> bool:
        """Whether it is barred at this time."""
        return peer_id in self._bars and now_s < self._bars[peer_id][0]

    def is_known(self, peer_id: str) -> bool:
        """Whether it is barred, or ever was."""
        return peer_id in self._bars
