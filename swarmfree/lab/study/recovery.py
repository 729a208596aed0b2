"""The recovery study as a person runs it: what is to be tried, workers that try it, progress, and
the report.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from swarmfree.cockpit.text import span
from swarmfree.lab.processes import Child, start_child, stop_children
from swarmfree.lab.report import write_whole
from swarmfree.lab.study.base_training import base_path
from swarmfree.lab.study.failure_trace import Failure, distinct_traces, draw_failures, draw_pairs
from swarmfree.lab.study.report import write_report
from swarmfree.lab.study.table import (
    TrialRow,
    last_line,
    pairs_of,
    pipeline_gap_percent,
    pipeline_stall,
    rows_of,
    summaries,
    unpaid_stall,
)
from swarmfree.lab.study.trial import PLAIN_REPLAY, Trial
from swarmfree.lab.study.worker import STUDY_FILE
from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, OptimizerSection, RunSection, StagesSection
from swarmfree.storage.corpus import prepare_corpus, require_text

BODY = 6
RATE = 0.16
RATES = (0.05, 0.10, RATE)
MIDDLE, ALL = tuple(range(2, BODY)), tuple(range(1, BODY + 1))
MERGES = ("norm2", "uniform", "random", "clipped")
"""Weights of a merge whose order is judged: they are played under more traces than the rest."""
SHADOWS = ("shadow-10", "shadow-50", "shadow-100")
MIDDLE_STRATEGIES = ("checkfree+", *SHADOWS, "checkpoint-10", "checkpoint-50", "checkpoint-100", "replay", "refit")
FEW_STRATEGIES = ("copy", "norm", "replay-near", PLAIN_REPLAY)
"""They are played under one trace of each seed: the last line judges none of them."""
ALL_STRATEGIES = ("norm2", "checkfree+", *SHADOWS)
PAIR_STRATEGIES = ("norm2", "checkfree+", "shadow-100", "replay", "checkpoint-100")
SCRATCH_STRATEGIES = ("norm2", "checkfree+", "checkpoint-100")
EVALUATE_EVERY = 20
SHOW_S = 5.0
SMALL = (
    "A small model learns little in the iterations that a rolled back checkpoint costs: where checkpoints lie before CheckFree here, that says "
    "nothing of large ones."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How much is run.

    Args:
        base_iterations: before a trial.
        seeds: of bases.
        merge_traces, middle_traces, few_traces: for each seed, at the middle of the body: for the
            merges, for most strategies, for the rest.
        all_traces, pair_traces: for each seed, at the whole body, and of two stages at once.
        iterations: of a trial.
        scratch_seeds, scratch_iterations: of trials without a base, at each rate of failure.
        without: strategies left out.
    """

    base_iterations: int
    seeds: tuple[int, ...]
    merge_traces: int
    middle_traces: int
    few_traces: int
    all_traces: int
    pair_traces: int
    iterations: int
    scratch_seeds: tuple[int, ...] = ()
    scratch_iterations: int = 0
    without: tuple[str, ...] = ()


QUICK = Size(1500, (1,), 2, 2, 1, 1, 1, 200, without=("norm", "copy", "replay-near", PLAIN_REPLAY))
FULL = Size(1500, (1, 2, 3), 4, 3, 1, 3, 1, 200, scratch_seeds=(1, 2), scratch_iterations=600)


def run_of_study(iterations: int) -> Manifest:
    """A LLaMA of 0.7 M parameters in seven stages, bytes, 1,024 tokens an iteration, every second
    microbatch swappable.
    """
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
    """Everything that is tried; traces of different seeds, kinds and rates are independent draws,
    each with a loss, no two the same.
    """
    trials = []
    for seed in size.seeds:
        trials += [Trial(name, "none", seed, size.iterations) for name in ("none", "swapped")]
        tried = ((MERGES, size.merge_traces), (MIDDLE_STRATEGIES, size.middle_traces), (FEW_STRATEGIES, size.few_traces))
        for strategies, count in tried:
            trials += _played(size, strategies, f"middle@{seed}", _by_rate(RATE, MIDDLE, size.iterations), count)
        trials += _played(size, ALL_STRATEGIES, f"all@{seed}", _by_rate(RATE, ALL, size.iterations), size.all_traces)
        pairs = functools.partial(draw_pairs, MIDDLE, 0, size.iterations)
        trials += _played(size, PAIR_STRATEGIES, f"pairs@{seed}", pairs, size.pair_traces)
    scratch = dataclasses.replace(size, iterations=size.scratch_iterations)
    for seed in size.scratch_seeds:
        for rate in RATES:
            draw = _by_rate(rate, MIDDLE, scratch.iterations)
            found = _played(scratch, SCRATCH_STRATEGIES, f"scratch{100 * rate:.0f}@{seed}", draw, 1)
            trials += [dataclasses.replace(trial, is_from_scratch=True) for trial in found]
    return trials


def _by_rate(rate: float, stages: Sequence[int], iterations: int) -> Callable[[int], tuple[Failure, ...]]:
    return functools.partial(draw_failures, rate, stages, 0, iterations)


def _played(
    size: Size, strategies: Sequence[str], name: str, draw: Callable[[int], tuple[Failure, ...]], count: int
) -> list[Trial]:
    """Each strategy under each of so many traces; `name` (kind@seed) goes into the seeds of the
    draws.
    """
    kind, _, seed = name.partition("@")
    own = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    traces = [tuple((f.iteration, f.stage) for f in t) for t in distinct_traces(lambda salt: draw(1000 * own + salt), count)]
    named = [(f"{kind}-{number}", trace) for number, trace in enumerate(traces, 1)]
    tried = [strategy for strategy in strategies if strategy not in size.without]
    return [Trial(strategy, trace, int(seed), size.iterations, losses) for trace, losses in named for strategy in tried]


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
            ConfigError: the folder holds another study, or something else.
            DataError: the text is of no use.
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
                command = [sys.executable, "-m", "swarmfree.lab.study.worker", str(self._out), str(os.getpid())]
                children.append(
                    await start_child(f"worker {number + 1}", command, self._out / f"worker-{number + 1}.txt", self._hear)
                )
            async with asyncio.TaskGroup() as group:
                shown = group.create_task(self._show(begun_s))
                async with asyncio.TaskGroup() as waits:
                    for child in children:
                        waits.create_task(self._end_of(child))
                shown.cancel()
        except asyncio.CancelledError:
            self._progress.clear()
            done, count = self._counts()
            kept = f"{done:,} of {count:,} iterations are in bases and trials that are finished"
            self._say(f"ended; {kept}, and kept in {self._out}; the same command begins with the others")
            raise
        finally:
            await stop_children(children, 2.0)
        self._report(time.monotonic() - begun_s)
        return 0

    async def _end_of(self, child: Child) -> None:
        """Wait for a worker; where one fails the others are ended as well, since they may wait for
        its base.
        """
        if await child.wait():
            raise SwarmfreeError(f"{child.name} of the study failed; see {self._out}/worker-*.txt, then run it again: it goes on")

    def _prepare(self) -> None:
        manifest = run_of_study(self._size.base_iterations + self._size.iterations)
        content: dict[str, Any] = {
            "manifest": manifest.canonical().decode(),
            "data": self._data,
            "evaluate_every": EVALUATE_EVERY,
            "base_iterations": self._size.base_iterations,
            "trials": [dataclasses.asdict(trial) for trial in self._trials],
        }
        encoded = json.dumps(content, indent=1).encode()
        path = self._out / STUDY_FILE
        if self._out.is_dir() and not path.exists() and any(self._out.iterdir()):
            raise ConfigError(
                f"--out {self._out}: the folder is not empty and holds no study; name a new one, or that of a study to go on with"
            )
        require_text(self._data, manifest.tokens_per_iteration + 1, manifest.model.vocabulary)
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

    def _results(self) -> list[dict[str, Any]]:
        """Of all trials, and of the bases as runs from scratch without failures."""
        paths = [self._out / "trials" / f"{trial.name}.json" for trial in self._trials]
        results: list[dict[str, Any]] = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        length = self._size.scratch_iterations
        for seed in self._size.scratch_seeds:
            for name in ("none", "swapped"):
                path = base_path(self._out, seed, swaps=name == "swapped").with_suffix(".json")
                curve = [point for point in json.loads(path.read_text(encoding="utf-8"))["curve"] if point[0] <= length]
                trial = dataclasses.asdict(Trial(name, "scratch", seed, length, is_from_scratch=True))
                results.append({"trial": trial, "curve": curve, "learned": [], "recoveries": [], "redone": 0, "stalled": 0})
        return results

    def _report(self, seconds: float) -> None:
        results, size = self._results(), self._size
        rows = rows_of(results)
        pipeline, stalled = pipeline_gap_percent(results, BODY)
        swap = next(s for s in summaries(rows) if (s.strategy, s.kind) == ("swapped", "none"))
        exact = max(row.distance for row in rows if row.strategy == "replay")
        scratch = f" or, from scratch, {size.scratch_iterations}" if size.scratch_iterations else ""
        seeds = f"seed{'s' * (len(size.seeds) > 1)} {', '.join(map(str, size.seeds))}"
        what = (
            f"{len(self._bases())} base models of {size.base_iterations} iterations, {len(self._trials)} trials of {size.iterations}{scratch}; "
            f"{seeds}; a stage is lost with {100 * RATE:.0f} % an hour, iterations of 91.3 s; {seconds:.0f} s."
        )
        shared = (
            "Traces of one seed begin with the same base model, which t takes for independent; "
            f"that of bases goes by the means of the {len(size.seeds)} base models."
        )
        refit_stalled, unpaid = pipeline_stall(rows, "refit", BODY), unpaid_stall(rows, "refit")
        full = (
            "In a full pipeline a replayed iteration of a stage takes as long as one of the swarm: replays would have stalled "
            f"{stalled:.0f} iterations of {size.iterations} and have cost {pipeline:.2f} % at equal time, and refits have stalled "
            f"{refit_stalled:.0f}: what refits cost stands above for one process that computes all stages."
        )
        about = [
            what,
            f"Swapped routes cost {swap.gap_percent:+.2f} % of held-out loss without any loss of a stage; the gaps of checkfree+ hold it.",
            f"Replayed stages differ from the lost ones by {exact:g} at most.",
            full,
            f"No trial pays more than its length: refits owed {unpaid:.0f} iterations more when trials were over, which no gap has.",
            *([shared] if len(size.seeds) > 1 else []),
            *_bound_sentences(rows, run_of_study(1).recovery.weight_ratio_max),
            SMALL,
        ]
        written = write_report(self._out, results, rows, about)
        self._say(
            f"{'traces':<10}{'strategy':<16}{'gap %':>9}{'error':>8}{'time %':>9}{'equal %':>9}{'spike %':>9}{'redone':>8}{'stalled':>9}"
        )
        for s in summaries(rows):
            gaps = f"{s.gap_percent:>9.3f}{s.error_percent:>8.3f}{s.time_percent:>9.3f}{s.learned_percent:>9.3f}{s.spike_percent:>9.2f}"
            self._say(f"{s.kind:<10}{s.strategy:<16}{gaps}{s.redone:>8.0f}{s.stalled:>9.0f}")
        for pair in pairs_of(rows):
            by_bases = f" (of bases {pair.bases_t:.2f})" if pair.bases > 1 else ""
            found = (
                f"{pair.difference_percent:+.3f} +- {pair.error_percent:.3f} %, t = {pair.t:.2f}{by_bases}, {pair.pairs} pairs"
            )
            self._say(f"{pair.kind}: {pair.expected_worse} over {pair.expected_better}: {found}")
        for sentence in about:
            self._say(sentence)
        self._say(f"report: {written[-1]}")
        pipelined = {
            "refit_unpaid_stall": round(unpaid, 1),
            "refit_pipeline_stall": round(refit_stalled, 1),
            "replay_pipeline_gap_percent": round(pipeline, 4),
        }
        self._say(json.dumps(last_line(rows) | pipelined))


def _bound_sentences(rows: Sequence[TrialRow], ratio_max: float) -> list[str]:
    """How often the bound on the weights of a merge changed them, by what they follow."""
    found = []
    for strategy in ("norm2", "norm", "clipped", "checkfree+"):
        merges, bounded = (sum(getattr(r, name) for r in rows if r.strategy == strategy) for name in ("merges", "bounded"))
        if merges:
            found.append(f"The bound of {ratio_max:g} to 1 changed the weights of {bounded} of {merges} merges of {strategy}.")
    return found
