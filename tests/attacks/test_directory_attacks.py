"""What a stranger with a libp2p daemon of its own does to the directory, on real nodes: each attack
is bounded, and what honest peers say stays readable.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from swarmfree.protocol.canonical_json import canonical_json
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Endpoint, Founder
from swarmfree.protocol.order import Halting, Order
from swarmfree.wire import genesis, record_judge
from swarmfree.wire.addresses import parse_address
from swarmfree.wire.announcement_record import PeerRecord, peer_record_to_bytes
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.dht_values import SignedRecord
from swarmfree.wire.directory import DhtDirectory, DirectorySettings
from swarmfree.wire.genesis import Genesis, read_genesis
from swarmfree.wire.identity import Identity, load_or_create_identity
from swarmfree.wire.organiser import draw_organiser
from swarmfree.wire.signed_order import sign_order
from swarmfree.wire.ticket import make_ticket
from tests.wire.directory_world import World, announcement_of, world_of


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A bootstrap node and whoever comes to it."""
    async with world_of(tmp_path, Manifest()) as made:
        yield made


@contextlib.asynccontextmanager
async def stranger(world: World, to: DhtDirectory) -> AsyncIterator[tuple[Any, Any, Identity]]:
    """Hivemind's own node with an identity of its own: the node, its validator, and who it is."""
    from swarmfree.wire.dht_validator import SignedRecordValidator
    from swarmfree.wire.hivemind_parts import DHTNode

    identity = load_or_create_identity(world.folder / "stranger")
    validator = SignedRecordValidator(identity, time.time)
    node = await DHTNode.create(
        initial_peers=list(to.addresses), record_validator=validator, use_relay=False, nat_port_map=False, auto_nat=False
    )
    try:
        yield node, validator, identity
    finally:
        await node.shutdown()


async def store(node: Any, to: DhtDirectory, entries: list[tuple[str, Any, bytes]], expires_s: float, **flags: Any) -> int:
    """Ask this one node to hold records; how many it says it holds."""
    from swarmfree.wire.hivemind_parts import DHTID, PeerID

    peer_id = PeerID.from_base58(to.addresses[0].rpartition("/")[2])
    keys, subkeys, values = zip(*[(DHTID.generate(source=key), subkey, value) for key, subkey, value in entries], strict=True)
    done = await node.protocol.call_store(peer_id, list(keys), list(values), [expires_s] * len(keys), list(subkeys), **flags)
    return sum(bool(one) for one in done or [])


def signed(validator: Any, key: str, value: bytes, expires_s: float) -> bytes:
    """The value, with the stranger's own signature."""
    from hivemind.dht.validation import DHTRecord
    from hivemind.utils.serializer import MSGPackSerializer

    from swarmfree.wire.hivemind_parts import DHTID

    packed = MSGPackSerializer.dumps(validator.local_public_key)
    key_bytes = DHTID.generate(source=key).to_bytes()
    signed_value: bytes = validator.sign_value(DHTRecord(key_bytes, packed, MSGPackSerializer.dumps(value), expires_s))
    return signed_value


async def test_who_has_no_ticket_announces_nothing(world: World) -> None:
    """A peer that the organiser has let in is found by all. Nobody finds one, nor hears where it
    is, whose announcement has no ticket, that of another peer, one of another organiser, or one
    that has ended; nor any more who came with a ticket that is revoked.
    """
    bootstrap = await world.bootstrap()
    peer, identity = await world.peer("peer", bootstrap.addresses)
    await peer.announce(announcement_of(identity))
    stranger, me = await world.peer("stranger", bootstrap.addresses)
    heard: list[Endpoint] = []
    for one in (bootstrap, peer):
        one.tell_where_peers_are(heard.append)
    hour_s, expires_s = int(time.time()) + 3600, time.time() + 100.0
    another = make_ticket(draw_organiser(), world.run, hour_s)
    ended = make_ticket(world.organiser, world.run, int(time.time()) - 1)
    shown = (
        b"",
        world.ticket.shown_by(identity.peer_id),
        another.shown_by(me.peer_id),
        ended.shown_by(me.peer_id),
        world.ticket.shown_by(me.peer_id),
    )
    found = []
    for ticket in shown:
        expires_s += 1.0
        said = dataclasses.replace(announcement_of(me), iteration=10**6, expires_s=expires_s)
        record = peer_record_to_bytes(PeerRecord(said, stranger.addresses[:1], ticket))
        await stranger._store({f"{world.run}.peers": record}, expires_s)
        found.append([said in await one.announcements() for one in (bootstrap, peer, stranger)])
        assert [
            announcement_of(identity).endpoint in {a.endpoint for a in await one.announcements()} for one in (bootstrap, peer)
        ]
        assert (stranger.addresses[0] in await bootstrap.entry_points()) == any(found[-1])
        assert (said.endpoint in heard) == any(found[-1])
    assert found == [[False] * 3] * 4 + [[True] * 3]
    bans = longer_ban_list(world.organiser, world.manifest, None, peers=[], tickets=[world.ticket.ticket_id])
    await bootstrap.publish_bans(bans, 60.0)
    assert await bootstrap.announcements() == ()
    assert len(await peer.announcements()) == 2
    assert await peer.read_bans(60.0) == bans
    assert await peer.announcements() == ()


async def test_who_has_no_ticket_leads_nobody(world: World) -> None:
    """A stranger says that it serves the run, offers a relay, with no ticket and with another
    peer's, and publishes what the organiser has signed. No invite names it, nobody is led by it,
    and no command takes it for a peer that has heard; who may take part does all of that.
    """
    bootstrap = await world.bootstrap()
    peer, identity = await world.peer("peer", bootstrap.addresses)
    stranger, me = await world.peer("stranger", bootstrap.addresses)
    await peer.announce(announcement_of(identity))
    bans = longer_ban_list(world.organiser, world.manifest, None, peers=[], tickets=["0123456789abcdef"])
    order = sign_order(world.organiser, world.manifest, Order(1, Halting.PAUSE))
    await bootstrap.name_founder(Founder(1, identity.peer_id), 60.0)
    await bootstrap.publish_bans(bans, 60.0)
    await bootstrap.publish_order(order, 60.0)
    expires_s = time.time() + 100.0
    for ticket in ("", base64.b64encode(world.ticket.shown_by(identity.peer_id)).decode()):
        expires_s += 1.0
        said = {
            "swarmfree.runs": {"run": world.run, "entry_points": stranger.addresses[:1]},
            f"{world.run}.relays": {"relays": [f"/ip4/127.0.0.1/tcp/4001/p2p/{me.peer_id}"], "ticket": ticket},
        }
        contents = {key: canonical_json(values) for key, values in said.items()}
        papers = {f"{world.run}.bans": bans.canonical(), f"{world.run}.orders": order.content}
        await stranger._store(contents | papers, expires_s)
        for one in (bootstrap, peer):
            assert await one.entry_points() == tuple(dict.fromkeys((*one.addresses, *peer.addresses)))
            assert await one.relays() == ()
        assert await peer.keepers_of_bans(bans) == 1, "the bootstrap node"
        assert await bootstrap.keepers_of_bans(bans) == 0
        assert await bootstrap.keepers_of_order(order) == 0
    await peer.read_bans(60.0)
    address = parse_address(announcement_of(identity).endpoint.addresses[0])
    await peer.offer_relay(address, 60.0)
    assert await bootstrap.relays() == (address,)
    assert await bootstrap.keepers_of_bans(bans) == 1
    assert await bootstrap.keepers_of_order(order) == 1


async def test_copies_of_strangers_do_not_keep_a_run(world: World) -> None:
    """Six strangers publish the manifest and genesis, so that members would keep no copies, and
    nobody could join once the bootstrap node and they have gone. A member keeps copies all the
    same.
    """
    bootstrap = await world.bootstrap()
    peer, identity = await world.peer("peer", bootstrap.addresses)
    await peer.announce(announcement_of(identity))
    named = await bootstrap.name_founder(Founder(1, identity.peer_id), 60.0)
    papers = {f"{world.run}.manifest": world.manifest.canonical(), f"{world.run}.genesis": named.canonical()}
    expires_s = time.time() + 600.0
    async with stranger(world, bootstrap) as (node, *_):
        from swarmfree.wire.dht_validator import SignedRecordValidator

        for number in range(6):
            name = SignedRecordValidator(load_or_create_identity(world.folder / f"name {number}"), time.time)
            entries = [(key, name.local_public_key, signed(name, key, paper, expires_s)) for key, paper in papers.items()]
            assert await store(node, bootstrap, entries, expires_s) == 2
        await peer.publish_run(60.0)
        found = await bootstrap._read((f"{world.run}.manifest",), 5.0)
    assert identity.peer_id in {record.owner for record in found[f"{world.run}.manifest"]}


async def test_nobody_else_says_that_an_invite_leads_to_another_run(world: World) -> None:
    """A stranger says that it serves another run, and the bootstrap node has published nothing
    yet: a newcomer waits for it as long as it was told to.
    """
    bootstrap = DhtDirectory(DirectorySettings(str(world.folder / "bootstrap")), world.node, world.run, manifest=world.manifest)
    world.directories.append(bootstrap)
    await bootstrap.start()
    expires_s = time.time() + 100.0
    async with stranger(world, bootstrap) as (node, validator, _):
        said = canonical_json({"run": "ab" * 32, "entry_points": []})
        record = signed(validator, "swarmfree.runs", said, expires_s)
        assert await store(node, bootstrap, [("swarmfree.runs", validator.local_public_key, record)], expires_s) == 1
        late, _ = world.unstarted("late", bootstrap.addresses)
        await late.start()
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(late.fetch_manifest(20.0))
            await asyncio.sleep(4.0)
            assert not looking.done()
            await bootstrap.publish_run(60.0)
    assert looking.result() == world.manifest


async def test_false_papers_take_no_time_of_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 false genesis records, of as many names, take 0.2 s to be looked at, and would again with
    each read: each is looked at once, in the directory's thread, and the true one is found.
    """
    bootstrap = await world.bootstrap()
    peer, identity = await world.peer("peer", bootstrap.addresses)
    forged = make_ticket(draw_organiser(), world.run, int(time.time()) + 3600, holder=identity.peer_id, names_founders=True)
    expires_s, key = time.time() + 600.0, f"{world.run}.genesis"
    numbers = range(1, 201)
    papers = [Genesis(world.run, Founder(n, identity.peer_id), identity.public_key, forged, b"").canonical() for n in numbers]
    strangers = tuple(SignedRecord(f"stranger {number}", paper, expires_s) for number, paper in enumerate(papers))
    keeper = peer._keeper
    assert keeper is not None
    read, looked_at = keeper.read, list[tuple[str, bytes]]()

    async def flooded(keys: Sequence[str], limit_s: float) -> dict[str, tuple[SignedRecord, ...]]:
        return {at: found + strangers * (at == key) for at, found in (await read(keys, limit_s)).items()}

    def looked(content: bytes, *others: Any) -> Genesis:
        looked_at.append((threading.current_thread().name, content))
        return read_genesis(content, *others)

    keeper.read = flooded  # type: ignore[method-assign]
    monkeypatch.setattr(record_judge, "read_genesis", looked)
    monkeypatch.setattr(genesis, "read_genesis", looked)
    assert await peer.founder() is None
    made = await bootstrap.name_founder(Founder(1, identity.peer_id), 60.0)
    async with asyncio.timeout(20.0):
        while await peer.founder() != Founder(1, identity.peer_id):
            await asyncio.sleep(0.1)
    false = Counter(each for each in looked_at if each[1] != made.canonical())
    assert {name for name, _ in false} == {"swarmfree-directory"}
    assert set(false.values()) == {1}


async def test_records_that_nobody_asks_for_take_little_room(world: World) -> None:
    """200 keys of 60,000 bytes, validly signed: four are held, none in the cache, and the run's own
    records are read as before.
    """
    bootstrap = await world.bootstrap()
    peer, identity = await world.peer("peer", bootstrap.addresses)
    await peer.announce(announcement_of(identity))
    expires_s = time.time() + 600.0
    async with stranger(world, bootstrap) as (node, validator, _):
        entries = [
            (key, validator.local_public_key, signed(validator, key, b"x" * 60_000, expires_s))
            for key in (f"junk {number}" for number in range(200))
        ]
        held = sum([await store(node, bootstrap, [entry], expires_s) for entry in entries])
        cached = sum([await store(node, bootstrap, [entry], expires_s, in_cache=True) for entry in entries[:20]])
    assert (held, cached) == (4, 0)
    for one in (peer, bootstrap):
        assert [a.endpoint.member.peer_id for a in await one.announcements()] == [identity.peer_id]


async def test_nobody_chooses_where_it_stands(world: World) -> None:
    """A node that claims to stand right beside a key, which is not where its peer id stands, is in
    nobody's routing table: it is neither asked for that key nor given what stands under it.
    """
    from swarmfree.wire.hivemind_parts import DHTID, DHTNode, PeerID

    bootstrap = await world.bootstrap()
    peer, identity = await world.peer("peer", bootstrap.addresses)
    beside = DHTID(int(DHTID.generate(source=f"{world.run}.peers")) ^ 1)
    node = await DHTNode.create(
        initial_peers=list(bootstrap.addresses), node_id=beside, use_relay=False, nat_port_map=False, auto_nat=False
    )
    try:
        for address in (*bootstrap.addresses, *peer.addresses):
            await node.protocol.call_ping(PeerID.from_base58(address.rpartition("/")[2]))
        await peer.announce(announcement_of(identity))
        assert not list(node.protocol.storage.items()), "nobody gives it anything"
        me = node.peer_id.to_base58()
        for one in (bootstrap, peer):
            keeper = one._keeper
            assert keeper is not None
            assert keeper._node is not None
            assert me not in keeper._node.neighbours
    finally:
        await node.shutdown()
    assert [a.endpoint.member.peer_id for a in await bootstrap.announcements()] == [identity.peer_id]


async def test_p2pd_relays_for_nobody(world: World) -> None:
    """libp2p's own relay is off: a stranger that asks for a place behind one is told that there is
    none.
    """
    from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
    from hivemind.proto import p2pd_pb2

    from swarmfree.wire.hivemind_parts import PeerID

    bootstrap = await world.bootstrap()
    peer_id = PeerID.from_base58(bootstrap.addresses[0].rpartition("/")[2])
    async with stranger(world, bootstrap) as (node, *_):
        reader, writer = await node.p2p._client.control.daemon_connector.open_connection()
        asked = p2pd_pb2.StreamOpenRequest(peer=peer_id.to_bytes(), proto=["/libp2p/circuit/relay/0.2.0/hop"])
        await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=asked))
        answer = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, answer)
        writer.close()
        await writer.wait_closed()
    assert "protocols not supported" in answer.error.msg
