"""One trial of the recovery study: a base that was trained without failures goes on under one failure trace with one strategy.

Everything that a trial needs is in its `Trial` and in the base; the same trial gives the same curve. The model, merge weights, shadows, schedule and
data are the product's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from swarmfree.cli.study_refit import REFIT_ITERATIONS, REFIT_STEPS, WARM_ITERATIONS, refit_scalars, restarted_scalars
from swarmfree.lab.failures import Failure, draw_failures
from swarmfree.lab.report import write_whole
from swarmfree.model.staged import Copy, Staged
from swarmfree.policy.recovery import merge_weights
from swarmfree.policy.schedule import clip_factors, step_scalars
from swarmfree.storage.arrays import read_arrays, write_arrays
from swarmfree.swarm.actions import MergeMode
from swarmfree.swarm.books import StepScalars, bits_float32
from swarmfree.swarm.manifest import BorderDtype, Manifest
from swarmfree.swarm.ports import Tokens

SNAPSHOT_EVERY, SNAPSHOTS_KEPT = 10, 12
FULL_SHADOW_EVERY = 50
LOG_ITERATIONS = max(FULL_SHADOW_EVERY + WARM_ITERATIONS, REFIT_ITERATIONS)
PLAIN_REPLAY = "replay-plain"
LOG_DTYPES: dict[str, BorderDtype] = {"replay": "wire", PLAIN_REPLAY: "bfloat16", "refit": "bfloat16"}
"""Strategies that need border logs, and what these are rounded to."""
QUIET = 60
"""Iterations at the start of a trial without failures: that long it takes until every strategy has what it keeps."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is run.

    Args:
        strategy: `none`, a merge mode, `checkfree+`, `checkpoint-K`, `shadow-K`, `replay`, `replay-plain`
            (from int8 weights without moments) or `refit`.
        trace: name of the trace, for people.
        rate_per_hour: of each stage that may fail; 0 for none.
        stages: those.
        trace_seed: of the trace.
        base_seed: of the base: weights and data order.
        iterations: after the base, those without failures at the start included.
    """

    strategy: str
    trace: str
    rate_per_hour: float
    stages: tuple[int, ...]
    trace_seed: int
    base_seed: int
    iterations: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.strategy.replace('+', 'plus')}_{self.trace}_{self.base_seed}"

    @property
    def swaps(self) -> bool:
        """Whether its base was trained with swapped routes, and it goes on so."""
        return self.strategy in {"checkfree+", "swapped"}

    def failures(self, begun_at: int) -> tuple[Failure, ...]:
        """The trace."""
        return draw_failures(
            self.rate_per_hour, self.stages, begun_at + QUIET, self.iterations - QUIET, 1000 * self.base_seed + self.trace_seed
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """One recovery.

    Args:
        iteration: of the trial, its own redone ones counted.
        stage: that was lost.
        before, after: held-out loss, nats per token, before the loss and right after the recovery.
        seconds: of compute.
        distance: largest difference of a weight from what was lost.
    """

    iteration: int
    stage: int
    before: float
    after: float
    seconds: float
    distance: float


def base_path(folder: Path, seed: int, *, swaps: bool) -> Path:
    """Where a base lies."""
    return folder / f"base-{seed}{'-swapped' if swaps else ''}.safetensors"


class Training:
    """A staged model with the counters of its stages."""

    def __init__(
        self,
        manifest: Manifest,
        tokens: Tokens,
        *,
        swaps: bool = False,
        log_iterations: int = 0,
        log_dtype: BorderDtype = "wire",
    ) -> None:
        """First weights."""
        self.manifest = manifest
        self.model = Staged(manifest, tokens, swaps=swaps, log_iterations=log_iterations, log_dtype=log_dtype)
        self.done = 0
        self.step_counts = [0] * manifest.stage_count
        self.rate_scales = [1.0] * manifest.stage_count
        self.norms = [1.0] * manifest.stage_count

    def one(self) -> float:
        """One iteration; its mean loss, nats per token."""
        loss = self.model.differentiate(self.done)
        self.norms = self.model.step(self._scalars)
        self.done += 1
        return loss

    def _scalars(self, norms: list[float]) -> list[StepScalars]:
        optimizer, iterations = self.manifest.optimizer, self.manifest.run.iterations
        self.step_counts = [count + 1 for count in self.step_counts]
        factors = clip_factors(optimizer, norms)
        each = zip(self.step_counts, self.rate_scales, factors, strict=True)
        return [step_scalars(optimizer, iterations, self.done, count, scale, factor) for count, scale, factor in each]

    def copies(self) -> list[Copy]:
        """Of every stage."""
        return [self.model.copy(stage) for stage in range(self.manifest.stage_count)]

    def save(self, path: Path, shadows: dict[int, list[bytes]]) -> None:
        """Write all of it, and the last shadows."""
        arrays = {"norms": torch.tensor(self.norms, dtype=torch.float64).numpy(), "done": torch.tensor([self.done]).numpy()}
        for stage, copy in enumerate(self.copies()):
            vectors = zip(("weights", "first", "second"), (copy.weights, copy.first_moment, copy.second_moment), strict=True)
            arrays.update({f"{stage}.{name}": vector.numpy() for name, vector in vectors})
        for iteration, kept in shadows.items():
            bytes_of = [torch.frombuffer(bytearray(data), dtype=torch.uint8).numpy() for data in kept]
            arrays.update({f"shadow.{iteration}.{stage}": array for stage, array in enumerate(bytes_of)})
        write_arrays(path, arrays)

    def load(self, path: Path) -> dict[int, list[bytes]]:
        """Go on from there; the shadows that were saved."""
        arrays = read_arrays(path)
        self.norms, self.done = arrays["norms"].tolist(), int(arrays["done"][0])
        self.step_counts = [self.done] * self.manifest.stage_count
        stages = range(self.manifest.stage_count)
        for stage in stages:
            vectors = [torch.from_numpy(arrays[f"{stage}.{name}"]) for name in ("weights", "first", "second")]
            self.model.put(stage, Copy(*vectors))
        iterations = sorted({int(name.split(".")[1]) for name in arrays if name.startswith("shadow.")})
        return {i: [arrays[f"shadow.{i}.{stage}"].tobytes() for stage in stages] for i in iterations}


def train_base(
    manifest: Manifest, tokens: Tokens, path: Path, iterations: int, say: Callable[[int], None], *, swaps: bool
) -> None:
    """Train without failures, and write where it ended; its held-out curve goes beside it."""
    training = Training(manifest, tokens, swaps=swaps)
    shadows: dict[int, list[bytes]] = {}
    curve = []
    while training.done < iterations:
        training.one()
        if training.done % SNAPSHOT_EVERY == 0:
            _keep_shadows(shadows, training)
        if training.done % 100 == 0:
            curve.append((training.done, training.model.evaluate()))
        say(training.done)
    write_whole(path.with_suffix(".json"), json.dumps({"curve": curve}).encode())
    training.save(path, shadows)


def _keep_shadows(shadows: dict[int, list[bytes]], training: Training) -> None:
    shadows[training.done] = [training.model.shadow(stage) for stage in range(training.manifest.stage_count)]
    for old in sorted(shadows)[:-SNAPSHOTS_KEPT]:
        del shadows[old]


class TrialRun:
    """Plays one trial."""

    def __init__(self, trial: Trial, manifest: Manifest, tokens: Tokens, base: Path, evaluate_every: int) -> None:
        """From the base."""
        self._trial, self._every = trial, evaluate_every
        log_iterations = LOG_ITERATIONS if trial.strategy in LOG_DTYPES else 0
        log_dtype = LOG_DTYPES.get(trial.strategy, "wire")
        self._training = Training(manifest, tokens, swaps=trial.swaps, log_iterations=log_iterations, log_dtype=log_dtype)
        self._shadows = self._training.load(base)
        self._begun_at = self._training.done
        self._full: tuple[int, list[Copy]] = (self._training.done, [])
        self._checkpoint: tuple[int, list[Copy], list[int]] | None = None
        kind, _, number = trial.strategy.partition("-")
        self._kind, self._number = kind, int(number) if number.isdecimal() else 0
        self._is_plain = trial.strategy == PLAIN_REPLAY
        self._plain: list[bytes] = []
        self._gone: set[int] = set()
        self.recovered: list[Recovered] = []

    def play(self, say: Callable[[int], None]) -> dict[str, Any]:
        """The whole trial.

        Args:
            say: told after each iteration how many are done.

        Returns:
            JSON values: the trial, held-out curve as (iteration, nats per token), recoveries, seconds.
        """
        trial, training = self._trial, self._training
        failures = trial.failures(self._begun_at) if trial.strategy not in {"none", "swapped"} else ()
        by_iteration: dict[int, list[int]] = {}
        for failure in failures:
            by_iteration.setdefault(failure.iteration - self._begun_at, []).append(failure.stage)
        begun_s, curve, redone = time.monotonic(), [(0, training.model.evaluate())], 0
        for iteration in range(trial.iterations):
            self._keep()
            if iteration in by_iteration:
                redone += self._recover_all(iteration, by_iteration[iteration])
            training.one()
            if (iteration + 1) % self._every == 0:
                curve.append((iteration + 1, training.model.evaluate()))
            say(iteration + 1)
        return {
            "trial": asdict(trial),
            "begun_at": self._begun_at,
            "curve": curve,
            "recoveries": [asdict(one) for one in self.recovered],
            "failures": len(failures),
            "redone": redone,
            "seconds": time.monotonic() - begun_s,
        }

    def _keep(self) -> None:
        """What this strategy keeps, before an iteration."""
        training, done = self._training, self._training.done
        if self._kind == "shadow" and done % SNAPSHOT_EVERY == 0:
            _keep_shadows(self._shadows, training)
        elif self._kind == "replay" and (done % FULL_SHADOW_EVERY == 0 or not self._full[1]):
            self._full = (done, training.copies())
            self._plain = (
                [training.model.shadow(stage) for stage in range(training.manifest.stage_count)] if self._is_plain else []
            )
            if not self._is_plain:
                training.model.log.clear()
        elif self._kind == "checkpoint" and (self._checkpoint is None or done % self._number == 0):
            self._checkpoint = (done, training.copies(), list(training.step_counts))

    def _recover_all(self, iteration: int, stages: Sequence[int]) -> int:
        """Lose these stages and bring them back; how many iterations of progress that took."""
        model = self._training.model
        before = model.evaluate()
        lost = {stage: model.copy(stage) for stage in stages}
        for stage in stages:
            model.lose(stage)
        begun_s, undone = time.monotonic(), 0
        if self._kind == "checkpoint":
            undone = self._roll_back()
        else:
            self._gone = set(stages)
            for group in _neighbours(stages):
                if self._kind == "replay":
                    self._replay(group)
                    continue
                for stage in group:
                    self._recover(stage)
                    self._gone.discard(stage)
        seconds = time.monotonic() - begun_s
        after = model.evaluate()
        for stage, copy in lost.items():
            distance = float((model.stages[stage].weights - copy.weights).abs().max())
            self.recovered.append(Recovered(iteration, stage, before, after, seconds, distance))
        return undone

    def _roll_back(self) -> int:
        training = self._training
        assert self._checkpoint is not None, "kept before the first iteration"
        done, copies, counts = self._checkpoint
        for stage, copy in enumerate(copies):
            training.model.put(stage, copy)
        undone, training.done, training.step_counts = training.done - done, done, list(counts)
        return undone

    def _replay(self, stages: Sequence[int]) -> None:
        """From full shadows exact: counters and rates stay as they are. From plain ones the moments, and the steps they count, begin anew."""
        training, (done, copies) = self._training, self._full
        model, logged = training.model, list(training.model.log)
        if self._is_plain:
            logged = logged[-(training.done - done + WARM_ITERATIONS) :]
        assert len(logged) >= training.done - done, "the log reaches back to the shadow"
        for stage in stages:
            if self._is_plain:
                model.restore(stage, self._plain[stage])
                training.step_counts[stage] = len(logged)
            else:
                model.put(stage, copies[stage])
        model.replay(stages, logged, self._plain_scalars if self._is_plain else None)

    def _plain_scalars(self, place: int, stage: int, logged: StepScalars) -> StepScalars:
        training = self._training
        iteration = training.done - training.step_counts[stage] + place
        scale, clip = training.rate_scales[stage], bits_float32(logged.grad_scale)
        return restarted_scalars(training.manifest, iteration, scale, clip, place + 1, moves=iteration >= self._full[0])

    def _recover(self, stage: int) -> None:
        training, model = self._training, self._training.model
        match self._kind:
            case "shadow":
                kept = max(at for at in self._shadows if at <= training.done - self._number)
                model.restore(stage, self._shadows[kept][stage])
            case "random":
                model.draw(stage, salt=training.done)
            case _:
                self._merge(stage)
        training.step_counts[stage] = 0
        if self._kind == "refit":
            optimizer = training.manifest.optimizer
            model.refit(
                stage, list(model.log)[-REFIT_ITERATIONS:], REFIT_STEPS, lambda step: refit_scalars(optimizer, REFIT_STEPS, step)
            )
        elif self._kind not in {"shadow", "random"}:
            training.rate_scales[stage] = training.manifest.recovery.rate_factor

    def _merge(self, stage: int) -> None:
        """As the product does: from the nearest stages that are there; an end of the body from its only neighbour."""
        training, body = self._training, self._training.manifest.stages.body
        before = next((s for s in range(stage - 1, 0, -1) if s not in self._gone), None)
        after = next((s for s in range(stage + 1, body + 1) if s not in self._gone), None)
        if before is None or after is None or stage in {1, body}:
            donor = before or after
            assert donor is not None, "not all stages are lost at once"
            training.model.merge(stage, donor, stage, (1.0, 0.0))
            return
        mode = MergeMode(self._kind) if self._kind in set(MergeMode) else MergeMode.NORM2
        nearness = (after - stage) / (stage - before)
        ratio_max = training.manifest.recovery.weight_ratio_max
        weights = merge_weights(mode, training.norms[before], training.norms[after], ratio_max, nearness)
        training.model.merge(stage, before, after, (weights.before, weights.after))


def _neighbours(stages: Sequence[int]) -> list[list[int]]:
    """Stages in runs of consecutive ones."""
    groups: list[list[int]] = []
    for stage in sorted(stages):
        if groups and groups[-1][-1] == stage - 1:
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups
