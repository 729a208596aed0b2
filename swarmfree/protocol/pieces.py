"""Payloads in pieces: the same bytes cut otherwise, nothing copied, or lent by whoever will change them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from swarmfree.protocol.engine_port import Pieces
from swarmfree.protocol.errors import ProtocolViolation


class Lent(Sequence[bytes | memoryview]):
    """Views of memory that its owner will change: before it does, it has them copied. On one event loop, which is the only guard.

    So whoever was lent them asks for a piece anew after each await, and may keep bytes of it but no view.
    """

    def __init__(self, views: Pieces) -> None:
        """Nothing is copied."""
        self._pieces = views

    @overload
    def __getitem__(self, index: int) -> bytes | memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> Pieces: ...
    def __getitem__(self, index: int | slice) -> bytes | memoryview | Pieces:
        return self._pieces[index]

    def __len__(self) -> int:
        return len(self._pieces)

    def copy(self) -> None:
        """The memory is about to change."""
        self._pieces = [bytes(piece) for piece in self._pieces]


def recut(pieces: Pieces, sizes: Iterable[int]) -> Iterator[list[memoryview]]:
    """One run of pieces for each size, of so many bytes, the last one of what is left; nothing more once nothing is left.

    A piece is asked for anew for each run, since what is lent may have been copied meanwhile.
    """
    index = start = 0
    for size_bytes in sizes:
        run: list[memoryview] = []
        missing = size_bytes
        while missing and index < len(pieces):
            piece = memoryview(pieces[index])
            if here := piece[start : start + missing]:
                run.append(here)
            missing, start = missing - len(here), start + len(here)
            if start == len(piece):
                index, start = index + 1, 0
        if not run:
            return
        yield run


def sizes_of(parts: Sequence[bytes]) -> tuple[int, ...]:
    """What an answer says of the parts in it; nothing of one, which is the whole payload."""
    return tuple(map(len, parts)) if len(parts) > 1 else ()


def parts_of(pieces: Pieces, sizes: tuple[int, ...], most: int) -> list[Pieces]:
    """The parts of an answer that says how long they are, or that holds one.

    Raises:
        ProtocolViolation: more than `most`, or they do not add up.
    """
    size_bytes = sum(map(len, pieces))
    sizes = sizes or (size_bytes,)
    if sum(sizes) != size_bytes or not all(sizes) or len(sizes) > most:
        raise ProtocolViolation(
            f"{len(sizes)} parts of {sum(sizes):,} bytes in an answer of {size_bytes:,}; at most {most} parts were expected"
        )
    return list(recut(pieces, sizes))
