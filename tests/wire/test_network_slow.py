"""Answers over slow links: what has come of one that is under way is known."""

from __future__ import annotations

import asyncio
from typing import Any

from wire_world import network, raw_peer, train

from swarmfree.protocol.messages import Trained
from swarmfree.wire import frames
from swarmfree.wire.codec_messages import encode_response, rpc_of
from swarmfree.wire.frames import CHUNK_BYTES_MIN, FrameKind, encode_frame


async def test_frames_of_a_payload_count_as_they_come() -> None:
    """Three of four have come, the first of them with the response, and the call goes on; signs of
    life are none.
    """
    chunk, held = memoryview(bytes(CHUNK_BYTES_MIN)), asyncio.Event()

    async def behaviour(context: Any) -> None:
        response = encode_response(rpc_of(train(there)), Trained(), 4 * CHUNK_BYTES_MIN)
        await context.write(frames.PROGRESS)
        await context.write(encode_frame(FrameKind.RESPONSE, response, chunk))
        for _ in range(2):
            await context.write(encode_frame(FrameKind.CHUNK, chunk))
        await held.wait()
        await context.write(encode_frame(FrameKind.CHUNK, chunk))

    async with network("caller") as caller, raw_peer(behaviour) as there, asyncio.TaskGroup() as group:
        assert caller.frames_received == 0
        call = group.create_task(caller.call(there, train(there), silence_s=5))
        async with asyncio.timeout(5):
            while caller.frames_received < 3:
                await asyncio.sleep(0)
        assert not call.done()
        held.set()
        assert (await call).size_bytes == 4 * CHUNK_BYTES_MIN
        assert caller.frames_received == 4
