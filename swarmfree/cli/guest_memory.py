"""Memory for guests, shared by all peers of one machine: each looks at the same free memory, and
none takes what another one has just promised to a guest of its own.

A promise is a file in a folder that all processes of this user know, locked as long as the promise
holds: with a process that is killed its promises end. A guest takes its memory while it copies a
stage; from then on the system counts it, and the promise is withdrawn.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from swarmfree.cli.process import free_memory_bytes
from swarmfree.protocol.errors import SwarmfreeError

ROOM_SHARE = 0.5
"""Of the memory that is free on this machine, what guests may take; others start programs too."""
OWN_FOLDER_MODE = 0o700
LOCK = "lock"


def promises_folder() -> Path:
    """Where peers of this user on this machine find each other's promises."""
    return Path(tempfile.gettempdir()) / f"swarmfree-guests-{os.getuid()}"


class GuestMemory:
    """What guests of this process may take.

    Args:
        folder: of the promises of all processes.
        free_bytes: that a new process may take; None where the system does not say.
    """

    def __init__(self, folder: Path, free_bytes: Callable[[], int | None] = free_memory_bytes) -> None:
        """Nothing is promised."""
        self._folder, self._free_bytes = folder, free_bytes
        self._count = 0

    def room_bytes(self) -> int | None:
        """A share of what is free, without what is promised; 0 where the system does not say what
        is free, None where another process looks at the moment.
        """
        with self._alone() as is_alone:
            return self._room_bytes() if is_alone else None

    def promise(self, needed_bytes: int) -> contextlib.ExitStack:
        """Promise memory to a guest until what is returned is closed.

        Raises:
            SwarmfreeError: there is not as much, or another process is about to promise some.
        """
        promised = contextlib.ExitStack()
        with self._alone() as is_alone:
            room = self._room_bytes() if is_alone else 0
            if room < needed_bytes:
                raise SwarmfreeError(
                    f"it needs {needed_bytes / 1e6:,.0f} MB of memory; {room / 1e6:,.0f} MB are there for guests"
                )
            path = self._folder / f"{os.getpid()}-{self._count}"
            self._count += 1
            file = promised.enter_context(path.open("w", encoding="ascii"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(str(needed_bytes))
            file.flush()
            promised.callback(path.unlink, missing_ok=True)
        return promised

    def _room_bytes(self) -> int:
        return max(0, int(ROOM_SHARE * (self._free_bytes() or 0)) - sum(map(_promised_bytes, self._folder.glob("*-*"))))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process looks or promises meanwhile. Nobody waits: one of them may stand
        still.
        """
        with contextlib.ExitStack() as opened:
            try:
                self._folder.mkdir(mode=OWN_FOLDER_MODE, parents=True, exist_ok=True)
                lock = opened.enter_context((self._folder / LOCK).open("w", encoding="ascii"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True


def _promised_bytes(path: Path) -> int:
    """What one promise says; nothing where whoever made it has ended."""
    try:
        with path.open(encoding="ascii") as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
                return 0
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0
