"""Whether every table and cache of a peer stays small (I7): a walk over all that its trainer's
objects hold.

Only attributes of objects that `swarmfree.trainer` defines are looked at; what these hold of other
rooms (records, plans, tensors) are values.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from swarmfree.protocol.ports import Handler
from swarmfree.sim import bounds
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.device import Device
from swarmfree.trainer.incarnations import PEERS_MAX, Incarnations
from swarmfree.trainer.recovery.buffer_pool import BufferPool
from swarmfree.trainer.recovery.builder import Building
from swarmfree.trainer.recovery.state_copy import StateCopy
from swarmfree.trainer.replica_state import PAST_MAX, ReplicaState

ROOM = "swarmfree.trainer."
NOTHING: Mapping[str, Any] = MappingProxyType({})
TABLES = (dict, list, set, frozenset, deque)
CLASSES_MAX = 512

LARGER: Mapping[str, tuple[int, str]] = {
    f"{Incarnations.__name__}._latest": (PEERS_MAX, "one life of each peer that ever came, those of long ago forgotten"),
    f"{Leadership.__name__}.named": (PAST_MAX, "who may hold a state of the lineage, those of long ago forgotten"),
    f"{Device.__name__}._measured": (512, "the last durations of each rank of work, a few dozen each"),
    **{
        f"{kind.__name__}.past": (PAST_MAX + 2, "one lineage for each iteration, the first and the newest among them")
        for kind in (Leadership, ReplicaState, Building, StateCopy)
    },
    f"{BufferPool.__name__}._spare": (4096, "bounded in bytes, and the buffers of a rehearsal are tiny"),
}
"""Table -> how many entries it may have, and why that many."""


def oversized(handler: Handler | None, entries_max: int = bounds.ENTRIES_MAX) -> tuple[str, ...]:
    """A sentence for every table of a peer that has more entries than it may, sorted.

    Args:
        handler: whom the peer gave its calls to: a method of what holds everything that it is.
        entries_max: of a table that `LARGER` does not name.
    """
    peer = getattr(handler, "__self__", None)
    found = {name: size for name, size in sizes(peer) if size > LARGER.get(name, (entries_max, ""))[0]}
    return tuple(f"{name} has {size} entries" for name, size in sorted(found.items()))


def sizes(root: object) -> Iterator[tuple[str, int]]:
    """Every table of the trainer's objects within reach of one of them that has entries: class and
    attribute, and how many.
    """
    seen: set[int] = {id(root)}
    waiting: list[Any] = [root]
    for one in waiting:  # which grows meanwhile
        for name, value in _attributes(one):
            nature = _nature(type(value))  # type: ignore[arg-type]  # classes hash
            if nature is Nature.LEAF:
                continue
            if nature is Nature.TABLE:
                if not value:
                    continue
                yield f"{type(one).__name__}.{name}", _entries(value)
            for inner in (value,) if nature is Nature.OBJECT else _objects(value):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    waiting.append(inner)


def _attributes(one: object) -> Iterable[tuple[str, Any]]:
    held: Mapping[str, Any] = getattr(one, "__dict__", NOTHING)
    slots = _slots_of(type(one))  # type: ignore[arg-type]  # classes hash
    return [*held.items(), *((name, getattr(one, name, None)) for name in slots)] if slots else held.items()


@lru_cache(CLASSES_MAX)
def _slots_of(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ()) if name != "__dict__")


class Nature(enum.Enum):
    """What values of a class are to the walk."""

    TABLE = enum.auto()
    OBJECT = enum.auto()  # of the trainer
    CALLABLE = enum.auto()  # it may be a method of one
    LEAF = enum.auto()  # it holds nothing that is looked at, as most do


@lru_cache(CLASSES_MAX)
def _nature(kind: type) -> Nature:
    if issubclass(kind, TABLES):
        return Nature.TABLE
    if any("__call__" in base.__dict__ for base in kind.__mro__):
        return Nature.CALLABLE
    return Nature.OBJECT if kind.__module__.startswith(ROOM) else Nature.LEAF


def _are_leaves(values: Iterable[Any]) -> bool:
    return all(_nature(kind) is Nature.LEAF for kind in {*map(type, values)})


def _entries(table: Collection[Any]) -> int:
    """Entries, those of tables in the table included."""
    inner = table.values() if isinstance(table, dict) else table
    if _are_leaves(inner):
        return len(table)
    return len(table) + sum(_entries(value) for value in inner if isinstance(value, TABLES))


def _objects(value: Any) -> Sequence[Any]:
    """The trainer's objects in a value: itself, or in a table, or the owner of a method."""
    match _nature(type(value)):  # type: ignore[arg-type]  # classes hash
        case Nature.LEAF:
            return ()
        case Nature.OBJECT:
            return (value,)
        case Nature.CALLABLE:
            return [one for one in (value, getattr(value, "__self__", None)) if type(one).__module__.startswith(ROOM)]
        case Nature.TABLE:
            parts = (value.keys(), value.values()) if isinstance(value, dict) else (value,)
            return [one for part in parts if part and not _are_leaves(part) for inner in part for one in _objects(inner)]
