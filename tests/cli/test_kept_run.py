"""What is kept of a local run, and what is said where nothing of it can go on."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarmfree.cli.finished_run import note_finished
from swarmfree.cli.kept_run import (
    NOTHING_LEFT,
    OPTIONS_FILE,
    Keeping,
    LocalOptions,
    can_go_on,
    hold,
    is_worth_its_room,
    newest,
    open_kept,
    resume_command,
    why_not_on,
)
from swarmfree.cli.local_run import LocalRun
from swarmfree.cli.main import app
from swarmfree.lab.report import CONFIG_FILE, SUMMARY_FILE, ReportError, read_ending, read_events
from swarmfree.lab.swarm import SwarmOrder
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.local_config import MANIFEST_FILE
from swarmfree.protocol.manifest import Manifest
from tests.cli.kept_folder import OPTIONS, keep


def _told(*arguments: str) -> str:
    """The one line with which `local` refuses what was typed."""
    result = CliRunner().invoke(app, ["local", *arguments])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("swarmfree: ")


def test_a_run_goes_on_from_its_newest_whole_set(tmp_path: Path, small_manifest: Manifest) -> None:
    """Whatever of its folder is named; and not while somebody works there."""
    folder = keep(tmp_path / "first", small_manifest)
    kept = open_kept(str(folder / CONFIG_FILE))
    assert (kept.folder, kept.options, kept.config.manifest) == (folder, OPTIONS, small_manifest)
    assert (kept.point.iteration, kept.point.missing) == (50, ())
    assert can_go_on(folder)
    with hold(folder), pytest.raises(ConfigError, match="another `swarmfree local` works in the folder"):
        hold(folder)
    hold(folder).close()


def test_what_cannot_go_on_is_told_in_one_line(tmp_path: Path, small_manifest: Manifest) -> None:
    """No such folder, none of a local run, another version's, a finished one, one without
    snapshots; nothing is started and nothing is lost.
    """
    assert "there is no such folder" in _told("--resume", str(tmp_path / "nowhere"))
    assert f"a folder with a report and {OPTIONS_FILE} in it is expected" in _told("--resume", str(tmp_path))
    folder = keep(tmp_path / "first", small_manifest, sets=())
    assert "none of its peers had written a snapshot" in _told("--resume", str(folder))
    assert not can_go_on(folder)
    node = folder / "peers" / "bootstrap" / MANIFEST_FILE
    node.write_text(json.dumps({**json.loads(node.read_bytes()), "revision": 1}, sort_keys=True, separators=(",", ":")))
    assert "of protocol revision 1; this swarmfree speaks" in _told("--resume", str(folder))
    node.unlink()
    assert f"{node}: cannot be read" in _told("--resume", str(folder))
    for content in ("{}", '{"peers": 3}', "[]", json.dumps({**dataclasses.asdict(OPTIONS), "peers": "4"})):
        (folder / OPTIONS_FILE).write_text(content)
        assert _told("--resume", str(folder)).startswith(f"{folder / OPTIONS_FILE}: ")
    over = keep(tmp_path / "over", small_manifest)
    note_finished(str(over / "peers" / "peer-2"), small_manifest.fingerprint())
    assert "the run has come to its end, as" in _told("--resume", str(over))
    (over / "peers").rename(over / "gone")
    assert "or was not named with --out: nothing is left there to go on from" in _told("--resume", str(over))
    for why, shown in (("it has no whole set", "it has no whole set"), ("", f"{over / 'peers'} is gone")):
        (over / SUMMARY_FILE).write_text(json.dumps({NOTHING_LEFT: why}))
        assert _told("--resume", str(over)) == f"--resume {over}: {shown}: nothing is left there to go on from"


def test_who_repeats_the_first_command_is_told_how_it_goes_on(tmp_path: Path, small_manifest: Manifest) -> None:
    """A report with a run that can go on is not merely a folder that is not empty."""
    folder = keep(tmp_path / "first", small_manifest)
    told = _told("--out", str(folder))
    assert f"a run lies there that can go on: {resume_command(folder)}" in told
    assert "the folder is not empty" in _told("--out", str(keep(tmp_path / "none", small_manifest, sets=())))


def test_options_that_contradict_the_kept_run_are_told(tmp_path: Path, small_manifest: Manifest) -> None:
    """All of them in one line; the same ones may be typed."""
    folder = str(keep(tmp_path / "first", small_manifest))
    told = _told("--resume", folder, "--peers", "5", "--standbys", "0", "--kill", "stage=1,iteration=2", "--out", "x")
    assert told == (
        f"--resume {folder}: the run goes on as it began; leave out --peers (4 kept, 5 asked for), "
        f"--kill (none kept, stage=1,iteration=2 asked for), --out ({folder} kept, x asked for)"
    )
    assert "leave out run.seed (7 kept, 8 asked for)" in _told("--set", "run.seed=8", f"--resume={folder}")
    assert "leave out run.name (small kept, stdlib-small asked for)" in _told("--resume", folder, "--run", "stdlib-small")


def test_without_a_folder_the_only_one_counts(tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several the person chooses."""
    monkeypatch.chdir(tmp_path)
    assert (
        _told("--resume", "--verbose")
        == "--resume: none of the local runs in reports/ can go on; name the folder of one: --resume FOLDER"
    )
    first = keep(Path("reports") / "first", small_manifest)
    keep(Path("reports") / "begun", small_manifest, sets=())
    assert newest() == first
    keep(Path("reports") / "second", small_manifest)
    assert _told("--resume").startswith("--resume: 2 local runs can go on; name one, the newest first: reports/")
    with hold(Path("reports") / "second"):
        assert newest() == first, "the other one is under way"


def test_the_organiser_is_not_set() -> None:
    """It is the peer id of a key, not a choice of the run config."""
    assert "--set organiser = xx: cannot be changed" in _told("--set", "organiser=xx")


# ---- what a folder may have become ---------------------------------------------------------------


def _lost_stage(folder: Path) -> None:
    """No snapshot of one stage is left."""
    shutil.rmtree(folder / "peers" / "peer-3")


@contextmanager
def _run(folder: Path, manifest: Manifest) -> Iterator[LocalRun]:
    """A local run that goes on in that folder, of which no process is started."""
    keeping = Keeping(OPTIONS, is_named=True, point=open_kept(str(folder)).point)
    run = LocalRun(manifest, SwarmOrder(folder, 4), is_json=False, keeping=keeping)
    try:
        yield run
    finally:
        run._events.close()
        assert run._lock is not None
        run._lock.close()


def test_a_run_that_went_on_without_a_stage_is_not_thrown_away_when_it_is_interrupted(
    tmp_path: Path, small_manifest: Manifest
) -> None:
    """It could be rebuilt from what its peers have, and still can: their snapshots stay, and
    `--resume` is offered. Where nothing has gone on from there, as little as that is no set.
    """
    folder = keep(tmp_path / "first", small_manifest)
    _lost_stage(folder)
    assert open_kept(str(folder)).point.missing == (2,)
    with _run(folder, small_manifest) as went_on:
        assert went_on._may_go_on()
        assert not why_not_on(folder)
        assert not is_worth_its_room(folder, has_gone_on=False)
        note_finished(str(folder / "peers" / "peer-2"), small_manifest.fingerprint())
        assert not went_on._may_go_on(), "it has come to its end meanwhile"


def test_what_cannot_be_read_now_is_not_thrown_away(tmp_path: Path, small_manifest: Manifest) -> None:
    """Snapshots stay that somebody went on from, also where what names the run cannot be read."""
    folder = keep(tmp_path / "first", small_manifest)
    (folder / "peers" / "bootstrap" / MANIFEST_FILE).unlink()
    assert is_worth_its_room(folder, has_gone_on=True)
    assert not is_worth_its_room(folder, has_gone_on=False)
    shutil.rmtree(folder / "peers")
    assert not is_worth_its_room(folder, has_gone_on=True), "the run has ended, and nothing is kept"


def test_no_command_is_offered_that_would_be_refused(tmp_path: Path, small_manifest: Manifest) -> None:
    """Options or run config are gone, or not what they were: the snapshots stay, and why nothing
    goes on is told instead.
    """
    for number, change in enumerate(_CHANGES.values()):
        folder = keep(tmp_path / str(number), small_manifest)
        with _run(folder, small_manifest) as run:
            change(folder)
            assert run._may_go_on()
        assert not can_go_on(folder)
        assert str(folder) in why_not_on(folder)


def _changed_config(folder: Path) -> None:
    path = folder / CONFIG_FILE
    path.write_text(path.read_text().replace("seed = 7", "seed = 8"))


_CHANGES: dict[str, Callable[[Path], None]] = {
    "no run config": lambda folder: (folder / CONFIG_FILE).unlink(),
    "no options": lambda folder: (folder / OPTIONS_FILE).write_text("{}"),
    "another run config": _changed_config,
}


def test_a_changed_run_config_is_told_before_anything_is_written(tmp_path: Path, small_manifest: Manifest) -> None:
    """More iterations in the file do not make the run longer: it goes on as it began, or not at
    all, and its report is not told of another run first.
    """
    folder = keep(tmp_path / "first", small_manifest)
    _changed_config(folder)
    assert _told("--resume", str(folder)) == (
        f"{folder / CONFIG_FILE}: is not as the run began: run.seed (7 kept, 8 asked for); put back what was kept: a run goes on as "
        "it began"
    )
    assert not (folder / "events.jsonl").exists()


@pytest.mark.parametrize("name", [OPTIONS_FILE, CONFIG_FILE, f"peers/bootstrap/{MANIFEST_FILE}"])
@pytest.mark.timeout(20)
def test_a_named_pipe_holds_nobody_up(tmp_path: Path, small_manifest: Manifest, name: str) -> None:
    """In place of any of the files that are read: nobody ever writes to it."""
    folder = keep(tmp_path / "first", small_manifest)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert _told("--resume", str(folder)).startswith(f"{folder / name}: cannot be read: it is no regular file")
    if name == OPTIONS_FILE:
        with pytest.raises(ReportError, match="it is no regular file"):
            hold(folder)


def test_odd_names_and_contents_are_told_in_one_line(tmp_path: Path, small_manifest: Manifest) -> None:
    """A name that no disk takes, options nested too deep, numbers that the command line would
    refuse, events that are no text.
    """
    assert _told("--resume", "x" * 300).endswith(": cannot be looked at: File name too long")
    folder = keep(tmp_path / "first", small_manifest)
    for change in ({"threads": 0}, {"standbys": -1}, {"peers": 0}):
        (name,) = change
        (folder / OPTIONS_FILE).write_text(json.dumps(dataclasses.asdict(OPTIONS) | change))
        assert _told("--resume", str(folder)) == f"{folder / OPTIONS_FILE}: {name}: not what this version of swarmfree writes"
    (folder / OPTIONS_FILE).write_text("[" * 200_000)
    assert _told("--resume", str(folder)).startswith(f"{folder / OPTIONS_FILE}: cannot be read (")
    for line in (b"\xff\xfe\n", b"[" * 200_000 + b"\n"):
        (folder / "events.jsonl").write_bytes(line)
        with pytest.raises(ConfigError, match="line 1: not an event, nor is any other line; events of a report expected"):
            list(read_events(folder))


def test_of_two_runs_that_begin_in_one_folder_one_is_refused(tmp_path: Path) -> None:
    """Both have found it empty: the options are written once, and whoever comes second is told."""
    OPTIONS.write(tmp_path)
    with hold(tmp_path), pytest.raises(ConfigError, match="another `swarmfree local` works in the folder"):
        dataclasses.replace(OPTIONS, peers=9).write(tmp_path)
    assert LocalOptions.read(tmp_path) == OPTIONS


def test_a_run_that_has_gone_on_meanwhile_is_looked_at_anew(tmp_path: Path, small_manifest: Manifest) -> None:
    """Somebody went on with it, and ended, between the first look and the lock."""
    folder = keep(tmp_path / "first", small_manifest)
    kept = open_kept(str(folder))
    for place in (folder / "peers").glob("peer-*/snapshots/*/*iteration-000000050*"):
        place.unlink()
    with pytest.raises(ConfigError, match="has gone on with this run meanwhile, up to iteration 100"):
        LocalRun(small_manifest, SwarmOrder(folder, 4), is_json=False, keeping=kept.keeping)


def test_the_summary_of_the_life_before_is_not_this_ones(tmp_path: Path, small_manifest: Manifest) -> None:
    """Who reads the report of a run that goes on, or was killed as it did, hears that it was cut
    off, not how it ended before.
    """
    folder = keep(tmp_path / "first", small_manifest)
    (folder / SUMMARY_FILE).write_text(json.dumps({"exit_code": 130, "why": "interrupted"}))
    with _run(folder, small_manifest):
        pass
    assert read_ending(folder) == (1, "it was cut off, or still goes on")
