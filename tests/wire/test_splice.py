"""Two connections made one, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from swarmfree.wire.splice import Bucket, Splice, give_up


@dataclass
class Joined:
    """A splice with a stream at each of its two far ends."""

    splice: Splice
    caller: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    called: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ended: list[Splice]


class Paused(asyncio.Protocol):
    """A connection that nobody reads yet."""

    def __init__(self, made: asyncio.Queue[asyncio.Transport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._made.put_nowait(transport)


@contextlib.asynccontextmanager
async def joined(
    buckets: Sequence[Bucket] = (), *, handshake_s: float = 60.0, silent_s: float = 60.0, first: bytes = b""
) -> AsyncIterator[Joined]:
    """Two connections and what joins them; `first` had been read from the caller."""
    made = asyncio.Queue[asyncio.Transport]()
    server = await asyncio.get_running_loop().create_server(lambda: Paused(made), "127.0.0.1", 0)
    port, ended = server.sockets[0].getsockname()[1], list[Splice]()
    streams, halves = [], []
    for _ in range(2):
        streams.append(await asyncio.open_connection("127.0.0.1", port, limit=1 << 16))
        halves.append(await made.get())
    splice = Splice(*halves, buckets=buckets, handshake_s=handshake_s, handshake_bytes=10, silent_s=silent_s, ended=ended.append)
    splice.begin(first)
    try:
        yield Joined(splice, streams[0], streams[1], ended)
    finally:
        splice.abort()
        for _, writer in streams:
            give_up(writer.transport)
        server.close()
        await server.wait_closed()


async def test_bytes_go_both_ways_in_order() -> None:
    """What had come before goes first, then all the rest; the end of one is the end of the other,
    after what was on its way.
    """
    async with joined(first=b"hello ") as two:
        two.caller[1].write(b"there")
        assert await two.called[0].readexactly(11) == b"hello there"
        two.called[1].write(b"x" * 5_000_000)
        two.called[1].close()
        assert len(await two.caller[0].read(-1)) == 5_000_000
        assert two.ended == [two.splice]


async def test_a_reader_that_stops_stops_the_writer() -> None:
    """Where nobody takes what comes, no more than some megabytes are held, however much is sent."""
    async with joined() as two:
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1 << 28:
                two.caller[1].write(bytes(1 << 20))
                async with asyncio.timeout(0.5):
                    await two.caller[1].drain()
                sent += 1 << 20
        assert sent < 1 << 26
        taken = 0
        while taken < sent:
            taken += len(await two.called[0].read(1 << 20))


async def test_a_rate_holds() -> None:
    """Three megabytes at two a second take more than a second, both ways together."""
    loop = asyncio.get_running_loop()
    async with joined([Bucket(2e6)]) as two:
        began_s = loop.time()
        for (_, writer), (reader, _) in ((two.caller, two.called), (two.called, two.caller)):
            writer.write(bytes(1_500_000))
            await reader.readexactly(1_500_000)
        assert loop.time() - began_s > 0.5
    async with joined() as two:
        two.caller[1].write(bytes(1_500_000))
        await two.called[0].readexactly(1_500_000)


@pytest.mark.parametrize(
    ("size_bytes", "rests_s", "waits_s"), [(100, (1.0, 1.0, 1.0), 0.0), (100, (0.1, 0.1, 0.1), 2.55), (1000, (20.0,) * 3, 9.75)]
)
def test_a_bucket_says_how_long_to_wait(size_bytes: int, rests_s: tuple[float, ...], waits_s: float) -> None:
    """At 100 bytes a second: who moves less does not wait, who moves more waits for the debt, but
    for a quarter of a second's worth.
    """
    bucket, now_s, wait_s = Bucket(100.0), 50.0, 0.0
    for rest_s in rests_s:
        wait_s = bucket.take(size_bytes, now_s)
        now_s += rest_s
    assert max(0.0, wait_s) == pytest.approx(0.75 if size_bytes == 100 and rests_s[0] == 1.0 else waits_s)


async def test_who_sends_no_handshake_is_cut_off() -> None:
    """A caller that has sent next to nothing by then goes; one that has sent enough stays."""
    async with joined(handshake_s=0.1) as two:
        two.caller[1].write(b"123456789")
        assert await two.called[0].read(-1) == b"123456789"
    async with joined(handshake_s=0.1) as two:
        two.caller[1].write(b"1234567890")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await two.called[0].read(-1)


async def test_silence_ends_both() -> None:
    """Two connections on which nothing moves are not kept; as long as something does they are."""
    async with joined(silent_s=0.4) as two:
        for _ in range(8):
            two.called[1].write(b"x")
            await two.caller[0].readexactly(1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await two.called[0].read(1)
        assert not two.ended
        assert await two.caller[0].read(-1) == b""
        assert two.ended
