"""Which of two lineages of one run goes on when they meet. Pure.

Source: protocol section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmfree.swarm.books import GENESIS_LINEAGE, Record


@dataclass(frozen=True, slots=True)
class Tip:
    """The end of a lineage.

    Args:
        forced: how many of its records were sealed without a majority.
        iterations: how many are committed.
        lineage: of the last one.
    """

    forced: int
    iterations: int
    lineage: str

    @staticmethod
    def of(record: Record | None) -> Tip:
        """The lineage that ends with this record; None before the first."""
        if record is None:
            return Tip(0, 0, GENESIS_LINEAGE)
        return Tip(record.forced, record.iteration + 1, record.lineage())


def wins(one: Tip, other: Tip) -> bool:
    """Whether `one` goes on and `other` gives way: fewer forced records, then more iterations, then the smaller hash.

    What both have in common counts for both, so whole lineages compare as their parts since the fork do. Whoever has no record at all gives way to
    anybody who has: there is nothing that it could lose.
    """
    return _order(one) < _order(other)


def _order(tip: Tip) -> tuple[bool, int, int, str]:
    return tip.iterations == 0, tip.forced, -tip.iterations, tip.lineage
