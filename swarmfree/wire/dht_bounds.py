"""Within what bounds a directory node serves others, and what it believes of their answers.

hivemind drops all records under a key for one that is not valid, or that its reader's clock finds
too far ahead, takes an answer's own word for when it expires, and goes on from neighbours wherever
they are said to stand.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Any

from swarmfree.wire.dht_storage import RecordStorage, StorageLimits
from swarmfree.wire.hivemind_parts import DHTID, DictionaryDHTValue

_KEPT_PLACES_MAX = 4096


def bound(protocol: Any, storage: RecordStorage) -> None:
    """Hold others' records within bounds, cache none, and let nobody choose the place at which it
    stands: who may stand next to a key may answer for it, and hide what others store there. Of an
    answer the valid records count, each for itself.
    """
    protocol.storage, protocol.cache = storage, _NothingStored()
    update, find = protocol.update_routing_table, protocol.call_find

    async def update_proven(node_id: Any, peer_id: Any, responded: bool = True) -> None:  # noqa: FBT001, FBT002 - hivemind's
        if node_id is None or node_id == _place_of(peer_id):
            await update(node_id, peer_id, responded)

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
        # Of its sender's choice otherwise, and compared with those of others
        records.maxsize = math.inf
        records.latest_expiration_time = max((found.expiration_time for found in records.data.values()), default=-math.inf)
        return True

    protocol.update_routing_table, protocol.call_find, protocol._validate_dictionary = update_proven, find_proven, keep_valid  # noqa: SLF001


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
