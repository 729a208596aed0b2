"""A coordinator that gives way goes to the one that has won: one peer alone, and what it knows afterwards."""

from __future__ import annotations

import pytest

from swarmfree.protocol.messages import Beat
from swarmfree.protocol.names import Endpoint
from tests.mutants.alone import ME, Alone, D, at, play


@pytest.mark.parametrize("heir", [D, None], ids=["gave-way", "no-majority"])
def test_whoever_gave_way_knows_to_whom(heir: Endpoint | None) -> None:
    """It told itself as it told its members who has won, and says hello there first; without a winner it knows of nobody."""

    async def story(alone: Alone) -> Endpoint | None:
        await alone.books.beat(ME, Beat(at(1), 0, 0.0))
        if heir is not None:
            await alone.books.rejoin(ME, heir)
        alone.books.lose_coordinator()
        return alone.standing.coordinator

    assert play(story) == heir
