"""Child processes: lines, ends, and that nothing outlives its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swarmfree.lab.processes import LineCutter, descendants, end_processes, is_there, remove_sockets, start_child, stop_children
from swarmfree.protocol.errors import SwarmfreeError


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _gone(pid: int, within_s: float) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_lines_are_cut_wherever_the_chunks_end() -> None:
    """A line that comes in pieces is one line, and several lines in one piece are several."""
    cutter = LineCutter()
    assert cutter.feed(b"one\ntw") == [b"one"]
    assert cutter.feed(b"o") == []
    assert cutter.feed(b"\n\nthree\n") == [b"two", b"", b"three"]


def test_a_line_above_the_limit_is_left_out() -> None:
    """However long a line is, memory stays bounded, and the next one is whole again."""
    cutter = LineCutter(size_max=10)
    assert cutter.feed(b"x" * 8) == []
    assert cutter.feed(b"x" * 8) == []
    assert cutter.feed(b"x" * 8) == []
    assert cutter.feed(b"xx\nshort\n" + b"y" * 11 + b"\nend\n") == [b"short", b"end"]


async def test_a_child_tells_its_lines_and_its_end(tmp_path: Path) -> None:
    """Every line of stdout arrives before the end, also big ones; stderr goes to the log; the exit
    code is the child's.
    """
    lines: list[str] = []
    code = "import sys; print('a' * 300000); print('last'); sys.stderr.write('oops\\n'); sys.exit(7)"
    child = await start_child("child", _python(code), tmp_path / "log.txt", lines.append)
    assert await child.wait() == 7
    assert [len(line) for line in lines] == [300000, 4]
    assert (tmp_path / "log.txt").read_text() == "oops\n"
    assert list(child.words) == ["oops"]


async def test_a_grandchild_that_holds_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """The end of a child is known though something it has started keeps its output open."""
    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(p.pid)"
    lines: list[str] = []
    began_s = time.monotonic()
    child = await start_child("child", _python(code), tmp_path / "log.txt", lines.append)
    try:
        assert await child.wait() == 0
        assert time.monotonic() - began_s < 5
    finally:
        os.kill(int(lines[0]), signal.SIGKILL)


async def test_a_deaf_child_is_killed_after_the_grace(tmp_path: Path) -> None:
    """SIGTERM ends who listens; who does not is killed by pid after the grace, and named."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    meek = "import time; print('ready', flush=True); time.sleep(60)"
    ready: asyncio.Queue[str] = asyncio.Queue()
    children = [
        await start_child(name, _python(code), tmp_path / "log.txt", ready.put_nowait)
        for name, code in (("deaf", deaf), ("meek", meek))
    ]
    for _ in children:
        await ready.get()
    assert await stop_children(children, grace_s=0.5) == ("deaf",)
    assert [child.code for child in children] == [-signal.SIGKILL, -signal.SIGTERM]


async def test_what_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    """A program that is not there, or a log that cannot be written, is an operating failure with a
    sentence.
    """
    with pytest.raises(SwarmfreeError, match="child cannot be started: No such file or directory"):
        await start_child("child", ["/nonexistent/program"], tmp_path / "log.txt", print)
    with pytest.raises(SwarmfreeError, match="child cannot be started"):
        await start_child("child", _python(""), tmp_path / "no" / "log.txt", print)


def _parent_of_a_bound_child() -> str:
    child = (
        "import os, sys, time\\n"
        "from swarmfree.lab.parent_death import die_with_parent\\n"
        "die_with_parent(int(sys.argv[1]))\\n"
        "print('bound', os.getpid(), flush=True)\\n"
        "time.sleep(60)"
    )
    return (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', '''{child}''', str(os.getpid())], start_new_session=True)\n"
        "time.sleep(60)"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's request is Linux's")
def test_a_child_dies_with_its_killed_parent() -> None:
    """SIGKILL of the parent, which can clean up nothing, ends a child in a session of its own at
    once.
    """
    with subprocess.Popen(_python(_parent_of_a_bound_child()), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[1])
        parent.kill()
        assert _gone(pid, within_s=2)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's request is Linux's")
def test_a_child_whose_parent_is_already_gone_ends_itself() -> None:
    """A child that asks too late, when its parent has died, does not live on."""
    code = "from swarmfree.lab.parent_death import die_with_parent; die_with_parent(1); print('alive')"
    done = subprocess.run(_python(code), check=False, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_descendants_are_found_and_ended() -> None:
    """What a process has started, and what that has started, is found and can be ended."""
    start = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {}])"
    inner = start.format("'import time; time.sleep(60)'") + "; print(1, flush=True); time.sleep(60)"
    outer = start.format(f"'''{inner}'''") + "; time.sleep(60)"
    with subprocess.Popen(_python(outer), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        below = descendants(process.pid)
        assert len(below) == 2
        assert end_processes(below) == 2
        assert all(_gone(p.pid, within_s=5) for p in below)
        assert not any(is_there(p) for p in below)
        process.kill()
    assert descendants(process.pid) == ()


def test_only_sockets_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Socket files that a killed process left are removed at any depth; other files stay."""
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    monkeypatch.chdir(deep)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s.sock")
    assert remove_sockets(tmp_path) == 1
    assert os.listdir(deep) == ["file"]
