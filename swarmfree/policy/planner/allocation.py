"""Which peer serves which stage: a whole plan for a fleet.

The work of an iteration is done when its slowest stage is, so each peer goes where the most work
waits for the least speed, the fastest peers first. That is the greedy rule for unequal machines,
here with three conditions: a peer has to have the memory, only some can feed, and no stage should
hang on one peer while another has three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.policy.placement import RICH, neediest_stage
from swarmfree.policy.planner.estimator import iteration_bound, memory_bytes, stage_bytes, stage_work
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.splits import level_split
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ABSENT, ENDS_STAGE

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
    cover = _cover(fastest_first, needs)
    left = [peer for peer in fastest_first if peer.name not in {names[0] for names in cover}]
    work = stage_work(manifest, blocks, fleet.ends_blocks)
    safe, fast = (
        ExecutionPlan(blocks, _filled(left, fleet, cover, work, needs, given, spreads_risk=spreads)) for spreads in (True, False)
    )
    fast_s = iteration_bound(fleet, fast, manifest).seconds
    return safe if iteration_bound(fleet, safe, manifest).seconds <= RISK_SLOWDOWN_MAX * fast_s else fast


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


def _filled(
    peers: Sequence[PeerProfile],
    fleet: Fleet,
    cover: Sequence[Sequence[str]],
    work: Sequence[float],
    needs: Sequence[int],
    limits: ReplicaLimits,
    *,
    spreads_risk: bool,
) -> tuple[tuple[str, ...], ...]:
    """Add each peer in turn to the stage that it does most for, of those that have room.

    Args:
        cover: index = stage; who serves it already.
        spreads_risk: see `placement.neediest_stage`; else speed alone counts.
    """
    members = [list(names) for names in cover]
    speeds = [sum(1 / fleet.by_name[name].block_s for name in names) for names in members]
    counts = [len(names) for names in members]
    open_stages = {stage for stage in range(len(work)) if counts[stage] < limits.of(stage)}
    for peer in peers:
        if not open_stages:
            break
        able = [stage for stage in open_stages if fits(peer, stage, needs)]
        if not able:
            continue
        stage = neediest_stage(able, counts if spreads_risk else [RICH] * len(counts), speeds, work)
        members[stage].append(peer.name)
        speeds[stage] += 1 / peer.block_s
        counts[stage] += 1
        if counts[stage] >= limits.of(stage):
            open_stages.remove(stage)
    return tuple(tuple(sorted(names)) for names in members)


def moved(plan: ExecutionPlan, name: str, giver: int, taker: int) -> ExecutionPlan:
    """Return the plan with a peer in another stage; `giver` is `ABSENT` for a standby."""
    gives = {giver: tuple(other for other in plan.replicas[giver] if other != name)} if giver != ABSENT else {}
    return plan.with_replicas(gives | {taker: (*plan.replicas[taker], name)})


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
