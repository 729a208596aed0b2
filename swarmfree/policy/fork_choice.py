"""Which of two lineages of one run goes on when they meet. Pure.

Source: protocol section 3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarmfree.protocol.records import GENESIS_LINEAGE, Record


@dataclass(frozen=True, slots=True)
class Tip:
    """Newest record of a lineage, as far as fork choice needs it.

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
        """Return the tip of the lineage that ends with `record`, or of the empty lineage if it is
        None.
        """
        if record is None:
            return Tip((), 0, GENESIS_LINEAGE)
        return Tip(record.forced, record.iteration + 1, record.lineage())


def forced_later(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether, since two lineages parted, `one` was first forced in a later iteration than `other`.

    Forced iterations before the fork are the same in both, so the first difference decides; never
    forced counts as latest. Counting forced iterations would be wrong: a lineage forced at once and
    never again would win against one that majorities decided and that was forced twice later.
    """
    return (*one, math.inf) > (*other, math.inf)


def wins(one: Tip, other: Tip) -> bool:
    """Whether lineage `one` wins against `other`: forced later, then more iterations, then smaller
    hash.

    A lineage without a record loses against any other, since nothing is lost with it.
    """
    return _order(one) < _order(other)


def _order(tip: Tip) -> tuple[bool, tuple[float, ...], int, str]:
    return tip.iterations == 0, tuple(-iteration for iteration in (*tip.forced, math.inf)), -tip.iterations, tip.lineage
