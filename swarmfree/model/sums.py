"""Gradient sums: one flat float32 buffer per partial sum, into which autograd adds without a copy
in between.

The parameters' ``grad`` are views into the buffer of the partial sum that is being worked on; the
order of addition is the order of the backward passes. It does not know which microbatches are in a
sum: that is the ledger's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from swarmfree.model.codec import float_bytes, floats
from swarmfree.model.layout import Layout


class GradientSums:
    """All partial sums of one held stage.

    Args:
        layout: of the stage.
        parameters: in the order of the layout's slots.
    """

    def __init__(self, layout: Layout, parameters: Sequence[nn.Parameter]) -> None:
        """Start without partial sums."""
        self._layout = layout
        self._parameters = parameters
        self._buffers: dict[int, Tensor] = {}
        self._broken: set[int] = set()
        self._bound: int | None = None
        self._spare: Tensor | None = None

    @contextmanager
    def adding_to(self, partial_sum: int) -> Iterator[None]:
        """Let backward passes inside the block add to `partial_sum`, which begins when it is first
        named.

        An exception inside leaves half a gradient in the sum: the partial sum is broken until it is
        forgotten.

        Raises:
            RuntimeError: the partial sum is broken.
        """
        self._refuse_broken(partial_sum)
        if self._bound != partial_sum:
            self._bind(partial_sum)
        try:
            yield
        except BaseException:
            self._broken.add(partial_sum)
            raise

    def read(self, partial_sums: Sequence[int], start: int, stop: int) -> Tensor:
        """Floats `start` to `stop` of these partial sums, added in this order. A view where there
        is but one partial sum; zeros for none.

        Raises:
            RuntimeError: an partial sum is broken.
            KeyError: nothing was ever added to one of them.
        """
        for partial_sum in partial_sums:
            self._refuse_broken(partial_sum)
            if partial_sum not in self._buffers:
                raise KeyError(f"partial sum {partial_sum}: nothing was added to it")
        if not partial_sums:
            return torch.zeros(stop - start)
        total = self._buffers[partial_sums[0]][start:stop]
        for partial_sum in partial_sums[1:]:
            total = torch.add(total, self._buffers[partial_sum][start:stop])
        return total

    def _fresh(self) -> Tensor:
        buffer = torch.empty(self._layout.size) if self._spare is None else self._spare
        self._spare = None
        # Minus zero added to any float, minus zero included, leaves its bits as they are; plus zero
        # would not.
        return buffer.fill_(-0.0)

    def forget(self, partial_sum: int) -> None:
        """Drop one sum, broken or not; nothing happens where there is none."""
        self._broken.discard(partial_sum)
        buffer = self._buffers.pop(partial_sum, None)
        if self._bound == partial_sum:
            self._unbind()
        if buffer is not None:
            self._spare = buffer

    def clear(self) -> None:
        """Drop all sums. One buffer is kept for the next iteration, so that its pages need not be
        mapped again.
        """
        for partial_sum in list(self._buffers):
            self.forget(partial_sum)
        self._broken.clear()

    def _refuse_broken(self, partial_sum: int) -> None:
        if partial_sum in self._broken:
            raise RuntimeError(f"partial sum {partial_sum} holds half a gradient of a failed backward pass; it must be voided")

    def _bind(self, partial_sum: int) -> None:
        buffer = self._buffers.get(partial_sum)
        if buffer is None:
            buffer = self._buffers[partial_sum] = self._fresh()
        for slot, parameter in zip(self._layout.slots, self._parameters, strict=True):
            parameter.grad = buffer[slot.start : slot.stop].view(slot.shape)
        self._bound = partial_sum

    def _unbind(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._bound = None


def add_up(contributions: Sequence[bytes]) -> tuple[bytes, float]:
    """Float32 bytes added in order, and the squared L2 norm of the sum, the squares added in
    float64.

    Raises:
        ValueError: none, or of unequal length.
    """
    if not contributions:
        raise ValueError("no contributions to reduce")
    total = floats(contributions[0])
    for data in contributions[1:]:
        total.add_(floats(data, len(total)))
    exact = total.double()
    return contributions[0] if len(contributions) == 1 else float_bytes(total), torch.dot(exact, exact).item()


def relative_distance(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected| in float64; 0 where both are zero, infinite where one is not
    finite.
    """
    exact = expected.double().flatten()
    off = torch.linalg.vector_norm(found.double().flatten() - exact).item()
    size = torch.linalg.vector_norm(exact).item()
    if not (math.isfinite(off) and math.isfinite(size)):
        return math.inf
    if off == 0:
        return 0.0
    return off / size if size else math.inf
