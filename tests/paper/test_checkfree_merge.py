"""CheckFree's Algorithm 1: how a lost stage's weights are made of its neighbours'.

Source: Blagoev, Ersoy, Chen, "All is Not Lost: LLM Recovery without Checkpoints", Algorithm 1 and
section 4.2.
"""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest

from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.manifest import Manifest, ModelSection, RingSection, StagesSection
from swarmfree.protocol.records import float32_bits

MANIFEST = Manifest(
    model=ModelSection(width=16, blocks=6, heads=2, kv_heads=1, mlp_width=24, tokens_per_row=8, vocabulary=32),
    stages=StagesSection(body=3),
    ring=RingSection(part_bytes=4096),
)


def drawn(stage: int, salt: int) -> TorchEngine:
    """A stage with random weights."""
    engine = TorchEngine(MANIFEST, 1)
    engine.draw(stage, salt)
    return engine


def weights_of(engine: TorchEngine) -> np.ndarray:
    """All weights of a body stage."""
    parts = [engine.read_state(part, weights_only=True) for part in range(engine.part_count(1))]
    return np.frombuffer(b"".join(parts), dtype=np.float32)


def merged(before: TorchEngine, after: TorchEngine, share_before: float, share_after: float, mode: MergeMode) -> TorchEngine:
    """Stage 2 rebuilt part by part from stages 1 and 3, as it streams in."""
    engine = TorchEngine(MANIFEST, 1)
    engine.blank(2)
    for part in range(engine.part_count(2)):
        donors = [donor.read_state(part, weights_only=True) for donor in (before, after)]
        engine.merge_state(part, [donors[0]], [donors[1]], float32_bits(share_before), float32_bits(share_after), mode)
    return engine


def normalised(omega_before: float, omega_after: float) -> tuple[float, float]:
    """Line 3's two factors, as float32."""
    total = omega_before + omega_after
    return float(np.float32(omega_before / total)), float(np.float32(omega_after / total))


@pytest.mark.parametrize(
    ("mode", "power"),
    [(MergeMode.NORM2, 2), (MergeMode.NORM, 1), (MergeMode.UNIFORM, 0)],
)
def test_line_3_is_the_mean_weighted_by_the_gradient_norms(mode: MergeMode, power: int) -> None:
    """W_i = (w- W- + w+ W+) / (w- + w+) with w = ||gradient||^2, or the norm, or 1: norms 1 and 3
    weigh 1:9, 1:3, 1:1.
    """
    before, after = drawn(1, 0), drawn(3, 1)
    share_before, share_after = normalised(1.0**power, 3.0**power)
    found = weights_of(merged(before, after, share_before, share_after, mode))
    low, high = weights_of(before), weights_of(after)
    assert np.array_equal(found, np.float32(share_before) * low + np.float32(share_after) * high), "to the bit, in float32"
    exact = (low.astype(np.float64) + 3.0**power * high.astype(np.float64)) / (1 + 3.0**power)
    assert np.abs(found - exact).max() < 2e-8


def test_exact_values_by_hand() -> None:
    """With omegas 1 and 3, weights 8 and 4 merge to 5, and -2 and 2 to 1: quarters are exact in
    float32.
    """
    engine = TorchEngine(MANIFEST, 1)
    engine.blank(2)
    floats = len(engine.read_state(0, weights_only=True)) // 4
    low = struct.pack("<2f", 8.0, -2.0) + bytes(4 * (floats - 2))
    high = struct.pack("<2f", 4.0, 2.0) + bytes(4 * (floats - 2))
    engine.merge_state(0, [low], [high], float32_bits(0.25), float32_bits(0.75), MergeMode.NORM2)
    assert struct.unpack("<2f", engine.read_state(0, weights_only=True)[:8]) == (5.0, 1.0)


def test_equal_neighbours_merge_to_themselves() -> None:
    """If both neighbours hold the same weights, the mean is those weights, to the bit at half and
    half.
    """
    before = drawn(1, 0)
    found = weights_of(merged(before, before, 0.5, 0.5, MergeMode.UNIFORM))
    assert np.array_equal(found, weights_of(before))


def test_copy_is_the_merge_with_all_weight_on_one_side() -> None:
    """Copying the stage before is the case omega+ = 0 (section 4.2), and is exact."""
    before, after = drawn(1, 0), drawn(3, 1)
    assert np.array_equal(weights_of(merged(before, after, 1.0, 0.0, MergeMode.COPY)), weights_of(before))
    assert np.array_equal(weights_of(merged(before, after, 0.0, 1.0, MergeMode.COPY)), weights_of(after))


def test_random_ignores_the_neighbours() -> None:
    """The baseline that draws new weights does not read its donors, and draws others for the next
    rebuild.
    """
    before, after = drawn(1, 0), drawn(3, 1)
    found = merged(before, after, 0.25, 0.75, MergeMode.RANDOM)
    assert found.state_digest() == merged(after, before, 0.25, 0.75, MergeMode.RANDOM).state_digest()
    assert found.state_digest() != merged(before, after, 0.5, 0.5, MergeMode.RANDOM).state_digest()
    spread = weights_of(found)[: 16 * 16].std()
    assert 0.8 < spread / MANIFEST.model.init_std < 1.2


def test_moments_of_a_merged_stage_are_zero() -> None:
    """A rebuilt stage starts with a new optimizer: both moments are zero in every part."""
    engine = merged(drawn(1, 0), drawn(3, 1), 0.5, 0.5, MergeMode.UNIFORM)
    for part in range(engine.part_count(2)):
        state = engine.read_state(part, weights_only=False)
        assert state[len(state) // 3 :] == bytes(2 * len(state) // 3)


def test_neighbours_of_unequal_depth_merge_block_by_block() -> None:
    """Where stages have unequal block counts, the caller names a donor's part per block, and all
    blocks are cut alike.
    """
    manifest = dataclasses.replace(MANIFEST, model=dataclasses.replace(MANIFEST.model, blocks=5))
    deep, shallow = TorchEngine(manifest, 1), TorchEngine(manifest, 1)
    deep.draw(2, 0)
    shallow.blank(3)
    per_block = deep.part_count(2) // len(manifest.blocks_of(2))
    assert shallow.part_count(3) == per_block
    for part in range(per_block):
        donor = deep.read_state(per_block + part, weights_only=True)
        shallow.merge_state(part, [donor], [], float32_bits(1.0), float32_bits(0.0), MergeMode.COPY)
    last_of_deep = [deep.read_state(per_block + part, weights_only=True) for part in range(per_block)]
    assert [shallow.read_state(part, weights_only=True) for part in range(per_block)] == last_of_deep
