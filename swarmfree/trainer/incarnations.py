"""Lives that have ended: a peer that was started again says so with a later incarnation, and that
proves the end of the one before.

Nothing else proves it: silence may be a cut, and a refused connection a firewall. Source: protocol
section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swarmfree.protocol.names import Member

PEERS_MAX = 1024


class Incarnations:
    """The latest incarnation of each peer that this peer has heard from; the oldest are dropped
    first.
    """

    def __init__(self) -> None:
        self._latest: dict[str, Member] = {}

    def hear(self, members: Iterable[Member]) -> None:
        """Note that these incarnations exist or have existed."""
        for member in members:
            known = self._latest.pop(member.peer_id, member)
            self._latest[member.peer_id] = member if member.is_later_life_of(known) else known
            if len(self._latest) > PEERS_MAX:
                del self._latest[next(iter(self._latest))]

    def later_than(self, electorate: Sequence[Member]) -> tuple[Member, ...]:
        """List the later incarnations of members of an electorate, in its order."""
        latest = [self._latest.get(member.peer_id, member) for member in electorate]
        return tuple(life for life, member in zip(latest, electorate, strict=True) if life.is_later_life_of(member))

    def ended(self, electorate: Sequence[Member]) -> frozenset[Member]:
        """Members of an electorate that are proven to have ended."""
        return frozenset(m for m in electorate if self._latest.get(m.peer_id, m).is_later_life_of(m))
