"""CheckFree's merge of two neighbours' weights, on flat vectors.

Which neighbours, and how much each weighs, is decided elsewhere and comes in as float32 bits; here the bits of the result are
fixed: two products and one sum per weight, each rounded once, so that any machine merges to the same bytes.
"""

from __future__ import annotations

from torch import Tensor

from swarmfree.model.codec import floats
from swarmfree.swarm.books import bits_float32


def merge_floats(before: bytes, after: bytes, weight_before: int, weight_after: int, count: int) -> Tensor:
    """``W = weight_before * W_before + weight_after * W_after``, where the weights are already divided by their sum.

    A donor of weight zero is not read and may be empty, so a copy of the other, at weight one, is exact to the bit.

    Args:
        before: float32 weights of the part of the neighbour before, little endian.
        after: the same of the neighbour after.
        weight_before: float32 bits.
        weight_after: float32 bits.
        count: floats of the part.

    Returns:
        Float32 vector (count,).

    Raises:
        ValueError: a donor that counts has another length.

    Source: CheckFree, Algorithm 1, line 3.
    """
    merged: Tensor | None = None
    for data, bits in ((before, weight_before), (after, weight_after)):
        weight = bits_float32(bits)
        if weight == 0.0:
            continue
        term = floats(data, count).mul_(weight)
        merged = term if merged is None else merged.add_(term)
    if merged is None:
        raise ValueError("both neighbours have weight 0; at least one must count")
    return merged
