"""What is kept of a local run, and what is said where nothing of it can go on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarmfree.cli.finished_run import note_finished
from swarmfree.cli.kept_run import OPTIONS_FILE, LocalOptions, can_go_on, hold, newest, open_kept
from swarmfree.cli.main import app
from swarmfree.lab.report import CONFIG_FILE
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.local_config import MANIFEST_FILE
from swarmfree.protocol.manifest import Manifest

OPTIONS = LocalOptions(4, 0, respawn=False, kills=(), threads=1, data="", data_is_bytes=False)


def _keep(folder: Path, manifest: Manifest, sets: tuple[int, ...] = (50, 100), late: int = 100) -> Path:
    """A run of four stages with these sets of snapshots, of which the last stage lacks the one of
    `late`.
    """
    node, run = folder / "peers" / "bootstrap", manifest.fingerprint()[:16]
    node.mkdir(parents=True)
    (node / MANIFEST_FILE).write_bytes(manifest.canonical())
    (folder / CONFIG_FILE).write_text(to_toml(manifest))
    OPTIONS.write(folder)
    for stage in range(manifest.stage_count):
        held = folder / "peers" / f"peer-{stage + 1}" / "snapshots" / run
        held.mkdir(parents=True)
        for iteration in sets:
            if stage < manifest.stage_count - 1 or iteration != late:
                (held / f"iteration-{iteration:09}-stage-{stage}-{'ab' * 32}.safetensors").touch()
    return folder


def _told(*arguments: str) -> str:
    """The one line with which `local` refuses what was typed."""
    result = CliRunner().invoke(app, ["local", *arguments])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("swarmfree: ")


def test_a_run_goes_on_from_its_newest_whole_set(tmp_path: Path, small_manifest: Manifest) -> None:
    """Whatever of its folder is named; and not while somebody works there."""
    folder = _keep(tmp_path / "first", small_manifest)
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
    folder = _keep(tmp_path / "first", small_manifest, sets=())
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
    over = _keep(tmp_path / "over", small_manifest)
    note_finished(str(over / "peers" / "peer-2"), small_manifest.fingerprint())
    assert "the run has come to its end, as" in _told("--resume", str(over))
    (over / "peers").rename(over / "gone")
    assert "nothing is left there to go on from" in _told("--resume", str(over))


def test_options_that_contradict_the_kept_run_are_told(tmp_path: Path, small_manifest: Manifest) -> None:
    """All of them in one line; the same ones may be typed."""
    folder = str(_keep(tmp_path / "first", small_manifest))
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
    first = _keep(Path("reports") / "first", small_manifest)
    _keep(Path("reports") / "begun", small_manifest, sets=())
    assert newest() == first
    _keep(Path("reports") / "second", small_manifest)
    assert _told("--resume").startswith("--resume: 2 local runs can go on; name one, the newest first: reports/")
    with hold(Path("reports") / "second"):
        assert newest() == first, "the other one is under way"


def test_the_organiser_is_not_set() -> None:
    """It is the peer id of a key, not a choice of the run config."""
    assert "override organiser = xx: cannot be changed" in _told("--set", "organiser=xx")
