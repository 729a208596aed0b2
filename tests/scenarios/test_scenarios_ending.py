"""Scenarios of a run's end: every stage is written before anybody ends, and nobody ends another
side's run, or waits for ever.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import Claim, Commit, Goodbye, Meet, Open, Request, Train
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Ports, Weights
from swarmfree.sim.faults import Fate
from swarmfree.sim.rehearsal import Factories, RehearsalResult, rehearse
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from swarmfree.trainer.peer import Hooks, run_peer
from tests.scenarios.scenario_world import SEED, STEADY, Once, is_asked, lines, play, swarm, unhurried

GONE = replace(STEADY, replace_min_s=600.0, replace_max_s=600.0)
LOST = Fate(request_delay_s=0.002, payload_delay_s=0.001, response_delay_s=0.002, request_lost=True)
DONE = "why='all 4 iterations are committed'"
HEALED_AFTER_S = 19.5
"""Half a second less than the run's `join_wait_s`."""


class Hiccup:
    """Weights of one peer, whose first try fails."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._has_failed = weights, False

    def write(self, stage: int, tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> str:
        """The second time."""
        if not self._has_failed:
            self._has_failed = True
            raise SwarmfreeError("out of memory")
        return self._weights.write(stage, tensors)


class FullDisk:
    """Weights of one peer, whose disk is full."""

    def write(self, stage: int, tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> str:
        """No."""
        del stage, tensors
        raise SwarmfreeError("no space left on device")


def with_full_disks(*peer_ids: str) -> Factories:
    """The trainer, where these peers cannot write."""

    async def run(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        is_full = ports.network.here.member.peer_id in peer_ids
        return await run_peer(replace(ports, weights=FullDisk()) if is_full else ports, manifest, local, rng, hooks)

    return Factories(run_peer=run)


def written(result: RehearsalResult) -> list[int]:
    """Stages whose weights were written, in order."""
    return sorted(int(line.split("stage=")[1].split()[0]) for line in lines(result, "WeightsWritten"))


def bids_farewell(*, write: bool) -> Callable[[Moment], bool]:
    """Somebody is told to write, or to end."""
    return is_asked(Goodbye, run_over=True, write_weights=write)


class WriterDies(Once):
    """The first of stage 2 that is told to write dies."""

    def __init__(self) -> None:
        super().__init__(self._is_told, lambda director, moment: director.kill(moment.receiver.member))
        self._members: list[Member] = []

    def _is_told(self, moment: Moment) -> bool:
        return bids_farewell(write=True)(moment) and moment.receiver.member in self._members

    def see(self, director: Director, moment: Moment) -> None:
        """Know who is in the newest plan."""
        if isinstance(moment.request, Open):
            self._members[:] = [replica.endpoint.member for replica in moment.request.plan.replicas[2]]
        super().see(director, moment)


def test_a_writer_dies_before_it_has_written() -> None:
    """The first of stage 2 dies as it is told to write: its sibling is still there, and writes."""
    script = WriterDies()
    result = play(swarm(faults=GONE), script)
    assert script.struck
    assert written(result) == [0, 1, 2, 3]


def of_stage_2(setup: Setup) -> list[str]:
    """Peer ids of the stage's replicas in the last plan of a swarm where nothing happens."""
    (line,) = lines(play(setup), "Opened iteration=3")
    return re.findall(r"\w+", line.split("members=")[1].split("], [")[2])


def test_a_disk_is_full() -> None:
    """Where one replica of a stage cannot write its sibling does; its own process ends with the
    reason, the others end well.
    """
    setup = swarm(faults=GONE)
    result = play(setup, Script(), factories=with_full_disks(of_stage_2(setup)[0]))
    assert written(result) == [0, 1, 2, 3]
    assert len(lines(result, "Ended", "code=1 ", "the weights of stage 2 are not written: no space left on device")) == 1
    assert len(lines(result, "Ended", "code=0", DONE)) == 7


class SiblingFalls(Once):
    """The second of stage 2 dies half a second after the first one was told to write."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(
            lambda moment: bids_farewell(write=True)(moment) and moment.receiver.member.peer_id == first,
            lambda director, _: director.after(0.5, lambda: director.kill(*(m for m in director.peers() if m.peer_id == second))),
        )
        self._first = first

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """What the first one answers when it is told to write takes 0.4 s."""
        del sender
        is_told = isinstance(request, Goodbye) and request.write_weights and receiver.member.peer_id == self._first
        return Fate(request_delay_s=0.002, payload_delay_s=0.001, response_delay_s=0.4) if is_told else None


def test_the_sibling_of_a_full_disk_falls_before_that_one_was_tried_again() -> None:
    """It is told to write as soon as the other one could not for the first time, and so has written
    when it falls.
    """
    setup = swarm(faults=GONE)
    first, second = of_stage_2(setup)
    script = SiblingFalls(first, second)
    result = play(setup, script, factories=with_full_disks(first))
    assert script.struck
    assert written(result) == [0, 1, 2, 3]


def test_each_first_try_to_write_fails() -> None:
    """Nobody else holds the stages: each is asked once more, all are written, and everybody ends
    well.
    """

    async def run(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        return await run_peer(replace(ports, weights=Hiccup(ports.weights)), manifest, local, rng, hooks)

    result = play(swarm(faults=GONE, replicas=1, standbys=0), Script(), factories=Factories(run_peer=run))
    assert written(result) == [0, 1, 2, 3]
    assert len(lines(result, "Ended", "code=0", DONE)) == 4


def test_no_disk_of_a_stage_has_room() -> None:
    """That its weights are not written is said with the reason, and the rest of the swarm ends well
    all the same.
    """
    setup = swarm(faults=GONE)
    result = rehearse(SEED, setup=setup, factories=with_full_disks(*of_stage_2(setup)))
    assert "without weights of stages [2]" in str(result.violation)
    assert written(result) == [0, 1, 3]
    assert len(lines(result, "Note", "stage 2 is not written: Peer0", "no space left on device")) == 1
    assert len(lines(result, "Ended", "code=1 ")) == 2
    assert len(lines(result, "Ended", "code=0", DONE)) == 6


def test_a_stage_is_lost_in_the_last_evaluation() -> None:
    """Nobody comes for it within `join_wait_s`: the other stages are written, and the run ends."""
    script = Once(is_asked(Train, key__iteration=4, key__stage=1), lambda director, _: director.kill(*director.members(2)))
    result = rehearse(SEED, setup=swarm(faults=GONE, replicas=1, standbys=0), script=script)
    assert script.struck
    assert "without weights of stages [2]" in str(result.violation)
    assert written(result) == [0, 1, 3]
    assert len(lines(result, "Note", "stage 2 is not written: nobody holds it")) == 1
    assert len(lines(result, "Ended", "code=0", DONE)) == 3
    assert 20.0 < result.statistics.virtual_s < 40.0


def test_the_only_one_that_can_write_a_stage_sleeps_until_the_run_is_over() -> None:
    """It stands still longer than the others wait, and nobody tells it to end: when it goes on it
    finds nobody, leads, and writes.
    """
    asleep: list[Member] = []

    def strike(director: Director, _: Moment) -> None:
        asleep.extend(director.members(2))
        director.freeze(*asleep, 600.0)

    script = Once(is_asked(Train, key__iteration=4, key__stage=1), strike)
    result = play(swarm(faults=GONE, replicas=1, standbys=0), script)
    assert len(lines(result, "Note", "stage 2 is not written: nobody holds it")) == 1
    assert written(result) == [0, 1, 2, 3]
    (ended,) = lines(result, str(asleep[0]), "Ended", "code=0", DONE)
    assert lines(result, str(asleep[0]), "TookOver", "iteration=4 ", "forced=True")[0] < ended


def test_a_newcomer_tries_in_vain_to_copy_until_the_wait_for_one_is_over() -> None:
    """The only replica stands still, and a newcomer comes for its stage: it is not given up when
    the copy from that one fails late.
    """

    def strike(director: Director, _: Moment) -> None:
        director.freeze(director.members(2)[0], 90.0)
        director.after(20.0, director.join)

    script = Once(is_asked(Train, key__iteration=4, key__stage=1), strike)
    result = play(swarm(faults=GONE, replicas=1, standbys=0), script)
    assert script.struck
    assert len(lines(result, "StageBuilt stage=2", "action=Merge")) == 1
    assert set(written(result)) == {0, 1, 2, 3}


class OneStepBehind(Once):
    """The first of stage 2 sleeps from iteration 3 on, and the second dies with the only average of
    it.
    """

    def __init__(self, away_s: float) -> None:
        super().__init__(is_asked(Train, key__iteration=3, key__stage=1), lambda director, _: self._sleep(director))
        self._away_s = away_s
        self.second: list[Member] = []

    def _sleep(self, director: Director) -> None:
        first, second = director.members(2)
        director.freeze(first, self._away_s)
        self.second.append(second)

    def see(self, director: Director, moment: Moment) -> None:
        """Kill the second as the last evaluation is opened."""
        super().see(director, moment)
        if self.second and is_asked(Open, plan__iteration=4)(moment):
            director.kill(*self.second)


@pytest.mark.parametrize("away_s", [28.0, 30.0, 32.0])
def test_who_comes_back_one_step_behind_as_the_wait_for_a_stage_is_over(away_s: float) -> None:
    """Somebody is still trying to copy from it when the wait is over: it is told to stay where it
    is, and the stage is written.
    """
    script = OneStepBehind(away_s)
    result = play(swarm(faults=GONE, replicas_min=1, standbys=0), script)
    assert script.second
    assert lines(result, "StageBuilt stage=2", "action=Stay")
    assert written(result) == [0, 1, 2, 3]


def test_who_was_waited_for_in_vain_comes_back_one_step_behind() -> None:
    """It is told to keep the state that it has, not to copy it from itself: nothing is made of its
    neighbours.
    """
    script = OneStepBehind(12.0)
    result = play(swarm(faults=GONE, replicas_min=1, standbys=0), script)
    assert script.second
    assert [line.split("action=")[1].split()[0] for line in lines(result, "RecoveryDecided stage=2", "iteration=4")] == ["Stay"]


class AnotherStageGone(OneStepBehind):
    """Beside that the other stages lose a replica each, and stage 1 its last one for good as the
    last evaluation is opened.
    """

    def _sleep(self, director: Director) -> None:
        super()._sleep(director)
        (one, other), (_, spare) = director.members(1), director.members(3)
        director.kill(other, spare)
        self.second.append(one)


def test_who_comes_back_one_step_behind_where_another_stage_is_given_up() -> None:
    """Nothing is opened any more that would bring it up: it is told to stay where it is all the
    same, and its stage is written.
    """
    script = AnotherStageGone(12.0)
    result = rehearse(SEED, setup=swarm(faults=GONE, replicas_min=1, standbys=0), script=script)
    assert script.struck
    assert "without weights of stages [1]" in str(result.violation)
    assert lines(result, "StageBuilt stage=2", "action=Stay")
    assert written(result) == [0, 2, 3]


def test_a_stage_is_lost_while_the_weights_are_written() -> None:
    """Its only replica dies as it is told to write: a standby rebuilds it, what that costs is
    evaluated, and all stages are written.
    """
    script = WriterDies()
    result = play(swarm(faults=GONE, replicas=1, standbys=1), script)
    assert script.struck
    assert len(lines(result, "RecoveryDecided", "stage=2", "iteration=4")) == 1
    assert len(lines(result, "Evaluated iteration=4", "after_rebuild=[2]")) == 1
    assert set(written(result)) == {0, 1, 2, 3}
    assert len(lines(result, "Ended", "code=0", DONE)) == 4


def test_a_stage_and_the_coordinator_are_lost_while_the_weights_are_written() -> None:
    """Others have written before that, and nobody has ended: the successor has the stage rebuilt
    and written, since it was written by nobody.
    """
    stuck: list[Member] = []

    def strike(director: Director, _: Moment) -> None:
        stuck.extend(director.members(2))
        director.stick(*stuck)
        director.after(0.2, lambda: director.kill(*stuck, *(m for m in director.members(0) if m == director.coordinator)))

    script = Once(bids_farewell(write=True), strike)
    result = play(swarm(faults=GONE, replicas=1, sources=2, standbys=1), script)
    assert stuck
    assert lines(result, "StageBuilt", "stage=2", "iteration=4")
    assert set(written(result)) == {0, 1, 2, 3}


class EndsAmongThem(Script):
    """The coordinator dies when a source and the only replica of stage 2 have ended well, and
    nobody else has heard of it.
    """

    is_dead = False

    def __init__(self) -> None:
        self._stages: dict[Member, int] = {}

    def see(self, director: Director, moment: Moment) -> None:
        """Kill it as stage 2 has heard."""
        if isinstance(moment.request, Open):
            for stage, replicas in enumerate(moment.request.plan.replicas):
                self._stages |= {replica.endpoint.member: stage for replica in replicas}
        if not self.is_dead and bids_farewell(write=False)(moment) and self._stages.get(moment.receiver.member) == 2:
            director.after(0.1, lambda: self._die(director, moment.sender.member))

    def _die(self, director: Director, member: Member) -> None:
        self.is_dead = True
        director.kill(member)

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Nobody of stages 1 and 3 hears that the run is over until then."""
        del sender
        is_end = isinstance(request, Goodbye) and request.run_over and not request.write_weights
        return LOST if is_end and not self.is_dead and self._stages.get(receiver.member) in {1, 3} else None


def test_a_coordinator_dies_when_some_have_ended_well() -> None:
    """Those that are left know that every stage is written: they end at once, and rebuild
    nothing.
    """
    script = EndsAmongThem()
    result = play(swarm(faults=GONE, replicas=1, sources=2, standbys=0), script)
    assert script.is_dead
    assert written(result) == [0, 1, 2, 3]
    assert len(lines(result, "Ended", "code=0", DONE)) == 4
    assert not lines(result, "RecoveryDecided", "iteration=4")
    assert not lines(result, "Note", "is not written")
    assert result.statistics.virtual_s < 15.0


def test_a_leaver_outwaits_the_last_coordinator() -> None:
    """It alone holds its stage, and the coordinator dies before it has had anything written: it
    writes, and leaves as it was asked to.
    """

    def strike(director: Director, _: Moment) -> None:
        director.leave(*director.members(2))
        director.kill(*(member for member in director.members(0) if member == director.coordinator))

    script = Once(is_asked(Train, key__iteration=4, key__stage=1), strike)
    setup = swarm(faults=GONE, replicas=1, sources=2, standbys=0)
    timing = replace(setup.manifest.timing, leave_s=1.0)
    result = play(replace(setup, manifest=replace(setup.manifest, timing=timing)), script)
    assert script.struck
    assert written(result) == [0, 1, 2, 3]
    assert len(lines(result, "Ended", "code=0", "why=left")) == 1


class WriterIsCutOff(WriterDies):
    """The first of stage 2 that is told to write is cut off; the other one dies as it is told in
    its place, and a second later the first is back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cut_off: list[Member] = []

    def see(self, director: Director, moment: Moment) -> None:
        """Cut off the first, kill the second."""
        if not self.cut_off and self._is_told(moment):
            self.cut_off.append(moment.receiver.member)
            self._members.remove(moment.receiver.member)
            director.partition(self.cut_off)
        elif not self.struck and self._is_told(moment):
            director.after(1.0, director.heal)
        super().see(director, moment)


def test_the_only_writer_that_is_left_was_fenced_before() -> None:
    """It is called for when its sibling dies, and is told to write once more when it is heard: the
    run does not end without its stage.
    """
    script = WriterIsCutOff()
    result = play(swarm(faults=GONE, standbys=0), script)
    assert script.struck
    assert lines(result, "MemberLost", str(script.cut_off[0]))
    assert not lines(result, "StageLost")
    assert written(result) == [0, 1, 2, 3]
    assert lines(result, str(script.cut_off[0]), "WeightsWritten stage=2")


@pytest.mark.parametrize("full", [0, 1])
def test_the_only_writer_whose_disk_has_room_hangs_for_a_while(full: int) -> None:
    """It is waited for where its sibling has refused before, and called for where that one refuses
    after it was fenced.
    """
    setup = swarm(faults=GONE, standbys=0)
    of_stage = of_stage_2(setup)

    def hears(moment: Moment) -> bool:
        return bids_farewell(write=True)(moment) and moment.receiver.member.peer_id == of_stage[1 - full]

    script = Once(hears, lambda director, moment: director.freeze(moment.receiver.member, 5.0))
    result = play(setup, script, factories=with_full_disks(of_stage[full]))
    assert script.struck
    assert written(result) == [0, 1, 2, 3]
    assert len(lines(result, "Ended", "code=1 ", "no space left on device")) == 1


def test_a_majority_and_a_stage_are_lost_in_the_last_evaluation() -> None:
    """Whoever takes over without a majority has the stage rebuilt by a standby that is there, since
    nobody says that its weights were written.
    """

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.members(2), director.members(1)[0], director.members(3)[0])

    script = Once(is_asked(Train, key__iteration=4, key__stage=1), strike)
    result = play(swarm(faults=GONE, standbys=1), script)
    assert script.struck
    assert len(lines(result, "TookOver", "iteration=4 ", "forced=True")) == 1
    assert set(written(result)) == {0, 1, 2, 3}
    assert len(lines(result, "Ended", "code=0", DONE)) == 4


def test_somebody_comes_late_for_a_stage_after_a_majority_was_lost_in_the_last_evaluation() -> None:
    """Whoever takes over without a majority cannot know that the others have not ended well: it
    waits for the newcomer all the same.
    """

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.members(2), director.members(1)[0], director.members(3)[0])
        director.after(14.0, director.join)

    script = Once(is_asked(Train, key__iteration=4, key__stage=1), strike)
    result = play(swarm(faults=GONE, standbys=0), script)
    assert script.struck
    assert len(lines(result, "TookOver", "iteration=4 ", "forced=True")) == 1
    assert set(written(result)) == {0, 1, 2, 3}


class HalfHeard(Once):
    """Two hear the goodbye, and then the coordinator dies."""

    def __init__(self) -> None:
        super().__init__(self._was_heard, lambda director, moment: director.kill(moment.sender.member))
        self._told: list[Member] = []

    def _was_heard(self, moment: Moment) -> bool:
        return isinstance(moment.request, Goodbye) and moment.outcome is not None and not moment.request.write_weights

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Only the first two that are told hear it."""
        del sender
        if self.struck or not isinstance(request, Goodbye) or request.write_weights:
            return None
        self._told.append(receiver.member)
        return None if len(self._told) <= 2 else LOST


def test_the_coordinator_dies_while_it_says_goodbye() -> None:
    """Whoever takes over when all iterations are committed evaluates nothing, waits for nobody who
    has ended, and has the rest end.
    """
    script = HalfHeard()
    result = play(swarm(faults=GONE), script)
    assert script.struck
    (took_over,) = lines(result, "TookOver", "iteration=4 ")
    assert not [line for line in lines(result, "Opened") if line > took_over]
    assert set(written(result)) == {0, 1, 2, 3}
    assert len(lines(result, "Ended", "code=0", DONE)) == 7


def test_one_that_missed_every_goodbye_ends_by_itself() -> None:
    """It has all iterations, hears nobody and finds nobody: it writes its stage and ends well."""
    missed: list[Member] = []

    class Deafened(Script):
        def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
            del sender
            if not isinstance(request, Goodbye) or request.write_weights:
                return None
            missed[:] = missed or [receiver.member]
            return LOST if receiver.member == missed[0] else None

    result = play(swarm(faults=GONE, standbys=0), Deafened())
    assert lines(result, str(missed[0]), "TookOver", "iteration=4 ")
    assert lines(result, str(missed[0]), "Ended", "code=0", DONE)


class ThroughFirst(Script):
    """Three members of eight, one of each stage, are cut off in iteration 1; the others are slow.
    The three are heard again as they end.
    """

    def __init__(self) -> None:
        self.others: list[Member] = []
        self.met: set[Member] = set()
        self._healed = False

    def see(self, director: Director, moment: Moment) -> None:
        """Cut, heal, and count who is asked."""
        if not self.others and is_asked(Train, key__iteration=1, key__stage=1)(moment):
            source = next(member for member in director.members(0) if member != director.coordinator)
            group = [source, director.members(1)[0], director.members(2)[0]]
            director.partition(group)
            self.others = [member for member in director.peers() if member not in group]
            for member in self.others:
                director.slow(member, 10.0, 60.0)
        is_last = isinstance(moment.request, Commit) and moment.request.record.iteration == 5
        if self.others and is_last and not self._healed and moment.sender.member not in self.others:
            self._healed = True
            director.heal()
        match moment.request, moment.outcome:
            case Meet(iteration=6), None:
                self.met.add(moment.receiver.member)


def test_a_forced_side_that_is_through_gives_way_to_a_majority_that_is_far_behind() -> None:
    """It finds the side that goes on by majority in the middle of iteration 2: asked which lineage
    they are of, they are told nothing, stay, and are joined.
    """
    script = ThroughFirst()
    setup = unhurried(swarm(body=2, replicas=3, sources=2, faults=GONE, standbys=0), iterations=6)
    result = play(setup, script)
    assert lines(result, "IterationCommitted", "iteration=5", "forced=1")
    assert len(script.others) == 5
    assert script.met >= set(script.others)
    (dropped,) = lines(result, "LineageDropped iterations=6 forced=1", "by_iterations=2")
    assert all(line > dropped for line in lines(result, "Ended", "code=0"))
    assert len(lines(result, "Ended", "code=0", "all 6 iterations are committed")) == 8


class GivesAStageUp(Script):
    """One of each stage, with the only source, are cut off from the majority, which waits for a
    source, and go on; the last of stage 2 dies when they are through, and the others are in reach
    again just before that stage is given up.
    """

    def __init__(self) -> None:
        self._group: list[Member] = []
        self.healed_s = 0.0

    def see(self, director: Director, moment: Moment) -> None:
        """Cut, kill, heal."""
        if not self._group and is_asked(Train, key__iteration=1, key__stage=1)(moment):
            self._group = [director.members(stage)[0] for stage in range(3)]
            director.partition(self._group)
        is_last = is_asked(Open, plan__iteration=6)(moment) and moment.sender.member in self._group
        if self._group and is_last and not self.healed_s:
            self.healed_s = director.now_s + HEALED_AFTER_S
            director.kill(self._group[2])
            director.after(HEALED_AFTER_S, director.heal)


def test_a_stage_is_not_given_up_while_others_gather() -> None:
    """They have a coordinator, and so say no hello to the side that is through, until it has
    called: it does before it ends without a stage, waits for them once more, and has the stage kept
    by one of theirs (seed 2704673).
    """
    script = GivesAStageUp()
    setup = unhurried(swarm(body=2, replicas=3, faults=GONE, standbys=0), iterations=6)
    result = play(setup, script)
    assert script.healed_s
    assert lines(result, "TookOver", "forced=False"), "the others are led"
    assert lines(result, "RecoveryDecided stage=2", "iteration=6", "action=Stay")
    assert set(written(result)) == {0, 1, 2}


class LeftOut(HalfHeard):
    """A newcomer takes a place in iteration 1. The coordinator does not reach it from the last
    record on, and nobody hears its claims; then as before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newcomer: Member | None = None
        self._others: list[Member] = []
        self._is_cut = False

    def see(self, director: Director, moment: Moment) -> None:
        """Let it come, and be left out."""
        if not self._others and is_asked(Train, key__iteration=1, key__stage=2)(moment):
            director.kill(director.members(2)[0])
            self._others.extend(director.peers())
            director.join()
            (self.newcomer,) = (member for member in director.peers() if member not in self._others)
        last = isinstance(moment.request, Commit) and moment.request.record.iteration == 3
        if self.newcomer is not None and last and not self._is_cut:
            self._is_cut = True
            director.cut(self.newcomer, moment.sender.member)
        super().see(director, moment)

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Nobody hears the newcomer's claims."""
        is_its_own = sender.member == self.newcomer and receiver.member != self.newcomer
        return LOST if is_its_own and isinstance(request, Claim) else super().fate(sender, receiver, request)


def test_who_has_lost_its_place_is_called_as_the_rest_end() -> None:
    """Four of eight that decide are left in the last plan and need a fifth, which came when nobody
    looked into the directory any more: they look again, so nothing is forced and it ends with them.
    """
    script = LeftOut()
    result = play(unhurried(swarm(faults=GONE, sources=2, standbys=0)), script)
    assert script.struck
    (took_over,) = lines(result, "TookOver", "iteration=4 ")
    assert "forced=False" in took_over
    assert "followers=5" in took_over
    assert lines(result, str(script.newcomer), "Ended", "code=0", DONE)
