"""One trial of the recovery study: a base that was trained without failures goes on under one
failure trace with one strategy.

Everything that a trial needs is in its `Trial` and in the base; the same trial gives the same
curve. The model, merge weights, shadows, schedule and data are the product's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swarmfree.lab.study.base_training import EARLY, SNAPSHOT_EVERY, Training, early_path, keep_shadows
from swarmfree.lab.study.refit import REFIT_ITERATIONS, REFIT_STEPS, WARM_ITERATIONS, refit_scalars, restarted_scalars
from swarmfree.lab.study.staged_model import StageCopy
from swarmfree.policy.recovery import merge_weights
from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.manifest import LogDtype, Manifest
from swarmfree.protocol.ports import Tokens
from swarmfree.protocol.records import StepScalars, bits_float32

FULL_SHADOW_EVERY = 50
LOG_ITERATIONS = max(FULL_SHADOW_EVERY + WARM_ITERATIONS, REFIT_ITERATIONS)
PLAIN_REPLAY = "replay-plain"
LOG_DTYPES: dict[str, LogDtype] = {"replay": "wire", "replay-near": "bfloat16", PLAIN_REPLAY: "bfloat16", "refit": "bfloat16"}
"""Strategies that need activation logs, and what these are rounded to."""
TEXT_STRATEGIES = {"none", "swapped", "norm2", "checkfree+", "shadow-100"}


RecoveryMethod = Callable[[Training, int], None]
"""Brings a lost stage of a training's model back, from what the other stages hold: a method of
one's own. Its moments count from zero.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is run.

    Args:
        strategy: `none`, `swapped`, a merge mode, `checkfree+`, `checkpoint-K`, `shadow-K`,
            `replay`, `replay-near` (from activations in bfloat16), `replay-plain` (the same, from
            int8 weights without moments) or `refit`.
        trace: name of the trace, for people; with the seed of the base it names one trace.
        base_seed: of the base: weights and data order.
        iterations: as many as take place, stalled and redone ones counted.
        losses: (iteration of the trial from 0, stage), the trace.
        is_from_scratch: it goes on from first weights and not from the base.
    """

    strategy: str
    trace: str
    base_seed: int
    iterations: int
    losses: tuple[tuple[int, int], ...] = ()
    is_from_scratch: bool = False

    @property
    def name(self) -> str:
        """Name of this trial's result file, without its suffix."""
        return f"{self.strategy.replace('+', 'plus')}_{self.trace}_{self.base_seed}"

    @property
    def swaps(self) -> bool:
        """Whether its base was trained with swapped routes, and it goes on so."""
        return self.strategy in {"checkfree+", "swapped"}

    @property
    def shows_texts(self) -> bool:
        """Whether its finished model is tried on several texts."""
        return self.strategy in TEXT_STRATEGIES and self.trace.startswith(("none", "middle"))


@dataclass(frozen=True, slots=True)
class Recovered:
    """One recovery.

    Args:
        iteration: of the trial, stalled and redone ones counted.
        stage: that was lost.
        before, after: held-out loss, nats per token, before the loss and right after the recovery.
        distance: largest difference of a weight from what was lost.
        cost: iterations that all recoveries of this moment stall, shared among them: passes through
            stages over those of an iteration.
        is_merge: whether two neighbours were weighed.
        is_bounded: whether the bound on their weights changed these.
    """

    iteration: int
    stage: int
    before: float
    after: float
    distance: float
    cost: float
    is_merge: bool
    is_bounded: bool


class TrialRun:
    """Plays one trial.

    A recovery stalls the swarm: its passes through stages, forward and backward, over those of an
    iteration are the iterations that go by meanwhile, as if one process computed both. Whole ones
    are taken; what is left over waits for the next recovery.
    """

    def __init__(
        self,
        trial: Trial,
        manifest: Manifest,
        tokens: Tokens,
        base: Path,
        evaluate_every: int,
        *,
        own: RecoveryMethod | None = None,
    ) -> None:
        """From the base, or from scratch; `own` brings stages back in place of what the strategy's
        name says.
        """
        self._trial, self._every, self._own = trial, evaluate_every, own
        log_iterations = LOG_ITERATIONS if trial.strategy in LOG_DTYPES else 0
        log_dtype = LOG_DTYPES.get(trial.strategy, "wire")
        self._training = Training(manifest, tokens, swaps=trial.swaps, log_iterations=log_iterations, log_dtype=log_dtype)
        kind, _, number = trial.strategy.partition("-")
        self._kind, self._number = kind, int(number) if number.isdecimal() else 0
        self._is_plain = trial.strategy == PLAIN_REPLAY
        self._full: tuple[int, list[StageCopy]] = (0, [])
        self._checkpoint: tuple[int, list[StageCopy], list[int]] | None = None
        self._plain: list[bytes] = []
        self._gone: set[int] = set()
        self._merged: dict[int, bool] = {}
        self._held_out: float | None = None
        self._shadows: dict[int, list[bytes]] = {}
        if not trial.is_from_scratch:
            self._begin(base)
        self._begun_at = self._training.done
        self.recovered: list[Recovered] = []

    def _begin(self, base: Path) -> None:
        training = self._training
        needs_past = self._trial.strategy in {PLAIN_REPLAY, "refit"}
        self._shadows = training.load(early_path(base) if needs_past else base)
        for _ in range(EARLY if needs_past else 0):
            self._keep()
            training.one()

    def play(self, say: Callable[[int], None], texts: Mapping[str, Sequence[bytes]] | None = None) -> dict[str, Any]:
        """The whole trial: as many iterations as it has, and where some were redone or stalled as
        many more without losses, to see what those cost.

        Args:
            say: told after each iteration how many are done.
            texts: name -> windows, that the model is tried on at the end.

        Returns:
            JSON values: the trial; the held-out curve by iterations that took place (`curve`), and
            by those that were learned from (`learned`; only of trials from a base); recoveries; how
            many iterations were redone and stalled; losses by text.
        """
        trial, training = self._trial, self._training
        by_iteration: dict[int, list[int]] = {}
        for iteration, stage in trial.losses:
            by_iteration.setdefault(iteration, []).append(stage)
        curve, learned, now, redone, stalled, debt = [(0, self._evaluate())], {0: self._evaluate()}, 0, 0, 0, 0.0
        found: dict[str, float] = {}
        while now < trial.iterations or (not trial.is_from_scratch and training.done - self._begun_at < trial.iterations):
            self._keep()
            if now in by_iteration:
                redone += self._recover_all(now, by_iteration[now])
                debt += sum(one.cost for one in self.recovered if one.iteration == now)
            if debt >= 1 and now < trial.iterations:
                debt, stalled = debt - 1, stalled + 1
            else:
                training.one()
                self._held_out = None
            now += 1
            past = training.done - self._begun_at
            if now <= trial.iterations and now % self._every == 0:
                curve.append((now, self._evaluate()))
            if past % self._every == 0:
                learned[past] = self._evaluate()
            if now == trial.iterations:
                found = {name: training.model.loss_of(windows) for name, windows in (texts or {}).items()}
            say(min(now, trial.iterations))
        return {
            "trial": asdict(trial),
            "curve": curve,
            "learned": [] if trial.is_from_scratch else sorted(learned.items()),
            "recoveries": [asdict(one) for one in self.recovered],
            "redone": redone,
            "stalled": stalled,
            "texts": found,
        }

    def _evaluate(self) -> float:
        """The held-out loss, computed once until something changes."""
        if self._held_out is None:
            self._held_out = self._training.model.evaluate()
        return self._held_out

    def _keep(self) -> None:
        """What this strategy keeps, before an iteration."""
        training, done = self._training, self._training.done
        if self._kind == "shadow" and done % SNAPSHOT_EVERY == 0:
            keep_shadows(self._shadows, training)
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
        """Lose these stages and bring them back; how many iterations are to be done again."""
        model, undone = self._training.model, 0
        before = self._evaluate()
        lost = {stage: model.copy(stage) for stage in stages}
        for stage in stages:
            model.lose(stage)
        passes, self._merged = model.passes, {}
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
        manifest = self._training.manifest
        cost = (model.passes - passes) / (manifest.stages.body * manifest.batch.microbatches * len(stages))
        self._held_out = None
        after = self._evaluate()
        for stage, copy in lost.items():
            distance = float((model.stages[stage].weights - copy.weights).abs().max())
            is_merge, is_bounded = stage in self._merged, self._merged.get(stage, False)
            self.recovered.append(Recovered(iteration, stage, before, after, distance, cost, is_merge, is_bounded))
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
        """From full shadows exact: counters and rates stay as they are. From plain ones the
        moments, and the steps they count, begin anew.
        """
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
            case _ if self._own is not None:
                self._own(training, stage)
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
        # As the product has it: whatever is not as it was learns at a higher rate
        if self._kind != "shadow":
            training.rate_scales[stage] = training.manifest.recovery.rate_factor

    def _merge(self, stage: int) -> None:
        """As the product does: from the nearest stages that are there; an end of the body from its
        only neighbour.
        """
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
        norms = training.norms[before], training.norms[after]
        weights = merge_weights(mode, *norms, ratio_max, nearness)
        self._merged[stage] = weights != merge_weights(mode, *norms, math.inf, nearness)
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
