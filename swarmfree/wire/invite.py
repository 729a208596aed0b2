"""The invite: one line that a volunteer pastes; the run's fingerprint, where to find peers of it,
and a ticket to be let in.

``swarmfree1`` and then base32 in lower case: letters and digits only, so that no shell, mail
program or double click breaks it. Inside: the length, the fingerprint, the entry points in binary,
the ticket where there is one, and a checksum, so that a cut or mistyped invite is told apart from a
run that is gone. The fingerprint is what a joiner checks the manifest against; by it the organiser
is known. A ticket that is not bound to a peer id lets in whoever has the invite.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from dataclasses import dataclass

from swarmfree.protocol.errors import ConfigError, InviteError
from swarmfree.wire.addresses import KINDS, Address, parse_address
from swarmfree.wire.base58 import base58_decode, base58_encode
from swarmfree.wire.ticket import Ticket, ticket_from_invite

PREFIX = "swarmfree1"
ENTRY_POINTS_MAX = 8
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_LETTERS_MAX = 4096
_CHECKSUM_SIZE_BYTES = 4
_FINGERPRINT_SIZE_BYTES = 32
_TICKET = 0xFF
"""Where the kind of an address would stand."""
_COPY_AGAIN = "copy the whole line that the bootstrap node or any peer printed"
_BLANKS = re.compile(r"[\s\u00ad\u200b-\u200f\u2060\ufeff]")
"""Mail programs and web pages break lines with letters that nobody sees, too."""
_WRAPPING = "$'\"`<>()[]{},.;\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
_STAND_INS = frozenset({"invite", "your_invite", "the_invite"})
_LOOKALIKES = {"0": "o", "1": "l", "8": "b", "9": "g"}


@dataclass(frozen=True, slots=True)
class Invite:
    """What a volunteer needs.

    Args:
        fingerprint: of the run's manifest, 64 hex digits.
        entry_points: libp2p multiaddrs of peers through which the directory can be joined, best
            first; 1 to 8.
        ticket: that lets its holder in; None where the run needs none, or the volunteer has to ask
            for one.
    """

    fingerprint: str
    entry_points: tuple[str, ...]
    ticket: Ticket | None = None


def encode_invite(invite: Invite) -> str:
    """The line that `decode_invite` reads.

    Raises:
        ConfigError: the fingerprint or an address is malformed, or there are none or too many
            addresses.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", invite.fingerprint):
        raise ConfigError(f"fingerprint {invite.fingerprint!r}: 64 hex digits expected")
    if not 1 <= len(invite.entry_points) <= ENTRY_POINTS_MAX:
        raise ConfigError(f"an invite names 1 to {ENTRY_POINTS_MAX} addresses, not {len(invite.entry_points)}")
    body = bytearray(bytes.fromhex(invite.fingerprint))
    for text in invite.entry_points:
        body += _pack(parse_address(text))
    if invite.ticket is not None:
        shown = invite.ticket.invite_bytes()
        body += bytes((_TICKET, len(shown))) + shown
    data = len(body).to_bytes(2, "big") + bytes(body)
    return PREFIX + base64.b32encode(data + _checksum(data)).decode().rstrip("=").lower()


def decode_invite(text: str) -> Invite:
    """Read an invite as a person pasted it; blanks, line breaks, quotes, brackets, capitals and a
    second copy do no harm.

    Raises:
        InviteError: one line that says what is wrong and how to mend it.
    """
    pasted = _BLANKS.sub("", text).strip(_WRAPPING)
    line = pasted.lower()
    if not line:
        raise InviteError(f"the invite is empty: {_COPY_AGAIN}")
    if line in _STAND_INS:
        raise InviteError(
            f"{pasted} stands for an invite, which begins with {PREFIX!r}: {_COPY_AGAIN}, and put that in its place"
        )
    if not line.startswith(PREFIX):
        if PREFIX.startswith(line):
            raise InviteError(f"the invite is cut off after {len(line)} letters: {_COPY_AGAIN}")
        if re.match(r"swarmfree[2-9]", line):
            raise InviteError(f"the invite begins with {line[:10]!r}: it was made by a newer swarmfree; update this one")
        where = f" (one begins at letter {line.index(PREFIX) + 1}: paste it alone)" if PREFIX in line else ""
        raise InviteError(f"{pasted[:24]!r} is no invite: an invite begins with {PREFIX!r}{where}; {_COPY_AGAIN}")
    letters = _one_of(line)[len(PREFIX) :]
    if len(letters) > _LETTERS_MAX:
        raise InviteError(f"the invite has {len(line)} letters, far too many: {_COPY_AGAIN}, once")
    for position, letter in enumerate(letters, len(PREFIX) + 1):
        if letter not in _LETTERS:
            hint = f" (perhaps {_LOOKALIKES[letter]!r}?)" if letter in _LOOKALIKES else ""
            raise InviteError(f"letter {position} of the invite is {letter!r}, which no invite has{hint}: {_COPY_AGAIN}")
    return _unpack_body(_checked_body(letters))


def _one_of(line: str) -> str:
    """The invite in a line that has it once, or several times alike; no invite has its own
    beginning in it.

    Raises:
        InviteError: several that differ.
    """
    parts = [part.strip(_WRAPPING) for part in line.split(PREFIX)[1:]]
    if len(set(parts)) > 1:
        letters = " and ".join(str(len(PREFIX) + len(part)) for part in parts[:3])
        raise InviteError(
            f"one invite is expected; {len(parts)} that differ stand behind each other (of {letters} letters): paste one"
        )
    return PREFIX + parts[0]


def _checked_body(letters: str) -> bytes:
    """The body behind length and checksum."""
    if len(letters) < 4:
        raise InviteError(f"the invite is cut off after {len(PREFIX) + len(letters)} letters: {_COPY_AGAIN}")
    head = base64.b32decode((letters[:4] + "AAAA").upper())
    body_size_bytes = int.from_bytes(head[:2], "big")
    size_bytes = 2 + body_size_bytes + _CHECKSUM_SIZE_BYTES
    expected = (size_bytes * 8 + 4) // 5
    if len(letters) < expected <= _LETTERS_MAX:
        found = len(PREFIX) + len(letters)
        raise InviteError(f"the invite is cut off: {found} of {len(PREFIX) + expected} letters are there; {_COPY_AGAIN}")
    if len(letters) > expected:
        more = len(letters) - expected
        raise InviteError(f"the invite has {more} letter{'s' * (more != 1)} too many at its end: {_COPY_AGAIN}, and nothing else")
    data = base64.b32decode((letters + "=" * (-len(letters) % 8)).upper()) if len(letters) == expected else b""
    if not data or data[-_CHECKSUM_SIZE_BYTES:] != _checksum(data[:-_CHECKSUM_SIZE_BYTES]):
        raise InviteError(f"the invite has a wrong letter somewhere (its checksum does not fit): {_COPY_AGAIN}")
    return data[2:-_CHECKSUM_SIZE_BYTES]


def _unpack_body(body: bytes) -> Invite:
    malformed = InviteError("the invite is whole, but this swarmfree cannot read it: update swarmfree, or ask for a new invite")
    entry_points: list[str] = []
    rest = body[_FINGERPRINT_SIZE_BYTES:]
    ticket: Ticket | None = None
    while rest:
        if rest[0] == _TICKET:
            try:
                ticket = _unpack_ticket(rest)
            except (ValueError, IndexError) as error:
                raise malformed from error
            break
        try:
            address, rest = _unpack(rest)
            entry_points.append(str(parse_address(str(address))))
        except (ConfigError, ValueError, IndexError) as error:
            raise malformed from error
    if not 1 <= len(entry_points) <= ENTRY_POINTS_MAX:
        raise malformed
    return Invite(body[:_FINGERPRINT_SIZE_BYTES].hex(), tuple(entry_points), ticket)


def _unpack_ticket(data: bytes) -> Ticket:
    """The ticket, behind which nothing comes; ValueError or IndexError where there is none."""
    if len(data) != 2 + data[1]:
        raise ValueError("cut off, or with something behind its end")
    return ticket_from_invite(data[2:])


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(PREFIX.encode() + data).digest()[:_CHECKSUM_SIZE_BYTES]


def _pack(address: Address) -> bytes:
    """Kind, host, port and peer id: each variable part behind a byte with its length."""
    host = ipaddress.ip_address(address.host).packed if address.kind.startswith("ip") else address.host.encode()
    peer = base58_decode(address.peer_id)
    return bytes([KINDS.index(address.kind), len(host)]) + host + address.port.to_bytes(2, "big") + bytes([len(peer)]) + peer


def _unpack(data: bytes) -> tuple[Address, bytes]:
    """The first address in `data`, and what follows it; ValueError or IndexError where there is
    none.
    """
    kind, host_size_bytes = KINDS[data[0]], data[1]
    port_at = 2 + host_size_bytes
    host_bytes, peer_at = data[2:port_at], port_at + 3
    peer_end = peer_at + data[port_at + 2]
    if len(data) < peer_end:
        raise ValueError("cut off")
    host = str(ipaddress.ip_address(host_bytes)) if kind.startswith("ip") else host_bytes.decode("ascii")
    port = int.from_bytes(data[port_at : port_at + 2], "big")
    return Address(kind, host, port, base58_encode(data[peer_at:peer_end])), data[peer_end:]
