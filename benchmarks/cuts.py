"""A stage becomes three times slower, and nobody is there who could move to it: do blocks go to the
other stages, what does the swarm wait for that, and does it learn the same?

``python -m benchmarks.cuts`` trains a tiny model of six blocks in a swarm of real processes: one
source, three body stages of one replica. The peer of the second stage is slowed three times; the
coordinator is told to cut the model anew where another cut has been the better one for five
seconds. Some iterations later the peer is as fast as before, and blocks go back.

All processes run on this machine, with devices that sleep (see `paced_fork_server`). Progress goes
to stderr; the last line is one JSON object:

- *cuts*: each with the blocks of the stages, seconds that its preparation took and was expected to
  take, and of an iteration before, expected and measured;
- *decided_s*: from the slowing until the first cut;
- *longest_gap_s*: the longest time between two commits from the first cut on, and *median_gap_s* of
  all;
- *iterations*, *iterations_lost*: committed, and missing among them;
- *loss_off*: the largest difference of any iteration's loss from that of the same model trained
  alone, nats per token.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import finish
from benchmarks.paced_fork_server import Pace
from benchmarks.paced_swarm import BLOCK_S, HEAD_S, SETTLED_COMMITS, PacedSwarm, commit_times_s, gaps_s, paced, run_of
from benchmarks.ring_runs import open_job
from swarmfree.lab.chaos.loss_judge import scalars_of
from swarmfree.lab.reference_training import Alone, train_canonically
from swarmfree.protocol.events import IterationCommitted, ModelCut

BLOCKS, BODY = 6, 3
SLOWED = 3.0
CUT_AFTER_S = 5.0
DECIDED_WITHIN_S = 240.0
ROUNDS = 6
RUN = run_of(BLOCKS, BODY, 1)


@dataclass(frozen=True, slots=True)
class Cut:
    """What one cut came to."""

    blocks: list[int]
    prepared_s: float
    predicted_s: float
    before_s: float
    predicted_iteration_s: float
    measured_iteration_s: float


async def _cut(world: PacedSwarm, since_s: float, count: int) -> tuple[float, Cut]:
    """The next cut, when it was decided, and iterations after it."""

    def cuts() -> list[tuple[float, ModelCut]]:
        return list(world.swarm.told(ModelCut))

    await world.swarm.until(f"cut {count}", lambda: len(cuts()) >= count, DECIDED_WITHIN_S)
    at_s, event = cuts()[count - 1]
    await world.swarm.commits(2)
    measured_s = await world.iteration_s(ROUNDS)
    sys.stderr.write(f"{at_s - since_s:.1f} s later: {event.blocks}, {event.reason}; measured {measured_s:.2f} s\n")
    return at_s, Cut(event.blocks, event.seconds, event.predicted_s, event.iteration_s, event.predicted_iteration_s, measured_s)


def losses_off(folder: Path, losses: Mapping[int, float]) -> float:
    """The largest difference from the model trained alone."""
    manifest, tokens = open_job(folder)
    alone = train_canonically(Alone(manifest, tokens), partial(scalars_of, manifest), iterations=max(losses) + 1)
    return max(abs(loss - losses[iteration]) for iteration, loss in enumerate(alone) if iteration in losses)


async def measure() -> dict[str, Any]:
    """Slow the second stage, then let it be as before."""
    async with paced(RUN, Pace(BLOCK_S, HEAD_S)) as world:
        await world.start(1, BODY, ("--cut-after", f"{CUT_AFTER_S:g}"))
        await world.swarm.commits(SETTLED_COMMITS)
        slowed_s = world.slow(dict.fromkeys(world.of_stage(2), SLOWED))
        first_s, first = await _cut(world, slowed_s, 1)
        _, second = await _cut(world, world.slow({}), 2)
        times_s = commit_times_s(world.swarm)
        commits = {event.iteration: event.loss for _, event in world.swarm.told(IterationCommitted)}
        off = losses_off(world.folder, commits)
    gaps = dict(zip(times_s[1:], gaps_s(times_s), strict=True))
    return {
        "cuts": [asdict(first), asdict(second)],
        "decided_s": first_s - slowed_s,
        "longest_gap_s": max(gap for at_s, gap in gaps.items() if at_s > first_s),
        "median_gap_s": statistics.median(gaps.values()),
        "iterations": len(commits),
        "iterations_lost": len(set(range(max(commits) + 1)) - commits.keys()),
        "loss_off": off,
    }


def main() -> int:
    """Parse the command line and run."""
    argparse.ArgumentParser(
        prog="python -m benchmarks.cuts", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    ).parse_args()
    return finish("benchmarks.cuts", measure())


if __name__ == "__main__":
    sys.exit(main())
