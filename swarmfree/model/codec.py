"""Tensors to bytes and back: float32 state and sums, activations in the wire's dtype, tokens.

All bytes are little endian. Nothing is kept; a tensor that a function returns owns its memory and
may be written.

Letters: ``B`` rows, ``T`` tokens per row, ``D`` width.
"""

from __future__ import annotations

import math
import sys
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from swarmfree.protocol.engine_port import Writable

WireDtype = Literal["float32", "bfloat16"]

assert sys.byteorder == "little", "tensors are sent as they lie in memory, and the wire is little endian"
_ALIGNED_BYTES = 64
"""As torch aligns its own: matrix products may round otherwise elsewhere."""


def _check_length(data: bytes, size_bytes: int, what: str) -> None:
    if len(data) != size_bytes:
        raise ValueError(f"{len(data):,} bytes for {what}; {size_bytes:,} expected")


def _filled(data: bytes, shape: tuple[int, ...], dtype: torch.dtype, bits: type[np.generic], what: str) -> Tensor:
    """A new tensor of `dtype` holding `data`, copied once; `bits` is a numpy type of the same
    width.
    """
    _check_length(data, math.prod(shape) * dtype.itemsize, what)
    tensor = torch.empty(shape, dtype=dtype)
    whole = tensor.view(torch.int16).numpy() if dtype is torch.bfloat16 else tensor.numpy()
    whole.reshape(-1).view(bits)[:] = np.frombuffer(data, dtype=bits)
    return tensor


def floats(data: bytes, count: int | None = None) -> Tensor:
    """Read float32 bytes.

    Args:
        data: as written by `float_bytes`.
        count: how many floats there must be; None = whatever comes.

    Raises:
        ValueError: wrong length.
    """
    if count is None:
        count = len(data) // 4
    return _filled(data, (count,), torch.float32, np.uint32, f"{count:,} float32")


def zero_floats(count: int) -> Tensor:
    """A float32 vector of zeros, whose memory is taken when it is first written: a stage that is
    rebuilt waits for no moments to be zeroed.
    """
    whole = np.zeros(count + _ALIGNED_BYTES // 4, dtype=np.float32)
    start = -whole.ctypes.data % _ALIGNED_BYTES // 4
    return torch.from_numpy(whole[start : start + count])


def float_bytes(*tensors: Tensor) -> bytes:
    """The bytes of contiguous float32 tensors, one after the other, copied once."""
    assert all(t.dtype is torch.float32 and t.is_contiguous() for t in tensors), "state and sums are contiguous float32"
    return b"".join(t.detach().numpy().data for t in tensors)


def write_floats(target: Tensor, data: bytes | memoryview) -> None:
    """Overwrite a contiguous float32 tensor with float32 bytes of exactly its length, copied
    once.
    """
    assert target.dtype is torch.float32, "state and sums are float32"
    assert target.is_contiguous(), "state and sums are contiguous"
    target.detach().numpy().reshape(-1).view(np.uint32)[:] = np.frombuffer(data, dtype=np.uint32)


def decode_activations(data: bytes, shape: tuple[int, int, int], dtype: WireDtype) -> Tensor:
    """Activations or their gradient, (B, T, D), as float32.

    Raises:
        ValueError: wrong length.
    """
    what = f"{shape} {dtype}"
    if dtype == "float32":
        return _filled(data, shape, torch.float32, np.uint32, what)
    return _filled(data, shape, torch.bfloat16, np.uint16, what).float()


def encode_activations(tensor: Tensor, dtype: WireDtype) -> bytes:
    """Inverse of `decode_activations`; bfloat16 rounds to nearest, ties to even."""
    tensor = tensor.detach().contiguous()
    if dtype == "float32":
        return tensor.numpy().tobytes()
    return tensor.to(torch.bfloat16).view(torch.int16).numpy().tobytes()


class _FloatView:
    """Float32 bytes as an array that numpy takes for writable: torch warns of the others, though it
    only reads.
    """

    def __init__(self, data: bytes) -> None:
        seen = np.frombuffer(data, dtype=np.float32)
        self.data, interface = data, seen.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def round_to(room: Writable, data: bytes) -> None:
    """Float32 bytes as bfloat16, to nearest, ties to even, into memory of half their length; in one
    pass, nothing copied.

    Raises:
        ValueError: wrong length.
    """
    _check_length(data, 2 * len(room), f"{len(room):,} bytes of bfloat16")
    torch.frombuffer(room, dtype=torch.bfloat16).copy_(torch.from_numpy(np.asarray(_FloatView(data))))


def decode_tokens(data: bytes, shape: tuple[int, int]) -> Tensor:
    """Token numbers, int32 on the wire, as an int64 tensor (B, T + 1).

    Raises:
        ValueError: wrong length.
    """
    return _filled(data, shape, torch.int32, np.int32, f"{shape} int32").long()
