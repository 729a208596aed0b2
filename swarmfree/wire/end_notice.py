"""The end notice: the organiser's signed word that the run is over, for newcomers that find nobody.

It is checked against the manifest, which names the organiser's peer id: nobody else can say that a
run is over, and what one organiser says of one run says nothing of another. It never expires by
itself; the record in the directory does, and the bootstrap node renews it.

Source: protocol, "After the end".
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import Manifest
from swarmfree.wire.announcement_record import canonical_json, json_object
from swarmfree.wire.identity import Identity, peer_id_of, verify

END_NOTICE_SIZE_BYTES_MAX = 4096
_PURPOSE = "swarmfree end 1"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndNotice:
    """The organiser's word that its run is over.

    Args:
        fingerprint: of the manifest, 64 hex digits.
        organiser_key: the organiser's public key, DER SubjectPublicKeyInfo; its peer id must be the
            manifest's `organiser`.
        signature: of `signed_bytes`, by the organiser.
    """

    fingerprint: str
    organiser_key: bytes
    signature: bytes

    def signed_bytes(self) -> bytes:
        """What the signature covers: purpose and fingerprint as canonical JSON. The purpose keeps a
        signature that was given for anything else from being shown as this one.
        """
        return canonical_json({"purpose": _PURPOSE, "fingerprint": self.fingerprint})

    def canonical(self) -> bytes:
        """The bytes that are published: JSON, sorted keys, no spaces, key and signature in
        base64.
        """
        return canonical_json(
            {
                "fingerprint": self.fingerprint,
                "organiser_key": base64.b64encode(self.organiser_key).decode(),
                "signature": base64.b64encode(self.signature).decode(),
            }
        )


def make_end_notice(identity: Identity, manifest: Manifest) -> EndNotice:
    """Say that a run is over.

    Raises:
        ConfigError: `identity` is not the run's organiser.
    """
    if identity.peer_id != manifest.organiser:
        raise ConfigError(
            f"only the organiser {manifest.organiser or '(none)'} can say that the run is over, not {identity.peer_id}"
        )
    unsigned = EndNotice(manifest.fingerprint(), identity.public_key, b"")
    return dataclasses.replace(unsigned, signature=identity.sign(unsigned.signed_bytes()))


def read_end_notice(content: bytes, manifest: Manifest) -> EndNotice:
    """Read and check a published end notice.

    Raises:
        ProtocolViolation: it is malformed, of another run, or not signed by the run's organiser.
    """
    try:
        notice = _parsed(content)
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise ProtocolViolation(f"an end notice is malformed: {error!r}") from error
    if notice.fingerprint != manifest.fingerprint():
        raise ProtocolViolation(f"an end notice is of run {notice.fingerprint[:12]}, not {manifest.fingerprint()[:12]}")
    if peer_id_of(notice.organiser_key) != manifest.organiser:
        raise ProtocolViolation(
            f"an end notice is signed by {peer_id_of(notice.organiser_key)}, not by the organiser {manifest.organiser}"
        )
    if not verify(notice.organiser_key, notice.signed_bytes(), notice.signature):
        raise ProtocolViolation("an end notice's signature does not hold")
    return notice


def find_end_notice(contents: Iterable[bytes], manifest: Manifest) -> EndNotice | None:
    """The organiser's notice among what stands under the key; what is none is passed over."""
    for content in contents:
        try:
            return read_end_notice(content, manifest)
        except ProtocolViolation as violation:
            _log.debug("an end notice is passed over: %s", violation)
    return None


def _parsed(content: bytes) -> EndNotice:
    values = json_object(content, END_NOTICE_SIZE_BYTES_MAX)
    if not all(isinstance(value, str) for value in values.values()):
        raise TypeError("texts are expected")
    return EndNotice(
        values["fingerprint"],
        base64.b64decode(values["organiser_key"], validate=True),
        base64.b64decode(values["signature"], validate=True),
    )
