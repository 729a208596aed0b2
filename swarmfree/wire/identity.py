"""Who a peer is: an RSA-2048 key in its folder, and the libp2p peer id that follows from its public
half.

The file is a libp2p `PrivateKey` protobuf, as p2pd reads it, so that one key names the peer in the
directory, signs its records and signs genesis. RSA because hivemind's record validators know no
other kind. Nothing here talks to the network.

Source: libp2p specification, peer-ids (keys, peer ids); facts of hivemind 1.1.12.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from swarmfree.protocol.errors import ConfigError
from swarmfree.wire.base58 import base58_decode, base58_encode

IDENTITY_FILE = "identity.key"
LIFE_FILE = "life"
KEY_SIZE_BITS = 2048
PUBLIC_EXPONENT = 65537
_FILE_SIZE_BYTES_MAX = 1 << 14
_PEER_ID_LETTERS_MAX = 64
# Protobuf of both libp2p key messages: field 1 (key type, varint) = 0 for RSA, then field 2 (bytes)
# with its length as a varint.
_RSA_KEY_HEADER = b"\x08\x00\x12"
_SHA256_MULTIHASH = b"\x12\x20"
_IDENTITY_MULTIHASH = b"\x00\x24"


@dataclass(frozen=True, slots=True)
class Identity:
    """A peer's key pair.

    Args:
        peer_id: libp2p peer id, base58.
        public_key: DER SubjectPublicKeyInfo; what `verify` and `peer_id_of` take.
        path: where the private half lies; p2pd reads it from there.
        private_key: the private half.
    """

    peer_id: str
    public_key: bytes
    path: str
    private_key: rsa.RSAPrivateKey = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """RSA PKCS#1 v1.5 signature over SHA-256 of `data`, 256 bytes; the same bytes every
        time.
        """
        return self.private_key.sign(data, padding.PKCS1v15(), hashes.SHA256())


def load_or_create_identity(folder: str | Path) -> Identity:
    """The identity kept in `folder`; it is drawn and written (mode 0600, whole or not at all) where
    there is none.

    Raises:
        ConfigError: the folder cannot be used, or the file is damaged or is no RSA key of 2048
            bits.
    """
    path = Path(folder) / IDENTITY_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_new_key(path, _file_bytes(rsa.generate_private_key(public_exponent=PUBLIC_EXPONENT, key_size=KEY_SIZE_BITS)))
        elif path.stat().st_mode & 0o077:
            path.chmod(0o600)
        with path.open("rb") as file:
            content = file.read(_FILE_SIZE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"identity file {path}: {error.strerror or error}; name another folder with --folder") from error
    try:
        key = _read_file_bytes(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"identity file {path} is damaged ({error}): put back a copy of it, or delete it and be a new peer"
        ) from error
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Identity(peer_id_of(public), public, str(path.absolute()), key)


def peer_id_of(public_key: bytes) -> str:
    """The libp2p peer id of an RSA public key (DER SubjectPublicKeyInfo): base58 of the SHA-256
    multihash of its protobuf.
    """
    return base58_encode(_SHA256_MULTIHASH + hashlib.sha256(public_key_message(public_key)).digest())


def public_key_message(public_key: bytes) -> bytes:
    """The libp2p `PublicKey` protobuf of an RSA public key (DER SubjectPublicKeyInfo)."""
    return _RSA_KEY_HEADER + _varint(len(public_key)) + public_key


def public_key_from_message(message: bytes) -> bytes:
    """The RSA public key (DER SubjectPublicKeyInfo) in a libp2p `PublicKey` protobuf.

    Raises:
        ValueError: it is none, or of another kind or size than ours.
    """
    public_key = _read_key_message(message)
    key = serialization.load_der_public_key(public_key)
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size != KEY_SIZE_BITS:
        raise ValueError(f"an RSA key of {KEY_SIZE_BITS} bits is expected")
    if key.public_numbers().e != PUBLIC_EXPONENT:
        raise ValueError(f"a key with exponent {PUBLIC_EXPONENT} is expected: a larger one takes longer to check")
    return public_key


def peer_id_of_ssh(public_key: bytes) -> str:
    """The libp2p peer id of an RSA public key in OpenSSH form (``ssh-rsa AAAA...``), as hivemind
    writes owners.

    Raises:
        ValueError: it is no RSA key of 2048 bits, or is written otherwise, as with a comment: one
            owner would have many names.
    """
    try:
        key = serialization.load_ssh_public_key(public_key)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size != KEY_SIZE_BITS:
        raise ValueError(f"an RSA key of {KEY_SIZE_BITS} bits is expected")
    if key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) != public_key:
        raise ValueError("an RSA key alone is expected, as OpenSSH writes it")
    return peer_id_of(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))


def verify(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` was made by `Identity.sign` over `data` with the private half of
    `public_key`; False for what is no key.
    """
    try:
        key = serialization.load_der_public_key(public_key)
        if not isinstance(key, rsa.RSAPublicKey):
            return False
        key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


def is_peer_id(text: str) -> bool:
    """Whether `text` is a libp2p peer id in base58: a SHA-256 multihash, or an Ed25519 key carried
    whole.
    """
    if len(text) > _PEER_ID_LETTERS_MAX:
        return False
    try:
        data = base58_decode(text)
    except ValueError:
        return False
    return (len(data) == 34 and data.startswith(_SHA256_MULTIHASH)) or (len(data) == 38 and data.startswith(_IDENTITY_MULTIHASH))


def draw_incarnation(token_hex: Callable[[int], str], life_number: int = 0) -> str:
    """One life's name, 16 hex digits: the number of the life, so that later ones sort after it,
    then eight that are drawn.

    Args:
        token_hex: source of randomness, given how many bytes: `secrets.token_hex` in a real
            process.
        life_number: see `next_life_number`; 0 for whoever never is a member.
    """
    incarnation = f"{life_number:08x}{token_hex(4)}"
    assert len(incarnation) == 16, "the source of randomness gives two hex digits per byte"
    return incarnation


def next_life_number(folder: str, wall_s: float) -> int:
    """A number above that of every earlier life in this folder: Unix seconds, or one more than last
    time where the clock was set back.

    Raises:
        ConfigError: the folder cannot be written.
    """
    path = Path(folder) / LIFE_FILE
    try:
        told = path.read_text(encoding="ascii").strip() if path.exists() else ""
        number = max(int(wall_s), int(told) + 1 if told.isdecimal() else 0)
        draft = path.with_suffix(".new")
        draft.write_text(f"{number}\n", encoding="ascii")
        draft.replace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the number of this life cannot be kept ({error})") from error
    return number


def write_new_key(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet; where another process was faster, its file stays."""
    descriptor, draft = tempfile.mkstemp(prefix=".identity-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        Path(draft).unlink()


def _file_bytes(key: rsa.RSAPrivateKey) -> bytes:
    data = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return _RSA_KEY_HEADER + _varint(len(data)) + data


def _read_file_bytes(content: bytes) -> rsa.RSAPrivateKey:
    # OpenSSL checks for 50 ms, mostly whether both primes are prime: no damage changes that alone
    key = serialization.load_der_private_key(_read_key_message(content), password=None, unsafe_skip_rsa_key_validation=True)
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size != KEY_SIZE_BITS:
        raise ValueError(f"an RSA key of {KEY_SIZE_BITS} bits is expected")
    if not _belongs_together(key.private_numbers()):
        raise ValueError("its numbers do not belong together")
    return key


def _belongs_together(key: rsa.RSAPrivateNumbers) -> bool:
    """Whether the numbers of an RSA key follow from its two primes (RFC 8017, section 3.2)."""
    return (
        min(key.p, key.q) > 1
        and key.p * key.q == key.public_numbers.n
        and all(key.d * key.public_numbers.e % (prime - 1) == 1 for prime in (key.p, key.q))
        and (key.dmp1, key.dmq1) == (key.d % (key.p - 1), key.d % (key.q - 1))
        and key.iqmp * key.q % key.p == 1
    )


def _read_key_message(message: bytes) -> bytes:
    if not message.startswith(_RSA_KEY_HEADER):
        raise ValueError("it does not begin like a libp2p RSA key")
    length, start = _read_varint(message, len(_RSA_KEY_HEADER))
    if len(message) - start != length:
        raise ValueError(f"{length} bytes of key expected, {len(message) - start} found")
    return message[start:]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    number = 0
    for index in range(start, min(start + 5, len(data))):
        number |= (data[index] & 0x7F) << 7 * (index - start)
        if data[index] < 0x80:
            return number, index + 1
    raise ValueError("it is cut off")
