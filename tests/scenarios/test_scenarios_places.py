"""Who gets a place, and when: newcomers to a full swarm, and a founder that would rather stand
by.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, Request, Train
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Ports
from swarmfree.sim.directory import MemoryDirectory
from swarmfree.sim.faults import Fate
from swarmfree.sim.rehearsal import Factories
from swarmfree.sim.script import Director, Moment
from swarmfree.trainer.peer import Hooks, run_peer
from tests.scenarios.scenario_world import STEADY, Once, is_asked, lines, play, share_is_done, swarm, unhurried


def test_who_came_when_all_was_full_gets_the_next_free_place() -> None:
    """A newcomer to a full swarm stands by against its will: it replaces a dead replica at the next
    iteration, though no stage is lost.
    """

    def strike(director: Director, _: Moment) -> None:
        director.kill(director.members(2)[0])

    setup = swarm(standbys=0, faults=replace(STEADY, replaced_share=0.0))
    result = play(replace(unhurried(setup), bodies=setup.bodies + 1), Once(share_is_done(1), strike))
    assert not lines(result, "StageLost")
    (standing_by,) = lines(result, "Peer01", "Placed", "stage=-1")
    late = standing_by.split("member=")[1].split()[0]
    assert lines(result, "Opened", "iteration=3", late)


def test_a_founder_takes_a_place_though_it_would_stand_by() -> None:
    """It alone decides on the first iteration, and only members are asked: as a standby it would
    wait for itself for ever.
    """
    lives: list[Ports] = []

    async def live(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        lives.append(ports)
        return await run_peer(ports, manifest, replace(local, standby=local.standby or len(lives) == 1), rng, hooks)

    result = play(replace(swarm(), feeders=1), factories=Factories(run_peer=live))
    assert lines(result, "Peer01", "Placed", "member=QmPeer01", "stage=0")


def test_who_was_away_has_its_vote_when_the_coordinator_dies() -> None:
    """Three of eight voters are back from a break when two others die: the plan has not got them,
    but they decide, and nothing is forced.
    """

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
    """It knows its coordinator: it has its place again five seconds after it went on, though the
    directory takes nine for each look.
    """
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


class LosesItsMajority(Once):
    """The coordinator is parted from all others but a newcomer, that it calls back; the answer
    comes late. A replica dies, too.
    """

    def __init__(self, comes_s: float) -> None:
        super().__init__(is_asked(Train, key__iteration=3, key__stage=1), lambda director, _: self._part(director))
        self._comes_s = comes_s
        self._led_by: list[Member] = []
        self._known: set[Member] = set()

    def _part(self, director: Director) -> None:
        self._known.update(director.peers())
        self._led_by += [member for member in director.members(0) if member == director.coordinator]
        director.partition(self._led_by, self._known.difference(self._led_by), duration_s=20.0)
        director.kill(director.members(2)[1])
        director.after(self._comes_s, director.join)

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """The newcomer's answer comes as late as it may."""
        is_call_back = sender.member in self._led_by and receiver.member not in self._known and isinstance(request, GetPlan)
        return Fate(request_delay_s=0.002, payload_delay_s=0.001, response_delay_s=0.45) if is_call_back else None


@pytest.mark.parametrize("comes_s", [4.55, 4.7, 4.85])
def test_who_is_called_back_as_a_lead_ends_gets_its_place_from_the_next_one(comes_s: float) -> None:
    """Whoever leads no longer takes nobody in: else it would call for ever whom it gives no place,
    and that one would look for no other.
    """
    faults = replace(STEADY, replace_min_s=600.0, replace_max_s=600.0)
    setup = unhurried(swarm(sources=2, replicas_min=1, standbys=0, faults=faults), iterations=15)
    result = play(setup, LosesItsMajority(comes_s))
    (took_over,) = lines(result, "TookOver", "forced=False")
    assert next(line.split()[1] for line in lines(result, "Placed member=QmPeer09 stage=2")) == took_over.split()[1]
    assert "QmPeer09" in lines(result, "Opened", "iteration=14 ")[-1]
