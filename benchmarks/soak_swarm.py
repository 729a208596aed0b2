"""The swarm of a soak: what is done to it, what it tells, and how its processes look.

See `soak`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from benchmarks.live import BOOTSTRAP, LiveSwarm
from benchmarks.paced_fork_server import MEASURED, Pace
from benchmarks.soak_figures import ALL_FOLDERS, Sample
from swarmfree.cockpit.fold import fold
from swarmfree.cockpit.observed_events import (
    ObservedEvent,
    PeerEvent,
    ProcessEnded,
    ProcessKilled,
    ProcessStarted,
    RunDescribed,
)
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.chaos.agreement import Agreement
from swarmfree.lab.chaos.bounds import Disturbance
from swarmfree.lab.chaos.leak_check import Traces
from swarmfree.lab.chaos.watchdog import Watch
from swarmfree.lab.processes import command_of, descendants, is_there
from swarmfree.lab.report import EventLog
from swarmfree.protocol.events import Note
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RecoverySection,
    RunSection,
    StagesSection,
)

Act = Literal["kill", "leave", "freeze"]
RUN = Manifest(
    run=RunSection(name="soak", seed=5, iterations=1_000_000, evaluate_every=50, evaluate_windows=1),
    model=ModelSection(width=32, blocks=2, heads=2, kv_heads=2, mlp_width=64, tokens_per_row=32),
    stages=StagesSection(body=2, replicas_max=2, sources_max=2),
    batch=BatchSection(rows=1, microbatches=4),
    optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
    recovery=RecoverySection(shadow_every=20, snapshot_every=20, kept_mb_max=16, kept_ram_mb_max=2),
)
"""What is kept for others is full after some minutes, so that what grows then grows by fault."""
PACE = Pace(block_s=0.18, head_s=0.05, moves=True)
STEADY, CHURNED = ("peer-1", "peer-3"), ("peer-2", "peer-4", "peer-5")
PEERS = tuple(sorted((*STEADY, *CHURNED)))
FEEDERS = ("peer-1", "peer-2")
FORK_SERVER, LISTENER = "fork-server", "listener"
GRPC_THREAD = "event_engine"
SAMPLE_S, PUMP_S, LOOK_S = 15.0, 0.5, 0.2
GAP_S, GAP_MORE_S = 5.0, 12.0
AWAY_S, FROZEN_S = (1.0, 8.0), (1.0, 15.0)
ACTS: dict[Act, int] = {"kill": 4, "leave": 3, "freeze": 3}
TWO_AT_ONCE, ANEW = 0.15, 1 / 3
WHOLE_WITHIN_S, LEAVE_WITHIN_S, END_WITHIN_S, ORPHAN_S, SETTLE_S = 90.0, 60.0, 20.0, 10.0, 6.0
MB = 1 << 20


def say(what: str) -> None:
    """Progress."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def size_bytes(folder: Path) -> int:
    """Of all files below a folder."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                total += Path(parent, file).lstat().st_size
    return total


@dataclass(slots=True)
class Counts:
    """What was done to the swarm, and what came of it."""

    kills: int = 0
    leaves: int = 0
    freezes: int = 0
    returns: int = 0
    returns_anew: int = 0
    ended_by_itself: int = 0
    not_whole: int = 0
    orphans: int = 0


@dataclass(slots=True)
class Observer:
    """Folds what the swarm tells, as `swarmfree local` does, and checks it as chaos does."""

    events: EventLog
    state: SwarmState = field(default_factory=SwarmState)
    agreement: Agreement = field(default_factory=lambda: Agreement(RUN.tokens_per_iteration))
    watch: Watch = field(default_factory=lambda: Watch(RUN))
    starting: int = 0

    def hear(self, event: ObservedEvent) -> None:
        """One event."""
        self.state = fold(self.state, event)
        self.watch.hear(event, self.state)
        self.agreement.hear(event)
        self.events.write(event, self.state)

    def drain(self, swarm: LiveSwarm) -> None:
        """All that was told since, unless a process is being started: its start comes first."""
        if not self.starting:
            said, swarm.said = swarm.said, []
            for each in said:
                # What the paced fork server tells besides is no part of a report
                if not (isinstance(each.event, Note) and each.event.text.startswith(MEASURED)):
                    self.hear(PeerEvent(each.time_s, each.name, each.event))

    @property
    def is_whole(self) -> bool:
        """Whether all peers are members."""
        return self.watch.serving.issuperset(PEERS)


@dataclass(frozen=True, slots=True)
class Blow:
    """What befalls one peer.

    Args:
        name: of the peer.
        act: what is done to it.
        for_s: how long it is away, or frozen.
        anew: it comes back with an empty folder.
    """

    name: str
    act: Act
    for_s: float
    anew: bool


def drawn_blows(draw: random.Random) -> list[Blow]:
    """What is done next: one blow, now and then two at once."""
    names = draw.sample(CHURNED, 2 if draw.random() < TWO_AT_ONCE else 1)
    found = []
    for name in names:
        (act,) = draw.choices(list(ACTS), list(ACTS.values()))
        for_s = draw.uniform(*(FROZEN_S if act == "freeze" else AWAY_S))
        found.append(Blow(name, act, for_s, anew=draw.random() < ANEW))
    return found


class Soak:
    """One soak of a swarm that was started.

    Attributes:
        counts, samples, faults: so far.
        over: set to end the churn before its time.
    """

    def __init__(self, swarm: LiveSwarm, folder: Path, temporary: Path, seed: int) -> None:
        """Nothing was done."""
        self.counts, self.samples, self.faults = Counts(), list[Sample](), list[str]()
        self.observer = Observer(EventLog(folder))
        self.traces = Traces(temporary, folder)
        self.over = asyncio.Event()
        self._swarm, self._folder, self._temporary, self._draw = swarm, folder, temporary, random.Random(seed)
        now_s = time.time()
        self.observer.hear(RunDescribed.of(now_s, RUN))
        self.observer.hear(ProcessStarted(now_s, BOOTSTRAP, BOOTSTRAP, swarm.pid(BOOTSTRAP)))

    # ---- processes -------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        """Start a peer, of which is told nothing before its start."""
        self.observer.drain(self._swarm)
        self.observer.starting += 1
        try:
            await self._swarm.start(name, feeds=name in FEEDERS)
            self.observer.hear(ProcessStarted(time.time(), name, "peer", self._swarm.pid(name)))
        finally:
            self.observer.starting -= 1

    async def until(self, is_so: Callable[[], bool], within_s: float) -> bool:
        """Wait; False where it takes too long."""
        until_s = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > until_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def pump(self) -> None:
        """Hear the swarm until cancelled."""
        while True:
            self.observer.drain(self._swarm)
            await asyncio.sleep(PUMP_S)

    # ---- samples ---------------------------------------------------------------------------------

    async def sample(self) -> None:
        """Look at every process again and again until cancelled."""
        with (self._folder / "samples.jsonl").open("a", encoding="ascii") as file:
            while True:
                for each in self._look():
                    self.samples.append(each)
                    file.write(json.dumps(asdict(each)) + "\n")
                file.flush()
                await asyncio.sleep(SAMPLE_S)

    def _look(self) -> list[Sample]:
        now_s, found = time.time(), list[Sample]()
        for name in (BOOTSTRAP, *STEADY):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self._swarm.pid(name))
                below = descendants(process.pid)
                daemons = sorted((p for p in below if command_of(p).startswith("p2pd")), key=lambda p: p.create_time())
                on_disk = size_bytes(self._folder / "peers" / name) / MB
                found.append(_sampled(now_s, name, process, children=len(below), disk_mb=on_disk))
                found += [_sampled(now_s, f"{name}.p2pd", daemon) for daemon in daemons[:1]]
        with contextlib.suppress(psutil.Error):
            found.append(_sampled(now_s, FORK_SERVER, psutil.Process(self.fork_server_pid)))
        found.append(_sampled(now_s, LISTENER, psutil.Process()))
        on_disk = (size_bytes(self._folder / "peers") + size_bytes(self._temporary)) / MB
        return [*found, Sample(now_s, ALL_FOLDERS, 0, {"disk_mb": on_disk})]

    @property
    def fork_server_pid(self) -> int:
        """It is the parent of all."""
        return int(psutil.Process(self._swarm.pid(BOOTSTRAP)).ppid())

    # ---- churn -----------------------------------------------------------------------------------

    async def churn(self, seconds: float) -> None:
        """Strike one peer after the other, and have it back, until the time is over."""
        until_s = time.monotonic() + seconds
        while await self._pause(GAP_S + self._draw.expovariate(1 / GAP_MORE_S), until_s):
            for name in (name for name in CHURNED if not self._swarm.is_alive(name)):
                await self._ended_by_itself(name)
            gone = [name for name in (BOOTSTRAP, *STEADY) if not self._swarm.is_alive(name)]
            if gone:
                self.fault(f"{gone[0]} ended by itself with code {await self._swarm.ended(gone[0])}")
                return
            if not await self.until(lambda: self.observer.is_whole or self.over.is_set(), WHOLE_WITHIN_S):
                self.counts.not_whole += 1
                say(f"not members for {WHOLE_WITHIN_S:g} s: {', '.join(sorted(set(PEERS) - self.observer.watch.serving))}")
            async with asyncio.TaskGroup() as tasks:
                for blow in drawn_blows(self._draw):
                    tasks.create_task(self._strike(tasks, blow), name=f"strike {blow.name}")

    async def _pause(self, seconds: float, until_s: float) -> bool:
        """Wait; False once the time is over."""
        left_s = until_s - time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(seconds, left_s))):
                await self.over.wait()
        return seconds < left_s and not self.over.is_set()

    async def _strike(self, tasks: asyncio.TaskGroup, blow: Blow) -> None:
        name, watch = blow.name, self.observer.watch
        if not self._swarm.is_alive(name):
            return  # found at the next turn
        say(f"{blow.act} {name}" + (", to come back as somebody new" if blow.anew and blow.act != "freeze" else ""))
        if blow.act == "freeze":
            self.counts.freezes += 1
            struck_s = self._swarm.freeze(name)
            watch.disturb(Disturbance(name, struck_s, struck_s + blow.for_s + SETTLE_S))
            await asyncio.sleep(blow.for_s)
            self._swarm.thaw(name)
            return
        below = descendants(self._swarm.pid(name))
        if blow.act == "kill":
            self.counts.kills += 1
            struck_s = self._swarm.kill(name)
            watch.disturb(Disturbance(name, struck_s, struck_s))
            self.observer.hear(ProcessKilled(struck_s, name, "peer", "soak"))
        else:
            self.counts.leaves += 1
            watch.serving.discard(name)
            struck_s = self._swarm.dismiss(name)
            watch.disturb(Disturbance(name, struck_s, struck_s + SETTLE_S))
        code = await self._end_of(name)
        if blow.act == "leave" and code:
            self.fault(f"{name} was told to leave, and ended with code {code}")
        tasks.create_task(self._look_for_orphans(name, below), name=f"orphans of {name}")
        await asyncio.sleep(blow.for_s)
        if blow.anew:
            shutil.rmtree(self._folder / "peers" / name)
        self.counts.returns += 1
        self.counts.returns_anew += blow.anew
        await self.start(name)

    async def _end_of(self, name: str) -> int:
        """Wait until a peer has ended; its exit code."""
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                code = await self._swarm.ended(name)
        except TimeoutError:
            self.fault(f"{name} had not ended after {LEAVE_WITHIN_S:g} s")
            self._swarm.kill(name)
            code = await self._swarm.ended(name)
        self.observer.drain(self._swarm)
        self.observer.hear(ProcessEnded(time.time(), name, code, expected=True, line=""))
        return code

    async def _ended_by_itself(self, name: str) -> None:
        code = await self._end_of(name)
        self.counts.ended_by_itself += 1
        words = (self._folder / f"{name}.txt").read_text(errors="replace").splitlines()[-1:]
        self.fault(f"{name} ended by itself with code {code}: {''.join(words)}")
        await self.start(name)

    async def _look_for_orphans(self, name: str, below: Sequence[psutil.Process]) -> None:
        """Who was below a peer has to go by itself."""
        await self.until(lambda: not any(map(is_there, below)), ORPHAN_S)
        left = [f"{command_of(process)} {process.pid}" for process in below if is_there(process)]
        self.counts.orphans += len(left)
        if left:
            self.fault(f"{ORPHAN_S:g} s after the end of {name} there still were: {', '.join(left)}")

    # ---- the end ---------------------------------------------------------------------------------

    async def dismiss_all(self) -> None:
        """Tell everybody to end, twice, as Ctrl-C does, and look who does not."""
        fork_server = self.fork_server_pid
        living = [name for name in (*PEERS, BOOTSTRAP) if self._swarm.is_alive(name)]
        for _ in range(2):
            for name in living:
                self._swarm.dismiss(name)
            await asyncio.sleep(LOOK_S)
        if not await self.until(lambda: not any(map(self._swarm.is_alive, living)), END_WITHIN_S):
            late = ", ".join(name for name in living if self._swarm.is_alive(name))
            self.fault(f"not ended {END_WITHIN_S:g} s after they were told to: {late}")
        left = [p for p in self.traces.living() if p.pid != fork_server]
        await self.until(lambda: not any(map(is_there, left)), ORPHAN_S)
        left = [process for process in left if is_there(process)]
        self.counts.orphans += len(left)
        for process in left:
            self.fault(f"left behind at the end: {command_of(process)} {process.pid}")

    def fault(self, what: str) -> None:
        """Something that must not be."""
        say(f"fault: {what}")
        self.faults.append(what)


def _sampled(now_s: float, name: str, process: psutil.Process, **more: float) -> Sample:
    with process.oneshot():
        values = {"rss_mb": process.memory_info().rss / MB, "handles": process.num_fds(), "threads": process.num_threads()}
    grpc_threads = _named(process.pid, GRPC_THREAD)
    values |= {"threads": values["threads"] - grpc_threads} | ({"grpc_threads": grpc_threads} if grpc_threads else {})
    return Sample(now_s, name, process.pid, {**values, **more})


def _named(pid: int, name: str) -> int:
    """How many threads of a process bear this name; none where the system does not say."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            found += thread.read_text(encoding="utf-8").strip() == name
    return found
