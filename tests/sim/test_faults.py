"""Fault plans: drawn from the seed alone, at the stated rates, and never at stage 0."""

from __future__ import annotations

import random

import pytest

from swarmfree.sim.faults import CALM, FaultPlan, calm_iteration, draw_fate
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.schedule import Crash, Freeze, LoseStage, draw_schedule

BUSY = FaultPlan(
    late_rate=0.2,
    request_loss_rate=0.1,
    response_loss_rate=0.1,
    duplicate_rate=0.1,
    crash_rate=2.5,
    stage_loss_rate=0.3,
    freeze_rate=0.5,
    join_rate=0.2,
)


def test_a_schedule_is_a_function_of_its_seed() -> None:
    """The same stream gives the same faults; another one gives others."""
    one, two, three = (draw_schedule(BUSY, 20, 3, random.Random(seed)) for seed in (1, 1, 2))
    assert one == two != three


def test_rates_are_per_iteration() -> None:
    """Over many iterations so many faults of each kind are drawn as the plan says."""
    schedule = draw_schedule(BUSY, 1000, 3, random.Random(4))
    crashes = sum(isinstance(fault.what, Crash) for fault in schedule)
    assert 2.4 < crashes / 700 < 2.6
    losses = sum(isinstance(fault.what, LoseStage) for fault in schedule)
    assert 0.2 < losses / 700 < 0.4


def test_faults_spare_stage_0_and_the_last_iterations() -> None:
    """Only body stages fall, and nothing falls once the calm has begun."""
    schedule = draw_schedule(BUSY, 40, 4, random.Random(9))
    stages = {fault.what.stage for fault in schedule if isinstance(fault.what, (Crash, LoseStage, Freeze))}
    assert stages == {1, 2, 3, 4}
    assert max(fault.iteration for fault in schedule) < calm_iteration(BUSY, 40) == 28
    assert calm_iteration(BUSY, 2) == 0


def test_fates_follow_the_rates() -> None:
    """Lost, duplicated and late messages come as often as the plan says; in the calm and between
    the spared none is lost or late.
    """
    rng = random.Random(7)
    fates = [draw_fate(BUSY, rng, calm=False, spared=False) for _ in range(4000)]
    for share in (
        sum(fate.request_lost for fate in fates),
        sum(fate.response_lost for fate in fates),
        sum(fate.duplicate_delay_s is not None for fate in fates),
    ):
        assert 0.08 < share / 4000 < 0.12
    assert 0.15 < sum(fate.request_delay_s > BUSY.delay_max_s for fate in fates) / 4000 < 0.25
    for calm, spared in ((True, False), (False, True)):
        quiet = [draw_fate(BUSY, rng, calm=calm, spared=spared) for _ in range(500)]
        assert not any(fate.request_lost or fate.response_lost for fate in quiet)
        assert max(fate.request_delay_s for fate in quiet) <= BUSY.delay_max_s


def test_a_plan_says_what_it_means() -> None:
    """Shares above 1 and ranges upside down are programming errors."""
    with pytest.raises(AssertionError, match="is a share"):
        FaultPlan(request_loss_rate=1.5)
    with pytest.raises(AssertionError, match="min above max"):
        FaultPlan(freeze_min_s=20.0)
    assert CALM.request_loss_rate == 0


def test_every_seed_draws_another_setup() -> None:
    """Setups of many seeds cover every number of stages, replicas and sources, and kinds of faults
    are absent at times.
    """
    setups = [draw_setup(seed) for seed in range(80)]
    assert {setup.manifest.stages.body for setup in setups} == {2, 3, 4}
    assert {setup.manifest.stages.replicas_max for setup in setups} == {1, 2, 3, 5}
    assert {setup.feeders for setup in setups} == {1, 2, 3, 4}
    ends = ("source_crash", "source_freeze", "coordinator_crash", "coordinator_freeze", "leave")
    for name in ("crash", "partition", "cut", "deaf", "mute", "slow", "slow_disk", *ends):
        assert {getattr(setup.faults, f"{name}_rate") > 0 for setup in setups} == {True, False}, name
    assert {setup.faults.skew_max_s for setup in setups} == {0.5, 3.0}
    assert draw_setup(3) == draw_setup(3)
