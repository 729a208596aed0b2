"""Which of two lineages of one run goes on when they meet. Pure.

Source: protocol section 3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarmfree.protocol.records import GENESIS_LINEAGE, Record


@dataclass(frozen=True, slots=True)
class Tip:
    """The end of a lineage.

    Args:
        forced: iterations of its records that were sealed without a majority.
        iterations: how many are committed.
        lineage: of the last one.
    """

    forced: tuple[int, ...]
    iterations: int
    lineage: str

    @staticmethod
    def of(record: Record | None) -> Tip:
        """The lineage that ends with this record; None before the first."""
        if record is None:
            return Tip((), 0, GENESIS_LINEAGE)
        return Tip(record.forced, record.iteration + 1, record.lineage())


def forced_later(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether, since two lineages parted, `one` was first forced in a later iteration than `other`, or never.

    What both have in common is the same in both, so the first difference is what came first. A count would not do: who was forced right where they
    parted, and never again, would win against what majorities decided there and went on with, forced twice later.
    """
    return (*one, math.inf) > (*other, math.inf)


def wins(one: Tip, other: Tip) -> bool:
    """Whether `one` goes on and `other` gives way: forced later since they parted, then more iterations, then the smaller hash.

    Whoever has no record at all gives way to anybody who has: there is nothing that it could lose.
    """
    return _order(one) < _order(other)


def _order(tip: Tip) -> tuple[bool, tuple[float, ...], int, str]:
    return tip.iterations == 0, tuple(-iteration for iteration in (*tip.forced, math.inf)), -tip.iterations, tip.lineage
