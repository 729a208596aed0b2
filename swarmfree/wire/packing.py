"""Packing: the three messages that name every member to every member (Open, Seal, Commit) travel as
what has changed since the last ones.

The content of such a request is compressed (zstd) with what the receiver got last from this sender
as the dictionary: plans and records change little from one iteration to the next, so their weight
hardly grows with the swarm. The sender counts on what was acknowledged, the receiver keeps the last
few; where it lacks one, it says so, and the content comes once more, compressed alone. Bodies are
named by digest and nothing else is shared, so a lost answer or a restart costs one more request.
Nothing above the wire knows of this.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zstandard
from google.protobuf.message import DecodeError

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Header, Request
from swarmfree.protocol.names import Member
from swarmfree.wire.codec import from_proto, to_proto
from swarmfree.wire.codec_messages import ReceivedRequest, Rpc
from swarmfree.wire.frames import Malformed

PLAN, RECORD = "plan", "record"
SLOTS = {"Open": PLAN, "Seal": RECORD, "Commit": RECORD}
"""RPCs that are packed, and which earlier body each of them replaces as a dictionary."""
LEVEL = 3
DIGEST_BYTES = 8
DICTIONARIES_MAX = 2
"""Of one request: a plan and a record."""
BODIES_KEPT, SENDERS_KEPT, PACKED_KEPT, RECEIVERS_KEPT = 8, 8, 16, 4096
SENT_KEPT = 24
"""Bodies that somebody has got, of eight iterations: what others got before goes to them whole."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A request's content as it is before packing."""

    data: bytes
    digest: bytes

    @classmethod
    def of(cls, data: bytes) -> Unpacked:
        """These bytes."""
        return cls(data, hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest())


def is_packed(rpc: Rpc) -> bool:
    """Whether requests of this RPC travel packed."""
    return rpc.name in SLOTS


class Packer:
    """The sender's side."""

    def __init__(self) -> None:
        """Nobody has got anything."""
        self._acknowledged: OrderedDict[Member, dict[str, bytes]] = OrderedDict()  # digests, by slot
        self._sent: OrderedDict[bytes, Unpacked] = OrderedDict()
        self._packed: OrderedDict[tuple[bytes, ...], bytes] = OrderedDict()
        self._last: tuple[Request, Unpacked] | None = None

    def pack(self, rpc: Rpc, header: Header, request: Request, to: Member, *, alone: bool = False) -> tuple[bytes, Unpacked]:
        """The whole request as bytes, and the body to be acknowledged with `got`.

        Args:
            alone: without any dictionary.
        """
        body = self._body(rpc, request)
        known = {} if alone else self._acknowledged.get(to, {})
        against = [self._sent[known[slot]] for slot in (PLAN, RECORD) if known.get(slot) in self._sent]
        message: Any = rpc.request_message()
        to_proto(header, message.header)
        message.packed.body = self._compressed(body, against)
        message.packed.against.extend(known_body.digest for known_body in against)
        return bytes(message.SerializeToString()), body

    def got(self, rpc: Rpc, to: Member, body: Unpacked) -> None:
        """The receiver has this body. Who has ended keeps none alive: in a large swarm one names
        thousands.
        """
        self._sent[body.digest] = body
        self._sent.move_to_end(body.digest)
        if len(self._sent) > SENT_KEPT:
            self._sent.popitem(last=False)
        self._acknowledged.setdefault(to, {})[SLOTS[rpc.name]] = body.digest
        self._acknowledged.move_to_end(to)
        if len(self._acknowledged) > RECEIVERS_KEPT:
            self._acknowledged.popitem(last=False)

    @property
    def held_bytes(self) -> int:
        """Of bodies that others have got."""
        return sum(len(body.data) for body in self._sent.values())

    def _body(self, rpc: Rpc, request: Request) -> Unpacked:
        """One request goes to many: it is encoded once."""
        if self._last is None or self._last[0] is not request:
            message = rpc.request_message()
            to_proto(request, message)
            self._last = request, Unpacked.of(message.SerializeToString())
        return self._last[1]

    def _compressed(self, body: Unpacked, against: Sequence[Unpacked]) -> bytes:
        key = (body.digest, *(known.digest for known in against))
        found = self._packed.get(key)
        if found is None:
            compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=_dictionary(against), write_dict_id=False)
            found = self._packed[key] = compressor.compress(body.data)
            if len(self._packed) > PACKED_KEPT:
                self._packed.popitem(last=False)
        return found


class Unpacker:
    """The receiver's side.

    Args:
        body_bytes_max: larger ones are refused, however small they were packed.
    """

    def __init__(self, body_bytes_max: int) -> None:
        """Nothing has come."""
        self._body_bytes_max = body_bytes_max
        self._bodies: OrderedDict[Member, OrderedDict[bytes, bytes]] = OrderedDict()

    def content(self, received: ReceivedRequest) -> Request:
        """The request itself, packed or not.

        Raises:
            Malformed: it is none.
            Refused: `unknown_dictionary`, it was packed with something that is not here.
        """
        message: Any = received.message
        if not is_packed(received.rpc) or not message.HasField("packed"):
            return received.content()
        data = self._unpacked(received, bytes(message.packed.body), [bytes(digest) for digest in message.packed.against])
        try:
            whole = received.rpc.request_message.FromString(data)
        except DecodeError as error:
            raise Malformed(f"{len(data):,} packed bytes that are no {received.rpc.name}Request") from error
        request: Request = from_proto(received.rpc.request, whole)
        self._keep(received.header.sender.member, data)
        return request

    def _unpacked(self, received: ReceivedRequest, packed: bytes, against: Sequence[bytes]) -> bytes:
        if len(against) > DICTIONARIES_MAX:
            raise Malformed(f"a request packed with {len(against):,} others; at most {DICTIONARIES_MAX} are taken")
        bodies = self._bodies.get(received.header.sender.member, OrderedDict())
        if any(digest not in bodies for digest in against):
            raise Refused(RefusalKind.UNKNOWN_DICTIONARY, "this peer has not got what the request was packed with")
        dictionary = _dictionary([Unpacked(bodies[digest], digest) for digest in against])
        try:
            size_bytes = zstandard.frame_content_size(packed)
            if not 0 <= size_bytes <= self._body_bytes_max:
                raise Malformed(f"a packed request of {size_bytes:,} bytes; at most {self._body_bytes_max:,} are taken")
            return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(packed, max_output_size=self._body_bytes_max)
        except zstandard.ZstdError as error:
            raise Malformed(f"{len(packed):,} bytes that cannot be unpacked: {error}") from error

    def _keep(self, sender: Member, data: bytes) -> None:
        bodies = self._bodies.setdefault(sender, OrderedDict())
        self._bodies.move_to_end(sender)
        if len(self._bodies) > SENDERS_KEPT:
            self._bodies.popitem(last=False)
        body = Unpacked.of(data)
        bodies[body.digest] = data
        bodies.move_to_end(body.digest)
        if len(bodies) > BODIES_KEPT:
            bodies.popitem(last=False)
        # As much as one sender may fill: lives are free, and whoever calls may claim eight of them
        while self.held_bytes > BODIES_KEPT * self._body_bytes_max:
            oldest, others = next(iter(self._bodies.items()))
            others.popitem(last=False)
            if not others:
                del self._bodies[oldest]

    @property
    def held_bytes(self) -> int:
        """Of bodies that have come."""
        return sum(len(data) for bodies in self._bodies.values() for data in bodies.values())


def _dictionary(bodies: Sequence[Unpacked]) -> zstandard.ZstdCompressionDict | None:
    data = b"".join(body.data for body in bodies)
    return zstandard.ZstdCompressionDict(data, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if data else None
