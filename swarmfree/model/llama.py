"""The whole model as one module, for whoever has all of its weights: the reference that a swarm is
compared with, and text from a finished model.

Letters: ``B`` rows, ``T`` tokens per row, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import Tensor, nn

from swarmfree.model.key_value_cache import KeyValueCache
from swarmfree.model.layers import Block, RMSNorm, rotary_angles
from swarmfree.protocol.manifest import ModelSection


class Llama(nn.Module):
    """The whole model as one module, with Hugging Face's parameter names."""

    def __init__(self, model: ModelSection) -> None:
        """Hold all layers; the weights are whatever torch begins with."""
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(model.vocabulary, model.width),
                "layers": nn.ModuleList(Block(model) for _ in range(model.blocks)),
                "norm": RMSNorm(model.width, model.norm_eps),
            }
        )
        self.lm_head = nn.Linear(model.width, model.vocabulary, bias=False)
        self.cos, self.sin = rotary_angles(model)
        self._shapes = model

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) int64 -> logits (B, T, V)."""
        x = self.model["embed_tokens"](tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.model["layers"]:  # type: ignore[attr-defined]
            x = block(x, cos, sin)
        logits: Tensor = self.lm_head(self.model["norm"](x))
        return logits

    def empty_caches(self) -> tuple[KeyValueCache, ...]:
        """A cache for each block, for one row."""
        return tuple(KeyValueCache(self._shapes) for _ in range(self._shapes.blocks))

    def next_logits(self, tokens: Tensor, caches: Sequence[KeyValueCache]) -> Tensor:
        """What follows a row's last token: (1, T) int64 -> logits (V,).

        Args:
            tokens: what follows the positions that the caches hold.
            caches: one for each block, all of one length; the tokens are in them afterwards.
        """
        x = self.model["embed_tokens"](tokens)
        begin = caches[0].length
        cos, sin = (angles[begin : begin + tokens.shape[1]] for angles in (self.cos, self.sin))
        for block, cache in zip(self.model["layers"], caches, strict=True):  # type: ignore[call-overload]
            x = block(x, cos, sin, cache)
        logits: Tensor = self.lm_head(self.model["norm"](x[0, -1]))
        return logits

    def token_losses(self, tokens: Tensor) -> Tensor:
        """(B, T + 1) int64 -> nats of every predicted token (B * T,)."""
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
