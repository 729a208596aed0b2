"""Memory for what is kept for minutes among what lives for milliseconds: taken from the system apart, and used again.

Left where they were allocated, kept tensors cut the heap into holes, which every later allocation of a forward or backward pass has to search.
"""

from __future__ import annotations

import mmap
from collections import defaultdict

from swarmfree.protocol.engine_port import Writable

APART_BYTES, ALONE_BYTES = 64 << 10, 32 << 20
"""Buffers from this size on are mapped; smaller ones lie in the heap, where they do no harm, and larger ones lie apart from it anyway."""

Buffer = bytes | Writable


class BufferPool:
    """Copies of tensors, in buffers of their sizes, of which an iteration has few.

    Args:
        spare_bytes_max: of buffers that were given back, so much is kept for later; 0 = none.

    Attributes:
        spare_bytes_max: as above, may be changed.
        spare_bytes: what is kept for later now.
    """

    def __init__(self, spare_bytes_max: int) -> None:
        """Nothing taken."""
        self.spare_bytes_max = spare_bytes_max
        self._spare: defaultdict[int, list[Writable]] = defaultdict(list)
        self.spare_bytes = 0

    def take(self, data: bytes) -> Buffer:
        """A copy of `data`, or itself."""
        if len(data) >= ALONE_BYTES:
            return data
        buffer = self.room(len(data))
        buffer[:] = data
        return buffer

    def room(self, size: int) -> Writable:
        """A buffer to be written; what is in it may be anything."""
        if spare := self._spare[size]:
            self.spare_bytes -= size
            return spare.pop()
        return _apart(size) if size >= APART_BYTES else bytearray(size)

    def give(self, buffer: Buffer) -> None:
        """Nobody reads this one any more."""
        if isinstance(buffer, bytes):
            return
        self._spare[len(buffer)].append(buffer)
        self.spare_bytes += len(buffer)
        self.shrink(self.spare_bytes - self.spare_bytes_max)

    def shrink(self, size_bytes: int) -> int:
        """Keep so much less for later, or somewhat less than that; how much less it is."""
        before_bytes = self.spare_bytes
        while self.spare_bytes and before_bytes - self.spare_bytes < size_bytes:
            size = next(size for size, buffers in self._spare.items() if buffers)
            self._spare[size].pop()
            self.spare_bytes -= size
        return before_bytes - self.spare_bytes


def _apart(size: int) -> Writable:
    """Where the system maps no more, in the heap after all."""
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return bytearray(size)
