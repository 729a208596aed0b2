"""What a person gets wrong ends in one line on stderr and an exit code, never in a traceback."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from swarmfree.cli import early_checks
from swarmfree.cli.early_checks import require_folder
from swarmfree.cli.main import app
from swarmfree.cli.shutdown import exit_code_of, one_of
from swarmfree.protocol.errors import (
    ConfigError,
    DataError,
    Excluded,
    InviteError,
    NobodyAnswers,
    PeerSilent,
    RunEnded,
    SwarmfreeError,
)
from swarmfree.storage.corpus import require_text
from swarmfree.wire.invite import Invite, encode_invite
from swarmfree.wire.socket_folder import SocketFolder

RUN = '[run]\nname = "small"\niterations = 4\n[stages]\nbody = 3\n'
PEER_ID = "QmUHPRwTVD6VufJiSHscHvsZMvkprm7pc6VXQH2iUTuBSv"


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="swarmfree")


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    """A small run config."""
    path = tmp_path / "small.toml"
    path.write_text(RUN)
    return str(path)


def _told_in_one_line(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("swarmfree: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.head=3", ("model.head", "did you mean model.heads")),
        ("model.heads=x", ("model.heads = ", "whole number")),
        ("model.heads=3", ("model.heads = 3", "must divide model.width")),
        ("stages.body=99", ("stages.body = 99", "more stages than model.blocks")),
        ("nonsense", ("nonsense",)),
        ("batch.rows=0", ("batch.rows = 0", "above 0")),
    ],
)
@pytest.mark.parametrize("command", [("config", "show"), ("bootstrap",), ("local", "--peers", "4")])
def test_a_bad_value_is_one_line(run_file: str, change: str, words: tuple[str, ...], command: tuple[str, ...]) -> None:
    """An unknown or mistyped key, or a broken relation, is told with key, value and rule, by every
    command that reads a run config.
    """
    _told_in_one_line(_invoke(*command, "--run", run_file, "--set", change), 2, *words)


def test_a_run_config_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """A missing file is named."""
    _told_in_one_line(_invoke("config", "show", "--run", str(tmp_path / "no.toml")), 2, "no.toml", "No such file")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--peers", "3"), ("--peers 3", "4 stages (0 to 3)")),
        (("--peers", "4", "--set", "stages.replicas_min=2", "--set", "stages.replicas_max=2"), ("needs 7 peers",)),
        (("--peers", "4", "--kill", "stage=9,iteration=1"), ("stages 0 to 3",)),
        (("--peers", "4", "--kill", "stage=1,iteration=4"), ("iterations 0 to 3",)),
        (("--peers", "4", "--kill", "stage=1"), ("iteration is missing",)),
        (("--peers", "many"), ("--peers", "See swarmfree local --help")),
        (("--peers", "4", "--bogus"), ("--bogus",)),
    ],
)
def test_a_local_swarm_that_cannot_be_is_one_line(
    run_file: str, tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Too few peers, a kill that can never strike, or a mistyped option is told before anything is
    started or written.
    """
    _told_in_one_line(_invoke("local", "--run", run_file, "--out", str(tmp_path / "report"), *options), 2, *words)
    assert not (tmp_path / "report").exists()


def test_a_report_folder_with_something_in_it_is_refused(run_file: str, tmp_path: Path) -> None:
    """A report is not written over another."""
    _told_in_one_line(_invoke("local", "--run", run_file, "--peers", "4", "--out", str(tmp_path)), 2, "not empty")


@pytest.mark.parametrize("command", ["peer", "status"])
@pytest.mark.parametrize(("invite", "word"), [("hello", "no invite"), ("swarmfree1abc", "cut off"), ("", "empty")])
def test_a_malformed_invite_is_one_line(command: str, invite: str, word: str) -> None:
    """An invite that cannot be one is told from its letters alone."""
    _told_in_one_line(_invoke(command, invite), 2, word)


def test_a_local_choice_that_does_not_hold_is_one_line(tmp_path: Path) -> None:
    """A peer's own choices are checked before it starts."""
    invite = encode_invite(Invite("ab" * 32, (f"/ip4/127.0.0.1/tcp/9/p2p/{PEER_ID}",)))
    _told_in_one_line(_invoke("peer", invite, "--folder", str(tmp_path), "--port", "70000"), 2, "--port")
    _told_in_one_line(_invoke("peer", invite, "--folder", str(tmp_path), "--threads", "0"), 2, "--threads")
    for announced in ("nowhere", "host:70000", "two words:80"):
        _told_in_one_line(_invoke("peer", invite, "--folder", str(tmp_path), "--announce", announced), 2, "--announce", announced)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--minutes", "0"), ("--minutes",)),
        (("--peers", "3"), ("--peers 3", "4 stages")),
        (("--kinds", "kill,fire"), ("fire", "is none of")),
        (("--set", "model.heads=3"), ("model.heads = 3",)),
        (("--engine", "steam"), ("steam", "integer")),
    ],
)
def test_a_chaos_that_cannot_be_is_one_line(
    run_file: str, tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """What cannot be done is told before anything is started, and no folder is made."""
    out = tmp_path / "report"
    _told_in_one_line(_invoke("chaos", "--run", run_file, "--out", str(out), *options), 2, *words)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ("no such file or folder",)),
        ("", ("without a single byte",)),
        ("short", ("too short",)),
    ],
)
def test_text_that_cannot_be_learned_from_is_one_line(
    run_file: str, tmp_path: Path, text: str | None, words: tuple[str, ...]
) -> None:
    """A data path that is missing, empty or too short is told by the bootstrap node before anything
    is published.
    """
    data = tmp_path / "text.txt"
    if text is not None:
        data.write_text(text)
    result = _invoke("bootstrap", "--run", run_file, "--data", str(data), "--folder", str(tmp_path / "node"))
    _told_in_one_line(result, 2, "text.txt", *words)


@pytest.mark.parametrize("arguments", [("bogus",), ("--bogus",), ("config", "bogus"), ("peer",)])
def test_a_mistyped_command_line_is_one_line(arguments: tuple[str, ...]) -> None:
    """An unknown command or option, or a missing argument, names the help that lists them."""
    _told_in_one_line(_invoke(*arguments), 2, "See swarmfree", "--help")


def test_help_loads_nothing_heavy() -> None:
    """To show help, neither torch nor hivemind nor anything else that takes long is loaded."""
    heavy = "{'torch', 'hivemind', 'numpy', 'scipy', 'grpc', 'rich', 'matplotlib', 'cryptography', 'psutil'}"
    code = f"import sys; from swarmfree.cli.main import app; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [("local",), ("report", "."), ("chaos",), ("study", "recovery", "--out", "x")])
def test_a_command_of_the_lab_says_what_to_install(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """Where the extra `lab` is not installed, its commands name what is missing and how to install
    it.
    """
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "psutil", None)
    told = f"{arguments[0]} needs matplotlib, psutil, which a peer does not need"
    _told_in_one_line(_invoke(*arguments), 1, told, 'pip install "swarmfree[lab]"')


def test_a_question_ends_with_its_own_mark() -> None:
    """What was perhaps meant is asked, without a full stop behind the question mark."""
    _told_in_one_line(_invoke("lcoal"), 2, "Did you mean 'local'? See swarmfree --help")


def test_the_version_is_told() -> None:
    """`--version` prints one line."""
    result = _invoke("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("swarmfree ")


def test_what_config_show_prints_can_be_fed_back(run_file: str, tmp_path: Path) -> None:
    """The printed config gives the same config again, changes and defaults included."""
    first = _invoke("config", "show", "--run", run_file, "--set", "optimizer.rate=0.002")
    assert first.exit_code == 0
    assert "rate = 0.002" in first.stdout
    assert "\n# caller_calls_max = 512\n" in first.stdout  # of this machine, so not fed back
    again = tmp_path / "again.toml"
    again.write_text(first.stdout)
    assert _invoke("config", "show", "--run", str(again)).stdout == first.stdout


def test_what_a_config_would_need_here_is_said_beside_it(run_file: str) -> None:
    """Rows of the vocabulary that text never uses, and a batch that no machine holds, are told on
    stderr, where nobody feeds them back.
    """
    plain = _invoke("config", "show", "--run", run_file)
    assert plain.stderr.startswith("swarmfree local: ")
    assert plain.stderr.count("\n") == 1
    wide = _invoke("config", "show", "--run", run_file, "--set", "model.vocabulary=50257")
    assert "model.vocabulary = 50,257: text is learned as bytes, so 50,001 of its rows are never used" in wide.stderr
    assert "never used" not in wide.stdout
    large = _invoke("config", "show", "--run", run_file, "--set", "batch.rows=1000000").stderr
    assert float(large.partition("about ")[2].partition(" GB")[0].replace(",", "")) > 100


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(""), 2),
        (DataError(""), 2),
        (InviteError(""), 2),
        (NobodyAnswers(""), 1),
        (RunEnded(""), 3),
        (Excluded(""), 4),
        (SwarmfreeError(""), 1),
    ],
)
def test_exit_codes_follow_the_kind_of_error(error: SwarmfreeError, code: int) -> None:
    """2 for bad input, 3 where the run has ended, 4 where the swarm refuses, 1 for the rest."""
    assert exit_code_of(error) == code


def test_a_group_of_operating_failures_is_one_and_a_bug_is_none() -> None:
    """Failures that tasks gathered are told as the first of them; a programmer's error among them
    is not hidden.
    """
    disk, bug = SwarmfreeError("disk full"), ValueError("bug")
    assert one_of(ExceptionGroup("g", [ExceptionGroup("h", [disk])])) is disk
    assert one_of(ExceptionGroup("g", [disk, bug])) is None
    assert one_of(bug) is None


def test_a_failure_inside_device_work_is_that_failure() -> None:
    """What was raised from an operating failure is told as that one."""
    disk, work = SwarmfreeError("disk full"), PeerSilent("work failed")
    work.__cause__ = disk
    assert one_of(ExceptionGroup("g", [work])) is disk


def test_a_closed_output_is_no_traceback(run_file: str) -> None:
    """When the reader of stdout is gone, the command ends without a word."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        command = [sys.executable, "-m", "swarmfree", "config", "show", "--run", run_file]
        done = subprocess.run(command, check=False, stdout=closed, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(4000), ("no text in UTF-8", "--data-is-bytes")),
        ("grüße ".encode("latin-1") * 900, ("no text in UTF-8", "--data-is-bytes")),
        ("hello ".encode("utf-16") * 900, ("no text in UTF-8", "--data-is-bytes")),
        (b"hello", ("too short: 5 bytes", "one iteration alone needs")),
        (b"", ("without a single byte",)),
    ],
)
@pytest.mark.parametrize("command", [("bootstrap",), ("local", "--peers", "4")])
def test_data_of_no_use_is_refused_before_anything_starts(
    tmp_path: Path, run_file: str, content: bytes, words: tuple[str, ...], command: tuple[str, ...]
) -> None:
    """What is no text, too short or empty is one line; no report folder is left."""
    (tmp_path / "data.bin").write_bytes(content)
    folder = ("--out", str(tmp_path / "report")) if command[0] == "local" else ("--folder", str(tmp_path / "node"))
    result = _invoke(*command, "--run", run_file, "--data", str(tmp_path / "data.bin"), *folder)
    _told_in_one_line(result, 2, "data.bin", *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.bin", "small.toml"]


def test_one_strange_file_among_texts_is_named(tmp_path: Path) -> None:
    """Of a folder the line says how many files are no text, and names the first."""
    for name, content in (("a.txt", b"text" * 900), ("b.gz", b"\x1f\x8b\x08\x00" * 900), ("c.txt", "ä".encode() * 900)):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"1 of 3 files, .*b\.gz first, are no text in UTF-8"):
        require_text(str(tmp_path), 100)
    (tmp_path / "b.gz").unlink()
    require_text(str(tmp_path), 100)


def test_an_address_or_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path, run_file: str) -> None:
    """A taken port, a host of another machine and a folder that is a file are told at once, by
    bootstrap and by peer.
    """
    invite = encode_invite(Invite("0" * 64, (f"/ip4/127.0.0.1/tcp/9/p2p/{PEER_ID}",)))
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (("bootstrap", "--run", run_file), ("peer", invite)):
            folder = ("--folder", str(tmp_path / "node"))
            _told_in_one_line(_invoke(*command, *folder, "--host", "192.0.2.1"), 1, "192.0.2.1", "no address of this machine")
            _told_in_one_line(_invoke(*command, "--folder", str(tmp_path / "file" / "x")), 2, "--folder", "is a file")
            _told_in_one_line(_invoke(*command, "--folder", "/proc/x"), 2, "--folder /proc/x: cannot be made or written to")
        for command in (("export", invite), ("data", "prepare", run_file, "--tokenizer", "bytes")):
            _told_in_one_line(_invoke(*command, "--out", "/proc/x"), 2, "--out /proc/x: cannot be made or written to")
        weights = ("--weights", str(tmp_path / "file" / "x"))
        _told_in_one_line(_invoke("peer", invite, *folder, *weights), 2, "--weights", "is a file")
        _told_in_one_line(_invoke("peer", invite, *folder, "--port", port), 1, f"port {port}", "taken by another process")
    assert not (tmp_path / "node").exists()


def test_a_folder_on_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can be made there, and nothing written to it."""
    monkeypatch.setattr(early_checks, "TemporaryFile", lambda **_: io.FileIO("/dev/full", "w"))
    with pytest.raises(ConfigError, match=r"No space left on device.*name another folder with --folder"):
        require_folder("--folder", tmp_path)


def test_what_a_volunteer_names_is_looked_at_before_anything_is_loaded(tmp_path: Path) -> None:
    """Text that is not there, and a folder that another running peer uses, are one line within a
    moment.
    """
    invite = encode_invite(Invite("0" * 64, (f"/ip4/127.0.0.1/tcp/9/p2p/{PEER_ID}",)))
    own = tmp_path / "peer"
    asked = ("peer", invite, "--folder", str(own), "--data", str(tmp_path / "nowhere"))
    _told_in_one_line(_invoke(*asked), 2, "nowhere: no such file or folder")
    assert not own.exists()
    used = SocketFolder(own)
    try:
        _told_in_one_line(_invoke("peer", invite, "--folder", str(own)), 2, "in use by another running peer", f"--folder {own}-2")
    finally:
        used.close()


def test_the_folder_that_is_named_in_place_of_one_in_use_is_not_there_yet(tmp_path: Path) -> None:
    """The next one of its kind, whichever of them was asked for."""
    used = [SocketFolder(tmp_path / name) for name in ("peer", "peer-2", "a-b")]
    try:
        for name, free in (("peer", "peer-3"), ("peer-2", "peer-3"), ("a-b", "a-b-2")):
            with pytest.raises(ConfigError, match=rf"--folder {tmp_path}/{free}$"):
                SocketFolder(tmp_path / name)
    finally:
        for folder in used:
            folder.close()
