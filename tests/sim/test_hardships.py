"""What most seeds are spared: each hardship is absent in most seeds and alone in some, and really
happens where it is drawn.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from swarmfree.protocol.manifest import TimingSection
from swarmfree.sim.faults import FaultPlan, calm_iteration
from swarmfree.sim.hardships import HARDSHIPS, draw_setup, harden, hardships_of
from swarmfree.sim.rehearsal import RehearsalResult, rehearse
from swarmfree.sim.setup import Setup, draw_usual
from tests.scenarios.scenario_world import STEADY, lines, swarm, unhurried


def hard(faults: FaultPlan, **shape: int) -> Setup:
    """A small swarm of two sources with these faults in every iteration."""
    return swarm(sources=2, faults=faults, **shape)  # type: ignore[arg-type]


def counted(setup: Setup, kinds: Sequence[str], seeds: int = 6) -> Counter[str]:
    """Faults by kind of a few seeds, no more than it takes to see all of these kinds; what becomes
    of the swarm is not looked at.
    """
    found = Counter[str]()
    for seed in range(seeds):
        found += rehearse(seed, setup=setup).statistics.faults
        if all(found[kind] for kind in kinds):
            break
    return found


@functools.cache
def of_a_calm_seed() -> Counter[str]:
    """Faults by kind where nothing is drawn."""
    return rehearse(0, setup=hard(STEADY)).statistics.faults


def test_a_hardship_is_absent_in_most_seeds_and_alone_in_some() -> None:
    """Of 2,000 seeds each meets a tenth or so, and each is the only one of some; the seed alone
    says which.
    """
    drawn = [hardships_of(seed) for seed in range(2000)]
    met = Counter(name for names in drawn for name in names)
    alone = Counter(names[0] for names in drawn if len(names) == 1)
    for name, hardship in HARDSHIPS.items():
        assert 0.75 * hardship.chance < met[name] / 2000 < 1.3 * hardship.chance < 0.25, name
        assert alone[name] >= 5, name
    assert drawn[:50] == [hardships_of(seed) for seed in range(50)]


def test_without_hardships_a_seed_is_as_usual() -> None:
    """What a seed draws besides does not depend on its hardships."""
    spared = [seed for seed in range(60) if not hardships_of(seed)]
    assert spared
    assert all(draw_setup(seed) == draw_usual(seed) for seed in spared)
    assert all(harden(draw_usual(seed), seed, ()) == draw_usual(seed) for seed in range(60))


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"slow_link_rate": 1.0}, ["slow link"]),
        ({"split_rate": 0.5, "split_min_s": 1.0, "split_max_s": 5.0}, ["split"]),
        ({"stranger_share": 1.0, "crash_rate": 1.0}, ["stranger"]),
        ({"wrong_answer_rate": 0.02}, ["wrong answer"]),
        ({"device_error_rate": 1.0}, ["device error"]),
        ({"shelf_rate": 1.0}, ["slow shelf", "shelf refuses"]),
        ({"directory_rate": 1.0}, ["slow directory", "empty directory"]),
        ({"two_stages_rate": 0.7, "stages_down_max": 2}, ["two stages lost"]),
        ({"reset_rate": 1.0}, ["reset"]),
        ({"replaced_share": 0.0, "crash_rate": 0.5}, ["nobody comes"]),
        ({"ending_rate": 4.0}, ["kill in the ending"]),
        ({"full_disk_rate": 1.0}, ["full disk"]),
    ],
)
def test_a_rate_brings_its_fault_about(changes: dict[str, float], kinds: list[str]) -> None:
    """What the plan draws happens, and is counted; without it, nothing of the kind does."""
    found = counted(hard(replace(STEADY, **changes)), kinds)  # type: ignore[arg-type]
    assert all(found[kind] > 0 for kind in kinds), found
    assert not any(of_a_calm_seed()[kind] for kind in kinds)


def test_the_only_replica_of_a_stage_stands_still_or_is_cut_off() -> None:
    """Where a stage has one replica, it is frozen, or the coordinator cannot reach it, for exactly
    three seconds.
    """
    faults = replace(STEADY, lone_freeze_rate=0.5, lone_cut_rate=0.5)
    results = [rehearse(seed, setup=hard(faults, replicas=1)) for seed in range(4)]
    found = sum((result.statistics.faults for result in results), Counter[str]())
    assert found["freeze of the only replica"] > 0
    assert found["cut from the only replica"] > 0
    still = [line for result in results for line in lines(result, "stands still")]
    assert all("for 3.000 s" in line for line in still)
    assert not rehearse(0, setup=hard(faults, replicas=2)).statistics.faults["freeze of the only replica"]


@pytest.mark.parametrize(("seed", "names"), [(2, {"ending", "stranger"}), (13, {"lone", "stranger"})])
def test_a_hard_story_is_a_function_of_its_seed(seed: int, names: set[str]) -> None:
    """Played twice, every line is the same. Transfers and links are among those that are played in
    two processes, see `test_rehearsals`.
    """
    assert names <= set(hardships_of(seed))
    first, second = rehearse(seed), rehearse(seed)
    assert (first.digest, first.transcript) == (second.digest, second.transcript)


def test_without_calm_faults_go_on_until_after_the_last_commit() -> None:
    """The closing evaluation has faults, too; a few seconds after it was opened everything is
    mended, so that the run can end.
    """
    faults = replace(STEADY, calm_share=1.0, crash_rate=1.0, cut_rate=1.0)
    assert calm_iteration(faults, 4) == 5
    results = [rehearse(seed, setup=hard(faults)) for seed in range(3)]
    late = [result for result in results if _fell_after_the_last_commit(result)]
    assert late
    assert all(result.statistics.iterations == 4 for result in results)


def _fell_after_the_last_commit(result: RehearsalResult) -> bool:
    committed = next(index for index, line in enumerate(result.transcript) if "IterationCommitted iteration=3" in line)
    return any("killed" in line or "network  " in line for line in result.transcript[committed:])


def test_a_split_lasts_as_long_as_drawn() -> None:
    """Two halves of a swarm that lasts minutes hear nothing of each other for up to three minutes,
    and become one again.
    """
    faults = replace(STEADY, split_rate=0.5, split_min_s=130.0, split_max_s=180.0, ends_spared=False, calm_share=1.0)
    setup = replace(unhurried(hard(faults), iterations=3), work_min_s=0.8, work_max_s=1.6)
    result = rehearse(0, setup=setup)
    assert result.statistics.faults["split"] > 0
    assert result.statistics.virtual_s > 100
    assert result.violation is None


def test_no_commit_is_due_while_neither_side_of_a_split_can_serve_every_stage() -> None:
    """Five peers for four stages are split for longer than a commit may take to come: nobody is
    held to that, and all iterations commit after it.
    """
    faults = replace(STEADY, split_rate=1.0, split_min_s=40.0, split_max_s=50.0, ends_spared=False)
    setup = replace(hard(faults, replicas=1, standbys=0), progress_bound_s=15.0)
    result = rehearse(3, setup=setup)
    assert result.statistics.faults["split"] > 0
    assert result.violation is None, result.violation
    assert result.statistics.iterations == 4


def test_where_nobody_comes_enough_peers_are_left() -> None:
    """However many deaths are drawn, as many peers live as there are stages, and one of them can
    feed.
    """
    faults = replace(STEADY, replaced_share=0.0, crash_rate=3.0, stage_loss_rate=1.0, source_crash_rate=1.0)
    for seed in range(3):
        result = rehearse(seed, setup=hard(faults))
        started, killed = lines(result, " starts as "), lines(result, " killed: ")
        assert killed
        assert len(started) == 9
        assert len(started) - len(killed) >= 4
        assert len([line for line in started if "feeder" in line]) > len(
            [line for line in killed if "Peer01" in line or "Peer02" in line]
        )


def test_where_nobody_comes_no_device_is_so_slow_that_too_few_are_left() -> None:
    """A peer ends when its device is so slow that it seems to hang: that is drawn only where the
    peer can be spared.
    """
    faults = replace(STEADY, replaced_share=0.0, slow_rate=2.0, slow_min_s=5.0)
    for standbys, ends in ((0, False), (2, True)):
        setup = unhurried(swarm(faults=faults, replicas=1, standbys=standbys), iterations=6)
        manifest = replace(setup.manifest, timing=replace(setup.manifest.timing, stuck_s=0.6))
        results = [rehearse(seed, setup=replace(setup, manifest=manifest, work_max_s=0.3)) for seed in range(3)]
        assert [result.violation for result in results] == [None, None, None]
        assert any(lines(result, "device is stuck") for result in results) == ends


def test_whoever_cannot_write_has_a_sibling_that_can() -> None:
    """A disk is full only for as long as another replica could write: a stage of one replica is
    written all the same.
    """
    alone = rehearse(1, setup=hard(replace(STEADY, full_disk_rate=1.0), replicas=1))
    assert alone.statistics.faults["full disk"] == 1
    assert len(lines(alone, "WeightsWritten")) == 4


def test_setups_of_hardships_are_as_they_say() -> None:
    """Limits are those of the product, standbys can feed, only replicas are alone, and a run that
    is split lasts minutes.
    """
    usual, setups = draw_usual(1), {}
    for name in HARDSHIPS:
        seed = next(seed for seed in range(1000) if name in hardships_of(seed))
        setups[name] = harden(draw_usual(seed), seed, (name,))
    assert usual.manifest.timing != TimingSection()
    assert setups["shipped limits"].manifest.timing == TimingSection()
    assert setups["feeding standby"].feeding_standbys == 1
    assert 0 < setups["transfer"].faults.byte_s * 48 <= 0.4
    assert setups["splits"].faults.split_max_s == 180.0
    assert 10 * usual.work_min_s <= setups["slowed"].work_min_s <= 40 * usual.work_min_s
    assert setups["nobody"].faults.replaced_share == 0
    quiet = setups["quiet"].faults
    assert not any((quiet.crash_rate, quiet.freeze_rate, quiet.late_rate, quiet.request_loss_rate, quiet.cut_rate))


def test_a_run_of_a_hundred_iterations_is_drawn_and_ends() -> None:
    """Caches, ages and expiries are reached; the seeds of long runs are the same swarms."""
    setup = draw_setup(3, iterations=100)
    assert setup.manifest.run.iterations == 100
    assert setup.manifest.stages == draw_setup(3).manifest.stages
    result = rehearse(3, setup=setup)
    assert result.violation is None, result.details
    assert result.statistics.iterations == 100
