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
        try:
            self._folder.mkdir(mode=OWN_FOLDER_MODE, exist_ok=True)
        except OSError:  # no other peer can find it there either
            is_shared = False
        else:
            is_shared = True
        with contextlib.ExitStack() as promised, self._alone() as is_alone:
            path = self._folder / f"{os.getpid()}-{self._count}"
            self._count += 1
            promised.callback(self._withdraw, path)
            room = self._room_bytes() if is_alone else 0
            if room < needed_bytes:
                raise SwarmfreeError(
                    f"it needs {needed_bytes / 1e6:,.0f} MB of memory; {room / 1e6:,.0f} MB are there for guests"
                )
            if not is_shared:
                return promised.pop_all()
            file = promised.enter_context(path.open("w", encoding="ascii"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(str(needed_bytes))
            file.flush()
            return promised.pop_all()

    def _room_bytes(self) -> int:
        return max(0, int(ROOM_SHARE * (self._free_bytes() or 0)) - sum(map(self._promised_bytes, self._folder.glob("*-*"))))

    def _promised_bytes(self, path: Path) -> int:
        """What one promise says; nothing where whoever made it has ended."""
        try:
            with path.open(encoding="ascii") as file:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    self._withdraw(path)
                    return 0
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0

    def _withdraw(self, path: Path) -> None:
        """The last promise takes the folder with it."""
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            self._folder.rmdir()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process looks or promises meanwhile; where nothing is promised, nobody
        has to be waited for. Nobody waits in any case: one of them may stand still.
        """
        with contextlib.ExitStack() as opened:
            try:
                folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.callback(os.close, folder)
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except FileNotFoundError:
                is_alone = True
            except OSError:
                is_alone = False
            else:
                is_alone = True
            yield is_alone
