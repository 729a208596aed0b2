"""Keeps peers able to call each other while their addresses change: says at once where this peer
is now, and looks where a peer is to which no known address leads any more.

A plan names each member by the addresses of when it came; relays come and go after that, and ports
close. Which addresses a peer has, `reach_keeper` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.wire.network import GrpcNetwork

AGAIN_S = 1.0
"""Between two looks, however many calls fail."""
LOST_MAX = 1024


class AddressDirectory(Protocol):
    """What is needed of the directory."""

    async def announce_at(self, endpoint: Endpoint) -> None:
        """Publish this peer's last announcement with the addresses of now."""
        ...

    async def announcements(self) -> Collection[Announcement]:
        """Read what others announce."""
        ...


class AddressUpdates:
    """For one peer.

    Args:
        network: whose address changes, and whose calls fail.
        directory: where addresses are published and read.
        again_s: between two looks.
    """

    def __init__(self, network: GrpcNetwork, directory: AddressDirectory, again_s: float = AGAIN_S) -> None:
        """Nothing has changed yet."""
        self._network, self._directory, self._again_s = network, directory, again_s
        self._moved, self._wanted = asyncio.Event(), asyncio.Event()
        self._lost = set[Member]()
        network.moved, network.lost = self._moved.set, self._lose

    async def keep(self) -> None:
        """Run for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._say())
            group.create_task(self._look())

    def _lose(self, member: Member) -> None:
        if len(self._lost) < LOST_MAX:
            self._lost.add(member)
        self._wanted.set()

    async def _say(self) -> None:
        while True:
            await self._moved.wait()
            self._moved.clear()
            await self._directory.announce_at(self._network.here)

    async def _look(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            lost, self._lost = self._lost, set[Member]()
            for announcement in await self._directory.announcements():
                if announcement.endpoint.member in lost:
                    # Also one that was heard of before: an older word of it may have come since.
                    self._network.hear(announcement.endpoint)
            await asyncio.sleep(self._again_s)
