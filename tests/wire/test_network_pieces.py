"""Answers in several pieces: they arrive whole, and are put together nowhere on the way."""

from __future__ import annotations

import pytest
from wire_world import peers

from swarmfree.swarm.messages import GetState, Header, Request, State
from swarmfree.swarm.pieces import parts_of
from swarmfree.swarm.ports import Incoming, Reply
from swarmfree.wire.frames import CHUNK_BYTES


@pytest.mark.parametrize("sizes", [(1,), (CHUNK_BYTES,) * 3, (CHUNK_BYTES - 4,) * 3, (5, CHUNK_BYTES, 2 * CHUNK_BYTES + 7, 3)])
async def test_parts_arrive_as_they_were_read(sizes: tuple[int, ...]) -> None:
    """However parts lie in the chunks of the wire, each of them comes out as it went in, and the donor's reply still has its pieces."""
    parts = [bytes((number + 1,)) * size for number, size in enumerate(sizes)]
    reply = Reply(State(9, 7, sizes if len(sizes) > 1 else ()), pieces=parts)

    async def handler(_header: Header, _request: Request, _incoming: Incoming) -> Reply:
        return reply

    async with peers(handler) as (caller, peer):
        got = await caller.call(peer.here, GetState(2, 7, "", 0, weights_only=True, count=8), silence_s=5)
    assert isinstance(got.message, State)
    assert [b"".join(part) for part in parts_of(got.pieces, got.message.sizes, 8)] == parts
    assert reply.pieces is parts, "asked for in one piece by nobody"
