"""The proxy with faults: what a caller sees through a door when it delays, cuts, or swallows."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

import pytest

from swarmfree.lab.chaos.fault_proxy import Cut, Delay, Door, Hole, Proxy

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def echo_behind_door() -> AsyncIterator[Door]:
    """A door before a server that says back what it is told."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, Proxy(draw=lambda: random.Random(1)) as proxy:
        yield await proxy.open("echo", server.sockets[0].getsockname()[1])


async def caller(door: Door) -> Stream:
    """A new connection through the door."""
    return await asyncio.open_connection("127.0.0.1", door.port)


async def ask(stream: Stream, word: bytes) -> float:
    """Say a word and wait for it; how many seconds that took."""
    reader, writer = stream
    began_s = time.monotonic()
    writer.write(word)
    await writer.drain()
    assert await reader.readexactly(len(word)) == word
    return time.monotonic() - began_s


async def test_a_good_door_forwards_everything_in_order() -> None:
    """Without a fault two megabytes come back as they were, and an end of one side reaches the
    other.
    """
    content = random.Random(0).randbytes(1 << 21)
    async with echo_behind_door() as door, asyncio.timeout(20):
        reader, writer = await caller(door)
        async with asyncio.TaskGroup() as group:
            back = group.create_task(reader.read(-1))
            writer.write(content)
            await writer.drain()
            writer.write_eof()
        assert back.result() == content
        writer.close()


async def test_a_delay_holds_for_connections_that_are_there_and_ends() -> None:
    """Each direction comes late by the latency, jitter stays below its limit, order is kept, and
    afterwards nothing is late.
    """
    async with echo_behind_door() as door, asyncio.timeout(20):
        stream = await caller(door)
        assert await ask(stream, b"before") < 0.2
        door.fail(Delay(0.15, 0.1))
        assert 0.3 <= await ask(stream, b"during") < 1.0
        reader, writer = stream
        for number in range(30):
            writer.write(bytes([number]))
            await writer.drain()
            await asyncio.sleep(0.002)
        assert await reader.readexactly(30) == bytes(range(30))
        door.fail(None)
        assert await ask(stream, b"after") < 0.2
        stream[1].close()


async def test_a_cut_resets_what_is_there_and_what_comes() -> None:
    """Connections break with a reset, new ones too, until the fault ends."""
    async with echo_behind_door() as door, asyncio.timeout(20):
        stream = await caller(door)
        await ask(stream, b"before")
        door.fail(Cut())
        with pytest.raises(ConnectionResetError):
            await stream[0].readexactly(1)
        reader, writer = await caller(door)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        door.fail(None)
        again = await caller(door)
        await ask(again, b"after")
        for _, each in (stream, (reader, writer), again):
            each.close()


async def test_a_hole_accepts_and_forwards_nothing_until_it_ends() -> None:
    """Old and new connections stay open in silence; what was said meanwhile arrives when the fault
    ends.
    """
    async with echo_behind_door() as door, asyncio.timeout(20):
        old = await caller(door)
        await ask(old, b"before")
        door.fail(Hole())
        new = await caller(door)
        for reader, writer in (old, new):
            writer.write(b"lost?")
            await writer.drain()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await reader.readexactly(1)
        door.fail(None)
        for reader, writer in (old, new):
            assert await reader.readexactly(5) == b"lost?"
            writer.close()


async def test_nobody_behind_a_door_is_a_reset() -> None:
    """A peer that is not there is a broken connection, not a silent one, and the door stays
    open.
    """
    async with Proxy() as proxy, asyncio.timeout(20):
        door = await proxy.open("nobody", 1)
        for _ in range(2):
            reader, writer = await caller(door)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()
        assert await proxy.open("nobody", 1) is door


async def test_a_closed_proxy_leaves_nothing() -> None:
    """After closing, nobody listens on the port, and connections are over, whatever fault there
    was.
    """
    async with echo_behind_door() as door, asyncio.timeout(20):
        streams = [await caller(door) for _ in range(3)]
        for stream in streams:
            await ask(stream, b"hello")
        door.fail(Hole())
        port = door.port
        assert door.connection_count == 3
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
    for reader, writer in streams:
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(-1) == b""
        writer.close()
