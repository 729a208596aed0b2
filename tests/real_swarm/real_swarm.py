"""What the tests of real swarms share: commands of ours as real processes, waiting for what they
say, and what must not be left of them.

Every process of one test, p2pd included, has the test's own folder for temporary files in its
environment, and is found by that, whoever its parent is by now. Nothing here sleeps to let
something happen: a test waits until it has been said, and the limits are for failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.processes import Child, is_there, start_child
from swarmfree.lab.report import EventLog
from swarmfree.lab.starter import Starter
from swarmfree.protocol.events import Opened
from tests.lab.changed_processes import resting

# Small enough for iterations of a fifth of a second or less with all processes on two cores.
MODEL = """\
[model]
width = 32
blocks = {blocks}
heads = 2
kv_heads = 1
mlp_width = 64
tokens_per_row = 32

[batch]
rows = 2
microbatches = {microbatches}
"""
UP_WITHIN_S = 90.0
REST_S = 0.05
"""With that an iteration takes some four tenths of a second, mostly of nobody's processor."""
NOTHING_LEFT_WITHIN_S = 3.0
POLL_S = 0.02
LAST_LINES, LINE_MAX = 12, 300
"""What a failure tells of each process."""


def write_run(
    folder: Path,
    *,
    iterations: int,
    stages: str = "body = 3",
    microbatches: int = 6,
    recovery: str = 'mode = "checkfree"',
    blocks: int = 3,
) -> Path:
    """A run config of the small model; `stages` and `recovery` are the contents of their
    sections.
    """
    path = folder / "run.toml"
    head = f'[run]\nname = "small"\nseed = 11\niterations = {iterations}\nevaluate_every = 0\nevaluate_windows = 2\n'
    path.write_text(
        f"{head}\n{MODEL.format(microbatches=microbatches, blocks=blocks)}\n[stages]\n{stages}\n\n[recovery]\n{recovery}\n"
    )
    return path


class Waiters:
    """Wakes those who wait for something as soon as something that was heard makes it true."""

    def __init__(self, said: Mapping[str, list[str]] | None = None) -> None:
        """Where it fails, add the last lines of each that has said something in `said`."""
        self._said = said if said is not None else {}
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def heard(self) -> None:
        """Something was heard: look who has waited for it."""
        for is_so, future in list(self._waiting):
            if not future.done() and is_so():
                future.set_result(None)

    async def until(self, is_so: Callable[[], bool], what: str, within_s: float = UP_WITHIN_S) -> None:
        """Wait until `is_so`; where that takes too long, fail and say `what` was waited for."""
        if is_so():
            return
        entry = (is_so, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(within_s):
                await entry[1]
        except TimeoutError:
            last = "".join(f"\n{name}: {line[:LINE_MAX]}" for name, lines in self._said.items() for line in lines[-LAST_LINES:])
            raise AssertionError(f"not within {within_s:g} s: {what}{last}") from None
        finally:
            self._waiting.remove(entry)


class Processes:
    """All processes of one test: how to start a command of ours, what they said, and what is there
    of them now.

    Attributes:
        fork_server: how to start what forks peers.
        rest_s: how long a source rests after each microbatch, where it is forked.
    """

    def __init__(self, folder: Path, fork_server: tuple[str, ...]) -> None:
        """Work below `folder`, in a folder for temporary files of their own; `fork_server` is what
        forks peers.
        """
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.program = ("/usr/bin/env", f"TMPDIR={self.temporary}", sys.executable, "-m", "swarmfree")
        self.fork_server = (*self.program[:2], *fork_server)
        self.rest_s = 0.0
        self.said: dict[str, list[str]] = {}
        self._events: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.waiters = Waiters(self.said)
        self._children: list[Child] = []
        self._starter: Starter | None = None
        self._ports: set[int] = set()

    async def start(self, name: str, *arguments: str, is_forked: bool = True) -> Child:
        """Start ``swarmfree`` with these arguments, forked as peers are or by itself; its lines are
        kept under `name`, its words on stderr in a file of that name.
        """
        lines = self.said.setdefault(name, [])

        def hear(line: str) -> None:
            lines.append(line)
            if line.startswith("{"):  # read once: who waits looks at all that was told with every line
                event = json.loads(line)
                self._events.setdefault((name, event["kind"]), []).append(event)
            self.waiters.heard()

        log = self.folder / f"{name}.txt"
        if is_forked:
            child = await (await self.starter()).start(name, arguments, log, hear)
        else:
            child = await start_child(name, (*self.program, *arguments, "--die-with-parent", str(os.getpid())), log, hear)
        self._children.append(child)
        return child

    async def starter(self) -> Starter:
        """What peers and bootstrap nodes are forked from; it loads meanwhile, which takes long once
        others train.
        """
        if self._starter is None:
            self._starter = Starter(self.program, self.resting_fork_server(self.rest_s), self.folder / "fork-server.txt")
            await self._starter.begin()
        return self._starter

    def resting_fork_server(self, rest_s: float) -> tuple[str, ...]:
        """How to start what forks peers of which sources rest."""
        return (self.fork_server[0], resting(rest_s), *self.fork_server[1:]) if rest_s else self.fork_server

    async def look(self, *arguments: str) -> str:
        """Run a command that says something and ends, forked as peers are; what it said."""
        said = list[str]()
        child = await (await self.starter()).start("look", arguments, self.folder / "look.txt", said.append)
        self._children.append(child)
        assert await code_of(child, UP_WITHIN_S) == 0, self.words("look")
        return "".join(f"{line}\n" for line in said)

    def told(self, name: str, kind: str) -> list[dict[str, Any]]:
        """What one process told of one kind of event, in order."""
        return self._events.get((name, kind), [])

    def newest(self, kind: str) -> dict[str, Any]:
        """What was told last of one kind of event, by whichever process."""
        told = (self.told(name, kind)[-1:] for name in self.said)
        return max((event for events in told for event in events), key=lambda event: float(event["time_s"]))

    def words(self, name: str) -> list[str]:
        """Lines on stderr of one process that has ended."""
        return (self.folder / f"{name}.txt").read_text().splitlines()

    # ---- what is there ---------------------------------------------------------------------------

    def living(self) -> list[psutil.Process]:
        """Every process of this test that runs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.temporary) and is_there(process):
                    found.append(process)
        return found

    def _is_anothers(self, pid: int | None) -> bool:
        """Whether this process is known, and none of this test's."""
        try:
            return pid is not None and psutil.Process(pid).environ().get("TMPDIR") != str(self.temporary)
        except psutil.Error:
            return False

    def listening(self) -> set[int]:
        """Ports on which they listen now, kept for `left`."""
        found: set[int] = set()
        for process in self.living():
            with contextlib.suppress(psutil.Error):
                found |= {c.laddr.port for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        self._ports |= found
        return found

    def left(self) -> list[str]:
        """What is left of them now, one line each: processes, ports that `listening` has seen,
        sockets, temporary files.
        """
        found = list[str]()
        for process in self.living():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended while it was looked at
                found.append(f"process {process.pid} {process.name()}")
        listeners = [c for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        # The system may have given it to a process of another test by now
        ports = {c.laddr.port for c in listeners if c.laddr.port in self._ports and not self._is_anothers(c.pid)}
        found += [f"port {port}" for port in sorted(ports)]
        for parent, _, files in os.walk(self.folder):
            paths = [Path(parent, file) for file in files]
            found += [f"socket {path}" for path in paths if stat.S_ISSOCK(path.lstat().st_mode)]
        return [*found, *(f"temporary file {path}" for path in self.temporary.rglob("*"))]

    async def require_nothing_left(self, within_s: float = NOTHING_LEFT_WITHIN_S) -> None:
        """Fail if anything is left of them after `within_s`; only the fork server that they were
        forked from is ended here.
        """
        if self._starter is not None:
            await self._starter.end()
        until_s = time.monotonic() + within_s
        while (found := self.left()) and time.monotonic() < until_s:
            await asyncio.sleep(POLL_S)
        assert not found, f"left after {within_s:g} s: {found}"

    async def end(self) -> None:
        """SIGKILL to whatever a failed test has left, and close what was open."""
        if self._starter is not None:
            await self._starter.end()
        for process in self.living():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for child in self._children:
            await child.wait()


async def code_of(child: Child, within_s: float) -> int:
    """The exit code of a process that must end within `within_s` seconds."""
    try:
        async with asyncio.timeout(within_s):
            return await child.wait()
    except TimeoutError:
        raise AssertionError(f"{child.name} has not ended within {within_s:g} s") from None


class Audience:
    """Hears a `LocalSwarm`: keeps the state and everything that happened, here and in a report, and
    wakes who waits for it.
    """

    def __init__(self, folder: Path, waiters: Waiters) -> None:
        self._log = EventLog(folder)
        self.member_counts: tuple[int, ...] = ()
        self.state = SwarmState()
        self.observed_events: list[ObservedEvent] = []
        self.waiters = waiters

    def __call__(self, observed_event: ObservedEvent, state: SwarmState) -> None:
        """Hear one event."""
        self._log.write(observed_event, state)
        if isinstance(observed_event, PeerEvent) and isinstance(observed_event.event, Opened):
            self.member_counts = tuple(len(members) for members in observed_event.event.members)
        self.observed_events.append(observed_event)
        self.state = state
        self.waiters.heard()

    def close(self) -> None:
        """Close the report."""
        self._log.close()

    def standby_count(self) -> int:
        """How many have said that they are up and serve no stage."""
        return len([peer for peer in self.state.standbys() if peer.member])
