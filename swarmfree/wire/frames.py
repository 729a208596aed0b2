"""Frames: how progress, messages and payloads share one gRPC stream without a protobuf object per
chunk.

A frame is one byte that says what it is, a length and that many bytes; the first chunk of a payload
may follow in the same message the request or response that announces it. The byte is chosen so that
the whole is exactly the protobuf message `Frame` of `proto/swarmfree/v1/swarm.proto`, which any
other implementation may read and write with generated code. Nothing here touches the network or
knows what a request means.

Payloads stay in the pieces they came in until somebody needs them in one, and are then put together
by one `bytes.join`, not in a preallocated buffer: a large announced size alone allocates nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from swarmfree.protocol.engine_port import Pieces

CHUNK_BYTES = 1024 * 1024
CHUNK_BYTES_MIN = 16 * 1024
CHUNK_BYTES_MAX = 1024 * 1024
_LENGTH_DELIMITED = 2
_VARINT_BYTES_MAX = 5


class Malformed(Exception):
    """Remote bytes make no sense: what was found and what was expected. Who knows the peer turns it
    into `ProtocolViolation`.
    """


class FrameKind(enum.IntEnum):
    """What a frame is: its first byte. Number n of the field in `Frame` gives ``n << 3 | 2``."""

    REQUEST = 1 << 3 | _LENGTH_DELIMITED
    RESPONSE = 2 << 3 | _LENGTH_DELIMITED
    CHUNK = 3 << 3 | _LENGTH_DELIMITED
    PROGRESS = 4 << 3 | _LENGTH_DELIMITED
    WANT_PAYLOAD = 5 << 3 | _LENGTH_DELIMITED
    HALT = 6 << 3 | _LENGTH_DELIMITED


_KINDS = {int(kind): kind for kind in FrameKind}
_ANNOUNCING = (FrameKind.REQUEST, FrameKind.RESPONSE)


def _prefix(kind: FrameKind, size_bytes: int) -> bytes:
    prefix = bytearray((kind,))
    while size_bytes > 127:
        prefix.append(size_bytes & 127 | 128)
        size_bytes >>= 7
    prefix.append(size_bytes)
    return bytes(prefix)


def encode_frame(kind: FrameKind, content: bytes | memoryview = b"", *chunk: memoryview) -> bytes:
    """One frame, and the first chunk, in its pieces, behind it; everything is copied once."""
    if not (size_bytes := sum(map(len, chunk))):
        return b"".join((_prefix(kind, len(content)), content))
    return b"".join((_prefix(kind, len(content)), content, _prefix(FrameKind.CHUNK, size_bytes), *chunk))


PROGRESS = encode_frame(FrameKind.PROGRESS)
WANT_PAYLOAD = encode_frame(FrameKind.WANT_PAYLOAD)
HALT = encode_frame(FrameKind.HALT)


def decode_frame(data: bytes) -> tuple[FrameKind, memoryview, memoryview | None]:
    """Take a frame apart without copying its content.

    Returns:
        What it is, its content, and the chunk that came with it, if one did.

    Raises:
        Malformed: empty, of no known kind, or its length is not what it says.
    """
    kind, start, end = _field(data, 0)
    view = memoryview(data)
    if end == len(data):
        return kind, view[start:end], None
    second, chunk_start, chunk_end = _field(data, end)
    if chunk_end != len(data) or second is not FrameKind.CHUNK or kind not in _ANNOUNCING:
        raise Malformed(f"a {kind.name} frame with {len(data) - end:,} bytes behind it; only a first chunk may follow")
    return kind, view[start:end], view[chunk_start:chunk_end]


def _field(data: bytes, position: int) -> tuple[FrameKind, int, int]:
    """What stands at `position`, and where its content begins and ends."""
    kind = _KINDS.get(data[position]) if data else None
    if kind is None:
        raise Malformed(f"a frame that begins with {data[position : position + 1].hex() or 'nothing'}")
    length, shift, start = 0, 0, position + 1
    while True:
        if start >= len(data) or start - position > _VARINT_BYTES_MAX:
            raise Malformed(f"a {kind.name} frame without a length")
        byte = data[start]
        length |= (byte & 127) << shift
        start += 1
        if byte < 128:
            break
        shift += 7
    if start + length > len(data):
        raise Malformed(f"a {kind.name} frame with {len(data) - start:,} bytes of content; it says {length:,}")
    return kind, start, start + length


def chunk_frame(pieces: Pieces) -> bytes:
    """One CHUNK frame of several pieces, copied once."""
    return b"".join((_prefix(FrameKind.CHUNK, sum(map(len, pieces))), *pieces))


def chunk_frames(payload: bytes, chunk_bytes: int, begin: int = 0) -> Iterator[bytes]:
    """The payload from byte `begin` on as CHUNK frames of `chunk_bytes`, the last one shorter; none
    where nothing is left.
    """
    view = memoryview(payload)
    for start in range(begin, len(view), chunk_bytes):
        yield encode_frame(FrameKind.CHUNK, view[start : start + chunk_bytes])


class PayloadReader:
    """Puts a payload together from its chunks and refuses what does not add up.

    Args:
        size_bytes: announced in the message before.
        size_bytes_max: what this peer is willing to take.

    Raises:
        Malformed: announced to be larger than that.
    """

    __slots__ = ("_chunks", "_missing_bytes", "size_bytes")

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        """Expect `size_bytes`."""
        if size_bytes > size_bytes_max:
            raise Malformed(f"a payload of {size_bytes:,} bytes; at most {size_bytes_max:,} are taken")
        self.size_bytes = size_bytes
        self._missing_bytes = size_bytes
        self._chunks: list[memoryview] = []

    @property
    def is_complete(self) -> bool:
        """Every announced byte is there."""
        return not self._missing_bytes

    def add(self, chunk: memoryview) -> None:
        """Take the next chunk.

        Raises:
            Malformed: longer than what is missing or than a chunk may be, or uselessly short.
        """
        if len(chunk) > min(self._missing_bytes, CHUNK_BYTES_MAX):
            raise Malformed(f"a chunk of {len(chunk):,} bytes where {self._missing_bytes:,} of {self.size_bytes:,} were missing")
        if len(chunk) < min(self._missing_bytes, CHUNK_BYTES_MIN):
            raise Malformed(f"a chunk of {len(chunk):,} bytes before the last; {CHUNK_BYTES_MIN:,} is the least")
        self._missing_bytes -= len(chunk)
        self._chunks.append(chunk)

    def drop(self) -> None:
        """Let the chunks go: the payload will not be asked for."""
        self._chunks.clear()

    def pieces(self) -> tuple[memoryview, ...]:
        """All of it as it came, nothing copied; the chunks are let go."""
        assert self.is_complete, "the payload is asked for before it is there"
        found = tuple(self._chunks)
        self._chunks.clear()
        return found

    def payload(self) -> bytes:
        """All of it, copied once; the chunks are let go."""
        return b"".join(self.pieces())
