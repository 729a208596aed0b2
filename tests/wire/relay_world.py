"""What the relay tests share: a relay, and peers behind it, on loopback."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from wire_world import RUN, echo, identity, network

from swarmfree.protocol.local_config import RelayChoice
from swarmfree.wire.addresses import Address
from swarmfree.wire.certificate import make_certificate
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.reach_keeper import ReachKeeper, ReachTimes
from swarmfree.wire.relay import Relay, RelayLimits
from swarmfree.wire.relay_client import RelayClient, RelayClientLimits

QUICK = ReachTimes(recheck_s=0.1, look_s=0.1, settle_s=10.0, avoid_s=0.1)


def relay(name: str = "relay", limits: RelayLimits | None = None, port: int = 0) -> Relay:
    """A relay of a peer with this name."""
    owner = identity(name)
    return Relay(RUN, owner.peer_id, make_certificate(owner), "127.0.0.1", port, limits=limits)


def client_of(peer: GrpcNetwork, group: asyncio.TaskGroup, limits: RelayClientLimits | None = None) -> RelayClient:
    """A peer's side of relays."""
    return RelayClient(RUN, peer.relay_context(), peer.local_address, group, limits or RelayClientLimits())


class Elsewhere:
    """A network that announces an address of another host than this one, where that is asked for:
    then nobody may say that it is an address of loopback.
    """

    def __init__(self, peer: GrpcNetwork, direct: Address) -> None:
        self._peer = peer
        self.direct_address = direct
        self.announced: list[tuple[Address, ...]] = []

    def announce(self, addresses: Sequence[Address]) -> None:
        """As the network, and keep it."""
        if not self.announced or self.announced[-1] != tuple(addresses):
            self.announced.append(tuple(addresses))
        self._peer.announce(addresses)


@asynccontextmanager
async def behind(
    *relays: Relay, name: str = "peer", times: ReachTimes = QUICK, told: list[str] | None = None
) -> AsyncIterator[GrpcNetwork]:
    """A peer that serves `echo` and is reached by way of these relays alone."""

    async def find() -> tuple[Address, ...]:
        return tuple(one.address for one in relays)

    lines = [] if told is None else told
    async with network(name) as peer:
        peer.serve(echo)
        client = client_of(peer, asyncio.TaskGroup())
        async with ReachKeeper(RelayChoice.ALWAYS, peer, client, find, lines.append, times, random.Random(1)):
            yield peer
