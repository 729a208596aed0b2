"""Rehearsals with faults that are set off by messages: those of every seed, and some besides.

They are drawn from a stream of their own: a seed without them plays what it has always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from swarmfree.protocol.messages import (
    Build,
    Claim,
    Commit,
    GetAverage,
    GetPlan,
    GetRecord,
    GetShadow,
    GetState,
    Goodbye,
    Hello,
    Meet,
    Open,
    Prepare,
    Reduce,
    Request,
    Seal,
    TakeRoll,
    Train,
)
from swarmfree.sim.aimed_faults import RECEIVER, SENDER, AimedFault
from swarmfree.sim.hardships import draw_setup
from swarmfree.sim.schedule import COORDINATOR, Crash, FaultKind, Freeze, LoseStage, PartitionFault, Sever, Split
from swarmfree.sim.setup import Setup

RARE: tuple[type[Request], ...] = (
    Claim,
    Claim,
    Build,
    Build,
    Goodbye,
    Goodbye,
    Meet,
    Hello,
    GetAverage,
    GetState,
    Prepare,
    GetShadow,
    GetRecord,
    GetPlan,
)
COMMON: tuple[type[Request], ...] = (Open, Seal, Commit, Reduce, Train, TakeRoll)
AIMS_MAX, COMMON_MAX = 4, 60


def draw_aimed_setup(seed: int, *, iterations: int | None = None) -> Setup:
    """The rehearsal of this seed with one to four aimed faults besides.

    Args:
        seed: of everything.
        iterations: of the run; None = drawn as well.
    """
    setup, rng = draw_setup(seed, iterations=iterations), random.Random(f"{seed}/aims")
    aims = (_draw_aim(rng, ends_spared=setup.faults.ends_spared) for _ in range(rng.randint(1, AIMS_MAX)))
    return replace(setup, aims=tuple(aims))


def _draw_aim(rng: random.Random, *, ends_spared: bool) -> AimedFault:
    is_rare = rng.random() < 0.75
    kind = rng.choice(RARE if is_rare else COMMON)
    count = rng.choice((1, 1, 2, 3, 5, 8)) if is_rare else rng.randint(1, COMMON_MAX)
    rejoin = kind is Goodbye and rng.random() < 0.6
    delay_s = rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5)))
    lasts_s = rng.choice((rng.uniform(0.5, 4), rng.uniform(2, 12), rng.uniform(5, 40)))
    refused, salt = rng.random() < 0.3, rng.getrandbits(32)
    kinds: list[FaultKind] = [
        Crash(COORDINATOR),
        *[Crash(SENDER)] * 2,
        *[Crash(RECEIVER)] * 2,
        LoseStage(SENDER),
        LoseStage(RECEIVER),
        Freeze(COORDINATOR, lasts_s),
        Freeze(SENDER, lasts_s),
        Freeze(RECEIVER, lasts_s),
        *[Sever(SENDER, RECEIVER, lasts_s, refused)] * 2,
        PartitionFault(0.4, salt, lasts_s, refused),
        PartitionFault(0.4, salt, lasts_s, refused) if ends_spared else Split(salt, lasts_s, refused),
    ]
    return AimedFault(kind, count, rng.random() < 0.5, rejoin, delay_s, rng.random(), rng.choice(kinds))
