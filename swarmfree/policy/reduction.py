"""Which partial sums count: disjoint ones that cover every microbatch, and what is missing where
they do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarmfree.protocol.records import MicrobatchSet, PartialSum


@dataclass(frozen=True, slots=True)
class Cover:
    """Disjoint partial sums in summing order, and the microbatches that none of them holds."""

    partial_sums: tuple[PartialSum, ...]
    missing: MicrobatchSet


def choose_partial_sums(partial_sums: Iterable[PartialSum], count: int) -> Cover:
    """Pick disjoint partial sums greedily, the largest first, ties by member and number.

    Args:
        partial_sums: of live members of one stage.
        count: microbatches of the iteration.

    Source: protocol section 3.6. Greedy may leave something out that a cleverer choice would cover;
    that is redone, so I1 holds anyway.
    """
    taken = MicrobatchSet()
    chosen = []
    for partial_sum in sorted(partial_sums, key=lambda a: (-len(a.microbatches), a.id)):
        if len(partial_sum.microbatches) and not len(partial_sum.microbatches & taken):
            chosen.append(partial_sum)
            taken = taken | partial_sum.microbatches
    return Cover(tuple(sorted(chosen, key=lambda a: a.id)), MicrobatchSet.full(count) - taken)
