"""The RPCs: which request and response of `protocol.messages` travel in which, in what shape, and
their bytes.

The table below is the one place where a message meets an RPC; the shape is read from the service in
`proto/swarmfree/v1/swarm.proto`. Nothing here touches the network.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf.message import DecodeError, Message

from swarmfree.protocol import messages as says
from swarmfree.protocol.messages import Header, Request, Response
from swarmfree.wire.codec import from_proto, to_proto, value_codec
from swarmfree.wire.frames import Malformed
from swarmfree.wire.v1 import messages_pb2, swarm_pb2

HEADER_BYTES_MAX = 2048
HEADER_TAG = 1 << 3 | 2
HEADER_PREFIX_BYTES = 4
SERVICE = swarm_pb2.DESCRIPTOR.services_by_name["Swarm"]


class CallShape(enum.Enum):
    """How a call looks on the wire; see the service's comment in swarm.proto."""

    UNARY = "one request, one response"
    WATCHED = "one request, frames back"
    FRAMED = "frames both ways"


@dataclass(frozen=True, slots=True)
class Rpc:
    """One RPC.

    Args:
        name: as in the service.
        request: its request.
        response: its response, or the union of them.
        shape: how it travels.
    """

    name: str
    request: type[Any]
    response: Any
    shape: CallShape

    @property
    def path(self) -> str:
        """What gRPC calls it."""
        return f"/{SERVICE.full_name}/{self.name}"

    @property
    def request_message(self) -> type[Message]:
        """Generated class of the request."""
        return cast("type[Message]", getattr(messages_pb2, f"{self.name}Request"))

    @property
    def response_message(self) -> type[Message]:
        """Generated class of the response."""
        return cast("type[Message]", getattr(messages_pb2, f"{self.name}Response"))

    @property
    def request_has_payload(self) -> bool:
        """Bytes may follow the request."""
        return "payload" in self.request_message.DESCRIPTOR.fields_by_name

    @property
    def response_has_payload(self) -> bool:
        """Bytes may follow the response."""
        return "payload" in self.response_message.DESCRIPTOR.fields_by_name


def _shape_of(name: str) -> CallShape:
    method = SERVICE.methods_by_name[name]
    if method.client_streaming:
        return CallShape.FRAMED
    return CallShape.WATCHED if method.server_streaming else CallShape.UNARY


_TABLE: tuple[tuple[str, type[Any], Any], ...] = (
    ("Hello", says.Hello, says.Place),
    ("Build", says.Build, says.Built),
    ("Prepare", says.Prepare, says.Prepared),
    ("Claim", says.Claim, says.Promise),
    ("Open", says.Open, says.Promise),
    ("Heartbeat", says.Heartbeat, says.HeartbeatAnswer),
    ("Redo", says.Redo, says.Redone),
    ("Roll", says.TakeRoll, says.Report | says.OtherPartialSums | says.RoundFailed),
    ("Seal", says.Seal, says.Sealed),
    ("Commit", says.Commit, says.Committed),
    ("Train", says.Train, says.Trained),
    ("Loss", says.Loss, says.LossAnswer),
    ("Pull", says.Pull, says.Pulled),
    ("Reduce", says.Reduce, says.Reduced),
    ("GetAverage", says.GetAverage, says.Average),
    ("GetState", says.GetState, says.State),
    ("GetShadow", says.GetShadow, says.ShadowPart),
    ("GetRecord", says.GetRecord, says.RecordAnswer),
    ("GetPlan", says.GetPlan, says.PlanAnswer),
    ("GetManifest", says.GetManifest, says.ManifestAnswer),
    ("Goodbye", says.Goodbye, says.Farewell),
    ("Meet", says.Meet, says.Met),
    ("GetAccount", says.GetAccount, says.Account),
    ("Audit", says.Audit, says.AuditAnswer),
    ("GetContribution", says.GetContribution, says.ContributionAnswer),
)
RPCS: tuple[Rpc, ...] = tuple(Rpc(name, request, response, _shape_of(name)) for name, request, response in _TABLE)
_BY_REQUEST = {rpc.request: rpc for rpc in RPCS}


def rpc_of(request: Request) -> Rpc:
    """The RPC that carries this request."""
    return _BY_REQUEST[type(request)]


def encode_request(rpc: Rpc, header: Header, request: Request, payload_size_bytes: int = 0, *, waits: bool = False) -> bytes:
    """Header, request and the size of the payload that follows, as bytes; `waits` where it follows
    only when asked for.
    """
    message: Any = rpc.request_message()
    to_proto(header, message.header)
    to_proto(request, message)
    _announce(message, payload_size_bytes)
    if waits and payload_size_bytes:
        message.payload.waits = True
    return cast("bytes", message.SerializeToString())


def encode_response(rpc: Rpc, response: Response, payload_size_bytes: int = 0) -> bytes:
    """Response and the size of the payload that follows, as bytes."""
    message: Any = rpc.response_message()
    value_codec(rpc.response, message.DESCRIPTOR).write(response, message)
    _announce(message, payload_size_bytes)
    return cast("bytes", message.SerializeToString())


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request whose header has been read and whose content has not, so that a wrong header is
    refused whatever the content is.

    Args:
        rpc: which RPC.
        header: who asks whom.
        message: all of it.
        payload_size_bytes: how many bytes follow.
        waits: they follow only when asked for.
    """

    rpc: Rpc
    header: Header
    message: Message
    payload_size_bytes: int
    waits: bool

    def content(self) -> Request:
        """The request itself.

        Raises:
            Malformed: it is none.
        """
        return cast("Request", from_proto(self.rpc.request, self.message))


def decode_header(rpc: Rpc, data: bytes | memoryview, size_bytes_max: int = HEADER_BYTES_MAX) -> Header:
    """The header with which a request begins; nothing behind it is looked at.

    Raises:
        Malformed: there is none, it is too long, or it is not whole.
    """
    name = f"{rpc.request_message.DESCRIPTOR.full_name}.header"
    begin = memoryview(data)[: size_bytes_max + HEADER_PREFIX_BYTES]
    if not begin or begin[0] != HEADER_TAG:
        raise Malformed(f"{name} is absent, or is not the first field")
    size_bytes, start, shift = 0, 1, 0
    while start < min(len(begin), HEADER_PREFIX_BYTES):
        size_bytes |= (begin[start] & 127) << shift
        start, shift = start + 1, shift + 7
        if begin[start - 1] < 128:
            break
    if size_bytes > size_bytes_max:
        raise Malformed(f"{name} of {size_bytes:,} bytes; at most {size_bytes_max:,} are taken")
    return from_proto(Header, _parse(messages_pb2.Header, begin[start : start + size_bytes]))


def decode_request(rpc: Rpc, data: bytes | memoryview, size_bytes_max: int = HEADER_BYTES_MAX) -> ReceivedRequest:
    """Read a request's header, and what frames it.

    Raises:
        Malformed: the bytes are no such message or the header is not whole.
    """
    header = decode_header(rpc, data, size_bytes_max)
    message: Any = _parse(rpc.request_message, data)
    if not rpc.request_has_payload:
        return ReceivedRequest(rpc, header, message, 0, waits=False)
    return ReceivedRequest(rpc, header, message, message.payload.size_bytes, waits=message.payload.waits)


def decode_response(rpc: Rpc, data: bytes | memoryview) -> tuple[Response, int]:
    """A response and the size of the payload that follows it.

    Raises:
        Malformed: the bytes are no such response.
    """
    message: Any = _parse(rpc.response_message, data)
    response = value_codec(rpc.response, message.DESCRIPTOR).read(message)
    return response, message.payload.size_bytes if rpc.response_has_payload else 0


def _announce(message: Any, payload_size_bytes: int) -> None:
    if payload_size_bytes:
        assert "payload" in message.DESCRIPTOR.fields_by_name, f"{message.DESCRIPTOR.name} has no payload"
        message.payload.size_bytes = payload_size_bytes


def _parse(kind: type[Message], data: bytes | memoryview) -> Message:
    try:
        return kind.FromString(data)  # type: ignore[arg-type]  # memoryview works and saves a copy
    except DecodeError as error:
        raise Malformed(f"{len(data):,} bytes that are no {kind.DESCRIPTOR.full_name}") from error
