"""A stage that loses its only replica while nobody stands by: who adopts it, until when, and what
else may fall meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from swarmfree.protocol.messages import Heartbeat, Open
from swarmfree.protocol.names import ABSENT, Member
from swarmfree.protocol.ports import Ports
from swarmfree.sim.guest_ports import ROOM_BYTES, MemoryGuests
from swarmfree.sim.partitions import GUEST, guest_of
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from swarmfree.sim.simulated_peer import Life
from tests.scenarios.scenario_world import STEADY, Once, lines, play, share_is_done, swarm, unhurried

NOBODY_COMES = replace(STEADY, replaced_share=0.0)


def lonely(*, iterations: int = 6, room_share: float = 1.0) -> Setup:
    """One replica of each of three body stages, nobody who stands by or comes, and room."""
    return replace(unhurried(swarm(replicas=1, standbys=0, faults=NOBODY_COMES), iterations=iterations), room_share=room_share)


class Story(Script):
    """Several moments, one after the other."""

    def __init__(self, *scenes: Once) -> None:
        self._scenes = scenes

    def see(self, director: Director, moment: Moment) -> None:
        """The next one that has not been."""
        waiting = next((scene for scene in self._scenes if not scene.struck), None)
        if waiting is not None:
            waiting.see(director, moment)


def kill_stages(*stages: int) -> Once:
    """As the second iteration is nearly done, nobody of these stages is left."""
    return Once(share_is_done(1), lambda director, _: director.kill(*(m for s in stages for m in director.members(s))))


def once_adopted(strike: Callable[[Director, Moment], None]) -> Once:
    """Then, when a plan is opened that names a guest."""
    return Once(_names_a_guest, strike)


def _names_a_guest(moment: Moment) -> bool:
    request = moment.request
    if moment.outcome is not None or not isinstance(request, Open):
        return False
    return any(endpoint.member.peer_id.startswith(GUEST) for endpoint in request.plan.members())


def _is_asked_for_a_guest(moment: Moment) -> bool:
    return moment.outcome is None and isinstance(moment.request, Heartbeat) and moment.request.adopted != ABSENT


def adopted(result: RehearsalResult) -> list[int]:
    """Stages that were adopted, in order."""
    return [int(line.split("stage=")[1].split()[0]) for line in lines(result, "StageAdopted")]


def _with_rooms(monkeypatch: pytest.MonkeyPatch, host: str, *, slow_s: float = 0.0, fails: int = 0) -> None:
    """This peer alone has room, and nobody comes for who has died; its guests take so long to
    start, and the one of this number fails.
    """
    opened: list[int] = []
    begin = MemoryGuests._open

    @asynccontextmanager
    async def late(self: MemoryGuests, slot: int, *, can_feed: bool) -> AsyncIterator[Ports]:
        opened.append(slot)
        if len(opened) == fails:
            raise OSError("no thread is left")
        await asyncio.sleep(slow_s)
        async with begin(self, slot, can_feed=can_feed) as ports:
            yield ports

    monkeypatch.setattr(MemoryGuests, "_open", late)
    monkeypatch.setattr(Life, "has_room", property(lambda _: True))
    monkeypatch.setattr(MemoryGuests, "room_bytes", property(lambda self: ROOM_BYTES * (self._host.member.peer_id == host)))


def _neighbour(director: Director, host: str) -> list[Member]:
    """The body stage next to a peer's that is not stage 0."""
    (at,) = [stage for stage in (1, 2, 3) if host in {m.peer_id for m in director.members(stage)}]
    return director.members(2 if at != 2 else 1)


def test_a_second_guest_that_does_not_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host, the only one with room, serves another stage by a guest already, and lives on."""
    host = "QmPeer02"
    _with_rooms(monkeypatch, host, fails=2)

    def kill_third(director: Director, _: Moment) -> None:
        alone = [m for s in (1, 2, 3) for m in director.members(s) if m.peer_id != host and not m.peer_id.startswith(GUEST)]
        director.after(0.5, lambda: director.kill(*alone))

    story = Story(Once(share_is_done(1), lambda d, _: d.kill(*_neighbour(d, host))), once_adopted(kill_third))
    result = play(replace(lonely(iterations=8), progress_bound_s=300.0), story)
    assert len(adopted(result)) == 2
    assert lines(result, "Note", "its guest has ended: no thread is left")


def test_a_guest_that_came_too_late_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer took the stage first; then the only source dies, and the guest's host is the one
    that can feed and has room.
    """
    host = "QmPeer02"
    _with_rooms(monkeypatch, host, slow_s=1.5)

    def come_first(director: Director, _: Moment) -> None:
        director.join()
        sources = director.members(0)
        director.after(4.0, lambda: director.kill(*sources))

    story = Story(Once(share_is_done(1), lambda d, _: d.kill(*_neighbour(d, host))), Once(_is_asked_for_a_guest, come_first))
    result = play(replace(lonely(iterations=8), feeders=2, bodies=2, progress_bound_s=200.0), story)
    assert adopted(result) == [0]


def test_a_lost_stage_is_adopted_and_training_goes_on() -> None:
    """Five seconds after nobody holds stage 2 a neighbour is asked; its guest makes the stage from
    both neighbours, and every iteration is committed by it.
    """
    result = play(lonely(), kill_stages(2))
    (lost,), (asked,) = lines(result, "StageLost"), lines(result, "AdoptionAsked")
    waited_s = float(asked.split()[0]) - float(lost.split()[0])
    assert 4.9 < waited_s < 6.1
    assert adopted(result) == [2]
    assert lines(result, "RecoveryDecided", "action=Merge", "builder=QmGuest")
    host = asked.split("host=")[1].split()[0]
    assert host in {"QmPeer02", "QmPeer03", "QmPeer04"}
    assert lines(result, "Opened iteration=5 ", guest_of(host))


def test_a_newcomer_takes_the_place_of_a_guest_without_a_pause() -> None:
    """It copies the adopted stage though every stage has a replica, and is in the next plan in the
    guest's place; then the guest leaves, no stage is lost, and no commit comes late.
    """
    story = Story(kill_stages(2), once_adopted(lambda director, _: director.join()))
    result = play(lonely(iterations=12), story)
    assert adopted(result) == [2]
    assert len(lines(result, "StageLost")) == 1
    assert lines(result, "StageBuilt stage=2", "action=Copy", "member=QmPeer05")
    (left,) = lines(result, "MemberLeft", "peer_id=QmGuest")
    assert lines(result, "Ended code=0 why='others serve all stages'")
    committed = lines(result, "IterationCommitted")
    since_s = [float(line.split()[0]) for line in committed if float(line.split()[0]) > float(left.split()[0])]
    gaps = [later - earlier for earlier, later in pairwise(since_s)]
    assert since_s[0] - float(left.split()[0]) < 2 * min(gaps) and max(gaps) < 2 * min(gaps)
    assert all("QmGuest" not in line for line in lines(result, "Opened iteration=11 "))


def test_the_host_of_a_guest_dies() -> None:
    """Two stages are lost at once; the two peers that are left take in a guest each."""

    def strike(director: Director, moment: Moment) -> None:
        assert isinstance(moment.request, Open)
        guests = {e.member.peer_id for e in moment.request.plan.members() if e.member.peer_id.startswith(GUEST)}
        director.after(0.5, lambda: director.kill(*(m for m in director.peers() if guest_of(m.peer_id) in guests)))

    result = play(lonely(), Story(kill_stages(2), once_adopted(strike)))
    first, *others = adopted(result)
    assert first == 2
    assert len(others) == 2 and 2 in others


def test_two_stages_are_lost_at_once() -> None:
    """Each of the two peers that are left adopts one of them, and neither both."""
    result = play(lonely(), kill_stages(1, 3))
    assert sorted(adopted(result)) == [1, 3]
    hosts = {line.split("host=")[1].split()[0] for line in lines(result, "StageAdopted")}
    assert len(hosts) == 2


def test_nobody_has_room() -> None:
    """The swarm waits, as it would without adoption, until somebody comes."""
    late = replace(NOBODY_COMES, replace_min_s=25.0, replace_max_s=25.0)
    result = play(replace(lonely(room_share=1e-9), faults=late), kill_stages(2))
    assert not lines(result, "AdoptionAsked")
    (built,) = lines(result, "StageBuilt stage=2 iteration=1 ")
    assert float(built.split()[0]) - float(lines(result, "StageLost")[0].split()[0]) > 25.0


def test_the_coordinator_dies_while_a_guest_is_asked_for() -> None:
    """It was the only source. The other peer that can feed serves a stage of the body: it or its
    neighbour takes over when a majority cannot be had, and both stages are adopted, the ends by the
    guest of whom has the text.
    """

    def lose_a_body_stage(director: Director, _: Moment) -> None:
        director.kill(next(m for stage in (2, 1, 3) for m in director.members(stage) if m.peer_id != "QmPeer02"))

    def die(director: Director, _: Moment) -> None:
        assert director.coordinator is not None
        director.kill(director.coordinator)

    setup = replace(lonely(), feeders=2, bodies=2, progress_bound_s=120.0)
    result = play(setup, Story(Once(share_is_done(1), lose_a_body_stage), Once(_is_asked_for_a_guest, die)))
    assert lines(result, "TookOver", "forced=True")
    assert lines(result, "StageAdopted stage=0", "host=QmPeer02")
    assert len(set(adopted(result))) == 2
    assert lines(result, "Opened iteration=5 ")[-1].count("QmGuest") == 2


def test_the_guest_can_be_called_no_more() -> None:
    """Nobody listens at its address, so its life counts as ended: another peer adopts the stage,
    and what was the guest ends.
    """

    def strike(director: Director, moment: Moment) -> None:
        assert isinstance(moment.request, Open)
        (guest,) = [e.member for e in moment.request.plan.members() if e.member.peer_id.startswith(GUEST)]
        director.after(0.5, lambda: director.hub.close_port(guest))

    setup = replace(lonely(iterations=12), progress_bound_s=120.0)
    result = play(setup, Story(kill_stages(2), once_adopted(strike)))
    assert adopted(result) == [2, 2]
    hosts = [line.split("host=")[1].split()[0] for line in lines(result, "StageAdopted")]
    assert hosts[0] != hosts[1]


def test_the_host_is_asked_to_leave() -> None:
    """Its guest leaves with it, each as the last of its stage: they end, one for the other's wait,
    within the time that who leaves is given, and the two stages are adopted by others.
    """

    def strike(director: Director, moment: Moment) -> None:
        assert isinstance(moment.request, Open)
        guests = {e.member.peer_id for e in moment.request.plan.members() if e.member.peer_id.startswith(GUEST)}
        (host,) = [m for m in director.peers() if guest_of(m.peer_id) in guests]
        director.after(0.5, lambda: director.leave(host))

    result = play(replace(lonely(iterations=8), progress_bound_s=120.0), Story(kill_stages(2), once_adopted(strike)))
    assert len(adopted(result)) == 3


def test_a_spare_replica_goes_before_a_guest_is_asked() -> None:
    """Where another stage has two, its youngest replica moves, and nobody is asked."""
    setup = unhurried(swarm(replicas=2, standbys=0, faults=NOBODY_COMES))
    result = play(replace(setup, room_share=1.0), kill_stages(2))
    assert not lines(result, "AdoptionAsked")
