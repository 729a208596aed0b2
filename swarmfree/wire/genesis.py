"""Genesis: who founds a run. One record, made once by the organiser and signed with its key; joining never creates one.

It is checked against the manifest, which names the organiser's peer id: whoever holds the fingerprint can tell a true
genesis from a forged one without asking anybody.

Source: protocol section 3.4.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from swarmfree.swarm.errors import ConfigError, ProtocolViolation
from swarmfree.swarm.manifest import Manifest
from swarmfree.wire.identity import Identity, is_peer_id, peer_id_of, verify

GENESIS_SIZE_BYTES_MAX = 4096
_PURPOSE = "swarmfree genesis 1"


@dataclass(frozen=True, slots=True)
class Genesis:
    """The organiser's word on who founds a run.

    Args:
        fingerprint: of the manifest, 64 hex digits.
        founder: peer id of the first member; the first electorate is this peer alone.
        organiser_key: the organiser's public key, DER SubjectPublicKeyInfo; its peer id must be the manifest's `organiser`.
        signature: of `signed_bytes`, by the organiser.
    """

    fingerprint: str
    founder: str
    organiser_key: bytes
    signature: bytes

    def signed_bytes(self) -> bytes:
        """What the signature covers: purpose, fingerprint and founder as canonical JSON."""
        return _canonical({"purpose": _PURPOSE, "fingerprint": self.fingerprint, "founder": self.founder})

    def canonical(self) -> bytes:
        """The bytes that are published: JSON, sorted keys, no spaces, keys and signature in base64."""
        return _canonical(
            {
                "fingerprint": self.fingerprint,
                "founder": self.founder,
                "organiser_key": base64.b64encode(self.organiser_key).decode(),
                "signature": base64.b64encode(self.signature).decode(),
            }
        )


def make_genesis(identity: Identity, manifest: Manifest, founder: str) -> Genesis:
    """Name the founder of a run.

    Raises:
        ConfigError: `identity` is not the run's organiser, or `founder` is no peer id.
    """
    if identity.peer_id != manifest.organiser:
        raise ConfigError(f"only the organiser {manifest.organiser or '(none)'} can name a founder, not {identity.peer_id}")
    if not is_peer_id(founder):
        raise ConfigError(f"founder {founder!r} is no libp2p peer id")
    unsigned = Genesis(manifest.fingerprint(), founder, identity.public_key, b"")
    return Genesis(unsigned.fingerprint, founder, identity.public_key, identity.sign(unsigned.signed_bytes()))


def read_genesis(content: bytes, manifest: Manifest) -> Genesis:
    """Read and check a published genesis.

    Raises:
        ProtocolViolation: it is malformed, of another run, or not signed by the run's organiser.
    """
    try:
        genesis = _parsed(content)
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise ProtocolViolation(f"a genesis record is malformed: {error!r}") from error
    if genesis.fingerprint != manifest.fingerprint():
        raise ProtocolViolation(f"a genesis record is of run {genesis.fingerprint[:12]}, not {manifest.fingerprint()[:12]}")
    if peer_id_of(genesis.organiser_key) != manifest.organiser:
        raise ProtocolViolation(
            f"a genesis record is signed by {peer_id_of(genesis.organiser_key)}, not by the organiser {manifest.organiser}"
        )
    if not verify(genesis.organiser_key, genesis.signed_bytes(), genesis.signature):
        raise ProtocolViolation("a genesis record's signature does not hold")
    if not is_peer_id(genesis.founder):
        raise ProtocolViolation(f"a genesis record names {genesis.founder!r}, which is no peer id")
    return genesis


def _parsed(content: bytes) -> Genesis:
    if len(content) > GENESIS_SIZE_BYTES_MAX:
        raise ValueError(f"{len(content)} bytes, at most {GENESIS_SIZE_BYTES_MAX} expected")
    values = json.loads(content)
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise TypeError("an object of texts is expected")
    return Genesis(
        values["fingerprint"],
        values["founder"],
        base64.b64decode(values["organiser_key"], validate=True),
        base64.b64decode(values["signature"], validate=True),
    )


def _canonical(values: dict[str, str]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
