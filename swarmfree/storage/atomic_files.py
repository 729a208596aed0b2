"""Files that are there whole or not at all: written beside their place, flushed to the disk, then
renamed into it.

Turns the system's refusals (disk full, no permission, file too large) into one line for a person.
Keeps no state.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import uuid4

from swarmfree.protocol.errors import SwarmfreeError

SECRET_MODE = 0o600


@contextlib.contextmanager
def told_in_one_line(place: Path, what: str) -> Iterator[None]:
    """Raise an `OSError` of the block as one `SwarmfreeError` that names `place` and `what` was
    being done.
    """
    try:
        yield
    except OSError as error:
        raise SwarmfreeError(f"{place}: {what} failed: {error.strerror or error}") from error


def write_whole(file: Path, content: bytes | Iterable[bytes], mode: int = 0o666) -> None:
    """Write a file atomically; readers see the old file, the new one or none.

    Args:
        file: its place.
        content: all of it.
        mode: who may read and write it, as far as the process's own mask lets them.

    Raises:
        SwarmfreeError: the disk is full or refuses; nothing is left behind.
    """

    def write(temporary: Path) -> None:
        temporary.touch(mode)
        with temporary.open("wb") as stream:
            for piece in (content,) if isinstance(content, bytes) else content:
                stream.write(piece)

    place_whole(file, write)


def place_whole(file: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file under a name of its own, and rename it to `file` once it lies on the
    disk.

    Raises:
        SwarmfreeError: the disk is full or refuses; nothing is left behind.
    """
    temporary = file.with_name(f".{file.name}.{uuid4().hex[:8]}")
    with told_in_one_line(file, "writing"):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            flush_to_disk(temporary)
            temporary.replace(file)
            flush_to_disk(file.parent)  # else the name may be lost, with what is removed for it
        finally:
            temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Wait until what was written to a file, or the names in a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems over a network have no such thing for folders
            raise
    finally:
        os.close(descriptor)
