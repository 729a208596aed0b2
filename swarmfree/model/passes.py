"""Forward and backward of one stage, from bytes to bytes.

A pass knows its stage's module and the shape and dtype of what travels; it keeps no graph and owns
no sum: weight gradients go where the parameters' ``grad`` points. Decoding comes before arithmetic,
so that bytes of a wrong length harm no sum.

Letters: ``B`` rows, ``T`` tokens per row, ``D`` width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swarmfree.model.codec import WireDtype, decode_activations, decode_tokens, encode_activations, round_to
from swarmfree.model.shadow import from_int8, size_bytes, to_int8
from swarmfree.model.stages import BodyStage, Ends
from swarmfree.protocol.engine_port import Writable
from swarmfree.protocol.manifest import LogDtype, Manifest


@dataclass(frozen=True, slots=True)
class Graph:
    """What a backward pass needs of its forward pass.

    Args:
        entry: the stage's input, a leaf that collects the input gradient; None where there is none
            (tokens).
        exit: the stage's output.
    """

    entry: Tensor | None
    exit: Tensor


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What travels: (B, T, D) activations in `wire_dtype`, and how many predicted tokens an
    iteration has.
    """

    rows: int
    tokens_per_row: int
    width: int
    wire_dtype: WireDtype
    tokens_per_iteration: int

    @staticmethod
    def of(manifest: Manifest) -> BatchShape:
        """Read the shape from a run's manifest."""
        model, rows, wire_dtype = manifest.model, manifest.batch.rows, manifest.ring.wire_dtype
        return BatchShape(rows, model.tokens_per_row, model.width, wire_dtype, manifest.tokens_per_iteration)

    def decode(self, data: bytes) -> Tensor:
        """Activations or a gradient of them, as float32.

        Raises:
            ValueError: wrong length.
        """
        return decode_activations(data, (self.rows, self.tokens_per_row, self.width), self.wire_dtype)

    def encode(self, tensor: Tensor) -> bytes:
        """Inverse of `decode`."""
        return encode_activations(tensor, self.wire_dtype)

    def packed_bytes(self, dtype: LogDtype) -> int:
        """How long something that travels is once it is packed."""
        count = self.rows * self.tokens_per_row * self.width
        if dtype == "int8":
            return size_bytes(count)
        return count * (2 if "bfloat16" in {dtype, self.wire_dtype} else 4)

    def pack(self, data: bytes, dtype: LogDtype, room: Writable) -> None:
        """What travels as an activation log keeps it, rounded once, written to `room`.

        Raises:
            ValueError: wrong length.
        """
        if dtype == "int8":
            room[:] = to_int8(self.decode(data).flatten())
        elif dtype == "bfloat16" and self.wire_dtype == "float32":
            round_to(room, data)
        elif len(data) != len(room):
            raise ValueError(f"{len(data):,} bytes to be kept; {len(room):,} expected")
        else:
            room[:] = data

    def unpack(self, data: bytes, dtype: LogDtype) -> bytes:
        """Inverse of `pack`, but for rounding.

        Raises:
            ValueError: wrong length.
        """
        shape = self.rows, self.tokens_per_row, self.width
        if dtype == "int8":
            return self.encode(from_int8(data, math.prod(shape)))
        return self.encode(decode_activations(data, shape, "bfloat16" if dtype == "bfloat16" else self.wire_dtype))

    def inputs_and_targets(self, data: bytes) -> tuple[Tensor, Tensor]:
        """A microbatch's tokens (B, T + 1) as what is read and what is to be predicted, (B, T)
        each.

        Raises:
            ValueError: wrong length.
        """
        tokens = decode_tokens(data, (self.rows, self.tokens_per_row + 1))
        return tokens[:, :-1], tokens[:, 1:]


class _Given(torch.autograd.Function):
    """A scalar whose gradient by a tensor is what was given.

    Torch, given that gradient itself, compares shapes as symbols, and loads SymPy for it: 37 MB and
    0.4 s of processor.
    """

    @staticmethod
    def forward(context: Any, exit_: Tensor, gradient: Tensor) -> Tensor:
        """Nothing to be read: it is differentiated."""
        assert exit_.shape == gradient.shape, f"a gradient of {tuple(gradient.shape)} for {tuple(exit_.shape)}"
        context.gradient = gradient
        return exit_.new_zeros(())

    @staticmethod
    def backward(context: Any, *_ones: Tensor) -> tuple[Tensor, None]:
        """What was given."""
        return context.gradient, None


def run_forward(body: BodyStage, shape: BatchShape, activations: bytes) -> tuple[Graph, bytes]:
    """Blocks on activations: the graph to keep and the output to send."""
    entry = shape.decode(activations).requires_grad_()
    out = body(entry)
    return Graph(entry, out), shape.encode(out)


def run_forward_only(body: BodyStage, shape: BatchShape, activations: bytes) -> bytes:
    """The same output without a graph."""
    with torch.inference_mode():
        return shape.encode(body(shape.decode(activations)))


def run_backward(graph: Graph, gradient: Tensor) -> Tensor | None:
    """Add weight gradients to the parameters' ``grad``, and return the gradient of the graph's
    entry, if it has one.
    """
    torch.autograd.backward(_Given.apply(graph.exit, gradient))  # type: ignore[no-untyped-call]
    return None if graph.entry is None else graph.entry.grad


def run_embed(ends: Ends, shape: BatchShape, tokens: bytes) -> tuple[Graph, bytes]:
    """Embedding of a microbatch: the graph to keep and the output to send."""
    out = ends.embed(shape.inputs_and_targets(tokens)[0])
    return Graph(None, out), shape.encode(out)


def run_embed_only(ends: Ends, shape: BatchShape, tokens: bytes) -> bytes:
    """The same output without a graph."""
    with torch.inference_mode():
        return shape.encode(ends.embed(shape.inputs_and_targets(tokens)[0]))


def start_loss(ends: Ends, shape: BatchShape, activations: bytes, tokens: bytes) -> tuple[Graph, float]:
    """Norm, head and cross-entropy of every predicted token.

    Returns:
        The graph from activations to token losses, and the microbatch's share of the iteration's
        mean loss: nats added in float64 over its tokens, divided by the iteration's tokens. The
        gradient to give to `run_backward` is `loss_gradient`.
    """
    entry = shape.decode(activations).requires_grad_()
    losses = ends.token_losses(entry, shape.inputs_and_targets(tokens)[1])
    share = losses.detach().double().sum().item() / shape.tokens_per_iteration
    return Graph(entry, losses), share


def loss_gradient(graph: Graph, shape: BatchShape) -> Tensor:
    """Gradient of the iteration's mean loss by every token's loss: the same for all."""
    return torch.full_like(graph.exit, 1.0 / shape.tokens_per_iteration, requires_grad=False)


def run_loss_only(ends: Ends, shape: BatchShape, activations: bytes, tokens: bytes) -> float:
    """Mean cross-entropy over the microbatch's tokens, nats per token, summed in float64."""
    with torch.inference_mode():
        losses = ends.token_losses(shape.decode(activations), shape.inputs_and_targets(tokens)[1])
        return losses.double().sum().item() / losses.numel()
