"""Two plain gRPC streams at once: what the same bytes take without a swarm. For `benchmarks.recovery`.

``python -m benchmarks.plain_streams BYTES`` serves one stream of that many bytes, in chunks as the swarm sends them, prints its port and ends
with its parent's pipe. `pull` reads several such servers at once, in one process, as whoever rebuilds a stage reads two neighbours.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np

from swarmfree.wire.frames import CHUNK_BYTES

METHOD = "/plain.Streams/Pull"
SERVICE, NAME = "plain.Streams", "Pull"
OPTIONS = [("grpc.max_receive_message_length", 4 << 20), ("grpc.max_send_message_length", 4 << 20)]


async def serve(size_bytes: int) -> None:
    """Serve until stdin ends: bytes that are all there, as a stage's weights are, and not the same chunk again and again."""
    data = np.empty(size_bytes, dtype=np.uint8)
    data.fill(1)

    async def stream(_: bytes, __: Any) -> AsyncIterator[bytes]:
        for start in range(0, size_bytes, CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES].tobytes()

    server = grpc.aio.server(options=OPTIONS)
    handler: Any = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {NAME: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


async def _read(port: int, kept: memoryview | None) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        start: Any = channel.unary_stream(METHOD)
        call = start(b"")
        found = 0
        async for chunk in call:
            if kept is not None:
                kept[found : found + len(chunk)] = chunk
            found += len(chunk)
        return found


async def pull(size_bytes: int, streams: int = 2, *, keeps: bool = False) -> float:
    """Bytes per second of so many concurrent streams of `size_bytes` each.

    Args:
        keeps: what comes is written, by all streams, into one buffer of `size_bytes` that is new to the process, as a merge ends in one stage;
            else it is thrown away.
    """
    kept = np.empty(size_bytes, dtype=np.uint8).data if keeps else None
    servers = []
    try:
        for _ in range(streams):
            command = (sys.executable, "-m", "benchmarks.plain_streams", str(size_bytes))
            pipe = asyncio.subprocess.PIPE
            servers.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        ports = []
        for server in servers:
            assert server.stdout is not None, "piped"
            ports.append(int(await server.stdout.readline()))
        begun_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(_read(port, kept)) for port in ports]
        seconds = time.perf_counter() - begun_s
        return sum(read.result() for read in reads) / seconds
    finally:
        for server in servers:
            if server.stdin is not None:
                server.stdin.close()
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                async with asyncio.timeout(5):
                    await server.wait()
            if server.returncode is None:
                server.kill()
                await server.wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
