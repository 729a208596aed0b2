"""The scenarios of the planning study, the systems that are played in them, and the settings that
each gets. Pure.

A system's settings are chosen under traces of seeds of their own, the same way for all; the traces
that are reported choose nothing.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swarmfree.lab.study.cluster_model import ClusterModel, StepTimes
from swarmfree.lab.study.goodput import ElasticSystem, PlayedTrace, play_trace
from swarmfree.lab.study.node_count_systems import (
    TEMPLATE_SIZES,
    EventCosts,
    NodeCountSystem,
    best_grid,
    best_templates,
    fixed_grid,
)
from swarmfree.lab.study.node_trace import NodeTrace, poisson_trace, spot_trace
from swarmfree.lab.study.pipeline_slot_systems import FlexiTrainSystem, ReCycleSystem, RerouteModel, SlotCosts
from swarmfree.lab.study.swarm_system import SwarmCosts, SwarmSystem
from swarmfree.lab.study.swarm_times import SwarmShape, SwarmTimes
from swarmfree.policy.planner.allocation import ReplicaLimits
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.protocol.manifest import ModelSection

MODEL = ModelSection(width=4096, blocks=32, heads=32, kv_heads=32, mlp_width=11008, tokens_per_row=2048, vocabulary=32000)
"""A LLaMA of 6.7 billion parameters: the size for which Oobleck's artifact has constants."""
ROWS, MICROBATCHES_PER_NODE = 8, 2
FLOPS, BYTES_PER_S, LATENCY_S = 150e12, 25e9 / 8, 0.5e-3
"""What a node reaches in training; 25 Gbit/s, and a millisecond from one to another."""
BLOCKS_MAX = 16
"""A node has memory for half of the model, so that two are the shortest pipeline."""
REJOIN_S = 600.0
RECOVERY_S = 60.0
"""As long as a swarm waits for a stage that is rebuilt, by default."""
SPOT_RATE = 0.46
"""Chance of a node in a spot trace to be taken away within an hour."""
LIVE_NODES_MAX = 256
"""A live run has at most eight replicas of a stage: 32 blocks, one each, and the sources. Beyond
this the limit is lifted here.
"""
TUNING_SEED, REPORTED_SEED = 1_000_000, 0
BODIES = (2, 3, 4, 5, 6, 8, 10, 11, 16, 32)
LARGE_BODIES, SOURCES = (8, 16, 32), (1, 4)
INTERVALS_S = (150.0, 600.0, 1800.0, 7200.0)
"""Between two checkpoints of FlexiTrain. Hardly a failure takes it back to one, so the best is not
that of a system that rolls back.
"""
SHAPES_TRIED = 6
"""Stages and sources of a swarm that its planner compares, and of how many traces choose."""

SWARM = "swarm"
OOBLECK, BAMBOO, VARUNA, RESTART, FLEXITRAIN = "Oobleck", "Bamboo", "Varuna", "checkpoint restart", "FlexiTrain"
RECYCLE_SUM, RECYCLE_BOTTLENECK, RECYCLE_FILLED = "ReCycle (eq. 13)", "ReCycle (bottleneck)", "ReCycle (bubbles filled)"
BASELINES = (OOBLECK, RECYCLE_SUM, RECYCLE_BOTTLENECK, RECYCLE_FILLED, BAMBOO, VARUNA, RESTART, FLEXITRAIN)
SYSTEMS = (SWARM, *BASELINES)


@dataclass(frozen=True, slots=True)
class Transitions:
    """Seconds that a change takes.

    Args:
        oobleck_s: its reconfiguration of a model of this size, by its artifact.
        bamboo_s: its rebalancing; the artifact has 450 s for a model of this size.
        restart_s: of Varuna, of a plain restart, and of ReCycle where a stage is lost; the artifact
            has 711 s.
        flexitrain_s: until the other ranks have a group again.
        checkpoint_s: that a checkpoint stops training; the artifact has 120 s.
        swarm_s: until a newcomer or guest begins to load its stage, beyond the copy itself.
        move_s: the same of a standby, and of a peer that is moved.
    """

    oobleck_s: float = 10.0
    bamboo_s: float = 30.0
    restart_s: float = 120.0
    flexitrain_s: float = 10.0
    checkpoint_s: float = 15.0
    swarm_s: float = 1.5
    move_s: float = 0.0


ARTIFACT = Transitions(bamboo_s=450.0, restart_s=711.0, checkpoint_s=120.0)
"""As Oobleck's artifact has them for a model of 6.7 billion parameters."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens to a cluster.

    Args:
        group: of scenarios that differ in one number.
        x: that number.
        nodes: at the beginning.
        kind: `stays away`, `rejoins` or `spot`.
        rate_per_hour: chance of a node to be lost within an hour.
        hours: played.
        transitions: of all systems.
    """

    group: str
    x: float
    nodes: int
    kind: str
    rate_per_hour: float
    hours: float
    transitions: Transitions = Transitions()

    @property
    def name(self) -> str:
        """Short, unique among the scenarios of a study."""
        return f"{self.group} {self.x:g}"

    def trace(self, seed: int) -> NodeTrace:
        """Draw what happens."""
        rng = random.Random(f"{self.kind} {self.nodes} {self.rate_per_hour:g} {seed}")
        if self.kind == "spot":
            return spot_trace(self.nodes, self.hours, rng)
        rejoin_s = REJOIN_S if self.kind == "rejoins" else float("inf")
        return poisson_trace(self.nodes, self.rate_per_hour, self.hours, rng, rejoin_s)


AWAY, REJOIN, SPOT, SIZES, LARGE, EQUAL, PUBLISHED = (
    "nobody comes back, % an hour",
    "others come, % an hour",
    "spot machines",
    "nodes, 5 % an hour",
    "nodes, 1 % an hour",
    "seconds of every change",
    "the artifact's seconds",
)


def scenarios_of(*, quick: bool, nodes_max: int) -> tuple[Scenario, ...]:
    """All scenarios of a study.

    Args:
        quick: few of them, and short.
        nodes_max: of the sweep of sizes.
    """
    hours = 3.0 if quick else 9.0
    rates = (5, 20) if quick else (1, 2, 5, 10, 20)
    found = [Scenario(AWAY, rate, 32, "stays away", rate / 100, hours) for rate in rates]
    found += [Scenario(REJOIN, rate, 32, "rejoins", rate / 100, hours) for rate in rates]
    found.append(Scenario(SPOT, 32, 32, "spot", SPOT_RATE, hours))
    for seconds in (10.0, 120.0) if quick else (0.0, 10.0, 30.0, 60.0, 120.0, 300.0):
        same = Transitions(seconds, seconds, seconds, seconds, min(15.0, seconds), max(1.5, seconds), seconds)
        found.append(Scenario(EQUAL, seconds, 32, "rejoins", 0.1, hours, same))
    found.append(Scenario(PUBLISHED, 32, 32, "rejoins", 0.1, hours, ARTIFACT))
    sizes = (16, 32) if quick else (16, 24, 32, 48, 64, 96, 128, 256)
    found += [Scenario(SIZES, nodes, nodes, "rejoins", 0.05, 3.0) for nodes in sizes if nodes <= nodes_max]
    if nodes_max > LIVE_NODES_MAX:
        found += [Scenario(LARGE, nodes, nodes, "rejoins", 0.01, 0.5) for nodes in (256, 1000, 10_000) if nodes <= nodes_max]
    return tuple(found)


Maker = Callable[[int], ElasticSystem]
"""A seed -> a system that has not begun."""


class SystemMakers:
    """Makes systems; what iterations take is reckoned once for each size of cluster."""

    def __init__(self) -> None:
        """Nothing is reckoned yet."""
        self._step_times: dict[int, StepTimes] = {}
        self._swarm_times: dict[tuple[int, int, int], SwarmTimes] = {}
        self._shapes: dict[int, tuple[tuple[int, int], ...]] = {}

    def settings(self, name: str, scenario: Scenario) -> dict[str, Maker]:
        """Every setting that a system is tried with: its name -> how to make it."""
        costs, rate = scenario.transitions, scenario.rate_per_hour
        if name == SWARM:
            event_costs = SwarmCosts(start_s=costs.swarm_s, move_s=costs.move_s)
            return {
                f"{body} stages, {sources} sources at most": functools.partial(
                    self._swarm, scenario.nodes, body, sources, event_costs
                )
                for body, sources in self.shapes_of(scenario.nodes)
            }
        times = self.step_times(scenario.nodes)
        if name == VARUNA:
            events = EventCosts(costs.restart_s, costs.restart_s, rolls_back=True, checkpoint_s=costs.checkpoint_s)
            return {"any grid": lambda _: NodeCountSystem(best_grid(times), events, rate)}
        if name == OOBLECK and scenario.nodes <= TEMPLATE_SIZES:
            return {"any templates": baseline_maker(name, times, times.nodes_min, costs, rate)}
        depths = [stages for stages in range(times.nodes_min, times.blocks + 1) if 2 * stages <= scenario.nodes]
        if scenario.nodes > LIVE_NODES_MAX:  # a trace takes them seconds there
            depths = [stages for stages in depths if times.blocks % stages == 0]
        if name == FLEXITRAIN:
            return {
                f"{stages} stages, a checkpoint every {interval_s:g} s": flexitrain_maker(times, stages, costs, rate, interval_s)
                for stages in depths
                for interval_s in INTERVALS_S
            }
        return {f"{stages} stages": baseline_maker(name, times, stages, costs, rate) for stages in depths}

    def step_times(self, nodes: int) -> StepTimes:
        """Of pipelines on so many nodes."""
        if nodes not in self._step_times:
            self._step_times[nodes] = StepTimes(cluster_of(nodes))
        return self._step_times[nodes]

    def swarm_times(self, nodes: int, body: int, sources: int) -> SwarmTimes:
        """Of a swarm of so many nodes, stages without the ends, and sources at most."""
        key = (nodes, body, sources)
        if key not in self._swarm_times:
            is_large = nodes > LIVE_NODES_MAX
            limits = ReplicaLimits(nodes, nodes) if is_large else None
            # All microbatches may be in flight: no source waits for an answer to feed the next
            credits = MICROBATCHES_PER_NODE * nodes
            shape = SwarmShape(cluster_of(nodes), body, sources, credits, limits, StageRecovery(RECOVERY_S))
            smaller = self.swarm_times(LIVE_NODES_MAX, body, sources) if is_large else None
            self._swarm_times[key] = SwarmTimes(shape, smaller)
        return self._swarm_times[key]

    def shapes_of(self, nodes: int) -> tuple[tuple[int, int], ...]:
        """Stages and sources that traces choose from: the few with which the planner has a swarm of
        so many peers, or nine or seven and a half tenths of them, fastest in the mean.
        """
        for _ in self.reckon_shapes(nodes):
            pass
        return self._shapes[nodes]

    def reckon_shapes(self, nodes: int) -> Iterator[None]:
        """Find `shapes_of`, which takes seconds; yields after each piece of it."""
        if nodes in self._shapes:
            return
        is_large = nodes > LIVE_NODES_MAX
        bodies = LARGE_BODIES if is_large else [body for body in BODIES if nodes // 10 <= body <= nodes // 3]
        healthy_s: dict[tuple[int, int], float] = {}
        for shape in [(body, sources) for body in bodies for sources in (SOURCES[-1:] if is_large else SOURCES)]:
            times = self.swarm_times(nodes, *shape)
            for share in (1.0,) if is_large else (1.0, 0.9, 0.75):
                seconds = times.quick_s(times.first_counts(round(share * nodes)))
                healthy_s[shape] = healthy_s.get(shape, 0.0) + seconds
                yield
        self._shapes[nodes] = tuple(sorted(healthy_s, key=healthy_s.__getitem__)[: 1 if is_large else SHAPES_TRIED])

    def _swarm(self, nodes: int, body: int, sources: int, costs: SwarmCosts, seed: int) -> ElasticSystem:
        return SwarmSystem(self.swarm_times(nodes, body, sources), costs, random.Random(seed))


def cluster_of(nodes: int) -> ClusterModel:
    """So many nodes and their share of a batch."""
    return ClusterModel(MODEL, ROWS, MICROBATCHES_PER_NODE * nodes, FLOPS, BYTES_PER_S, LATENCY_S, BLOCKS_MAX)


def baseline_maker(name: str, times: StepTimes, stages: int, costs: Transitions, rate: float) -> Maker:
    """Make a baseline whatever the seed: none of them draws anything."""
    return lambda _: baseline(name, times, stages, costs, rate)


def flexitrain_maker(times: StepTimes, stages: int, costs: Transitions, rate: float, interval_s: float) -> Maker:
    """Make FlexiTrain, whose checkpoints are what it makes new ranks at."""
    slots = SlotCosts(costs.flexitrain_s, costs.restart_s, costs.checkpoint_s, interval_s)
    return lambda _: FlexiTrainSystem(times, stages, slots, rate)


def baseline(name: str, times: StepTimes, stages: int, costs: Transitions, rate: float) -> ElasticSystem:
    """Make a baseline with pipelines of so many stages."""
    slots = SlotCosts(0.0, costs.restart_s, interval_s=0.0)
    match name:
        case "Oobleck":
            return NodeCountSystem(best_templates(times, stages), EventCosts(costs.oobleck_s, costs.oobleck_s), rate)
        case "Bamboo":
            # The least overhead that Odyssey's table 1 gives it; half an iteration more at a loss
            events = EventCosts(costs.bamboo_s, costs.bamboo_s, lost_part=0.5, overhead=1.095)
            return NodeCountSystem(fixed_grid(times, stages), events, rate)
        case "checkpoint restart":
            events = EventCosts(costs.restart_s, costs.restart_s, rolls_back=True, checkpoint_s=costs.checkpoint_s)
            return NodeCountSystem(fixed_grid(times, stages), events, rate)
        case "ReCycle (eq. 13)":
            return ReCycleSystem(times, stages, RerouteModel.SUM, slots)
        case "ReCycle (bottleneck)":
            return ReCycleSystem(times, stages, RerouteModel.BOTTLENECK, slots)
        case _:
            assert name == RECYCLE_FILLED, f"no baseline {name}"
            return ReCycleSystem(times, stages, RerouteModel.FILLED, slots)


@dataclass(frozen=True, slots=True)
class SystemPlays:
    """How a system did in a scenario.

    Args:
        setting: that it was given.
        healthy_s: seconds of an iteration while nobody is lost.
        plays: one for each reported trace, in order of seeds.
    """

    setting: str
    healthy_s: float
    plays: tuple[PlayedTrace, ...]


def played_systems(
    makers: SystemMakers, scenario: Scenario, traces: int, tuning: int
) -> Iterator[tuple[str, SystemPlays] | None]:
    """Choose each system's setting, and play it all reported traces.

    Args:
        makers: of systems.
        scenario: see there.
        traces: how many are reported.
        tuning: how many others choose settings.

    Yields:
        None after each trace, so that whoever asks can do something else; the name of a system and
        its plays.
    """
    tuned_by = [scenario.trace(TUNING_SEED + seed) for seed in range(tuning)]
    reported = [scenario.trace(REPORTED_SEED + seed) for seed in range(traces)]
    yield from makers.reckon_shapes(scenario.nodes)
    for name in SYSTEMS:
        settings = makers.settings(name, scenario)
        done: dict[str, float] = {}
        for setting, make in settings.items() if len(settings) > 1 else ():
            found = []
            for seed, trace in enumerate(tuned_by):
                found.append(play_trace(make(TUNING_SEED + seed), scenario.nodes, trace, 3600 * scenario.hours).iterations)
                yield None
            done[setting] = statistics.fmean(found)
        setting = max(done, key=done.__getitem__) if done else next(iter(settings))
        plays = []
        for seed, trace in enumerate(reported):
            plays.append(play_trace(settings[setting](seed), scenario.nodes, trace, 3600 * scenario.hours))
            yield None
        healthy_s = settings[setting](0).begin(range(scenario.nodes)).iteration_s
        yield name, SystemPlays(setting, healthy_s, tuple(plays))
