"""What a coordinator learns of recoveries."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.costs import AFTER, BYTES_PER_S, MERGE_LOST, WATCHED
from swarmfree.swarm.actions import Merge
from swarmfree.swarm.books import GENESIS_LINEAGE, Record, StageEntry, StepScalars, float64_bits
from swarmfree.swarm.events import RecoveryMeasured
from swarmfree.swarm.manifest import BatchSection, Manifest, RunSection
from swarmfree.swarm.messages import Built
from swarmfree.swarm.names import Endpoint, Member, Term
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.experience import Experience

SOMEBODY = Member("QmP", "00")
AT = Endpoint(SOMEBODY, ())
MERGE = Merge(2, AT, AT, 1, 3, 0, 0, 1.0, 1.0, "both neighbours live")


def record(iteration: int, loss: float) -> Record:
    """A record with this loss."""
    scalars = StepScalars(0, 0, 0, 0, 0, 0, 0, 0, 0)
    stages = (StageEntry("d", float64_bits(1.0), "s", 5, 0, scalars, (SOMEBODY,)),)
    return Record(iteration, GENESIS_LINEAGE, Term(1, SOMEBODY), 0, "b", stages, float64_bits(loss), 1, "", (SOMEBODY,))


class World:
    """A coordinator's clock and ears; an iteration takes two seconds."""

    def __init__(self) -> None:
        """Nothing committed."""
        self.now, self.told, self.iteration = 0.0, list[RecoveryMeasured](), 0
        manifest = Manifest(run=RunSection(name="r", seed=1, iterations=1000), batch=BatchSection(rows=1, microbatches=4))
        context = cast("Context", SimpleNamespace(manifest=manifest, now_s=lambda: self.now, tell=self._tell))
        self.experience = Experience(context)

    def _tell(self, event: Any) -> None:
        self.told.append(event)

    def commit(self, *losses: float) -> None:
        """One iteration for each."""
        for loss in losses:
            self.now += 2.0
            self.experience.committed(record(self.iteration, loss))
            self.iteration += 1

    def merge(self, seconds: float = 1.0, received_bytes: int = 0) -> None:
        """Stage 2 was merged."""
        costs = self.experience.costs([0.1], 30.0)
        self.experience.built(MERGE, record(self.iteration - 1, 2.0), costs, Built("d", seconds, received_bytes, self.iteration))


def test_pace_compute_and_transfer_are_measured() -> None:
    """Two seconds an iteration, four microbatches of 0.1 s; a pause for a recovery is no pace; a small transfer is no rate."""
    world = World()
    assert world.experience.costs([], 30.0).iteration_s == 0
    world.commit(2.0, 2.0, 2.0)
    world.merge(received_bytes=1000)
    world.now += 100
    world.commit(2.0, 2.0)
    costs = world.experience.costs([0.1, 0.3, 0.05], 30.0)
    assert (costs.iteration_s, costs.stage_s, costs.limit_s) == (2.0, pytest.approx(0.4), 30.0)
    assert costs.bytes_per_s == BYTES_PER_S
    world.merge(seconds=2.0, received_bytes=20_000_000)
    assert world.experience.costs([], 30.0).bytes_per_s == 10e6


def test_what_a_recovery_did_to_the_loss_is_told_once_and_moves_the_next_estimate() -> None:
    """Up for five iterations: far less than a merge was expected to cost."""
    world = World()
    world.commit(*[2.0] * 400)
    before = world.experience.costs([0.1], 30.0).estimate("Merge", 0.0, 0.0, MERGE_LOST)
    world.merge()
    world.commit(*[3.0] * 5, *[2.0] * AFTER, *[2.0] * 5)
    assert len(world.told) == 1
    told = world.told[0]
    assert (told.stage, told.iteration, told.action, told.iterations, told.is_back) == (2, 400, "Merge", 5, True)
    assert (told.loss_before, told.loss_after) == (2.0, 3.0)
    assert told.expected_iterations == pytest.approx(MERGE_LOST * 400 / (MERGE_LOST + 400))
    after = world.experience.costs([0.1], 30.0).estimate("Merge", 0.0, 0.0, MERGE_LOST)
    assert after.lost == pytest.approx(before.lost * (1 + 5 / told.expected_iterations) / 2)


def test_a_loss_that_does_not_come_back_is_told_in_the_end() -> None:
    """After as many iterations as are looked at."""
    world = World()
    world.commit(*[2.0] * 20)
    world.merge()
    world.commit(*[3.0] * (WATCHED - 1))
    assert not world.told
    world.commit(3.0)
    assert [(told.is_back, told.iterations) for told in world.told] == [(False, WATCHED)]


def test_before_anything_was_committed_nothing_is_learned() -> None:
    """First weights are no recovery."""
    world = World()
    costs = dataclasses.replace(world.experience.costs([], 30.0))
    world.experience.built(MERGE, None, costs, Built("d", 1.0, 0, 0))
    world.commit(*[2.0] * 70)
    assert not world.told
