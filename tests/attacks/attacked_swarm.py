"""A swarm of real servers on this machine, in one process, with integers for tensors: what the
attacker attacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.events import Event
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    RecoverySection,
    RunSection,
    StagesSection,
    TimingSection,
)
from swarmfree.protocol.names import Founder
from swarmfree.protocol.ports import Ports
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.integer_tokens import integer_tokens
from swarmfree.sim.peer_ports import MemoryJournal, MemoryShelf, MemoryWeights, Pace
from swarmfree.trainer.peer import Hooks, Peer, run_peer
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_list import BanList, newest_ban_list, read_ban_lists
from swarmfree.wire.ban_watch import BanWatch
from swarmfree.wire.identity import KEY_SIZE_BITS, Identity, peer_id_of
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.ticket import Ticket

T = TypeVar("T")
BODY = 2
WAIT_S = 60.0
MANIFEST = Manifest(
    run=RunSection(name="attacked", seed=1, iterations=1_000_000, evaluate_every=0, evaluate_windows=1),
    model=ModelSection(width=8, blocks=BODY, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=BODY, replicas_min=1, replicas_max=1, sources_max=1),
    batch=BatchSection(rows=1, microbatches=4),
    recovery=RecoverySection(ends_copies=0, shadow_every=0),
    timing=TimingSection(join_wait_s=20.0, split_wait_s=10.0),
)


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Unix seconds."""
        return time.time()


class SlowDevice:
    """Work takes a moment, so that the swarm leaves this machine time for its attackers."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run it."""
        await asyncio.sleep(0.005)
        return work()


class Noticeboard:
    """A directory that everybody reads as it is; whoever is announced first and can feed founds."""

    def __init__(self) -> None:
        """Empty."""
        self.held: dict[str, Announcement] = {}
        self.ban_lists: list[bytes] = []
        self._founder: Founder | None = None

    async def announce(self, announcement: Announcement) -> None:
        """Publish."""
        self.held[announcement.endpoint.member.peer_id] = announcement

    async def announcements(self) -> tuple[Announcement, ...]:
        """Everybody's."""
        return tuple(self.held.values())

    async def publish_run(self, lease_s: float) -> None:
        """The manifest is known here."""

    async def read_bans(self, manifest: Manifest, known: BanList | None) -> BanList | None:
        """As the directory reads them."""
        return newest_ban_list([known, *read_ban_lists(self.ban_lists, manifest, {}).values()])

    async def founder(self) -> Founder | None:
        """Who was announced first."""
        if self._founder is None:
            self._founder = next((Founder(1, peer_id) for peer_id, held in self.held.items() if held.can_feed), None)
        return self._founder

    async def is_over(self) -> bool:
        """The organiser has not said so."""
        return False

    def order(self) -> None:
        """The organiser wants nothing."""


@functools.cache
def identity(number: int) -> Identity:
    """A peer's key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_SIZE_BITS)
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Identity(peer_id_of(public), public, "", key)


@dataclass
class Attacked:
    """The swarm: its peers by stage, what they told, and which of them have ended."""

    board: Noticeboard
    peers: list[Peer] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    @property
    def coordinator(self) -> Peer:
        """Who leads."""
        return next(peer for peer in self.peers if peer.coordinator is not None)

    def of_stage(self, stage: int) -> Peer:
        """Who serves it."""
        return next(peer for peer in self.peers if peer.stage_member.replica_state.stage == stage)

    async def goes_on(self, iterations: int = 2) -> None:
        """Wait until everybody has stepped so often."""
        until = max(peer.stage_member.replica_state.iteration for peer in self.peers) + iterations
        async with asyncio.timeout(WAIT_S):
            while any(peer.stage_member.replica_state.iteration < until for peer in self.peers):
                assert not self.ended, self.ended
                await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Admitting:
    """A swarm that admits by ticket.

    Args:
        manifest: of its run; names the organiser.
        tickets: of each peer, by number.
        standbys: so many more than there are stages.
    """

    manifest: Manifest
    tickets: tuple[Ticket, ...]
    standbys: int = 0


class BoardReader:
    """One peer's look at the ban lists on the board; of a list that names itself it knows nothing,
    as who attacks would.
    """

    def __init__(self, board: Noticeboard, manifest: Manifest, reader: Identity) -> None:
        """Know none."""
        self._board, self._manifest, self._reader = board, manifest, reader
        self._known: BanList | None = None

    async def read_bans(self, _lease_s: float) -> BanList | None:
        """The newest."""
        newest = await self._board.read_bans(self._manifest, self._known)
        if newest is not None and self._reader.peer_id not in newest.peers:
            self._known = newest
        return self._known


@contextlib.asynccontextmanager
async def attacked_swarm(admits: Admitting | None = None) -> AsyncIterator[Attacked]:
    """One source and two body stages, that train."""
    swarm = Attacked(Noticeboard())
    manifest = admits.manifest if admits is not None else MANIFEST
    count = BODY + 1 + (admits.standbys if admits is not None else 0)

    feeders = {0, *range(BODY + 1, count)}

    async def live(number: int) -> None:
        admission = Admission(manifest) if admits is not None else None
        ticket = admits.tickets[number] if admits is not None else None
        life = f"0000000{number}000000aa"
        async with (
            GrpcNetwork(manifest.fingerprint(), identity(number), life, admission=admission, ticket=ticket) as network,
            asyncio.TaskGroup() as duties,
        ):
            if admission is not None:
                watch = BanWatch(BoardReader(swarm.board, manifest, identity(number)), admission, network, swarm.events.append)
                duties.create_task(watch.keep(manifest.timing.lease_s, 60.0))
            pace = Pace()
            ports = Ports(
                network=network,
                directory=swarm.board,
                clock=SystemClock(),
                executor=SlowDevice(),
                engine=IntegerEngine(manifest),
                tokens=integer_tokens(manifest) if number in feeders else None,
                weights=MemoryWeights([], lambda: True, pace),
                shelf=MemoryShelf(pace),
                journal=MemoryJournal(swarm.events.append, lambda: True),
                spare_engine=lambda: IntegerEngine(manifest),
            )
            local = LocalConfig(folder="memory", can_feed=number in feeders, standby=number > BODY)
            code = await run_peer(ports, manifest, local, random.Random(number), Hooks(begun=swarm.peers.append))
            swarm.ended.append(f"peer {number} with code {code}")

    async with asyncio.TaskGroup() as group:
        lives = [group.create_task(live(number)) for number in range(count)]
        async with asyncio.timeout(WAIT_S):
            while len(swarm.peers) < count or sum(p.stage_member.replica_state.iteration > 0 for p in swarm.peers) <= BODY:
                await asyncio.sleep(0.02)
        try:
            yield swarm
        finally:
            for life in lives:
                life.cancel()
