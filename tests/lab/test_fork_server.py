"""The fork server: its children are processes of their own, and none outlives it or the process
that started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from swarmfree.lab.fork_server import ForkServer
from swarmfree.lab.processes import is_there, stop_children
from swarmfree.protocol.errors import SwarmfreeError

pytestmark = pytest.mark.skipif(not ForkServer.is_supported(), reason="only Linux forks from a fork server")

PROGRAM = """
import os, random, sys, time
from swarmfree.lab.fork_server import serve

def run(arguments):
    print(arguments[0], os.getpid(), os.getsid(0), random.random(), flush=True)
    if arguments[0] == "crash":
        raise RuntimeError("oops")
    if arguments[0] == "wait":
        time.sleep(60)
    sys.exit(int(arguments[1]))

serve(lambda: None, run)
"""


@asynccontextmanager
async def launched(folder: Path) -> AsyncIterator[ForkServer]:
    """A fork server of a small program; it ends afterwards."""
    fork_server = ForkServer()
    await fork_server.launch([sys.executable, "-c", PROGRAM], folder / "fork-server.txt")
    try:
        yield fork_server
    finally:
        await fork_server.end()


async def test_children_have_words_and_codes_of_their_own(tmp_path: Path) -> None:
    """Each child is a process in a session of its own, with its own output, exit code and random
    numbers; a crash is a traceback and code 1.
    """
    said: dict[str, list[str]] = {name: [] for name in ("one", "two", "crash")}
    async with launched(tmp_path) as fork_server:
        one = await fork_server.start("one", ["one", "0"], tmp_path / "one.txt", said["one"].append)
        two = await fork_server.start("two", ["two", "7"], tmp_path / "two.txt", said["two"].append)
        crash = await fork_server.start("crash", ["crash"], tmp_path / "crash.txt", said["crash"].append)
        assert [await child.wait() for child in (one, two, crash)] == [0, 7, 1]
        words = [lines[0].split() for lines in said.values()]
        assert [word[0] for word in words] == ["one", "two", "crash"]
        assert [int(word[1]) for word in words] == [one.pid, two.pid, crash.pid]
        assert all(word[1] == word[2] for word in words)
        assert len({word[3] for word in words}) == 3
        assert (tmp_path / "crash.txt").read_text().endswith("RuntimeError: oops\n")


async def test_signals_reach_a_child(tmp_path: Path) -> None:
    """A child that is killed ends with the signal as its code, and can be stopped as any other."""
    ready: asyncio.Queue[str] = asyncio.Queue()
    async with launched(tmp_path) as fork_server:
        children = [await fork_server.start(name, ["wait"], tmp_path / "log.txt", ready.put_nowait) for name in ("one", "two")]
        for _ in children:
            await ready.get()
        children[0].send(signal.SIGKILL)
        assert await children[0].wait() == -signal.SIGKILL
        assert await stop_children(children, grace_s=2.0) == ()
        assert [child.code for child in children] == [-signal.SIGKILL, -signal.SIGTERM]


async def test_a_fork_server_takes_its_children_with_it(tmp_path: Path) -> None:
    """When the fork server is killed, its children are killed, and whoever wants another one is
    told in one line.
    """
    ready: asyncio.Queue[str] = asyncio.Queue()
    async with launched(tmp_path) as fork_server:
        child = await fork_server.start("child", ["wait"], tmp_path / "log.txt", ready.put_nowait)
        await ready.get()
        process = psutil.Process(child.pid)
        os.kill(fork_server.pid, signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        for _ in range(100):
            await asyncio.sleep(0.02)
            if not is_there(process):
                break
        assert not is_there(process)
        with pytest.raises(SwarmfreeError, match=r"another cannot be started: the fork server has ended; see .*fork-server.txt"):
            await fork_server.start("another", ["wait"], tmp_path / "log.txt", ready.put_nowait)


async def test_the_end_of_a_fork_server_ends_what_still_runs(tmp_path: Path) -> None:
    """Whoever waits for a child of a fork server that is ended learns that it was killed."""
    ready: asyncio.Queue[str] = asyncio.Queue()
    async with launched(tmp_path) as fork_server:
        child = await fork_server.start("child", ["wait"], tmp_path / "log.txt", ready.put_nowait)
        await ready.get()
    assert await child.wait() == -signal.SIGKILL


async def test_nothing_of_a_fork_server_is_there_after_its_end(tmp_path: Path) -> None:
    """Its end waits for its children, and for the one that it was asked for last, which nobody
    waits for any more: a folder that is removed then stays removed.
    """
    ready: asyncio.Queue[str] = asyncio.Queue()
    async with launched(tmp_path) as fork_server:
        started = [await fork_server.start(str(n), ["wait"], tmp_path / f"{n}.txt", ready.put_nowait) for n in range(8)]

        async def start_late() -> None:
            with pytest.raises(SwarmfreeError, match="unwanted cannot be started"):
                await fork_server.start("unwanted", ["wait"], tmp_path / "unwanted.txt", ready.put_nowait)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(start_late())
            await asyncio.sleep(0)
            fork_server.give_up()
        await fork_server.end()
        assert not [child.pid for child in started if psutil.pid_exists(child.pid)]
        assert {await child.wait() for child in started} == {-signal.SIGKILL}
        # A name that no peer of another session has: those run side by side, and one has a `late`
        assert not [p for p in psutil.process_iter(["cmdline"]) if "swarmfree unwanted" in " ".join(p.info["cmdline"] or ())]


async def test_a_fork_server_that_cannot_load_is_one_line(tmp_path: Path) -> None:
    """Where the fork server fails before it has children, the first start says so and where its
    words are.
    """
    fork_server = ForkServer()
    await fork_server.launch([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path / "fork-server.txt")
    with pytest.raises(SwarmfreeError, match="child cannot be started: the fork server has ended"):
        await fork_server.start("child", ["wait"], tmp_path / "log.txt", print)
    await fork_server.end()
    assert (tmp_path / "fork-server.txt").read_text() == "no such thing\n"
    with pytest.raises(SwarmfreeError, match="the fork server cannot be started: No such file or directory"):
        await ForkServer().launch(["/nonexistent/program"], tmp_path / "fork-server.txt")


async def test_nobody_waits_for_a_start_that_begins_after_it_was_given_up(tmp_path: Path) -> None:
    """A Ctrl-C may come between the order to start a child and the waiting for it: the order fails
    at once, though the fork server still loads.
    """
    fork_server = ForkServer()
    await fork_server.launch([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "fork-server.txt")
    fork_server.give_up()
    async with asyncio.timeout(5):
        with pytest.raises(SwarmfreeError, match="the fork server has ended"):
            await fork_server.start("late", ["wait"], tmp_path / "late.txt", lambda _: None)
        await fork_server.end()
