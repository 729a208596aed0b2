"""Churn in virtual time for `benchmarks.churn`: more replicas than this machine has cores, each
computing as long as a real one.

The trainer runs unchanged, with integers for tensors. What a device does takes the time that its
engine's calls cost, by a table of seconds: so a microbatch, an average, a digest and a copied part
have the durations of a real stage, and everything else costs travel times only. Start of a process
is not rehearsed: a newcomer's life begins where a real one has imported everything.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from benchmarks.live import LiveFailed
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    RingSection,
    RunSection,
    StagesSection,
    TimingSection,
)
from swarmfree.protocol.messages import Open
from swarmfree.protocol.ports import Clock, Ports
from swarmfree.sim.faults import CALM
from swarmfree.sim.rehearsal import Factories, RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from swarmfree.trainer.peer import Hooks, run_peer

T = TypeVar("T")

STAGE = 1
BLOCKS = 3
PARTS = 2 * BLOCKS
FORWARD_S, BACKWARD_S = 0.07, 0.14
COSTS_S: Mapping[str, float] = {
    "forward": FORWARD_S,
    "backward": BACKWARD_S,
    "contribution": 0.010 / PARTS,
    "reduce": 0.040 / PARTS,
    "keep_average": 0.040 / PARTS,
    "read_average": 0.010 / PARTS,
    "average_digest": 0.006,
    "state_digest": 0.017,
    "step": 0.025,
    "step_part": 0.025 / PARTS,
    "read_state": 0.030 / PARTS,
    "write_state": 0.900 / PARTS,
}
"""Seconds of one call, as for 9.5 million parameters (114 MB with moments) on one core: forward and
backward of a microbatch of 256 tokens, memory and digests at what `docs/log.md` says; an average
travels at 1 GB/s, a copied state at 1 Gbit/s. A source computes for nothing.
"""
WARMUP_ITERATIONS = 3


@dataclass(frozen=True, slots=True)
class Trace:
    """What befalls the replicas.

    Args:
        seed: of everything.
        replicas: at the start.
        iterations: how long.
        every_s: mean time between two falls, exponential; each is a kill or a leave in good order,
            by a fair coin.
        away_min_s, away_max_s: after so long somebody takes the place of who fell: itself, or a
            newcomer.
    """

    seed: int
    replicas: int
    iterations: int
    every_s: float
    away_min_s: float = 10.0
    away_max_s: float = 40.0


@dataclass(frozen=True, slots=True)
class Story:
    """What a rehearsal showed between its first counted commit and its last.

    Args:
        seconds: virtual time between them.
        tokens: committed in it.
        live: (since when in seconds after the first of them, how many replicas), ascending; the
            first entry is at 0.
        falls: (kills, leaves, newcomers) in the whole rehearsal.
    """

    seconds: float
    tokens: int
    live: tuple[tuple[float, int], ...]
    falls: tuple[int, int, int]

    @property
    def tokens_per_s(self) -> float:
        """Committed."""
        return self.tokens / self.seconds


def live_counts(changes: list[tuple[float, int]], begun_s: float, ended_s: float) -> tuple[tuple[float, int], ...]:
    """How many were there from when on.

    Args:
        changes: (when, +1 or -1), in any order.
        begun_s, ended_s: what is looked at.

    Returns:
        (seconds after `begun_s`, how many), ascending from 0.0.
    """
    count = sum(change for time_s, change in changes if time_s <= begun_s)
    found = [(0.0, count)]
    for time_s, change in sorted(changes):
        if begun_s < time_s < ended_s:
            count += change
            found.append((time_s - begun_s, count))
    return tuple(found)


def ideal_tokens(live: tuple[tuple[float, int], ...], seconds: float, speeds: Mapping[int, float]) -> float:
    """The integral of live capacity.

    Args:
        live: (since when, how many), ascending.
        seconds: the end.
        speeds: tokens/s by number of replicas; 0 of them train nothing.
    """
    ends = [*(since for since, _ in live[1:]), seconds]
    return sum((end - since) * (speeds[count] if count else 0.0) for (since, count), end in zip(live, ends, strict=True))


# ---- a device that takes its time ----------------------------------------------------------------


class _Meter:
    """Seconds of the work under way: what it waited for the device, and what its engine's calls
    cost so far.
    """

    ahead_s = 0.0


class _CostedEngine:
    """Does what the engine does, and charges for it."""

    def __init__(self, engine: Engine, meter: _Meter) -> None:
        self._engine, self._meter = engine, meter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        cost_s = COSTS_S.get(name)
        if cost_s is None:
            return found

        def charged(*arguments: object, **named: object) -> object:
            self._meter.ahead_s += cost_s
            return found(*arguments, **named)

        return charged


class _CostedClock:
    """The peer's clock; work on the device sees it go on while its engine computes."""

    def __init__(self, clock: Clock, meter: _Meter) -> None:
        self._clock, self._meter = clock, meter

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._clock.now_s() + self._meter.ahead_s

    def wall_s(self) -> float:
        """Unix seconds."""
        return self._clock.wall_s()


class _CostedExecutor:
    """One piece of work after the other, each as long as its engine's calls cost."""

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter
        self._free_s = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` at once; its result comes when it would be done."""
        now_s = asyncio.get_running_loop().time()
        waited_s = max(0.0, self._free_s - now_s)
        self._meter.ahead_s = waited_s
        try:
            result = work()
            self._free_s = now_s + self._meter.ahead_s
        finally:
            self._meter.ahead_s = 0.0
        await asyncio.sleep(self._free_s - now_s)
        return result


class _Lives:
    """Runs peers with costed devices, and keeps when replicas came and went."""

    def __init__(self) -> None:
        self.changes: list[tuple[float, int]] = []

    async def run_peer(self, ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        """`trainer.life.peer.run_peer`; a replica is there until its last word, also while it
        leaves.
        """
        if local.can_feed:
            meter = _Meter()
            return await run_peer(replace(ports, executor=_CostedExecutor(meter)), manifest, local, rng, hooks)
        loop, meter = asyncio.get_running_loop(), _Meter()
        engine = cast("Engine", _CostedEngine(ports.engine, meter))
        clock, executor = _CostedClock(ports.clock, meter), _CostedExecutor(meter)
        self.changes.append((loop.time(), +1))
        try:
            return await run_peer(replace(ports, engine=engine, clock=clock, executor=executor), manifest, local, rng, hooks)
        finally:
            self.changes.append((loop.time(), -1))


class _Falls(Script):
    """Strikes replicas of the body at seeded moments, never the last one."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._rng = trace, random.Random(f"{trace.seed}/churn")
        self._begun = False
        self.kills = self.leaves = 0
        self._leaving: set[object] = set()

    def see(self, director: Director, moment: Moment) -> None:
        """Begin with the first plan."""
        if not self._begun and isinstance(moment.request, Open):
            self._begun = True
            self._next(director)

    def _next(self, director: Director) -> None:
        director.after(self._rng.expovariate(1 / self._trace.every_s), lambda: self._strike(director))

    def _strike(self, director: Director) -> None:
        there = [member for member in director.members(STAGE) if member not in self._leaving]
        if len(there) > 1:
            member = self._rng.choice(there)
            if self._rng.random() < 0.5:
                self.kills += 1
                director.kill(member)
            else:
                self.leaves += 1
                self._leaving.add(member)
                director.leave(member)
        self._next(director)


def _setup(trace: Trace, microbatches: int) -> Setup:
    """One source that costs nothing, one body stage."""
    manifest = Manifest(
        run=RunSection(name="churn", seed=trace.seed, iterations=trace.iterations, evaluate_every=0, evaluate_windows=1),
        model=ModelSection(width=8, blocks=BLOCKS, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=128),
        stages=StagesSection(body=1, replicas_min=trace.replicas, replicas_max=8, sources_max=1),
        batch=BatchSection(rows=2, microbatches=microbatches),
        ring=RingSection(credits=2 * 8),
        timing=TimingSection(join_wait_s=20.0, split_wait_s=10.0),
    )
    faults = replace(CALM, delay_min_s=0.0002, delay_max_s=0.002, replace_min_s=trace.away_min_s, replace_max_s=trace.away_max_s)
    return Setup(
        manifest,
        faults,
        feeders=1,
        bodies=trace.replicas,
        standbys=0,
        sequence_count=4 * microbatches,
        start_spread_s=0.2,
        progress_bound_s=120.0,
    )


def play(trace: Trace, microbatches: int, *, calm: bool) -> Story:
    """Rehearse.

    Args:
        trace: what befalls whom.
        microbatches: of an iteration.
        calm: nobody falls.

    Raises:
        LiveFailed: an invariant did not hold.
    """
    lives, falls = _Lives(), Script() if calm else _Falls(trace)
    setup = _setup(trace, microbatches)
    result = rehearse(trace.seed, setup=setup, factories=Factories(run_peer=lives.run_peer), script=falls)
    return _story(result, lives.changes, falls, setup.manifest)


def _story(result: RehearsalResult, changes: list[tuple[float, int]], falls: Script, manifest: Manifest) -> Story:
    if result.violation is not None:
        raise LiveFailed(f"the rehearsal of seed {result.seed} failed: {result.violation}")
    marks = result.statistics.traffic.marks[WARMUP_ITERATIONS - 1 :]
    begun_s, ended_s = marks[0].time_s, marks[-1].time_s
    struck = (falls.kills, falls.leaves) if isinstance(falls, _Falls) else (0, 0)
    came = sum(1 for _, change in changes if change > 0) - manifest.stages.replicas_min
    return Story(
        seconds=ended_s - begun_s,
        tokens=(len(marks) - 1) * manifest.tokens_per_iteration,
        live=live_counts(changes, begun_s, ended_s),
        falls=(*struck, came),
    )
