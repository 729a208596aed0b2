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

from swarmfree.protocol.errors import DataError
from swarmfree.storage.remote_shards import BlockReader, RemotePiece, RemoteShard
from swarmfree.storage.token_shards import HEADER_SIZE_BYTES


class MappedPiece:
    """The tokens of one file on this disk, mapped into memory. They are what a run has agreed on
    only as long as nobody writes into the file: then a slice is an error, and none of it is used.

    A file that is replaced or removed stays what it was for whoever has mapped it.
    """

    def __init__(self, path: Path, dtype: type[np.uint8] | str, offset: int = 0) -> None:
        """Map it.

        Args:
            path: of the file; its size and hash have been checked.
            dtype: of a token.
            offset: of the first one, bytes.
        """
        self._path = path
        self._tokens = np.memmap(path, dtype, mode="r", offset=offset)
        self._state = self._look()

    def __len__(self) -> int:
        """Tokens in all."""
        return len(self._tokens)

    def __getitem__(self, place: slice) -> NDArray[np.uint8] | NDArray[np.uint16]:
        """Tokens from one place to another.

        Raises:
            DataError: the file was changed since it was mapped.
        """
        found = self._look()
        if found is not None and self._state is not None and found[0] == self._state[0] and found != self._state:
            # Who reads behind the end of a file that was cut is killed by the system
            raise DataError(f"{self._path}: was changed while the run learned from it; it is used no more, start again")
        return self._tokens[place]

    def _look(self) -> tuple[tuple[int, int], int, int] | None:
        """Which file lies there now, its size, and when it was written; None where none does."""
        try:
            state = self._path.stat()
        except OSError:
            return None
        return (state.st_dev, state.st_ino), state.st_size, state.st_mtime_ns


class TokenText:
    """A text as tokens; every place in it is found in the time of a bisection."""

    def __init__(self, pieces: Sequence[MappedPiece | RemotePiece]) -> None:
        """Join what is read as arrays are, in this order; none of it is copied."""
        self.pieces = [piece for piece in pieces if len(piece)]
        self._ends = list(itertools.accumulate(len(piece) for piece in self.pieces))

    @classmethod
    def of_bytes(cls, path: Path) -> TokenText:
        """A file whose bytes are the tokens."""
        return cls([MappedPiece(path, np.uint8)])

    @classmethod
    def of_shards(cls, paths: Sequence[Path]) -> TokenText:
        """Token shards; their sizes have been checked."""
        return cls(
            [
                MappedPiece(path, "<u2", HEADER_SIZE_BYTES)
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

    def _places(self, start: int, length: int) -> list[tuple[MappedPiece | RemotePiece, slice]]:
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
