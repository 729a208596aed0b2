"""How fast is the ring, and what does it cost? A swarm beside plain PyTorch and
torch.distributed.pipelining, on this machine.

``python -m benchmarks.ring`` lets four sides train the same model on the same tokens from the same
first weights: one plain process with one and with two torch threads, which takes an iteration in
the swarm's microbatches and, once more, in one piece; a swarm of real processes, one peer for each
of four body stages and one for the ends; and torch's own pipeline of four ranks over gloo, schedule
1F1B, in the swarm's microbatches. The pipelines have one torch thread per process; nobody compiles
the model. PyTorch takes its fused AdamW and `clip_grad_norm_`, the swarm its canonical step. All
sides set allocator and garbage collector as a peer of the swarm does; the others run once more with
both as they come, as this benchmark had them before. Sides take turns within a round, each round
begins with another one, warm-up iterations are dropped everywhere, and a side whose losses differ
from the first one's is an error: then it did other work.

Prints two tables for each run and, as the last line, one JSON object: for `compute_bound` and
`hop_bound` the swarm's tokens/s over the fastest plain process's, its processor seconds per token
over the cheapest one's, and its tokens/s over pipelining's; medians over the rounds, or over those
in which neither side was disturbed, and of the two definitions, equal settings and as it comes, the
ones that make the swarm look worse; and how many measurements were disturbed. Progress goes to
stderr. Numbers mean something on a machine that does nothing else.

Kind to the swarm is that so few iterations see no shadow renewed and no snapshot written, which by
default happens every 50 (what that costs `benchmarks.keeping` measures), and nothing evaluated;
that nobody audits; that the processor time of `swarmfree local`, which watches, is not counted;
that torch's pipeline has the swarm's microbatches, where fewer may suit it better; and that the
plain side is one process, and not two with half of the rows each. Unkind is that the first shadows
of all stages are fetched meanwhile, and that the others do not encrypt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.ring_runs import (
    PLAIN_ONE,
    PLAIN_TWO,
    RUNS,
    SIDES,
    SWARM,
    Measurement,
    Ratio,
    Rounds,
    parameter_count,
    prepare_job,
    ratios,
)
from benchmarks.ring_sides import SideFailed, measure
from swarmfree.protocol.manifest import Manifest

ROUNDS, QUICK_ROUNDS = 3, 1
ITERATIONS = {"compute_bound": 4, "hop_bound": 20}
QUICK_ITERATIONS = {"compute_bound": 2, "hop_bound": 6}
WARMUP = {"compute_bound": 1, "hop_bound": 3}
LIMIT_S = 300.0
LOSS_TOLERANCE = 1e-4
TABLE_WIDTH = 132


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


async def compare(manifest: Manifest, folder: Path, *, rounds: int, warmup: int, iterations: int) -> Rounds:
    """All sides in turn, round after round.

    Args:
        manifest: of the run.
        folder: new; everything is written below it.
        rounds: how often; round r begins with side r.
        warmup: iterations that do not count.
        iterations: that do.

    Raises:
        SideFailed: a side failed, or its losses are not the others'.
    """
    job = prepare_job(manifest, folder, warmup, iterations)
    found: list[dict[str, Measurement]] = []
    for number in range(rounds):
        begun: dict[str, Measurement] = {}
        for turn in range(len(SIDES)):
            side = SIDES[(number + turn) % len(SIDES)]
            measured = await measure(side, job, folder / f"{number}-{turn}", LIMIT_S)
            begun[side] = measured
            say(
                f"{manifest.run.name}, round {number + 1} of {rounds}: {side}: {measured.tokens_per_s:,.0f} tokens/s, "
                f"{measured.cpu_s_per_token * 1e6:,.0f} CPU us/token{_disturbance(measured)}"
            )
            _require_same_losses(side, measured, next(iter((found[0] if found else begun).values())))
        found.append(begun)
    return found


def _disturbance(measured: Measurement) -> str:
    return f"; disturbed: other programs kept {measured.others_cores:.2f} cores busy" if measured.is_disturbed else ""


def _require_same_losses(side: str, measured: Measurement, first: Measurement) -> None:
    for one, other in zip(measured.losses, first.losses, strict=True):
        if not abs(one - other) <= LOSS_TOLERANCE:
            raise SideFailed(f"{side}: a loss differs by {abs(one - other):.3g} nats from the first side's: it did other work")


def table_of(manifest: Manifest, rounds: Rounds, *, warmup: int, iterations: int) -> Table:
    """Medians of all sides over the rounds, with the range of the speed, and what they are of the
    two-thread process's.
    """
    model, batch = manifest.model, manifest.batch
    title = (
        f"{manifest.run.name}: {parameter_count(model) / 1e6:.1f} M parameters, {manifest.stages.body} body stages, width {model.width}, "
        f"{model.blocks} blocks; {batch.microbatches} microbatches of {batch.rows} x {model.tokens_per_row} tokens; "
        f"rounds {len(rounds)}, iterations {warmup} dropped + {iterations}"
    )
    table = Table(title=title, title_justify="left", title_style="")
    table.add_column("side", no_wrap=True)
    for heading in ("tokens/s", "range", "x 2 threads", "x 1 thread", "CPU us/token", "x 2 threads", "x 1 thread", "s/iteration"):
        table.add_column(heading, justify="right")
    for side in SIDES:
        speeds = [r[side].tokens_per_s for r in rounds]
        speed, cost = statistics.median(speeds), statistics.median(r[side].cpu_s_per_token for r in rounds)
        over = [[r[side].tokens_per_s / r[other].tokens_per_s for r in rounds] for other in (PLAIN_TWO, PLAIN_ONE)]
        cost_over = [[r[side].cpu_s_per_token / r[other].cpu_s_per_token for r in rounds] for other in (PLAIN_TWO, PLAIN_ONE)]
        table.add_row(
            f"[bold]{side}[/bold]" if side == SWARM else side,
            f"{speed:,.0f}",
            f"{min(speeds):,.0f} - {max(speeds):,.0f}",
            *(f"{statistics.median(values):.3f}" for values in over),
            f"{cost * 1e6:,.1f}",
            *(f"{statistics.median(values):.3f}" for values in cost_over),
            f"{manifest.tokens_per_iteration / speed:.3f}",
        )
    return table


def definitions_of(name: str, found: dict[str, Ratio]) -> Table:
    """Each figure of the swarm by both definitions, and the one that is reported."""
    table = Table(title=f"{name}: the swarm over the others", title_justify="left", title_style="")
    table.add_column("figure", no_wrap=True)
    for heading in ("others as they come (old)", "equal settings (new)", "reported"):
        table.add_column(heading, justify="right")
    for figure, ratio in found.items():
        table.add_row(figure, f"{ratio.as_it_comes:.3f}", f"{ratio.equal:.3f}", f"{ratio.least_kind:.3f}")
    return table


async def run(names: Sequence[str], rounds: int, iterations: int, *, quick: bool) -> dict[str, dict[str, float]]:
    """Compare the sides on the named runs, print their tables, and return what is reported."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    report: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="swarmfree-ring-", ignore_cleanup_errors=True) as folder:
        for name in names:
            begun_s = time.monotonic()
            counts = {
                "warmup": WARMUP[name],
                "iterations": iterations or (QUICK_ITERATIONS if quick else ITERATIONS)[name],
            }
            found = await compare(RUNS[name], Path(folder) / name, rounds=rounds, **counts)
            by_both = ratios(found)
            disturbed = sum(measured.is_disturbed for measurements in found for measured in measurements.values())
            report[name] = {"disturbed": float(disturbed)} | {figure: ratio.least_kind for figure, ratio in by_both.items()}
            console = Console(width=TABLE_WIDTH, highlight=False)
            console.print(table_of(RUNS[name], found, **counts))
            console.print(definitions_of(RUNS[name].run.name, by_both))
            if disturbed:
                say(
                    f"{name}: other programs disturbed {disturbed} of {len(found) * len(SIDES)} measurements; run it again on an idle machine"
                )
            say(f"{name}: {time.monotonic() - begun_s:.0f} s")
    return report


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when a side failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ring", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help=f"how often each side runs (default {ROUNDS})")
    defaults = ", ".join(f"{name} {count}" for name, count in ITERATIONS.items())
    parser.add_argument(
        "--iterations", type=int, default=0, metavar="N", help=f"measured ones per side and round (default {defaults})"
    )
    parser.add_argument("--only", choices=tuple(RUNS), help="measure one run only")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_ROUNDS} round of few iterations, to see that everything works"
    )
    asked = parser.parse_args()
    if asked.rounds < 0 or asked.iterations < 0:
        parser.error("--rounds and --iterations: must be 1 or more")
    rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS)
    try:
        report = asyncio.run(run((asked.only,) if asked.only else tuple(RUNS), rounds, asked.iterations, quick=asked.quick))
    except SideFailed as error:
        say(f"benchmarks.ring: {error}")
        return 1
    except KeyboardInterrupt:
        say("benchmarks.ring: interrupted")
        return 130
    except asyncio.CancelledError:
        say("benchmarks.ring: told to end")
        return 143
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
