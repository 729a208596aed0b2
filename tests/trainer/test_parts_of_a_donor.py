"""How a builder asks one donor for several parts, and what it takes as an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.errors import ProtocolViolation
from swarmfree.protocol.messages import GetState, Request, State
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from tests.mutants.alone import A, Alone, play

ASKED = GetState(1, 3, "", 4, weights_only=True, count=5)
BATCH = 2


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_donor_is_asked_for_what_is_missing_and_gives_no_more(*, is_whole: bool) -> None:
    """It gives two parts at once, and the last one alone; with two there, the answer is refused:
    where a part belongs would be a guess.
    """

    async def story(alone: Alone) -> None:
        def donor(to: Endpoint, request: Request) -> Reply:
            assert (to, type(request)) == (A, GetState)
            assert isinstance(request, GetState)
            parts = range(request.part, request.part + (min(request.count, BATCH) if is_whole else BATCH))
            sizes = (1,) * len(parts) if len(parts) > 1 else ()
            return Reply(State(9, 3, sizes), pieces=[bytes([part]) for part in parts])

        alone.line.answer = donor
        builder, building = alone.builder, cast("Any", SimpleNamespace(received_bytes=0))
        if is_whole:
            found = await builder._get_parts(building, A, ASKED)
            assert [b"".join(pieces) for pieces in found] == [bytes([part]) for part in range(4, 9)]
        else:
            with pytest.raises(ProtocolViolation):
                await builder._get_parts(building, A, ASKED)
        asked = [(request.part, request.count) for _, request in alone.line.asked if isinstance(request, GetState)]
        assert asked == [(4, 5), (6, 3), (8, 1)]

    play(story)
