"""The numbers of two strategies that only the study has: a refit to what the neighbours saw, and a
replay that begins without moments. Pure.

Source: design section 6, methods 2 and 4; the step counts and the rate are those that measured best
with a small model within a bounded time.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.policy.schedule import step_scalars
from swarmfree.protocol.manifest import Manifest, OptimizerSection
from swarmfree.protocol.records import StepScalars, float32_bits

REFIT_STEPS = 300
REFIT_ITERATIONS = 60
"""How many of the last iterations' activations a stage is fitted to: each step takes one of them,
in turn.
"""
RATE_FACTOR = 2.5
"""Over the peak rate of the run: a fit is short, and its own moments are thrown away."""
WARM_ITERATIONS = 20
"""Iterations before a plain shadow from which its moments are guessed. Without them the first steps
go as far as the rate allows, in directions that nothing corrects, since what crossed the stage
boundaries was computed with other weights: the loss rose by up to a quarter.
"""


def refit_scalars(optimizer: OptimizerSection, steps: int, step: int) -> StepScalars:
    """Numbers of one step of a refit: a constant rate, no decay, nothing clipped.

    Args:
        step: from 0.
    """
    rate = RATE_FACTOR * optimizer.rate
    plain = replace(optimizer, rate=rate, schedule="constant", warmup_iterations=0, weight_decay=0.0)
    return step_scalars(plain, steps, step, step + 1, 1.0, 1.0)


def restarted_scalars(
    manifest: Manifest, iteration: int, rate_scale: float, clip: float, step_count: int, *, moves: bool
) -> StepScalars:
    """Numbers of a step that is replayed with moments that began at zero: the rate and the clip of
    the record, its own bias correction.

    Args:
        rate_scale: the stage's own rate factor.
        clip: what the gradient is multiplied by.
        step_count: steps since the moments were zero, this one included.
        moves: False for a step that only the moments take: an iteration before the shadow.
    """
    found = step_scalars(manifest.optimizer, manifest.run.iterations, iteration, step_count, rate_scale, clip)
    return found if moves else replace(found, step_size=float32_bits(0.0), decay=float32_bits(1.0))
