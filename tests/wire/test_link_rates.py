"""How fast payloads come over real connections, of which one is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from wire_world import endpoint, give, network, peers, train

from swarmfree.protocol.link_meter import LinkMeter
from swarmfree.wire.frames import CHUNK_BYTES_MIN, FrameKind, decode_frame
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.server import MEASURED_BYTES, MEASURED_ONE_OF, Outcome, Server

BYTES_S = 2e6
TURN_BYTES = 16 * 1024


@asynccontextmanager
async def slow_way(port: int) -> AsyncIterator[int]:
    """A port behind which is another one, whose answers come at `BYTES_S`."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, byte_s: float) -> None:
        loop = asyncio.get_running_loop()
        free_s = loop.time()
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(TURN_BYTES):
                free_s = max(free_s, loop.time()) + len(data) * byte_s
                await asyncio.sleep(free_s - loop.time())
                writer.write(data)
                await writer.drain()
        writer.close()

    writers = list[asyncio.StreamWriter]()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as group:
            group.create_task(pass_on(reader, there_writer, 0.0))
            group.create_task(pass_on(there_reader, writer, 1 / BYTES_S))

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for writer in writers:
            writer.close()  # from Python 3.12 on a server waits for those that it leads


async def ask(caller: GrpcNetwork, name: str, port: int, calls: int, *, at_once: bool = False) -> None:
    """So many calls, one after the other or all together; each is answered."""
    there, turn = endpoint(name, port), asyncio.Semaphore(calls if at_once else 1)

    async def one() -> None:
        async with turn:
            await caller.call(there, train(there), silence_s=20)

    async with asyncio.TaskGroup() as group:
        for _ in range(calls):
            group.create_task(one())


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_slow_link_is_told_from_a_fast_one(*, at_once: bool) -> None:
    """By what comes over it, however many share it."""
    payload = bytes(128 * 1024)
    async with network("caller") as caller, network("peer") as peer, network("raw") as other:
        for each in (peer, other):
            each.serve(give(payload))
        async with slow_way(peer_port(peer)) as port:
            await ask(caller, "peer", port, MEASURED_ONE_OF + 1, at_once=at_once)
            await ask(caller, "raw", peer_port(other), MEASURED_ONE_OF + 1, at_once=at_once)
            rates = {rate.peer_id: rate.bytes_per_s for rate in caller.link_rates()}
        slow, fast = rates[peer.here.member.peer_id], rates[other.here.member.peer_id]
    # Never faster than it is; slower where this machine does something else, too
    assert 0.25 * BYTES_S < slow < 1.5 * BYTES_S
    assert fast > 2 * slow


async def test_nothing_is_known_of_small_payloads() -> None:
    """Nor of who called: an answer is what is measured."""
    async with peers(give(bytes(MEASURED_BYTES - 1))) as (caller, peer):
        for _ in range(2 * MEASURED_ONE_OF):
            await caller.call(peer.here, train(peer.here), silence_s=5)
        assert caller.link_rates() == peer.link_rates() == ()


async def test_one_large_payload_of_a_few_lets_its_response_go_ahead() -> None:
    """The others begin in the same frame; all of them are whole."""
    ahead = []
    server = cast("Any", SimpleNamespace(_limits=SimpleNamespace(chunk_bytes=CHUNK_BYTES_MIN), _large_count=0))
    server._is_to_be_measured = lambda payload: Server._is_to_be_measured(server, payload)
    for number in range(2 * MEASURED_ONE_OF):
        frames: list[bytes] = []

        async def write(_: Any, frame: bytes, frames: list[bytes] = frames) -> None:
            frames.append(frame)

        server._write = write
        outcome = Outcome()
        outcome.response, outcome.payload = b"response", (bytes([number]) * MEASURED_BYTES,)
        await Server._respond(server, cast("Any", None), outcome)
        kind, _, first = decode_frame(frames[0])
        assert kind is FrameKind.RESPONSE
        chunks = [bytes(first)] if first is not None else []
        chunks += [bytes(decode_frame(frame)[1]) for frame in frames[1:]]
        assert b"".join(chunks) == outcome.payload[0]
        if first is None:
            ahead.append(number)
    assert ahead == [0, MEASURED_ONE_OF]


async def test_a_call_that_breaks_off_leaves_nothing_open() -> None:
    """The next payload is measured by itself."""
    meter = LinkMeter()
    async with network("caller") as caller, network("peer") as peer:
        caller._client.meter = meter
        peer.serve(give(bytes(8 * 1024 * 1024)))
        async with slow_way(peer_port(peer)) as port:
            there = endpoint("peer", port)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await caller.call(there, train(there), silence_s=20)
        assert meter.rates(asyncio.get_running_loop().time()) == ()
        assert not any(link.open for link in meter._links.values())


def peer_port(peer: GrpcNetwork) -> int:
    """Where it listens."""
    return int(peer.here.addresses[0].split("/tcp/")[1].split("/")[0])
