"""What becomes of a local swarm of stand-in processes when somebody else ends one of them: told,
survived, started again where that was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmfree.cockpit.observed_events import ProcessKilled, RunDescribed
from swarmfree.lab.last_words import last_word, remove_empty, see, signal_from_outside
from swarmfree.lab.processes import is_there
from swarmfree.lab.starter import Starter
from swarmfree.lab.summary import summarise, summary_text
from swarmfree.lab.swarm import BOOTSTRAP, LocalSwarm, SwarmExit, SwarmOrder
from tests.lab.test_lab_swarm import PROGRAM, Heard

PROGRAM_OF_FORK_SERVER = (
    "import os, sys; from swarmfree.lab.fork_server import serve; from tests.lab import dummy_program\n"
    "def run(a): sys.argv = ['dummy', *a, '--die-with-parent', str(os.getppid())]; dummy_program.main()\n"
    "serve(lambda: None, run)"
)
LEAVES = [{"time_s": 1.0, "kind": "Ended", "code": 0, "why": "left"}, {"exit": 0, "line": ""}]
STEPPED = {"time_s": 1.0, "kind": "Stepped", "iteration": 1, "lineage": "00"}
COMMIT = {
    "kind": "IterationCommitted",
    "time_s": 1.0,
    "iteration": 0,
    "attempt": 0,
    "loss": 5.0,
    "evaluation": None,
    "tokens": 100,
    "seconds": 0.5,
    "squared_norms": [1.0],
    "lineage": "00",
}


class Struck:
    """A swarm that runs, and what is done to it from outside."""

    def __init__(self, swarm: LocalSwarm, heard: Heard, folder: Path) -> None:
        self.swarm, self.heard, self._folder = swarm, heard, folder
        self.ending: SwarmExit | None = None

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something."""
        async with asyncio.timeout(20):
            while not is_so():
                await asyncio.sleep(0.01)

    async def up(self, *names: str) -> None:
        """Wait until these have said so."""
        await self.until(lambda: all((p := self.swarm.state.peer(name)) and p.member for name in names))

    def send(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal by pid, as a person does."""
        peer = self.swarm.state.peer(name)
        assert peer is not None
        os.kill(peer.pid, number)

    async def again(self, name: str) -> None:
        """Wait until it lives a second time."""
        await self.until(lambda: (p := self.swarm.state.peer(name)) is not None and p.lives == 2 and bool(p.member))

    def finish(self) -> None:
        """Let the peers that wait for it do the rest."""
        (self._folder / "finish").touch()

    async def end(self) -> SwarmExit:
        """Wait for its end."""
        await self.until(lambda: self.ending is not None)
        assert self.ending is not None
        return self.ending

    def kills(self) -> list[tuple[str, str, str, bool]]:
        """Who was killed, what, why, whether from outside."""
        return [(h.name, h.target, h.why, h.from_outside) for h in self.heard.observed_events if isinstance(h, ProcessKilled)]


@contextlib.asynccontextmanager
async def struck(tmp_path: Path, behaviour: dict[str, list[Any]] | None = None, **order: Any) -> AsyncIterator[Struck]:
    """A swarm of a bootstrap node and two peers, which end well when it is finished."""
    done = [{"until": "finish"}, {"exit": 0, "line": ""}]
    steps = {"*": done, "bootstrap": ["swarmfree1invite"], "bootstrap#2": ["swarmfree1invite"], **(behaviour or {})}
    (tmp_path / "behaviour.json").write_text(json.dumps(steps))
    chosen = SwarmOrder(tmp_path / "report", peer_count=2, program=PROGRAM, respawn_after_s=0.1, stop_grace_s=0.5)
    chosen = dataclasses.replace(chosen, **order)
    chosen.folder.mkdir()
    heard = Heard(tmp_path)
    swarm = LocalSwarm(chosen, RunDescribed(time.time(), "test", 10, 3, 100), heard)
    story = Struck(swarm, heard, tmp_path)

    async def run() -> None:
        story.ending = await swarm.run()

    async with asyncio.timeout(40), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run())
        await story.until(lambda: bool(swarm.state.peers))
        yield story
        swarm.stop(SwarmExit(1, "the test is over"))
        await running
    async with asyncio.timeout(5):
        # Those of a dead fork server are the kernel's to end
        while any(_runs(pid) for pid in heard.pids()):
            await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return is_there(psutil.Process(pid))
    except psutil.Error:
        return False


async def test_a_peer_that_is_killed_from_outside_is_told_and_survived(tmp_path: Path) -> None:
    """SIGKILL by hand is one line, in the view and in the summary; the other peer ends the run
    well.
    """
    async with struck(tmp_path) as story:
        await story.up(BOOTSTRAP, "peer-1", "peer-2")
        story.send("peer-2")
        await story.until(lambda: bool(story.kills()))
        story.finish()
        assert await story.end() == SwarmExit(0)
        assert story.kills() == [("peer-2", "peer", "SIGKILL", True)]
        state = story.swarm.state
        assert ("peer-2", "was killed from outside (SIGKILL)") in [(n.who, n.text) for n in state.news]
        assert "peer-2 was killed from outside (SIGKILL)" in summary_text(summarise(state, 0, ""), "here").splitlines()


@pytest.mark.parametrize("name", ["peer-2", BOOTSTRAP])
async def test_who_is_killed_from_outside_comes_back(tmp_path: Path, name: str) -> None:
    """With respawn a peer or the bootstrap node that somebody killed is started again in its
    folder, as after a scripted kill.
    """
    async with struck(tmp_path, respawn=True) as story:
        await story.up(BOOTSTRAP, "peer-1", "peer-2")
        story.send(name)
        await story.again(name)
        story.finish()
        assert await story.end() == SwarmExit(0)
        assert story.kills() == [(name, "peer" if name == "peer-2" else "bootstrap", "SIGKILL", True)]


async def test_nobody_needs_the_bootstrap_node_once_it_gave_its_invite(tmp_path: Path) -> None:
    """Killed before, it ends the swarm with one line; killed afterwards, the peers go on."""
    async with struck(tmp_path) as story:
        await story.up("peer-1", "peer-2")
        story.send(BOOTSTRAP)
        await story.until(lambda: bool(story.kills()))
        story.finish()
        assert await story.end() == SwarmExit(0)
    (tmp_path / "again").mkdir()
    async with struck(tmp_path / "again", {"bootstrap": []}) as story:
        await story.up(BOOTSTRAP)
        story.send(BOOTSTRAP)
        assert await story.end() == SwarmExit(1, "the bootstrap node was killed from outside before it gave an invite")


async def test_when_somebody_kills_every_peer_one_line_says_so(tmp_path: Path) -> None:
    """Nobody is left who holds the model: the swarm ends, also where a standby lives and who is
    killed is started again.
    """
    steps: dict[str, list[Any]] = {
        "peer-1": [STEPPED, COMMIT],
        "peer-2": [STEPPED],
        "standby-1": [],
    }
    async with struck(tmp_path, steps, standby_count=1, respawn=True, respawn_after_s=5.0) as story:
        state = lambda: story.swarm.state  # noqa: E731 - the newest one
        await story.until(lambda: bool(state().commits) and len([p for p in state().peers if p.iteration]) == 2)
        await story.up("standby-1")
        for name in ("peer-1", "peer-2"):
            story.send(name)
        assert await story.end() == SwarmExit(1, "every peer that held the model was killed or has left")


async def test_every_peer_comes_back_while_there_is_nothing_to_lose(tmp_path: Path) -> None:
    """Before the first commit peers that are all killed are started again."""
    async with struck(tmp_path, respawn=True) as story:
        await story.up("peer-1", "peer-2")
        for name in ("peer-1", "peer-2"):
            story.send(name)
        await story.again("peer-1")
        await story.again("peer-2")
        story.finish()
        assert await story.end() == SwarmExit(0)


async def test_what_a_peer_says_before_its_start_is_known_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a process speaks before whoever started it goes on: its first words are
    those of the new life.
    """
    start = Starter.start

    async def busy(self: Starter, name: str, arguments: Any, log_path: Path, on_line: Callable[[str], None]) -> Any:
        has_spoken = asyncio.Event()

        def hear(line: str) -> None:
            on_line(line)
            has_spoken.set()

        child = await start(self, name, arguments, log_path, hear)
        await has_spoken.wait()
        return child

    monkeypatch.setattr(Starter, "start", busy)
    async with struck(tmp_path, respawn=True) as story:
        await story.up("peer-1", "peer-2")
        story.send("peer-1")
        await story.again("peer-1")
        story.finish()
        assert await story.end() == SwarmExit(0)


async def test_a_peer_that_somebody_tells_to_leave_is_no_end_of_the_run(tmp_path: Path) -> None:
    """A peer that leaves in good order, or is told to end before it can, ends with the others going
    on.
    """
    async with struck(tmp_path, {"peer-2": LEAVES, "peer-3": []}, peer_count=3, end_grace_s=0.1) as story:
        await story.up("peer-1", "peer-3")
        story.send("peer-3", signal.SIGTERM)
        await story.until(lambda: not any(p.is_alive for p in story.swarm.state.peers if p.name in {"peer-2", "peer-3"}))
        assert story.kills() == [("peer-3", "peer", "SIGTERM", True)]
        await asyncio.sleep(0.2)  # twice as long as the others get once the run is over
        assert story.ending is None
        story.finish()
        assert await story.end() == SwarmExit(0)


async def test_a_peer_that_crashes_ends_the_swarm(tmp_path: Path) -> None:
    """A signal that a process brings upon itself is its own error, with respawn too."""
    async with struck(tmp_path, respawn=True) as story:
        await story.up("peer-1", "peer-2")
        story.send("peer-2", signal.SIGSEGV)
        ending = await story.end()
    assert ending.code == 1
    assert ending.line == "peer-2: ended with signal SIGSEGV and no word"


async def test_a_fork_server_that_is_killed_is_one_line(tmp_path: Path) -> None:
    """All others die with the process that they were forked from, and that is what is said; each is
    known by its own name before.
    """
    fork_server = (sys.executable, "-c", PROGRAM_OF_FORK_SERVER)
    async with struck(tmp_path, fork_server=fork_server, respawn=True) as story:
        await story.up(BOOTSTRAP, "peer-1", "peer-2")
        state = story.swarm.state
        processes = [psutil.Process(p.pid) for p in state.peers]
        names = [Path(f"/proc/{p.pid}/cmdline").read_bytes().rstrip(b"\0").decode() for p in processes]
        assert names == ["swarmfree bootstrap", "swarmfree peer-1", "swarmfree peer-2"]
        (parent,) = {p.ppid() for p in processes}
        os.kill(parent, signal.SIGKILL)
        ending = await story.end()
    assert ending.code == 1
    assert ending.line.startswith("the fork server has ended, and with it all others")
    assert story.kills() == []


@pytest.mark.parametrize(
    ("code", "sent"),
    [
        (0, ""),
        (1, ""),
        (9, ""),
        (129, "SIGHUP"),
        (130, "SIGINT"),
        (143, "SIGTERM"),
        (-9, "SIGKILL"),
        (-6, ""),
        (-11, ""),
        (-99, ""),
    ],
)
def test_who_ended_a_process(code: int, sent: str) -> None:
    """A signal other than that of a crash comes from outside, and so does being told to end; an
    exit code is the process's own word.
    """
    assert signal_from_outside(code) == sent


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["noise", "swarmfree: the disk is full", "noise"], 1, "the disk is full"),
        (["  | ValueError: no", " "], 1, "crashed: ValueError: no; see {log}"),
        ([], 7, "ended with exit code 7 and no word"),
        ([], -11, "ended with signal SIGSEGV and no word"),
    ],
)
def test_the_last_word_of_a_process(tmp_path: Path, words: list[str], code: int, line: str) -> None:
    """What it said of itself counts most, then how it crashed, then its exit code; a log is named
    where it has more of it.
    """
    log = tmp_path / "log.txt"
    log.write_text("\n".join(words))
    assert last_word(words, code, log) == line.format(log=log)


def test_a_log_in_which_nobody_said_anything_does_not_stay(tmp_path: Path) -> None:
    """What is pointed at is there afterwards; where nobody said anything, the folder goes too."""
    logs = tmp_path / "logs"
    logs.mkdir()
    quiet, loud = logs / "quiet.txt", logs / "loud.txt"
    quiet.touch()
    loud.write_text("a word")
    assert (see(quiet), see(loud)) == ("", f"; see {loud}")
    remove_empty(logs)
    assert list(logs.iterdir()) == [loud]
    loud.write_text("")
    remove_empty(logs)
    assert not logs.exists()
    remove_empty(logs)
