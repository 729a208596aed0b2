"""A relay that the directory tells of: when it is said, how often, and how long it stays."""

from __future__ import annotations

import asyncio
import contextlib

from directory_world import until
from relay_world import behind, relay

from swarmfree.wire.addresses import Address
from swarmfree.wire.relay_offer import LINGER_S, offered


class MemoryDirectory:
    """What was said, and when."""

    def __init__(self) -> None:
        self.said: list[Address] = []

    async def offer_relay(self, address: Address, lease_s: float) -> None:
        """Keep it."""
        assert lease_s > 0
        self.said.append(address)


async def test_a_relay_is_offered_while_it_may_be_and_more_often_than_its_lease_ends() -> None:
    """A peer that cannot be called itself says nothing of its relay; once it can, it says so three
    times a lease.
    """
    directory, may, asked = MemoryDirectory(), list[bool](), 0

    def may_offer() -> bool:
        nonlocal asked
        asked += 1
        return bool(may)

    loop, lease_s = asyncio.get_running_loop(), 0.6
    async with offered(relay(), directory, lease_s, may_offer) as one:
        await until(lambda: asked >= 2, "it is looked at again")
        assert not directory.said
        may.append(True)
        await until(lambda: len(directory.said) >= 1, "it is offered")
        said_s = loop.time()
        await until(lambda: len(directory.said) >= 3, "it is offered again")
        assert loop.time() - said_s < 2 * lease_s - 0.1
        assert set(directory.said) == {one.address}


async def test_a_relay_stays_until_its_last_peer_has_gone() -> None:
    """Whoever still goes by way of it says its last words; after that nobody waits."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as living, asyncio.TaskGroup() as group:
        async with offered(relay(), MemoryDirectory(), 60.0) as one:
            await living.enter_async_context(behind(one))
            assert one.registered_count == 1

            async def leave() -> None:
                await asyncio.sleep(0.3)
                assert one.registered_count == 1
                await living.aclose()

            group.create_task(leave())
            began_s = loop.time()
        assert 0.3 <= loop.time() - began_s < LINGER_S
