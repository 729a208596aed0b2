"""Who gets a place, and when: newcomers to a full swarm, and a founder that would rather stand by."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from swarmfree.sim.directory import MemoryDirectory
from swarmfree.sim.rehearsal import Factories
from swarmfree.sim.script import Director, Moment
from swarmfree.swarm.local_config import LocalConfig
from swarmfree.swarm.manifest import Manifest
from swarmfree.swarm.messages import Train
from swarmfree.swarm.ports import Ports
from swarmfree.trainer.life.peer import run_peer
from tests.scenarios.scenario_world import STEADY, Once, is_asked, lines, play, share_is_done, swarm, unhurried


def test_who_came_when_all_was_full_gets_the_next_free_place() -> None:
    """A newcomer to a full swarm stands by against its will: it replaces a dead replica at the next iteration, though no stage is lost."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(director.members(2)[0])

    setup = swarm(standbys=0, faults=replace(STEADY, replaced_share=0.0))
    result = play(replace(unhurried(setup), bodies=setup.bodies + 1), Once(share_is_done(1), strike))
    assert not lines(result, "StageLost")
    (standing_by,) = lines(result, "Peer01", "Placed", "stage=-1")
    late = standing_by.split("member=")[1].split()[0]
    assert lines(result, "Opened", "iteration=3", late)


def test_a_founder_takes_a_place_though_it_would_stand_by() -> None:
    """It alone decides on the first iteration, and only members are asked: as a standby it would wait for itself for ever."""
    lives: list[Ports] = []

    async def live(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, leave: asyncio.Event) -> int:
        lives.append(ports)
        return await run_peer(ports, manifest, replace(local, standby=local.standby or len(lives) == 1), rng, leave)

    result = play(replace(swarm(), feeders=1), factories=Factories(run_peer=live))
    assert lines(result, "Peer01", "Placed", "member=QmPeer01", "stage=0")


def test_who_was_away_has_its_vote_when_the_coordinator_dies() -> None:
    """Three of eight voters are back from a break when two others die: the plan has not got them, but they decide, and nothing is forced."""

    def strike(director: Director, _: Moment) -> None:
        away = [director.members(0)[1], director.members(1)[0], director.members(2)[0]]
        parted = director.partition(away)

        def fall() -> None:
            director.kill(director.members(0)[0], director.members(1)[0])
            director.heal(parted)

        director.after(6.0, fall)

    setup = swarm(body=2, replicas=3, sources=2, standbys=0, faults=replace(STEADY, replaced_share=0.0))
    slow = replace(setup, work_min_s=0.4, work_max_s=0.6, progress_bound_s=120.0)
    result = play(slow, Once(is_asked(Train, key__stage=1, key__iteration=1), strike))
    assert lines(result, "TookOver", "forced=False")
    assert not lines(result, "forced=True")


def test_who_was_fenced_says_hello_before_it_looks_into_a_slow_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows its coordinator: it has its place again five seconds after it went on, though the directory takes nine for each look."""
    at_once = MemoryDirectory._travel

    async def slow(self: MemoryDirectory) -> None:
        if asyncio.get_running_loop().time() > 9.0:
            await asyncio.sleep(9.0)
        await at_once(self)

    def strike(director: Director, _: Moment) -> None:
        director.freeze(director.members(2)[0], 10.0)

    monkeypatch.setattr(MemoryDirectory, "_travel", slow)
    setup = replace(unhurried(swarm(standbys=0), iterations=8), work_min_s=0.2, work_max_s=0.3, progress_bound_s=120.0)
    result = play(setup, Once(share_is_done(1), strike))
    (goes_on,) = lines(result, "goes on")
    peer = goes_on.split()[1].split(".")[0]
    assert lines(result, "MemberLost", f"Qm{peer}")
    back = lines(result, "Peer01", "Placed", f"Qm{peer} ")[-1]
    assert 0 < float(back.split()[0]) - float(goes_on.split()[0]) < 5
