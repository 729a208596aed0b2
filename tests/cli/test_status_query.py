"""What `swarmfree status` learns of peers that it calls."""

from __future__ import annotations

from typing import Any, cast

import pytest

from swarmfree.cli.status_query import Lookout
from swarmfree.protocol.errors import PeerSilent
from swarmfree.protocol.messages import PlanAnswer, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from tests.mutants.alone import ME, SIBLING, A, D, plan


class Line:
    """A network in which one member is silent, and another one is a guest."""

    async def call(self, to: Endpoint, request: Request, *, silence_s: float) -> Reply:
        """Implements `Network.call`."""
        del request, silence_s
        if to == SIBLING:
            raise PeerSilent("it says nothing")
        return Reply(PlanAnswer(None, "", host=A.member.peer_id if to == D else "", held_up="the lead's"))


async def test_who_is_gone_and_who_is_a_guest_is_told_by_their_answers() -> None:
    """All that a plan names are called: one that does not answer is gone, and a guest says whose
    it is.
    """
    lookout = Lookout(cast("Any", None), 1.0)
    lookout._network = cast("Any", Line())
    gone, hosts = await lookout._call_all((), plan(1), 1.0)
    assert gone == {str(SIBLING.member)}
    assert hosts == {str(D.member): A.member.peer_id}
    assert str(ME.member) not in hosts


@pytest.mark.parametrize(("leader", "told"), [(None, "own"), (A, "own"), (ME, "the lead's"), (SIBLING, None)])
async def test_what_holds_up_a_pause_is_asked_of_the_coordinator(leader: Endpoint | None, told: str | None) -> None:
    """A member says who leads, and knows nothing of it."""
    lookout = Lookout(cast("Any", None), 1.0)
    lookout._network = cast("Any", Line())
    answer = await lookout._coordinators(A, PlanAnswer(None, "", coordinator=leader, held_up="own"), 1.0)
    assert (answer and answer.held_up) == told
