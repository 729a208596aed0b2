"""The engine as a shape: one stage's tensors and arithmetic, as a trainer needs them.

`model` implements it in torch, `sim` with integers. Tensors go in and come out as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from mmap import mmap
from typing import Protocol

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.manifest import LogDtype
from swarmfree.protocol.records import StepScalars

Pieces = Sequence[bytes | memoryview]
"""Bytes that follow one another, as they came."""
Writable = bytearray | mmap
"""Memory of a fixed length."""


class Engine(Protocol):
    """One stage's tensors and arithmetic. Synchronous; called from the device thread only, one call at a time.

    Only `view_state` and `unpack` may be called from elsewhere, beside a forward or backward pass.
    State is weights and two moments of the stage, cut into parts; part sizes depend on the manifest and stage alone, and parts never straddle
    blocks. Tickets are numbers chosen by the caller that name a microbatch's kept graph. Partial sums are numbered gradient sums.
    """

    # -- state
    def part_count(self, stage: int) -> int:
        """Number of parts of a stage."""
        ...

    def draw(self, stage: int, salt: int) -> None:
        """Hold `stage` with weights drawn from (seed, salt, stage, parameter), moments zero."""
        ...

    def reserve(self, stage: int, part: int) -> None:
        """Take the memory that one part of `stage` will need, while nobody waits for it; nothing, while a stage is held.

        The next `blank` or `draw` of a stage that is no larger uses it.
        """
        ...

    def blank(self, stage: int) -> None:
        """Hold `stage` with everything zero, to be filled by `write_state` or `merge_state`."""
        ...

    def unload(self) -> None:
        """Hold no stage."""
        ...

    def read_state(self, part: int, *, weights_only: bool) -> bytes:
        """Weights, or weights then first moment then second moment, of one part; float32 little endian."""
        ...

    def view_state(self, part: int, *, weights_only: bool) -> Pieces:
        """The same as views, as long as nothing changes the state."""
        ...

    def write_state(self, part: int, data: bytes, *, weights_only: bool) -> None:
        """Inverse of `read_state`; with `weights_only` the moments stay as they are.

        Raises:
            ValueError: wrong length.
        """
        ...

    def read_shadow(self, part: int) -> bytes:
        """Weights of one part, small: about one byte per weight."""
        ...

    def write_shadow(self, part: int, data: bytes) -> None:
        """Weights of one part from what `read_shadow` gave, nearly as they were; its moments become zero.

        Raises:
            ValueError: wrong length.
        """
        ...

    def merge_state(
        self, part: int, before: Pieces, after: Pieces, weight_before: int, weight_after: int, mode: MergeMode
    ) -> None:
        """Weights of one part = weight_before * before + weight_after * after (float32 bits); CheckFree Algorithm 1."""
        ...

    def state_digest(self) -> str:
        """Hex digest over weights and moments in order."""
        ...

    def digest_part(self, part: int) -> None:
        """Do what `state_digest` has to do for one part now; it is spared that unless the part changes."""
        ...

    def export(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """Hugging Face name -> (shape, float32 bytes) of the stage's weights."""
        ...

    # -- work of the body
    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Blocks of this stage on (B, T, D) in wire dtype; keeps the graph under `ticket`."""
        ...

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """Add the weight gradient to `partial_sum`, drop the graph, return the input gradient."""
        ...

    def forward_only(self, activations: bytes) -> bytes:
        """The same forward without a graph."""
        ...

    def packed_bytes(self, size_bytes: int, dtype: LogDtype) -> int:
        """How long something of this length is once it is packed; from any thread."""
        ...

    def pack(self, data: bytes, dtype: LogDtype, room: Writable) -> None:
        """Activations or a gradient of them, (B, T, D) in wire dtype, as they are kept in an activation log.

        Args:
            room: where they are written, as long as `packed_bytes` says.

        Raises:
            ValueError: wrong length.
        """
        ...

    def unpack(self, data: bytes, dtype: LogDtype) -> bytes:
        """Inverse of `pack`, but for rounding.

        Raises:
            ValueError: wrong length.
        """
        ...

    # -- work of the ends
    def embed(self, ticket: int, tokens: bytes) -> bytes:
        """Embed (B, T) of tokens (B, T + 1); keeps what `embed_backward` needs."""
        ...

    def embed_only(self, tokens: bytes) -> bytes:
        """The same without keeping anything."""
        ...

    def embed_backward(self, ticket: int, gradient: bytes, partial_sum: int) -> None:
        """Add the embedding's gradient to `partial_sum`."""
        ...

    def loss(self, activations: bytes, tokens: bytes, partial_sum: int) -> tuple[bytes, float]:
        """Norm, head and cross-entropy divided by the iteration's tokens; adds the head's gradient to `partial_sum`.

        Returns:
            The gradient of `activations` in wire dtype, and the loss as float64.
        """
        ...

    def loss_only(self, activations: bytes, tokens: bytes) -> float:
        """Mean cross-entropy, nats per token, float64; no gradient."""
        ...

    def forget(self, ticket: int) -> None:
        """Drop a kept graph, if it is there."""
        ...

    # -- sums
    def sum_bytes(self, part: int) -> int:
        """How long one part of a sum of the held stage is; from any thread."""
        ...

    def contribution(self, partial_sums: Sequence[int], part: int) -> bytes:
        """One part of the sum of these partial sums, added in this order, float32."""
        ...

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """Add float32 contributions in order; the sum and its squared L2 norm in float64."""
        ...

    def keep_average(self, part: int, data: bytes) -> None:
        """Keep one part of the average of this iteration."""
        ...

    def read_average(self, part: int) -> bytes:
        """Give it back."""
        ...

    def average_digest(self) -> str:
        """Hex digest over all parts in order."""
        ...

    def step(self, scalars: StepScalars) -> None:
        """One canonical AdamW step with the kept average; see `records.StepScalars`."""
        ...

    def step_part(self, part: int, average: bytes, scalars: StepScalars) -> None:
        """The same step of one part alone, with its average from outside: what a joiner does to the parts that it has already.

        Raises:
            ValueError: wrong length.
        """
        ...

    def void(self, partial_sum: int) -> None:
        """Forget one sum."""
        ...

    def clear(self) -> None:
        """Forget all sums and graphs; the average stays until the next `keep_average`."""
        ...
