"""What does it cost to keep shadows, activation logs and copies of the ends while nothing fails?
The same swarm with and without them, in turns.

``python -m benchmarks.keeping`` trains one source and three body stages of one replica each, beside
a standby that keeps shadows as well, in real processes, some rounds over, two runs: one whose
stages have few tokens for their weights, where `recovery.shadow_kind = "auto"` takes plain shadows,
and one with many, where it takes full ones. Each is trained without anything kept (`recovery.mode =
"checkfree"`, no copies of the ends, no snapshots) and with shadows, renewed every 50 iterations,
activation logs, copies of the ends at two members of the body, and snapshots of each stage on its
own disk every 50, as a run with defaults has them; the first also with the full shadows that `auto`
avoids, the second also within a limit that holds shadows and a part of what is logged otherwise.
Logs do not fit in memory: of 200 MB and more that a peer logs, 64 may stay there, the rest lies on
disk.

The two swarms of a pair learn the same. Both are up at once, and each has the machine for a quarter
of a second at a time, while the other is stopped where it is (SIGSTOP): one whole run after the
other, what is measured drowned in how fast a virtual machine happened to be (up to 12 % from one
minute to the next). Counted is the time in which a swarm ran, over two renewals at least, after two
others: by then logs are as long as they get, and new memory, which is dear, has been used once, so
what the beginning of a run costs on top is not in it. A pause that a swarm makes on purpose, as
between two parts of a shadow, also passes while it is stopped; work does not. What the system
writes to the disk by itself may fall into the turn of the other one. `--together` lets both run at
once: then they share the cores, which are never idle. With `--without-ends` neither side keeps
copies of the ends, and with `--without-snapshots` the other side writes no snapshots either: before
there were any, neither side did, and afterwards both, so that what they cost was in no ratio.

*..._over_off* are medians over the rounds of tokens/s over those of the side without,
*..._over_off_least* the least of the rounds, *..._cpu_over_off* and *..._cpu_over_off_most* of the
processor time for a token, of all processes, and *..._wire_over_off* of the bytes for a token on
this machine's loopback, headers included, while that swarm alone ran (any other program counts as
well; not with `--together`). *..._kept_over_limit* is the largest share of `recovery.kept_mb_max`
that a peer took for logs and shadows together: its shelf at any look, and as much memory as its log
may have.

Prints a table and, as the last line, one JSON object. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.command import finish
from benchmarks.live import Commits, LiveFailed, LiveSwarm
from benchmarks.ring_runs import prepare_job
from swarmfree.policy.retention import has_full_shadows, logged_iteration_count
from swarmfree.protocol.events import IterationCommitted, Started
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

ROUNDS, QUICK_ROUNDS = 3, 1
EVERY = 50
WARMUP, MEASURED = 2 * EVERY + 10, 2 * EVERY
WITHIN_S = 300.0
TURN_S = 0.25
SOURCE = "source"
OFF = RecoverySection(mode="checkfree", ends_copies=0, snapshot_every=0)
LOG_MEMORY_MB, TIGHT_MB = 64, 200
AUTO = RecoverySection(mode="auto", shadow_every=EVERY, kept_ram_mb_max=LOG_MEMORY_MB)


Turn = tuple[float, float]
"""From when to when a swarm ran, Unix seconds."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way to train.

    Args:
        model, batch, recovery: of its run.
        over: the side that it is compared to; empty for one that keeps nothing.
    """

    model: ModelSection
    batch: BatchSection
    recovery: RecoverySection
    over: str = ""


FEW = (
    ModelSection(width=512, blocks=3, heads=8, kv_heads=8, mlp_width=1408, tokens_per_row=128),
    BatchSection(rows=1, microbatches=4),
)
MANY = (
    ModelSection(width=128, blocks=3, heads=4, kv_heads=4, mlp_width=352, tokens_per_row=128),
    BatchSection(rows=4, microbatches=4),
)
SIDES = {
    "few, off": Side(*FEW, OFF),
    "plain": Side(*FEW, AUTO, "few, off"),
    "forced_full": Side(*FEW, replace(AUTO, shadow_kind="full"), "few, off"),
    "many, off": Side(*MANY, OFF),
    "full": Side(*MANY, AUTO, "many, off"),
    "tight": Side(*MANY, replace(AUTO, kept_mb_max=TIGHT_MB), "many, off"),
}


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def without_ends(side: Side) -> Side:
    """The same without copies of the ends."""
    return replace(side, recovery=replace(side.recovery, ends_copies=0))


def without_snapshots(side: Side) -> Side:
    """The same without snapshots."""
    return replace(side, recovery=replace(side.recovery, snapshot_every=0))


def run_of(side: Side) -> Manifest:
    """One side's run."""
    return Manifest(
        run=RunSection(name="keeping", seed=1, iterations=100_000, evaluate_every=0, evaluate_windows=1),
        model=side.model,
        stages=StagesSection(body=3, replicas_max=1),
        batch=side.batch,
        optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
        ring=RingSection(credits=4),
        recovery=side.recovery,
    )


@dataclass(frozen=True, slots=True)
class Speed:
    """Committed tokens/s, processor time of all processes for a token in us, bytes on the wire for
    a token, and the most that a peer kept, MB.
    """

    rate: float
    cpu_us: float
    wire: float = 0.0
    kept_mb: float = 0.0


@dataclass(slots=True)
class Swarm:
    """One of a pair, and what was counted while it ran: its turns, bytes on the wire, and the
    fullest shelf.
    """

    live: LiveSwarm
    folder: Path
    turns: list[Turn] = field(default_factory=list)
    wire_bytes: int = 0
    shelf_bytes: int = 0

    def look(self) -> None:
        """Measure shelves."""
        for peer in (self.folder / "peers").iterdir():
            size_bytes = 0
            for place in peer.rglob("*.kept"):
                with suppress(OSError):  # dropped meanwhile
                    size_bytes += place.stat().st_size
            self.shelf_bytes = max(self.shelf_bytes, size_bytes)


async def begin(stack: AsyncExitStack, manifest: Manifest, folder: Path) -> Swarm:
    """A swarm of this run that has begun to train, and a standby."""
    job = prepare_job(manifest, folder, 1, manifest.run.iterations - 1)
    swarm = await stack.enter_async_context(LiveSwarm(folder, job.run_file, job.text_file))
    await swarm.start(SOURCE, feeds=True)
    await swarm.until("the source is up", lambda: any(True for _ in swarm.told(Started, name=SOURCE)))
    for number in range(manifest.stages.body + 1):
        await swarm.start(f"peer-{number + 1}")
    return Swarm(swarm, folder)


async def pair(sides: Sequence[Side], warmup: int, measured: int, *, together: bool) -> list[Speed]:
    """Two swarms: what each did after both had warmed up, until each had done so many iterations
    more.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarmfree-keeping-", ignore_cleanup_errors=True)))
        swarms = [await begin(stack, run_of(side), folder / f"run-{number}") for number, side in enumerate(sides)]
        for swarm in swarms:
            await swarm.live.commits(max(0, warmup - count(swarm)), WITHIN_S)
        spent_s, wanted = [swarm.live.cpu_s() for swarm in swarms], [count(swarm) + measured for swarm in swarms]
        until_s = time.monotonic() + WITHIN_S
        while any(count(swarm) < enough for swarm, enough in zip(swarms, wanted, strict=True)):
            if time.monotonic() > until_s:
                raise LiveFailed(f"not within {WITHIN_S:g} s: {measured} iterations of both")
            await (go_on(swarms) if together else take_turns(swarms))
        spent_s = [swarm.live.cpu_s() - before for swarm, before in zip(swarms, spent_s, strict=True)]
        for swarm in swarms:  # by then everything that was committed has been told
            swarm.live.resume()
            await swarm.live.commit_past(time.time())
        speeds = [speed_of(Commits.of(s.live.said), s.turns, cpu_s) for s, cpu_s in zip(swarms, spent_s, strict=True)]
        return [
            replace(speed, wire=swarm.wire_bytes / (speed.rate * running_s(swarm.turns, swarm.turns[-1][1])), kept_mb=kept)
            for speed, swarm, kept in zip(speeds, swarms, map(kept_mb, swarms, sides), strict=True)
        ]


def kept_mb(swarm: Swarm, side: Side) -> float:
    """The most that a peer kept: its shelf and, where it logs, as much memory as its log may
    have.
    """
    logs = logged_iteration_count(run_of(side)) > 0
    return swarm.shelf_bytes / 1e6 + (side.recovery.kept_ram_mb_max if logs else 0)


def count(swarm: Swarm) -> int:
    """Commits that were told."""
    return sum(1 for _ in swarm.live.told(IterationCommitted))


def wire_bytes() -> int:
    """What came over the loopback since this machine's start."""
    return sum(each.bytes_recv for name, each in psutil.net_io_counters(pernic=True).items() if name.startswith("lo"))


async def take_turns(swarms: Sequence[Swarm]) -> None:
    """Each runs alone for a moment, the others stopped where they are."""
    for swarm in swarms:
        for other in swarms:
            if other is not swarm:
                other.live.pause()
        begun_s, before = time.time(), wire_bytes()
        swarm.live.resume()
        await asyncio.sleep(TURN_S)
        swarm.live.pause()
        swarm.turns.append((begun_s, time.time()))
        swarm.wire_bytes += wire_bytes() - before
        swarm.look()


async def go_on(swarms: Sequence[Swarm]) -> None:
    """All run."""
    begun_s = time.time()
    await asyncio.sleep(TURN_S)
    for swarm in swarms:
        swarm.turns.append((begun_s, time.time()))
        swarm.look()


def speed_of(commits: Commits, turns: Sequence[Turn], cpu_s: float) -> Speed:
    """From the first commit in these turns to the last, in time that the swarm ran.

    Args:
        cpu_s: processor seconds in all turns.
    """
    inside = [
        (running_s(turns, time_s), tokens)
        for time_s, tokens in zip(commits.times_s, commits.tokens, strict=True)
        if turns[0][0] <= time_s <= turns[-1][1]
    ]
    rate = sum(tokens for _, tokens in inside[1:]) / (inside[-1][0] - inside[0][0])
    return Speed(rate, 1e6 * cpu_s / (rate * running_s(turns, turns[-1][1])))


def running_s(turns: Sequence[Turn], time_s: float) -> float:
    """How long it ran before `time_s`."""
    return sum(max(0.0, min(time_s, ended_s) - begun_s) for begun_s, ended_s in turns)


async def measure(
    names: Sequence[str], rounds: int, warmup: int, measured: int, *, together: bool, ends: bool, snapshots: bool
) -> dict[str, list[tuple[Speed, Speed]]]:
    """By side that keeps something, round by round: its own speed, and that of the one without."""
    found: dict[str, list[tuple[Speed, Speed]]] = {name: [] for name in names}
    for number in range(rounds):
        for name, pairs in found.items():
            both = [side if ends else without_ends(side) for side in (SIDES[name], SIDES[SIDES[name].over])]
            both = [side if snapshots else without_snapshots(side) for side in both]
            turn = 1 if number % 2 == 0 else -1  # who starts first
            one, other = (await pair(both[::turn], warmup, measured, together=together))[::turn]
            pairs.append((one, other))
            say(
                f"round {number + 1}, {name}: {one.rate:,.0f} tokens/s and {other.rate:,.0f} without, "
                f"{one.cpu_us:,.1f} us of processors for a token and {other.cpu_us:,.1f} without, {one.wire:,.0f} bytes on the wire "
                f"and {other.wire:,.0f} without; a peer kept {one.kept_mb:,.0f} MB at most"
            )
    return found


def report(found: dict[str, list[tuple[Speed, Speed]]]) -> dict[str, float]:
    """Medians of the paired ratios, beside them the worst round of tokens/s and of processor time,
    and the largest share of its limit that a peer took.
    """
    limits = {name: SIDES[name].recovery.kept_mb_max for name in found}
    kept = {f"{name}_kept_over_limit": max(one.kept_mb for one, _ in pairs) / limits[name] for name, pairs in found.items()}
    cpu = {f"{name}_cpu_over_off": _ratio(pairs, "cpu_us") for name, pairs in found.items()}
    wire = {f"{name}_wire_over_off": _ratio(pairs, "wire") for name, pairs in found.items() if pairs[0][1].wire}
    rates = {f"{name}_over_off": _ratio(pairs, "rate") for name, pairs in found.items()}
    most = {f"{name}_cpu_over_off_most": max(_ratios(pairs, "cpu_us")) for name, pairs in found.items()}
    least = {f"{name}_over_off_least": min(_ratios(pairs, "rate")) for name, pairs in found.items()}
    return {name: round(value, 4) for name, value in (kept | cpu | most | wire | rates | least).items()}


def _ratio(pairs: Sequence[tuple[Speed, Speed]], what: str) -> float:
    return float(statistics.median(_ratios(pairs, what)))


def _ratios(pairs: Sequence[tuple[Speed, Speed]], what: str) -> list[float]:
    return [getattr(one, what) / (getattr(other, what) or math.nan) for one, other in pairs]


async def run(names: Sequence[str], rounds: int, *, together: bool, ends: bool, snapshots: bool, quick: bool) -> dict[str, float]:
    """Measure, print the table, return what is reported."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    kinds = {name: has_full_shadows(run_of(side)) for name, side in SIDES.items()}
    assert (kinds["plain"], kinds["full"]) == (False, True), "as `auto` has it"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    counts = (5, 10) if quick else (WARMUP, MEASURED)
    found = await measure(names, rounds, *counts, together=together, ends=ends, snapshots=snapshots)
    table = Table(title="tokens/s while nothing fails", title_justify="left", title_style="")
    for place, heading in enumerate(
        ("kept", "tokens/s", "off", "ratio", "CPU us/token", "off", "ratio", "B/token", "off", "ratio", "kept MB")
    ):
        table.add_column(heading, justify="left" if not place else "right")
    for name, pairs in found.items():
        cells = []
        for what in ("rate", "cpu_us", "wire"):
            cells += [f"{statistics.median(getattr(pair[place], what) for pair in pairs):,.0f}" for place in (0, 1)]
            cells.append(f"{_ratio(pairs, what):.3f}")
        table.add_row(name, *cells, f"{max(one.kept_mb for one, _ in pairs):,.0f}")
    Console(width=130, highlight=False).print(table)
    return report(found)


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when the swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keeping", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help=f"how many rounds (default {ROUNDS})")
    kept = [name for name, side in SIDES.items() if side.over]
    parser.add_argument(
        "--only", choices=kept, action="append", metavar="NAME", help=f"measure this alone: {', '.join(kept)}; again for more"
    )
    parser.add_argument("--together", action="store_true", help="both swarms at once on the same cores, instead of in turns")
    parser.add_argument("--without-ends", action="store_true", help="no copies of the ends on either side, as before")
    parser.add_argument("--without-snapshots", action="store_true", help="no snapshots on either side, as before there were any")
    parser.add_argument("--quick", action="store_true", help="a few iterations of each side, to see that everything works")
    asked = parser.parse_args()
    if asked.rounds < 0:
        parser.error("--rounds: must be 1 or more")
    return finish(
        "benchmarks.keeping",
        run(
            asked.only or kept,
            asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS),
            together=asked.together,
            ends=not asked.without_ends,
            snapshots=not asked.without_snapshots,
            quick=asked.quick,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
