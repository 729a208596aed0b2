"""Scenarios of copies of the ends that must outlive their source: a keeper throws none away before
something newer is complete.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import GetAverage, GetState, Heartbeat, HeartbeatAnswer, Open, Request, Seal, Sealed
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.sim.faults import Fate
from swarmfree.sim.script import Director, Moment, Script
from tests.scenarios.scenario_world import STEADY, lines, play, swarm, unhurried
from tests.scenarios.test_scenarios_ends import LATE, LOST, Watching, in_the_middle_of, kill_sources

BACK = replace(STEADY, same_port_rate=1.0)
SLOW = Fate(request_delay_s=0.3, payload_delay_s=0.001, response_delay_s=0.002)


class AfterTheSeal(Watching):
    """The source dies as soon as all members have stored the record of iteration 2; its average
    travels slowly.
    """

    def __init__(self) -> None:
        super().__init__(self._is_stored, kill_sources)
        self._stored: set[Member] = set()

    def _is_stored(self, moment: Moment) -> bool:
        match moment.request, moment.outcome:
            case Seal(record=record), Reply(message=Sealed()) if record.iteration == 2:
                self._stored.add(moment.receiver.member)
        return len(self._stored) == 6  # the source itself is asked without the network

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """No keeper gets the average before the source dies."""
        del sender, receiver
        return SLOW if isinstance(request, GetAverage) and request.iteration == 2 else None


def test_the_source_dies_after_the_seal_and_is_back_on_its_port() -> None:
    """The only source dies when all have stored a record, and a new life listens on its port: the
    ends come from a copy that is one step behind.
    """
    script = AfterTheSeal()
    result = play(swarm(faults=BACK), script)
    assert script.struck
    (how,) = lines(result, "RecoveryDecided", "stage=0", "iteration=3 ")
    assert "action=CopyKept" in how
    assert "one behind: the step of iteration 2 is lost" in how
    assert script.records[3].stages[0].state_digest == script.records[2].stages[0].state_digest


class CannotFollow(Watching):
    """No average from iteration 1 on and no part of the state reaches a keeper; the source dies in
    iteration 3.
    """

    def __init__(self) -> None:
        super().__init__(in_the_middle_of(3), kill_sources)

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Of a source's averages and state; what a keeper gives away arrives."""
        del sender
        is_average = isinstance(request, GetAverage) and request.iteration >= 1
        is_state = isinstance(request, GetState) and request.stage == 0 and request.iteration >= 2 and not request.lineage
        return LOST if is_average or (is_state and receiver.member.peer_id == "QmPeer01") else None


def test_a_copy_is_kept_while_a_newer_one_is_loaded() -> None:
    """Keepers that fell behind load anew beside the old copy, and the source dies before they are
    through: two steps are lost, not all.
    """
    script = CannotFollow()
    result = play(unhurried(swarm(faults=BACK)), script)
    assert script.struck
    (how,) = lines(result, "RecoveryDecided", "stage=0", "iteration=3 ")
    assert "action=CopyKept" in how
    assert "2 behind: the steps of iterations 1 to 2 are lost" in how
    assert script.records[3].stages[0].state_digest == script.records[1].stages[0].state_digest
    assert not lines(result, "EndsDrawnAnew")


def test_ends_that_are_drawn_anew_are_an_event_of_their_own() -> None:
    """Where no copy is kept what embedding and head had learned is lost, and the coordinator says
    so.
    """
    script = Watching(in_the_middle_of(2), kill_sources)
    result = play(replace(swarm(sources=2, faults=LATE, ends_copies=0), feeding_standbys=1), script)
    assert len(lines(result, "EndsDrawnAnew", "iteration=2 ")) == 1


class KeepersSleep(Script):
    """The only source, which leads, and both keepers of a copy stand still in iteration 3; the
    keepers wake a while after a successor has opened its first plan, which knows nothing of them.
    """

    def __init__(self, wake_s: float) -> None:
        self._keepers, self._first, self._wake_s = set[Member](), set[Member](), wake_s
        self.woken = False

    def see(self, director: Director, moment: Moment) -> None:
        """As told."""
        match moment:
            case Moment(request=Heartbeat(), outcome=Reply(message=HeartbeatAnswer(ends_iteration=kept))):
                keeps = kept >= 0 and moment.receiver.member not in director.members(0)
                (self._keepers.add if keeps else self._keepers.discard)(moment.receiver.member)
            case _:
                pass
        if not self._first and len(self._keepers) == 2 and in_the_middle_of(3)(moment):
            self._first = {*director.members(0)}
            assert director.coordinator in self._first
            for member in (*sorted(self._keepers), *self._first):
                director.freeze(member, 300.0)
        elif isinstance(moment.request, Open) and self._first and moment.sender.member not in self._first and not self.woken:
            self.woken = True
            for member in sorted(self._keepers):
                director.after(self._wake_s, lambda member=member: director.thaw(member))


@pytest.mark.parametrize("wake_s", [4.5, 8.0])
def test_ends_are_not_drawn_before_a_keeper_that_wakes_has_said_hello(wake_s: float) -> None:
    """It takes the old coordinator for its own for a while yet, and the new one has never heard
    that it keeps a copy: it is asked whom it follows, and waited for.
    """
    faults = replace(STEADY, replace_min_s=900.0, replace_max_s=900.0)
    setup = unhurried(swarm(replicas=3, standbys=0, faults=faults), iterations=8)
    script = KeepersSleep(wake_s)
    result = play(replace(setup, feeding_standbys=1), script)
    assert script.woken
    assert lines(result, "RecoveryDecided", "stage=0", "action=CopyKept")
    assert not lines(result, "EndsDrawnAnew")
