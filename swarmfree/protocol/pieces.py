"""Payloads in pieces: the same bytes cut otherwise, nothing copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from swarmfree.protocol.engine_port import Pieces
from swarmfree.protocol.errors import ProtocolViolation


def recut(pieces: Pieces, sizes: Iterable[int]) -> Iterator[list[memoryview]]:
    """One run of pieces for each size, of so many bytes, the last one of what is left; nothing more
    once nothing is left.
    """
    left = [memoryview(piece) for piece in reversed(pieces) if len(piece)]
    for size_bytes in sizes:
        run: list[memoryview] = []
        missing = size_bytes
        while missing and left:
            piece = left.pop()
            if len(piece) > missing:
                left.append(piece[missing:])
                piece = piece[:missing]
            run.append(piece)
            missing -= len(piece)
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
