"""Files that are there whole or not at all: written beside their place, flushed to the disk, then
renamed into it.

Turns the system's refusals (disk full, no permission, file too large) into one line for a person.
Keeps no state.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import uuid4

from swarmfree.protocol.errors import SwarmfreeError

SECRET_MODE = 0o600


def existing_folder(path: Path) -> Path:
    """The folder that is there already of those in which a path lies, the path itself among
    them.
    """
    there = path.absolute()
    while not there.is_dir() and there != there.parent:
        there = there.parent
    return there


def size_words(size_bytes: int) -> str:
    """A size on a disk for people: ``12 kB``, ``3.4 MB``."""
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e5 else f"{size_bytes / 1e3:,.0f} kB"


def refusal_words(error: OSError, place: Path, size_bytes: int = 0) -> str:
    """The system's reason; where a disk is full, also how much is free there, or in the folder of
    those in which the place lies that is there.

    Args:
        error: as the system raised it.
        place: what was to be written; whoever shows the words names it.
        size_bytes: that were to be written; 0 where nobody knows.
    """
    why = error.strerror or str(error)
    if error.errno != errno.ENOSPC:
        return why
    there = existing_folder(place)
    try:
        free_bytes = shutil.disk_usage(there).free
    except OSError:
        return why
    where = "there" if there in {place.absolute(), place.absolute().parent} else f"in {there}"
    wanted = f", and about {size_words(size_bytes)} are wanted" if size_bytes else ""
    return f"{why}: {size_words(free_bytes)} are free {where}{wanted}"


@contextlib.contextmanager
def told_in_one_line(place: Path, what: str, size_bytes: int = 0) -> Iterator[None]:
    """Raise an `OSError` of the block as one `SwarmfreeError` that names `place` and `what` was
    being done; `size_bytes` are to be written, 0 where nobody knows.
    """
    try:
        yield
    except OSError as error:
        raise SwarmfreeError(f"{place}: {what} failed: {refusal_words(error, place, size_bytes)}") from error


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

    place_whole(file, write, len(content) if isinstance(content, bytes) else 0)


def place_whole(file: Path, write: Callable[[Path], None], size_bytes: int = 0) -> None:
    """Let `write` make a file under a name of its own, and rename it to `file` once it lies on the
    disk.

    Args:
        file: its place.
        write: makes it at the path that it is given.
        size_bytes: of the file, about; 0 where nobody knows.

    Raises:
        SwarmfreeError: the disk is full or refuses; nothing is left behind.
    """
    temporary = file.with_name(f".{file.name}.{uuid4().hex[:8]}")
    with told_in_one_line(file, "writing", size_bytes):
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
