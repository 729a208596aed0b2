"""Tokens that lie one after the other in one file or in many, memory-mapped or read by ranges: read
at any place, and never held in memory as a whole.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swarmfree.storage.remote_shards import BlockReader, RemotePiece, RemoteShard
from swarmfree.storage.token_shards import HEADER_SIZE_BYTES


class TokenText:
    """A text as tokens; every place in it is found in the time of a bisection."""

    def __init__(self, pieces: Sequence[NDArray[np.uint8] | NDArray[np.uint16] | RemotePiece]) -> None:
        """Join arrays, or what is read as they are, in this order; none of them is copied."""
        self.pieces = [piece for piece in pieces if len(piece)]
        self._ends = list(itertools.accumulate(len(piece) for piece in self.pieces))

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

    @classmethod
    def joined(cls, texts: Sequence[TokenText]) -> TokenText:
        """Texts, one after the other."""
        return cls([piece for text in texts for piece in text.pieces])

    def remote_blocks(self, start: int, length: int) -> list[tuple[BlockReader, RemoteShard, int]]:
        """Which blocks of shards behind a URL a `read` needs."""
        return [
            block
            for piece, place in self._places(start, length)
            if isinstance(piece, RemotePiece)
            for block in piece.blocks(place)
        ]

    def __len__(self) -> int:
        """Tokens in all."""
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, length: int) -> NDArray[np.int32]:
        """Tokens start to start + length, fewer where the text ends: int32, little endian."""
        found = [piece[place].astype("<i4") for piece, place in self._places(start, length)]
        return np.concatenate(found) if found else np.empty(0, "<i4")

    def _places(self, start: int, length: int) -> list[tuple[NDArray[np.uint8] | NDArray[np.uint16] | RemotePiece, slice]]:
        """Which part of which piece that is."""
        number = bisect.bisect_right(self._ends, start)
        found = []
        while length > 0 and number < len(self.pieces):
            piece = self.pieces[number]
            begin = start - (self._ends[number] - len(piece))
            taken = min(length, len(piece) - begin)
            found.append((piece, slice(begin, begin + taken)))
            start, length, number = start + taken, length - taken, number + 1
        return found
