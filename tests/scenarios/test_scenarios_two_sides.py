"""Scenarios of a member that two sides reach, and that only one of them knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Commit, GetPlan, Goodbye, Heartbeat, HeartbeatAnswer, Hello, Open, Request, Train
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.sim.faults import Fate
from swarmfree.sim.script import Director, Moment, Script
from tests.scenarios.scenario_world import STEADY, Once, is_asked, lines, play, swarm, unhurried


class OpensForOne(Script):
    """Stage 2 dies and is restored; only the builder gets the plan that opens it: the coordinator
    is parted, and no shadow is left.
    """

    def __init__(self) -> None:
        self._is_lost = self.is_parted = False
        self._keepers: set[Member] = set()

    def see(self, director: Director, moment: Moment) -> None:
        """Kill the stage, know who keeps a shadow of it, part the coordinator."""
        match moment.outcome:
            case Reply(message=HeartbeatAnswer(shadows=shadows)) if isinstance(moment.request, Heartbeat):
                self._keepers |= {moment.receiver.member for shadow in shadows if shadow.stage == 2}
            case _:
                pass
        if not self._is_lost and is_asked(Train, key__iteration=4, key__stage=1)(moment):
            self._is_lost = True
            director.kill(*director.members(2))
        elif self._is_lost and not self.is_parted and isinstance(moment.request, Open) and moment.request.plan.rebuilt:
            self.is_parted = True
            there = {moment.sender.member, moment.request.plan.replicas[2][0].endpoint.member}
            director.partition([moment.sender.member], set(director.peers()) - there)
            director.kill(*(self._keepers - there))


def test_a_successor_that_never_saw_a_rebuild_makes_the_stage_once_more() -> None:
    """It has a majority, and hears nothing of the builder, that still follows the first
    coordinator: the stage is merged, and it goes on.
    """
    faults = replace(STEADY, replace_min_s=600.0, replace_max_s=600.0)
    setup = swarm(sources=3, replicas=4, standbys=2, shadow_every=2, faults=faults)
    script = OpensForOne()
    result = play(unhurried(setup, iterations=7), script)
    assert script.is_parted
    assert [line.split("action=")[1].split()[0] for line in lines(result, "StageBuilt stage=2", "iteration=4")] == [
        "Restore",
        "Merge",
    ]


class SleepsBetween(Once):
    """The coordinator sleeps, and five that it leads are parted from the other five, until it has
    been forced there; then it wakes, and reaches all ten.
    """

    def __init__(self) -> None:
        super().__init__(is_asked(Train, key__iteration=1, key__stage=1), self._part)
        self.coordinator: Member | None = None
        self._is_awake = False

    def _part(self, director: Director, _: Moment) -> None:
        self.coordinator = first = director.coordinator
        assert first is not None
        other = next(member for member in director.members(0) if member != first)
        far = [other, *director.members(1)[:2], director.members(2)[0], director.members(3)[0]]
        director.partition(far, set(director.peers()) - {*far, first}, duration_s=60.0)
        director.freeze(first, 100.0)

    def see(self, director: Director, moment: Moment) -> None:
        """As ever, and wake it a while after the first forced step."""
        super().see(director, moment)
        match moment:
            case Moment(request=Commit(record=record), outcome=Reply()) if record.forced and not self._is_awake:
                self._is_awake = True
                sleeper = self.coordinator
                assert sleeper is not None
                director.after(1.5, lambda: director.thaw(sleeper))
            case _:
                pass


def test_a_replica_that_has_joined_another_side_holds_no_microbatch_up() -> None:
    """It answers that the iteration is over, by which it means its own side's; its siblings do the
    work, and the side that a majority follows goes on, and wins.
    """
    setup = swarm(sources=2, replicas=3, standbys=0, faults=replace(STEADY, replace_min_s=900.0, replace_max_s=900.0))
    script = SleepsBetween()
    result = play(unhurried(setup, iterations=20), script)
    assert script.coordinator is not None
    by_majority = lines(result, "IterationCommitted iteration=1 ", script.coordinator.peer_id.removeprefix("Qm"))
    assert len(by_majority) == 1
    assert lines(result, "LineageDropped", "forced=1")


class EndsWhileOthersHope(Once):
    """Four of eleven are parted, and go on forced; some iterations before they are through the
    network mends, and of the slow majority most sleep for half a minute and more.

    Args:
        iteration: in which the network mends.
        sleepers: so many sleep.
        sleep_s: for so long.
    """

    def __init__(self, iteration: int = 5, sleepers: int = 4, sleep_s: float = 37.0) -> None:
        super().__init__(is_asked(Train, key__iteration=1, key__stage=1), self._part)
        self._slow: list[Member] = []
        self._is_mended = False
        self._iteration, self._sleepers, self._sleep_s = iteration, sleepers, sleep_s

    def _part(self, director: Director, _: Moment) -> None:
        first = director.coordinator
        assert first is not None
        far = [member for member in director.members(0) if member != first]
        far.extend(director.members(stage)[0] for stage in (1, 2, 3))
        self._slow = [first, *(member for member in director.peers() if member not in {first, *far})]
        director.partition(far)
        for member in self._slow:
            director.slow(member, 6.0, 200.0)

    def see(self, director: Director, moment: Moment) -> None:
        """As ever, and mend the network."""
        super().see(director, moment)
        match moment:
            case Moment(request=Commit(record=record), outcome=Reply()) if record.forced and record.iteration == self._iteration:
                if not self._is_mended:
                    self._is_mended = True
                    for member in self._slow[: self._sleepers]:
                        director.freeze(member, self._sleep_s)
                    director.heal()
            case _:
                pass


def test_a_forced_side_ends_no_run_while_candidates_of_the_other_say_no_hello() -> None:
    """They ask each other for the lead for eight seconds at a time; the forced side, which is
    through meanwhile, waits until the majority wakes, and gives way to it.
    """
    setup = swarm(sources=2, replicas=3, standbys=0, faults=replace(STEADY, replace_min_s=900.0, replace_max_s=900.0))
    result = play(unhurried(setup, iterations=14), EndsWhileOthersHope())
    assert lines(result, "LineageDropped iterations=14 forced=1")


@pytest.mark.parametrize(
    ("iteration", "sleepers", "sleep_s"),
    [(4, 4, 38.0), (4, 5, 38.0), (6, 4, 32.0)],
    ids=["leads-again-when-the-hope-is-over", "leads-soon-after-a-second-look", "chooses-somebody-meanwhile"],
)
def test_a_forced_side_asks_whom_others_follow_before_it_ends_the_run(iteration: int, sleepers: int, sleep_s: float) -> None:
    """Those who hoped have a coordinator when it ends to wait for them, and none of them says hello
    any more, nor has that coordinator met anybody yet: it is looked for, and given way to.
    """
    setup = swarm(sources=2, replicas=3, standbys=0, faults=replace(STEADY, replace_min_s=900.0, replace_max_s=900.0))
    result = play(unhurried(setup, iterations=14), EndsWhileOthersHope(iteration, sleepers, sleep_s))
    assert lines(result, "LineageDropped iterations=14 forced=1")


class TermsOfOneNumber(Once):
    """Four of twelve are parted and go on forced, in term 2; the first coordinator of the slow rest
    dies, and its successor leads in a term 2, too. One of those that follow it hears it no more for
    80 s, and hears the forced side instead.
    """

    def __init__(self) -> None:
        super().__init__(is_asked(Train, key__iteration=1, key__stage=1), self._part)
        self._first: Member | None = None
        self._far, self._near = list[Member](), list[Member]()
        self._is_forced = False
        self.between: Member | None = None

    def _part(self, director: Director, _: Moment) -> None:
        self._first = first = director.coordinator
        assert first is not None
        self._far = [next(member for member in director.members(0) if member != first)]
        self._far.extend(director.members(stage)[0] for stage in (1, 2, 3))
        self._near = [member for member in director.peers() if member not in {first, *self._far}]
        director.partition(self._far)
        for member in (first, *self._near):
            director.slow(member, 6.0, 200.0)

    def see(self, director: Director, moment: Moment) -> None:
        """As ever; kill the first coordinator, and set one between its successor and the others."""
        super().see(director, moment)
        leader = moment.sender.member
        match moment:
            case Moment(request=Commit(record=record), outcome=Reply()) if record.forced and not self._is_forced:
                self._is_forced = True
                assert self._first is not None
                director.kill(self._first)
            case Moment(request=Open(plan=plan), outcome=None) if (
                self._is_forced and self.between is None and leader in self._near
            ):
                members = [replica.endpoint.member for stage in reversed(plan.replicas) for replica in stage]
                self.between = next(member for member in members if member != leader)
                director.heal()
                director.partition(self._far, [member for member in self._near if member != self.between], duration_s=80.0)
                director.cut(self.between, leader, duration_s=80.0)
            case _:
                pass


def test_what_one_side_says_is_not_taken_for_another_with_a_term_of_one_number() -> None:
    """The forced side tells the one between that it gives way to its lineage; that others hear
    their own coordinator stops its claim all the same, and it leads no third lineage.
    """
    setup = swarm(sources=3, replicas=3, standbys=0, faults=replace(STEADY, replace_min_s=900.0, replace_max_s=900.0))
    script = TermsOfOneNumber()
    result = play(unhurried(setup, iterations=60), script)
    assert script.between is not None
    assert len(lines(result, "TookOver term=2 ")) == 2
    assert not lines(result, "TookOver", script.between.peer_id.removeprefix("Qm"))


class GivesWayAndLeadsLater(Once):
    """Five of twelve are parted, and go on forced under their source, as the first that led them
    dies. It tells a peer of the others that it gives way, does so, and is elected by them as their
    coordinator dies. That peer is cut from it.
    """

    def __init__(self) -> None:
        super().__init__(is_asked(Train, key__iteration=1, key__stage=1), self._part)
        self._far, self._near = list[Member](), list[Member]()
        self._first: Member | None = None
        self._leader: Member | None = None
        self._has_begun = self._has_said = self.is_led = False
        self.told: Member | None = None

    def _part(self, director: Director, _: Moment) -> None:
        self._first = director.coordinator
        self._leader = next(member for member in director.members(0) if member != self._first)
        self._far = [self._leader, *director.members(1)[:2], *(director.members(stage)[0] for stage in (2, 3))]
        self._near = [member for member in director.peers() if member not in self._far]
        self.told = next(member for member in director.members(3) if member in self._near)
        director.partition(self._far)

    def see(self, director: Director, moment: Moment) -> None:
        """As ever; bring the sides together as that peer has been told, and lose the coordinator
        that they have by then.
        """
        super().see(director, moment)
        asker, asked = moment.sender.member, moment.receiver.member
        match moment:
            case Moment(request=Commit(record=record), outcome=Reply()) if record.forced and not self._has_begun:
                self._begin(director, asker)
            case Moment(request=Hello(), outcome=Refused(kind=RefusalKind.OUTRANKED)) if not self._has_said and (
                (asker, asked) == (self.told, self._leader)
            ):
                self._has_said = True
                director.after(0.05, lambda: self._join(director))
            case Moment(request=Commit(record=record), outcome=Reply()) if (
                self._has_said and not (self.is_led or record.forced) and (asker, asked) == (self._first, self._leader)
            ):
                self.is_led = True
                director.after(0.1, lambda: director.kill(asker))
            case _:
                pass

    def _begin(self, director: Director, leader: Member) -> None:
        assert self.told is not None
        assert self._first is not None
        if leader != self._leader:
            director.kill(leader)
            return
        self._has_begun = True
        director.heal()
        director.partition(self._far, [member for member in self._near if member != self.told])
        director.cut(self.told, self._first)

    def _join(self, director: Director) -> None:
        assert self.told is not None
        assert self._leader is not None
        assert self._first is not None
        director.heal()
        director.cut(self.told, self._first)
        director.cut(self.told, self._leader)


def test_what_a_coordinator_said_does_not_count_in_its_next_term() -> None:
    """The peer that was told leads nobody beside those that hear that one as their own by now."""
    setup = swarm(sources=2, replicas=3, standbys=0, faults=replace(STEADY, replace_min_s=900.0, replace_max_s=900.0))
    script = GivesWayAndLeadsLater()
    result = play(unhurried(setup, iterations=40), script)
    assert script.is_led
    assert script.told is not None
    assert not lines(result, "TookOver", script.told.peer_id.removeprefix("Qm"))


class LeftBeforeTheFirstRecord(Once):
    """Five of eleven are parted in iteration 0, and go on forced, slowly, without the slow founder.
    The network mends; who leads them gives way, is told to rejoin the founder, and hears of its own
    plan once more, from one that it led. It is cut from the founder until the first record is
    decided there.
    """

    def __init__(self) -> None:
        super().__init__(is_asked(Train, key__iteration=0, key__stage=1), self._part)
        self._founder: Member | None = None
        self._far = list[Member]()
        self.leader: Member | None = None
        self._is_told = False
        self.is_decided = self.is_told_of_it = False

    def _part(self, director: Director, _: Moment) -> None:
        self._founder = director.coordinator
        self._far = [member for member in director.members(0) if member != self._founder]
        self._far.extend(director.members(stage)[0] for stage in (1, 2, 3))
        director.partition(self._far)
        for member in set(director.peers()) - {*self._far}:
            director.slow(member, 9.5, 60.0)

    def see(self, director: Director, moment: Moment) -> None:
        """As ever; mend the network as the five are led, cut and mend it once more."""
        super().see(director, moment)
        asker, asked = moment.sender.member, moment.receiver.member
        match moment:
            case Moment(request=Open(plan=plan), outcome=None) if self.leader is None and plan.position.term.number == 2:
                self.leader = asker
                director.after(0.05, director.heal)
                for member in self._far:
                    director.slow(member, 18.0, 40.0)
            case Moment(request=Goodbye(), outcome=Reply()) if asked == self.leader and not self._is_told:
                self._is_told = True
                assert self._founder is not None
                director.cut(asked, self._founder)
            case Moment(request=Open(plan=plan)) if asker == self._founder and plan.iteration == 1 and not self.is_decided:
                self.is_decided = True
                director.heal()
            case Moment(request=Commit(record=record), outcome=None) if asked == self.leader and record.iteration == 0:
                self.is_told_of_it |= self.is_decided and asker == self._founder
            case _:
                pass

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """What the plan is that it led by it hears after it was told to rejoin."""
        if sender.member != self.leader or receiver.member not in self._far or not isinstance(request, GetPlan):
            return None
        return Fate(request_delay_s=0.002, payload_delay_s=0.001, response_delay_s=1.95)


def test_who_led_before_the_first_record_believes_its_founder_again() -> None:
    """By the plan of its own side it knows nobody who signed the founder's record, and steps."""
    setup = swarm(sources=3, standbys=0, faults=replace(STEADY, replace_min_s=900.0, replace_max_s=900.0))
    script = LeftBeforeTheFirstRecord()
    result = play(unhurried(setup, iterations=6), script)
    assert script.is_told_of_it
    assert script.leader is not None
    assert lines(result, "Stepped iteration=1 ", script.leader.peer_id.removeprefix("Qm"))
