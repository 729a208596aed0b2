"""What a directory node holds for others: bounds, and who keeps its place."""

from __future__ import annotations

import sys

import pytest

from swarmfree.wire.dht_storage import RecordStorage, StorageLimits
from swarmfree.wire.hivemind_parts import DHTID

NOW_S = 1_000_000.0
timed_storage = sys.modules["hivemind.utils.timed_storage"]  # an import would load all of hivemind


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that hivemind's storage reads."""
    now = [NOW_S]
    monkeypatch.setattr(timed_storage, "get_dht_time", lambda: now[0])
    return now


def key(name: str) -> object:
    """As it travels."""
    return DHTID.generate(source=name)


def put(storage: RecordStorage, name: str, owner: int, size: int = 90, lease_s: float = 60.0) -> bool:
    """Store a record of so many bytes, ten of which name its owner."""
    return storage.store_subkey(key(name), b"%010d" % owner, b"v" * size, timed_storage.get_dht_time() + lease_s)


def owners(storage: RecordStorage, name: str) -> list[int]:
    """Who has a record there."""
    found = storage.get(key(name))
    return [] if found is None else sorted(int(owner) for owner, _ in found.value.items())


def test_a_key_is_full_and_whoever_has_a_record_renews_it(clock: list[float]) -> None:
    """A newcomer is refused, nobody goes for it; there is room again when a record has expired."""
    storage = RecordStorage(StorageLimits(key_bytes=300))
    storage.ask_for(["peers"])
    assert [put(storage, "peers", owner, lease_s=60.0 + owner) for owner in range(5)] == [True, True, True, False, False]
    clock[0] += 1
    assert put(storage, "peers", 1, lease_s=90.0)
    assert not put(storage, "peers", 1, size=91, lease_s=91.0), "a longer one has no room"
    clock[0] += 60
    assert owners(storage, "peers") == [1, 2]
    assert put(storage, "peers", 3)
    assert owners(storage, "peers") == [1, 2, 3]


def test_other_keys_have_little_room_and_take_none_of_those_that_were_asked_for(clock: list[float]) -> None:
    """Few keys, few bytes, few records of one owner."""
    storage = RecordStorage(StorageLimits(key_bytes=10_000, other_keys=3, other_bytes=500, owner_records=2))
    storage.ask_for(["peers"])
    assert [put(storage, name, 1) for name in "abc"] == [True, True, False], "two of one owner"
    assert [put(storage, name, 2) for name in "cd"] == [True, False], "three keys"
    assert [put(storage, "a", owner) for owner in (3, 4, 5)] == [True, True, False], "500 bytes"
    assert all(put(storage, "peers", owner) for owner in range(20))
    clock[0] += 61
    assert put(storage, "d", 5), "the others have expired"


def test_a_value_without_an_owner_is_not_held(clock: list[float]) -> None:
    """It would stand in for all records under its key."""
    storage = RecordStorage(StorageLimits())
    assert not storage.store(key("peers"), b"v", NOW_S + 60)
    assert put(storage, "peers", 1)
    assert not storage.store(key("peers"), b"v", NOW_S + 120)
    assert owners(storage, "peers") == [1]


def test_renewals_leave_nothing_behind(clock: list[float]) -> None:
    """Hivemind keeps the expiry of each renewal, and of each try that was too old, for as long as
    the record might have lived.
    """
    storage = RecordStorage(StorageLimits())
    for turn in range(2000):
        assert put(storage, "peers", 1, lease_s=60.0 + turn)
        assert not put(storage, "peers", 1, lease_s=60.0 + turn)
    records = storage.get(key("peers")).value
    assert len(records.expiration_heap) < 40
    assert len(storage.expiration_heap) < 40
    assert owners(storage, "peers") == [1]
    clock[0] += 60 + 1999.5
    assert owners(storage, "peers") == [], "and it expires when its last renewal does"


def test_few_keys_are_asked_for_at_a_time(clock: list[float]) -> None:
    """What was asked for long ago is another key like any."""
    storage = RecordStorage(StorageLimits(asked_keys=2, other_keys=0))
    storage.ask_for(["a", "b"])
    storage.ask_for(["a", "c"])
    assert [put(storage, name, 1) for name in "abc"] == [True, False, True]


def test_another_node_goes_on_with_what_was_held(clock: list[float]) -> None:
    """p2pd was replaced."""
    before, after = RecordStorage(StorageLimits(other_keys=0)), RecordStorage(StorageLimits(other_keys=0))
    before.ask_for(["peers"])
    assert put(before, "peers", 1)
    after.take_over(before)
    assert owners(after, "peers") == [1]
    assert put(after, "peers", 2), "it knows what was asked for"
