"""The organiser pauses a run, or stops it: all leave after one iteration, and those who come back
go on with the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Commit, Goodbye, Open, Request, Seal, Train
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.order import Halting
from swarmfree.protocol.ports import Reply
from swarmfree.sim.faults import Fate
from swarmfree.sim.rehearsal import RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment, Script
from tests.scenarios.scenario_world import SEED, STEADY, Once, is_answered, is_asked, lines, play, swarm, unhurried
from tests.scenarios.test_scenarios_resume import lasting, rebuilt

NEVER = 100


def ordered(halt: Halting, iteration: int) -> Once:
    """The organiser gives an order as this iteration is opened."""
    return Once(
        lambda m: isinstance(m.request, Open) and m.request.plan.iteration == iteration,
        lambda director, _: director.give_order(halt),
    )


def resumed(result: RehearsalResult) -> list[int]:
    """Iterations with which the run went on from snapshots."""
    return [
        int(line.split("goes on with iteration ")[1].split(",")[0]) for line in lines(result, "the run goes on with iteration")
    ]


def committed(result: RehearsalResult) -> list[int]:
    """Iterations that were committed, in their order; each once for every time that it was told."""
    return [int(line.split("iteration=")[1].split()[0]) for line in lines(result, "IterationCommitted")]


def paused(result: RehearsalResult) -> set[str]:
    """What those who paused said as they ended."""
    return {line.split("why=")[1] for line in lines(result, " Ended", "paused by its organiser")}


def test_a_paused_run_goes_on_with_the_next_iteration() -> None:
    """Everybody leaves after one and the same; no iteration is done twice, and none is lost."""
    script = ordered(Halting.PAUSE, 2)
    result = play(lasting(unhurried(swarm()), 7, NEVER), script)
    assert len(paused(result)) == 1
    assert len(lines(result, " Ended", "paused by its organiser")) == 8
    assert len(resumed(result)) == 1
    assert lines(result, "from snapshots of 7 peers"), "siblings write, too: one may come back without its disk"
    assert not rebuilt(result)
    assert set(committed(result)) == set(range(7))


class Falling(Script):
    """The order is given, and later something befalls somebody."""

    def __init__(self, halt: Halting, iteration: int, then: Once) -> None:
        self.order, self.then = ordered(halt, iteration), then

    def see(self, director: Director, moment: Moment) -> None:
        """First the one, then the other."""
        self.order.see(director, moment)
        if self.order.struck:
            self.then.see(director, moment)


def kill_coordinator(director: Director, _: Moment) -> None:
    """As told."""
    if director.coordinator is not None:
        director.kill(director.coordinator)


def halts(moment: Moment, halt: Halting) -> bool:
    """A record is sent out that is the last one."""
    return isinstance(moment.request, Seal) and moment.request.record.halt is halt


def is_word(moment: Moment, *, writes: bool, knows: bool = False) -> bool:
    """The coordinator has somebody write, tells that all is written, or has somebody leave."""
    said = moment.request
    return isinstance(said, Goodbye) and said.run_over and (said.write_weights, said.all_written) == (writes, knows)


WHEN = {
    "it is sealed": lambda m: halts(m, Halting.PAUSE),
    "the first is to write": lambda m: is_word(m, writes=True),
    "the first hears that all is written": lambda m: is_word(m, writes=True, knows=True),
    "the first is to leave": lambda m: is_word(m, writes=False),
}


@pytest.mark.parametrize("when", WHEN)
def test_a_pause_outlives_the_coordinator(when: str) -> None:
    """Whoever goes on from the record has all leave after the same iteration."""
    script = Falling(Halting.PAUSE, 2, Once(WHEN[when], kill_coordinator))
    result = play(lasting(unhurried(swarm(sources=2)), 7, NEVER), script)
    assert script.then.struck
    assert len(paused(result)) == 1, "all leave before the same iteration"
    assert len(resumed(result)) == 1
    assert not rebuilt(result)


def test_an_order_from_before_the_run_went_on_is_not_obeyed() -> None:
    """All die in the pause, and go on from an older set, before the record that obeyed: the order
    still stands in the directory.
    """
    script = Falling(Halting.PAUSE, 4, Once(WHEN["the first is to write"], lambda director, _: director.kill(*director.peers())))
    result = play(lasting(unhurried(swarm()), 8, 2), script)
    assert script.then.struck
    assert len(resumed(result)) == 1
    assert not paused(result)


def test_a_run_goes_on_from_a_pause_that_a_clock_ahead_has_dated() -> None:
    """The organiser's is an hour before the bootstrap node's, and all have forgotten the order as
    they come back, but the record that obeyed it.
    """
    order = Once(
        lambda m: isinstance(m.request, Open) and m.request.plan.iteration == 2,
        lambda director, _: director.give_order(Halting.PAUSE, ahead_s=3600),
    )
    script = Falling(Halting.PAUSE, 2, Once(WHEN["the first is to leave"], lambda director, _: director.forget_orders()))
    script.order = order
    result = play(lasting(unhurried(swarm()), 7, NEVER), script)
    assert script.then.struck
    assert len(paused(result)) == len(resumed(result)) == 1
    assert set(committed(result)) == set(range(7))


def test_two_orders_are_two_pauses_only_where_the_run_goes_on_in_between() -> None:
    """A second order while the first is carried out adds nothing; a later one pauses again."""

    class Thrice(Script):
        orders = (
            ordered(Halting.PAUSE, 2),
            Once(WHEN["the first is to write"], lambda d, _: d.give_order(Halting.PAUSE)),
            ordered(Halting.PAUSE, 5),
        )

        def see(self, director: Director, moment: Moment) -> None:
            for order in self.orders:
                order.see(director, moment)

    script = Thrice()
    result = play(lasting(unhurried(swarm()), 8, NEVER), script)
    assert all(order.struck for order in script.orders)
    assert len(paused(result)) == len(resumed(result)) == 2
    assert set(committed(result)) == set(range(8))


@pytest.mark.parametrize("for_s", [12.0, 60.0, 400.0])
def test_a_peer_that_never_hears_of_the_pause_holds_up_nobody(for_s: float) -> None:
    """It stands still from before the order until all have left, or are back."""
    away: list[Member] = []

    def freeze(director: Director, _: Moment) -> None:
        away.append(director.members(1)[0])
        director.freeze(away[0], for_s)

    script = Falling(Halting.PAUSE, 2, Once(lambda m: isinstance(m.request, Open), freeze))
    result = play(lasting(unhurried(swarm()), 14, NEVER), script)
    assert away
    assert len(paused(result)) >= 1
    assert len(resumed(result)) == 1


@pytest.mark.parametrize("for_s", [14.0, 28.5, 29.0, 29.6, 30.2, 30.5])
def test_a_coordinator_that_slept_through_the_pause_leads_nobody_who_is_back(for_s: float) -> None:
    """It still leads, in its own eyes, from before what the others have on their disks: those it
    offers a place pass it over, and it comes to them. From 29 to 30.2 s it wakes between the word
    that names who goes on and that one's lead, when the order to pause counts for it no more.
    """
    slept: list[Member] = []

    def freeze(director: Director, _: Moment) -> None:
        if director.coordinator is not None:
            slept.append(director.coordinator)
            director.freeze(slept[0], for_s)

    script = Falling(Halting.PAUSE, 2, Once(lambda m: isinstance(m.request, Train) and m.request.key.iteration == 2, freeze))
    result = play(lasting(unhurried(swarm(sources=2)), 9, NEVER), script)
    assert slept
    assert len(resumed(result)) == 1
    assert not rebuilt(result)
    assert set(committed(result)) == set(range(9))


class Awake(Script):
    """The coordinator stands still in iteration 2; the others go on without it, and all die as
    iteration 5 is sealed. It wakes once they are dead, and takes the lead again, alone.
    """

    def __init__(self, *, lose: bool) -> None:
        self.slept, self._is_struck, self._lose = list[Member](), False, lose

    def see(self, director: Director, moment: Moment) -> None:
        """First the one, then the other."""
        asked = moment.request
        if not self.slept and isinstance(asked, Train) and asked.key.iteration == 2 and director.coordinator is not None:
            self.slept.append(director.coordinator)
            director.freeze(self.slept[0], 3000.0)
        elif self.slept and not self._is_struck and isinstance(asked, Seal) and asked.record.iteration == 5:
            self._is_struck = True
            for member in director.members(2) if self._lose else ():
                director.lose_disk(member)
            director.kill(*(peer for peer in director.peers() if peer not in self.slept))
            director.after(0.5, lambda: director.thaw(self.slept[0]))


@pytest.mark.parametrize("away_s", [5.0, 20.0, 40.0, 90.0])
@pytest.mark.parametrize("lose", [False, True])
def test_a_coordinator_that_slept_leads_where_nobody_else_does(*, lose: bool, away_s: float) -> None:
    """Those who are back with later snapshots pass it over for a while, in whichever term it leads
    by now. Where they have every stage of one set, the run goes on from that, and nothing is made
    anew; else they follow it, and the run does not stand.
    """
    faults = replace(STEADY, replace_min_s=away_s, replace_max_s=away_s)
    script = Awake(lose=lose)
    setup = replace(lasting(unhurried(swarm(sources=2, standbys=0, faults=faults)), 12, 2), progress_bound_s=250.0)
    result = play(setup, script)
    assert script.slept
    assert len(resumed(result)) == (not lose)
    assert lose or not rebuilt(result)
    assert set(committed(result)) == set(range(12))


@pytest.mark.parametrize("stages", [(2,), (1, 2, 3)])
def test_a_coordinator_that_has_stepped_and_waits_has_not_slept(stages: tuple[int, ...]) -> None:
    """Its plan is of the iteration before what those have on their disks that died right after the
    commit: back after half a second they take their places at once, and nothing is made anew.
    """

    def strike(director: Director) -> None:
        director.kill(*(m for stage in stages for m in director.members(stage) if m != director.coordinator))

    script = Once(
        lambda m: isinstance(m.request, Seal) and m.outcome is not None and m.request.record.iteration == 4,
        lambda director, _: director.after(0.3, lambda: strike(director)),
    )
    faults = replace(STEADY, replace_min_s=0.5, replace_max_s=0.5)
    result = play(lasting(unhurried(swarm(sources=2, standbys=0, faults=faults)), 9, 1), script)
    assert script.struck
    assert not resumed(result)
    assert not rebuilt(result)
    assert result.statistics.longest_gap_s < 15.0


def test_an_order_that_comes_while_a_lost_stage_is_rebuilt_waits_for_it() -> None:
    """Both replicas die as the order is given: the record that obeys comes once somebody serves
    it.
    """

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.members(2))
        director.give_order(Halting.PAUSE)

    result = play(
        lasting(unhurried(swarm()), 8, NEVER),
        Once(lambda m: isinstance(m.request, Open) and m.request.plan.iteration == 3, strike),
    )
    assert len(paused(result)) == 1
    assert len(resumed(result)) == 1


def test_a_stage_that_is_lost_in_the_pause_is_rebuilt_before_it() -> None:
    """All that have it die before it lies on a disk: the others do not leave without it."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.members(2))

    script = Falling(Halting.PAUSE, 2, Once(WHEN["the first is to write"], strike))
    result = play(lasting(unhurried(swarm()), 8, NEVER), script)
    assert script.then.struck
    assert lines(result, "cannot pause yet", "stage 2")
    assert len(paused(result)) == len(resumed(result)) == 1


@pytest.mark.parametrize("everybody", [False, True])
def test_a_full_disk_delays_a_pause_only_where_no_sibling_can_write(*, everybody: bool) -> None:
    """Training goes on until the disk takes it, and one line says so."""

    def strike(director: Director, _: Moment) -> None:
        for member in director.members(2)[: None if everybody else 1]:
            director.fill_disk(member, 12.0)
        director.give_order(Halting.PAUSE)

    result = play(
        lasting(unhurried(swarm()), 20, NEVER),
        Once(lambda m: isinstance(m.request, Open) and m.request.plan.iteration == 2, strike),
    )
    told = lines(result, "cannot pause yet, and goes on until each stage lies on a disk: stage 2: Peer0")
    assert len(told) == everybody, "once a minute, whatever the iteration"
    assert len(lines(result, "the run is to pause, and waits for this disk")) == 2 * everybody
    assert len(paused(result)) == len(resumed(result)) == 1
    assert set(committed(result)) == set(range(20))


def test_who_is_left_in_a_pause_stays_until_the_disks_take_what_they_hold() -> None:
    """Five of seven die before anything lies on a disk, and those of the only source, which leads,
    and of one of stage 2 are full: nobody else has the ends. Without a majority the two cannot go
    on either, and wait.
    """

    def strike(director: Director, _: Moment) -> None:
        rest = {*director.members(0), director.members(2)[0]}
        assert director.coordinator in rest
        for member in sorted(rest):
            director.fill_disk(member, 12.0)
        director.kill(*(member for member in director.peers() if member not in rest))

    script = Falling(Halting.PAUSE, 2, Once(WHEN["the first is to write"], strike))
    faults = replace(STEADY, replace_min_s=40.0, replace_max_s=40.0)
    result = play(lasting(unhurried(swarm(ends_copies=0, standbys=0, faults=faults)), 8, NEVER), script)
    assert len(lines(result, "Note", "the run is to pause, and waits for this disk")) == 2
    assert len(lines(result, " Ended", "paused by its organiser")) == 2
    assert len(resumed(result)) == 1
    (resumes, *_) = lines(result, "the run goes on with iteration")
    assert not [line for line in lines(result, "RecoveryDecided") if line > resumes and ("stage=0" in line or "stage=2" in line)]


@pytest.mark.parametrize(
    ("away_s", "shut_s", "iteration"),
    [(18.0, 0.0, 2), (22.0, 0.0, 2), (25.0, 0.0, 2), (8.0, 16.0, 2), (18.0, 0.0, 0), (8.0, 16.0, 0)],
)
def test_what_a_majority_paused_with_is_not_replaced_by_those_that_were_cut_off(
    away_s: float, shut_s: float, iteration: int
) -> None:
    """One of each stage misses the record that pauses. The others leave, and are back while those
    hear nobody still, or while their ports are closed still: these go on with nothing, neither by
    force nor as the others have died, and nobody leaves a second time.
    """

    def strike(director: Director, _: Moment) -> None:
        away = [next(m for m in director.members(stage) if m != director.coordinator) for stage in range(4)]
        there = set(director.peers())
        director.partition(away, duration_s=away_s)

        def shut_who_is_back() -> None:
            for member in sorted(set(director.peers()) - there):
                there.add(member)
                director.shut(member, shut_s)
            director.after(0.02, shut_who_is_back)

        if shut_s:
            shut_who_is_back()

    then = Once(lambda m: isinstance(m.request, Train) and m.outcome is not None and m.request.key.iteration == iteration, strike)
    faults = replace(STEADY, replace_min_s=5.0, replace_max_s=5.0)
    setup = lasting(unhurried(swarm(replicas=3, sources=2, standbys=0, faults=faults)), 6, NEVER)
    result = play(replace(setup, progress_bound_s=60.0), script := Falling(Halting.PAUSE, iteration, then))
    assert script.then.struck
    assert len(lines(result, " Ended", "paused by its organiser")) == 7
    assert lines(result, f"the run goes on with iteration {iteration + 1}, from snapshots of 7 peers")
    assert len(lines(result, "TookOver")) == 1


def test_an_order_in_the_first_iteration_does_not_wait_for_its_dead_founder() -> None:
    """It alone decides, and there is nothing to keep: the others go on, and pause after it."""
    script = Falling(
        Halting.PAUSE,
        0,
        Once(lambda m: isinstance(m.request, Train) and m.outcome is not None and m.request.key.iteration == 0, kill_coordinator),
    )
    away = replace(STEADY, replace_min_s=2000.0, replace_max_s=2000.0)
    result = play(lasting(unhurried(swarm(sources=2, standbys=0, faults=away)), 5, NEVER), script)
    assert script.then.struck
    assert len(paused(result)) == 1
    assert resumed(result) == [1]


def test_who_waits_for_others_that_have_more_than_the_first_weights_goes_on_in_the_end() -> None:
    """They paused after the first iteration, and are back without the disks of stage 2."""

    def strike(director: Director, _: Moment) -> None:
        away = [next(m for m in director.members(stage) if m != director.coordinator) for stage in range(4)]
        director.partition(away, duration_s=18.0)
        for member in set(director.members(2)) - set(away):
            director.lose_disk(member)

    then = Once(lambda m: isinstance(m.request, Train) and m.outcome is not None and m.request.key.iteration == 0, strike)
    faults = replace(STEADY, replace_min_s=5.0, replace_max_s=5.0)
    setup = lasting(unhurried(swarm(replicas=3, sources=2, standbys=0, faults=faults)), 6, NEVER)
    result = play(replace(setup, progress_bound_s=150.0), script := Falling(Halting.PAUSE, 0, then))
    assert script.then.struck
    assert result.statistics.longest_gap_s < 100.0


class StoredElsewhere(Script):
    """A record without a pause is stored by one of each stage. They are cut off, its coordinator
    dies, and the organiser orders a pause.
    """

    def __init__(self) -> None:
        """Nobody has stored it."""
        self._few, self._stored, self.struck = set[Member](), set[Member](), False

    def see(self, director: Director, moment: Moment) -> None:
        """The others elect, and decide another record, which pauses."""
        if self.struck or not self._is_asked(moment.request):
            return
        if not self._few:
            self._few = {next(m for m in director.members(stage) if m != director.coordinator) for stage in range(4)}
        if isinstance(moment.outcome, Reply) and moment.receiver.member in self._few:
            self._stored.add(moment.receiver.member)
        if self._stored == self._few and director.coordinator is not None:
            self.struck = True
            director.partition(sorted(self._few), duration_s=18.0)
            director.kill(director.coordinator)
            director.give_order(Halting.PAUSE)

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Nobody else is asked to store it."""
        del sender
        is_lost = not self.struck and self._is_asked(request) and bool(self._few) and receiver.member not in self._few
        return Fate(0.0, 0.0, 0.0, request_lost=True) if is_lost else None

    def _is_asked(self, request: Request) -> bool:
        return isinstance(request, Seal) and request.record.iteration == 2


def test_a_stored_record_without_a_pause_does_not_replace_what_a_majority_paused_with() -> None:
    """Who has stored it waits, and leaves: it is not what the others left with."""
    script = StoredElsewhere()
    faults = replace(STEADY, replace_min_s=5.0, replace_max_s=5.0)
    setup = lasting(unhurried(swarm(replicas=3, sources=3, standbys=0, faults=faults)), 6, NEVER)
    result = play(replace(setup, progress_bound_s=100.0), script)
    assert script.struck
    assert resumed(result) == [3]
    assert len(lines(result, " Ended", "paused by its organiser")) == 12


class FullAndAway(Script):
    """The disks of stage 2 hold up a pause; the coordinator, the only source, hears nobody else for
    a while, or only those of stage 2.
    """

    def __init__(self, away_s: float, *, with_them: bool) -> None:
        """Nothing is ordered."""
        self._order, self._are_full, self.struck = ordered(Halting.PAUSE, 2), False, False
        self._away_s, self._with_them = away_s, with_them

    def see(self, director: Director, moment: Moment) -> None:
        """As a later record is told."""
        self._order.see(director, moment)
        if self._order.struck and not self._are_full:
            self._are_full = True
            for member in director.members(2):
                director.fill_disk(member, 80.0)
        is_told = isinstance(moment.request, Commit) and moment.request.record.iteration == 4 and moment.outcome is None
        if self._are_full and is_told and not self.struck and director.coordinator is not None:
            self.struck = True
            others = director.members(2) if self._with_them else []
            director.partition([director.coordinator, *others], duration_s=self._away_s)


@pytest.mark.parametrize(("away_s", "with_them"), [(10.5, True), (22.0, False)])
def test_who_is_cut_off_while_a_disk_holds_up_a_pause_does_not_leave_alone(away_s: float, *, with_them: bool) -> None:
    """It calls those that are silent before it takes itself for left over, and goes on with nobody
    by force: they train on, for as long as a disk refuses.
    """
    script = FullAndAway(away_s, with_them=with_them)
    setup = lasting(unhurried(swarm(ends_copies=0)), 30, NEVER)
    result = play(replace(setup, progress_bound_s=80.0), script)
    assert script.struck
    assert len(paused(result)) == 1
    assert len(lines(result, " Ended", "paused by its organiser")) == 8


class OneStoodStill(Script):
    """A member stands still as the record that pauses is to be stored, and is in no plan when it is
    back; the disks of stage 2 hold up the pause, and as the next iteration trains all of stage 3
    die, and one of stage 2: four of seven are left, of which it is one.
    """

    def __init__(self) -> None:
        """Nothing is ordered."""
        self._order, self._sleeper, self.struck = ordered(Halting.PAUSE, 2), list[Member](), False

    def see(self, director: Director, moment: Moment) -> None:
        """One after the other."""
        self._order.see(director, moment)
        if not self._sleeper and halts(moment, Halting.PAUSE):
            self._sleeper.append(director.members(1)[1])
            director.freeze(self._sleeper[0], 5.0)
            for member in director.members(2):
                director.fill_disk(member, 60.0)
        if self._sleeper and not self.struck and is_answered(Train, key__iteration=4)(moment):
            self.struck = True
            director.after(1.0, lambda: director.kill(*director.members(3), director.members(2)[0]))


def test_one_that_stood_still_counts_for_a_pause_that_waits_for_a_lost_stage() -> None:
    """The stage is built by a standby: nobody gives up its lead after it has claimed, time after
    time, until somebody else is back (seed 2933879).
    """
    away = replace(STEADY, replace_min_s=90.0, replace_max_s=90.0)
    result = play(lasting(unhurried(swarm(faults=away)), 24, NEVER), script := OneStoodStill())
    assert script.struck
    assert len(lines(result, "coordinates no longer: no majority answers")) == 1
    assert len(lines(result, "RecoveryDecided stage=3 iteration=4")) == 1
    assert len(paused(result)) == 1


class Unheard(Script):
    """The order is given in iteration 4. As the first is to hear that its record is decided, half
    die, with the coordinator, and nobody hears it.
    """

    def __init__(self) -> None:
        """Nothing is ordered."""
        self.order, self.struck, self._are_lost = ordered(Halting.PAUSE, 4), False, True

    def see(self, director: Director, moment: Moment) -> None:
        """Who is left has stored the record."""
        self.order.see(director, moment)
        if not self.struck and self._is_word(moment.request):
            self.struck = True
            assert director.coordinator is not None
            director.kill(director.coordinator, *(director.members(stage)[0] for stage in (1, 2, 3)))
            director.after(3.0, self._let_through)

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Of all who would be told."""
        del sender, receiver
        return Fate(0.0, 0.0, 0.0, request_lost=True) if self._are_lost and self._is_word(request) else None

    def _is_word(self, request: Request) -> bool:
        return isinstance(request, Commit) and request.record.halt is Halting.PAUSE

    def _let_through(self) -> None:
        self._are_lost = False


def test_a_stored_record_that_pauses_is_finished_by_those_that_are_left() -> None:
    """By force, as no majority is left: it is what the others may have paused with."""
    away = replace(STEADY, replace_min_s=4000.0, replace_max_s=4000.0)
    setup = lasting(unhurried(swarm(replicas_min=1, sources=2, standbys=0, faults=away)), 8, NEVER)
    result = play(replace(setup, work_min_s=0.1, work_max_s=0.2, progress_bound_s=100.0), script := Unheard())
    assert script.struck
    assert resumed(result) == [5]
    assert len(paused(result)) == 1


@pytest.mark.parametrize("full_s", [300.0, 45.0, 58.0])
def test_who_stays_with_a_full_disk_and_is_led_again_does_not_leave(full_s: float) -> None:
    """Two members are cut off as the first stage is to be written, and another dies: without a
    majority the coordinator stays, with the ends. The two are back, and go on with it.
    """

    def strike(director: Director, _: Moment) -> None:
        assert director.coordinator is not None
        director.fill_disk(director.coordinator, full_s)
        director.partition([director.members(1)[0], director.members(2)[0]], duration_s=20.0)
        director.kill(*director.members(3))

    script = Falling(Halting.PAUSE, 2, Once(WHEN["the first is to write"], strike))
    faults = replace(STEADY, replace_min_s=60.0, replace_max_s=60.0)
    setup = lasting(unhurried(swarm(replicas=1, ends_copies=0, faults=faults)), 24, NEVER)
    result = play(replace(setup, progress_bound_s=200.0), script)
    assert script.then.struck
    assert not lines(result, "Ended code=1")
    assert not lines(result, "EndsDrawnAnew")
    assert len(paused(result)) == (full_s < 100.0)


@pytest.mark.parametrize("dies", [False, True])
def test_a_stopped_run_is_over(*, dies: bool) -> None:
    """As after its last iteration: the weights are written, and nobody goes on; also where the
    coordinator dies as its last record is stored.
    """
    then = Once(lambda m: dies and halts(m, Halting.STOP), kill_coordinator)
    result = rehearse(SEED, setup=lasting(unhurried(swarm()), 9, 2), script=Falling(Halting.STOP, 2, then))
    assert result.violation is None, result.violation
    assert then.struck == dies
    assert 3 <= result.statistics.iterations < 9
    assert len(lines(result, "WeightsWritten")) >= 4
    assert lines(result, " Ended", "stopped by its organiser")
    assert not resumed(result)


class Batched(Falling):
    """The organiser sets a batch as iteration 1 is opened; a pause or the death of all befalls the
    run later; what is ordered at once after a pause is refused.
    """

    MICROBATCHES = 9

    def __init__(self, then: Once) -> None:
        self.order = Once(is_asked(Open), lambda director, _: director.set_batch(self.MICROBATCHES))
        self.then = then
        self.opened = dict[int, set[int]]()

    def see(self, director: Director, moment: Moment) -> None:
        """Each iteration's batches are kept; the last Open of a run has none."""
        super().see(director, moment)
        if isinstance(moment.request, Open) and moment.request.plan.microbatches:
            plan = moment.request.plan
            self.opened.setdefault(plan.iteration, set()).add(plan.microbatches)


def pause_and_set(director: Director, _: Moment) -> None:
    """One right after the other."""
    director.give_order(Halting.PAUSE)
    director.set_batch(2)


@pytest.mark.parametrize("strike", [pause_and_set, lambda director, _: director.kill(*director.peers())])
def test_a_batch_that_was_set_outlives_a_pause_and_the_death_of_all(strike: Callable[[Director, Moment], None]) -> None:
    """It comes from the newest record that lay on a disk, and so does where the data goes on: that
    each sequence is shown once (I4) is checked by all records. Where the run is to pause no batch
    takes that order's place.
    """
    script = Batched(Once(lambda m: isinstance(m.request, Seal) and m.request.record.iteration == 6, strike))
    setup = lasting(unhurried(swarm()), 9, 2)
    batch = replace(setup.manifest.batch, microbatches_max=Batched.MICROBATCHES)
    result = play(replace(setup, manifest=replace(setup.manifest, batch=batch)), script)
    assert script.then.struck
    assert len(resumed(result)) == 1
    assert bool(paused(result)) is (strike is pause_and_set)
    assert len(lines(result, "organiser", "sets")) == 1
    first = min(iteration for iteration, counts in script.opened.items() if counts == {Batched.MICROBATCHES})
    assert 0 < first < 5
    assert script.opened == {i: {6 if i < first else Batched.MICROBATCHES} for i in range(9)}
