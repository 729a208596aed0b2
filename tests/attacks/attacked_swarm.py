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
from swarmfree.trainer.peer import Peer, run_peer
from swarmfree.wire.identity import KEY_SIZE_BITS, Identity, peer_id_of
from swarmfree.wire.network import GrpcNetwork

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

    async def announce(self, announcement: Announcement) -> None:
        """Publish."""
        self.held[announcement.endpoint.member.peer_id] = announcement

    async def announcements(self) -> tuple[Announcement, ...]:
        """Everybody's."""
        return tuple(self.held.values())

    async def publish_run(self, lease_s: float) -> None:
        """The manifest is known here."""

    async def founder(self) -> Founder | None:
        """Who was announced first."""
        return next((Founder(1, peer_id) for peer_id, held in self.held.items() if held.can_feed), None)

    async def is_over(self) -> bool:
        """The organiser has not said so."""
        return False


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


@contextlib.asynccontextmanager
async def attacked_swarm() -> AsyncIterator[Attacked]:
    """One source and two body stages, that train."""
    swarm = Attacked(Noticeboard())

    async def live(number: int) -> None:
        async with GrpcNetwork(MANIFEST.fingerprint(), identity(number), f"0000000{number}000000aa") as network:
            pace = Pace()
            ports = Ports(
                network=network,
                directory=swarm.board,
                clock=SystemClock(),
                executor=SlowDevice(),
                engine=IntegerEngine(MANIFEST),
                tokens=integer_tokens(MANIFEST) if number == 0 else None,
                weights=MemoryWeights([], lambda: True, pace),
                shelf=MemoryShelf(pace),
                journal=MemoryJournal(swarm.events.append, lambda: True),
                spare_engine=lambda: IntegerEngine(MANIFEST),
            )
            local = LocalConfig(folder="memory", can_feed=number == 0)
            code = await run_peer(ports, MANIFEST, local, random.Random(number), begun=swarm.peers.append)
            swarm.ended.append(f"peer {number} with code {code}")

    async with asyncio.TaskGroup() as group:
        lives = [group.create_task(live(number)) for number in range(BODY + 1)]
        async with asyncio.timeout(WAIT_S):
            while len(swarm.peers) <= BODY or any(p.stage_member.replica_state.iteration < 1 for p in swarm.peers):
                await asyncio.sleep(0.02)
        try:
            yield swarm
        finally:
            for life in lives:
                life.cancel()
