"""One stage's weights as they come to whoever takes them out of a run, with what proves them.

Imports no torch: whoever exports computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from swarmfree.model.block_digests import block_digests, stage_digest
from swarmfree.model.layout import FLOAT_BYTES, Layout
from swarmfree.protocol.errors import ProtocolViolation


class ExportedState:
    """The weights of a stage, part by part, and the digests that its state digest is made of.

    Args:
        layout: of the stage.
    """

    def __init__(self, layout: Layout) -> None:
        """Nothing is here."""
        self._layout = layout
        self._weights = bytearray(layout.size * FLOAT_BYTES)
        self._digests: dict[int, tuple[bytes, bytes, bytes]] = {}

    def take(self, part: int, content: bytes, moment_digests: Sequence[str]) -> None:
        """Take one part.

        Args:
            part: which.
            content: its weights, float32 little-endian.
            moment_digests: hex BLAKE3 of its first and second moment.

        Raises:
            ProtocolViolation: its length, or a digest, cannot be.
        """
        where = self._layout.parts[part]
        if len(content) != (expected := where.floats * FLOAT_BYTES):
            raise ProtocolViolation(f"{len(content):,} bytes as part {part} of stage {self._layout.stage}; {expected:,} expected")
        try:
            first, second = (bytes.fromhex(digest) for digest in moment_digests)
        except ValueError as error:
            raise ProtocolViolation(f"no digests of the moments of part {part} of stage {self._layout.stage}") from error
        self._weights[where.start * FLOAT_BYTES : where.stop * FLOAT_BYTES] = content
        self._digests[part] = (blake3(content).digest(), first, second)

    def state_digest(self) -> str:
        """As a record names it."""
        return stage_digest(block_digests(self._layout, [self._digests[part] for part in range(len(self._layout.parts))]))

    def tensors(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """Hugging Face name -> (shape, float32 bytes)."""
        weights = memoryview(self._weights)
        return {
            slot.name: (slot.shape, bytes(weights[slot.start * FLOAT_BYTES : slot.stop * FLOAT_BYTES]))
            for slot in self._layout.slots
        }
