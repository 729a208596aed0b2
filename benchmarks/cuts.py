"""A stage becomes three times slower, and nobody is there who could move to it: do blocks go to the
other stages, what does the swarm wait for that, and does it learn the same?

``python -m benchmarks.cuts`` trains a tiny model of six blocks in a swarm of real processes: one
source, three body stages of one replica. The peer of the second stage is slowed three times; the
coordinator is told to cut the model anew where another cut has been the better one for five
seconds. Some iterations later the peer is as fast as before, and blocks go back.

With ``--lost`` the peer of the second stage is killed instead, and nobody comes: a guest serves it
until the run goes on over two stages. Then a peer is started, and it goes on over three again.

All processes run on this machine, with devices that sleep (see `paced_fork_server`). Progress goes
to stderr; the last line is one JSON object:

- *cuts*: each with the blocks of the stages, seconds that its preparation took and was expected to
  take, and of an iteration before, expected and measured;
- *decided_s*: from the slowing, or the loss, until the first cut;
- *adopted_s*: from the loss until a guest held the stage, and *adopted_iteration_s*, what an
  iteration took then; with ``--lost`` alone;
- *longest_gap_s*: the longest time between two commits from the first cut on; *longest_gap_all_s*
  and *median_gap_s* of all, the time from the loss to the guest with them;
- *iterations*, *iterations_lost*: committed, and missing among them;
- *handed_over*: how often a block went on in an engine that did not do the step before;
- *blocks_off*: blocks whose steps, of all engines that ever held them, are not one chain over all
  iterations, each from the very bytes (weights and both moments) that the one before left;
- *loss_off*: the largest difference of any iteration's loss from that of the same model trained
  alone, nats per token.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.block_chain import ENDS, Chain, chains, read_steps
from benchmarks.command import finish
from benchmarks.paced_fork_server import Pace
from benchmarks.paced_swarm import BLOCK_S, HEAD_S, SETTLED_COMMITS, PacedSwarm, commit_times_s, gaps_s, paced, run_of
from benchmarks.ring_runs import open_job
from swarmfree.lab.chaos.loss_judge import scalars_of
from swarmfree.lab.reference_training import Alone, train_canonically
from swarmfree.protocol.events import IterationCommitted, ModelCut, StageAdopted
from swarmfree.protocol.manifest import RecoverySection

BLOCKS, BODY = 6, 3
SLOWED = 3.0
CUT_AFTER_S = 5.0
DECIDED_WITHIN_S = 240.0
ROUNDS = 6
RUN = run_of(BLOCKS, BODY, 1)
REPLAYED = RecoverySection(ends_copies=0, snapshot_every=0, shadow_every=2, shadow_kind="full", border_dtype="wire")
"""A stage that is lost comes back bit for bit."""
SHADOWED_COMMITS = 8
LOST_BLOCK_S, LOST_HEAD_S = 0.1, 0.03


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


def _gaps(world: PacedSwarm, since_s: float) -> dict[str, Any]:
    """What becomes of all commits; the longest time between two since then."""
    times_s = commit_times_s(world.swarm)
    commits = {event.iteration: event.loss for _, event in world.swarm.told(IterationCommitted)}
    gaps = dict(zip(times_s[1:], gaps_s(times_s), strict=True))
    return {
        "longest_gap_s": max(gap for at_s, gap in gaps.items() if at_s > since_s),
        "longest_gap_all_s": max(gaps.values()),
        "median_gap_s": statistics.median(gaps.values()),
        "iterations": len(commits),
        "iterations_lost": len(set(range(max(commits) + 1)) - commits.keys()),
        **blocks_off(world.folder.parent, max(commits) + 1),
        "loss_off": losses_off(world.folder, commits),
    }


def blocks_off(folder: Path, iterations: int) -> dict[str, int]:
    """What becomes of the steps that engines wrote down, with those of the ends."""
    found, off = chains(read_steps(folder)), 0
    for block in (ENDS, *range(BLOCKS)):
        chain = found.get(block, Chain(0, 0, "nobody did a step of it"))
        if chain.fault or chain.steps < iterations:
            off += 1
            sys.stderr.write(f"block {block}: {chain.fault or f'{chain.steps} steps in {iterations} iterations'}\n")
    return {"handed_over": sum(chain.handed_over for chain in found.values()), "blocks_off": off}


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
        return {"cuts": [asdict(first), asdict(second)], "decided_s": first_s - slowed_s, **_gaps(world, first_s)}


async def measure_lost() -> dict[str, Any]:
    """Kill the peer of the second stage, and start another one once two stages have its blocks."""
    more = ("--cut-after", f"{CUT_AFTER_S:g}")
    async with paced(replace(RUN, recovery=REPLAYED), Pace(LOST_BLOCK_S, LOST_HEAD_S)) as world:
        await world.start(1, BODY, more)
        await world.swarm.commits(SHADOWED_COMMITS)
        lost_s = time.time()
        await world.kill(*world.of_stage(2))
        await world.swarm.until("a guest", lambda: bool(list(world.swarm.told(StageAdopted))), DECIDED_WITHIN_S)
        adopted_s = next(at_s for at_s, _ in world.swarm.told(StageAdopted))
        first_s, first = await _cut(world, lost_s, 1)
        at_guest_s = [at_s for at_s in commit_times_s(world.swarm) if adopted_s < at_s <= first_s]
        come_s, name = time.time(), f"peer-{BODY + 1}"
        await world.swarm.start(name, feeds=False, more=more)
        await world.swarm.until("it is a member", lambda: world.swarm.is_member(name), DECIDED_WITHIN_S)
        _, second = await _cut(world, come_s, 2)
        return {
            "cuts": [asdict(first), asdict(second)],
            "decided_s": first_s - lost_s,
            "adopted_s": adopted_s - lost_s,
            "adopted_iteration_s": statistics.median(gaps_s(at_guest_s)) if len(at_guest_s) > 1 else None,
            **_gaps(world, first_s),
        }


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuts", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--lost", action="store_true", help="the second stage's peer is killed, and another one comes later")
    return finish("benchmarks.cuts", measure_lost() if parser.parse_args().lost else measure())


if __name__ == "__main__":
    sys.exit(main())
