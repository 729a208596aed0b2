"""The organiser's key: an Ed25519 key in a file of its own, which signs tickets and ban lists, and
may stay off all machines of the run.

The peer id of such a key holds the public half whole, so that whoever has the manifest, which names
it, needs nothing else to check a signature. Nothing here talks to the network.

Source: libp2p specification, peer-ids (keys, peer ids).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.base58 import base58_decode, base58_encode
from swarmfree.wire.identity import write_new_key

ORGANISER_FILE = "organiser.key"
KEY_SIZE_BYTES = 32
SIGNATURE_SIZE_BYTES = 64
# Protobuf of both libp2p key messages: field 1 (key type, varint) = 1 for Ed25519, then field 2
# (bytes) with its length.
_PRIVATE_HEADER = b"\x08\x01\x12\x40"
_FILE_SIZE_BYTES = len(_PRIVATE_HEADER) + 2 * KEY_SIZE_BYTES
_PEER_ID_HEADER = b"\x00\x24\x08\x01\x12\x20"
_MOVE_IT = "it is the file that `swarmfree bootstrap` wrote when the run was made"


@dataclass(frozen=True, slots=True)
class OrganiserKey:
    """The key of who made a run.

    Args:
        peer_id: libp2p peer id, base58; holds the public half.
        private_key: the private half.
    """

    peer_id: str
    private_key: Ed25519PrivateKey = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature, 64 bytes; the same bytes every time."""
        return self.private_key.sign(data)


def draw_organiser() -> OrganiserKey:
    """A new key, in memory."""
    return _of(Ed25519PrivateKey.generate())


def load_organiser(path: str | Path) -> OrganiserKey:
    """The key in a file.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_FILE_SIZE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"organiser's key {path}: {error.strerror or error}; {_MOVE_IT}") from error
    if len(content) != _FILE_SIZE_BYTES or not content.startswith(_PRIVATE_HEADER):
        raise ConfigError(f"organiser's key {path}: no Ed25519 key; {_MOVE_IT}")
    start = len(_PRIVATE_HEADER)
    key = _of(Ed25519PrivateKey.from_private_bytes(content[start : start + KEY_SIZE_BYTES]))
    if content != _file_bytes(key):
        raise ConfigError(f"organiser's key {path}: it is damaged, its halves do not fit; put back a copy of it")
    return key


def create_organiser(path: str | Path) -> OrganiserKey:
    """Draw a key and write it (mode 0600, whole or not at all); where there is one, take that.

    Raises:
        ConfigError: the file cannot be written, or is damaged.
    """
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_new_key(file, _file_bytes(draw_organiser()))
    except OSError as error:
        raise ConfigError(f"organiser's key {path}: {error.strerror or error}; name another file with --organiser") from error
    return load_organiser(file)


def is_signed(peer_id: str, data: bytes, signature: bytes) -> bool:
    """Whether the organiser with this peer id has signed `data`; False for what is no such peer
    id.
    """
    try:
        named = base58_decode(peer_id)
    except ValueError:
        return False
    if not named.startswith(_PEER_ID_HEADER) or len(named) != len(_PEER_ID_HEADER) + KEY_SIZE_BYTES:
        return False
    return is_signed_by_key(named[len(_PEER_ID_HEADER) :], data, signature)


def is_signed_by_key(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` over `data` was made with the private half of an Ed25519 key."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (ValueError, InvalidSignature):
        return False
    return True


def _of(key: Ed25519PrivateKey) -> OrganiserKey:
    return OrganiserKey(base58_encode(_PEER_ID_HEADER + key.public_key().public_bytes_raw()), key)


def _file_bytes(key: OrganiserKey) -> bytes:
    """A libp2p `PrivateKey` protobuf: the private half, then the public one."""
    return (
        _PRIVATE_HEADER
        + key.private_key.private_bytes(serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
        + key.private_key.public_key().public_bytes_raw()
    )
