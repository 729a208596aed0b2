"""Whether a swarm outlives a storm of restarts: every two seconds one of nine peers, drawn at
random, is killed with SIGKILL, and started again two seconds later in its folder.

``python -m benchmarks.storm --seed N`` trains a tiny model of four stages so for 90 s, and then
leaves it alone. With ``--all-at SECONDS`` everybody, the bootstrap node too, is killed at once so
long after the storm has begun, and started again two seconds later. It fails (exit code 1, one
line) where training does not go on within 60 s of the last strike, where an iteration was committed
twice with different losses, or where more was done again than what came after the last complete set
of snapshots. Where a stage was made from something else than its own state, since all who held it
had died, what comes after it has another loss, and only counts.

Progress goes to stderr; the last line is one JSON object:

- *kills*, *restarts*, and how many *iterations* were committed in all;
- *to_commit_s*: from the last strike to the next commit of an iteration that nobody had done;
- *longest_gap_s*: without a commit, in the storm and after it, and *longest_gap_new_s* without one
  of an iteration that nobody had done;
- *resumed*: how often the run went on from snapshots; *redone*: how many iterations were done again
  in all, and *redone_max* at once, where *redone_bound* is what the last complete sets allow;
- *twice*: iterations that were committed under two lineages; *twice_bit_equal* of them with the
  same loss to the bit, *twice_made_anew* after a stage that was made anew, and *twice_difference*,
  the largest relative difference among the others.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import finish
from benchmarks.live import BOOTSTRAP, LiveFailed, LiveSwarm
from swarmfree.lab.swarm import FORK_SERVER_COMMAND
from swarmfree.policy.resume import SnapshotSet, resume_point
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.events import IterationCommitted, Note, StageBuilt
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RecoverySection,
    RunSection,
    StagesSection,
)
from swarmfree.storage.snapshots import SNAPSHOTS, FolderSnapshots

EVERY = 10
RUN = Manifest(
    run=RunSection(name="storm", seed=3, iterations=1_000_000, evaluate_every=0, evaluate_windows=1),
    model=ModelSection(width=32, blocks=3, heads=2, kv_heads=2, mlp_width=64, tokens_per_row=32),
    stages=StagesSection(body=3, replicas_max=2, sources_max=2),
    batch=BatchSection(rows=1, microbatches=4),
    optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
    recovery=RecoverySection(snapshot_every=EVERY),
)
PEERS = tuple(f"peer-{number}" for number in range(1, 10))
FEEDERS = PEERS[:4]
GAP_S, AWAY_S, STORM_S = 2.0, 2.0, 90.0
UP_WITHIN_S, ON_WITHIN_S = 180.0, 60.0
SAME = 1e-6
"""Two losses of one iteration differ by less where its microbatches were summed up in another
order.
"""
TEXT_BYTES = 1 << 20
LOOK_S = 0.2
RESUMED = "the run goes on with iteration"


@dataclass(frozen=True, slots=True)
class Again:
    """Iterations that were done again.

    Args:
        first: of them.
        count: how many.
    """

    first: int
    count: int


def done_again(commits: Sequence[IterationCommitted]) -> tuple[Again, ...]:
    """Where a commit stands on an earlier one than the last; a successor that tells the last one
    once more (in no time) does nothing again.
    """
    found, furthest = [], -1
    before = -1
    for event in commits:
        if event.seconds > 0:
            if event.iteration <= before:
                found.append(Again(event.iteration, furthest + 1 - event.iteration))
            before, furthest = event.iteration, max(furthest, event.iteration)
    return tuple(found)


def committed_twice(commits: Sequence[IterationCommitted]) -> dict[int, float]:
    """Iteration -> largest relative difference of its losses, where it has several records."""
    losses: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for event in commits:
        losses[event.iteration][event.lineage] = event.loss
    several = {iteration: list(found.values()) for iteration, found in losses.items() if len(found) > 1}
    return {iteration: (max(found) - min(found)) / max(found) for iteration, found in several.items()}


def new_times_s(said: Sequence[tuple[float, IterationCommitted]]) -> list[float]:
    """When each iteration was committed that nobody had done before; (when, what), in order."""
    found, furthest = [], -1
    for time_s, event in said:
        if event.iteration > furthest:
            found.append(time_s)
            furthest = event.iteration
    return found


def longest_gap_s(times_s: Sequence[float]) -> float:
    """From one of these moments to the next; ascending, two at least."""
    return max(after - before for before, after in itertools.pairwise(times_s))


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run went on from snapshots.

    Args:
        time_s: Unix, when the bootstrap node said so.
        first: iteration that is done first.
        lost: iterations that came after the newest set which was whole on all disks.
    """

    time_s: float
    first: int
    lost: int


def made_anew(built: Sequence[tuple[float, StageBuilt]], resumed: Sequence[Resumed], iteration: int) -> bool:
    """Whether before this iteration, that was done again, a stage was made from something else than
    its own state, where not each time that it was done: but for what went on from a set of
    snapshots, which has to begin with that set.
    """
    first = max((one.first for one in resumed if one.first <= iteration), default=0)
    since_s = max((one.time_s for one in resumed if one.first <= iteration), default=0.0)
    return any(
        first <= event.iteration <= iteration and (event.iteration > first or time_s < since_s)
        for time_s, event in built
        if event.action != "Copy" and not event.exact
    )


def newest_set(folder: Path, fingerprint: str) -> SnapshotSet | None:
    """What lies on all disks: the set from which the run has to go on."""
    offers = {}
    for name in PEERS:
        disk = FolderSnapshots(folder / "peers" / name / SNAPSHOTS, fingerprint)
        offers[name] = disk.held()
        disk.close()
    return resume_point(offers, RUN.stage_count)


class Storm:
    """One storm over a swarm.

    Attributes:
        kills, restarts: how many.
        struck_s: when the last one was started again; Unix time.
        resumed: each time that the run went on from snapshots.
    """

    def __init__(self, swarm: LiveSwarm, folder: Path, seed: int, all_at_s: float) -> None:
        """Nobody was struck."""
        self._swarm, self._folder, self._draw, self._all_at_s = swarm, folder, random.Random(seed), all_at_s
        self.kills = self.restarts = 0
        self.struck_s = 0.0
        self.resumed: list[Resumed] = []

    async def blow(self) -> None:
        """Kill and start again until the time is over and all are back."""
        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as restarts:
            for number in itertools.count(1):
                at_s = begun_s + GAP_S * number
                if at_s >= begun_s + STORM_S:
                    break
                await asyncio.sleep(max(0.0, at_s - time.monotonic()))
                if self._all_at_s and GAP_S * number >= self._all_at_s:
                    self._all_at_s = 0.0
                    await self._kill_all()
                    continue
                living = [name for name in PEERS if self._swarm.is_alive(name)]
                if living:
                    name = self._draw.choice(living)
                    self._strike(name)
                    restarts.create_task(self._again_later(name), name=f"start {name} again")
        self.struck_s = time.time()

    async def follow(self) -> None:
        """Keep what lay on all disks each time that the run goes on from snapshots, until
        cancelled.
        """
        while True:
            said = [(time_s, e.text) for time_s, e in self._swarm.told(Note, name=BOOTSTRAP) if RESUMED in e.text]
            for time_s, text in said[len(self.resumed) :]:
                say(text)
                point = newest_set(self._folder, self._swarm.fingerprint)
                assert point is not None, "it goes on from one"
                furthest = max(event.iteration for _, event in self._swarm.told(IterationCommitted))
                lost = furthest + 1 - point.iteration if not point.missing else 0
                self.resumed.append(Resumed(time_s, int(text.split("iteration ")[1].split(",")[0]), lost))
            await asyncio.sleep(LOOK_S)

    def _strike(self, name: str) -> None:
        self._swarm.kill(name)
        self.kills += 1

    async def _again_later(self, name: str) -> None:
        await self._swarm.ended(name)
        await asyncio.sleep(AWAY_S)
        if not self._swarm.is_alive(name):
            await self._swarm.start(name, feeds=name in FEEDERS)
            self.restarts += 1

    async def _kill_all(self) -> None:
        """Everybody at once; who is away already comes back by itself."""
        there = [name for name in PEERS if self._swarm.is_alive(name)]
        for name in (BOOTSTRAP, *there):
            self._strike(name)
        for name in (BOOTSTRAP, *there):
            await self._swarm.ended(name)
        say(f"all are dead; newest set on their disks: {newest_set(self._folder, self._swarm.fingerprint)}")
        await asyncio.sleep(AWAY_S)
        await self._swarm.start_bootstrap()
        for name in there:
            await self._swarm.start(name, feeds=name in FEEDERS)
            self.restarts += 1


def say(what: str) -> None:
    """Progress."""
    print(what, file=sys.stderr, flush=True)


async def measure(seed: int, all_at_s: float) -> dict[str, float]:
    """One storm.

    Raises:
        LiveFailed: something did not hold.
    """
    with tempfile.TemporaryDirectory(prefix="swarmfree-storm-") as name:
        folder = Path(name)
        run_file, text = folder / "run.toml", folder / "text.txt"
        run_file.write_text(to_toml(RUN))
        draw = random.Random(RUN.run.seed)
        text.write_bytes(bytes(draw.choice(b"abcdefgh \n") for _ in range(TEXT_BYTES)))
        async with LiveSwarm(folder, run_file, text, FORK_SERVER_COMMAND) as swarm:
            for peer in PEERS:
                await swarm.start(peer, feeds=peer in FEEDERS)

            def furthest() -> int:
                return max((event.iteration for _, event in swarm.told(IterationCommitted)), default=-1)

            await swarm.until("two sets of snapshots", lambda: furthest() > 2 * EVERY, UP_WITHIN_S)
            say(f"iteration {furthest()} is committed: the storm begins")
            begun_s, storm = time.time(), Storm(swarm, folder, seed, all_at_s)
            async with asyncio.TaskGroup() as watching:
                following = watching.create_task(storm.follow(), name="follow")
                await storm.blow()
                last = furthest()
                say(f"the storm is over; iteration {last} is committed, {storm.kills} kills")
                await swarm.until(f"iteration {last + 1}, after the storm", lambda: furthest() > last, ON_WITHIN_S)
                to_commit_s = time.time() - storm.struck_s
                await swarm.until("ten more, after the storm", lambda: furthest() > last + EVERY, ON_WITHIN_S)
                following.cancel()
            return figures(swarm, storm, begun_s, to_commit_s)


def figures(swarm: LiveSwarm, storm: Storm, begun_s: float, to_commit_s: float) -> dict[str, float]:
    """What came of it.

    Raises:
        LiveFailed: something did not hold.
    """
    said = [(time_s, event) for time_s, event in swarm.told(IterationCommitted)]
    commits = [event for _, event in said]
    times = [begun_s, *(time_s for time_s, event in said if event.seconds > 0 and time_s > begun_s)]
    again, twice = done_again(commits), committed_twice(commits)
    built = list(swarm.told(StageBuilt))
    anew = {iteration for iteration in twice if made_anew(built, storm.resumed, iteration)}
    different = {iteration: by for iteration, by in twice.items() if by > SAME and iteration not in anew}
    if different:
        raise LiveFailed(f"committed twice, with different losses: {different}")
    bound = sum(one.lost for one in storm.resumed)
    redone = sum(one.count for one in again)
    if storm.resumed and redone > bound:
        raise LiveFailed(f"{redone} iterations were done again, where the last whole sets allow {bound}: {again}")
    return {
        "kills": storm.kills,
        "restarts": storm.restarts,
        "iterations": max(e.iteration for e in commits) + 1,
        "to_commit_s": round(to_commit_s, 2),
        "longest_gap_s": round(longest_gap_s(times), 2),
        "longest_gap_new_s": round(longest_gap_s([begun_s, *(t for t in new_times_s(said) if t > begun_s)]), 2),
        "resumed": len(storm.resumed),
        "redone": redone,
        "redone_max": max((one.count for one in again), default=0),
        "redone_bound": bound,
        "twice": len(twice),
        "twice_bit_equal": sum(not by for by in twice.values()),
        "twice_made_anew": len(anew),
        "twice_difference": max((by for iteration, by in twice.items() if iteration not in anew), default=0.0),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Blow, and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storm", description="A storm of restarts over a real swarm.")
    parser.add_argument("--seed", type=int, default=1, help="of who is killed; 1 by default")
    parser.add_argument("--all-at", type=float, default=0.0, metavar="SECONDS", help="kill all at once then; never by default")
    chosen = parser.parse_args(arguments)
    return finish("storm", measure(chosen.seed, chosen.all_at))


if __name__ == "__main__":
    sys.exit(main())
