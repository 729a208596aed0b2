"""An attacker, written from `docs/protocol.md`, the proto files and public libraries: of the peers
it uses what `proto/` generates alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import functools
import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from swarmfree.wire.v1 import messages_pb2, names_pb2, swarm_pb2

DER, PEM = serialization.Encoding.DER, serialization.Encoding.PEM
SPKI = serialization.PublicFormat.SubjectPublicKeyInfo
LETTERS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
TICKET = x509.ObjectIdentifier("2.25.306104195894886642893799344648218016398")
LIBP2P = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
AUTHORITY = "swarmfree open authority"
NAME = "peer.swarmfree"
OPTIONS = [("grpc.ssl_target_name_override", NAME), ("grpc.use_local_subchannel_pool", 1), ("grpc.so_reuseport", 0)]
DAY = dt.timedelta(days=1)


def sized(tag: int, content: bytes) -> bytes:
    """A DER value of less than 64 KiB, with the long form of its length."""
    return bytes((tag, 0x82)) + len(content).to_bytes(2, "big") + content


def public_message(key: rsa.RSAPrivateKey) -> bytes:
    """libp2p's PublicKey protobuf of an RSA key of 2048 bits: type 0, and 294 bytes."""
    public = key.public_key().public_bytes(DER, SPKI)
    assert len(public) == 294
    return b"\x08\x00\x12\xa6\x02" + public


def peer_id_of(key: rsa.RSAPrivateKey) -> str:
    """Base58 of the SHA-256 multihash of that protobuf."""
    return base58(b"\x12\x20" + hashlib.sha256(public_message(key)).digest())


def base58(data: bytes) -> str:
    """With a 1 for each zero in front."""
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = LETTERS[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


@functools.cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """A peer's key, one for each name."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def signed_key(identity: rsa.RSAPrivateKey, public: bytes) -> bytes:
    """Content of the extension: who vouches, and the signature over the connection's public key."""
    signature = identity.sign(b"libp2p-tls-handshake:" + public, padding.PKCS1v15(), hashes.SHA256())
    return sized(0x30, sized(0x04, public_message(identity)) + sized(0x04, signature))


@dataclass(frozen=True)
class Papers:
    """A certificate to be made: by default an honest one.

    Args:
        name: whose key vouches for it; empty = none is shown.
        own_issuer: it signs itself, instead of the open authority.
        extension: another content of the extension; empty = none at all.
        begins: of its validity, in days from now.
        ends: likewise.
        ticket: shown in it; empty = none.
        own_key: in place of the one that belongs to the name: that of a peer with a place.
    """

    name: str
    own_issuer: bool = False
    extension: bytes | None = None
    begins: int = -1
    ends: int = 1
    ticket: bytes = b""
    own_key: rsa.RSAPrivateKey | None = None
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def peer_id(self) -> str:
        """Who it says that it is."""
        return peer_id_of(self.identity)

    @property
    def identity(self) -> rsa.RSAPrivateKey:
        """What vouches for it."""
        return self.own_key or rsa_key(self.name)

    @property
    def private(self) -> bytes:
        """Its key, PEM."""
        return self.key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())

    @functools.cached_property
    def pem(self) -> bytes:
        """The certificate."""
        public = self.key.public_key().public_bytes(DER, SPKI)
        content = signed_key(self.identity, public) if self.extension is None else self.extension
        subject = common_name(self.peer_id)
        made = dated(
            subject, subject if self.own_issuer else common_name(AUTHORITY), self.key.public_key(), self.begins, self.ends
        )
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        if content:
            made = made.add_extension(x509.UnrecognizedExtension(LIBP2P, content), critical=False)
        if self.ticket:
            made = made.add_extension(x509.UnrecognizedExtension(TICKET, sized(0x04, self.ticket)), critical=False)
        return made.sign(self.key if self.own_issuer else open_authority(), hashes.SHA256()).public_bytes(PEM)

    def stolen_extension(self) -> bytes:
        """What stands in its extension, to be shown with another key."""
        shown = x509.load_pem_x509_certificate(self.pem).extensions.get_extension_for_oid(LIBP2P).value
        assert isinstance(shown, x509.UnrecognizedExtension)
        return shown.value


@dataclass(frozen=True)
class Organiser:
    """Who made a run: signs tickets and ban lists."""

    key: ed25519.Ed25519PrivateKey = field(default_factory=ed25519.Ed25519PrivateKey.generate)

    @property
    def peer_id(self) -> str:
        """Base58 of the identity multihash of libp2p's PublicKey protobuf: type 1, and 32 bytes."""
        return base58(b"\x00\x24\x08\x01\x12\x20" + self.key.public_key().public_bytes_raw())

    def ticket_of(self, run: str, name: str, expires_s: int, kinds: int = 1) -> bytes:
        """A ticket for the peer with this key."""
        holder = b"\x12\x20" + hashlib.sha256(public_message(rsa_key(name))).digest()
        said = bytes((1, kinds, 0, 0)) + expires_s.to_bytes(8, "big") + bytes((len(holder),)) + holder
        return said + self.key.sign(b"swarmfree ticket 1:" + bytes.fromhex(run) + said)

    def ticket_for(self, run: str, ticket_key: ed25519.Ed25519PrivateKey, expires_s: int, count: int = 0) -> bytes:
        """A ticket for whoever has this key."""
        said = bytes((1, 0)) + count.to_bytes(2, "big") + expires_s.to_bytes(8, "big")
        said += ticket_key.public_key().public_bytes_raw()
        return said + self.key.sign(b"swarmfree ticket 1:" + bytes.fromhex(run) + said)

    def ban_list(self, run: str, number: int, peers: list[str], tickets: list[str]) -> bytes:
        """A ban list as it is published."""
        said = {"fingerprint": run, "number": number, "peers": sorted(peers), "tickets": sorted(tickets)}
        signature = self.key.sign(canonical({**said, "purpose": "swarmfree bans 1"}))
        return canonical({**said, "signature": base64.b64encode(signature).decode()})


def canonical(values: dict[str, Any]) -> bytes:
    """JSON with sorted keys and without spaces."""
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def held(ticket: bytes, ticket_key: ed25519.Ed25519PrivateKey, name: str) -> bytes:
    """A ticket with the proof that the peer with this name had the ticket's key."""
    return ticket + ticket_key.sign(b"swarmfree ticket holder 1:" + peer_id_of(rsa_key(name)).encode())


def ticket_name(ticket: bytes) -> str:
    """What a ban list calls it: of what it says, without the signature."""
    size = 12 + (35 if ticket[1] & 1 else 32)
    return hashlib.sha256(ticket[:size]).hexdigest()[:16]


def common_name(name: str) -> x509.Name:
    """A name of a certificate."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def dated(subject: x509.Name, issuer: x509.Name, key: Any, begins: int, ends: int) -> x509.CertificateBuilder:
    """A certificate without extensions, that holds between two days from now."""
    now = dt.datetime.now(dt.UTC)
    return x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now + begins * DAY, now + ends * DAY)


def open_authority() -> ec.EllipticCurvePrivateKey:
    """The key that everybody has."""
    return ec.derive_private_key(int.from_bytes(hashlib.sha256(AUTHORITY.encode()).digest(), "big") >> 1, ec.SECP256R1())


def authority_pem() -> bytes:
    """Its certificate."""
    key, name = open_authority(), common_name(AUTHORITY)
    made = dated(name, name, key.public_key(), -1, 1).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return made.sign(key, hashes.SHA256()).public_bytes(PEM)


def port_of(address: str) -> int:
    """Of a multiaddr ``/ip4/HOST/tcp/PORT/p2p/PEER``."""
    return int(address.split("/")[4])


@contextlib.asynccontextmanager
async def dialled(address: str, papers: Papers | None, more: tuple[tuple[str, int], ...] = ()) -> AsyncIterator[Any]:
    """A channel to whoever is at an address; without papers it is plain text."""
    target = f"127.0.0.1:{port_of(address)}"
    if papers is None:
        channel = grpc.aio.insecure_channel(target, options=OPTIONS)
    else:
        answers = (await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port_of(address)))).encode()
        shown = (papers.private, papers.pem) if papers.name else ()
        channel = grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(answers, *shown), options=[*OPTIONS, *more])
    async with channel:
        yield channel


def header(run: str, revision: int, peer_id: str, addresses: tuple[str, ...] = ()) -> Any:
    """A request's header in anybody's name."""
    member = names_pb2.Member(peer_id=peer_id, incarnation="00000000000000aa")
    return messages_pb2.Header(run=run, revision=revision, sender=names_pb2.Endpoint(member=member, addresses=addresses))


async def get_plan(channel: Any, asked: Any) -> bytes:
    """Ask for the plan; the bytes of the answer."""
    data = messages_pb2.GetPlanRequest(header=asked).SerializeToString()
    return bytes(await channel.unary_unary("/swarmfree.v1.Swarm/GetPlan")(data, timeout=5))


async def say(channel: Any, rpc: str, request: Any) -> bytes:
    """Send any request, in the shape that the service gives its RPC; the bytes of the response,
    without what is streamed besides.
    """
    method = swarm_pb2.DESCRIPTOR.services_by_name["Swarm"].methods_by_name[rpc]
    path, data = f"/swarmfree.v1.Swarm/{rpc}", request.SerializeToString()
    if not method.server_streaming:
        return bytes(await channel.unary_unary(path)(data, timeout=20))
    if method.client_streaming:
        frames = channel.stream_stream(path)(iter([swarm_pb2.Frame(request=data).SerializeToString()]), timeout=20)
    else:
        frames = channel.unary_stream(path)(data, timeout=20)
    async for found in frames:
        if (frame := swarm_pb2.Frame.FromString(found)).HasField("response"):
            return bytes(frame.response)
    return b""


@contextlib.asynccontextmanager
async def listening(papers: Papers | None, asked: list[bytes], rpc: str = "GetPlan", says: bytes = b"") -> AsyncIterator[int]:
    """A server that keeps what it is asked, and says the same every time; its port. Without papers
    it speaks plain text.
    """

    async def answer(data: bytes, _context: Any) -> bytes:
        asked.append(data)
        return says

    handlers = {rpc: grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("swarmfree.v1.Swarm", handlers),))
    if papers is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        credentials = grpc.ssl_server_credentials([(papers.private, papers.pem)], authority_pem(), require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def old_tls(papers: Papers, folder: Path) -> AsyncIterator[int]:
    """A server with good papers that speaks TLS 1.2 at most; its port."""
    (folder / "key.pem").write_bytes(papers.private)
    (folder / "certificate.pem").write_bytes(papers.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def between(ports: Callable[[int], int]) -> AsyncIterator[int]:
    """A man in the middle: leads the nth connection to `ports(n)`, byte for byte; its port."""
    writers = list[asyncio.StreamWriter]()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        theirs, to_them = await asyncio.open_connection("127.0.0.1", ports(len(writers) - 1))
        with contextlib.suppress(ConnectionError):
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass_on(reader, to_them))
                group.create_task(_pass_on(theirs, writer))

    async with await asyncio.start_server(lead, "127.0.0.1") as server:
        yield server.sockets[0].getsockname()[1]
        server.close()
        for writer in writers:
            writer.close()  # from Python 3.12 on a server waits for those that it leads


@contextlib.asynccontextmanager
async def replaying(recorded: bytes) -> AsyncIterator[int]:
    """A server that answers every handshake with what another one once answered; its port."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(recorded)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1") as server:
        yield server.sockets[0].getsockname()[1]
        server.close()


async def record_handshake(port: int) -> bytes:
    """What a server says to a first greeting: its certificate and the proof that it has the key,
    for that one connection.
    """
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    greeting = context.wrap_bio(incoming, outgoing, server_hostname=NAME)
    with contextlib.suppress(ssl.SSLWantReadError):
        greeting.do_handshake()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(outgoing.read())
    said = await reader.read(1 << 16)
    writer.close()
    return said


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()
