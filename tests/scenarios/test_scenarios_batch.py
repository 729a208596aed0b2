"""The organiser sets another batch: whatever befalls the swarm meanwhile, each iteration has the
batch that the record before says, and the data goes on where it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Open, Seal
from swarmfree.protocol.order import Halting
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.script import Director, Moment, Script
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import Once, lines, play, swarm, unhurried
from tests.scenarios.test_scenarios_pause import WHEN, committed, paused, resumed
from tests.scenarios.test_scenarios_resume import lasting, rebuilt

BASE, MOST = 6, 12


def settable(setup: Setup) -> Setup:
    """A run whose batch may be twice as large; the rate follows within three iterations."""
    manifest = setup.manifest
    optimizer = replace(manifest.optimizer, warmup_iterations=3)
    return replace(setup, manifest=replace(manifest, batch=replace(manifest.batch, microbatches_max=MOST), optimizer=optimizer))


def opened(iteration: int) -> Callable[[Moment], bool]:
    """As this iteration is opened."""
    return lambda m: isinstance(m.request, Open) and m.request.plan.iteration == iteration


class InTurn(Script):
    """Each of these, once the ones before it have come to pass."""

    def __init__(self, *parts: Once) -> None:
        self.parts = parts

    def see(self, director: Director, moment: Moment) -> None:
        """The first that has not."""
        for part in self.parts:
            if not part.struck:
                part.see(director, moment)
                return

    @property
    def is_through(self) -> bool:
        """Whether all have."""
        return all(part.struck for part in self.parts)


def setting(iteration: int, *counts: int) -> Once:
    """The organiser sets these batches, one after the other, as this iteration is opened."""

    def strike(director: Director, _: Moment) -> None:
        for count in counts:
            director.set_batch(count)

    return Once(opened(iteration), strike)


def batches(result: RehearsalResult) -> list[int]:
    """The batches of the run, each that follows on another one; of iterations that were done twice
    what the last coordinator told counts, else the last time. When peers hear of an order within an
    iteration is not looked at.
    """
    per = 3  # tokens of a microbatch: one row
    told = lines(result, "IterationCommitted")
    last = told[-1].split()[1]
    told.sort(key=lambda line: line.split()[1] == last)  # a side that gave way may have told later
    counts = {int(line.split("iteration=")[1].split()[0]): int(line.split("tokens=")[1].split()[0]) // per for line in told}
    return [count for count, _ in itertools.groupby(counts[iteration] for iteration in sorted(counts))]


def kill_coordinator(director: Director, _: Moment) -> None:
    """As told."""
    if director.coordinator is not None:
        director.kill(director.coordinator)


def kill_all(director: Director, _: Moment) -> None:
    """They come back with their disks."""
    director.kill(*director.peers())


def seals(iteration: int) -> Callable[[Moment], bool]:
    """The record of this iteration is sent out."""
    return lambda m: isinstance(m.request, Seal) and m.request.record.iteration == iteration


def test_of_two_batches_in_one_second_the_later_counts() -> None:
    """Also where the second one is what was before, and where a batch is set anew before the rate
    has followed.
    """
    script = InTurn(setting(1, 12, 3), setting(3, 12), setting(5, 1, 6))
    result = play(settable(lasting(unhurried(swarm()), 9, 100)), script)
    assert script.is_through
    assert batches(result) == [BASE, 3, 12, 6]


@pytest.mark.parametrize("moment", ["as the record is sealed", "as the next one is opened"])
def test_a_batch_outlives_the_coordinator(moment: str) -> None:
    """Whoever takes over reads it from the record, decided or not; none is skipped and none is
    obeyed twice.
    """
    when = seals(2) if moment == "as the record is sealed" else opened(3)
    script = InTurn(setting(2, 12), Once(when, kill_coordinator), setting(5, 4))
    result = play(settable(lasting(unhurried(swarm(sources=2)), 9, 100)), script)
    assert script.is_through
    assert batches(result) == [BASE, 12, 4]


def test_a_batch_that_lies_on_disks_outlives_all() -> None:
    """All die, and go on from a set whose records know it: with that batch, its data and rate."""
    script = InTurn(setting(1, 12), Once(seals(6), kill_all))
    result = play(settable(lasting(unhurried(swarm()), 10, 2)), script)
    assert script.is_through
    assert len(resumed(result)) == 1
    assert resumed(result)[0] > 2
    assert batches(result) == [BASE, 12]
    assert not lines(result, "set them again")


def test_a_batch_that_no_disk_knows_goes_with_all_and_is_told_of() -> None:
    """The run goes on from before the record that obeyed: its organiser hears that the batch is
    what it was, once, and sets it again.
    """
    script = InTurn(setting(4, 12), Once(seals(5), kill_all), setting(7, 9))
    result = play(settable(lasting(unhurried(swarm()), 10, 4)), script)
    assert script.is_through
    assert resumed(result) == [4]
    assert batches(result) == [BASE, 9]
    assert len(lines(result, "set 12 microbatches was given before", "set them again")) == 1


def test_a_batch_goes_on_through_a_pause_and_none_is_set_in_it() -> None:
    """What is set while the pause stands is refused; what the record says goes on."""

    def again(director: Director, _: Moment) -> None:
        director.set_batch(1)

    script = InTurn(
        setting(1, 12),
        Once(opened(3), lambda director, _: director.give_order(Halting.PAUSE)),
        Once(WHEN["the first is to write"], again),
        setting(6, 4),
    )
    result = play(settable(lasting(unhurried(swarm()), 10, 100)), script)
    assert script.is_through
    assert len(paused(result)) == len(resumed(result)) == 1
    assert set(committed(result)) == set(range(10))
    assert batches(result) == [BASE, 12, 4]
    assert not lines(result, "sets 1 microbatches")


def test_a_lost_stage_is_replayed_over_iterations_of_several_batches() -> None:
    """Both replicas die: what is replayed had three batches, and comes back bit for bit."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.members(2))

    setup = settable(unhurried(swarm(shadow_every=3), iterations=12))
    recovery = replace(setup.manifest.recovery, best="replay", shadow_kind="full", kept_mb_max=64)
    setup = replace(setup, manifest=replace(setup.manifest, recovery=recovery))
    script = InTurn(setting(3, 12), setting(4, 2), setting(5, 9), Once(opened(7), strike))
    result = play(setup, script)
    assert script.is_through
    assert batches(result) == [BASE, 12, 2, 9]
    (built,) = [line for line in lines(result, "StageBuilt") if "action=Replay" in line]
    assert "exact=True" in built
    assert rebuilt(result)


@pytest.mark.parametrize("for_s", [20.0, 45.0])
def test_both_sides_of_a_split_set_the_batch_by_their_own_records(for_s: float) -> None:
    """The order reaches both: each obeys it in a record of its own, and once they meet the one that
    gives way goes on with the data, the batch and the rate of the other's.
    """

    def part(director: Director, _: Moment) -> None:
        here = [director.members(stage)[0] for stage in range(4)]
        director.partition(here, duration_s=for_s)
        director.set_batch(12)

    script = InTurn(setting(1, 9), Once(opened(3), part), setting(9, 4))
    setup = settable(lasting(unhurried(swarm(sources=2, replicas=2, standbys=1)), 14, 100))
    result = play(setup, script)
    assert script.is_through
    assert batches(result) == [BASE, 9, 12, 4]
