"""Tickets: the organiser's signed word that a peer may take part in a run, until when, and whose
word it is.

A ticket is a peer's, by its peer id, or belongs to whoever has the ticket's own private key, which
only an invite carries. In a certificate stands the ticket, and for one of the second kind the
holder's peer id signed with that key: whoever reads a certificate can show nothing with it. Whether
a ticket lets its holder in, `admission` says. Nothing here talks to the network.

Source: protocol, "Who is let in".
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmfree.protocol.manifest import Manifest
from swarmfree.wire.base58 import base58_decode, base58_encode
from swarmfree.wire.identity import is_peer_id
from swarmfree.wire.organiser import KEY_SIZE_BYTES, SIGNATURE_SIZE_BYTES, OrganiserKey, is_signed, is_signed_by_key

COUNT_MAX = 10_000
EXPIRES_S_MAX = 1 << 40
TICKET_DAYS = 90
DAY_S = 86400
SHOWN_SIZE_BYTES_MAX = 256
TICKET_ID_LETTERS = 16
_VERSION = 1
_FOR_PEER, _NAMES_FOUNDERS = 1, 2
_PURPOSE, _HOLDER_PURPOSE = b"swarmfree ticket 1:", b"swarmfree ticket holder 1:"
_FIXED_SIZE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket, as its holder has it or as others see it.

    Args:
        expires_s: Unix seconds after which it is nothing.
        holder: peer id whose it is; empty = whoever has the ticket's key.
        count: so many peers may hold it; 0 = any number. For one with a holder always 0.
        names_founders: its holder may name founders, and say that the run is over: the bootstrap
            node's.
        key: the ticket's public key, Ed25519; empty where it has a holder.
        signature: of `signed_bytes`, by the organiser.
        secret: private half of `key`; known to who has the invite, empty in what others show.
    """

    expires_s: int
    holder: str = ""
    count: int = 0
    names_founders: bool = False
    key: bytes = b""
    signature: bytes = b""
    secret: bytes = field(default=b"", repr=False)

    @property
    def ticket_id(self) -> str:
        """Its name in a ban list, 16 hex digits."""
        return hashlib.sha256(self._body()).hexdigest()[:TICKET_ID_LETTERS]

    def signed_bytes(self, fingerprint: str) -> bytes:
        """What the organiser signs: purpose, run, and what the ticket says."""
        return _PURPOSE + bytes.fromhex(fingerprint) + self._body()

    def is_signed_by(self, organiser: str, fingerprint: str) -> bool:
        """Whether the organiser of this run has signed it."""
        return is_signed(organiser, self.signed_bytes(fingerprint), self.signature)

    def is_held_by(self, peer_id: str, proof: bytes) -> bool:
        """Whether it is this peer's: it names it, or the proof shows that the peer had the ticket's
        key.
        """
        if self.holder:
            return self.holder == peer_id and not proof
        return is_signed_by_key(self.key, _HOLDER_PURPOSE + peer_id.encode(), proof)

    def to_bytes(self) -> bytes:
        """As others may see it: what it says, then the signature."""
        return self._body() + self.signature

    def invite_bytes(self) -> bytes:
        """As an invite carries it: with its private key in the public one's place."""
        if self.holder:
            return self.to_bytes()
        assert self.secret, "only who has the ticket's key can give it away"
        return self._head() + self.secret + self.signature

    def shown_by(self, peer_id: str) -> bytes:
        """What stands in a certificate of this peer: the ticket, and the proof that the peer has
        its key.
        """
        if self.holder:
            return self.to_bytes()
        assert self.secret, "only who has the ticket's key can show it"
        proof = Ed25519PrivateKey.from_private_bytes(self.secret).sign(_HOLDER_PURPOSE + peer_id.encode())
        return self.to_bytes() + proof

    def _head(self) -> bytes:
        kinds = (_FOR_PEER if self.holder else 0) | (_NAMES_FOUNDERS if self.names_founders else 0)
        return bytes((_VERSION, kinds)) + self.count.to_bytes(2, "big") + self.expires_s.to_bytes(8, "big")

    def _body(self) -> bytes:
        if not self.holder:
            return self._head() + self.key
        holder = base58_decode(self.holder)
        return self._head() + bytes((len(holder),)) + holder


def make_ticket(
    organiser: OrganiserKey, fingerprint: str, expires_s: int, *, holder: str = "", count: int = 0, names_founders: bool = False
) -> Ticket:
    """Sign a ticket; see `Ticket`."""
    assert 0 <= count <= COUNT_MAX, "checked where a person says it"
    assert 0 < expires_s <= EXPIRES_S_MAX, "checked where a person says it"
    assert not holder or (is_peer_id(holder) and not count), "one peer, or a count"
    secret = b"" if holder else secrets.token_bytes(KEY_SIZE_BYTES)
    unsigned = Ticket(expires_s, holder, count, names_founders, _public(secret), b"", secret)
    return dataclasses.replace(unsigned, signature=organiser.sign(unsigned.signed_bytes(fingerprint)))


def ticket_from_bytes(data: bytes) -> Ticket:
    """Read `to_bytes`.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    ticket, rest = _read(data)
    if rest:
        raise ValueError(f"a ticket with {len(rest)} bytes behind its end")
    return ticket


def ticket_from_invite(data: bytes) -> Ticket:
    """Read `invite_bytes`.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    ticket = ticket_from_bytes(data)
    return ticket if ticket.holder else dataclasses.replace(ticket, secret=ticket.key, key=_public(ticket.key))


def ticket_shown(data: bytes) -> tuple[Ticket, bytes]:
    """Read `shown_by`: the ticket, and the proof, which is empty for a ticket with a holder.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    if len(data) > SHOWN_SIZE_BYTES_MAX:
        raise ValueError(f"a ticket of {len(data)} bytes; at most {SHOWN_SIZE_BYTES_MAX} expected")
    ticket, proof = _read(data)
    if len(proof) != (0 if ticket.holder else SIGNATURE_SIZE_BYTES):
        raise ValueError(f"a ticket with a proof of {len(proof)} bytes")
    return ticket, proof


def why_no_leave(delegation: Ticket, peer_id: str, manifest: Manifest) -> str | None:
    """Why this peer may not speak for the organiser, whenever: name founders, or say that the run
    is over; None where it may.
    """
    if not delegation.names_founders or delegation.holder != peer_id:
        return f"{peer_id} has a ticket of {delegation.holder or 'anybody'} without that leave"
    if not delegation.is_signed_by(manifest.organiser, manifest.fingerprint()):
        return f"the leave of {peer_id} is not signed for this run"
    return None


def _read(data: bytes) -> tuple[Ticket, bytes]:
    """A ticket, and what follows it."""
    if len(data) < _FIXED_SIZE_BYTES or data[0] != _VERSION or data[1] & ~(_FOR_PEER | _NAMES_FOUNDERS):
        raise ValueError("no ticket, or one of another kind than this swarmfree knows")
    count, expires_s = int.from_bytes(data[2:4], "big"), int.from_bytes(data[4:12], "big")
    holder, key, rest = "", b"", data[_FIXED_SIZE_BYTES:]
    if data[1] & _FOR_PEER:
        size = rest[0] if rest else 0
        holder, rest = base58_encode(rest[1 : 1 + size]), rest[1 + size :]
    else:
        key, rest = rest[:KEY_SIZE_BYTES], rest[KEY_SIZE_BYTES:]
    signature, rest = rest[:SIGNATURE_SIZE_BYTES], rest[SIGNATURE_SIZE_BYTES:]
    if len(signature) != SIGNATURE_SIZE_BYTES:
        raise ValueError(f"a ticket of {len(data)} bytes; it is cut off")
    if (data[1] & _FOR_PEER and (not is_peer_id(holder) or count)) or count > COUNT_MAX or not 0 < expires_s <= EXPIRES_S_MAX:
        raise ValueError("a ticket for nobody, for too many, or until no time")
    return Ticket(expires_s, holder, count, bool(data[1] & _NAMES_FOUNDERS), key, signature), rest


def _public(secret: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() if secret else b""
