"""What a directory node holds for others, within bounds: hivemind's own storage has none.

A record is told by its key's hash, its owner's subkey and when it expires; that it is signed was
looked at before (`dht_validator`). Keys that this node has read or stored itself are *asked for*:
they always have room, one record for each owner. Of other keys, which may be those of other runs,
few are held. When there is no more room a record is refused and nothing goes: whoever has a record
can always renew it, and nobody puts another one's out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from swarmfree.wire.dht_values import KEY_BYTES_MAX
from swarmfree.wire.hivemind_parts import DHTID, DHTLocalStorage, DictionaryDHTValue


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """Bounds of what one node holds for others.

    Args:
        key_bytes: of all records under one key.
        asked_keys: so many keys that were asked for have room.
        other_keys: so many others.
        other_bytes: of all records under others.
        owner_records: of one owner under others.
    """

    key_bytes: int = KEY_BYTES_MAX
    asked_keys: int = 16
    other_keys: int = 64
    other_bytes: int = 4 << 20
    owner_records: int = 4


class RecordStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind has no types
    """hivemind's storage with bounds."""

    def __init__(self, limits: StorageLimits) -> None:
        """Empty; no key has been asked for."""
        super().__init__()
        self._limits = limits
        self._asked: dict[Any, None] = {}
        # Of each key: bytes of its records, and of how many, since what expires goes without a word
        self._sizes: dict[Any, tuple[int, int]] = {}

    def ask_for(self, keys: Iterable[str]) -> None:
        """This node reads or stores these: they have room from now on."""
        for key in keys:
            key_id = DHTID.generate(source=key)
            self._asked.pop(key_id, None)
            self._asked[key_id] = None
        for forgotten in list(self._asked)[: -self._limits.asked_keys]:
            del self._asked[forgotten]

    def take_over(self, before: RecordStorage) -> None:
        """Hold what another node's storage holds."""
        self.__dict__.update(before.__dict__)

    def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """Store under a subkey; a value without one is nobody's, and is refused."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store one owner's record; False where a later one is held, or where there is no room."""
        held = self.get(key)
        records = DictionaryDHTValue() if held is None else held.value
        present = records.get(subkey)
        # Before hivemind notes in its heap of expiries what it would not hold
        if present is not None and present.expiration_time >= expiration_time:
            return False
        added_bytes = _size_bytes(subkey, value) - (0 if present is None else _size_bytes(subkey, present.value))
        if not self._has_room(key, records, subkey, added_bytes, is_new=present is None):
            return False
        if not records.store(subkey, value, expiration_time):
            return False  # it has expired
        _compact(records)
        size_bytes, count = self._sizes.get(key, (0, 0))
        self._sizes[key] = size_bytes + added_bytes, count + (present is None)
        latest_s = records.latest_expiration_time
        if held is None or held.expiration_time < latest_s:
            super().store(key, records, latest_s)
            _compact(self)
        return True

    def size_bytes(self, key: Any) -> int:
        """Of all records under a key."""
        held = self.get(key)
        return 0 if held is None else self._look_at_size(key, held.value)

    def _look_at_size(self, key: Any, records: Any) -> int:
        if self._sizes.get(key, (0, 0))[1] != len(records):
            sizes = [_size_bytes(owner, found.value) for owner, found in records.items()]
            self._sizes[key] = sum(sizes), len(sizes)
        return self._sizes.get(key, (0, 0))[0]

    def _has_room(self, key: Any, records: Any, subkey: Any, added_bytes: int, *, is_new: bool) -> bool:
        limits = self._limits
        if self._look_at_size(key, records) + added_bytes > limits.key_bytes:
            return False
        if key in self._asked:
            return True
        others = {other: found.value for other, found in self.items() if other not in self._asked}
        if is_new and sum(subkey in found for found in others.values()) >= limits.owner_records:
            return False
        if key not in others and len(others) >= limits.other_keys:
            return False
        self._sizes = {known: size for known, size in self._sizes.items() if known in others or known in self._asked}
        return sum(self._sizes.get(other, (0, 0))[0] for other in others) + added_bytes <= limits.other_bytes


def _size_bytes(subkey: Any, value: bytes) -> int:
    return len(subkey) + len(value)


def _compact(storage: Any) -> None:
    """Forget the expiries of values that were renewed: hivemind keeps them until they have
    passed.
    """
    if len(storage.expiration_heap) > 2 * len(storage.data) + 16:
        storage.expiration_heap = list(storage.key_to_heap.values())
        heapq.heapify(storage.expiration_heap)
