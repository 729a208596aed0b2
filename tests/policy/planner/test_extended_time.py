"""Iterations that are too large to be played, beside the same ones played in full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.policy.planner import estimator, extended_time, forecast
from swarmfree.policy.planner.estimator import IterationTime, iteration_bound, iteration_estimate, iteration_time
from swarmfree.policy.planner.extended_time import iteration_extended
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.reactions import Reroute, options
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, StagesSection

MANIFEST = Manifest(
    model=ModelSection(blocks=6),
    stages=StagesSection(body=3, replicas_max=8, sources_max=4),
    batch=BatchSection(microbatches=900),
)


def world(slow: int, sources: int = 4, bytes_per_s: float = 1e12) -> tuple[Fleet, ExecutionPlan]:
    """The last stage, of so many peers that are a thousand times slower, is the busiest."""
    names = [f"s{n}" for n in range(sources)], ["a"], ["b"], [f"z{n}" for n in range(slow)]
    peers = [
        PeerProfile(name, 1e-3 * factor, 2e-3 * factor, 1 << 40, bytes_per_s, 1e-4, 0.1, can_feed=name.startswith("s"))
        for stage in names
        for name in stage
        for factor in (1000.0 if name.startswith("z") else 1.0,)
    ]
    return Fleet(tuple(peers)), ExecutionPlan((0, 2, 2, 2), tuple(map(tuple, names)))


def in_full(monkeypatch: pytest.MonkeyPatch, fleet: Fleet, plan: ExecutionPlan, manifest: Manifest = MANIFEST) -> IterationTime:
    """All of it is played."""
    with monkeypatch.context() as patch:
        patch.setattr(estimator, "PLAYED_MAX", 1 << 30)
        return iteration_estimate(fleet, plan, manifest, 1)


@pytest.mark.parametrize("slow", [1, 2, 7, 37, 71])
def test_it_takes_as_long_as_it_does_in_full(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where every replica of the busiest stage gets few microbatches, so that time against
    their number is a staircase.
    """
    fleet, plan = world(slow)
    found, is_bound = forecast._time(fleet, plan, MANIFEST)
    assert not is_bound
    assert found.compute_s == pytest.approx(in_full(monkeypatch, fleet, plan).compute_s, rel=0.035)


@pytest.mark.parametrize("more", range(5))
def test_any_number_of_microbatches_is_as_good(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the replicas of the busiest stage can share takes them all as long as one
    each.
    """
    fleet, plan = world(50)
    manifest = replace(MANIFEST, batch=replace(MANIFEST.batch, microbatches=801 + 9 * more))
    found, _ = forecast._time(fleet, plan, manifest)
    assert found.compute_s == pytest.approx(in_full(monkeypatch, fleet, plan, manifest).compute_s, rel=0.035)


def test_more_replicas_than_microbatches_that_are_played_are_bounded() -> None:
    """They would not all be at work."""
    fleet, plan = world(300)
    found, is_bound = forecast._time(fleet, plan, MANIFEST)
    assert is_bound
    assert found == iteration_bound(fleet, plan, MANIFEST)
    assert iteration_extended(fleet, plan, MANIFEST) is None


def test_what_can_be_played_is_played_once() -> None:
    """Exactly."""
    fleet, plan = world(2)
    few = replace(MANIFEST, batch=replace(MANIFEST.batch, microbatches=500))
    assert iteration_extended(fleet, plan, few) == iteration_time(fleet, plan, few)
    assert extended_time.PLAYED_MAX == estimator.PLAYED_MAX == 500 * 4


def test_reactions_to_a_loss_count_links_as_the_forecast_does() -> None:
    """Over links that bind, an iteration of a reaction that leaves the plan as it is takes as long
    as the forecast has it of that plan.
    """
    fleet, plan = world(2, sources=1, bytes_per_s=1e4)
    lost = plan.without(frozenset({"z1"}))
    rated = options(fleet, plan, frozenset({"z1"}), MANIFEST, forecast.outlook_of(fleet, MANIFEST, is_bound=False))
    rerouted = next(each for each in rated if isinstance(each.reactions[0], Reroute))
    told = forecast._time(fleet.without({"z1"}), lost, MANIFEST)[0].seconds
    assert rerouted.iteration_s == pytest.approx(told, rel=0.1)
    assert told > 2 * iteration_bound(fleet.without({"z1"}), lost, MANIFEST).seconds


def test_a_plan_with_an_empty_stage_never_ends() -> None:
    """Nobody plays it."""
    fleet, plan = world(2)
    empty = plan.without(frozenset({"a"}))
    assert iteration_extended(fleet, empty, MANIFEST) == iteration_bound(fleet, empty, MANIFEST)


def test_where_one_reaction_has_to_be_bounded_all_are() -> None:
    """Else one that leaves links out looks a thousand times better than one that does not."""
    fleet, plan = world(2, sources=1, bytes_per_s=1e4)
    lost, outlook = frozenset({"a"}), forecast.outlook_of(fleet, MANIFEST, is_bound=False)
    rated = options(fleet, plan, lost, MANIFEST, outlook)
    assert len(rated) > 1
    assert not any(each.is_bound for each in rated)

    def unlike(some: Fleet, other: ExecutionPlan, manifest: Manifest) -> IterationTime | None:
        return None if other == rated[-1].plan else iteration_extended(some, other, manifest)

    bounded = options(fleet, plan, lost, MANIFEST, replace(outlook, time=unlike))
    assert all(each.is_bound for each in bounded)
    assert bounded == options(fleet, plan, lost, MANIFEST, forecast.outlook_of(fleet, MANIFEST, is_bound=True))
