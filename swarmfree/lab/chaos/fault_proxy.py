"""A TCP proxy with faults: stands in front of peers' ports and delays, cuts or swallows what goes
to and from them for a while.

One process, many doors: each door listens on a port of its own and forwards to one target. It knows
bytes only, never what they mean. A fault of a
door holds for all its connections, in both directions:

- `Delay`: every piece comes late by a latency and a random jitter, in order;
- `Cut`: connections that are there are reset, new ones are accepted and reset;
- `Hole`: connections are accepted and kept, and nothing is forwarded; when the fault ends, what
  waited goes on its way, as after lost packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from swarmfree.protocol.errors import SwarmfreeError

PIECE_BYTES = 1 << 16
PIECES_WAITING_MAX = 256
CONNECT_WITHIN_S = 5.0
_ABORTIVE = struct.pack("ii", 1, 0)  # Linger for no time: closing sends a reset.


@dataclass(frozen=True, slots=True)
class Delay:
    """Every piece comes `latency_s` late, and up to `jitter_s` more."""

    latency_s: float
    jitter_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cut:
    """Connections are reset, those that are there and new ones."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Connections are accepted, and nothing is forwarded."""


Fault = Delay | Cut | Hole
Target = tuple[str, int]


class Door:
    """One listening port and what is behind it. Made by `Proxy.open`.

    Attributes:
        port: on which it listens.
    """

    def __init__(self, host: str, target: Target, tasks: asyncio.TaskGroup, draw: random.Random) -> None:
        """`open` makes it listen."""
        self.port = 0
        self._host, self._target, self._tasks, self._draw = host, target, tasks, draw
        self._fault: Fault | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def connection_count(self) -> int:
        """How many callers are connected now."""
        return len(self._connections)

    async def open(self) -> None:
        """Listen on a port given by the system.

        Raises:
            SwarmfreeError: the system gives none.
        """
        try:
            self._server = await asyncio.start_server(self._welcome, self._host, 0)
        except OSError as error:
            raise SwarmfreeError(f"the proxy cannot listen on {self._host}: {error.strerror or error}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    def fail(self, fault: Fault | None) -> None:
        """Behave so from now on; None = as a good network."""
        self._fault = fault
        if isinstance(fault, Hole):
            self._flows.clear()
        else:
            self._flows.set()
        if isinstance(fault, Cut):
            for writer in tuple(self._writers):
                _reset(writer)

    async def close(self) -> None:
        """Listen no more and end every connection."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.cancel()
        while self._connections:
            await asyncio.wait(set(self._connections))
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    # ---- one connection --------------------------------------------------------------------------

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._fault, Cut):
            _reset(writer)
            return
        connection = self._tasks.create_task(self._serve(reader, writer), name=f"door {self.port}")
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, caller_reader: asyncio.StreamReader, caller: asyncio.StreamWriter) -> None:
        """Both directions, until either side has ended or is cut."""
        self._writers.add(caller)
        opened = [caller]
        try:
            await self._flows.wait()
            async with asyncio.timeout(CONNECT_WITHIN_S):
                target_reader, target = await asyncio.open_connection(*self._target)
            opened.append(target)
            self._writers.add(target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(caller_reader, target))
                both.create_task(self._pump(target_reader, caller))
        except* (OSError, TimeoutError):
            for writer in opened:
                _reset(writer)
        finally:
            for writer in opened:
                self._writers.discard(writer)
                writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction to its end: pieces wait in a bounded queue until they are due."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_WAITING_MAX)
        loop = asyncio.get_running_loop()

        async def read() -> None:
            due_s = 0.0
            while True:
                piece = await reader.read(PIECE_BYTES)
                due_s = max(due_s, loop.time() + self._late_s())
                await queue.put((due_s, piece))
                if not piece:
                    return

        async def write() -> None:
            while True:
                due_s, piece = await queue.get()
                if (wait_s := due_s - loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                await self._flows.wait()
                if not piece:
                    writer.write_eof()
                    return
                writer.write(piece)
                await writer.drain()

        async with asyncio.TaskGroup() as halves:
            halves.create_task(read())
            halves.create_task(write())

    def _late_s(self) -> float:
        match self._fault:
            case Delay(latency_s=latency_s, jitter_s=jitter_s):
                return latency_s + self._draw.uniform(0.0, jitter_s)
            case _:
                return 0.0


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that the other side hears a reset, not an end."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORTIVE)
    writer.transport.abort()


class Proxy:
    """All doors of one swarm; an asynchronous context manager that owns everything behind them.

    Args:
        host: where the doors listen, and where the targets are.
        draw: of the jitter.
    """

    def __init__(self, host: str = "127.0.0.1", draw: Callable[[], random.Random] = random.Random) -> None:
        """No door yet."""
        self._host, self._draw = host, draw()
        self._doors: dict[str, Door] = {}
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for door in self._doors.values():
            await door.close()
        self._doors.clear()
        await self._group.__aexit__(kind, error, traceback)

    async def open(self, name: str, target_port: int) -> Door:
        """The door called `name`, made if there is none: it forwards to `target_port`.

        Raises:
            SwarmfreeError: the system gives no port.
        """
        if name not in self._doors:
            door = Door(self._host, (self._host, target_port), self._group, self._draw)
            await door.open()
            self._doors[name] = door
        return self._doors[name]

    def door(self, name: str) -> Door | None:
        """The door of this name."""
        return self._doors.get(name)

    def ports(self) -> tuple[int, ...]:
        """Ports on which this proxy has doors."""
        return tuple(sorted(door.port for door in self._doors.values()))
