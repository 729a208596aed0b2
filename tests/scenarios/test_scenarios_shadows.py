"""Scenarios of lost body stages that come back from their shadows."""

from __future__ import annotations

from swarmfree.protocol.messages import GetShadow, Train
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment
from tests.scenarios.scenario_world import Once, is_asked, lines, play, swarm, unhurried


def lose(*stages: int) -> Once:
    """All replicas of these stages die as stage 1 begins to work on iteration 3."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*(member for stage in stages for member in director.members(stage)))

    return Once(is_asked(Train, key__iteration=3, key__stage=1), strike)


def actions(result: RehearsalResult) -> dict[str, str]:
    """How each lost stage came back, by stage."""
    told = [line for line in lines(result, "RecoveryDecided") if "action=Fresh" not in line or "iteration=0" not in line]
    return {line.split("stage=")[1].split()[0]: line.split("action=")[1].split()[0] for line in told if "iteration=3" in line}


def test_a_lost_stage_comes_from_its_shadow() -> None:
    """Whatever it is between: the rest stays where it is, and the state is one that the stage once
    had.
    """
    for stage in (1, 2, 3):
        result = play(unhurried(swarm(shadow_every=1), iterations=6), lose(stage))
        assert actions(result)[str(stage)] == "Restore"
        assert lines(result, "StageBuilt", f"stage={stage}", "action=Restore")


def test_two_adjacent_stages_come_from_their_shadows_at_once() -> None:
    """The outer neighbours have one of each."""
    result = play(unhurried(swarm(shadow_every=1, standbys=2), iterations=6), lose(2, 3))
    assert actions(result) == {"2": "Restore", "3": "Restore"}


def test_without_shadows_it_is_merged() -> None:
    """The same loss where none are kept."""
    result = play(unhurried(swarm(shadow_every=0), iterations=6), lose(2))
    assert actions(result)["2"] == "Merge"
    assert not result.statistics.calls[GetShadow.__name__]


def test_a_holder_that_dies_while_it_gives_its_shadow_is_replaced_by_the_other_one() -> None:
    """The newcomer is built from the second holder, or from the neighbours where there is none."""
    struck: list[str] = []

    class Twice(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            members = {member for stage in range(4) for member in director.members(stage)}
            is_builder = is_asked(GetShadow, stage=2, part=1)(moment) and moment.sender.member not in members
            if self.struck and not struck and is_builder:
                struck.append(str(moment.receiver.member))
                director.kill(moment.receiver.member)

    inner = lose(2)
    script = Twice(inner._fits, inner._strike)
    result = play(unhurried(swarm(shadow_every=1, standbys=2), iterations=6), script)
    assert struck
    assert len(lines(result, "RecoveryDecided", "stage=2", "iteration=3")) == 2
    assert lines(result, "StageBuilt", "stage=2", "action=Restore")


def test_shadows_cost_each_holder_little() -> None:
    """One renewal moves each part once for each holder, whatever the number of iterations
    between.
    """
    often = play(unhurried(swarm(shadow_every=1), iterations=8)).statistics.calls[GetShadow.__name__]
    seldom = play(unhurried(swarm(shadow_every=4), iterations=8)).statistics.calls[GetShadow.__name__]
    assert often > 2 * seldom > 0


def test_the_whole_body_comes_back_from_what_a_standby_kept() -> None:
    """No neighbour is left; the standby has looked at the coordinator's plan and kept a shadow of
    each stage, also of the one that it gets.
    """

    def strike(director: Director, _: Moment) -> None:
        director.kill(*(member for stage in (1, 2, 3) for member in director.members(stage)))

    lost = Once(is_asked(Train, key__iteration=5, key__stage=1), strike)
    result = play(unhurried(swarm(shadow_every=1, standbys=1), iterations=8), lost)
    for stage in (1, 2, 3):
        assert lines(result, "StageBuilt", f"stage={stage}", "action=Restore"), stage
    assert not lines(result, "RecoveryDecided", "iteration=5", "action=Fresh")
