"""How long a swarm that was killed whole takes until it commits again, from its peers' disks.

``python -m benchmarks.restart`` trains a model of 100 MB (float32 weights; a snapshot has three
times that) with a bootstrap node and one peer for each of its four stages, kills all of them with
SIGKILL at a drawn moment between two snapshots, and starts the same commands again in the same
folders, so many times. Another run of the same seed, that nobody kills, says what the losses are.

Time counts from before the first process is started again: interpreters that load torch, the
directory, the watch that sees that nobody leads and what lies on whose disk, reading the snapshots,
and the first iteration. Progress goes to stderr; the last line is one JSON object:

- *to_commit_s*: median seconds to the first commit, and *to_commit_max_s*; of it *to_invite_s*
  until the bootstrap node has its invite out, and *to_named_s* until it has named who goes on;
- *to_new_s* and *to_new_max_s*: until the first commit of an iteration that had not been done
  before: with what is done again, of which there is five times as much at most where snapshots come
  every 50 iterations, as by default;
- *iteration_s*: an iteration of the run that is not killed, median;
- *iterations_lost*: most that were done again; *snapshot_every* bounds it;
- *bit_equal*: 1 where every loss that was committed after a restart is, to the bit, that of the run
  that was not killed; the share of those that are, else. Each stage has one replica: with more of
  them sums are added in another order, and losses differ by rounding.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.command import finish
from benchmarks.live import BOOTSTRAP, LiveFailed, LiveSwarm
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.events import IterationCommitted, Note
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RecoverySection,
    RunSection,
    StagesSection,
)

EVERY = 10
RUN = Manifest(
    run=RunSection(name="restart", seed=3, iterations=100_000, evaluate_every=0, evaluate_windows=1),
    model=ModelSection(width=576, blocks=6, heads=8, kv_heads=8, mlp_width=1632, tokens_per_row=64),
    stages=StagesSection(body=3, replicas_max=1),
    batch=BatchSection(rows=1, microbatches=2),
    optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
    recovery=RecoverySection(mode="checkfree", snapshot_every=EVERY),
)
QUICK_MODEL = ModelSection(width=32, blocks=3, heads=2, kv_heads=2, mlp_width=64, tokens_per_row=32)
ROUNDS, QUICK_ROUNDS = 3, 1
PEERS = ("peer-1", "peer-2", "peer-3", "peer-4")
AFTER = 3
WITHIN_S = 180.0
TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Restart:
    """One death and what came after; seconds since the first process was started again."""

    invite_s: float
    named_s: float
    commit_s: float
    new_s: float
    lost: int
    losses: dict[int, float]


def first_new_s(commits: Sequence[tuple[float, int]], last: int) -> float | None:
    """When the first iteration was committed that nobody had done; None while there is none.

    Args:
        commits: (when, iteration), in order.
        last: of those that were done before.
    """
    return next((time_s for time_s, iteration in commits if iteration > last), None)


def losses_of(swarm: LiveSwarm, since_s: float = 0.0) -> dict[int, float]:
    """Iteration -> loss of what was committed; a successor tells the last record before it once
    more.
    """
    return {event.iteration: event.loss for _, event in swarm.told(IterationCommitted, since_s) if event.seconds > 0}


async def train(swarm: LiveSwarm) -> None:
    """Start all peers; the first one feeds."""
    for name in PEERS:
        await swarm.start(name, feeds=name == PEERS[0])


async def one(folder: Path, run_file: Path, text: Path, rng: random.Random) -> Restart:
    """Train, kill all, start all again.

    Raises:
        LiveFailed: it did not go on.
    """
    async with LiveSwarm(folder, run_file, text) as swarm:
        await train(swarm)
        wanted = 2 * EVERY + rng.randrange(1, EVERY)
        await swarm.until(f"iteration {wanted}", lambda: max(losses_of(swarm), default=0) >= wanted, WITHIN_S)
        for name in (BOOTSTRAP, *PEERS):
            swarm.kill(name)
        for name in (BOOTSTRAP, *PEERS):
            await swarm.ended(name)
        last = max(losses_of(swarm))
    begun_s = time.time()
    async with LiveSwarm(folder, run_file, text) as swarm:
        invite_s = time.time() - begun_s
        await train(swarm)
        await swarm.until(
            f"iteration {last + AFTER}", lambda: max(losses_of(swarm, begun_s), default=0) >= last + AFTER, WITHIN_S
        )
        commits = [(time_s, event.iteration) for time_s, event in swarm.told(IterationCommitted, begun_s) if event.seconds > 0]
        new_s = first_new_s(commits, last)
        assert new_s is not None, "waited for it"
        named = [time_s for time_s, event in swarm.told(Note, begun_s, BOOTSTRAP) if "the run goes on with" in event.text]
        first_s, first = commits[0]
        lost = max(0, last + 1 - first)
        return Restart(invite_s, named[-1] - begun_s, first_s - begun_s, new_s - begun_s, lost, losses_of(swarm, begun_s))


async def whole(folder: Path, run_file: Path, text: Path, iterations: int) -> tuple[dict[int, float], float]:
    """Losses of a run that nobody kills, and the median time between two commits."""
    async with LiveSwarm(folder, run_file, text) as swarm:
        await train(swarm)
        await swarm.until(f"iteration {iterations}", lambda: max(losses_of(swarm), default=0) >= iterations, WITHIN_S)
        times = [time_s for time_s, event in swarm.told(IterationCommitted) if event.seconds > 0]
        return losses_of(swarm), statistics.median(after - before for before, after in itertools.pairwise(times))


async def measure(rounds: int, *, quick: bool) -> dict[str, float]:
    """All rounds, and the run beside them."""
    rng = random.Random(RUN.run.seed)
    manifest = replace(RUN, model=QUICK_MODEL) if quick else RUN
    with tempfile.TemporaryDirectory(prefix="swarmfree-restart-") as name:
        place = Path(name)
        run_file, text = place / "run.toml", place / "text.txt"
        run_file.write_text(to_toml(manifest))
        text.write_bytes(bytes(rng.choice(b"abcdefgh \n") for _ in range(TEXT_BYTES)))
        found: list[Restart] = []
        for number in range(rounds):
            found.append(await one(place / f"round-{number}", run_file, text, rng))
            said = found[-1]
            print(
                f"round {number + 1} of {rounds}: first commit after {said.commit_s:.1f} s (invite {said.invite_s:.1f}, "
                f"named {said.named_s:.1f}), {said.lost} iterations done again, the first new one after {said.new_s:.1f} s",
                file=sys.stderr,
                flush=True,
            )
        last = max(max(restart.losses) for restart in found)
        expected, iteration_s = await whole(place / "whole", run_file, text, last)
    pairs = [(loss, expected.get(iteration)) for restart in found for iteration, loss in restart.losses.items()]
    if not pairs:
        raise LiveFailed("nothing was committed after a restart")
    return {
        "to_commit_s": round(statistics.median(restart.commit_s for restart in found), 2),
        "to_commit_max_s": round(max(restart.commit_s for restart in found), 2),
        "to_new_s": round(statistics.median(restart.new_s for restart in found), 2),
        "to_new_max_s": round(max(restart.new_s for restart in found), 2),
        "to_invite_s": round(statistics.median(restart.invite_s for restart in found), 2),
        "to_named_s": round(statistics.median(restart.named_s for restart in found), 2),
        "iteration_s": round(iteration_s, 3),
        "iterations_lost": max(restart.lost for restart in found),
        "snapshot_every": EVERY,
        "bit_equal": round(sum(loss == right for loss, right in pairs) / len(pairs), 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restart", description="Time from the death of all to a commit.")
    parser.add_argument("--rounds", type=int, default=0, help=f"deaths; {ROUNDS} by default, {QUICK_ROUNDS} with --quick")
    parser.add_argument("--quick", action="store_true", help="a tiny model: whether it works, not how long it takes")
    chosen = parser.parse_args(arguments)
    rounds = chosen.rounds or (QUICK_ROUNDS if chosen.quick else ROUNDS)
    return finish("restart", measure(rounds, quick=chosen.quick))


if __name__ == "__main__":
    sys.exit(main())
