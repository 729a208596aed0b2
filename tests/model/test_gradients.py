"""What the stages compute together is what autograd computes of the whole model, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_world import MODELS, EngineRing, RandomTokens, bits_equal, manifest_of

from swarmfree.lab.reference_training import Alone
from swarmfree.protocol.manifest import ModelSection


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_one_microbatchs_gradient_is_autograds(model: ModelSection) -> None:
    """The ring's loss and all its weight gradients after one microbatch have the bits of one
    backward pass through the whole.
    """
    manifest = manifest_of(model)
    tokens = RandomTokens(manifest)
    alone, ring = Alone(manifest, tokens), EngineRing(manifest)
    losses = alone.model.token_losses(alone.microbatch(5))
    (losses.sum() / manifest.tokens_per_iteration).backward()  # type: ignore[no-untyped-call]
    share = ring.train(0, tokens.microbatch(5))
    assert share == losses.double().sum().item() / manifest.tokens_per_iteration
    for stage, state in enumerate(alone.stages):
        gradient = ring.gradient(stage)
        for slot in state.layout.slots:
            expected = alone.model.get_parameter(slot.name).grad
            assert expected is not None
            assert bits_equal(gradient[slot.start : slot.stop], expected.flatten()), slot.name


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_summed_microbatches_are_accumulating_autograd(model: ModelSection) -> None:
    """Four microbatches added in ascending order have the bits of four backward passes that
    accumulate in the whole.
    """
    manifest = manifest_of(model)
    tokens = RandomTokens(manifest)
    alone, ring = Alone(manifest, tokens), EngineRing(manifest)
    loss = alone.differentiate(0)
    assert sum(ring.train(m, tokens.microbatch(m)) for m in range(4)) == loss
    for stage, state in enumerate(alone.stages):
        gradient, expected = ring.gradient(stage), alone.flat_gradient(stage)
        for slot in state.layout.slots:
            assert bits_equal(gradient[slot.start : slot.stop], expected[slot.start : slot.stop]), slot.name


def test_several_microbatches_in_flight_do_not_disturb_each_other() -> None:
    """Forward passes of all microbatches first, backward passes later, give the same bits as one
    after the other.
    """
    manifest = manifest_of()
    tokens = RandomTokens(manifest)
    one_by_one, crowded = EngineRing(manifest), EngineRing(manifest)
    for m in range(4):
        one_by_one.train(m, tokens.microbatch(m))
    arrived = [crowded.descend(m, tokens.microbatch(m)) for m in range(4)]
    for m in range(4):
        gradient, _ = crowded.engines[0].loss(arrived[m], tokens.microbatch(m), 0)
        for engine in reversed(crowded.engines[1:]):
            gradient = engine.backward(m, gradient, 0)
        crowded.engines[0].embed_backward(m, gradient, 0)
    for stage in range(1, manifest.stage_count):
        assert bits_equal(crowded.gradient(stage), one_by_one.gradient(stage))


def test_partial_sums_of_disjoint_microbatches_sum_to_the_whole() -> None:
    """Two partial sums of two microbatches each differ from one sum of four by rounding only."""
    manifest = manifest_of()
    tokens = RandomTokens(manifest)
    together, apart = EngineRing(manifest), EngineRing(manifest)
    for m in range(4):
        together.train(m, tokens.microbatch(m))
        apart.train(m, tokens.microbatch(m), partial_sum=m % 2)
    for stage in range(manifest.stage_count):
        whole = together.gradient(stage)
        torch.testing.assert_close(apart.gradient(stage, (0, 1)), whole, rtol=0, atol=1e-6 * float(whole.abs().max()))
        assert not torch.allclose(apart.gradient(stage, (0,)), whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_passes_without_a_graph_give_the_same_bytes(dtype: str) -> None:
    """Evaluation sends the activations that training sends, and its loss is the mean over the
    microbatch's tokens.
    """
    manifest = manifest_of(wire_dtype=dtype)
    tokens = RandomTokens(manifest).window(0)
    ring = EngineRing(manifest)
    ends = ring.engines[0]
    activations = ends.embed_only(tokens)
    assert activations == ends.embed(0, tokens)
    for engine in ring.engines[1:]:
        after = engine.forward_only(activations)
        assert after == engine.forward(0, activations)
        activations = after
    _, share = ends.loss(activations, tokens, 0)
    assert ends.loss_only(activations, tokens) == pytest.approx(share * manifest.batch.microbatches, rel=1e-14)


def test_a_bfloat16_wire_is_close_to_a_float32_wire() -> None:
    """With bfloat16 between stages the loss moves by less than a thousandth and every stage's
    gradient by a few percent.
    """
    exact, rounded = (EngineRing(manifest_of(wire_dtype=dtype)) for dtype in ("float32", "bfloat16"))
    tokens = RandomTokens(exact.manifest).microbatch(0)
    assert len(exact.descend(1, tokens)) == 2 * len(rounded.descend(1, tokens))
    assert rounded.train(0, tokens) == pytest.approx(exact.train(0, tokens), rel=1e-3)
    for stage in range(exact.manifest.stage_count):
        expected = exact.gradient(stage)
        assert (rounded.gradient(stage) - expected).norm() < 0.03 * expected.norm()


def test_the_gradient_is_the_losses_slope() -> None:
    """Moving a stage's weights a little along its gradient changes the loss by the gradient's
    squared norm times the move.
    """
    manifest = manifest_of()
    tokens = RandomTokens(manifest).microbatch(0)
    ring = EngineRing(manifest)
    ring.train(0, tokens)

    def loss_after(stage: int, move: float) -> float:
        moved = EngineRing(manifest)
        flat = ring.gradient(stage).double() * move
        at = 0
        engine = moved.engines[stage]
        for part in range(engine.part_count(stage)):
            weights = np.frombuffer(engine.read_state(part, weights_only=True), dtype=np.float32)
            changed = weights + flat[at : at + len(weights)].numpy()
            engine.write_state(part, changed.astype(np.float32).tobytes(), weights_only=True)
            at += len(weights)
        return moved.train(0, tokens)

    for stage in range(manifest.stage_count):
        squared_norm = float(ring.gradient(stage).double().square().sum())
        move = 1e-3 / squared_norm**0.5
        slope = (loss_after(stage, move) - loss_after(stage, -move)) / (2 * move)
        assert slope == pytest.approx(squared_norm, rel=0.02)
