"""A swarm of real processes whose devices take as long as a benchmark says, and what it takes for
an iteration; see `paced_fork_server`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.live import LiveFailed, LiveSwarm
from benchmarks.paced_fork_server import MEASURED, Pace, paced_fork_server
from benchmarks.ring_runs import prepare_job
from swarmfree.policy.planner.estimator import iteration_estimate
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, measured_fleet
from swarmfree.protocol.events import IterationCommitted, MemberLost, Note, Opened, Started
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RecoverySection,
    RingSection,
    RunSection,
    StagesSection,
)
from swarmfree.trainer.coordinator.measured_peers import plan_of

BLOCK_S, HEAD_S = 0.3, 0.08
"""Of a microbatch; some fifty times what the tiny model takes here, so that what many processes
take from each other matters little.
"""
SETTLED_COMMITS = 4
"""By then heartbeats have told of every device, and a plan deals by that."""
WITHIN_S = 120.0


def run_of(blocks: int, body: int, replicas_max: int, sources_max: int = 1) -> Manifest:
    """A run of a tiny model; nothing but training happens in it."""
    return Manifest(
        run=RunSection(name="paced", seed=1, iterations=100_000, evaluate_every=0, evaluate_windows=1),
        model=ModelSection(width=32, blocks=blocks, heads=2, kv_heads=2, mlp_width=64, tokens_per_row=32),
        stages=StagesSection(body=body, replicas_max=replicas_max, sources_max=sources_max),
        batch=BatchSection(rows=1, microbatches=12),
        optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
        ring=RingSection(credits=6),
        recovery=RecoverySection(ends_copies=0, shadow_every=0, snapshot_every=0),
    )


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a coordinator knew, as it tells it after iterations.

    Args:
        peers: all that have a place.
        manifest: of the run.
    """

    peers: tuple[MeasuredPeer, ...]
    manifest: Manifest

    @property
    def plan(self) -> ExecutionPlan:
        """Who serves what."""
        return plan_of(self.peers, self.manifest)

    @property
    def fleet(self) -> Fleet:
        """How fast they are.

        Raises:
            LiveFailed: nobody has measured anything.
        """
        fleet = measured_fleet(self.peers, self.manifest)
        if fleet is None:
            raise LiveFailed("no peer of the body has measured a microbatch")
        return fleet

    @property
    def devices_s(self) -> float:
        """Seconds of an iteration that the estimator expects devices to compute for."""
        return iteration_estimate(self.fleet, self.plan, self.manifest).seconds


class PacedSwarm:
    """A live swarm, and the file that says how slow its devices are."""

    def __init__(self, swarm: LiveSwarm, manifest: Manifest, pace_file: Path, pace: Pace, folder: Path) -> None:
        """Nobody is started; the run and its text lie in `folder`."""
        self.folder = folder
        self.swarm, self._manifest, self._pace_file, self.pace = swarm, manifest, pace_file, pace

    def slow(self, slower: Mapping[str, float], *, moves: bool | None = None) -> float:
        """Have these peers take so many times as long from now on, and all others the usual time;
        when.
        """
        self.pace = replace(self.pace, slower=slower, moves=self.pace.moves if moves is None else moves)
        self.pace.write(self._pace_file)
        return time.time()

    async def start(self, sources: int, bodies: int, more: Sequence[str] = ()) -> None:
        """Start peers with these arguments besides, one after the other, until all are members."""
        names = [*(f"source-{n + 1}" for n in range(sources)), *(f"peer-{n + 1}" for n in range(bodies))]
        for name in names:
            await self.swarm.start(name, feeds=name.startswith("source"), more=more)
        await self.swarm.until("all are members", lambda: all(map(self.swarm.is_member, names)), WITHIN_S)

    def of_stage(self, stage: int) -> list[str]:
        """Names of the peers in the newest plan's stage, in the order of their ids."""
        members = [event for _, event in self.swarm.told(Opened)][-1].members[stage]
        names = {said.event.peer_id: said.name for said in self.swarm.said if isinstance(said.event, Started)}
        return [names[peer_id] for peer_id in sorted(members)]

    async def kill(self, *names: str) -> None:
        """SIGKILL; return when they are missed."""
        for name in names:
            peer_id, struck_s = self.swarm.endpoint(name).member.peer_id, self.swarm.kill(name)
            await self.swarm.until(
                f"{name} is missed",
                lambda: any(e.peer_id == peer_id for _, e in self.swarm.told(MemberLost, struck_s)),  # noqa: B023 - awaited here
            )

    def knowledge(self, count: int) -> Knowledge:
        """What the coordinator knew after the last commits, so many of them: of each peer the
        median, since one look may fall on a moment in which this machine did something else.
        """
        notes = [event.text for _, event in self.swarm.told(Note) if event.text.startswith(MEASURED)]
        told: dict[tuple[str, int], list[float]] = {}
        for note in notes[-count:]:
            for name, stage, seconds in json.loads(note.removeprefix(MEASURED)):
                told.setdefault((name, stage), []).append(seconds)
        peers = tuple(MeasuredPeer(name, stage, statistics.median(each_s)) for (name, stage), each_s in told.items())
        return Knowledge(peers, self._manifest)

    async def iteration_s(self, rounds: int) -> float:
        """Seconds from one commit to the next, the median of `rounds`.

        Raises:
            LiveFailed: somebody came or went meanwhile.
        """
        begun = len(commit_times_s(self.swarm))
        plan = [event for _, event in self.swarm.told(Opened)][-1].members
        await self.swarm.commits(rounds, within_s=WITHIN_S)
        if any(event.members != plan for _, event in self.swarm.told(Opened, commit_times_s(self.swarm)[begun - 1])):
            raise LiveFailed("somebody came or went while iterations were measured")
        times_s = commit_times_s(self.swarm)[begun - 1 :]
        return statistics.median(gaps_s(times_s))


def commit_times_s(swarm: LiveSwarm) -> list[float]:
    """When each iteration was committed."""
    return sorted({event.iteration: at_s for at_s, event in swarm.told(IterationCommitted)}.values())


def gaps_s(times_s: Sequence[float]) -> list[float]:
    """From each moment to the next."""
    return [later - before for before, later in itertools.pairwise(times_s)]


@contextlib.asynccontextmanager
async def paced(manifest: Manifest, pace: Pace) -> AsyncIterator[PacedSwarm]:
    """A bootstrap node, and nobody yet; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="swarmfree-paced-", ignore_cleanup_errors=True) as name:
        job = prepare_job(manifest, Path(name) / "swarm", 1, manifest.run.iterations - 1)
        pace_file = Path(name) / "pace.json"
        pace.write(pace_file)
        async with LiveSwarm(job.folder, job.run_file, job.text_file, paced_fork_server(pace_file)) as swarm:
            yield PacedSwarm(swarm, job.manifest, pace_file, pace, job.folder)
