"""`swarmfree plan`, as somebody uses it who has described a fleet."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from swarmfree.cli.main import app
from swarmfree.lab.fleet_file import read_fleet
from swarmfree.policy.planner import estimator, forecast
from swarmfree.policy.planner.estimator import iteration_estimate
from swarmfree.policy.planner.forecast import chosen_plan
from swarmfree.protocol.config import read_run
from tests import tidy

PAGE = (tidy.ROOT / "docs/planning.md").read_text(encoding="utf-8")
FLEET, MODEL, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
"""The fleet of the documentation, twelve machines of three kinds, and its run."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run file and the fleet."""
    (tmp_path / "run.toml").write_text(MODEL)
    (tmp_path / "fleet.toml").write_text(FLEET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(*more: str) -> Result:
    """What the command says in that folder."""
    return CliRunner().invoke(app, ["plan", "--run", "run.toml", "--peers", "fleet.toml", *more], prog_name="swarmfree")


def test_a_fleet_of_twelve_gets_a_plan(folder: Path) -> None:
    """A line for each stage, and speed, weakest points and price behind them."""
    said = plan()
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    assert [line[:8] for line in lines[:5]] == [f"stage {stage} " for stage in range(5)]
    for word in ("iteration 2", "slowest: ", "one death from lost: stage 0", "dies every", "for a million tokens"):
        assert sum(word in line for line in lines) == 1, word


def test_the_json_is_the_plan_that_the_planner_makes(folder: Path) -> None:
    """One function plans; prices and speeds fit together."""
    found = json.loads(plan("--json").stdout)
    manifest = read_run(MODEL, "test").manifest
    assert (
        tuple(tuple(stage["peers"]) for stage in found["stages"])
        == chosen_plan(read_fleet(FLEET, "test", manifest), manifest).replicas
    )
    assert sum(len(stage["peers"]) for stage in found["stages"]) + len(found["standbys"]) == 12
    assert found["iteration_s"] == found["compute_s"] + found["averaging_s"] + found["commit_s"]
    assert found["tokens_per_s"] * found["iteration_s"] == pytest.approx(32 * 8 * 512)
    assert found["price_per_hour"] == pytest.approx(2 * 2.5 + 6 * 0.4 + 4 * 0.1)
    assert found["price_per_million_tokens"] == pytest.approx(found["price_per_hour"] / 3600 / found["tokens_per_s"] * 1e6)
    assert found["seconds_to_failure"] == pytest.approx(3600 / (2 * 0.01 + 6 * 0.05 + 4 * 0.2))


@pytest.mark.parametrize(("mbit_per_s", "slow"), [("20", [f"t4-{n}" for n in range(1, 5)]), ("100000", [])])
def test_who_would_hold_up_the_others_by_its_link_stands_by(folder: Path, mbit_per_s: str, slow: list[str]) -> None:
    """As it would in a live swarm; and that is said."""
    others = re.sub(r"mbit_per_s = (1000|300)\b", "mbit_per_s = 100000", FLEET)
    (folder / "fleet.toml").write_text(others.replace("mbit_per_s = 200", f"mbit_per_s = {mbit_per_s}"))
    found = json.loads(plan("--json").stdout)
    assert found["slow_links"] == found["standbys"] == slow
    (line,) = [line for line in plan().stdout.splitlines() if "would hold up the others by their links" in line] or [""]
    assert line == (f"of these {', '.join(slow)} would hold up the others by their links" if slow else "")


def test_the_page_says_what_the_command_says_of_slow_links(folder: Path) -> None:
    """Of its own fleet and run; and what it would be with them, by the same estimate."""
    without, with_them = re.findall(r"([\d,]+) tokens/s, where it would be ([\d,]+)", PAGE)[0]
    (folder / "fleet.toml").write_text(FLEET.replace("mbit_per_s = 200", "mbit_per_s = 20"))
    assert f"{without} tokens/s" in plan().stdout
    manifest = read_run(MODEL, "test").manifest
    everybody = chosen_plan(read_fleet(FLEET, "test", manifest), manifest)
    seconds = iteration_estimate(read_fleet((folder / "fleet.toml").read_text(), "test", manifest), everybody, manifest).seconds
    assert f"{32 * 8 * 512 / seconds:,.0f}" == with_them


def test_fewer_machines_than_stages_are_said_to_be_that(folder: Path) -> None:
    """And what takes less than a hundredth of a second is not said to take none."""
    (folder / "fleet.toml").write_text(FLEET.split("[[peers]]")[1].join(["[[peers]]", ""]).replace("count = 2", "count = 1"))
    said = plan("--set", "model.width=16", "--set", "model.mlp_width=8", "--set", "batch.microbatches=2").stdout.splitlines()
    assert "several stages on one machine: a live swarm begins once there is a machine for each" in said
    assert not any("iteration 0.00 s" in line for line in said)


def test_what_is_too_large_to_be_played_is_said_to_leave_links_out(folder: Path) -> None:
    """Where of more than 2,000 microbatches times stages those that would be played do not fill the
    stages: what is said then is a bound.
    """
    for credits, is_left_out in (("8", False), ("300", True)):
        changes = ("--set", "batch.microbatches=401", "--set", f"ring.credits={credits}", "--set", "batch.rows=1")
        said = plan(*changes).stdout
        for words in ("links are left out", "; at most ", "an hour, at least "):
            assert (words in said) == is_left_out, words
        assert json.loads(plan("--json", *changes).stdout)["links_left_out"] == is_left_out


def test_an_iteration_of_many_microbatches_takes_as_many_times_as_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links count in all of them, as in 400, which are played. For 2,000 another plan is made."""
    played, more, most = (
        json.loads(plan("--json", "--set", f"batch.microbatches={count}").stdout)["tokens_per_s"] for count in (400, 500, 2000)
    )
    assert more == pytest.approx(played, rel=0.03)
    assert 0.8 * played < most < 1.25 * played
    manifest = read_run(MODEL, "test").manifest
    fleet = read_fleet(FLEET, "test", manifest)
    many = replace(manifest, batch=replace(manifest.batch, microbatches=600))
    there = chosen_plan(fleet, manifest)
    found, is_bound = forecast._time(fleet, there, many)
    monkeypatch.setattr(estimator, "PLAYED_MAX", 1 << 30)
    assert not is_bound
    assert found.seconds == pytest.approx(iteration_estimate(fleet, there, many, 3).seconds, rel=0.01)


def test_where_fewer_places_would_do_that_is_said(folder: Path) -> None:
    """Two sources have twice as many microbatches under way, which take memory in each stage."""
    changes = ("--set", "batch.rows=128", "--set", "stages.sources_max=2")
    found = plan(*changes)
    assert found.exit_code == 2
    assert "; there is one with --set stages.replicas_max=" in found.stderr
    limits = found.stderr.partition("there is one with ")[2].split()
    assert plan(*changes, *limits).exit_code == 0


def test_a_better_link_and_faster_machines_are_worth_something(folder: Path) -> None:
    """Twice the TFLOP/s and ten times the bandwidth: more tokens a second each."""
    speeds = []
    for text in (
        FLEET,
        FLEET.replace("tflops = 60", "tflops = 120"),
        re.sub(r"mbit_per_s = (\d+)", r"mbit_per_s = \g<1>0", FLEET),
    ):
        (folder / "fleet.toml").write_text(text)
        speeds.append(json.loads(plan("--json").stdout)["tokens_per_s"])
    assert speeds[0] < min(speeds[1:])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("memory_gb = 24", "memory_bg = 24", "fleet.toml:16: memory_bg = 24: unknown key; did you mean memory_gb?"),
        ("memory_gb = 15\n", "", "fleet.toml:22: [[peers]]: memory_gb is missing; needed: name, tflops, memory_gb, mbit_per_s"),
        ("count = 4", 'count = "four"', 'fleet.toml:24: count = "four" (text): must be a whole number'),
        ("tflops = 60", "tflops = 0", "fleet.toml:15: tflops = 0.0: must be above 0"),
        ("failures_per_hour = 0.2", "failures_per_hour = -1", "fleet.toml:29: failures_per_hour = -1.0: must be 0 or more"),
        ("[[links]]", "[links]", "fleet.toml:32: links: must be written [[links]], once for each kind of machine or each link"),
        (
            "[[links]]",
            "[[wires]]",
            "fleet.toml:32: wires = [...]: unknown key; known: peers, links; a fleet has [[peers]] and [[links]]",
        ),
        ('other = "h100-2"', 'other = "h100-3"', 'fleet.toml:34: other = "h100-3": unknown peer; did you mean h100-2?'),
        ('one = "h100-1"', 'one = "h100"', 'fleet.toml:33: one = "h100": unknown peer; did you mean h100-1?'),
        (
            'other = "h100-2"',
            'other = "zork"',
            'fleet.toml:34: other = "zork": unknown peer; known: h100-1, h100-2, rtx4090-1, rtx4090-2 and 8 more',
        ),
        (
            'other = "h100-2"',
            'other = "h100-1"',
            'fleet.toml:34: other = "h100-1": a link joins two peers, and each two have one',
        ),
        ("tflops = 350", "tflops = 1e308", "fleet.toml:4: tflops = 1e+308: must be from 1e-09 to 1e+09"),
        ("memory_gb = 80", "memory_gb = 1e-300", "fleet.toml:5: memory_gb = 1e-300: must be from 1e-09 to 1e+09"),
        ('name = "t4"', 'name = "rtx4090"', 'fleet.toml:23: name = "rtx4090": rtx4090-1 is the name of a machine above, too'),
        ("count = 6", "count = 60000", "fleet.toml:14: count = 60000: a fleet has at most 10,000 peers"),
        (FLEET, "", "fleet.toml: no [[peers]]: a fleet has one at least, with name, tflops, memory_gb and mbit_per_s"),
        ("name = ", "name == ", "fleet.toml:2: column"),
        ('name = "t4"', 'name = " "', 'fleet.toml:23: name = " ": a machine needs a name, which plans and links give'),
        (
            "can_feed = true",
            "can_feed = false",
            "nobody here can; write can_feed = true for a machine that has the text",
        ),
        (
            "memory_gb = ",
            "memory_gb = 0.0",
            "--peers fleet.toml: no plan for this fleet: stage 0 needs a peer that can feed and has",
        ),
    ],
)
def test_what_is_missing_or_mistyped_gets_one_line(folder: Path, old: str, new: str, said: str) -> None:
    """File, line, key, value and rule; exit code 2."""
    assert old in FLEET
    (folder / "fleet.toml").write_text(FLEET.replace(old, new))
    found = plan()
    assert (found.exit_code, found.stdout) == (2, "")
    assert said in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_without_a_file_the_option_is_named() -> None:
    """Nothing is guessed."""
    found = CliRunner().invoke(app, ["plan", "--run", "stdlib-small"], prog_name="swarmfree")
    assert found.exit_code == 2
    assert "Missing option '--peers'" in found.stderr


def test_a_loss_that_is_asked_about_is_answered_with_what_it_costs(folder: Path) -> None:
    """Every way to go on, the best first, each with its seconds."""
    (stage,) = (each for each in json.loads(plan("--json").stdout)["stages"] if each["stage"] == 2)
    flags = [word for name in stage["peers"] for word in ("--lose", name)]
    lines = plan(*flags).stdout.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("if "))
    assert lines[first].endswith("lost, nobody serves stage 2:")
    ways = lines[first + 1 :]
    assert any("adopts stage 2: 60.0 s of change, then iterations of " in way for way in ways)
    assert any("stage 2" in way and ("moves from" in way or "stands by" in way) for way in ways)
    assert any("a new plan for everybody" in way for way in ways)
    found = json.loads(plan("--json", *flags).stdout)["reactions"]
    assert [f"  {'; '.join(each['what'])}" for each in found] == [way.split(": ")[0] for way in ways]
    rates = [each["iterations_per_hour"] for each in found]
    assert rates == sorted(rates, reverse=True)
    assert all(each["meanwhile_s"] is None for each in found), "training stands while a stage is lost"


def test_a_loss_that_changes_nothing_or_everything_is_said_to_be_that(folder: Path) -> None:
    """A sibling goes on; and where nobody can feed any more, training stands."""
    alone = plan("--lose", "h100-1", "--lose", "h100-2").stdout.splitlines()
    assert alone[-1] == "  training stands until somebody comes: nobody who is left can serve what is lost"
    assert alone[-2].startswith("if h100-1 and h100-2 are lost, nobody serves stage 0")
    (rich, *_) = (each for each in json.loads(plan("--json").stdout)["stages"] if len(each["peers"]) > 1)
    said = plan("--lose", rich["peers"][0]).stdout
    assert "every stage has somebody left:" in said
    assert "the siblings go on with all the work: 0.0 s of change" in said
    standbys = json.loads(plan("--json", "--set", "stages.replicas_max=1").stdout)["standbys"]
    spare = plan("--set", "stages.replicas_max=1", "--lose", standbys[0]).stdout
    assert spare.splitlines()[-1] == f"if {standbys[0]} is lost, all goes on as before: it stands by"


def test_who_is_lost_is_not_the_next_to_fail(folder: Path) -> None:
    """Where only the lost ever fail, the change costs nothing of all the time that follows."""
    (folder / "fleet.toml").write_text(FLEET.replace("hour = 0.01", "hour = 0").replace("hour = 0.2", "hour = 0"))
    lost = ("h100-2", *(f"rtx4090-{number}" for number in range(1, 7)), *(f"t4-{number}" for number in range(1, 5)))
    flags = [word for name in lost for word in ("--lose", name)]
    found = json.loads(plan("--json", *flags).stdout)["reactions"]
    assert found
    assert found[0]["transition_s"] > 0
    assert [each["iterations_per_hour"] * each["iteration_s"] for each in found] == pytest.approx([3600] * len(found))


@pytest.mark.parametrize(
    ("name", "known"), [("t4", "did you mean t4-1?"), ("zork", "known: h100-1, h100-2, rtx4090-1, rtx4090-2 and 8 more")]
)
def test_a_machine_that_is_not_there_cannot_be_lost(folder: Path, name: str, known: str) -> None:
    """One line with the one that was probably meant, or some that are there."""
    said = plan("--lose", name)
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.splitlines() == [f"swarmfree: --lose {name}: unknown peer; {known}"]
