"""What one node's answers can do to the reads of others: nothing."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]  # comes with hivemind
import pytest
from directory_world import World, world_of

from swarmfree.protocol.manifest import Manifest
from swarmfree.wire import dht_bounds
from swarmfree.wire.dht_bounds import (
    _REPLACEMENTS_MAX,
    _SILENT_MAX,
    RECORD_BYTES_MIN,
    RECORDS_MAX,
    _forget_oldest,
    _NodeCalls,
    _place_of,
    _RecordSerializer,
    _SilentNodes,
)
from swarmfree.wire.dht_storage import RecordStorage, StorageLimits
from swarmfree.wire.dht_validator import SignedRecordValidator
from swarmfree.wire.directory import DhtDirectory
from swarmfree.wire.hivemind_parts import DHTID, DictionaryDHTValue, MSGPackSerializer, P2PHandlerError, PeerID
from swarmfree.wire.identity import load_or_create_identity

pytest.importorskip("hivemind.utils.timed_storage")

from hivemind.dht.routing import RoutingTable
from hivemind.dht.validation import DHTRecord
from hivemind.proto import dht_pb2
from hivemind.utils.timed_storage import ValueWithExpiration

SLOW_S = 0.05


@pytest.fixture
async def world(tmp_path: Path, small_manifest: Manifest) -> AsyncIterator[World]:
    """A run whose peers are closed when the test ends."""
    async with world_of(tmp_path, small_manifest) as one:
        yield one


def _node(directory: DhtDirectory) -> Any:
    assert directory._keeper is not None
    assert directory._keeper._node is not None
    return directory._keeper._node


def _alone(found: Any, owner: bytes, expires_s: float, **said: object) -> Any:
    """One owner's record alone, with what is said of it."""
    records = DictionaryDHTValue()
    records.store(owner, *found.value.get(owner))
    vars(records).update(said, frozen=True)  # else it looks at its own size before it answers
    return ValueWithExpiration(records, expires_s)


def _records(count: int, value: object = b"v" * 744) -> DictionaryDHTValue:
    records = DictionaryDHTValue()
    for owner in range(count):
        records.store(b"%d" % owner, value, math.inf)
    return records


def test_records_alone_are_unpacked() -> None:
    """Tuples in one another, of which a few hundred in 2 kB end a process (SIGSEGV), and records in
    records are refused unpacked, and so are more of them than are looked at, or smaller ones than
    can be signed.
    """
    few = _records(3)
    assert list(_RecordSerializer.loads(_RecordSerializer.dumps(few)).items()) == list(few.items())
    assert _RecordSerializer.loads(_RecordSerializer.dumps(b"owner")) == b"owner"
    for refused in (((b"owner",),), _records(RECORDS_MAX + 1), _records(2, b"v" * 700)):
        with pytest.raises(ValueError, match="records"):
            _RecordSerializer.loads(MSGPackSerializer.dumps(refused))
    within = _records(1, (b"v" * 744,))
    ((_, (value, _)),) = _RecordSerializer.loads(MSGPackSerializer.dumps(within)).items()
    assert isinstance(value, msgpack.ExtType)


def test_all_that_a_node_holds_is_unpacked(tmp_path: Path) -> None:
    """A key full of records of the least size that a signed one has is an answer that is read."""
    validator = SignedRecordValidator(load_or_create_identity(tmp_path), time.time)
    me, empty = validator.local_public_key, MSGPackSerializer.dumps(b"")
    value = validator.sign_value(DHTRecord(b"k" * 20, MSGPackSerializer.dumps(me), empty, 1e9))
    assert len(me) + len(value) == RECORD_BYTES_MIN + len(empty)
    storage, key = RecordStorage(StorageLimits()), DHTID.generate(source="run.peers")
    storage.ask_for(["run.peers"])
    owners = (b"%d" % number for number in itertools.count(10 ** (len(me) - 1)))
    held = sum(itertools.takewhile(bool, (storage.store_subkey(key, owner, value, math.inf) for owner in owners)))
    assert RECORDS_MAX - 10 < held <= RECORDS_MAX
    assert len(_RecordSerializer.loads(_RecordSerializer.dumps(storage.get(key).value))) == held


async def test_neighbours_that_no_node_names_are_not_looked_at() -> None:
    """To spell out one peer id of 100 kB takes 14 s."""

    class Stub:
        """A node that names four neighbours."""

        rpc_ping = rpc_store = None

        async def rpc_find(self, keys: list[bytes], timeout: float) -> Any:  # noqa: ASYNC109 - hivemind's
            """The same for each key."""
            assert timeout == 3.0
            near = [b"a" * 34, b"b" * 65, b"c" * 64, b"d" * 34]
            one = dht_pb2.FindResult(nearest_node_ids=[b"1", b"2", b"3", b"4"], nearest_peer_ids=near)
            return dht_pb2.FindResponse(results=[one] * len(keys))

    for result in (await _NodeCalls(Stub(), 3).rpc_find([b"key"] * 2, timeout=3.0)).results:
        assert list(result.nearest_peer_ids) == [b"a" * 34, b"c" * 64]
        assert list(result.nearest_node_ids) == [b"1", b"3"]


def test_nodes_that_were_named_or_have_called_are_forgotten() -> None:
    """However many names one takes: the first go, and who has a place in the table stays."""
    silent, table = _SilentNodes(), RoutingTable(DHTID(1), bucket_size=2, depth_modulo=1)
    for name in range(_SILENT_MAX + 10):
        silent[name] += 1
    silent[_SILENT_MAX] += 1
    assert (len(silent), silent[9], silent[10], silent[_SILENT_MAX]) == (_SILENT_MAX, 0, 1, 2)
    far = [(DHTID(DHTID.MAX - number), PeerID(b"%d" % number)) for number in range(1, _REPLACEMENTS_MAX + 13)]
    for node_id, peer_id in far:
        table.add_or_update_node(node_id, peer_id)
        _forget_oldest(table, node_id)
    kept = [*far[:2], *far[12:]]
    assert table.peer_id_to_uid == {peer_id: node_id for node_id, peer_id in kept}
    bucket = table.buckets[-1]
    assert len(bucket.replacement_nodes) == _REPLACEMENTS_MAX
    bucket.replacement_nodes = dict([far[0], *bucket.replacement_nodes.items()])
    _forget_oldest(table, far[2][0])
    assert table.get(node_id=far[0][0]) == far[0][1]
    assert list(bucket.replacement_nodes.items()) == far[12:]


async def test_few_wait_for_a_place_in_the_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many nodes call, or are named, with peer ids that stand where they say."""
    protocol = _node(await world.bootstrap())._node.protocol
    protocol.storage.clear()

    async def answer(peer_id: object) -> None:
        del peer_id

    monkeypatch.setattr(protocol, "call_ping", answer)
    monkeypatch.setattr(dht_bounds, "_REPLACEMENTS_MAX", 2)
    for _ in range(800):
        peer_id = PeerID(b"\x12\x20" + os.urandom(32))
        await protocol.update_routing_table(_place_of(peer_id), peer_id)
    waiting = [len(bucket.replacement_nodes) for bucket in protocol.routing_table.buckets]
    assert max(waiting) == 2


async def test_one_node_hides_no_record_of_others(world: World) -> None:
    """A node that answers first, whatever it says of its own records: that they last for ever, that
    their bounds are no numbers, that one is too far ahead, that others stand next to the key.
    """
    bootstrap = await world.bootstrap()
    liar, _ = await world.peer("liar", bootstrap.addresses)
    reader, _ = await world.peer("reader", bootstrap.addresses)
    key, never = f"{world.run}.manifest", threading.Event()
    key_id = DHTID.generate(source=key)
    protocol, lying, slow = (_node(one)._node.protocol for one in (reader, liar, bootstrap))

    async def require_manifest(why: str) -> None:
        protocol.storage.clear()
        found = await reader._read((key,), 5.0)
        assert world.manifest.canonical() in [record.value for record in found.get(key, ())], why

    def look_slowly(key_id: Any) -> Any:
        never.wait(SLOW_S)  # in the thread of the bootstrap node alone
        return type(slow.storage).get(slow.storage, key_id)

    slow.storage.get = look_slowly
    await require_manifest("honest")
    soon_s = time.time() + 50.0
    await liar._store({key: b"of my own"}, soon_s)
    found, owner = lying.storage.get(key_id), _node(liar)._validator.local_public_key
    answers = {
        "nothing, for ever": ValueWithExpiration(DictionaryDHTValue(), math.inf),
        "one, for ever": _alone(found, owner, math.inf),
        "size": _alone(found, owner, soon_s, maxsize="many"),
        "latest": _alone(found, owner, soon_s, latest_expiration_time="late"),
        "one unsigned, for ever": _alone(found, owner, soon_s),
    }
    answers["one unsigned, for ever"].value.store(b"nobody", b"", math.inf)
    for why, answer in answers.items():
        lying.storage.get = lambda _, answer=answer: answer
        await require_manifest(why)
    del lying.storage.get, slow.storage.get
    handed_over, protocol.storage = slow.storage.get(key_id).value, RecordStorage(StorageLimits())
    first, record = next(iter(handed_over.items()))
    request = dht_pb2.StoreRequest(keys=[key_id.to_bytes()], subkeys=[b""], values=[protocol.serializer.dumps(handed_over)])
    request.expiration_time[:], request.in_cache[:] = [soon_s], [False]
    assert protocol.storage.store_subkey(key_id, first, *record)
    assert not isinstance(await reader._thread.attempt(lambda: protocol.rpc_store(request, None), 5.0), BaseException)
    assert len(protocol.storage.get(key_id).value) == len(handed_over) == 2
    await liar._store({key: b"of my own"}, time.time() + 3599.0)
    _node(reader)._validator._now_s = lambda: time.time() - 2.0
    await require_manifest("ahead of the reader's clock")
    nobody = {DHTID(int(key_id) ^ place): PeerID(b"\x12\x20" + os.urandom(32)) for place in range(1, 17)}
    known = {node_id: peer_id for peer_id, node_id in lying.routing_table.peer_id_to_uid.items()}
    lying.routing_table.get_nearest_neighbors = lambda *_, **__: [*nobody.items(), *known.items()]

    async def ask() -> Any:
        return await protocol.call_find(_node(liar)._p2p.peer_id, [key_id])

    answer = await reader._thread.attempt(ask, 5.0)
    assert not isinstance(answer, BaseException)
    assert answer[key_id][1] == known

    async def ask_much(count: int) -> Any:
        request = dht_pb2.FindRequest(keys=[key_id.to_bytes()] * count, peer=protocol.node_info)
        return await protocol.get_stub(_node(bootstrap)._p2p.peer_id).rpc_find(request, timeout=3.0)

    few, many = [await reader._thread.attempt(lambda count=count: ask_much(count), 5.0) for count in (16, 32)]
    assert len(few.results) == 16
    assert isinstance(many, P2PHandlerError), "hundred thousand in a request take all memory"


async def test_no_more_is_read_than_an_answer_carries(world: World) -> None:
    """A key that holds as much as it may, named 16 times in 400 bytes, took a node 0.8 s, and
    nobody got the answer: with eight such requests a second its p2pd was taken for frozen. Named
    once, it is read.
    """
    bootstrap, name = await world.bootstrap(), f"{world.run}.peers"
    reader, _ = await world.peer("reader", bootstrap.addresses)
    node, protocol, key = _node(bootstrap), _node(reader)._node.protocol, DHTID.generate(source=name)

    async def fill() -> None:
        node._storage.ask_for([name])
        while node._storage.store_subkey(key, os.urandom(8), os.urandom(1 << 16), time.time() + 60):
            pass

    async def ask(count: int) -> Any:
        request = dht_pb2.FindRequest(keys=[key.to_bytes()] * count, peer=protocol.node_info)
        return await protocol.get_stub(node._p2p.peer_id).rpc_find(request, timeout=3.0)

    await bootstrap._thread.attempt(fill, 5.0)
    found = await reader._thread.attempt(lambda: ask(1), 5.0)
    assert len(found.results[0].value) > 1 << 20
    refused = await reader._thread.attempt(lambda: ask(16), 5.0)
    assert isinstance(refused, P2PHandlerError)
