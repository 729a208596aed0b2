"""Does a swarm see that all wait for one peer's link, and what does it do about that?

``python -m benchmarks.slow_link`` makes two hosts in network namespaces of their own and a router
between them (`benchmarks.wan`; root, or ``unshare -rn`` before the command). One source and five
peers of two body stages train at the first one, and a sixth comes to the stage that has two at the
other, over a link of 16 Mbit/s and 20 ms each way; each stage averages 2.6 MB of gradients in each
iteration. The coordinator is left to do what it does. Later both others of that peer's stage are
killed. A device computes and then sleeps for the rest of the time that a slower machine would take
(see `paced_fork_server`).

Progress goes to stderr; the last line is one JSON object:

- *alone_s*: seconds of an iteration before it comes, *slowed_s* with it, *without_s* once it stands
  by, medians; *predicted_slowed_s* and *predicted_without_s*, what the coordinator expected;
- *decided_s*: from its first few iterations until it is told to stand by;
- *of_alone*: *alone_s* over *without_s*, the share of tokens/s that the swarm has again;
- *back_s*: from the kill until it holds its stage again, and *resumed_s* until the first commit of
  an iteration that was opened afterwards; *steps_lost* of the stage.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.command import finish
from benchmarks.live import LiveFailed
from benchmarks.paced_fork_server import Pace, paced_fork_server
from benchmarks.paced_swarm import HEAD_S, SETTLED_COMMITS, commit_times_s, gaps_s
from benchmarks.reach import EAST, TEXT_BYTES, UP_WITHIN_S, WEST, Swarm, resumed_s, say
from benchmarks.wan import Quality, Wan, both_ways
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.events import MoveDecided, MoveMeasured, RecoveryDecided, StageBuilt
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
from swarmfree.protocol.names import ABSENT

RUN = Manifest(
    run=RunSection(name="slow-link", seed=5, iterations=1_000_000, evaluate_every=0, evaluate_windows=1),
    model=ModelSection(width=256, blocks=2, heads=4, kv_heads=4, mlp_width=512, tokens_per_row=32),
    stages=StagesSection(body=2, replicas_min=1, replicas_max=3, sources_max=1),
    batch=BatchSection(rows=1, microbatches=12),
    optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
    ring=RingSection(credits=6),
    recovery=RecoverySection(ends_copies=0, shadow_every=0, snapshot_every=0),
)
SOURCE, NEAR, FAR = "source", tuple(f"near-{n + 1}" for n in range(5)), "far"
BLOCK_S = 0.5
LINE = Quality(0.02, 2e6)
DECIDED_WITHIN_S, MEASURED_WITHIN_S = 300.0, 120.0


@contextlib.asynccontextmanager
async def started(wan: Wan) -> AsyncIterator[Swarm]:
    """A bootstrap node at the first host; nothing is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="swarmfree-slow-link-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        run_file, text, pace_file = folder / "run.toml", folder / "text.txt", folder / "pace.json"
        Pace(BLOCK_S, HEAD_S, moves=True).write(pace_file)
        run_file.write_text(to_toml(RUN))
        draw = random.Random(RUN.run.seed)
        text.write_bytes(bytes(draw.choice(b"abcdefgh \n") for _ in range(TEXT_BYTES)))
        before = {host: wan.command(host) for host in (EAST, WEST)}
        async with Swarm(folder, run_file, text, paced_fork_server(pace_file), before) as swarm:
            yield swarm


async def members(swarm: Swarm, host: str, *names: str) -> None:
    """Start these, one after the other, and wait until all are members and settled."""
    for name in names:
        await swarm.start(name, feeds=name == SOURCE, host=host)
    await swarm.until(f"all of {', '.join(names)} are members", lambda: all(map(swarm.is_member, names)), UP_WITHIN_S)
    await swarm.commits(SETTLED_COMMITS, UP_WITHIN_S)


def iteration_s(swarm: Swarm, since_s: float, until_s: float) -> float:
    """Seconds of an iteration between two moments, the median.

    Raises:
        LiveFailed: there was none.
    """
    times_s = commit_times_s(swarm)
    found = [gap for at_s, gap in zip(times_s[1:], gaps_s(times_s), strict=True) if since_s < at_s - gap and at_s <= until_s]
    if not found:
        raise LiveFailed("no iteration began and ended while it was measured")
    return statistics.median(found)


async def run(rounds: int) -> dict[str, float]:
    """Play it; what came of it.

    Raises:
        LiveFailed: nobody was told to stand by, another one was, or it did not come back.
    """
    with Wan(both_ways(LINE, (EAST, WEST))) as wan:
        async with started(wan) as swarm:
            await members(swarm, EAST, SOURCE, *NEAR)
            near_s = time.time()
            await swarm.commits(rounds, MEASURED_WITHIN_S)
            alone_s = iteration_s(swarm, near_s, time.time())
            await members(swarm, WEST, FAR)
            joined_s, stage = time.time(), swarm.stage_of(FAR)
            say(f"an iteration takes {alone_s:.2f} s; {FAR} has come to stage {stage}")
            await swarm.until("a peer is told to move", lambda: any(swarm.told(MoveDecided, joined_s)), DECIDED_WITHIN_S)
            decided_at_s, decided = next(swarm.told(MoveDecided, joined_s))
            say(f"{swarm.names(decided.member)} {decided.words}")
            if (swarm.names(decided.member), decided.taker) != (FAR, ABSENT):
                raise LiveFailed(f"{FAR} was to stand by")
            slowed_s = iteration_s(swarm, joined_s, decided_at_s)
            await swarm.until("it is measured", lambda: any(swarm.told(MoveMeasured, decided_at_s)), MEASURED_WITHIN_S)
            _, measured = next(swarm.told(MoveMeasured, decided_at_s))
            settled_s = time.time()
            await swarm.commits(rounds, MEASURED_WITHIN_S)
            without_s = iteration_s(swarm, settled_s, time.time())
            say(f"an iteration took {slowed_s:.2f} s with it, and takes {without_s:.2f} s now")
            struck_s = time.time()
            for name in (name for name in NEAR if swarm.stage_of(name) == stage):
                swarm.kill(name)
            await swarm.until("a commit after its stage was lost", lambda: resumed_s(swarm, struck_s) is not None, UP_WITHIN_S)
            built = [(at_s, event) for at_s, event in swarm.told(StageBuilt, struck_s) if event.stage == stage]
            how = [event for _, event in swarm.told(RecoveryDecided, struck_s) if event.stage == stage]
            on_s = resumed_s(swarm, struck_s)
    assert on_s is not None, "waited for it"
    if not built or swarm.names(built[0][1].member) != FAR:
        raise LiveFailed(f"{FAR} was to serve stage {stage} again")
    lost = how[0].iteration - how[0].taken_from if how and how[0].taken_from is not None else 0
    return {
        "alone_s": round(alone_s, 3),
        "slowed_s": round(slowed_s, 3),
        "predicted_slowed_s": round(decided.iteration_s, 3),
        "without_s": round(without_s, 3),
        "predicted_without_s": round(measured.predicted_iteration_s, 3),
        "decided_s": round(decided_at_s - joined_s, 1),
        "of_alone": round(alone_s / without_s, 3),
        "back_s": round(built[0][0] - struck_s, 2),
        "resumed_s": round(on_s - struck_s, 2),
        "steps_lost": lost,
    }


def main() -> int:
    """Run it; the exit code is 0, 1 when something did not hold, 130 or 143 after a signal."""
    summary = (__doc__ or "").split("\n\n", maxsplit=1)[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_link", description=summary)
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="iterations of each median (default: %(default)s)")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error("--rounds: must be 1 or more")
    return finish("benchmarks.slow_link", run(asked.rounds))


if __name__ == "__main__":
    sys.exit(main())
