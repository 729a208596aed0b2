"""Rules of a run's end, each with a way to take it out; see `removals`."""

from __future__ import annotations

import pytest

from swarmfree.protocol.ports import Reply
from swarmfree.trainer.run_end import RunEnd


def lineage_of_weights(patch: pytest.MonkeyPatch) -> None:
    """What a member has written of a stage counts on any lineage that it joins later, and that all is written as well (A run's life, 8)."""
    write = RunEnd.write

    async def careless(self: RunEnd) -> Reply:
        state = self._stage_member.replica_state
        if self._writes[0] == state.stage:
            self._writes = state.stage, state.lineage
        self._all_written_of = self._all_written_of and state.lineage
        return await write(self)

    patch.setattr(RunEnd, "write", careless)
