"""What does it cost to keep shadows and border logs while nothing fails? The same swarm with and without them, in turn.

``python -m benchmarks.keeping`` trains one source and three body stages of one replica each in real processes, some rounds over: without anything
kept for others (`recovery.mode = "checkfree"`), with plain and with full shadows, renewed every 50 iterations, both with border logs. All sides of
a round learn the same, one after the other, and the order turns from round to round. Tokens/s are those of two renewals, after two others: by then
logs are as long as they get, and new memory, which is dear, has been used once. *plain_over_off* and *full_over_off* are medians over the rounds of
each side over the one without; *..._cpu_over_off* are the same of the processor time for a token, of all processes, which varies less from one start
of a swarm to the next.

Prints a table and, as the last line, one JSON object. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.command import finish
from benchmarks.live import Commits, LiveSwarm
from benchmarks.ring_runs import prepare_job
from swarmfree.swarm.events import IterationCommitted, Started
from swarmfree.swarm.manifest import (
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
SOURCE = "source"
MODEL = ModelSection(width=512, blocks=3, heads=8, kv_heads=8, mlp_width=1408, tokens_per_row=128)
OFF, PLAIN, FULL = "off", "plain", "full"
SIDES = {
    OFF: RecoverySection(mode="checkfree", ends_copies=0),
    PLAIN: RecoverySection(mode="auto", ends_copies=0, shadow_every=EVERY, shadow_kind="plain"),
    FULL: RecoverySection(mode="auto", ends_copies=0, shadow_every=EVERY, shadow_kind="full"),
}


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def run_of(side: str) -> Manifest:
    """One side's run."""
    return Manifest(
        run=RunSection(name=f"keeping-{side}", seed=1, iterations=100_000, evaluate_every=0, evaluate_windows=1),
        model=MODEL,
        stages=StagesSection(body=3, replicas_max=1),
        batch=BatchSection(rows=1, microbatches=4),
        optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
        ring=RingSection(credits=4),
        recovery=SIDES[side],
    )


@dataclass(frozen=True, slots=True)
class Speed:
    """Committed tokens/s, and processor time of all processes for a token, us."""

    rate: float
    cpu_us: float


async def speed(manifest: Manifest, folder: Path, warmup: int, measured: int) -> Speed:
    """Of a swarm of this run, in the iterations after the warm-up."""
    job = prepare_job(manifest, folder, 1, manifest.run.iterations - 1)
    async with LiveSwarm(folder, job.run_file, job.text_file) as swarm:
        await swarm.start(SOURCE, feeds=True)
        await swarm.until("the source is up", lambda: any(True for _ in swarm.told(Started, name=SOURCE)))
        for number in range(manifest.stages.body):
            await swarm.start(f"peer-{number + 1}")
        await swarm.commits(warmup, WITHIN_S)
        cpu_s = swarm.cpu_s()
        await swarm.commits(measured, WITHIN_S)
        cpu_s = swarm.cpu_s() - cpu_s
        times = [time_s for time_s, _ in swarm.told(IterationCommitted)]
        found = Commits.of(swarm.said).rate(times[warmup - 1], times[warmup + measured - 1])
        return Speed(found, 1e6 * cpu_s / (measured * manifest.tokens_per_iteration))


async def measure(rounds: int, warmup: int, measured: int) -> dict[str, list[Speed]]:
    """By side, round by round."""
    found: dict[str, list[Speed]] = {side: [] for side in SIDES}
    for number in range(rounds):
        order = list(SIDES)[number % len(SIDES) :] + list(SIDES)[: number % len(SIDES)]
        for side in order:
            with tempfile.TemporaryDirectory(prefix="swarmfree-keeping-", ignore_cleanup_errors=True) as folder:
                found[side].append(await speed(run_of(side), Path(folder) / "run", warmup, measured))
            say(
                f"round {number + 1}, {side}: {found[side][-1].rate:,.0f} tokens/s, {found[side][-1].cpu_us:,.0f} us of processors for a token"
            )
    return found


def report(found: dict[str, list[Speed]]) -> dict[str, float]:
    """Medians of the paired ratios."""
    rates = {f"{side}_over_off": _ratio(found, side, "rate") for side in (PLAIN, FULL)}
    return rates | {f"{side}_cpu_over_off": _ratio(found, side, "cpu_us") for side in (PLAIN, FULL)}


def _ratio(found: dict[str, list[Speed]], side: str, what: str) -> float:
    pairs = zip(found[side], found[OFF], strict=True)
    return float(round(statistics.median(getattr(one, what) / getattr(other, what) for one, other in pairs), 4))


async def run(rounds: int, *, quick: bool) -> dict[str, float]:
    """Measure, print the table, return what is reported."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    found = await measure(rounds, *((5, 10) if quick else (WARMUP, MEASURED)))
    table = Table(title="tokens/s while nothing fails", title_justify="left", title_style="")
    for place, heading in enumerate(("kept", "tokens/s", "over off", "CPU us/token", "over off")):
        table.add_column(heading, justify="left" if not place else "right")
    for side, speeds in found.items():
        medians = (statistics.median(getattr(one, what) for one in speeds) for what in ("rate", "cpu_us"))
        ratios = (_ratio(found, side, what) for what in ("rate", "cpu_us"))
        table.add_row(side, *(cell for m, r in zip(medians, ratios, strict=True) for cell in (f"{m:,.0f}", f"{r:.3f}")))
    Console(width=100, highlight=False).print(table)
    return report(found)


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when the swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keeping", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help=f"how many rounds (default {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="a few iterations of each side, to see that everything works")
    asked = parser.parse_args()
    if asked.rounds < 0:
        parser.error("--rounds: must be 1 or more")
    return finish("benchmarks.keeping", run(asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS), quick=asked.quick))


if __name__ == "__main__":
    sys.exit(main())
