"""Addresses that change: two peers behind relays, and a directory in memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest
from directory_world import announcement_of
from relay_world import behind, relay
from wire_world import identity, network

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import CallFailed, PeerUnreachable
from swarmfree.protocol.messages import GetPlan
from swarmfree.protocol.names import Endpoint
from swarmfree.wire.address_updates import AddressUpdates
from swarmfree.wire.addresses import address_of, parse_address
from swarmfree.wire.network import GrpcNetwork


class MemoryDirectory:
    """What the peer of the tests has announced."""

    def __init__(self) -> None:
        self.said: list[Endpoint] = []
        self.looks = 0

    async def announce_at(self, endpoint: Endpoint) -> None:
        """Keep it."""
        self.said.append(endpoint)

    async def announcements(self) -> tuple[Announcement, ...]:
        """The last one."""
        self.looks += 1
        said = announcement_of(identity("peer"))
        return tuple(dataclasses.replace(said, endpoint=endpoint) for endpoint in self.said[-1:])


@contextlib.asynccontextmanager
async def updated(peer: GrpcNetwork, directory: MemoryDirectory) -> AsyncIterator[None]:
    """The peer keeps its addresses up."""
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(AddressUpdates(peer, directory, again_s=0.2).keep())
        yield
        keeping.cancel()


async def until_answered(caller: GrpcNetwork, there: Endpoint) -> int:
    """Call until an answer comes; how many calls failed before."""
    failed = 0
    async with asyncio.timeout(20):
        while True:
            try:
                await caller.call(there, GetPlan(), silence_s=5)
            except CallFailed:
                failed += 1
                await asyncio.sleep(0.05)
            else:
                return failed


async def test_a_peer_whose_only_known_relay_dies_is_found_in_the_directory() -> None:
    """The caller has a plan that names the first relay alone, and the peer never calls it. When
    that relay dies, calls go by way of the second one, which the peer has announced since; also
    where an older word of the peer comes after that, or names a port of its own that is closed.
    """
    async with contextlib.AsyncExitStack() as living, relay("second") as second, network("caller") as caller:
        first = await living.enter_async_context(relay("first"))
        directory = MemoryDirectory()
        async with behind(first, second) as peer, updated(caller, directory), updated(peer, directory):
            async with asyncio.timeout(20):
                while len(peer.here.addresses) < 2:
                    await asyncio.sleep(0.01)
            (by_first,) = (address for address in peer.here.addresses if address.startswith(str(first.address)))
            planned = Endpoint(peer.here.member, (by_first,))
            assert await until_answered(caller, planned) == 0
            assert directory.looks == 0
            await living.aclose()
            assert await until_answered(caller, planned) > 0
            assert directory.said[-1] == peer.here
            closed = address_of("127.0.0.1", parse_address(by_first, relayed=True).port, peer.here.member.peer_id)
            for older in (planned, Endpoint(peer.here.member, (str(closed),))):
                looks = directory.looks
                caller.hear(older)
                assert await until_answered(caller, planned) > 0
                assert directory.looks > looks


async def test_many_failed_calls_look_once_a_while() -> None:
    """A hundred calls to a peer that no relay leads to make a few looks, not a hundred."""
    async with relay() as one, network("caller") as caller:
        directory = MemoryDirectory()
        async with behind(one) as peer:
            there = peer.here
        async with updated(caller, directory):
            for _ in range(100):
                with pytest.raises(PeerUnreachable):
                    await caller.call(there, GetPlan(), silence_s=5)
        assert 1 <= directory.looks < 20
