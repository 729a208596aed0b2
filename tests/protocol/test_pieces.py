"""Payloads cut otherwise."""

from __future__ import annotations

from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.errors import ProtocolViolation
from swarmfree.protocol.pieces import parts_of, recut


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 9))
def test_the_bytes_stay_what_they_were(pieces: list[bytes], size_bytes: int) -> None:
    """Cut anew, all runs but the last have the asked size, none is empty, and together they are the
    same bytes.
    """
    found = [b"".join(run) for run in recut(pieces, repeat(size_bytes))]
    assert b"".join(found) == b"".join(pieces)
    assert all(len(run) == size_bytes for run in found[:-1])
    assert all(found)


def test_nothing_is_copied() -> None:
    """A run looks at the memory that was there."""
    there = bytearray(b"abcdef")
    (first, second) = recut([memoryview(there)], (4, 2))
    there[:] = b"ABCDEF"
    assert [bytes(*first), bytes(*second)] == [b"ABCD", b"EF"]


def test_parts_are_as_long_as_the_answer_says() -> None:
    """Wherever the pieces end; an answer without sizes is one part."""
    assert [b"".join(part) for part in parts_of([b"abc", b"de"], (2, 3), 2)] == [b"ab", b"cde"]
    assert parts_of([b"abc", b"de"], (), 8) == [[b"abc", b"de"]]


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (5, 0), (1, 2, 2)])
def test_parts_that_do_not_add_up_are_refused(sizes: tuple[int, ...]) -> None:
    """Too few bytes, too many, an empty part, and more parts than were asked for."""
    with pytest.raises(ProtocolViolation):
        parts_of([b"abc", b"de"], sizes, 2)


def test_an_empty_answer_is_no_part() -> None:
    """Whoever gives nothing is at fault, not the device that would have to take it."""
    with pytest.raises(ProtocolViolation):
        parts_of([b""], (), 1)
