"""Rehearsals in which the organiser sets other batches, together with all other faults."""

from __future__ import annotations

import pytest

from swarmfree.sim.batch_setup import draw_batch_setup
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.reference import IntegerReference
from swarmfree.sim.rehearsal import rehearse
from swarmfree.sim.setup import Drawn

SEEDS = (2, 6)


def test_batches_change_and_all_invariants_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sequence of an epoch is shown once (I4), and every microbatch of an iteration counts
    once (I1), also where a batch is set while peers die.
    """
    show, sizes = IntegerReference.show, set[int]()

    def seen(self: IntegerReference, iteration: int, places: range) -> str:
        sizes.add(len(places))
        return show(self, iteration, places)

    monkeypatch.setattr(IntegerReference, "show", seen)
    for seed in SEEDS:
        sizes.clear()
        result = rehearse(seed, drawn=Drawn.BATCHES)
        assert not result.violation, result.command
        assert len(sizes) > 1, f"seed {seed} had one batch all along"
        assert result.command == f"swarmfree rehearse --first-seed {seed} --seeds 1 --batches"


def test_a_seed_without_other_batches_is_what_it_was() -> None:
    """They are drawn from a stream of their own."""
    for seed in range(20):
        usual, batches = draw_setup(seed), draw_batch_setup(seed)
        assert usual.faults == batches.faults
        assert usual.manifest.run == batches.manifest.run
        assert not usual.batches
        assert batches.batches
        assert max(change.microbatches for change in batches.batches) <= batches.manifest.batch.most
