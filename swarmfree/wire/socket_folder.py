"""Where p2pd's control sockets lie: in the peer's own folder, whatever its length, and gone with
the process however it ends.

A unix socket's path may have 107 bytes, and a peer's folder may be deeper than that. So the sockets
are bound through the open folder (``/proc/<pid>/fd/<n>/name``), and once p2pd listens its socket is
reached through a descriptor and its name is
removed: after SIGKILL nothing lies about. Where there is no /proc, plain paths are used; what a
killed process left there is removed at the next start.

The peer's folder is locked as long as this is open: two peers in one folder would have one
identity.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from pathlib import Path

from swarmfree.protocol.errors import ConfigError

SOCKETS_FOLDER = "sockets"
_PATH_SIZE_BYTES_MAX = 107
_NAME_SIZE_BYTES_MAX = 32
_SUFFIX = ".sock"


class SocketFolder:
    """The sockets of one process in one peer's folder."""

    def __init__(self, folder: str | Path, *, proc: Path = Path("/proc")) -> None:
        """Lock `folder`, make its folder of sockets and remove stale ones; `proc` is where the
        system shows processes.

        Raises:
            ConfigError: another process uses the folder, it cannot be written, or its path is too
                long where there is no /proc.
        """
        self._folder = Path(folder).absolute() / SOCKETS_FOLDER
        self._pinned: list[int] = []
        self._descriptors: list[int] = []
        self._locked = False
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock(self._folder.parent)
            self._sockets = self._opened(self._folder)
            self._remove_sockets()
            self._through_proc = (proc / str(os.getpid()) / "fd" / str(self._sockets)).exists()
            self._check_length()
        except OSError as error:
            self.close()
            raise ConfigError(f"folder {self._folder.parent}: {error.strerror or error}") from error
        except ConfigError:
            self.close()
            raise

    @property
    def prefix(self) -> str:
        """What to put before a socket's name to get its path."""
        return f"/proc/{os.getpid()}/fd/{self._sockets}/" if self._through_proc else f"{self._folder}/"

    def pin(self, name: str) -> str:
        """Make the socket `name`, which is being listened on, outlive its name, and give the path
        to connect to.

        Raises:
            OSError: there is no such socket.
        """
        if not self._through_proc:
            return self.prefix + name
        descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=self._sockets)
        self._pinned.append(descriptor)
        os.unlink(name, dir_fd=self._sockets)
        return f"/proc/self/fd/{descriptor}"

    def unpin(self) -> None:
        """Let go of pinned sockets and remove named ones: p2pd has ended."""
        while self._pinned:
            os.close(self._pinned.pop())
        self._remove_sockets()

    def close(self) -> None:
        """Remove everything and unlock the folder. May be called twice."""
        if self._locked:  # else they are another process's
            self.unpin()
            with contextlib.suppress(OSError):
                self._folder.rmdir()
        self._locked = False
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _lock(self, folder: Path) -> None:
        _take(self._opened(folder), folder)
        self._locked = True

    def _opened(self, folder: Path) -> int:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        return descriptor

    def _check_length(self) -> None:
        longest = os.fsencode(self._folder) + b"/" + b"x" * _NAME_SIZE_BYTES_MAX
        over = len(longest) - _PATH_SIZE_BYTES_MAX
        if not self._through_proc and over > 0:
            raise ConfigError(
                f"folder {self._folder.parent}: its path is {over} bytes too long for sockets; choose a shorter one"
            )

    def _remove_sockets(self) -> None:
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                path.unlink()


def require_unused(folder: Path) -> None:
    """Whether no running peer uses a folder, as far as can be said before it is used; it need not
    be there.

    Raises:
        ConfigError: one does.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _take(descriptor, folder)
        finally:
            os.close(descriptor)


def _beside(folder: Path) -> Path:
    """A folder that is not there yet, named as one more of these."""
    kind, _, number = folder.name.rpartition("-")
    kind = kind if kind and number.isdecimal() else folder.name
    return next(other for count in itertools.count(2) if not (other := folder.with_name(f"{kind}-{count}")).exists())


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"folder {folder} is in use by another running peer or node: give each one of its own, --folder {_beside(folder)}"
        ) from error
