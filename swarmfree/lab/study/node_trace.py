"""Node traces: when machines of a cluster are lost and when others come, drawn once and played to
every system alike. Pure.

Times are in seconds from the beginning, when nodes 0 to N - 1 are there. A node that comes later
has a new number. What stages are lost in a training run is in `failure_trace`.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

SPOT_LOSS_GAP_S, SPOT_LOSS_SIZE = 500.0, 2.1
"""Of 32 machines asked for: seconds between two moments at which some are taken away, and how many
at once, on average. Source: the trace of EC2 p3 machines in Oobleck's artifact (branch
sosp23-artifact, tools/simulator/traces/p3-trace.csv): 11.4 hours, 167 taken at 79 moments, one
alone at half of them; 61 % an hour.
"""
SPOT_GAIN_GAP_S, SPOT_GAIN_SIZE = 457.0, 1.93
"""The same for machines that are given."""
SPOT_NODES, SPOT_SHARE = 32, 0.75
"""Machines asked for in that trace, and the mean share of them that was there."""


@dataclass(frozen=True, slots=True, order=True)
class NodeEvent:
    """A node is lost, or comes.

    Args:
        at_s: when.
        node: its number.
        is_loss: it is lost.
    """

    at_s: float
    node: int
    is_loss: bool


NodeTrace = tuple[NodeEvent, ...]


def hazard_per_s(rate_per_hour: float) -> float:
    """Failures a second of a node that is lost within an hour with chance p: -ln(1 - p) / 3600."""
    return -math.log1p(-rate_per_hour) / 3600.0


def poisson_trace(nodes: int, rate_per_hour: float, hours: float, rng: random.Random, rejoin_s: float = math.inf) -> NodeTrace:
    """Every node is lost with the same chance at any time; for each one another may come.

    Args:
        nodes: there at the beginning.
        rate_per_hour: chance that a node is lost within an hour; above 0, below 1.
        hours: of the trace.
        rng: of the draws.
        rejoin_s: mean seconds until another node comes for a lost one; infinite = none does.

    Source: Odyssey (arXiv 2508.21613), section V-B: 10 % an hour, nine hours, 32 nodes.
    """
    hazard, end_s = hazard_per_s(rate_per_hour), 3600.0 * hours
    lives = [(rng.expovariate(hazard), node) for node in range(nodes)]
    heapq.heapify(lives)
    found, next_node = list[NodeEvent](), nodes
    while lives and lives[0][0] < end_s:
        lost_s, node = heapq.heappop(lives)
        found.append(NodeEvent(lost_s, node, is_loss=True))
        if rejoin_s < math.inf:
            back_s = lost_s + rng.expovariate(1 / rejoin_s)
            if back_s < end_s:
                found.append(NodeEvent(back_s, next_node, is_loss=False))
            heapq.heappush(lives, (back_s + rng.expovariate(hazard), next_node))
            next_node += 1
    return tuple(sorted(found))


def spot_trace(nodes: int, hours: float, rng: random.Random) -> NodeTrace:
    """Machines are taken away and given several at once, as many as were in a recorded trace.

    A moment of loss comes the more rarely, the fewer nodes are there, so that about three quarters
    of what is asked for is there on average, as in that trace. There are never more than `nodes`,
    and one at least stays.

    Args:
        nodes: asked for, and there at the beginning.
        hours: of the trace.
        rng: of the draws.
    """
    there, found, next_node, end_s = list(range(nodes)), list[NodeEvent](), nodes, 3600.0 * hours
    scale = SPOT_NODES / nodes
    loss_s, gain_s = (rng.expovariate(1 / (gap * scale)) for gap in (SPOT_LOSS_GAP_S, SPOT_GAIN_GAP_S))
    while min(loss_s, gain_s) < end_s:
        if loss_s < gain_s:
            if rng.random() < len(there) / (SPOT_SHARE * nodes):
                for _ in range(min(_geometric(SPOT_LOSS_SIZE, rng), len(there) - 1)):
                    found.append(NodeEvent(loss_s, there.pop(rng.randrange(len(there))), is_loss=True))
            loss_s += rng.expovariate(1 / (SPOT_LOSS_GAP_S * scale))
        else:
            for _ in range(min(_geometric(SPOT_GAIN_SIZE, rng), nodes - len(there))):
                found.append(NodeEvent(gain_s, next_node, is_loss=False))
                there.append(next_node)
                next_node += 1
            gain_s += rng.expovariate(1 / (SPOT_GAIN_GAP_S * scale))
    return tuple(sorted(found))


def _geometric(mean: float, rng: random.Random) -> int:
    """A whole number from 1 on with this mean: each further one is as likely as the one before."""
    return 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / mean))
