"""Tensors to bytes and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.model.codec import (
    decode_activations,
    decode_tokens,
    encode_activations,
    float_bytes,
    floats,
    write_floats,
)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_floats_keep_every_bit(bits: list[int]) -> None:
    """Any float32, signalling NaNs and minus zero included, comes back with its bits."""
    data = np.array(bits, dtype="<u4").tobytes()
    assert float_bytes(floats(data)) == data
    target = torch.zeros(len(bits))
    write_floats(target, data)
    assert float_bytes(target) == data


def test_read_tensors_own_their_memory() -> None:
    """What is read may be written to, and does not change the bytes it came from."""
    data = bytes(8)
    tensor = floats(data)
    tensor.add_(1.0)
    assert data == bytes(8)


def test_float32_activations_are_sent_as_they_are() -> None:
    """A float32 wire loses nothing."""
    tensor = torch.randn(2, 3, 4)
    data = encode_activations(tensor, "float32")
    assert len(data) == 96
    assert torch.equal(decode_activations(data, (2, 3, 4), "float32"), tensor)


def test_bfloat16_activations_are_rounded_to_nearest() -> None:
    """A bfloat16 wire halves the bytes, rounds to nearest even, and what has been rounded passes
    unchanged.
    """
    tensor = torch.randn(2, 3, 4)
    # Half-way between two bfloat16: to the even one
    tensor[0, 0, :2] = torch.tensor([1.00390625, 1.01171875])
    data = encode_activations(tensor, "bfloat16")
    assert len(data) == 48
    decoded = decode_activations(data, (2, 3, 4), "bfloat16")
    assert decoded.dtype is torch.float32
    assert decoded[0, 0, :2].tolist() == [1.0, 1.015625]
    assert ((decoded - tensor).abs() <= tensor.abs() * 2**-8).all()
    assert encode_activations(decoded, "bfloat16") == data


def test_transposed_tensors_are_sent_in_their_logical_order() -> None:
    """What a tensor's memory looks like does not show on the wire."""
    tensor = torch.randn(2, 4, 3).transpose(1, 2)
    for dtype in ("float32", "bfloat16"):
        assert encode_activations(tensor, dtype) == encode_activations(tensor.contiguous(), dtype)


def test_tokens_are_int32() -> None:
    """Token bytes are little-endian int32 in rows."""
    assert decode_tokens(bytes([1, 0, 0, 0, 0, 1, 0, 0]), (1, 2)).tolist() == [[1, 256]]


@pytest.mark.parametrize("data", [bytes(92), bytes(100), b""])
def test_a_wrong_length_is_refused_with_a_sentence(data: bytes) -> None:
    """Bytes that do not fill the shape raise, and the message says what was expected and found."""
    with pytest.raises(ValueError, match=rf"{len(data)} bytes for \(2, 3, 4\) float32; 96 expected"):
        decode_activations(data, (2, 3, 4), "float32")
    with pytest.raises(ValueError, match="expected"):
        decode_tokens(data, (3, 8))
    with pytest.raises(ValueError, match="expected"):
        floats(data, 24)


def test_half_a_float_is_refused() -> None:
    """Float bytes come in fours."""
    with pytest.raises(ValueError, match="5 bytes for 1 float32; 4 expected"):
        floats(bytes(5))
