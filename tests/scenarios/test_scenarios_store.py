"""All peers die, and some or all of their disks go with them; the run's store has what they had."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Seal
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import Once, lines, play, swarm, unhurried
from tests.scenarios.test_scenarios_resume import lasting, rebuilt


def storing(setup: Setup, iterations: int, snapshot_every: int) -> Setup:
    """With a store; iterations take seconds, so that what is due there gets there."""
    lasts = lasting(unhurried(setup), iterations, snapshot_every)
    recovery = replace(lasts.manifest.recovery, snapshot_store="s3://memory")
    return replace(lasts, manifest=replace(lasts.manifest, recovery=recovery))


def all_die(iteration: int, stages: tuple[int, ...]) -> Once:
    """All die as a record is about to be stored, and members of these stages lose their disks;
    none given, everybody.
    """

    def strike(director: Director, _: Moment) -> None:
        for gone in [m for stage in stages for m in director.members(stage)] or director.peers():
            director.lose_disk(gone)
        director.kill(*director.peers())

    return Once(lambda m: isinstance(m.request, Seal) and m.request.record.iteration == iteration, strike)


@pytest.mark.parametrize(("stages", "replicas"), [((), 2), ((0, 2), 1)])
def test_the_run_goes_on_though_disks_are_gone(stages: tuple[int, ...], replicas: int) -> None:
    """All of them, or those of some stages: what no disk has comes from the store, no stage is made
    anew, and what is done again comes to the same loss.
    """
    result = play(storing(swarm(body=3, replicas=replicas), 12, 3), all_die(8, stages))
    assert lines(result, "the run goes on with iteration 6, from snapshots")
    assert not rebuilt(result)
    fetched = lines(result, "fetches stage", "before iteration 6")
    assert len(fetched) == len({line.split("fetches")[1] for line in fetched}), "each by one peer"
    assert fetched
    again = [line for line in lines(result, "IterationCommitted") if "iteration=6" in line]
    assert len({line.split("loss=")[1].split()[0] for line in again}) == 1
    assert not lines(result, "fetches stage", "before iteration 3")
