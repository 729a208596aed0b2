"""The layers do what their equations say."""

from __future__ import annotations

import dataclasses

import torch
from model_world import GROUPED, UNGROUPED

from swarmfree.model.layers import MLP, Attention, Block, RMSNorm, rotary_angles, rotate


def test_rms_norm_follows_its_equation() -> None:
    """RMSNorm divides by the root mean square plus eps and multiplies by the gain."""
    torch.manual_seed(0)
    norm = RMSNorm(16, 1e-5)
    with torch.no_grad():
        norm.weight.normal_()
    x = torch.randn(2, 3, 16)
    exact = x.double()
    expected = norm.weight.double() * exact / torch.sqrt((exact**2).mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(norm(x).double(), expected, rtol=1e-6, atol=1e-6)


def test_rotation_keeps_lengths_and_sees_only_distance() -> None:
    """A rotated vector keeps its length, and the product of two rotated vectors depends on the
    distance of their positions alone.
    """
    torch.manual_seed(0)
    cos, sin = rotary_angles(dataclasses.replace(GROUPED, tokens_per_row=40))
    query, key = (torch.randn(1, 1, 1, cos.shape[1]).expand(1, 1, 40, -1) for _ in range(2))
    turned_query, turned_key = rotate(query, cos, sin), rotate(key, cos, sin)
    torch.testing.assert_close(turned_query.norm(dim=-1), query.norm(dim=-1))
    products = (turned_query @ turned_key.transpose(-1, -2))[0, 0]
    for distance in (0, 1, 7):
        diagonal = products.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_attention_sees_no_later_token() -> None:
    """Changing the last token changes no earlier output, and no position is out of reach of the
    later ones.
    """
    torch.manual_seed(0)
    block = Block(GROUPED)
    cos, sin = rotary_angles(GROUPED)
    x = torch.randn(2, GROUPED.tokens_per_row, GROUPED.width)
    other = x.clone()
    other[:, -1] += 1.0
    assert torch.equal(block(x, cos, sin)[:, :-1], block(other, cos, sin)[:, :-1])
    other = x.clone()
    other[:, 0] += 1.0
    changed = (block(x, cos, sin) != block(other, cos, sin)).any(dim=-1)
    assert changed.all()


def test_grouped_heads_share_keys_and_values() -> None:
    """Grouped-query attention equals full attention whose key and value heads are repeated."""
    torch.manual_seed(0)
    grouped, full = Attention(GROUPED), Attention(UNGROUPED)
    shared = GROUPED.heads // GROUPED.kv_heads
    with torch.no_grad():
        for name in ("q_proj", "o_proj"):
            getattr(full, name).weight.copy_(getattr(grouped, name).weight)
        for name in ("k_proj", "v_proj"):
            heads = getattr(grouped, name).weight.view(GROUPED.kv_heads, -1, GROUPED.width)
            getattr(full, name).weight.copy_(heads.repeat_interleave(shared, 0).flatten(0, 1))
    cos, sin = rotary_angles(GROUPED)
    x = torch.randn(2, GROUPED.tokens_per_row, GROUPED.width)
    torch.testing.assert_close(grouped(x, cos, sin), full(x, cos, sin))


def test_attention_is_the_textbook_softmax() -> None:
    """Attention equals the softmax of scaled products over the positions up to one's own, times the
    values.
    """
    torch.manual_seed(0)
    attention = Attention(UNGROUPED).double()
    cos, sin = (angle.double() for angle in rotary_angles(UNGROUPED))
    x = torch.randn(1, UNGROUPED.tokens_per_row, UNGROUPED.width, dtype=torch.float64)
    heads = (1, UNGROUPED.tokens_per_row, UNGROUPED.heads, -1)
    query, key, value = (getattr(attention, f"{name}_proj")(x).view(heads).transpose(1, 2) for name in "qkv")
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
    torch.testing.assert_close(attention(x, cos, sin), attention.o_proj(mixed.transpose(1, 2).flatten(2)))


def test_mlp_follows_its_equation() -> None:
    """SwiGLU is down(silu(gate) * up)."""
    torch.manual_seed(0)
    mlp = MLP(GROUPED)
    x = torch.randn(2, 3, GROUPED.width)
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    torch.testing.assert_close(mlp(x), mlp.down_proj(gate * torch.sigmoid(gate) * up))
