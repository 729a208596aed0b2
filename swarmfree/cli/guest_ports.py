"""What a peer has for a guest, with real ports: a second member in this process, with a key, a
life, a port, a directory node and a folder of its own.

It shares the host's device thread, text, clock, weights folder and journal. Its folder is one of
`guests` in the host's, by slot; a snapshot there brings it back with its host. What is opened here
is closed here, in the opposite order.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from swarmfree.cli.guest_memory import GuestMemory, promises_folder
from swarmfree.cli.process import give_back_memory
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import InviteError, SwarmfreeError
from swarmfree.protocol.events import Ended, Event, PeersBanned, Placed, Started, Stepped, Waiting
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Journal, Ports, SnapshotStore
from swarmfree.storage.blob_store import FolderShelf
from swarmfree.storage.snapshots import SNAPSHOTS, FolderSnapshots
from swarmfree.wire.address_updates import AddressUpdates
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_watch import BanWatch
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.identity import Identity, draw_incarnation, load_or_create_identity, next_life_number
from swarmfree.wire.invite import Invite
from swarmfree.wire.limits import WireLimits
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.reach_keeper import ReachKeeper

FOLDER, KEPT = "guests", "kept"
TAKEN_AFTER_S = 60.0
"""By then a guest has copied its stage, and the system counts its memory."""
LOOK_S = 5.0
"""Free memory is not looked at again before; heartbeats come more often."""
OWN_EVENTS = (Started, Stepped, Placed, Waiting, PeersBanned, Ended)
"""What whoever reads the host's lines would take for the host's."""


class GuestJournal:
    """The host's journal, without what a guest tells of itself."""

    def __init__(self, journal: Journal) -> None:
        """Write to this one."""
        self._journal = journal

    def tell(self, event: Event) -> None:
        """Write one event, unless it is the guest's own."""
        if not isinstance(event, OWN_EVENTS):
            self._journal.tell(event)


def guest_folder(host: Path, slot: int) -> Path:
    """Of all guests in this slot of a host with this folder, one after the other."""
    return host / FOLDER / str(slot)


def held_stages(host: Path, run: str) -> dict[int, int]:
    """Slot -> stage of the newest snapshot that guests of a host with this folder have left of a
    run.
    """
    slots = sorted(int(place.name) for place in (host / FOLDER).glob("*") if place.name.isdigit())
    found = {slot: FolderSnapshots.lying_in(guest_folder(host, slot) / SNAPSHOTS, run) for slot in slots}
    return {slot: held[0].stage for slot, held in found.items() if held}


def forget_guests(host: Path, run: str) -> None:
    """Remove the snapshots of all guests: the run is over."""
    for slot in held_stages(host, run):
        FolderSnapshots(guest_folder(host, slot) / SNAPSHOTS, run).clear()


def unused_words(host: Path, run: str) -> str:
    """Say which snapshots of guests nobody uses where none is taken in; empty for none."""
    held = [f"stage {stage} ({guest_folder(host, slot)})" for slot, stage in held_stages(host, run).items()]
    return f"takes in no guests, so what they kept of the run here is not used: {', '.join(held)}" if held else ""


@dataclass
class ProcessGuests:
    """Implements `ports.GuestPorts`.

    Args:
        host: the host's ports, those for guests left out.
        local, invite, manifest: as the host's.
        admission: who may take part; shared with the host.
        entry_points: of the host's libp2p daemon.
        make_engine: one more engine for the same device.
        make_store: a way to the run's store for these snapshots.
        keep_reach: keeps it true where a peer says that it is.
    """

    host: Ports
    local: LocalConfig
    invite: Invite
    manifest: Manifest
    admission: Admission
    entry_points: tuple[str, ...]
    make_engine: Callable[[], Engine]
    make_store: Callable[[FolderSnapshots], SnapshotStore | None]
    keep_reach: Callable[[GrpcNetwork, DhtDirectory, Journal], ReachKeeper]
    _memory: GuestMemory = field(default_factory=lambda: GuestMemory(promises_folder()), init=False)
    _room_bytes: int = field(default=0, init=False)
    _looked_s: float = field(default=-LOOK_S, init=False)

    def folder(self, slot: int) -> Path:
        """See `guest_folder`."""
        return guest_folder(Path(self.local.folder), slot)

    @property
    def room_bytes(self) -> int:
        """A share of what is free; nothing where that is not known, or the ticket names the host
        alone.
        """
        ticket = self.invite.ticket
        if ticket is not None and ticket.holder:
            return 0
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            room_bytes = self._memory.room_bytes()
            self._room_bytes = self._room_bytes if room_bytes is None else room_bytes
        return self._room_bytes

    @property
    def held_stages(self) -> Mapping[int, int]:
        """Of the newest snapshots of this run that earlier guests have left."""
        return held_stages(Path(self.local.folder), self.manifest.fingerprint())

    def forget(self, slot: int) -> None:
        """Remove its snapshots."""
        FolderSnapshots(self.folder(slot) / SNAPSHOTS, self.manifest.fingerprint()).clear()

    def open(self, slot: int, *, can_feed: bool, needed_bytes: int) -> AbstractAsyncContextManager[Ports]:
        """See `ports.GuestPorts.open`."""
        return self._open(slot, can_feed=can_feed, needed_bytes=needed_bytes)

    @asynccontextmanager
    async def _open(self, slot: int, *, can_feed: bool, needed_bytes: int) -> AsyncIterator[Ports]:
        folder, journal = self.folder(slot), GuestJournal(self.host.journal)
        failure: SwarmfreeError | None = None
        async with AsyncExitStack() as opened:
            promised = opened.enter_context(self._memory.promise(needed_bytes))
            taken = asyncio.get_running_loop().call_later(TAKEN_AFTER_S, promised.close)
            opened.callback(taken.cancel)
            identity, ticket = await asyncio.to_thread(load_or_create_identity, folder), self.invite.ticket
            if why := self.admission.refusal(identity.peer_id, ticket.shown_by(identity.peer_id) if ticket is not None else b""):
                raise InviteError(why)
            directory = self._directory(identity, folder)
            await directory.start()
            opened.push_async_callback(directory.close)
            network = await opened.enter_async_context(self._network(identity, folder))
            directory.tell_where_peers_are(network.hear)
            await opened.enter_async_context(self.keep_reach(network, directory, journal))
            shelf = FolderShelf(folder / KEPT)
            opened.callback(shelf.close)
            snapshots = FolderSnapshots(folder / SNAPSHOTS, self.manifest.fingerprint())
            opened.callback(snapshots.close)
            ports = replace(
                self.host,
                network=network,
                directory=directory,
                engine=self.make_engine(),
                tokens=self.host.tokens if can_feed else None,
                shelf=shelf,
                journal=journal,
                snapshots=snapshots,
                snapshot_store=self.make_store(snapshots),
                guests=None,
            )
            bans = BanWatch(directory, self.admission, network, journal.tell)
            timing = self.manifest.timing
            async with asyncio.TaskGroup() as duties:
                banned = duties.create_task(bans.keep(timing.lease_s, timing.papers_lease_s))
                moved = duties.create_task(AddressUpdates(network, directory).keep())
                try:
                    yield ports
                except SwarmfreeError as error:
                    failure = error  # not as one of a group
                finally:
                    banned.cancel()
                    moved.cancel()
        if failure is not None:
            raise failure

    def _directory(self, identity: Identity, folder: Path) -> DhtDirectory:
        points = tuple(dict.fromkeys((*self.entry_points, *self.invite.entry_points)))
        settings = DirectorySettings(str(folder), self.local.host, entry_points=points, patience_s=self.local.patience_s)
        return DhtDirectory(settings, identity, self.invite.fingerprint, manifest=self.manifest, ticket=self.invite.ticket)

    def _network(self, identity: Identity, folder: Path) -> GrpcNetwork:
        """At a port of its own, which the system gives: one that is forwarded is the host's."""
        local = self.local
        network = GrpcNetwork(
            self.invite.fingerprint,
            identity,
            draw_incarnation(secrets.token_hex, next_life_number(str(folder), time.time())),
            local.host,
            0,
            announced=(local.announced_host or local.host, 0),
            limits=WireLimits.of(self.manifest, local.limits),
            admission=self.admission,
            ticket=self.invite.ticket,
        )
        network.give_back = give_back_memory
        return network
