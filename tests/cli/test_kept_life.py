"""How a local run that is kept begins, ends and goes on, without any process."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from swarmfree.cli import local
from swarmfree.cli.kept_run import (
    OPTIONS_FILE,
    Keeping,
    LocalOptions,
    absolute,
    newest,
    open_kept,
)
from swarmfree.cli.local_run import LocalRun
from swarmfree.cockpit.observed_events import PeerEvent, ProcessKilled, RunDescribed
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.kill_script import parse_kill
from swarmfree.lab.local_order import order_of
from swarmfree.lab.report import EventLog, make_folder
from swarmfree.lab.runs import peers_of
from swarmfree.lab.swarm import LocalSwarm, SwarmOrder
from swarmfree.protocol.config import to_toml
from swarmfree.protocol.errors import ConfigError
from swarmfree.protocol.events import Ended
from swarmfree.protocol.manifest import Manifest
from swarmfree.trainer.coordinator.pause import GO_ON, PAUSED
from tests.cli.kept_folder import OPTIONS, keep
from tests.cockpit import stories
from tests.cockpit.stories import START_S, beginning


def test_a_run_that_begins_keeps_its_options_and_one_that_goes_on_leaves_them(tmp_path: Path, small_manifest: Manifest) -> None:
    """Else whoever goes on with it would do so with what was typed beside `--resume`."""
    other = dataclasses.replace(OPTIONS, threads=3)
    begun = LocalRun(small_manifest, SwarmOrder(tmp_path, 4), is_json=False, keeping=Keeping(other, is_named=True))
    begun._events.close()
    assert begun._lock is not None
    begun._lock.close()
    assert LocalOptions.read(tmp_path) == other
    folder = keep(tmp_path / "first", small_manifest)
    keeping = Keeping(other, is_named=True, point=open_kept(str(folder)).point)
    went_on = LocalRun(small_manifest, SwarmOrder(folder, 4), is_json=False, keeping=keeping)
    went_on._events.close()
    assert went_on._lock is not None
    went_on._lock.close()
    assert LocalOptions.read(folder) == OPTIONS


def test_a_paused_run_is_kept_though_nobody_named_its_folder(tmp_path: Path, small_manifest: Manifest) -> None:
    """As soon as one peer says that it pauses, whatever the others say later; one that is
    interrupted is not.
    """
    folder = keep(tmp_path / "first", small_manifest)
    (folder / OPTIONS_FILE).unlink()
    run = LocalRun(small_manifest, SwarmOrder(folder, 4), is_json=True, keeping=Keeping(OPTIONS, is_named=False))
    assert not run._may_go_on()
    for why in (f"{PAUSED} before iteration 50: {GO_ON}", "told to end"):
        run._hear(PeerEvent(1.0, "peer-1", Ended(0, why)), SwarmState())
        assert run._may_go_on()
    run._events.close()
    assert run._lock is not None
    run._lock.close()
    unkept = LocalRun(small_manifest, SwarmOrder(tmp_path / "first", 4), is_json=True)
    assert not unkept._may_go_on()
    unkept._events.close()


def test_a_run_that_goes_on_knows_what_was_before(tmp_path: Path, small_manifest: Manifest) -> None:
    """Its losses, and which kills of the script have struck: those do not strike again."""
    folder = keep(tmp_path / "first", small_manifest)
    log = EventLog(folder)
    for event in (
        *beginning(),
        *stories.iteration(0, 7),
        ProcessKilled(START_S + 9, "peer-2", "peer", "--kill stage=1,iteration=2,replicas=all"),
    ):
        log.write(event, SwarmState())
    log.close()
    kills = (parse_kill("stage=1,iteration=2"), parse_kill("stage=2,iteration=3"))
    keeping = Keeping(OPTIONS, is_named=True, point=open_kept(str(folder)).point)
    run = LocalRun(small_manifest, SwarmOrder(folder, 4, kills=kills), is_json=False, keeping=keeping)
    assert [commit.iteration for commit in run._swarm.state.commits] == [0]
    assert run._swarm._kills_waiting == {1: kills[1]}
    run._events.close()
    assert run._lock is not None
    run._lock.close()


@pytest.mark.parametrize("stays", [True, False])
async def test_the_folders_of_processes_go_where_nothing_can_go_on(tmp_path: Path, *, stays: bool) -> None:
    """Whoever started the swarm says so once all have ended."""
    (tmp_path / "peers" / "peer-1").mkdir(parents=True)
    described = RunDescribed(START_S, "made-up", 6, 4, 8192)
    swarm = LocalSwarm(SwarmOrder(tmp_path, 1, may_go_on=lambda: stays), described, lambda *_: None)
    await swarm._close()
    assert (tmp_path / "peers" / "peer-1").exists() == stays


def test_the_folder_may_be_named_as_anybody_names_it(
    tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another path, text by a path from another folder; of many that can go on the newest four
    are listed, the newest first.
    """
    folder = keep(tmp_path / "reports" / "first", small_manifest)
    kept = open_kept(str(folder))
    monkeypatch.chdir(folder)
    out = Path("..") / "first"
    kept.require_same(OPTIONS, frozenset({"out"}), out, Path("run.toml"), ())
    (folder / "text").touch()
    assert absolute("text") == str(folder / "text") == absolute(str(out / "text"))
    assert not absolute("")
    for number in range(6):
        place = keep(tmp_path / "reports" / f"run-{number}", small_manifest)
        (place / "events.jsonl").touch()
        os.utime(place / "events.jsonl", (number + 10, number + 10))
    with pytest.raises(ConfigError) as told:
        newest(tmp_path / "reports")
    assert [word.rpartition("/")[2] for word in str(told.value).partition("newest first: ")[2].split(", ")] == [
        f"run-{number}" for number in (5, 4, 3, 2)
    ]


def test_what_is_kept_is_what_the_run_begins_with(
    tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many peers there are is settled, text and first weights are named wherever it goes on
    from; the options that the run config names count where nothing was typed.
    """
    config = tmp_path / "run.toml"
    config.write_text(to_toml(small_manifest, "text", "model"))
    found = list[Keeping]()

    def run(_manifest: object, _source: object, _out: object, keeping: Keeping, **_: object) -> int:
        found.append(keeping)
        return 0

    monkeypatch.setattr(local, "_run", run)
    typed = dataclasses.replace(OPTIONS, peers=None)
    for out in (None, tmp_path / "out"):
        local._begin(config, [], out, typed, is_json=False, is_verbose=False)
    local._begin(
        config, [], None, dataclasses.replace(typed, peers=9, data="/a", init_from="/b"), is_json=False, is_verbose=False
    )
    expected = dataclasses.replace(
        OPTIONS, peers=peers_of(small_manifest), data=str(tmp_path / "text"), init_from=str(tmp_path / "model")
    )
    assert [keeping.options for keeping in found] == [
        expected,
        expected,
        dataclasses.replace(OPTIONS, peers=9, data="/a", init_from="/b"),
    ]
    assert [(keeping.is_named, keeping.point) for keeping in found] == [(False, None), (True, None), (False, None)]


def test_the_folder_of_a_run_that_goes_on_need_not_be_empty(tmp_path: Path, small_manifest: Manifest) -> None:
    """That of one that begins has to be."""
    (tmp_path / "report").touch()

    def ordered(*, is_new: bool) -> SwarmOrder:
        return order_of(
            small_manifest,
            tmp_path,
            is_new=is_new,
            peers=4,
            standbys=0,
            respawn=False,
            kills=(),
            run_arguments=(),
            peer_arguments=(),
        )

    assert ordered(is_new=False).folder == tmp_path
    with pytest.raises(ConfigError, match="the folder is not empty"):
        ordered(is_new=True)


def test_a_file_is_no_folder_of_a_report(tmp_path: Path) -> None:
    """One line names the file, and nothing becomes of it."""
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ConfigError, match="file: is a file; a folder"):
        make_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"
