"""A directory of many real nodes for `benchmarks.scale`: libp2p daemons on this machine, one
announcement each, and how long a look-up takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.wire.announcement_record import PeerRecord, peer_record_to_bytes
from swarmfree.wire.dht_node import DhtNode, open_node, quiet_hivemind
from swarmfree.wire.dht_values import DhtFault, DhtRecord, Listening
from swarmfree.wire.identity import Identity, load_or_create_identity
from swarmfree.wire.socket_folder import SocketFolder

KEY = "scale.peers"
LEASE_S = 1800.0
TICKET_BYTES = 172
"""Of one for anybody, with the proof that its holder has its key."""
OPEN_AT_ONCE = 4
MEET = 3
STORE_TRIES = 3
REPORT_EVERY = 20


@dataclass(frozen=True, slots=True)
class Lookups:
    """What was measured.

    Args:
        nodes: how many nodes there were at the end of the start.
        wanted: how many were asked for; fewer, where no more could be started (`why`).
        seconds: of each look-up of all announcements, from a random node.
        found_min: announcements that the worst look-up found.
        why: why no more nodes could be started; empty where all could.
    """

    nodes: int
    wanted: int
    seconds: tuple[float, ...]
    found_min: int
    why: str

    @property
    def median_ms(self) -> float:
        """Median time of a look-up, milliseconds."""
        return 1000 * statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class _Peer:
    identity: Identity
    node: DhtNode


async def measure_lookups(folder: Path, wanted: int, lookups: int, say: Callable[[str], None]) -> Lookups:
    """Start nodes, let each announce itself, and look all announcements up from random ones, one
    look-up at a time.

    Args:
        folder: new; identities and sockets are written below it.
        wanted: how many nodes.
        lookups: how many look-ups.
        say: progress.

    Raises:
        DhtFault: not even two nodes work together.
    """
    quiet_hivemind()
    rng = random.Random(1)
    async with contextlib.AsyncExitStack() as opened:
        peers, why = await _start(opened, folder, wanted, rng, say)
        if len(peers) < 2:
            raise DhtFault(f"{len(peers)} of {wanted} nodes started: {why}")
        await _announce_all(peers)
        say(f"{len(peers)} announcements are stored")
        seconds, found_min = [], len(peers)
        for _ in range(lookups):
            node = rng.choice(peers).node
            begun_s = time.perf_counter()
            found = await node.read([KEY])
            seconds.append(time.perf_counter() - begun_s)
            found_min = min(found_min, len(found[KEY]))
        return Lookups(len(peers), wanted, tuple(seconds), found_min, why)


async def _start(
    opened: contextlib.AsyncExitStack, folder: Path, wanted: int, rng: random.Random, say: Callable[[str], None]
) -> tuple[list[_Peer], str]:
    """Start nodes a few at a time until there are enough, or until one does not start."""
    peers: list[_Peer] = []
    why = ""
    while len(peers) < wanted and not why:
        first = len(peers)
        numbers = range(first, min(wanted, first + OPEN_AT_ONCE)) if first else range(1)
        before = tuple(peers)

        async def one(number: int, before: tuple[_Peer, ...] = before) -> None:
            peer = await opened.enter_async_context(_peer(folder / str(number)))
            for known in rng.sample(before, min(MEET, len(before))):
                await peer.node.meet(known.node.addresses[0])
            await peer.node.settle()
            peers.append(peer)

        try:
            async with asyncio.TaskGroup() as group:
                for number in numbers:
                    group.create_task(one(number))
        except* (DhtFault, OSError) as faults:
            why = str(faults.exceptions[0])
        if len(peers) // REPORT_EVERY > first // REPORT_EVERY:
            say(f"{len(peers)} of {wanted} nodes are up")
    return peers, why


@contextlib.asynccontextmanager
async def _peer(folder: Path) -> AsyncIterator[_Peer]:
    folder.mkdir(parents=True)
    identity = await asyncio.to_thread(load_or_create_identity, folder)
    sockets = SocketFolder(folder)
    try:
        node = await open_node(identity, Listening("127.0.0.1", 0, beyond_nat=False), sockets, time.time)
        try:
            yield _Peer(identity, node)
        finally:
            await node.close()
    finally:
        sockets.close()


async def _announce_all(peers: list[_Peer]) -> None:
    for peer in peers:
        expires_s = time.time() + LEASE_S
        entries = tuple(str(address) for address in peer.node.addresses)
        content = peer_record_to_bytes(PeerRecord(_announcement(peer.identity, expires_s), entries, bytes(TICKET_BYTES)))
        for _ in range(STORE_TRIES):
            if await peer.node.store([DhtRecord(KEY, content, expires_s)]):
                break


def _announcement(identity: Identity, expires_s: float) -> Announcement:
    """What a peer says of itself in the middle of a run."""
    return Announcement(
        endpoint=Endpoint(Member(identity.peer_id, "0123456789abcdef"), (f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}",)),
        state=PeerState.SERVING,
        stage=1,
        iteration=12,
        lineage="ab" * 32,
        squared_norm=0.125,
        seconds_per_microbatch=0.01,
        can_feed=False,
        revision=PROTOCOL_REVISION,
        expires_s=expires_s,
    )
