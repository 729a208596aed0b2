"""The engine as a shape: one stage's tensors and arithmetic, as a trainer needs them.

`model` implements it in torch, `sim` with integers. Tensors go in and come out as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from mmap import mmap
from typing import Protocol, Self

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.manifest import LogDtype
from swarmfree.protocol.records import StepScalars
from swarmfree.protocol.split import BlockSplit

Pieces = Sequence[bytes | memoryview]
"""Bytes that follow one another, as they came."""
Writable = bytearray | mmap
"""Memory of a fixed length."""


class Engine(Protocol):
    """The port of one stage's tensors and arithmetic; the device thread calls it, one call at a
    time.

    Only `read_state` and `unpack` may be called from elsewhere, beside a forward or backward pass.
    State is weights and two moments of the stage, cut into parts; the sizes of a block's parts
    depend on the manifest alone, and parts never straddle blocks. Tickets are numbers chosen by the
    caller that name a microbatch's kept graph. Partial sums are numbered gradient sums.
    """

    # -- state
    def follow(self, split: BlockSplit) -> None:
        """Cut stages so from here on, at first the manifest's way; what is held is let go where the
        stage has other blocks then.
        """
        ...

    def part_count(self, stage: int) -> int:
        """Return the number of parts of a stage; all blocks have equally many."""
        ...

    def draw(self, stage: int, salt: int) -> None:
        """Hold `stage` with weights drawn from (seed, salt, stage, parameter), moments zero."""
        ...

    def reserve(self, stage: int, part: int) -> None:
        """Take the memory that one part of `stage` will need; do nothing while a stage is held.

        The next `blank` or `draw` of a stage that is no larger uses it.
        """
        ...

    def blank(self, stage: int) -> None:
        """Hold `stage` with everything zero, to be filled by `write_state` or `merge_state`."""
        ...

    def copy_part(self, part: int, other: Self, there: int) -> None:
        """Have a part of another engine of the same run and kind be what this one's is, weights and
        moments; the two are of one length.
        """
        ...

    def swap(self, other: Self) -> None:
        """Exchange what is held, and how it is cut, with another engine of the same run and kind;
        graphs, sums and averages of both are dropped.
        """
        ...

    def unload(self) -> None:
        """Drop the stage that is held."""
        ...

    def read_state(self, part: int, *, weights_only: bool) -> bytes:
        """Return one part: weights, or weights, first and second moment; float32 little endian."""
        ...

    def write_state(self, part: int, data: bytes, *, weights_only: bool) -> None:
        """Write one part, the inverse of `read_state`; with `weights_only` the moments stay as they
        are.

        Raises:
            ValueError: wrong length.
        """
        ...

    def read_shadow(self, part: int) -> bytes:
        """Return the weights of one part as a plain shadow: about one byte per weight."""
        ...

    def write_shadow(self, part: int, data: bytes) -> None:
        """Write one part from a plain shadow: weights nearly as they were, moments zero.

        Raises:
            ValueError: wrong length.
        """
        ...

    def merge_state(
        self, part: int, before: Pieces, after: Pieces, weight_before: int, weight_after: int, mode: MergeMode
    ) -> None:
        """Set one part's weights to weight_before * before + weight_after * after; CheckFree
        Algorithm 1.

        The weights of the merge are float32 bits.
        """
        ...

    def state_digest(self) -> str:
        """Return the hex digest of all weights and moments in order."""
        ...

    def digest_part(self, part: int) -> tuple[str, str, str]:
        """Hash one part ahead of `state_digest`, which then uses the result unless the part
        changes; hex digests of weights, first and second moment.
        """
        ...

    def export(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """Return the stage's weights: Hugging Face name -> (shape, float32 bytes)."""
        ...

    # -- work of the body
    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Run this stage's blocks on (B, T, D) in wire dtype, and keep the graph under `ticket`."""
        ...

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """Add the weight gradient to `partial_sum`, drop the graph, return the input gradient."""
        ...

    def forward_only(self, activations: bytes) -> bytes:
        """Run the same forward pass without a graph."""
        ...

    def packed_bytes(self, size_bytes: int, dtype: LogDtype) -> int:
        """Return the length of `size_bytes` of activations once packed; any thread may call it."""
        ...

    def pack(self, data: bytes, dtype: LogDtype, room: Writable) -> None:
        """Pack activations or their gradient, (B, T, D) in wire dtype, for an activation log.

        Args:
            room: where they are written, as long as `packed_bytes` says.

        Raises:
            ValueError: wrong length.
        """
        ...

    def unpack(self, data: bytes, dtype: LogDtype) -> bytes:
        """Unpack what `pack` wrote; the result differs from the original by rounding only.

        Raises:
            ValueError: wrong length.
        """
        ...

    # -- work of the ends
    def embed(self, ticket: int, tokens: bytes) -> bytes:
        """Embed the first T of (B, T + 1) tokens, and keep what `embed_backward` needs under
        `ticket`.
        """
        ...

    def embed_only(self, tokens: bytes) -> bytes:
        """Embed the first T of (B, T + 1) tokens, and keep nothing."""
        ...

    def embed_backward(self, ticket: int, gradient: bytes, partial_sum: int) -> None:
        """Add the embedding's gradient to `partial_sum`."""
        ...

    def loss(self, activations: bytes, tokens: bytes, partial_sum: int) -> tuple[bytes, float]:
        """Run norm, head and cross-entropy over the iteration's tokens; add the head's gradient to
        `partial_sum`.

        Returns:
            The gradient of `activations` in wire dtype, and the loss as float64.
        """
        ...

    def loss_only(self, activations: bytes, tokens: bytes) -> float:
        """Return the mean cross-entropy in nats per token, float64, without a gradient."""
        ...

    def forget(self, ticket: int) -> None:
        """Drop the graph kept under `ticket`, if there is one."""
        ...

    # -- sums
    def sum_bytes(self, part: int) -> int:
        """Return the length of one part of a sum of the held stage; any thread may call it."""
        ...

    def contribution(self, partial_sums: Sequence[int], part: int) -> bytes:
        """Return one part of the sum of these partial sums, added in this order, float32."""
        ...

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """Add float32 contributions in order; return the sum and its squared L2 norm in float64."""
        ...

    def distance(self, found: bytes, expected: bytes, *, is_sum: bool) -> float:
        """Return the relative L2 distance |found - expected| / |expected|; infinite where a length
        is wrong or a value is not finite.

        Args:
            found, expected: one part of a sum, or a tensor in wire dtype.
            is_sum: which of the two.
        """
        ...

    def keep_average(self, part: int, data: bytes) -> None:
        """Store one part of this iteration's average."""
        ...

    def read_average(self, part: int) -> bytes:
        """Return one part of the stored average."""
        ...

    def average_digest(self) -> str:
        """Return the hex digest of the stored average, over all parts in order."""
        ...

    def step(self, scalars: StepScalars) -> None:
        """Do one canonical AdamW step with the stored average; see `records.StepScalars`."""
        ...

    def step_part(self, part: int, average: bytes, scalars: StepScalars) -> None:
        """Step one part alone with an average from outside; a joiner does this to parts it has
        already.

        Raises:
            ValueError: wrong length.
        """
        ...

    def void(self, partial_sum: int) -> None:
        """Drop one partial sum."""
        ...

    def clear(self) -> None:
        """Drop all partial sums and graphs; the average stays until the next `keep_average`."""
        ...
