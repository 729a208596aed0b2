"""The layout of stages in flat vectors, and how these are cut into parts."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_world import GROUPED, MODELS, manifest_of

from swarmfree.model.layout import FLOAT_BYTES, LINE_FLOATS, layout_of
from swarmfree.protocol.manifest import Manifest, ModelSection, RingSection, StagesSection


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Runs of many shapes."""
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    model = ModelSection(
        width=heads * 2 * draw(st.integers(1, 20)),
        heads=heads,
        kv_heads=kv_heads,
        blocks=draw(st.integers(1, 9)),
        mlp_width=draw(st.integers(1, 300)),
        vocabulary=draw(st.integers(1, 500)),
    )
    body = draw(st.integers(1, model.blocks))
    return Manifest(model=model, stages=StagesSection(body=body), ring=RingSection(part_bytes=4096 * draw(st.integers(1, 64))))


@given(manifests())
def test_parts_cover_without_gap_or_overlap(manifest: Manifest) -> None:
    """The parts of a stage follow each other from the first float to the last, none empty and none
    above the limit.
    """
    for stage in range(manifest.stage_count):
        layout = layout_of(manifest, stage)
        at = 0
        for part in layout.parts:
            assert part.start == at < part.stop
            assert part.floats * FLOAT_BYTES <= manifest.ring.part_bytes
            assert part.start % LINE_FLOATS == 0
            at = part.stop
        assert at == layout.size


@given(manifests())
def test_all_blocks_are_cut_alike(manifest: Manifest) -> None:
    """Every block of every stage has the same parts at the same places, so a part of one block can
    be merged with that of another.
    """
    cuts = set()
    for stage in range(1, manifest.stage_count):
        layout = layout_of(manifest, stage)
        block_floats = layout.size // len(manifest.blocks_of(stage))
        for block in range(len(manifest.blocks_of(stage))):
            start = block * block_floats
            cuts.add(tuple((p.start - start, p.stop - start) for p in layout.parts if p.block == block))
    assert len(cuts) == 1
    (cut,) = cuts
    assert cut[0][0] == 0
    assert cut[-1][1] == block_floats, "no part may straddle two blocks"


@given(manifests())
def test_parameters_lie_apart_and_aligned(manifest: Manifest) -> None:
    """Parameters do not overlap, each starts on a cache line, and the gap behind one is shorter
    than a line.
    """
    for stage in range(manifest.stage_count):
        layout = layout_of(manifest, stage)
        at = 0
        for slot in layout.slots:
            assert slot.start % LINE_FLOATS == 0
            assert 0 <= slot.start - at < LINE_FLOATS
            at = slot.stop
        assert 0 <= layout.size - at < LINE_FLOATS


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_all_stages_hold_the_whole_model_once(model: ModelSection) -> None:
    """The stages' parameter names together are those of the whole model, each block under its
    global number.
    """
    manifest = manifest_of(model)
    names = [slot.name for stage in range(manifest.stage_count) for slot in layout_of(manifest, stage).slots]
    assert len(names) == len(set(names)) == 3 + 9 * model.blocks
    for block in range(model.blocks):
        assert f"model.layers.{block}.self_attn.k_proj.weight" in names


def test_parts_are_even() -> None:
    """A block is cut into as few parts as fit, and the largest exceeds the smallest by less than a
    line per part.
    """
    manifest = dataclasses.replace(manifest_of(), model=dataclasses.replace(GROUPED, width=256, mlp_width=700))
    first_block = [p.floats for p in layout_of(manifest, 1).parts if p.block == 0]
    assert len(first_block) == -(-sum(first_block) * FLOAT_BYTES // manifest.ring.part_bytes)
    assert max(first_block) - min(first_block) < LINE_FLOATS * len(first_block)


def test_only_gains_do_not_decay() -> None:
    """Weight decay applies to matrices and not to the gains of norms."""
    for stage in (0, 1):
        for slot in layout_of(manifest_of(), stage).slots:
            assert slot.decays is not slot.name.endswith("norm.weight")
