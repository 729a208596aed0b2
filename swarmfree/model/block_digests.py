"""Digests of a stage made of those of its blocks, so that a block is told apart wherever it is, and
a stage's digest proves each of them.

Imports no torch: whoever exports computes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from blake3 import blake3

from swarmfree.model.layout import Layout

PartDigests = Sequence[bytes]
"""BLAKE3 of one part's weights, first and second moment."""


def block_ranges(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield where the floats of each block begin and end; the ends are one block."""
    for _, parts in itertools.groupby(layout.parts, key=lambda part: part.block):
        own = tuple(parts)
        yield own[0].start, own[-1].stop


def block_digests(layout: Layout, parts: Sequence[PartDigests]) -> tuple[bytes, ...]:
    """BLAKE3 of each block, over those of its parts: of all weights, then of the first moments,
    then of the second ones.

    Args:
        layout: of the stage.
        parts: index = part.
    """
    of_block: dict[int, list[PartDigests]] = {}
    for part, digests in zip(layout.parts, parts, strict=True):
        of_block.setdefault(part.block, []).append(digests)
    return tuple(
        blake3(b"".join(vector for each in zip(*own, strict=True) for vector in each)).digest() for own in of_block.values()
    )


def stage_digest(blocks: Sequence[bytes]) -> str:
    """Hex BLAKE3 over those of its blocks, in order: of a state, or of an average."""
    return blake3(b"".join(blocks)).hexdigest()
