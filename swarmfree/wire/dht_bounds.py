"""Within what bounds a directory node serves others, and whom it believes to stand where."""

from __future__ import annotations

from typing import Any

from swarmfree.wire.dht_storage import RecordStorage, StorageLimits
from swarmfree.wire.hivemind_parts import DHTID


def bound(protocol: Any, storage: RecordStorage) -> None:
    """Hold others' records within bounds, cache none, and let nobody choose the place at which it
    stands: who may stand next to a key may answer for it, and hide what others store there.
    """
    protocol.storage, protocol.cache = storage, _NothingStored()
    update = protocol.update_routing_table

    async def update_proven(node_id: Any, peer_id: Any, responded: bool = True) -> None:  # noqa: FBT001, FBT002 - hivemind's
        if node_id is None or node_id == DHTID.generate(source=peer_id.to_base58()):
            await update(node_id, peer_id, responded)

    protocol.update_routing_table = update_proven


class _NothingStored(RecordStorage):
    """A cache that stays empty: none is used, and anybody may ask for a value to be put there."""

    def __init__(self) -> None:
        super().__init__(StorageLimits())

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        del key, subkey, value, expiration_time
        return False
