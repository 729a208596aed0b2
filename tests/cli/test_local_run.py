"""A local swarm of stand-in processes as a person sees it: lines, report, Ctrl-C, a full disk, a
closed stdout.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.cli.local_run import LocalRun
from swarmfree.cockpit.fold import fold_all
from swarmfree.cockpit.observed_events import PeerEvent
from swarmfree.lab.kept_weights import BEFORE, KEPT
from swarmfree.lab.local_order import order_of
from swarmfree.lab.report import EventLog, ReportError, read_events
from swarmfree.lab.swarm import SwarmExit
from swarmfree.protocol.config import load_run
from swarmfree.protocol.events import Opened
from swarmfree.protocol.manifest import Manifest

PROGRAM = Path(__file__).parents[1] / "lab" / "dummy_program.py"
SCRIPT = """
import dataclasses, sys
from pathlib import Path
from swarmfree.cli.shutdown import leave
from swarmfree.cli.local_run import LocalRun
from swarmfree.lab.local_order import order_of
from swarmfree.protocol.manifest import Manifest
order = order_of(Manifest(), Path(sys.argv[1]), peers=4, standbys=0, respawn=False, kills=(), run_arguments=(), peer_arguments=())
order = dataclasses.replace(order, peer_arguments=(), program=(sys.executable, sys.argv[2]), fork_server=())
leave(LocalRun(Manifest(), order, is_json=False).run())
"""


def _commit(number: int) -> dict[str, Any]:
    fields = {
        "attempt": 0,
        "loss": 5.0 - number,
        "evaluation": None,
        "tokens": 100,
        "seconds": 0.5,
        "squared_norms": [1.0],
        "lineage": "00",
    }
    return {"time_s": time.time() + number, "kind": "IterationCommitted", "iteration": number, **fields}


def _behaviour(tmp_path: Path, **steps: list[Any]) -> None:
    done = [{"exit": 0, "line": ""}]
    # The run is not over before the last of them has been started
    first = [{"until": "report/peers/peer-4/lives"}, _commit(0), _commit(1), *done]
    (tmp_path / "behaviour.json").write_text(json.dumps({"*": done, "bootstrap": ["swarmfree1x"], "peer-1": first, **steps}))


def _run(tmp_path: Path, small_manifest: Manifest, *, is_json: bool) -> int:
    out = tmp_path / "report"
    order = order_of(small_manifest, out, peers=4, standbys=0, respawn=False, kills=(), run_arguments=(), peer_arguments=())
    # On a busy machine a stand-in takes many seconds to start; whoever is sent home before has said
    # nothing.
    order = dataclasses.replace(
        order, peer_arguments=(), program=(sys.executable, str(PROGRAM)), fork_server=(), end_grace_s=600.0
    )
    local = LocalRun(small_manifest, order, is_json=is_json)
    (out / KEPT / "1").mkdir(parents=True)  # what was kept on the way goes at the end
    return local.run()


def test_a_run_ends_with_summary_and_report(tmp_path: Path, small_manifest: Manifest, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain lines, a summary on stdout, and a folder with events, figure, summary and logs; the
    events fold to what was summed up.
    """
    _behaviour(tmp_path)
    assert _run(tmp_path, small_manifest, is_json=False) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"a bootstrap node, 4 peers and 0 on standby; report in {tmp_path / 'report'}"
    assert "small: 2 iterations done; nothing was lost" in out
    files = ["events.jsonl", "invite", "logs", "loss.png", "report.html", "run.toml", "summary.json", "summary.txt"]
    assert sorted(os.listdir(tmp_path / "report")) == files
    assert sorted(os.listdir(tmp_path / "report" / "logs")) == [
        f"peer-{number}.txt" for number in range(1, 5)
    ]  # who said something
    assert load_run(tmp_path / "report" / "run.toml").manifest == small_manifest
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert (summary["exit_code"], summary["iterations"], summary["tokens"]) == (0, 2, 200)
    assert summary["why_nothing_is_left"].startswith("the run had no whole set of snapshots")  # two iterations of eight
    assert fold_all(read_events(tmp_path / "report")).committed_count == 2


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_model_before_the_first_loss_is_kept_once(tmp_path: Path, small_manifest: Manifest, *, goes_on: bool) -> None:
    """A run that goes on has one from before: what it opens now may come after the loss."""
    kills = ("stage=1,iteration=3",)
    order = order_of(
        small_manifest, tmp_path, peers=4, standbys=0, respawn=False, kills=kills, run_arguments=(), peer_arguments=()
    )
    if goes_on:
        (tmp_path / f"{BEFORE}2").mkdir()
    run, kept = LocalRun(small_manifest, order, is_json=True), list[str]()
    run._keep = kept.append  # type: ignore[method-assign]
    for iteration in (1, 2, 3):
        run._keep_around_losses(PeerEvent(1.0, "peer-1", Opened(iteration, 0, "b")))
    run._events.close()
    assert kept == ([] if goes_on else [BEFORE])


@pytest.mark.parametrize(
    ("is_over", "is_named", "why"),
    [
        (True, True, "the run has come to its end"),
        (False, False, "the run was not named with --out"),
        (False, True, "the run had no whole set of snapshots"),
    ],
)
def test_why_nothing_of_a_run_stays_is_told(small_manifest: Manifest, *, is_over: bool, is_named: bool, why: str) -> None:
    """Whoever would go on with it later learns what to do otherwise."""
    run = SimpleNamespace(_keeping_for_others=SimpleNamespace(is_named=is_named), _manifest=small_manifest)
    assert LocalRun._why_nothing_stays(cast("Any", run), cast("Any", SimpleNamespace(is_over=is_over))).startswith(why)


def test_a_summary_is_told_once() -> None:
    """By the thread that ends in haste, or by the end of the swarm, whichever comes first."""
    told = list[SwarmExit]()

    def tell(ending: SwarmExit) -> int:
        told.append(ending)
        return 7

    run = cast("Any", SimpleNamespace(_telling=threading.Lock(), _is_told=False, _tell=tell))
    first, second = SwarmExit(0), SwarmExit(130)
    assert [LocalRun._tell_once(run, ending) for ending in (first, second)] == [(True, 7), (False, 130)]
    assert told == [first]


def test_machines_get_one_object_per_line(
    tmp_path: Path, small_manifest: Manifest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With JSON every line of stdout is an object; the first describes the run, the last is the
    summary.
    """

    async def draw_nothing(_: LocalRun) -> int:
        return 0

    monkeypatch.setattr(LocalRun, "_draw", draw_nothing)  # the page says nothing to machines
    _behaviour(tmp_path)
    assert _run(tmp_path, small_manifest, is_json=True) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[0]["kind"], lines[-1]["kind"]) == ("RunDescribed", "Summary")
    assert {"ProcessStarted", "Started", "IterationCommitted", "ProcessEnded"} <= {line["kind"] for line in lines}
    assert [line["peer"] for line in lines if line["kind"] == "IterationCommitted"] == ["peer-1", "peer-1"]


def test_a_failing_peer_gives_its_line_and_code(
    tmp_path: Path, small_manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of the peer that failed stands on stderr, once, and its exit code is the swarm's."""
    _behaviour(tmp_path, **{"peer-1": [], "peer-2": [{"exit": 3, "line": "the coordinator is gone"}], "*": []})
    assert _run(tmp_path, small_manifest, is_json=False) == 3
    assert capsys.readouterr().err == "swarmfree: peer-2: the coordinator is gone\n"


def test_a_full_disk_is_told_at_once_and_the_run_goes_on(
    tmp_path: Path, small_manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the report cannot be written, one line says so, the run ends as it would, and only the
    exit code differs.
    """
    _behaviour(tmp_path)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, old[1]))
    try:
        code = _run(tmp_path, small_manifest, is_json=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    told = capsys.readouterr()
    assert code == 1
    assert told.err.count("\n") == 1
    assert "cannot be written: File too large" in told.err
    assert "2 of 4 iterations" in told.out
    lines = (tmp_path / "report" / "events.jsonl").read_text().splitlines()
    assert lines
    assert all(json.loads(line) for line in lines)


def test_a_disk_with_too_little_room_is_told_beforehand(
    tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much is free in the report's folder, and about how much the run wants: the text, once for
    each that feeds and once for the bootstrap node, weights, and snapshots.
    """
    text, out = tmp_path / "text.txt", tmp_path / "report"
    text.write_bytes(b"x" * 1_000_000)
    order = order_of(small_manifest, out, peers=4, standbys=2, respawn=False, kills=(), run_arguments=(), peer_arguments=())
    local = LocalRun(small_manifest, order, is_json=False, data_path=str(text))
    local._events.close()
    usage = shutil.disk_usage(tmp_path)
    for free_bytes, lines in ((4_000_000, 1), (1 << 40, 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free_bytes=free_bytes: usage._replace(free=free_bytes))
        told = local._room_lines()
        assert len(told) == lines
        assert all(
            re.fullmatch(rf"the disk .*: 4\.0 MB are free in {out}, and the run wants about 4\.\d MB", line) for line in told
        )


def test_a_run_whose_events_are_lost_is_no_whole_success(
    tmp_path: Path, small_manifest: Manifest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though there is room again for summary and page, the exit code and the summary say that
    something is missing.
    """

    def fail(*_: object) -> None:
        raise ReportError("events.jsonl cannot be written: No space left on device")

    _behaviour(tmp_path)
    monkeypatch.setattr(EventLog, "write", fail)
    assert _run(tmp_path, small_manifest, is_json=False) == 1
    assert "No space left" in capsys.readouterr().err
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert (summary["exit_code"], summary["why"]) == (1, "events.jsonl cannot be written: No space left on device")


def _start(tmp_path: Path, script: str = SCRIPT) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(tmp_path / "report"), str(PROGRAM)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("lines_before", [1, 4])
def test_ctrl_c_ends_with_a_summary(tmp_path: Path, lines_before: int) -> None:
    """Ctrl-C after the first line of output, or later, ends within 5 s with a summary and exit code
    130.
    """
    _behaviour(tmp_path, **{"peer-1": [_commit(0)], "*": [{"time_s": 1.0, "kind": "Note", "text": "up"}]})
    with _start(tmp_path) as process:
        assert process.stdout is not None
        for _ in range(lines_before):
            process.stdout.readline()
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, words = process.communicate(timeout=20)
        assert time.monotonic() - began_s < 5
    assert (process.returncode, words) == (130, "")
    assert ": interrupted" in out
    assert json.loads((tmp_path / "report" / "summary.json").read_text())["why"] == "interrupted"
    assert not (tmp_path / "report" / "peers").exists()


def test_ctrl_c_ends_with_a_summary_though_processes_do_not_end(tmp_path: Path) -> None:
    """Where they take longer than a person waits, the summary is told without them, and they end
    with the command.
    """
    _behaviour(tmp_path, **{"peer-1": [{"deaf": True}, _commit(0)], "*": [{"deaf": True}]})
    script = SCRIPT.replace(
        "leave(", "order = dataclasses.replace(order, stop_grace_s=600.0)\nlocal_run.INTERRUPTED_S = 1.5\nleave("
    )
    script = script.replace("from swarmfree.cli.local_run", "from swarmfree.cli import local_run\nfrom swarmfree.cli.local_run")
    with _start(tmp_path, script) as process:
        assert process.stdout is not None
        while "iteration 1 of" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, words = process.communicate(timeout=20)
    assert (process.returncode, words) == (130, "")
    assert ": interrupted" in out and "no time for figure and page" in out
    assert json.loads((tmp_path / "report" / "summary.json").read_text())["why"] == "interrupted"


def test_a_reader_that_goes_away_ends_the_swarm(tmp_path: Path) -> None:
    """When nobody reads the output any more, the swarm ends cleanly with exit code 141 and no
    complaint.
    """
    _behaviour(tmp_path, **{"peer-1": [], "*": [{"time_s": 1.0, "kind": "Note", "text": "up"}]})
    with _start(tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        words = process.stderr.read()
        process.wait(timeout=20)
    assert (process.returncode, words) == (141, "")
    assert not (tmp_path / "report" / "peers").exists()
