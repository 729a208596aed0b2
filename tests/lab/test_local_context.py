"""The context of a local swarm, with stand-in processes: however it is left, all of them end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmfree import Swarm, SwarmEnded, load_run
from swarmfree.cockpit.observed_events import PeerEvent, ProcessStarted
from swarmfree.lab import local
from swarmfree.lab.report import EVENTS_FILE, EventLog, ReportError
from swarmfree.lab.swarm import SwarmOrder
from swarmfree.protocol.errors import ConfigError, SwarmfreeError
from swarmfree.protocol.events import Note

DEAF = "hears no SIGTERM"
PROGRAM = (sys.executable, str(Path(__file__).with_name("dummy_program.py")))


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    """Of stand-ins that ignore SIGTERM, so that ending them takes a while."""
    behaviour = {"*": [{"deaf": True}, {"time_s": 1.0, "kind": "Note", "text": DEAF}], "bootstrap": ["swarmfree1invite"]}
    (tmp_path / "behaviour.json").write_text(json.dumps(behaviour))
    order_of = local.order_of

    def of_stand_ins(*arguments: Any, **named: Any) -> SwarmOrder:
        order = order_of(*arguments, **named)
        order = dataclasses.replace(order, run_arguments=(), peer_arguments=(), feeder_arguments=())
        return dataclasses.replace(order, peer_count=2, program=PROGRAM, fork_server=(), stop_grace_s=0.5)

    monkeypatch.setattr(local, "order_of", of_stand_ins)
    return Swarm("stdlib-small", peers=4, standbys=0, folder=tmp_path / "report")


async def _all_up(swarm: Swarm) -> list[int]:
    """The process ids of the bootstrap node and both peers, once both are deaf."""
    pids, deaf = list[int](), set[str]()
    async for event in swarm.events():
        pids += [event.pid] if isinstance(event, ProcessStarted) else []
        deaf |= {event.name} if isinstance(event, PeerEvent) and event.event == Note(DEAF) else set()
        if len(pids) == 3 and len(deaf) == 2:
            break
    return pids


@pytest.mark.parametrize("times", [1, 3])
async def test_a_context_that_is_cancelled_while_it_is_left_ends_every_process(swarm: Swarm, times: int) -> None:
    """Its processes take half a second to end; whoever is told to go meanwhile, once or again,
    goes after them.
    """
    up = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with swarm:
            up.set_result(await _all_up(swarm))

    async with asyncio.TaskGroup() as group:
        user = group.create_task(use())
        pids, is_told = await up, False
        for _ in range(times):
            await asyncio.sleep(0.1)
            is_told |= user.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await user
        assert user.cancelled() == is_told
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert json.loads((swarm.folder / "summary.json").read_text(encoding="utf-8"))["iterations"] == 0


async def test_a_cancelled_user_of_a_swarm_ends_every_process(swarm: Swarm) -> None:
    """As when a notebook's cell is interrupted, or a limit of time runs out."""
    pids: list[int] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0) as limit, swarm:
            pids += await _all_up(swarm)
            limit.reschedule(asyncio.get_running_loop().time())
            await swarm.wait()
    assert len(pids) == 3
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


async def test_whoever_follows_a_swarm_hears_that_it_was_cancelled(swarm: Swarm) -> None:
    """Even while it was left: the events end, and so does a wait in a task of its own."""
    is_up = asyncio.Event()

    async def use() -> None:
        async with swarm:
            await _all_up(swarm)
            is_up.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(20.0), asyncio.TaskGroup() as group:
        user = group.create_task(use())
        await is_up.wait()
        told = swarm.events()
        waits = group.create_task(_outcome_of_wait(swarm))
        user.cancel()
        for _ in range(2):
            await asyncio.sleep(0)  # it is leaving now, which takes its deaf processes half a second
        assert user.cancel()
        assert [event async for event in told]
        assert "ended after 0 iterations" in await waits


async def _outcome_of_wait(swarm: Swarm) -> str:
    with pytest.raises(SwarmEnded) as ended:
        await swarm.wait(iteration=5)
    return str(ended.value)


async def test_a_full_disk_ends_a_swarm_in_one_line(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report cannot be written any more: the swarm ends, and whoever waits hears why."""
    written = EventLog.write

    def is_full_soon(log: EventLog, event: Any, state: Any) -> None:
        if isinstance(event, ProcessStarted) and event.name == "peer-2":
            raise ReportError("events.jsonl cannot be written: No space left on device; what was written before is kept")
        written(log, event, state)

    monkeypatch.setattr(EventLog, "write", is_full_soon)
    async with swarm:
        with pytest.raises(SwarmEnded, match=r"events.jsonl cannot be written: No space left on device"):
            await swarm.wait()
    assert swarm.report()["exit_code"] == 1
    assert (swarm.folder / EVENTS_FILE).stat().st_size > 0


async def test_events_are_kept_from_the_call_on(swarm: Swarm) -> None:
    """Not from its first step: nothing is missed between the two."""
    async with swarm:
        told = swarm.events()
        await _all_up(swarm)
        swarm.stop()
        started = [event.name async for event in told if isinstance(event, ProcessStarted)]
    assert started == ["bootstrap", "peer-1", "peer-2"]


async def test_one_name_joins_once(swarm: Swarm) -> None:
    """Two lives of one peer would share a folder, and one of them would be ended by nobody."""
    async with swarm:
        await _all_up(swarm)
        async with asyncio.TaskGroup() as group:
            group.create_task(swarm.join("peer-9"))
            await asyncio.sleep(0)
            with pytest.raises(SwarmfreeError, match="peer-9 cannot join: it is there already"):
                await swarm.join("peer-9")


@pytest.mark.parametrize("turns", [1, 20])
async def test_whoever_joins_as_a_swarm_ends_is_ended_as_well(swarm: Swarm, turns: int) -> None:
    """It is told so, wherever it was on its way."""

    async def join() -> None:
        with contextlib.suppress(SwarmEnded):
            await swarm.join("peer-9")

    async with asyncio.timeout(20.0), asyncio.TaskGroup() as group, swarm:
        pids = await _all_up(swarm)
        group.create_task(join())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        swarm.stop()
        with pytest.raises(SwarmEnded, match="peer-8 cannot join: the swarm has ended"):
            await swarm.join("peer-8")
    here = [child for child in psutil.Process().children(recursive=True) if "dummy_program" in " ".join(child.cmdline())]
    assert not here and not [pid for pid in pids if psutil.pid_exists(pid)]


async def test_a_swarm_whose_folder_is_gone_was_not_started(swarm: Swarm) -> None:
    """One line as it is entered, and the same as before for whoever asks it for anything."""
    swarm.folder.rmdir()
    with pytest.raises(ReportError, match="cannot be written"):
        await swarm.__aenter__()
    with pytest.raises(SwarmfreeError, match="was not started"):
        await swarm.wait()


def test_a_run_is_found_by_its_name_or_its_file(tmp_path: Path) -> None:
    """As `Swarm` finds it."""
    by_name = load_run("stdlib-small", ["run.seed=7"])
    assert (by_name.manifest.run.name, by_name.manifest.run.seed) == ("stdlib-small", 7)
    file = tmp_path / "mine.toml"
    file.write_text('[run]\nname = "mine"\n', encoding="utf-8")
    assert load_run(file).manifest.run.name == "mine"
    with pytest.raises(ConfigError, match="runs by name: chaos, stdlib-small"):
        load_run("stdlib-smal")
    with pytest.raises(ConfigError, match="a list is expected, as in"):
        load_run("stdlib-small", "run.seed=7")
