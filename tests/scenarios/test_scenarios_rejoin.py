"""The side of a split that loses is told to rejoin the other one, and that one is gone in that
moment: who gave up what, and who goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import GetState, Goodbye, Train
from swarmfree.protocol.names import Member
from swarmfree.protocol.ports import Reply
from swarmfree.sim.rehearsal import RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import SEED, STEADY, Once, is_asked, lines, swarm, unhurried

NOBODY_COMES = replace(STEADY, replace_min_s=900.0, replace_max_s=900.0)
Fall = Callable[[Director, list[Member]], None]


class _GivesWay(Once):
    """Half of a swarm of eight is parted for 30 s, and gives way; `delay_s` after the first of it
    was told to rejoin, or asks for a part, this happens to the halves.
    """

    def __init__(self, delay_s: float, fall: Fall, *, as_it_copies: bool) -> None:
        super().__init__(is_asked(Train, key__iteration=1, key__stage=1), self._part)
        self._delay_s, self._fall, self._as_it_copies = delay_s, fall, as_it_copies
        self._far: list[Member] = []
        self._left = self._fell = False

    def _part(self, director: Director, _: Moment) -> None:
        other = next(member for member in director.members(0) if member != director.coordinator)
        self._far.extend([other, *(director.members(stage)[0] for stage in (1, 2, 3))])
        director.partition(self._far, duration_s=30.0)

    def see(self, director: Director, moment: Moment) -> None:
        """As ever, and wait for the first word."""
        super().see(director, moment)
        match moment:
            case Moment(request=Goodbye(rejoin=True), outcome=Reply()):
                self._left = True
                is_now = not self._as_it_copies
            case Moment(request=GetState(), outcome=None):
                is_now = self._left
            case _:
                is_now = False
        if is_now and not self._fell:
            self._fell = True
            director.after(self._delay_s, lambda: self._fall(director, self._far))


def _played(delay_s: float, fall: Fall, iterations: int, *, as_it_copies: bool = False) -> RehearsalResult:
    setup = unhurried(swarm(sources=2, standbys=0, faults=NOBODY_COMES), iterations=iterations)
    result = rehearse(SEED, setup=setup, script=_GivesWay(delay_s, fall, as_it_copies=as_it_copies))
    assert result.violation is None, "\n".join([*result.transcript[-60:], str(result.violation), result.details])
    assert lines(result, "IterationCommitted", f"iteration={iterations - 1} "), "the run has gone on"
    return result


def _die(director: Director, far: list[Member]) -> None:
    director.kill(*sorted(set(director.peers()) - set(far)))
    director.after(60.0, lambda: [director.join() for _kind in range(4)] and None)


@pytest.mark.parametrize("delay_s", [0.05, 0.15, 0.3, 0.8])
def test_who_was_told_to_rejoin_goes_on_where_all_that_it_was_to_join_die(delay_s: float) -> None:
    """They die before anything was copied, as stages are copied, and as all are but one: the four
    that are left go on, from the lineage that they left, or from what some have copied.
    """
    result = _played(delay_s, _die, 30)
    assert len(lines(result, "LineageDropped")) == 1, "nobody gives way once more"
    if delay_s == 0.8:
        assert len(lines(result, "StageLost", "iteration=13 ")) <= 1, "what was copied counts"


def test_nothing_is_given_up_for_a_copy_whose_source_dies_before_its_first_part() -> None:
    """They die as the first of the four asks for it: all four go on with what they have."""
    result = _played(0.0, _die, 30, as_it_copies=True)
    assert lines(result, "TookOver", "followers=4 ", "forced=False")
    assert not [line for line in lines(result, "StageBuilt") if "iteration=0 " not in line and "action=Copy " not in line]


@pytest.mark.parametrize("delay_s", [0.05, 0.15, 0.3, 0.8])
def test_who_was_told_to_rejoin_gives_way_again_to_those_that_were_only_out_of_reach(delay_s: float) -> None:
    """The two sides are parted again for 90 s: both go on, and what was decided with force gives
    way to what was not, of which no iteration is lost.
    """

    def fall(director: Director, far: list[Member]) -> None:
        director.partition(far, duration_s=90.0)

    result = _played(delay_s, fall, 45)
    assert not lines(result, "LineageDropped", "forced=0")
    unforced = {line.split("iteration=")[1].split()[0] for line in lines(result, "IterationCommitted", "forced=0")}
    assert len(unforced) == 45, "no iteration was committed forced alone"
