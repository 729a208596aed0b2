"""The ban watch: reads the ban list again and again, and has everybody who is named cut off.

Which list counts, `ban_list` says, and who may call, `admission`. A peer that finds itself named
ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from swarmfree.protocol.errors import Excluded
from swarmfree.protocol.events import PeersBanned
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_list import BanList
from swarmfree.wire.network import GrpcNetwork

LOOKS_PER_LEASE = 3


class BanSource(Protocol):
    """Where ban lists are read: the directory."""

    async def read_bans(self, lease_s: float) -> BanList | None:
        """The newest one that counts, kept by this peer until the lease ends; None for none."""
        ...


class BanWatch:
    """Follows one run's ban list.

    Args:
        source: where it is read.
        admission: says who may call.
        network: whose calls are cut off.
        tell: receives an event for each newer list.
    """

    def __init__(
        self, source: BanSource, admission: Admission, network: GrpcNetwork, tell: Callable[[PeersBanned], None]
    ) -> None:
        """Nothing has been read."""
        self._source, self._admission, self._network, self._tell = source, admission, network, tell
        self._told: BanList | None = None

    async def look(self, lease_s: float) -> None:
        """Read the list once, and follow it where it is newer.

        Raises:
            Excluded: it names this peer.
        """
        bans, before = await self._source.read_bans(lease_s), self._told
        if bans is None or not bans.counts_more_than(before):
            return
        self._told = bans
        self._network.cut_off(self._admission.renew(bans))
        peers, tickets = set(bans.peers), set(bans.tickets)
        if before is not None:
            peers, tickets = peers - set(before.peers), tickets - set(before.tickets)
        self._tell(PeersBanned(bans.number, sorted(peers), sorted(tickets)))
        here = self._network.here.member.peer_id
        if here in bans.peers:
            raise Excluded(f"the run's organiser has banned this peer, {here} (list {bans.number})")

    async def keep(self, lease_s: float, papers_lease_s: float) -> None:
        """Run for ever: look three times a lease.

        Args:
            lease_s: within so long a new list is followed.
            papers_lease_s: how long a list that was found is published.

        Raises:
            Excluded: it names this peer.
        """
        while True:
            await self.look(papers_lease_s)
            await asyncio.sleep(lease_s / LOOKS_PER_LEASE)
