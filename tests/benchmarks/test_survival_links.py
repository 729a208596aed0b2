"""Links between peers: a cut one is silent both ways and loses nothing; other links carry on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct

from benchmarks.survival_links import HOST, Links


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()


async def _is_silent(reader: asyncio.StreamReader, for_s: float = 0.3) -> bool:
    try:
        async with asyncio.timeout(for_s):
            await reader.readline()
    except TimeoutError:
        return True
    return False


async def test_a_cut_link_is_silent_until_it_is_mended() -> None:
    """Between two peers nothing passes, on old and new connections alike; after mending it arrives.
    A cut of two others is not felt.
    """
    server = await asyncio.start_server(_echo, HOST, 0)
    async with Links(lambda: {os.getpid(): "here"}) as links:
        port = await links.open("there", server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection(HOST, port)
        links.cut("there", "elsewhere")
        writer.write(b"first\n")
        assert await reader.readline() == b"first\n"
        for cut in (("here", "there"), ("there", ""), ("here", "")):
            links.cut(*cut)
            later_reader, later = await asyncio.open_connection(HOST, port)
            for each in (writer, later):
                each.write(b"second\n")
            assert await _is_silent(reader)
            assert await _is_silent(later_reader)
            links.mend()
            assert await reader.readline() == b"second\n"
            assert await later_reader.readline() == b"second\n"
            later.close()
        links.slow("there", 0.2)
        writer.write(b"third\n")
        assert await _is_silent(reader, 0.1)
        assert await reader.readline() == b"third\n"
        writer.close()
    server.close()


async def test_a_peer_that_dies_behind_a_cut_link_resets_nobody() -> None:
    """Its connections are reset by the system, and those that call it or that it called hear of it
    only once the link is mended; nobody is refused at its door meanwhile.
    """
    accepted: list[asyncio.StreamWriter] = []
    there = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        there.set()
        await asyncio.sleep(60)

    server = await asyncio.start_server(accept, HOST, 0)
    async with Links(lambda: {os.getpid(): "here"}) as links:
        port = await links.open("there", server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection(HOST, port)
        await there.wait()
        links.cut_off("there", "somebody")
        linger = struct.pack("ii", 1, 0)  # what is closed is reset, as where bytes were left unread
        accepted[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        accepted[0].transport.abort()
        server.close()
        later_reader, later = await asyncio.open_connection(HOST, port)
        assert await _is_silent(reader)
        assert await _is_silent(later_reader)
        links.mend()
        for each in (reader, later_reader):
            with contextlib.suppress(ConnectionResetError):
                assert await each.read() == b""
        writer.close()
        later.close()
