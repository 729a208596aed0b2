"""The schedule of every kind of fault: drawn from the seed alone, at the stated rates, and without
disturbing what was drawn before it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from swarmfree.sim.faults import FaultPlan
from swarmfree.sim.schedule import (
    COORDINATOR,
    HEARER,
    LONE,
    WRITER,
    Crash,
    Fail,
    Fault,
    FaultKind,
    Fill,
    Freeze,
    Hide,
    Impair,
    Lag,
    Last,
    Leave,
    LosePair,
    PartitionFault,
    Sever,
    Shelve,
    Slow,
    Split,
    draw_schedule,
)

FALLS = FaultPlan(crash_rate=0.6, freeze_rate=0.3, join_rate=0.2, stage_loss_rate=0.1)
KINDS: dict[str, tuple[type[FaultKind], dict[str, object]]] = {
    "source_crash_rate": (Crash, {"stage": 0}),
    "source_freeze_rate": (Freeze, {"stage": 0}),
    "coordinator_crash_rate": (Crash, {"stage": COORDINATOR}),
    "coordinator_freeze_rate": (Freeze, {"stage": COORDINATOR}),
    "leave_rate": (Leave, {}),
    "slow_rate": (Slow, {"disk": False}),
    "slow_disk_rate": (Slow, {"disk": True}),
    "partition_rate": (PartitionFault, {}),
    "deaf_rate": (Impair, {"deaf": True}),
    "mute_rate": (Impair, {"deaf": False}),
    "cut_rate": (Sever, {}),
    "split_rate": (Split, {}),
    "slow_link_rate": (Lag, {}),
    "two_stages_rate": (LosePair, {}),
    "device_error_rate": (Fail, {}),
    "shelf_rate": (Shelve, {}),
    "directory_rate": (Hide, {}),
    "lone_freeze_rate": (Freeze, {"stage": LONE, "duration_s": 3.0}),
    "lone_cut_rate": (Sever, {"stage": COORDINATOR, "other": LONE, "duration_s": 3.0}),
    "reset_rate": (Sever, {"duration_s": 0.2, "refused": True}),
}


def drawn(plan: FaultPlan, seed: int = 1, iterations: int = 1000) -> tuple[Fault, ...]:
    """The schedule of three body stages."""
    return draw_schedule(plan, iterations, 3, random.Random(seed))


@pytest.mark.parametrize("rate", KINDS)
def test_every_rate_draws_its_kind(rate: str) -> None:
    """At 0.4 per iteration so many of the kind are drawn in the 700 iterations before the calm, and
    nothing else.
    """
    schedule = drawn(replace(FaultPlan(), **{rate: 0.4}))  # type: ignore[arg-type]
    kind, fields = KINDS[rate]
    assert 0.33 < len(schedule) / 700 < 0.47
    for fault in schedule:
        assert isinstance(fault.what, kind)
        assert {name: getattr(fault.what, name) for name in fields} == fields


def test_a_schedule_of_all_kinds_is_a_function_of_its_seed() -> None:
    """The same stream gives the same faults; another one gives others."""
    plan = replace(FALLS, **dict.fromkeys(KINDS, 0.5))  # type: ignore[arg-type]
    assert drawn(plan, 1) == drawn(plan, 1) != drawn(plan, 2)


def test_new_kinds_do_not_disturb_what_falls() -> None:
    """Crashes, freezes and joins of the body are the same with and without breaks of the network,
    slowness and falls of the ends.
    """
    plan = replace(FALLS, **dict.fromkeys(KINDS, 0.5))  # type: ignore[arg-type]
    both, alone = drawn(plan), drawn(FALLS)
    assert set(alone) < set(both)


def test_the_ending_has_faults_of_its_own() -> None:
    """They are set off by the closing evaluation, and drawn once a run, whenever the calm
    begins.
    """
    schedule = drawn(FaultPlan(ending_rate=3.0, full_disk_rate=1.0), iterations=40)
    assert {fault.iteration for fault in schedule} == {40}
    assert Counter(type(fault.what) for fault in schedule) == {Last: 3, Fill: 1}
    many = [fault.what for fault in drawn(FaultPlan(ending_rate=500.0)) if isinstance(fault.what, Last)]
    assert {what.goodbyes for what in many} == {0, 1, 2, 3, 5}
    assert {what.whom for what in many} >= {COORDINATOR, WRITER, HEARER, 0, 1, 2, 3}
    assert all(what.goodbyes for what in many if what.whom in {WRITER, HEARER})
    assert 0 < sum(what.frozen_s > 0 for what in many) < 250
    assert max(what.delay_s for what in many) < 4


def test_durations_and_factors_lie_where_the_plan_says() -> None:
    """Freezes of up to a minute, breaks and slowness last as long as asked for; stage 0 is met by
    breaks only where the ends are not spared.
    """
    plan = FaultPlan(
        freeze_rate=1,
        freeze_min_s=1.0,
        freeze_max_s=60.0,
        deaf_rate=1,
        cut_rate=1,
        partition_rate=1,
        break_min_s=2.0,
        break_max_s=4.0,
        slow_rate=1,
        slow_factor_max=5.0,
        refused_share=0.5,
    )
    faults = [fault.what for fault in drawn(plan, iterations=200)]
    frozen_s = [what.duration_s for what in faults if isinstance(what, Freeze)]
    assert 1.0 <= min(frozen_s) < 6.0
    assert 55.0 < max(frozen_s) <= 60.0
    assert all(2.0 <= what.duration_s <= 4.0 for what in faults if isinstance(what, (PartitionFault, Impair, Sever)))
    assert all(2.0 <= what.factor <= 5.0 for what in faults if isinstance(what, Slow))
    assert {what.refused for what in faults if isinstance(what, (PartitionFault, Sever))} == {True, False}
    assert {what.stage for what in faults if isinstance(what, Impair)} == {1, 2, 3}
    bold = [fault.what for fault in drawn(replace(plan, ends_spared=False), iterations=200)]
    assert {what.stage for what in bold if isinstance(what, Impair)} == {0, 1, 2, 3}
