"""Where a running swarm should cut its model: which split, who gives what, and when it is worth
it.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.planner.estimator import stage_bytes
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, Link, PeerProfile
from swarmfree.policy.planner.resplit import (
    RatedSplit,
    SplitOutlook,
    _rated,
    best_split,
    block_sources,
    block_state_bytes,
    blocks_max,
    compact,
    least_moved,
    may_resplit,
    splits_for,
    stage_options,
)
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RecoverySection, RingSection, StagesSection
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.split import BlockSplit, block_moves, even_split
from tests.builders import make_entry, make_record

MODEL = ModelSection(width=64, blocks=6, heads=2, kv_heads=1, mlp_width=64, tokens_per_row=8, vocabulary=8)
"""The head is a hundredth of a block."""
MANIFEST = Manifest(
    model=MODEL, stages=StagesSection(body=3, replicas_max=8), batch=BatchSection(microbatches=12), ring=RingSection(credits=12)
)
THREE, TWO = even_split(6, 3), BlockSplit((3, 0, 3))
ROOM = 1 << 40


def peer(name: str, block_s: float = 0.3, memory_bytes: int = ROOM, failures_per_hour: float = 0.1) -> PeerProfile:
    """One that needs so many seconds for a microbatch in one block."""
    return PeerProfile(name, block_s / 3, 2 * block_s / 3, memory_bytes, math.inf, failures_per_hour=failures_per_hour)


def plan_of(text: str, split: BlockSplit) -> ExecutionPlan:
    """Stages from `|`, a letter for each peer: ``s|ab|cd|ef``."""
    return ExecutionPlan((0, *split.counts), tuple(tuple(sorted(names)) for names in text.split("|")))


def fleet_of(plan: ExecutionPlan, *others: str, slow: str = "", factor: float = 3.0) -> Fleet:
    """All alike, but for those in `slow` and the source, whose work takes no time."""
    names = sorted({name for stage in plan.replicas for name in stage} | set(others))
    return Fleet(tuple(peer(n, 1e-6 if n == "s" else 0.3 * (factor if n in slow else 1)) for n in names))


def outlook_of(plan: ExecutionPlan, *, rate: float = 1e6, guests: str = "") -> SplitOutlook:
    """Everybody holds the blocks of its stage; a host none of those of its guest."""
    split = BlockSplit(plan.blocks[1:])
    held = {n: split.blocks_of(stage) for stage, names in enumerate(plan.replicas) for n in names if f"{n}{stage}" not in guests}
    return SplitOutlook(held, Link(0.0, rate).seconds, Link(0.0, 4 * rate).seconds, 0.05, StageRecovery(30.0), 600.0)


def counts_of(found: RatedSplit | None) -> tuple[int, ...]:
    """Blocks of each stage; empty where nothing is better."""
    return found.split.counts if found is not None else ()


def test_two_stages_take_over_from_a_guest() -> None:
    """Where a host does the work of two stages, three blocks each are faster than four and two."""
    now = plan_of("s|a|a|c", THREE)
    fleet, outlook = fleet_of(now), outlook_of(now, guests="a2")
    found = best_split(fleet, now, MANIFEST, outlook, list(stage_options(now, {2})))
    assert found is not None
    assert found.split == TWO
    assert found.plan.replicas == (("s",), ("a",), (), ("c",))
    assert found.is_worth_it
    assert found.copied_bytes == 2 * block_state_bytes(MANIFEST)
    # The guest, on its host's device, gives one block to each
    assert found.carried_bytes == 2 * block_state_bytes(MANIFEST)
    copying_s = 2 * block_state_bytes(MANIFEST) / 1e6
    assert found.stop_s == pytest.approx(copying_s / 4)
    assert found.transition_s == pytest.approx(math.ceil(copying_s / found.before_s) * found.before_s + found.stop_s)
    assert found.after_s < found.before_s
    assert found.moves == block_moves(THREE, TWO)
    assert "6 blocks over 2 stages (3 + 3)" in found.reason


def test_a_stage_that_does_not_change_costs_nothing() -> None:
    """Neither its copies nor its size, nor the name under which a guest serves it."""
    old = BlockSplit((1, 5, 1, 2))
    now = plan_of("s|a|a|c|d", old)
    manifest = replace(MANIFEST, model=replace(MODEL, blocks=9), stages=StagesSection(body=4, replicas_max=8))
    fleet, outlook = fleet_of(now), outlook_of(now, guests="a2")
    after = plan_of("s|a|a|c|d", BlockSplit((1, 5, 2, 1)))
    found = _rated(fleet, now, after, manifest, outlook, 1.0)
    block = block_state_bytes(manifest)
    assert found.copied_bytes == block
    assert found.stop_s == pytest.approx(block / 4e6)


def test_siblings_share_what_their_stage_gives() -> None:
    """Whoever has most to fetch or to give decides how long a change takes: three peers that each
    fetch a block from one have it give three; two that hold it give one and a half each.
    """
    block, after = block_state_bytes(MANIFEST), BlockSplit((3, 1, 2))
    for text, blocks in (("s|abd|e|f", 3.0), ("s|abd|eg|f", 1.5), ("s|a|eg|f", 1.0)):
        now = plan_of(text, THREE)
        found = _rated(fleet_of(now), now, plan_of(text, after), MANIFEST, outlook_of(now), 1.0)
        assert found.carried_bytes == pytest.approx(blocks * block)
        assert found.copied_bytes == (3 if "abd" in text else 1) * block


@pytest.mark.parametrize(("copying", "iterations"), [(0.0, 1), (0.5, 1), (1.0, 1), (1.01, 2), (4.2, 5)])
def test_a_cut_takes_whole_iterations_and_a_stop(copying: float, iterations: int) -> None:
    """Copying begins as an iteration does, and the model is cut between two. Meanwhile it is
    trained; not so while the swarm stops.
    """
    now, before_s = plan_of("s|a|b|c", THREE), 20.0

    def rated(*, stop_s: float, copying_s: float = copying * before_s) -> RatedSplit:
        outlook = replace(outlook_of(now), copy_s=lambda _: copying_s, stop_s=lambda _: stop_s)
        return _rated(fleet_of(now), now, plan_of("s|a|b|c", BlockSplit((3, 1, 2))), MANIFEST, outlook, before_s)

    found = rated(stop_s=0.25)
    assert (found.transition_s, found.stop_s) == (pytest.approx(iterations * before_s + 0.25), 0.25)
    stops, copies, neither = ({"stop_s": before_s}, {"copying_s": 2 * before_s}, {})
    gains = [rated(**{"stop_s": 0.0, "copying_s": 0.0} | each).gain for each in (stops, copies, neither)]
    assert gains == sorted(gains)
    assert len(set(gains)) == len(gains)


def test_a_newcomer_gets_its_stage_back() -> None:
    """A third peer takes a block from each of the two beside it."""
    now = plan_of("s|a|b|c", TWO)
    fleet, outlook = fleet_of(now), outlook_of(now)
    found = best_split(fleet, now, MANIFEST, outlook, list(stage_options(now, ())))
    assert found is not None
    assert (found.split, found.plan.replicas[2]) == (THREE, ("b",))
    assert found.copied_bytes == 2 * block_state_bytes(MANIFEST)


@pytest.mark.parametrize(
    ("text", "split", "slow", "expected"),
    [
        ("s|a|b|c", THREE, "", [()]),
        ("s|a|b|c", THREE, "b", [(3, 1, 2), (2, 1, 3)]),
        ("s|a|b|c", BlockSplit((1, 2, 3)), "", [(2, 2, 2)]),
        ("s|abd|e|f", THREE, "", [(4, 1, 1)]),
        ("s|a||c", TWO, "", [()]),
    ],
    ids=["even", "slow", "uneven", "more", "vacant"],
)
def test_which_split_is_faster(text: str, split: BlockSplit, slow: str, expected: list[tuple[int, ...]]) -> None:
    """Each stage gets work for its speed; where that is so already nothing is moved."""
    now = plan_of(text, split)
    assert counts_of(best_split(fleet_of(now, slow=slow), now, MANIFEST, outlook_of(now))) in expected


def test_a_change_that_costs_more_than_it_brings_is_left() -> None:
    """Over a link so slow that the next failure comes first."""
    now = plan_of("s|a|b|c", BlockSplit((3, 2, 1)))
    assert counts_of(best_split(fleet_of(now), now, MANIFEST, outlook_of(now))) == (2, 2, 2)
    slow = best_split(fleet_of(now), now, MANIFEST, outlook_of(now, rate=1e-3))
    assert slow is None or not slow.is_worth_it


def test_nothing_is_moved_while_a_stage_is_lost() -> None:
    """It comes back first: what moves is a present state."""
    now = plan_of("s|a||c", THREE)
    assert best_split(fleet_of(now), now, MANIFEST, outlook_of(now)) is None


def test_of_equally_fast_splits_the_one_that_copies_least() -> None:
    """Seven blocks on three equal peers: three on whichever has them."""
    manifest = replace(MANIFEST, model=replace(MODEL, blocks=7))
    for counts in ((3, 2, 2), (2, 3, 2), (2, 2, 3)):
        now = plan_of("s|a|b|c", BlockSplit(counts))
        assert splits_for(fleet_of(now), now.replicas, manifest, outlook_of(now))[0] == BlockSplit(counts)


def test_a_little_slower_may_copy_less() -> None:
    """Both are looked at where the slowest stage takes at most a tenth longer."""
    manifest = replace(MANIFEST, model=replace(MODEL, blocks=24), stages=StagesSection(body=2))
    now = plan_of("s|a|b", BlockSplit((13, 11)))
    assert splits_for(fleet_of(now), now.replicas, manifest, outlook_of(now)) == (BlockSplit((12, 12)), BlockSplit((13, 11)))


def test_nobody_gets_more_than_fits_beside_what_it_gives_away() -> None:
    """A peer keeps what it has until the new split has committed."""
    whole, state = stage_bytes(MANIFEST, 1, 1, 12), block_state_bytes(MANIFEST)
    assert blocks_max(MANIFEST, 3 * whole + 2 * state, 2, 12) == 3
    assert blocks_max(MANIFEST, 3 * whole + 2 * state - 1, 2, 12) == 2
    assert blocks_max(MANIFEST, state, 2, 12) == 0
    now = plan_of("s|a|a|c", THREE)
    for room, counts in ((5, (1, 0, 5)), (4, (2, 0, 4))):
        fleet = Fleet((peer("s", 1e-6), peer("a"), peer("c", 0.1, room * whole + 2 * state)))
        found = best_split(fleet, now, MANIFEST, outlook_of(now, guests="a2"), list(stage_options(now, {2})))
        assert counts_of(found) == counts
    none = Fleet((peer("s", 1e-6), peer("a", memory_bytes=2 * state), peer("c")))
    assert splits_for(none, (("s",), ("a",), (), ("c",)), MANIFEST, outlook_of(now)) == ()
    assert splits_for(fleet_of(now), (("s",), (), (), ()), MANIFEST, outlook_of(now)) == ()


@given(st.integers(1, 9), st.data())
def test_least_moved_is_the_least_of_all_ways(blocks: int, data: st.DataObject) -> None:
    """As trying all of them says."""
    stages = data.draw(st.integers(1, min(4, blocks)))
    most = data.draw(st.lists(st.integers(1, blocks), min_size=stages, max_size=stages))
    costs = [data.draw(st.lists(st.integers(0, 2).map(float), min_size=blocks, max_size=blocks)) for _ in range(stages)]
    ways = []
    for cuts in combinations(range(1, blocks), stages - 1):
        ends = (0, *cuts, blocks)
        counts = tuple(b - a for a, b in pairwise(ends))
        if all(count <= limit for count, limit in zip(counts, most, strict=True)):
            total = sum(sum(costs[stage][ends[stage] : ends[stage + 1]]) for stage in range(stages))
            ways.append((total, tuple(-count for count in counts)))
    best = least_moved(blocks, most, costs)
    assert best == (tuple(-count for count in min(ways)[1]) if ways else None)


def test_who_may_serve_what() -> None:
    """As now, or without a guest's stage; one that is vacant stays so while a guest serves it."""
    now = plan_of("s|a|a|c", THREE)
    assert list(stage_options(now, {2})) == [now.replicas, (("s",), ("a",), (), ("c",))]
    vacant = plan_of("s|a||c", TWO)
    assert list(stage_options(vacant, {2})) == [vacant.replicas]
    assert compact(vacant) == ExecutionPlan((0, 3, 3), (("s",), ("a",), ("c",)))


def test_from_whom_blocks_are_copied() -> None:
    """From the stages that have them, siblings from different donors first; a newcomer also copies
    what its stage has, where that has something.
    """
    a, b, c, d = (Endpoint(Member(name, "1"), ()) for name in "abcd")
    replicas = ((), (a, b), (c,), (d,))
    assert [(s.blocks, s.stage, s.donors) for s in block_sources(THREE, TWO, 1, range(2), replicas)] == [(range(2, 3), 2, (c,))]
    lent = ((), (a, b), (), (d,))
    newcomer = block_sources(TWO, THREE, 2, range(0), lent, turn=1)
    assert [(s.blocks, s.stage, s.donors) for s in newcomer] == [(range(2, 3), 1, (b, a)), (range(3, 4), 3, (d,))]
    late = block_sources(THREE, TWO, 3, range(0), replicas)
    assert [(s.blocks, s.stage) for s in late] == [(range(3, 4), 2), (range(4, 6), 3)]
    assert block_sources(THREE, THREE, 1, range(2), replicas) == ()


def test_when_blocks_may_not_move() -> None:
    """Not before the first record, with swapped routes, with clipping by stages, or where a stage
    counts its own steps.
    """
    even = [make_entry(step_count=4) for _ in range(3)]
    assert may_resplit(make_record(stages=tuple(even)), MANIFEST) == ""
    assert "nothing is committed" in may_resplit(None, MANIFEST)
    anew = make_record(stages=(*even[:2], replace(even[2], step_count=1)))
    assert "counts its own steps" in may_resplit(anew, MANIFEST)
    faster = make_record(stages=(*even[:2], replace(even[2], rate_scale_bits=1)))
    assert "counts its own steps" in may_resplit(faster, MANIFEST)
    vacant = make_record(stages=(*even[:2], replace(even[2], step_count=0, members=())))
    assert may_resplit(vacant, MANIFEST) == ""
    ends = make_record(stages=(replace(even[0], step_count=1), *even[1:]))
    assert may_resplit(ends, MANIFEST) == ""
    clipped = replace(MANIFEST, optimizer=replace(MANIFEST.optimizer, clip="stage"))
    assert "clipped by its own norm" in may_resplit(make_record(stages=tuple(even)), clipped)
    swapped = replace(MANIFEST, stages=StagesSection(body=4), recovery=RecoverySection(mode="checkfree+"))
    assert "swapped routes" in may_resplit(make_record(stages=tuple(even)), swapped)


def test_a_hundred_stages_are_cut_within_a_tenth_of_a_second() -> None:
    """A coordinator asks between two iterations. Processor time of this process, as it is asked for
    twice.
    """
    manifest = replace(
        MANIFEST, model=replace(MODEL, blocks=200), stages=StagesSection(body=100), batch=BatchSection(microbatches=64)
    )
    names = [tuple(f"{stage:03d}{turn}" for turn in range(10)) for stage in range(101)]
    now = ExecutionPlan((0, *[2] * 100), tuple(names))
    fleet = Fleet(tuple(peer(name, 0.3 + 0.001 * (turn % 7)) for turn, name in enumerate(n for each in names for n in each)))
    begun = time.process_time()
    best_split(fleet, now, manifest, outlook_of(now))
    assert time.process_time() - begun < 0.5
