"""The layers of a LLaMA: RMS norm, rotary embedding, grouped-query attention, SwiGLU, and the block
made of them.

Pure modules in float32; parameter names and the order of operations are those of Hugging Face's
`LlamaForCausalLM` with ``attn_implementation="sdpa"``, so that equal weights give equal bits. It
knows nothing of stages, bytes or optimizers.

Letters: ``B`` rows, ``T`` tokens per row, ``D`` width, ``H`` heads, ``K`` key-value heads, ``E``
head width, ``F`` MLP width.

Source: Touvron et al., LLaMA (2023); Su et al., RoFormer (2021); Zhang and Sennrich, RMSNorm
(2019); Shazeer, GLU variants (2020); Ainslie et al., GQA (2023).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import Tensor, nn

from swarmfree.model.key_value_cache import KeyValueCache
from swarmfree.protocol.manifest import ModelSection


class RMSNorm(nn.Module):
    """Divide each token by its root mean square: ``y = gain * x / sqrt(mean(x^2) + eps)``.

    Args:
        width: D.
        eps: added to the mean square.
    """

    def __init__(self, width: int, eps: float) -> None:
        """Hold one gain per channel."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean_square + self.eps))


def rotary_angles(model: ModelSection) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles: channel pair j of position t turns by ``t *
    theta^(-2j/E)``.

    Returns:
        Two tensors (T, E); the second half of the channels repeats the first.
    """
    head_width = model.width // model.heads
    pairs = torch.arange(0, head_width, 2, dtype=torch.float32)
    frequencies = 1.0 / (model.rope_theta ** (pairs / head_width))
    angles = torch.arange(model.tokens_per_row, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys by their position: ``y = x * cos + [-x2, x1] * sin`` with x1, x2 the
    halves of the channels.

    Args:
        x: (B, H, T, E).
        cos: (T, E), see `rotary_angles`.
        sin: (T, E).
    """
    first, second = x.chunk(2, dim=-1)
    return (x * cos) + (torch.cat((-second, first), dim=-1) * sin)


class Attention(nn.Module):
    """Causal self-attention in which ``H / K`` query heads share one key-value head."""

    def __init__(self, model: ModelSection) -> None:
        """Hold the four projections."""
        super().__init__()
        self.head_width = model.width // model.heads
        self.is_grouped = model.heads != model.kv_heads
        kv_width = self.head_width * model.kv_heads
        self.q_proj = nn.Linear(model.width, model.width, bias=False)
        self.k_proj = nn.Linear(model.width, kv_width, bias=False)
        self.v_proj = nn.Linear(model.width, kv_width, bias=False)
        self.o_proj = nn.Linear(model.width, model.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D); `cos` and `sin` (T, E).

        With a cache `x` is what follows the positions that it holds, and sees them too.
        """
        by_head = (*x.shape[:2], -1, self.head_width)
        query = rotate(self.q_proj(x).view(by_head).transpose(1, 2), cos, sin)
        key = rotate(self.k_proj(x).view(by_head).transpose(1, 2), cos, sin)
        value = self.v_proj(x).view(by_head).transpose(1, 2)
        if cache is not None:
            key, value = cache.extend(key, value)
        # The mask of fewer queries than keys would begin at the first key: a single query, which
        # stands behind all keys, goes without one.
        is_causal = query.shape[2] == key.shape[2]
        # The grouped call is faster than repeated keys and values by up to a tenth on a CPU, with
        # the same bits.
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=self.head_width**-0.5, enable_gqa=self.is_grouped
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(x.shape))
        return out


class MLP(nn.Module):
    """SwiGLU: ``y = down(silu(gate(x)) * up(x))``."""

    def __init__(self, model: ModelSection) -> None:
        """Hold the three projections."""
        super().__init__()
        self.gate_proj = nn.Linear(model.width, model.mlp_width, bias=False)
        self.up_proj = nn.Linear(model.width, model.mlp_width, bias=False)
        self.down_proj = nn.Linear(model.mlp_width, model.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One transformer layer: ``x = x + attention(norm(x)); x = x + mlp(norm(x))``."""

    def __init__(self, model: ModelSection) -> None:
        """Hold attention, MLP and their two norms, in the order of Hugging Face's state dict."""
        super().__init__()
        self.self_attn = Attention(model)
        self.mlp = MLP(model)
        self.input_layernorm = RMSNorm(model.width, model.norm_eps)
        self.post_attention_layernorm = RMSNorm(model.width, model.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D); `cos` and `sin` (T, E); `cache` as in `Attention`."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
