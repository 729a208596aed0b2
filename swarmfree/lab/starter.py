"""How the processes of a local swarm are started: forked from a fork server where this system can,
one by one elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from swarmfree.lab.fork_server import ForkServer
from swarmfree.lab.processes import Child, start_child
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.storage.atomic_files import refusal_words


class Starter:
    """Starts commands of ours."""

    def __init__(self, program: Sequence[str], fork_server: Sequence[str], words: Path) -> None:
        """Nothing started yet.

        Args:
            program: how to start a command of ours by itself.
            fork_server: how to start what forks them instead; empty = never.
            words: log of the fork server.
        """
        self._program, self._fork_server_command, self._words = tuple(program), tuple(fork_server), words
        self._fork_server: ForkServer | None = None

    async def begin(self) -> None:
        """Start the fork server, if there is to be one.

        Raises:
            SwarmfreeError: it cannot be started.
        """
        if self._fork_server_command and ForkServer.is_supported():
            make_folder_of(self._words)
            self._fork_server = ForkServer()
            await self._fork_server.launch(self._fork_server_command, self._words)

    async def start(self, name: str, arguments: Sequence[str], log_path: Path, on_line: Callable[[str], None]) -> Child:
        """Start one command; it dies with this process.

        Raises:
            SwarmfreeError: it cannot be started, or its log cannot be written.
        """
        make_folder_of(log_path)
        if self._fork_server is not None:
            return await self._fork_server.start(name, arguments, log_path, on_line)
        command = (*self._program, *arguments, "--die-with-parent", str(os.getpid()))
        return await start_child(name, command, log_path, on_line)

    @property
    def is_lost(self) -> bool:
        """Whether the fork server has ended, and with it whoever was forked from it."""
        return self._fork_server is not None and self._fork_server.is_lost

    def give_up(self) -> None:
        """Let nobody wait for a start any more."""
        if self._fork_server is not None:
            self._fork_server.give_up()

    async def end(self) -> None:
        """End the fork server, and with it whoever still runs."""
        if self._fork_server is not None:
            await self._fork_server.end()


def make_folder_of(path: Path) -> None:
    """Make the folder that a file is to lie in.

    Raises:
        SwarmfreeError: it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SwarmfreeError(f"{path.parent} cannot be made: {refusal_words(error, path.parent)}") from error
