"""What do snapshots cost that are copied to a bucket? The same swarm with and without, in turns.

``python -m benchmarks.snapshots`` trains one source and three body stages of one replica each, 38
MB of state in a stage of the body, beside a standby, in real processes: with a snapshot every 50
iterations that goes to each peer's disk and from there to a bucket, and without any
(`recovery.snapshot_every = 0`), or, for `over_disk`, with snapshots on disks alone. Two swarms of a
pair learn the same and take turns as in `benchmarks.keeping`, a quarter of a second each while the
other is stopped (SIGSTOP). Nobody keeps shadows, logs or copies of the ends.

The bucket is moto's server, a Python program, which takes 0.4 s of a processor for each stage. A
real endpoint would take nothing of these cores, so it has turns of its own: it is stopped while a
swarm trains, which has the machine for itself and sends what the connections take meanwhile.

*over_off* and *over_disk* are medians over the rounds of tokens/s over those of the side without,
*..._least* the least of the rounds; *copied* is the least number of bytes, MB, that lay in the
bucket after a round, and *behind* the most iterations between the newest set there that is whole
and the newest commit.

Progress goes to stderr; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import obstore
from obstore.store import S3Store

from benchmarks.command import finish
from benchmarks.keeping import FEW, OFF, TURN_S, Side, Swarm, begin, count, run_of, say, speed_of, take_turns
from benchmarks.live import Commits, LiveFailed
from benchmarks.s3_endpoint import BUCKET, S3Endpoint, s3_endpoint
from swarmfree.protocol.events import IterationCommitted
from swarmfree.storage.snapshot_store import BucketSnapshots
from swarmfree.storage.snapshots import FolderSnapshots

ROUNDS, QUICK_ROUNDS = 3, 1
EVERY, QUICK_EVERY = 50, 5
WITHIN_S = 900.0
NAMES = ("over_off", "over_disk")


def sides_of(name: str, every: int, prefix: str) -> tuple[Side, Side]:
    """With snapshots in a bucket, and the side that it is compared to."""
    stored = replace(OFF, snapshot_every=every, snapshot_store=f"s3://{BUCKET}/{prefix}")
    other = replace(OFF, snapshot_every=0) if name == "over_off" else replace(stored, snapshot_store="")
    return Side(*FEW, stored), Side(*FEW, other)


async def in_bucket(side: Side, swarm: Swarm, folder: Path) -> tuple[float, int]:
    """MB there, and the iteration of the newest set that is whole.

    Raises:
        LiveFailed: no set is.
    """
    manifest, run = run_of(side), swarm.live.fingerprint
    store = BucketSnapshots(side.recovery.snapshot_store, FolderSnapshots(folder, run), run)
    held = await store.stored()
    whole = {h.iteration for h in held if sum(o.iteration == h.iteration for o in held) == manifest.stage_count}
    if not whole:
        raise LiveFailed("no set of snapshots came to the bucket whole")
    bucket = S3Store(BUCKET, client_options={"allow_http": True})
    objects = [one["size"] async for some in obstore.list(bucket, f"{store.where.rpartition('/')[2]}") for one in some]
    return sum(objects) / 1e6, max(whole)


async def turn_of(endpoint: S3Endpoint) -> None:
    """It takes in what was sent to it."""
    endpoint.resume()
    await asyncio.sleep(TURN_S)
    endpoint.pause()


async def pair(endpoint: S3Endpoint, name: str, every: int, number: int) -> tuple[float, float, int]:
    """One round: tokens/s over those without, MB in the bucket, iterations behind."""
    sides = sides_of(name, every, f"{name}-{number}")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarmfree-snapshots-", ignore_cleanup_errors=True)))
        swarms = [await begin(stack, run_of(side), folder / f"run-{place}") for place, side in enumerate(sides)]
        for swarm in swarms:
            await swarm.live.commits(max(0, every + 10 - count(swarm)), WITHIN_S)
        wanted = [count(swarm) + 2 * every for swarm in swarms]
        until_s = time.monotonic() + WITHIN_S
        stack.callback(endpoint.resume)
        endpoint.pause()
        while any(count(swarm) < enough for swarm, enough in zip(swarms, wanted, strict=True)):
            if time.monotonic() > until_s:
                raise LiveFailed(f"not within {WITHIN_S:g} s: {2 * every} iterations of both")
            await take_turns(swarms if number % 2 == 0 else swarms[::-1])
            await turn_of(endpoint)
        endpoint.resume()
        for swarm in swarms:
            swarm.live.resume()
            await swarm.live.commit_past(time.time())
        copied_mb, newest = await in_bucket(sides[0], swarms[0], folder)
        behind = max(event.iteration for _, event in swarms[0].live.told(IterationCommitted)) - newest
        one, other = (speed_of(Commits.of(swarm.live.said), swarm.turns, 0.0).rate for swarm in swarms)
    say(f"round {number + 1}, {name}: {one:,.0f} tokens/s and {other:,.0f} without; {copied_mb:,.0f} MB in the bucket")
    return one / other, copied_mb, behind


async def measure(names: Sequence[str], rounds: int, every: int) -> dict[str, float]:
    """All rounds, the names in turns."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in names}
    with s3_endpoint() as endpoint:
        os.environ.update(endpoint.environment())
        for number in range(rounds):
            for name, pairs in found.items():
                pairs.append(await pair(endpoint, name, every, number))
    figures = {name: round(statistics.median(ratio for ratio, _, _ in pairs), 4) for name, pairs in found.items()}
    figures |= {f"{name}_least": round(min(ratio for ratio, _, _ in pairs), 4) for name, pairs in found.items()}
    everything = [one for pairs in found.values() for one in pairs]
    return figures | {
        "copied_mb": round(min(copied_mb for _, copied_mb, _ in everything), 1),
        "behind": max(behind for _, _, behind in everything),
        "rounds": rounds,
        "snapshot_every": every,
    }


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when the swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.snapshots", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help=f"how many rounds (default {ROUNDS})")
    parser.add_argument("--only", choices=NAMES, action="append", help="measure this alone; again for more")
    parser.add_argument("--quick", action="store_true", help="a few iterations, to see that everything works")
    asked = parser.parse_args()
    if asked.rounds < 0:
        parser.error("--rounds: must be 1 or more")
    rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS)
    return finish("benchmarks.snapshots", measure(asked.only or NAMES, rounds, QUICK_EVERY if asked.quick else EVERY))


if __name__ == "__main__":
    sys.exit(main())
