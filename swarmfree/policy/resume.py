"""Where a run goes on when all its peers have died and some have come back with what lay on their
disks. Pure; `trainer.resume_watch` asks and waits.

Source: protocol, "When all have died".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from swarmfree.protocol.messages import HeldSnapshot

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


def resume_point(offers: Mapping[str, Sequence[HeldSnapshot]], stage_count: int) -> tuple[SnapshotSet | None, bool]:
    """Choose where to go on: at the newest set that has every stage, else at the one that has most,
    the newest of those. Who tells of several stages of a set can hold the first only.

    Args:
        offers: peer id -> snapshots on its disk.
        stage_count: of the run.

    Returns:
        The point, None where nobody has anything; and whether a later set lacks stages, whose
        holders may still come.
    """
    sets: defaultdict[tuple[int, str], dict[str, int]] = defaultdict(dict)
    for peer, snapshots in offers.items():
        for held in snapshots:
            sets[held.iteration, held.lineage].setdefault(peer, held.stage)
    points = []
    for (iteration, lineage), stage_of in sets.items():
        missing = tuple(stage for stage in range(stage_count) if stage not in stage_of.values())
        points.append(SnapshotSet(iteration, lineage, missing, tuple(stage_of)))
    if not points:
        return None, False
    # Of two lineages of one iteration each had its members; which goes on is told by its name alone
    best = min(points, key=lambda point: (len(point.missing), -point.iteration, point.lineage))
    return best, any(point.iteration > best.iteration for point in points)


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
