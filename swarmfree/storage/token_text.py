"""Tokens that lie one after the other in one file or in many, memory-mapped: read at any place at
once, and never held in memory as a whole.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swarmfree.storage.token_shards import HEADER_SIZE_BYTES


class TokenText:
    """A text as tokens; every place in it is found in the time of a bisection."""

    def __init__(self, pieces: Sequence[NDArray[np.uint8] | NDArray[np.uint16]]) -> None:
        """Join arrays, in this order; none of them is copied."""
        self._pieces = [piece for piece in pieces if len(piece)]
        self._ends = list(itertools.accumulate(len(piece) for piece in self._pieces))

    @classmethod
    def of_bytes(cls, path: Path) -> TokenText:
        """A file whose bytes are the tokens."""
        return cls([np.memmap(path, np.uint8, mode="r")])

    @classmethod
    def of_shards(cls, paths: Sequence[Path]) -> TokenText:
        """Token shards; their sizes have been checked."""
        return cls(
            [
                np.memmap(path, "<u2", mode="r", offset=HEADER_SIZE_BYTES)
                for path in paths
                if path.stat().st_size > HEADER_SIZE_BYTES  # an empty file cannot be mapped
            ]
        )

    def __len__(self) -> int:
        """Tokens in all."""
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, length: int) -> NDArray[np.int32]:
        """Tokens start to start + length, fewer where the text ends: int32, little endian."""
        number = bisect.bisect_right(self._ends, start)
        found: list[NDArray[np.int32]] = []
        while length > 0 and number < len(self._pieces):
            begin = self._ends[number] - len(self._pieces[number])
            taken = self._pieces[number][start - begin : start - begin + length].astype("<i4")
            found.append(taken)
            start, length, number = start + len(taken), length - len(taken), number + 1
        return np.concatenate(found) if found else np.empty(0, "<i4")
