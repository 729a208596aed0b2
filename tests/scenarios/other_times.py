"""Every scenario, told with other times: each delay, duration and factor of its script is
stretched, drawn from a number. `pytest tests/scenarios --other-times N` plays them so; then only
invariants count, since what else a scenario expects hangs on its own times.

A violation found so is either a weakness, and becomes a scenario of its own, or the script's: it
strikes in a way of which the checks do not know (a device so slow that it is suspected).
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable

import pytest

from swarmfree.sim.script import Director

FACTORS = (0.4, 0.6, 0.8, 0.9, 1.1, 1.25, 1.6, 2.2)
TIMES = {
    "after": ("delay_s",),
    "cut": ("duration_s",),
    "deafen": ("duration_s",),
    "fill_disk": ("duration_s",),
    "freeze": ("duration_s",),
    "mute": ("duration_s",),
    "partition": ("duration_s",),
    "shut": ("duration_s",),
    "slow": ("duration_s", "factor"),
    "slow_disk": ("duration_s", "factor"),
}


def stretch(patch: pytest.MonkeyPatch, seed: str) -> None:
    """Stretch all times that a director is told, each by a factor of its own."""
    rng = random.Random(seed)
    for name, times in TIMES.items():
        patch.setattr(Director, name, _stretched(getattr(Director, name), times, rng))


def _stretched(told: Callable[..., object], times: tuple[str, ...], rng: random.Random) -> Callable[..., object]:
    signature = inspect.signature(told)

    @functools.wraps(told)
    def stretched(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        for time in times:
            if bound.arguments.get(time) is not None:
                bound.arguments[time] *= rng.choice(FACTORS)
        return told(*bound.args, **bound.kwargs)

    return stretched
