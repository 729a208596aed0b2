"""One life of one rehearsed peer: its ports, its tasks, its end.

All of a life is one task and its children. A kill marks the peer dead in the network first, so that
no goodbye escapes, and then cancels.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import Ended, Event
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Ports, Tokens
from swarmfree.sim.directory import DirectoryHub, MemoryDirectory
from swarmfree.sim.engine_probe import watched
from swarmfree.sim.guest_ports import MemoryGuests
from swarmfree.sim.invariants import Checks
from swarmfree.sim.liars import LiarWatch
from swarmfree.sim.loop import OWNER, VirtualLoop
from swarmfree.sim.network import MemoryHub, MemoryNetwork
from swarmfree.sim.peer_ports import (
    Disk,
    MemoryJournal,
    MemoryShelf,
    MemorySnapshots,
    MemorySnapshotStore,
    MemoryWeights,
    Pace,
    VirtualClock,
    VirtualExecutor,
)
from swarmfree.sim.setup import Setup
from swarmfree.trainer.coordinator.pause import PAUSED
from swarmfree.trainer.peer import Hooks

RunPeer = Callable[[Ports, Manifest, LocalConfig, random.Random, Hooks], Awaitable[int]]
MakeEngine = Callable[[Manifest], Engine]
MakeTokens = Callable[[Manifest, int], Tokens]
WrittenWeights = list[tuple[int, dict[str, tuple[tuple[int, ...], bytes]]]]


@dataclass(frozen=True, slots=True)
class Stage:
    """What all lives of a rehearsal share."""

    setup: Setup
    loop: VirtualLoop
    hub: MemoryHub
    directory: DirectoryHub
    checks: Checks
    written: WrittenWeights
    run_peer: RunPeer
    make_engine: MakeEngine
    make_tokens: MakeTokens
    tell: Callable[[Member, Event], None]
    liars: LiarWatch
    disks: dict[str, Disk] = field(default_factory=dict)
    store: Disk = field(default_factory=dict)


class Life:
    """A peer from its start to its end.

    Args:
        stage: what it shares with others.
        endpoint: who it is and where it listens.
        can_feed: has the corpus.
        standby: waits for a lost stage.
        rng: stream of this life.

    Attributes:
        code: exit code, once it ended by itself.
        why: the line a person would see, where it ended with an error.
        crash: the traceback, where it ended as no peer should.
        killed: it was killed.
        leaving: it was asked to leave.
        paused: it has ended since the run pauses.
        pace: how fast its device and its disk are.
    """

    def __init__(self, stage: Stage, endpoint: Endpoint, rng: random.Random, *, can_feed: bool, standby: bool) -> None:
        """Not begun."""
        self.endpoint, self.can_feed, self.standby = endpoint, can_feed, standby
        self._stage, self._rng = stage, rng
        self.code: int | None = None
        self.why, self.crash = "", ""
        self.killed = self.leaving = self.paused = False
        self.pace = Pace()
        self._leave_asked = asyncio.Event()
        self.owner = f"{endpoint.member.peer_id}.{endpoint.member.incarnation}"
        self.context = Context()
        self.context.run(OWNER.set, self.owner)
        self._task: asyncio.Task[None] | None = None
        self._networks: list[MemoryNetwork] = []  # its own, and its guest's
        self._group: asyncio.TaskGroup | None = None
        self._guests = self._guests_of(stage.setup)

    @property
    def member(self) -> Member:
        """Its name."""
        return self.endpoint.member

    @property
    def is_alive(self) -> bool:
        """Neither killed nor ended."""
        return not self.killed and self.code is None and not self.crash

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Live."""
        self._task = group.create_task(self._live(), name=f"life of {self.member}", context=self.context)

    def kill(self) -> None:
        """Die at once."""
        assert self._task is not None, "begun"
        self.killed = True
        self._detach()
        self._stage.loop.thaw(self.owner)
        for task in (*self._handlers(), self._task):
            task.cancel()

    def leave(self) -> None:
        """Be asked to leave, as by SIGTERM."""
        self.leaving = True
        self._leave_asked.set()

    async def _run(self, ports: Ports) -> int:
        """The trainer, from start to end."""
        stage, setup = self._stage, self._stage.setup
        local = LocalConfig(
            folder="memory",
            can_feed=self.can_feed,
            standby=self.standby,
            cache_bytes_max=setup.cache_bytes_max,
            move_after_s=setup.move_after_s,
        )
        return await stage.run_peer(ports, setup.manifest, local, self._rng, Hooks(self._leave_asked))

    def _tell(self, member: Member, event: Event) -> None:
        self.paused |= isinstance(event, Ended) and event.why.startswith(PAUSED) and member == self.member
        self._stage.tell(member, event)

    async def _live(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                ports = self._ports(self.endpoint, self.can_feed)
                try:
                    self.code = await self._run(ports)
                except SwarmfreeError as error:
                    self.code, self.why = 3, str(error)
                finally:
                    self._detach()
                    for task in self._handlers():
                        task.cancel()
        except BaseExceptionGroup as crash:
            if not self.killed:
                self.crash = "".join(traceback.format_exception(crash))

    @property
    def has_room(self) -> bool:
        """Whether a guest may come, or has come."""
        return bool(self._guests.room_bytes)

    def has_guest(self, member: Member) -> bool:
        """Whether this member lives here as a guest."""
        return any(endpoint.member == member for endpoint in self._guests.endpoints)

    def _detach(self) -> None:
        for endpoint in (self.endpoint, *self._guests.endpoints):
            self._stage.hub.detach(endpoint.member)

    def _guests_of(self, setup: Setup) -> MemoryGuests:
        """A stream of its own: a peer without room draws what it has always drawn."""
        has_room = random.Random(f"{setup.manifest.run.seed}/{self.member.peer_id}/room").random() < setup.room_share
        return MemoryGuests(self.endpoint, self._disk_of, self._ports, self._stage.hub.detach, has_room=has_room)

    def _disk_of(self, peer_id: str) -> Disk:
        return self._stage.disks.get(peer_id, {})

    def _spawn(self, work: Coroutine[Any, Any, None], name: str, context: Context) -> asyncio.Task[None]:
        assert self._group is not None, "it lives"
        return self._group.create_task(work, name=name, context=context)

    def _handlers(self) -> list[asyncio.Task[None]]:
        """Handlers of this peer and its guest that have not ended, oldest first."""
        return sorted((task for network in self._networks for task in network.handling), key=hash)

    def _ports(self, endpoint: Endpoint, can_feed: bool) -> Ports:  # noqa: FBT001 - as `MemoryGuests` asks
        """Ports of this peer, or of a guest."""
        stage, setup, rng = self._stage, self._stage.setup, self._rng
        member, is_guest = endpoint.member, endpoint is not self.endpoint

        def is_alive() -> bool:
            return not self.killed

        skew_s = setup.faults.skew_max_s * rng.uniform(-0.5, 0.5)
        clock = VirtualClock(stage.loop, rng.uniform(0, 10_000), skew_s)
        work_s = rng.uniform(setup.work_min_s, setup.work_max_s)
        disk = stage.disks.setdefault(member.peer_id, {})
        has_store = bool(setup.manifest.recovery.snapshot_store)
        self._networks.append(network := stage.hub.attach(endpoint, self._spawn, self.context))
        return Ports(
            network=network,
            directory=MemoryDirectory(stage.directory, clock.wall_s, is_alive, self.pace),
            clock=clock,
            executor=VirtualExecutor(clock, rng, work_s, self.pace),
            engine=stage.liars.engine_of(member, watched(stage.make_engine(setup.manifest), member, stage.checks)),
            tokens=stage.make_tokens(setup.manifest, setup.sequence_count) if can_feed and self.can_feed else None,
            weights=MemoryWeights(stage.written, is_alive, self.pace),
            shelf=MemoryShelf(self.pace),
            journal=MemoryJournal(partial(self._tell, member), is_alive),
            spare_engine=lambda: stage.make_engine(setup.manifest),
            snapshots=MemorySnapshots(disk, is_alive, self.pace),
            snapshot_store=MemorySnapshotStore(stage.store, disk, is_alive, self.pace) if has_store else None,
            guests=None if is_guest or not setup.room_share else self._guests,
        )
