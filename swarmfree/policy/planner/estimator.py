"""How long an iteration of a plan takes, and what memory each of its peers needs.

A microbatch goes from its source through every stage and back, to whichever replica `router` deals
it; every device works through its list as `trainer.device` does, and every peer sends one tensor
after the other. Then the replicas of each
stage average, and the coordinator has the iteration committed.

`iteration_time` plays the schedule once, with work that takes exactly as long as it says;
`iteration_estimate` is what to believe, the mean of some plays in which it wavers;
`iteration_bound` counts work against speed, so that thousands of peers and many plans can be
compared within milliseconds.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.list_schedule import Work, list_schedule
from swarmfree.policy.planner.model_size import (
    BYTES_PER_PARAMETER,
    FLOAT_BYTES,
    boundary_bytes,
    head_blocks,
    stage_activation_bytes,
    stage_parameters,
)
from swarmfree.policy.router import interleave, speeds
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE
from swarmfree.protocol.routes import Routes

COMMIT_ROUND_TRIPS = 4
"""Open, the roll, Seal and Commit: each goes from the coordinator to all and back."""


@dataclass(frozen=True, slots=True)
class IterationTime:
    """Seconds of one iteration.

    Args:
        compute_s: from the first forward to the last backward.
        averaging_s: replicas agree on their gradients.
        commit_s: messages until it is committed.
    """

    compute_s: float
    averaging_s: float
    commit_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.compute_s + self.averaging_s + self.commit_s


NEVER = IterationTime(math.inf, 0.0, 0.0)
"""Of a plan that has a stage without a peer."""


def iteration_time(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> IterationTime:
    """Play one iteration of a plan, microbatch by microbatch."""
    if plan.empty_stages:
        return NEVER
    compute_s = list_schedule(chains(fleet, plan, manifest), manifest.ring.credits).seconds
    return IterationTime(compute_s, averaging_s(fleet, plan, manifest), commit_s(fleet, plan))


def iteration_bound(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> IterationTime:
    """Like `iteration_time`, but the least that the compute can take on straight routes, with links
    left out; see `PlanBounds`.
    """
    return PlanBounds(fleet, manifest).time(plan)


@dataclass(frozen=True, slots=True)
class _StageCost:
    """What one stage costs with certain peers.

    Args:
        speed: blocks a second of all of them.
        there_s, back_s: seconds of one microbatch at the fastest of them.
        averaging_s: they agree on their gradients.
        far_s: the longest latency of them.
    """

    speed: float
    there_s: float
    back_s: float
    averaging_s: float
    far_s: float


class PlanBounds:
    """Bounds of many plans of one fleet: a stage with the same peers is reckoned once."""

    def __init__(self, fleet: Fleet, manifest: Manifest) -> None:
        """Nothing is reckoned yet."""
        self._fleet, self._manifest = fleet, manifest
        self._costs: dict[tuple[int, int, tuple[str, ...]], _StageCost] = {}

    def time(self, plan: ExecutionPlan) -> IterationTime:
        """Every stage, and every group of stages that share peers, has its work divided by their
        speed, after the shortest way to it and before the shortest way from it.
        """
        if plan.empty_stages:
            return NEVER
        work = stage_work(self._manifest, plan.blocks, self._fleet.ends_blocks)
        costs = [self._cost(stage, *each) for stage, each in enumerate(zip(plan.blocks, plan.replicas, strict=True))]
        there_s = [0.0, *accumulate(cost.there_s for cost in costs)]
        back_s = [0.0, *accumulate(cost.back_s for cost in costs)]
        count, compute_s = self._manifest.batch.microbatches, 0.0
        for stage, cost in enumerate(costs):
            compute_s = max(compute_s, count * work[stage] / cost.speed + there_s[stage] + back_s[stage])
        if plan.is_shared:
            for stages, names in (group for group in _groups(plan) if len(group[0]) > 1):
                speed = sum(1 / self._fleet.by_name[name].block_s for name in names)
                busy_s = count * sum(work[stage] for stage in stages) / speed
                compute_s = max(compute_s, busy_s + there_s[min(stages)] + back_s[min(stages)])
        averaging = _together_s(plan, {s: c.averaging_s for s, c in enumerate(costs) if len(plan.replicas[s]) > 1})
        return IterationTime(compute_s, averaging, _round_trips_s(self._fleet, plan, max(cost.far_s for cost in costs)))

    def _cost(self, stage: int, blocks: int, names: tuple[str, ...]) -> _StageCost:
        key = (stage, blocks, names)
        if key not in self._costs:
            peers = [self._fleet.by_name[name] for name in names]
            self._costs[key] = _StageCost(
                speed=sum(1 / peer.block_s for peer in peers),
                there_s=blocks * min(peer.forward_s for peer in peers),
                back_s=blocks * min(peer.backward_s for peer in peers),
                averaging_s=stage_averaging_s(peers, self._manifest, stage, blocks),
                far_s=max(peer.latency_s for peer in peers),
            )
        return self._costs[key]


PLAYED_MAX = 2_000
"""Microbatches times stages, up to which an estimate plays the schedule: some tens of
milliseconds.
"""
PLAYS = 5
"""So often it is played at most, unless more are asked for."""
WORK_SPREAD, DELAY_SHARE = 0.1, 0.03
"""How much longer or shorter a piece of work takes at most, and how much later its input comes on
average, as shares of the mean piece.
"""


def iteration_exact(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> IterationTime:
    """Play an iteration once, exactly, if it is a small one, else take its bound: where plans that
    are alike have to come out alike.
    """
    return (iteration_time if is_played(plan, manifest) else iteration_bound)(fleet, plan, manifest)


def iteration_estimate(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest, plays: int | None = None) -> IterationTime:
    """Play an iteration if it is a small one, else take its bound.

    What to do next is decided by who comes first, and with pieces that all take exactly as long,
    many come at once: which one then is first decides over a tenth of an iteration, and depends on
    nothing real. So it is the mean of some plays in which pieces take a little longer or shorter
    and messages come a little later, drawn alike for all plans.

    Args:
        fleet, plan, manifest: as for `iteration_time`.
        plays: how many; None = up to `PLAYS`, the fewer the larger the iteration is.
    """
    if plan.empty_stages or not is_played(plan, manifest):
        return iteration_bound(fleet, plan, manifest)
    exact = chains(fleet, plan, manifest)
    plays = plays or max(1, min(PLAYS, PLAYED_MAX // (PLAYS * manifest.batch.microbatches * len(plan.blocks))))
    compute_s = statistics.fmean(
        list_schedule(_wavering(exact, _draws(play, sum(map(len, exact)))), manifest.ring.credits).seconds
        for play in range(plays)
    )
    return IterationTime(compute_s, averaging_s(fleet, plan, manifest), commit_s(fleet, plan))


@lru_cache(PLAYS)
def _draws(play: int, count: int) -> tuple[tuple[float, float], ...]:
    """For each piece of work of a play how much longer it takes and how much later its input comes,
    as shares: alike for all plans, so they are drawn once for those that are compared.
    """
    rng = random.Random(play)
    return tuple((rng.uniform(-WORK_SPREAD, WORK_SPREAD), rng.expovariate(1.0)) for _ in range(count))


def _wavering(exact: Sequence[Sequence[Work]], draws: Sequence[tuple[float, float]]) -> list[list[Work]]:
    """The same work, as it really comes."""
    drawn = iter(draws)
    taken_s = [work.seconds for chain in exact for work in chain if work.seconds]
    delay_s = DELAY_SHARE * statistics.fmean(taken_s) if taken_s else 0.0
    return [
        [
            Work(
                work.device,
                work.seconds * (1 + longer),
                is_backward=work.is_backward,
                link_s=work.link_s + delay_s * later * (piece > 0),
            )
            for piece, (work, (longer, later)) in enumerate(zip(chain, drawn, strict=False))
        ]
        for chain in exact
    ]


def is_played(plan: ExecutionPlan, manifest: Manifest) -> bool:
    """Whether an iteration is small enough to be played."""
    return manifest.batch.microbatches * len(plan.blocks) <= PLAYED_MAX


def stage_work(manifest: Manifest, blocks: Sequence[int], ends_blocks: float | None = None) -> tuple[float, ...]:
    """Work of one microbatch in each stage, in blocks; `ends_blocks` as `Fleet` has it."""
    ends = head_blocks(manifest.model) if ends_blocks is None else ends_blocks
    return tuple(ends if s == ENDS_STAGE else float(n) for s, n in enumerate(blocks))


def _groups(plan: ExecutionPlan) -> list[tuple[list[int], set[str]]]:
    """Stages that share peers, directly or through others, and those peers."""
    shared = {name for name, stages in plan.stages_of.items() if len(stages) > 1}
    found: list[tuple[list[int], set[str]]] = []
    for stage, names in enumerate(plan.replicas):
        tied = [group for group in found if not shared.isdisjoint(names) and not group[1].isdisjoint(names)]
        found = [group for group in found if group not in tied]
        found.append((sorted([stage, *(s for g in tied for s in g[0])]), set(names).union(*(g[1] for g in tied))))
    return found


class Uplink(NamedTuple):
    """What a peer sends through: it sends one tensor after the other, as a device computes."""

    peer: str


def chains(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> list[list[Work]]:
    """The device work of every microbatch of an iteration, in order: embedding, the body, the head
    with its backward, the body back; between two peers the sending, by the sender's `Uplink`. What
    the embedding costs is left out: it is a look-up.
    """
    count, work = manifest.batch.microbatches, stage_work(manifest, plan.blocks, fleet.ends_blocks)
    # Sources are dealt equal shares, as the coordinator does it
    dealt = [[plan.replicas[ENDS_STAGE][k % len(plan.replicas[ENDS_STAGE])] for k in range(count)]]
    for names in plan.replicas[ENDS_STAGE + 1 :]:
        # A peer of several stages gives each of them a part of its time.
        took_s = [fleet.by_name[n].block_s * sum(work[s] for s in plan.stages_of[n]) for n in names]
        dealt.append([names[turn] for turn in interleave(speeds(took_s, count), count)])
    routes, size = Routes.of(len(plan.blocks) - 1, swaps=manifest.recovery.swaps), boundary_bytes(manifest)
    found = []
    for microbatch in range(count):
        source = fleet.by_name[dealt[ENDS_STAGE][microbatch]]
        body = [(fleet.by_name[dealt[s][microbatch]], work[s]) for s in routes.route(microbatch).stages]
        chain = [Work(source.name, 0.0, is_backward=False)]
        for peer, blocks in body:
            _onward(chain, fleet, Work(peer.name, peer.forward_s * blocks, is_backward=False), size)
        _onward(chain, fleet, Work(source.name, source.block_s * work[ENDS_STAGE], is_backward=True), size)
        for peer, blocks in reversed(body):
            _onward(chain, fleet, Work(peer.name, peer.backward_s * blocks, is_backward=True), size)
        _onward(chain, fleet, Work(source.name, 0.0, is_backward=True), size)
        found.append(chain)
    return found


def _onward(chain: list[Work], fleet: Fleet, work: Work, size: int) -> None:
    """Add the way to the next piece of work, and the work."""
    sender, link = str(chain[-1].device), fleet.link(str(chain[-1].device), str(work.device))
    if link.bytes_per_s < math.inf:
        chain.append(Work(Uplink(sender), size / link.bytes_per_s, work.is_backward))
    chain.append(Work(work.device, work.seconds, work.is_backward, link.latency_s))


def averaging_s(fleet: Fleet, plan: ExecutionPlan, manifest: Manifest) -> float:
    """Seconds of all averagings: stages that share a peer take turns.

    n replicas of a stage of V bytes send and receive 2 V (n - 1) / n each: a part is summed by its
    owner, and goes back to all.
    """
    stages = enumerate(zip(plan.blocks, plan.replicas, strict=True))
    return _together_s(
        plan,
        {
            stage: stage_averaging_s([fleet.by_name[name] for name in names], manifest, stage, blocks)
            for stage, (blocks, names) in stages
            if len(names) > 1
        },
    )


def stage_averaging_s(peers: Sequence[PeerProfile], manifest: Manifest, stage: int, blocks: int) -> float:
    """Seconds in which these replicas of a stage average."""
    return _all_reduce_s(peers, FLOAT_BYTES * stage_parameters(manifest.model, stage, blocks)) if len(peers) > 1 else 0.0


def _together_s(plan: ExecutionPlan, took_s: Mapping[int, float]) -> float:
    """Seconds of these stages' averagings, those that share no peer side by side.

    Peers serve consecutive stages, so that the fewest rounds come of taking each stage in turn to
    the first one where it fits; see `averaging_rounds`.
    """
    if not plan.is_shared:
        return max(took_s.values(), default=0.0)
    rounds: list[list[int]] = []
    for stage in took_s:
        owners = set(plan.replicas[stage])
        free = next((r for r in rounds if all(owners.isdisjoint(plan.replicas[other]) for other in r)), None)
        if free is None:
            rounds.append([stage])
        else:
            free.append(stage)
    return sum(max(took_s[stage] for stage in together) for together in rounds)


def _all_reduce_s(members: Sequence[PeerProfile], size_bytes: float) -> float:
    """By the slowest member; each of the two ways waits for the two that are farthest."""
    far_s = sum(sorted(peer.latency_s for peer in members)[-2:])
    return 2 * (size_bytes * (len(members) - 1) / len(members) / min(peer.bytes_per_s for peer in members) + far_s)


def commit_s(fleet: Fleet, plan: ExecutionPlan) -> float:
    """Seconds of messages from the coordinator to everybody and back; the coordinator is taken to
    be the nearest peer of stage 0.
    """
    return _round_trips_s(fleet, plan, max(fleet.by_name[name].latency_s for names in plan.replicas for name in names))


def _round_trips_s(fleet: Fleet, plan: ExecutionPlan, far_s: float) -> float:
    nearest_s = min(fleet.by_name[name].latency_s for name in plan.replicas[ENDS_STAGE])
    is_one_alone = len({name for names in plan.replicas for name in names[:2]}) == 1
    return 0.0 if is_one_alone else COMMIT_ROUND_TRIPS * 2 * (nearest_s + far_s)


def memory_bytes(plan: ExecutionPlan, manifest: Manifest) -> Mapping[str, int]:
    """Memory that each peer needs, at most.

    A replica holds its stages' parameters with all that belongs to them, and the activations of
    min(in flight, M) microbatches: Odyssey's equation 14, with the credits of all sources in place
    of P - i, since all of them may be at one replica.
    """
    in_flight = min(manifest.ring.credits * len(plan.replicas[ENDS_STAGE]), manifest.batch.microbatches)
    needed: dict[str, int] = {}
    for stage, names in enumerate(plan.replicas):
        own = stage_bytes(manifest, stage, plan.blocks[stage], in_flight)
        for name in names:
            needed[name] = needed.get(name, 0) + own
    return needed


def stage_bytes(manifest: Manifest, stage: int, blocks: int, held: int) -> int:
    """Memory of one replica of a stage that holds the activations of so many microbatches."""
    parameters = stage_parameters(manifest.model, stage, blocks)
    return BYTES_PER_PARAMETER * parameters + held * stage_activation_bytes(manifest, stage, blocks)
