"""What a peer asks of its own process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from swarmfree.cli.process import START_NICENESS, load_gently

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


async def test_what_is_loaded_needs_no_thread() -> None:
    """A peer that was forked from a fork server has everything: it starts at once."""
    before = threading.active_count()
    await load_gently("asyncio", "os")
    assert threading.active_count() == before
