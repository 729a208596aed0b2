"""How soon does training go on after all replicas of a stage were killed? Noticed, decided,
transferred, resumed, for a small and a large stage.

``python -m benchmarks.recovery`` trains four stages of one replica each, with a standby, in real
processes, kills stage 2 (SIGKILL), each time in another part of an iteration, and measures until
the next commit. The stage is merged from both neighbours (CheckFree), in parts of a run's default
size: the weights of two stages travel to the standby at once. Beside it two plain gRPC streams
carry as many bytes to one process, before the swarm and after it.

*transfer_over_plain* is the swarm's rate, from the decision until the coordinator knows that the
stage is there, merging and the digest of the new state included, over the fastest kind of plain
streams that keep their bytes: with the allocator and collector settings of a peer and buffers
touched before the clock starts, as a standby has touched its own, by asyncio or by threads; or as
they come. *transfer_over_encrypted* is over the faster of the first two over the swarm's TLS: with
equal sides, since all that peers say to each other is encrypted. *transfer_over_fresh* and
*transfer_over_discarded* are what was reported before: the rate while the standby builds, over
asyncio streams without those settings, whose bytes are written into a buffer that is new to the
process, or thrown away. *memory_over_state* is the most that the standby's memory has grown by
since it started until the stage is there, what it took for a stage beforehand included, over
weights and moments of the stage (12 bytes per parameter); the gradient, 4 bytes more, is taken
afterwards. *memory_over_gradient_too* is over weights, moments and gradient, as before. Losses are
repeated in one swarm; medians, and *resumed_s_max*, the longest until the next commit, and
*transfer_over_plain_least* of the slowest loss.

Kind to the swarm: an iteration has 32 tokens, so donors hardly compute but for their steps; nobody
keeps copies of the ends, nor, without ``--full``, shadows, so hardly anything else is on the wire;
a large stage sees no snapshot written; and the standby is up and has taken its memory: where nobody
stands by, the start of a process comes before all of it. A process that is killed is missed at
once, by its closed port; a machine that is gone without a word is missed seconds later. Unkind: the
streams of *transfer_over_plain* do not encrypt.

With ``--full`` the stage is replayed from its full shadow and activation logs instead; with
``--large-parts`` parts are a 48th of a stage, as before.

Prints a table and, as the last line, one JSON object for the largest stage, where bytes weigh most;
`transfer_over_plain_SIZE` and `memory_over_state_SIZE` are of each. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.command import finish
from benchmarks.live import Commits, LiveSwarm
from benchmarks.plain_streams import Kind, pull
from benchmarks.ring_runs import parameter_count, prepare_job
from swarmfree.protocol.events import IterationCommitted, MemberLost, Opened, RecoveryDecided, StageBuilt, Started
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RecoverySection,
    RingSection,
    RunSection,
    StagesSection,
    TimingSection,
)

LOSSES, QUICK_LOSSES = 3, 1
PULLS = 3
BODY, LOST = 3, 2
LARGE_PARTS = 48
"""Into which a stage was cut before."""
FLOAT_BYTES, STATE_BYTES, GRADIENT_TOO_BYTES = 4, 12, 16
LOOK_S = 0.02
WITHIN_S = 240.0
SETTLES_S, SETTLED_BYTES = 3.0, 8 << 20
"""A standby has taken what it needs for a stage when its memory grows by less than this in so
long.
"""
SOURCE = "source"
MODELS = {
    "20 MB": ModelSection(width=640, blocks=BODY, heads=8, kv_heads=8, mlp_width=1720, tokens_per_row=16),
    "400 MB": ModelSection(width=2560, blocks=BODY, heads=16, kv_heads=16, mlp_width=9600, tokens_per_row=16),
}
QUICK_MODELS = {"0.2 MB": ModelSection(width=64, blocks=BODY, heads=2, kv_heads=2, mlp_width=128, tokens_per_row=16)}


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def run_of(model: ModelSection, *, full: bool, large_parts: bool = False) -> Manifest:
    """A run without end; hardly any compute beside the weights."""
    ring = RingSection()
    if large_parts:
        ring = RingSection(part_bytes=max(ring.part_bytes, FLOAT_BYTES * stage_parameters(model) // LARGE_PARTS // 4096 * 4096))
    recovery = RecoverySection(mode="auto", shadow_every=5, shadow_kind="full") if full else RecoverySection(mode="checkfree")
    return Manifest(
        run=RunSection(name="recovery", seed=1, iterations=100_000, evaluate_every=0, evaluate_windows=1),
        model=model,
        stages=StagesSection(body=BODY, replicas_max=1),
        batch=BatchSection(rows=1, microbatches=2),
        optimizer=OptimizerSection(rate=3e-4, warmup_iterations=0),
        ring=ring,
        recovery=replace(recovery, ends_copies=0),
        timing=TimingSection(join_wait_s=WITHIN_S),
    )


def stage_parameters(model: ModelSection) -> int:
    """Of one body stage."""
    return (parameter_count(model) - 2 * model.vocabulary * model.width - model.width) // BODY


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of a stage; seconds since SIGKILL.

    Args:
        noticed_s, decided_s, built_s, resumed_s: the member is missed; what is done is decided; the
            state is there; the next commit.
        build_s: how long the newcomer built.
        received_bytes: what it received.
        grown_bytes: the most that its memory has grown by since it started.
        action: how.
    """

    noticed_s: float
    decided_s: float
    built_s: float
    resumed_s: float
    build_s: float
    received_bytes: int
    grown_bytes: int
    action: str


def strike_share(number: int, count: int) -> float:
    """What share of an iteration passes before loss `number` of `count`: spread evenly over it, so
    that donors compute, average or step when they are asked.
    """
    return (number + 0.5) / count


async def lose(swarm: LiveSwarm, names: Sequence[str], started_bytes: Mapping[str, int], share: float, *, full: bool) -> Loss:
    """Kill whoever serves the stage, watch the one that stands by.

    Args:
        started_bytes: name -> memory when it had just started.
        share: of an iteration that passes before.

    Raises:
        LiveFailed: it did not come back.
    """
    victim = next(name for name in names if swarm.is_alive(name) and swarm.stage_of(name) == LOST)
    standby = next(name for name in names if swarm.is_alive(name) and swarm.stage_of(name) < 0)
    process = psutil.Process(swarm.pid(standby))
    before, now = 0, process.memory_info().rss
    while now - before >= SETTLED_BYTES:
        await asyncio.sleep(SETTLES_S)
        before, now = now, process.memory_info().rss
    await swarm.commits(12 if full else 2, WITHIN_S)
    opened = sum(1 for _ in swarm.told(Opened))
    await swarm.until("an iteration is open", lambda: sum(1 for _ in swarm.told(Opened)) > opened, WITHIN_S)
    times_s = Commits.of(swarm.said).times_s
    await swarm.pass_time(share * statistics.median(later - before for before, later in itertools.pairwise(times_s)))
    most = 0
    killed_s = swarm.kill(victim)

    def is_built() -> bool:
        return any(event.stage == LOST for _, event in swarm.told(StageBuilt, killed_s))

    async with asyncio.timeout(WITHIN_S):
        while not is_built():
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(LOOK_S)
    most = max(most, process.memory_info().rss, peak_bytes(process.pid))
    await swarm.until("a commit", lambda: any(True for _ in swarm.told(IterationCommitted, _built(swarm, killed_s)[0])), WITHIN_S)
    built_s, built = _built(swarm, killed_s)
    return Loss(
        noticed_s=next(t for t, e in swarm.told(MemberLost, killed_s) if e.stage == LOST) - killed_s,
        decided_s=next(t for t, e in swarm.told(RecoveryDecided, killed_s) if e.stage == LOST) - killed_s,
        built_s=built_s - killed_s,
        resumed_s=next(t for t, _ in swarm.told(IterationCommitted, built_s)) - killed_s,
        build_s=built.seconds,
        received_bytes=built.received_bytes,
        grown_bytes=most - started_bytes[standby],
        action=built.action,
    )


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had, where the system says so: looks from outside miss
    what is given back between them.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _built(swarm: LiveSwarm, since_s: float) -> tuple[float, StageBuilt]:
    return next((t, e) for t, e in swarm.told(StageBuilt, since_s) if e.stage == LOST)


async def measure(manifest: Manifest, folder: Path, losses: int, *, full: bool, fork_server: Sequence[str] = ()) -> list[Loss]:
    """A swarm of this run, whose stage is lost several times; a new standby comes before each but
    the first. `fork_server` as of `LiveSwarm`.
    """
    job = prepare_job(manifest, folder, 1, manifest.run.iterations - 1)
    found: list[Loss] = []
    async with LiveSwarm(folder, job.run_file, job.text_file, fork_server) as swarm:
        names = [f"peer-{number}" for number in range(1, BODY + 2)]
        started_bytes: dict[str, int] = {}

        async def start(name: str) -> None:
            await swarm.start(name, feeds=name == SOURCE)
            await swarm.until(f"{name} is up", lambda: any(True for _ in swarm.told(Started, name=name)), WITHIN_S)
            started_bytes[name] = psutil.Process(swarm.pid(name)).memory_info().rss

        for name in (SOURCE, *names):
            await start(name)
        await swarm.commits(2, WITHIN_S)
        for number in range(losses):
            if number:
                names.append(f"peer-{len(names) + 1}")
                await start(names[-1])
            found.append(loss := await lose(swarm, names, started_bytes, strike_share(number, losses), full=full))
            say(
                f"loss {number + 1}: {loss.action}, noticed {loss.noticed_s:.2f} s, decided {loss.decided_s:.2f} s, "
                f"there {loss.built_s:.2f} s, next commit {loss.resumed_s:.2f} s after SIGKILL"
            )
    return found


def median_of(losses: Sequence[Loss], what: str) -> float:
    """Of one figure."""
    return float(statistics.median(getattr(loss, what) for loss in losses))


def report(model: ModelSection, losses: Sequence[Loss], plain: Mapping[Kind, float]) -> dict[str, float]:
    """What is reported of one size.

    Args:
        plain: rates of the kinds of plain streams; bytes/s.
    """
    building = statistics.median(each.received_bytes / each.build_s for each in losses)
    each_waited = [each.received_bytes / (each.built_s - each.decided_s) for each in losses]
    waited = statistics.median(each_waited)
    kept = max(plain[kind] for kind in Kind if kind is not Kind.DISCARDED and not kind.is_encrypted)
    encrypted = max(plain[kind] for kind in Kind if kind.is_encrypted)
    grown, count = max(each.grown_bytes for each in losses), stage_parameters(model)
    return {
        "noticed_s": round(median_of(losses, "noticed_s"), 3),
        "decided_s": round(median_of(losses, "decided_s"), 3),
        "transferred_s": round(median_of(losses, "built_s"), 3),
        "resumed_s": round(median_of(losses, "resumed_s"), 3),
        "resumed_s_max": round(max(each.resumed_s for each in losses), 3),
        "transfer_over_plain": round(min(waited, building) / kept, 3),
        "transfer_over_plain_least": round(min(each_waited) / kept, 3),
        "transfer_over_encrypted": round(min(waited, building) / encrypted, 3),
        "transfer_over_fresh": round(building / plain[Kind.FRESH], 3),
        "transfer_over_discarded": round(building / plain[Kind.DISCARDED], 3),
        "memory_over_state": round(grown / (STATE_BYTES * count), 3),
        "memory_over_gradient_too": round(grown / (GRADIENT_TOO_BYTES * count), 3),
    }


def last_line(found: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """What is reported of the last size, and of each what a small stage makes worse: calls weigh
    more there, and so does memory beside the state.
    """
    each = {
        f"{figure}_{name.replace(' ', '_')}": figures[figure]
        for name, figures in found.items()
        for figure in ("transfer_over_plain", "memory_over_state")
    }
    return each | list(found.values())[-1]


async def pull_all(size_bytes: int, rates: dict[Kind, list[float]]) -> None:
    """Every kind of plain streams in turn, some times."""
    for turn in range(PULLS):
        kinds = tuple(Kind)
        for place in range(len(kinds)):
            kind = kinds[(turn + place) % len(kinds)]
            rates.setdefault(kind, []).append(await pull(size_bytes, kind))


def tables() -> tuple[Table, Table]:
    """Empty ones: when what happened, and what was transferred and taken."""
    when = Table(title="seconds from SIGKILL of a stage's only replica", title_justify="left", title_style="")
    what = Table(title="transfer and memory; (old) is what was reported before", title_justify="left", title_style="")
    kinds = tuple(f"{kind} MB/s" for kind in Kind)
    rates = (
        "received MB",
        "MB/s",
        *kinds,
        "over plain",
        "over encrypted",
        "over fresh (old)",
        "over discarded (old)",
        "memory / 12 B",
        "/ 16 B (old)",
    )
    for table, headings in ((when, ("how", "noticed", "decided", "there", "next commit")), (what, rates)):
        table.add_column("stage")
        for heading in headings:
            table.add_column(heading, justify="left" if heading == "how" else "right")
    return when, what


async def run(models: dict[str, ModelSection], losses: int, *, full: bool, large_parts: bool) -> dict[str, float]:
    """Measure every size, print the tables, return what is reported of the last."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    when, what = tables()
    found_of: dict[str, dict[str, float]] = {}
    for name, model in models.items():
        say(f"{name}: {stage_parameters(model) / 1e6:.1f} million parameters per stage")
        size_bytes, rates = FLOAT_BYTES * stage_parameters(model), dict[Kind, list[float]]()
        await pull_all(size_bytes, rates)
        with tempfile.TemporaryDirectory(prefix="swarmfree-recovery-", ignore_cleanup_errors=True) as folder:
            begun_s = time.monotonic()
            found = await measure(run_of(model, full=full, large_parts=large_parts), Path(folder) / "run", losses, full=full)
            say(f"{name}: measured in {time.monotonic() - begun_s:.0f} s")
        await pull_all(size_bytes, rates)
        for kind in Kind:
            say(f"two plain streams, {kind}: {', '.join(f'{rate / 1e6:.0f}' for rate in sorted(rates[kind]))} MB/s")
        plain = {kind: statistics.median(rates[kind]) for kind in Kind}
        figures = found_of[name] = report(model, found, plain)
        seconds = (figures[f"{moment}_s"] for moment in ("noticed", "decided", "transferred", "resumed"))
        when.add_row(name, found[0].action, *(f"{each:.2f}" for each in seconds))
        what.add_row(
            name,
            f"{median_of(found, 'received_bytes') / 1e6:.0f}",
            f"{statistics.median(each.received_bytes / each.build_s for each in found) / 1e6:.0f}",
            *(f"{plain[kind] / 1e6:.0f}" for kind in Kind),
            *(f"{figures[f'transfer_over_{other}']:.2f}" for other in ("plain", "encrypted", "fresh", "discarded")),
            *(f"{figures[f'memory_over_{other}']:.2f}" for other in ("state", "gradient_too")),
        )
    console = Console(width=180, highlight=False)
    console.print(when)
    console.print(what)
    return last_line(found_of)


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when the swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--losses", type=int, default=0, metavar="N", help=f"how many losses of each size (default {LOSSES})")
    parser.add_argument("--only", choices=tuple(MODELS), help="one size")
    parser.add_argument("--full", action="store_true", help="replay from full shadows and activation logs instead of merging")
    parser.add_argument("--large-parts", action="store_true", help="parts of a 48th of a stage, not of a run's default size")
    parser.add_argument("--quick", action="store_true", help="one loss of a tiny stage, to see that everything works")
    asked = parser.parse_args()
    if asked.losses < 0:
        parser.error("--losses: must be 1 or more")
    models = QUICK_MODELS if asked.quick else {asked.only: MODELS[asked.only]} if asked.only else MODELS
    losses = asked.losses or (QUICK_LOSSES if asked.quick else LOSSES)
    return finish("benchmarks.recovery", run(models, losses, full=asked.full, large_parts=asked.large_parts))


if __name__ == "__main__":
    sys.exit(main())
