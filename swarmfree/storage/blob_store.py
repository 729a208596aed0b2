"""What a peer keeps for others on its own disk: blobs by name, gone when the peer is.

Implements `ports.Shelf`. Nothing on it outlives the process: a peer that comes back is a new member
and is given everything anew, so the folder is emptied at the start. Writing and reading happen on a
thread of their own, so that neither the event loop nor the device waits for a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from swarmfree.storage.atomic_files import told_in_one_line

SUFFIX = ".kept"
_NAME = re.compile(r"[a-z0-9-]+")


class FolderShelf:
    """A folder of blobs.

    Args:
        folder: this peer's own; whatever an earlier life left there is removed.

    Raises:
        SwarmfreeError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        """Empty."""
        self._folder = folder
        with told_in_one_line(folder, "making the folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self._remove_all()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="swarmfree-shelf")

    async def put(self, name: str, data: bytes) -> bool:
        """Keep a blob; False where the disk is full or refuses, and nothing is left of it then."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._put, name, data)

    async def get(self, name: str, start: int = 0, size: int | None = None) -> bytes | None:
        """`size` bytes from `start` on, all that follow for None; None where it is not there."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._get, name, start, size)

    def drop(self, name: str) -> None:
        """Remove a blob, if it is there, once what was asked before is done."""
        self._pool.submit(self._drop, name)

    async def clear(self) -> None:
        """Remove all blobs, once what was asked before is done."""
        await asyncio.get_running_loop().run_in_executor(self._pool, self._remove_all)

    def close(self) -> None:
        """Remove everything."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._remove_all()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _put(self, name: str, data: bytes) -> bool:
        place = self._place(name)
        try:
            with place.open(
                "r+b" if place.exists() else "wb"
            ) as stream:  # over what was there: no new pages, and nothing to clear
                stream.write(data)
                stream.truncate()
        except OSError:
            self._drop(name)
            return False
        return True

    def _get(self, name: str, start: int, size: int | None) -> bytes | None:
        try:
            with self._place(name).open("rb") as stream:
                stream.seek(start)
                data = stream.read(size)
        except OSError:
            return None
        return data if size is None or len(data) == size else None

    def _drop(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._place(name).unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        assert _NAME.fullmatch(name), f"{name!r} is no name for a shelf"
        return self._folder / f"{name}{SUFFIX}"

    def _remove_all(self) -> None:
        for place in self._folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                place.unlink()
