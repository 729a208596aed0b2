"""Which replica copies a snapshot to the run's store, what is removed there, and who fetches what
from there when all have died. Pure; the trainer asks, waits and copies.

Source: elastic harness, tiers of snapshots; protocol, "When all have died".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from swarmfree.policy.resume import SnapshotSet, resume_point
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.names import ABSENT, ENDS_STAGE

SETS_KEPT = 2
"""The newest may be damaged, and a peer may be fetching the one before."""
TAKEN_OVER_S = 30.0
"""A replica that lives may not reach the store, or have no leave to write there."""
FETCHED_WITHIN_S = 20.0
"""So may a peer that is to fetch a stage."""


def turns_before(me: str, replicas: Sequence[str], present: Collection[str], turn: int) -> list[str]:
    """Those whose turn to copy their stage to the store comes before this replica's: it copies once
    each of them has had `TAKEN_OVER_S`, or is gone; one copies at once.

    Args:
        me: peer id.
        replicas: peer ids of those that stepped to this snapshot, in any order.
        present: peer ids of those that are members now, and have copied what was theirs before.
        turn: number of the snapshot, so that replicas take turns.
    """
    order = sorted(set(replicas) | {me})
    first = turn % len(order)
    order = order[first:] + order[:first]
    return [peer for peer in order[: order.index(me)] if peer in present]


def removed_before(stored: Collection[HeldSnapshot], stage_count: int, past: Mapping[int, str]) -> int:
    """The iteration of the oldest set that is kept: whatever is ready for an earlier one may go,
    whole or not; 0 where that is nothing.

    Args:
        stored: in the store.
        stage_count: of the run.
        past: iteration -> lineage of who asks. Where the run has gone back, or is split, sets of
            another lineage may be ahead: what is uploaded now does not go for those.
    """
    stages: dict[tuple[int, str], set[int]] = {}
    for held in stored:
        if past.get(held.iteration) == held.lineage:
            stages.setdefault((held.iteration, held.lineage), set()).add(held.stage)
    whole = sorted({iteration for (iteration, _), found in stages.items() if len(found) == stage_count}, reverse=True)
    return whole[SETS_KEPT - 1] if len(whole) >= SETS_KEPT else 0


@dataclass(frozen=True, slots=True)
class MissingStages:
    """What the store has of the newest set whose stages lie on disks or in the store, and no disk
    has; no stages where nothing of it has to be fetched.
    """

    iteration: int
    lineage: str
    stages: tuple[int, ...]

    @property
    def snapshots(self) -> tuple[HeldSnapshot, ...]:
        """All of them."""
        return tuple(HeldSnapshot(stage, self.iteration, self.lineage) for stage in self.stages)


def missing_stages(
    offers: Mapping[str, Sequence[HeldSnapshot]], stored: Sequence[HeldSnapshot], stage_count: int
) -> MissingStages:
    """Find what has to be fetched.

    Args:
        offers: peer id -> snapshots on its disk, of all that wait, this one too.
        stored: in the store.
        stage_count: of the run.
    """
    everywhere = {f"disk of {peer}": tuple(held) for peer, held in offers.items()} | {
        f"store {number}": (held,) for number, held in enumerate(stored)
    }
    point = resume_point(everywhere, stage_count)
    if point is None:
        return MissingStages(0, "", ())
    there = {held.stage for held in stored if (held.iteration, held.lineage) == (point.iteration, point.lineage)}
    return MissingStages(point.iteration, point.lineage, tuple(sorted(there - set(_stage_of(offers, point).values()))))


def to_fetch(
    me: str,
    offers: Mapping[str, Sequence[HeldSnapshot]],
    feeders: Collection[str],
    missing: MissingStages,
    waited_s: Mapping[int, float],
) -> HeldSnapshot | None:
    """Choose what this peer fetches, so that all that is missing comes to lie on disks.

    Each stage that nobody has on its disk is fetched by one peer: first by those that have nothing
    of that set, then by those that have what another one has as well. All peers choose alike from
    what all tell. What is still on no disk after `FETCHED_WITHIN_S` is fetched by whoever is free.

    Args:
        me: peer id.
        offers: as in `missing_stages`.
        feeders: peer ids of those that can feed: nobody else serves the ends.
        missing: what is to be fetched.
        waited_s: missing stage -> for how long it has been missing, whoever came and went since.
    """
    stage_of = _stage_of(offers, missing)
    first = {stage: min(peer for peer in stage_of if stage_of[peer] == stage) for stage in stage_of.values()}
    free = sorted((p for p in offers if first.get(stage_of.get(p, ABSENT)) != p), key=lambda peer: (peer in stage_of, peer))
    chosen: dict[str, int] = {}
    for stage in missing.stages:
        able = [peer for peer in free if peer not in chosen and (stage != ENDS_STAGE or peer in feeders)]
        # Who can feed is kept for the ends
        if able:
            chosen[min(able, key=lambda peer: (stage != ENDS_STAGE and peer in feeders, free.index(peer)))] = stage
    mine = chosen.get(me)
    late = [stage for stage in missing.stages if waited_s[stage] >= FETCHED_WITHIN_S and (stage != ENDS_STAGE or me in feeders)]
    if ENDS_STAGE in late and not any(peer in feeders for peer in free if peer != me):
        late = [ENDS_STAGE]  # nobody else could
    if me in free and late:
        mine = late[(free.index(me) + int(max(waited_s[stage] for stage in late) / FETCHED_WITHIN_S)) % len(late)]
    return next((one for one in missing.snapshots if one.stage == mine), None)


def _stage_of(offers: Mapping[str, Sequence[HeldSnapshot]], point: MissingStages | SnapshotSet | HeldSnapshot) -> dict[str, int]:
    """Peer id -> the stage of this set that counts in its word: the first one."""
    return {
        peer: held.stage
        for peer, snapshots in offers.items()
        for held in reversed(snapshots)
        if (held.iteration, held.lineage) == (point.iteration, point.lineage)
    }


def is_needed(held: HeldSnapshot, offers: Mapping[str, Sequence[HeldSnapshot]], peer: str, point: SnapshotSet | None) -> bool:
    """Whether a resume needs what a peer fetches: it lies on no other disk, and no later set lies
    whole on disks from which the run goes on.

    Args:
        held: what is fetched.
        offers: as in `missing_stages`.
        peer: id of who fetches.
        point: what the run goes on from; None while something may come that counts more.
    """
    is_later_whole = point is not None and not point.missing and point.iteration > held.iteration
    return not is_later_whole and all(stage != held.stage for one, stage in _stage_of(offers, held).items() if one != peer)


def is_keeper(held: HeldSnapshot, offers: Mapping[str, Sequence[HeldSnapshot]], me: str, fetching: Collection[str]) -> bool:
    """Whether a peer is to keep what it has of the set of which it fetches another stage, which
    would take its place: nobody else has the same by now, or all those fetch as well, and it is the
    first by peer id.

    Args:
        held: what is fetched.
        offers: as in `missing_stages`.
        me: peer id of who fetches.
        fetching: others that do.
    """
    there = _stage_of(offers, held)
    others = [peer for peer, stage in there.items() if peer != me and stage == there.get(me)]
    return me in there and all(peer in fetching and peer > me for peer in others)
