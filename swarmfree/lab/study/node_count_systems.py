"""Baselines whose pace follows from how many nodes there are: restarts from checkpoints, Varuna,
Bamboo and Oobleck.

Each is a table of what an event costs it (`EventCosts`) and a function from nodes to the time of an
iteration. Where a system's own paper or code leaves something open it is decided in the system's
favour, and said so beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarmfree.lab.study.cluster_model import StepTimes
from swarmfree.lab.study.goodput import TrainingPace
from swarmfree.lab.study.node_trace import hazard_per_s
from swarmfree.policy.planner.measured_fleet import LEAST_HORIZON_S
from swarmfree.policy.planner.scores import score

IDLE_MAX = 3
"""So many nodes of Oobleck may be idle: 29 with work may be slower than 28."""
TEMPLATE_SIZES = 64
"""Up to so many nodes every number of pipelines is tried for Oobleck, and idle nodes; else those
whose pipelines have up to two nodes more or less than its setting.
"""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """What so many nodes do.

    Args:
        iteration_s: of an iteration; infinite where they are too few.
        used: how many of them work; the rest wait.
    """

    iteration_s: float
    used: int


@dataclass(frozen=True, slots=True)
class EventCosts:
    """What events cost a system.

    Args:
        loss_s: it stands so long after a working node was lost.
        join_s: the same when it takes in nodes that have come.
        rolls_back: a loss takes back all since the last checkpoint; else only `lost_part`.
        lost_part: what a loss costs of an iteration, beside the time that it stands; None = what
            was done of the one at hand.
        overhead: an iteration takes so many times as long at all times.
        checkpoint_s: that one checkpoint stops training for.
        interval_s: between two; None = sqrt(2 checkpoint_s MTBF), which is best for a rate that is
            known (Young, 1974).
    """

    loss_s: float
    join_s: float
    rolls_back: bool = False
    lost_part: float | None = None
    overhead: float = 1.0
    checkpoint_s: float = 0.0
    interval_s: float | None = None


class NodeCountSystem:
    """A system that lays out its nodes anew after each loss, and after a node has come where that
    pays.
    """

    def __init__(self, layout: Callable[[int], NodeLayout], costs: EventCosts, rate_per_hour: float) -> None:
        """Nobody is there.

        Args:
            layout: of so many nodes.
            costs: of events.
            rate_per_hour: chance that a node is lost within an hour; the system knows it.
        """
        self._layout, self._costs, self._hazard = layout, costs, hazard_per_s(rate_per_hour)
        self._working: set[int] = set()
        self._waiting: set[int] = set()
        self._now = NodeLayout(math.inf, 0)
        self._base, self._every = 0.0, 1

    def begin(self, nodes: Sequence[int]) -> TrainingPace:
        """Lay out the first nodes; that takes no time."""
        self._waiting = set(nodes)
        return self._laid_out(0.0, 0.0)

    def lose(self, node: int, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """A node that waits is not missed."""
        if node in self._waiting:
            self._waiting.discard(node)
            return self._pace()
        self._working.discard(node)
        if self._costs.rolls_back:
            back = done - self._last_checkpoint(done)
        else:
            back = done - math.floor(done) if self._costs.lost_part is None else min(done, self._costs.lost_part)
        self._base = done - back
        return self._laid_out(self._costs.loss_s, back)

    def join(self, node: int, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """Take in all that wait, where that pays until the next loss: behind a checkpoint, where
        there are any, so that the iteration at hand alone is done again.
        """
        self._waiting.add(node)
        count = len(self._working) + len(self._waiting)
        better = self._layout(count)
        stands_s = self._costs.join_s + self._costs.checkpoint_s
        horizon_s = max(LEAST_HORIZON_S, 1 / (self._hazard * count))
        if better.iteration_s == math.inf or score(stands_s, better.iteration_s, horizon_s) <= 1 / self._now.iteration_s:
            return self._pace()
        back = done - math.floor(done)
        self._base = done - back
        return self._laid_out(stands_s, back)

    def wake(self, now_s: float, done: float) -> TrainingPace:  # noqa: ARG002 - as every system is told
        """It asks for nothing."""
        return self._pace()

    def _laid_out(self, stands_s: float, back: float) -> TrainingPace:
        there = sorted(self._working | self._waiting)
        self._now = self._layout(len(there))
        self._working, self._waiting = set(there[: self._now.used]), set(there[self._now.used :])
        pace = self._pace()
        return TrainingPace(pace.iteration_s, stands_s, back)

    def _pace(self) -> TrainingPace:
        costs, iteration_s = self._costs, self._now.iteration_s * self._costs.overhead
        if iteration_s == math.inf:
            return TrainingPace(math.inf)
        interval_s = costs.interval_s
        if interval_s is None:
            interval_s = math.sqrt(2 * costs.checkpoint_s / (self._hazard * max(1, self._now.used)))
        self._every = max(1, round(interval_s / iteration_s))
        return TrainingPace(iteration_s + costs.checkpoint_s / self._every)

    def _last_checkpoint(self, done: float) -> float:
        return self._base + math.floor((done - self._base) / self._every + 1e-9) * self._every


def fixed_grid(times: StepTimes, stages: int) -> Callable[[int], NodeLayout]:
    """As many pipelines of so many stages as there are nodes for; the rest waits."""

    def layout(nodes: int) -> NodeLayout:
        pipelines = nodes // stages
        return NodeLayout(times.grid(stages, pipelines), pipelines * stages)

    return layout


def best_grid(times: StepTimes) -> Callable[[int], NodeLayout]:
    """The grid of equal pipelines that is fastest.

    Source: Varuna, section 4: it tries all pipeline depths in a simulator. In its favour: not only
    those that divide the blocks.
    """
    depths = range(times.nodes_min, times.blocks + 1)
    found: dict[int, NodeLayout] = {}

    def layout(nodes: int) -> NodeLayout:
        if nodes not in found:
            each = (NodeLayout(times.grid(stages, nodes // stages), nodes // stages * stages) for stages in depths)
            found[nodes] = min(each, key=lambda one: (one.iteration_s, -one.used), default=NodeLayout(math.inf, 0))
        return found[nodes]

    return layout


def best_templates(times: StepTimes, stages: int) -> Callable[[int], NodeLayout]:
    """Nodes in pipelines of at most two lengths that differ by one, the fastest such, a few of them
    idle where that is faster; two pipelines at least, as long as there are nodes for them, since a
    single one has nothing to copy from.

    Source: Oobleck (SOSP 2023), sections 4 and 5. Differs, in its favour: it re-instantiates all
    templates after each change, where it would shrink, borrow or merge.

    Args:
        times: of the cluster.
        stages: about as long are pipelines where there are too many nodes to try all lengths.
    """

    @functools.cache
    def of_all(nodes: int) -> NodeLayout:
        most = nodes // times.nodes_min
        least = min(2, most)
        if nodes > TEMPLATE_SIZES:
            least, most = max(least, nodes // (stages + 2)), min(most, nodes // max(1, stages - 2))
        counts = [d for d in range(max(1, least), most + 1) if -(-nodes // d) <= times.blocks]
        each = [times.mixture(_even(nodes, pipelines)) for pipelines in counts]
        return NodeLayout(min(each, default=math.inf), nodes)

    def layout(nodes: int) -> NodeLayout:
        working = range(max(0, nodes - IDLE_MAX) if nodes <= TEMPLATE_SIZES else nodes, nodes + 1)
        return min(map(of_all, working), key=lambda one: (one.iteration_s, -one.used))

    return layout


def _even(nodes: int, pipelines: int) -> dict[int, int]:
    size, larger = divmod(nodes, pipelines)
    return {size: pipelines - larger} | ({size + 1: larger} if larger else {})
