"""How the processes of a local swarm are started: forked from a stem where this system can, one by one elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from swarmfree.lab.fork_server import Stem
from swarmfree.lab.processes import Child, start_child
from swarmfree.protocol.errors import SwarmfreeError


class Starter:
    """Starts commands of ours."""

    def __init__(self, program: Sequence[str], stem: Sequence[str], words: Path) -> None:
        """Nothing started yet.

        Args:
            program: how to start a command of ours by itself.
            stem: how to start what forks them instead; empty = never.
            words: log of the stem.
        """
        self._program, self._stem_command, self._words = tuple(program), tuple(stem), words
        self._stem: Stem | None = None

    async def begin(self) -> None:
        """Grow the stem, if there is to be one.

        Raises:
            SwarmfreeError: it cannot be started.
        """
        if self._stem_command and Stem.can_grow():
            make_folder_of(self._words)
            self._stem = Stem()
            await self._stem.grow(self._stem_command, self._words)

    async def start(self, name: str, arguments: Sequence[str], log_path: Path, on_line: Callable[[str], None]) -> Child:
        """Start one command; it dies with this process.

        Raises:
            SwarmfreeError: it cannot be started, or its log cannot be written.
        """
        make_folder_of(log_path)
        if self._stem is not None:
            return await self._stem.start(name, arguments, log_path, on_line)
        command = (*self._program, *arguments, "--die-with-parent", str(os.getpid()))
        return await start_child(name, command, log_path, on_line)

    @property
    def is_lost(self) -> bool:
        """Whether the stem has ended, and with it whoever was forked from it."""
        return self._stem is not None and self._stem.is_lost

    def give_up(self) -> None:
        """Let nobody wait for a start any more."""
        if self._stem is not None:
            self._stem.give_up()

    async def end(self) -> None:
        """End the stem, and with it whoever still runs."""
        if self._stem is not None:
            await self._stem.end()


def make_folder_of(path: Path) -> None:
    """Make the folder that a file is to lie in.

    Raises:
        SwarmfreeError: it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SwarmfreeError(f"{path.parent} cannot be made: {error.strerror}") from error
