"""All peers die in the same moment, and come back with what lay on their disks."""

from __future__ import annotations

from dataclasses import replace

from tests.scenarios.scenario_world import Once, lines, play, swarm

from swarmfree.protocol.messages import Seal
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from swarmfree.sim.startup_faults import Opening


def lasting(setup: Setup, iterations: int) -> Setup:
    """With a bootstrap node and so many iterations; who dies comes back as who it was."""
    run = replace(setup.manifest.run, iterations=iterations)
    return replace(setup, manifest=replace(setup.manifest, run=run), opening=Opening())


def everybody_dies(iteration: int) -> Once:
    """All die as a record is about to be stored."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.peers())

    return Once(lambda m: isinstance(m.request, Seal) and m.request.record.iteration == iteration, strike)


def test_the_run_goes_on_from_the_newest_set_of_snapshots() -> None:
    script = everybody_dies(5)
    result = play(lasting(swarm(snapshot_every=2), 8), script)
    assert script.struck
    assert len(lines(result, "the run goes on with iteration 4, from snapshots")) == 1
    # Nothing is made anew: every stage comes from a disk
    assert not lines(result, "StageBuilt")
