"""Rehearsals with one liar: a swarm with three replicas of each stage and audits, with the usual
faults or without.
"""

from __future__ import annotations

import random
from dataclasses import replace

from swarmfree.sim.hardships import HARDSHIPS
from swarmfree.sim.liars import draw_liar
from swarmfree.sim.setup import Setup, draw_usual

REPLICAS = 3
ITERATIONS_MIN, ITERATIONS_MAX = 24, 30
SHARES = (0.1, 0.2, 0.5)
QUIET_SHARE = 0.5
"""Of rehearsals in which nothing goes wrong but the lie."""


def draw_liar_setup(seed: int, *, iterations: int | None = None) -> Setup:
    """The rehearsal of this seed with a liar.

    Args:
        seed: of everything.
        iterations: of the run; None = drawn as well.
    """
    rng = random.Random(f"{seed}/liar")
    setup = draw_usual(seed, iterations=iterations or rng.randint(ITERATIONS_MIN, ITERATIONS_MAX))
    is_quiet = rng.random() < QUIET_SHARE
    # The others' draw came later, and is apart: it changes no other one
    sources = (rng if is_quiet else random.Random(f"{seed}/liar sources")).choice((1, REPLICAS))
    manifest = replace(
        setup.manifest,
        run=replace(setup.manifest.run, audit_share=rng.choice(SHARES)),
        stages=replace(setup.manifest.stages, replicas_min=REPLICAS, replicas_max=REPLICAS, sources_max=sources),
    )
    setup = replace(
        setup,
        manifest=manifest,
        feeders=sources,
        bodies=REPLICAS * manifest.stages.body,
        standbys=max(1, setup.standbys),
        liar=draw_liar(rng, manifest.stage_count, of_ends=sources == REPLICAS),
    )
    return HARDSHIPS["quiet"].apply(setup, rng) if is_quiet else setup
