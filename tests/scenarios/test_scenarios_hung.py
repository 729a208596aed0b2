"""Scenarios of a device that hangs while its event loop goes on answering, with the limits that
runs have unless somebody says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.actions import Copy
from swarmfree.protocol.errors import Refused
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import Build, Claim, Commit, GetState, Open, TakeRoll, Train
from swarmfree.protocol.names import Member
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import STEADY, Once, is_asked, lines, play, swarm, unhurried

STAGE = 2
SILENCE_S = TimingSection().silence_s
SLACK_S = 4.0
"""For a heartbeat to be answered, an iteration, and where the coordinator is hit another one to
take over.
"""


def sixteen(setup: Setup) -> Setup:
    """The same with sixteen iterations: in the first ones nothing is known of how long work
    takes.
    """
    return replace(setup, manifest=replace(setup.manifest, run=replace(setup.manifest.run, iterations=16)))


def hang(fits: Callable[[Moment], bool], whom: Callable[[Director], Member]) -> Once:
    """This one's device never comes back from what it does next."""
    return Once(fits, lambda director, _: director.stick(whom(director)))


def test_nobody_has_to_set_a_limit_for_these_scenarios() -> None:
    """They run with the default after which a peer whose device hangs ends by itself, which is far
    longer than they take.
    """
    assert swarm().manifest.timing.stuck_s == TimingSection().stuck_s > 3 * SILENCE_S + SLACK_S


@pytest.mark.parametrize(
    "fits",
    [
        is_asked(Train, key__iteration=12, key__stage=STAGE),
        is_asked(Train, key__iteration=12, key__stage=STAGE + 1),
        is_asked(TakeRoll, roll__iteration=12, roll__stage=STAGE),
        is_asked(Commit, record__iteration=12),
    ],
    ids=["as it is asked", "as it has passed something on", "as it averages", "as it steps"],
)
def test_a_replica_whose_device_hangs_is_not_waited_for(fits: Callable[[Moment], bool]) -> None:
    """Its sibling does its work: the next iteration is committed within three silences, and the
    peer ends by itself later.
    """
    script = hang(fits, lambda director: director.members(STAGE)[0])
    result = play(sixteen(swarm()), script)
    assert script.struck
    assert len(lines(result, "MemberLost", "its device has worked on one thing")) == 1
    assert result.statistics.longest_gap_s < 3 * SILENCE_S + SLACK_S
    assert not lines(result, "StageLost")
    assert not [line for line in lines(result, "IterationCommitted") if "attempt=0" not in line]


@pytest.mark.parametrize("leads", [False, True])
def test_a_source_whose_device_hangs_is_not_waited_for(*, leads: bool) -> None:
    """The other source feeds its share; where it was the coordinator that hung, it hands the lead
    over first.
    """

    def whom(director: Director) -> Member:
        return next(member for member in director.members(0) if (member == director.coordinator) == leads)

    script = hang(is_asked(Train, key__iteration=12, key__stage=STAGE), whom)
    result = play(sixteen(swarm(sources=2)), script)
    assert script.struck
    assert len(lines(result, "TookOver", "forced=False")) == leads
    assert result.statistics.longest_gap_s < 3 * SILENCE_S + SLACK_S
    assert not lines(result, "StageLost")


def test_a_replica_whose_device_hangs_does_not_keep_the_lead_vacant() -> None:
    """It hangs as it steps, and cannot promise before it has; the coordinator dies: the others
    elect the next one in time without its answer.
    """

    def strike(director: Director, _: Moment) -> None:
        director.stick(director.members(STAGE)[0])
        coordinator = director.coordinator
        assert coordinator is not None
        director.after(1.0, lambda: director.kill(coordinator))

    result = play(sixteen(swarm(sources=2)), Once(is_asked(Commit, record__iteration=12), strike))
    assert len(lines(result, "TookOver", "forced=False")) == 1


def test_a_replica_whose_device_comes_back_is_a_member_again() -> None:
    """It is fenced while it is late, keeps its state, and says hello when its device answers again:
    no peer ends.
    """
    late: list[Member] = []

    def strike(director: Director, _: Moment) -> None:
        late.append(director.members(STAGE)[0])
        director.slow(late[0], 2000.0, 3.0)

    setup = swarm()
    setup = replace(setup, manifest=replace(setup.manifest, run=replace(setup.manifest.run, iterations=52)))
    result = play(setup, Once(is_asked(Train, key__iteration=12, key__stage=STAGE), strike))
    assert lines(result, "MemberLost", "its device has worked", late[0].peer_id)
    assert late[0].peer_id in lines(result, "Opened", "iteration=51 ")[-1]
    assert lines(result, "ended with code") == lines(result, "ended with code 0")


class HangsAsItOpens(Script):
    """The only replica of stage 1 dies; the coordinator's device hangs as it opens the first plan
    that names who has made that stage anew.

    Attributes:
        refused: what it refused to members that claimed afterwards.
        asked: how many did.
    """

    def __init__(self) -> None:
        self._dies = Once(
            is_asked(Train, key__iteration=2, key__stage=1), lambda director, _: director.kill(*director.members(1))
        )
        self._hung: Member | None = None
        self.asked, self.refused = 0, list[Refused]()

    def see(self, director: Director, moment: Moment) -> None:
        """Both moments, and what comes of claims."""
        self._dies.see(director, moment)
        request = moment.request
        if self._hung is None and isinstance(request, Open) and request.plan.position.attempt == 1 and moment.outcome is None:
            self._hung = moment.sender.member
            director.stick(self._hung)
        if isinstance(request, Claim) and not request.only_asking and moment.receiver.member == self._hung:
            self.asked += moment.outcome is None
            self.refused += [moment.outcome] if isinstance(moment.outcome, Refused) else []


def test_a_coordinator_whose_device_hangs_knows_whom_it_has_placed() -> None:
    """It hands the lead over, and the one that it had make a lost stage claims (seed 2700819): it
    forbids nothing to a member of the plan that it has made, and is still opening.
    """
    script = HangsAsItOpens()
    play(swarm(body=2, replicas=1, sources=2, standbys=2), script)
    assert script.asked
    assert script.refused == []


class OneBehind(Script):
    """A replica's device hangs as it steps; in the next iteration its sibling dies, and then
    `count` replicas of another stage.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._steps = hang(is_asked(Commit, record__iteration=12), lambda director: director.members(STAGE)[0])
        self._next = Once(is_asked(Train, key__iteration=13, key__stage=STAGE), self._strike)

    def see(self, director: Director, moment: Moment) -> None:
        """Both moments."""
        self._steps.see(director, moment)
        self._next.see(director, moment)

    def _strike(self, director: Director, _: Moment) -> None:
        director.kill(director.members(STAGE)[0])
        director.after(SLACK_S, lambda: director.kill(*director.members(STAGE + 1)[-self._count :]))


@pytest.mark.parametrize("count", [1])
def test_a_stage_that_hangs_before_it_has_promised_stops_no_other_one(count: int) -> None:
    """While its only replica is waited for, whoever comes for another stage is a member soon, and
    that stage is rebuilt where it is lost.
    """
    result = play(sixteen(swarm()), OneBehind(count))
    begun_s, ended_s = (float(lines(result, words)[0].split()[0]) for words in ("killed: by the script", "Ended code=1"))
    opened = [line for line in lines(result, "Opened", "iteration=13 ") if begun_s + SLACK_S < float(line.split()[0]) < ended_s]
    assert len(opened) == count


class GoneAsItGives(Script):
    """A peer joins a stage with two replicas, and one of them, the first or the second donor, is
    frozen for good as the newcomer asks for the first part.
    """

    def __init__(self, which: int) -> None:
        self._which = which
        self._join = Once(is_asked(Train, key__iteration=2, key__stage=1), lambda director, _: director.after(0.8, director.join))
        self._donors: list[Member] = []
        self.newcomer: Member | None = None
        self.gone_s = 0.0

    def see(self, director: Director, moment: Moment) -> None:
        """The newcomer's first Build from two donors, and its first question."""
        self._join.see(director, moment)
        request, newcomer = moment.request, moment.receiver.member
        if isinstance(request, Build) and isinstance(request.action, Copy):
            if self.newcomer is None and self._join.struck and len(request.action.donors) > 1:
                self.newcomer, self._donors = newcomer, [donor.member for donor in request.action.donors]
                director.slow(newcomer, 40.0, 4.0)  # so that its copy takes several iterations
        elif isinstance(request, GetState) and moment.sender.member == self.newcomer and not self.gone_s:
            self.gone_s = director.now_s
            director.freeze(self._donors[self._which], 5000.0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_donor_whose_machine_is_gone_costs_a_newcomer_seconds(which: int) -> None:
    """The other donor gives it everything, and the newcomer does not go on asking who is silent."""
    setup = swarm(replicas=3, replicas_min=2, standbys=0, sources=2, faults=replace(STEADY, replaced_share=0.0))
    model = replace(setup.manifest.model, blocks=24)
    setup = unhurried(replace(setup, manifest=replace(setup.manifest, model=model), bodies=6), iterations=16)
    script = GoneAsItGives(which)
    result = play(replace(setup, work_min_s=0.03, work_max_s=0.06), script)
    assert script.newcomer is not None
    built = [float(line.split()[0]) for line in lines(result, "StageBuilt", "action=Copy", f"member={script.newcomer.peer_id} ")]
    assert built[0] - script.gone_s < 3 * SILENCE_S
