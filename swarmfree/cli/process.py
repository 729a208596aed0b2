"""What a long-lived peer asks of its own process: to start behind those that train, to open many
connections, to reuse memory, to leave what never changes uncollected.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import platform
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX = -3, -1, -8
MMAP_THRESHOLD_BYTES = 32 << 20
"""The largest that glibc takes on 64-bit machines."""
TRIM_THRESHOLD_BYTES = 256 << 20
YOUNG_OBJECTS_MAX = 2_000
OLDER_PASSES_MAX = 2
"""Collections of the young objects until the older ones are looked at; of those, until all are."""
HANDLES_WANTED = 8192
"""File handles: a peer and its relay use two thousand at most, p2pd has its own."""


GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
START_NICENESS = 5
"""A third of the processor of whoever trains, where both want the same one."""


def free_memory_bytes() -> int | None:
    """Memory that this process, or one beside it, may take; None where the system does not say.

    In a container that is what its limit leaves, where the machine has more.
    """
    known = [free for free in (_machine_free_bytes(), container_free_bytes()) if free is not None]
    return min(known, default=None)


def container_free_bytes(groups: Path = GROUPS, own: Path = OWN_GROUPS) -> int | None:
    """What the limits of this process's control groups leave; None where none has a limit.

    A group's limit holds for all below it, so the least counts. What the kernel keeps of files is
    given up before a process is refused.

    Args:
        groups: where control groups are mounted.
        own: says in which groups this process is.

    Source: Linux, `Documentation/admin-guide/cgroup-v2.rst`, and `cgroup-v1/memory.rst`.
    """
    try:
        lines = own.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    found = list[int]()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            top, limit, used, cached = groups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, used, cached = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        group = top / path.strip("/")
        for each in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number, and the uppermost has no such file
                most = int((each / limit).read_text(encoding="ascii"))
                taken = int((each / used).read_text(encoding="ascii"))
                stat = dict(pair.split() for pair in (each / "memory.stat").read_text(encoding="ascii").splitlines())
                found.append(max(0, most - taken + int(stat.get(cached, 0))))
    return min(found, default=None)


def _machine_free_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def allow_handles() -> None:
    """Let this process open as many files and connections as it may want, where the system lets it:
    a usual limit of 1,024 is a soft one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HANDLES_WANTED if hard == resource.RLIM_INFINITY else min(HANDLES_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def load_gently(*modules: str) -> None:
    """Import modules in a thread of their own, behind all other work of this machine: with torch
    and hivemind that is three seconds of a processor.

    Peers that train here are not slowed by one that starts. A thread's niceness ends with it; a
    process could not take its own back.
    """
    if all(module in sys.modules for module in modules):
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="swarmfree-load", initializer=_give_way)
    try:
        for module in modules:
            await asyncio.get_running_loop().run_in_executor(pool, importlib.import_module, module)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    """Lower this thread's priority, where a thread has one of its own."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + START_NICENESS)


def keep_freed_memory() -> None:
    """Have the C library reuse the memory of freed tensors and payloads, not give it back and fault
    it in again, zeroed, a moment later.

    To be called before the process starts threads. Does nothing where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_ARENA_MAX, 1)
    libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def give_back_memory() -> None:
    """Give the system back what lies free between what is used: after a caller that left much of
    its answers unread, that is most of what they took.

    It takes milliseconds, and the interpreter's lock is free meanwhile. Does nothing where the C
    library is not glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def settle_garbage() -> None:
    """Take everything that is loaded out of the collector's sight: with torch and hivemind that is
    most of a million objects.

    To be called once, when a peer or bootstrap node is assembled. Without it each full collection
    stops all threads for a tenth of a second; with it for some milliseconds, so that all are looked
    at often.

    Source: CPython, `Modules/gcmodule.c`, `gc_collect_generations`: no full collection begins until
    a quarter as many objects are new as the last one has left.
    """
    gc.collect()
    gc.freeze()
    # The last one left a million, and freezing takes none off that count; another one does
    gc.collect()
    gc.set_threshold(YOUNG_OBJECTS_MAX, OLDER_PASSES_MAX, OLDER_PASSES_MAX)
