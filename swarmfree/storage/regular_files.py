"""Opening what somebody else may have laid into a folder: a file, and nothing that opening or
reading would wait for, as it does for a named pipe that nobody writes to.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO


def open_regular(file: Path) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        OSError: it is missing or refused, or it is a folder, a named pipe or a device.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    raise OSError(errno.EINVAL, "it is no regular file", str(file))


def read_regular(file: Path) -> bytes:
    """All of a file.

    Raises:
        OSError: see `open_regular`.
    """
    with open_regular(file) as stream:
        return stream.read()
