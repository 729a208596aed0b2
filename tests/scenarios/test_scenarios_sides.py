"""Two sides of a split, of which one goes on by force and is faster, stop before they have met:
from which of them the run goes on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Seal, Train
from swarmfree.protocol.names import Member
from swarmfree.protocol.order import Halting
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment, Script
from tests.scenarios.scenario_world import STEADY, is_answered, lines, play, swarm, unhurried
from tests.scenarios.test_scenarios_pause import resumed
from tests.scenarios.test_scenarios_resume import lasting

RUN = unhurried(swarm(replicas=3, sources=2, standbys=0, faults=replace(STEADY, replace_min_s=2.0, replace_max_s=3.0)))


class Apart(Script):
    """Four of eleven peers, one of each stage, are cut off in iteration 2 and go on by force; the
    devices of the others are slower. Once those four are further, the organiser wants a pause, or
    all die.

    Attributes:
        decided: the iteration up to which records were decided by a majority.
        has_stopped: the pause was wanted, or all have died.
    """

    def __init__(self, *, away_s: float, dies: bool) -> None:
        """Nothing has happened."""
        self._few, self._away_s, self._dies = list[Member](), away_s, dies
        self.decided, self.has_stopped = 0, False

    def see(self, director: Director, moment: Moment) -> None:
        """Cut off, slow down, and stop."""
        asked = moment.request
        if not self._few and is_answered(Train, key__iteration=2)(moment):
            self._few = [next(m for m in director.members(stage) if m != director.coordinator) for stage in range(4)]
            for member in set(director.peers()) - set(self._few):
                director.slow(member, 4.0, 300.0)
            director.partition(self._few, duration_s=self._away_s)
        if not isinstance(asked, Seal) or not self._few:
            return
        if not asked.record.forced and (asked.record.halt is Halting.PAUSE or self._dies):
            self.decided = max(self.decided, asked.record.iteration)
        if not self.has_stopped and asked.record.forced and asked.record.iteration == (7 if self._dies else 4):
            self.has_stopped = True
            if self._dies:
                director.kill(*director.peers())
                director.heal()
            else:
                director.after(0.2, lambda: director.give_order(Halting.PAUSE))


def stop(script: Apart, snapshot_every: int) -> RehearsalResult:
    """Play it; the two sides have stopped at different iterations."""
    result = play(replace(lasting(RUN, 12, snapshot_every), progress_bound_s=400.0), script)
    assert script.has_stopped
    return result


@pytest.mark.parametrize("away_s", [38.0, 40.65])
def test_a_run_goes_on_from_what_a_majority_paused_with_and_not_from_what_was_forced(away_s: float) -> None:
    """Also where that is further: so it would be, had they met before. The organiser is told."""
    script = Apart(away_s=away_s, dies=False)
    result = stop(script, 100)
    assert script.decided == 4
    assert resumed(result)[:1] == [5]
    assert lines(result, "at which others paused without a majority, is dropped")


def test_where_all_have_died_apart_the_run_goes_on_from_the_newest_set() -> None:
    """Whatever was forced there: nobody has left with a word that it would be otherwise, and those
    that are not so far may have been gone for days.
    """
    script = Apart(away_s=1000.0, dies=True)
    result = stop(script, 1)
    assert script.decided < 6
    assert resumed(result)[:1] == [7]
    assert not lines(result, "is dropped")
