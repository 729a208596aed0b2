"""CheckFree's merge of two neighbours' weights, on flat vectors.

Which neighbours, and how much each weighs, is decided elsewhere and comes in as float32 bits; here the bits of the result are
fixed: two products and one sum per weight, each rounded once, so that any machine merges to the same bytes.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from swarmfree.model.layout import FLOAT_BYTES
from swarmfree.swarm.books import bits_float32


def merge_floats(before: bytes, after: bytes, weight_before: int, weight_after: int, target: Tensor) -> None:
    """``W = weight_before * W_before + weight_after * W_after``, where the weights are already divided by their sum.

    A donor of weight zero is not read and may be empty, so a copy of the other, at weight one, is exact to the bit.

    Args:
        before: float32 weights of the part of the neighbour before, little endian.
        after: the same of the neighbour after.
        weight_before: float32 bits.
        weight_after: float32 bits.
        target: float32 vector of the part, which is overwritten.

    Raises:
        ValueError: a donor that counts has another length.

    Source: CheckFree, Algorithm 1, line 3.
    """
    terms = [(data, bits_float32(bits)) for data, bits in ((before, weight_before), (after, weight_after))]
    terms = [(data, weight) for data, weight in terms if weight != 0.0]
    if not terms:
        raise ValueError("both neighbours have weight 0; at least one must count")
    expected_bytes = FLOAT_BYTES * len(target)
    for data, _ in terms:
        if len(data) != expected_bytes:
            raise ValueError(f"{len(data):,} bytes for a part; {expected_bytes:,} expected")
    out = target.detach().numpy()
    for place, (data, weight) in enumerate(terms):
        floats = np.frombuffer(data, dtype="<f4")
        if place == 0:
            np.multiply(floats, np.float32(weight), out=out)
        else:
            out += floats * np.float32(weight)
