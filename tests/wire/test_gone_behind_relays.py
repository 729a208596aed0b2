"""A peer that has ended, and that a relay led to as well: whether a call shows that it is gone."""

from __future__ import annotations

import socket

import pytest
from wire_world import echo, identity, member, network, train

from swarmfree.protocol.errors import PeerUnreachable
from swarmfree.protocol.names import Endpoint
from swarmfree.wire.addresses import address_of, parse_address
from swarmfree.wire.network import GrpcNetwork


def closed_port() -> int:
    """Where nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def there(peer: GrpcNetwork, port: int | None = None) -> Endpoint:
    """The peer at its own address, or at another port, and behind a relay that is down."""
    relay = address_of("127.0.0.1", closed_port(), identity("relay").peer_id)
    own = parse_address(peer.here.addresses[0]) if port is None else address_of("127.0.0.1", port, peer.here.member.peer_id)
    return Endpoint(member("peer"), (str(own), str(own.by_way_of(relay))))


async def is_refused(caller: GrpcNetwork, to: Endpoint) -> bool:
    """Whether a call shows that nobody is there."""
    with pytest.raises(PeerUnreachable) as caught:
        await caller.call(to, train(to), silence_s=5)
    return caught.value.refused


async def test_where_a_peer_was_found_before_its_closed_port_shows_that_it_is_gone() -> None:
    """Whatever relays say. Who never found it there knows nothing: a router may have refused."""
    async with network("caller") as caller, network("other") as stranger:
        async with network("peer") as peer:
            peer.serve(echo)
            to, elsewhere = there(peer), there(peer, closed_port())
            await caller.call(to, train(to), silence_s=5)
        assert await is_refused(caller, to)
        assert not await is_refused(stranger, to)
        assert not await is_refused(caller, elsewhere), "it may have moved"


async def test_who_is_there_again_is_found() -> None:
    """At another address, by which it is known from then on."""
    async with network("caller") as caller:
        async with network("peer") as peer:
            peer.serve(echo)
            await caller.call(there(peer), train(there(peer)), silence_s=5)
        async with network("peer") as again:
            again.serve(echo)
            to = there(again)
            await caller.call(to, train(to), silence_s=5)
        assert await is_refused(caller, to)
