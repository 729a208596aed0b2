"""The model alone, stage by stage: the same as alone, and exact where it says so."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from swarmfree.lab.reference_training import Alone
from swarmfree.lab.study.staged_model import StageCopy, Staged
from swarmfree.policy.schedule import clip_factors, step_scalars
from swarmfree.protocol.manifest import LogDtype, Manifest
from swarmfree.protocol.records import StepScalars

LOGS: tuple[LogDtype, ...] = ("wire", "bfloat16")


class SmallTokens:
    """A corpus of any bytes."""

    def __init__(self, manifest: Manifest) -> None:
        """Of the run's shape."""
        self._shape = (manifest.batch.rows, manifest.model.tokens_per_row + 1)
        self._size = manifest.model.vocabulary

    def microbatch(self, number: int) -> bytes:
        """Tokens of a microbatch."""
        drawn = torch.randint(0, self._size, self._shape, generator=torch.Generator().manual_seed(number), dtype=torch.int32)
        return drawn.numpy().tobytes()

    def window(self, number: int) -> bytes:
        """Tokens of a held-out window."""
        return self.microbatch(10_000 + number)


def scalars(manifest: Manifest, iteration: int, norms: list[float]) -> list[StepScalars]:
    """Of every stage, none of which was rebuilt."""
    factors = clip_factors(manifest.optimizer, norms)
    return [step_scalars(manifest.optimizer, 4, iteration, iteration + 1, 1.0, factor) for factor in factors]


def trained(model: Staged, first: int, last: int) -> list[float]:
    """Iterations first to last - 1; their losses."""
    losses = []
    for iteration in range(first, last):
        losses.append(model.differentiate(iteration))
        model.step(lambda norms, iteration=iteration: scalars(model.manifest, iteration, norms))  # type: ignore[misc]
    return losses


def same(model: Staged, copies: dict[int, StageCopy]) -> bool:
    """Whether these stages hold exactly that."""
    return all(
        torch.equal(one, other)
        for stage, copy in copies.items()
        for one, other in zip(
            (model.stages[stage].weights, model.stages[stage].first_moment, model.stages[stage].second_moment),
            (copy.weights, copy.first_moment, copy.second_moment),
            strict=True,
        )
    )


@pytest.fixture
def manifest(small_manifest: Manifest) -> Manifest:
    """Five stages, so that routes can be swapped."""
    return dataclasses.replace(
        small_manifest,
        model=dataclasses.replace(small_manifest.model, blocks=4),
        stages=dataclasses.replace(small_manifest.stages, body=4),
    )


def test_without_losses_it_is_the_model_alone_to_the_bit(manifest: Manifest) -> None:
    """Keeping activations changes nothing."""
    staged, alone = Staged(manifest, SmallTokens(manifest), log_iterations=3), Alone(manifest, SmallTokens(manifest))
    losses = trained(staged, 0, 4)
    for iteration, loss in enumerate(losses):
        assert alone.differentiate(iteration) == loss
        alone.step_canonically(iteration, lambda i, norms: scalars(manifest, i, norms))
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(staged.stages, alone.stages, strict=True))


@pytest.mark.parametrize("lost", [(1,), (2,), (4,), (2, 3), (1, 2), (3, 4)])
def test_a_replayed_stage_is_what_it_was_to_the_bit(manifest: Manifest, lost: tuple[int, ...]) -> None:
    """From its full shadow and the activations since, alone or with a neighbour that was lost too;
    only those of the outer boundaries are read.
    """
    model = Staged(manifest, SmallTokens(manifest), log_iterations=8)
    trained(model, 0, 2)
    full = {stage: model.copy(stage) for stage in lost}
    model.log.clear()
    trained(model, 2, 6)
    right = {stage: model.copy(stage) for stage in lost}
    for stage in lost:
        model.lose(stage)
    assert not same(model, right)
    inner = dict.fromkeys(lost[1:-1], ())
    logged = [dataclasses.replace(entry, activations={**entry.activations, **inner}) for entry in model.log]
    for stage in lost:
        model.put(stage, full[stage])
    model.replay(lost, logged)
    assert same(model, right)


def test_what_is_logged_in_bfloat16_is_rounded_and_replayed_near(manifest: Manifest) -> None:
    """The losses are those of the model alone; a stage that is replayed from such activations is
    near what it was, and nearer than its shadow.
    """
    whole, rounded = (Staged(manifest, SmallTokens(manifest), log_iterations=9, log_dtype=dtype) for dtype in LOGS)
    assert trained(whole, 0, 2) == trained(rounded, 0, 2)
    before = rounded.copy(2)
    for model in (whole, rounded):
        model.log.clear()
        trained(model, 2, 6)
    present = rounded.copy(2)
    for kept, exact in zip(rounded.log[0].activations[2], whole.log[0].activations[2], strict=True):
        assert torch.equal(kept.entered, exact.entered.bfloat16().float())
        assert torch.equal(kept.returned, exact.returned.bfloat16().float())
    rounded.put(2, before)
    rounded.replay([2], list(rounded.log))
    found = rounded.copy(2)
    assert not torch.equal(found.weights, present.weights)
    assert float((found.weights - present.weights).norm()) < 0.1 * float((before.weights - present.weights).norm())


def test_a_restored_stage_has_nearly_the_weights_it_had_and_no_moments(manifest: Manifest) -> None:
    """From int8."""
    model = Staged(manifest, SmallTokens(manifest))
    trained(model, 0, 2)
    held, shadow = model.copy(2), model.shadow(2)
    model.lose(2)
    model.restore(2, shadow)
    assert torch.allclose(model.stages[2].weights, held.weights, atol=float(held.weights.abs().max()) / 250)
    assert not model.stages[2].first_moment.any()


def test_a_refitted_stage_does_what_its_neighbours_saw_better_than_the_merge_it_began_with(manifest: Manifest) -> None:
    """The squared error on the logged activations falls."""

    def error(model: Staged) -> float:
        activations = [each for entry in model.log for each in entry.activations[2]]
        with torch.no_grad():
            return sum(float((model._through(2, b.entered) - b.left).square().mean()) for b in activations)

    model = Staged(manifest, SmallTokens(manifest), log_iterations=4)
    trained(model, 0, 4)
    model.merge(2, 1, 3, (0.5, 0.5))
    before = error(model)
    model.refit(2, list(model.log), 40, lambda step: step_scalars(manifest.optimizer, 40, step, step + 1, 1.0, 1.0))
    assert error(model) < before
    assert not model.stages[2].first_moment.any()


def test_swapped_routes_take_every_second_microbatch_through_both_ends_in_the_other_order(manifest: Manifest) -> None:
    """CheckFree+, section 4.3; each stage sees every microbatch once."""
    plain, swapped = Staged(manifest, SmallTokens(manifest)), Staged(manifest, SmallTokens(manifest), swaps=True)
    assert [plain.route(number) for number in range(2)] == [[1, 2, 3, 4]] * 2
    assert [swapped.route(number) for number in range(4)] == [[1, 2, 3, 4], [2, 1, 4, 3]] * 2
    assert plain.differentiate(0) != swapped.differentiate(0)
