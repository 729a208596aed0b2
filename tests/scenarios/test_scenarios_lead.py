"""Scenarios of who leads: by whose word a coordinator falls, which lineage gives way, and who
decides when a majority is dead.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Build, Claim, Commit, Goodbye, Request, Seal, Train
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.sim.faults import Fate
from swarmfree.sim.memory_call import Question
from swarmfree.sim.script import Director, Moment
from swarmfree.trainer.coordinator.coordinator import Coordinator
from tests.scenarios.scenario_world import STEADY, Once, is_asked, lines, play, swarm, unhurried

NOBODY_COMES = replace(STEADY, replace_min_s=900.0, replace_max_s=900.0)
FIRST = "QmPeer01"
"""Founds the run, and leads it at first."""


def told_s(line: str) -> float:
    """When a line of a transcript was told."""
    return float(line.split(maxsplit=1)[0])


# ---- whose word deposes (finding 5) --------------------------------------------------------------


def test_a_peer_without_a_vote_deposes_nobody() -> None:
    """It promised a higher term to somebody who gave way while it stood still: the coordinator
    stays, and it is a member again.
    """
    away: list[Member] = []
    leaders: list[Member] = []

    class Split(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            is_claim = isinstance(moment.request, Claim) and not moment.request.only_asking
            if is_claim and moment.sender.member in away and moment.sender.member not in leaders:
                leaders.append(moment.sender.member)

    def strike(director: Director, _: Moment) -> None:
        away.extend(director.members(stage)[0] for stage in (2, 3))
        director.partition(away, duration_s=50.0)

        def freeze() -> None:
            (follower,) = set(away) - set(leaders)
            director.freeze(follower, 20.0)

        director.after(49.0, freeze)

    result = play(unhurried(swarm(sources=2), iterations=50), Split(is_asked(Train, key__iteration=1), strike))
    (lonely,) = lines(result, "TookOver")
    assert leaders[0].peer_id.removeprefix("Qm") in lonely
    assert not [line for line in lines(result, "coordinates no longer") if "Peer01" in line.split()[1]]
    assert lines(result, "MemberLost", "it promised a higher term, and has no vote here")
    (last, *_) = lines(result, "Opened", "iteration=49 ")
    assert all(member.peer_id in last for member in away)


def test_a_successor_claims_above_what_was_promised_in_one_go() -> None:
    """A member with a vote has promised term 7: the coordinator falls, and asks for term 8 as soon
    as it has heard of that.
    """
    asked: set[int] = set()
    voters: list[Member] = []

    class Promising(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            match moment:
                case Moment(request=Claim(position=position), outcome=None) if moment.sender.member.peer_id == FIRST:
                    asked.add(position.term.number)

        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            """The voter itself finds nobody who would follow it."""
            is_its_own = isinstance(request, Claim) and sender.member in voters and receiver != sender
            return Fate(0.002, 0.001, 0.002, request_lost=True) if is_its_own else None

    def strike(director: Director, _: Moment) -> None:
        (voter,) = director.members(2)
        voters.append(voter)
        (other,) = director.members(3)  # of anybody without a place the claim would be refused
        assert director.coordinator is not None, "somebody leads"
        director.cut(voter, director.coordinator, duration_s=6.0)

        def promise() -> None:
            peers = director.hub._peers
            claim = Claim(Position(Term(7, other), 3, 0, 1), only_asking=False)
            late = director.hub.begin(peers[other], Question(peers[voter].endpoint, claim, b"", 2.0, header_first=False))
            director.after(1.0, late.close)

        director.after(5.0, promise)

    setup = unhurried(swarm(replicas=1, faults=NOBODY_COMES), iterations=6)
    script = Promising(is_asked(Train, key__iteration=3, key__stage=2), strike)
    result = play(setup, script)
    (took,) = lines(result, "TookOver")
    assert "term=8 " in took
    assert "Peer01" in took.split()[1]
    assert asked == {2, 8}
    assert not lines(result, "StageLost")
    assert result.statistics.longest_gap_s < 20.0


# ---- which lineage gives way (finding 7) ---------------------------------------------------------


@pytest.mark.parametrize("has_lost", [False, True], ids=["whole", "has-lost-a-stage"])
def test_what_a_majority_committed_never_gives_way_to_what_was_forced(has_lost: bool) -> None:  # noqa: FBT001 - the two halves of one scenario
    """Four are parted from four; as they meet, a stage of the side that the senior leads has just
    died, or has not.
    """

    def strike(director: Director, _: Moment) -> None:
        other = next(member for member in director.members(0) if member != director.coordinator)
        far = [other, *(director.members(stage)[0] for stage in (1, 2, 3))]
        lost = director.members(2)[1]
        director.partition(far, duration_s=30.0)
        if has_lost:
            director.after(29.0, lambda: director.kill(lost))

    setup = unhurried(swarm(sources=2, standbys=0, faults=NOBODY_COMES), iterations=20)
    result = play(setup, Once(is_asked(Train, key__iteration=1, key__stage=1), strike))
    dropped = lines(result, "LineageDropped")
    assert dropped
    assert not lines(result, "LineageDropped", "forced=0")
    unforced = {line.split("iteration=")[1].split()[0] for line in lines(result, "IterationCommitted", "forced=0")}
    assert len(unforced) == 20, "no iteration was committed forced alone"


def test_a_side_that_has_given_way_goes_on_where_the_other_one_is_out_of_reach() -> None:
    """The forced half of a split is told to join the other one, and is parted again in that moment:
    it goes on from where it was within `split_wait_s` and a little more, and gives way once more.
    """
    far: list[Member] = []
    left: list[float] = []

    class GivesWay(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            match moment:
                case Moment(request=Goodbye(rejoin=True), outcome=Reply()) if not left:
                    left.append(director.now_s)
                    director.partition(far, duration_s=40.0)
                case _:
                    pass

    def strike(director: Director, _: Moment) -> None:
        other = next(member for member in director.members(0) if member != director.coordinator)
        far.extend([other, *(director.members(stage)[0] for stage in (1, 2, 3))])
        director.partition(far, duration_s=30.0)

    setup = unhurried(swarm(sources=2, standbys=0, faults=NOBODY_COMES), iterations=30)
    result = play(setup, GivesWay(is_asked(Train, key__iteration=1, key__stage=1), strike))
    (at_s,) = left
    (took,) = [line for line in lines(result, "TookOver") if told_s(line) > at_s]
    assert told_s(took) - at_s < setup.manifest.timing.split_wait_s + 5.0
    assert "forced=False" in took
    assert len(lines(result, "LineageDropped", "forced=1 ")) == 2


def test_who_leads_a_beginning_has_nobody_leave_what_majorities_decided() -> None:
    """A source is parted, and goes on by force where it was, in a term before the one of the
    majority, of which two are left that came later and have no vote there: they choose among
    themselves.
    """

    def strike(director: Director, _: Moment) -> None:
        alone = next(member for member in director.members(0) if member != director.coordinator)
        first = set(director.peers())
        director.partition([alone], duration_s=44.0)
        director.kill(director.members(1)[0], director.members(2)[0])
        for _kind in range(2):
            director.join()

        def fall() -> None:
            assert director.coordinator is not None, "somebody leads"
            director.kill(director.coordinator)

        def join() -> None:
            for _kind in range(6):
                director.join()

        for late_s in (2.0, 20.0):
            director.after(late_s, fall)
        director.after(43.5, lambda: director.kill(*sorted(first - {alone})))
        director.after(63.5, join)

    setup = unhurried(swarm(sources=4, standbys=0, faults=NOBODY_COMES), iterations=20)
    result = play(setup, Once(is_asked(Train, key__iteration=1, key__stage=1), strike))
    assert lines(result, "MemberLost", "why='past: lineage")
    assert not lines(result, "MemberLost", "it promised a higher term")
    (dropped,) = lines(result, "LineageDropped")
    assert "by_iterations=11 " in dropped, "what majorities decided is gone on from"


def test_who_has_let_its_stage_go_leads_where_all_others_stand_further_back() -> None:
    """A member lets its stage go to build a lost one, and all others die but two that slept: these
    cannot step to where it stood, so it leads from there, and they keep what they have.
    """
    slept: list[Member] = []
    builders: list[Member] = []

    class Builds(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if builders or moment.outcome is not None or not isinstance(moment.request, Build):
                return
            if director.now_s > 12.0 and moment.receiver.member not in slept:
                builders.append(moment.receiver.member)
                director.after(0.02, lambda: fall(director))

    def fall(director: Director) -> None:
        director.kill(*sorted(set(director.peers()) - {*builders, *slept}))
        for member in slept:
            director.thaw(member)
        director.after(20.0, lambda: [director.join() for _kind in range(6)] and None)

    def strike(director: Director, _: Moment) -> None:
        other = next(member for member in director.members(0) if member != director.coordinator)
        slept.extend([director.members(1)[0], other])
        for member in slept:
            director.freeze(member, 90.0)
        director.after(12.0, lambda: director.kill(*director.members(2)))

    setup = unhurried(swarm(sources=2, standbys=0, faults=NOBODY_COMES), iterations=8)
    result = play(setup, Builds(is_asked(Train, key__iteration=1, key__stage=1), strike))
    (took,) = lines(result, "TookOver")
    assert builders[0].peer_id.removeprefix("Qm") in took
    assert "iteration=4 " in took
    assert lines(result, "StageBuilt stage=1 ", "action=Stay")
    assert not lines(result, "LineageDropped")


# ---- a lead that gets nowhere (finding 20) -------------------------------------------------------


def test_a_coordinator_that_only_beats_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, waits for nobody, and opens nothing any more: after `stall_s` another one leads,
    and it is a member.
    """
    attempt = Coordinator._attempt_once

    async def idle(self: Coordinator, plan: Plan) -> Record:
        while self._context.me.peer_id == FIRST and plan.iteration >= 2:
            self.roster.check()
            await asyncio.sleep(0.5)
        return await attempt(self, plan)

    def strike(director: Director, _: Moment) -> None:
        # To the checks a planted bug is no disturbance, and nobody may lead instead without one
        for late_s in (15.0, 30.0):
            director.after(late_s, lambda: director.slow_disk(director.members(3)[0], 2.0, 0.1))

    monkeypatch.setattr(Coordinator, "_attempt_once", idle)
    setup = unhurried(swarm(sources=2), iterations=6)
    result = play(setup, Once(lambda m: is_asked(Commit)(m) and m.request.record.iteration == 1, strike))  # type: ignore[union-attr]
    took, *_ = lines(result, "TookOver", "forced=False")
    assert FIRST.removeprefix("Qm") not in took.split()[1]
    assert result.statistics.longest_gap_s < setup.manifest.timing.stall_s + 15.0
    assert lines(result, "coordinates no longer")
    assert lines(result, "Opened", "iteration=5 ", FIRST)


# ---- everybody that it knew is gone (finding 22) -------------------------------------------------


def test_a_peer_that_slept_while_all_others_were_replaced_finds_them() -> None:
    """It stands still while each member of its plan is started again, one half after the other: it
    has a place within 20 s, and no own lineage.
    """
    slept: list[Member] = []
    woken: list[float] = []

    def strike(director: Director, _: Moment) -> None:
        stages = {stage: director.members(stage) for stage in range(4)}
        slept.append(stages[2][0])
        director.freeze(slept[0], 45.0)
        others = [[member for member in stages[stage] if member not in slept] for stage in (0, 1, 2, 3)]
        for turn in range(3):
            director.after(4.0 + 12.0 * turn, lambda turn=turn: director.kill(*(m[turn] for m in others if len(m) > turn)))  # type: ignore[misc]
        director.after(45.0, lambda: woken.append(director.now_s))

    faults = replace(STEADY, same_port_rate=0.0)
    setup = unhurried(swarm(sources=2, replicas=3, standbys=0, faults=faults), iterations=30)
    result = play(setup, Once(is_asked(Train, key__iteration=1, key__stage=2), strike))
    (at_s,) = woken
    placed = [told_s(line) for line in lines(result, "Placed", slept[0].peer_id) if told_s(line) > at_s]
    assert placed
    assert placed[0] - at_s < 20.0
    assert not [line for line in lines(result, "TookOver") if told_s(line) > at_s]
    assert not lines(result, "LineageDropped")


# ---- who leaves with a deciding vote (seed 2924425) ----------------------------------------------


def test_a_coordinator_that_leaves_tells_first_what_half_of_the_voters_decided_by_its_vote() -> None:
    """It is the senior of eight, four of which are parted as it has a record stored, and it is told
    to leave, which it does within a second: those three that stored that record with it step with
    it, and what was decided is not undone once all are met again.
    """

    def strike(director: Director, moment: Moment) -> None:
        leader = moment.sender.member
        near = [leader, *(next(m for m in director.members(stage) if m != leader) for stage in (1, 2, 3))]
        director.partition(near, duration_s=45.0)
        director.leave(leader)

    setup = unhurried(swarm(sources=2, standbys=0, faults=STEADY), iterations=20)
    setup = replace(setup, manifest=replace(setup.manifest, timing=replace(setup.manifest.timing, leave_s=0.5)))
    result = play(setup, Once(is_asked(Seal, record__iteration=1), strike))
    (left,) = lines(result, "Ended code=0 why=left")
    assert len([line for line in lines(result, "Stepped iteration=2 ") if line < left]) == 4
