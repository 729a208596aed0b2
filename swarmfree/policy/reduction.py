"""Which addends count: disjoint ones that cover every microbatch, and what is missing where they do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarmfree.protocol.records import Addend, MicrobatchSet


@dataclass(frozen=True, slots=True)
class Cover:
    """Disjoint addends in the order in which they are summed, and the microbatches that none of them holds."""

    addends: tuple[Addend, ...]
    missing: MicrobatchSet


def choose_addends(addends: Iterable[Addend], count: int) -> Cover:
    """Pick disjoint addends greedily, the largest first, ties by member and number.

    Args:
        addends: of live members of one stage.
        count: microbatches of the iteration.

    Source: protocol section 3.6. Greedy may leave something out that a cleverer choice would cover; that is redone, so I1 holds anyway.
    """
    taken = MicrobatchSet()
    chosen = []
    for addend in sorted(addends, key=lambda a: (-len(a.microbatches), a.id)):
        if len(addend.microbatches) and not len(addend.microbatches & taken):
            chosen.append(addend)
            taken = taken | addend.microbatches
    return Cover(tuple(sorted(chosen, key=lambda a: a.id)), MicrobatchSet.full(count) - taken)
