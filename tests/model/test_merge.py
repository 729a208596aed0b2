"""The merge on flat vectors; what the paper says of it is tested in `tests/paper`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.model.codec import float_bytes
from swarmfree.model.merge import merge_floats
from swarmfree.protocol.records import float32_bits

float32s = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2**60), max_value=2**60)


def merged_from(before: bytes, after: bytes, weight_before: int, weight_after: int) -> torch.Tensor:
    """A new vector."""
    target = torch.full((max(len(before), len(after)) // 4,), torch.nan)
    merge_floats([before], [after], weight_before, weight_after, target)
    return target


@given(st.lists(st.tuples(float32s, float32s), min_size=1, max_size=20), st.floats(2**-10, 1 - 2**-10, width=32))
def test_every_operation_rounds_once(pairs: list[tuple[float, float]], share: float) -> None:
    """The result has the bits of numpy's float32 product, product, sum."""
    before, after = (np.array(side, dtype=np.float32) for side in zip(*pairs, strict=True))
    weight_before, weight_after = np.float32(share), np.float32(1 - share)
    merged = merged_from(before.tobytes(), after.tobytes(), float32_bits(float(weight_before)), float32_bits(float(weight_after)))
    assert float_bytes(merged) == (before * weight_before + after * weight_after).tobytes()


def test_a_donor_of_weight_zero_is_not_read() -> None:
    """A copy keeps every bit of the donor, minus zero included, whatever the other neighbour
    sent.
    """
    donor = np.array([-0.0, 1e-42, 3.0], dtype=np.float32).tobytes()
    one, zero = float32_bits(1.0), float32_bits(0.0)
    assert float_bytes(merged_from(donor, b"", one, zero)) == donor
    assert float_bytes(merged_from(np.full(3, np.nan, dtype=np.float32).tobytes(), donor, zero, one)) == donor


@given(st.data())
def test_pieces_make_no_difference(data: st.DataObject) -> None:
    """However the donors' bytes were cut on their way, also within a float: the bits are those of
    the whole.
    """
    size = data.draw(st.integers(1, 40))
    donors = [np.random.default_rng(seed).standard_normal(size).astype(np.float32).tobytes() for seed in (1, 2)]
    cuts = [sorted(data.draw(st.lists(st.integers(1, 4 * size), max_size=4, unique=True))) for _ in range(2)]
    if data.draw(st.booleans()):
        cuts[1] = cuts[0] = [4 * (cut // 4) for cut in cuts[0]]
    sides = [
        [memoryview(donor)[start:stop] for start, stop in itertools.pairwise([0, *cut, 4 * size]) if stop > start]
        for donor, cut in zip(donors, cuts, strict=True)
    ]
    weights = float32_bits(0.25), float32_bits(0.75)
    target = torch.empty(size)
    merge_floats(sides[0], sides[1], *weights, target)
    assert float_bytes(target) == float_bytes(merged_from(*donors, *weights))


def test_donors_of_the_wrong_length_are_refused() -> None:
    """A donor that counts must have exactly the part's floats."""
    half = float32_bits(0.5)
    with pytest.raises(ValueError, match="8 bytes for a part; 12 expected"):
        merge_floats([bytes(12)], [bytes(8)], half, half, torch.empty(3))


def test_two_weights_of_zero_are_refused() -> None:
    """A merge in which nobody counts is a mistake, not a stage of zeros."""
    with pytest.raises(ValueError, match="both neighbours have weight 0"):
        merge_floats([bytes(4)], [bytes(4)], 0, 0, torch.empty(1))
