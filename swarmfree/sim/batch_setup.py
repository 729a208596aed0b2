"""Rehearsals in which the organiser sets another batch: those of every seed, and orders besides.

They are drawn from a stream of their own: a seed without them plays what it has always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.setup import Setup
from swarmfree.sim.startup_faults import BatchChange

CHANGES_MAX = 3


def draw_batch_setup(seed: int, *, iterations: int | None = None) -> Setup:
    """The rehearsal of this seed with one to three other batches on the way.

    Args:
        seed: of everything.
        iterations: of the run; None = drawn as well.
    """
    setup, rng = draw_setup(seed, iterations=iterations), random.Random(f"{seed}/batches")
    manifest = setup.manifest
    most = manifest.batch.microbatches + rng.randint(0, manifest.batch.microbatches)
    optimizer = replace(manifest.optimizer, warmup_iterations=rng.choice((0, 0, 2, 5)))
    last = max(1, manifest.run.iterations - 2)
    changes = tuple(
        BatchChange(rng.randint(0, last), rng.uniform(0.0, 1.5), rng.randint(1, most)) for _ in range(rng.randint(1, CHANGES_MAX))
    )
    batch = replace(manifest.batch, microbatches_max=most)
    return replace(setup, manifest=replace(manifest, batch=batch, optimizer=optimizer), batches=changes)
