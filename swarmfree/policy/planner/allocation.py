"""Which peer serves which stage: a whole plan for a fleet.

The work of an iteration is done when its slowest stage is, so each peer goes where the most work
waits for the least speed, the fastest peers first. That is the greedy rule for unequal machines,
here with three conditions: a peer has to have the memory, only some can feed, and no stage should
hang on one peer while another has three.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.policy.planner.estimator import iteration_bound, memory_bytes, stage_bytes, stage_work
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.splits import level_split
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE

RICH = 3
"""A stage with so many replicas can give one to a stage that has one."""
RISK_SLOWDOWN_MAX = 1.1
"""An iteration may take so many times longer for the sake of a second replica."""


class PlanImpossible(ValueError):
    """No plan fits this fleet; says what is missing."""


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """How many replicas a stage takes.

    Args:
        replicas_max: of a body stage.
        sources_max: of stage 0.
    """

    replicas_max: int
    sources_max: int

    def of(self, stage: int) -> int:
        """Return how many replicas a stage takes."""
        return self.sources_max if stage == ENDS_STAGE else self.replicas_max


def allocate(fleet: Fleet, manifest: Manifest, limits: ReplicaLimits | None = None) -> ExecutionPlan:
    """Choose a plan for a fleet from nothing.

    With fewer peers than stages, each serves consecutive stages, as many as its speed allows.

    Args:
        fleet: who is there; who gets no place is a standby.
        manifest: of the run.
        limits: on replicas; None = the manifest's.

    Raises:
        PlanImpossible: nobody can feed, or a stage fits nowhere.
    """
    blocks = tuple(len(manifest.blocks_of(stage)) for stage in range(manifest.stage_count))
    empty = ExecutionPlan(blocks, ((),) * len(blocks))
    fastest_first = sorted(fleet.peers, key=lambda peer: (peer.block_s, peer.name))
    if not any(peer.can_feed for peer in fastest_first):
        raise PlanImpossible("stage 0 needs a peer that can feed, and nobody here can")
    if len(fastest_first) < len(blocks):
        return _runs_of_stages(fastest_first, manifest, empty)
    given = limits or ReplicaLimits(manifest.stages.replicas_max, manifest.stages.sources_max)
    needs = stage_needs(manifest, blocks, given.sources_max)
    members = _cover(fastest_first, needs)
    placed = {names[0] for names in members}
    speed = [1 / fleet.by_name[names[0]].block_s for names in members]
    left = [peer for peer in fastest_first if peer.name not in placed]
    _fill(left, members, speed, stage_work(manifest, blocks), needs, given)
    plan = ExecutionPlan(blocks, tuple(tuple(sorted(names)) for names in members))
    return _spread_risk(fleet, manifest, plan, needs, given)


def stage_needs(manifest: Manifest, blocks: Sequence[int], sources: int) -> tuple[int, ...]:
    """Bytes of one replica of each stage, with so many sources."""
    held = min(manifest.ring.credits * sources, manifest.batch.microbatches)
    return tuple(stage_bytes(manifest, stage, count, held) for stage, count in enumerate(blocks))


def fits(peer: PeerProfile, stage: int, needs: Sequence[int]) -> bool:
    """Whether a peer may serve a stage, and has the memory."""
    return peer.memory_bytes >= needs[stage] and (stage != ENDS_STAGE or peer.can_feed)


def _cover(peers: Sequence[PeerProfile], needs: Sequence[int]) -> list[list[str]]:
    """One peer for each stage: the stage that needs the most memory chooses first, and takes the
    fastest that fits. Whoever fits it fits all others, so no other order finds more.

    Stage 0 comes before, and takes the fastest that can feed; if then another stage finds nobody,
    the one with the least memory.
    """
    feeders = [peer for peer in peers if fits(peer, ENDS_STAGE, needs)]
    if not feeders:
        raise PlanImpossible(_lacking(ENDS_STAGE, needs, [peer for peer in peers if peer.can_feed]))
    lacking = ""
    for source in (feeders[0], min(feeders, key=lambda peer: peer.memory_bytes)):
        left = [peer for peer in peers if peer is not source]
        members = [[source.name], *([] for _ in needs[1:])]
        for stage in sorted(range(1, len(needs)), key=lambda stage: (-needs[stage], stage)):
            found = next((peer for peer in left if fits(peer, stage, needs)), None)
            if found is None:
                lacking = _lacking(stage, needs, left)
                break
            members[stage].append(found.name)
            left.remove(found)
        else:
            return members
    raise PlanImpossible(lacking)


def _lacking(stage: int, needs: Sequence[int], peers: Sequence[PeerProfile]) -> str:
    """Say which stage finds nobody."""
    largest = max((peer.memory_bytes for peer in peers), default=0)
    who = "a peer that can feed and has" if stage == ENDS_STAGE else "a peer with"
    there = f"the largest that is left has {largest / 1e9:.2f} GB" if peers else "nobody is left"
    return f"stage {stage} needs {who} {needs[stage] / 1e9:.2f} GB, and {there}; more stages, or fewer credits or rows, take less"


def _fill(
    peers: Sequence[PeerProfile],
    members: list[list[str]],
    speed: list[float],
    work: Sequence[float],
    needs: Sequence[int],
    limits: ReplicaLimits,
) -> None:
    """Add each peer in turn to the stage that has the least speed for its work, and room.

    Args:
        members: index = stage; grows.
        speed: index = stage; blocks a second of its members; grows.
    """
    heap = [(speed[stage] / work[stage], stage) for stage in range(len(work)) if limits.of(stage) > 1]
    heapq.heapify(heap)
    for peer in peers:
        passed = []
        while heap:
            entry = heapq.heappop(heap)
            stage = entry[1]
            if not fits(peer, stage, needs):
                passed.append(entry)
                continue
            members[stage].append(peer.name)
            speed[stage] += 1 / peer.block_s
            if len(members[stage]) < limits.of(stage):
                passed.append((speed[stage] / work[stage], stage))
            break
        for entry in passed:
            heapq.heappush(heap, entry)


def _spread_risk(
    fleet: Fleet, manifest: Manifest, plan: ExecutionPlan, needs: Sequence[int], limits: ReplicaLimits
) -> ExecutionPlan:
    """Give each stage that hangs on one peer a second one from the stage with the most, its slowest
    that fits, as long as that has three and an iteration hardly becomes longer.
    """
    longest_s = RISK_SLOWDOWN_MAX * iteration_bound(fleet, plan, manifest).seconds
    for poor in sorted(range(len(needs)), key=lambda stage: (len(plan.replicas[stage]), stage)):
        if len(plan.replicas[poor]) > 1:
            break
        rich = max(range(len(needs)), key=lambda stage: (len(plan.replicas[stage]), -stage))
        givers = [fleet.by_name[name] for name in plan.replicas[rich]]
        giver = max((p for p in givers if fits(p, poor, needs)), key=lambda p: (p.block_s, p.name), default=None)
        if len(givers) < RICH or giver is None or limits.of(poor) == 1:
            continue
        other = moved(plan, giver.name, rich, poor)
        if iteration_bound(fleet, other, manifest).seconds <= longest_s:
            plan = other
    return plan


def moved(plan: ExecutionPlan, name: str, giver: int, taker: int) -> ExecutionPlan:
    """Return the plan with a peer in another stage."""
    rest = tuple(other for other in plan.replicas[giver] if other != name)
    return plan.with_replicas({giver: rest, taker: (*plan.replicas[taker], name)})


def _runs_of_stages(peers: Sequence[PeerProfile], manifest: Manifest, empty: ExecutionPlan) -> ExecutionPlan:
    """Fewer peers than stages: each serves consecutive ones, as many as its speed allows; whoever
    feeds serves stage 0 and the first of the body.
    """
    source = next(peer for peer in peers if peer.can_feed)
    order = [source, *(peer for peer in peers if peer is not source)]
    counts = level_split(len(empty.blocks), [peer.block_s for peer in order], [len(empty.blocks)] * len(order))
    replicas: list[tuple[str, ...]] = []
    for peer, count in zip(order, counts, strict=True):
        replicas += [(peer.name,)] * count
    plan = ExecutionPlan(empty.blocks, tuple(replicas))
    for name, needed in memory_bytes(plan, manifest).items():
        there = next(peer for peer in peers if peer.name == name).memory_bytes
        if needed > there:
            stages = plan.stages_of[name]
            raise PlanImpossible(
                f"{len(peers)} peers for {len(empty.blocks)} stages: {name} would serve stages {stages[0]} to {stages[-1]}, "
                f"which need {needed / 1e9:.2f} GB, and has {there / 1e9:.2f} GB"
            )
    return plan
