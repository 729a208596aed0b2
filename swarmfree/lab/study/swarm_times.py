"""What the planning study's swarm knows and what its iterations take: the live policy, asked about
peers that are all alike.

Since they are, everything follows from how many serve each stage, and is reckoned once for each
such count. Nothing here decides; `policy.planner` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from swarmfree.lab.study.cluster_model import ClusterModel
from swarmfree.policy.planner.allocation import ReplicaLimits, allocate
from swarmfree.policy.planner.estimator import PLAYED_MAX, PlanBounds, Uplink, averaging_s, chains, commit_s, stage_work
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, Link, PeerProfile
from swarmfree.policy.planner.list_schedule import Work, list_schedule
from swarmfree.policy.planner.measured_fleet import UNBOUNDED, MeasuredPeer, horizon_s, measured_fleet
from swarmfree.policy.planner.model_size import FLOAT_BYTES, block_flops, ends_parameters
from swarmfree.policy.planner.moves import MovePlanner
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.policy.planner.single_moves import MoveOutlook, RatedMove, best_move, settled, state_bytes, unexplained_s
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE

Counts = tuple[int, ...]
"""Index = stage; how many peers serve it."""
Guests = tuple[tuple[int, int], ...]
"""(stage, the stage of its host), for each stage that a guest serves."""


@dataclass(frozen=True, slots=True)
class SwarmShape:
    """A swarm on a cluster.

    Args:
        cluster: see there.
        body: stages without the ends.
        sources_max: of stage 0.
        credits: of each source.
        limits: on replicas; None = those of a live run, eight of a body stage at most.
        recovery: of a stage that nobody holds.
    """

    cluster: ClusterModel
    body: int
    sources_max: int
    credits: int
    limits: ReplicaLimits | None
    recovery: StageRecovery

    @property
    def manifest(self) -> Manifest:
        """Of its run."""
        return self.cluster.manifest(self.body, self.sources_max, self.credits)


@dataclass(frozen=True, slots=True)
class StageMove:
    """A move of a peer, whichever of the giver's it is.

    Args:
        giver, taker: stages.
        gain: see `RatedMove`.
        spreads_risk: see `RatedMove`.
    """

    giver: int
    taker: int
    gain: float
    spreads_risk: bool


class SwarmTimes:
    """Seconds and moves of one shape of swarm, each reckoned once."""

    def __init__(self, shape: SwarmShape, long_times: SwarmTimes | None = None) -> None:
        """Nothing is reckoned yet.

        Args:
            shape: see there.
            long_times: a smaller swarm of as many stages that is played through; what a play takes
                longer there than its bound, this one takes longer, too, where it is too large to be
                played. None = it plays one iteration of its first plan to find that out.
        """
        self.shape, self.manifest = shape, shape.manifest
        self.blocks = tuple(len(self.manifest.blocks_of(stage)) for stage in range(self.manifest.stage_count))
        self.work = stage_work(self.manifest, self.blocks)
        self.limits = shape.limits or ReplicaLimits(self.manifest.stages.replicas_max, self.manifest.stages.sources_max)
        forward_s = block_flops(self.manifest) / shape.cluster.flops
        self._profile = PeerProfile("", forward_s, 2 * forward_s, UNBOUNDED, shape.cluster.bytes_per_s, shape.cluster.latency_s)
        self._is_small = self.manifest.batch.microbatches * len(self.blocks) <= PLAYED_MAX
        self._names: list[list[str]] = [[] for _ in self.blocks]
        self._long_times, self._stretch = long_times, 0.0
        self._seconds: dict[tuple[Counts, Guests], float] = {}
        self._moves: dict[tuple[Counts, float], RatedMove | None] = {}
        self._first: dict[int, Counts] = {}

    # -- what is true
    def iteration_s(self, counts: Counts, guests: Guests = ()) -> float:
        """Seconds of an iteration: the schedule played exactly, or, where that would take too long,
        its bound times what plays of the same stages take longer.
        """
        stage_at = self._ordered(counts)
        place_of = {stage: place for place, stage in stage_at.items()}
        key = _exchanged(counts, stage_at), tuple(sorted((place_of[stage], place_of[host]) for stage, host in guests))
        if key not in self._seconds:
            self._seconds[key] = self.quick_s(*key) * (1.0 if self._is_small else self.stretch(key[0]))
        return self._seconds[key]

    def _ordered(self, counts: Counts) -> dict[int, int]:
        """Place -> the stage that is put there, of stages of equally many blocks that with the most
        peers first: what differs by that alone is reckoned once. The slowest stage is then the last
        one, where an iteration takes longest, if the place makes a difference.
        """
        ordered = sorted(range(len(counts)), key=lambda stage: (self.blocks[stage], -counts[stage], stage))
        places = sorted(range(len(counts)), key=lambda stage: (self.blocks[stage], stage))
        return dict(zip(places, ordered, strict=True))

    def quick_s(self, counts: Counts, guests: Guests = ()) -> float:
        """Seconds of an iteration: played, or, where that would take too long, its bound alone."""
        plan = self._plan(counts, guests)
        fleet = self._fleet(plan)
        return self._played_s(fleet, plan) if self._is_small else PlanBounds(fleet, self.manifest).time(plan).seconds

    def _played_s(self, fleet: Fleet, plan: ExecutionPlan) -> float:
        """As `iteration_time`, and before its activations each source sends its part of what keeps
        the copies of the ends up to date: the average of the last iteration.
        """
        if plan.empty_stages:
            return math.inf
        sources, kept = plan.replicas[ENDS_STAGE], self.manifest.recovery.ends_copies
        size = kept * FLOAT_BYTES * ends_parameters(self.manifest.model) / len(sources)
        copies = [[Work(Uplink(name), size / fleet.by_name[name].bytes_per_s, is_backward=False)] for name in sources]
        work = [*copies, *chains(fleet, plan, self.manifest)]
        compute_s = list_schedule(work, self.manifest.ring.credits).seconds
        return compute_s + averaging_s(fleet, plan, self.manifest) + commit_s(fleet, plan)

    def stretch(self, counts: Counts) -> float:
        """How many times as long as its bound an iteration takes, of the first counts that are
        asked about.
        """
        if not self._stretch:
            if self._long_times is not None:
                other = self._long_times
                self._stretch = other.stretch(other.first_counts(other.manifest.batch.microbatches // 2))
            else:
                plan = self._plan(counts)
                fleet = self._fleet(plan)
                self._stretch = self._played_s(fleet, plan) / PlanBounds(fleet, self.manifest).time(plan).seconds
        return self._stretch

    def copy_s(self, stage: int) -> float:
        """Seconds in which a peer has a stage's weights and moments from a sibling."""
        return state_bytes(self.manifest, stage) / self.shape.cluster.bytes_per_s

    # -- what the policy says
    def first_counts(self, nodes: int) -> Counts:
        """How many peers serve each stage as the run begins."""
        if nodes not in self._first:
            fleet = Fleet(tuple(self._named(f"{node:06d}") for node in range(nodes)))
            plan = settled(fleet, allocate(fleet, self.manifest, self.limits), self.manifest, self._outlook(fleet, 0.0))
            self._first[nodes] = tuple(map(len, plan.replicas))
        return self._first[nodes]

    def best_move(self, counts: Counts, failures_per_hour: float) -> StageMove | None:
        """The move that a coordinator would consider, which knows of its peers what they measure.

        Args:
            counts: no stage empty; those that are on their way count.
            failures_per_hour: of each peer, as learned so far.
        """
        stage_at = self._ordered(counts)
        found = self._rated_move(_exchanged(counts, stage_at), failures_per_hour)
        if found is None:
            return None
        return StageMove(stage_at[found.move.giver], stage_at[found.move.taker], found.gain, found.spreads_risk)

    def _rated_move(self, counts: Counts, failures_per_hour: float) -> RatedMove | None:
        key = (counts, failures_per_hour)
        if key not in self._moves:
            plan = self._plan(counts)
            peers = [
                MeasuredPeer(name, stage, self.work[stage] * self._profile.block_s)
                for stage, names in enumerate(plan.replicas)
                for name in names
            ]
            fleet = measured_fleet(peers, self.manifest, failures_per_hour)
            assert fleet is not None, "every peer was measured"
            beside_s = unexplained_s(self.iteration_s(counts), fleet, plan, self.manifest)
            self._moves[key] = best_move(fleet, plan, self.manifest, self._outlook(fleet, beside_s))
        return self._moves[key]

    def givers(self, counts: Counts) -> dict[int, int]:
        """Lost stage -> the stage from which a peer is moved there, where one can be spared."""
        plan = self._plan(counts)
        planner = MovePlanner(self._fleet(plan), plan, self.work, (0,) * len(self.blocks), self.limits)
        planner.fill()
        return {move.taker: move.giver for move in planner.moves}

    # -- names
    def _outlook(self, fleet: Fleet, beside_s: float) -> MoveOutlook:
        return MoveOutlook(
            movable=fleet.by_name.keys(),
            limits=self.limits,
            copy_s=Link(0.0, self.shape.cluster.bytes_per_s).seconds,
            unexplained_s=beside_s,
            recovery=self.shape.recovery,
            horizon_s=horizon_s(fleet),
        )

    def _named(self, name: str) -> PeerProfile:
        profile = self._profile
        return PeerProfile(
            name,
            profile.forward_s,
            profile.backward_s,
            profile.memory_bytes,
            profile.bytes_per_s,
            profile.latency_s,
            can_feed=True,
        )

    def _plan(self, counts: Counts, guests: Guests = ()) -> ExecutionPlan:
        for stage, count in enumerate(counts):
            known = self._names[stage]
            known += [f"{stage:03d}-{number:05d}" for number in range(len(known), count)]
        replicas = [tuple(self._names[stage][:count]) for stage, count in enumerate(counts)]
        for stage, host in guests:
            replicas[stage] = (self._names[host][0],)
        return ExecutionPlan(self.blocks, tuple(replicas))

    def _fleet(self, plan: ExecutionPlan) -> Fleet:
        return Fleet(tuple(self._named(name) for name in sorted(plan.stages_of)))


def _exchanged(counts: Counts, stage_at: Mapping[int, int]) -> Counts:
    """Counts by place."""
    return tuple(counts[stage_at[place]] for place in range(len(counts)))
