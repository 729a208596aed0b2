"""The canonical AdamW step: the same bytes on every machine.

Every operation is one call that rounds once, as IEEE 754 says: multiply, add, subtract, divide,
square root, in float32, denormals kept. Nothing that fuses two of them (``addcmul``, ``lerp``,
``alpha=``, foreach or fused kernels), and all scalars come as bits. It chooses no learning rate and
clips nothing: that is in the scalars.

The square root is numpy's: torch hands its own to a vector library whose float32 result was one
unit in the last place off for 17 % of all inputs where it was measured, and may differ from one
processor to the next. Division is by a tensor, since some devices replace division by a number with
a product by its inverse.

Source: Loshchilov and Hutter, Decoupled weight decay regularization (2019); Kingma and Ba, Adam
(2015).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swarmfree.model.layout import Layout
from swarmfree.model.stages import StageState
from swarmfree.protocol.records import StepScalars, bits_float32

CHUNK_FLOATS = 1 << 16
"""Floats stepped at once: few enough that the vectors of a chunk stay in a core's cache, enough to
hide the cost of a call.
"""


@dataclass(frozen=True, slots=True)
class DecayRange:
    """A range of the flat vector whose parameters all decay, or all do not."""

    start: int
    stop: int
    decays: bool


def segments_of(layout: Layout) -> tuple[DecayRange, ...]:
    """Cut a stage's flat vector where weight decay begins or ends; floats between two parameters go
    with the one before.
    """
    segments: list[DecayRange] = []
    for decays, slots in itertools.groupby(layout.slots, key=lambda slot: slot.decays):
        start = next(slots).start
        if segments:
            segments[-1] = DecayRange(segments[-1].start, start, segments[-1].decays)
        segments.append(DecayRange(start, layout.size, decays))
    return tuple(segments)


@dataclass(frozen=True, slots=True)
class _Scalars:
    """`StepScalars` as numbers that float32 holds exactly."""

    grad_scale: float
    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    root_bias2: Tensor
    eps: float
    step_size: float
    decay: float

    @staticmethod
    def of(scalars: StepScalars) -> _Scalars:
        values = {name: bits_float32(getattr(scalars, name)) for name in StepScalars.__slots__}
        return _Scalars(**{**values, "root_bias2": torch.tensor(values["root_bias2"])})  # type: ignore[arg-type]


def canonical_step(state: StageState, gradient: Tensor, scalars: StepScalars, start: int = 0, stop: int | None = None) -> None:
    """Do one AdamW step in place, of all elements or of a range of them.

    Elementwise, with w, m, v of `state`::

        g = gradient * grad_scale
        m = m * beta1 + g * one_minus_beta1
        v = v * beta2 + (g * g) * one_minus_beta2
        w = w * decay - step_size * (m / (sqrt(v) / root_bias2 + eps))

    Args:
        state: its weights and moments are changed in place; `decay` applies to its parameters of
            two or more dimensions.
        gradient: flat float32 vector of that range, left as it is.
        scalars: float32 bits.
        start, stop: the range in the state's layout; the step is elementwise, so a range steps as
            it does within the whole.

    Differs: the weight is decayed after the moments are updated, not before; the result is the
    same.
    """
    known = _Scalars.of(scalars)
    scratch = (torch.empty(CHUNK_FLOATS), torch.empty(CHUNK_FLOATS))
    end = state.layout.size if stop is None else stop
    assert len(gradient) == end - start, f"a gradient of {len(gradient)} for {end - start} elements"
    vectors = (*(v[start:end] for v in (state.weights, state.first_moment, state.second_moment)), gradient)
    with np.errstate(invalid="ignore"):
        for segment in segments_of(state.layout):
            inside = DecayRange(max(segment.start, start) - start, min(segment.stop, end) - start, segment.decays)
            for chunk in _chunks(vectors, inside) if inside.start < inside.stop else ():
                _step_chunk(chunk, scratch, known, decays=segment.decays)


def _chunks(vectors: tuple[Tensor, ...], segment: DecayRange) -> Iterator[tuple[Tensor, ...]]:
    """The same range of all vectors, `CHUNK_FLOATS` at a time."""
    ranges = (torch.split(v[segment.start : segment.stop], CHUNK_FLOATS) for v in vectors)
    return zip(*ranges, strict=True)


def _step_chunk(chunk: tuple[Tensor, ...], scratch: tuple[Tensor, Tensor], known: _Scalars, *, decays: bool) -> None:
    weights, first, second, gradient = chunk
    count = len(weights)
    g, term = scratch[0][:count], scratch[1][:count]
    torch.mul(gradient, known.grad_scale, out=g)
    torch.mul(first, known.beta1, out=first)
    torch.mul(g, known.one_minus_beta1, out=term)
    torch.add(first, term, out=first)
    torch.mul(second, known.beta2, out=second)
    torch.mul(g, g, out=term)
    torch.mul(term, known.one_minus_beta2, out=term)
    torch.add(second, term, out=second)
    np.sqrt(second.numpy(), out=term.numpy())
    torch.div(term, known.root_bias2, out=term)
    torch.add(term, known.eps, out=term)
    torch.div(first, term, out=term)
    torch.mul(term, known.step_size, out=term)
    if decays and known.decay != 1.0:
        torch.mul(weights, known.decay, out=weights)
    torch.sub(weights, term, out=weights)
