"""Keys and values of the positions that one block has seen, so that the next token costs one
position instead of all before it.

For one row that is written on, without gradients. Where a cached position comes from, its block
never looks again: the rotary embedding is in the keys already, and earlier positions of a causal
model do not change when later ones come.

Letters: ``T`` tokens, ``K`` key-value heads, ``E`` head width.

Source: Shazeer, Fast Transformer Decoding (2019), section 2.4.1, incremental inference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swarmfree.protocol.manifest import ModelSection


class KeyValueCache:
    """Keys and values of one block for one row of at most ``tokens_per_row`` positions.

    The memory is taken at once: 8 K E bytes for each position of a row.
    """

    def __init__(self, model: ModelSection) -> None:
        """Hold nothing yet."""
        shape = (1, model.kv_heads, model.tokens_per_row, model.width // model.heads)
        self._keys, self._values = torch.empty(shape), torch.empty(shape)
        self.length = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Take those of the positions that come now.

        A row begins with any number of positions; after that one comes at a time, since the causal
        mask of `Attention` knows only these two forms.

        Args:
            keys: (1, K, T, E), rotated.
            values: (1, K, T, E).

        Returns:
            Keys and values of all positions so far, views that the next call leaves as they are.
        """
        end = self.length + keys.shape[2]
        assert not self.length or keys.shape[2] == 1, f"{keys.shape[2]} positions behind {self.length}; one at a time expected"
        assert end <= self._keys.shape[2], f"{end} positions in a row of {self._keys.shape[2]}"
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]
