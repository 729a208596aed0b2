"""Ports that stay one swarm's own while its peers come and go.

A port found free is taken by whoever listens first, and a second swarm on this machine looks for
ports too. So each is bound here and never listened on: Linux lets a peer listen on it all the same,
since its listener asks for `SO_REUSEADDR` as this socket does, and refuses it to a trial that does
not ask.
"""

from __future__ import annotations

import contextlib
import random
import socket
from types import TracebackType
from typing import Self

from swarmfree.protocol.errors import SwarmfreeError

HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Below those that the system gives away by itself, so that no connection takes a peer's port while
the peer is away.
"""
TRIALS = 200


class HeldPorts:
    """A context manager; the ports are anybody's again when it ends."""

    def __init__(self) -> None:
        """None yet."""
        self._draw = random.Random()
        self._sockets = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Ready."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Let all go."""
        self._sockets.close()

    def take(self) -> int:
        """Find a port of this machine that no process listens on or holds, and hold it.

        Raises:
            SwarmfreeError: there is none.
        """
        for port in self._draw.sample(PORTS, TRIALS):
            with contextlib.suppress(OSError), contextlib.ExitStack() as trial:
                holder = trial.enter_context(socket.socket())
                holder.bind((HOST, port))  # without the option, so that nobody else holds it either
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._sockets.push(trial.pop_all())
                return port
        raise SwarmfreeError(f"no free port among {TRIALS} between {PORTS.start} and {PORTS.stop}")
