"""Rehearsals in which the model is cut anew on the way: those of every seed, and cuts besides.

They are drawn from a stream of their own: a seed without them plays what it has always played.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from swarmfree.sim.guest_setup import draw_guest_setup
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.setup import Setup

CUTS_MAX = 4
GUESTS_SHARE = 1 / 3
"""Of rehearsals in which peers have room for guests, and few come: a stage may have no blocks, and
nobody but a guest.
"""


def draw_cut_setup(seed: int, *, iterations: int | None = None) -> Setup:
    """The rehearsal of this seed, or that with guests, with one to four cuts on the way.

    Args:
        seed: of everything.
        iterations: of the run; None = drawn as well.
    """
    rng = random.Random(f"{seed}/cuts")
    draw = draw_guest_setup if rng.random() < GUESTS_SHARE else draw_setup
    setup = draw(seed, iterations=iterations)
    manifest = setup.manifest
    body = manifest.stages.body
    blocks = manifest.model.blocks + rng.randint(1, body)
    mode = "auto" if manifest.recovery.swaps else manifest.recovery.mode
    optimizer = replace(manifest.optimizer, clip="global" if manifest.optimizer.clip == "stage" else manifest.optimizer.clip)
    last = max(1, manifest.run.iterations - 1)
    at = sorted(rng.sample(range(1, last + 1), min(last, rng.randint(1, CUTS_MAX))))
    model, recovery = replace(manifest.model, blocks=blocks), replace(manifest.recovery, mode=mode)
    changed = replace(manifest, model=model, recovery=recovery, optimizer=optimizer)
    return replace(setup, manifest=changed, cuts=tuple((iteration, draw_counts(blocks, body, rng)) for iteration in at))


def draw_counts(blocks: int, body: int, rng: random.Random) -> tuple[int, ...]:
    """Blocks of each stage; each way to cut is as likely, of those with a block in each stage, and
    as often of all.
    """
    least = rng.randint(0, 1)
    bars = blocks - 1 if least else blocks + body - 1
    ends = [0, *sorted(rng.sample(range(1, bars + 1), body - 1)), bars + 1]
    return tuple(after - before - 1 + least for before, after in itertools.pairwise(ends))
