"""What the recovery study trains: the model alone, stage by stage, with each stage's counters, and
the bases that trials go on from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from swarmfree.lab.report import write_whole
from swarmfree.lab.study.refit import REFIT_ITERATIONS, WARM_ITERATIONS
from swarmfree.lab.study.staged_model import StageCopy, Staged
from swarmfree.policy.schedule import clip_factors, step_scalars
from swarmfree.protocol.manifest import LogDtype, Manifest
from swarmfree.protocol.ports import Tokens
from swarmfree.protocol.records import StepScalars
from swarmfree.storage.arrays import read_arrays, write_arrays

SNAPSHOT_EVERY, SNAPSHOTS_KEPT = 10, 12
EARLY = max(REFIT_ITERATIONS, WARM_ITERATIONS)
"""A trial whose strategy needs past activations begins so many iterations before the end of its
base, and goes through them as the base did.
"""


def base_path(folder: Path, seed: int, *, swaps: bool) -> Path:
    """Path of a base; its held-out curve lies beside it as .json."""
    return folder / f"base-{seed}{'-swapped' if swaps else ''}.safetensors"


def early_path(base: Path) -> Path:
    """Path of the base as it was `EARLY` iterations before its end."""
    return base.with_stem(f"{base.stem}-early")


class Training:
    """A staged model with the counters of its stages."""

    def __init__(
        self,
        manifest: Manifest,
        tokens: Tokens,
        *,
        swaps: bool = False,
        log_iterations: int = 0,
        log_dtype: LogDtype = "wire",
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

    def copies(self) -> list[StageCopy]:
        """Copy the state of every stage, in order of stages."""
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
            self.model.put(stage, StageCopy(*vectors))
        iterations = sorted({int(name.split(".")[1]) for name in arrays if name.startswith("shadow.")})
        return {i: [arrays[f"shadow.{i}.{stage}"].tobytes() for stage in stages] for i in iterations}


def train_base(training: Training, path: Path, iterations: int, evaluate_every: int, say: Callable[[int], None]) -> None:
    """Train without failures, and write where it ended, and where it was a while before; its
    held-out curve goes beside it.
    """
    shadows: dict[int, list[bytes]] = {}
    curve = [(0, training.model.evaluate())]
    while training.done < iterations:
        training.one()
        if training.done % SNAPSHOT_EVERY == 0:
            keep_shadows(shadows, training)
        if training.done % evaluate_every == 0:
            curve.append((training.done, training.model.evaluate()))
        if training.done == iterations - EARLY:
            training.save(early_path(path), {})
        say(training.done)
    write_whole(path.with_suffix(".json"), json.dumps({"curve": curve}).encode())
    training.save(path, shadows)


def keep_shadows(shadows: dict[int, list[bytes]], training: Training) -> None:
    """Keep one of every stage, and forget the oldest."""
    shadows[training.done] = [training.model.shadow(stage) for stage in range(training.manifest.stage_count)]
    for old in sorted(shadows)[:-SNAPSHOTS_KEPT]:
        del shadows[old]
