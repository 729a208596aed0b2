"""Weights of a run that still goes on: asked for by a signal, written by one replica of each stage,
whole once all are of one iteration.

What lies in ``weights-at/ITERATION`` with an index is a model as it was ready for that iteration. A
stage that has stepped on meanwhile writes into the folder of the next one, so whoever wants a whole
model asks again until there is one. Keeps no state but the folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

KEEP_SIGNAL = signal.SIGUSR1
"""Has a peer write the weights of its stage as they are."""
KEPT = "weights-at"
BEFORE, AFTER = "weights-before-", "weights-after-"
INDEX = "model.safetensors.index.json"
AGAIN_S, LOOK_S = 0.3, 0.03


def kept_models(report: Path) -> list[tuple[int, Path]]:
    """(iteration, folder) of each whole model in a report, by iteration."""
    found = [place.parent for place in (report / KEPT).glob(f"*/{INDEX}") if place.parent.name.isdigit()]
    return sorted((int(place.name), place) for place in found)


async def take_model(report: Path, ask: Callable[[], None], within_s: float) -> tuple[int, Path] | None:
    """Ask for the weights until a whole model of one iteration lies there.

    Args:
        report: its folder.
        ask: has one replica of each stage write.
        within_s: how long to try.

    Returns:
        The newest one, None where none came.
    """
    # What lies there may be of a state that is lost since
    shutil.rmtree(report / KEPT, ignore_errors=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                ask()
                for _ in range(round(AGAIN_S / LOOK_S)):
                    await asyncio.sleep(LOOK_S)
                    if found := kept_models(report):
                        return found[-1]
    return None


async def keep_as(report: Path, name: str, ask: Callable[[], None], within_s: float) -> int | None:
    """Take a model and lay it into a folder of this name in the report; the iteration that it is
    ready for, None where none came.
    """
    taken = await take_model(report, ask, within_s)
    if taken is None:
        return None
    iteration, place = taken
    target = report / (f"{name}{iteration}" if name.endswith("-") else name)
    with contextlib.suppress(OSError):
        shutil.rmtree(target, ignore_errors=True)
        place.rename(target)
        return iteration
    return None


def models_beside(report: Path, *prefixes: str) -> list[tuple[str, int, Path]]:
    """(prefix, iteration, folder) of what was kept before and after a loss, or of these prefixes
    alone.
    """
    found = []
    for prefix in prefixes or (BEFORE, AFTER):
        numbers = (path.name.removeprefix(prefix) for path in report.glob(f"{prefix}*"))
        found += [(prefix, int(number), report / f"{prefix}{number}") for number in sorted(numbers) if number.isdigit()]
    return found


def drop_kept(report: Path) -> None:
    """Remove all but the weights of the end."""
    shutil.rmtree(report / KEPT, ignore_errors=True)
    for _, _, place in models_beside(report):
        shutil.rmtree(place, ignore_errors=True)
