"""The reference trainer: it learns, the ring learns the same, order costs rounding only, and a
double count shows.
"""

from __future__ import annotations

import dataclasses

import pytest
from model_world import EngineRing, RandomTokens, manifest_of, scalars_of

from swarmfree.lab.reference_training import Alone, Twice, shuffled, train_canonically, train_fused
from swarmfree.protocol.manifest import OptimizerSection
from swarmfree.protocol.records import StepScalars

MANIFEST = dataclasses.replace(manifest_of(), optimizer=OptimizerSection(rate=1e-2, clip="none", weight_decay=0.1))
ITERATIONS = 8


def scalars(iteration: int, squared_norms: list[float]) -> list[StepScalars]:
    """A constant rate, no clipping."""
    return [scalars_of(iteration + 1) for _ in squared_norms]


def curve(**options: object) -> list[float]:
    """Losses of a run alone."""
    alone = Alone(MANIFEST, RandomTokens(MANIFEST))
    return list(train_canonically(alone, scalars, iterations=ITERATIONS, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain() -> list[float]:
    """Losses of the plain run."""
    return curve()


def test_it_learns(plain: list[float]) -> None:
    """The loss starts near that of a uniform guess and falls."""
    assert plain[0] == pytest.approx(4.38, abs=0.05)  # ln 80
    assert plain[-1] < plain[0] - 0.3


def test_the_ring_learns_the_same(plain: list[float]) -> None:
    """Engines one after the other, each averaging with itself, have the same loss in every
    iteration, to the bit.
    """
    ring = EngineRing(MANIFEST)
    tokens = RandomTokens(MANIFEST)
    losses = []
    for iteration in range(ITERATIONS):
        losses.append(sum(ring.train(m, tokens.microbatch(4 * iteration + m)) for m in range(4)))
        ring.step(scalars_of(iteration + 1))
    assert losses == plain


def test_squared_norms_are_those_of_the_stages() -> None:
    """The trainer is told the same squared norms that the parts of the ring's stages add up to."""
    told: list[list[float]] = []

    def keep(iteration: int, squared_norms: list[float]) -> list[StepScalars]:
        told.append(squared_norms)
        return scalars(iteration, squared_norms)

    tokens = RandomTokens(MANIFEST)
    list(train_canonically(Alone(MANIFEST, tokens), keep, iterations=1))
    ring = EngineRing(MANIFEST)
    for m in range(4):
        ring.train(m, tokens.microbatch(m))
    assert told[0] == pytest.approx(ring.step(scalars_of()), rel=1e-12)


def test_another_order_of_summation_costs_rounding_only(plain: list[float]) -> None:
    """Shuffled microbatches in random groups stay within 1e-5 nats of the plain run, and are not
    the plain run.
    """
    orders = [shuffled(MANIFEST, seed)(3) for seed in range(20)]
    assert all(sorted(m for group in groups for m in group) == [0, 1, 2, 3] for groups in orders)
    assert len({str(groups) for groups in orders}) > 10
    found = curve(grouping=shuffled(MANIFEST, 1))
    largest = max(abs(a - b) for a, b in zip(found, plain, strict=True))
    assert 0 < largest < 1e-5


def test_a_microbatch_counted_twice_shows(plain: list[float]) -> None:
    """One microbatch counted twice in one iteration leaves the iterations up to it alone and moves
    later ones by more than 1e-4.
    """
    found = curve(twice=Twice(iteration=2, offset=1))
    assert found[:3] == plain[:3]
    assert max(abs(a - b) for a, b in zip(found[3:], plain[3:], strict=True)) > 1e-4


def test_the_canonical_step_trains_like_torchs_fused_adamw(plain: list[float]) -> None:
    """With the same rate and no clipping, the fused optimizer's curve lies within 1e-3 nats of the
    canonical one's.
    """
    alone = Alone(MANIFEST, RandomTokens(MANIFEST))
    fused = list(train_fused(alone, iterations=ITERATIONS))
    assert fused == pytest.approx(plain, abs=1e-3)
    clipped = dataclasses.replace(MANIFEST, optimizer=dataclasses.replace(MANIFEST.optimizer, clip="global", clip_norm=1e-4))
    slow = list(train_fused(Alone(clipped, RandomTokens(MANIFEST)), iterations=2, rate=lambda _: 0.0))
    assert slow[0] == plain[0]


def test_held_out_loss_is_a_mean_per_token() -> None:
    """Before training the held-out loss is near that of a uniform guess, and equals the ring's over
    the same windows.
    """
    alone, ring = Alone(MANIFEST, RandomTokens(MANIFEST)), EngineRing(MANIFEST)
    tokens = RandomTokens(MANIFEST)
    found = []
    for number in range(MANIFEST.run.evaluate_windows):
        window = tokens.window(number)
        activations = ring.engines[0].embed_only(window)
        for engine in ring.engines[1:]:
            activations = engine.forward_only(activations)
        found.append(ring.engines[0].loss_only(activations, window))
    assert alone.evaluate() == pytest.approx(sum(found) / len(found), rel=1e-12)
    assert alone.evaluate() == pytest.approx(4.38, abs=0.05)
