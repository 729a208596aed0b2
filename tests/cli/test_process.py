"""What a peer asks of its own process."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from swarmfree.cli.process import HANDLES_WANTED, START_NICENESS, allow_handles, container_free_bytes, load_gently


def _group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_a_container_s_limit_counts_where_the_machine_has_more(tmp_path: Path) -> None:
    """The least that any group on the way up leaves, of both versions; files that the kernel keeps
    are free. Where no group has a limit nothing is said, and in a container the way is not to be
    seen from inside.
    """
    own, v2, v1 = tmp_path / "own", tmp_path / "v2", tmp_path / "v1"
    _group(v2 / "a", memory__max=1000, memory__current=900, memory__stat="anon 700\ninactive_file 150")
    _group(v2 / "a/b", memory__max="max", memory__current=500, memory__stat="inactive_file 1")
    _group(v1 / "memory/c", memory__limit_in_bytes=800, memory__usage_in_bytes=900, memory__stat="total_inactive_file 20")
    _group(v1 / "memory", memory__limit_in_bytes=700, memory__usage_in_bytes=100, memory__stat="total_inactive_file 20")
    for groups, said, free in (
        (v2, "0::/a/b", 250),
        (v2, "0::/", None),
        (v1, "4:cpu:/x\n5:memory:/c\n0::/", 0),
        (v1, "5:memory:/not/seen", 620),
    ):
        own.write_text(said)
        assert container_free_bytes(groups, own) == free
    assert container_free_bytes(v2, tmp_path / "none") is None


PROBE = """
import os, threading
NICENESS = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
THREAD = threading.current_thread().name
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
async def test_a_peer_starts_behind_those_that_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is heavy is loaded by a thread that gives way to others and ends; the peer's own
    threads, old and new, do not give way.
    """
    (tmp_path / "probed_module.py").write_text(PROBE)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    await load_gently("probed_module")
    probed = sys.modules.pop("probed_module")
    assert min(before + START_NICENESS, 19) == probed.NICENESS
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    for thread in threading.enumerate():
        if thread.name == probed.THREAD:
            thread.join(5.0)
            assert not thread.is_alive()


async def test_what_is_missing_is_loaded_beside_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server has some of it: that does not stand for all."""
    (tmp_path / "missing_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    await load_gently("asyncio", "missing_module")
    assert sys.modules.pop("missing_module", None) is not None


HOLED = """
from swarmfree.cli.process import give_back_memory, keep_freed_memory

def resident_mb():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024

keep_freed_memory()
held = [b"x" * (1 << 20) for _ in range(200)]
kept, held = held[-1], None
full = resident_mb()
give_back_memory()
print(full, resident_mb())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back what is free by themselves")
def test_memory_between_what_is_used_is_given_back() -> None:
    """Of 200 MB that are free below a piece that is used, next to nothing stays resident."""
    told = subprocess.run([sys.executable, "-c", HOLED], capture_output=True, text=True, check=True, timeout=60)
    full_mb, left_mb = map(int, told.stdout.split())
    assert full_mb > 200
    assert left_mb < full_mb - 150


RINGS = """
import gc
from collections import deque
from swarmfree.cli.process import settle_garbage

loaded = [[] for _ in range(200_000)]
settle_garbage()
alive, most = deque(maxlen=3_000), 0
for number in range(100_000):
    ring = []
    ring.append(ring)
    alive.append(ring)
    if number % 500 == 0:
        most = max(most, len(gc.get_objects()))
print(most)
"""


def test_what_refers_to_itself_goes_soon_however_long_it_was_used() -> None:
    """Of rings that outlive a few collections, 3,000 at a time, few more than in use are there."""
    told = subprocess.run([sys.executable, "-c", RINGS], capture_output=True, text=True, check=True, timeout=60)
    assert int(told.stdout) < 25_000


async def test_what_is_loaded_needs_no_thread() -> None:
    """A peer that was forked from a fork server has everything: it starts at once."""
    before = threading.active_count()
    await load_gently("asyncio", "os")
    assert threading.active_count() == before


def test_a_peer_may_open_what_the_system_lets_it() -> None:
    """A low soft limit is raised as far as the hard one allows; a high one stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for before in (soft, min(soft, 1000)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
            allow_handles()
            wanted = HANDLES_WANTED if hard == resource.RLIM_INFINITY else min(HANDLES_WANTED, hard)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (max(before, wanted), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
