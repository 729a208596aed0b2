"""How commands end on a signal, and where events go."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarmfree.cli import shutdown
from swarmfree.cli.event_output import TextJournal, open_journal
from swarmfree.cli.main import app
from swarmfree.cli.options import Log
from swarmfree.cli.rehearse_run import Rehearsing
from swarmfree.protocol.events import Note, Opened, Stepped
from swarmfree.sim.rehearsal import RehearsalStatistics
from swarmfree.sim.setup import Drawn

WAITER = """
import asyncio, sys, time
from swarmfree.cli import shutdown
shutdown.CLEAN_END_S = 0.5
async def work():
    print("ready", flush=True)
    try:
        {wait}
    finally:
        print("cleaned", flush=True)
shutdown.leave(shutdown.run_until_told(work))
"""


def _ended_by(number: signal.Signals, wait: str) -> tuple[int, str, float]:
    command = [sys.executable, "-c", WAITER.format(wait=wait)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began_s = time.monotonic()
        process.send_signal(number)
        rest, words = process.communicate(timeout=20)
    assert words == ""
    return process.returncode, rest, time.monotonic() - began_s


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_command_cleanly(number: signal.Signals, code: int) -> None:
    """Ctrl-C, SIGTERM and a terminal that is closed cancel the command's work, which cleans up, and
    give exit codes 130, 143 and 129.
    """
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever runs the tests has this signal ignored")
    assert _ended_by(number, "await asyncio.sleep(60)")[:2] == (code, "cleaned\n")


def test_a_command_that_cannot_stop_is_stopped() -> None:
    """Work in a thread that does not end is not waited for longer than the limit."""
    code, rest, seconds = _ended_by(signal.SIGTERM, "await asyncio.to_thread(time.sleep, 60)")
    assert (code, rest) == (143, "cleaned\n")
    assert seconds < 5


def test_text_goes_to_people_and_json_to_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """Text lines leave out what every iteration repeats; JSON lines leave out nothing."""
    out = io.StringIO()
    for event in (Note("hello"), Opened(1, 0, "00"), Stepped(2, "00")):
        open_journal(Log.TEXT, out).tell(event)
        open_journal(Log.JSON, out).tell(event)
    assert [line[10:] for line in out.getvalue().splitlines()] == ["hello"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert '"kind": "Stepped"' in lines[2]


def test_a_reader_that_goes_away_does_not_end_a_peer(capsys: pytest.CaptureFixture[str]) -> None:
    """When the text log's reader is gone, the journal says so once and goes on without it."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1, closefd=False) as out:
        journal = TextJournal(out)
        for number in range(3):
            journal.tell(Note(f"line {number}"))
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
    os.close(writing)
    assert capsys.readouterr().err == "events are no longer shown: Broken pipe\n"


@pytest.mark.parametrize(("drawn", "cuts", "option"), [(Drawn.USUAL, "", ""), (Drawn.CUTS, "2 cuts of the model, ", " --cuts")])
def test_a_rehearsal_that_fails_prints_how_to_play_it_again(drawn: Drawn, cuts: str, option: str) -> None:
    """The result line says what was run; each seed that failed is named with its violation and its
    command; the exit code is 1.
    """
    lines: list[str] = []
    first = RehearsalStatistics(4, 60.0, faults=Counter({"kill": 2}), events=Counter({"ModelCut": 2, "Opened": 4}))
    second = RehearsalStatistics(3, 30.0, faults=Counter({"kill": 1, "join": 1}))
    rehearsing = Rehearsing(2, 7, "torch", lines.append, drawn=drawn)
    rehearsing._count_one(7, "", first)
    rehearsing._count_one(8, "I1 at 3.000 s: microbatch 12 counts twice", second)
    assert rehearsing._finish("") == 1
    assert lines[0] == "seed 8: I1 at 3.000 s: microbatch 12 counts twice"
    assert lines[1].startswith(f"2 rehearsals (seeds 7 to 8, torch engine): 7 iterations, {cuts}1 min 30 s of virtual time in ")
    assert lines[1].endswith("faults: 1 join, 3 kill")
    assert lines[-1] == f"  swarmfree rehearse --first-seed 8 --seeds 1 --engine torch{option} --verbose"


def test_one_rehearsal_can_be_played_and_held() -> None:
    """A seed that holds all invariants ends with one line of what was run and exit code 0."""
    lines: list[str] = []
    assert Rehearsing(1, 3, "integer", lines.append).one_by_one(is_verbose=True) == 0
    assert lines[-1] == "all invariants held"
    assert lines[-2].startswith("1 rehearsals (seed 3, integer engine): ")
    assert len(lines) > 100


@pytest.mark.parametrize(
    ("then", "code", "words"),
    [("", 130, "swarmfree: interrupted\n"), ("interrupt.interrupt_by_exception();", 0, "")],
)
def test_ctrl_c_while_a_command_is_still_loading_is_one_line(then: str, code: int, words: str) -> None:
    """Before a command's own handling of signals begins, Ctrl-C ends it at once with one line;
    where it was asked for, by an exception.
    """
    rest = "try:\n    os.kill(os.getpid(), 2); time.sleep(5)\nexcept KeyboardInterrupt:\n    sys.exit(0)"
    command = [sys.executable, "-c", f"import os, sys, time\nfrom swarmfree.cli import entry, interrupt\n{then}\n{rest}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", words)


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [
        ("> /dev/full", 1, "swarmfree: the output cannot be written: No space left on device\n"),
        (">&-", 0, ""),
    ],
)
def test_an_output_that_takes_nothing_is_no_crash(redirection: str, code: int, words: str) -> None:
    """A full device is told in one line; what nobody reads is written nowhere."""
    command = ["sh", "-c", f"{sys.executable} -m swarmfree local --help {redirection}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, words)


def test_letters_that_the_terminal_does_not_have_are_no_crash() -> None:
    """A path with umlauts on an ASCII terminal is still told in one line."""
    command = [sys.executable, "-m", "swarmfree", "config", "show", "--run", "Grüße.toml"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith(b"swarmfree: Gr")
    assert done.stderr.endswith(b"`swarmfree new NAME` writes a run file\n")
    assert done.stderr.count(b"\n") == 1


def test_the_list_of_commands_fits_a_window_of_80_columns() -> None:
    """No summary is cut; `local`, with which everybody begins, comes first."""
    done = subprocess.run(
        [sys.executable, "-m", "swarmfree", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "80"},
    )
    listed = done.stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert listed[0].split()[0] == "local"
    assert len(listed) >= 11
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


LEAVER = """
import asyncio, os, signal
from swarmfree.cli import shutdown
shutdown.LEAVE_END_S = {limit_s}
async def work():
    gone = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, gone.set)
    print("ready", flush=True)
    try:
        await gone.wait()
    finally:
        print("cleaned", flush=True)
    return 0
def leave():
    print("leaves", flush=True)
    return {has_begun}
shutdown.leave(shutdown.run_until_told(work, leave))
"""


@pytest.mark.parametrize(
    ("numbers", "has_begun", "code", "said"),
    [
        ((signal.SIGTERM, signal.SIGUSR1), True, 0, ["leaves", "cleaned"]),
        ((signal.SIGHUP, signal.SIGHUP, signal.SIGUSR1), True, 0, ["leaves", "cleaned"]),
        ((signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1), True, 0, ["leaves", "cleaned"]),
        ((signal.SIGTERM, signal.SIGTERM), True, 143, ["leaves", "cleaned"]),
        ((signal.SIGHUP, signal.SIGINT), True, 130, ["leaves", "cleaned"]),
        ((signal.SIGHUP,), False, 129, ["leaves", "cleaned"]),
        ((signal.SIGINT,), True, 130, ["cleaned"]),
        ((signal.SIGTERM,), True, 143, ["leaves"]),
    ],
)
def test_what_has_something_to_leave_leaves_in_good_order(
    numbers: tuple[signal.Signals, ...], code: int, said: list[str], *, has_begun: bool
) -> None:
    """SIGTERM and a closed terminal let it end by itself, within a limit; Ctrl-C and a second
    SIGTERM do not, a second word of the terminal does.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("whoever runs the tests has this signal ignored")
    command = [sys.executable, "-c", LEAVER.format(has_begun=has_begun, limit_s=0.5 if numbers == (signal.SIGTERM,) else 15)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        heard = ""
        for number in numbers:
            process.send_signal(number)
            if number is not signal.SIGINT and not heard:
                heard = process.stdout.readline()
            else:
                # Nothing is said about it, and signals that wait are not taken in order
                time.sleep(0.05)
        try:
            # Not `communicate`: it misses what `readline` has read ahead
            rest, words = process.stdout.read(), process.stderr.read()
            process.wait(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, (heard + rest).split(), words) == (code, said, "")


TERMINAL = """
import asyncio, fcntl, sys, termios
from pathlib import Path
from swarmfree.cli import shutdown
from swarmfree.cli.event_output import TextJournal
from swarmfree.cli.peer_screen import PeerScreen
from swarmfree.protocol.events import Note
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
gone = asyncio.Event()
async def work():
    screen, journal = PeerScreen(sys.stdout, Path(sys.argv[1])), TextJournal(sys.stdout)
    screen.start()
    screen.tell(Note("ready"))
    await gone.wait()
    for word in ("leaving", "left"):
        screen.tell(Note(word))
        journal.tell(Note(word))
        await asyncio.sleep(0.3)
    screen.close()
    Path(sys.argv[1], "left").touch()
    return 0
def leave():
    gone.set()
    return True
shutdown.leave(shutdown.run_until_told(work, leave))
"""


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_who_leaves_when_its_terminal_is_closed_can_show_nothing_any_more(tmp_path: Path, terminal: str) -> None:
    """An ssh session that ends takes the screen and standard error away; the peer finishes what it
    began all the same.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("whoever runs the tests has this signal ignored")
    window, inside = os.openpty()
    command = [sys.executable, "-c", TERMINAL, str(tmp_path)]
    environment = {**os.environ, "TERM": terminal}
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True, env=environment)
    os.close(inside)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(window, 4096)
    os.close(window)
    assert process.wait(timeout=20) == 0
    assert (tmp_path / "left").exists()


@pytest.mark.parametrize(("ended", "code"), [(129, 0), (130, 130), (143, 0), (0, 0), (1, 1)])
def test_a_bootstrap_node_that_is_told_to_end_has_done_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int, code: int
) -> None:
    """It serves until somebody ends it: SIGTERM, or a terminal that is closed, is the end that it
    has, and Ctrl-C is told as by any other command.
    """
    monkeypatch.setattr(shutdown, "run_until_told", lambda _work: ended)
    arguments = ["bootstrap", "--run", "stdlib-small", "--folder", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == code
