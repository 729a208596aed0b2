"""What the planning study's swarm does when peers are lost and come."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from swarmfree.lab.study.cluster_model import ClusterModel
from swarmfree.lab.study.goodput import TrainingPace, play_trace
from swarmfree.lab.study.node_trace import poisson_trace, spot_trace
from swarmfree.lab.study.swarm_system import MOVE_AFTER_S, SwarmCosts, SwarmSystem
from swarmfree.lab.study.swarm_times import SwarmShape, SwarmTimes
from swarmfree.policy.planner.allocation import ReplicaLimits
from swarmfree.policy.planner.estimator import PLAYED_MAX, iteration_time
from swarmfree.policy.planner.forecast import chosen_plan
from swarmfree.policy.planner.model_size import ends_parameters
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.protocol.manifest import ModelSection

CLUSTER = ClusterModel(ModelSection(blocks=6), 1, 16, flops=2e8, bytes_per_s=1e6, latency_s=0.01, blocks_max=4)
SHAPE = SwarmShape(CLUSTER, body=3, sources_max=1, credits=16, limits=None, recovery=StageRecovery(20.0))
TIMES = SwarmTimes(SHAPE)
COSTS = SwarmCosts()


def swarm(nodes: int, shape: SwarmShape = SHAPE, seed: int = 1) -> tuple[SwarmSystem, TrainingPace]:
    """A swarm of so many peers that has begun."""
    system = SwarmSystem(TIMES if shape is SHAPE else SwarmTimes(shape), COSTS, random.Random(seed))
    return system, system.begin(range(nodes))


def woken(system: SwarmSystem, pace: TrainingPace, until_s: float) -> TrainingPace:
    """Let it wake as often as it asks until then; the last pace."""
    while pace.wake_s <= until_s:
        pace = system.wake(pace.wake_s, 10.0)
    return pace


def test_it_begins_with_the_plan_that_the_planner_prints() -> None:
    """One peer feeds, the others are spread over the three stages; who finds no place stands by."""
    plan = chosen_plan(TIMES._fleet(TIMES._plan((1, 3, 3, 2))), SHAPE.manifest)
    assert sorted(TIMES.first_counts(9)) == sorted(map(len, plan.replicas)) == [1, 2, 3, 3]
    system, pace = swarm(26)
    assert [len(nodes) for nodes in system._serving] == [1, 8, 8, 8]
    assert len(system._standbys) == 1
    assert pace == TrainingPace(TIMES.iteration_s((1, 8, 8, 8)))


def test_siblings_do_again_what_a_lost_replica_had_done() -> None:
    """Of half an iteration a third of a stage with three: a sixth, dealt to two, is a quarter of an
    iteration of theirs; nobody is waited for but for the silence.
    """
    system, _ = swarm(10)
    pace = system.lose(max(system._serving[1]), 100.0, 10.5)
    assert (pace.stand_s, pace.back) == (COSTS.silence_s, 0.25)
    assert pace.iteration_s == TIMES.iteration_s((1, 2, 3, 3))


def test_a_lost_coordinator_costs_an_election() -> None:
    """The eldest led."""
    system, _ = swarm(10)
    assert system.lose(0, 100.0, 10.0).stand_s == COSTS.takeover_s


def test_a_newcomer_loads_its_stage_while_the_others_train() -> None:
    """It does nothing until it has copied the weights and moments of the stage that lacks most."""
    system, before = swarm(9)
    poor = TIMES.first_counts(9).index(2)
    pace = system.join(9, 50.0, 10.0)
    assert pace.iteration_s == before.iteration_s
    assert system._loads[9].stage == poor
    held_s = 50.0 + COSTS.start_s + TIMES.copy_s(poor)
    assert system._loads[9].until_s == held_s
    assert woken(system, pace, held_s).iteration_s == TIMES.iteration_s((1, 3, 3, 3))


def test_a_lost_stage_gets_a_replica_of_another_one_after_ten_seconds() -> None:
    """Training stands until it is recovered there, and the stage costs iterations of learning."""
    system, _ = swarm(5)
    assert [len(nodes) for nodes in system._serving] == [1, 2, 1, 1]
    pace = system.lose(next(iter(system._serving[3])), 100.0, 30.5)
    assert (pace.iteration_s, pace.back, pace.wake_s) == (math.inf, 0.5 + COSTS.recovery_iterations, 110.0)
    pace = system.wake(110.0, 5.0)
    assert (pace.iteration_s, pace.wake_s) == (math.inf, 130.0)
    assert system.wake(130.0, 5.0).iteration_s == TIMES.iteration_s((1, 1, 1, 1))


def test_a_lost_stage_is_adopted_where_nobody_can_be_moved() -> None:
    """By a peer that has room, after five seconds; its guest leaves when a newcomer has it."""
    system, _ = swarm(4)
    pace = system.lose(next(iter(system._serving[2])), 100.0, 30.0)
    assert pace.iteration_s == math.inf
    pace = woken(system, pace, 140.0)
    assert pace.iteration_s == TIMES.iteration_s((1, 1, 0, 1), system._held_guests()) < math.inf
    pace = woken(system, system.join(9, 150.0, 10.0), 200.0)
    assert (system._guests, pace.iteration_s) == ({}, TIMES.iteration_s((1, 1, 1, 1)))


def test_copies_of_the_ends_are_charged() -> None:
    """Before its activations a source sends the average of the ends to the two peers that keep
    copies of them; two sources share that.
    """
    counts = (1, 3, 3, 3)
    plan = TIMES._plan(counts)
    without_s = iteration_time(TIMES._fleet(plan), plan, TIMES.manifest).seconds
    copies_s = 2 * 4 * ends_parameters(CLUSTER.model) / CLUSTER.bytes_per_s
    assert without_s < TIMES.iteration_s(counts) <= without_s + copies_s + 1e-9
    two = TIMES._plan((2, 3, 3, 3))
    two_s = iteration_time(TIMES._fleet(two), two, TIMES.manifest).seconds
    assert two_s < TIMES.iteration_s((2, 3, 3, 3)) <= two_s + copies_s / 2 + 1e-9


def test_a_change_may_take_its_time() -> None:
    """Whoever is moved to a lost stage, or takes in a guest, begins so much later."""
    for nodes, move_s, start_s in ((5, 100.0, 1.5), (4, 0.0, 101.5)):
        for slow in (False, True):
            costs = SwarmCosts(move_s=move_s if slow else 0.0, start_s=start_s if slow else 1.5)
            system = SwarmSystem(TIMES, costs, random.Random(1))
            system.begin(range(nodes))
            pace, now_s = system.lose(next(iter(system._serving[3])), 100.0, 30.0), 100.0
            while pace.iteration_s == math.inf:
                now_s = pace.wake_s
                pace = system.wake(now_s, 5.0)
            assert now_s == pytest.approx({5: 130.0, 4: 126.5}[nodes] + 100 * slow)


def test_a_swarm_without_room_waits_for_a_newcomer() -> None:
    """Nobody has memory for a second stage: nothing is done until somebody comes."""
    small = dataclasses.replace(SHAPE, cluster=dataclasses.replace(CLUSTER, blocks_max=1))
    system, _ = swarm(4, small)
    pace = woken(system, system.lose(next(iter(system._serving[2])), 100.0, 30.0), 1e6)
    assert (pace.iteration_s, pace.wake_s) == (math.inf, math.inf)
    assert woken(system, system.join(9, 2e6, 5.0), 3e6).iteration_s < math.inf


def test_a_peer_moves_to_a_stage_that_lacks_speed() -> None:
    """A stage is left with one of four: one of the others goes there, after that has been the best
    move for twenty seconds at least, and copies while the rest trains on.
    """
    system, _ = swarm(13)
    for moment in (10.0, 20.0, 30.0):
        pace = system.lose(max(system._serving[3]), moment, 10.0)
    before = [len(nodes) for nodes in system._serving]
    assert sorted(before) == [1, 1, 4, 4]
    pace = woken(system, pace, 10.0 + MOVE_AFTER_S)
    assert [len(nodes) for nodes in system._serving] == before
    assert pace.iteration_s == TIMES.iteration_s(tuple(before))
    pace = woken(system, pace, 200.0)
    assert [len(nodes) for nodes in system._serving][3] == 2
    assert pace.iteration_s < TIMES.iteration_s(tuple(before))


@pytest.mark.parametrize("seed", range(2))
def test_every_node_has_one_place(seed: int) -> None:
    """After each event of a spot trace and of a hard Poisson one; the same seed does the same."""
    rng = random.Random(seed)
    trace = spot_trace(12, 2.0, rng) if seed % 2 else poisson_trace(12, 0.6, 2.0, rng, rejoin_s=300.0)
    system, present = SwarmSystem(TIMES, COSTS, random.Random(seed)), set(range(12))
    pace, done = system.begin(range(12)), 0.0
    for event in trace:
        pace = woken(system, pace, event.at_s)
        done = 100.25
        (present.remove if event.is_loss else present.add)(event.node)
        pace = (system.lose if event.is_loss else system.join)(event.node, event.at_s, done)
        places = [*(node for nodes in system._serving for node in nodes), *system._loads, *system._standbys]
        assert sorted(places) == sorted(present)
        assert {host for host, _ in system._guests.values()} <= present
    first, second = (play_trace(SwarmSystem(TIMES, COSTS, random.Random(7)), 12, trace, 7_200) for _ in range(2))
    assert first == second
    assert 0 < first.iterations < 7_200 / TIMES.iteration_s(TIMES.first_counts(12))


def test_a_swarm_too_large_to_play_is_stretched_as_a_smaller_one() -> None:
    """More than eight replicas, where that limit is lifted: the bound, times what a play takes
    longer in the smaller swarm.
    """
    more = dataclasses.replace(CLUSTER, microbatches=PLAYED_MAX)
    large = SwarmTimes(dataclasses.replace(SHAPE, cluster=more, limits=ReplicaLimits(1000, 1000)), TIMES)
    assert sum(large.first_counts(60)) == 60
    assert large.stretch((1, 1, 1, 1)) == TIMES.stretch(TIMES.first_counts(8)) >= 1
    system = SwarmSystem(large, COSTS, random.Random(1))
    assert 0 < system.begin(range(60)).iteration_s < math.inf
    assert system.join(60, 1.0, 0.1).iteration_s < math.inf
