"""Scenarios of peers that a coordinator moves to another stage, in virtual time."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable
from dataclasses import replace

from swarmfree.policy.planner.estimator import iteration_time
from swarmfree.policy.planner.fleet import ExecutionPlan
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, measured_fleet
from swarmfree.protocol.messages import Build
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import STEADY, lines, play, swarm

HEAVY, SLOWED = 3, 3
"""A block takes so many times as long as the ends' work; a slowed device again so many times."""


def six(work_s: float, iterations: int) -> Setup:
    """One source and two stages of three replicas, with room for five each; nobody comes for the
    dead.
    """
    setup = swarm(body=2, replicas=3, standbys=0, faults=replace(STEADY, replaced_share=0.0), ends_copies=0)
    manifest = setup.manifest
    manifest = replace(
        manifest,
        run=replace(manifest.run, iterations=iterations),
        stages=replace(manifest.stages, replicas_min=3, replicas_max=5),
        batch=replace(manifest.batch, microbatches=12),
        ring=replace(manifest.ring, credits=12),
    )
    return replace(setup, manifest=manifest, work_min_s=work_s, work_max_s=work_s, progress_bound_s=300.0)


class Story(Script):
    """Body peers are `HEAVY` from the first plan on; then things happen at given seconds.

    Args:
        events: seconds after the first plan, and what happens then.
    """

    def __init__(self, *events: tuple[float, Callable[[Director], None]]) -> None:
        self._events = events
        self.begun_s: float | None = None

    def see(self, director: Director, moment: Moment) -> None:
        """Begin with the first plan that has everybody."""
        if self.begun_s is None and len(director.members(1)) == len(director.members(2)) == 3:
            self.begun_s = director.now_s
            for member in (*director.members(1), *director.members(2)):
                director.slow(member, HEAVY, 1e6)
            for after_s, happens in self._events:
                director.after(after_s, lambda happens=happens: happens(director))  # type: ignore[misc]


def slow_stage_2(director: Director) -> None:
    """Whatever the peers of stage 2 do from now on takes longer."""
    for member in director.members(2):
        director.slow(member, HEAVY * SLOWED, 1e6)


def seconds_at(line: str) -> float:
    """When a line of a transcript was told."""
    return float(line.split(maxsplit=1)[0])


def paces(result: RehearsalResult) -> list[tuple[float, float]]:
    """When each iteration was committed, and how long it took."""
    return [
        (seconds_at(line), float(line.split(" seconds=")[1].split()[0]))
        for line in lines(result, "IterationCommitted iteration=")
    ]


Plan = tuple[tuple[int, int], tuple[int, int]]
"""For each of two stages how many usual peers serve it, and how many slowed ones."""
PLANS: list[Plan] = [
    ((fast, slow), (3 - fast, 3 - slow))
    for fast, slow in itertools.product(range(4), repeat=2)
    if 1 <= fast + slow <= 5 and (fast, slow) <= (3 - fast, 3 - slow)
]
"""All that there are for three and three, without those that are others mirrored."""


class Static(Script):
    """Ten peers take their places, and all but those of a plan die; from then on their devices are
    as slow as the plan has them.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._is_begun = False

    def see(self, director: Director, moment: Moment) -> None:
        """Begin with the first plan that has everybody."""
        if self._is_begun or not len(director.members(1)) == len(director.members(2)) == 5:
            return
        self._is_begun = True
        for (fast, slow), stage in zip(self._plan, (1, 2), strict=True):
            members = director.members(stage)
            director.kill(*members[fast + slow :])
            for member in members[:fast]:
                director.slow(member, HEAVY, 1e6)
            for member in members[fast : fast + slow]:
                director.slow(member, HEAVY * SLOWED, 1e6)


def static_s(work_s: float, plan: Plan) -> float:
    """Seconds of an iteration of a plan that nobody changes: the median of six, as it is played."""
    setup = six(work_s, 10)
    stages = replace(setup.manifest.stages, replicas_min=5)
    setup = replace(setup, bodies=10, move_after_s=0.0, manifest=replace(setup.manifest, stages=stages))
    return statistics.median(seconds for _, seconds in paces(play(setup, Static(plan)))[4:])


def expected_s(setup: Setup, work_s: float, plan: Plan) -> float:
    """What the estimator says that devices compute for."""
    peers = [MeasuredPeer("source", 0, 3 * work_s)]
    for stage, counts in enumerate(plan, 1):
        for count, slowed in zip(counts, (1, SLOWED), strict=True):
            peers += [MeasuredPeer(f"{stage}{slowed}{n}", stage, 2 * work_s * HEAVY * slowed) for n in range(count)]
    fleet = measured_fleet(peers, setup.manifest)
    assert fleet is not None
    replicas = [tuple(sorted(peer.name for peer in peers if peer.stage == stage)) for stage in range(3)]
    return iteration_time(fleet, ExecutionPlan((0, 1, 1), tuple(replicas)), setup.manifest).seconds


def test_a_peer_moves_to_the_stage_that_was_slowed() -> None:
    """All peers of a stage become three times slower: within a minute one of the other stage serves
    it, no iteration waits for that, and the swarm is at least nine tenths as fast as with the best
    of all plans from the beginning. What was predicted is what comes.
    """
    work_s, slowed_s = 0.02, 8.0
    setup = six(work_s, 32)
    story = Story((slowed_s, slow_stage_2))
    result = play(setup, story)
    (decided,), (measured,) = lines(result, "MoveDecided"), lines(result, "MoveMeasured")
    assert story.begun_s is not None
    since_s = story.begun_s + slowed_s
    assert " giver=1 taker=2 " in decided
    assert 0 < seconds_at(decided) - since_s < 60
    slow_s = [s for at_s, s in paces(result) if since_s + 15 < at_s < seconds_at(decided)]
    during_s = [s for at_s, s in paces(result) if at_s > seconds_at(decided)][:2]
    after_s = statistics.median([s for at_s, s in paces(result) if at_s > seconds_at(measured)])
    assert max(during_s) < 1.25 * max(slow_s)
    assert not lines(result, "StageLost")
    best = min(PLANS, key=lambda plan: expected_s(setup, work_s, plan))
    assert static_s(work_s, best) / after_s > 0.9
    told = dict(word.split("=") for word in measured.split() if "_s=" in word)
    assert abs(float(told["iteration_s"]) / float(told["predicted_iteration_s"]) - 1) < 0.25


def test_small_changes_move_nobody_and_a_real_one_moves_one_peer() -> None:
    """Ten minutes in which devices become up to a tenth faster or slower every fifteen seconds: no
    peer moves. The stage that is slowed in the middle gets one, and no second.
    """
    rng = random.Random(5)

    def waver(director: Director) -> None:
        # Whoever is slowed for good stays so
        usual = [m for m in director.members(1) if m not in slowed] + [m for m in director.members(2) if m not in slowed]
        director.slow(rng.choice(usual), HEAVY * rng.uniform(0.9, 1.1), 1e6)

    slowed: list[Member] = []

    def slow(director: Director) -> None:
        slowed.extend(director.members(2))
        slow_stage_2(director)

    changes = [(15.0 * turn, waver) for turn in range(1, 40)]
    story = Story(*changes, (300.0, slow))
    result = play(six(0.1, 62), story)
    moves = [seconds_at(line) for line in lines(result, "MoveDecided")]
    assert story.begun_s is not None
    assert paces(result)[-1][0] > story.begun_s + 600
    assert len(moves) == 1
    assert moves[0] > story.begun_s + 300


def test_a_rich_stage_gives_a_peer_to_one_that_hangs_on_its_last() -> None:
    """Two of a stage's three peers die, and nobody comes: one of the other stage's three moves,
    though no stage is lost, and none is afterwards when the last one dies as well.
    """

    def two_die(director: Director) -> None:
        director.kill(*director.members(1)[:2])

    story = Story((5.0, two_die))
    result = play(six(0.02, 28), story)
    (decided,) = lines(result, "MoveDecided")
    assert " giver=2 taker=1 " in decided
    assert "hangs on one peer" in decided
    assert not lines(result, "StageLost")
    last = lines(result, "Opened", "iteration=27 ")[-1]
    assert last.count("QmPeer") == 5


class DuringTheCopy(Story):
    """As a story, and something happens as the peer that moves is told to copy its new stage."""

    def __init__(self, happens: Callable[[Director, Endpoint], None]) -> None:
        super().__init__((5.0, slow_stage_2))
        self._happens = happens
        self._has_happened = False

    def see(self, director: Director, moment: Moment) -> None:
        """Strike once."""
        super().see(director, moment)
        is_copy = moment.outcome is None and isinstance(moment.request, Build) and moment.request.iteration > 0
        if is_copy and not self._has_happened:
            self._has_happened = True
            self._happens(director, moment.receiver)


def test_a_peer_that_dies_as_it_moves_is_one_death_and_no_more() -> None:
    """Both stages have others, and the coordinator says that the move failed."""
    result = play(six(0.02, 26), DuringTheCopy(lambda director, mover: director.kill(mover.member)))
    assert len(lines(result, "MemberLost")) == 1
    assert lines(result, "MoveFailed", "it is gone")
    assert not lines(result, "StageLost")


def test_a_move_survives_its_coordinator() -> None:
    """The coordinator dies as the copy begins, and with it the only source: the stage of the ends
    comes back, and whoever leads next finds a place for the peer that moved.
    """

    def coordinator_dies(director: Director, _: Endpoint) -> None:
        assert director.coordinator is not None
        director.kill(director.coordinator)

    setup = six(0.02, 26)
    setup = replace(setup, feeders=2, manifest=replace(setup.manifest, stages=replace(setup.manifest.stages, sources_max=2)))
    result = play(setup, DuringTheCopy(coordinator_dies))
    assert lines(result, "TookOver", "forced=False")
    assert not lines(result, "StageLost")
    assert lines(result, "Opened", "iteration=25 ")[-1].count("QmPeer") == 7


def test_those_left_behind_may_die_as_a_peer_moves() -> None:
    """The two peers that the mover leaves die as it begins to copy: their stage is lost like any
    other, and comes back.
    """

    def others_die(director: Director, mover: Endpoint) -> None:
        director.kill(*(member for member in director.members(1) if member != mover.member))

    result = play(six(0.02, 26), DuringTheCopy(others_die))
    assert lines(result, "StageLost", "stage=1")
    assert lines(result, "StageBuilt", "stage=1")
