"""Scenarios of builds that take too long: who is to blame is not known, and neither a copy nor a
coordinator is given up for it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, Merge, Replay, Restore
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import Build, GetState, Train
from swarmfree.protocol.names import Member
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import Once, is_asked, lines, play, reaching, swarm, unhurried
from tests.scenarios.test_scenarios_norms import merging
from tests.scenarios.test_scenarios_replay import logged, lose


def one_copy() -> Setup:
    """One source, one copy of the ends, and two peers that could feed instead."""
    return replace(unhurried(swarm(standbys=0, ends_copies=1), iterations=7), feeding_standbys=2)


class Hangs(Once):
    """Kills a stage; the device of the first that is asked to build by `action` hangs a moment
    later.
    """

    def __init__(self, stage: int, action: type[BuildAction], after_s: float = 0.0) -> None:
        killing = lose(stage)
        super().__init__(killing._fits, killing._strike)
        self._action, self._after_s = action, after_s
        self.hung: list[Member] = []

    def see(self, director: Director, moment: Moment) -> None:
        """Have it hang when the Build sets out."""
        super().see(director, moment)
        is_build = self.struck and not self.hung and isinstance(moment.request, Build)
        if is_build and isinstance(moment.request.action, self._action):
            self.hung.append(moment.receiver.member)
            director.after(self._after_s, lambda: director.stick(moment.receiver.member))


def test_a_builder_that_hangs_does_not_cost_the_only_copy_of_the_ends() -> None:
    """It is fenced, and the next one builds the ends from the same copy; nothing is drawn anew."""
    script = Hangs(0, CopyKept)
    result = play(one_copy(), script)
    assert len(lines(result, "MemberLost", "it did nothing for stage 0")) == len(script.hung) == 1
    assert lines(result, "StageBuilt", "stage=0", "action=CopyKept", "exact=True")
    assert not lines(result, "EndsDrawnAnew")


def test_a_builder_that_hangs_does_not_cost_the_only_shadow() -> None:
    """Another builder asks the same holder once more before the stage is made of its neighbours."""
    script = Hangs(1, Restore)
    result = play(reaching("restore", logged(standbys=2)), script)
    assert len(lines(result, "MemberLost", "it did nothing for stage 1")) == len(script.hung) == 1
    holders = [line.split("replica: ")[1].split()[0] for line in lines(result, "RecoveryDecided", "stage=1", "action=Restore")]
    assert len(holders) == 2
    assert len(set(holders)) == 1


class Trickles(Once):
    """Kills the ends; whatever comes to a builder of them takes long, though it shows signs of life
    all the while.
    """

    def __init__(self) -> None:
        killing = lose(0, iteration=3)
        super().__init__(killing._fits, killing._strike)
        self.builders: set[Member] = set()

    def see(self, director: Director, moment: Moment) -> None:
        """Know who builds."""
        super().see(director, moment)
        if self.struck and isinstance(moment.request, Build) and not isinstance(moment.request.action, Copy):
            (self.builders.add if moment.outcome is None else self.builders.discard)(moment.receiver.member)


@pytest.mark.parametrize("each_s", [15.0, 45.0])
def test_a_slow_holder_of_the_only_copy_of_the_ends_is_waited_for(each_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer takes longer than a builder may do nothing: it is asked again with more time, and
    nothing is drawn anew.
    """
    script, honest = Trickles(), MemoryHub.transfer_s

    def slow(self: MemoryHub, sender: Member, receiver: Member, size_bytes: int) -> float:
        return each_s if size_bytes and receiver in script.builders else honest(self, sender, receiver, size_bytes)

    monkeypatch.setattr(MemoryHub, "transfer_s", slow)
    result = play(one_copy(), script)
    assert lines(result, "StageBuilt", "stage=0", "action=CopyKept", "exact=True")
    assert not lines(result, "EndsDrawnAnew")


def test_a_builder_that_hangs_in_the_middle_does_not_cost_the_coordinator() -> None:
    """It has done something and hangs then: the coordinator fences it before its members take the
    coordinator for stalled.
    """
    script = Hangs(2, Merge, 0.3)
    result = play(replace(merging(), work_min_s=0.2, work_max_s=0.2, standbys=2), script)
    assert len(lines(result, "MemberLost", "it did nothing for stage 2")) == len(script.hung) == 1
    assert not lines(result, "TookOver")


class NeighbourHangs(Once):
    """Kills a stage; the device of the first neighbour that is asked for its weights hangs as it
    reads them.
    """

    def __init__(self, stage: int) -> None:
        killing = lose(stage)
        super().__init__(killing._fits, killing._strike)
        self.hung: list[Member] = []

    def see(self, director: Director, moment: Moment) -> None:
        """Have it hang as the question sets out."""
        super().see(director, moment)
        if self.struck and not self.hung and is_asked(GetState, weights_only=True)(moment):
            self.hung.append(moment.receiver.member)
            director.stick(self.hung[0])


def test_a_neighbour_that_hangs_is_not_waited_for() -> None:
    """It is fenced as its device hangs, and its sibling gives its weights: the stage is there in
    less time than a builder may do nothing, and the builder is not fenced for it.
    """
    script = NeighbourHangs(2)
    result = play(replace(merging(), standbys=2), script)
    (hung,) = script.hung
    assert lines(result, "MemberLost", str(hung), "its device has worked on one thing")
    decided, built = lines(result, "RecoveryDecided", "stage=2")[0], lines(result, "StageBuilt", "stage=2", "action=Merge")[-1]
    assert float(built.split()[0]) - float(decided.split()[0]) < TimingSection().join_wait_s / 2
    assert not lines(result, "MemberLost", "it did nothing for stage 2")


@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_a_builder_that_hangs_as_it_replays_is_not_asked_to_restore(after_s: float) -> None:
    """It is fenced, another one replays, bit for bit, and the coordinator keeps its office."""
    script = Hangs(2, Replay, after_s)
    result = play(logged(standbys=2), script)
    (hung,) = script.hung
    assert len(lines(result, "MemberLost", str(hung), "it did nothing for stage 2")) == 1
    assert lines(result, "StageBuilt", "stage=2", "action=Replay", "exact=True")
    assert not lines(result, "TookOver")


class Both(Script):
    """Two scripts, each at its own moment."""

    def __init__(self, *both: Once) -> None:
        self._both = both

    def see(self, director: Director, moment: Moment) -> None:
        """Both see it."""
        for script in self._both:
            script.see(director, moment)


def test_a_builder_that_hangs_does_not_keep_the_swarm_from_a_holder_that_is_back() -> None:
    """The only holder of a stage slept for long and says hello while another one is asked to make
    its state: nobody waits for that one any more.
    """
    asleep: list[Member] = []

    def strike(director: Director, moment: Moment) -> None:
        director.stick(moment.receiver.member)
        director.thaw(asleep[0])

    def is_merge(moment: Moment) -> bool:
        return is_asked(Build)(moment) and isinstance(moment.request, Build) and isinstance(moment.request.action, Merge)

    def sleep(director: Director, _: Moment) -> None:
        asleep.extend(director.members(2))
        director.freeze(asleep[0], 600.0)

    script = Both(Once(is_asked(Train, key__iteration=2, key__stage=1), sleep), Once(is_merge, strike))
    result = play(swarm(replicas=1), script)
    assert asleep
    assert not lines(result, "StageBuilt", "action=Merge")
    assert not lines(result, "MemberLost", "it did nothing for stage 2")
