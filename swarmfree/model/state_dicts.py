"""CheckFree's merge for whoever has plain state dicts: two neighbours' weights and gradient norms,
and out comes the stage between them.

The swarm itself merges flat vectors part by part as they arrive (`model.merge`); the arithmetic is
the same, to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from swarmfree.model.codec import float_bytes
from swarmfree.model.merge import merge_floats
from swarmfree.protocol.records import float32_bits

BLOCK = re.compile(r"(?<=\blayers\.)\d+(?=\.)")


def merge_stages(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    squared_norm_before: float,
    squared_norm_after: float,
    *,
    first_block: int | None = None,
) -> dict[str, Tensor]:
    """Rebuild a lost stage from its two neighbours: ``W = (w_b W_b + w_a W_a) / (w_b + w_a)``.

    Blocks are matched by their order, so that stage dicts with Hugging Face's names
    (``model.layers.7.mlp.up_proj.weight``) can be given as they are.

    Args:
        before: weights of the stage before, by name; any shapes, floating point.
        after: the same of the stage after, with as many blocks.
        squared_norm_before: w_b, the squared norm of that stage's gradient in the last iteration;
            at least 0.
        squared_norm_after: w_a.
        first_block: number of the lost stage's first block, for the names that come out; None = one
            more than the last block before.

    Returns:
        The lost stage's weights by name, float32.

    Raises:
        ValueError: names or shapes do not match, there are none, what is held is no floating point,
            a norm or the sum of both is negative or not finite, or both are 0.

    Source: CheckFree, Algorithm 1, lines 2 and 3. Differs: float32 whatever comes in; the rate
    factor of line 5 is the caller's affair.
    """
    total = squared_norm_before + squared_norm_after
    if not (squared_norm_before >= 0 and squared_norm_after >= 0 and 0 < total < float("inf")):
        raise ValueError(
            f"squared norms and their sum must be finite, at least 0, and not both 0: {squared_norm_before}, {squared_norm_after}"
        )
    if not before or not after:
        raise ValueError(f"the neighbours hold no parameters: {len(before)} before, {len(after)} after")
    if wrong := [name for name, tensor in (*before.items(), *after.items()) if not tensor.is_floating_point()]:
        raise ValueError(f"{wrong[0]} is no floating point")
    weights = float32_bits(squared_norm_before / total), float32_bits(squared_norm_after / total)
    from_before, blocks_before = _by_order(before)
    from_after, _ = _by_order(after)
    if len(from_before) < len(before) or len(from_after) < len(after):
        raise ValueError("two names of a neighbour are one but for leading zeros of the block's number")
    if first_block is not None and first_block < 0:
        raise ValueError(f"first_block = {first_block}: a number of 0 or more is expected")
    if from_before.keys() != from_after.keys():
        odd = sorted(from_before.keys() ^ from_after.keys())
        raise ValueError(f"the neighbours hold other parameters: {odd[0]} is in one of them only")
    first = first_block if first_block is not None else (blocks_before[-1] + 1 if blocks_before else 0)
    merged = {}
    for name, tensor in from_before.items():
        other = from_after[name]
        if tensor.shape != other.shape:
            raise ValueError(f"{name}: {tuple(tensor.shape)} before, {tuple(other.shape)} after")
        target = torch.empty(tensor.numel(), dtype=torch.float32)
        sides = [[float_bytes(t.detach().to("cpu", torch.float32).flatten().contiguous())] for t in (tensor, other)]
        merge_floats(sides[0], sides[1], weights[0], weights[1], target)
        merged[BLOCK.sub(lambda found: str(int(found.group()) + first), name, count=1)] = target.view(tensor.shape)
    return merged


def _by_order(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[int]]:
    """The same with blocks numbered from 0, and the numbers that they had, ascending."""
    blocks = sorted({int(found.group()) for name in weights if (found := BLOCK.search(name))})
    order = {block: place for place, block in enumerate(blocks)}
    return {BLOCK.sub(lambda found: str(order[int(found.group())]), name, count=1): w for name, w in weights.items()}, blocks
