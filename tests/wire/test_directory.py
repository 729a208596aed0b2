"""The directory on real DHT nodes: what is published is found, what is forged is not, and nothing
is left behind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from directory_world import World, announcement_of, is_running, until, world_of

from swarmfree.protocol.announcement import PeerState
from swarmfree.protocol.canonical_json import canonical_json
from swarmfree.protocol.errors import ConfigError, InviteError, SwarmfreeError
from swarmfree.protocol.manifest import Manifest, RunSection
from swarmfree.protocol.names import Endpoint, Founder
from swarmfree.wire.addresses import Address, parse_address
from swarmfree.wire.announcement_record import PeerRecord, peer_record_to_bytes
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.directory import RUNS_KEY, DhtDirectory, DirectorySettings
from swarmfree.wire.genesis import Genesis, make_genesis
from swarmfree.wire.identity import load_or_create_identity
from swarmfree.wire.invite import Invite, decode_invite, encode_invite


@pytest.fixture
async def world(tmp_path: Path, small_manifest: Manifest) -> AsyncIterator[World]:
    """A run whose peers are closed when the test ends."""
    async with world_of(tmp_path, small_manifest) as one:
        yield one


async def test_joiner_finds_run_peers_and_founder_by_invite(world: World) -> None:
    """An invite is all that a joiner needs: it gets the manifest, the founder, and everybody's
    announcement, and is seen itself.
    """
    bootstrap = await world.bootstrap()
    invite = decode_invite(encode_invite(Invite(world.run, await bootstrap.entry_points())))
    assert invite.entry_points == bootstrap.addresses
    first, first_id = await world.peer("first", invite.entry_points)
    second, second_id = await world.peer("second", invite.entry_points)
    assert await second.fetch_manifest(1.0) == world.manifest
    assert await second.founder() is None
    genesis = await bootstrap.name_founder(Founder(1, first_id.peer_id), 60.0)
    assert await bootstrap.name_founder(Founder(1, first_id.peer_id), 60.0) == genesis
    assert [await one.founder() for one in (bootstrap, first, second)] == [Founder(1, first_id.peer_id)] * 3

    said = {identity.peer_id: announcement_of(identity) for identity in (first_id, second_id)}
    await first.announce(said[first_id.peer_id])
    await second.announce(said[second_id.peer_id])
    for one in (bootstrap, first, second):
        assert await one.announcements() == tuple(said[peer_id] for peer_id in sorted(said))
    later = dataclasses.replace(said[first_id.peer_id], state=PeerState.LEAVING, expires_s=time.time() + 61.0)
    await first.announce(later)
    assert later in await second.announcements()
    assert await second.entry_points() == (second.addresses[0], first.addresses[0])


async def test_who_has_moved_replaces_its_announcement(world: World) -> None:
    """It says again what it said last, with its new address, and others hear of that with their
    next look; before it has said anything, and where nothing has changed, it says nothing.
    """
    bootstrap = await world.bootstrap()
    mover, identity = await world.peer("mover", bootstrap.addresses)
    heard: list[Endpoint] = []
    bootstrap.tell_where_peers_are(heard.append)
    said = announcement_of(identity)
    elsewhere = Endpoint(said.endpoint.member, (f"/ip4/127.0.0.1/tcp/4002/p2p/{identity.peer_id}",))
    await mover.announce_at(elsewhere)
    assert await bootstrap.announcements() == ()
    await mover.announce(said)
    assert await bootstrap.announcements() == (said,)
    await mover.announce_at(said.endpoint)
    assert await bootstrap.announcements() == (said,)
    await mover.announce_at(elsewhere)
    (found,) = await bootstrap.announcements()
    assert (found.endpoint, found.stage, heard) == (elsewhere, said.stage, [said.endpoint, elsewhere])
    assert said.expires_s < found.expires_s < said.expires_s + 30


async def test_who_is_reached_elsewhere_announces_that(world: World) -> None:
    """A node behind another address is invited to, and joined, by that one; its own port is kept
    for the next start.
    """
    settings = DirectorySettings(str(world.folder / "bootstrap"), announced=("127.0.0.2", 0), host="0.0.0.0")  # noqa: S104 - on purpose
    bootstrap = DhtDirectory(settings, world.node, world.run, manifest=world.manifest)
    world.directories.append(bootstrap)
    await bootstrap.start()
    await bootstrap.publish_run(60.0)
    assert bootstrap.addresses == (f"/ip4/127.0.0.2/tcp/{bootstrap.port}/p2p/{world.node.peer_id}",)
    joiner, identity = await world.peer("joiner", bootstrap.addresses)
    await joiner.announce(announcement_of(identity))
    assert len(await bootstrap.announcements()) == 1


async def test_a_forwarded_port_is_announced_and_not_listened_on(world: World) -> None:
    """Host and port of a forwarded door stand in the invite; the node listens on its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = DirectorySettings(str(world.folder / "bootstrap"), dht_port=port, announced=("spot.example.org", 4001))
    bootstrap = DhtDirectory(settings, world.node, world.run, manifest=world.manifest)
    world.directories.append(bootstrap)
    await bootstrap.start()
    assert bootstrap.addresses == (f"/dns/spot.example.org/tcp/4001/p2p/{world.node.peer_id}",)
    assert bootstrap.port == port


async def test_relays_are_found_and_moves_are_told(tmp_path: Path, small_manifest: Manifest) -> None:
    """Who has just joined finds where relays are offered, the bootstrap node's first, and none of
    who is banned; and is told once of each peer that announces where it is, and again when that
    changes.
    """
    drawn = {load_or_create_identity(tmp_path / name).peer_id: tmp_path / name for name in ("one", "two")}
    for peer_id, name in zip(sorted(drawn), ("first", "bootstrap"), strict=True):
        drawn[peer_id].rename(tmp_path / name)
    async with world_of(tmp_path, small_manifest) as world:
        await require_relays_and_moves(world)


async def require_relays_and_moves(world: World) -> None:
    """As above, where the bootstrap node's peer id is the last one."""
    bootstrap = await world.bootstrap()
    offers = []
    first, first_identity = await world.peer("first", bootstrap.addresses)
    await bootstrap.name_founder(Founder(1, first_identity.peer_id), 60.0)
    second, _ = await world.peer("second", bootstrap.addresses)
    for directory, identity in ((first, first_identity), (bootstrap, world.node)):
        offers.append(Address("ip4", "127.0.0.1", 4001 + len(offers), identity.peer_id))
        await directory.offer_relay(offers[-1], 60.0)
    assert await second.relays() == (offers[1], offers[0])
    heard: list[Endpoint] = []
    second.tell_where_peers_are(heard.append)
    said = announcement_of(first_identity)
    moved = dataclasses.replace(said.endpoint, addresses=(str(parse_address(said.endpoint.addresses[0]).by_way_of(offers[1])),))
    for number, endpoint in enumerate((said.endpoint, said.endpoint, moved)):
        expires_s = said.expires_s + number
        await first.announce(dataclasses.replace(said, endpoint=endpoint, expires_s=expires_s))
        while [a.expires_s for a in await second.announcements()] != [expires_s]:
            await asyncio.sleep(0.05)
    assert heard == [said.endpoint, moved]
    bans = longer_ban_list(world.organiser, world.manifest, None, peers=(first_identity.peer_id,), tickets=())
    await second.publish_bans(bans, 60.0)
    assert await second.relays() == (offers[1],)


async def test_announcement_is_believed_until_it_expires(world: World) -> None:
    """A peer that falls silent is gone from every view once its lease is over, without anybody
    removing it.
    """
    bootstrap = await world.bootstrap()
    peer, identity = await world.peer("peer", bootstrap.addresses)
    await peer.announce(announcement_of(identity, lease_s=1.5))
    assert len(await bootstrap.announcements()) == 1
    async with asyncio.timeout(5.0):
        while await bootstrap.announcements():
            await asyncio.sleep(0.05)
    assert await peer.announcements() == ()


async def test_members_republish_the_run(world: World) -> None:
    """Manifest and genesis outlive the bootstrap node: members keep copies, at least five of them
    where there are so many.
    """
    bootstrap = await world.bootstrap()
    member, identity = await world.peer("member", bootstrap.addresses)
    await bootstrap.name_founder(Founder(1, identity.peer_id), 60.0)
    await member.publish_run(60.0)
    await bootstrap.close()
    late, _ = await world.peer("late", member.addresses)
    assert await late.fetch_manifest(5.0) == world.manifest
    assert await late.founder() == Founder(1, identity.peer_id)


async def test_a_later_founder_is_read_by_those_who_knew_an_earlier_one(world: World) -> None:
    """Within two seconds everybody follows the second genesis, whoever still keeps copies of the
    first; the organiser never goes back.
    """
    bootstrap = await world.bootstrap()
    member, member_id = await world.peer("member", bootstrap.addresses)
    first, second = Founder(1, member_id.peer_id), Founder(2, world.node.peer_id)
    await bootstrap.name_founder(first, 60.0)
    assert await member.founder() == first
    await member.publish_run(60.0)
    await bootstrap.name_founder(second, 60.0)
    async with asyncio.timeout(3.0):
        while await member.founder() != second:
            await asyncio.sleep(0.1)
    await member.publish_run(60.0)
    assert (await bootstrap.name_founder(first, 60.0)).named.number == 2
    late, _ = await world.peer("late", member.addresses)
    assert await late.founder() == second


async def test_forged_records_change_nothing(world: World) -> None:
    """Words in another's name, rubbish, a false manifest and a false genesis are passed over; true
    records stay readable.
    """
    bootstrap = await world.bootstrap()
    honest, honest_id = await world.peer("honest", bootstrap.addresses)
    forger, forger_id = await world.peer("forger", bootstrap.addresses)
    await honest.announce(announcement_of(honest_id))
    expires_s = time.time() + 100.0
    lie = peer_record_to_bytes(PeerRecord(dataclasses.replace(announcement_of(honest_id, stage=3), expires_s=expires_s), ()))
    # Not when the record expires
    own = dataclasses.replace(announcement_of(forger_id), expires_s=expires_s + 1)
    genesis = Genesis(world.run, Founder(9, forger_id.peer_id), forger_id.public_key, world.delegation, b"")
    genesis = dataclasses.replace(genesis, signature=forger_id.sign(genesis.signed_bytes()))
    for rubbish in (lie, b"", b"\xff", b"[]", b"[" * 4000, peer_record_to_bytes(PeerRecord(own, ()))):
        expires_s += 0.001
        await forger._store({f"{world.run}.peers": rubbish}, expires_s)
        assert await bootstrap.announcements() == await honest.announcements()
        assert [a.endpoint.member.peer_id for a in await bootstrap.announcements()] == [honest_id.peer_id]
    other = dataclasses.replace(world.manifest, run=RunSection(seed=99))
    await forger._store({f"{world.run}.genesis": genesis.canonical(), f"{world.run}.manifest": other.canonical()}, expires_s)
    await forger._store({RUNS_KEY: canonical_json({"run": world.run, "entry_points": list(honest.addresses)})}, expires_s)
    late, _ = await world.peer("late", honest.addresses)
    assert await late.fetch_manifest(5.0) == world.manifest
    assert await late.founder() is None
    assert set(await late.entry_points()) == {one.addresses[0] for one in (late, honest)}
    await bootstrap.name_founder(Founder(1, honest_id.peer_id), 60.0)
    assert await late.founder() == Founder(1, honest_id.peer_id)


async def test_unsigned_records_are_not_stored(world: World) -> None:
    """A node without a key cannot hide the signed records under a key, nor add to them, nor change
    them.
    """
    from hivemind.dht.node import DHTNode

    from swarmfree.wire.dht_validator import hivemind_key

    bootstrap = await world.bootstrap()
    peer, identity = await world.peer("peer", bootstrap.addresses)
    await peer.announce(announcement_of(identity))
    key, expires_s = f"{world.run}.peers", time.time() + 1000.0
    vandal = await DHTNode.create(initial_peers=list(bootstrap.addresses), use_relay=False, nat_port_map=False, auto_nat=False)
    try:
        owner = b"[owner:" + hivemind_key(identity).get_public_key().to_bytes() + b"]"
        assert not await vandal.store(key, b"rubbish", expires_s, exclude_self=True)
        for subkey in (owner, "name", b"[owner:ssh-rsa rubbish]", 5):
            assert not await vandal.store(key, b"rubbish", expires_s, subkey=subkey, exclude_self=True)
    finally:
        await vandal.shutdown()
    for one in (peer, bootstrap):
        assert [a.endpoint.member.peer_id for a in await one.announcements()] == [identity.peer_id]


async def test_addresses_of_another_run_are_told(world: World) -> None:
    """Where the addresses belong to another run, the joiner is told so, with both names, and not
    that nobody answers.
    """
    bootstrap = await world.bootstrap()
    identity = load_or_create_identity(world.folder / "lost")
    settings = DirectorySettings(str(world.folder / "lost"), entry_points=bootstrap.addresses)
    lost = DhtDirectory(settings, identity, "ab" * 32)
    world.directories.append(lost)
    await lost.start()
    with pytest.raises(InviteError, match=f"serve another run .{world.run[:12]}., not {'ab' * 6} as the invite says") as caught:
        await lost.fetch_manifest(1.0)
    assert "\n" not in str(caught.value)


async def test_directory_without_the_run_is_told(world: World) -> None:
    """Where peers answer but nobody knows of any run, the joiner is told that, after the stated
    time.
    """
    bootstrap = DhtDirectory(DirectorySettings(str(world.folder / "bootstrap")), world.node, world.run)
    world.directories.append(bootstrap)
    await bootstrap.start()
    peer, _ = world.unstarted("peer", bootstrap.addresses)
    await peer.start()
    with pytest.raises(
        InviteError, match=r"peers answer at 127\.0\.0\.1:\d+, but none had the manifest of run \w+ within 0\.5 s"
    ):
        await peer.fetch_manifest(0.5)


async def test_dead_addresses_are_told_after_the_stated_time(world: World) -> None:
    """Where nobody answers, the joiner is told after its patience, with the addresses and the time,
    and nothing is left of it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dead = f"/ip4/127.0.0.1/tcp/{port}/p2p/{world.node.peer_id}"
    peer, _ = world.unstarted("peer", (dead,), patience_s=2.0)
    began_s = time.monotonic()
    with pytest.raises(InviteError, match=rf"nobody answers at 127\.0\.0\.1:{port} \(tried for 2 s\)"):
        await peer.start()
    assert 0.9 < time.monotonic() - began_s < 5.0
    assert not (world.folder / "peer" / "sockets").exists()


async def test_taken_port_is_told(world: World) -> None:
    """A libp2p port that something else listens on is named in one line."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        settings = DirectorySettings(str(world.folder / "bootstrap"), dht_port=port)
        with pytest.raises(SwarmfreeError, match=f"libp2p port {port} on 127.0.0.1 is taken by another process"):
            await DhtDirectory(settings, world.node, world.run).start()


async def test_folder_in_use_is_told_and_left_alone(world: World) -> None:
    """A second peer in the folder of a running one is refused, and the running one does not
    notice.
    """
    bootstrap = await world.bootstrap()
    second = DhtDirectory(DirectorySettings(str(world.folder / "bootstrap")), world.node, world.run)
    with pytest.raises(ConfigError, match="is in use by another running peer"):
        await second.start()
    assert (world.folder / "bootstrap" / "sockets").exists()
    assert bootstrap.daemon_pid is not None and is_running(bootstrap.daemon_pid)
    await bootstrap.close()
    again = await world.bootstrap()
    assert again.addresses


def test_host_is_an_ip_address(tmp_path: Path) -> None:
    """A host that is no IP address, and a malformed entry point, are told before anything
    starts.
    """
    with pytest.raises(ConfigError, match="host = 'localhost'"):
        DirectorySettings(str(tmp_path), host="localhost")
    with pytest.raises(ConfigError, match="/ip4/HOST/tcp/PORT/p2p/PEER expected"):
        DirectorySettings(str(tmp_path), entry_points=("127.0.0.1:5",))


async def test_nothing_is_left_and_nothing_lies_outside_the_folder(small_manifest: Manifest, tmp_path: Path) -> None:
    """p2pd works from the deepest folder, leaves no socket by name anywhere while it runs, and no
    process after the end.
    """
    before = set(Path("/tmp").glob("hivemind-*"))
    async with world_of(tmp_path / ("deep" * 50) / "a folder", small_manifest) as world:
        bootstrap = await world.bootstrap()
        peer, identity = await world.peer("peer", bootstrap.addresses)
        await peer.announce(announcement_of(identity))
        pids = [one.daemon_pid for one in (bootstrap, peer)]
        assert None not in pids
        assert set(Path("/tmp").glob("hivemind-*")) == before
        assert list(world.folder.rglob("*.sock")) == []
    assert not any(is_running(pid) for pid in pids if pid is not None)
    kept = {path.name for path in world.folder.rglob("*") if path.is_file()}
    assert kept <= {"identity.key", "known_peers.json"}
    assert not any(path.name == "sockets" for path in world.folder.rglob("*"))
    assert await bootstrap.announcements() == ()
    await bootstrap.announce(announcement_of(world.node))
    await bootstrap.publish_run(60.0)
    await bootstrap.close()


async def test_cancelled_start_leaves_nothing(world: World) -> None:
    """A start that is cut short at any moment leaves no p2pd, thread or lock behind: the folder
    serves again at once.
    """
    for limit_s in (0.0, 0.02, 0.05, 0.1, 0.2):
        directory = DhtDirectory(DirectorySettings(str(world.folder / "bootstrap")), world.node, world.run)
        try:
            async with asyncio.timeout(limit_s):
                await directory.start()
        except TimeoutError:
            assert not (world.folder / "bootstrap" / "sockets").exists()
        else:
            await directory.close()
    assert (await world.bootstrap()).addresses


def test_importing_the_directory_is_cheap() -> None:
    """Neither hivemind nor torch is loaded before a directory starts, so that the command line
    answers at once.
    """
    code = "import sys, swarmfree.wire.directory; print([name for name in ('hivemind', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_directory_loads_no_more_of_hivemind_than_it_uses() -> None:
    """Of hivemind the directory's half is loaded, and neither experts, optimizers and averagers nor
    what they need.
    """
    unused = "{'hivemind.moe', 'hivemind.optim', 'hivemind.averaging', 'scipy'}"
    code = f"import sys, swarmfree.wire.dht_keeper as k; print(sorted({unused} & set(sys.modules)), 'hivemind.dht.node' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "[] True\n"


def test_genesis_key_is_the_runs_own(world: World) -> None:
    """A genesis that was signed for one run does not name a founder for another."""
    genesis = make_genesis(world.node, world.manifest, Founder(1, world.node.peer_id), world.delegation)
    assert re.fullmatch("[0-9a-f]{64}", genesis.fingerprint) and genesis.fingerprint == world.run


async def test_waiting_helper_has_a_limit() -> None:
    """A test that waits for what never happens fails with a sentence."""
    with pytest.raises(AssertionError, match="the moon: not within"):
        await until(lambda: False, "the moon", limit_s=0.05)
