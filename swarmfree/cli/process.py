"""What a long-lived peer asks of its own process: to keep freed memory for the next microbatch, and to leave what never changes uncollected."""

from __future__ import annotations

import ctypes
import gc
import platform

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX = -3, -1, -8
MMAP_THRESHOLD_BYTES = 32 << 20
"""The largest that glibc takes on 64-bit machines."""
TRIM_THRESHOLD_BYTES = 256 << 20
YOUNG_OBJECTS_MAX = 10_000


def keep_freed_memory() -> None:
    """Have the C library reuse the memory of freed tensors and payloads, not give it back and fault it in again, zeroed, a moment later.

    To be called before the process starts threads. Does nothing where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_ARENA_MAX, 1)
    libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def settle_garbage() -> None:
    """Take everything that is loaded out of the collector's sight: with torch and hivemind that is most of a million objects.

    To be called once, when the peer is assembled. Without it each full collection stops all threads for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)
