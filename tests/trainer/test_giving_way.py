"""A coordinator that gives way goes to the one that has won: one peer alone, and what it knows
afterwards.
"""

from __future__ import annotations

import pytest

from swarmfree.protocol.messages import Heartbeat
from swarmfree.protocol.names import Endpoint
from tests.mutants.alone import ME, Alone, D, at, play


@pytest.mark.parametrize("successor", [D, None], ids=["gave-way", "no-majority"])
def test_whoever_gave_way_knows_to_whom(successor: Endpoint | None) -> None:
    """It told itself as it told its members who has won, and says hello there first; without a
    winner it knows of nobody.
    """

    async def story(alone: Alone) -> Endpoint | None:
        await alone.stage_member.heartbeat(ME, Heartbeat(at(1), 0, 0.0))
        if successor is not None:
            await alone.stage_member.rejoin(ME, successor)
        alone.stage_member.lose_coordinator()
        return alone.replica_state.coordinator

    assert play(story) == successor
