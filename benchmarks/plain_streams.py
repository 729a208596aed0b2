"""Two plain gRPC streams at once: what the same bytes take without a swarm. For
`benchmarks.recovery`.

``python -m benchmarks.plain_streams serve KIND BYTES`` serves one stream of that many bytes, in
chunks as the swarm sends them, prints its port and ends with its parent's pipe; ``pull KIND BYTES
PORT...`` reads several such servers at once, in one process, as whoever rebuilds a stage reads two
neighbours, and prints the seconds. `pull` starts them all and returns the rate. A server cuts its
chunks out of one buffer within that time, as a donor does: one that had them ready would be faster.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import enum
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from swarmfree.cli.process import keep_freed_memory, settle_garbage
from swarmfree.wire.frames import CHUNK_BYTES

METHOD = "/plain.Streams/Pull"
SERVICE, NAME = "plain.Streams", "Pull"
OPTIONS = [("grpc.max_receive_message_length", 4 << 20), ("grpc.max_send_message_length", 4 << 20)]
THREADS = 4


class Kind(enum.StrEnum):
    """What the bytes are given to, and by which of gRPC's two libraries for Python they travel.

    Attributes:
        EQUAL: asyncio; written into a buffer that was touched before the clock starts, with the
            allocator and collector of a peer.
        THREADED: the same by synchronous stubs and a synchronous server.
        FRESH: asyncio; written into a buffer that is new to the process, allocator and collector as
            they come.
        DISCARDED: asyncio; thrown away, allocator and collector as they come.
    """

    EQUAL = "equal"
    THREADED = "threaded"
    FRESH = "fresh"
    DISCARDED = "discarded"

    @property
    def has_settings(self) -> bool:
        """Allocator and collector are set as a peer sets its own, and buffers are touched
        beforehand.
        """
        return self in {Kind.EQUAL, Kind.THREADED}


def _handlers(behaviour: Callable[..., Any]) -> tuple[grpc.GenericRpcHandler, ...]:
    handler: Any = grpc.unary_stream_rpc_method_handler(behaviour)
    return (grpc.method_handlers_generic_handler(SERVICE, {NAME: handler}),)


def _chunks(data: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES].tobytes()


def _tell(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


async def serve(data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Serve until stdin ends."""

    async def stream(_: bytes, __: Any) -> AsyncIterator[bytes]:
        for chunk in _chunks(data):
            yield chunk

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(_handlers(stream))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _tell(port)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def serve_in_threads(data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """The same by gRPC's synchronous server."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=OPTIONS)
    server.add_generic_rpc_handlers(_handlers(lambda _, __: _chunks(data)))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _tell(port)
    sys.stdin.read()
    server.stop(None)


Came = tuple[int, float, float]
"""How many bytes came, when their stream was asked for, and when the last of them was there:
neither loop nor pool nor channel ends within that.
"""


async def _read(port: int, kept: memoryview | None) -> Came:
    begun_s = time.perf_counter()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        start: Any = channel.unary_stream(METHOD)
        found = 0
        async for chunk in start(b""):
            if kept is not None:
                kept[found : found + len(chunk)] = chunk
            found += len(chunk)
        return found, begun_s, time.perf_counter()


def _read_in_thread(port: int, kept: memoryview) -> Came:
    begun_s = time.perf_counter()
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        start: Any = channel.unary_stream(METHOD)
        found = 0
        for chunk in start(b""):
            kept[found : found + len(chunk)] = chunk
            found += len(chunk)
        return found, begun_s, time.perf_counter()


async def _read_all(ports: Sequence[int], kept: memoryview | None) -> list[Came]:
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(_read(port, kept)) for port in ports]
    return [read.result() for read in reads]


def read(kind: Kind, size_bytes: int, ports: Sequence[int]) -> float:
    """Read all at once, into one buffer of one stream's size, as a merge ends in one stage; the
    seconds it took.
    """
    kept = None if kind is Kind.DISCARDED else np.empty(size_bytes, dtype=np.uint8)
    if kind.has_settings and kept is not None:
        kept.fill(1)
    if kind is Kind.THREADED and kept is not None:
        with ThreadPoolExecutor(len(ports)) as pool:
            came = list(pool.map(lambda port: _read_in_thread(port, kept.data), ports))
    else:
        came = asyncio.run(_read_all(ports, None if kept is None else kept.data))
    found, begun_s, ended_s = zip(*came, strict=True)
    assert sum(found) == len(ports) * size_bytes, "all of it came"
    seconds: float = max(ended_s) - min(begun_s)
    return seconds


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.plain_streams", *arguments, stdin=pipe, stdout=pipe
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError, TimeoutError):
        async with asyncio.timeout(5):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None, "piped"
    return (await process.stdout.readline()).decode()


async def pull(size_bytes: int, kind: Kind, streams: int = 2) -> float:
    """Bytes per second of so many concurrent streams of `size_bytes` each, every one from a process
    of its own, all of them to one.
    """
    begun: list[asyncio.subprocess.Process] = []
    try:
        while len(begun) < streams:
            begun.append(await _start("serve", kind, str(size_bytes)))
        ports = [(await _line(server)).strip() for server in begun]
        begun.append(await _start("pull", kind, str(size_bytes), *ports))
        return streams * size_bytes / float(await _line(begun[-1]))
    finally:
        for process in begun:
            await _end(process)


def main() -> None:
    """Be one of the processes."""
    parser = argparse.ArgumentParser(description="One process of plain streams; not to be started by hand.")
    parser.add_argument("task", choices=("serve", "pull"))
    parser.add_argument("kind", type=Kind)
    parser.add_argument("size_bytes", type=int)
    parser.add_argument("ports", type=int, nargs="*")
    asked = parser.parse_args()
    if asked.kind.has_settings:
        keep_freed_memory()
        settle_garbage()
    if asked.task == "pull":
        sys.stdout.write(f"{read(asked.kind, asked.size_bytes, asked.ports)}\n")
        return
    # All of it is there, as a stage's weights are, and not the same chunk again and again.
    data = np.empty(asked.size_bytes, dtype=np.uint8)
    data.fill(1)
    if asked.kind is Kind.THREADED:
        serve_in_threads(data)
    else:
        asyncio.run(serve(data))


if __name__ == "__main__":
    main()
