"""What a stranger with a libp2p daemon of its own does to the directory, on real nodes: each attack
is bounded, and what honest peers say stays readable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Endpoint
from swarmfree.wire.announcement_record import PeerRecord, peer_record_to_bytes
from swarmfree.wire.ban_list import longer_ban_list
from swarmfree.wire.directory import DhtDirectory
from swarmfree.wire.identity import Identity, load_or_create_identity
from swarmfree.wire.organiser import draw_organiser
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
