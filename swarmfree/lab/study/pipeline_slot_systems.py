"""Baselines for which it matters where a lost node stood: ReCycle, whose siblings do the work of a
lost node, and FlexiTrain, which goes on without the pipeline that it stood in.

What their papers leave open is decided in their favour, and said so beside it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.lab.study.cluster_model import StepTimes
from swarmfree.lab.study.goodput import TrainingPace
from swarmfree.lab.study.node_trace import hazard_per_s
from swarmfree.policy.planner.measured_fleet import LEAST_HORIZON_S
from swarmfree.policy.planner.pipeline_time import rerouted_s
from swarmfree.policy.planner.scores import score


class RerouteModel(enum.Enum):
    """How long an iteration takes whose lost nodes' microbatches go to their siblings.

    Values:
        SUM: Odyssey's equation 13, which adds up what failures in different stages cost.
        BOTTLENECK: the stage with the most failures counts alone, since stages work side by side.
        FILLED: as that, and work of the lost fills all bubbles of 1F1B before it takes longer: more
            than a schedule can, since some of them lie before the first work and behind the last.
    """

    SUM = "sum"
    BOTTLENECK = "bottleneck"
    FILLED = "filled"


def recycle_s(times: StepTimes, stages: int, failed: Sequence[int], pipelines: int, model: RerouteModel) -> float:
    """Seconds of an iteration of a grid that has lost nodes.

    Args:
        times: of the cluster.
        stages: P.
        failed: index = stage; F_i.
        pipelines: D, of the whole grid.
        model: see there.

    Returns:
        Infinite where a stage has lost all its nodes.

    Source: Odyssey (arXiv 2508.21613), equations 12 and 13; ReCycle (arXiv 2405.14009), section 4.
    """
    whole_s = times.grid(stages, pipelines)
    if whole_s == math.inf or max(failed) >= pipelines:
        return math.inf
    microbatches, pass_s = -(-times.cluster.microbatches // pipelines), times.pass_s(stages)
    if model is RerouteModel.SUM:
        return whole_s + rerouted_s(stages, microbatches, pass_s, pipelines, failed) - (stages + microbatches - 1) * pass_s
    more_s = pass_s * microbatches * max(failed) / (pipelines - max(failed))
    if model is RerouteModel.BOTTLENECK:
        return whole_s + more_s
    return whole_s + max(0.0, more_s - (stages - 1) * pass_s)


@dataclass(frozen=True, slots=True)
class SlotCosts:
    """What events cost a system of slots.

    Args:
        loss_s: it stands so long after a node was lost.
        restart_s: from a checkpoint, or with other pipelines; infinite = it cannot, and ends.
        checkpoint_s: that one checkpoint stops training for; of ReCycle's none does.
        interval_s: between two.
    """

    loss_s: float
    restart_s: float
    checkpoint_s: float = 0.0
    interval_s: float = 600.0


class ReCycleSystem:
    """Reroutes to siblings until a stage has lost all nodes, then restarts with fewer pipelines.

    In its favour: what a lost node had done of the iteration alone is done again; nobody waits for
    a node that is taken in, which fills the stage that lacks most; nodes go from stage to stage for
    nothing, so that failures are spread evenly (its failure normalization); checkpoints are free.
    """

    def __init__(
        self, times: StepTimes, stages: int, model: RerouteModel, costs: SlotCosts, *, spreads_failures: bool = True
    ) -> None:
        """Nobody is there.

        Args:
            times: of the cluster.
            stages: P.
            model: see there.
            costs: of events.
            spreads_failures: nodes go to the stages that have lost most; False = as Odyssey has it.
        """
        self._times, self._stages, self._model, self._costs = times, stages, model, costs
        self._spreads = spreads_failures
        self._stage_of: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._pipelines, self._failed = 0, [0] * stages
        self._checkpoint, self._now_s = 0.0, math.inf

    def begin(self, nodes: Sequence[int]) -> TrainingPace:
        """As many whole pipelines as there are nodes for."""
        self._waiting = set(nodes)
        return self._restarted(0.0, 0.0)

    def lose(self, node: int, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """Its siblings take over, or a waiting node its place."""
        if node in self._waiting:
            self._waiting.discard(node)
            return self._pace()
        if node not in self._stage_of:  # of a grid that has ended
            return self._pace()
        stage = self._stage_of.pop(node)
        self._failed[stage] += 1
        left = self._pipelines - self._failed[stage]
        if self._waiting:
            self._take_in(min(self._waiting))
        if not left:
            return self._ended(done)
        while self._spreads and max(self._failed) > min(self._failed) + 1:
            giver = self._failed.index(min(self._failed))
            self._failed[giver] += 1
            self._take_in(max(node for node, stage in self._stage_of.items() if stage == giver))
        part = (done - math.floor(done)) / left
        return TrainingPace(self._iteration_s(), self._costs.loss_s, part)

    def join(self, node: int, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """It fills a place of the stage that lacks most, or waits until a pipeline is full."""
        self._waiting.add(node)
        if self._now_s == math.inf:
            return self._restarted(self._costs.restart_s, done - math.floor(done))
        if any(self._failed):
            self._take_in(node)
        elif len(self._waiting) >= self._stages:
            for stage in range(self._stages):
                newcomer = min(self._waiting)
                self._waiting.discard(newcomer)
                self._stage_of[newcomer] = stage
            self._pipelines += 1
        return self._pace()

    def wake(self, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """It asks for nothing."""
        return self._pace()

    def _take_in(self, node: int) -> None:
        self._waiting.discard(node)
        stage = max(range(self._stages), key=lambda each: (self._failed[each], -each))
        self._failed[stage] -= 1
        self._stage_of[node] = stage

    def _ended(self, done: float) -> TrainingPace:
        """A stage is lost: back to the last checkpoint, with those that are left."""
        if self._costs.restart_s == math.inf:
            self._stage_of, self._now_s = {}, math.inf
            return TrainingPace(math.inf)
        every = max(1, round(self._costs.interval_s / self._now_s)) if self._now_s < math.inf else 1
        kept = self._checkpoint + math.floor((done - self._checkpoint) / every + 1e-9) * every
        self._waiting |= self._stage_of.keys()
        return self._restarted(self._costs.restart_s, done - kept, kept)

    def _restarted(self, stands_s: float, back: float, kept: float | None = None) -> TrainingPace:
        there = sorted(self._waiting | self._stage_of.keys())
        self._pipelines = len(there) // self._stages
        used = self._pipelines * self._stages
        self._stage_of = {node: place % self._stages for place, node in enumerate(there[:used])}
        self._waiting, self._failed = set(there[used:]), [0] * self._stages
        if kept is not None:
            self._checkpoint = kept
        return TrainingPace(self._iteration_s(), stands_s, back)

    def _iteration_s(self) -> float:
        self._now_s = recycle_s(self._times, self._stages, self._failed, self._pipelines, self._model)
        return self._now_s

    def _pace(self) -> TrainingPace:
        return TrainingPace(self._iteration_s())


class FlexiTrainSystem:
    """Goes on without a data-parallel rank whose node was lost, and makes ranks of all nodes again
    behind a checkpoint.

    Source: FlexiTrain, sections 2.1 and 3. In its favour: the batch stays as large, dealt to the
    ranks that are left, where it drops a lost rank's share; what a rank had done of the iteration
    is dealt again, too; new ranks are made where that pays until the next failure.
    """

    def __init__(self, times: StepTimes, stages: int, costs: SlotCosts, rate_per_hour: float) -> None:
        """Nobody is there.

        Args:
            times: of the cluster.
            stages: of a rank, which is a whole pipeline.
            costs: of events.
            rate_per_hour: chance that a node is lost within an hour.
        """
        self._times, self._stages, self._costs = times, stages, costs
        self._hazard = hazard_per_s(rate_per_hour)
        self._ranks: list[set[int]] = []
        self._idle: set[int] = set()
        self._checkpoint, self._next_s = 0.0, costs.interval_s

    def begin(self, nodes: Sequence[int]) -> TrainingPace:
        """As many ranks as there are nodes for."""
        self._idle = set(nodes)
        self._regroup()
        return self._pace()

    def lose(self, node: int, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """Its rank does nothing more."""
        if node in self._idle:
            self._idle.discard(node)
            return self._pace()
        hit = next(rank for rank in self._ranks if node in rank)
        self._ranks.remove(hit)
        self._idle |= hit - {node}
        if self._ranks:
            part = (done - math.floor(done)) / len(self._ranks)
            return TrainingPace(self._iteration_s(), self._costs.loss_s, part, self._next_s)
        return self._from_checkpoint(done)

    def join(self, node: int, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """It waits for the next checkpoint, unless all ranks are lost."""
        self._idle.add(node)
        return self._pace() if self._ranks else self._from_checkpoint(done)

    def wake(self, now_s: float, done: float) -> TrainingPace:
        """A checkpoint, and new ranks if they pay."""
        self._next_s, self._checkpoint = now_s + self._costs.interval_s, done
        count, before_s = len(self._idle) + sum(map(len, self._ranks)), self._iteration_s()
        after_s = self._times.grid(self._stages, count // self._stages)
        horizon_s = max(LEAST_HORIZON_S, 1 / (self._hazard * max(1, count)))
        stands_s = self._costs.checkpoint_s
        if self._ranks and after_s < before_s and score(self._costs.restart_s, after_s, horizon_s) > 1 / before_s:
            self._regroup()
            stands_s += self._costs.restart_s
        return TrainingPace(self._iteration_s(), stands_s, 0.0, self._next_s)

    def _from_checkpoint(self, done: float) -> TrainingPace:
        back = max(0.0, done - self._checkpoint)
        self._regroup()
        return TrainingPace(self._iteration_s(), self._costs.restart_s, back, self._next_s)

    def _regroup(self) -> None:
        there = sorted(self._idle.union(*self._ranks))
        used = len(there) // self._stages * self._stages
        self._ranks = [set(there[at : at + self._stages]) for at in range(0, used, self._stages)]
        self._idle = set(there[used:])

    def _iteration_s(self) -> float:
        return self._times.grid(self._stages, len(self._ranks))

    def _pace(self) -> TrainingPace:
        return TrainingPace(self._iteration_s(), wake_s=self._next_s)
