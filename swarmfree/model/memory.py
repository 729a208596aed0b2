"""Memory of a held stage: taken before it is needed, and told apart by digest.

A peer that stands by takes the memory of a stage's weights and moments while nobody waits: where
the system backs memory page by page, that can take longer than fetching the stage. A gradient sum
is taken when there is a gradient. Digests are made part by part, so that moments that rest at zero
need not be read.
"""

from __future__ import annotations

import functools

import torch
from blake3 import blake3
from torch import Tensor

from swarmfree.model.block_digests import block_digests, stage_digest
from swarmfree.model.codec import zero_floats
from swarmfree.model.layout import Layout
from swarmfree.model.stages import StageState

STATE_VECTORS = 3
"""Weights and two moments."""


class Reserve:
    """Vectors of zeros, as many and as long as the state of one stage needs."""

    def __init__(self) -> None:
        """Nothing taken."""
        self._vectors: list[Tensor] = []

    def take(self, layout: Layout, part: int) -> None:
        """Take the memory of one part: written once, the system has given it."""
        if not self._vectors or len(self._vectors[0]) != layout.size:
            self._vectors = [zero_floats(layout.size) for _ in range(STATE_VECTORS)]
        where = layout.parts[part]
        for vector in self._vectors:
            vector[where.start : where.stop] = 0.0

    def give(self, size: int) -> list[Tensor]:
        """Vectors of so many floats for a state, if there are any so long; nothing is kept."""
        vectors, self._vectors = self._vectors, []
        return [vector[:size] for vector in vectors if len(vector) >= size]


def vector_digest(vector: Tensor) -> blake3:
    """BLAKE3 over a float32 vector, on this thread alone."""
    return blake3(vector.view(torch.uint8).numpy().data, max_threads=1)


@functools.cache
def _zeros_digest(count: int) -> bytes:
    return vector_digest(torch.zeros(count)).digest()


class Digests:
    """Digests of the parts of one state: made when asked for, remembered until the part changes.

    Args:
        state: what is held; its moments are zero.
    """

    def __init__(self, state: StageState) -> None:
        """Nothing has been read yet."""
        self._state = state
        self._parts: dict[int, tuple[bytes, ...]] = {}
        self._resting = set(range(len(state.layout.parts)))

    def rests(self, part: int) -> bool:
        """Whether the moments of this part are known to be zero."""
        return part in self._resting

    def change(self, part: int, *, moments: bool) -> None:
        """This part is written to: its weights, and perhaps its moments."""
        self._parts.pop(part, None)
        if moments:
            self._resting.discard(part)

    def change_all(self) -> None:
        """Forget all digests, since an optimizer step changed every part."""
        self._parts.clear()
        self._resting.clear()

    def rest(self, part: int) -> None:
        """The moments of this part have become zero."""
        self._resting.add(part)

    def take(self, part: int, other: Digests, there: int) -> None:
        """This part becomes what a part of another state is."""
        self.change(part, moments=True)
        if there in other._parts:
            self._parts[part] = other._parts[there]

    def of(self, part: int) -> tuple[bytes, ...]:
        """BLAKE3 of weights, first and second moment of one part."""
        if part not in self._parts:
            state, where = self._state, self._state.layout.parts[part]
            vectors = state.vectors(weights_only=self.rests(part))
            found = [vector_digest(vector[where.start : where.stop]).digest() for vector in vectors]
            self._parts[part] = (*found, *[_zeros_digest(where.floats)] * (STATE_VECTORS - len(found)))
        return self._parts[part]

    def whole(self) -> str:
        """Hex BLAKE3 over those of the blocks; see `block_digests`."""
        layout = self._state.layout
        return stage_digest(block_digests(layout, [self.of(part) for part in range(len(layout.parts))]))
