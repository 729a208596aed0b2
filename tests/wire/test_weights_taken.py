"""How fast weights come from a peer, as `swarmfree doctor` says."""

from __future__ import annotations

from wire_world import fail_with, member, peers

from swarmfree.cli.checkup import TELLING_BYTES, Taken, take
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import GetState, Header, Request, State
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Incoming, Reply

PART_BYTES, PARTS = TELLING_BYTES, 40
DIGEST = "ab" * 32


async def _give_parts(_header: Header, request: Request, _incoming: Incoming) -> Reply:
    """A stage of many parts, one of them at a time."""
    assert isinstance(request, GetState)
    return Reply(State(PARTS, 7, (PART_BYTES,), (DIGEST, DIGEST)), bytes(PART_BYTES))


async def test_no_more_is_taken_than_the_time_allows() -> None:
    """One call where there is no time for a second one; and a speed is said of it."""
    async with peers(_give_parts) as (caller, peer):
        there = Endpoint(member("peer"), peer.here.addresses)
        short = await take(caller, there, 1, 0.0001)
        long = await take(caller, there, 1, 30.0)
    assert short.size_bytes == PART_BYTES
    assert PART_BYTES * PARTS > long.size_bytes >= 8 << 20 > long.size_bytes - PART_BYTES
    assert "Mbit/s from the nearest" in str(short)


async def test_a_donor_that_gives_nothing_is_named_with_its_reason() -> None:
    """Nothing is made up where nothing was measured."""
    async with peers(fail_with(Refused(RefusalKind.NOT_YET, "it builds its stage"))) as (caller, peer):
        taken = await take(caller, Endpoint(member("peer"), peer.here.addresses), 1, 1.0)
    assert taken.size_bytes == 0
    assert str(taken).startswith("bandwidth not measured: ")
    assert "it builds its stage" in str(taken)
    assert (
        str(Taken(TELLING_BYTES - 1, 0.5)) == f"bandwidth not measured: {TELLING_BYTES - 1:,} bytes of weights say nothing of it"
    )
