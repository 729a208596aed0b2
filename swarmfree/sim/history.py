"""Who lived, stood still or was cut off, and when: what the checks need to say who was in reach of
whom, and for how long.

The hub tells it. It keeps the last minutes only; whoever asks about more gets less.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from swarmfree.protocol.names import Member
from swarmfree.sim.partitions import Break

KEPT_MAX = 256
"""Outages that have ended; older ones are forgotten."""

Span = tuple[float, float]


class History:
    """A rehearsal's troubles.

    Args:
        now_s: virtual time.

    Attributes:
        troubled_s: when somebody last died, stood still, went on, or the network broke or was
            mended.
        mended_s: when the network was last mended.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Nothing has happened."""
        self._now_s = now_s
        self.troubled_s, self.mended_s = 0.0, -math.inf
        self._born_s: dict[Member, float] = {}
        self._died_s: dict[Member, float] = {}
        self._frozen: dict[Member, float] = {}
        self._stood: deque[tuple[Member, float, float]] = deque(maxlen=KEPT_MAX)
        self._broken: dict[Break, float] = {}
        self._mended: deque[tuple[Break, float, float]] = deque(maxlen=KEPT_MAX)
        self._shut_until_s: dict[Member, float] = {}
        self._missed: deque[tuple[Member, Member, float, float]] = deque(maxlen=KEPT_MAX)

    # -- told by the hub
    def began(self, member: Member) -> None:
        """Note that a life begins."""
        self._born_s[member] = self._now_s()

    def ended(self, member: Member) -> None:
        """A life ends, however it does."""
        self.thawed(member)
        self._died_s[member] = self.troubled_s = self._now_s()

    def froze(self, member: Member) -> None:
        """A peer stands still."""
        self._frozen[member] = self.troubled_s = self._now_s()

    def thawed(self, member: Member) -> None:
        """It goes on, if it stood still."""
        since_s = self._frozen.pop(member, None)
        if since_s is not None:
            self.troubled_s = self._now_s()
            self._stood.append((member, since_s, self.troubled_s))

    def shut(self, member: Member) -> None:
        """Nobody listens where a peer says it does."""
        self._shut_until_s[member] = math.inf

    def opened(self, member: Member) -> None:
        """It can be called again."""
        self._shut_until_s[member] = self._now_s()

    def broke(self, new: Break) -> None:
        """Note that the network breaks."""
        self._broken[new] = self.troubled_s = self._now_s()

    def mended(self, ended: Break) -> None:
        """Note that a break is mended."""
        since_s = self._broken.pop(ended, None)
        if since_s is not None:
            self.troubled_s = self.mended_s = self._now_s()
            self._mended.append((ended, since_s, self.mended_s))

    def missed(self, one: Member, other: Member, since_s: float) -> None:
        """A heartbeat that `one` sent then has brought no answer of `other`, or has it too late."""
        self._missed.append((one, other, since_s, self._now_s()))

    # -- asked by the checks
    def born_s(self, member: Member) -> float:
        """When this life began; long ago for one that was never seen."""
        return self._born_s.get(member, -math.inf)

    def died_s(self, member: Member) -> float | None:
        """When this life ended; None while it lasts."""
        return self._died_s.get(member)

    def silent_s(self, member: Member) -> float | None:
        """Since when this life says nothing, as it has ended or stands still; None where it
        moves.
        """
        return self._died_s.get(member, self._frozen.get(member))

    def is_out(self, one: Member, other: Member) -> bool:
        """Whether either stands still, or the network is broken between the two, in either
        direction.
        """
        if self._broken and any(lasting.parts(one.peer_id, other.peer_id) for lasting in self._broken):
            return True
        return bool(self._frozen) and (one in self._frozen or other in self._frozen)

    def quiet_s(self, one: Member, other: Member) -> float:
        """Seconds for which `one` and `other` have both run and could reach each other.

        The time counts from the later of their two starts and the end of the last outage between
        them. It is 0 while a break or a stall keeps them apart.
        """
        if self.is_out(one, other):
            return 0.0
        ended = [until_s for _, until_s in self._outages(one, other)]
        return self._now_s() - max(self.born_s(one), self.born_s(other), *ended, -math.inf)

    def was_shut(self, member: Member, within_s: float) -> bool:
        """Whether nobody listened at this peer's address at some time of the last `within_s`
        seconds, so that it seemed to have ended.
        """
        return self._shut_until_s.get(member, -math.inf) > self._now_s() - within_s

    def out_s(self, one: Member, other: Member, within_s: float) -> float:
        """For how many of the last `within_s` seconds one was out of the other's reach."""
        return self._within_s(self._outages(one, other), within_s)

    def unheard_s(self, one: Member, other: Member, within_s: float) -> float:
        """The same, with those in which heartbeats of `one` brought no answer."""
        missed = ((since_s, until_s) for *pair, since_s, until_s in self._missed if pair == [one, other])
        return self._within_s((*self._outages(one, other), *missed), within_s)

    def _within_s(self, spans: Iterable[Span], within_s: float) -> float:
        total_s, counted_s = 0.0, self._now_s() - within_s
        for since_s, until_s in sorted(spans):
            total_s += max(0.0, until_s - max(since_s, counted_s))
            counted_s = max(counted_s, until_s)
        return total_s

    def _outages(self, one: Member, other: Member) -> Iterator[Span]:
        now_s, pair, ids = self._now_s(), (one, other), (one.peer_id, other.peer_id)
        yield from ((since_s, now_s) for member, since_s in self._frozen.items() if member in pair)
        yield from ((since_s, until_s) for member, since_s, until_s in self._stood if member in pair)
        yield from ((since_s, now_s) for lasting, since_s in self._broken.items() if lasting.parts(*ids))
        yield from ((since_s, until_s) for past, since_s, until_s in self._mended if past.parts(*ids))
