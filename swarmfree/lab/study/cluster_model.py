"""How long an iteration takes on a cluster of equal nodes that is cut into pipelines: what all
baselines of the planning study compute with.

Pure. The schedule is exact 1F1B (`policy.planner.pipeline_time`), links and averaging cost what the
swarm's estimator has them cost, and so does the head, whose work is spread evenly over all blocks
here: the best that any pipeline could do with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from swarmfree.policy.planner.model_size import FLOAT_BYTES, block_flops, block_parameters, boundary_bytes, head_blocks
from swarmfree.policy.planner.pipeline_time import pipeline_s
from swarmfree.protocol.manifest import (
    BatchSection,
    Manifest,
    ModelSection,
    RingSection,
    RunSection,
    StagesSection,
)

AHEAD = (1, 2, 3)
"""A pipeline is tried with so many times the forwards ahead that 1F1B has: memory of activations is
nobody's limit here, and the swarm has all microbatches in flight.
"""
SPLITS = 40
"""Halvings of an interval of seconds, after which a batch is nearly dealt."""
AROUND = 3
"""So many microbatches more or fewer than that are tried for each pipeline of one length."""


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """Equal nodes, and the model that they train.

    Args:
        model: its shape.
        rows: of a microbatch.
        microbatches: of an iteration, of all pipelines together; M.
        flops: that a node reaches in training, a second; infinite and a `forward_s` for tests.
        bytes_per_s: that a node sends or receives; infinite = communication takes no time.
        latency_s: from a node to the middle of the network.
        blocks_max: how many blocks a node has memory for.
    """

    model: ModelSection
    rows: int
    microbatches: int
    flops: float
    bytes_per_s: float = math.inf
    latency_s: float = 0.0
    blocks_max: int = 1 << 30

    def manifest(self, body: int, sources_max: int = 4, credits: int = 1) -> Manifest:
        """The run that a swarm makes of it.

        Args:
            body: stages without the ends.
            sources_max: of stage 0.
            credits: see `RingSection`.
        """
        return Manifest(
            run=RunSection(name="planning"),
            model=self.model,
            stages=StagesSection(body=body, replicas_max=8, sources_max=sources_max),
            batch=BatchSection(rows=self.rows, microbatches=self.microbatches),
            ring=RingSection(credits=credits, wire_dtype="bfloat16"),
        )


class StepTimes:
    """Seconds of iterations of one cluster's pipelines; each is reckoned once."""

    def __init__(self, cluster: ClusterModel, *, with_head: bool = True) -> None:
        """Reckon the seconds of a block and of a boundary.

        Args:
            cluster: see there.
            with_head: the head's work is shared by all blocks; else it takes no time.
        """
        manifest = cluster.manifest(body=1)
        self.cluster, self.blocks = cluster, cluster.model.blocks
        head = head_blocks(cluster.model) if with_head else 0.0
        self.forward_s = block_flops(manifest) / cluster.flops * (self.blocks + head) / self.blocks
        self._link_s = 2 * cluster.latency_s + boundary_bytes(manifest) / cluster.bytes_per_s
        self._block_bytes = FLOAT_BYTES * block_parameters(cluster.model)
        self._pipelines: dict[tuple[int, int], float] = {}
        self._mixtures: dict[tuple[tuple[int, int], ...], float] = {}

    @property
    def nodes_min(self) -> int:
        """Fewest nodes whose memory holds the model."""
        return -(-self.blocks // self.cluster.blocks_max)

    def pass_s(self, stages: int) -> float:
        """Seconds of one microbatch in the largest stage, both ways."""
        return 3 * self.forward_s * -(-self.blocks // stages)

    def pipeline(self, nodes: int, microbatches: int) -> float:
        """Seconds of one pipeline, its blocks dealt evenly, the larger stages in front."""
        key = (nodes, microbatches)
        if key not in self._pipelines:
            least, larger = divmod(self.blocks, nodes)
            forward_s = [(least + (stage < larger)) * self.forward_s for stage in range(nodes)]
            links = (self._link_s,) * (nodes - 1)
            backward_s = [2 * each for each in forward_s]
            self._pipelines[key] = min(pipeline_s(forward_s, backward_s, microbatches, links, ahead) for ahead in AHEAD)
        return self._pipelines[key]

    def averaging(self, stages: int, replicas: int) -> float:
        """Seconds until so many replicas of the largest stage have one gradient: 2 V (n - 1) / n
        bytes each way, as in `estimator.averaging_s`.
        """
        if replicas < 2:
            return 0.0
        size = self._block_bytes * -(-self.blocks // stages)
        return 2 * (size * (replicas - 1) / replicas / self.cluster.bytes_per_s + 2 * self.cluster.latency_s)

    def grid(self, stages: int, pipelines: int) -> float:
        """Seconds of an iteration of equal pipelines; infinite where there is none, or one is cut
        into more stages than there are blocks, or too few for its nodes' memory.
        """
        if pipelines < 1 or not self.nodes_min <= stages <= self.blocks:
            return math.inf
        pipelines = min(pipelines, self.cluster.microbatches)
        return self.pipeline(stages, -(-self.cluster.microbatches // pipelines)) + self.averaging(stages, pipelines)

    def mixture(self, counts: Mapping[int, int]) -> float:
        """Seconds of an iteration of pipelines of one length or two, the microbatches dealt so that
        the slowest is through as early as can be.

        Args:
            counts: nodes of a pipeline -> how many such pipelines.
        """
        key = tuple(sorted(counts.items()))
        if key not in self._mixtures:
            (first, firsts), (other, others) = key[0], key[-1]
            total, guess = self.cluster.microbatches, self._dealt(dict(key))[first]
            dealt = range(max(0, guess - AROUND), guess + AROUND + 1) if first != other else (-(-total // firsts),)
            longest_s = min(
                max(self.pipeline(first, each), self.pipeline(other, max(0, -(-(total - firsts * each) // others))))
                for each in dealt
            )
            self._mixtures[key] = longest_s + self.averaging(min(counts), sum(counts.values()))
        return self._mixtures[key]

    def _dealt(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Nodes of a pipeline -> microbatches of each such pipeline, nearly: without links, and as
        if the largest stage were slowest all the time.
        """
        slope_s = {nodes: self.pass_s(nodes) for nodes in counts}

        def fitting(limit_s: float) -> dict[int, int]:
            # (nodes + microbatches - 1) passes of the largest stage
            return {nodes: max(0, int(limit_s / slope_s[nodes] + 1e-9) - nodes + 1) for nodes in counts}

        low, high = 0.0, (self.blocks + self.cluster.microbatches) * max(slope_s.values())
        for _ in range(SPLITS):
            middle = (low + high) / 2
            dealt = fitting(middle)
            enough = sum(dealt[nodes] * count for nodes, count in counts.items()) >= self.cluster.microbatches
            low, high = (low, middle) if enough else (middle, high)
        return {nodes: min(m, self.cluster.microbatches) for nodes, m in fitting(high).items()}
