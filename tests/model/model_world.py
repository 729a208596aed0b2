"""What the tests of the model share: small manifests, random tokens, step scalars, and a ring of
engines in one thread.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, RunSection, StagesSection
from swarmfree.protocol.records import StepScalars, float32_bits

GROUPED = ModelSection(width=64, blocks=5, heads=4, kv_heads=2, mlp_width=96, tokens_per_row=24, vocabulary=80)
UNGROUPED = dataclasses.replace(GROUPED, kv_heads=4)
ODD = ModelSection(width=20, blocks=3, heads=2, kv_heads=1, mlp_width=27, tokens_per_row=11, vocabulary=37)
MODELS = {"grouped": GROUPED, "ungrouped": UNGROUPED, "odd": ODD}


def manifest_of(model: ModelSection = GROUPED, **ring: Any) -> Manifest:
    """A run of three body stages, two rows a microbatch, four microbatches an iteration, many
    parts.
    """
    return Manifest(
        run=RunSection(seed=3),
        model=model,
        stages=StagesSection(body=3),
        batch=BatchSection(rows=2, microbatches=4),
        ring=RingSection(**{"part_bytes": 16384, **ring}),
    )


class RandomTokens:
    """A corpus in memory: every microbatch is a draw from (seed, number)."""

    def __init__(self, manifest: Manifest, seed: int = 0) -> None:
        """Keep the shape."""
        self._shape = (manifest.batch.rows, manifest.model.tokens_per_row + 1)
        self._vocabulary = manifest.model.vocabulary
        self._seed = seed

    def microbatch(self, number: int) -> bytes:
        """Training tokens."""
        draw = np.random.default_rng([self._seed, number])
        # The lower half of the vocabulary only, so that there is something to learn.
        return draw.integers(0, self._vocabulary // 2, self._shape, dtype=np.int32).tobytes()

    def window(self, number: int) -> bytes:
        """Held-out tokens."""
        return self.microbatch(1_000_000 + number)


def scalars_of(
    step: int = 1, rate: float = 1e-2, weight_decay: float = 0.1, grad_scale: float = 1.0, eps: float = 1e-8
) -> StepScalars:
    """AdamW's scalars of optimizer step `step`, from 1."""
    beta1, beta2 = 0.9, 0.999
    return StepScalars(
        grad_scale=float32_bits(grad_scale),
        beta1=float32_bits(beta1),
        one_minus_beta1=float32_bits(1 - beta1),
        beta2=float32_bits(beta2),
        one_minus_beta2=float32_bits(1 - beta2),
        root_bias2=float32_bits(math.sqrt(1 - beta2**step)),
        eps=float32_bits(eps),
        step_size=float32_bits(rate / (1 - beta1**step)),
        decay=float32_bits(1 - rate * weight_decay),
    )


class EngineRing:
    """One engine per stage, called one after the other."""

    def __init__(self, manifest: Manifest, threads: int = 1) -> None:
        """Draw first weights everywhere."""
        self.manifest = manifest
        self.engines: list[Engine] = []
        for stage in range(manifest.stage_count):
            engine: Engine = TorchEngine(manifest, threads)
            engine.draw(stage, 0)
            self.engines.append(engine)

    def descend(self, ticket: int, tokens: bytes) -> bytes:
        """Forward through all stages, graphs kept: the activations that reach the loss."""
        activations = self.engines[0].embed(ticket, tokens)
        for engine in self.engines[1:]:
            activations = engine.forward(ticket, activations)
        return activations

    def train(self, ticket: int, tokens: bytes, partial_sum: int = 0) -> float:
        """One microbatch down and back up; returns its share of the loss."""
        gradient, loss = self.engines[0].loss(self.descend(ticket, tokens), tokens, partial_sum)
        for engine in reversed(self.engines[1:]):
            gradient = engine.backward(ticket, gradient, partial_sum)
        self.engines[0].embed_backward(ticket, gradient, partial_sum)
        return loss

    def gradient(self, stage: int, partial_sums: tuple[int, ...] = (0,)) -> Tensor:
        """The flat sum of a stage."""
        engine = self.engines[stage]
        parts = [engine.contribution(partial_sums, part) for part in range(engine.part_count(stage))]
        return torch.from_numpy(np.frombuffer(b"".join(parts), dtype=np.float32).copy())

    def step(self, scalars: StepScalars) -> list[float]:
        """Average of one, step, clear in every stage; returns squared norms."""
        norms = []
        for stage, engine in enumerate(self.engines):
            norm = 0.0
            for part in range(engine.part_count(stage)):
                total, squared = engine.reduce([engine.contribution((0,), part)])
                engine.keep_average(part, total)
                norm += squared
            engine.step(scalars)
            engine.clear()
            norms.append(norm)
        return norms


def bits_equal(one: Tensor, other: Tensor) -> bool:
    """Equal to the bit: minus zero is not zero."""
    return one.shape == other.shape and torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))
