"""The end notice: the bootstrap node's signed word that the run is over, for newcomers that find
nobody. It shows with it the organiser's leave to speak for it.

It is checked against the manifest, which names the organiser's peer id: nobody else can say that a
run is over, and what is said of one run says nothing of another. It ends with the leave, which is
the bootstrap node's ticket, or when a ban list names either; the record in the directory ends
sooner, and the node renews it.

Source: protocol, "After the end".
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from swarmfree.protocol.canonical_json import canonical_json, json_object
from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest
from swarmfree.wire.ban_list import BanList
from swarmfree.wire.identity import Identity, peer_id_of, verify
from swarmfree.wire.ticket import Ticket, ticket_from_bytes, why_no_leave

END_NOTICE_SIZE_BYTES_MAX = 4096
_PURPOSE = "swarmfree end 1"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndNotice:
    """The bootstrap node's word that the run is over.

    Args:
        fingerprint: of the manifest, 64 hex digits.
        key: the bootstrap node's public key, DER SubjectPublicKeyInfo.
        delegation: its ticket, by which the organiser lets it say so.
        signature: of `signed_bytes`, by the bootstrap node.
    """

    fingerprint: str
    key: bytes
    delegation: Ticket
    signature: bytes

    def signed_bytes(self) -> bytes:
        """What the signature covers: purpose and fingerprint as canonical JSON. The purpose keeps a
        signature that was given for anything else from being shown as this one.
        """
        return canonical_json({"purpose": _PURPOSE, "fingerprint": self.fingerprint})

    def canonical(self) -> bytes:
        """The bytes that are published: JSON, sorted keys, no spaces, key, delegation and
        signature in base64.
        """
        return canonical_json(
            {
                "fingerprint": self.fingerprint,
                "key": base64.b64encode(self.key).decode(),
                "delegation": base64.b64encode(self.delegation.to_bytes()).decode(),
                "signature": base64.b64encode(self.signature).decode(),
            }
        )


def make_end_notice(identity: Identity, manifest: Manifest, delegation: Ticket) -> EndNotice:
    """Say that a run is over.

    Raises:
        ConfigError: the organiser does not let `identity` say so.
    """
    if why := why_no_leave(delegation, identity.peer_id, manifest):
        raise ConfigError(f"that the run is over is said by whom the organiser {manifest.organiser or '(none)'} lets: {why}")
    unsigned = EndNotice(manifest.fingerprint(), identity.public_key, delegation, b"")
    return dataclasses.replace(unsigned, signature=identity.sign(unsigned.signed_bytes()))


def read_end_notice(content: bytes, manifest: Manifest, wall_s: float, bans: BanList | None = None) -> EndNotice:
    """Read and check a published end notice, at Unix time `wall_s`, under the ban list that is
    known.

    Raises:
        ProtocolViolation: it is malformed, of another run, or not signed by whom the organiser lets
            say so now.
    """
    try:
        notice = _parsed(content)
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise ProtocolViolation(f"an end notice is malformed: {error!r}") from error
    if notice.fingerprint != manifest.fingerprint():
        raise ProtocolViolation(f"an end notice is of run {notice.fingerprint[:12]}, not {manifest.fingerprint()[:12]}")
    if why := why_no_leave(notice.delegation, peer_id_of(notice.key), manifest):
        raise ProtocolViolation(f"an end notice is by nobody whom the organiser {manifest.organiser} lets say so: {why}")
    if notice.delegation.expires_s <= wall_s:
        raise ProtocolViolation(f"an end notice is by {notice.delegation.holder}, whose leave has expired")
    if bans is not None and bans.names(notice.delegation):
        raise ProtocolViolation(f"an end notice is by {notice.delegation.holder}, which the organiser has banned")
    if not verify(notice.key, notice.signed_bytes(), notice.signature):
        raise ProtocolViolation("an end notice's signature does not hold")
    return notice


def find_end_notice(
    contents: Iterable[bytes], manifest: Manifest, wall_s: float, bans: BanList | None = None
) -> EndNotice | None:
    """A notice that holds among what stands under the key; what is none is passed over."""
    for content in contents:
        try:
            return read_end_notice(content, manifest, wall_s, bans)
        except ProtocolViolation as violation:
            _log.debug("an end notice is passed over: %s", violation)
    return None


def _parsed(content: bytes) -> EndNotice:
    values = json_object(content, END_NOTICE_SIZE_BYTES_MAX)
    if not all(isinstance(value, str) for value in values.values()):
        raise TypeError("texts are expected")
    return EndNotice(
        values["fingerprint"],
        base64.b64decode(values["key"], validate=True),
        ticket_from_bytes(base64.b64decode(values["delegation"], validate=True)),
        base64.b64decode(values["signature"], validate=True),
    )
