"""Rehearsals of the trainer: many seeds hold every invariant, the same seed tells the same story, a
failing one can be replayed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Ports
from swarmfree.sim import seed_pool
from swarmfree.sim.faults import CALM
from swarmfree.sim.hardships import draw_setup, hardships_of
from swarmfree.sim.rehearsal import Factories, rehearse
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.seed_pool import rehearse_many
from swarmfree.sim.seed_worker import SeedReport
from swarmfree.sim.setup import draw_usual
from swarmfree.trainer.peer import Hooks, run_peer
from tests.sim import planted


@pytest.mark.timeout(900)
def test_many_seeds_hold_every_invariant() -> None:
    """All kinds of faults at once: I1 to I4 and I6 to I8 hold in 120 swarms."""
    told: list[int] = []
    result = rehearse_many(0, 120, processes=2, repeat_every=20, progress=lambda report, done, count: told.append(done))
    assert [f"{report.violation}; replay: {report.command}" for report in result.failures] == []
    assert [report.seed for report in result.reports] == list(range(120))
    assert result.repeated == 6
    assert {"transfer", "links"} <= {name for seed in range(0, 120, 20) for name in hardships_of(seed)}, "of those repeated"
    assert told == list(range(1, 121))
    faults = result.faults()
    for kind in ("kill", "stage kill", "freeze", "join", "request lost", "response lost", "request twice"):
        assert faults[kind] > 10, f"{kind} hardly happened: {faults}"


class Unfinished(Script):
    """Raises once so many requests have set out, or when it is asked what becomes of so many."""

    def __init__(self, method: str, seen: int = 0) -> None:
        self._method, self._seen = method, seen
        self.raised = 0

    def see(self, director: Director, moment: Moment) -> None:
        """A moment."""
        del moment
        self._raise_in("see")
        if self._method == "after":
            director.after(0.1, lambda: self._raise_in("after"))

    def fate(self, *_: Any) -> None:
        """A call."""
        self._raise_in("fate")

    def _raise_in(self, method: str) -> None:
        self._seen -= self._method == method
        if self._seen < 0:
            self.raised += 1
            raise KeyError("a mistake of its author")


@pytest.mark.parametrize("method", ["see", "fate", "after"])
def test_what_a_script_raises_comes_out_as_it_is(method: str) -> None:
    """In no exception group, and in no peer's task, which might take it for a fault of its own. The
    rehearsal is over at once, and the script is asked no more.
    """
    script, ended_s = Unfinished(method, seen=93), list[float]()

    async def watched(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks) -> int:
        try:
            return await run_peer(ports, manifest, local, rng, hooks)
        finally:
            ended_s.append(asyncio.get_running_loop().time())

    with pytest.raises(KeyError, match="a mistake of its author"):
        rehearse(3, iterations=5, script=script, factories=Factories(run_peer=watched))
    assert script.raised == 1
    assert max(ended_s) < 10.0, "else it lasts until the run has ended"


async def test_where_a_loop_runs_a_rehearsal_says_what_to_do() -> None:
    """As in a notebook; what it says works."""
    with pytest.raises(SwarmfreeError, match=r"await asyncio.to_thread\(rehearse, seed\)"):
        rehearse(3, iterations=5)
    assert (await asyncio.to_thread(rehearse, 3, iterations=5)).violation is None


@pytest.mark.parametrize("seed", [1029, 1262, 2256, 3243, 4375])
def test_those_who_return_under_an_open_without_a_majority_are_asked(seed: int) -> None:
    """Members that came back counted as there, but the Open under way did not name them, and its
    coordinator waited for ever.
    """
    assert rehearse(seed, setup=draw_usual(seed)).violation is None


def test_a_spare_replica_moves_to_a_stage_that_nobody_comes_for() -> None:
    """The newcomer took the place of one that was falsely lost, and the stage whose replica had
    died waited for ever.
    """
    assert rehearse(614, setup=draw_usual(614)).violation is None


@pytest.mark.parametrize("seed", [54, 1254])
def test_a_replica_that_was_fenced_beside_another_is_called_for_when_that_is_lost(seed: int) -> None:
    """It was about to say hello, or out of reach for a moment, and its stage was restored from a
    shadow.
    """
    assert rehearse(seed).violation is None


def test_weights_as_everybody_draws_them_bring_their_holder_back() -> None:
    """It was fenced before its first step, came as a stranger, and a neighbour was copied in place
    of what it held.
    """
    assert rehearse(31).violation is None


def test_a_builder_keeps_what_it_built_after_its_copy_had_failed() -> None:
    """Its donor died, it made the stage from a neighbour, and the end of the failed copy took the
    stage from it.
    """
    assert rehearse(1226).violation is None


def test_a_member_that_missed_the_average_keeps_what_the_record_begins_with() -> None:
    """Nobody else had its average, and it was fenced as a stranger instead of going on one step
    behind; neighbours were merged.
    """
    assert rehearse(1449).violation is None


@pytest.mark.parametrize("seed", [3056, 3151])
def test_a_side_may_join_one_that_has_not_heard_of_the_newest_record(seed: int) -> None:
    """A forced side met first who had only the beginning of the longest lineage: nothing that was
    decided is undone by that.
    """
    assert rehearse(seed).violation is None


def test_who_waits_for_an_average_keeps_what_it_holds_at_once() -> None:
    """Told to keep its state, it waited for a step whose average nobody had, held nothing when that
    failed, and the stage was drawn anew.
    """
    assert rehearse(2200667).violation is None


def test_nobody_founds_a_run_that_has_begun_while_the_directory_shows_nothing() -> None:
    """The founder had died, was started again, saw nobody announced, and committed a second first
    iteration.
    """
    assert rehearse(1323).violation is None


def test_the_same_seed_tells_the_same_story() -> None:
    """Played twice in one process, every line is the same, and so is the digest over every call;
    another seed differs.
    """
    first, second, other = rehearse(5), rehearse(5), rehearse(23)
    assert first.violation is None
    assert (first.transcript, first.digest) == (second.transcript, second.digest)
    assert first.digest != other.digest


def test_a_full_transcript_has_every_call() -> None:
    """Asked for in full, the transcript shows each call and answer, and the story is the same."""
    short, full = rehearse(5), rehearse(5, full_transcript=True)
    assert short.digest == full.digest
    assert len(full.transcript) > len(short.transcript) + sum(full.statistics.calls.values())
    assert set(short.transcript) <= set(full.transcript)


def test_a_calm_rehearsal_has_only_what_must_be() -> None:
    """Without faults nobody is lost, nothing is repaired, and every iteration commits at the first
    attempt.
    """
    setup = draw_setup(2, iterations=4)
    result = rehearse(2, setup=replace(setup, faults=CALM, start_spread_s=0.0))
    assert result.violation is None
    assert result.statistics.faults == {}
    events = result.statistics.events
    assert events["IterationCommitted"] == 4
    assert events["Repaired"] == events["RoundRetried"] == 0
    assert not [line for line in result.transcript if "attempt=1" in line]


def test_a_failing_seed_says_how_to_replay_it() -> None:
    """The result names the command, and the transcript ends with the violation."""
    result = rehearse(3, factories=Factories(make_engine=planted.AddsOneTwice))
    assert result.violation is not None
    assert result.command == "swarmfree rehearse --first-seed 3 --seeds 1"
    assert [line for line in result.transcript if f"checks      {result.violation}" in line]


def test_another_story_in_another_process_is_a_violation() -> None:
    """Two digests of one seed that differ are I8, unless the seed failed already."""
    report = SeedReport(4, "", "", "aa", (), 1, 1.0, 1.0, {}, {})
    assert not seed_pool._compared(report, replace(report, cpu_s=2.0)).violation
    assert seed_pool._compared(report, replace(report, digest="bb")).violation.startswith("I8: seed 4 tells another story")
    assert seed_pool._compared(replace(report, violation="I1"), replace(report, digest="bb")).violation == "I1"


@pytest.mark.timeout(300)
def test_torch_rehearses_as_well() -> None:
    """One seed with the torch engine, stages lost and rebuilt, holds what can be checked without a
    reference.
    """
    from swarmfree.sim.torch_rehearsal import rehearse_torch

    result = rehearse_torch(1)
    assert result.violation is None
    assert result.statistics.iterations == 6
    assert result.statistics.events["StageLost"] > 0
