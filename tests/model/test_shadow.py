"""Plain shadows: small, and as near as int8 can be."""

from __future__ import annotations

import pytest
import torch

from swarmfree.model.engine import TorchEngine
from swarmfree.model.shadow import BLOCK, from_int8, size_bytes, to_int8
from swarmfree.protocol.manifest import Manifest


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, BLOCK + 1, 10_000])
def test_a_shadow_is_within_half_a_step_of_each_weight(count: int) -> None:
    """Each block has a scale of its own; what comes back differs by half of it at most."""
    weights = torch.randn(count, generator=torch.Generator().manual_seed(3)) * torch.logspace(-3, 3, count)
    data = to_int8(weights)
    assert len(data) == size_bytes(count)
    back = from_int8(data, count)
    scales = torch.nn.functional.pad(weights.abs(), (0, -count % BLOCK)).view(-1, BLOCK).amax(dim=1) / 127
    assert bool(((back - weights).abs() <= 0.5001 * scales.repeat_interleave(BLOCK)[:count]).all())


def test_a_shadow_of_zeros_is_zero_and_one_of_nonsense_does_no_harm_elsewhere() -> None:
    """Blank weights have no scale; what is not finite stays in its block."""
    assert not from_int8(to_int8(torch.zeros(300)), 300).any()
    tiny = from_int8(to_int8(torch.full((300,), 1e-37)), 300)
    assert bool((tiny.abs() <= 1e-37).all())
    weights = torch.ones(3 * BLOCK)
    weights[BLOCK + 5] = torch.nan
    back = from_int8(to_int8(weights), len(weights))
    assert torch.equal(back[:BLOCK], weights[:BLOCK])
    assert torch.equal(back[2 * BLOCK :], weights[2 * BLOCK :])


def test_a_shadow_is_at_most_one_byte_and_a_tenth_per_weight() -> None:
    """That is what it may cost on the wire."""
    assert size_bytes(1 << 20) / (1 << 20) < 1.1


def test_a_stage_comes_back_from_its_shadow(small_manifest: Manifest) -> None:
    """Nearly the same weights, no moments; another length is refused."""
    lost, newcomer = TorchEngine(small_manifest, 1), TorchEngine(small_manifest, 1)
    lost.draw(2, 0)
    newcomer.draw(2, 1)
    for part in range(lost.part_count(2)):
        newcomer.write_shadow(part, lost.read_shadow(part))
        whole = torch.frombuffer(bytearray(newcomer.read_state(part, weights_only=False)), dtype=torch.float32).view(3, -1)
        right = torch.frombuffer(bytearray(lost.read_state(part, weights_only=True)), dtype=torch.float32)
        assert torch.allclose(whole[0], right, atol=float(right.abs().max()) / 250)
        assert not whole[1:].any()
    with pytest.raises(ValueError, match="expected"):
        newcomer.write_shadow(0, b"12345")
