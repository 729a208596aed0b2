"""Announcements as the bytes that the directory holds: canonical JSON, checked field by field when
read from others.

A record is what a stranger signed: nothing in it is believed but that its owner said so. The
signature itself is checked by `dht_validator`.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.canonical_json import canonical_json, json_object
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.names import ABSENT, Endpoint, Member
from swarmfree.wire.addresses import parse_address
from swarmfree.wire.ticket import SHOWN_SIZE_BYTES_MAX

ANNOUNCEMENT_SIZE_BYTES_MAX = 8192
ADDRESSES_MAX = 8
_STAGES_MAX = 1024
_WHOLE_MAX = 1 << 53
_LARGEST_FLOAT = 1e300
_INCARNATION = re.compile(r"[0-9a-f]{16}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_LINEAGE = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What one peer keeps in the directory.

    Args:
        announcement: its word about itself.
        entry_points: multiaddrs of its libp2p daemon, through which others may join the directory.
        ticket: as it shows it in its certificate; empty for none.
    """

    announcement: Announcement
    entry_points: tuple[str, ...]
    ticket: bytes = b""


def peer_record_to_bytes(record: PeerRecord) -> bytes:
    """Canonical JSON: sorted keys, no spaces."""
    said = record.announcement
    return canonical_json(
        {
            "addresses": list(said.endpoint.addresses),
            "can_feed": said.can_feed,
            "entry_points": list(record.entry_points),
            "expires_s": said.expires_s,
            "incarnation": said.endpoint.member.incarnation,
            "iteration": said.iteration,
            "lineage": said.lineage,
            "peer_id": said.endpoint.member.peer_id,
            "revision": said.revision,
            "seconds_per_microbatch": said.seconds_per_microbatch,
            "squared_norm": said.squared_norm,
            "stage": said.stage,
            "state": said.state.value,
            "ticket": _shown(record.ticket),
        }
    )


def peer_record_from_bytes(content: bytes, owner: str, expires_s: float) -> PeerRecord:
    """Read a record that `owner` signed and that the directory keeps until `expires_s`. Keys that
    are not known are passed over.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    values = json_object(content, ANNOUNCEMENT_SIZE_BYTES_MAX)
    peer_id = _text(values, "peer_id")
    if peer_id != owner:
        raise ValueError(f"it speaks for {peer_id!r}, but {owner} signed it")
    member = Member(peer_id, _matching(values, "incarnation", _INCARNATION))
    announcement = Announcement(
        endpoint=Endpoint(member, multiaddrs_of(values, "addresses", owner, relayed=True)),
        state=PeerState(_text(values, "state")),
        stage=_whole(values, "stage", ABSENT, _STAGES_MAX),
        iteration=_whole(values, "iteration"),
        lineage=_matching(values, "lineage", _LINEAGE),
        squared_norm=_number(values, "squared_norm"),
        seconds_per_microbatch=_number(values, "seconds_per_microbatch"),
        can_feed=_truth(values, "can_feed"),
        revision=_whole(values, "revision"),
        expires_s=_number(values, "expires_s"),
    )
    if announcement.expires_s != expires_s:
        raise ValueError(f"it expires at {announcement.expires_s}, but is kept until {expires_s}")
    return PeerRecord(announcement, multiaddrs_of(values, "entry_points", owner), _ticket(values))


def run_record_to_bytes(run: str, entry_points: tuple[str, ...]) -> bytes:
    """What stands under the key that all runs share: which run the owner serves, and where it can
    be joined.
    """
    return canonical_json({"entry_points": list(entry_points), "run": run})


def run_record_from_bytes(content: bytes, owner: str) -> tuple[str, tuple[str, ...]]:
    """Fingerprint and entry points of such a record, signed by `owner`.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    values = json_object(content, ANNOUNCEMENT_SIZE_BYTES_MAX)
    return _matching(values, "run", _FINGERPRINT), multiaddrs_of(values, "entry_points", owner)


def relay_record_to_bytes(addresses: tuple[str, ...], ticket: bytes) -> bytes:
    """What stands under a run's key for relays: where the owner offers one, and its ticket."""
    return canonical_json({"relays": list(addresses), "ticket": _shown(ticket)})


def relay_record_from_bytes(content: bytes, owner: str) -> tuple[tuple[str, ...], bytes]:
    """Where `owner` offers a relay, by a record that it signed, and the ticket that it shows.

    Raises:
        ValueError: one sentence on what is wrong with it.
    """
    values = json_object(content, ANNOUNCEMENT_SIZE_BYTES_MAX)
    return multiaddrs_of(values, "relays", owner), _ticket(values)


def multiaddrs_of(values: dict[str, Any], key: str, owner: str, *, relayed: bool = False) -> tuple[str, ...]:
    """The multiaddrs under `key`; each must be one of `owner`, and directly its own unless
    `relayed`.

    Raises:
        ValueError: it is no list of at most 8 such addresses.
    """
    listed = values.get(key)
    if not isinstance(listed, list) or len(listed) > ADDRESSES_MAX or not all(isinstance(text, str) for text in listed):
        raise ValueError(f"{key}: a list of at most {ADDRESSES_MAX} multiaddrs is expected")
    for text in listed:
        try:
            if parse_address(text, relayed=relayed).peer_id != owner:
                raise ValueError(f"{key}: {text} is an address of another peer")
        except ConfigError as error:
            raise ValueError(f"{key}: {error}") from error
    return tuple(listed)


def _shown(ticket: bytes) -> str:
    return base64.b64encode(ticket).decode()


def _ticket(values: dict[str, Any]) -> bytes:
    ticket = base64.b64decode(_text(values, "ticket"), validate=True)
    if len(ticket) > SHOWN_SIZE_BYTES_MAX:
        raise ValueError(f"ticket: {len(ticket)} bytes, at most {SHOWN_SIZE_BYTES_MAX} expected")
    return ticket


def _text(values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key}: a text is expected, not {value!r:.40}")  # noqa: TRY004 - as above
    return value


def _matching(values: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    text = _text(values, key)
    if not pattern.fullmatch(text):
        raise ValueError(f"{key}: {text!r:.80} is malformed")
    return text


def _whole(values: dict[str, Any], key: str, lowest: int = 0, highest: int = _WHOLE_MAX) -> int:
    value = values.get(key)
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"{key}: a whole number from {lowest} to {highest} is expected, not {value!r:.40}")
    return value


def _number(values: dict[str, Any], key: str) -> float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST_FLOAT:
        raise ValueError(f"{key}: a finite number of 0 or more is expected, not {value!r:.40}")
    return float(value)


def _truth(values: dict[str, Any], key: str) -> bool:
    value = values.get(key)
    if not isinstance(value, bool):
        raise ValueError(f"{key}: true or false is expected, not {value!r:.40}")  # noqa: TRY004 - as above
    return value
