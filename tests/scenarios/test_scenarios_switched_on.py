"""Both sides of a split have paused, or all have died soon after the run was resumed, and people
switch their machines on one after the other: drawn moments, real peers with what lies on their
disks.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Seal
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import lines, play
from tests.scenarios.test_scenarios_pause import resumed
from tests.scenarios.test_scenarios_resume import lasting
from tests.scenarios.test_scenarios_sides import RUN, Apart

WAIT_S = RUN.manifest.timing.join_wait_s
OFF_S = 100.0
"""By then both sides have paused, and nobody that has ended is announced."""
NEVER = 1e9


class SwitchedOn(Apart):
    """A majority has paused before iteration 5, and four others, forced, before iteration 7.

    Args:
        seed: of who is switched on when.
        again: once all were back, and the run has gone on with iteration 5, they die, and are
            switched on once more.

    Attributes:
        whole_s: iteration of a set -> when each stage of it is on a disk that is on.
    """

    def __init__(self, seed: int, *, again: bool) -> None:
        """Nobody is off."""
        super().__init__(away_s=38.0, dies=False)
        self._rng, self._again, self._are_off = random.Random(seed), again, False
        self.whole_s: dict[int, float] = {}

    def see(self, director: Director, moment: Moment) -> None:
        """Switch all off, as they pause, or as they die later."""
        super().see(director, moment)
        if not self.has_stopped or self._are_off:
            return
        asked = moment.request
        if self._again and not (isinstance(asked, Seal) and asked.record.iteration == 5 and asked.record.forced == (5,)):
            return
        self._are_off = True
        peers = [member.peer_id for member in director.peers()]
        director.switch_on(dict.fromkeys(peers, NEVER))
        if self._again:
            director.kill(*director.peers())
        director.after(OFF_S, lambda: self._come(director, peers))

    def _come(self, director: Director, peers: list[str]) -> None:
        """Each at its own moment; those of the majority begin later, at times, and some never."""
        rng, few = self._rng, {member.peer_id for member in self._few}
        spread_s, later_s, never = rng.choice((4.0, 15.0, 30.0)), rng.choice((0.0, 5.0, 15.0)), rng.choice((0.0, 0.0, 0.1))
        at_s = {peer: director.now_s + rng.uniform(0, spread_s) + later_s * (peer not in few) for peer in peers}
        at_s |= {peer: NEVER for peer in peers if rng.random() < never}
        director.switch_on(at_s)
        for iteration in (5, 7):
            first_s = dict.fromkeys(range(4), NEVER)
            for peer in peers:
                for held in director.disk(peer):
                    if held.iteration == iteration:
                        first_s[held.stage] = min(first_s[held.stage], at_s[peer])
            self.whole_s[iteration] = max(first_s.values())


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_run_goes_on_from_what_a_majority_decided_if_its_machines_come_in_time(seed: int, *, again: bool) -> None:
    """Within a joiner's wait of the others; and not over what the run has gone on from, though
    those that hold something else by now are there first.
    """
    script = SwitchedOn(seed, again=again)
    # A snapshot every four: the forced ones hold an older one, once a genesis names the others'
    result = play(replace(lasting(RUN, 12, 4), progress_bound_s=900.0), script)
    decided_s, forced_s = script.whole_s[5], script.whole_s[7]
    named = resumed(result)[1 if again else 0 :]
    assert named, lines(result, "tstrap")
    if decided_s < min(NEVER, forced_s + WAIT_S - 3.0):
        assert named[0] == 5
    elif math.isfinite(forced_s) and decided_s > forced_s + WAIT_S + 6.0 and forced_s < NEVER:
        assert named[0] == 7
