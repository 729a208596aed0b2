"""A relay that others find: it listens, and the directory says where.

Whether the peer that offers it can be reached itself is looked at each time before it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from swarmfree.wire.addresses import Address
from swarmfree.wire.relay import Relay

PUBLISH_MORE_OFTEN = 3


class RelayDirectory(Protocol):
    """What is needed of the directory."""

    async def offer_relay(self, address: Address, lease_s: float) -> None:
        """Say where this peer's relay is."""
        ...


@contextlib.asynccontextmanager
async def offered(
    relay: Relay, directory: RelayDirectory, lease_s: float, may_offer: Callable[[], bool] = lambda: True
) -> AsyncIterator[Relay]:
    """Run a relay, and say so often enough that the lease never runs out."""

    async def publish() -> None:
        while True:
            if may_offer():
                await directory.offer_relay(relay.address, lease_s)
            await asyncio.sleep(lease_s / PUBLISH_MORE_OFTEN)

    async with relay, asyncio.TaskGroup() as group:
        publishing = group.create_task(publish())
        try:
            yield relay
        finally:
            publishing.cancel()
