"""Which recovery action, and why; and the weights of a merge."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.recovery import (
    STUDY_SHADOW_PERCENT,
    Logs,
    choose_recovery,
    donor_block,
    merge_weights,
    norm_off,
    signed_norms,
)
from swarmfree.policy.retention import KeptCopy, StageShadow
from swarmfree.protocol.actions import Copy, CopyKept, CopyNeighbour, Fresh, Merge, MergeMode, Replay, Restore
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.manifest import RecoverySection
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.records import Record, SetSplit, bits_float32, float64_bits
from tests.builders import make_entry, make_record

SENIOR = Member("p0", "0" * 16)
RECOVERY = RecoverySection()


def _record(squared_norms: list[float]) -> Record:
    stages = tuple(make_entry(squared_norm_bits=float64_bits(n), step_count=5) for n in squared_norms)
    return make_record(iteration=7, stages=stages, electorate=(SENIOR,))


def _replicas(*counts: int) -> list[tuple[Endpoint, ...]]:
    return [tuple(Endpoint(Member(f"s{stage}r{k}", "0" * 16), ()) for k in range(n)) for stage, n in enumerate(counts)]


def test_a_middle_stage_is_merged_from_its_neighbours_by_their_squared_norms() -> None:
    """Norms squared 1 and 3: weights 0.25 and 0.75, and the reason says so."""
    action = choose_recovery(2, _replicas(1, 1, 0, 1), _record([9, 1, 5, 3]), RECOVERY)
    assert isinstance(action, Merge)
    assert (action.before_stage, action.after_stage) == (1, 3)
    assert bits_float32(action.weight_before) == pytest.approx(0.25)
    assert bits_float32(action.weight_after) == pytest.approx(0.75)
    assert "0.250 and 0.750" in action.reason


def test_the_ends_of_the_body_copy_their_body_neighbour() -> None:
    """Stage 1 from stage 2, stage 3 from stage 2; stage 0 is no donor for blocks."""
    first = choose_recovery(1, _replicas(1, 0, 1, 1), _record([1, 1, 1, 1]), RECOVERY)
    last = choose_recovery(3, _replicas(1, 1, 1, 0), _record([1, 1, 1, 1]), RECOVERY)
    assert isinstance(first, CopyNeighbour)
    assert isinstance(last, CopyNeighbour)
    assert first.donor_stage == last.donor_stage == 2


def test_a_live_replica_is_copied_whatever_the_mode() -> None:
    """A stage with a sibling is not lost."""
    action = choose_recovery(2, _replicas(1, 1, 2, 1), _record([1] * 4), dataclasses.replace(RECOVERY, merge=MergeMode.RANDOM))
    assert isinstance(action, Copy)
    assert len(action.donors) == 2


def test_before_the_first_commit_first_weights_are_drawn_again() -> None:
    """Nothing was learned yet, so the drawn weights are exactly those that were lost."""
    assert choose_recovery(2, _replicas(1, 1, 0, 1), None, RECOVERY) == Fresh(
        2, 0, "no iteration committed yet: first weights are drawn"
    )


def test_what_is_left_when_neighbours_are_lost_too() -> None:
    """Survivors on one side: the nearest is copied. None at all: drawn anew, and so are the ends,
    which cannot be merged from blocks.
    """
    record = _record([1] * 5)
    for alive, donor in (((1, 0, 0, 1, 1), 3), ((1, 0, 0, 0, 1), 4)):
        action = choose_recovery(2, _replicas(*alive), record, RECOVERY)
        assert isinstance(action, CopyNeighbour)
        assert action.donor_stage == donor
    assert isinstance(choose_recovery(2, _replicas(1, 0, 0, 0, 0), record, RECOVERY), Fresh)
    assert isinstance(choose_recovery(0, _replicas(0, 1, 1, 1, 1), record, RECOVERY), Fresh)


def test_adjacent_lost_stages_are_merged_by_depth_from_the_nearest_survivors() -> None:
    """Of stages 2 and 3 between 1 and 4, with equal norms, each takes two thirds of the nearer
    one.
    """
    record = _record([1] * 5)
    for stage, before in ((2, 2 / 3), (3, 1 / 3)):
        action = choose_recovery(stage, _replicas(1, 1, 0, 0, 1), record, RECOVERY)
        assert isinstance(action, Merge)
        assert (action.before_stage, action.after_stage) == (1, 4)
        assert bits_float32(action.weight_before) == pytest.approx(before)


def _kept(*iterations: int) -> list[KeptCopy]:
    holders = (Endpoint(Member(f"k{place}", "0" * 16), ()) for place in range(len(iterations)))
    return [KeptCopy(holder, iteration, f"lineage {iteration}") for holder, iteration in zip(holders, iterations, strict=True)]


@pytest.mark.parametrize(
    ("iterations", "place", "age"),
    [
        ((8,), 0, "no step is lost"),
        ((7, 8, 8), 1, "no step is lost"),
        ((7,), 0, "one behind: the step of iteration 7 is lost"),
        ((3, 7, 7), 1, "one behind"),
        ((0, 5), 1, "3 behind: the steps of iterations 5 to 7 are lost"),
    ],
)
def test_lost_ends_come_from_the_newest_kept_copy(iterations: tuple[int, ...], place: int, age: str) -> None:
    """After record 7 a copy for 8 is exact, and any older one is better than none; of equals the
    first is taken, and the reason tells the age.
    """
    kept = _kept(*iterations)
    action = choose_recovery(0, _replicas(0, 1, 1, 1), _record([1] * 4), RECOVERY, kept)
    assert isinstance(action, CopyKept)
    assert (action.holder, action.iteration, action.lineage) == (kept[place].holder, kept[place].iteration, kept[place].lineage)
    assert age in action.reason
    assert str(action.holder.member) in action.reason


def test_ends_without_a_copy_are_drawn() -> None:
    """Where nobody has one, there are first weights."""
    assert isinstance(choose_recovery(0, _replicas(0, 1, 1, 1), _record([1] * 4), RECOVERY, []), Fresh)


def test_copies_of_the_ends_help_nobody_else() -> None:
    """A lost body stage is merged, ends that live are copied from a sibling, and before the first
    commit they are drawn, copies or not.
    """
    kept, record = _kept(8), _record([1] * 4)
    assert isinstance(choose_recovery(2, _replicas(1, 1, 0, 1), record, RECOVERY, kept), Merge)
    assert isinstance(choose_recovery(0, _replicas(1, 1, 1, 1), record, RECOVERY, kept), Copy)
    assert isinstance(choose_recovery(0, _replicas(0, 1, 1, 1), None, RECOVERY, kept), Fresh)


@given(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12), st.sampled_from(MergeMode))
def test_weights_sum_to_one_and_are_bounded(before: float, after: float, mode: MergeMode) -> None:
    """Whatever a neighbour claims, it weighs at most ten times the other (except where the mode is
    to copy).
    """
    weights = merge_weights(mode, before, after, 10.0)
    assert weights.before + weights.after == pytest.approx(1.0)
    if mode is not MergeMode.COPY:
        assert 1 / 11 - 1e-9 <= weights.before <= 10 / 11 + 1e-9


def test_norm_and_squared_norm_differ_as_the_paper_and_its_code_do() -> None:
    """Norms 1 and 2: squared weights 1:4, plain 1:2; unusable norms weigh alike."""
    assert merge_weights(MergeMode.NORM2, 1.0, 4.0, 10.0).before == pytest.approx(0.2)
    assert merge_weights(MergeMode.NORM, 1.0, 4.0, 10.0).before == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("before", "after", "weight"),
    [(0.04, 0.25, 0.2001 / 0.7002), (9.0, 400.0, 0.5), (0.25, 4.0, 0.5001 / 1.5002), (1e-12, 9.0, 1 / 11), (0.0, 9.0, 0.5)],
)
def test_clipped_norms_weigh_as_in_the_published_code(before: float, after: float, weight: float) -> None:
    """min(1, ||g||) + 1e-4: two norms above 1 weigh the same; the bound of 10 and unknown norms are
    ours, as ever.
    """
    assert merge_weights(MergeMode.CLIPPED, before, after, 10.0).before == pytest.approx(weight)


def test_what_a_neighbour_has_signed_counts_instead_of_the_record() -> None:
    """Of the stages that it is there for; the others keep the record's."""
    record = _record([9, 1, 5, 3])
    action = choose_recovery(2, _replicas(1, 1, 0, 1), record, RECOVERY, signed={1: 9.0})
    assert isinstance(action, Merge)
    assert bits_float32(action.weight_before) == pytest.approx(0.75)
    assert (action.norm_before, action.norm_after) == (9.0, 3.0)


def _announced(stage: int, norm: float, *, peer: str = "", iteration: int = 8, lineage: str = "l") -> Announcement:
    endpoint = Endpoint(Member(peer or f"s{stage}", "0" * 16), ())
    return Announcement(endpoint, PeerState.SERVING, stage, iteration, lineage, norm, 0.1, False, 1, 1e9)


def test_only_what_these_neighbours_signed_for_the_last_record_counts() -> None:
    """Neither a sibling's word, nor an older one, nor one of another lineage, nor of another
    stage.
    """
    neighbours = {1: Member("s1", "0" * 16), 3: Member("s3", "0" * 16)}
    others = [_announced(1, 5.0, peer="x"), _announced(3, 6.0, iteration=7), _announced(3, 6.0, lineage="k"), _announced(2, 7.0)]
    assert signed_norms([*others, _announced(1, 2.0)], neighbours, 8, "l") == {1: 2.0}
    assert signed_norms([*others, _announced(1, 2.0), _announced(3, 4.0)], neighbours, 8, "l") == {1: 2.0, 3: 4.0}
    for bad in (0.0, math.nan, math.inf, -1.0):
        assert merge_weights(MergeMode.NORM2, bad, 4.0, 10.0).before == 0.5


@pytest.mark.parametrize(
    ("found", "recorded", "off"),
    [
        (4.0, 4.0, 0.0),
        (3.0, 4.0, 0.25),
        (5.0, 4.0, 0.25),
        (0.0, 4.0, 1.0),
        (0.0, 0.0, 0.0),
        (1e-9, 0.0, math.inf),
        (math.inf, 4.0, math.inf),
    ],
)
def test_a_norm_is_off_by_a_share_of_the_recorded_one(found: float, recorded: float, off: float) -> None:
    """Of nothing any difference is an infinite share: noise in place of a gradient of zeros is not
    near it.
    """
    assert norm_off(found, recorded) == off


def test_equal_block_counts_map_to_the_same_block_and_unequal_ones_by_depth() -> None:
    """The map is the identity for equal counts and monotone otherwise."""
    assert [donor_block(b, 3, 3) for b in range(3)] == [0, 1, 2]
    assert [donor_block(b, 2, 3) for b in range(2)] == [0, 2]
    assert [donor_block(b, 3, 2) for b in range(3)] == [0, 1, 1]


def test_the_reason_of_a_restore_claims_no_more_than_was_studied() -> None:
    """An age of a hundredth of the run was, and has its figures; one of a third was not."""
    replicas, record = _replicas(1, 1, 0, 1), dataclasses.replace(_record([1] * 4), iteration=1499)
    reasons = [
        choose_recovery(2, replicas, record, RECOVERY, (), [StageShadow(replicas[1][0], 2, at)]).reason for at in (1485, 1000)
    ]
    low, high = STUDY_SHADOW_PERCENT
    assert reasons[0].endswith(
        f"15 iterations old in a run of 1500, which changed the loss by {low:+} to {high:+} % on average, "
        "late in training, in a study with a small model"
    )
    assert reasons[1].endswith("500 iterations old in a run of 1500, older for its run than any that was studied")


def test_a_lost_stage_comes_from_its_newest_shadow_where_the_run_keeps_any() -> None:
    """Better than any merge, whatever its age, also at the ends of the body; the reason has the age
    and what that costs.
    """
    replicas, record = _replicas(1, 1, 0, 1), _record([1, 1, 1, 1])
    shadows = [StageShadow(replicas[1][0], 2, 3), StageShadow(replicas[3][0], 2, 7), StageShadow(replicas[3][0], 1, 8)]
    action = choose_recovery(2, replicas, record, RECOVERY, (), shadows)
    assert isinstance(action, Restore)
    assert (action.holder, action.iteration) == (replicas[3][0], 7)
    assert "1 iteration old in a run of 8" in action.reason
    as_new = [shadows[1], StageShadow(replicas[1][0], 2, 7, full=True)]
    action = choose_recovery(2, replicas, record, RECOVERY, (), as_new)
    assert isinstance(action, Restore)
    assert action.full, "of two that are as new, the full one"
    assert isinstance(choose_recovery(1, _replicas(1, 0, 1, 1), record, RECOVERY, (), shadows), Restore)
    for without in (dataclasses.replace(RECOVERY, mode="checkfree"), dataclasses.replace(RECOVERY, shadow_every=0)):
        assert isinstance(choose_recovery(2, replicas, record, without, (), shadows), Merge)
    assert isinstance(choose_recovery(2, replicas, record, RECOVERY, (), shadows[2:]), Merge)
    assert isinstance(choose_recovery(2, _replicas(1, 1, 1, 1), record, RECOVERY, (), shadows), Copy)
    assert isinstance(choose_recovery(2, replicas, None, RECOVERY, (), shadows), Fresh)


def _full(replicas: list[tuple[Endpoint, ...]], *held: tuple[int, int, int]) -> list[StageShadow]:
    """Full shadows: (holder's stage, stage, iteration)."""
    return [StageShadow(replicas[holder][0], stage, iteration, full=True) for holder, stage, iteration in held]


def _logs(replicas: list[tuple[Endpoint, ...]], *since: int, seconds: float = 0.1) -> Logs:
    """Of the first replica of each stage, by stage; -1 for none."""
    held = {members[0].member: begin for members, begin in zip(replicas, since, strict=True) if members and begin >= 0}
    return Logs(held, stage_s=seconds, limit_s=10.0)


def test_a_lost_stage_is_replayed_where_its_full_shadow_and_both_logs_are_kept() -> None:
    """Shadow of 4, logs since 4 and 3, record 7: four iterations again; the ends are next to both
    ends of the body.
    """
    replicas, record = _replicas(1, 1, 0, 1), _record([1, 1, 1, 1])
    action = choose_recovery(2, replicas, record, RECOVERY, (), _full(replicas, (3, 2, 4)), _logs(replicas, -1, 4, -1, 3))
    assert isinstance(action, Replay)
    assert (action.first, action.last, action.iteration) == (2, 2, 4)
    assert (action.holders, action.before, action.after) == ((replicas[3][0],), replicas[1], replicas[3])
    assert "4 logged iterations" in action.reason
    at_the_end = _replicas(1, 1, 1, 0)
    action = choose_recovery(3, at_the_end, record, RECOVERY, (), _full(at_the_end, (2, 3, 6)), _logs(at_the_end, 5, -1, 6, -1))
    assert isinstance(action, Replay)
    assert (action.before, action.after) == (at_the_end[2], at_the_end[0])


def test_a_replay_from_packed_activations_says_that_it_is_near() -> None:
    """And one from activations as they crossed the wire, that it is exact."""
    replicas, record = _replicas(1, 1, 0, 1), _record([1, 1, 1, 1])
    logs, shadows = _logs(replicas, -1, 0, -1, 0), _full(replicas, (3, 2, 4))
    action = choose_recovery(2, replicas, record, RECOVERY, (), shadows, dataclasses.replace(logs, packed="bfloat16"))
    assert isinstance(action, Replay)
    assert "near, not exact" in action.reason
    assert "bfloat16" in action.reason
    assert "bit for bit" in choose_recovery(2, replicas, record, RECOVERY, (), shadows, logs).reason


def test_adjacent_lost_stages_are_replayed_from_one_iteration() -> None:
    """Stages 2 and 3: the newest iteration of which both have a shadow."""
    replicas, record = _replicas(1, 1, 0, 0, 1), _record([1] * 5)
    shadows = _full(replicas, (1, 2, 6), (1, 2, 4), (4, 3, 4))
    logs = _logs(replicas, -1, 2, -1, -1, 2)
    for stage in (2, 3):
        action = choose_recovery(stage, replicas, record, RECOVERY, (), shadows, logs)
        assert isinstance(action, Replay)
        assert (action.stage, action.first, action.last, action.iteration) == (stage, 2, 3, 4)
        assert action.holders == (replicas[1][0], replicas[4][0])
    assert isinstance(choose_recovery(2, replicas, record, RECOVERY, (), shadows[:1], logs), Restore)


def test_nothing_is_replayed_next_to_lost_ends() -> None:
    """The last stages and the ends, which come after them, are lost: a full shadow that is as new
    as the record is the state all the same.
    """
    replicas, record = _replicas(0, 1, 0, 0), _record([1] * 4)
    shadows = _full(replicas, (1, 2, 8), (1, 3, 8))
    for stage in (2, 3):
        action = choose_recovery(stage, replicas, record, RECOVERY, (), shadows, _logs(replicas, -1, 8, -1, -1))
        assert isinstance(action, Restore)
        assert (action.iteration, action.full) == (8, True)


def _vacant(stage: int, record: Record) -> Record:
    """The same where this stage has no blocks."""
    counts = tuple(0 if other == stage else 2 for other in range(1, len(record.stages)))
    return dataclasses.replace(record, split=SetSplit(counts, 3))


def test_of_a_stage_without_blocks_nothing_is_lost() -> None:
    """It is there again as of the present iteration, whoever is left, whatever the run keeps."""
    record = _vacant(2, _record([1, 1, 1, 1]))
    for replicas in (_replicas(1, 1, 0, 1), _replicas(0, 0, 0, 1)):
        action = choose_recovery(2, replicas, record, RECOVERY)
        assert isinstance(action, Restore)
        assert (action.iteration, action.full) == (8, True)
        assert "nothing of it is lost" in action.reason
    assert isinstance(choose_recovery(2, _replicas(1, 1, 1, 1), record, RECOVERY), Copy)
    assert isinstance(choose_recovery(2, _replicas(0, 0, 0, 0), record, RECOVERY), Fresh)


def test_a_stage_without_blocks_is_no_neighbour() -> None:
    """Others are merged across it, or are an end of the body beside it."""
    merged = choose_recovery(2, _replicas(1, 1, 0, 1, 1), _vacant(3, _record([1, 1, 1, 1, 1])), RECOVERY)
    assert isinstance(merged, Merge)
    assert (merged.before_stage, merged.after_stage) == (1, 4)
    end = choose_recovery(3, _replicas(1, 1, 1, 0, 1), _vacant(4, _record([1, 1, 1, 1, 1])), RECOVERY)
    assert isinstance(end, CopyNeighbour)
    assert end.donor_stage == 2


def test_a_replay_through_a_stage_without_blocks_needs_no_shadow_of_it() -> None:
    """Both are lost: the shadow of the one that has blocks is enough."""
    replicas = _replicas(1, 0, 0, 1)
    shadows = _full(_replicas(1, 1, 1, 1), (0, 1, 6))
    record = _vacant(2, _record([1, 1, 1, 1]))
    logs = _logs(_replicas(1, 1, 1, 1), 6, 6, 6, 6)
    action = choose_recovery(1, replicas, record, RECOVERY, (), shadows, logs)
    assert isinstance(action, Replay)
    assert (action.first, action.last, action.iteration) == (1, 2, 6)
    assert set(action.holders) == {shadows[0].holder}
    assert isinstance(choose_recovery(1, replicas, _record([1] * 4), RECOVERY, (), shadows, logs), Restore)


def test_a_replay_begins_with_the_newest_shadow() -> None:
    """Of two that are left, whatever the order in which they are told: fewer iterations are
    computed again.
    """
    replicas, record = _replicas(1, 1, 0, 1), _record([1] * 4)
    shadows = _full(replicas, (1, 2, 4), (3, 2, 6))
    for told in (shadows, shadows[::-1]):
        action = choose_recovery(2, replicas, record, RECOVERY, (), told, _logs(replicas, -1, 2, -1, 2))
        assert isinstance(action, Replay)
        assert (action.iteration, action.holders) == (6, (replicas[3][0],))


@pytest.mark.parametrize(
    ("since", "seconds"), [((-1, 5, -1, 3), 0.1), ((-1, 4, -1, -1), 0.1), ((-1, 4, -1, 4), 3.0)], ids=["gap", "none", "too long"]
)
def test_without_whole_logs_or_time_a_full_shadow_is_taken_as_it_is(since: tuple[int, ...], seconds: float) -> None:
    """A log that begins after the shadow, none at all, or a replay of 12 s where 10 are allowed."""
    replicas, record = _replicas(1, 1, 0, 1), _record([1, 1, 1, 1])
    logs = _logs(replicas, *since, seconds=seconds)
    action = choose_recovery(2, replicas, record, RECOVERY, (), _full(replicas, (3, 2, 4)), logs)
    assert isinstance(action, Restore)
    assert action.full


def test_a_run_says_which_recovery_method_is_its_best() -> None:
    """`restore` takes the shadow as it is, `merge` has none; replay needs no log where the shadow
    is of this iteration.
    """
    replicas, record = _replicas(1, 1, 0, 1), _record([1, 1, 1, 1])
    given = (_full(replicas, (3, 2, 4)), _logs(replicas, -1, 4, -1, 3))
    restored = choose_recovery(2, replicas, record, dataclasses.replace(RECOVERY, best="restore"), (), *given)
    assert isinstance(restored, Restore)
    merged = choose_recovery(2, replicas, record, dataclasses.replace(RECOVERY, best="merge"), (), *given)
    assert isinstance(merged, Merge)
    now = choose_recovery(2, replicas, record, RECOVERY, (), _full(replicas, (3, 2, 8)), _logs(replicas, -1, -1, -1, -1))
    assert isinstance(now, Replay)
    assert now.iteration == 8


def test_a_plain_shadow_is_taken_as_it_is_beside_whole_logs_too() -> None:
    """A replay of full shadows comes before a plain one that is younger; among shadows as they are
    the youngest is taken.
    """
    replicas, record = _replicas(1, 1, 0, 1), _record([1, 1, 1, 1])
    plain, full, logs = StageShadow(replicas[1][0], 2, 7), _full(replicas, (3, 2, 5)), _logs(replicas, -1, 1, -1, 3)
    assert isinstance(choose_recovery(2, replicas, record, RECOVERY, (), [plain], logs), Restore)
    assert isinstance(choose_recovery(2, replicas, record, RECOVERY, (), [plain, *full], logs), Replay)
    action = choose_recovery(2, replicas, record, RECOVERY, (), [plain, *full])
    assert isinstance(action, Restore)
    assert (action.iteration, action.full) == (7, False)


def test_every_recovery_method_can_be_forced() -> None:
    """Whatever is kept, no method before the best one is taken, and the later ones are there when
    it is not possible.
    """
    replicas, record = _replicas(1, 1, 0, 1), _record([1, 1, 1, 1])
    given = (_full(replicas, (3, 2, 4)), _logs(replicas, -1, 3, -1, 3))
    kinds = {"replay": Replay, "restore": Restore, "merge": Merge}
    for best, kind in kinds.items():
        assert isinstance(choose_recovery(2, replicas, record, dataclasses.replace(RECOVERY, best=best), (), *given), kind)
    random = dataclasses.replace(RECOVERY, best="merge", merge=MergeMode.RANDOM)
    assert isinstance(choose_recovery(2, replicas, record, random, (), *given), Fresh)
