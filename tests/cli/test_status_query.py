"""What `swarmfree status` learns of peers that it calls."""

from __future__ import annotations

from typing import Any, cast

import pytest

from swarmfree.cli.status_query import Lookout, asked_by
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import PeerSilent
from swarmfree.protocol.messages import PlanAnswer, Request
from swarmfree.protocol.names import Endpoint, Member
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


def test_many_who_look_do_not_all_ask_the_same_peer() -> None:
    """Peers that serve come before others, and of them those after whoever asks, all around; four
    are asked at most.
    """

    def announced(peer_id: str, state: PeerState = PeerState.SERVING) -> Announcement:
        endpoint = Endpoint(Member(peer_id, "0" * 16), f"127.0.0.1:{ord(peer_id)}")
        return Announcement(endpoint, state, 1, 0, "", 0.0, 0.0, can_feed=False, revision=1, expires_s=1.0)

    all_of_them = [announced("A", PeerState.STANDBY), *map(announced, "BDFH")]
    asked = {asker: "".join(one.endpoint.member.peer_id for one in asked_by(asker, all_of_them[::-1])) for asker in "ACDGZ"}
    assert asked == {"A": "BDFH", "C": "DFHB", "D": "FHBD", "G": "HBDF", "Z": "BDFH"}
    assert [one.endpoint.member.peer_id for one in asked_by("C", all_of_them[:3])] == ["D", "B", "A"]


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
