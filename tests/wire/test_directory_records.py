"""What the directory writes and believes, byte by byte, and where it keeps its sockets; no
network.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import fcntl
import os
import socket
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from directory_world import World, announcement_of
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.canonical_json import canonical_json, json_object
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.wire.announcement_record import (
    PeerRecord,
    peer_record_from_bytes,
    peer_record_to_bytes,
    relay_record_from_bytes,
    relay_record_to_bytes,
    run_record_from_bytes,
    run_record_to_bytes,
)
from swarmfree.wire.dht_values import RECORDS_MAX, SignedRecord
from swarmfree.wire.directory import COPIES_MIN, Records
from swarmfree.wire.identity import Identity, load_or_create_identity
from swarmfree.wire.known_peers import KNOWN_PEERS_FILE, read_known_peers, write_known_peers
from swarmfree.wire.socket_folder import SocketFolder
from swarmfree.wire.ticket import SHOWN_SIZE_BYTES_MAX


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """One peer."""
    return load_or_create_identity(tmp_path_factory.mktemp("peer"))


@pytest.fixture(scope="module")
def record(identity: Identity) -> PeerRecord:
    """What it may publish."""
    return PeerRecord(
        announcement_of(identity), (f"/ip4/127.0.0.1/tcp/4002/p2p/{identity.peer_id}",), bytes(SHOWN_SIZE_BYTES_MAX)
    )


def test_record_is_read_as_it_was_written(record: PeerRecord, identity: Identity) -> None:
    """An announcement survives its bytes exactly, floats too, and is small; keys of a later version
    are passed over.
    """
    content = peer_record_to_bytes(record)
    expires_s = record.announcement.expires_s
    assert peer_record_from_bytes(content, identity.peer_id, expires_s) == record
    assert len(content) < 1000
    later = canonical_json({**json_object(content, 10_000), "something_new": [1, {"a": None}]})
    assert peer_record_from_bytes(later, identity.peer_id, expires_s) == record


RELAY, BEHIND = "QmVvV8JQmmqPCwXAaesWJPheUiEFJJ9HWRhWhuFuxVQxpR", "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"
CIRCUIT = f"/ip4/203.0.113.7/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/{BEHIND}"
GOLDEN_RELAYED = (
    b'{"addresses":["/ip4/203.0.113.7/tcp/4001/p2p/QmVvV8JQmmqPCwXAaesWJPheUiEFJJ9HWRhWhuFuxVQxpR/p2p-circuit/p2p/'
    b'QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"],"can_feed":false,"entry_points":[],"expires_s":1795500000.0,'
    b'"incarnation":"00000000000000aa","iteration":0,"lineage":"","peer_id":"QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG",'
    b'"revision":13,"seconds_per_microbatch":0.0,"squared_norm":0.0,"stage":-1,"state":"standby","ticket":"AAECAwT7/P3+/w=="}'
)
GOLDEN_RELAYS = (
    b'{"relays":["/ip4/203.0.113.7/tcp/4001/p2p/QmVvV8JQmmqPCwXAaesWJPheUiEFJJ9HWRhWhuFuxVQxpR"],"ticket":"AAECAwT7/P3+/w=="}'
)
TICKET = bytes((0, 1, 2, 3, 4, 251, 252, 253, 254, 255))


def test_an_address_behind_a_relay_keeps_its_bytes() -> None:
    """What a peer behind a relay announces, with its ticket, and where a relay is, are written as
    they were when this test was.
    """
    endpoint = Endpoint(Member(BEHIND, "00000000000000aa"), (CIRCUIT,))
    said = Announcement(endpoint, PeerState.STANDBY, -1, 0, "", 0.0, 0.0, False, 13, 1795500000.0)
    record = PeerRecord(said, (), TICKET)
    assert peer_record_to_bytes(record) == GOLDEN_RELAYED
    assert peer_record_from_bytes(GOLDEN_RELAYED, BEHIND, 1795500000.0) == record
    assert relay_record_to_bytes((CIRCUIT.partition("/p2p-circuit")[0],), TICKET) == GOLDEN_RELAYS
    assert relay_record_from_bytes(GOLDEN_RELAYS, RELAY) == ((CIRCUIT.partition("/p2p-circuit")[0],), TICKET)


def test_the_directory_itself_is_not_reached_through_relays() -> None:
    """libp2p's entry points and relays are called directly; nobody offers another's relay."""
    behind = json_object(GOLDEN_RELAYED, 10_000) | {"entry_points": [CIRCUIT]}
    with pytest.raises(ValueError, match="entry_points"):
        peer_record_from_bytes(canonical_json(behind), BEHIND, 1795500000.0)
    with pytest.raises(ValueError, match="is an address of another peer"):
        relay_record_from_bytes(GOLDEN_RELAYS, BEHIND)
    with pytest.raises(ValueError, match="relays"):
        relay_record_from_bytes(canonical_json({"relays": [CIRCUIT], "ticket": ""}), BEHIND)
    with pytest.raises(ValueError, match="ticket"):
        relay_record_from_bytes(canonical_json({"relays": []}), BEHIND)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peer_id", "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"),
        ("peer_id", None),
        ("incarnation", "0123456789ABCDEF"),
        ("incarnation", "0" * 15),
        ("incarnation", 5),
        ("addresses", "/ip4/127.0.0.1/tcp/4001"),
        ("addresses", ["/ip4/127.0.0.1/tcp/4001"]),
        ("addresses", [5]),
        ("addresses", ["/ip4/127.0.0.1/tcp/4001/p2p/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"]),
        ("entry_points", {}),
        ("entry_points", ["x"] * 9),
        ("state", "asleep"),
        ("stage", -2),
        ("stage", 1 << 40),
        ("stage", True),
        ("stage", 1.0),
        ("iteration", -1),
        ("iteration", "7"),
        ("iteration", 1 << 60),
        ("lineage", "xyz"),
        ("lineage", "a" * 65),
        ("squared_norm", -1.0),
        ("squared_norm", "1"),
        ("squared_norm", True),
        ("squared_norm", 10**400),
        ("seconds_per_microbatch", []),
        ("can_feed", 1),
        ("revision", None),
        ("expires_s", 0),
        ("ticket", 5),
        ("ticket", "AAA"),
        ("ticket", "AA AA"),
        ("ticket", "\u00e4AAA"),
        ("ticket", base64.b64encode(bytes(SHOWN_SIZE_BYTES_MAX + 1)).decode()),
    ],
)
def test_record_with_a_wrong_field_is_refused(record: PeerRecord, identity: Identity, key: str, value: object) -> None:
    """Each field has its type and bounds; a record that breaks one of them, or lacks a field, is
    refused with a sentence.
    """
    values = json_object(peer_record_to_bytes(record), 10_000)
    for broken in ({**values, key: value}, {name: kept for name, kept in values.items() if name != key}):
        with pytest.raises(ValueError, match=r"\w"):
            peer_record_from_bytes(canonical_json(broken), identity.peer_id, record.announcement.expires_s)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(record: PeerRecord, identity: Identity, number: str) -> None:
    """NaN and infinities, which Python's JSON reads, are refused."""
    content = peer_record_to_bytes(record).replace(b'"squared_norm":0.125', f'"squared_norm":{number}'.encode())
    assert number.encode() in content
    with pytest.raises(ValueError, match="squared_norm"):
        peer_record_from_bytes(content, identity.peer_id, record.announcement.expires_s)


@given(st.one_of(st.binary(max_size=300), st.just(b"[" * 5000), st.just(b" " * 9000), st.just(b'{"a":' * 1500)))
def test_any_bytes_end_in_a_value_error(content: bytes) -> None:
    """Whatever a stranger signed, the reader says that it is wrong and nothing else happens."""
    with pytest.raises(ValueError, match=r"\w"):
        peer_record_from_bytes(content, "Qm", 0.0)
    with pytest.raises(ValueError, match=r"\w"):
        run_record_from_bytes(content, "Qm")


def test_run_record_is_read_as_it_was_written(identity: Identity) -> None:
    """A run record names a run and its owner's own addresses, and nobody else's."""
    address = f"/ip4/127.0.0.1/tcp/4002/p2p/{identity.peer_id}"
    content = run_record_to_bytes("ab" * 32, (address,))
    assert run_record_from_bytes(content, identity.peer_id) == ("ab" * 32, (address,))
    with pytest.raises(ValueError, match="another peer"):
        run_record_from_bytes(content, "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG")


def test_validator_believes_signed_small_and_short_lived_records(identity: Identity, tmp_path: Path) -> None:
    """A record is kept if its owner signed it, it is small and its lease is short; verdicts are not
    worked out twice.
    """
    import msgpack
    from hivemind.dht.validation import DHTRecord

    from swarmfree.wire.dht_validator import LEASE_S_MAX, VALUE_SIZE_BYTES_MAX, SignedRecordValidator

    now_s = 1000.0
    validator = SignedRecordValidator(identity, lambda: now_s)
    stranger = SignedRecordValidator(load_or_create_identity(tmp_path), lambda: now_s)
    subkey = msgpack.packb(validator.local_public_key)
    bare = DHTRecord(b"k" * 20, subkey, msgpack.packb(b"word"), now_s + 30.0)
    good = dataclasses.replace(bare, value=validator.sign_value(bare))
    assert validator.owner_of(validator.local_public_key) == identity.peer_id
    assert stranger.validate(good)
    assert stranger.validate(good)
    assert stranger.checked_count == 1

    def signed(**changes: object) -> DHTRecord:
        changed = dataclasses.replace(bare, **changes)
        return dataclasses.replace(changed, value=validator.sign_value(changed))

    # A comment behind the key: one owner would have as many places under a key as it likes
    renamed = dataclasses.replace(bare, subkey=msgpack.packb(validator.local_public_key[:-1] + b" 2]"))
    signature = validator._private_key.sign(validator._serialize_record(renamed))
    refused = [
        bare,
        dataclasses.replace(renamed, value=renamed.value + b"[signature:" + signature + b"]"),
        dataclasses.replace(good, key=b"j" * 20),
        dataclasses.replace(good, expiration_time=good.expiration_time + 1),
        dataclasses.replace(good, value=good.value.replace(b"word", b"wind")),
        dataclasses.replace(good, subkey=msgpack.packb(stranger.local_public_key)),
        dataclasses.replace(good, subkey=msgpack.packb(None)),
        dataclasses.replace(good, subkey=b""),
        dataclasses.replace(good, subkey=None),
        dataclasses.replace(good, subkey=msgpack.packb(b"[owner:ssh-rsa AAAA]")),
        dataclasses.replace(good, value=good.value + b"[signature:AAAA]"),
        signed(expiration_time=now_s + LEASE_S_MAX + 1),
        signed(expiration_time=float("nan")),
        signed(value=msgpack.packb(b"x" * VALUE_SIZE_BYTES_MAX)),
        signed(value=b"\xc1"),
        signed(value=msgpack.packb("text")),
        signed(subkey=msgpack.packb(validator.local_public_key + b"more")),
    ]
    assert [number for number, record in enumerate(refused) if stranger.validate(record)] == []
    assert stranger.validate(good)


def test_known_peers_are_kept_for_their_run(tmp_path: Path, record: PeerRecord) -> None:
    """What is written is read back, at most 16 of it, for the same run alone; a damaged or missing
    file is no trouble.
    """
    (address,) = record.entry_points
    assert read_known_peers(tmp_path, "run") == ()
    write_known_peers(tmp_path, "run", [address] * 20)
    assert read_known_peers(tmp_path, "run") == (address,) * 16
    assert read_known_peers(tmp_path, "another") == ()
    assert os.listdir(tmp_path) == [KNOWN_PEERS_FILE]
    for damage in (
        b"",
        b"{",
        b"[]",
        b'{"run": "run"}',
        b'{"run": "run", "entry_points": 5}',
        b'{"run":"run","entry_points":["x"]}',
    ):
        (tmp_path / KNOWN_PEERS_FILE).write_bytes(damage)
        assert read_known_peers(tmp_path, "run") == ()
    write_known_peers(tmp_path / "missing", "run", [address])


def listening(path: str) -> socket.socket:
    """A unix socket that listens at a path."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    return server


def connects(path: str) -> bool:
    """Whether somebody listens at a path."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def test_socket_is_reached_without_its_name(tmp_path: Path) -> None:
    """However deep the folder, a socket can be bound in it, and once pinned it is reached although
    its name is gone.
    """
    sockets = SocketFolder(tmp_path / ("deep" * 60))
    try:
        with listening(sockets.prefix + "a.sock"):
            assert connects(sockets.prefix + "a.sock")
            path = sockets.pin("a.sock")
            assert list(tmp_path.rglob("*.sock")) == []
            assert connects(path)
            sockets.unpin()
            assert not connects(path)
    finally:
        sockets.close()
    assert not any(path.name == "sockets" for path in tmp_path.rglob("*"))


def test_without_proc_plain_paths_are_used() -> None:
    """Where the system has no /proc, sockets have plain paths, are removed at the end, and too long
    a path is told.
    """
    with tempfile.TemporaryDirectory() as folder:  # a short path
        _use_plain_paths(Path(folder))


def _use_plain_paths(tmp_path: Path) -> None:
    sockets = SocketFolder(tmp_path, proc=tmp_path / "none")
    with listening(sockets.prefix + "a.sock"):
        assert sockets.pin("a.sock") == str(tmp_path / "sockets" / "a.sock")
        assert connects(sockets.pin("a.sock"))
    sockets.close()
    sockets.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConfigError, match=r"its path is \d+ bytes too long"):
        SocketFolder(tmp_path / ("deep" * 30), proc=tmp_path / "none")


def test_stale_sockets_are_removed_at_the_next_start(tmp_path: Path) -> None:
    """Sockets that a killed process left by name are gone after the next start in that folder;
    other files stay.
    """
    (tmp_path / "sockets").mkdir()
    listening(str(tmp_path / "sockets" / "p2pd-x.sock")).close()
    (tmp_path / "sockets" / "notes").write_text("mine")
    sockets = SocketFolder(tmp_path)
    assert os.listdir(tmp_path / "sockets") == ["notes"]
    sockets.close()
    assert (tmp_path / "sockets" / "notes").read_text() == "mine"


def test_folder_is_locked_while_it_is_used(tmp_path: Path) -> None:
    """A folder serves one at a time; one that is refused takes nothing from the other, and one that
    ends makes room.
    """
    sockets = SocketFolder(tmp_path)
    with listening(sockets.prefix + "a.sock"):
        with pytest.raises(ConfigError, match="in use by another running peer"):
            SocketFolder(tmp_path)
        assert connects(sockets.prefix + "a.sock")
    sockets.close()
    SocketFolder(tmp_path).close()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """A folder that is a file is named in one line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        SocketFolder(tmp_path / "file")


async def test_two_calls_at_once_keep_what_each_has_found(small_manifest: Manifest, tmp_path: Path) -> None:
    """Of two reads the longer one began first, and found an older announcement of one peer and none
    of another: both are known as they were last read, also where the directory answers no more.
    """
    world = World(tmp_path, small_manifest)
    directory, _ = world.unstarted("reader", ())
    directory._manifest = world.manifest
    moved, newcomer = (load_or_create_identity(tmp_path / name) for name in ("moved", "newcomer"))

    def found(identity: Identity, lease_s: float) -> SignedRecord:
        said = announcement_of(identity, lease_s=lease_s)
        value = peer_record_to_bytes(PeerRecord(said, (), world.ticket.shown_by(identity.peer_id)))
        return SignedRecord(identity.peer_id, value, said.expires_s)

    long = (found(moved, 60.0), *(SignedRecord(f"stranger{number}", b"{}", 1.0) for number in range(40)))
    answers = [long, (found(moved, 90.0), found(newcomer, 90.0))]

    async def read(keys: tuple[str, ...], limit_s: float) -> Records:
        return {keys[0]: answers.pop(0)} if answers else {}

    directory._read = read  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(directory.announcements())
    known = await directory.announcements()
    assert {a.endpoint.member.peer_id for a in known} == {moved.peer_id, newcomer.peer_id}
    assert min(a.expires_s for a in known) > time.time() + 70.0


@pytest.mark.parametrize(("others", "left_s", "keeps"), [(5, 45.0, False), (4, 45.0, True), (5, 15.0, True)])
async def test_a_member_keeps_copies_where_others_do_not(
    *, others: int, left_s: float, keeps: bool, small_manifest: Manifest, tmp_path: Path
) -> None:
    """Too few of them do, or nobody has renewed theirs though half of the lease is over."""
    assert COPIES_MIN == 5
    world, stored = World(tmp_path, small_manifest), list[str]()
    directory, _ = world.unstarted("member", ())
    directory._manifest, directory._keeper = world.manifest, cast("Any", SimpleNamespace(addresses=()))
    copies = [SignedRecord(f"peer {number}", world.manifest.canonical(), time.time() + left_s) for number in range(others)]

    async def read(keys: tuple[str, ...], limit_s: float) -> Records:
        return {}

    async def found(*whats: str) -> list[list[SignedRecord]]:
        return [copies for _ in whats]

    async def store(contents: dict[str, bytes], expires_s: float) -> None:
        stored.extend(contents)

    directory._read, directory._copies, directory._store = read, found, store  # type: ignore[method-assign]
    await directory.publish_run(60.0)
    assert (f"{world.run}.manifest" in stored) is keeps


async def test_of_one_key_no_more_is_taken_than_a_node_holds(small_manifest: Manifest, tmp_path: Path) -> None:
    """What does not belong there is no part of that."""
    world = World(tmp_path, small_manifest)
    directory, _ = world.unstarted("reader", ())
    paper = SignedRecord("the last", world.manifest.canonical(), 0.0)
    many = (*(SignedRecord(f"peer {number}", b"", 0.0) for number in range(RECORDS_MAX + 1)), paper)

    async def read(keys: tuple[str, ...], limit_s: float) -> Records:
        return dict.fromkeys(keys, many)

    keys = "swarmfree.runs", f"{world.run}.manifest"
    found = await directory._read_true(cast("Any", SimpleNamespace(read=read)), keys, 1.0)
    assert [len(found[key]) for key in keys] == [RECORDS_MAX, 1]
