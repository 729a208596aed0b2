"""Scenarios of lost body stages that are replayed from full shadows and activation logs: as if they
had never been lost.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import GetShadow, Pull, Train
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import Once, is_asked, lines, play, reaching, swarm, unhurried

ITERATIONS, LOST_AT = 7, 5


def logged(
    *, shadow_every: int = 3, standbys: int = 1, replicas: int = 2, sources: int = 1, iterations: int = ITERATIONS
) -> Setup:
    """A swarm with full shadows and activation logs."""
    cast = swarm(shadow_every=shadow_every, standbys=standbys, replicas=replicas, sources=sources)
    setup = unhurried(reaching("replay", cast), iterations=iterations)
    manifest = setup.manifest
    return replace(setup, manifest=replace(manifest, recovery=replace(manifest.recovery, shadow_kind="full")))


def lose(*stages: int, iteration: int = LOST_AT) -> Once:
    """All replicas of these stages die as stage 1 begins to work on this iteration."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*(member for stage in stages for member in director.members(stage)))

    return Once(is_asked(Train, key__iteration=iteration, key__stage=1), strike)


def told(result: RehearsalResult) -> dict[str, str]:
    """Losses as they were committed, by iteration."""
    committed = lines(result, "IterationCommitted")
    return {line.split("iteration=")[1].split()[0]: line.split(" loss=")[1].split()[0] for line in committed}


def actions(result: RehearsalResult) -> dict[str, str]:
    """How each lost stage came back, by stage."""
    lost = [line for line in lines(result, "RecoveryDecided") if "iteration=0" not in line]
    return {line.split("stage=")[1].split()[0]: line.split("action=")[1].split()[0] for line in lost}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_lost_stage_is_replayed_exactly(stage: int, replicas: int) -> None:
    """First, middle and last one: every loss from there on is that of the run without the loss."""
    setup = logged(replicas=replicas)
    result = play(setup, lose(stage))
    assert actions(result) == {str(stage): "Replay"}
    assert lines(result, "StageBuilt", f"stage={stage}", "action=Replay", "exact=True")
    assert told(result) == told(play(setup))


def test_a_replica_of_a_neighbour_replays_from_its_own_log_as_well() -> None:
    """Where nobody stands by, a spare replica of stage 1 or 3 moves: what it logged itself is
    needed, and stays until stage 2 is there.
    """
    setup = logged(standbys=0)
    setup = replace(setup, faults=replace(setup.faults, replace_min_s=60.0, replace_max_s=60.0))
    result = play(setup, lose(2))
    assert lines(result, "StageBuilt", "stage=2", "action=Replay", "exact=True")
    assert actions(result) == {"2": "Replay"}
    assert told(result) == told(play(setup))


@pytest.mark.parametrize("stages", [(2,), (2, 3)])
def test_a_replay_from_packed_activations_is_near_and_says_so(stages: tuple[int, ...]) -> None:
    """Records say nothing of the order of sums then, and nobody asks for it; integers are not
    rounded, so that nothing else is lost either.
    """
    setup = logged(standbys=len(stages))
    recovery = replace(setup.manifest.recovery, border_dtype="bfloat16")
    setup = replace(setup, manifest=replace(setup.manifest, recovery=recovery))
    result = play(setup, lose(*stages))
    assert actions(result) == {str(stage): "Replay" for stage in stages}
    for stage in stages:
        assert lines(result, "StageBuilt", f"stage={stage}", "action=Replay", "exact=False")
    assert told(result) == told(play(setup))


def test_two_adjacent_stages_are_replayed_together() -> None:
    """Each builder runs both: what crossed the boundary between them died with them."""
    setup = logged(standbys=2)
    result = play(setup, lose(2, 3))
    assert actions(result) == {"2": "Replay", "3": "Replay"}
    assert told(result) == told(play(setup))


def test_a_stage_next_to_one_that_was_replayed_is_replayed_as_well() -> None:
    """The builder keeps the activations of what it replays: its neighbour, lost next, finds a whole
    log there.
    """

    class Twice(Once):
        second = Once(is_asked(Train, key__iteration=LOST_AT + 1, key__stage=1), lambda d, _: d.kill(*d.members(3)))

        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            self.second.see(director, moment)

    first = lose(2)
    setup = logged(standbys=2, shadow_every=4)
    result = play(setup, Twice(first._fits, first._strike))
    assert actions(result) == {"2": "Replay", "3": "Replay"}
    assert told(result) == told(play(setup))


def test_a_log_with_a_gap_is_not_replayed() -> None:
    """A replica next to the lost stage died since the shadow, and its log with it: the shadow is
    taken as it is.
    """

    class Gap(Once):
        earlier = Once(is_asked(Train, key__iteration=LOST_AT - 1, key__stage=2), lambda d, _: d.kill(d.members(1)[0]))

        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            self.earlier.see(director, moment)

    first = lose(2)
    result = play(logged(standbys=2), Gap(first._fits, first._strike))
    assert lines(result, "StageBuilt", "stage=2", "action=Restore")


def test_a_holder_that_dies_while_a_stage_is_replayed_costs_that_replay_only() -> None:
    """The only neighbour before it dies as its activations are asked for: both stages are replayed
    together, and no step of either is lost.
    """
    struck: list[bool] = []

    class Second(Once):
        def see(self, director: Director, moment: Moment) -> None:
            super().see(director, moment)
            if self.struck and not struck and is_asked(Pull, key__iteration=LOST_AT - 1)(moment):
                struck.append(True)
                director.kill(*director.members(1))

    first = lose(2)
    setup = logged(standbys=3, replicas=1)
    result = play(setup, Second(first._fits, first._strike))
    assert struck
    decided = lines(result, "RecoveryDecided", f"iteration={LOST_AT}", "action=Replay")
    assert [line.split("stage=")[1].split()[0] for line in decided] == ["2", "1", "2"]
    for stage in (1, 2):
        assert lines(result, "StageBuilt", f"stage={stage}", f"iteration={LOST_AT}", "action=Replay", "exact=True")
    assert told(result) == told(play(setup))


def test_full_shadows_are_fetched_once_by_each_holder() -> None:
    """Every part of every body stage goes to at most two holders per renewal."""
    result = play(logged(shadow_every=3))
    assert 0 < result.statistics.calls[GetShadow.__name__] <= 2 * 2 * 3 * 4


def test_the_whole_body_is_replayed_from_what_a_standby_and_the_sources_kept() -> None:
    """A standby has the shadows, the sources, a majority, both logs: every loss is that of the run
    without the loss.
    """
    setup = logged(standbys=2, replicas=1, sources=4, shadow_every=5, iterations=10)
    result = play(setup, lose(1, 2, 3, iteration=9))
    assert actions(result) == {"1": "Replay", "2": "Replay", "3": "Replay"}
    assert told(result) == told(play(setup))


def test_a_plain_shadow_is_restored_as_it_is() -> None:
    """Even where replay is the best method: it has no moments, and no log is kept for it."""
    setup = unhurried(reaching("replay", swarm(shadow_every=4)), iterations=ITERATIONS)
    result = play(setup, lose(2))
    assert lines(result, "StageBuilt", "stage=2", "action=Restore")
    assert not lines(result, "StageBuilt", "action=Replay")
