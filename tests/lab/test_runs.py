"""Which run a command means, and what it begins with where nothing is said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarmfree.cli.main import app
from swarmfree.lab.runs import DEFAULT_RUN, RUNS, peers_of, run_file
from swarmfree.protocol.config import load_run
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.manifest import StagesSection


def test_a_run_of_the_package_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any folder `--run stdlib-small` is the run config that comes with the package, unless a
    file has that very name.
    """
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["config", "show", "--run", "stdlib-small"])
    assert shown.exit_code == 0
    assert 'name = "stdlib-small"' in shown.stdout
    assert run_file(Path("chaos")) == RUNS / "chaos.toml"
    (tmp_path / "chaos").mkdir()
    assert run_file(Path("chaos")) == RUNS / "chaos.toml"
    (tmp_path / "stdlib-small").write_text("[run]\n")
    assert run_file(Path("stdlib-small")) == Path("stdlib-small")


def test_an_unknown_run_is_told_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no file and no run of the package lists the runs by name and the run files of
    this folder.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("[run]\n")
    with pytest.raises(
        ConfigError, match=r"stdlib-smal: cannot be read: .*by name: chaos, stdlib-small; files here: mine\.toml;"
    ):
        run_file(Path("stdlib-smal"))
    assert run_file(Path("x" * 5000)) == Path("x" * 5000)


def test_local_alone_is_the_default_run_with_two_peers_for_each_body_stage(tmp_path: Path) -> None:
    """Without flags `local` takes stdlib-small and seven peers; a run that allows one replica gets
    one peer for each stage.
    """
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    told = CliRunner().invoke(app, ["local", "--out", str(tmp_path / "full")])
    assert (told.exit_code, "not empty" in told.stderr) == (2, True)
    manifest = load_run(RUNS / "stdlib-small.toml").manifest
    assert peers_of(manifest) == 7
    narrow = dataclasses.replace(manifest, stages=StagesSection(body=3, replicas_min=1, replicas_max=1))
    assert peers_of(narrow) == 4
    wide = dataclasses.replace(manifest, stages=StagesSection(body=3, replicas_min=3, replicas_max=4))
    assert peers_of(wide) == sum(min(3, wide.replicas_max(stage)) for stage in range(4))


def test_a_new_run_file_is_the_default_run_and_is_not_written_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has every key, is read back as the run that local trains, but for its name, and a second
    one is refused.
    """
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", "mine"], prog_name="swarmfree").exit_code == 0
    made, default = load_run(Path("mine.toml")).manifest, load_run(run_file(DEFAULT_RUN)).manifest
    assert made.run.name == "mine"
    assert dataclasses.replace(made, run=dataclasses.replace(made.run, name=default.run.name)) == default
    before = Path("mine.toml").read_text()
    for name, words in (("mine", "is there already"), ("a/b", "without folders"), ("", "run.name")):
        refused = CliRunner().invoke(app, ["new", name], prog_name="swarmfree")
        assert refused.exit_code == 2
        assert words in refused.stderr
    assert Path("mine.toml").read_text() == before
