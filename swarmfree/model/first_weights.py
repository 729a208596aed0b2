"""The weights that a run begins with, cut as its stages hold them: for a run that goes on from a
model that was trained before.

Imports no torch: who makes a run computes nothing.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from swarmfree.model.block_digests import block_digests, stage_digest
from swarmfree.model.layout import FLOAT_BYTES, Layout, layout_of
from swarmfree.protocol.manifest import INIT_DIGEST_DIGITS, Manifest

ReadFloats = Callable[[str, int, int], NDArray[np.float32]]
"""Hugging Face name, first float, one past the last one -> float32 little endian."""
MOMENTS = 2


class FirstWeightsOf:
    """Implements `ports.FirstWeights` over whatever reads weights by name.

    Args:
        manifest: of the run, for how it is cut.
        read: floats of a weight.
    """

    def __init__(self, manifest: Manifest, read: ReadFloats) -> None:
        """Nothing is read."""
        self._manifest, self._read = manifest, read

    async def read(self, stage: int, parts: range) -> tuple[list[bytes], tuple[str, ...]]:
        """Some parts, and the digests of their moments."""
        layout = layout_of(self._manifest, stage)
        data = await asyncio.to_thread(lambda: [self.part(layout, part) for part in parts])
        return data, tuple(_zeros_digest(len(part)).hex() for part in data for _ in range(MOMENTS))

    def part(self, layout: Layout, part: int) -> bytes:
        """One part of a stage; what lies between two weights is zero."""
        where = layout.parts[part]
        found = np.zeros(where.floats, "<f4")
        for slot in layout.slots:
            start, stop = max(slot.start, where.start), min(slot.stop, where.stop)
            if start < stop:
                found[start - where.start : stop - where.start] = self._read(slot.name, start - slot.start, stop - slot.start)
        return found.tobytes()

    def digests(self) -> str:
        """As `ModelSection.init_digests` has them; all weights are read once."""
        layouts = (layout_of(self._manifest, stage) for stage in range(self._manifest.stage_count))
        return ",".join(self._state_digest(layout)[:INIT_DIGEST_DIGITS] for layout in layouts)

    def _state_digest(self, layout: Layout) -> str:
        parts = [
            (blake3(self.part(layout, part)).digest(), *[_zeros_digest(where.floats * FLOAT_BYTES)] * MOMENTS)
            for part, where in enumerate(layout.parts)
        ]
        return stage_digest(block_digests(layout, parts))


@functools.cache
def _zeros_digest(size_bytes: int) -> bytes:
    return blake3(bytes(size_bytes)).digest()
