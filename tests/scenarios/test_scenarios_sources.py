"""Scenarios of sources and joiners: a source dies or sleeps, all of them do, a newcomer's download
spans many commits.

Numbers in names are those of the protocol's list. In each of them every invariant holds, too, and
the run finishes.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.protocol.messages import GetAverage, GetState, Heartbeat, Open, Redo, Request, TakeRoll, Train
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.sim.faults import Fate
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import STEADY, Counting, Once, is_answered, is_asked, lines, play, swarm, unhurried

SOON = {"request_delay_s": 0.002, "payload_delay_s": 0.001, "response_delay_s": 0.002}


def other_source(director: Director) -> Member:
    """A source that does not lead."""
    return next(member for member in director.members(0) if member != director.coordinator)


def train_name(moment: Moment) -> str | None:
    """Stage and microbatch of a call that travels the ring in iteration 1."""
    match moment.request:
        case Train(key=key, segment=None) if key.iteration == 1 and key.stage > 0:
            return f"{key.stage}/{key.microbatch}"
        case Redo():
            return "redo"
        case _:
            return None


def test_18_source_dies_full_hands() -> None:
    """A source dies with some microbatches finished and some under way: the other one takes its
    share, in the same attempt.
    """
    answered: set[int] = set()

    class Seeing(Counting):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if is_answered(Train, key__stage=1, key__iteration=1)(moment) and not self.struck:
                answered.add(moment.request.key.microbatch)  # type: ignore[union-attr]

    def is_time(moment: Moment) -> bool:
        return len(answered) >= 4 and moment.outcome is None

    script = Seeing(is_time, lambda director, _: director.kill(other_source(director)), train_name)
    result = play(swarm(sources=2), script)
    assert script.struck
    assert len(lines(result, "MemberLost", "stage=0")) == 1
    assert lines(result, "IterationCommitted", "iteration=1 ", "attempt=0")
    assert not lines(result, "StageLost")
    assert max(script.counts.get(f"3/{number}", 0) for number in answered) == 1, "what was finished does not come round again"


def test_19_source_sleeps() -> None:
    """A source stands still for twenty seconds while the other one takes its share, then drives on:
    it counts for nothing, and disturbs nothing.
    """
    script = Once(
        is_asked(Train, key__iteration=1, key__stage=2), lambda director, _: director.freeze(other_source(director), 20.0)
    )
    result = play(unhurried(swarm(sources=2), iterations=14), script)
    assert lines(result, "IterationCommitted", "iteration=1 ", "attempt=0")
    assert len(lines(result, "MemberLost", "stage=0")) == 1
    assert lines(result, "goes on")
    assert not lines(result, "TookOver")
    assert not lines(result, "forced=1")
    assert "QmPeer02" in lines(result, "Opened", "iteration=13 ")[-1]


def test_27_join_through_commits() -> None:
    """A newcomer's download spans several commits and misses an average; it is a member in the end,
    and nobody waits for it.
    """
    lost: list[Request] = []
    joiner: list[Member] = []

    class Joining(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if isinstance(moment.request, GetState) and moment.outcome is None and self.struck and not joiner:
                joiner.append(moment.sender.member)
                director.slow(moment.sender.member, 40.0, 12.0)

        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            if isinstance(request, GetAverage) and len(lost) < 2:
                lost.append(request)
                return Fate(**SOON, request_lost=True)
            return None

    script = Joining(is_asked(TakeRoll, roll__iteration=1), lambda director, _: director.join())
    setup = swarm(replicas=3, replicas_min=2, standbys=0, ends_copies=0)
    result = play(unhurried(replace(setup, bodies=8), iterations=12), script)
    assert joiner
    assert lost
    built = lines(result, "StageBuilt", "action=Copy", joiner[0].peer_id)
    assert built
    opened = lines(result, "Opened", joiner[0].peer_id)
    assert opened
    begun = result.transcript.index(lines(result, "Placed", joiner[0].peer_id)[0])
    between = [line for line in result.transcript[begun : result.transcript.index(built[0])] if "IterationCommitted" in line]
    assert len(between) >= 3


def test_a_source_that_is_back_before_it_is_missed_gets_its_place_again() -> None:
    """Its older life still counts as a source when the new one says hello: that one takes its
    place, and not one in the body.
    """
    killed: list[Member] = []

    class Unnoticed(Once):
        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            lost = isinstance(request, Heartbeat) and receiver.member in killed
            return Fate(**SOON, request_lost=True) if lost else None

    def strike(director: Director, _: Moment) -> None:
        killed.append(other_source(director))
        director.kill(killed[0])

    faults = replace(STEADY, replace_min_s=0.3, replace_max_s=0.3)
    script = Unnoticed(is_asked(Train, key__iteration=1, key__stage=2), strike)
    result = play(unhurried(swarm(sources=2, faults=faults), iterations=8), script)
    assert lines(result, "MemberLost", "it was started again", killed[0].peer_id)
    assert [line for line in lines(result, "Placed", f"member={killed[0].peer_id} ") if "stage=0" not in line] == []
    assert killed[0].peer_id in lines(result, "Opened", "iteration=7 ")[-1]


def test_a_source_that_stood_still_trains_at_once_when_it_goes_on() -> None:
    """Six that keep a copy of the ends have asked the only source for it over and over for 45 s:
    144 parts that nobody waits for any more keep its device from nothing.
    """
    script = Once(
        is_answered(Open, plan__position__iteration=0), lambda director, _: director.freeze(director.members(0)[0], 45.0)
    )
    setup = swarm(standbys=0, ends_copies=6)
    result = play(replace(setup, work_min_s=0.1, work_max_s=0.2, progress_bound_s=200.0), script)
    (goes_on,), committed = lines(result, "goes on"), lines(result, "IterationCommitted iteration=0")[0]
    assert float(committed.split()[0]) - float(goes_on.split()[0]) < 25.0
