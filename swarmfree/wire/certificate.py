"""Certificates: what a peer shows when a connection is made, and who is proven by what another one
shows.

Each life of a peer draws a key for its connections. Its certificate carries the libp2p extension:
the peer's public key, by which its peer id follows, and that key's signature over the connection's
key. TLS proves that whoever shows a certificate has its key, so the extension proves which peer is
at the other end. A second extension, our own, shows the peer's ticket, which proves itself
(`ticket`); nothing else in a certificate is believed. Nothing here talks to the network.

Source: libp2p specification, TLS handshake.

Differs: libp2p's certificates are signed by themselves. gRPC in Python takes only a caller whose
certificate comes from an authority that the server knows beforehand, so that all of ours come from
the *open authority*, whose key anybody can compute: it satisfies that check and proves nothing.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import hashlib
import secrets
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from swarmfree.wire.base58 import base58_decode
from swarmfree.wire.frames import Malformed
from swarmfree.wire.identity import Identity, peer_id_of, public_key_from_message, public_key_message, verify

EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
TICKET_EXTENSION = x509.ObjectIdentifier("2.25.306104195894886642893799344648218016398")
"""Below the arc of UUIDs, which nobody has to give: that of `swarmfree ticket` (version 5, as a
URL).
"""
PURPOSE = b"libp2p-tls-handshake:"
SERVER_NAME = "peer.swarmfree"
"""A name that all certificates bear, and that callers ask for: names are for gRPC, peers are told
apart by the extension. Each certificate bears its peer's own as well, for relays to go by.
"""
RELAY_NAME = "relay.swarmfree"
"""What is asked for at a relay by who wants the relay itself; no peer bears it."""
OPEN_AUTHORITY = "swarmfree open authority"
TLS_VERSION = "TLSv1.3"
_CURVE = ec.SECP256R1()
_BEFORE = dt.timedelta(days=1)
_AFTER = dt.timedelta(days=3650)
"""A life may last long, and its key dies with it; clocks may be wrong by a day."""
_DER_SEQUENCE, _DER_OCTETS = 0x30, 0x04
_PROVEN_MAX = 1024
PEM_BYTES_MAX = 4096
"""Ours have some 1,700 with a ticket; what is looked at is kept, so that it is bounded."""
_UNREADABLE = (x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A peer's certificate in one life, with its private key.

    Args:
        pem: the certificate.
        key_pem: the private key that belongs to it; it lies in memory only.
    """

    pem: bytes
    key_pem: bytes = field(repr=False)

    def server_credentials(self) -> grpc.ServerCredentials:
        """To be called by: callers without a certificate, or without the key that belongs to
        theirs, get no connection.
        """
        return grpc.ssl_server_credentials(
            [(self.key_pem, self.pem)], root_certificates=_authority_pem(), require_client_auth=True
        )

    def channel_credentials(self, pinned: bytes) -> grpc.ChannelCredentials:
        """To call whoever shows exactly the certificate `pinned`."""
        return grpc.ssl_channel_credentials(pinned, self.key_pem, self.pem)

    def relay_context(self, *, is_server: bool) -> ssl.SSLContext:
        """For control connections of relays, which are not gRPC's. Callers prove themselves as to
        gRPC; whoever calls looks at the other end's certificate itself.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if is_server:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=_authority_pem().decode())
        else:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        # Python reads keys from files alone: this one is worth nothing without a password that
        # nobody else ever has.
        password = secrets.token_bytes(32).hex().encode()
        key = serialization.load_pem_private_key(self.key_pem, None)
        encryption = serialization.BestAvailableEncryption(password)
        locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        with tempfile.NamedTemporaryFile() as file:
            file.write(self.pem + locked)
            file.flush()
            context.load_cert_chain(file.name, password=password)
        return context


@functools.lru_cache(maxsize=_PROVEN_MAX)
def server_name_of(peer_id: str) -> str:
    """The name by which a peer is asked for at a relay: base32 of its multihash, since the letters
    of base58 are not those of a DNS name.
    """
    return f"{base64.b32encode(base58_decode(peer_id)).decode().rstrip('=').lower()}.{SERVER_NAME}"


@dataclass(frozen=True, slots=True)
class ProvenPeer:
    """What a certificate proves, and what it shows besides.

    Args:
        peer_id: who vouches for the certificate's key.
        ticket: bytes of the ticket that it shows, not looked at yet; empty for none.
    """

    peer_id: str
    ticket: bytes = b""


@dataclass(frozen=True, slots=True)
class SignedKey:
    """A connection's key, and the peer that vouches for it.

    Args:
        key: DER SubjectPublicKeyInfo.
        message: the peer's `PublicKey` protobuf.
        signature: by the peer's key, over `PURPOSE` and `key`.
    """

    key: bytes
    message: bytes
    signature: bytes

    def peer_id(self) -> str:
        """The peer that vouches for the key.

        Raises:
            Malformed: it does not.
            ValueError, UnsupportedAlgorithm: its own key cannot be read.
        """
        public_key, peer_id = public_key_from_message(self.message), self.named()
        if not verify(public_key, PURPOSE + self.key, self.signature):
            raise Malformed(f"a certificate with another's key in it: peer {peer_id} has not signed it")
        return peer_id

    def named(self) -> str:
        """The peer whose key is in it, which may not have signed anything.

        Raises:
            ValueError: there is no key of a peer in it.
        """
        return peer_id_of(public_key_from_message(self.message))

    def to_bytes(self) -> bytes:
        """A DER sequence of three octet strings: message, signature and key."""
        return _der(_DER_SEQUENCE, b"".join(map(_octets, (self.message, self.signature, self.key))))


def read_signed_key(data: bytes) -> tuple[SignedKey, bytes]:
    """Inverse of `SignedKey.to_bytes`, and what stands behind it.

    Raises:
        ValueError: it does not begin with one.
    """
    content, rest = _take(_DER_SEQUENCE, data)
    message, following = _take(_DER_OCTETS, content)
    signature, following = _take(_DER_OCTETS, following)
    key, end = _take(_DER_OCTETS, following)
    if end:
        raise ValueError("it is no signed key")
    return SignedKey(key, message, signature), rest


def signed_key_of(certificate: Certificate) -> SignedKey:
    """What vouches for the key of a certificate that `make_certificate` has made."""
    shown = x509.load_pem_x509_certificate(certificate.pem)
    signed = _extension(shown, EXTENSION)
    assert signed is not None, "ours has it"
    return SignedKey(_public_bytes(shown.public_key()), *_signed_key(signed))


def make_certificate(identity: Identity, ticket: bytes = b"") -> Certificate:
    """Draw a key, have the identity vouch for it, and show a ticket; empty for none."""
    key = ec.generate_private_key(_CURVE)
    signature = identity.sign(PURPOSE + _public_bytes(key.public_key()))
    signed_key = _octets(public_key_message(identity.public_key)) + _octets(signature)
    extension = x509.UnrecognizedExtension(EXTENSION, _der(_DER_SEQUENCE, signed_key))
    names = x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME), x509.DNSName(server_name_of(identity.peer_id))])
    builder = _builder(identity.peer_id, key.public_key()).add_extension(extension, critical=False)
    if ticket:
        builder = builder.add_extension(x509.UnrecognizedExtension(TICKET_EXTENSION, _octets(ticket)), critical=False)
    made = builder.add_extension(names, critical=False).sign(_authority_key(), hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(made.public_bytes(serialization.Encoding.PEM), private)


@functools.lru_cache(maxsize=_PROVEN_MAX)
def proven_peer(pem: bytes) -> ProvenPeer:
    """The peer that vouches for this certificate's key; looked at once, however often it is shown.

    Raises:
        Malformed: one sentence on why it proves nobody.
    """
    if len(pem) > PEM_BYTES_MAX:
        raise Malformed(f"a certificate of {len(pem):,} bytes in PEM; at most {PEM_BYTES_MAX:,} expected")
    try:
        shown = x509.load_pem_x509_certificate(pem)
        key = _public_bytes(shown.public_key())
        now = dt.datetime.now(dt.UTC)
        if not shown.not_valid_before_utc <= now <= shown.not_valid_after_utc:
            raise Malformed(f"a certificate that holds from {shown.not_valid_before_utc} to {shown.not_valid_after_utc} only")
        signed = _extension(shown, EXTENSION)
        if signed is None:
            raise Malformed("a certificate without the libp2p extension: it names no peer")
        vouched = SignedKey(key, *_signed_key(signed))
        peer_id = vouched.peer_id()
        ticket = _extension(shown, TICKET_EXTENSION)
        shown_ticket = b"" if ticket is None else _only_octets(ticket)
    except (ValueError, TypeError, UnsupportedAlgorithm, *_UNREADABLE) as error:
        raise Malformed(f"a certificate that cannot be read: {error}") from error
    return ProvenPeer(peer_id, shown_ticket)


def proven_caller(context: Mapping[str, Iterable[bytes]]) -> ProvenPeer:
    """The peer at the other end of a connection, from what gRPC knows about that (`auth_context`).

    Raises:
        Malformed: nobody is proven.
    """
    version, pem = (next(iter(context.get(key, ())), b"") for key in ("ssl_tls_version", "x509_pem_cert"))
    if version != TLS_VERSION.encode():
        raise Malformed(f"a call over {version.decode(errors='replace') or 'no TLS'}; {TLS_VERSION} is expected")
    return proven_peer(pem)


@functools.cache
def _authority_key() -> ec.EllipticCurvePrivateKey:
    """The open authority's, which everybody computes; half of 2^256 is below the order of the
    curve.
    """
    return ec.derive_private_key(int.from_bytes(hashlib.sha256(OPEN_AUTHORITY.encode()).digest(), "big") >> 1, _CURVE)


def _authority_pem() -> bytes:
    key = _authority_key()
    builder = _builder(OPEN_AUTHORITY, key.public_key())
    made = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def _builder(subject: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return x509.CertificateBuilder(
        issuer_name=_named(OPEN_AUTHORITY),
        subject_name=_named(subject),
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BEFORE,
        not_valid_after=now + _AFTER,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _public_bytes(key: object) -> bytes:
    """SubjectPublicKeyInfo of a certificate's key."""
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("its key is of another kind than ours")
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _octets(content: bytes) -> bytes:
    return _der(_DER_OCTETS, content)


def _signed_key(data: bytes) -> tuple[bytes, bytes]:
    """Public key message and signature of the extension; ValueError for what is no sequence of two
    octet strings and nothing else.
    """
    content, rest = _take(_DER_SEQUENCE, data)
    message, following = _take(_DER_OCTETS, content)
    signature, end = _take(_DER_OCTETS, following)
    if rest or end:
        raise ValueError("its extension has something behind its end")
    return message, signature


def _extension(certificate: x509.Certificate, name: x509.ObjectIdentifier) -> bytes | None:
    """Content of an extension that the library does not know; None where there is none."""
    try:
        found = certificate.extensions.get_extension_for_oid(name).value
    except x509.ExtensionNotFound:
        return None
    assert isinstance(found, x509.UnrecognizedExtension), "the library knows no such extension"
    return found.value


def _only_octets(data: bytes) -> bytes:
    """Content of one octet string, with nothing behind it."""
    content, rest = _take(_DER_OCTETS, data)
    if rest:
        raise ValueError("its ticket has something behind its end")
    return content


def _take(tag: int, data: bytes) -> tuple[bytes, bytes]:
    """The first value in `data`, which has this tag, and what follows it."""
    start = 2 + (data[1] & 0x7F if len(data) > 1 and data[1] & 0x80 else 0)
    size = int.from_bytes(data[2:start], "big") if start > 2 else data[1] if len(data) > 1 else 0
    if len(data) < start + size or data[0] != tag:
        raise ValueError("its extension is no signed key")
    return data[start : start + size], data[start + size :]
