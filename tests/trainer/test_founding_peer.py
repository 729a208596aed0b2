"""A founder that has read its genesis: when it leads from nothing, and when it does not yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from swarmfree.protocol.announcement import PeerState
from swarmfree.protocol.names import ABSENT, Founder, Member
from swarmfree.trainer.membership import Membership

ME, OTHER = Member("QmFounder", "0" * 16), Member("QmOther", "1" * 16)


def announced(member: Member, iteration: int = 0, state: PeerState = PeerState.STANDBY) -> Any:
    """What the directory shows of a peer."""
    return SimpleNamespace(endpoint=SimpleNamespace(member=member, where="nowhere"), iteration=iteration, state=state)


async def leads(number: int, *shown: Any, is_stored: bool = False) -> bool:
    """Whether the founder of this genesis leads, where the directory shows these peers."""
    led: list[bool] = []

    async def named() -> Founder:
        return Founder(number, ME.peer_id)

    async def lead(_inherited: object) -> bool:
        led.append(True)
        return False

    async def are_stored() -> str:
        return "the store has snapshots of it" if is_stored else ""

    context = SimpleNamespace(
        manifest=SimpleNamespace(recovery=SimpleNamespace(snapshot_every=0)),
        me=ME,
        ports=SimpleNamespace(directory=SimpleNamespace(founder=named, order=lambda: None)),
        tell=lambda _: None,
    )
    replica_state = SimpleNamespace(known_plan=None, records_held=0, has_begun=False, stage=ABSENT, is_from_disk=False)
    stage_member = SimpleNamespace(replica_state=replica_state, hears_coordinator=False)
    membership = Membership(cast("Any", context), cast("Any", stage_member), cast("Any", None), lead, are_stored=are_stored)
    await membership._found(shown)
    return bool(led)


async def test_a_directory_that_does_not_show_the_founder_itself_is_not_believed() -> None:
    """It does not show all others either; with the founder in it, it says who is there."""
    assert not await leads(1, announced(OTHER))
    assert not await leads(1)
    assert await leads(1, announced(ME), announced(OTHER))


async def test_what_others_announce_says_that_the_run_has_begun() -> None:
    """A record always; that somebody serves under the first genesis alone: later it may be left
    over from an earlier founder.
    """
    serves = announced(OTHER, state=PeerState.SERVING)
    assert not await leads(1, announced(ME), serves)
    assert await leads(2, announced(ME), serves)
    assert not await leads(2, announced(ME), announced(OTHER, iteration=1))


async def test_a_run_of_which_the_store_has_snapshots_is_not_begun_again() -> None:
    """A bootstrap node that died before it knew that the run had begun names a founder anew."""
    for number in (1, 2):
        assert not await leads(number, announced(ME), is_stored=True)
