"""Two plain gRPC streams at once: what the same bytes take without a swarm. For
`benchmarks.recovery`.

``python -m benchmarks.plain_streams serve KIND BYTES`` serves one stream of that many bytes, in
chunks as the swarm sends them, prints where and ends with its parent's pipe; ``pull KIND BYTES
WHERE...`` reads several such servers at once, in one process, as whoever rebuilds a stage reads two
neighbours, and prints the seconds. `pull` starts them all and returns the rate. A server cuts its
chunks out of one buffer within that time, as a donor does: one that had them ready would be faster.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import enum
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from swarmfree.cli.process import keep_freed_memory, settle_garbage
from swarmfree.wire.certificate import SERVER_NAME, Certificate, make_certificate
from swarmfree.wire.frames import CHUNK_BYTES
from swarmfree.wire.identity import load_or_create_identity

HOST = "127.0.0.1"
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
        ENCRYPTED: as `EQUAL`, over the swarm's TLS: each side proves itself by a certificate.
        ENCRYPTED_THREADED: as `THREADED`, over the same.
    """

    EQUAL = "equal"
    THREADED = "threaded"
    FRESH = "fresh"
    DISCARDED = "discarded"
    ENCRYPTED = "encrypted"
    ENCRYPTED_THREADED = "encrypted-threaded"

    @property
    def has_settings(self) -> bool:
        """Allocator and collector are set as a peer sets its own, and buffers are touched
        beforehand.
        """
        return self not in {Kind.FRESH, Kind.DISCARDED}

    @property
    def is_threaded(self) -> bool:
        """By synchronous stubs and a synchronous server."""
        return self in {Kind.THREADED, Kind.ENCRYPTED_THREADED}

    @property
    def is_encrypted(self) -> bool:
        """Over TLS."""
        return self in {Kind.ENCRYPTED, Kind.ENCRYPTED_THREADED}


def _handlers(behaviour: Callable[..., Any]) -> tuple[grpc.GenericRpcHandler, ...]:
    handler: Any = grpc.unary_stream_rpc_method_handler(behaviour)
    return (grpc.method_handlers_generic_handler(SERVICE, {NAME: handler}),)


def _chunks(data: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES].tobytes()


def _certificate() -> Certificate:
    """Of somebody who is nobody else."""
    with tempfile.TemporaryDirectory(prefix="swarmfree-plain-") as folder:
        return make_certificate(load_or_create_identity(folder))


def _listen(server: grpc.Server | grpc.aio.Server, kind: Kind) -> str:
    """Where it listens: the port, and what it shows of itself."""
    if not kind.is_encrypted:
        return f"{server.add_insecure_port(HOST + ':0')}:"
    own = _certificate()
    return f"{server.add_secure_port(HOST + ':0', own.server_credentials())}:{own.pem.hex()}"


def _tell(where: str) -> None:
    sys.stdout.write(f"{where}\n")
    sys.stdout.flush()


async def serve(data: np.ndarray[Any, np.dtype[np.uint8]], kind: Kind) -> None:
    """Serve until stdin ends."""

    async def stream(_: bytes, __: Any) -> AsyncIterator[bytes]:
        for chunk in _chunks(data):
            yield chunk

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(_handlers(stream))
    where = _listen(server, kind)
    await server.start()
    _tell(where)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def serve_in_threads(data: np.ndarray[Any, np.dtype[np.uint8]], kind: Kind) -> None:
    """The same by gRPC's synchronous server."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=OPTIONS)
    server.add_generic_rpc_handlers(_handlers(lambda _, __: _chunks(data)))
    where = _listen(server, kind)
    server.start()
    _tell(where)
    sys.stdin.read()
    server.stop(None)


Came = tuple[int, float, float]
"""How many bytes came, when their stream was asked for, and when the last of them was there:
neither loop nor pool nor channel ends within that.
"""


def _channel(where: str, own: Certificate | None, *, is_threaded: bool) -> Any:
    port, _, pem = where.partition(":")
    library: Any = grpc if is_threaded else grpc.aio
    if own is None:
        return library.insecure_channel(f"{HOST}:{port}", options=OPTIONS)
    options = [*OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME)]
    return library.secure_channel(f"{HOST}:{port}", own.channel_credentials(bytes.fromhex(pem)), options=options)


async def _read(where: str, own: Certificate | None, kept: memoryview | None) -> Came:
    begun_s = time.perf_counter()
    async with _channel(where, own, is_threaded=False) as channel:
        start: Any = channel.unary_stream(METHOD)
        found = 0
        async for chunk in start(b""):
            if kept is not None:
                kept[found : found + len(chunk)] = chunk
            found += len(chunk)
        return found, begun_s, time.perf_counter()


def _read_in_thread(where: str, own: Certificate | None, kept: memoryview) -> Came:
    begun_s = time.perf_counter()
    with _channel(where, own, is_threaded=True) as channel:
        start: Any = channel.unary_stream(METHOD)
        found = 0
        for chunk in start(b""):
            kept[found : found + len(chunk)] = chunk
            found += len(chunk)
        return found, begun_s, time.perf_counter()


async def _read_all(places: Sequence[str], own: Certificate | None, kept: memoryview | None) -> list[Came]:
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(_read(where, own, kept)) for where in places]
    return [read.result() for read in reads]


def read(kind: Kind, size_bytes: int, places: Sequence[str]) -> float:
    """Read all at once, into one buffer of one stream's size, as a merge ends in one stage; the
    seconds it took.
    """
    kept = None if kind is Kind.DISCARDED else np.empty(size_bytes, dtype=np.uint8)
    if kind.has_settings and kept is not None:
        kept.fill(1)
    own = _certificate() if kind.is_encrypted else None
    if kind.is_threaded and kept is not None:
        with ThreadPoolExecutor(len(places)) as pool:
            came = list(pool.map(lambda where: _read_in_thread(where, own, kept.data), places))
    else:
        came = asyncio.run(_read_all(places, own, None if kept is None else kept.data))
    found, begun_s, ended_s = zip(*came, strict=True)
    assert sum(found) == len(places) * size_bytes, "all of it came"
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
        places = [(await _line(server)).strip() for server in begun]
        begun.append(await _start("pull", kind, str(size_bytes), *places))
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
    parser.add_argument("places", nargs="*")
    asked = parser.parse_args()
    if asked.kind.has_settings:
        keep_freed_memory()
        settle_garbage()
    if asked.task == "pull":
        sys.stdout.write(f"{read(asked.kind, asked.size_bytes, asked.places)}\n")
        return
    # All of it is there, as a stage's weights are, and not the same chunk again and again.
    data = np.empty(asked.size_bytes, dtype=np.uint8)
    data.fill(1)
    if asked.kind.is_threaded:
        serve_in_threads(data, asked.kind)
    else:
        asyncio.run(serve(data, asked.kind))


if __name__ == "__main__":
    main()
