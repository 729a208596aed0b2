"""Answers in several pieces: they arrive whole, and are put together nowhere on the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from wire_world import peers

from swarmfree.protocol.messages import GetState, Header, Request, State
from swarmfree.protocol.pieces import parts_of
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.frames import CHUNK_BYTES, FrameKind, decode_frame
from swarmfree.wire.server import Outcome, Server


@pytest.mark.parametrize("sizes", [(1,), (CHUNK_BYTES,) * 3, (CHUNK_BYTES - 4,) * 3, (5, CHUNK_BYTES, 2 * CHUNK_BYTES + 7, 3)])
async def test_parts_arrive_as_they_were_read(sizes: tuple[int, ...]) -> None:
    """However parts lie in the chunks of the wire, each of them comes out as it went in, and the
    donor's reply still has its pieces.
    """
    parts = [bytes((number + 1,)) * size for number, size in enumerate(sizes)]
    reply = Reply(State(9, 7, sizes if len(sizes) > 1 else ()), pieces=parts)

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        return reply

    async with peers(handler) as (caller, peer):
        got = await caller.call(peer.here, GetState(2, 7, "", 0, weights_only=True, count=8), silence_s=5)
    assert isinstance(got.message, State)
    assert [b"".join(part) for part in parts_of(got.pieces, got.message.sizes, 8)] == parts
    assert reply.pieces is parts, "asked for in one piece by nobody"


@pytest.mark.parametrize("pieces", [(), (b"abcdefghij",), (b"abc", b"", b"defgh", b"ij"), (b"abcd", b"efgh", b"ij")])
async def test_no_chunk_is_larger_than_this_peer_sends(pieces: tuple[bytes, ...]) -> None:
    """Its limit counts, not the usual one; all chunks but the last are as large, and the first
    comes with the response.
    """
    written: list[bytes] = []

    async def write(frame: bytes) -> None:
        written.append(frame)

    outcome = Outcome()
    outcome.response, outcome.payload = b"response", pieces
    server = cast(
        "Any",
        SimpleNamespace(
            _limits=SimpleNamespace(chunk_bytes=4),
            _write=lambda to, frame: to.write(frame),
            _is_to_be_measured=lambda _: False,
        ),
    )
    await Server._respond(server, cast("Any", SimpleNamespace(write=write)), outcome)
    kind, content, first = decode_frame(written[0])
    assert (kind, bytes(content)) == (FrameKind.RESPONSE, b"response")
    chunks = [] if first is None else [bytes(first)]
    for frame in written[1:]:
        kind, content, behind = decode_frame(frame)
        assert (kind, behind) == (FrameKind.CHUNK, None)
        chunks.append(bytes(content))
    assert chunks == ([b"abcd", b"efgh", b"ij"] if pieces else [])
