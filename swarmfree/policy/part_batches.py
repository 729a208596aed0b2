"""How many parts of a state travel in one call: a call costs as much as half a megabyte, whatever
it carries.
"""

from __future__ import annotations

from collections.abc import Iterator

from swarmfree.policy.retention import FULL_BYTES, WIRE_BYTES
from swarmfree.protocol.manifest import Manifest

STATE_BATCH_BYTES = 8 << 20
"""What one call carries at most, unless one part is larger: little beside a stage, and soon there
on a slow link, since a builder's progress is what has arrived.
"""


def state_batch(manifest: Manifest, *, weights_only: bool) -> int:
    """Number of parts of a state that one call asks for and returns."""
    return max(1, STATE_BATCH_BYTES // (manifest.ring.part_bytes * (1 if weights_only else FULL_BYTES // WIRE_BYTES)))


def given(asked: int, batch: int, part: int, part_count: int) -> range:
    """Range of parts to return to a request for `asked` parts from `part` on: at least one."""
    return range(part, part + max(1, min(asked, batch, part_count - part)))


def batches(part_count: int, per_block: int, batch: int) -> Iterator[range]:
    """Split all parts of a stage into batches that travel in one call each.

    No batch crosses a block boundary, since a donor may keep adjacent blocks apart.
    """
    for block in range(0, part_count, per_block):
        end = min(block + per_block, part_count)
        for start in range(block, end, batch):
            yield range(start, min(start + batch, end))
