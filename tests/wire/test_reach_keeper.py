"""A peer that finds out whether it can be called: relays in memory that answer as they are told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from directory_world import until
from relay_world import client_of, relay
from wire_world import identity, network

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.local_config import RelayChoice
from swarmfree.wire.addresses import Address
from swarmfree.wire.reach_keeper import DOUBTS, ReachKeeper, ReachTimes
from swarmfree.wire.relay_client import DialBack

HERE = Address("ip4", "192.0.2.1", 4001, identity("peer").peer_id)
RELAYS = tuple(Address("ip4", "192.0.2.2", 4001 + number, identity(f"relay {number}").peer_id) for number in range(4))
FOR_EVER = 1e6


class MemoryClient:
    """A peer's side of relays that say what they are told to; a tarpit never answers."""

    def __init__(self, says: Callable[[Address], DialBack | None], tarpits: Sequence[Address] = ()) -> None:
        self.group = asyncio.TaskGroup()
        self.registered: list[Address] = []
        self._says, self._tarpits = says, tarpits

    async def ask(self, relay: Address, own: Address) -> DialBack | None:
        """What it says."""
        assert own == HERE
        if relay in self._tarpits:
            await asyncio.sleep(FOR_EVER)
        return self._says(relay)

    async def register(self, relay: Address, held: Callable[[], None]) -> None:
        """Hold the peer for ever."""
        self.registered.append(relay)
        if relay not in self._tarpits:
            held()
        await asyncio.sleep(FOR_EVER)

    def close(self) -> None:
        """Nothing is led here."""


class MemoryNetwork:
    """What is announced."""

    direct_address = HERE
    announced: Sequence[Address] = ()

    def announce(self, addresses: Sequence[Address]) -> None:
        """Keep it."""
        self.announced = addresses


def keeper(client: object, peer: Any, times: ReachTimes, relays: tuple[Address, ...] = RELAYS) -> ReachKeeper:
    """Of a peer that finds out by itself."""

    async def find() -> tuple[Address, ...]:
        return relays

    return ReachKeeper(RelayChoice.AUTO, peer, cast("Any", client), find, lambda _: None, times, random.Random(1))


async def test_relays_that_never_answer_hold_up_no_newcomer() -> None:
    """The first two of three relays take a question and say nothing: the third is heard, and leads
    here, before the newcomer goes on.
    """
    client, peer = MemoryClient(lambda _: DialBack(is_reachable=False, why="closed"), RELAYS[:2]), MemoryNetwork()
    times = ReachTimes(ask_s=0.1, settle_s=5.0, look_s=0.05)
    async with asyncio.timeout(3), keeper(client, peer, times, RELAYS[:3]) as reach:
        assert not reach.is_reachable
        assert peer.announced == [HERE.by_way_of(RELAYS[2])]


async def test_the_first_relays_word_is_believed_before_the_others() -> None:
    """It is the organiser's; who answers sooner does not count more."""

    def says(relay: Address) -> DialBack:
        return DialBack(is_reachable=relay == RELAYS[0])

    async with keeper(MemoryClient(says), MemoryNetwork(), ReachTimes()) as reach:
        assert reach.is_reachable


async def test_a_newcomer_registers_however_long_it_looked() -> None:
    """Where all the time that it gives itself is spent, it still has a relay lead to it."""
    client = MemoryClient(lambda _: None)
    async with keeper(client, MemoryNetwork(), ReachTimes(settle_s=0.0)):
        await until(lambda: bool(client.registered), "it registers", 1.0)


async def test_a_relay_that_is_offered_later_is_found_soon() -> None:
    """A peer that nobody can call holds one relay, since there was no second one as it came: it
    does not wait for that as long as one that has all it wants.
    """
    offered = list(RELAYS[:1])

    async def find() -> tuple[Address, ...]:
        return tuple(offered)

    client, peer = MemoryClient(lambda _: DialBack(is_reachable=False, why="closed")), MemoryNetwork()
    times, rng = ReachTimes(recheck_s=FOR_EVER, look_s=FOR_EVER, few_s=0.05), random.Random(1)
    async with ReachKeeper(RelayChoice.AUTO, cast("Any", peer), cast("Any", client), find, lambda _: None, times, rng):
        assert client.registered == offered
        offered.append(RELAYS[1])
        await until(lambda: client.registered == offered, "it holds both", 2.0)


async def test_one_word_against_a_reachable_peer_is_not_believed() -> None:
    """Two in a row are; a good one between them makes the next bad one the first again."""
    said: list[bool] = []
    client = MemoryClient(lambda _: DialBack(is_reachable=said[-1]))
    reach = keeper(client, MemoryNetwork(), ReachTimes())
    await reach._look()
    for is_reachable, is_believed in ((False, True), (True, True), (False, True), (False, False), (True, True)):
        said.append(is_reachable)
        await reach._check(DOUBTS)
        assert reach.is_reachable is is_believed


async def test_a_peer_does_not_go_by_way_of_its_own_relay() -> None:
    """It is not asked, and leads to nobody there."""
    async with relay("peer") as own, network("peer") as peer:

        async def find() -> tuple[Address, ...]:
            return (own.address,)

        client, times = client_of(peer, asyncio.TaskGroup()), ReachTimes(settle_s=0.2, look_s=0.1)
        with pytest.raises(SwarmfreeError, match="none of the run's relays can be used"):
            await ReachKeeper(RelayChoice.ALWAYS, peer, client, find, print, times, random.Random(1)).__aenter__()
