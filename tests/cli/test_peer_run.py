"""What a peer and a bootstrap node assemble: that each part is there, and hears of the others."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from swarmfree.cli import guest_ports, peer_run
from swarmfree.cli.bootstrap_node import Founding
from swarmfree.cli.engine_probe import EngineKind
from swarmfree.cli.event_output import TextJournal
from swarmfree.cli.guest_memory import GuestMemory
from swarmfree.cli.guest_ports import guest_folder
from swarmfree.cli.options import Log
from swarmfree.cli.peer_order import PeerOrder
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.config import RunConfig
from swarmfree.protocol.errors import ConfigError, PeerUnreachable
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Ports
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.storage.snapshots import SNAPSHOTS, FolderSnapshots
from swarmfree.wire.addresses import Address
from swarmfree.wire.admission import Admission
from swarmfree.wire.identity import load_or_create_identity
from swarmfree.wire.invite import Invite
from swarmfree.wire.network import GrpcNetwork
from swarmfree.wire.organiser import OrganiserKey
from swarmfree.wire.relay_client import RelayClient
from swarmfree.wire.ticket import make_ticket
from tests.builders import make_ports

LIFE = "00000000000000aa"


class Board:
    """A directory in memory, of one run, with nobody in it."""

    port, bans = 1, None
    addresses = ("/ip4/127.0.0.1/tcp/1/p2p/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG",)

    def __init__(self, manifest: Manifest) -> None:
        """Nothing is offered, and nobody has looked."""
        self._manifest = manifest
        self.offered = asyncio.Queue[Address]()
        self.looked = asyncio.Event()
        self.hear: Callable[[Endpoint], None] | None = None

    async def start(self) -> None:
        """It is there."""

    async def close(self) -> None:
        """It goes with the test."""

    async def fetch_manifest(self, _patience_s: float) -> Manifest:
        """The run's."""
        return self._manifest

    async def read_bans(self, _lease_s: float) -> None:
        """Nobody is banned."""

    def tell_where_peers_are(self, hear: Callable[[Endpoint], None]) -> None:
        """Keep whom to tell."""
        self.hear = hear

    async def announcements(self) -> tuple[Announcement, ...]:
        """Nobody's."""
        self.looked.set()
        return ()

    async def announce_at(self, endpoint: Endpoint) -> None:
        """No address changes here."""

    async def relays(self) -> tuple[Address, ...]:
        """None that this peer might use."""
        return ()

    async def offer_relay(self, address: Address, _lease_s: float) -> None:
        """Keep where it is."""
        self.offered.put_nowait(address)


async def require_refused(board: Board, manifest: Manifest, folder: Path) -> None:
    """A stranger without a ticket is not led to by the relay that is offered."""
    run = manifest.fingerprint()
    async with (
        asyncio.timeout(10),
        GrpcNetwork(run, load_or_create_identity(folder), LIFE) as stranger,
        asyncio.TaskGroup() as group,
    ):
        client = RelayClient(run, stranger.relay_context(), stranger.local_address, group)
        with pytest.raises(PeerUnreachable, match="refused no ticket"):
            await client.register(await board.offered.get(), lambda: pytest.fail("it is registered"))


async def test_a_peer_is_told_where_others_are_and_its_relay_takes_no_strangers(
    tmp_path: Path, manifest: Manifest, organiser: OrganiserKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it trains, the directory tells its network where peers are, one that a call does not
    get to is looked for there, and a stranger cannot register with its relay. It does not train
    while another peer of its identity does.
    """
    board, ended = Board(manifest), list[bool]()

    class Life(peer_run.PeerLife):
        def _directory(self, *_: object) -> Any:
            return board

    async def train(ports: Ports, *_: object, **__: object) -> int:
        network = cast("GrpcNetwork", ports.network)
        assert board.hear == network.hear
        board.looked.clear()
        network.lost(Member("QmGone", LIFE))
        async with asyncio.timeout(10):
            await board.looked.wait()
        await require_refused(board, manifest, tmp_path / "stranger")
        ended.append(True)
        return 0

    async def load(*_: str) -> None:
        """Nothing heavy is needed here."""

    monkeypatch.setattr(peer_run, "run_with_guest", train)
    monkeypatch.setattr(peer_run, "load_gently", load)
    for of_the_process in ("bound_log", "settle_garbage"):
        monkeypatch.setattr(peer_run, of_the_process, lambda *_: None)
    invite = Invite(manifest.fingerprint(), (), make_ticket(organiser, manifest.fingerprint(), int(time.time()) + 3600))
    local = LocalConfig(str(tmp_path / "peer"), can_feed=False, relay_port=0, weights_folder=str(tmp_path / "weights"))
    order = PeerOrder(invite, local, Log.JSON, EngineKind.INTEGER, is_watched=False)
    other = Endpoint(Member("QmSame", LIFE), ("/ip4/192.0.2.7/tcp/4002/p2p/QmSame",))
    with monkeypatch.context() as beside, pytest.raises(ConfigError, match=r"another peer has .* at /ip4/192.0.2.7/tcp/4002"):
        beside.setattr(peer_run, "life_that_answers", lambda *_: asyncio.sleep(0, other))
        await Life(order).run(None)
    assert not ended
    assert await Life(order).run(None) == 0
    assert ended


def test_a_peer_announces_itself_with_its_ticket(tmp_path: Path, manifest: Manifest, organiser: OrganiserKey) -> None:
    """Else nobody would find it."""
    run, identity = manifest.fingerprint(), load_or_create_identity(tmp_path)
    ticket = make_ticket(organiser, run, int(time.time()) + 3600)
    order = PeerOrder(Invite(run, (), ticket), LocalConfig(str(tmp_path)), Log.JSON, EngineKind.INTEGER, is_watched=False)
    directory = peer_run.PeerLife(order)._directory(identity, TextJournal(io.StringIO()))
    assert directory._ticket == ticket.shown_by(identity.peer_id)


@pytest.mark.parametrize("adopts", [False, True])
def test_snapshots_of_guests_that_nobody_uses_are_named(tmp_path: Path, manifest: Manifest, *, adopts: bool) -> None:
    """A host that comes back with `--no-adopt` says what its guests kept, once; one that takes in
    guests brings them back.
    """
    run, lines = manifest.fingerprint(), io.StringIO()
    place = FolderSnapshots(guest_folder(tmp_path, 1) / SNAPSHOTS, run).place(HeldSnapshot(2, 50, GENESIS_LINEAGE))
    place.parent.mkdir(parents=True)
    place.touch()
    order = PeerOrder(Invite(run, ()), LocalConfig(str(tmp_path), adopt=adopts), Log.JSON, EngineKind.INTEGER, is_watched=False)
    ports = make_ports(journal=TextJournal(lines))
    guests = peer_run.PeerLife(order)._guests(ports, manifest, cast("Any", None), cast("Any", Board(manifest)))
    assert (guests is not None) is adopts
    assert ("what they kept of the run here is not used: stage 2" in lines.getvalue()) is not adopts


async def test_a_guest_is_a_member_of_its_own_in_its_host_s_process(
    tmp_path: Path, manifest: Manifest, organiser: OrganiserKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a key, a port, an engine and snapshots of its own, the host's text only where it is to
    feed, and no guests. Memory that was promised to it is offered to others again once it counts as
    taken, and no other peer's look says that there is none.
    """
    monkeypatch.setattr(guest_ports, "LOOK_S", 0.0)
    board, kept = Board(manifest), list[str]()

    class Guests(guest_ports.ProcessGuests):
        def _directory(self, *_: object) -> Any:
            return board

    @contextlib.asynccontextmanager
    async def reach(*_: object) -> AsyncIterator[None]:
        kept.append("reach")
        yield

    invite = Invite(manifest.fingerprint(), (), make_ticket(organiser, manifest.fingerprint(), int(time.time()) + 3600))
    host = make_ports(journal=TextJournal(io.StringIO()), tokens=cast("Any", "text"), engine="host's", guests="host's")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        local = LocalConfig(str(tmp_path), port=taken.getsockname()[1])
        own = ("own", lambda _: None, reach)
        guests = Guests(
            host, local, invite, manifest, Admission(manifest), (), lambda: cast("Any", own[0]), *cast("Any", own[1:])
        )
        guests._memory = GuestMemory(tmp_path / "promises", lambda: 1 << 30)
        for slot, can_feed in enumerate((False, True)):
            if can_feed:
                monkeypatch.setattr(guest_ports, "TAKEN_AFTER_S", 0.0)
            async with guests.open(slot, can_feed=can_feed, needed_bytes=1 << 20) as ports:
                if not can_feed:
                    assert guests.room_bytes == (1 << 29) - (1 << 20)
                    with guests._memory._alone():
                        assert guests.room_bytes == (1 << 29) - (1 << 20)
                assert ports.network.here.member.peer_id == load_or_create_identity(guests.folder(slot)).peer_id
                assert (ports.engine, ports.guests, ports.tokens) == ("own", None, "text" if can_feed else None)
                assert isinstance(ports.snapshots, FolderSnapshots)
                assert isinstance(ports.journal, guest_ports.GuestJournal)
                async with asyncio.timeout(10):
                    while can_feed and guests.room_bytes != 1 << 29:
                        await asyncio.sleep(0.01)
    assert kept == ["reach", "reach"]


async def test_a_bootstrap_nodes_relay_takes_no_strangers(tmp_path: Path, manifest: Manifest) -> None:
    """A stranger cannot register with it."""
    board, identity, journal = Board(manifest), load_or_create_identity(tmp_path / "node"), TextJournal(io.StringIO())
    founding = Founding(RunConfig(manifest, ""), str(tmp_path / "node"), "", "127.0.0.1", 0, journal)
    async with (
        GrpcNetwork(manifest.fingerprint(), identity, LIFE, admission=Admission(manifest)) as network,
        founding._relay(cast("Any", board), network, 60.0),
    ):
        await require_refused(board, manifest, tmp_path / "stranger")
