"""Where a run goes on when all its peers have died and some have come back with what lay on their
disks. Pure; `trainer.resume_watch` asks and waits.

Source: protocol, "When all have died".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.records import Record

REPEATED_S = 3600
"""Whoever wants a pause gives the order again within so long where some have not heard it."""
KEPT = 2
"""A peer that dies as it writes one has the one before; so has a stage whose peers are late."""


@dataclass(frozen=True, slots=True)
class SnapshotSet:
    """A set of snapshots from which a run can go on.

    Args:
        iteration: the next one.
        lineage: of the last record before that.
        missing: stages of which nobody who answers has a snapshot of this set.
        holders: peer ids of those who have one, in the order given.
    """

    iteration: int
    lineage: str
    missing: tuple[int, ...]
    holders: tuple[str, ...]


def resume_point(offers: Mapping[str, Sequence[HeldSnapshot]], stage_count: int) -> SnapshotSet | None:
    """Choose where to go on: at the newest set that has every stage, else at the one that has most,
    the newest of those. Who tells of several stages of a set can hold the first only.

    Args:
        offers: peer id -> snapshots on its disk.
        stage_count: of the run.

    Returns:
        The point; None where nobody has anything.
    """
    return next(iter(snapshot_sets(offers, stage_count)), None)


def side_to_go_on(last_records: Mapping[SnapshotSet, Record], newest: SnapshotSet, named: Founder | None) -> SnapshotSet:
    """Choose between the newest set and those of other sides of a split that were there at once, or
    that the newest has been dropped for: the one goes on that would have, had they met before.

    Sides have paused at once, each for itself, by one order, or by two of one hour since the last
    genesis, or before it where nothing has gone on from that; and what has is not given up for a
    set that it had passed over.
    Where all have just died, or paused days apart, the newest goes on, whatever was forced: whoever
    had decided otherwise may have been gone for as long.

    Args:
        last_records: the record that each whole set was left by, where it is known.
        newest: of the whole sets.
        named: the last genesis; None where none is known.
    """
    while (last := last_records.get(newest)) is not None:
        spent = 0 if _is_named(newest, named) else named.spent if named is not None else math.inf
        rivals = {newest: last}
        rivals |= {point: record for point, record in last_records.items() if _paused_at_once(record, last, spent)}
        if is_passed_over(newest, last, named):
            rivals |= {point: record for point, record in last_records.items() if not is_passed_over(point, record, named)}
        chosen = min(rivals, key=lambda point: (_forced_latest_first(rivals[point]), point.lineage))
        if chosen == newest:
            break
        newest = chosen  # whoever loses to it has no say in what it is compared with
    return newest


def may_be_dropped(point: SnapshotSet, last: Record | None, named: Founder | None) -> bool:
    """Whether another set may still come that counts more than this one, left by this record, None
    where nobody tells it: what has gone on from the last genesis; or what a majority has decided,
    where this side paused, and was forced since that genesis.
    """
    if last is None or is_passed_over(point, last, named):
        return True
    has_paused = last.halt is Halting.PAUSE and last.order > (named.spent if named is not None else 0)
    return has_paused and any(one > _iteration(named) for one in last.forced)


def is_passed_over(point: SnapshotSet, last: Record, named: Founder | None) -> bool:
    """Whether the last genesis had the run go on from another one: the first record after it is
    forced.
    """
    return not _is_named(point, named) and _iteration(named) not in {0, *last.forced}


def parts_to_wait_for(
    parts: Mapping[SnapshotSet, Record], last_records: Mapping[SnapshotSet, Record], newest: SnapshotSet, named: Founder | None
) -> tuple[SnapshotSet, ...]:
    """Find the sets of which some stages are missing that would go on if they came: what a pause
    has left lies on disks whole, since nobody leaves before; where all have died it may not.

    Args:
        parts: sets with stages missing, with the record that each was left by.
        last_records, newest, named: as in `side_to_go_on`.
    """
    found = []
    for part, record in parts.items():
        first = min(part, newest, key=lambda one: (-one.iteration, one.lineage))
        if record.halt is Halting.PAUSE and side_to_go_on({**last_records, part: record}, first, named) == part:
            found.append(part)
    return tuple(found)


def is_left_before(order: Order | None, last: Record | None, named: Founder | None) -> bool:
    """Whether the organiser has ordered a pause since the last genesis, and this record, None where
    nobody tells it, knows nothing of that: others may have paused later.
    """
    if order is None or order.halt is not Halting.PAUSE or order.number <= (named.spent if named is not None else 0):
        return False
    return last is None or last.order < order.number


def _paused_at_once(one: Record, other: Record, spent: float) -> bool:
    """The number of an order is the Unix second in which it was given."""
    if not one.halt is other.halt is Halting.PAUSE:
        return False
    return one.order == other.order or (min(one.order, other.order) > spent and abs(one.order - other.order) <= REPEATED_S)


def _is_named(point: SnapshotSet, named: Founder | None) -> bool:
    return named is not None and (point.iteration, point.lineage) == (named.iteration, named.lineage)


def _iteration(named: Founder | None) -> int:
    return named.iteration if named is not None else 0


def _forced_latest_first(record: Record) -> tuple[tuple[int, bool], ...]:
    """Sorts as `fork_choice.wins`, but for a set that lies in the past of another one."""
    return (*((-iteration, False) for iteration in record.forced), (-record.iteration - 1, True))


def snapshot_sets(offers: Mapping[str, Sequence[HeldSnapshot]], stage_count: int) -> list[SnapshotSet]:
    """All sets, those with most stages first, the newest of those; see `resume_point`."""
    sets: defaultdict[tuple[int, str], dict[str, int]] = defaultdict(dict)
    for peer, snapshots in offers.items():
        for held in snapshots:
            sets[held.iteration, held.lineage].setdefault(peer, held.stage)
    points = []
    for (iteration, lineage), stage_of in sets.items():
        missing = tuple(stage for stage in range(stage_count) if stage not in stage_of.values())
        points.append(SnapshotSet(iteration, lineage, missing, tuple(stage_of)))
    # Of two lineages of one iteration each had its members; which goes on is told by its name alone
    return sorted(points, key=lambda point: (len(point.missing), -point.iteration, point.lineage))


def worth_keeping(
    held: Sequence[HeldSnapshot], newest: int, past: Mapping[int, str], descendants: Collection[HeldSnapshot] = ()
) -> tuple[HeldSnapshot, ...]:
    """Choose the snapshots that stay on a disk beside the one that is written: the one before it,
    of the same past, of whatever stage; and the newest of those that go on from it, since a state
    that was copied from who was left behind may be written last.

    Args:
        held: those that lie there.
        newest: the iteration that the written one is ready for.
        past: iteration -> lineage of the written one.
        descendants: of those that lie there, whose past has the written one.
    """
    newest_first = sorted(held, key=lambda one: -one.iteration)
    before = [one for one in newest_first if one.iteration < newest and past.get(one.iteration) == one.lineage]
    return (*[one for one in newest_first if one in descendants][:KEPT], *before[: KEPT - 1])
