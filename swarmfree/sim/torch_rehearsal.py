"""A rehearsal on torch: the same swarm, faults and checks with real tensors, to see that the
trainer and the torch engine fit together.

Sums are not compared with a reference here (I1 is the integer engine's); everything else is checked
as ever: equal bytes among siblings, order of records, progress, nothing left over, same story
twice.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.manifest import Manifest, ModelSection
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.rehearsal import Factories, RehearsalResult, rehearse

ITERATIONS = 6
WIDTH = 16


def make_engine(manifest: Manifest) -> Engine:
    """A torch engine on one thread."""
    return TorchEngine(manifest, threads=1)


def rehearse_torch(seed: int, *, iterations: int | None = None, full_transcript: bool = False) -> RehearsalResult:
    """Play one rehearsal with the torch engine, on a model of a few thousand parameters; a few
    iterations unless said otherwise.
    """
    setup = draw_setup(seed, iterations=iterations or ITERATIONS)
    model = ModelSection(
        width=WIDTH,
        blocks=setup.manifest.model.blocks,
        heads=2,
        kv_heads=1,
        mlp_width=WIDTH,
        tokens_per_row=setup.manifest.model.tokens_per_row,
        vocabulary=256,
    )
    setup = replace(setup, manifest=replace(setup.manifest, model=model))
    factories = Factories(make_engine=make_engine, exact=False)
    return rehearse(seed, setup=setup, iterations=iterations, factories=factories, full_transcript=full_transcript)
