"""Ban lists: the organiser's signed word on whom a run does without. A numbered list of peers and
of tickets; of several the highest number counts, so that an older one brings nobody back.

It travels through the directory as copies that anybody may publish, and each peer keeps the newest
one in its folder. Whoever has the manifest can tell a true one from a forged one.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmfree.protocol.canonical_json import canonical_json, json_object
from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest
from swarmfree.wire.identity import is_peer_id
from swarmfree.wire.organiser import OrganiserKey, is_signed
from swarmfree.wire.ticket import TICKET_ID_LETTERS, Ticket

BANS_FILE = "bans.json"
LISTED_MAX = 512
BAN_LIST_SIZE_BYTES_MAX = 1 << 16
NUMBER_MAX = 10**9
_PURPOSE = "swarmfree bans 1"
_TICKET_ID = re.compile(rf"[0-9a-f]{{{TICKET_ID_LETTERS}}}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BanList:
    """Whom a run does without.

    Args:
        fingerprint: of the manifest, 64 hex digits.
        number: from 1; the higher one counts.
        peers: peer ids, sorted, at most 512.
        tickets: names of tickets that hold no more, sorted, at most 512; see `Ticket.ticket_id`.
        signature: of `signed_bytes`, by the organiser.
    """

    fingerprint: str
    number: int
    peers: tuple[str, ...]
    tickets: tuple[str, ...]
    signature: bytes

    def signed_bytes(self) -> bytes:
        """What the signature covers: purpose, run, number and both lists as canonical JSON."""
        return canonical_json({"purpose": _PURPOSE, **self._said()})

    def canonical(self) -> bytes:
        """The bytes that are published: JSON, sorted keys, no spaces, the signature in base64."""
        return canonical_json({**self._said(), "signature": base64.b64encode(self.signature).decode()})

    def counts_more_than(self, other: BanList | None) -> bool:
        """Whether peers that read both follow this one; of two with one number the smaller
        bytes.
        """
        return other is None or (-self.number, self.canonical()) < (-other.number, other.canonical())

    def names(self, ticket: Ticket) -> bool:
        """Whether this ticket holds no more, or whose it is is banned."""
        return ticket.ticket_id in self.tickets or ticket.holder in self.peers

    def _said(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "number": self.number,
            "peers": list(self.peers),
            "tickets": list(self.tickets),
        }


def longer_ban_list(
    organiser: OrganiserKey, manifest: Manifest, known: BanList | None, *, peers: Collection[str], tickets: Collection[str]
) -> BanList:
    """The list after the known one, with these besides; the known one itself where it names them
    all.

    Raises:
        ConfigError: the key is not the run's organiser's, a name is none, or the list would be too
            long.
    """
    if organiser.peer_id != manifest.organiser:
        raise ConfigError(
            f"this key is {organiser.peer_id}, but the run's organiser is {manifest.organiser}: name its file with --organiser"
        )
    for peer_id in peers:
        if not is_peer_id(peer_id):
            raise ConfigError(f"{peer_id!r} is no peer id; `swarmfree status INVITE --json` has them")
    for ticket_id in tickets:
        if not _TICKET_ID.fullmatch(ticket_id):
            raise ConfigError(f"{ticket_id!r} names no ticket: {TICKET_ID_LETTERS} of 0-9 a-f, as `swarmfree ticket` told it")
    all_peers, all_tickets = (
        sorted({*peers, *(known.peers if known else ())}),
        sorted({*tickets, *(known.tickets if known else ())}),
    )
    if max(len(all_peers), len(all_tickets)) > LISTED_MAX:
        raise ConfigError(
            f"a ban list names at most {LISTED_MAX} peers and as many tickets, and nobody leaves it: revoke the ticket that they come "
            "with (--ticket), which is one name for all of them; once it is full, begin another run, with new tickets"
        )
    if known is not None and (tuple(all_peers), tuple(all_tickets)) == (known.peers, known.tickets):
        return known
    number = known.number + 1 if known else 1
    unsigned = BanList(manifest.fingerprint(), number, tuple(all_peers), tuple(all_tickets), b"")
    return dataclasses.replace(unsigned, signature=organiser.sign(unsigned.signed_bytes()))


def read_ban_list(content: bytes, manifest: Manifest) -> BanList:
    """Read and check a published list.

    Raises:
        ProtocolViolation: it is malformed, of another run, or not signed by the run's organiser.
    """
    try:
        bans = _parsed(content)
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise ProtocolViolation(f"a ban list is malformed: {error!r}") from error
    if bans.fingerprint != manifest.fingerprint():
        raise ProtocolViolation(f"a ban list is of run {bans.fingerprint[:12]}, not {manifest.fingerprint()[:12]}")
    if not is_signed(manifest.organiser, bans.signed_bytes(), bans.signature):
        raise ProtocolViolation(f"a ban list is not signed by the organiser {manifest.organiser}")
    # Last, as it takes the longest: strangers may publish any number of lists.
    if not all(map(is_peer_id, bans.peers)) or not all(map(_TICKET_ID.fullmatch, bans.tickets)):
        raise ProtocolViolation("a ban list is malformed: peer ids and names of tickets are expected")
    return bans


def read_ban_lists(
    contents: Iterable[bytes], manifest: Manifest, before: Mapping[bytes, BanList | None]
) -> dict[bytes, BanList | None]:
    """Read all that stands under the key.

    Args:
        contents: what stands there.
        manifest: of the run.
        before: what this gave the last time; nothing is judged twice.

    Returns:
        By SHA-256 of each, the list that it is; None for what is none.
    """
    named = {hashlib.sha256(content).digest(): content for content in contents}
    return {digest: before[digest] if digest in before else _judged(content, manifest) for digest, content in named.items()}


def newest_ban_list(lists: Iterable[BanList | None]) -> BanList | None:
    """The one that counts."""
    newest: BanList | None = None
    for bans in lists:
        if bans is not None and bans.counts_more_than(newest):
            newest = bans
    return newest


def read_kept_bans(folder: str | Path, manifest: Manifest) -> BanList | None:
    """The list that this folder keeps; None where it keeps none of this run."""
    path = Path(folder) / BANS_FILE
    try:
        with path.open("rb") as file:
            return read_ban_list(file.read(BAN_LIST_SIZE_BYTES_MAX + 1), manifest)
    except FileNotFoundError:
        return None
    except (OSError, ProtocolViolation) as error:
        _log.warning("%s is passed over, and the list is looked for in the directory: %s", path, error)
        return None


def keep_bans(folder: str | Path, bans: BanList) -> None:
    """Keep a list, whole or not at all; where that fails the directory still has it."""
    path = Path(folder) / BANS_FILE
    draft = path.with_suffix(".draft")
    try:
        with draft.open("wb") as file:
            file.write(bans.canonical())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        _log.debug("%s is not written: %s", path, error)


def _judged(content: bytes, manifest: Manifest) -> BanList | None:
    try:
        return read_ban_list(content, manifest)
    except ProtocolViolation as violation:
        _log.debug("a ban list is passed over: %s", violation)
        return None


def _parsed(content: bytes) -> BanList:
    values = json_object(content, BAN_LIST_SIZE_BYTES_MAX)
    number, fingerprint, peers, tickets = (values[key] for key in ("number", "fingerprint", "peers", "tickets"))
    if type(number) is not int or not 0 < number <= NUMBER_MAX or not isinstance(fingerprint, str):
        raise TypeError("a number and a run are expected")
    for listed in (peers, tickets):
        if not isinstance(listed, list) or len(listed) > LISTED_MAX or not all(isinstance(name, str) for name in listed):
            raise TypeError(f"lists of at most {LISTED_MAX} names are expected")
    bans = BanList(fingerprint, number, tuple(peers), tuple(tickets), base64.b64decode(values["signature"], validate=True))
    if bans.canonical() != content:
        raise ValueError("canonical bytes are expected")
    return bans
