"""What the network tests share: peers on loopback, handlers that do one thing, and raw gRPC ends
that misbehave.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from wire_samples import RESPONSES

from swarmfree.protocol import messages
from swarmfree.protocol.messages import Header, Request
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member, WorkKey, WorkKind
from swarmfree.protocol.ports import Handler, Incoming, Reply
from swarmfree.wire.addresses import address_of, parse_address
from swarmfree.wire.certificate import SERVER_NAME, make_certificate
from swarmfree.wire.codec_messages import RPCS, SERVICE, CallShape, encode_request, rpc_of
from swarmfree.wire.identity import KEY_SIZE_BITS, Identity, peer_id_of
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.server_certificate import find_peer

RUN = "ab" * 32
LIFE = "00000000000000aa"
KEY = WorkKey(3, "0123456789abcdef", WorkKind.TRAIN, 7, 2)
GRPC_LIMITS = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 24), ("grpc.max_send_message_length", 1 << 24)]
_ANSWERS = dict(reversed(RESPONSES.values()))


@functools.cache
def identity(name: str) -> Identity:
    """A peer's key, drawn when its name first comes up in this process."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_SIZE_BITS)
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Identity(peer_id_of(public), public, "", key)


def member(name: str, incarnation: str = LIFE) -> Member:
    """A member with a real peer id."""
    return Member(identity(name).peer_id, incarnation)


def network(name: str, run: str = RUN, **choices: Any) -> GrpcNetwork:
    """The network of a peer with this name."""
    return GrpcNetwork(run, identity(name), LIFE, **choices)


def endpoint(name: str, port: int) -> Endpoint:
    """A peer that is said to be at a port of this machine."""
    return Endpoint(member(name), (str(address_of("127.0.0.1", port, member(name).peer_id)),))


def train(there: Endpoint) -> messages.Train:
    """A request that may carry a payload up and down."""
    return messages.Train(KEY, 0, there)


def answer_to(request: Request) -> messages.Response:
    """The sample response of this request's RPC."""
    if isinstance(request, messages.GetState) and request.to_export:
        return RESPONSES["state_to_export"][1]
    return _ANSWERS[rpc_of(request).name]


async def echo(_header: Header, request: Request, incoming: Incoming) -> Reply:
    """Answer with the sample response, and send the payload back."""
    return Reply(answer_to(request), await incoming.read())


def give(payload: bytes) -> Handler:
    """Answer with the sample response and this payload; never read."""

    async def handler(_header: Header, request: Request, _incoming: Incoming) -> Reply:
        return Reply(answer_to(request), payload)

    return handler


def fail_with(error: Exception) -> Handler:
    """Raise this; never read."""

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        raise error

    return handler


@asynccontextmanager
async def peers(handler: Handler | None, limits: WireLimits | None = None) -> AsyncIterator[tuple[GrpcNetwork, GrpcNetwork]]:
    """A caller and a peer that serves `handler`, both closed at the end."""
    async with (
        network("caller", limits=limits) as caller,
        network("peer", limits=limits) as peer,
    ):
        if handler is not None:
            peer.serve(handler)
        yield caller, peer


RawBehaviour = Callable[[Any], Awaitable[Any]]


@asynccontextmanager
async def raw_peer(behaviour: RawBehaviour) -> AsyncIterator[Endpoint]:
    """A gRPC server that does `behaviour(context)` for every RPC, whatever it is asked."""

    async def unary(_data: bytes, context: Any) -> Any:
        return await behaviour(context)

    async def stream(_data: Any, context: Any) -> None:
        await behaviour(context)

    make: dict[CallShape, Callable[[], Any]] = {
        CallShape.UNARY: lambda: grpc.unary_unary_rpc_method_handler(unary),
        CallShape.WATCHED: lambda: grpc.unary_stream_rpc_method_handler(stream),
        CallShape.FRAMED: lambda: grpc.stream_stream_rpc_method_handler(stream),
    }
    server = grpc.aio.server(options=GRPC_LIMITS)
    handlers = {rpc.name: make[rpc.shape]() for rpc in RPCS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    port = server.add_secure_port("127.0.0.1:0", make_certificate(identity("raw")).server_credentials())
    await server.start()
    try:
        yield endpoint("raw", port)
    finally:
        await server.stop(0)


@asynccontextmanager
async def raw_channel(there: Endpoint) -> AsyncIterator[Any]:
    """A gRPC channel of the peer "caller" to another one, to say what no correct peer says."""
    found = await find_peer([parse_address(there.addresses[0])], 5)
    credentials = make_certificate(identity("caller")).channel_credentials(found.certificate)
    options = [*GRPC_LIMITS, ("grpc.ssl_target_name_override", SERVER_NAME)]
    async with grpc.aio.secure_channel(found.address.grpc_target, credentials, options=options) as channel:
        yield channel


def train_request(caller: GrpcNetwork, peer: GrpcNetwork, size_bytes: int) -> bytes:
    """A good request that announces a payload."""
    header = Header(RUN, PROTOCOL_REVISION, caller.here, peer.here.member.incarnation)
    request = train(peer.here)
    return encode_request(rpc_of(request), header, request, size_bytes)
