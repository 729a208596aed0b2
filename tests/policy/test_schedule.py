"""Rates, clipping and step scalars."""

from __future__ import annotations

import math

import pytest

from swarmfree.policy.schedule import clip_factors, learning_rate, step_scalars
from swarmfree.protocol.manifest import OptimizerSection
from swarmfree.protocol.records import bits_float32


def test_the_rate_warms_up_and_then_stays_or_follows_half_a_cosine() -> None:
    """First iteration: a tenth; end of warm-up: the peak; cosine ends at its fraction."""
    constant = OptimizerSection(rate=1.0, warmup_iterations=10)
    assert learning_rate(constant, 100, 0) == pytest.approx(0.1)
    assert learning_rate(constant, 100, 9) == learning_rate(constant, 100, 99) == 1.0
    cosine = OptimizerSection(rate=1.0, warmup_iterations=10, schedule="cosine", final_fraction=0.1)
    assert learning_rate(cosine, 100, 10) == 1.0
    assert learning_rate(cosine, 100, 99) == pytest.approx(0.1)
    assert learning_rate(cosine, 10, 500) == pytest.approx(0.1)


def test_clipping_is_per_stage_or_by_the_norm_of_all() -> None:
    """Two stages of norm 3 and 4: globally 5, by stage 3 and 4."""
    by_stage = clip_factors(OptimizerSection(clip="stage", clip_norm=1.0), [9.0, 16.0, 0.01])
    assert by_stage == pytest.approx((1 / 3, 1 / 4, 1.0), rel=1e-5)
    assert clip_factors(OptimizerSection(clip="global", clip_norm=1.0), [9.0, 16.0]) == pytest.approx((0.2, 0.2), rel=1e-5)
    assert clip_factors(OptimizerSection(clip="none"), [9.0]) == (1.0,)


def test_step_scalars_are_adamw_with_bias_correction() -> None:
    """Step 1 of a stage: the corrections undo the zero moments, the rate factor scales the step and
    its decay alone.
    """
    optimizer = OptimizerSection(rate=0.01, warmup_iterations=0, weight_decay=0.1)
    scalars = step_scalars(optimizer, 100, 50, 1, 1.1, 0.5)
    assert bits_float32(scalars.step_size) == pytest.approx(0.011 / 0.1)
    assert bits_float32(scalars.root_bias2) == pytest.approx(math.sqrt(0.001))
    assert bits_float32(scalars.decay) == pytest.approx(1 - 0.0011)
    assert bits_float32(scalars.grad_scale) == 0.5
