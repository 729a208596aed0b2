"""Where a running swarm should cut its model, for the peers that are there now: which stages are in
use, how many blocks each has, who gives what, and whether the change is worth what it copies.

Blocks stand in a fixed order, so a split is a row of ranges, and the one that copies least is found
by dynamic programming over their ends; no matching is needed. Blocks are copied while training goes
on, so a change costs traffic, and a short stop at its end for who has most to fetch or to give.
Source: decision 24; Odyssey (arXiv 2508.21613), section IV and equation 8.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from swarmfree.policy.planner.estimator import iteration_estimate, stage_bytes
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet
from swarmfree.policy.planner.hysteresis import ChangeRules
from swarmfree.policy.planner.model_size import FLOAT_BYTES, block_parameters
from swarmfree.policy.planner.scores import STATE_FLOATS, StageRecovery, expected_loss, score
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE, Endpoint
from swarmfree.protocol.records import Record
from swarmfree.protocol.split import BlockMove, BlockSplit, block_moves, lacking

SLACKS = (0.0, 0.1)
"""Splits are tried whose slowest stage takes at most so much longer than in the best one: they may
copy less.
"""


def may_resplit(record: Record | None, manifest: Manifest) -> str:
    """Say why the blocks of this run stay where they are; empty where they may move.

    Args:
        record: the last one.
        manifest: of the run.
    """
    if record is None:
        return "nothing is committed yet"
    if manifest.recovery.swaps:
        return "swapped routes need the stages that the run began with"
    if manifest.optimizer.clip == "stage":
        return "each stage is clipped by its own norm, which is another one where it has other blocks"
    scalars = {(entry.step_count, entry.rate_scale_bits) for entry in record.stages[ENDS_STAGE + 1 :] if entry.members}
    if len(scalars) > 1:
        return "a stage was made anew, and counts its own steps"
    return ""


@dataclass(frozen=True, slots=True)
class SplitOutlook:
    """What another split depends on beside fleet and plan.

    Args:
        held: name -> the blocks that this peer holds now; who is not named holds none.
        copy_s: seconds in which blocks are copied while training goes on, by
            `RatedSplit.carried_bytes`.
        stop_s: seconds of the change itself, by the same.
        unexplained_s: of an iteration, beyond what devices compute; the same with every split.
        recovery: of a stage that has no replica left.
        horizon_s: expected until the next failure.
    """

    held: Mapping[str, range]
    copy_s: Callable[[float], float]
    stop_s: Callable[[float], float]
    unexplained_s: float
    recovery: StageRecovery
    horizon_s: float


@dataclass(frozen=True, slots=True)
class RatedSplit:
    """Another split, and what is expected of it.

    Args:
        split: the new one.
        plan: who serves what then, index = stage; nobody in one that is to be vacant.
        moves: blocks that go from one stage to another.
        copied_bytes: of all peers together.
        carried_bytes: of whoever has most to fetch or to give.
        transition_s: seconds until the model is cut so: of as many iterations as blocks are copied
            in, one at least, and of the change itself.
        stop_s: of the change itself, in which nothing is trained.
        before_s: seconds of an iteration as it is.
        after_s: afterwards.
        gain: its score against that of changing nothing.
    """

    split: BlockSplit
    plan: ExecutionPlan
    moves: tuple[BlockMove, ...]
    copied_bytes: int
    carried_bytes: float
    transition_s: float
    stop_s: float
    before_s: float
    after_s: float
    gain: float

    @property
    def is_worth_it(self) -> bool:
        """Whether it is worth a change, once it has been the best one for long enough."""
        return self.gain >= ChangeRules().gain_min

    @property
    def reason(self) -> str:
        """For an operator."""
        counts = " + ".join(str(count) for count in self.split.counts if count)
        stages = len(self.split.in_use)
        return (
            f"{self.split.blocks} blocks over {stages} stage{'s' * (stages != 1)} ({counts}): an iteration takes "
            f"{self.before_s:.2f} s, and {self.after_s:.2f} s once {self.copied_bytes / 1e6:,.1f} MB are copied; the swarm stops "
            f"for {self.stop_s:.1f} s then"
        )


def block_state_bytes(manifest: Manifest) -> int:
    """Size of the weights and moments of one block."""
    return STATE_FLOATS * FLOAT_BYTES * block_parameters(manifest.model)


def compact(plan: ExecutionPlan) -> ExecutionPlan:
    """Leave out the stages that have no blocks, as nothing goes through them."""
    kept = [stage for stage, blocks in enumerate(plan.blocks) if blocks or stage == ENDS_STAGE]
    return ExecutionPlan(tuple(plan.blocks[s] for s in kept), tuple(plan.replicas[s] for s in kept))


def blocks_max(manifest: Manifest, memory_bytes: int, held: int, in_flight: int) -> int:
    """How many blocks a peer may come to hold: what it has now it keeps until the new split has
    committed.

    Args:
        manifest: of the run.
        memory_bytes: of the peer, that training may take.
        held: blocks that it has now.
        in_flight: microbatches whose activations it may hold at once.
    """
    room = memory_bytes - held * block_state_bytes(manifest)
    return max(0, room // stage_bytes(manifest, ENDS_STAGE + 1, 1, in_flight))


def least_moved(
    blocks: int, most: Sequence[int], cost: Sequence[Mapping[int, float] | Sequence[float]]
) -> tuple[int, ...] | None:
    """Cut blocks into ranges, one for each stage, for the least cost.

    Args:
        blocks: of the model.
        most: index = stage; how many it may have, at least one.
        cost: index = stage, then block; of having that block there.

    Returns:
        Blocks of each stage; of equal costs the one that has more in front. None where they do not
        fit.
    """
    sums = [[0.0] * (blocks + 1) for _ in most]
    for stage, row in enumerate(sums):
        for block in range(blocks):
            row[block + 1] = row[block] + cost[stage][block]
    # best[k]: cost of the first k blocks in the stages so far, and the counts, negated for ties
    best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ()), *[None] * blocks]
    for stage, limit in enumerate(most):
        row, further = sums[stage], list[tuple[float, tuple[int, ...]] | None]([None] * (blocks + 1))
        for start, found in enumerate(best):
            if found is None:
                continue
            for stop in range(start + 1, min(blocks, start + limit) + 1):
                other = (found[0] + row[stop] - row[start], (*found[1], start - stop))
                known = further[stop]
                if known is None or other < known:
                    further[stop] = other
        best = further
    found = best[blocks]
    return None if found is None else tuple(-count for count in found[1])


def splits_for(
    fleet: Fleet, replicas: Sequence[Sequence[str]], manifest: Manifest, outlook: SplitOutlook
) -> tuple[BlockSplit, ...]:
    """Find the splits worth a look for peers in these stages: those with the fastest slowest stage
    that copy least, and that may be a little slower and copy less still.

    Args:
        fleet: who is there.
        replicas: index = stage; who is to serve it, nobody where it is to be vacant.
        manifest: of the run.
        outlook: see there.

    Returns:
        None of them twice; empty where the blocks do not fit.
    """
    used = [stage for stage in range(ENDS_STAGE + 1, len(replicas)) if replicas[stage]]
    blocks, in_flight = manifest.model.blocks, min(manifest.ring.credits * manifest.replicas_max(ENDS_STAGE), manifest.batch.most)
    speeds = [sum(1 / fleet.by_name[name].block_s for name in replicas[stage]) for stage in used]
    room = [
        min(
            blocks_max(manifest, fleet.by_name[name].memory_bytes, len(outlook.held.get(name, ())), in_flight)
            for name in replicas[stage]
        )
        for stage in used
    ]
    if not used or min(room) < 1 or sum(room) < blocks or len(used) > blocks:
        return ()
    level = [1] * len(used)
    for _ in range(blocks - len(used)):
        takers = [turn for turn, count in enumerate(level) if count < room[turn]]
        level[min(takers, key=lambda turn: (level[turn] + 1) / speeds[turn])] += 1
    slowest = max(count / speed for count, speed in zip(level, speeds, strict=True))
    cost = [
        [float(sum(block not in outlook.held.get(name, ()) for name in replicas[stage])) for block in range(blocks)]
        for stage in used
    ]
    found: dict[BlockSplit, None] = {}
    for slack in SLACKS:
        limit_s = slowest * (1 + slack) * (1 + 1e-9)
        most = [min(each, math.floor(limit_s * speed)) for each, speed in zip(room, speeds, strict=True)]
        counts = least_moved(blocks, most, cost)
        assert counts is not None, f"level split {level} is within {most}"
        by_stage = dict(zip(used, counts, strict=True))
        found[BlockSplit(tuple(by_stage.get(stage, 0) for stage in range(ENDS_STAGE + 1, len(replicas))))] = None
    return tuple(found)


def stage_options(plan: ExecutionPlan, guests: Collection[int]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """List who might serve which stage: as it is; and without each stage that guests serve alone.

    Args:
        plan: who serves what now; a guest bears the name of its host, as they share a device.
            Nobody serves a stage that is to stay vacant.
        guests: stages that guests alone serve.

    Yields:
        Index = stage: names.
    """
    yield plan.replicas
    for stage in sorted(guests):
        if plan.replicas[stage]:
            yield tuple(() if other == stage else names for other, names in enumerate(plan.replicas))


def best_split(
    fleet: Fleet,
    plan: ExecutionPlan,
    manifest: Manifest,
    outlook: SplitOutlook,
    options: Sequence[Sequence[Sequence[str]]] | None = None,
) -> RatedSplit | None:
    """Find the split with the highest score that makes iterations shorter; None without one.

    Args:
        fleet: who is there, newcomers among them.
        plan: who serves what now; a stage without blocks may have nobody.
        manifest: of the run.
        outlook: see there.
        options: who may serve what then, see `stage_options`; None = as now.
    """
    present = compact(plan)
    if present.empty_stages:
        return None  # what is lost comes back first
    old = BlockSplit(plan.blocks[ENDS_STAGE + 1 :])
    before_s = iteration_estimate(fleet, present, manifest).seconds + outlook.unexplained_s
    stay = score(0.0, before_s, outlook.horizon_s, iterations_lost=expected_loss(fleet, present, outlook.recovery, before_s))
    if stay <= 0:
        return None
    rated = [
        _rated(
            fleet, plan, ExecutionPlan((0, *split.counts), tuple(tuple(sorted(n)) for n in replicas)), manifest, outlook, before_s
        )
        for replicas in (options or [plan.replicas])
        for split in splits_for(fleet, replicas, manifest, outlook)
        if split != old or list(map(len, replicas)) != list(map(len, plan.replicas))
    ]
    better = [replace(each, gain=each.gain / stay) for each in rated if each.after_s < before_s]
    return max(
        (each for each in better if each.gain > 1),
        key=lambda each: (each.gain, -each.copied_bytes, each.split.counts),
        default=None,
    )


def _rated(
    fleet: Fleet, now: ExecutionPlan, after: ExecutionPlan, manifest: Manifest, outlook: SplitOutlook, before_s: float
) -> RatedSplit:
    """A split with its score, not yet against that of changing nothing."""
    old, split, served = BlockSplit(now.blocks[ENDS_STAGE + 1 :]), BlockSplit(after.blocks[ENDS_STAGE + 1 :]), compact(after)
    after_s = iteration_estimate(fleet, served, manifest).seconds + outlook.unexplained_s
    fetched, given, block_bytes = defaultdict[str, int](int), defaultdict[str, float](float), block_state_bytes(manifest)
    for stage, names in enumerate(after.replicas[ENDS_STAGE + 1 :], start=ENDS_STAGE + 1):
        blocks = split.blocks_of(stage)
        if old.blocks_of(stage) == blocks:
            continue  # a guest there bears the name of its host, which holds others
        for name in names:
            for block in lacking(outlook.held.get(name, range(0)), blocks):
                donors = now.replicas[old.stage_of(block)]
                fetched[name] += block_bytes
                for donor in donors:
                    given[donor] += block_bytes / len(donors)
    copied_bytes, carried_bytes = sum(fetched.values()), max([0.0, *fetched.values(), *given.values()])
    # Copying begins as an iteration does, and the model is cut between two
    iterations, stop_s = max(1, math.ceil(outlook.copy_s(carried_bytes) / before_s)), outlook.stop_s(carried_bytes)
    transition_s = iterations * before_s + stop_s
    risk = expected_loss(fleet, served, outlook.recovery, after_s)
    value = score(transition_s, after_s, outlook.horizon_s, transition_s / iterations, risk)
    moves = block_moves(old, split)
    return RatedSplit(split, after, moves, copied_bytes, carried_bytes, transition_s, stop_s, before_s, after_s, value)


@dataclass(frozen=True, slots=True)
class BlockSource:
    """Blocks that a peer is to copy, and from whom.

    Args:
        blocks: consecutive, by their numbers in the whole model.
        stage: that has them now.
        donors: its members, in the order in which they are asked.
    """

    blocks: range
    stage: int
    donors: tuple[Endpoint, ...]


def block_sources(
    old: BlockSplit, new: BlockSplit, taker: int, held: range, replicas: Sequence[Sequence[Endpoint]], turn: int = 0
) -> tuple[BlockSource, ...]:
    """List what a peer has to copy before a new split, in order of the blocks.

    Args:
        old, new: the splits.
        taker: stage of the peer.
        held: blocks that it has.
        replicas: index = stage; who serves it now.
        turn: of the peer among its siblings, which begin with different donors, so that each donor
            has as much to give.
    """
    found: list[BlockSource] = []
    for block in lacking(held, new.blocks_of(taker)):
        giver, last = old.stage_of(block), found[-1] if found else None
        if last is not None and (last.stage, last.blocks.stop) == (giver, block):
            found[-1] = replace(last, blocks=range(last.blocks.start, block + 1))
            continue
        donors = tuple(replicas[giver])
        first = turn % len(donors) if donors else 0
        found.append(BlockSource(range(block, block + 1), giver, donors[first:] + donors[:first]))
    return tuple(found)
