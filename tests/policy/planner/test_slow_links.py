"""Who had better stand by for its link."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from swarmfree.policy.planner.allocation import RISK_SLOWDOWN_MAX, ReplicaLimits
from swarmfree.policy.planner.estimator import iteration_estimate, stage_averaging_s
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, Link, PeerProfile
from swarmfree.policy.planner.hysteresis import ChangeRules
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.policy.planner.single_moves import MoveOutlook, best_move, is_worth_it
from swarmfree.policy.planner.slow_links import (
    ALONE_SPEEDUP,
    LIMITS_MAX,
    Moves,
    RatedStandbys,
    _candidates,
    _leavers,
    best_standbys,
)
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, StagesSection
from swarmfree.protocol.message_bounds import BYTES_S_MIN
from swarmfree.protocol.names import ABSENT

FAST, SLOW = 1e8, 1e5
"""Bytes a second. A stage has 115 KB of gradients: seconds with the slow one."""


def plan_of(text: str) -> ExecutionPlan:
    """Stages from `|`, a letter for each peer."""
    stages = text.split("|")
    return ExecutionPlan((0, *(1 for _ in stages[1:])), tuple(tuple(sorted(names)) for names in stages))


def manifest_of(plan: ExecutionPlan, microbatches: int = 12) -> Manifest:
    """One block a stage."""
    body = len(plan.blocks) - 1
    return Manifest(
        model=ModelSection(width=64, blocks=body, heads=2, kv_heads=1, mlp_width=64, tokens_per_row=8, vocabulary=8),
        stages=StagesSection(body=body, replicas_max=8),
        batch=BatchSection(microbatches=microbatches),
        ring=RingSection(credits=12),
    )


def fleet_of(plan: ExecutionPlan, slow: Mapping[str, float], block_s: Mapping[str, float] | None = None) -> Fleet:
    """All are alike but for the links of some, and the speed of some."""
    names = [name for stage in plan.replicas for name in stage]
    return Fleet(
        tuple(
            PeerProfile(
                name, took_s / 3, took_s * 2 / 3, 1 << 62, slow.get(name, FAST), failures_per_hour=0.1, can_feed=name == "s"
            )
            for name in names
            for took_s in [(block_s or {}).get(name, 0.05)]
        )
    )


def outlook(plan: ExecutionPlan, *, unexplained_s: float = 0.0, stays: str = "s") -> MoveOutlook:
    """Everybody may move but those who stay."""
    movable = plan.stages_of.keys() - set(stays)
    return MoveOutlook(movable, ReplicaLimits(8, 3), lambda _: 1.0, unexplained_s, StageRecovery(20.0), 3600.0)


def candidates(fleet: Fleet, plan: ExecutionPlan, kept: int) -> list[Moves]:
    """Sets that are looked at."""
    ways = [_leavers(fleet, plan, manifest_of(plan), outlook(plan), stage) for stage in range(1, len(plan.blocks))]
    return _candidates(plan, ways, kept)


def leaves(text: str, slow: Mapping[str, float], **more: float | str) -> str:
    """Who is told to stand by, sorted."""
    plan = plan_of(text)
    found = best_standbys(fleet_of(plan, slow), plan, manifest_of(plan), outlook(plan, **more))  # type: ignore[arg-type]
    return "" if found is None else "".join(sorted(move.peer for move in found.moves))


def test_whoever_makes_its_stage_average_slowly_stands_by() -> None:
    """And nobody else, whatever stage has more."""
    assert leaves("s|abc|defg", {"b": SLOW}) == "b"


def test_two_stages_are_relieved_at_once() -> None:
    """To leave out one of two alone brings nothing."""
    assert leaves("s|abc|def", {"b": SLOW, "e": SLOW}) == "be"
    assert leaves("s|abc|def", {"b": SLOW, "e": 2 * SLOW}) == "be"


def test_nobody_stands_by_where_links_are_good_enough() -> None:
    """Or where none was measured."""
    assert leaves("s|abc|def", {"b": FAST / 4}) == ""
    assert leaves("s|abc|def", dict.fromkeys("sabcdef", math.inf)) == ""


def test_a_slow_device_with_a_good_link_stays() -> None:
    """It gets less to do."""
    plan = plan_of("s|abc|def")
    assert best_standbys(fleet_of(plan, {}, {"b": 1.0}), plan, manifest_of(plan), outlook(plan)) is None


def test_one_is_kept_where_the_others_wait_for_its_link_alone() -> None:
    """Of a stage that has but slow ones the best, and of two the other."""
    assert leaves("s|abc|def", {"a": SLOW / 10, "b": SLOW / 3, "c": SLOW / 5}) == "ac"
    assert leaves("s|ab|def", {"a": SLOW}) == "a"


def test_of_equal_links_the_slower_device_leaves() -> None:
    """And whose links are not known stays."""
    plan = plan_of("s|abcd|efg")
    fleet = fleet_of(plan, {"a": SLOW, "b": SLOW, "c": SLOW}, {"b": 0.06})
    first = [moves[0].peer for moves in candidates(fleet, plan, 1)]
    assert set(first) == {"b"}
    assert leaves("s|abc|def", {"a": math.inf, "b": SLOW, "c": math.inf}) == "b"


def test_who_is_far_leaves_though_its_link_is_as_fast() -> None:
    """Words to it take a second; nobody else leaves, and of whom nothing is known nobody does."""
    plan = plan_of("s|abcd|efgh")
    fleet = fleet_of(plan, dict.fromkeys("sabcdefgh", 1e7))
    far = replace(fleet, peers=tuple(replace(p, latency_s=1.0 if p.name == "f" else 0.0) for p in fleet.peers))
    found = best_standbys(far, plan, manifest_of(plan), outlook(plan))
    assert found is not None and [move.peer for move in found.moves] == ["f"]
    unknown = replace(far, peers=tuple(replace(p, bytes_per_s=math.inf) for p in far.peers))
    assert best_standbys(unknown, plan, manifest_of(plan), outlook(plan)) is None


def test_nobody_leaves_whose_stage_would_average_as_fast_as_the_others_with_it() -> None:
    """Of a stage with a slow one, and one of four that is a little slower by being more."""
    assert leaves("s|abc|defghi", {"b": SLOW, "d": FAST / 1.5}) == "b"


def test_a_slow_way_between_two_sends_nobody_away() -> None:
    """Neither of them, nor a third one: the router goes round it, or one of them lies."""
    plan = plan_of("s|abcd|efg")
    for pair in (("a", "f"), ("b", "f"), ("c", "g")):
        fleet = replace(fleet_of(plan, {}), links={pair: Link(0.0, SLOW / 4)})
        assert best_standbys(fleet, plan, manifest_of(plan), outlook(plan)) is None


@pytest.mark.parametrize("text", ["s|ab|de", "s|a|de", "s|ab|dfe"])
@pytest.mark.parametrize("rate", [1e4, 3e4])
def test_who_leads_round_a_slow_way_stays(text: str, rate: float) -> None:
    """Of whoever has a slow link and good ways to all: without it the work takes the slow way. So
    it does not come and go.
    """
    plan = plan_of(text)
    pairs = {(one, other): Link(0.0, rate) for one in "ab" for other in "df" if {one, other} <= set(text)}
    fleet = replace(fleet_of(plan, {"e": SLOW}), links=pairs)
    assert best_standbys(replace(fleet, links={}), plan, manifest_of(plan), outlook(plan)) is not None
    for _ in range(4):
        found = best_standbys(fleet, plan, manifest_of(plan), outlook(plan))
        if found is None:
            break
        before, after = (iteration_estimate(fleet, each, manifest_of(plan)).seconds for each in (plan, found.plan))
        assert after < before
        plan = found.plan


@pytest.mark.parametrize(("text", "slow"), [("s|abc|def|ghi", {"e": 3e5, "i": 3e4}), ("s|ac|df|gi", {"c": 1e5, "i": 3e4})])
def test_another_one_stands_by_where_one_leads_round_a_slow_way(text: str, slow: Mapping[str, float]) -> None:
    """Both together would be best by their own rates, and the worst of all with that way."""
    plan = plan_of(text)
    fleet = replace(fleet_of(plan, slow), links={("a", "f"): Link(0.0, 1e3)})
    found = best_standbys(fleet, plan, manifest_of(plan), outlook(plan))
    assert found is not None and [move.peer for move in found.moves] == ["i"]


def test_a_slow_way_sends_nobody_away_beside_one_who_leaves() -> None:
    """That it is slow is the word of one."""
    plan = plan_of("s|abd|fe")
    pairs = {(one, other): Link(0.0, 1e4) for one in "ab" for other in "df"}
    found = best_standbys(replace(fleet_of(plan, {"e": SLOW}), links=pairs), plan, manifest_of(plan), outlook(plan))
    assert found is None or [move.peer for move in found.moves] == ["e"]


def test_with_all_ways_a_stage_hangs_on_one_peer_only_for_much() -> None:
    """By its own rates it would; a way that is slow anyhow leaves little to gain."""
    plan = plan_of("s|a|de")
    fleet = fleet_of(plan, {"e": SLOW})
    for rate, expected in ((2e4, None), (1e6, ["e"])):
        found = best_standbys(replace(fleet, links={("s", "a"): Link(0.0, rate)}), plan, manifest_of(plan), outlook(plan))
        assert (None if found is None else [move.peer for move in found.moves]) == expected


def test_what_iterations_take_beside_it_counts_with_all_ways_too() -> None:
    """Before and after."""
    plan = plan_of("s|abc|def")
    fleet = replace(fleet_of(plan, {"b": SLOW}), links={("a", "d"): Link(0.0, FAST)})
    found = [best_standbys(fleet, plan, manifest_of(plan), outlook(plan, unexplained_s=each_s)) for each_s in (5.0, 50.0)]
    assert found[0] is not None and found[0].before_s > 5.0
    assert found[1] is None


def test_costs_that_are_small_are_not_let_pass_one_by_one() -> None:
    """Eight peers, each a little faster than the one before: none costs a twentieth, and all that
    could leave cost more than a tenth.
    """
    plan = plan_of("s|abcdefgh|xyz")
    manifest = manifest_of(plan)
    unit_s = stage_averaging_s([fleet_of(plan, {"a": 1.0}).by_name[name] for name in plan.replicas[1]], manifest, 1, 1)
    fleet = fleet_of(
        plan, {name: unit_s / (2.0 - 0.2 * place) for place, name in enumerate("abcdefgh")}, dict.fromkeys("sabcdefghxyz", 0.002)
    )
    for beside_s in (5.0, 7.0, 8.0, 9.0, 10.0):
        now_s = iteration_estimate(fleet, plan, manifest).seconds + beside_s
        found = best_standbys(fleet, plan, manifest, outlook(plan, unexplained_s=beside_s))
        assert found is not None
        assert found.after_s * ChangeRules().gain_min < now_s


def test_the_slowest_rate_that_may_be_told_is_a_number_for_everything() -> None:
    """What a peer says of its links ends no coordinator."""
    plan = plan_of("s|abc|def")
    fleet = replace(fleet_of(plan, {"b": BYTES_S_MIN}), links={("a", "f"): Link(0.0, BYTES_S_MIN)})
    assert math.isfinite(iteration_estimate(fleet, plan, manifest_of(plan)).seconds)
    assert best_standbys(fleet, plan, manifest_of(plan), outlook(plan)) is not None
    move = best_move(fleet, plan, manifest_of(plan), outlook(plan))
    assert move is None or math.isfinite(move.gain)


def test_stage_0_and_who_may_not_move_stay() -> None:
    """The coordinator is one of them."""
    assert leaves("su|abc|def", {"u": SLOW}) == ""
    assert leaves("s|abc|def", {"b": SLOW}, stays="sb") == ""


def test_a_stage_hangs_on_one_peer_only_where_iterations_get_much_shorter() -> None:
    """By `ALONE_SPEEDUP`; by less two stay, though one would be faster. A standby that would make
    them longer by less than `RISK_SLOWDOWN_MAX` comes back, and this one would not.
    """
    plan = plan_of("s|ab|def")
    manifest, alone = manifest_of(plan), plan.without(frozenset("a"))
    found = {}
    for rate in (4.0, 4.4, 4.8, 5.2):
        fleet = fleet_of(plan, {"a": rate * SLOW})
        speedup = iteration_estimate(fleet, plan, manifest).seconds / iteration_estimate(fleet, alone, manifest).seconds
        found[speedup] = best_standbys(fleet, plan, manifest, outlook(plan)) is not None
    assert min(found) < ALONE_SPEEDUP < max(found)
    assert [speedup for speedup, stands_by in found.items() if stands_by] == [each for each in found if each >= ALONE_SPEEDUP]
    assert ALONE_SPEEDUP > RISK_SLOWDOWN_MAX


def test_what_iterations_take_beside_it_counts_for_both() -> None:
    """Where they take a minute for other reasons, two seconds are nothing."""
    assert leaves("s|abc|def", {"b": SLOW}, unexplained_s=60.0) == ""


def test_nobody_is_told_where_a_stage_is_lost_or_a_peer_serves_two() -> None:
    """Another one takes its place first."""
    assert leaves("s||abc|def", {"b": SLOW}) == ""
    plan = plan_of("s|abc|cde")
    assert best_standbys(fleet_of(plan_of("s|abc|de"), {"b": SLOW}), plan, manifest_of(plan), outlook(plan)) is None


def test_few_sets_are_tried() -> None:
    """Among them the one after which averaging takes the least; nobody leaves for nothing."""
    letters = "abcdefghijklmnopqrtuvwxyz"
    plan = plan_of(f"s|{letters}|AB")
    fleet = fleet_of(plan, {name: SLOW * (1 + number) for number, name in enumerate(letters)})
    found = candidates(fleet, plan, 2)
    assert len(found) <= LIMITS_MAX
    assert max(map(len, found)) == len(letters) - 2
    assert all(move.giver == 1 for moves in found for move in moves), "the other stage averages faster"


def test_who_stands_by_comes_back_where_that_is_worth_it() -> None:
    """Its stage has become slow: but not before, and never back and forth."""
    plan = plan_of("s|abc|de")
    manifest, slow = manifest_of(plan), {"b": SLOW}
    without = plan.without(frozenset("b"))
    assert best_move(fleet_of(plan, slow), without, manifest, outlook(plan)) is None
    slowed = fleet_of(plan, slow, {"a": 4.0, "c": 4.0})
    found = best_move(slowed, without, manifest, outlook(plan))
    assert found is not None and found.move == MovePeer("b", ABSENT, 1) and is_worth_it(found)
    assert found.meanwhile_s == found.before_s, "nobody waits for its copy"
    assert found.plan == plan
    assert best_standbys(slowed, plan, manifest, outlook(plan)) is None


def test_who_stands_by_is_a_second_replica_where_it_hardly_costs_anything() -> None:
    """A stage hangs on one peer."""
    plan = plan_of("s|ab|de")
    found = best_move(fleet_of(plan, {"b": FAST / 40}), plan.without(frozenset("b")), manifest_of(plan), outlook(plan))
    assert found is not None and found.move == MovePeer("b", ABSENT, 1)
    assert "this one stands by" in found.reason


def test_the_standbys_with_the_best_links_are_looked_at_and_none_serves_stage_0() -> None:
    """Of five, for a stage that has become slow."""
    plan = plan_of("s|abvwxyz|de")
    fleet = fleet_of(plan, {"v": SLOW, "w": SLOW, "x": SLOW, "y": SLOW, "z": FAST / 2}, {"a": 4.0, "b": 4.0, "s": 9.0})
    found = best_move(fleet, plan.without(frozenset("vwxyz")), manifest_of(plan), outlook(plan))
    assert found is not None and found.move == MovePeer("z", ABSENT, 1)


def test_it_is_said_why() -> None:
    """With the seconds."""
    plan = plan_of("s|abc|def")
    moves = (MovePeer("b", 1, ABSENT),)
    assert RatedStandbys(moves, (SLOW,), plan, 5.0, 2.0, 2.5).reason.endswith("an iteration takes 5.00 s, and 2.00 s without it")
    several = RatedStandbys(moves * 3, (SLOW,) * 3, plan, 5.0, 2.0, 2.5).reason
    assert several == "others wait for the links of 3: an iteration takes 5.00 s, and 2.00 s without them"


@pytest.mark.parametrize(("stages", "replicas", "microbatches"), [(4, 8, 60), (2, 8, 100), (7, 4, 36)])
def test_a_small_swarm_is_looked_at_quickly(stages: int, replicas: int, microbatches: int) -> None:
    """A coordinator looks between two iterations, and nothing trains meanwhile."""
    names = [[f"{stage}.{n}" for n in range(replicas)] for stage in range(stages)]
    plan = ExecutionPlan((0, *(1 for _ in names)), (("s",), *(tuple(each) for each in names)))
    fleet = fleet_of(plan, {name: SLOW * (1 + number) for each in names for number, name in enumerate(each)})
    manifest, took_s = manifest_of(plan, microbatches), list[float]()
    for _ in range(3):
        begun_s = time.process_time()
        best_standbys(fleet, plan, manifest, outlook(plan))
        took_s.append(time.process_time() - begun_s)
    assert min(took_s) < 0.25


@pytest.mark.parametrize(("peers", "limit_s"), [(1000, 0.1), (10_000, 2.0)])
def test_a_large_swarm_is_looked_at_quickly(peers: int, limit_s: float) -> None:
    """As every change: seconds of processor time, the best of three."""
    stages = peers // 8
    names = [[f"{stage}.{n}" for n in range(8)] for stage in range(1, stages + 1)]
    plan = ExecutionPlan((0, *(1 for _ in names)), (("s",), *(tuple(sorted(each)) for each in names)))
    fleet = fleet_of(plan, {name: SLOW * (1 + number % 50) for each in names for number, name in enumerate(each)})
    manifest = manifest_of(plan, 4096)
    took_s = []
    for _ in range(3):
        begun_s = time.process_time()
        best_standbys(fleet, plan, manifest, outlook(plan))
        took_s.append(time.process_time() - begun_s)
    assert min(took_s) < limit_s
