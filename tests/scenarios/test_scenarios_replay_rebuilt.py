"""Scenarios of a stage that is lost again soon after it was rebuilt: its shadows and its
neighbours' logs are of before that.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.actions import Replay, Restore
from swarmfree.protocol.errors import Refused
from swarmfree.protocol.messages import Build, Pull, Request, Train
from swarmfree.protocol.names import Endpoint
from swarmfree.sim.faults import Fate
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import Once, is_asked, lines, play
from tests.scenarios.test_scenarios_replay import logged, lose

FIRST, SECOND, SHADOW_EVERY = 9, 10, 6


class LostAgain(Once):
    """Stage 2 is lost, no logged tensor arrives until its shadow is restored, and in the next
    iteration it is lost once more.

    Attributes:
        refused: what builders said of a replay after the second loss.
    """

    def __init__(self) -> None:
        first = lose(2, iteration=FIRST)
        super().__init__(first._fits, first._strike)
        self._again = Once(is_asked(Train, key__iteration=SECOND, key__stage=1), lambda d, _: d.kill(*d.members(2)))
        self._restored = False
        self.refused: list[str] = []

    def see(self, director: Director, moment: Moment) -> None:
        """Lose it twice; listen to who builds it."""
        super().see(director, moment)
        self._again.see(director, moment)
        match moment:
            case Moment(request=Build(action=Restore(stage=2))):
                self._restored = True
            case Moment(request=Build(action=Replay(stage=2)), outcome=Refused() as refused) if self._again.struck:
                self.refused.append(str(refused))

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """No logged tensor until then."""
        is_lost = isinstance(request, Pull) and self.struck and not self._restored
        return Fate(0.001, 0.001, 0.001, request_lost=True) if is_lost else None


@pytest.mark.parametrize("border_dtype", ["wire", "bfloat16"])
def test_a_stage_that_was_restored_is_not_replayed_from_before_that(border_dtype: str) -> None:
    """Its steps were counted on, so that nothing but the digest of the state, or where activations
    are packed the base, tells of the rebuild.
    """
    setup = logged(standbys=2, shadow_every=SHADOW_EVERY, iterations=SECOND + 2)
    recovery = replace(setup.manifest.recovery, border_dtype=border_dtype)
    script = LostAgain()
    result = play(replace(setup, manifest=replace(setup.manifest, recovery=recovery)), script)
    assert script.refused
    assert all(f"stage 2 was rebuilt before iteration {FIRST}, after its shadow" in refused for refused in script.refused)
    restored = [line.split("iteration=")[1].split()[0] for line in lines(result, "StageBuilt", "stage=2", "action=Restore")]
    assert restored == [str(FIRST), str(SECOND)]
