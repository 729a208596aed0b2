"""What is known of the peers of a swarm and of the links between them, and which peer serves what.

All of it can be measured by a swarm, or written down by whoever thinks of renting one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain


@dataclass(frozen=True, slots=True)
class PeerProfile:
    """What is known of one peer.

    Args:
        name: unique in its fleet.
        forward_s: seconds of the forward of one microbatch through one block.
        backward_s: the same for the way back.
        memory_bytes: that training may take.
        bytes_per_s: that it sends or receives, the less of both.
        latency_s: from it to the middle of the network; a message to a peer takes both latencies.
        failures_per_hour: how often it dies, on average.
        price_per_hour: in whatever currency.
        can_feed: it holds the text, so that it may serve stage 0.
    """

    name: str
    forward_s: float
    backward_s: float
    memory_bytes: int
    bytes_per_s: float
    latency_s: float = 0.0
    failures_per_hour: float = 0.0
    price_per_hour: float = 0.0
    can_feed: bool = False

    @property
    def block_s(self) -> float:
        """Seconds of one microbatch in one block, both ways."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class Link:
    """The way from one peer to another."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, size_bytes: float) -> float:
        """How long so many bytes are under way."""
        return self.latency_s + size_bytes / self.bytes_per_s


HERE = Link(0.0, float("inf"))
"""From a peer to itself."""


@dataclass(frozen=True)
class Fleet:
    """Peers and links.

    Args:
        peers: in any order.
        links: (one peer, the other) -> what was measured between them, either way round. All other
            links follow from the two peers.
        ends_blocks: what a source does for one microbatch, in blocks; None = what the head's
            multiplications come to.
    """

    peers: tuple[PeerProfile, ...]
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    ends_blocks: float | None = None

    @cached_property
    def by_name(self) -> Mapping[str, PeerProfile]:
        """Name -> peer."""
        return {peer.name: peer for peer in self.peers}

    def link(self, one: str, other: str) -> Link:
        """Return the link between two peers."""
        if one == other:
            return HERE
        measured = self.links.get((one, other)) or self.links.get((other, one))
        if measured is not None:
            return measured
        a, b = self.by_name[one], self.by_name[other]
        return Link(a.latency_s + b.latency_s, min(a.bytes_per_s, b.bytes_per_s))

    @property
    def seconds_to_failure(self) -> float:
        """Expected seconds until the next peer dies: G = 1 / (sum of all rates); infinite where
        nobody does.
        """
        rate = sum(peer.failures_per_hour for peer in self.peers)
        return 3600.0 / rate if rate > 0 else float("inf")

    def without_links(self) -> Fleet:
        """Return the fleet as if nothing was known of its links."""
        return replace(self, peers=tuple(replace(peer, bytes_per_s=math.inf, latency_s=0.0) for peer in self.peers), links={})

    def without(self, names: frozenset[str]) -> Fleet:
        """Return the fleet that is left when these peers are gone."""
        return replace(self, peers=tuple(peer for peer in self.peers if peer.name not in names))


@dataclass(frozen=True)
class ExecutionPlan:
    """Which peers serve which stage. A peer may serve several.

    Args:
        blocks: index = stage; how many blocks it has. Stage 0 has the ends and no block.
        replicas: index = stage; names of its peers, sorted.
    """

    blocks: tuple[int, ...]
    replicas: tuple[tuple[str, ...], ...]

    @cached_property
    def stages_of(self) -> Mapping[str, tuple[int, ...]]:
        """Name -> the stages that this peer serves."""
        found: dict[str, list[int]] = {}
        for stage, names in enumerate(self.replicas):
            for name in names:
                found.setdefault(name, []).append(stage)
        return {name: tuple(stages) for name, stages in found.items()}

    @cached_property
    def is_shared(self) -> bool:
        """Whether a peer serves more than one stage."""
        return len(set(chain.from_iterable(self.replicas))) < sum(map(len, self.replicas))

    def with_replicas(self, changes: Mapping[int, tuple[str, ...]]) -> ExecutionPlan:
        """Return the plan with other peers in these stages."""
        replicas = list(self.replicas)
        for stage, names in changes.items():
            replicas[stage] = tuple(sorted(names))
        return ExecutionPlan(self.blocks, tuple(replicas))

    def without(self, names: frozenset[str]) -> ExecutionPlan:
        """Return the plan that is left when these peers are gone."""
        return ExecutionPlan(self.blocks, tuple(tuple(n for n in stage if n not in names) for stage in self.replicas))

    @property
    def empty_stages(self) -> tuple[int, ...]:
        """Stages that nobody serves."""
        return tuple(stage for stage, names in enumerate(self.replicas) if not names)
