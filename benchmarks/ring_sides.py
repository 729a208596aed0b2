"""The sides of the ring benchmark: how each is started, watched, measured and ended.

Every process is started in a session of its own and dies with this one. Processor time is read
where it is cheapest: a process of plain PyTorch tells its own at every iteration's end; of a swarm
all processes below `swarmfree local` are read when the last warm-up iteration and the last
iteration are told. `local` itself only watches, as this process does, and does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from benchmarks.ring_runs import (
    AS_IT_COMES,
    PIPELINING,
    PLAIN_ONE,
    PLAIN_TWO,
    SWARM,
    WHOLE,
    Job,
    Mark,
    Measurement,
    machine_busy_seconds,
)
from benchmarks.ring_worker import STORE_FILE
from swarmfree.lab.processes import Child, descendants, start_child, stop_children
from swarmfree.protocol.errors import SwarmfreeError

GRACE_S = 6.0
LOG_TAIL_LINES = 12


class SideFailed(SwarmfreeError):
    """A side did not do its iterations."""


async def measure(side: str, job: Job, folder: Path, limit_s: float) -> Measurement:
    """Let one side do a job from its first process to its last.

    Args:
        side: one of `ring_runs.SIDES`.
        job: what to do.
        folder: new; for logs and what the side writes. Removed when all went well.
        limit_s: it may take so long at most, start and end included.

    Raises:
        SideFailed: it failed or took longer, with the last lines of its log.
    """
    folder.mkdir(parents=True)
    try:
        async with asyncio.timeout(limit_s):
            marks = await _run(side, job, folder)
    except TimeoutError:
        raise SideFailed(f"{side}: not done after {limit_s:.0f} s{_log_tails(folder)}") from None
    if len(marks) != job.warmup + job.iterations:
        raise SideFailed(
            f"{side}: told of {len(marks)} iterations, {job.warmup + job.iterations} were ordered{_log_tails(folder)}"
        )
    measured = Measurement.of(job, marks)
    shutil.rmtree(folder, ignore_errors=True)
    return measured


async def _run(side: str, job: Job, folder: Path) -> Sequence[Mark]:
    if side == SWARM:
        return await _run_swarm(job, folder)
    kind = side.removesuffix(AS_IT_COMES)
    settings = () if kind == side else ("--as-it-comes",)
    if kind == PIPELINING:
        return await _run_pipelining(job, folder, settings)
    pieces = ("--whole",) if kind.endswith(WHOLE) else ()
    threads = {PLAIN_ONE: 1, PLAIN_TWO: 2}[kind.removesuffix(WHOLE)]
    return (await _run_workers(job, folder, [("--threads", str(threads), *pieces, *settings)]))[0]


# ---- plain PyTorch -------------------------------------------------------------------------------


async def _run_pipelining(job: Job, folder: Path, settings: tuple[str, ...]) -> Sequence[Mark]:
    """All ranks together: time of the first, which ends last, processor time of all, loss of the
    last.
    """
    store = ("--store", str(folder / STORE_FILE), *settings)
    ranks = await _run_workers(job, folder, [("--rank", str(rank), *store) for rank in range(job.manifest.stages.body)])
    return [
        Mark(marks[0].time_s, sum(mark.cpu_s for mark in marks), marks[0].busy_s, marks[-1].loss)
        for marks in zip(*ranks, strict=True)
    ]


async def _run_workers(job: Job, folder: Path, each: Sequence[tuple[str, ...]]) -> list[list[Mark]]:
    """Processes of `ring_worker`, one for each tuple of arguments; their marks."""
    told: list[list[Mark]] = [[] for _ in each]
    children: list[Child] = []
    try:
        for number, arguments in enumerate(each):
            command = [
                *(sys.executable, "-m", "benchmarks.ring_worker", str(job.folder), *arguments),
                *("--die-with-parent", str(os.getpid())),
            ]
            log = folder / f"{number}.txt"
            children.append(await start_child(f"process {number}", command, log, _hear_marks(told[number])))
        await _wait_for_all(children, folder)
    finally:
        await stop_children(children, GRACE_S)
    return told


def _hear_marks(marks: list[Mark]) -> Callable[[str], None]:
    def hear(line: str) -> None:
        if line.startswith("{"):
            marks.append(Mark(**json.loads(line)))

    return hear


async def _wait_for_all(children: Sequence[Child], folder: Path) -> None:
    """Wait for all; the first one that fails ends the wait."""

    async def one(child: Child) -> None:
        code = await child.wait()
        if code != 0:
            raise SideFailed(f"{child.name}: exit code {code}{_log_tails(folder)}")

    try:
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(one(child))
    except* SideFailed as failures:
        raise failures.exceptions[0] from None


# ---- the swarm -----------------------------------------------------------------------------------


async def _run_swarm(job: Job, folder: Path) -> Sequence[Mark]:
    """A swarm through the command line, one peer per stage, no standby."""
    marks: list[Mark] = []
    children: list[Child] = []
    count = job.warmup + job.iterations

    def hear(line: str) -> None:
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("kind") == "IterationCommitted":
            is_looked_at = len(marks) + 1 in {job.warmup, count}
            cpu_s = cpu_seconds_below(children[0].pid) if is_looked_at else math.nan
            marks.append(Mark(event["time_s"], cpu_s, machine_busy_seconds(), event["loss"]))

    command = [
        *(sys.executable, "-m", "swarmfree", "local", "--run", str(job.run_file), "--data", str(job.text_file)),
        *("--peers", str(job.manifest.stage_count), "--standbys", "0", "--threads", "1"),
        *("--log", "json", "--out", str(folder / "report"), "--die-with-parent", str(os.getpid())),
    ]
    try:
        children.append(await start_child("swarmfree local", command, folder / "local.txt", hear))
        await _wait_for_all(children, folder)
    finally:
        await stop_children(children, GRACE_S)
    return marks


def cpu_seconds_below(pid: int) -> float:
    """Processor seconds, user and system, of all processes below `pid`, which lives: of those that
    live, and of those that have ended and were waited for.
    """
    own = psutil.Process(pid).cpu_times()
    total = float(own.children_user + own.children_system)
    for process in descendants(pid):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def _log_tails(folder: Path) -> str:
    """The last lines of every log of a side that failed."""
    tails = []
    for log in sorted(folder.rglob("*.txt")):
        lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tails += [f"\n{log.name}: {line}" for line in lines]
    return "".join(tails)
