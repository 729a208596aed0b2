"""A proxy before an endpoint that speaks S3, which is slow, refuses, says nothing or dies, as it is
told.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal, Self

REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class FaultyEndpoint:
    """Passes on what comes to the endpoint at a port.

    Attributes:
        port: where it listens.
        fault: what it does.
        dies_after_bytes: with `dies`: so many go through, then all connections break.
    """

    def __init__(self, behind: int) -> None:
        """It passes on."""
        self.fault: Literal["none", "refuses", "hangs", "slow", "dies"] = "none"
        self.port, self.dies_after_bytes = 0, 0
        self._behind, self._open = behind, set[asyncio.StreamWriter]()
        self._tasks = set[asyncio.Task[None]]()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up."""
        assert self._server is not None
        self._server.close()
        self._break()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for writer in list(self._open):
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _break(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if self.fault == "refuses":
                await reader.readuntil(b"\r\n\r\n")
                writer.write(REFUSAL)
                await writer.drain()
            elif self.fault == "hangs":
                while await reader.read(1 << 16):
                    pass
            else:
                behind = await asyncio.open_connection("127.0.0.1", self._behind)
                self._open.add(behind[1])
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(reader, behind[1]))
                    group.create_task(self._pass_on(behind[0], writer))
                behind[1].close()
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.fault == "slow":
                    await asyncio.sleep(0.02)
                if self.fault == "dies":
                    self.dies_after_bytes -= len(data)
                    if self.dies_after_bytes < 0:
                        self._break()
                        return
                writer.write(data)
                await writer.drain()
        writer.close()
