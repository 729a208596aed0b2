"""The recovery study as a person runs it: what is to be tried, workers that try it, progress, and the report."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarmfree.cli.study_trials import PLAIN_REPLAY, Trial, base_path
from swarmfree.cli.study_worker import STUDY_FILE
from swarmfree.cockpit.live import span
from swarmfree.lab.processes import Child, start_child, stop_children
from swarmfree.lab.report import write_whole
from swarmfree.lab.study_report import write_report
from swarmfree.lab.study_table import last_line, rows_of, summaries
from swarmfree.storage.corpus import prepare_corpus
from swarmfree.swarm.errors import ConfigError, SwarmfreeError
from swarmfree.swarm.manifest import BatchSection, Manifest, ModelSection, OptimizerSection, RunSection, StagesSection

BODY = 6
RATE = 0.16
MIDDLE, ALL = tuple(range(2, BODY)), tuple(range(1, BODY + 1))
STRATEGIES = (
    "norm2",
    "uniform",
    "random",
    "copy",
    "norm",
    "refit",
    "replay",
    PLAIN_REPLAY,
    "shadow-100",
    "shadow-50",
    "shadow-10",
    "checkpoint-10",
    "checkpoint-50",
    "checkpoint-100",
)
ENDS_STRATEGIES = ("norm2", "checkfree+", "shadow-100", "replay")
SHOW_S = 5.0
SMALL = (
    "A small model learns little in the iterations that a rolled back checkpoint costs: where checkpoints lie before CheckFree here, that says "
    "nothing of large ones."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How much is run: bases (seeds), traces of each kind and base, iterations, rates of failure per stage and hour, and strategies left out."""

    base_iterations: int
    seeds: tuple[int, ...]
    middle_traces: int
    all_traces: int
    iterations: int
    rates: tuple[float, ...]
    without: tuple[str, ...] = ()


QUICK = Size(
    base_iterations=1500, seeds=(1,), middle_traces=2, all_traces=1, iterations=270, rates=(RATE,), without=(PLAIN_REPLAY,)
)
FULL = Size(base_iterations=1500, seeds=(1, 2), middle_traces=2, all_traces=2, iterations=300, rates=(0.05, 0.10, RATE))


def run_of_study(iterations: int) -> Manifest:
    """A LLaMA of 0.7 M parameters in seven stages, bytes, 1,024 tokens an iteration, every second microbatch swappable."""
    return Manifest(
        run=RunSection(name="recovery", seed=1, iterations=iterations, evaluate_every=0, evaluate_windows=16),
        model=ModelSection(width=96, blocks=BODY, heads=3, kv_heads=3, mlp_width=256, tokens_per_row=128),
        stages=StagesSection(body=BODY),
        batch=BatchSection(rows=4, microbatches=2),
        optimizer=OptimizerSection(
            rate=2e-3, schedule="constant", warmup_iterations=50, weight_decay=0.0, beta2=0.999, eps=1e-8, clip="global"
        ),
    )


def trials_of(size: Size) -> list[Trial]:
    """Everything that is tried, the figures of the last line first."""
    trials = []
    for seed in size.seeds:
        trials += [Trial(name, "none", 0.0, (), 0, seed, size.iterations) for name in ("none", "swapped")]
        for trace in range(1, size.middle_traces + 1):
            tried = [strategy for strategy in STRATEGIES if strategy not in size.without]
            trials += [Trial(s, f"middle-{trace}", RATE, MIDDLE, trace, seed, size.iterations) for s in tried]
        for trace in range(1, size.all_traces + 1):
            trials += [Trial(s, f"all-{trace}", RATE, ALL, 100 + trace, seed, size.iterations) for s in ENDS_STRATEGIES]
        for rate in size.rates:
            if rate != RATE:
                name = f"middle{100 * rate:.0f}"
                trials += [Trial("norm2", f"{name}-{t}", rate, MIDDLE, t, seed, size.iterations) for t in range(1, 3)]
    return trials


class RecoveryStudy:
    """One study in one folder."""

    def __init__(self, out: Path, data: str, *, quick: bool, workers: int, say: Callable[[str], None]) -> None:
        """Keep what was asked for; each line goes to `say`."""
        self._out, self._data, self._workers, self._say = out, data, workers, say
        self._size = QUICK if quick else FULL
        self._trials = trials_of(self._size)
        self._progress: dict[str, int] = {}

    async def run(self) -> int:
        """Try what was not tried yet, and write the report.

        Returns:
            0 when everything was tried.

        Raises:
            ConfigError: the folder holds another study.
            DataError: the text cannot be had.
            SwarmfreeError: a worker failed.
        """
        begun_s = time.monotonic()
        self._prepare()
        percent = run_of_study(self._size.iterations).data.held_out_percent
        await asyncio.to_thread(prepare_corpus, self._data, self._out / "corpus", percent)
        self._say(
            f"recovery study: {len(self._bases())} bases, {len(self._trials)} trials in {self._out}, {self._workers} at a time"
        )
        children = []
        try:
            for number in range(self._workers):
                command = [sys.executable, "-m", "swarmfree.cli.study_worker", str(self._out), str(os.getpid())]
                children.append(
                    await start_child(f"worker {number + 1}", command, self._out / f"worker-{number + 1}.txt", self._hear)
                )
            async with asyncio.TaskGroup() as group:
                shown = group.create_task(self._show(begun_s))
                async with asyncio.TaskGroup() as waits:
                    for child in children:
                        waits.create_task(self._end_of(child))
                shown.cancel()
        finally:
            await stop_children(children, 2.0)
        self._report(time.monotonic() - begun_s)
        return 0

    async def _end_of(self, child: Child) -> None:
        """Wait for a worker; where one fails the others are ended as well, since they may wait for its base."""
        if await child.wait():
            raise SwarmfreeError(f"{child.name} of the study failed; see {self._out}/worker-*.txt, then run it again: it goes on")

    def _prepare(self) -> None:
        manifest = run_of_study(self._size.base_iterations + self._size.iterations)
        content: dict[str, Any] = {
            "manifest": manifest.canonical().decode(),
            "data": self._data,
            "evaluate_every": 20,
            "base_iterations": self._size.base_iterations,
            "trials": [dataclasses.asdict(trial) for trial in self._trials],
        }
        encoded = json.dumps(content, indent=1).encode()
        path = self._out / STUDY_FILE
        (self._out / "trials").mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_bytes() != encoded:
            raise ConfigError(f"--out {self._out}: holds another study, with other settings or data; name another folder")
        write_whole(path, encoded)
        for stale in self._out.glob("*.taken"):
            stale.unlink()

    def _bases(self) -> list[Path]:
        wanted = dict.fromkeys((trial.base_seed, trial.swaps) for trial in self._trials)
        return [base_path(self._out, seed, swaps=swaps) for seed, swaps in wanted]

    def _hear(self, line: str) -> None:
        try:
            told = json.loads(line)
            self._progress[told["name"]] = told["done"]
        except (ValueError, KeyError, TypeError):
            self._say(line)

    def _counts(self) -> tuple[int, int]:
        """Iterations done, and of how many."""
        done = sum(self._size.base_iterations for path in self._bases() if path.exists())
        done += sum(t.iterations for t in self._trials if (self._out / "trials" / f"{t.name}.json").exists())
        finished = {path.stem for path in self._bases() if path.exists()}
        finished |= {t.name for t in self._trials if (self._out / "trials" / f"{t.name}.json").exists()}
        done += sum(count for name, count in self._progress.items() if name not in finished)
        return done, len(self._bases()) * self._size.base_iterations + sum(t.iterations for t in self._trials)

    async def _show(self, begun_s: float) -> None:
        first, count = self._counts()
        while True:
            await asyncio.sleep(SHOW_S)
            done, _ = self._counts()
            spent_s = time.monotonic() - begun_s
            left = span((count - done) * spent_s / (done - first)) if done > first else "unknown"
            self._say(f"{done:,} of {count:,} iterations, {spent_s:.0f} s, {left} left")

    def _report(self, seconds: float) -> None:
        paths = [self._out / "trials" / f"{trial.name}.json" for trial in self._trials]
        results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        rows = rows_of(results)
        found = summaries(rows)
        swap = statistics.fmean(row.gap_percent for row in rows if row.strategy == "swapped")
        exact = max(row.distance for row in rows if row.strategy == "replay")
        size = self._size
        what = (
            f"{len(self._bases())} bases of {size.base_iterations} iterations, {len(results)} trials of {size.iterations}; seeds {size.seeds}; "
            f"a stage is lost with {100 * RATE:.0f} % an hour, iterations of 91.3 s; {seconds:.0f} s."
        )
        about = [
            what,
            f"Swapped routes cost {swap:+.2f} % of held-out loss at equal iterations without any loss; the gaps of checkfree+ hold it.",
            f"Replayed stages differ from the lost ones by {exact:g} at most.",
            SMALL,
        ]
        written = write_report(self._out, results, rows, found, about)
        self._say(f"{'traces':<10}{'strategy':<16}{'gap %':>9}{'spread':>9}{'spike %':>9}{'back':>7}{'redone':>8}")
        for s in found:
            gaps = f"{s.gap_percent:>9.3f}{s.spread_percent:>9.3f}{s.spike_percent:>9.2f}"
            self._say(f"{s.kind:<10}{s.strategy:<16}{gaps}{s.back:>7.0f}{s.redone:>8.0f}")
        for sentence in about:
            self._say(sentence)
        self._say(f"report: {written[-1]}")
        self._say(json.dumps(last_line(found)))
