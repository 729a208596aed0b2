"""`swarmfree local --respawn` and a person with `kill -9`: a peer, the bootstrap node, a p2pd of
each. For `benchmarks.survival`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.live import LiveFailed
from benchmarks.survival_world import MICROBATCHES, RUN, SHADOWS
from swarmfree.lab.chaos.leak_check import Traces
from swarmfree.lab.processes import Child, command_of, descendants
from swarmfree.lab.starter import Starter

PEERS = 4
WITHIN_S = 90.0
ENDS_WITHIN_S = 10.0
LEFT_WITHIN_S = 5.0
VICTIMS = ("peer-2", "bootstrap", "peer-1", "standby-1")
"""A replica, the bootstrap node, the only source and coordinator, a standby that has taken a place
by then.
"""
WITH_P2PD = ("peer-3", "bootstrap")
INTERRUPTED = 130


class _Local:
    """The command, and what it said."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.said: list[dict[str, Any]] = []
        self._heard = asyncio.Event()

    def hear(self, line: str) -> None:
        """Keep one line."""
        self.said.append(json.loads(line))
        self._heard.set()

    def told(self, kind: str, **fields: object) -> list[dict[str, Any]]:
        """What was said of one kind, with these fields."""
        return [e for e in self.said if e["kind"] == kind and all(e.get(key) == value for key, value in fields.items())]

    async def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait for something.

        Raises:
            LiveFailed: it takes too long, or the command has ended.
        """
        assert self.child is not None, "it was started"
        try:
            async with asyncio.timeout(WITHIN_S):
                while not is_so():
                    if not self.child.is_alive or (self.said and self.said[-1]["kind"] == "Summary"):
                        raise LiveFailed(f"local ended before: {what}: {' '.join(list(self.child.words)[-1:])}")
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            raise LiveFailed(f"not within {WITHIN_S:g} s: {what}") from None

    async def commits(self, count: int, what: str) -> None:
        """Wait for so many more commits."""
        wanted = len(self.told("IterationCommitted")) + count
        await self.until(f"{count} commits {what}", lambda: len(self.told("IterationCommitted")) >= wanted)

    def pid(self, name: str) -> int:
        """Of a process's present life."""
        return int(self.told("ProcessStarted", name=name)[-1]["pid"])

    async def kill(self, name: str) -> str:
        """Kill a process by its number: the swarm goes on, and it comes back."""
        lives, begun_s = len(self.told("Started", peer=name)), time.monotonic()
        os.kill(self.pid(name), signal.SIGKILL)
        await self.until(f"{name} is told", lambda: bool(self.told("ProcessKilled", name=name, from_outside=True, why="SIGKILL")))
        await self.until(f"{name} is up again", lambda: len(self.told("Started", peer=name)) > lives)
        up_s = time.monotonic() - begun_s
        await self.commits(5, f"after {name} was killed")
        return f"{name} killed: up again after {up_s:.1f} s, five commits after {time.monotonic() - begun_s:.1f} s"

    async def kill_p2pd(self, name: str) -> str:
        """Kill a process's libp2p daemon: it starts another."""
        before = len(self.told("DirectoryReplaced", peer=name))
        (daemon,) = [p for p in descendants(self.pid(name)) if command_of(p).startswith("p2pd")]
        daemon.kill()
        await self.until(f"the p2pd of {name} is replaced", lambda: len(self.told("DirectoryReplaced", peer=name)) > before)
        replaced = self.told("DirectoryReplaced", peer=name)[-1]
        await self.commits(5, f"after the p2pd of {name} was killed")
        return f"p2pd of {name} killed: replaced after {replaced['seconds']:.1f} s"


async def kill_by_hand(
    victims: Sequence[str] = VICTIMS, fork_server: Sequence[str] = (), microbatches: int = MICROBATCHES
) -> list[str]:
    """Kill one after the other, then p2pd of `WITH_P2PD`; one line about each.

    Args:
        victims: names of processes.
        fork_server: how to start what the command is forked from; empty = it is started by itself.
        microbatches: in each iteration.

    Raises:
        LiveFailed: the swarm did not go on, or something of it is left.
    """
    with tempfile.TemporaryDirectory(prefix="swarmfree-survival-", ignore_cleanup_errors=True) as name:
        folder, temporary = Path(name), Path(name) / "tmp"
        temporary.mkdir()
        (folder / "run.toml").write_text(RUN.format(body=PEERS - 1, replicas=1, recovery=SHADOWS, microbatches=microbatches))
        traces, local = Traces(temporary, folder / "report"), _Local()
        program = traces.program((sys.executable, "-m", "swarmfree"))
        starter = Starter(program, traces.program(tuple(fork_server)), folder / "fork-server.txt")
        await starter.begin()
        options = ("--peers", str(PEERS), "--standbys", "1", "--respawn", "--log", "json", "--out", str(folder / "report"))
        arguments = ("local", "--run", str(folder / "run.toml"), *options)
        local.child = await starter.start("local", arguments, folder / "words.txt", local.hear)
        try:
            await local.commits(8, "at first")
            lines = [await local.kill(victim) for victim in victims]
            lines += [await local.kill_p2pd(victim) for victim in WITH_P2PD]
            local.child.send(signal.SIGINT)
            async with asyncio.timeout(ENDS_WITHIN_S):
                code = await local.child.wait()
            if code != INTERRUPTED:
                raise LiveFailed(f"local ended with exit code {code}")
            killed = [each["name"] for each in local.said[-1]["killed_from_outside"]]
            if killed != list(victims):
                raise LiveFailed(f"the summary names {killed}")
        finally:
            local.child.send(signal.SIGKILL)
            await local.child.wait()
            await starter.end()
        left = await asyncio.to_thread(traces.wait_for_nothing, LEFT_WITHIN_S)
        if left:
            raise LiveFailed(f"left behind: {'; '.join(left)}")
        return lines
