"""The plan of a chaos run and its victims: a pure function of the seed, exponential gaps, and
nobody struck who is spared.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.lab.chaos.plan import (
    FAULT_S,
    FREEZE_S,
    LATENCY_S,
    WEIGHTS,
    Candidate,
    Sparing,
    Strike,
    StrikeKind,
    choose_joiner,
    draw_plan,
    is_spared,
    take_aim,
)
from swarmfree.protocol.errors import ConfigError

FIRST_OF_SEED_1 = [(1.392, "kill", 0.0), (7.885, "kill", 0.0), (10.754, "freeze", 19.225), (12.24, "freeze", 11.975)]
KILL = Strike(3, 10.0, StrikeKind.KILL)
WHOLE = [
    Candidate("peer-1", 0, is_serving=True, is_coordinator=True, can_feed=True),
    Candidate("peer-2", 0, is_serving=True, can_feed=True),
    Candidate("peer-3", 1, is_serving=True),
    Candidate("peer-4", 2, is_serving=True),
    Candidate("peer-5", 1, is_serving=True),
    Candidate("standby-1"),
]


def test_the_plan_is_a_function_of_its_arguments() -> None:
    """Equal arguments give an equal plan; another seed, length or gap gives another one."""
    plan = draw_plan(1, 600.0)
    assert plan == draw_plan(1, 600.0)
    assert len({draw_plan(seed, 600.0).strikes for seed in range(20)}) == 20
    assert draw_plan(1, 300.0).strikes != plan.strikes[: len(draw_plan(1, 300.0).strikes)]
    assert draw_plan(1, 600.0, gap_s=4.0) != plan


def test_the_plan_of_a_seed_does_not_change() -> None:
    """The first strikes of seed 1 are those that they were when this was written: a failed run can
    be played again.
    """
    first = [(round(s.at_s, 3), s.kind.value, round(s.for_s, 3)) for s in draw_plan(1, 600.0).strikes[:4]]
    assert first == FIRST_OF_SEED_1


def test_gaps_are_exponential_and_kinds_come_by_weight() -> None:
    """Over many strikes the mean gap is the one asked for, as is its deviation, and each kind has
    its share.
    """
    strikes = draw_plan(7, 50_000.0).strikes
    gaps = [after.at_s - before.at_s for before, after in itertools.pairwise(strikes)]
    assert statistics.mean(gaps) == pytest.approx(5.0, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(5.0, rel=0.07)
    counts = Counter(s.kind for s in strikes)
    for kind, weight in WEIGHTS.items():
        assert counts[kind] / len(strikes) == pytest.approx(weight / sum(WEIGHTS.values()), rel=0.15)
    deadly = (StrikeKind.KILL, StrikeKind.TERMINATE, StrikeKind.WIPE)
    assert counts[StrikeKind.JOIN] >= sum(counts[kind] for kind in deadly), "the swarm does not die out"


@given(seed=st.integers(0, 2**32), wipes=st.booleans())
def test_every_strike_keeps_its_limits(seed: int, wipes: bool) -> None:  # noqa: FBT001 - drawn
    """Times rise and stay below the end, what lasts has its length, and whole stages go only where
    that was asked for.
    """
    plan = draw_plan(seed, 120.0, wipes=wipes)
    assert [s.index for s in plan.strikes] == list(range(len(plan.strikes)))
    assert [s.at_s for s in plan.strikes] == sorted(s.at_s for s in plan.strikes)
    for strike in plan.strikes:
        assert 0 < strike.at_s < 120.0
        assert str(strike)
        assert wipes or strike.kind is not StrikeKind.WIPE
        match strike.kind:
            case StrikeKind.FREEZE:
                assert FREEZE_S[0] <= strike.for_s <= FREEZE_S[1]
            case StrikeKind.DELAY | StrikeKind.CUT | StrikeKind.HOLE:
                assert FAULT_S[0] <= strike.for_s <= FAULT_S[1]
                is_late = strike.kind is StrikeKind.DELAY
                assert (LATENCY_S[0] <= strike.latency_s <= LATENCY_S[1]) == is_late
                assert strike.jitter_s <= strike.latency_s
            case _:
                assert strike.for_s == strike.latency_s == 0


@pytest.mark.parametrize(("duration_s", "gap_s", "kinds"), [(0.0, 5.0, None), (10.0, 0.0, None), (10.0, 5.0, ())])
def test_an_impossible_plan_is_refused(duration_s: float, gap_s: float, kinds: tuple[StrikeKind, ...] | None) -> None:
    """No time, no gap, or no kind of strike is an error in one line."""
    with pytest.raises(ConfigError):
        draw_plan(1, duration_s, gap_s=gap_s, kinds=kinds)


def test_the_choice_of_a_victim_is_seeded_and_ignores_order() -> None:
    """The same people give the same victim, in whatever order they are listed; over many strikes
    everybody allowed is hit.
    """
    assert take_aim(KILL, 1, WHOLE, Sparing()) == take_aim(KILL, 1, WHOLE[::-1], Sparing())
    strikes = [dataclasses.replace(KILL, index=index) for index in range(200)]
    hit = {name for strike in strikes for name in take_aim(strike, 1, WHOLE, Sparing()).names}
    assert hit == {"peer-1", "peer-2", "peer-3", "peer-5", "standby-1"}, "the only replica of stage 2 is spared"


def test_ends_are_spared_where_that_is_asked_for() -> None:
    """Neither a source nor the coordinator is hit, nor who could feed."""
    strikes = [dataclasses.replace(KILL, index=index) for index in range(200)]
    hit = {name for strike in strikes for name in take_aim(strike, 1, WHOLE, Sparing(ends=True)).names}
    assert hit == {"peer-3", "peer-5", "standby-1"}


def test_who_is_unsound_or_not_yet_a_member_keeps_no_stage_alive() -> None:
    """With its sibling frozen, or still loading, a replica is the last one and is spared; the
    unsound one is not hit twice.
    """
    for sibling in (
        Candidate("peer-5", 1, is_serving=True, is_sound=False),
        Candidate("peer-5", 1, is_serving=False),
    ):
        there = [c for c in WHOLE if c.name != "peer-5"] + [sibling]
        assert is_spared(there[2], there, Sparing())
    frozen = [dataclasses.replace(c, is_sound=False) for c in WHOLE]
    assert take_aim(KILL, 1, frozen, Sparing()).names == ()
    assert take_aim(KILL, 1, frozen, Sparing()).reason


@given(
    seed=st.integers(0, 1000),
    people=st.lists(st.builds(Candidate, st.uuids().map(str), st.integers(-1, 3), st.booleans(), st.booleans()), max_size=10),
)
def test_no_strike_takes_the_last_sound_replica(seed: int, people: list[Candidate]) -> None:
    """Whoever is there: every stage that had a sound serving replica has one after a strike."""
    before = {c.stage for c in people if c.is_serving and c.is_sound}
    for kind in (StrikeKind.KILL, StrikeKind.HOLE, StrikeKind.WIPE):
        names = take_aim(Strike(0, 1.0, kind), seed, people, Sparing()).names
        assert {c.stage for c in people if c.is_serving and c.is_sound and c.name not in names} == before


def test_a_wipe_takes_one_body_stage_whole() -> None:
    """Where nobody is spared a wipe hits all replicas of one body stage, never the ends, never the
    last body stage; else nobody.
    """
    wipes = [Strike(index, 1.0, StrikeKind.WIPE) for index in range(50)]
    hit = {take_aim(wipe, 1, WHOLE, Sparing(last_replicas=False)).names for wipe in wipes}
    assert hit == {("peer-3", "peer-5"), ("peer-4",)}
    assert take_aim(wipes[0], 1, WHOLE, Sparing()).names == ()
    assert take_aim(wipes[0], 1, WHOLE[:3], Sparing(last_replicas=False)).names == ()


def test_the_last_source_stays_also_where_nobody_is_spared() -> None:
    """A kill may take the last replica of a body stage then, but not that of the ends, which no
    neighbour could rebuild.
    """
    there = [c for c in WHOLE if c.name != "peer-2"]
    strikes = [dataclasses.replace(KILL, index=index) for index in range(200)]
    hit = {name for strike in strikes for name in take_aim(strike, 1, there, Sparing(last_replicas=False)).names}
    assert hit == {"peer-3", "peer-4", "peer-5", "standby-1"}


def test_who_is_gone_comes_back_or_somebody_new_comes() -> None:
    """Both happen; without anybody gone it is always a newcomer."""
    joins = [Strike(index, 1.0, StrikeKind.JOIN) for index in range(100)]
    assert {choose_joiner(join, 1, ["peer-3", "peer-4"], "joiner-1") for join in joins} == {"peer-3", "peer-4", "joiner-1"}
    assert {choose_joiner(join, 1, [], "joiner-1") for join in joins} == {"joiner-1"}
