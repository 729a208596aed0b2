"""Scenarios of links that hold up a whole swarm, on torch in virtual time: what payloads weigh is
what they weigh in a real swarm.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from swarmfree.protocol.manifest import ModelSection
from swarmfree.sim.rehearsal import Factories, RehearsalResult
from swarmfree.sim.script import Director
from swarmfree.sim.setup import Setup
from swarmfree.sim.torch_rehearsal import WIDTH, make_engine
from tests.scenarios.scenario_world import lines, play
from tests.scenarios.test_scenarios_moves import Story, paces, seconds_at, six

BYTE_S, SLOWER = 1e-6, 100
"""A megabyte a second; 7 KB of gradients take a second and a half over links that are slower."""
SLOWED_S = 4.0
ON_TORCH = Factories(make_engine=make_engine, exact=False)


def far(iterations: int) -> Setup:
    """One source and two stages of three, whose payloads take time."""
    setup = six(0.02, iterations)
    model = ModelSection(width=WIDTH, blocks=2, heads=2, kv_heads=1, mlp_width=WIDTH, tokens_per_row=3, vocabulary=8192)
    return replace(setup, faults=replace(setup.faults, byte_s=BYTE_S), manifest=replace(setup.manifest, model=model))


def slow_one(director: Director) -> None:
    """The first of stage 2 gets slow links."""
    director.slow_links(director.members(2)[0], SLOWER)


def left(result: RehearsalResult) -> list[str]:
    """Who was told to stand by."""
    return lines(result, "MoveDecided", "taker=-1 ")


def test_whose_link_holds_up_the_others_stands_by() -> None:
    """Iterations get as short as before its link became slow; nobody else leaves, and it comes back
    by itself no more.
    """
    result = play(far(50), Story((SLOWED_S, slow_one)), factories=ON_TORCH)
    (decided,) = lines(result, "MoveDecided")
    assert "giver=2 taker=-1 " in decided
    slow = next(line for line in lines(result, "the links of ")).split("the links of ")[1].split(".")[0]
    assert f"member=Qm{slow} " in decided
    before_s = [s for at_s, s in paces(result) if at_s < SLOWED_S]
    slow_s = [s for at_s, s in paces(result) if SLOWED_S + 10 < at_s < seconds_at(decided)]
    after_s = [s for at_s, s in paces(result) if at_s > seconds_at(decided) + 5]
    assert statistics.median(slow_s) > 3 * statistics.median(after_s)
    assert statistics.median(after_s) < 1.25 * statistics.median(before_s)
    (measured,) = lines(result, "MoveMeasured")
    assert "taker=-1 " in measured


def test_who_stands_by_for_its_link_takes_a_stage_that_nobody_else_serves() -> None:
    """Both others of its stage die: it serves again, slowly, and no iteration is lost."""

    def lose(director: Director) -> None:
        assert len(director.members(2)) == 2
        director.kill(*director.members(2))

    result = play(far(50), Story((SLOWED_S, slow_one), (110.0, lose)), factories=ON_TORCH)
    (decided,) = left(result)
    assert seconds_at(decided) < 110
    slow = decided.split("member=")[1].split()[0]
    assert [line for line in lines(result, f"Placed member={slow} stage=2") if seconds_at(line) > 110]
    assert [line for line in lines(result, "StageBuilt stage=2", f"member={slow} ") if seconds_at(line) > 110]


def test_who_stands_by_stays_where_one_of_two_others_dies() -> None:
    """The one that is left is faster alone."""

    def lose(director: Director) -> None:
        director.kill(director.members(2)[-1])

    result = play(far(55), Story((SLOWED_S, slow_one), (110.0, lose)), factories=ON_TORCH)
    (decided,) = left(result)
    slow = decided.split("member=")[1].split()[0]
    assert not [line for line in lines(result, f"Placed member={slow} stage=2") if seconds_at(line) > 110]


def test_what_a_standby_holds_of_a_stage_is_not_given_up_for_a_copy_of_nobody() -> None:
    """The others of its stage are cut off, and then dead; it is told first to copy from one of
    them, whom it might reach: it keeps what it has until something comes.
    """

    def lose(director: Director) -> None:
        there = director.members(2)
        for member in there:
            director.mute(member)
            director.deafen(member)
        director.after(0.5, lambda: director.kill(*there))

    result = play(far(60), Story((SLOWED_S, slow_one), (110.0, lose)), factories=ON_TORCH)
    slow = left(result)[0].split("member=")[1].split()[0]
    (decided,) = [line for line in lines(result, "RecoveryDecided stage=2 ") if seconds_at(line) > 110]
    assert "action=Stay" in decided
    assert f"builder={slow} " in decided


def test_who_stands_by_for_its_link_and_was_away_for_a_moment_stands_by() -> None:
    """It says hello once more, and gets no place by that."""

    def freeze(director: Director) -> None:
        (slow,) = [member for member in director.peers() if not any(member in director.members(stage) for stage in range(3))]
        director.freeze(slow, 6.0)

    result = play(far(60), Story((SLOWED_S, slow_one), (110.0, freeze)), factories=ON_TORCH)
    (decided,) = lines(result, "MoveDecided")
    slow = decided.split("member=")[1].split()[0]
    after = [line for line in lines(result, f"Placed member={slow} ") if seconds_at(line) > 110]
    assert after and all("stage=-1" in line for line in after)
