"""Buffer pool for logged activations: long-lived buffers outside the heap, reused by size.

Logged tensors live for minutes among tensors that live for milliseconds. Left where they were
allocated they would fragment the heap, and every later forward or backward pass would search the
holes. So they are copied into buffers that are mapped apart.
"""

from __future__ import annotations

import mmap
from collections import defaultdict

from swarmfree.protocol.engine_port import Writable

APART_BYTES, ALONE_BYTES = 64 << 10, 32 << 20
"""Buffers from this size on are mapped; smaller ones lie in the heap, where they do no harm, and
larger ones lie apart from it anyway.
"""

Buffer = bytes | Writable


class BufferPool:
    """Hands out buffers and reuses those that come back; an iteration needs only a few sizes.

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
        """Copy `data` into a buffer; data of `ALONE_BYTES` or more lies apart already and is
        returned itself.
        """
        if len(data) >= ALONE_BYTES:
            return data
        buffer = self.room(len(data))
        buffer[:] = data
        return buffer

    def room(self, size: int) -> Writable:
        """Take a buffer of `size` bytes; its content is undefined."""
        if spare := self._spare[size]:
            self.spare_bytes -= size
            return spare.pop()
        return _apart(size) if size >= APART_BYTES else bytearray(size)

    def give(self, buffer: Buffer) -> None:
        """Give a buffer back for reuse; nobody may read it afterwards."""
        if isinstance(buffer, bytes):
            return
        self._spare[len(buffer)].append(buffer)
        self.spare_bytes += len(buffer)
        self.shrink(self.spare_bytes - self.spare_bytes_max)

    def shrink(self, size_bytes: int) -> int:
        """Release spare buffers until `size_bytes` or more are free; return how many bytes were
        released.
        """
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
