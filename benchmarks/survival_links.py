"""Links between peers that can be cut: a proxy before each peer's port that knows which peer every
connection comes from.

A door of `chaos.fault_proxy` stands before one peer and treats all callers alike. A link is a pair
of peers, and a cut link is silent both ways: nothing that either sends the other arrives, and
nobody hears a reset, not even that of a peer which is killed meanwhile; once it is mended what
waited goes on its way, as after lost packets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psutil

HOST = "127.0.0.1"
PIECE_BYTES = 1 << 16
CONNECT_WITHIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Connection:
    """One caller's connection to one peer; `caller` is empty while nobody has asked who that is."""

    caller_port: int
    callee: str
    caller: str = ""


class Links:
    """All links of one swarm; an asynchronous context manager.

    Args:
        owners: pid -> name of each peer's process that lives now.
    """

    def __init__(self, owners: Callable[[], Mapping[int, str]]) -> None:
        """No door yet."""
        self._owners = owners
        self._ports: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks = asyncio.TaskGroup()
        self._serving: set[asyncio.Task[None]] = set()
        self._connections: set[_Connection] = set()
        self._is_cut: Callable[[str, str], bool] | None = None
        self._late: dict[str, float] = {}
        self._mended = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Ready for doors."""
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close everything."""
        for server in self._servers:
            server.close()
        for task in tuple(self._serving):
            task.cancel()
        await self._tasks.__aexit__(kind, error, traceback)

    async def open(self, name: str, target_port: int) -> int:
        """The port of the door before a peer that listens on `target_port`."""
        if name not in self._ports:

            def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = self._tasks.create_task(self._serve(name, target_port, reader, writer))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)

            server = await asyncio.start_server(welcome, HOST, 0)
            self._servers.append(server)
            self._ports[name] = server.sockets[0].getsockname()[1]
        return self._ports[name]

    # ---- faults ----------------------------------------------------------------------------------

    def cut(self, one: str, other: str = "") -> None:
        """From now on nothing passes between these two, or between one and everybody."""
        self._mended.clear()
        self._identify()
        self._is_cut = lambda a, b: one in {a, b} and (not other or other in {a, b})

    def slow(self, callee: str, late_s: float) -> None:
        """Whatever passes this peer's door is late by so much, both ways."""
        self._late[callee] = late_s

    def mend(self) -> None:
        """All links are good."""
        self._is_cut = None
        self._late.clear()
        self._mended.set()

    def cut_off(self, *names: str) -> None:
        """From now on nothing passes between any of these and anybody."""
        self._mended.clear()
        self._identify()
        self._is_cut = lambda a, b: not {a, b}.isdisjoint(names)

    # ---- connections -----------------------------------------------------------------------------

    def _identify(self) -> None:
        """Find out whose connections are those of which that is not known."""
        owners = self._owners()
        by_port = {c.laddr.port: owners[c.pid] for c in psutil.net_connections("tcp") if c.pid in owners and c.raddr}
        for connection in self._connections:
            connection.caller = connection.caller or by_port.get(connection.caller_port, "")

    async def _pass(self, connection: _Connection) -> None:
        """Wait until something may pass."""
        while self._is_cut is not None:
            if not connection.caller:
                self._identify()
            if not self._is_cut(connection.caller, connection.callee):
                return
            await self._mended.wait()

    async def _serve(self, name: str, target_port: int, reader: asyncio.StreamReader, caller: asyncio.StreamWriter) -> None:
        connection = _Connection(caller.get_extra_info("peername")[1], name)
        self._connections.add(connection)
        opened = [caller]
        try:
            await self._pass(connection)
            async with asyncio.timeout(CONNECT_WITHIN_S):
                target_reader, target = await asyncio.open_connection(HOST, target_port)
            opened.append(target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(connection, reader, target))
                both.create_task(self._pump(connection, target_reader, caller))
        except* (OSError, TimeoutError):
            pass
        finally:
            self._connections.discard(connection)
            for writer in opened:
                writer.transport.abort()

    async def _pump(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(PIECE_BYTES):
                await asyncio.sleep(self._late.get(connection.callee, 0.0))
                await self._pass(connection)
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            await self._pass(connection)  # that an end is gone passes a cut link no sooner than bytes
            raise
        await self._pass(connection)
        with contextlib.suppress(OSError):
            writer.write_eof()
