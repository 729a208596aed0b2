"""A few directories on loopback, each in a folder of its own, for tests; all are closed at the end,
whatever the test did.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import PROTOCOL_REVISION, Endpoint, Member
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.identity import Identity, load_or_create_identity
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.ticket import make_ticket


def announcement_of(identity: Identity, *, lease_s: float = 60.0, stage: int = 1) -> Announcement:
    """What a peer may say of itself."""
    return Announcement(
        endpoint=Endpoint(Member(identity.peer_id, "0123456789abcdef"), (f"/ip4/127.0.0.1/tcp/4001/p2p/{identity.peer_id}",)),
        state=PeerState.SERVING,
        stage=stage,
        iteration=12,
        lineage="ab" * 32,
        squared_norm=0.125,
        seconds_per_microbatch=0.01,
        can_feed=True,
        revision=PROTOCOL_REVISION,
        expires_s=time.time() + lease_s,
    )


class World:
    """The peers of one run; the first one is its bootstrap node."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Draw the keys of the bootstrap node and the organiser; nobody is up yet."""
        self.folder = folder
        self.node = load_or_create_identity(folder / "bootstrap")
        self.organiser = draw_organiser()
        self.manifest = dataclasses.replace(manifest, organiser=self.organiser.peer_id)
        self.run = self.manifest.fingerprint()
        self.delegation = make_ticket(
            self.organiser, self.run, int(time.time()) + 3600, holder=self.node.peer_id, names_founders=True
        )
        self.ticket = make_ticket(self.organiser, self.run, int(time.time()) + 3600)
        self.directories: list[DhtDirectory] = []
        self.replaced_s: list[float] = []

    async def bootstrap(self) -> DhtDirectory:
        """The bootstrap node, with the run published."""
        settings = DirectorySettings(str(self.folder / "bootstrap"))
        directory = DhtDirectory(settings, self.node, self.run, manifest=self.manifest, delegation=self.delegation)
        self.directories.append(directory)
        await directory.start()
        await directory.publish_run(60.0)
        return directory

    async def peer(self, name: str, entry_points: tuple[str, ...]) -> tuple[DhtDirectory, Identity]:
        """A peer that has joined and has the manifest."""
        directory, identity = self.unstarted(name, entry_points)
        await directory.start()
        await directory.fetch_manifest(5.0)
        return directory, identity

    def unstarted(self, name: str, entry_points: tuple[str, ...], *, patience_s: float = 5.0) -> tuple[DhtDirectory, Identity]:
        """A peer that has not been started."""
        identity = load_or_create_identity(self.folder / name)
        settings = DirectorySettings(str(self.folder / name), entry_points=entry_points, patience_s=patience_s)
        directory = DhtDirectory(settings, identity, self.run, ticket=self.ticket, on_replaced=self.replaced_s.append)
        self.directories.append(directory)
        return directory, identity


@contextlib.asynccontextmanager
async def world_of(folder: Path, manifest: Manifest) -> AsyncIterator[World]:
    """A world that ends with the test."""
    world = World(folder, manifest)
    try:
        yield world
    finally:
        for directory in reversed(world.directories):
            await directory.close()


async def until(holds: Callable[[], bool], what: str, limit_s: float = 10.0) -> float:
    """Wait until something that another thread or process does has happened; how long it took."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < limit_s, f"{what}: not within {limit_s:g} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


def is_running(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
