"""Within what bounds a directory node serves others, and what it believes of their answers.

hivemind drops all records under a key for one that is not valid, or that its reader's clock finds
too far ahead, takes an answer's own word for when it expires, and goes on from neighbours wherever
they are said to stand. It unpacks values within values until the process's stack is full, spells
out peer ids of any length, looks up as many keys as one request names, and remembers whoever was
named to it or has called for good.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Collection
from typing import Any

import msgpack  # type: ignore[import-untyped]  # comes with hivemind

from swarmfree.wire.dht_storage import RecordStorage, StorageLimits
from swarmfree.wire.dht_values import RECORD_BYTES_MIN, RECORDS_MAX
from swarmfree.wire.hivemind_parts import DHTID, DictionaryDHTValue, MSGPackSerializer, dht_pb2

_KEPT_PLACES_MAX = 4096
_SILENT_MAX = 4096
_REPLACEMENTS_MAX = 256
"""So many nodes of one part of the table wait for another one's place."""
_PEER_ID_BYTES_MAX = 64
_FIND_BYTES_MAX = 512
"""Of a request that reads: 16 keys of 22 bytes, more than are asked for at once, and who asks."""
_ANSWER_BYTES_MAX = 4 << 20
"""More than that p2pd passes on to nobody."""


def bound(node: Any, storage: RecordStorage) -> None:
    """Hold others' records within bounds, cache none, and let nobody choose the place at which it
    stands: who may stand next to a key may answer for it, and hide what others store there. Of an
    answer, and of what is handed over, the valid records count, each for itself.
    """
    protocol, node.blacklist.ban_counter = node.protocol, _SilentNodes()
    protocol.storage, protocol.cache, protocol.serializer = storage, _NothingStored(), _RecordSerializer
    _bound_calls(protocol, storage)
    update, find = protocol.update_routing_table, protocol.call_find

    async def update_proven(node_id: Any, peer_id: Any, responded: bool = True) -> None:  # noqa: FBT001, FBT002 - hivemind's
        if node_id is None or node_id == _place_of(peer_id):
            await update(node_id, peer_id, responded)
            if node_id is not None:
                _forget_oldest(protocol.routing_table, node_id)

    async def find_proven(peer: Any, keys: Collection[Any]) -> Any:
        answer = await find(peer, keys)
        return None if answer is None else {key: _proven(*found) for key, found in answer.items()}

    def keep_valid(key: bytes, records: Any) -> bool:
        if not isinstance(records, DictionaryDHTValue):
            return False
        with records.freeze():
            found = list(records.items())
            for subkey, (value, expires_s) in found:
                if not protocol._validate_record(key, protocol.serializer.dumps(subkey), value, expires_s):  # noqa: SLF001
                    del records[subkey]
        # What is handed over is stored up to the first one that is held already
        held = protocol.storage.get(DHTID.from_bytes(key))
        if held is not None:
            records.data = dict(sorted(records.data.items(), key=lambda one: _is_held(held.value, *one)))
        records.latest_expiration_time = max((found.expiration_time for found in records.data.values()), default=-math.inf)
        return True

    protocol.update_routing_table, protocol.call_find, protocol._validate_dictionary = update_proven, find_proven, keep_valid  # noqa: SLF001


def _is_held(records: Any, owner: Any, found: Any) -> bool:
    present = records.get(owner)
    return present is not None and bool(present.expiration_time >= found.expiration_time)


def _bound_calls(protocol: Any, storage: RecordStorage) -> None:
    """Read few keys at a request, and no more than arrives: a key that is named 16 times takes a
    second. Look at no more of an answer's neighbours than a node names.
    """
    handlers, name = protocol.p2p._client.control.unary_handlers, protocol._get_handle_name(None, "rpc_find")  # noqa: SLF001
    serve, stub_of = handlers[name], protocol.get_stub

    async def serve_few(request: bytes, peer_id: Any) -> bytes:
        if len(request) > _FIND_BYTES_MAX:
            raise ValueError("too many keys")
        keys = dht_pb2.FindRequest.FromString(request).keys
        if sum(storage.size_bytes(DHTID.from_bytes(key)) for key in keys) > _ANSWER_BYTES_MAX:
            raise ValueError("more than an answer holds")
        return bytes(await serve(request, peer_id))

    handlers[name] = serve_few
    protocol.get_stub = lambda peer_id: _NodeCalls(stub_of(peer_id), protocol.bucket_size)


def _forget_oldest(table: Any, node_id: Any) -> None:
    """Of many that wait for a place beside this node the oldest goes: names are free."""
    bucket = table.buckets[table.get_bucket_index(node_id)]
    while len(bucket.replacement_nodes) > _REPLACEMENTS_MAX:
        oldest = next(iter(bucket.replacement_nodes))
        if oldest in bucket.nodes_to_peer_id:
            del bucket.replacement_nodes[oldest]
        else:
            del table[oldest]


class _SilentNodes(Counter[Any]):
    """How often nodes did not answer: the last ones, since others may name some that never were."""

    def __setitem__(self, peer_id: Any, count: int) -> None:
        super().__setitem__(peer_id, count)
        if len(self) > _SILENT_MAX:
            del self[next(iter(self))]


class _NodeCalls:
    """hivemind's calls to one node."""

    def __init__(self, stub: Any, neighbours_max: int) -> None:
        self.rpc_ping, self.rpc_store, self._find = stub.rpc_ping, stub.rpc_store, stub.rpc_find
        self._neighbours_max = neighbours_max

    async def rpc_find(self, request: Any, timeout: float) -> Any:  # noqa: ASYNC109 - hivemind's
        """What the node says of some keys, without neighbours that no honest node names."""
        answer = await self._find(request, timeout=timeout)
        for result in answer.results:
            named = list(zip(result.nearest_node_ids, result.nearest_peer_ids, strict=False))[: self._neighbours_max]
            near = [pair for pair in named if len(pair[1]) <= _PEER_ID_BYTES_MAX]
            result.nearest_node_ids[:] = [node_id for node_id, _ in near]
            result.nearest_peer_ids[:] = [peer_id for _, peer_id in near]
        return answer


class _RecordSerializer(MSGPackSerializer):  # type: ignore[misc]  # hivemind has no types
    """hivemind's, that unpacks records under one key and nothing within them: a few hundred tuples
    in one another, which take 2 kB, fill the stack and end the process.
    """

    @classmethod
    def _decode_ext_types(cls, type_code: int, data: bytes) -> Any:
        if type_code != cls._ext_types[DictionaryDHTValue]:
            raise ValueError("no records")
        _, _, found = msgpack.unpackb(data, raw=False)
        if len(found) > min(RECORDS_MAX, len(data) // RECORD_BYTES_MIN):
            raise ValueError("too many records")
        with DictionaryDHTValue().freeze() as records:
            for owner, value, expires_s in found:
                records.store(owner, value, expires_s)
            return records


def _proven(found: Any, neighbours: dict[Any, Any]) -> tuple[Any, dict[Any, Any]]:
    """An answer about one key: it expires with its last record, and its neighbours are those that
    stand where their peer ids do.
    """
    near = {node_id: peer_id for node_id, peer_id in neighbours.items() if node_id == _place_of(peer_id)}
    return found and dataclasses.replace(found, expiration_time=found.value.latest_expiration_time), near


@functools.lru_cache(_KEPT_PLACES_MAX)
def _place_of(peer_id: Any) -> Any:
    return DHTID.generate(source=peer_id.to_base58())


class _NothingStored(RecordStorage):
    """A cache that stays empty: none is used, and anybody may ask for a value to be put there."""

    def __init__(self) -> None:
        super().__init__(StorageLimits())

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        del key, subkey, value, expiration_time
        return False
