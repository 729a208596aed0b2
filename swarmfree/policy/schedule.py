"""Learning rate, clipping and the scalars of a step: numbers decided once and sent as bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from swarmfree.protocol.manifest import OptimizerSection
from swarmfree.protocol.records import StepScalars, float32_bits

CLIP_EPS = 1e-6


def learning_rate(optimizer: OptimizerSection, iterations: int, iteration: int) -> float:
    """Rate of `iteration`: linear warm-up to the peak, then constant, or half a cosine down to
    ``rate * final_fraction``.

    Args:
        iterations: of the whole run.
        iteration: from 0.
    """
    if iteration < optimizer.warmup_iterations:
        return optimizer.rate * (iteration + 1) / optimizer.warmup_iterations
    if optimizer.schedule == "constant":
        return optimizer.rate
    span = max(1, iterations - 1 - optimizer.warmup_iterations)
    progress = min(1.0, (iteration - optimizer.warmup_iterations) / span)
    low = optimizer.rate * optimizer.final_fraction
    return low + (optimizer.rate - low) * 0.5 * (1.0 + math.cos(math.pi * progress))


def clip_factors(optimizer: OptimizerSection, squared_norms: Sequence[float]) -> tuple[float, ...]:
    """Factor that multiplies each stage's gradient: ``min(1, clip_norm / (norm + 1e-6))``.

    This is the rule of `torch.nn.utils.clip_grad_norm_`.

    Args:
        squared_norms: per stage, before clipping; added in order of stages for ``clip = "global"``.
    """
    if optimizer.clip == "none":
        return tuple(1.0 for _ in squared_norms)
    if optimizer.clip == "stage":
        return tuple(min(1.0, optimizer.clip_norm / (math.sqrt(s) + CLIP_EPS)) for s in squared_norms)
    factor = min(1.0, optimizer.clip_norm / (math.sqrt(math.fsum(squared_norms)) + CLIP_EPS))
    return tuple(factor for _ in squared_norms)


def step_scalars(
    optimizer: OptimizerSection, iterations: int, iteration: int, step_count: int, rate_scale: float, clip_factor: float
) -> StepScalars:
    """All numbers of one stage's AdamW step, as float32 bits.

    Args:
        step_count: steps of this stage including this one, for the bias correction; a rebuilt stage
            counts its own.
        rate_scale: the stage's own rate factor.
        clip_factor: see `clip_factors`.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2.
    """
    rate = learning_rate(optimizer, iterations, iteration) * rate_scale
    return StepScalars(
        grad_scale=float32_bits(clip_factor),
        beta1=float32_bits(optimizer.beta1),
        one_minus_beta1=float32_bits(1.0 - optimizer.beta1),
        beta2=float32_bits(optimizer.beta2),
        one_minus_beta2=float32_bits(1.0 - optimizer.beta2),
        root_bias2=float32_bits(math.sqrt(1.0 - optimizer.beta2**step_count)),
        eps=float32_bits(optimizer.eps),
        step_size=float32_bits(rate / (1.0 - optimizer.beta1**step_count)),
        decay=float32_bits(1.0 - rate * optimizer.weight_decay),
    )
