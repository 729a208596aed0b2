"""One peer in another stage: which, whether it is safe, and what is expected of it."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest

from swarmfree.policy.planner.allocation import ReplicaLimits
from swarmfree.policy.planner.estimator import is_played, iteration_bound, iteration_estimate, iteration_time, stage_work
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, Link
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, failure_rate, horizon_s, measured_fleet
from swarmfree.policy.planner.model_size import head_blocks
from swarmfree.policy.planner.moves import MovePeer, stage_loads
from swarmfree.policy.planner.scores import StageRecovery, score
from swarmfree.policy.planner.single_moves import (
    MoveOutlook,
    RatedMove,
    _levelling,
    best_move,
    is_safe_move,
    is_worth_it,
    state_bytes,
    unexplained_s,
)
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, StagesSection
from swarmfree.protocol.split import BlockSplit

MODEL = ModelSection(width=64, blocks=3, heads=2, kv_heads=1, mlp_width=64, tokens_per_row=8, vocabulary=8)
"""The head is a fiftieth of a block."""
HEAD = head_blocks(MODEL)
MANIFEST = Manifest(
    model=MODEL, stages=StagesSection(body=3, replicas_max=8), batch=BatchSection(microbatches=12), ring=RingSection(credits=12)
)


def plan_of(text: str) -> ExecutionPlan:
    """Stages from `|`, a letter for each peer: ``s|ab|cd|ef``."""
    stages = text.split("|")
    return ExecutionPlan((0, *(1 for _ in stages[1:])), tuple(tuple(sorted(names)) for names in stages))


def manifest_of(plan: ExecutionPlan, microbatches: int = 12) -> Manifest:
    """A run of as many stages as the plan has, one block each."""
    body = len(plan.blocks) - 1
    return replace(
        MANIFEST,
        model=replace(MODEL, blocks=body),
        stages=StagesSection(body=body, replicas_max=8),
        batch=BatchSection(microbatches=microbatches),
    )


def fleet_of(plan: ExecutionPlan, slow: str = "", factor: float = 3.0, failures_per_hour: float = 0.1) -> Fleet:
    """All need 0.3 s for a microbatch, those in `slow` so many times as much."""
    stages = {name: stage for stage, names in enumerate(plan.replicas) for name in names}
    peers = [
        MeasuredPeer(name, stage, 0.003 if stage == 0 else 0.3 * (factor if name in slow else 1))
        for name, stage in stages.items()
    ]
    fleet = measured_fleet(peers, manifest_of(plan), failures_per_hour)
    assert fleet is not None
    return fleet


def outlook(fleet: Fleet, *, without: str = "", **changes: object) -> MoveOutlook:
    """Everybody may move but those named; copies take no time, and nothing is unexplained."""
    movable = {peer.name for peer in fleet.peers} - set(without)
    usual = MoveOutlook(movable, ReplicaLimits(8, 1), Link(0.0, 1e12).seconds, 0.0, StageRecovery(20.0), 3600.0)
    return replace(usual, **changes)  # type: ignore[arg-type]


def found(text: str, slow: str = "", *, without: str = "", **changes: object) -> RatedMove | None:
    """The best move of a plan."""
    plan = plan_of(text)
    fleet = fleet_of(plan, slow)
    return best_move(fleet, plan, manifest_of(plan), outlook(fleet, without=without, **changes))


# ---- what is measured ----------------------------------------------------------------------------


def test_a_fleet_is_made_of_what_replicas_measure() -> None:
    """Seconds of a microbatch are divided among the blocks of the stage, a third of them forward;
    who has measured nothing, as of a stage without blocks, is the median of the body; a source
    computes the ends for as long as it tells.
    """
    manifest = replace(MANIFEST, model=replace(MODEL, blocks=4))  # stage 1 has two blocks
    peers = [MeasuredPeer("s", 0, 0.5), MeasuredPeer("a", 1, 0.6), MeasuredPeer("b", 2, 0.3), MeasuredPeer("c", 3, 0.9)]
    fleet = measured_fleet([*peers, MeasuredPeer("new", 3)], manifest, 0.5)
    assert fleet is not None
    assert {name: round(peer.block_s, 9) for name, peer in fleet.by_name.items() if name != "s"} == {
        "a": 0.3,
        "b": 0.3,
        "c": 0.9,
        "new": 0.3,
    }
    assert fleet.by_name["a"].forward_s == pytest.approx(0.1)
    alone = ExecutionPlan((0, 2, 1, 1), (("s",), ("a",), ("b",), ("c",)))
    assert iteration_time(fleet, alone, replace(manifest, batch=BatchSection(microbatches=1))).compute_s == pytest.approx(2.3)
    assert fleet.seconds_to_failure == pytest.approx(3600 / 2.5)
    passing_on = measured_fleet(peers, manifest, 0.5, split=BlockSplit((3, 0, 1)))
    assert passing_on is not None
    assert passing_on.by_name["b"].block_s == passing_on.by_name["a"].block_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("told_s", "block_s", "ends_blocks"),
    [
        ([0.3 * HEAD], 0.3, HEAD),
        ([0.15], 0.3, 0.5),
        ([0.15 * HEAD], 0.15, HEAD),
        ([0.9 * (1 + HEAD)], 0.9, 1 + HEAD),
        ([0.15, 0.45, 0.1], 0.3, 0.5),
    ],
    ids=["the head alone", "other work", "fast", "slow", "the median of three"],
)
def test_what_a_source_does_beside_the_head_does_not_make_it_slow(
    told_s: list[float], block_s: float, ends_blocks: float
) -> None:
    """Blocks take the body 0.3 s. The median source is taken to be as fast, and what the head's
    multiplications do not explain to be other work of the ends, at most a block's worth; who needs
    longer is slow, who needs less than the head would is fast. Sources differ as they tell.
    """
    body = [MeasuredPeer(name, stage, 0.3) for name, stage in (("a", 1), ("b", 2), ("c", 3))]
    fleet = measured_fleet([*body, *(MeasuredPeer(f"s{n}", 0, each_s) for n, each_s in enumerate(told_s))], MANIFEST)
    assert fleet is not None
    assert fleet.ends_blocks == pytest.approx(ends_blocks)
    assert fleet.by_name["s0"].block_s == pytest.approx(block_s)
    assert [fleet.by_name[f"s{n}"].block_s * ends_blocks for n in range(len(told_s))] == pytest.approx(told_s)
    assert fleet.without(frozenset("a")).ends_blocks == fleet.ends_blocks


def test_who_serves_blocks_beside_the_ends_is_known_by_these() -> None:
    """A source whose guest takes 0.9 s for a block is slow, whatever the ends take; a peer of the
    body that has a guest is known by both of its stages.
    """
    peers = [MeasuredPeer("s", 0, 0.15), MeasuredPeer("s", 1, 0.9), MeasuredPeer("a", 2, 0.3), MeasuredPeer("a", 3, 0.5)]
    fleet = measured_fleet(peers, MANIFEST)
    assert fleet is not None
    assert {name: (round(peer.block_s, 9), peer.can_feed) for name, peer in fleet.by_name.items()} == {
        "a": (0.4, False),
        "s": (0.9, True),
    }
    assert fleet.ends_blocks == pytest.approx(0.15 / 0.9)


def test_all_that_is_expected_of_a_plan_goes_by_what_sources_do() -> None:
    """Ends of a block's worth take the time of one, in a play, in a bound and where somebody is
    sought for the stage that all wait for.
    """
    plan = plan_of("s|a|b|c")
    fleet = fleet_of(plan)
    heavy = replace(fleet, ends_blocks=4.0, peers=tuple(replace(p, forward_s=0.1, backward_s=0.2) for p in fleet.peers))
    for time_of in (iteration_time, iteration_bound):
        assert time_of(heavy, plan, MANIFEST).compute_s >= 12 * 4 * 0.3 > 12 * 0.3 + 9 >= time_of(fleet, plan, MANIFEST).compute_s
    assert stage_loads(heavy, plan, stage_work(MANIFEST, plan.blocks, heavy.ends_blocks))[0] == pytest.approx(1.2)


def test_nothing_is_known_before_a_replica_of_the_body_has_measured() -> None:
    """A source alone says nothing of blocks."""
    assert measured_fleet([MeasuredPeer("s", 0, 0.5), MeasuredPeer("a", 1)], MANIFEST) is None


@pytest.mark.parametrize("told_s", [5e-324, 1e-310, 1e-200, 1e7])
def test_what_one_peer_tells_of_itself_breaks_no_estimate(told_s: float) -> None:
    """Whatever validation lets through: speeds stay finite, and a move can be looked for."""
    plan = plan_of("s|ab|cd|ef")
    stages = {name: stage for stage, names in enumerate(plan.replicas) for name in names}
    peers = [MeasuredPeer(name, stage, told_s if name in "sa" else 0.3) for name, stage in stages.items()]
    fleet = measured_fleet(peers, MANIFEST, 0.1)
    assert fleet is not None
    assert all(0 < 1 / peer.block_s < math.inf for peer in fleet.peers)
    best_move(fleet, plan, MANIFEST, outlook(fleet))


def test_failures_are_expected_before_many_were_seen() -> None:
    """One in ten hours of a peer at first; then as many as there were. In a large fleet the horizon
    is not the next death.
    """
    assert failure_rate(0, 0.0) == pytest.approx(0.1)
    assert failure_rate(49, 90.0) == pytest.approx(0.5)
    assert horizon_s(fleet_of(plan_of("s|a|b|c"), failures_per_hour=0.1)) == pytest.approx(3600 / 0.4)
    assert horizon_s(fleet_of(plan_of("s|a|b|c"), failures_per_hour=100.0)) == 600.0


def test_what_devices_do_not_explain_is_what_is_left_of_an_iteration() -> None:
    """Nothing, where they should have taken longer than it did."""
    plan = plan_of("s|a|b|c")
    fleet = fleet_of(plan)
    computes_s = iteration_estimate(fleet, plan, MANIFEST).seconds
    assert unexplained_s(computes_s + 2.0, fleet, plan, MANIFEST) == pytest.approx(2.0)
    assert unexplained_s(computes_s / 2, fleet, plan, MANIFEST) == 0.0


# ---- what is safe --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "peer", "giver", "taker", "is_safe"),
    [
        ("s|abc|de|fg", "a", 1, 2, True),
        ("s|ab|cd|ef", "a", 1, 2, False),  # a stage would hang on one peer that did not
        ("s|ab|c|de", "a", 1, 2, True),  # as many hang on one peer as before, and none has three
        ("s|ab|c|def", "a", 1, 2, False),  # one has three
        ("s|ab|cd|e", "a", 1, 2, False),
        ("s|a|bc|de", "a", 1, 2, False),  # nobody would be left
        ("s|ab||de", "a", 1, 2, False),  # two would hang on one peer, and none did
    ],
)
def test_no_move_leaves_a_stage_riskier_than_the_rule_allows(text: str, peer: str, giver: int, taker: int, is_safe: bool) -> None:  # noqa: FBT001 - a column
    """Nobody leaves a stage alone, or with one peer where that was not so before."""
    assert is_safe_move(plan_of(text), MovePeer(peer, giver, taker)) is is_safe


@pytest.mark.parametrize("seed", range(20))
def test_every_move_that_is_found_is_safe_and_of_the_body(seed: int) -> None:
    """Of random plans and speeds: no move makes more stages hang on one peer, none is of stage 0,
    or of somebody who may not move; and none expects longer iterations but for the sake of risk.
    """
    rng = random.Random(seed)
    names = [chr(ord("a") + n) for n in range(rng.randint(4, 11))]
    places = [*(1, 2, 3), *(rng.randint(1, 3) for _ in names[3:])]
    groups = ["".join(n for n, p in zip(names, places, strict=True) if p == stage) for stage in (1, 2, 3)]
    text = "|".join(["s", *groups])
    best = found(text, "".join(rng.sample(names, 3)), without=names[0])
    if best is None:
        return
    assert is_safe_move(plan_of(text), best.move)
    assert best.move.giver > 0
    assert best.move.taker > 0
    assert best.move.peer != names[0]
    assert best.after_s < (1.1 * best.before_s if best.spreads_risk else best.before_s)


# ---- what is best --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "slow", "giver", "taker", "gain"),
    [
        ("s|abc|def|ghi", "def", 1, 2, 1.5),  # a stage has become three times slower
        ("s|abc|def|ghi", "abc", 2, 1, 1.2),
        ("s|abcd|efgh|ij", "", 1, 3, 1.15),  # a stage has two, where others have four
        ("s|abc|de|fg|hi|jklmn", "abc", 5, 1, 1.1),  # one of many stages can spare a peer
    ],
)
def test_the_stage_with_the_least_speed_gets_a_peer(text: str, slow: str, giver: int, taker: int, gain: float) -> None:
    """From one of those with the most; iterations become so many times shorter at least."""
    best = found(text, slow)
    assert best is not None
    assert (best.move.giver, best.move.taker) == (giver, taker)
    assert best.gain > gain
    assert not best.spreads_risk
    assert f"stage {taker} has the least speed for its work" in best.reason


@pytest.mark.parametrize(("text", "slow"), [("s|abc|def|ghi", ""), ("s|ab|cd|ef", "cd"), ("s|a|b|c", "b")])
def test_nobody_moves_where_nothing_is_gained_or_safe(text: str, slow: str) -> None:
    """Even stages stay as they are; stages of two or one can spare nobody."""
    best = found(text, slow)
    assert best is None or best.gain < 1.01


def test_a_stage_that_hangs_on_one_peer_gets_a_second_from_one_of_three() -> None:
    """Though it is no faster for that: the single peer is three times as fast as the others. Where
    iterations would take more than a tenth longer, nobody moves.
    """
    best = found("s|a|bcd|efg", "bcdefg", unexplained_s=50.0)
    assert best is not None
    assert best.spreads_risk
    assert best.move.taker == 1
    assert best.after_s <= 1.1 * best.before_s
    assert "hangs on one peer" in best.reason
    assert found("s|a|bcd|efg", "bcdefg") is None


def test_a_stage_that_hangs_on_one_fast_peer_gets_a_second_too() -> None:
    """It is not among the slowest two, whose peers take three times as long."""
    best = found("s|a|bcdef|gh|jk", "ghjk", unexplained_s=100.0)
    assert best is not None
    assert best.spreads_risk
    assert is_worth_it(best)
    assert (best.move.giver, best.move.taker) == (2, 1)


def test_what_may_happen_while_the_peer_copies_makes_a_gain_smaller() -> None:
    """A second replica comes in half an hour, or at once; iterations take as long all the while, so
    what is left is the chance that the first one dies before.
    """
    size = state_bytes(MANIFEST, 1)
    at_once, later = (
        found("s|a|bcd|efg", unexplained_s=1000.0, recovery=StageRecovery(20.0, 5.0), copy_s=Link(0.0, size / seconds).seconds)
        for seconds in (1.0, 1800.0)
    )
    assert at_once is not None
    assert later is not None
    assert at_once.spreads_risk
    assert at_once.gain > 1.05
    assert (later.gain - 1) / (at_once.gain - 1) == pytest.approx(0.5, abs=0.05)


def test_a_copy_that_takes_longer_than_the_plan_lasts_is_not_worth_it() -> None:
    """The longer the copy of a stage, the less a move brings; where nothing is left of the run,
    nothing.
    """
    size = state_bytes(MANIFEST, 2)
    quick, slow, late = (
        found("s|abc|def|ghi", "def", copy_s=Link(0.0, size / seconds).seconds, horizon_s=left_s)
        for seconds, left_s in ((1.0, 3600.0), (1800.0, 3600.0), (100.0, 50.0))
    )
    assert quick is not None
    assert slow is not None
    assert late is None or late.gain <= 1.0
    assert quick.transition_s == pytest.approx(1.0)
    assert quick.gain > slow.gain > 1


def test_what_no_plan_changes_makes_a_gain_smaller() -> None:
    """Where most of an iteration is messages, a faster stage is worth little."""
    quick, slow = found("s|abc|def|ghi", "def"), found("s|abc|def|ghi", "def", unexplained_s=100.0)
    assert quick is not None
    assert slow is not None
    assert is_worth_it(quick)
    assert not is_worth_it(slow)


def test_no_stage_gets_more_than_it_may_have() -> None:
    """Three at most: the slowed stage is full. Nor does stage 0 get a peer, though it has the least
    speed.
    """
    assert found("s|abc|def|ghi", "def", limits=ReplicaLimits(3, 2)) is None
    plan = plan_of("s|abcd|efgh|ijkl")
    stages = {name: stage for stage, names in enumerate(plan.replicas) for name in names}
    fleet = measured_fleet([MeasuredPeer(name, stage, 0.3 if stage else 3.0) for name, stage in stages.items()], MANIFEST)
    assert fleet is not None
    best = best_move(fleet, plan, MANIFEST, replace(outlook(fleet), limits=ReplicaLimits(8, 2)))
    assert best is None or best.move.taker != 0
    idle = found("stu|abc|def", "def")
    assert idle is not None
    assert idle.move.giver == 1


def test_those_who_would_level_two_stages_are_looked_at() -> None:
    """The next slower and the next faster one, and the slowest of all."""
    speeds = [(1.0, "a"), (2.0, "b"), (3.0, "c"), (4.0, "d")]
    assert _levelling(speeds, 2.5) == ["b", "c", "a"]
    assert _levelling(speeds, 0.5) == ["a"]
    assert _levelling(speeds, 9.0) == ["d", "a"]
    assert _levelling([], 1.0) == []


def test_a_plan_that_stands_still_is_no_matter_of_moves() -> None:
    """A lost stage is filled by other rules."""
    assert found("s|abc||def") is None


def test_what_is_expected_is_played_where_bounds_chose() -> None:
    """All candidates together would take too long to play, the best of them does not: its numbers
    are those of a play, as what was measured beside devices is.
    """
    plan = plan_of("s|abc|def|ghi")
    fleet, manifest = fleet_of(plan, "def"), manifest_of(plan, microbatches=200)
    assert is_played(plan, manifest)
    best = best_move(fleet, plan, manifest, outlook(fleet, unexplained_s=7.0))
    assert best is not None
    assert best.move.taker == 2
    assert best.before_s == pytest.approx(iteration_estimate(fleet, plan, manifest).seconds + 7.0)
    assert best.after_s == pytest.approx(iteration_estimate(fleet, best.plan, manifest).seconds + 7.0)
    assert best.before_s > iteration_bound(fleet, plan, manifest).seconds + 7.0
    left = iteration_estimate(fleet, plan.without(frozenset({best.move.peer})), manifest)
    assert best.meanwhile_s == pytest.approx(left.seconds + 7.0)


def test_a_copy_that_outlasts_the_plan_leaves_what_is_while_it_lasts() -> None:
    """Nothing comes of the plan then."""
    assert score(100.0, 1.0, 50.0, 2.0) == pytest.approx(1 / 2.0)
    assert score(25.0, 1.0, 50.0, 2.0, 10.0) == pytest.approx(0.5 / 1.0 + 0.5 / 2.0 - 10 / 50)


@pytest.mark.parametrize(
    ("peer_count", "body", "limit_s"), [(1000, 130, 0.1), (1000, 400, 0.1), (10_000, 1300, 2.0), (10_000, 4000, 2.0)]
)
def test_a_move_in_a_large_swarm_is_found_at_once(peer_count: int, body: int, limit_s: float) -> None:
    """A thousand peers in a tenth of a second, ten thousand in two, however many stages they
    serve.
    """
    rng = random.Random(1)
    manifest = replace(
        MANIFEST,
        model=replace(MODEL, blocks=body),
        stages=StagesSection(body=body, replicas_max=8),
        batch=BatchSection(microbatches=1000),
    )
    peers = [MeasuredPeer("s", 0, 0.001)]
    peers += [MeasuredPeer(f"p{n}", 1 + n % body, rng.uniform(0.1, 0.8)) for n in range(peer_count)]
    fleet = measured_fleet(peers, manifest, 0.1)
    assert fleet is not None
    groups: list[list[str]] = [[] for _ in range(body + 1)]
    for peer in peers:
        groups[peer.stage].append(peer.name)
    plan, ahead = ExecutionPlan((0, *(1,) * body), tuple(tuple(sorted(names)) for names in groups)), outlook(fleet)
    began_s = time.process_time()
    assert best_move(fleet, plan, manifest, ahead) is not None
    assert time.process_time() - began_s < limit_s


def test_nobody_moves_to_a_stage_without_blocks() -> None:
    """Though it hangs on one peer, and others have three; who serves it with another one may go."""
    plan = ExecutionPlan((0, 3, 0, 3), (("s",), ("a", "b", "c"), ("d",), ("e", "f", "g")))
    manifest = replace(manifest_of(plan), model=replace(MODEL, blocks=6))
    assert best_move(fleet_of(plan), plan, manifest, outlook(fleet_of(plan))) is None
    plan = ExecutionPlan((0, 3, 0, 3), (("s",), ("a",), ("b", "c"), ("d",)))
    best = best_move(fleet_of(plan), plan, manifest, outlook(fleet_of(plan)))
    assert best is not None
    assert best.move.giver == 2


def test_a_copy_is_as_large_as_the_model_is_cut_now() -> None:
    """A stage with twice the blocks that it began with takes twice as long to copy."""
    assert state_bytes(MANIFEST, 1, 6) == 6 * state_bytes(MANIFEST, 2, 1)
