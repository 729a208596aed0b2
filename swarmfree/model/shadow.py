"""Plain shadows: weights in blocks of int8 with a scale each, 1.03 bytes per weight.

A copy of a stage that is a few dozen iterations old is worth no more precision: int8 adds little to
what its age costs, see docs/studies/recovery.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK = 128
LARGEST = 127.0
SMALLEST_SCALE = 1e-37
"""A block whose weights are smaller than so many times 127 is zero: the inverse of its scale has no
room in a float32.
"""


def size_bytes(count: int) -> int:
    """Length in bytes of the plain shadow of `count` weights."""
    return 4 * -(-count // BLOCK) + count


def to_int8(weights: Tensor) -> bytes:
    """Scales, float32 (ceil(N / 128),), then weights / scale rounded to int8 (N,).

    Args:
        weights: float32 vector (N,). A block that is not finite comes back as it can: its scale is
            not finite either.
    """
    scales, rounded = quantised(weights)
    return b"".join((scales.numpy().data, rounded.numpy().data))


def quantised(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and rounded weights, as in `to_int8`, where the weights are."""
    count = len(weights)
    blocks = weights.new_empty(-(-count // BLOCK), BLOCK)
    blocks.view(-1)[:count] = weights.detach()
    blocks.view(-1)[count:] = 0.0
    largest = weights.new_tensor(LARGEST)  # a GPU multiplies by the inverse of a number
    # Several times as fast as `aminmax`
    scales = torch.maximum(blocks.amax(dim=1), -blocks.amin(dim=1)) / largest
    scales = torch.where(scales < SMALLEST_SCALE, 0.0, scales)
    inverse = torch.where(scales > 0, 1.0 / scales, 0.0).unsqueeze(1)
    return scales, blocks.mul_(inverse).round_().to(torch.int8).view(-1)[:count]


def from_int8(data: bytes, count: int) -> Tensor:
    """Inverse of `to_int8`: each weight within half a scale of what it was.

    Returns:
        Float32 vector (count,).

    Raises:
        ValueError: wrong length.
    """
    if len(data) != size_bytes(count):
        raise ValueError(f"{len(data):,} bytes for the shadow of {count:,} weights; {size_bytes(count):,} expected")
    block_count = -(-count // BLOCK)
    scales = torch.from_numpy(np.frombuffer(data, dtype="<f4", count=block_count).copy())
    rounded = torch.from_numpy(np.frombuffer(data, dtype="i1", offset=4 * block_count).astype(np.float32))
    return rounded * scales.repeat_interleave(BLOCK)[:count]
