"""The loss of a whole model on a text, with the arithmetic of a run's held-out evaluation:
cross-entropy of each token in float32, added up in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from swarmfree.model.llama import Llama
from swarmfree.protocol.errors import DataError

ROWS = 8
"""Rows in one pass."""


@dataclass(frozen=True, slots=True)
class TextScore:
    """How well a model predicts a text.

    Args:
        tokens: that were predicted: all but the first one.
        text_bytes: that these stand for.
        nats: added over all of them.
    """

    tokens: int
    text_bytes: int
    nats: float

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Exponential of the loss."""
        return math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Bits that a byte of the text takes under the model."""
        return self.nats / math.log(2) / self.text_bytes


def text_loss(
    llama: Llama, tokens: NDArray[np.integer], text_bytes: int, hear: Callable[[int], None] = lambda _: None
) -> TextScore:
    """Loss of a text, cut into rows as training cuts it: each row has T inputs and T targets, and
    shares one token with the next; the last one may be shorter.

    Args:
        llama: the model.
        tokens: of the whole text, one-dimensional.
        text_bytes: that all but the first of them stand for.
        hear: is told after each pass how many tokens are predicted by then.

    Raises:
        DataError: the text is shorter than one row, or has tokens that the model has not.
    """
    length = len(llama.cos)
    if len(tokens) < length + 1:
        raise DataError(f"too short: {len(tokens):,} tokens; one row of this model needs {length + 1:,}")
    if int(tokens.max()) >= (vocabulary := llama.lm_head.out_features):
        raise DataError(f"has token {int(tokens.max())}; this model knows {vocabulary} of them")
    nats, done = 0.0, 0
    with torch.inference_mode():
        for rows in _rows(tokens, length):
            nats += llama.token_losses(torch.from_numpy(rows.astype(np.int64))).double().sum().item()
            done += rows.shape[0] * (rows.shape[1] - 1)
            hear(done)
    return TextScore(len(tokens) - 1, text_bytes, nats)


def _rows(tokens: NDArray[np.integer], length: int) -> Iterator[NDArray[np.integer]]:
    """(B, T + 1) each; the last one is what is left, in one row."""
    whole = (len(tokens) - 1) // length
    for first in range(0, whole, ROWS):
        starts = range(first * length, min(first + ROWS, whole) * length, length)
        yield np.stack([tokens[start : start + length + 1] for start in starts])
    if whole * length < len(tokens) - 1:
        yield tokens[None, whole * length :]
