"""The schedule of every kind of fault: drawn from the seed alone, at the stated rates, and without disturbing what was drawn before it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from swarmfree.sim.faults import FaultPlan
from swarmfree.sim.schedule import (
    COORDINATOR,
    Crash,
    Fault,
    FaultKind,
    Freeze,
    Impair,
    Leave,
    Part,
    Sever,
    Slow,
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
    "partition_rate": (Part, {}),
    "deaf_rate": (Impair, {"deaf": True}),
    "mute_rate": (Impair, {"deaf": False}),
    "cut_rate": (Sever, {}),
}


def drawn(plan: FaultPlan, seed: int = 1, iterations: int = 1000) -> tuple[Fault, ...]:
    """The schedule of three body stages."""
    return draw_schedule(plan, iterations, 3, random.Random(seed))


@pytest.mark.parametrize("rate", KINDS)
def test_every_rate_draws_its_kind(rate: str) -> None:
    """At 0.4 per iteration so many of the kind are drawn in the 700 iterations before the calm, and nothing else."""
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
    """Crashes, freezes and joins of the body are the same with and without breaks of the network, slowness and falls of the ends."""
    plan = replace(FALLS, **dict.fromkeys(KINDS, 0.5))  # type: ignore[arg-type]
    both, alone = drawn(plan), drawn(FALLS)
    assert set(alone) < set(both)


def test_durations_and_factors_lie_where_the_plan_says() -> None:
    """Freezes of up to a minute, breaks and slowness last as long as asked for; stage 0 is met by breaks only where the ends are not spared."""
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
    assert all(2.0 <= what.duration_s <= 4.0 for what in faults if isinstance(what, (Part, Impair, Sever)))
    assert all(2.0 <= what.factor <= 5.0 for what in faults if isinstance(what, Slow))
    assert {what.refused for what in faults if isinstance(what, (Part, Sever))} == {True, False}
    assert {what.stage for what in faults if isinstance(what, Impair)} == {1, 2, 3}
    bold = [fault.what for fault in drawn(replace(plan, ends_spared=False), iterations=200)]
    assert {what.stage for what in bold if isinstance(what, Impair)} == {0, 1, 2, 3}
