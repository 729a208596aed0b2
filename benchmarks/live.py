"""A swarm of real processes that a benchmark starts, watches and strikes peer by peer, and what can
be read off its commits.

Peers come and go whenever the benchmark says, which `swarmfree local` does not do. All are started
through the command line, each in a session of its own, and die with this process. Times are Unix
seconds as the peers tell them: all of them share this machine's clock.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import psutil

from swarmfree.lab.processes import Child, descendants, end_processes, stop_children
from swarmfree.lab.starter import Starter
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import Event, IterationCommitted, Opened, Placed, Started, event_from_json
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.wire.invite import decode_invite

E = TypeVar("E")

BOOTSTRAP = "bootstrap"
HERE = ""
UP_WITHIN_S = 90.0
STOP_GRACE_S = 6.0
LOG_TAIL_LINES = 8


class LiveFailed(SwarmfreeError):
    """The swarm did not do what the benchmark needs; one line, then the ends of the logs."""


@dataclass(frozen=True, slots=True)
class Said:
    """One event.

    Args:
        time_s: Unix seconds, when it happened.
        name: of the process that told it.
        event: what happened.
    """

    time_s: float
    name: str
    event: Event


@dataclass(frozen=True, slots=True)
class Commits:
    """How many tokens were committed by when: linear between two commits, since an iteration is
    work all along.

    Args:
        times_s: of the commits, ascending.
        tokens: of the iteration that each of them ended.
    """

    times_s: tuple[float, ...]
    tokens: tuple[int, ...]

    @staticmethod
    def of(said: Sequence[Said]) -> Commits:
        """Those that were told; a record decided twice, by two coordinators, counts once, and an
        iteration that was done again, under another lineage, when it was done last.
        """
        found: dict[int, Said] = {}
        lineages: dict[int, str] = {}
        for each in said:
            if isinstance(each.event, IterationCommitted) and lineages.get(each.event.iteration) != each.event.lineage:
                found[each.event.iteration], lineages[each.event.iteration] = each, each.event.lineage
        ordered = sorted(
            (each.time_s, each.event.tokens) for each in found.values() if isinstance(each.event, IterationCommitted)
        )
        return Commits(tuple(t for t, _ in ordered), tuple(n for _, n in ordered))

    def by(self, time_s: float) -> float:
        """Tokens by then, since the first commit.

        Raises:
            ValueError: that is before the first commit or after the last.
        """
        if not self.times_s or not self.times_s[0] <= time_s <= self.times_s[-1]:
            raise ValueError(f"{time_s:.3f} s lies outside the commits")
        totals = [0, *itertools.accumulate(self.tokens[1:])]
        after = max(1, bisect.bisect_left(self.times_s, time_s)) if len(self.times_s) > 1 else 0
        if after == 0:
            return 0.0
        begun_s, ended_s = self.times_s[after - 1], self.times_s[after]
        share = (time_s - begun_s) / (ended_s - begun_s) if ended_s > begun_s else 1.0
        return totals[after - 1] + share * self.tokens[after]

    def rate(self, begun_s: float, ended_s: float) -> float:
        """Tokens per second between two moments."""
        return (self.by(ended_s) - self.by(begun_s)) / (ended_s - begun_s)


def keep_to(child: Child, cores: Collection[int]) -> None:
    """Keep a process and all its threads to these cores; without any, and where the system has no
    such call, leave it alone.

    A new process is caught as it starts; what it starts afterwards follows it.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    with contextlib.suppress(ProcessLookupError, psutil.Error):
        for process in (psutil.Process(child.pid), *descendants(child.pid)):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, cores)


class LiveSwarm:
    """A bootstrap node and the peers that were started so far; a context manager that leaves no
    process.

    Args:
        folder: new; peers work and log below it.
        run_file: run config.
        text_file: what is learned from.
        fork_server: how to start what forks the peers; empty = each loads all that it needs by
            itself, as on a machine of its own.
        hosts: name of a host -> what stands before a command that runs there; none = all runs here.

    Attributes:
        said: all events, in the order in which they were heard.
        invite: of the run.
    """

    def __init__(
        self,
        folder: Path,
        run_file: Path,
        text_file: Path,
        fork_server: Sequence[str] = (),
        hosts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Nothing started."""
        self.said: list[Said] = []
        self.invite = ""
        self._folder, self._run_file, self._text_file = folder, run_file, text_file
        self._starters = {
            host: Starter(
                (*before, sys.executable, "-m", "swarmfree"),
                (*before, *fork_server) if fork_server else (),
                folder / f"fork-server{host and '-'}{host}.txt",
            )
            for host, before in (hosts or {HERE: ()}).items()
        }
        self._bootstrap_host = next(iter(self._starters))
        self._children: dict[str, Child] = {}
        self._below: set[psutil.Process] = set()
        self._spent_s: dict[int, float] = {}
        self._heard = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start the bootstrap node."""
        try:
            for starter in self._starters.values():
                await starter.begin()
            await self.start_bootstrap()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everything."""
        await self.close()

    async def close(self) -> None:
        """End all processes, daemons of killed peers included."""
        self.resume()  # a stopped one hears no SIGTERM
        for child in self._children.values():
            if child.is_alive:
                self._below.update(descendants(child.pid))
        await stop_children(list(self._children.values()), STOP_GRACE_S)
        for starter in self._starters.values():
            await starter.end()
        end_processes(self._below)

    # ---- peers -----------------------------------------------------------------------------------

    async def start_bootstrap(self) -> None:
        """Start the bootstrap node at the first host, again where it was killed, and wait for its
        invite.
        """
        self.invite = ""
        host = self._bootstrap_host
        reach = ("--host", "auto") if host else ()
        await self._start(BOOTSTRAP, host, "bootstrap", "--run", str(self._run_file), "--data", str(self._text_file), *reach)
        await self.until("an invite", lambda: bool(self.invite))

    async def start(
        self, name: str, *, feeds: bool = False, cores: Collection[int] = (), host: str = HERE, more: Sequence[str] = ()
    ) -> float:
        """Start a peer of one torch thread.

        Args:
            name: of its folder and log; the same name again is another life of the same peer.
            feeds: it may be a source.
            cores: it and what it starts run on these alone; none = the system decides.
            host: where it runs.
            more: arguments.

        Returns:
            When, Unix seconds.
        """
        begun_s = time.time()
        corpus = ("--data", str(self._text_file)) if feeds else ("--no-feed",)
        await self._start(name, host, "peer", self.invite, *corpus, "--threads", "1", "--patience", "60", *more)
        keep_to(self._children[name], cores)
        return begun_s

    def keep_to(self, cores: Collection[int]) -> None:
        """Keep the bootstrap node to these cores."""
        keep_to(self._children[BOOTSTRAP], cores)

    async def _start(self, name: str, host: str, *arguments: str) -> None:
        folder = self._folder / "peers" / name
        folder.mkdir(parents=True, exist_ok=True)
        command, log = (*arguments, "--folder", str(folder), "--log", "json"), self._folder / f"{name}.txt"
        self._children[name] = await self._starters[host].start(name, command, log, lambda line: self._hear(name, line))

    def _hear(self, name: str, line: str) -> None:
        if line.startswith("{"):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                time_s, event = event_from_json(json.loads(line))
                self.said.append(Said(time_s, name, event))
        elif name == BOOTSTRAP and not self.invite and line.strip():
            self.invite = line.strip()
        self._heard.set()

    def kill(self, name: str) -> float:
        """SIGKILL; when, before anybody can have noticed."""
        return self._send(name, signal.SIGKILL)

    def dismiss(self, name: str) -> float:
        """SIGTERM, which asks a peer to go; when."""
        return self._send(name, signal.SIGTERM)

    def freeze(self, name: str) -> float:
        """SIGSTOP; when."""
        struck_s = time.time()
        self._children[name].send(signal.SIGSTOP)
        return struck_s

    def thaw(self, name: str) -> None:
        """Let a frozen one go on."""
        self._children[name].send(signal.SIGCONT)

    def pause(self) -> None:
        """Stop all peers where they are."""
        for child in self._children.values():
            child.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        for child in self._children.values():
            child.send(signal.SIGCONT)

    def _send(self, name: str, number: signal.Signals) -> float:
        child = self._children[name]
        self._below.update(descendants(child.pid))
        self._spent_s[child.pid] = self.cpu_s(name)
        # The clock first: on a busy machine somebody may have missed it before it would be read
        # afterwards.
        struck_s = time.time()
        child.send(number)
        return struck_s

    async def ended(self, name: str) -> int:
        """Wait for the end of a peer; its exit code."""
        return await self._children[name].wait()

    def pid(self, name: str) -> int:
        """Of a process."""
        return self._children[name].pid

    def is_alive(self, name: str) -> bool:
        """Whether it runs."""
        return name in self._children and self._children[name].is_alive

    # ---- what they said --------------------------------------------------------------------------

    async def until(self, what: str, is_so: Callable[[], bool], within_s: float = UP_WITHIN_S) -> None:
        """Wait until something that was heard makes it so.

        Raises:
            LiveFailed: not within `within_s`.
        """
        try:
            async with asyncio.timeout(within_s):
                while not is_so():
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            raise LiveFailed(f"not within {within_s:g} s: {what}{self._log_tails()}") from None

    async def pass_time(self, seconds: float) -> None:
        """Let it train for so long."""
        await asyncio.sleep(seconds)

    async def commits(self, count: int, within_s: float = UP_WITHIN_S) -> None:
        """Wait for so many more commits."""
        wanted = sum(1 for _ in self.told(IterationCommitted)) + count
        await self.until(f"{count} commits", lambda: sum(1 for _ in self.told(IterationCommitted)) >= wanted, within_s)

    async def commit_past(self, time_s: float) -> None:
        """Wait until a commit was told that came after `time_s`, so that everything up to then can
        be counted.
        """
        await self.until("a commit", lambda: any(True for _ in self.told(IterationCommitted, time_s)), UP_WITHIN_S)

    def told(self, kind: type[E], since_s: float = 0.0, name: str = "") -> Iterator[tuple[float, E]]:
        """(when, what) of one kind of event, by one process or by any."""
        for each in self.said:
            if isinstance(each.event, kind) and each.time_s >= since_s and name in {"", each.name}:
                yield each.time_s, each.event

    def endpoint(self, name: str) -> Endpoint:
        """Where the newest life of a peer can be called."""
        started = [event for _, event in self.told(Started, name=name)][-1]
        return Endpoint(Member(started.peer_id, started.incarnation), (started.address,))

    def stage_of(self, name: str) -> int:
        """The place that a peer was given last; -1 where it has none."""
        places = [event.stage for _, event in self.told(Placed) if event.member == self.endpoint(name).member.peer_id]
        return places[-1] if places else -1

    def is_member(self, name: str) -> bool:
        """Whether the newest plan names it."""
        opened = [event for _, event in self.told(Opened)]
        if not opened or not any(True for _ in self.told(Started, name=name)):
            return False
        peer_id = self.endpoint(name).member.peer_id
        return any(peer_id in members for members in opened[-1].members)

    @property
    def fingerprint(self) -> str:
        """Of the manifest."""
        return decode_invite(self.invite).fingerprint

    def cpu_s(self, name: str = "") -> float:
        """Processor seconds of one peer that lives, or of all that ever did, with what they
        started, so far; of who was struck, until then.
        """
        total = 0.0 if name else sum(self._spent_s.values())
        for each, child in self._children.items():
            if child.is_alive and child.pid not in self._spent_s and name in {"", each}:
                with contextlib.suppress(psutil.Error):
                    for process in (psutil.Process(child.pid), *descendants(child.pid)):
                        times = process.cpu_times()
                        total += times.user + times.system
        return total

    def _log_tails(self) -> str:
        tails = []
        for log in sorted(self._folder.glob("*.txt")):
            lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            tails += [f"\n{log.name}: {line}" for line in lines]
        return "".join(tails)
