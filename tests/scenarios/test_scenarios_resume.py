"""All peers die in the same moment, and come back with what lay on their disks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import GetPlan, GetState, Goodbye, Heartbeat, Open, Request, Seal
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.sim.bootstrap import PEER_ID
from swarmfree.sim.faults import Fate
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from swarmfree.sim.startup_faults import Opening
from tests.scenarios.scenario_world import STEADY, Once, lines, play, swarm, unhurried


def lasting(setup: Setup, iterations: int, snapshot_every: int) -> Setup:
    """With a bootstrap node and so many iterations; who dies comes back as who it was."""
    run = replace(setup.manifest.run, iterations=iterations)
    recovery = replace(setup.manifest.recovery, snapshot_every=snapshot_every)
    return replace(setup, manifest=replace(setup.manifest, run=run, recovery=recovery), opening=Opening())


def everybody_dies(iteration: int) -> Once:
    """All die as a record is about to be stored."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.peers())

    return Once(lambda m: isinstance(m.request, Seal) and m.request.record.iteration == iteration, strike)


def rebuilt(result: RehearsalResult) -> list[str]:
    """What was made anew once the run had begun."""
    return [line for line in lines(result, "RecoveryDecided") if "action=Fresh" not in line]


class EverybodyButOne(Once):
    """All die; of one stage nobody comes back, but somebody else."""

    def __init__(self, iteration: int, stage: int) -> None:
        def strike(director: Director, _: Moment) -> None:
            for gone in director.members(stage):
                director.lose_disk(gone)
            director.kill(*director.peers())

        super().__init__(lambda m: isinstance(m.request, Seal) and m.request.record.iteration == iteration, strike)


def test_the_run_goes_on_from_the_newest_set_of_snapshots() -> None:
    """Every stage comes from a disk, and none is made anew."""
    script = everybody_dies(5)
    result = play(lasting(swarm(), 8, 2), script)
    assert script.struck
    assert len(lines(result, "the run goes on with iteration 4, from snapshots")) == 1
    assert not rebuilt(result)


def test_state_that_went_is_only_what_came_after_the_snapshots() -> None:
    """The iterations since then are done again, to the same loss."""
    result = play(lasting(swarm(), 8, 3), everybody_dies(7))
    assert len(lines(result, "the run goes on with iteration 6, from snapshots")) == 1
    again = [line for line in lines(result, "IterationCommitted") if "iteration=6" in line]
    assert len({line.split("loss=")[1].split()[0] for line in again}) == 1, "an iteration is done again as it was"


def test_a_stage_that_nobody_brings_back_is_made_from_its_neighbours() -> None:
    """All others come from their disks: one stage that is missing does not set them back."""
    setup = lasting(swarm(body=3, replicas=1), 8, 2)
    script = EverybodyButOne(5, stage=2)
    result = play(setup, script)
    assert lines(result, "the run goes on with iteration 4, from snapshots", "nobody has stage 2 of it")
    assert rebuilt(result)
    assert not [line for line in rebuilt(result) if "stage=2" not in line]


def test_a_peer_that_comes_back_to_a_swarm_that_lives_gets_its_place_as_ever() -> None:
    """It holds what lay on its disk, which is older than what its sibling has: it copies that."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(director.members(1)[0])

    script = Once(lambda m: isinstance(m.request, Seal) and m.request.record.iteration == 5, strike)
    result = play(lasting(swarm(), 12, 2), script)
    assert lines(result, "holds stage 1 as it was before iteration 4, from its disk")
    assert not lines(result, "the run goes on with iteration")
    assert not rebuilt(result)


def test_who_had_no_stage_when_all_others_died_is_not_waited_for() -> None:
    """A member copies its sibling anew as all others die: it knows a plan, and can claim by none.
    It holds what lies on its own disk again.
    """
    copying: list[Member] = []

    class Alone(Script):
        def see(self, director: Director, moment: Moment) -> None:
            if not copying and isinstance(moment.request, Seal) and moment.request.record.iteration == 3:
                copying.append(director.members(1)[0])
                director.freeze(copying[0], 12.0)
            if len(copying) == 1 and isinstance(moment.request, GetState) and moment.sender.member == copying[0]:
                copying.append(copying[0])
                director.kill(*(peer for peer in director.peers() if peer != copying[0]))

    result = play(lasting(unhurried(swarm(standbys=0)), 12, 2), Alone())
    assert len(copying) == 2
    assert lines(result, "the run goes on with iteration 6, from snapshots")


class LeftBesideThePlan(Script):
    """A member dies as this iteration is sealed, and its next life copies its sibling and learns
    who else there is; the plan that has it does not reach it, and all others die.
    """

    def __init__(self, iteration: int) -> None:
        """Nobody has died."""
        self._iteration, self.gone, self.is_left = iteration, "", False

    def see(self, director: Director, moment: Moment) -> None:
        """Once that plan is sent."""
        request, receiver = moment.request, moment.receiver.member
        if not self.gone and isinstance(request, Seal) and request.record.iteration == self._iteration:
            self.gone = director.members(1)[0].peer_id
            director.kill(director.members(1)[0])
        if isinstance(request, Open) and receiver.peer_id == self.gone:
            director.after(0.01, lambda: self._leave(director, receiver))

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Nobody lets it in before all others have died."""
        del sender
        is_let_in = isinstance(request, Open) and receiver.member.peer_id == self.gone and not self.is_left
        return Fate(0.0, 0.0, 0.0, request_lost=True) if is_let_in else None

    def _leave(self, director: Director, member: Member) -> None:
        if not self.is_left:
            self.is_left = True
            director.kill(*(peer for peer in director.peers() if peer != member))


@pytest.mark.parametrize(("iteration", "named"), [(4, 3), (5, 6)])
def test_who_is_left_with_a_stage_and_is_in_no_plan_is_not_waited_for(iteration: int, named: int) -> None:
    """It has copied its stage, further than what lies on the disks or as far, and knows a plan that
    names nobody who is left: it can claim by none. The others go on from their disks, with it.
    """
    script = LeftBesideThePlan(iteration)
    result = play(lasting(unhurried(swarm(standbys=0)), 10, 3), script)
    assert script.is_left
    assert lines(result, f"the run goes on with iteration {named}, from snapshots")
    assert not rebuilt(result)


def test_who_alone_has_a_set_goes_on_from_it_whatever_it_holds() -> None:
    """As before, and the disks of all others are lost: what it has copied from them since is of no
    use, since nobody may lead with it.
    """

    class NoDisks(LeftBesideThePlan):
        def _leave(self, director: Director, member: Member) -> None:
            if not self.is_left:
                for other in director.peers():
                    if other != member:
                        director.lose_disk(other)
            super()._leave(director, member)

    script = NoDisks(4)
    result = play(lasting(unhurried(swarm(standbys=0)), 7, 3), script)
    assert script.is_left
    assert lines(result, "the run goes on with iteration 3, from snapshots of 1 peer")
    assert not [line for line in rebuilt(result) if "stage=1" in line]


class TwoLeftOut(Script):
    """Two members stand still; a source dies meanwhile, so that the next plan is without the two.
    Both come back and learn of that plan, but are in none when all others die.
    """

    def __init__(self) -> None:
        """Nobody stands still."""
        self.members, self.is_left, self._told = list[Member](), False, set[Member]()

    def see(self, director: Director, moment: Moment) -> None:
        """Both voted on the last record."""
        request, sender = moment.request, moment.sender.member
        if not self.members and isinstance(request, Open) and request.plan.iteration == 4 and moment.outcome is not None:
            self.members = [director.members(1)[0], director.members(2)[0]]
            director.after(0.3, lambda: self._stand_still(director))
            director.after(4.0, lambda: director.kill(*(m for m in director.members(0) if m != director.coordinator)))
        if sender in self.members and isinstance(request, GetPlan) and moment.outcome is not None:
            self._told.add(sender)
            if len(self._told) == len(self.members):
                director.after(0.02, lambda: self._leave(director))

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Nobody lets them in before all others have died."""
        del sender
        is_let_in = isinstance(request, Open) and receiver.member in self.members and not self.is_left
        return Fate(0.0, 0.0, 0.0, request_lost=True) if is_let_in else None

    def _stand_still(self, director: Director) -> None:
        for member in self.members:
            director.freeze(member, 6.0)

    def _leave(self, director: Director) -> None:
        if not self.is_left:
            self.is_left = True
            director.kill(*(peer for peer in director.peers() if peer not in self.members))


def test_voters_that_were_all_left_out_of_the_plan_choose_among_themselves() -> None:
    """Each would wait for ever for the other one to lead, and the bootstrap node for both."""
    script = TwoLeftOut()
    setup = replace(lasting(unhurried(swarm(standbys=0, sources=2)), 7, 3), work_min_s=0.12, work_max_s=0.2)
    result = play(setup, script)
    assert script.is_left
    assert len(lines(result, "TookOver")) == 1
    assert not lines(result, "the run goes on with iteration")


def test_who_was_away_when_others_went_on_does_not_lead_from_before_that() -> None:
    """A member stands still; the others decide some more, and die. What they have decided lies on
    their disks.
    """

    class Away(Script):
        member: Member | None = None
        is_alone = False

        def see(self, director: Director, moment: Moment) -> None:
            at = moment.request.record.iteration if isinstance(moment.request, Seal) else 0
            member = self.member
            if member is None and at == 3:
                self.member = director.members(1)[0]
                director.freeze(self.member, 600.0)
            elif member is not None and at == 9 and not self.is_alone:
                self.is_alone = True
                director.kill(*(peer for peer in director.peers() if peer != member))
                director.after(0.3, lambda: director.thaw(member))

    script = Away()
    result = play(lasting(unhurried(swarm()), 12, 2), script)
    assert script.is_alone
    assert lines(result, "the run goes on with iteration 8, from snapshots")
    assert len(lines(result, "TookOver")) == 1


class SlowDisks(Script):
    """Of the newest set one stage is there only, since other disks were slow. All die; its holder
    may do so once more as who is named asks it.
    """

    def __init__(self, *, falls: bool) -> None:
        """Nobody has died."""
        self._blows, self._are_slow, self.holder = everybody_dies(7), False, ""
        self._falls = falls

    def see(self, director: Director, moment: Moment) -> None:
        """All but the members of stage 1 write for long."""
        if isinstance(moment.request, Seal) and moment.request.record.iteration == 5 and not self._are_slow:
            self._are_slow, self.holder = True, director.members(1)[0].peer_id
            for member in set(director.peers()) - set(director.members(1)):
                director.slow_disk(member, 1e4, 600.0)
        self._blows.see(director, moment)
        is_asked = isinstance(moment.request, GetPlan) and moment.sender.member.peer_id != PEER_ID and moment.outcome is None
        if self._blows.struck and self._falls and is_asked and moment.receiver.member.peer_id == self.holder:
            self._falls = False
            director.kill(moment.receiver.member)


@pytest.mark.parametrize("falls", [False, True])
def test_who_holds_something_later_goes_back_to_what_was_named(*, falls: bool) -> None:
    """It may get a place before it has read from where the run goes on, or begin its life after
    that was named.
    """
    script = SlowDisks(falls=falls)
    away = replace(STEADY, replace_min_s=2.0, replace_max_s=2.0)
    result = play(lasting(swarm(replicas=1, standbys=0, faults=away), 12, 2), script)
    assert lines(result, "the run goes on with iteration 4, from snapshots of 4 peers")
    assert all("no step is lost" in line for line in rebuilt(result))
    assert not script._falls


def test_who_went_on_once_does_not_do_so_again_of_itself() -> None:
    """All die twice: the genesis of the first time still stands, and whom it names still has what
    it names. The run has gone on since, and others are not back yet.
    """

    class Twice(Script):
        blows = (everybody_dies(5), everybody_dies(7))

        def see(self, director: Director, moment: Moment) -> None:
            next((blow for blow in self.blows if not blow.struck), self.blows[-1]).see(director, moment)

    result = play(lasting(swarm(), 9, 2), Twice())
    assert lines(result, "the run goes on with iteration 4, from snapshots of 7 peers")
    assert lines(result, "the run goes on with iteration 6, from snapshots of 7 peers")
    assert len(lines(result, "TookOver")) == 2
    assert not rebuilt(result)


class AtTheEnd(Script):
    """All die once the last iteration is committed, as the first weights are to be written."""

    struck = False

    def see(self, director: Director, moment: Moment) -> None:
        """The coordinator asks the first one."""
        if not self.struck and isinstance(moment.request, Goodbye) and moment.request.write_weights and moment.outcome is None:
            self.struck = True
            director.kill(*director.peers())


def test_all_die_between_the_last_commit_and_the_weights() -> None:
    """The organiser does not take the run for over: it goes on from snapshots, to the weights."""
    script = AtTheEnd()
    result = play(lasting(swarm(faults=replace(STEADY, replace_min_s=8.0, replace_max_s=9.0)), 6, 2), script)
    assert script.struck
    assert lines(result, "the run goes on with iteration 4, from snapshots")
    assert not lines(result, "the run is over: its organiser says")


class HolderFalls(Script):
    """All die; as who is named asks the others, or calls them once it leads, one that alone holds a
    stage of the named set dies once more, and comes back.
    """

    def __init__(self, kind: type[Request]) -> None:
        """Nobody has died."""
        self._blows, self._kind, self.fallen = everybody_dies(5), kind, list[Member]()

    def see(self, director: Director, moment: Moment) -> None:
        """Who is named asks everybody for its plan."""
        self._blows.see(director, moment)
        is_asked = isinstance(moment.request, self._kind) and moment.sender.member.peer_id != PEER_ID
        if self._blows.struck and not self.fallen and is_asked and moment.outcome is None:
            self.fallen.append(moment.receiver.member)
            director.kill(moment.receiver.member)


@pytest.mark.parametrize(("kind", "away_s"), [(GetPlan, 3.0), (GetPlan, 12.0), (Heartbeat, 12.0)])
def test_who_is_away_for_a_moment_with_a_stage_of_the_set_is_waited_for(kind: type[Request], away_s: float) -> None:
    """Its stage is not made anew: it comes back with what was named, though it is away for longer
    than who is named waits before it leads, or dies once that one leads.
    """
    script = HolderFalls(kind)
    slow = replace(STEADY, replace_min_s=away_s, replace_max_s=away_s)
    result = play(lasting(swarm(replicas=1, standbys=2, faults=slow), 8, 2), script)
    assert script.fallen
    assert lines(result, "the run goes on with iteration 4, from snapshots")
    assert not rebuilt(result)


class LeaderFallsToo(HolderFalls):
    """As who was named calls a holder, that one dies, and a second later who called it."""

    def see(self, director: Director, moment: Moment) -> None:
        """The holder has not fallen yet."""
        before = len(self.fallen)
        super().see(director, moment)
        if len(self.fallen) > before:
            director.after(1.0, lambda: director.kill(moment.sender.member))


def test_who_claims_after_who_was_named_waits_for_the_whole_set_too() -> None:
    """Both are away for so long that others claim; the holder comes back soon after that. People
    are told what is waited for.
    """
    script = LeaderFallsToo(Heartbeat)
    slow = replace(STEADY, replace_min_s=45.0, replace_max_s=45.0)
    result = play(lasting(swarm(replicas=1, sources=2, standbys=2, faults=slow), 8, 2), script)
    assert script.fallen
    assert len(lines(result, "TookOver")) == 2
    assert lines(result, "stage 1 lost, waiting a while for whoever has it on disk")
    assert not rebuilt(result)


class StandsStill(Script):
    """All die; who is named stands still as that many have promised a plan of its."""

    def __init__(self, promised: int) -> None:
        """Nobody has died."""
        self._blows, self.still_to_promise = everybody_dies(5), promised

    def see(self, director: Director, moment: Moment) -> None:
        """It comes back long after they have loaded what was named once more."""
        self._blows.see(director, moment)
        if self._blows.struck and isinstance(moment.request, Open) and moment.outcome is not None:
            self.still_to_promise -= 1
            if self.still_to_promise == 0:
                director.freeze(moment.sender.member, 20.0)


@pytest.mark.parametrize(("replicas", "promised"), [(1, 3), (2, 6)])
def test_who_has_dropped_the_plan_of_one_that_stood_still_hears_of_it_again(replicas: int, promised: int) -> None:
    """They would refuse its work for ever, and it would take them for members."""
    script = StandsStill(promised)
    away = replace(STEADY, replace_min_s=3.0, replace_max_s=3.0)
    result = play(lasting(swarm(replicas=replicas, standbys=2, faults=away), 8, 2), script)
    assert script.still_to_promise <= 0
    assert lines(result, "the run goes on with iteration 4, from snapshots")
    assert not rebuilt(result)


class LeftOver(Script):
    """All die; as a member has promised the first plan of who is named, all others die once more,
    or all but who leads.
    """

    def __init__(self, *, leads: bool) -> None:
        """Nobody has died."""
        self._blows, self._leads, self.left = everybody_dies(5), leads, list[Member]()

    def see(self, director: Director, moment: Moment) -> None:
        """It has the plan from then on."""
        self._blows.see(director, moment)
        is_promised = isinstance(moment.request, Open) and moment.outcome is not None
        if self._blows.struck and not self.left and is_promised and moment.sender.member != moment.receiver.member:
            self.left.append(moment.sender.member if self._leads else moment.receiver.member)
            director.kill(*(peer for peer in director.peers() if peer not in self.left))


@pytest.mark.parametrize(("leads", "named"), [(False, 2), (True, 1)])
def test_who_is_left_over_before_anything_is_decided_waits_for_the_others(*, leads: bool, named: int) -> None:
    """It holds what was named. A member could go on alone after half a minute, with stages that it
    makes anew, and waits to be named again instead; who leads is found by those that come back.
    """
    script = LeftOver(leads=leads)
    slow = replace(STEADY, replace_min_s=3.0, replace_max_s=3.0)
    result = play(lasting(swarm(replicas=1, standbys=2, faults=slow), 8, 2), script)
    assert script.left
    assert len(lines(result, "the run goes on with iteration 4, from snapshots")) == named
    assert len(lines(result, "TookOver")) == named
    assert not rebuilt(result)
