"""Rehearsals in which nobody stands by, the dead are replaced late or never, and peers have room
for guests: those of every seed otherwise.

They are drawn from a stream of their own: a seed without them plays what it has always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.setup import Setup
from swarmfree.sim.startup_faults import Fall

LATE_S = (4.0, 15.0, 40.0)
"""Until a dead peer is replaced, at most."""
PROGRESS_BOUND_S = 120.0
"""A holder is waited for, then a majority, then a guest, and perhaps another one."""


def draw_guest_setup(seed: int, *, iterations: int | None = None) -> Setup:
    """The rehearsal of this seed with room for guests, and few that come.

    Args:
        seed: of everything.
        iterations: of the run; None = drawn as well.
    """
    setup, rng = draw_setup(seed, iterations=iterations), random.Random(f"{seed}/guests")
    replicas = rng.choice((1, 1, 1, 2))
    stages = replace(setup.manifest.stages, replicas_min=1, replicas_max=replicas)
    faults = replace(
        setup.faults,
        replaced_share=min(setup.faults.replaced_share, rng.choice((0.3, 0.6, 1.0))),
        replace_max_s=rng.choice(LATE_S),
        stage_loss_rate=max(setup.faults.stage_loss_rate, rng.uniform(0.1, 0.4)),
    )
    opening = setup.opening
    if opening is not None and opening.fall is Fall.GONE:  # others may be gone for good: nobody adopts before the run begins
        opening = replace(opening, fall=Fall.KILLED)
    return replace(
        setup,
        opening=opening,
        manifest=replace(setup.manifest, stages=stages),
        faults=faults,
        bodies=setup.manifest.stages.body * replicas,
        standbys=0,
        feeding_standbys=0,
        room_share=rng.choice((1.0, 1.0, 0.7)),
        progress_bound_s=max(setup.progress_bound_s, PROGRESS_BOUND_S),
    )
