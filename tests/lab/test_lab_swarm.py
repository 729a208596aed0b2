"""A local swarm of stand-in processes: how it starts, kills, respawns, fails and ends."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, ProcessEnded, ProcessKilled, ProcessStarted, RunDescribed
from swarmfree.cockpit.state import PeerPicture, SwarmState
from swarmfree.lab import swarm as swarm_module
from swarmfree.lab.kill_script import Kill
from swarmfree.lab.last_words import nobody_can_take
from swarmfree.lab.processes import is_there
from swarmfree.lab.swarm import LocalSwarm, SwarmExit, SwarmOrder
from swarmfree.protocol.events import Event, MemberLost, Note, Started, WeightsWritten

PROGRAM = (sys.executable, str(Path(__file__).with_name("dummy_program.py")))


def _event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"time_s": 1.0, "kind": kind, **fields}


def _placed(name: str, stage: int, life: int = 1) -> dict[str, Any]:
    return _event("Placed", member=f"{('Qm' + name)[-6:]}.{f'{life:016x}'[-3:]}", stage=stage)


def _opened(iteration: int) -> dict[str, Any]:
    return _event("Opened", iteration=iteration, attempt=0, base="00", members=[])


class Heard:
    """Keeps what a swarm tells; makes a file for the stand-ins to wait for as soon as the state
    shows what the file is named after.
    """

    def __init__(self, folder: Path, **marks: Callable[[SwarmState], bool]) -> None:
        self.observed_events: list[ObservedEvent] = []
        self._folder = folder
        self._marks = marks

    def __call__(self, observed_event: ObservedEvent, state: SwarmState) -> None:
        """Hear one event."""
        self.observed_events.append(observed_event)
        for name, is_so in list(self._marks.items()):
            if is_so(state):
                del self._marks[name]
                (self._folder / name).touch()

    def pids(self) -> list[int]:
        """Every process that was started."""
        return [h.pid for h in self.observed_events if isinstance(h, ProcessStarted)]

    def told(self, kind: type[Event]) -> list[Any]:
        """What was told of one kind of event."""
        return [h for h in self.observed_events if isinstance(h, PeerEvent) and isinstance(h.event, kind) and h.name != "local"]


def _all_up(state: SwarmState) -> bool:
    """The bootstrap node and two peers, at the least."""
    return len(state.peers) > 2 and all(p.member for p in state.peers)


def _made(tmp_path: Path, behaviour: dict[str, list[Any]], heard: Heard, **order: Any) -> LocalSwarm:
    """A swarm of stand-ins that is not started yet."""
    (tmp_path / "behaviour.json").write_text(json.dumps({"bootstrap": ["swarmfree1invite"], **behaviour}))
    chosen = SwarmOrder(folder=tmp_path / "report", program=PROGRAM, **order)
    chosen.folder.mkdir()
    return LocalSwarm(chosen, RunDescribed(1.0, "test", 10, 3, 100), heard)


async def _run(tmp_path: Path, behaviour: dict[str, list[Any]], heard: Heard, **order: Any) -> SwarmExit:
    (tmp_path / "behaviour.json").write_text(json.dumps({"*": [], "bootstrap": ["swarmfree1invite"], **behaviour}))
    chosen = dataclasses.replace(
        SwarmOrder(folder=tmp_path / "report", peer_count=2, program=PROGRAM, respawn_after_s=0.1, stop_grace_s=0.5), **order
    )
    chosen.folder.mkdir()
    ending = await LocalSwarm(chosen, RunDescribed(time.time(), "test", 10, 3, 100), heard).run()
    assert not any(psutil.pid_exists(pid) for pid in heard.pids())
    assert {p.name for p in chosen.folder.iterdir()} - {"invite"} == {"logs"}
    return ending


DONE = {"exit": 0, "line": ""}


async def test_a_run_ends_when_every_peer_has_ended(tmp_path: Path) -> None:
    """Peers that end with 0 end the run with 0; the bootstrap node is ended then; nothing is left
    but the logs.
    """
    heard = Heard(tmp_path, up=_all_up)
    done = [{"until": "up"}, DONE]
    assert await _run(tmp_path, {"peer-1": done, "peer-2": done}, heard) == SwarmExit(0)
    ended = {h.name: h.code for h in heard.observed_events if isinstance(h, ProcessEnded)}
    assert ended == {"peer-1": 0, "peer-2": 0, "bootstrap": 143}
    assert {h.name for h in heard.told(Started)} == set(ended)


async def test_a_peer_that_fails_ends_the_swarm_with_its_line(tmp_path: Path) -> None:
    """The first peer that fails by itself ends all, with its exit code and its own one line."""
    behaviour = {"peer-2": [{"exit": 3, "line": "the coordinator is gone"}]}
    assert await _run(tmp_path, behaviour, Heard(tmp_path)) == SwarmExit(3, "peer-2: the coordinator is gone")


async def test_a_peer_that_dies_without_a_word_is_named_with_its_log(tmp_path: Path) -> None:
    """Where a process crashes, the line says how that ended and where its log is; one that says
    nothing at all has no log to read.
    """
    ending = await _run(tmp_path, {"peer-2": [{"exit": 9, "line": ""}]}, Heard(tmp_path))
    assert ending.code == 1
    assert ending.line.startswith("peer-2: crashed: some traceback; see ")
    assert ending.line.endswith("logs/peer-2.txt")
    shutil.rmtree(tmp_path / "report")
    ending = await _run(tmp_path, {"peer-2": [{"exit": 9, "line": None}]}, Heard(tmp_path))
    assert ending.line == "peer-2: ended with exit code 9 and no word"


async def test_a_bootstrap_node_that_fails_ends_everything(tmp_path: Path) -> None:
    """Bad input that the bootstrap node finds ends the swarm with its line before any peer is
    started.
    """
    heard = Heard(tmp_path)
    ending = await _run(tmp_path, {"bootstrap": [{"exit": 2, "line": "port 4001 is taken"}]}, heard)
    assert ending == SwarmExit(2, "bootstrap: port 4001 is taken")
    assert len(heard.pids()) == 1


async def test_a_bootstrap_node_that_gives_no_invite_is_not_waited_for_long(tmp_path: Path) -> None:
    """Without an invite within the limit the swarm ends and says so."""
    ending = await _run(tmp_path, {"bootstrap": []}, Heard(tmp_path), invite_within_s=0.3)
    assert ending.code == 1
    assert "gave no invite within" in ending.line


async def test_a_stop_ends_all_within_the_grace(tmp_path: Path) -> None:
    """A stop from outside ends everything, those that ignore SIGTERM too, and keeps the exit code
    it was given.
    """
    ready = asyncio.Event()
    deaf = [{"deaf": True}, _event("Note", text="deaf now")]

    def are_deaf(_: SwarmState) -> bool:
        if len(heard.told(Note)) == 2:
            ready.set()
        return ready.is_set()

    heard = Heard(tmp_path, deaf=are_deaf)
    swarm = _made(tmp_path, {"*": deaf}, heard, peer_count=2, stop_grace_s=0.5)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(swarm.run())
        await ready.wait()
        began_s = time.monotonic()
        swarm.stop(SwarmExit(130, "interrupted"))
        assert await running == SwarmExit(130, "interrupted")
        assert time.monotonic() - began_s < 3
    assert not any(psutil.pid_exists(pid) for pid in heard.pids())
    own = [h.event for h in heard.observed_events if isinstance(h, PeerEvent) and h.name == "local"]
    assert own == [Note("killed because they did not end within 0.5 s: peer-1, peer-2")]
    assert (tmp_path / "report" / "invite").read_text(encoding="utf-8") == "swarmfree1invite\n"


async def test_a_script_kills_the_replicas_of_a_stage_and_they_come_back(tmp_path: Path) -> None:
    """When the iteration is opened, who serves the stage is killed; with respawn it is started
    again in the same folder.
    """
    heard = Heard(
        tmp_path,
        served=lambda state: bool(state.replicas(2)),
        again=lambda s: any(p.lives == 2 and p.stage == 2 for p in s.peers),
    )
    behaviour = {
        "peer-1": [_placed("peer-1", 0), {"until": "served"}, _opened(3), {"until": "again"}, DONE],
        "peer-2": [_placed("peer-2", 2)],
        "peer-2#2": [_placed("peer-2", 2, life=2), {"until": "again"}, DONE],
    }
    assert await _run(tmp_path, behaviour, heard, kills=(Kill(3, 2),), respawn=True) == SwarmExit(0)
    kills = [h for h in heard.observed_events if isinstance(h, ProcessKilled)]
    assert [(k.name, k.target, k.why) for k in kills] == [("peer-2", "peer", "--kill stage=2,iteration=3,replicas=all")]
    ended = [(h.name, h.code, h.expected) for h in heard.observed_events if isinstance(h, ProcessEnded) and h.name == "peer-2"]
    assert ended == [("peer-2", -9, True), ("peer-2", 0, True)]
    assert heard.told(Started)[-1].event.incarnation == f"{2:016x}"


async def test_a_kill_without_a_victim_waits_for_the_next_iteration(tmp_path: Path) -> None:
    """A stage that nobody serves when the kill is due is struck in the next iteration that is
    opened.
    """
    heard = Heard(
        tmp_path,
        up=_all_up,
        missed=lambda state: any("finds nobody" in n.text for n in state.news),
        served=lambda state: bool(state.replicas(2)),
        killed=lambda state: bool(state.kills),
    )
    behaviour = {
        "peer-1": [{"until": "up"}, _opened(3), {"until": "served"}, _opened(4), {"until": "killed"}, DONE],
        "peer-2": [{"until": "missed"}, _placed("peer-2", 2)],
    }
    assert await _run(tmp_path, behaviour, heard, kills=(Kill(3, 2),)) == SwarmExit(0)
    assert [k.why for k in heard.observed_events if isinstance(k, ProcessKilled)] == ["--kill stage=2,iteration=3,replicas=all"]


async def test_what_a_killed_peer_had_started_is_ended_too(tmp_path: Path) -> None:
    """A daemon that a killed peer leaves behind does not outlive the swarm."""
    found: list[psutil.Process] = []

    def look(_: SwarmState) -> bool:
        if heard.told(Note):
            found.extend(psutil.Process(heard.pids()[-1]).children())
        return bool(found)

    heard = Heard(tmp_path, looked=look, killed=lambda state: bool(state.kills))
    behaviour = {
        "peer-1": [{"until": "looked"}, _opened(0), {"until": "killed"}, DONE],
        "peer-2": [{"child": True}, _placed("peer-2", 1), _event("Note", text="daemon is up")],
    }
    assert await _run(tmp_path, behaviour, heard, kills=(Kill(0, 1),)) == SwarmExit(0)
    assert len(found) == 1
    assert not is_there(found[0])


async def test_when_all_peers_are_killed_the_run_has_failed(tmp_path: Path) -> None:
    """A script that kills everybody does not end in success."""
    heard = Heard(tmp_path, served=lambda state: len(state.replicas(1)) == 2)
    behaviour = {"peer-1": [_placed("peer-1", 1), {"until": "served"}, _opened(0)], "peer-2": [_placed("peer-2", 1)]}
    assert await _run(tmp_path, behaviour, heard, kills=(Kill(0, 1),)) == SwarmExit(1, "every peer was killed")


async def test_a_standby_that_nobody_told_is_dismissed_and_a_member_that_stays_is_an_error(tmp_path: Path) -> None:
    """Once one peer is done, a standby gets a SIGTERM; a member that does not end within the limit
    is named.
    """
    heard = Heard(tmp_path, served=lambda state: _all_up(state) and bool(state.replicas(1)))
    behaviour: dict[str, list[Any]] = {"peer-1": [{"until": "served"}, DONE], "peer-2": [_placed("peer-2", 1)]}
    ending = await _run(tmp_path, behaviour, heard, standby_count=1, end_grace_s=0.6)
    assert ending.code == 1
    assert ending.line.endswith("still there: peer-2")
    assert [h.code for h in heard.observed_events if isinstance(h, ProcessEnded) and h.name == "standby-1"] == [143]


async def test_lines_that_are_no_events_are_noted(tmp_path: Path) -> None:
    """Output that is no event of ours does no harm and is noted; plain lines of peers are passed
    over.
    """
    heard = Heard(tmp_path, noted=lambda _: len(heard.told(Note)) == 2)
    steps = ["a plain line", '{"half": ', _event("NoSuchEvent"), {"until": "noted"}, DONE]
    assert await _run(tmp_path, {"peer-1": steps, "peer-2": [{"until": "noted"}, DONE]}, heard) == SwarmExit(0)
    notes = [h.event.text for h in heard.told(Note)]
    assert [n.partition(": ")[0] for n in notes] == ["said something that is no event"] * 2


class Late(Heard):
    """Keeps what a swarm tells, and meddles with it once, as soon as all are up."""

    def __init__(
        self, folder: Path, meddle: Callable[[LocalSwarm], Awaitable[None]], is_time: Callable[[SwarmState], bool]
    ) -> None:
        super().__init__(folder)
        self._meddle, self._is_time = meddle, is_time
        self.meddling: asyncio.Event = asyncio.Event()

    def __call__(self, observed_event: ObservedEvent, state: SwarmState) -> None:
        """Hear one event."""
        super().__call__(observed_event, state)
        if self._is_time(state):
            self.meddling.set()

    async def meddle(self, swarm: LocalSwarm) -> None:
        """Wait for the time, then meddle."""
        await self.meddling.wait()
        await self._meddle(swarm)


async def _run_meddled(tmp_path: Path, behaviour: dict[str, list[Any]], late: Late, **order: Any) -> SwarmExit:
    (tmp_path / "behaviour.json").write_text(json.dumps({"*": [], "bootstrap": ["swarmfree1invite"], **behaviour}))
    chosen = SwarmOrder(folder=tmp_path / "report", peer_count=2, program=PROGRAM, stop_grace_s=0.5)
    chosen = dataclasses.replace(chosen, **order)
    chosen.folder.mkdir()
    swarm = LocalSwarm(chosen, RunDescribed(time.time(), "test", 10, 3, 100), late)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(swarm.run())
        await late.meddle(swarm)
    assert not any(psutil.pid_exists(pid) for pid in late.pids())
    return running.result()


async def test_somebody_may_join_later_and_come_back_by_name(tmp_path: Path) -> None:
    """A name that was not there is started with arguments of its own; after its end it may be
    started again, and lives twice.
    """

    async def meddle(swarm: LocalSwarm) -> None:
        await swarm.join("joiner-1")
        await _until(lambda: bool(_lives(swarm, "joiner-1")))
        swarm.send("joiner-1", signal.SIGTERM)
        await _until(lambda: not _lives(swarm, "joiner-1"))
        await swarm.join("joiner-1")
        await _until(lambda: _lives(swarm, "joiner-1") == 2)
        swarm.stop(SwarmExit(0))

    late = Late(tmp_path, meddle, _all_up)
    asked: list[str] = []

    def own(name: str) -> tuple[str, ...]:
        asked.append(name)
        return ("--standby",)

    assert await _run_meddled(tmp_path, {}, late, own_arguments=own) == SwarmExit(0)
    assert asked == ["bootstrap", "peer-1", "peer-2", "joiner-1", "joiner-1"]
    ended = [h for h in late.observed_events if isinstance(h, ProcessEnded) and h.name == "joiner-1"]
    assert (ended[0].code, ended[0].expected) == (143, True)


async def test_who_was_frozen_ends_with_the_others(tmp_path: Path) -> None:
    """A stopped process is told to go on before it is told to end, so that it needs no SIGKILL."""

    async def meddle(swarm: LocalSwarm) -> None:
        swarm.send("peer-2", signal.SIGSTOP)
        (process,) = [psutil.Process(p.pid) for p in swarm.state.peers if p.name == "peer-2"]
        await _until(lambda: process.status() == psutil.STATUS_STOPPED)
        swarm.stop(SwarmExit(0))

    late = Late(tmp_path, meddle, _all_up)
    assert await _run_meddled(tmp_path, {}, late, stop_grace_s=5.0) == SwarmExit(0)
    assert [h.code for h in late.observed_events if isinstance(h, ProcessEnded) and h.name == "peer-2"] == [143]


def _lives(swarm: LocalSwarm, name: str) -> int:
    peer = swarm.state.peer(name)
    return peer.lives if peer is not None and peer.is_alive and peer.member else 0


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


async def test_what_the_ending_itself_does_is_no_loss(tmp_path: Path) -> None:
    """A peer that tells of a lost neighbour after the swarm was told to end is not heard: the
    ending did that.
    """
    lost = _event("MemberLost", member="peer-2", peer_id="Qm2", stage=1, why="connection refused")
    weights = _event("WeightsWritten", stage=1, path="weights")
    late = [{"deaf": True}, _event("Note", text="up"), {"until": "told"}, lost, weights]
    heard = Heard(tmp_path)
    swarm = _made(tmp_path, {"*": late}, heard, peer_count=1, stop_grace_s=2.0)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(swarm.run())
        while not heard.told(Note):
            await asyncio.sleep(0.01)
        swarm.stop(SwarmExit(130, "interrupted"))
        (tmp_path / "told").touch()
        await running
    assert not heard.told(MemberLost)
    assert heard.told(WeightsWritten)


async def test_a_stage_that_nobody_can_take_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fewer peers live than there are stages for some time, one line says so once, however
    long that lasts, and what to do.
    """
    monkeypatch.setattr(swarm_module, "LOOK_S", 0.02)
    looks: list[str] = []

    def look(state: SwarmState) -> str:
        looks.append(nobody_can_take(state))
        return looks[-1]

    monkeypatch.setattr(swarm_module, "nobody_can_take", look)
    heard = Heard(tmp_path)
    opened = _event("Opened", iteration=0, attempt=0, base="00", members=[["Qm1"], ["Qm2"], ["Qm3"]])
    swarm = _made(tmp_path, {"*": [opened]}, heard, peer_count=2, stop_grace_s=0.5, taker_within_s=0.1)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(swarm.run())
        async with asyncio.timeout(20):
            while sum(map(bool, looks)) < 20:
                await asyncio.sleep(0.01)
        swarm.stop(SwarmExit(130, "interrupted"))
        await running
    said = [
        h.event.text
        for h in heard.observed_events
        if isinstance(h, PeerEvent) and h.name == "local" and "nobody here" in h.event.text
    ]
    assert len(said) == 1
    assert "2 peers live for 3 stages" in said[0]
    assert "--respawn" in said[0]


def test_a_stage_that_somebody_may_take_is_waited_for() -> None:
    """As many peers as stages are enough: one of them serves a stage that another one has too, or
    stands by.
    """
    opened = SwarmState(started_s=1.0, opened_s=2.0, stage_count=3)
    peers = [PeerPicture(f"peer-{number}", "peer", stage=stage) for number, stage in enumerate((0, 1, 1))]
    assert not nobody_can_take(dataclasses.replace(opened, peers=tuple(peers)))
    two = nobody_can_take(dataclasses.replace(opened, peers=tuple(peers[:2])))
    assert two.startswith("2 peers live for 3 stages, and nobody here can take stage 2: the run waits")
