"""The small real run of `benchmarks.churn`: one body stage of one or two replicas, as many as this
machine's two cores carry, that come and go.

First the speed with one replica and with two is measured, then the trace is played in the same
swarm, then two and one are measured again, and of each the faster time counts. A replica counts as
live from its first word until it is killed, or until its process has ended, where it was told to
leave; the start of its process is nobody's capacity, though it takes processor time from the
others. A fall comes 8 to 16 s after both replicas were members again, so never while one loads its
state, and another replica is started at once.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.churn_rehearsal import ideal_tokens, live_counts
from benchmarks.live import Commits, LiveSwarm
from benchmarks.ring_runs import machine_busy_seconds, prepare_job
from swarmfree.protocol.events import MemberLeft, MemberLost, Started
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RingSection,
    RunSection,
    StagesSection,
)

SOURCE = "source"
REPLICAS = 2
SETTLE_COMMITS = 3
RUN = Manifest(
    run=RunSection(name="churn", seed=1, iterations=100_000, evaluate_every=0, evaluate_windows=1),
    model=ModelSection(width=256, blocks=3, heads=4, kv_heads=4, mlp_width=688, tokens_per_row=128),
    stages=StagesSection(body=1, replicas_max=REPLICAS),
    batch=BatchSection(rows=4, microbatches=12),
    optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
    ring=RingSection(credits=6),
)


@dataclass(frozen=True, slots=True)
class LivePlan:
    """How long everything takes.

    Args:
        seed: who falls, how and when.
        watch_s: for each number of replicas.
        falls: in the trace; every other one leaves as SIGTERM tells it, the first by the seed.
        every_min_s, every_max_s: from the moment both replicas are members to the next fall.
    """

    seed: int = 1
    watch_s: float = 12.0
    falls: int = 5
    every_min_s: float = 8.0
    every_max_s: float = 16.0


@dataclass(frozen=True, slots=True)
class LiveStory:
    """What came out.

    Args:
        speeds: tokens/s by number of replicas.
        seconds, tokens: of the trace.
        live: (seconds after its begin, how many replicas).
        kills, leaves: in it.
        pauses_s: from each fall to the next commit.
        foreign_cores: cores that other programs kept busy meanwhile.
    """

    speeds: dict[int, float]
    seconds: float
    tokens: float
    live: tuple[tuple[float, int], ...]
    kills: int
    leaves: int
    pauses_s: tuple[float, ...]
    foreign_cores: float

    @property
    def ideal(self) -> float:
        """The integral of live capacity, tokens."""
        return ideal_tokens(self.live, self.seconds, self.speeds)

    @property
    def ratio(self) -> float:
        """Committed tokens over the integral of live capacity."""
        return self.tokens / self.ideal

    @property
    def longest_pause_s(self) -> float:
        """Of all falls."""
        return max(self.pauses_s)

    @property
    def live_mean(self) -> float:
        """Replicas, averaged over time."""
        return ideal_tokens(self.live, self.seconds, {k: float(k) for _, k in self.live}) / self.seconds


class _Falls:
    """Plays the trace."""

    def __init__(self, swarm: LiveSwarm, plan: LivePlan) -> None:
        self._swarm, self._plan = swarm, plan
        self._rng = random.Random(f"{plan.seed}/churn live")
        self._count = 0
        self.there: list[str] = []
        self.changes: list[tuple[float, int]] = []
        self.struck_s: list[float] = []
        self.kills = self.leaves = 0

    async def add(self) -> None:
        """Start one more replica; return when it is a member."""
        self._count += 1
        name = f"replica-{self._count}"
        begun_s = await self._swarm.start(name)
        await self._swarm.until(f"{name} is a member", lambda: self._swarm.is_member(name))
        self.there.append(name)
        self.changes.append((next(t for t, _ in self._swarm.told(Started, begun_s, name)), +1))

    async def fall(self, *, leaves: bool) -> None:
        """One goes, and when it is gone another one comes."""
        await self._swarm.pass_time(self._rng.uniform(self._plan.every_min_s, self._plan.every_max_s))
        self.struck_s.append(await self.go(leaves=leaves))
        self.kills, self.leaves = self.kills + (not leaves), self.leaves + leaves
        await self.add()

    async def go(self, *, leaves: bool) -> float:
        """One goes; when it was struck. It is capacity until then, or until its process has ended,
        where it may leave.
        """
        name = self.there.pop(self._rng.randrange(len(self.there)))
        struck_s = self._swarm.dismiss(name) if leaves else self._swarm.kill(name)
        peer_id = self._swarm.endpoint(name).member.peer_id

        def is_missed() -> bool:
            lost = any(event.peer_id == peer_id for _, event in self._swarm.told(MemberLost, struck_s))
            return lost or any(event.peer_id == peer_id for _, event in self._swarm.told(MemberLeft, struck_s))

        await self._swarm.until(f"{name} is missed", is_missed)
        if leaves:
            await self._swarm.ended(name)
        self.changes.append((time.time() if leaves else struck_s, -1))
        return struck_s

    async def all(self) -> None:
        """The whole trace."""
        first = self._rng.random() < 0.5
        for number in range(self._plan.falls):
            await self.fall(leaves=(number % 2 == 0) == first)
        await self._swarm.pass_time(self._rng.uniform(self._plan.every_min_s, self._plan.every_max_s))


async def _watch(swarm: LiveSwarm, seconds: float) -> float:
    """Tokens/s over so many seconds."""
    await swarm.commits(SETTLE_COMMITS)
    begun_s = time.time()
    await swarm.pass_time(seconds)
    ended_s = time.time()
    await swarm.commit_past(ended_s)
    return Commits.of(swarm.said).rate(begun_s, ended_s)


async def measure(manifest: Manifest, folder: Path, plan: LivePlan) -> LiveStory:
    """Start the swarm, watch it with one replica and with two, play the trace, and watch it with
    two and with one again.

    Raises:
        LiveFailed: it did not go on.
    """
    job = prepare_job(manifest, folder, 1, manifest.run.iterations - 1)
    async with LiveSwarm(folder, job.run_file, job.text_file) as swarm:
        await swarm.start(SOURCE, feeds=True)
        await swarm.until("the source is up", lambda: any(True for _ in swarm.told(Started, name=SOURCE)))
        falls = _Falls(swarm, plan)
        cpu, busy, from_s = swarm.cpu_s(), machine_busy_seconds() - time.process_time(), time.time()
        await falls.add()
        one = [await _watch(swarm, plan.watch_s)]
        await falls.add()
        two = [await _watch(swarm, plan.watch_s)]
        begun_s = time.time()
        await falls.all()
        ended_s = time.time()
        two.append(await _watch(swarm, plan.watch_s))
        await falls.go(leaves=True)
        one.append(await _watch(swarm, plan.watch_s))
        foreign = max(0.0, machine_busy_seconds() - time.process_time() - busy - (swarm.cpu_s() - cpu)) / (time.time() - from_s)
        commits = Commits.of(swarm.said)
    return LiveStory(
        speeds={1: max(one), 2: max(two)},
        seconds=ended_s - begun_s,
        tokens=commits.by(ended_s) - commits.by(begun_s),
        live=live_counts(falls.changes, begun_s, ended_s),
        kills=falls.kills,
        leaves=falls.leaves,
        pauses_s=tuple(min(t for t in commits.times_s if t > struck_s) - struck_s for struck_s in falls.struck_s),
        foreign_cores=foreign,
    )
