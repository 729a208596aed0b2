"""Ban lists: made by the organiser, found by everybody, and followed at once by a network that has
calls under way.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from directory_world import World, announcement_of, world_of
from wire_world import answer_to, endpoint, identity, network

from swarmfree.cli.ban_run import publish_bans
from swarmfree.protocol.errors import (
    CallFailed,
    ConfigError,
    Excluded,
    PeerUnreachable,
    ProtocolViolation,
    Refused,
    SwarmfreeError,
)
from swarmfree.protocol.events import PeersBanned
from swarmfree.protocol.manifest import Manifest, TimingSection
from swarmfree.protocol.messages import GetPlan, Header, Request, Train
from swarmfree.protocol.names import WorkKey, WorkKind
from swarmfree.protocol.ports import Incoming, Reply
from swarmfree.wire.admission import Admission
from swarmfree.wire.ban_list import (
    BAN_LIST_SIZE_BYTES_MAX,
    BANS_FILE,
    LISTED_MAX,
    BanList,
    keep_bans,
    longer_ban_list,
    newest_ban_list,
    read_ban_list,
    read_ban_lists,
    read_kept_bans,
)
from swarmfree.wire.ban_watch import BanWatch
from swarmfree.wire.base58 import base58_encode
from swarmfree.wire.invite import Invite
from swarmfree.wire.organiser import draw_organiser

SOMEBODY, ANOTHER = identity("somebody").peer_id, identity("another").peer_id
TICKET = "0123456789abcdef"


@pytest.fixture
async def world(tmp_path: Path, small_manifest: Manifest) -> AsyncIterator[World]:
    """A run whose peers are closed when the test ends."""
    async with world_of(tmp_path, small_manifest) as one:
        yield one


def banning(world: World, known: BanList | None, *peers: str) -> BanList:
    """The organiser's next list."""
    return longer_ban_list(world.organiser, world.manifest, known, peers=peers, tickets=())


async def test_a_list_is_found_kept_and_published_by_who_read_it(world: World) -> None:
    """Who reads a list publishes it, also when the organiser has gone; whom it names is announced
    no more; who starts again knows it, and an older one brings nobody back.
    """
    bootstrap = await world.bootstrap()
    peer, peer_id = await world.peer("peer", bootstrap.addresses)
    bad, bad_id = await world.peer("bad", bootstrap.addresses)
    for one, who in ((peer, peer_id), (bad, bad_id)):
        await one.announce(announcement_of(who))
    assert len(await peer.announcements()) == 2
    assert await peer.read_bans(60.0) is None
    first = banning(world, None, bad_id.peer_id)
    second = banning(world, first, SOMEBODY)
    assert (second.number, set(second.peers)) == (2, {bad_id.peer_id, SOMEBODY})
    await bootstrap.publish_bans(second, 60.0)
    assert await peer.read_bans(60.0) == second
    assert await bad.read_bans(60.0) == second
    assert await bootstrap.keepers_of_bans(second) == 1, "a banned peer's word is none"
    assert [a.endpoint.member.peer_id for a in await peer.announcements()] == [peer_id.peer_id]
    await bad._store({f"{world.run}.bans": first.canonical()}, time.time() + 60.0)
    assert await peer.read_bans(60.0) == second
    await bootstrap.close()
    late, _ = await world.peer("late", peer.addresses)
    assert await late.read_bans(60.0) == second
    assert read_kept_bans(world.folder / "late", world.manifest) == second


async def test_a_list_is_published_as_long_as_the_run(world: World) -> None:
    """Who serves the run publishes its list again, and again, as it does the manifest."""
    bootstrap = await world.bootstrap()
    await bootstrap.publish_bans(banning(world, None, SOMEBODY), 5.0)
    await bootstrap.publish_run(60.0)
    (record,) = (await bootstrap._read((f"{world.run}.bans",), 5.0))[f"{world.run}.bans"]
    assert record.expires_s > time.time() + 30.0


async def test_forged_lists_in_the_directory_are_passed_over(world: World) -> None:
    """Lists by others, and what is none, change nothing, and hide no true one."""
    bootstrap = await world.bootstrap()
    peer, _ = await world.peer("peer", bootstrap.addresses)
    forger, _ = await world.peer("forger", bootstrap.addresses)
    true = banning(world, None, SOMEBODY)
    forged = BanList(world.run, 9, (ANOTHER,), (), draw_organiser().sign(b"anything"))
    for number, content in enumerate((forged.canonical(), b"", b"\xff", b"[" * 9000, b"{}", true.canonical()[:-1])):
        await forger._store({f"{world.run}.bans": content}, time.time() + 100.0 + number)
        assert await peer.read_bans(60.0) is None
    await bootstrap.publish_bans(true, 60.0)
    assert await peer.read_bans(60.0) == true
    judged = peer._ban_lists
    assert {true} == set(judged.values())
    assert await peer.read_bans(60.0) == true
    assert all(bans is judged[digest] for digest, bans in peer._ban_lists.items()), "nothing is judged twice"


async def test_a_person_bans_by_the_end_of_a_name(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """`swarmfree ban` finds who is meant among the announced, ends when a peer has the list, and
    adds to what was there; a wrong key and an unknown name are told, and a node by which the invite
    leads is not banned by mistake.
    """
    bootstrap = await world.bootstrap()
    bad, bad_id = await world.peer("bad", bootstrap.addresses)
    await bad.announce(announcement_of(bad_id))
    invite = Invite(world.run, bootstrap.addresses)

    async def read() -> None:
        while True:
            await bootstrap.read_bans(60.0)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        assert await publish_bans(invite, world.organiser, [SOMEBODY], [TICKET], 5.0) == 0
        for _ in range(2):  # the second time it is done already
            assert await publish_bans(invite, world.organiser, [bad_id.peer_id[-6:]], [], 5.0) == 0
        with pytest.raises(ConfigError, match="no announced peer's id ends so"):
            await publish_bans(invite, world.organiser, ["nobody"], [], 5.0)
        for node in (world.node.peer_id, world.node.peer_id[-6:]):
            with pytest.raises(ConfigError, match=r"by which the invite leads, as the bootstrap node: .* say --yes"):
                await publish_bans(invite, world.organiser, [node], [], 5.0)
        with pytest.raises(ConfigError, match="but the run's organiser is"):
            await publish_bans(invite, draw_organiser(), [ANOTHER], [], 5.0)
        reading.cancel()
    found = bootstrap.bans
    assert found is not None
    assert (found.number, set(found.peers), found.tickets) == (2, {bad_id.peer_id, SOMEBODY}, (TICKET,))
    assert "ban list 2 names 2 peers and 1 ticket; 1 peer has taken it" in capsys.readouterr().out


async def test_no_list_is_lost_beside_another_of_its_number(world: World) -> None:
    """Of two lists of one number peers follow one; the next command names whom both name, and two
    commands at once end with one list that names everybody.
    """
    bootstrap = await world.bootstrap()
    names = [identity(name).peer_id for name in ("first", "second", "third", "fourth")]
    for name in names[:2]:
        peer, _ = await world.peer(name, bootstrap.addresses)
        await peer.publish_bans(banning(world, None, name), 60.0)
    invite = Invite(world.run, bootstrap.addresses)

    async def read() -> None:
        while (bans := await bootstrap.read_bans(60.0)) is None or set(bans.peers) != set(names):
            await asyncio.sleep(0.1)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(read())
        commands = [group.create_task(publish_bans(invite, world.organiser, [name], [], 5.0)) for name in names[2:]]
    assert [command.result() for command in commands] == [0, 0]
    assert bootstrap.bans is not None and bootstrap.bans.number == 3


def test_of_two_lists_of_one_number_all_follow_the_same(small_manifest: Manifest) -> None:
    """Whichever is read first; and what is read again is not judged again, as long as it is
    there.
    """
    organiser = draw_organiser()
    manifest = Manifest(run=small_manifest.run, organiser=organiser.peer_id)
    one, other = (longer_ban_list(organiser, manifest, None, peers=[peer], tickets=[]) for peer in (SOMEBODY, ANOTHER))
    both = min((one, other), key=BanList.canonical)
    assert newest_ban_list([one, None, other]) == newest_ban_list([other, one]) == both
    contents = [one.canonical(), b"", other.canonical()]
    read = read_ban_lists(contents, manifest, {})
    assert list(read.values()) == [one, None, other]
    again = read_ban_lists(contents[1:], manifest, read)
    assert [bans is read[digest] for digest, bans in again.items()] == [True, True]


def test_a_list_is_believed_before_its_names_are_read(small_manifest: Manifest) -> None:
    """Of one that a stranger signed the names, which take the longest, are not looked at; the
    organiser's must be names.
    """
    organiser = draw_organiser()
    manifest = Manifest(run=small_manifest.run, organiser=organiser.peer_id)
    unsigned = BanList(manifest.fingerprint(), 1, ("nobody",), (), b"")
    for key, why in ((draw_organiser(), "not signed by the organiser"), (organiser, "malformed: peer ids")):
        bans = dataclasses.replace(unsigned, signature=key.sign(unsigned.signed_bytes()))
        with pytest.raises(ProtocolViolation, match=why):
            read_ban_list(bans.canonical(), manifest)


def test_a_kept_list_survives_the_machine_and_damage_is_told(
    tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has reached the disk before it takes the place of another one; what is damaged is named in
    the log, and where there is none nothing is said.
    """
    organiser, flushed = draw_organiser(), list[bytes]()
    manifest = Manifest(run=small_manifest.run, organiser=organiser.peer_id)
    bans = longer_ban_list(organiser, manifest, None, peers=[SOMEBODY], tickets=[])
    monkeypatch.setattr(
        "swarmfree.wire.ban_list.os.fsync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").read_bytes())
    )
    assert read_kept_bans(tmp_path, manifest) is None
    keep_bans(tmp_path, bans)
    assert read_kept_bans(tmp_path, manifest) == bans
    assert flushed == [bans.canonical()]
    assert not caplog.messages
    (tmp_path / BANS_FILE).write_bytes(bans.canonical()[:-1])
    assert read_kept_bans(tmp_path, manifest) is None
    assert [BANS_FILE in line and "malformed" in line for line in caplog.messages] == [True]


async def test_a_ban_that_nobody_takes_is_told(tmp_path: Path, small_manifest: Manifest) -> None:
    """Where nobody reads the list within a lease, the command says so and fails; the bootstrap node
    is banned where that is meant.
    """
    brief = dataclasses.replace(small_manifest, timing=TimingSection(lease_s=1.0))
    async with world_of(tmp_path, brief) as world:
        bootstrap = await world.bootstrap()
        with pytest.raises(SwarmfreeError, match="no peer has taken it within 1 s"):
            await publish_bans(
                Invite(world.run, bootstrap.addresses), world.organiser, [world.node.peer_id], [], 5.0, is_sure=True
            )
        assert (await bootstrap.ban_lists())[0].peers == (world.node.peer_id,)


def test_the_longest_list_fits_into_a_record(small_manifest: Manifest) -> None:
    """As many peers and tickets as a list may name fit into the directory's largest record; one
    more is refused, and so is what is no name.
    """
    organiser = draw_organiser()
    manifest = Manifest(run=small_manifest.run, organiser=organiser.peer_id)
    peers = [base58_encode(b"\x12\x20" + number.to_bytes(32, "big")) for number in range(LISTED_MAX)]
    tickets = [f"{number:016x}" for number in range(LISTED_MAX)]
    longest = longer_ban_list(organiser, manifest, None, peers=peers, tickets=tickets)
    assert len(longest.canonical()) < BAN_LIST_SIZE_BYTES_MAX
    assert read_ban_list(longest.canonical(), manifest) == longest
    for more, rule in (
        ({"peers": [SOMEBODY]}, "at most 512 .*: revoke the ticket .*begin another run"),
        ({"peers": ["x"]}, "no peer id"),
        ({"tickets": ["x"]}, "no ticket"),
    ):
        with pytest.raises(ConfigError, match=rule):
            longer_ban_list(organiser, manifest, longest, **{"peers": [], "tickets": [], **more})


async def test_calls_under_way_end_on_both_sides() -> None:
    """Who is cut off hears the end of the calls that it has made, and calls to it end, at once;
    others' calls go on.
    """
    asked, free = asyncio.Queue[str](), asyncio.Event()
    train = Train(WorkKey(3, "0123456789abcdef", WorkKind.TRAIN, 7, 2), 0, endpoint("peer", 1))

    async def slow(header: Header, request: Request, _incoming: Incoming) -> Reply:
        await asked.put(header.sender.member.peer_id)
        await free.wait()
        return Reply(answer_to(request))

    async with network("peer") as peer, network("bad") as bad, network("good") as good, asyncio.TaskGroup() as group:
        for one in (peer, bad, good):
            one.serve(slow)
        pairs: list[tuple[Any, Any]] = [(bad, peer), (peer, bad), (good, peer), (peer, good)]
        calls = [group.create_task(caught(one.call(other.here, GetPlan(), silence_s=20))) for one, other in pairs]
        for _ in calls:
            await asked.get()
        stream = group.create_task(caught(bad.call(peer.here, train, silence_s=20)))
        await asked.get()
        peer.cut_off({bad.here.member.peer_id})
        async with asyncio.timeout(5):
            ended = [await call for call in (calls[0], stream, calls[1])]
        assert [type(error) for error in ended] == [Refused, Refused, PeerUnreachable]
        assert all("cut" in str(error) for error in ended)
        free.set()
        assert [type(await call) for call in calls[2:]] == [Reply, Reply]


async def caught(call: Any) -> Any:
    """A call's reply, or its error."""
    try:
        return await call
    except CallFailed as error:
        return error


async def test_a_peer_that_finds_itself_named_ends(small_manifest: Manifest) -> None:
    """It tells the event, and then that the organiser has banned it."""
    organiser, told = draw_organiser(), list[PeersBanned]()
    manifest = Manifest(run=small_manifest.run, organiser=organiser.peer_id)
    bans = longer_ban_list(organiser, manifest, None, peers=[identity("peer").peer_id], tickets=[])

    class Source:
        async def read_bans(self, _lease_s: float) -> BanList | None:
            return bans

    async with network("peer", manifest.fingerprint()) as peer:
        with pytest.raises(Excluded, match="the run's organiser has banned this peer"):
            await BanWatch(Source(), Admission(manifest), peer, told.append).keep(0.01, 60.0)
    assert told == [PeersBanned(1, [identity("peer").peer_id], [])]
