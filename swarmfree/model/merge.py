"""CheckFree's merge of two neighbours' weights, on flat vectors.

Which neighbours, and how much each weighs, is decided elsewhere and comes in as float32 bits; here
the bits of the result are
fixed: two products and one sum per weight, each rounded once, so that any machine merges to the
same bytes.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from swarmfree.model.layout import FLOAT_BYTES
from swarmfree.protocol.engine_port import Pieces
from swarmfree.protocol.records import bits_float32


def merge_floats(before: Pieces, after: Pieces, weight_before: int, weight_after: int, target: Tensor) -> None:
    """``W = weight_before * W_before + weight_after * W_after``, where the weights are already
    divided by their sum.

    A donor of weight zero is not read and may be empty, so a copy of the other, at weight one, is
    exact to the bit.

    Args:
        before: float32 weights of the part of the neighbour before, little endian; in pieces, as
            they came.
        after: the same of the neighbour after.
        weight_before: float32 bits.
        weight_after: float32 bits.
        target: float32 vector of the part, which is overwritten.

    Raises:
        ValueError: a donor that counts has another length.

    Source: CheckFree, Algorithm 1, line 3.
    """
    sides = [(pieces, bits_float32(bits)) for pieces, bits in ((before, weight_before), (after, weight_after))]
    donors = [pieces for pieces, weight in sides if weight != 0.0]
    weights = [np.float32(weight) for _, weight in sides if weight != 0.0]
    if not donors:
        raise ValueError("both neighbours have weight 0; at least one must count")
    expected_bytes = FLOAT_BYTES * len(target)
    for pieces in donors:
        if (size_bytes := sum(map(len, pieces))) != expected_bytes:
            raise ValueError(f"{size_bytes:,} bytes for a part; {expected_bytes:,} expected")
    if any(len(piece) % FLOAT_BYTES for piece in donors[0]) or len({tuple(map(len, pieces)) for pieces in donors}) > 1:
        donors = [[b"".join(pieces)] for pieces in donors]  # cut otherwise than this peer cuts
    out, start = target.detach().numpy(), 0
    for pieces_here in zip(*donors, strict=True):
        first, *others = (np.frombuffer(piece, dtype="<f4") for piece in pieces_here)
        here = out[start : start + len(first)]
        np.multiply(first, weights[0], out=here)
        for floats, weight in zip(others, weights[1:], strict=True):
            here += floats * weight
        start += len(first)
