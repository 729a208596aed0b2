"""Scenarios of replays that take too long, and of builders that take long and get somewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.actions import Copy, Replay, Restore
from swarmfree.protocol.messages import Build
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import Once, lines, play
from tests.scenarios.test_scenarios_replay import logged, lose


def hurried(setup: Setup, join_wait_s: float) -> Setup:
    """The same with another bound on what a build may take."""
    manifest = setup.manifest
    return replace(setup, manifest=replace(manifest, timing=replace(manifest.timing, join_wait_s=join_wait_s)))


class SlowBuilder(Once):
    """Kills a stage, and makes the device of whoever is to build it slow as long as it does
    `action`.
    """

    def __init__(self, action: type, factor: float, duration_s: float = 60.0) -> None:
        killing = lose(2)
        super().__init__(killing._fits, killing._strike)
        self._action, self._factor, self._duration_s = action, factor, duration_s
        self.asked: list[str] = []

    def see(self, director: Director, moment: Moment) -> None:
        """Slow it down when the Build sets out; note who was asked for what."""
        super().see(director, moment)
        is_build = moment.outcome is None and isinstance(moment.request, Build)
        if is_build and self.struck and not isinstance(moment.request.action, Copy):
            name = type(moment.request.action).__name__
            asked = f"{moment.receiver.member.peer_id} {name}"
            if asked not in self.asked:
                self.asked.append(asked)
                director.slow(moment.receiver.member, self._factor if name == self._action.__name__ else 1.0, self._duration_s)


@pytest.mark.parametrize("join_wait_s", [6.0, 20.0])
def test_a_slow_replay_is_tried_once_and_its_builder_takes_the_shadow(join_wait_s: float) -> None:
    """It runs out of time, or finds after its first iteration that it will: either way the same
    builder restores the shadow, and nobody is fenced.
    """
    script = SlowBuilder(Replay, 12.0)
    result = play(hurried(logged(), join_wait_s), script)
    builders = [one.split()[0] for one in script.asked]
    assert [one.split()[1] for one in script.asked] == ["Replay", "Restore"]
    assert len(set(builders)) == 1
    assert lines(result, "StageBuilt", "stage=2", "action=Restore")
    assert not [line for line in lines(result, "Fenced") if builders[0] in line]


def test_a_builder_that_gets_somewhere_may_take_longer_than_the_bound() -> None:
    """Its device does one piece after the other: it is asked again, which joins what it does, and
    it is not fenced.
    """
    script = SlowBuilder(Restore, 10.0, 5.0)
    setup = hurried(logged(), 2.5)
    recovery = replace(setup.manifest.recovery, best="restore")
    result = play(replace(setup, manifest=replace(setup.manifest, recovery=recovery)), script)
    assert [one.split()[1] for one in script.asked] == ["Restore"]
    assert lines(result, "StageBuilt", "stage=2", "action=Restore")
