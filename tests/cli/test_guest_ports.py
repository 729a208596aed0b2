"""A guest in a real process: whether there is room, what its folder says, and what of it the host's
lines tell.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from swarmfree.cli.guest_memory import GuestMemory
from swarmfree.cli.guest_ports import GuestJournal, ProcessGuests, forget_guests, unused_words
from swarmfree.protocol.errors import InviteError, SwarmfreeError
from swarmfree.protocol.events import Ended, Event, Note, Placed, StageBuilt, Started
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.storage.snapshots import SNAPSHOTS, FolderSnapshots
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_list import BanList
from swarmfree.wire.identity import load_or_create_identity
from swarmfree.wire.invite import Invite
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.ticket import Ticket, make_ticket
from tests.builders import make_ports


class Lines:
    """A journal in memory."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def tell(self, event: Event) -> None:
        """Keep it."""
        self.told.append(event)


def guests_of(folder: Path, ticket: Ticket | None = None, bans: BanList | None = None) -> ProcessGuests:
    """Of a peer with this folder and ticket."""
    manifest = Manifest()
    invite = Invite(manifest.fingerprint(), ("/ip4/127.0.0.1/tcp/1/p2p/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG",), ticket)

    def never(*_: object) -> object:
        raise AssertionError("nothing is opened")

    host, local = make_ports(journal=Lines()), LocalConfig(str(folder))
    guests = ProcessGuests(host, local, invite, manifest, Admission(manifest, bans), (), never, never, never)  # type: ignore[arg-type]
    guests._memory = GuestMemory(folder / "promises")
    return guests


def test_half_of_the_free_memory_is_room(tmp_path: Path) -> None:
    """None is where the system does not say what is free."""
    for free, room in ((8 << 30, 4 << 30), (None, 0)):
        guests = guests_of(tmp_path)
        guests._memory = GuestMemory(tmp_path / "promises", lambda free=free: free)
        assert guests.room_bytes == room


def test_what_one_peer_has_promised_no_other_peer_of_the_machine_offers(tmp_path: Path) -> None:
    """Two look at the same free memory: what a guest of one is about to take is no room at the
    other, which takes in none that does not fit, until the promise is withdrawn or who made it has
    ended. While one looks, the other has no answer; where nothing is promised, nothing is left.
    """
    folder = tmp_path / "promises"
    one, other = (GuestMemory(folder, lambda: 2000 << 20) for _ in range(2))
    assert other.room_bytes() == 1000 << 20
    with pytest.raises(SwarmfreeError):
        one.promise(1001 << 20)
    assert not folder.exists()
    first, second = one.promise(500 << 20), one.promise(200 << 20)
    assert one.room_bytes() == other.room_bytes() == 300 << 20
    with pytest.raises(SwarmfreeError, match=r"needs 419 MB of memory; 315 MB are there"):
        other.promise(400 << 20)
    with one._alone() as is_alone:
        assert is_alone
        assert other.room_bytes() is None
        with pytest.raises(SwarmfreeError, match="0 MB are there"):
            other.promise(1)
    first.close()
    assert other.room_bytes() == 800 << 20
    (folder / "1-0").write_text(str(900 << 20))  # its process was killed: nobody holds it locked
    assert other.room_bytes() == 800 << 20
    assert len(list(folder.iterdir())) == 1
    second.close()
    assert not folder.exists()
    with GuestMemory(tmp_path / "no" / "folder", lambda: 2).promise(1):
        pass  # a system without a folder for temporary files has one peer, as far as it knows


async def test_a_guest_for_which_there_is_no_memory_does_not_begin(tmp_path: Path) -> None:
    """What was offered may be taken by now: it is looked once more, before anything is opened."""
    guests = guests_of(tmp_path)
    guests._memory = GuestMemory(tmp_path / "promises", lambda: 1 << 20)
    with pytest.raises(SwarmfreeError, match="memory"):
        async with guests.open(0, can_feed=False, needed_bytes=1 << 20):
            pass


def test_a_ticket_that_names_the_host_is_for_nobody_else(tmp_path: Path) -> None:
    """There is room with a ticket for anybody, and none with one for this peer alone."""
    organiser, run = draw_organiser(), Manifest().fingerprint()
    until_s = int(time.time()) + 600
    assert guests_of(tmp_path, make_ticket(organiser, run, until_s)).room_bytes > 0
    identity = load_or_create_identity(tmp_path)
    assert guests_of(tmp_path, make_ticket(organiser, run, until_s, holder=identity.peer_id)).room_bytes == 0


def test_a_guest_announces_itself_with_its_host_s_ticket(tmp_path: Path) -> None:
    """Else nobody would find it."""
    ticket, identity = (
        make_ticket(draw_organiser(), Manifest().fingerprint(), int(time.time()) + 600),
        load_or_create_identity(tmp_path),
    )
    assert guests_of(tmp_path, ticket)._directory(identity, tmp_path)._ticket == ticket.shown_by(identity.peer_id)


def test_a_guest_is_brought_back_with_the_stage_that_it_left(tmp_path: Path) -> None:
    """Each slot is known by the newest snapshot in its folder, until the guest has left."""
    guests, run = guests_of(tmp_path), Manifest().fingerprint()
    assert guests.held_stages == {}
    for slot, iteration, stage in ((0, 50, 2), (0, 100, 3), (2, 50, 1)):
        place = FolderSnapshots(guests.folder(slot) / SNAPSHOTS, run).place(HeldSnapshot(stage, iteration, GENESIS_LINEAGE))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    assert guests.held_stages == {0: 3, 2: 1}
    guests.forget(0)
    assert guests.held_stages == {2: 1}
    assert "stage 1 (" in unused_words(tmp_path, run)
    forget_guests(tmp_path, run)
    assert guests.held_stages == {}
    assert not unused_words(tmp_path, run)


async def test_a_guest_that_is_banned_does_not_begin(tmp_path: Path) -> None:
    """It learns before anything is opened what everybody else would say."""
    peer_id = load_or_create_identity(guests_of(tmp_path).folder(1)).peer_id
    guests = guests_of(tmp_path, bans=BanList(Manifest().fingerprint(), 1, (peer_id,), (), b""))
    with pytest.raises(InviteError, match="banned"):
        async with guests.open(1, can_feed=False, needed_bytes=1):
            pass


def test_the_host_s_lines_tell_nothing_that_would_be_taken_for_its_own() -> None:
    """What a guest says of the swarm stands there, what it says of itself does not."""
    lines = Lines()
    journal = GuestJournal(lines)
    built, note = StageBuilt(2, 7, "Merge", "Qm", 1.0, 10, "ab"), Note("no majority for 10 s")
    for event in (Started("Qm", "00", "x"), Placed("Qm", 2), built, note, Ended(0, "left")):
        journal.tell(event)
    assert lines.told == [built, note]
