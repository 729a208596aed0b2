"""Stages composed are the whole model, and first weights depend on names alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from model_world import MODELS, RandomTokens, manifest_of

from swarmfree.lab.reference_training import Alone
from swarmfree.model.layout import layout_of
from swarmfree.model.stages import BodyStage, Ends, StageState, blank_stage, draw_part, draw_weights
from swarmfree.protocol.manifest import Manifest, ModelSection, StagesSection


def drawn(manifest: Manifest, stage: int, salt: int = 0) -> StageState:
    """A stage with first weights."""
    state = blank_stage(manifest, stage)
    draw_weights(manifest, state.layout, state.weights, salt)
    return state


@pytest.mark.parametrize("body", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_composed_stages_give_the_whole_models_logits(model: ModelSection, body: int) -> None:
    """Stage after stage gives the logits of the same weights in one module, bit for bit, however
    the model is cut.
    """
    manifest = dataclasses.replace(manifest_of(model), stages=StagesSection(body=body))
    alone = Alone(manifest, RandomTokens(manifest))
    tokens = alone.microbatch(0)[:, :-1]
    ends = drawn(manifest, 0).module
    assert isinstance(ends, Ends)
    x = ends.embed(tokens)
    for stage in range(1, manifest.stage_count):
        module = drawn(manifest, stage).module
        assert isinstance(module, BodyStage)
        x = module(x)
    assert torch.equal(ends.logits(x), alone.model(tokens))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_parameters_are_views_into_the_flat_vector(stage: int) -> None:
    """Writing the flat vector changes the parameters, and every parameter the module has is in the
    layout.
    """
    state = blank_stage(manifest_of(), stage)
    assert [name for name, _ in state.module.named_parameters()] == [slot.name for slot in state.layout.slots]
    state.weights.copy_(torch.arange(state.layout.size))
    for slot, parameter in zip(state.layout.slots, state.parameters(), strict=True):
        assert parameter.shape == slot.shape
        assert parameter.flatten()[0].item() == slot.start
        assert parameter.flatten()[-1].item() == slot.stop - 1


def test_first_weights_depend_on_seed_salt_stage_and_name_alone() -> None:
    """The same names give the same bits again; another seed or salt gives others; no two parameters
    are alike.
    """
    manifest = manifest_of()
    state = drawn(manifest, 1)
    assert torch.equal(state.weights, drawn(manifest, 1).weights)
    assert not torch.equal(state.weights, drawn(manifest, 1, salt=1).weights)
    other_seed = dataclasses.replace(manifest, run=dataclasses.replace(manifest.run, seed=4))
    assert not torch.equal(state.weights, drawn(other_seed, 1).weights)
    firsts = [p.flatten()[0].item() for s in (0, 1, 2) for p in drawn(manifest, s).parameters() if p.dim() > 1]
    assert len(set(firsts)) == len(firsts)


def test_first_weights_have_the_asked_spread() -> None:
    """Matrices are drawn with mean 0 and the manifest's standard deviation, gains are 1, gaps are
    0.
    """
    manifest = manifest_of()
    state = drawn(manifest, 0)
    embedding, gain, _ = state.parameters()
    assert abs(embedding.std().item() / manifest.model.init_std - 1) < 0.05
    assert abs(embedding.mean().item()) < 0.001
    assert torch.equal(gain, torch.ones_like(gain))


def test_a_randomly_drawn_part_fills_its_parameters_and_no_gap() -> None:
    """Random parts of a stage have weights in every matrix, ones in gains, zeros between, and
    depend on the salt.
    """
    manifest = manifest_of(MODELS["odd"], part_bytes=4096)
    layout = layout_of(manifest, 2)
    flat = torch.cat([draw_part(manifest, layout, part, "a") for part in range(len(layout.parts))])
    again = torch.cat([draw_part(manifest, layout, part, "b") for part in range(len(layout.parts))])
    assert len(flat) == layout.size
    between = torch.ones(layout.size, dtype=torch.bool)
    for slot in layout.slots:
        between[slot.start : slot.stop] = False
        piece = flat[slot.start : slot.stop]
        assert (piece != 0).all()
        assert torch.equal(piece, torch.ones_like(piece)) is not slot.decays
    assert between.any()
    assert (flat[between] == 0).all()
    assert not torch.equal(flat, again)
