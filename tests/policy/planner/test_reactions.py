"""What is done about a loss, and when a better plan is taken."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time

import pytest

from swarmfree.policy.planner.allocation import ReplicaLimits, allocate
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.hysteresis import ChangeRules, ChangeWatch, consider
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.planner.reactions import (
    AdoptStage,
    AwaitNewcomer,
    Outlook,
    RatedReaction,
    Replan,
    Reroute,
    options,
)
from swarmfree.policy.planner.scores import StageRecovery, score
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, StagesSection
from swarmfree.protocol.names import ABSENT

MANIFEST = Manifest(
    model=ModelSection(blocks=6),
    stages=StagesSection(body=3, replicas_max=8, sources_max=1),
    batch=BatchSection(microbatches=16),
)
BLOCKS = (0, 2, 2, 2)
NOBODY: frozenset[str] = frozenset()


def peer(name: str, speed: float = 1.0, memory: int = 1 << 40, failures_per_hour: float = 0.1) -> PeerProfile:
    """A peer that takes a second for a block's forward and two for its backward, at speed 1."""
    return PeerProfile(name, 1 / speed, 2 / speed, memory, 1e6, 0.05, failures_per_hour, can_feed=name.startswith("s"))


def best(replicas: str, lost: str, outlook: Outlook, *standbys: PeerProfile, **changed: PeerProfile) -> RatedReaction:
    """The best reaction in a plan that is written `s|ab|c|d`, a letter a peer."""
    return found(replicas, lost, outlook, *standbys, **changed)[0]


def found(
    replicas: str, lost: str, outlook: Outlook, *standbys: PeerProfile, **changed: PeerProfile
) -> tuple[RatedReaction, ...]:
    """All reactions, the best first."""
    plan = ExecutionPlan(BLOCKS, tuple(tuple(stage) for stage in replicas.split("|")))
    fleet = Fleet(tuple(changed.get(name, peer(name)) for name in sorted(set("".join(map("".join, plan.replicas))))) + standbys)
    return options(fleet, plan, frozenset(lost), MANIFEST, outlook)


QUICK = Outlook(StageRecovery(seconds=10.0))


def test_a_lost_stage_gets_a_standby_first() -> None:
    """Nothing is slower afterwards, and nothing has to be moved."""
    assert best("s|ab|cd|e", "e", QUICK, peer("x")).reactions == (MovePeer("x", ABSENT, 3),)


def test_a_lost_stage_gets_a_peer_of_a_rich_stage() -> None:
    """Of the one with three, so that the others keep their second."""
    reaction = best("s|abc|de|f", "f", QUICK)
    assert isinstance(reaction.reactions[0], MovePeer)
    assert (reaction.reactions[0].giver, reaction.reactions[0].taker) == (1, 3)
    assert [len(names) for names in reaction.plan.replicas] == [1, 2, 2, 1]


def test_a_lost_stage_is_adopted_where_nobody_is_left_over() -> None:
    """By the peer that has the least to do afterwards, and room; an iteration takes longer then."""
    reaction = best("s|a|b|c", "b", QUICK, c=peer("c", 2.0))
    assert reaction.reactions == (AdoptStage("c", 2),)
    assert reaction.plan.replicas == (("s",), ("a",), ("c",), ("c",))
    full = best("s|a|b|c", "b", QUICK, c=peer("c", 2.0, memory=1000))
    assert full.reactions == (AdoptStage("s", 2),), "a source has little to do"


def test_who_waits_loses_what_the_wait_takes() -> None:
    """A newcomer within seconds is waited for; one that takes longer than the next failure is
    not.
    """
    soon, late = (Outlook(StageRecovery(10.0), newcomer_s=seconds) for seconds in (5.0, 50_000.0))
    assert best("s|a|b|c", "b", soon).reactions == (AwaitNewcomer(5.0),)
    assert not isinstance(best("s|a|b|c", "b", late).reactions[0], AwaitNewcomer)
    two = [each for each in found("s|ab|cd|ef", "df", soon) if isinstance(each.reactions[0], AwaitNewcomer)]
    assert two[0].reactions == (AwaitNewcomer(10.0),), "one comes after the other"
    assert not any(isinstance(r, AwaitNewcomer) for each in found("s|a|b|c", "b", QUICK) for r in each.reactions)


def test_a_lost_replica_is_rerouted_around_unless_a_move_pays() -> None:
    """Siblings that are fast enough do its work. A stage left with one peer of four gets one of
    another stage, where a copy takes seconds and failures are rare.
    """
    even = best("s|ab|cd|ef", "f", QUICK, e=peer("e", 2.0))
    assert even.reactions == (Reroute(),)
    assert (even.transition_s, even.meanwhile_s) == (0.0, even.iteration_s)
    uneven = best("s|abcd|efgh|ij", "j", QUICK)
    assert isinstance(uneven.reactions[0], MovePeer | Replan)
    assert len(uneven.plan.replicas[3]) >= 2


def test_several_lost_stages_are_filled_together() -> None:
    """Each by a peer of its own."""
    reaction = best("s|abcd|e|f", "ef", QUICK)
    assert [type(each) for each in reaction.reactions] in ([MovePeer, MovePeer], [Replan])
    assert not reaction.plan.empty_stages


def test_a_lost_source_needs_a_peer_that_can_feed() -> None:
    """Nobody else takes stage 0, and without one there is no reaction at all."""
    assert found("s|ab|cd|ef", "s", QUICK) == ()
    assert best("s|ab|cd|ef", "s", QUICK, peer("s2")).reactions == (MovePeer("s2", ABSENT, 0),)


def test_lost_learning_counts_as_iterations() -> None:
    """A recovery that costs forty iterations makes a reaction worse by as many until the next
    failure, and the reaction says so.
    """
    steady = {name: peer(name, failures_per_hour=0.0) for name in "sabc"}
    exact, merged = (best("s|a|b|c", "b", Outlook(StageRecovery(10.0, lost), horizon_s=9000.0), **steady) for lost in (0.0, 40.0))
    assert exact.score - merged.score == pytest.approx(40.0 / 9000.0)
    assert "40 iterations of learning lost" in merged.reason
    assert score(10.0, 2.0, 100.0, meanwhile_s=4.0, iterations_lost=3.0) == pytest.approx(0.9 / 2 + 0.1 / 4 - 0.03)
    assert score(math.inf, 2.0, math.inf) == 0.0
    assert score(10.0, 2.0, math.inf) == 0.5


def test_reasons_are_for_people() -> None:
    """With seconds before and after."""
    assert best("s|a|b|c", "b", QUICK).reason.startswith("10.0 s of change, then ")
    assert "s meanwhile, then iterations of" in best("s|abcd|efgh|ij", "j", QUICK).reason


def large_swarm(count: int, stages: int) -> tuple[Fleet, ExecutionPlan, Manifest, ReplicaLimits]:
    """A fleet of mixed speeds, and its plan."""
    rng = random.Random(count)
    manifest = dataclasses.replace(
        MANIFEST, model=ModelSection(blocks=2 * stages), stages=StagesSection(body=stages), batch=BatchSection(microbatches=count)
    )
    profiles = [peer(f"{'s' if n % 10 == 0 else 'p'}{n}", 2 ** rng.uniform(0, 3)) for n in range(count)]
    limits = ReplicaLimits(count, count)
    return Fleet(tuple(profiles)), allocate(Fleet(tuple(profiles)), manifest, limits), manifest, limits


@pytest.mark.parametrize(("count", "stages", "aim_s"), [(1_000, 16, 0.1), (10_000, 32, 2.0)])
def test_a_change_for_thousands_of_peers_is_planned_at_once(count: int, stages: int, aim_s: float) -> None:
    """All reactions to the loss of a whole stage, a new plan for everybody among them; five times
    the aim is allowed, for machines that do other things as well.
    """
    fleet, plan, manifest, limits = large_swarm(count, stages)
    lost = frozenset(plan.replicas[stages // 2])
    began_s = time.process_time()
    reactions = options(fleet, plan, lost, manifest, Outlook(StageRecovery(30.0), 60.0, limits, horizon_s=3600.0))
    assert time.process_time() - began_s < 5 * aim_s
    assert {type(each) for r in reactions for each in r.reactions} == {MovePeer, AdoptStage, AwaitNewcomer, Replan}
    assert not reactions[0].plan.empty_stages
    best_s = min(reaction.iteration_s for reaction in reactions)
    assert reactions[0].iteration_s < 1.2 * best_s


# ---- hysteresis ----------------------------------------------------------------------------------

RULES = ChangeRules(gain_min=1.1, hold_s=10.0, rest_s=60.0)


def changes(gains: list[tuple[float, str | None, float]], seed: int = 1) -> list[float]:
    """When changes are taken; seconds, candidate and gain of each look."""
    rng, watch, taken = random.Random(seed), ChangeWatch(), []
    for now_s, candidate, gain in gains:
        watch, changed = consider(watch, candidate, gain, now_s, rng, RULES)
        taken += [now_s] * changed
    return taken


def test_a_change_is_held_before_it_is_taken() -> None:
    """For ten to twenty seconds, which are drawn: coordinators do not act in step."""
    steady = [(float(s), "move p1", 1.5) for s in range(40)]
    first = [changes(steady, seed)[0] for seed in range(20)]
    assert 10.0 <= min(first) < max(first) <= 21.0
    assert len(set(first)) > 5


def test_small_gains_and_changes_of_mind_are_no_reason() -> None:
    """A tenth is asked for, and the same candidate all the time."""
    assert changes([(float(s), "move p1", 1.09) for s in range(300)]) == []
    assert changes([(float(s), f"move p{s // 9 % 2}", 1.5) for s in range(300)]) == []
    assert changes([(float(s), None, math.inf) for s in range(300)]) == []


def test_after_a_change_there_is_rest() -> None:
    """A minute at least between two."""
    taken = changes([(float(s), "move", 1.5) for s in range(300)])
    assert len(taken) >= 3
    assert min(b - a for a, b in itertools.pairwise(taken)) >= 60.0


def test_what_stands_still_is_changed_at_once() -> None:
    """Also right after another change."""
    assert changes([(0.0, "adopt 2", math.inf), (1.0, "adopt 3", math.inf)]) == [0.0, 1.0]


def test_small_random_changes_move_nobody_twice() -> None:
    """Two stages whose gains wander by a few percent for ten minutes: not one change. One that is
    really slowed causes one, and being moved, no second.
    """
    rng = random.Random(3)
    noise = [(float(s), f"move p{rng.randrange(2)}", rng.uniform(0.9, 1.15)) for s in range(600)]
    assert changes(noise) == []
    real = [(float(s), "move p1", 1.6) if s < 100 else (float(s), "move p1", rng.uniform(0.9, 1.05)) for s in range(600)]
    assert len(changes(real)) in {1, 2}
