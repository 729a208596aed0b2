"""The pure parts of the benchmarks of joining, churn and failures, and a rehearsal of churn that is
too short to say anything.
"""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import churn, churn_live, flexitrain, join, join_table, keeping, recovery
from benchmarks.churn_rehearsal import STAGE, Story, Trace, ideal_tokens, live_counts, play
from benchmarks.live import Commits, Said
from benchmarks.plain_streams import Kind, pull
from swarmfree.model.layout import layout_of
from swarmfree.policy.retention import logged_iteration_count
from swarmfree.protocol.events import IterationCommitted, Opened
from swarmfree.protocol.manifest import RecoverySection, RingSection


def _committed(iteration: int, tokens: int = 100) -> IterationCommitted:
    return IterationCommitted(iteration, 0, 1.0, None, tokens, 1.0, [], "")


def _join(number: int, *, retention: float = 1.0, foreign_cores: float = 0.0) -> join_table.Join:
    return join_table.Join(
        begun_s=10.0,
        up_s=14.0,
        placed_s=14.5,
        built_s=16.0,
        member_s=16.0,
        contributed_s=17.0 + number,
        received_bytes=1,
        digest="ab",
        agreed=2,
        before=100.0,
        during=99.5,
        starting=99.0,
        membership=98.0,
        sharing=80.0,
        after=80.0,
        overall=100.0 * retention,
        cpu_before=1.0,
        cpu_during=1.0,
        own_cpu_s=(3.0, 1.0),
        foreign_cores=foreign_cores,
        control=0.97,
    )


# ---- commits -------------------------------------------------------------------------------------


def test_commits_are_counted_once_and_by_share() -> None:
    """Tokens grow evenly between two commits, and a record that two coordinators told of counts
    once.
    """
    events = [(0.0, _committed(0)), (2.0, _committed(1)), (2.1, _committed(1)), (3.0, _committed(2, 50))]
    commits = Commits.of([Said(time_s, "source", event) for time_s, event in events])
    assert commits.times_s == (0.0, 2.0, 3.0)
    assert [commits.by(t) for t in (0.0, 1.0, 2.0, 2.5, 3.0)] == [0.0, 50.0, 100.0, 125.0, 150.0]
    assert commits.rate(1.0, 3.0) == 50.0
    again = [*events, (5.0, replace(_committed(1), lineage="x")), (6.0, replace(_committed(2, 50), lineage="x"))]
    assert Commits.of([Said(time_s, "source", event) for time_s, event in again]).times_s == (0.0, 5.0, 6.0), "done again, later"
    for outside_s in (-0.1, 3.1):
        with pytest.raises(ValueError, match="outside the commits"):
            commits.by(outside_s)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_parts_of_the_time_add_up(gaps_s: list[float], one: float, other: float) -> None:
    """What is committed in two halves of a time is what is committed in all of it."""
    times_s = [0.0]
    for gap_s in gaps_s:
        times_s.append(times_s[-1] + gap_s)
    commits = Commits(tuple(times_s), (7,) * len(times_s))
    middle_s, end_s = sorted((one * times_s[-1], other * times_s[-1]))
    assert 0 <= commits.by(middle_s) <= commits.by(end_s) <= 7 * len(gaps_s) + 1e-9
    assert commits.by(times_s[-1]) == pytest.approx(7 * len(gaps_s))


# ---- turns ---------------------------------------------------------------------------------------


def test_only_the_time_in_turns_counts() -> None:
    """A swarm that is stopped for half of the time is no slower, and what it committed before and
    afterwards is left out.
    """
    turns = [(10.0, 11.0), (12.0, 13.0), (14.0, 15.0)]
    assert [keeping.running_s(turns, t) for t in (9.0, 10.5, 11.5, 12.5, 15.0, 16.0)] == [0.0, 0.5, 1.0, 1.5, 3.0, 3.0]
    commits = Commits((8.0, 10.5, 11.0, 12.5, 14.5, 20.0), (100,) * 6)
    speed = keeping.speed_of(commits, turns, 0.3)
    assert speed.rate == pytest.approx(300 / 2.0)
    assert speed.cpu_us == pytest.approx(0.3e6 / (150 * 3))


def test_keeping_is_set_over_a_swarm_that_keeps_nothing() -> None:
    """What is kept is what a run with defaults keeps, copies of the ends and snapshots among it;
    `--without-ends` and `--without-snapshots` take them from both sides.
    """
    for name, side in keeping.SIDES.items():
        kept = side.recovery.ends_copies, side.recovery.keeps_shadows
        assert kept == ((RecoverySection().ends_copies, True) if side.over else (0, False)), name
        assert keeping.without_ends(side).recovery.ends_copies == 0
        assert keeping.without_ends(side).recovery.keeps_shadows == side.recovery.keeps_shadows
        assert side.recovery.snapshot_every == (RecoverySection().snapshot_every if side.over else 0), name
        assert keeping.without_snapshots(side).recovery == replace(side.recovery, snapshot_every=0)
    assert 2 * RecoverySection().snapshot_every <= keeping.MEASURED, "snapshots are written while it is measured"


def test_keeping_tells_the_wire_and_the_fullest_peer() -> None:
    """Medians of the rounds, the worst of them beside, but the largest share of the limit of any;
    and a tight limit is one that what is logged otherwise does not fit in.
    """
    off = keeping.Speed(100.0, 10.0, 1000.0, 0.0)
    pairs = [(keeping.Speed(99.0, 10.1, 1100.0, kept), off) for kept in (100.0, 190.0, 120.0)]
    pairs[1] = (replace(pairs[1][0], rate=93.0, cpu_us=10.7), off)
    assert keeping.report({"tight": pairs}) == {
        "tight_kept_over_limit": 0.95,
        "tight_cpu_over_off": 1.01,
        "tight_cpu_over_off_most": 1.07,
        "tight_wire_over_off": 1.1,
        "tight_over_off": 0.99,
        "tight_over_off_least": 0.93,
    }
    manifest = keeping.run_of(keeping.SIDES["tight"])
    tokens = manifest.batch.microbatches * manifest.batch.rows * manifest.model.tokens_per_row
    log_mb = logged_iteration_count(manifest) * 2 * tokens * manifest.model.width * 4 / 1e6
    assert log_mb > keeping.TIGHT_MB > keeping.LOG_MEMORY_MB


# ---- join ----------------------------------------------------------------------------------------


def test_the_joined_stage_is_large_enough() -> None:
    """The stage that is joined has at least 100 MB of weights and moments, as its layout says."""
    slots = layout_of(join.RUN, join.STAGE).slots
    assert 12 * sum(slot.stop - slot.start for slot in slots) == join_table.state_bytes(join.RUN.model)
    assert join_table.state_bytes(join.RUN.model) >= 100e6


def test_a_first_contribution_is_a_whole_iteration() -> None:
    """A peer that came in the middle of an iteration has not surely contributed to it; in the next
    one it has.
    """
    plans = [(4, ["a"]), (5, ["a"]), (5, ["a", "new"])]
    opened = [Opened(iteration, 0, "", [["source"], members]) for iteration, members in plans]
    assert join.first_contribution(opened, "new") is None
    assert join.first_contribution([*opened, Opened(6, 0, "", [["source"], ["a", "new"]])], "new") == 6
    assert join.first_contribution(opened, "source") == 4


def test_joins_report_the_worse_medians() -> None:
    """With the joins that other programs disturbed or without them, as long as enough others were
    made.
    """
    joins = [
        _join(0, retention=0.5, foreign_cores=1.0),
        _join(1, retention=0.96),
        _join(2, retention=0.98),
        _join(3, retention=0.97),
    ]
    told = {"disturbed": 1, "retention_least": 0.5, "retention_to_plan": 0.995, "first_contribution_s_max": 10.0}
    assert join_table.report(joins, 3) == {**told, "first_contribution_s": 9.0, "retention": 0.965}
    assert join_table.report(joins, 4) == {**told, "first_contribution_s": 8.5, "retention": 0.965}
    better = [*joins[1:], _join(0, retention=0.99, foreign_cores=1.0)]
    assert join_table.report(better, 3)["retention"] == 0.97, "a disturbed join makes nothing better"
    assert join.RINGS[join.DEFAULT] == RingSection(), "as a run with defaults has it"
    assert sum(joins[0].spans_s) == pytest.approx(joins[0].seconds)
    console = Console(width=join.TABLE_WIDTH, file=io.StringIO(), record=True)
    console.print(join_table.table_of(join.RUN, joins, join.DEFAULT))
    text = console.export_text()
    assert "(1)" in text
    assert "0.970" in text


@pytest.mark.live_benchmark
@pytest.mark.timeout(180)
async def test_a_joiner_is_measured(tmp_path: Path, fork_server: tuple[str, ...]) -> None:
    """A real peer joins a real swarm of a tiny model: its times are in order, its state is its
    sibling's, the others went on.
    """
    manifest = replace(join.RUN, model=join.QUICK_MODEL)
    own = ("/usr/bin/env", f"TMPDIR={tmp_path}", *fork_server)
    (found,) = await join.measure(manifest, tmp_path / "run", joins=1, before_s=1.0, attempts=1, fork_server=own)
    times = (found.begun_s, found.up_s, found.placed_s, found.built_s, found.member_s, found.contributed_s)
    assert list(times) == sorted(times)
    assert found.agreed == 2
    assert len(found.digest) == 64
    assert found.received_bytes >= join_table.state_bytes(manifest.model)
    assert found.before > 0
    assert found.during > 0


# ---- recovery ------------------------------------------------------------------------------------


@pytest.mark.live_benchmark
@pytest.mark.timeout(180)
async def test_a_lost_stage_is_measured(tmp_path: Path, fork_server: tuple[str, ...]) -> None:
    """A real stage of a tiny model is lost and merged: the times are in order, two neighbours'
    weights came, a standby's memory was watched.
    """
    (model,) = recovery.QUICK_MODELS.values()
    own = ("/usr/bin/env", f"TMPDIR={tmp_path}", *fork_server)
    (found,) = await recovery.measure(recovery.run_of(model, full=False), tmp_path / "run", 1, full=False, fork_server=own)
    assert 0 < found.noticed_s < found.decided_s < found.built_s < found.resumed_s
    assert found.action == "Merge"
    assert found.received_bytes == 2 * recovery.FLOAT_BYTES * recovery.stage_parameters(model)


@pytest.mark.live_benchmark
async def test_plain_streams_of_every_kind_carry_all_bytes() -> None:
    """Each kind of plain streams brings both servers' bytes to one process, or its rate would be an
    error.
    """
    for kind in Kind:
        assert await pull(3 << 20, kind) > 0


def test_the_least_kind_rate_and_memory_are_reported() -> None:
    """The transfer is judged by all the time that others waited, over the fastest plain streams;
    memory over weights and moments alone.
    """
    (model,) = recovery.QUICK_MODELS.values()
    count = recovery.stage_parameters(model)
    loss = recovery.Loss(
        noticed_s=0.1,
        decided_s=1.0,
        built_s=2.0,
        resumed_s=3.0,
        build_s=0.5,
        received_bytes=8 * count,
        grown_bytes=18 * count,
        action="Merge",
    )
    rates = {Kind.EQUAL: 10.0 * count, Kind.THREADED: 16.0 * count, Kind.FRESH: 8.0 * count, Kind.DISCARDED: 32.0 * count}
    rates |= {Kind.ENCRYPTED: 20.0 * count, Kind.ENCRYPTED_THREADED: 12.5 * count}
    found = recovery.report(model, [loss], rates)
    assert found["transfer_over_plain"] == 0.5
    assert found["transfer_over_encrypted"] == 0.4
    assert found["transfer_over_fresh"] == 2.0
    assert found["transfer_over_discarded"] == 0.5
    assert (found["memory_over_state"], found["memory_over_gradient_too"]) == (1.5, 1.125)
    assert recovery.run_of(model, full=False).ring.part_bytes == 1 << 20
    longer = replace(loss, resumed_s=9.0)
    told = recovery.report(model, [loss, longer, loss], rates)
    assert (told["resumed_s"], told["resumed_s_max"]) == (3.0, 9.0)
    slower = replace(loss, built_s=5.0)
    told = recovery.report(model, [loss, slower, loss], rates)
    assert (told["transfer_over_plain"], told["transfer_over_plain_least"]) == (0.5, 0.125)


def test_stages_are_lost_in_every_part_of_an_iteration() -> None:
    """One loss comes in the middle, several are spread: not all of them come as an iteration is
    opened, when nobody's device is busy.
    """
    assert recovery.strike_share(0, 1) == 0.5
    assert [recovery.strike_share(number, 3) for number in range(3)] == pytest.approx([1 / 6, 1 / 2, 5 / 6])


# ---- churn ---------------------------------------------------------------------------------------


def test_the_ideal_is_the_integral_of_live_capacity() -> None:
    """Who comes and goes changes the capacity from that moment on; nobody trains nothing."""
    changes = [(0.0, +1), (0.0, +1), (4.0, -1), (7.0, -1), (8.0, +1), (12.0, +1)]
    live = live_counts(changes, 1.0, 11.0)
    assert live == ((0.0, 2), (3.0, 1), (6.0, 0), (7.0, 1))
    assert ideal_tokens(live, 10.0, {1: 10.0, 2: 18.0}) == pytest.approx(3 * 18 + 3 * 10 + 0 + 3 * 10)
    with pytest.raises(KeyError):
        ideal_tokens(((0.0, 3),), 1.0, {1: 10.0})


def test_ratios_are_of_all_seeds_together() -> None:
    """Tokens of all rehearsals over the ideal of all; against linear speed-up it is lower where
    speed-up is not linear.
    """
    stories = (Story(10.0, 150, ((0.0, 2),), (1, 0, 1)), Story(10.0, 90, ((0.0, 1),), (0, 1, 1)))
    row = churn.Row(30.0, stories, {1: 10.0, 2: 18.0})
    assert row.ratio == pytest.approx(240 / 280)
    assert row.linear_ratio == pytest.approx(240 / 300)
    assert row.live_mean == pytest.approx(1.5)


def test_two_replicas_rehearse_faster_than_one() -> None:
    """The device is the bottleneck: with it two replicas train nearly twice what one does, and one
    as much as its engine's costs say.
    """
    speeds = {count: play(Trace(1, count, 6, 1.0), 8, calm=True).tokens_per_s for count in (1, 2)}
    assert 0.8 * 256 / 0.21 < speeds[1] < 256 / 0.21
    assert 1.6 < speeds[2] / speeds[1] <= 2.0


def test_a_trace_is_the_same_again() -> None:
    """A rehearsed trace has falls, its ratio lies below the ideal, and the same seed tells the same
    story.
    """
    trace = Trace(2, 3, 24, 6.0, away_min_s=3.0, away_max_s=6.0)
    story = play(trace, 8, calm=False)
    assert sum(story.falls[:2]) > 0
    assert play(trace, 8, calm=False) == story
    speeds = {count: play(Trace(1, count, 6, 1.0), 8, calm=True).tokens_per_s for count in range(1, 4)}
    assert 0.3 < churn.Row(6.0, (story,), speeds).ratio < 1.02
    console = Console(width=churn.TABLE_WIDTH, file=io.StringIO(), record=True)
    console.print(churn.rehearsed_table([churn.Row(6.0, (story,), speeds)]))
    assert "6 s" in console.export_text()


def test_a_real_story_is_told() -> None:
    """The real run's ratio is its tokens over the integral of its live capacity, and its table
    shows it.
    """
    story = churn_live.LiveStory({1: 10.0, 2: 16.0}, 10.0, 117.0, ((0.0, 2), (5.0, 1)), 1, 0, (0.5, 0.7), 0.0)
    assert story.ratio == pytest.approx(0.9)
    assert story.live_mean == pytest.approx(1.5)
    console = Console(width=churn.TABLE_WIDTH, file=io.StringIO(), record=True)
    console.print(churn.live_table([story]))
    text = console.export_text()
    assert "0.900" in text
    assert "0.70 s" in text


def test_churn_is_judged_by_the_least_of_all() -> None:
    """Virtual and real time stand beside each other, and the last figure is the lowest of both, of
    any seed and any real run.
    """
    seeds = tuple(Story(10.0, tokens, ((0.0, 2),), (1, 0, 1)) for tokens in (171, 162, 180))
    row, often = churn.Row(30.0, seeds, {1: 10.0, 2: 18.0}), churn.Row(10.0, seeds[1:2], {1: 10.0, 2: 36.0})
    real = [
        churn_live.LiveStory({1: 10.0, 2: 16.0}, 10.0, tokens, ((0.0, 2), (5.0, 1)), 1, 0, (0.5,), 0.0)
        for tokens in (117.0, 104.0)
    ]
    found = churn.report([row, often], real)
    assert found == {
        "rehearsed_every_30_s": 0.95,
        "rehearsed_every_10_s": 0.45,
        "real_fall_every_s": 10.0,
        "real_longest_pause_s": 0.5,
        "rehearsed_ratio_to_ideal": 0.95,
        "rehearsed_least": 0.9,
        "real_ratio_to_ideal": 0.85,
        "real_least": 0.8,
        "ratio_to_ideal": 0.8,
    }
    assert list(found)[-1] == "ratio_to_ideal"
    assert "ratio_to_ideal" not in churn.report([row], [])


def test_two_replicas_are_all_that_are_watched() -> None:
    """The real run measures the speed of every number of replicas that its trace can have."""
    assert churn_live.RUN.stages.replicas_max == churn_live.REPLICAS == 2
    assert churn_live.RUN.stages.body == STAGE


# ---- flexitrain ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_failures_lie_within_the_run(seed: int) -> None:
    """One failure in the first half, several apart from each other in the first three quarters,
    none in the control; at any moment, or at commits.
    """
    found = flexitrain.plans(flexitrain.ITERATIONS, flexitrain.FAULTS, seed)
    assert found[flexitrain.NONE].kills == ()
    ((lost, _),) = found[flexitrain.LOST].kills
    assert 0 < lost < flexitrain.ITERATIONS // 2
    returned = found[flexitrain.RETURNED]
    assert returned.is_back
    assert len(returned.kills) == flexitrain.FAULTS
    assert all(before < after for (before, _), (after, _) in pairwise(returned.kills))
    assert returned.kills[-1][0] < 3 * flexitrain.ITERATIONS // 4
    for name in (flexitrain.LOST, flexitrain.RETURNED):
        at_commits = found[name + flexitrain.AFTER_COMMIT].kills
        assert all(0 < share < 1 for _, share in found[name].kills)
        assert at_commits == tuple((iteration, 0.0) for iteration, _ in found[name].kills)


def test_gaps_are_relative_to_the_training_without_failures() -> None:
    """Loss gap and throughput kept are over the calm training's; the table has the paper's figures
    below.
    """
    calm = flexitrain.Story(2.0, 1000.0, 0, 0, 0, (), 0.0)
    lost = replace(calm, loss=2.01, tokens_per_s=800.0, kills=1, missed_s=(0.1,))
    stories = {flexitrain.NONE: calm, flexitrain.LOST: lost, flexitrain.RETURNED: replace(calm, loss=1.99, back=3)}
    at_commits = {name + flexitrain.AFTER_COMMIT: calm for name in (flexitrain.LOST, flexitrain.RETURNED)}
    assert flexitrain.report(stories | at_commits) == {
        "one_lost_after_commit": {"loss_gap": 0.0, "throughput_kept": 1.0},
        "killed_and_back_after_commit": {"loss_gap": 0.0, "throughput_kept": 1.0},
        "one_lost": {"loss_gap": 0.005, "throughput_kept": 0.8},
        "killed_and_back": {"loss_gap": 0.005, "throughput_kept": 1.0},
        "worst": {"loss_gap": 0.005, "throughput_kept": 0.8},
    }
    console = Console(width=flexitrain.TABLE_WIDTH, file=io.StringIO(), record=True)
    console.print(flexitrain.table_of(flexitrain.RUN, stories))
    text = console.export_text()
    assert "-0.3755%" in text
    assert "+0.5000%" in text
