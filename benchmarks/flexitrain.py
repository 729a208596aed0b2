"""FlexiTrain's experiment in small: is a language model as good, and trained as fast, when replicas
fail meanwhile?

``python -m benchmarks.flexitrain`` trains the same tiny LLaMA on the same text six times for the
same number of iterations, with real processes: a source and two replicas of the one body stage,
which are FlexiTrain's two data-parallel workers. First and last nobody fails; once one replica is
killed and does not come back, as in its run ``llm-p1e-5``; once several are killed, one after the
other, and each comes back. These two are trained
twice: with kills at seeded moments of an iteration, when work is under way at every stage, and with
kills right after a commit, when there is none to be lost. Compared are the held-out loss after the
last iteration and the tokens/s from the first commit to the last, with the faster of the two
trainings without failures.

Source: Salahi, Ding, Edamadaka, FlexiTrain, section 5.2, table 1. It trained two models of 78 M
parameters for 5000 iterations on TinyStories on two H100: validation loss 1.864 without failures,
1.857 with one. It gives no throughput for these; its simulation of 10,000 GPUs over a month has
99.85 % of the fault-free batches, and 80.18 % for checkpoints. Its table 3 (MNIST, 99.18 and 92.98)
is headed throughput, but the text beside it speaks of test accuracy. Differs: it drops the batch of
a failed worker, so its two curves differ by their data; here that work is redone, so that only
rounding differs. It could not take anybody back; here who was killed rejoins. Two replicas, the
source and every process that starts share two cores, so a lost one costs less than a machine of its
own, and one that starts costs more.

Prints a table and, as the last line, one JSON object: both moments of each, and under `worst` the
largest gap and the least throughput. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.live import Commits, LiveFailed, LiveSwarm
from benchmarks.ring_runs import Job, machine_busy_seconds, parameter_count, prepare_job
from swarmfree.protocol.events import Evaluated, IterationCommitted, MemberLost, Repaired, Started
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    OptimizerSection,
    RingSection,
    RunSection,
    StagesSection,
)

ITERATIONS, QUICK_ITERATIONS = 150, 60
FAULTS, QUICK_FAULTS = 3, 1
BACK_AFTER_S = 1.5
RUN_WITHIN_S = 400.0
TABLE_WIDTH = 118
SOURCE = "source"
REPLICAS = ("replica-1", "replica-2")
NONE, LOST, RETURNED = "no failure", "one lost for good", "killed and back"
AFTER_COMMIT = ", after a commit"
PAPER_LOSS = {NONE: 1.864, LOST: 1.857}
RECENT = 8
"""How long an iteration takes is the mean over so many."""
PAPER_KEPT = 0.9985

RUN = Manifest(
    run=RunSection(name="flexitrain", seed=1, iterations=ITERATIONS, evaluate_every=0, evaluate_windows=32),
    model=ModelSection(width=128, blocks=3, heads=4, kv_heads=2, mlp_width=352, tokens_per_row=128, init_std=0.06),
    stages=StagesSection(body=1, replicas_min=2, replicas_max=2),
    batch=BatchSection(rows=4, microbatches=8),
    optimizer=OptimizerSection(rate=3e-3, warmup_iterations=10, schedule="cosine"),
    ring=RingSection(credits=4),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Who fails when.

    Args:
        kills: iterations after whose commit a replica is killed, ascending; and what share of the
            next one passes before.
        is_back: it is started again, and the next one is killed only when it is a member once more.
    """

    kills: tuple[tuple[int, float], ...] = ()
    is_back: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """One training.

    Args:
        loss: held out, after the last iteration, nats per token.
        tokens_per_s: between the first commit and the last.
        kills: replicas that were killed.
        back: how many of them were members again.
        redone: microbatches of dead replicas that were done again.
        missed_s: from each kill until the coordinator knew.
        foreign_cores: cores that other programs kept busy.
    """

    loss: float
    tokens_per_s: float
    kills: int
    back: int
    redone: int
    missed_s: tuple[float, ...]
    foreign_cores: float


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def plans(iterations: int, faults: int, seed: int) -> dict[str, Plan]:
    """Without failures, with one in the first half, and with several, spread over the first three
    quarters; each at two kinds of moments.
    """
    draw, moment = random.Random(f"{seed} flexitrain"), random.Random(f"{seed} moments")
    each = max(1, 3 * iterations // 4 // faults)
    spread = [number * each + draw.randrange(max(1, each // 2)) for number in range(faults)]
    found = {NONE: Plan()}
    for name, kills, is_back in ((LOST, [draw.randrange(1, iterations // 2)], False), (RETURNED, spread, True)):
        found[name] = Plan(tuple((kill, moment.random()) for kill in kills), is_back=is_back)
        found[name + AFTER_COMMIT] = Plan(tuple((kill, 0.0) for kill in kills), is_back=is_back)
    return found


async def train(job: Job, folder: Path, plan: Plan, seed: int) -> Story:
    """One training with real processes, to its end.

    Raises:
        LiveFailed: it did not come to its end.
    """
    last, draw = job.manifest.run.iterations - 1, random.Random(f"{seed} victims")
    folder.mkdir(parents=True)
    async with LiveSwarm(folder, job.run_file, job.text_file) as swarm:
        begun_s, busy = time.time(), machine_busy_seconds() - time.process_time()
        await swarm.start(SOURCE, feeds=True)
        await swarm.until("the source is up", lambda: any(True for _ in swarm.told(Started, name=SOURCE)))
        for name in REPLICAS:
            await swarm.start(name)
        killed_s, back, missed_s = [], 0, []
        for kill, share in plan.kills:
            await _committed(swarm, kill)
            await swarm.pass_time(share * _iteration_s(swarm))
            name = draw.choice([each for each in REPLICAS if swarm.is_member(each)])
            killed_s.append(swarm.kill(name))
            missed_s.append(await _missed(swarm, name, killed_s[-1]) - killed_s[-1])
            if plan.is_back:
                await swarm.pass_time(BACK_AFTER_S)
                again_s = await swarm.start(name)
                await swarm.until(f"{name} is up again", lambda n=name, s=again_s: any(True for _ in swarm.told(Started, s, n)))  # type: ignore[misc]
                await swarm.until(f"{name} is a member again", lambda n=name: swarm.is_member(n))  # type: ignore[misc]
                back += 1
        await _committed(swarm, last)
        cpu = swarm.cpu_s()
        foreign = max(0.0, machine_busy_seconds() - time.process_time() - busy - cpu) / (time.time() - begun_s)
        await swarm.until("the last evaluation", lambda: any(e.iteration > last for _, e in swarm.told(Evaluated)))
        commits = Commits.of(swarm.said)
        return Story(
            loss=[event.loss for _, event in swarm.told(Evaluated)][-1],
            tokens_per_s=commits.rate(commits.times_s[0], commits.times_s[-1]),
            kills=len(killed_s),
            back=back,
            redone=sum(len(offsets) for _, event in swarm.told(Repaired) for _, offsets in event.redone),
            missed_s=tuple(missed_s),
            foreign_cores=foreign,
        )


async def _committed(swarm: LiveSwarm, iteration: int) -> None:
    await swarm.until(
        f"iteration {iteration} is committed",
        lambda: any(event.iteration >= iteration for _, event in swarm.told(IterationCommitted)),
        RUN_WITHIN_S,
    )


def _iteration_s(swarm: LiveSwarm) -> float:
    """How long iterations took lately; 0 before the second commit."""
    times_s = Commits.of(swarm.said).times_s[-1 - RECENT :]
    return (times_s[-1] - times_s[0]) / max(1, len(times_s) - 1)


async def _missed(swarm: LiveSwarm, name: str, since_s: float) -> float:
    """When the coordinator missed it."""
    peer_id = swarm.endpoint(name).member.peer_id
    await swarm.until(f"{name} is missed", lambda: any(e.peer_id == peer_id for _, e in swarm.told(MemberLost, since_s)))
    return next(t for t, event in swarm.told(MemberLost, since_s) if event.peer_id == peer_id)


def faster(one: Story, other: Story) -> Story:
    """What the others are compared with: a machine that slows down, or speeds up, meanwhile is no
    gain.
    """
    return max(one, other, key=lambda story: story.tokens_per_s)


def report(stories: Mapping[str, Story]) -> dict[str, dict[str, float]]:
    """By kind of failure: the relative difference of the final loss, and the throughput kept, over
    the training without; then the worst of each.
    """
    calm = stories[NONE]
    names = {"one_lost": LOST, "killed_and_back": RETURNED}
    found = {
        key + ("_after_commit" if suffix else ""): {
            "loss_gap": round(abs(stories[name + suffix].loss / calm.loss - 1), 6),
            "throughput_kept": round(stories[name + suffix].tokens_per_s / calm.tokens_per_s, 4),
        }
        for suffix in (AFTER_COMMIT, "")
        for key, name in names.items()
    }
    gaps, kept = ([each[what] for each in found.values()] for what in ("loss_gap", "throughput_kept"))
    return found | {"worst": {"loss_gap": max(gaps), "throughput_kept": min(kept)}}


def table_of(manifest: Manifest, stories: Mapping[str, Story]) -> Table:
    """One line per training, then what the paper has."""
    table = Table(
        title=f"flexitrain in small: {parameter_count(manifest.model) / 1e6:.2f} M parameters, {manifest.run.iterations} iterations of "
        f"{manifest.tokens_per_iteration} tokens, two replicas",
        title_justify="left",
        title_style="",
    )
    table.add_column("training", no_wrap=True)
    for heading in ("loss", "difference", "tokens/s", "kept", "kills", "back", "redone", "missed after", "foreign cores"):
        table.add_column(heading, justify="right")
    calm = stories[NONE]
    for name, story in stories.items():
        table.add_row(
            name,
            f"{story.loss:.6f}",
            f"{story.loss / calm.loss - 1:+.4%}",
            f"{story.tokens_per_s:,.0f}",
            f"{story.tokens_per_s / calm.tokens_per_s:.3f}",
            *(str(count) for count in (story.kills, story.back, story.redone)),
            f"{max(story.missed_s):.2f} s" if story.missed_s else "",
            f"{story.foreign_cores:.2f}",
        )
    table.add_section()
    gap = PAPER_LOSS[LOST] / PAPER_LOSS[NONE] - 1
    table.add_row("paper, no failure", f"{PAPER_LOSS[NONE]:.3f}", "", "", "", "0", "", "", "", "")
    table.add_row("paper, one lost", f"{PAPER_LOSS[LOST]:.3f}", f"{gap:+.4%}", "", "", "1", "0", "", "", "")
    table.add_row("paper, simulated", "", "", "", f"{PAPER_KEPT:.4f}", "", "", "", "", "")
    return table


async def run(*, seed: int, iterations: int, faults: int) -> dict[str, dict[str, float]]:
    """Train, print the table, return what is reported."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs in a task"
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    manifest = replace(RUN, run=replace(RUN.run, iterations=iterations))
    stories: dict[str, Story] = {}
    with tempfile.TemporaryDirectory(prefix="swarmfree-flexi-", ignore_cleanup_errors=True) as folder:
        job = prepare_job(manifest, Path(folder) / "job", 1, iterations - 1)
        for number, (name, plan) in enumerate(plans(iterations, faults, seed).items()):
            stories[name] = story = await train(job, Path(folder) / str(number), plan, seed)
            say(f"{name}: loss {story.loss:.6f}, {story.tokens_per_s:,.0f} tokens/s, {story.kills} kills")
        again = await train(job, Path(folder) / "again", Plan(), seed)
        say(f"{NONE}, again: loss {again.loss:.6f}, {again.tokens_per_s:,.0f} tokens/s")
        stories[NONE] = faster(stories[NONE], again)
    Console(width=TABLE_WIDTH, highlight=False).print(table_of(manifest, stories))
    return report(stories)


def main() -> int:
    """Run the benchmark; the exit code is 0, 1 when a swarm failed, 130 or 143 after a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flexitrain", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of who is killed when (default 0)")
    parser.add_argument("--quick", action="store_true", help="a few iterations, to see that everything works")
    asked = parser.parse_args()
    iterations, faults = (QUICK_ITERATIONS, QUICK_FAULTS) if asked.quick else (ITERATIONS, FAULTS)
    try:
        found = asyncio.run(run(seed=asked.seed, iterations=iterations, faults=faults))
    except LiveFailed as error:
        say(f"benchmarks.flexitrain: {error}")
        return 1
    except KeyboardInterrupt:
        say("benchmarks.flexitrain: interrupted")
        return 130
    except asyncio.CancelledError:
        say("benchmarks.flexitrain: told to end")
        return 143
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
