"""A snapshot of a stage, as it lies on a disk: what it is ready for, and the record before that.

The state itself goes beside it, part by part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.records import Record


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stage was when it had stepped with a decided record.

    Args:
        stage: whose state it is.
        record: the last record before it, by which a run goes on: its lineage, who voted, how many
            steps each stage has done.
        past: iteration -> lineage that a state ready for it stands on, for some while before.
        part_count: parts of its state.
    """

    stage: int
    record: Record
    past: Mapping[int, str]
    part_count: int

    @property
    def held(self) -> HeldSnapshot:
        """Its name."""
        return HeldSnapshot(self.stage, self.record.iteration + 1, self.record.lineage())
