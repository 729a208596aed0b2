"""Admission: whether a proven peer may take part in the run, by its ticket and the ban list.

Asked once for each call, with what the connection's certificate shows; signatures are checked once
for each peer and ticket, the rest (expiry, bans, counts) every time. What a peer may say once it is
in stands in `policy.permissions`. Nothing here talks to the network.

Source: protocol, "Who is let in".
"""

from __future__ import annotations

import time
from collections import OrderedDict

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.manifest import Manifest
from swarmfree.wire.ban_list import BanList
from swarmfree.wire.ticket import Ticket, ticket_shown

_SEEN_MAX = 4096
_MET_MAX = 1 << 16
"""Names that are remembered of a ticket that any number may hold: identities are free, so that one
ticket could fill the memory else. Who called longest ago is forgotten first, and then is not cut
off when the ticket is revoked: its next call is refused.
"""


class Admission:
    """Who may take part in one run, as far as this peer knows.

    Args:
        manifest: of the run; says how it admits, and names the organiser.
        bans: the list that is known.
    """

    def __init__(self, manifest: Manifest, bans: BanList | None = None) -> None:
        """Nobody has come."""
        self._access = manifest.run.access
        self._organiser = manifest.organiser
        self._fingerprint = manifest.fingerprint()
        self._bans = bans
        self._banned = frozenset(bans.peers if bans else ())
        self._seen: OrderedDict[tuple[str, bytes], Ticket | str] = OrderedDict()
        # By ticket, whom it has let in: `_seen` is no place for that, as strangers can fill it.
        self._met: dict[str, dict[str, None]] = {}

    def require(self, peer_id: str, shown: bytes) -> None:
        """Let a peer in, that shows this ticket (empty for none), and count it.

        Raises:
            Refused: `not_admitted`, with one sentence.
        """
        if why := self.refusal(peer_id, shown):
            raise Refused(RefusalKind.NOT_ADMITTED, why)
        ticket = self._seen.get((peer_id, shown))
        if isinstance(ticket, Ticket):
            met = self._met.setdefault(ticket.ticket_id, {})
            met.pop(peer_id, None)
            met[peer_id] = None  # at the end: who called last
            if not ticket.count and len(met) > _MET_MAX:
                del met[next(iter(met))]

    def is_organisers(self, peer_id: str, shown: bytes) -> bool:
        """Whether this peer, which was let in, may name founders: it is the organiser's node."""
        ticket = self._read(peer_id, shown) if shown else None
        return isinstance(ticket, Ticket) and ticket.names_founders and ticket.holder == peer_id

    def refusal(self, peer_id: str, shown: bytes) -> str | None:
        """Why a peer that shows this ticket may not take part; None where it may."""
        if self._bans is not None and peer_id in self._banned:
            return f"banned: the organiser has banned peer {peer_id} (list {self._bans.number})"
        if self._access == "open":
            return None
        if not shown:
            return f"no ticket: peer {peer_id} shows none, and this run admits by ticket; ask its organiser for one"
        ticket = self._read(peer_id, shown)
        return ticket if isinstance(ticket, str) else self._refusal(peer_id, ticket)

    def renew(self, bans: BanList) -> frozenset[str]:
        """Follow a newer list.

        Returns:
            Peers that may have been let in and are refused from now on; who came with a ticket that
            is revoked, the first time only.
        """
        self._bans, self._banned = bans, frozenset(bans.peers)
        return self._banned.union(*(self._met.pop(ticket_id, ()) for ticket_id in bans.tickets))

    def _read(self, peer_id: str, shown: bytes) -> Ticket | str:
        """The ticket, or why it is none of this peer in this run: what never changes."""
        known = self._seen.get((peer_id, shown))
        if known is None:
            known = self._seen[peer_id, shown] = self._checked(peer_id, shown)
            if len(self._seen) > _SEEN_MAX:
                self._seen.popitem(last=False)
        else:
            self._seen.move_to_end((peer_id, shown))
        return known

    def _checked(self, peer_id: str, shown: bytes) -> Ticket | str:
        try:
            ticket, proof = ticket_shown(shown)
        except ValueError as error:
            return f"no ticket: peer {peer_id} shows {error}"
        if not ticket.is_held_by(peer_id, proof):
            return f"ticket of another peer: {ticket.holder or 'who has its key'} holds it, and peer {peer_id} shows it"
        if not ticket.is_signed_by(self._organiser, self._fingerprint):
            return (
                f"ticket of another run or organiser: peer {peer_id} shows one that {self._organiser} has not signed for this run"
            )
        return ticket

    def _refusal(self, peer_id: str, ticket: Ticket) -> str | None:
        """What time, bans and the others that came change."""
        if ticket.expires_s <= time.time():
            then = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ticket.expires_s))
            return f"ticket expired: that of peer {peer_id} held until {then}; ask the organiser for another one"
        if self._bans is not None and ticket.ticket_id in self._bans.tickets:
            return f"ticket revoked: the organiser has revoked ticket {ticket.ticket_id} of peer {peer_id} (list {self._bans.number})"
        if self._access == "list" and not ticket.holder:
            return f"ticket without a name: this run admits by name, and that of peer {peer_id} is for anybody"
        met = self._met.get(ticket.ticket_id, ())
        if ticket.count and peer_id not in met and len(met) >= ticket.count:
            return f"ticket used up: it is for {ticket.count}, others came with it before peer {peer_id}"
        return None
