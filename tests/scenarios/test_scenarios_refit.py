"""Scenarios of lost body stages that come back near what they were: from plain shadows, or made from their neighbours and fitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from swarmfree.swarm.messages import Pull, Train
from swarmfree.swarm.names import Side
from tests.scenarios.scenario_world import Once, is_asked, lines, play, reaching, swarm, unhurried

LOST_AT = 6


def timely(setup: Setup, *, iterations: int) -> Setup:
    """With time enough for a refit on slow devices."""
    setup = unhurried(setup, iterations=iterations)
    return replace(setup, manifest=replace(setup.manifest, timing=replace(setup.manifest.timing, join_wait_s=60.0)))


def lose(*stages: int) -> Once:
    """All replicas of these stages die as stage 1 begins to work on iteration 6."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*(member for stage in stages for member in director.members(stage)))

    return Once(is_asked(Train, key__iteration=LOST_AT, key__stage=1), strike)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_stage_without_a_shadow_is_fitted_to_what_its_neighbours_saw(stage: int) -> None:
    """Also at both ends of the body, where a source keeps one of the borders."""
    result = play(timely(reaching("refit", swarm()), iterations=LOST_AT + 6), lose(stage))
    decided = lines(result, "RecoveryDecided", f"stage={stage}", f"iteration={LOST_AT}")
    assert len(decided) == 1
    assert "action=Refit" in decided[0]
    assert "6 iterations, as its neighbours kept it" in decided[0]
    assert lines(result, "StageBuilt", f"stage={stage}", "action=Refit")


def test_two_adjacent_stages_without_shadows_are_merged() -> None:
    """What went from one to the other is gone with both."""
    result = play(timely(reaching("refit", swarm(standbys=2)), iterations=LOST_AT + 2), lose(2, 3))
    built = [line for stage in (2, 3) for line in lines(result, "StageBuilt", f"stage={stage}", f"iteration={LOST_AT}")]
    assert len(built) >= 2
    assert not any("action=Refit" in line for line in built)


def test_a_neighbour_that_is_silent_while_pairs_are_pulled_leaves_a_merge_or_another_try() -> None:
    """One of the replicas that keep the borders dies: the other one has those of its own microbatches only, so a merge has to do."""
    struck: list[str] = []

    class Twice(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if self.struck and not struck and is_asked(Pull, key__stage=3, side=Side.INPUT)(moment):
                struck.append(str(moment.receiver.member))
                director.kill(moment.receiver.member)

    inner = lose(2)
    result = play(timely(reaching("refit", swarm(standbys=2)), iterations=LOST_AT + 3), Twice(inner._fits, inner._strike))
    assert struck
    assert lines(result, "StageBuilt", "stage=2", "action=Merge")


def test_a_plain_shadow_is_restored_as_it_is_however_high_the_ladder_begins() -> None:
    """Replay is for full shadows alone."""
    result = play(timely(reaching("replay", swarm(shadow_every=4)), iterations=LOST_AT + 3), lose(2))
    assert lines(result, "StageBuilt", "stage=2", "action=Restore")
    assert not lines(result, "StageBuilt", "action=Replay")
