"""Addresses that change: two peers behind relays, and a directory in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from relay_world import behind, relay
from wire_world import network

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import CallFailed, PeerUnreachable
from swarmfree.protocol.messages import GetPlan
from swarmfree.protocol.names import Endpoint
from swarmfree.wire.address_updates import AddressUpdates
from swarmfree.wire.network import GrpcNetwork


class MemoryDirectory:
    """One place for all: where each peer has said that it is, told to one reader."""

    def __init__(self, hear: Callable[[Endpoint], None]) -> None:
        self.hear = hear
        self.said: list[Endpoint] = []
        self.looks = 0

    async def announce_at(self, endpoint: Endpoint) -> None:
        """Keep it."""
        self.said.append(endpoint)

    async def announcements(self) -> tuple[Announcement, ...]:
        """Tell the reader the last one."""
        self.looks += 1
        if self.said:
            self.hear(self.said[-1])
        return ()


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
    that relay dies, calls go by way of the second one, which the peer has announced since.
    """
    async with contextlib.AsyncExitStack() as living, relay("second") as second, network("caller") as caller:
        first = await living.enter_async_context(relay("first"))
        directory = MemoryDirectory(caller.hear)
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
            assert directory.looks > 0
            assert directory.said[-1] == peer.here


async def test_many_failed_calls_look_once_a_while() -> None:
    """A hundred calls to a peer that no relay leads to make two looks, not a hundred."""
    async with relay() as one, network("caller") as caller:
        directory = MemoryDirectory(caller.hear)
        async with behind(one) as peer:
            there = peer.here
        async with updated(caller, directory):
            for _ in range(100):
                with pytest.raises(PeerUnreachable):
                    await caller.call(there, GetPlan(), silence_s=5)
        assert 1 <= directory.looks < 20
