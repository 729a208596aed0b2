"""The integer model as pure functions: what an activation, a gradient, a step and a merge are when
tensors are hashes.

Every function depends on all of its arguments and on nothing else, so that any mix-up of weights,
microbatches, blocks or iterations changes the bytes. A stage is a chain of blocks, each named by
its number in the whole model, so that nothing depends on where the model is cut. Sums are the one
exception to hashing: they are 64-bit integers that wrap, so that every order of summation gives the
same bytes, and each part of a sum carries one count per microbatch of the iteration, so that a
wrong sum says which microbatch is in it how often.

Used twice: by `integer_engine`, driven by the trainer, and by `reference`, which computes what
should have come out. Losses and squared norms are multiples of 2**-20 below 2**20: sums of them are
exact in float64 in every order.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.records import StepScalars
from swarmfree.protocol.split import BlockSplit

Words = NDArray[np.uint64]

VALUE_WORDS = 2
STATE_WORDS = 2
STATE_BYTES = 8 * STATE_WORDS
ENDS_PARTS = 3
EMBEDDING_PARTS = 1
PARTS_PER_BLOCK = 2

ACTIVATION, GRADIENT = b"a", b"g"
TRAINING, WINDOW = 0, 1
_TENSOR = struct.Struct("<cBxxiq8s")


@dataclass(frozen=True, slots=True)
class Tensor:
    """What travels the ring.

    Args:
        role: `ACTIVATION` or `GRADIENT`.
        kind: `TRAINING` or `WINDOW`.
        number: microbatch in the whole run, or held-out window.
        content: 8 bytes that depend on everything it was computed from.
    """

    role: bytes
    kind: int
    number: int
    content: bytes

    def encode(self) -> bytes:
        """Encode the tensor in 24 bytes."""
        return _TENSOR.pack(self.role, self.kind, 0, self.number, self.content)

    @staticmethod
    def decode(data: bytes) -> Tensor:
        """Inverse of `encode`.

        Raises:
            ValueError: not a tensor of this model.
        """
        if len(data) != _TENSOR.size:
            raise ValueError(f"{len(data)} bytes are no integer tensor; {_TENSOR.size} expected")
        role, kind, _, number, content = _TENSOR.unpack(data)
        return Tensor(role, kind, number, content)


def mix(*pieces: bytes | int | str, size_bytes: int = 8) -> bytes:
    """Hash of the pieces, each with its length."""
    text = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            text += len(piece).to_bytes(4, "little")
            text += piece
        else:
            text += _framed(piece)
    return hashlib.blake2b(text, digest_size=size_bytes).digest()


@lru_cache(4096, typed=True)
def _framed(piece: int | str) -> bytes:
    """Names and numbers, of which there are few."""
    data = str(piece).encode()
    return len(data).to_bytes(4, "little") + data


def part_count(split: BlockSplit, stage: int) -> int:
    """Parts of a stage; of the ends the first `EMBEDDING_PARTS` are the embedding, the others norm
    and head.
    """
    return ENDS_PARTS if stage == 0 else PARTS_PER_BLOCK * len(split.blocks_of(stage))


# ---- forward and backward ------------------------------------------------------------------------


def tokens_name(tokens: bytes) -> tuple[int, int]:
    """(kind, number) of a microbatch of integer tokens; see `integer_tokens`."""
    words = np.frombuffer(tokens, dtype="<i4")
    return int(words[2]), int(words[1])


def embed(weights: bytes, tokens: bytes) -> Tensor:
    """What stage 0 sends to stage 1."""
    kind, number = tokens_name(tokens)
    return Tensor(ACTIVATION, kind, number, mix("embed", weights, tokens))


def forward(first: int, weights: Sequence[bytes], activations: Tensor) -> tuple[Tensor, ...]:
    """What enters each block of a body stage, and then what comes out of the last one.

    Args:
        first: number of its first block in the whole model.
        weights: of each block, see `block_weights`.
        activations: that enter the stage.
    """
    chain = [activations]
    for block, held in enumerate(weights, start=first):
        content = mix("forward", block, held, chain[-1].encode())
        chain.append(Tensor(ACTIVATION, activations.kind, activations.number, content))
    return tuple(chain)


def loss(weights: bytes, activations: Tensor, tokens: bytes) -> tuple[Tensor, float]:
    """Gradient of the last stage's output, and the loss."""
    content = mix("loss", weights, activations.encode(), tokens)
    number = int.from_bytes(content[:2], "little")
    return Tensor(GRADIENT, activations.kind, activations.number, content), (1 + number) / (1 << 20)


def backward(first: int, weights: Sequence[bytes], entering: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """Gradient of what enters each block of a body stage, and then that of what comes out.

    Args:
        first, weights: as for `forward`.
        entering: what entered each block.
        gradient: of the stage's output.
    """
    chain = [gradient]
    for index in reversed(range(len(weights))):
        content = mix("backward", first + index, weights[index], entering[index].encode(), chain[-1].encode())
        chain.append(Tensor(GRADIENT, gradient.kind, gradient.number, content))
    return tuple(reversed(chain))


def part_name(stage: int, first: int, part: int) -> str:
    """Name of a part of a stage that begins with this block, the same in whatever stage it is."""
    return f"ends.{part}" if stage == 0 else f"{first + part // PARTS_PER_BLOCK}.{part % PARTS_PER_BLOCK}"


def parts_of_block(index: int) -> range:
    """Parts of the block at this place of a stage."""
    return range(PARTS_PER_BLOCK * index, PARTS_PER_BLOCK * (index + 1))


def weight_gradient(name: str, microbatches: int, number: int, pieces: tuple[bytes, ...]) -> Words:
    """What one microbatch adds to one part: `VALUE_WORDS` words that depend on everything, then one
    count per offset.

    Args:
        name: of the part, see `part_name`.
        microbatches: most of an iteration, M; the offset is ``number % M``.
        pieces: weights and tensors of which this is the gradient.
    """
    words = np.zeros(VALUE_WORDS + microbatches, dtype="<u8")
    words[:VALUE_WORDS] = np.frombuffer(mix("gradient", name, *pieces, size_bytes=8 * VALUE_WORDS), dtype="<u8")
    words[VALUE_WORDS + number % microbatches] = 1
    return words


def counts(part: bytes) -> tuple[int, ...]:
    """How often each offset is in one part of a sum."""
    return tuple(int(word) for word in np.frombuffer(part, dtype="<u8")[VALUE_WORDS:])


def add(left: bytes, right: bytes) -> bytes:
    """Sum of two parts, wrapping."""
    total: Words = np.frombuffer(left, dtype="<u8") + np.frombuffer(right, dtype="<u8")
    return total.tobytes()


def squared_norm(part: bytes) -> float:
    """A number that depends on the part, above 0."""
    return (1 + int.from_bytes(mix("norm", part)[:4], "little") % (1 << 20)) / (1 << 10)


def sum_digest(parts: Sequence[bytes]) -> str:
    """Hex digest of a whole sum, over those of its blocks."""
    blocks = (
        mix("sum", *parts[start : start + PARTS_PER_BLOCK], size_bytes=32) for start in range(0, len(parts), PARTS_PER_BLOCK)
    )
    return mix("sums", *blocks, size_bytes=32).hex()


# ---- state ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartState:
    """Weights and both moments of one part, `STATE_BYTES` each."""

    weights: bytes
    first: bytes = bytes(STATE_BYTES)
    second: bytes = bytes(STATE_BYTES)


State = tuple[PartState, ...]


def drawn(seed: int, split: BlockSplit, salt: int, stage: int) -> State:
    """First weights of a stage."""
    first = split.blocks_of(stage).start
    names = (part_name(stage, first, part) for part in range(part_count(split, stage)))
    return tuple(PartState(mix("draw", seed, salt, name, size_bytes=STATE_BYTES)) for name in names)


def stepped(state: PartState, average: bytes, scalars: StepScalars) -> PartState:
    """One part after one optimizer step: elementwise, so of one part alone."""
    bits = ",".join(str(getattr(scalars, name)) for name in StepScalars.__slots__)
    first = mix("first", state.first, average, bits, size_bytes=STATE_BYTES)
    second = mix("second", state.second, average, bits, size_bytes=STATE_BYTES)
    return PartState(mix("step", state.weights, first, second, bits, size_bytes=STATE_BYTES), first, second)


def merged(before: bytes, after: bytes, weight_before: int, weight_after: int, mode: MergeMode) -> PartState:
    """One part made of the same part of both neighbours; moments zero."""
    return PartState(mix("merge", before, after, weight_before, weight_after, str(mode), size_bytes=STATE_BYTES))


def weights_of(state: State) -> bytes:
    """All weights, as one name for hashing."""
    return b"".join(part.weights for part in state)


def block_weights(state: State) -> tuple[bytes, ...]:
    """All weights of each block of a body stage, as names for hashing."""
    return tuple(weights_of(state[start : start + PARTS_PER_BLOCK]) for start in range(0, len(state), PARTS_PER_BLOCK))


def block_digests(state: State) -> tuple[str, ...]:
    """Hex digest of weights and moments of each block; of the ends of two parts, and of the
    third.
    """
    blocks = (state[start : start + PARTS_PER_BLOCK] for start in range(0, len(state), PARTS_PER_BLOCK))
    return tuple(
        mix("block", *[piece for part in block for piece in (part.weights, part.first, part.second)], size_bytes=32).hex()
        for block in blocks
    )


def state_digest(state: State) -> str:
    """Hex digest over those of the blocks."""
    return mix("state", *block_digests(state), size_bytes=32).hex()
