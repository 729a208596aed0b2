"""CheckFree and CheckFree+, equation by equation, and the mistakes of their published code, which
we do not have.

Source: Blagoev, Ersoy, Chen, "All is Not Lost: LLM Recovery without Checkpoints", sections 4.2, 4.3
and 5. Algorithm 1, line 3, is in `test_checkfree_merge`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import pytest

from swarmfree.lab.study.failure_trace import chance_per_iteration, draw_failures
from swarmfree.policy.record import Circumstances, StageAverage, make_record
from swarmfree.policy.recovery import choose_recovery, merge_weights
from swarmfree.policy.retention import KeptCopy, keepers_of_ends
from swarmfree.protocol.actions import CopyKept, CopyNeighbour, Merge, MergeMode
from swarmfree.protocol.manifest import Manifest, OptimizerSection, RecoverySection, StagesSection
from swarmfree.protocol.messages import Commit, Train
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, bits_float32, float64_bits
from swarmfree.protocol.routes import Routes
from swarmfree.sim.script import Director, Moment
from tests import builders
from tests.builders import SOMEBODY, make_entry
from tests.scenarios.scenario_world import Once, is_asked, lines, play, reaching, swarm

CHECKFREE = RecoverySection(mode="checkfree", weight_ratio_max=1e6)


def record_with(norms: list[float]) -> Record:
    """A record whose stages had these squared gradient norms before clipping."""
    return builders.make_record(
        iteration=9, stages=tuple(make_entry(squared_norm_bits=float64_bits(n), step_count=5) for n in norms)
    )


def there(stage_count: int, *lost: int) -> list[tuple[Endpoint, ...]]:
    """One replica of each stage, none of the lost ones."""
    return [() if stage in lost else (Endpoint(Member(f"s{stage}", "00"), ()),) for stage in range(stage_count)]


def test_lines_1_and_2_the_weights_are_squared_norms() -> None:
    """Omega = ||gradient||^2, of the stage before and of the one after."""
    action = choose_recovery(3, there(7, 3), record_with([9.0, 1.0, 4.0, 9.0, 12.0, 1.0, 1.0]), CHECKFREE)
    assert isinstance(action, Merge)
    assert (action.before_stage, action.after_stage) == (2, 4)
    assert bits_float32(action.weight_before) == pytest.approx(4.0 / 16.0)
    assert bits_float32(action.weight_after) == pytest.approx(12.0 / 16.0)


def test_lines_1_and_2_the_norms_are_those_before_clipping() -> None:
    """The published code takes them after clipping to 1: wherever both are above 1, it merges half
    and half. Ours stay apart.
    """
    manifest = Manifest(stages=StagesSection(body=3), optimizer=OptimizerSection(clip="stage", clip_norm=1.0))
    record = committed(manifest, None, set(), (1.0, 4.0, 16.0, 36.0))
    clipped = [bits_float32(entry.scalars.grad_scale) for entry in record.stages]
    assert clipped == pytest.approx((1, 1 / 2, 1 / 4, 1 / 6), rel=1e-5)
    action = choose_recovery(2, there(4, 2), record, CHECKFREE)
    assert isinstance(action, Merge)
    assert (bits_float32(action.weight_before), bits_float32(action.weight_after)) == pytest.approx((0.1, 0.9))


def committed(manifest: Manifest, last: Record | None, scaled: set[int], squared_norms: Sequence[float] = ()) -> Record:
    """One more iteration, before which these stages were rebuilt; squared norms by stage, or all of
    them 1.
    """
    replicas = tuple((Replica(Endpoint(SOMEBODY, ())),) for _ in range(manifest.stage_count))
    iteration, lineage = (0, GENESIS_LINEAGE) if last is None else (last.iteration + 1, last.lineage())
    plan = Plan(Position(Term(1, SOMEBODY), iteration, 0, 1), "b", lineage, replicas, (), last, 1)
    norms = squared_norms or [1.0] * manifest.stage_count
    averages = [StageAverage("d", float64_bits(norm), "s", (SOMEBODY,)) for norm in norms]
    restarted, rate_scaled = dict.fromkeys(scaled, 0), frozenset(scaled)
    return make_record(plan, averages, manifest, Circumstances([1.0], "", restarted, rate_scaled, False, {SOMEBODY: 0}))


def test_line_4_the_rate_is_scaled_at_the_rebuilt_stage_alone_and_does_not_compound() -> None:
    """1.1 lambda there, for good, and no more after a second loss: literally it would be 1.1^384 in
    the paper's longest run.
    """
    manifest = Manifest(stages=StagesSection(body=4))
    record = committed(manifest, None, set())
    for scaled, expected in (
        ({2}, [1, 1, 1.1, 1, 1]),
        (set(), [1, 1, 1.1, 1, 1]),
        ({2}, [1, 1, 1.1, 1, 1]),
        ({3}, [1, 1, 1.1, 1.1, 1]),
    ):
        record = committed(manifest, record, scaled)
        assert [bits_float32(entry.rate_scale_bits) for entry in record.stages] == pytest.approx(expected)
    assert [entry.step_count for entry in record.stages] == [5, 5, 2, 1, 5]


def test_line_5_the_rebuilt_iteration_is_the_one_that_was_under_way() -> None:
    """Nothing is rolled back: a swarm that loses stage 2 and merges it commits every iteration
    once, and no other stage counts a step twice.
    """
    records: dict[int, Record] = {}

    class Loses(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if isinstance(moment.request, Commit):
                kept = records.setdefault(moment.request.record.iteration, moment.request.record)
                assert kept == moment.request.record

    setup = reaching("merge", swarm(replicas=1))
    result = play(setup, Loses(is_asked(Train, key__iteration=2, key__stage=1), lambda d, _: d.kill(*d.members(2))))
    assert lines(result, "StageBuilt", "stage=2", "iteration=2", "action=Merge")
    assert [line.split("iteration=")[1].split()[0] for line in lines(result, "IterationCommitted")] == ["0", "1", "2", "3"]
    assert [[entry.step_count for entry in records[n].stages] for n in range(4)] == [[1] * 4, [2] * 4, [3, 3, 1, 3], [4, 4, 2, 4]]


def test_section_4_2_copy_and_uniform_are_cases_of_the_mean() -> None:
    """Copying the stage before is omega+ = 0; uniform averaging is equal omegas, whatever the
    norms.
    """
    copied, uniform = (merge_weights(mode, 9.0, 1.0, 10.0) for mode in (MergeMode.COPY, MergeMode.UNIFORM))
    assert (copied.before, copied.after) == (1.0, 0.0)
    assert (uniform.before, uniform.after) == (0.5, 0.5)


@pytest.mark.parametrize("stage_count", range(3, 14))
def test_every_body_stage_of_every_model_comes_back_from_stages_that_are_there(stage_count: int) -> None:
    """The published code looks for a stage after the last one of small models, and has the ids of a
    seven-stage model elsewhere.
    """
    record = record_with([1.0] * stage_count)
    for stage in range(1, stage_count):
        action = choose_recovery(stage, there(stage_count, stage), record, CHECKFREE)
        if stage in {1, stage_count - 1}:
            assert isinstance(action, CopyNeighbour)
            assert action.donor_stage == (2 if stage == 1 else stage_count - 2)
        else:
            assert isinstance(action, Merge)
            assert (action.before_stage, action.after_stage) == (stage - 1, stage + 1)


@pytest.mark.parametrize("stage_count", [5, 7, 13])
def test_adjacent_losses_are_made_of_survivors_alone(stage_count: int) -> None:
    """The published code repairs from left to right, so that the second of two averages the first,
    which was just made up.
    """
    record = record_with([1.0] * stage_count)
    for lost in itertools.combinations(range(1, stage_count), 2):
        for stage in lost:
            action = choose_recovery(stage, there(stage_count, *lost), record, CHECKFREE)
            donors = {action.before_stage, action.after_stage} if isinstance(action, Merge) else set()
            donors |= {action.donor_stage} if isinstance(action, CopyNeighbour) else set()
            assert donors
            assert not donors & {*lost, 0}


def test_two_lost_in_a_row_weigh_the_nearer_survivor_more() -> None:
    """By depth: of stages 1 and 4, stage 2 takes twice as much of 1, stage 3 twice as much of 4."""
    record = record_with([1.0] * 5)
    second, third = (choose_recovery(stage, there(5, 2, 3), record, CHECKFREE) for stage in (2, 3))
    assert isinstance(second, Merge)
    assert isinstance(third, Merge)
    assert bits_float32(second.weight_before) == pytest.approx(2 / 3)
    assert bits_float32(third.weight_after) == pytest.approx(2 / 3)


def test_section_5_failures_are_drawn_by_the_hour_and_for_every_stage_by_itself() -> None:
    """The published code has constants that fit no iteration time, never lets two stages fail at
    once, and none in every hundredth iteration.
    """
    assert chance_per_iteration(0.10) == pytest.approx(1 - 0.9 ** (91.3 / 3600))
    failures = draw_failures(0.99, (1, 2, 3, 4), 0, 2000, 3)
    by_iteration: dict[int, set[int]] = {}
    for failure in failures:
        by_iteration.setdefault(failure.iteration, set()).add(failure.stage)
    assert max(map(len, by_iteration.values())) >= 2
    assert any(iteration % 100 == 1 for iteration in by_iteration)


def test_a_bounded_weight_keeps_one_neighbour_from_owning_the_result() -> None:
    """We differ: neither neighbour weighs more than ten times the other, whatever norms they
    announce.
    """
    weights = merge_weights(MergeMode.NORM2, 1e12, 1.0, RecoverySection().weight_ratio_max)
    assert weights.before / weights.after == pytest.approx(10.0)
    assert dataclasses.asdict(weights) == pytest.approx({"before": 10 / 11, "after": 1 / 11})


def test_nothing_of_the_rebuilt_stage_needs_to_be_told_by_a_dead_one() -> None:
    """What its gradient was makes no difference to how it is merged: the neighbours' norms count
    alone.
    """
    norms = [9.0, 1.0, 4.0, 9.0, 12.0, 1.0, 1.0]
    without = [norm if stage != 3 else math.nan for stage, norm in enumerate(norms)]
    action, other = (choose_recovery(3, there(7, 3), record_with(found), CHECKFREE) for found in (norms, without))
    assert isinstance(action, Merge)
    assert action == other
    for neighbour in (2, 4):
        changed = [norm * (1 + (stage == neighbour)) for stage, norm in enumerate(norms)]
        assert choose_recovery(3, there(7, 3), record_with(changed), CHECKFREE) != action


@pytest.mark.parametrize("body", range(4, 13))
def test_section_4_3_half_of_the_microbatches_swap_both_ends_of_any_model(body: int) -> None:
    """The published code exchanges the stages numbered 1, 2 and 5, 6, so that other models never
    swap their last pair.
    """
    routes = Routes.of(body, swaps=True)
    even, odd = routes.route(0).stages, routes.route(1).stages
    assert even == tuple(range(1, body + 1))
    assert (odd[:2], odd[-2:]) == ((2, 1), (body, body - 1))
    assert odd[2:-2] == even[2:-2]
    assert [routes.route(number).stages == odd for number in range(6)] == [False, True] * 3


@pytest.mark.parametrize("body", range(4, 13))
def test_section_4_3_the_ends_of_the_body_are_copied_from_their_partners_alone(body: int) -> None:
    """Stage 1 from 2 and the last from the one before it, of any number; every other stage is
    merged, also those that the published code copies.
    """
    plus = dataclasses.replace(CHECKFREE, mode="checkfree+")
    donors = {}
    for stage in range(1, body + 1):
        action = choose_recovery(stage, there(body + 1, stage), record_with([1.0] * (body + 1)), plus)
        donors[stage] = action.donor_stage if isinstance(action, CopyNeighbour) else None
    assert donors == {1: 2, **dict.fromkeys(range(2, body), None), body: body - 1}


def test_section_4_3_copies_of_the_embedding_and_the_head_lie_next_to_them_and_are_exact() -> None:
    """The published code never lets them fail. Ours are kept by a member of the first and one of
    the last body stage, and no step is lost.
    """
    replicas = tuple((Replica(Endpoint(Member(f"s{stage}", "00"), ())),) for stage in range(7))
    plan = Plan(Position(Term(1, SOMEBODY), 10, 0, 0), "b", GENESIS_LINEAGE, replicas, (), None, 4)
    assert [member.peer_id for member in keepers_of_ends(plan, 2)] == ["s1", "s6"]
    kept = [KeptCopy(replicas[1][0].endpoint, 9), KeptCopy(replicas[6][0].endpoint, 10)]
    action = choose_recovery(0, there(7, 0), record_with([1.0] * 7), CHECKFREE, kept)
    assert isinstance(action, CopyKept)
    assert (action.iteration, action.holder) == (10, replicas[6][0].endpoint)
    assert "no step is lost" in action.reason
