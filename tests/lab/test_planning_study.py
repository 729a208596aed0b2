"""The planning study, small: what it plays, what it says, and what it writes."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import json
from pathlib import Path

import pytest

from swarmfree.lab.study import planning_study
from swarmfree.lab.study.goodput import PlayedTrace, play_trace
from swarmfree.lab.study.planning_report import point_curves, time_curves
from swarmfree.lab.study.planning_results import (
    PlanningRow,
    flexitrain_sentence,
    ideal_s,
    last_line,
    rows_of,
    sentences,
    size_note,
)
from swarmfree.lab.study.planning_scenarios import (
    AWAY,
    BASELINES,
    LARGE,
    OOBLECK,
    RECYCLE_SUM,
    REJOIN,
    SIZES,
    SWARM,
    SYSTEMS,
    Scenario,
    SystemMakers,
    SystemPlays,
    cluster_of,
    scenarios_of,
)
from swarmfree.lab.study.planning_study import PlanningStudy
from swarmfree.protocol.errors import ConfigError

MAKERS = SystemMakers()
SHORT = Scenario(AWAY, 10, 8, "stays away", 0.1, 1.0)
FEW = tuple(dataclasses.replace(SHORT, x=rate, rate_per_hour=rate / 100, hours=0.3) for rate in (5, 10))


def test_every_scenario_has_a_name_and_a_trace_of_its_own() -> None:
    """No two scenarios have one name, the sizes end where they are told to, and systems of one kind
    of trace are played the same ones, whatever their transitions.
    """
    full, quick = scenarios_of(quick=False, nodes_max=10_000), scenarios_of(quick=True, nodes_max=16)
    assert len({scenario.name for scenario in full}) == len(full) > len(quick)
    assert max(s.nodes for s in full) == 10_000
    assert [s.nodes for s in quick if s.group == SIZES] == [16]
    first, second = (s for s in full if s.group.startswith("seconds") and s.x in {0.0, 300.0})
    assert first.trace(3) == second.trace(3) != first.trace(4)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_trains_under_every_kind_of_trace(name: str) -> None:
    """It completes something, and no more than nodes that always compute."""
    for kind in ("stays away", "rejoins", "spot"):
        scenario = dataclasses.replace(SHORT, kind=kind, rate_per_hour=0.2)
        settings = MAKERS.settings(name, scenario)
        make = next(iter(settings.values()))
        played = play_trace(make(1), 8, scenario.trace(1), 3600)
        assert 0.1 < played.iterations * ideal_s(MAKERS.step_times(8), 8) / 3600 < 1


def test_a_system_without_losses_does_what_its_healthy_iteration_says() -> None:
    """Three hours without an event are that many iterations, for all but those that write
    checkpoints, which take their time.
    """
    for name in SYSTEMS:
        *_, make = MAKERS.settings(name, SHORT).values()
        iteration_s = make(1).begin(range(8)).iteration_s
        assert play_trace(make(1), 8, (), 3600).iterations == pytest.approx(3600 / iteration_s, rel=0.03)


def played(*iterations: float) -> SystemPlays:
    """One play each."""
    return SystemPlays("4 stages", 20.0, tuple(PlayedTrace(each, 36.0, 1.0, ((0.0, 0.1),)) for each in iterations))


def rows(x: float, swarm: tuple[float, ...], other: tuple[float, ...], group: str = AWAY) -> list[PlanningRow]:
    """Of a scenario in which all baselines did the same."""
    scenario = Scenario(group, x, 32, "stays away", x / 100, 1.0)
    systems = {SWARM: played(*swarm)} | {name: played(*other) for name in BASELINES}
    return rows_of(scenario, systems, MAKERS.step_times(32))


def test_a_difference_counts_from_two_standard_errors_on() -> None:
    """Differences are those of the same traces: 20 more in each of three is ahead, though traces
    differ by more than that; one that is 20 more and 20 less is level.
    """
    ahead = rows(10, (120, 220, 321), (100, 200, 300))[1]
    assert (ahead.verdict, ahead.traces) == ("ahead", 3)
    assert ahead.ratio == pytest.approx(661 / 600)
    assert 0 < ahead.ratio_error < 0.05
    assert rows(10, (100, 200), (0, 0))[1].ratio == float("inf")
    assert ahead.difference / ahead.difference_error > 20
    assert rows(10, (120, 180), (100, 200))[1].verdict == "level"
    assert rows(10, (100, 200), (120, 221))[1].verdict == "behind"
    share = 100 * ideal_s(MAKERS.step_times(32), 32) / 3600
    assert rows(10, (100, 100), (100, 100))[0].goodput == pytest.approx(share)


def test_the_page_says_where_the_swarm_is_not_ahead() -> None:
    """The points at which it is behind, by name, and why; the ratios beside the paper's, and that
    those cannot be reproduced; the last line has them as well.
    """
    both = [*rows(10, (120, 221), (100, 200)), *rows(20, (80, 161), (100, 200)), *rows(5, (99, 201), (100, 200), REJOIN)]
    told = sentences(both)
    over = next(line for line in told if line.startswith(f"Over {OOBLECK}"))
    assert "ahead at 1 of 3 points, neither at 1, BEHIND at 1 (nobody comes back, % an hour: 20)" in over
    assert any(line.startswith(("Why:", "At the other")) for line in told)
    beside = next(line for line in told if "Odyssey's figures" in line)
    assert "over Oobleck (paper: 1.229)" in beside
    assert "(paper: 1.355)" in beside
    assert any("cannot be reproduced as stated" in line for line in told)
    line = last_line(both)
    assert (line["ahead"], line["level"], line["behind"]) == (len(BASELINES),) * 3
    assert (line["oobleck_paper"], line["recycle_sum_paper"], line["recycle_bottleneck_paper"]) == (1.229, 1.355, 1.355)
    assert line["oobleck_ratio"] == pytest.approx(341 / 300, abs=1e-4)
    assert flexitrain_sentence().endswith("79.36 % with its roundings, 79.21 % without.")
    assert size_note(both) == []
    assert (
        "eight replicas"
        in size_note(rows_of(Scenario(LARGE, 1000, 1000, "rejoins", 0.05, 1.0), {SWARM: played(9)}, MAKERS.step_times(32)))[0]
    )


def test_curves_are_drawn_by_point_and_over_time() -> None:
    """A curve for each drawn system; throughput in equal spans adds up to what was done."""
    found = point_curves([*rows(10, (120, 221), (100, 200)), *rows(20, (80, 161), (100, 200))], AWAY)
    assert [curve.name for curve in found][:2] == [SWARM, OOBLECK]
    assert [at for at, _ in found[0].points] == [10, 20]
    play = PlayedTrace(150.0, 1000.0, 0.0, ((0.0, 0.1), (1000.0, 0.0), (2000.0, 0.05)))
    (curve,) = time_curves({RECYCLE_SUM: [play, play], "other": [play]}, 3000.0, ideal_s=10.0)
    assert sum(share for _, share in curve.points) * 3000 / len(curve.points) / 10 == pytest.approx(150)
    wide = point_curves([*rows(16, (9, 9), (9, 9), SIZES), *rows(256, (9, 9), (9, 9), SIZES)], SIZES)
    assert [at for at, _ in wide[0].points] == [4, 8], "by doublings"


def test_a_study_is_written_whole_and_can_be_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, figures, a page without outside parts; the last line is JSON; the same command does
    it again; a folder of something else is refused in one line.
    """
    monkeypatch.setattr(planning_study, "scenarios_of", lambda **_: FEW)
    said: list[str] = []
    out = tmp_path / "new" / "study"
    study = PlanningStudy(out, quick=True, traces=2, nodes_max=16, say=said.append)
    assert asyncio.run(study.run()) == 0
    assert json.loads(said[-1])["points"] == 2
    table = list(csv.DictReader((out / "summary.csv").read_text().splitlines()))
    assert [row["system"] for row in table] == [*SYSTEMS, *SYSTEMS]
    names = {path.name for path in out.iterdir()}
    assert names == {"summary.csv", "figure-rates-away.png", "figure-time.png", "index.html", "planning-study.json"}
    page = (out / "index.html").read_text()
    assert "cannot be reproduced as stated" in page
    assert 'src="http' not in page
    assert asyncio.run(PlanningStudy(out, quick=True, traces=2, nodes_max=16, say=said.append).run()) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for folder, why in (("other", "is not empty and holds no planning study"), ("file", "no such folder can be made")):
        with pytest.raises(ConfigError, match=why):
            asyncio.run(PlanningStudy(tmp_path / folder, quick=True, traces=2, nodes_max=16, say=said.append).run())


def test_a_study_that_is_ended_says_so_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled as by Ctrl-C, it ends within a trace."""
    monkeypatch.setattr(planning_study, "scenarios_of", lambda **_: FEW)
    said: list[str] = []

    async def is_ended() -> bool:
        study = PlanningStudy(tmp_path / "out", quick=True, traces=2, nodes_max=16, say=said.append)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(study.run())
            while not said:
                await asyncio.sleep(0)
            running.cancel()
        return running.cancelled()

    assert asyncio.run(is_ended())
    assert said[-1] == "ended in scenario 1 of 2; nothing was written"
    assert not any((tmp_path / "out").iterdir())


def test_the_swarm_of_a_small_cluster_gives_all_a_place() -> None:
    """Settings are the stages with which peers are fastest, and each peer serves."""
    settings = MAKERS.settings(SWARM, SHORT)
    assert settings.keys() == {"2 stages, 1 sources at most", "2 stages, 4 sources at most"}
    for sources, make in zip((1, 4), (settings[name] for name in sorted(settings)), strict=True):
        times = MAKERS.swarm_times(8, 2, sources)
        counts = times.first_counts(8)
        assert (sum(counts), len(counts)) == (8, 3)
        assert make(1).begin(range(8)).iteration_s == times.iteration_s(counts)
    assert cluster_of(8).microbatches == 16
