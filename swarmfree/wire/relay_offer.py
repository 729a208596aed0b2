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
LINGER_S = 5.0
"""At a run's end others hear the last words by way of this relay, maybe after its own peer."""
LOOK_S = 0.1


class RelayDirectory(Protocol):
    """What is needed of the directory."""

    async def offer_relay(self, address: Address, lease_s: float) -> None:
        """Say where this peer's relay is."""
        ...


@contextlib.asynccontextmanager
async def offered(
    relay: Relay, directory: RelayDirectory, lease_s: float, may_offer: Callable[[], bool] = lambda: True
) -> AsyncIterator[Relay]:
    """Run a relay, and say so often enough that the lease never runs out.

    Where it is not broken off, it stays until nobody uses it, for `LINGER_S` at most.
    """

    async def publish() -> None:
        while True:
            if may_offer():
                await directory.offer_relay(relay.address, lease_s)
            await asyncio.sleep(lease_s / PUBLISH_MORE_OFTEN)

    async with relay, asyncio.TaskGroup() as group:
        publishing = group.create_task(publish())
        try:
            yield relay
            publishing.cancel()
            await _unused(relay)
        finally:
            publishing.cancel()


async def _unused(relay: Relay) -> None:
    """Wait until the last peer has gone, or for so long as is given to them."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while relay.registered_count:
                await asyncio.sleep(LOOK_S)
