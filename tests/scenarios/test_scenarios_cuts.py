"""Scenarios of a model that is cut anew between two iterations, and of deaths at each moment of it.

Losses have to be those of a swarm that is not cut: the integer model is the same wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Commit, Open, Prepare, Prepared, Promise, Request, Seal, Sealed
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.sim.faults import Fate
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from tests.scenarios.scenario_world import STEADY, Once, lines, play, reaching, swarm

CUTS = ((2, (3, 1, 2)), (4, (2, 2, 2)), (5, (1, 4, 1)))
LATE = ((5, (3, 1, 2)),)
ITERATIONS = 7
LOST = Fate(request_delay_s=0.002, payload_delay_s=0.001, response_delay_s=0.002, request_lost=True)


def cut_swarm(*, cuts: tuple[tuple[int, tuple[int, ...]], ...] = CUTS, replicas: int = 2, shadow_every: int = 0) -> Setup:
    """Six blocks over three stages."""
    setup = swarm(replicas=replicas, shadow_every=shadow_every, faults=STEADY)
    run, model = replace(setup.manifest.run, iterations=ITERATIONS), replace(setup.manifest.model, blocks=6)
    return replace(setup, manifest=replace(setup.manifest, run=run, model=model), cuts=cuts)


class Recording(Once):
    """Also keeps each record that is committed."""

    def __init__(
        self, fits: Callable[[Moment], bool] = lambda _: False, strike: Callable[[Director, Moment], None] = lambda *_: None
    ) -> None:
        super().__init__(fits, strike)
        self.records: dict[int, Record] = {}

    def see(self, director: Director, moment: Moment) -> None:
        """Keep what is told, then as ever."""
        if isinstance(moment.request, Commit):
            self.records.setdefault(moment.request.record.iteration, moment.request.record)
        super().see(director, moment)

    def losses(self) -> list[float]:
        """Of all iterations."""
        return [self.records[iteration].loss for iteration in sorted(self.records)]

    def cuts(self) -> list[tuple[int, ...] | None]:
        """How each record says that the model is cut; None = as the run began."""
        splits = (self.records[iteration].split for iteration in sorted(self.records))
        return [split.counts if split is not None else None for split in splits]


def uncut_losses() -> list[float]:
    """Of the same swarm, where nothing moves and nobody dies."""
    script = Recording()
    play(cut_swarm(cuts=()), script)
    return script.losses()


def test_blocks_move_and_nothing_else_changes() -> None:
    """Three times, there and back: each record says how the model is cut, and losses are those of
    a swarm that is not.
    """
    script = Recording()
    result = play(cut_swarm(), script)
    assert script.cuts() == [None, None, (3, 1, 2), (3, 1, 2), (2, 2, 2), (1, 4, 1), (1, 4, 1)]
    assert [record.split.since for record in script.records.values() if record.split is not None] == [2, 2, 4, 5, 5]
    assert script.losses() == uncut_losses()
    assert len(lines(result, "ModelCut")) == len(CUTS)


def prepares(moment: Moment) -> bool:
    """Somebody is told to prepare the first cut."""
    return isinstance(moment.request, Prepare) and moment.outcome is None


def has_prepared(moment: Moment) -> bool:
    """Somebody has prepared it."""
    return (
        isinstance(moment.request, Prepare) and isinstance(moment.outcome, Reply) and isinstance(moment.outcome.message, Prepared)
    )


def has_promised(moment: Moment) -> bool:
    """Somebody has promised the plan that is cut so."""
    is_cut = isinstance(moment.request, Open) and bool(moment.request.plan.split)
    return is_cut and isinstance(moment.outcome, Reply) and isinstance(moment.outcome.message, Promise)


def has_stored(moment: Moment) -> bool:
    """Somebody has stored the record of it."""
    is_cut = isinstance(moment.request, Seal) and moment.request.record.split is not None
    return is_cut and isinstance(moment.outcome, Reply) and isinstance(moment.outcome.message, Sealed)


def kill_stage(stage: int) -> Callable[[Director, Moment], None]:
    """All replicas of a stage die at once."""

    def strike(director: Director, _: Moment) -> None:
        director.kill(*director.members(stage))

    return strike


def kill_one(director: Director, moment: Moment) -> None:
    """Whoever answers dies."""
    director.kill(moment.receiver.member)


@pytest.mark.parametrize("moment", [prepares, has_prepared, has_promised, has_stored], ids=lambda f: f.__name__)
def test_one_dies(moment: Callable[[Moment], bool]) -> None:
    """At any moment of the change: no iteration is lost, and losses are as if nobody had died and
    nothing had moved.
    """
    script = Recording(moment, kill_one)
    play(cut_swarm(cuts=CUTS[:1]), script)
    assert script.struck
    assert script.cuts()[-1] == CUTS[0][1]
    assert script.losses() == uncut_losses()


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("moment", [prepares, has_prepared, has_promised], ids=lambda f: f.__name__)
def test_a_stage_is_lost(moment: Callable[[Moment], bool], stage: int) -> None:
    """Before a record of the new cut is sent out the stage comes back by replay, as ever, and the
    model is cut later.
    """
    setup = reaching("replay", cut_swarm(cuts=LATE, shadow_every=2))
    recovery = replace(setup.manifest.recovery, shadow_kind="full")
    script = Recording(moment, kill_stage(stage))
    result = play(replace(setup, manifest=replace(setup.manifest, recovery=recovery)), script)
    assert script.struck
    assert lines(result, "StageBuilt", f"stage={stage}", "action=Replay")
    assert script.losses() == uncut_losses()


class NobodyGives(Recording):
    """No part of a state comes to whoever prepares."""

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Of the order to prepare."""
        del sender, receiver
        return LOST if isinstance(request, Prepare) else None


def test_what_cannot_be_prepared_is_left() -> None:
    """The model stays cut as it is, and training goes on."""
    script = NobodyGives()
    result = play(cut_swarm(), script)
    assert script.cuts() == [None] * ITERATIONS
    assert script.losses() == uncut_losses()
    assert lines(result, "the model stays cut as [2, 2, 2]")
