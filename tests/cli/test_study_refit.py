"""Numbers of recoveries that train a stage alone."""

from __future__ import annotations

import dataclasses

import pytest

from swarmfree.lab.study.refit import RATE_FACTOR, refit_scalars, restarted_scalars
from swarmfree.policy.schedule import step_scalars
from swarmfree.protocol.manifest import Manifest, OptimizerSection, RunSection
from swarmfree.protocol.records import bits_float32


def test_a_refit_steps_at_a_rate_of_its_own() -> None:
    """Whatever the run's schedule, decay and clip are; the first step's bias correction is that of
    one step.
    """
    optimizer = OptimizerSection(rate=2e-3, schedule="cosine", warmup_iterations=100, weight_decay=0.1, clip_norm=0.01)
    first, last = refit_scalars(optimizer, 300, 0), refit_scalars(optimizer, 300, 299)
    assert bits_float32(first.step_size) * (1 - optimizer.beta1) == pytest.approx(RATE_FACTOR * 2e-3, rel=1e-5)
    assert bits_float32(last.step_size) == pytest.approx(RATE_FACTOR * 2e-3, rel=1e-5)
    assert bits_float32(first.decay) == bits_float32(first.grad_scale) == 1.0


def test_a_replay_without_moments_keeps_the_rate_and_the_clip_of_the_record() -> None:
    """And corrects the bias of moments as young as they are; with the count of the record it is its
    step; before the shadow nothing moves.
    """
    manifest = Manifest(run=RunSection(name="r", seed=1, iterations=1000))
    logged = step_scalars(manifest.optimizer, 1000, 500, 501, 1.1, 0.25)
    assert restarted_scalars(manifest, 500, 1.1, 0.25, 501, moves=True) == logged
    young = restarted_scalars(manifest, 500, 1.1, 0.25, 1, moves=True)
    assert young.grad_scale == logged.grad_scale
    assert bits_float32(young.root_bias2) < bits_float32(logged.root_bias2)
    still = restarted_scalars(manifest, 500, 1.1, 0.25, 1, moves=False)
    assert (bits_float32(still.step_size), bits_float32(still.decay)) == (0.0, 1.0)
    assert dataclasses.replace(still, step_size=young.step_size, decay=young.decay) == young
