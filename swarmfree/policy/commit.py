"""When an iteration is decided."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarmfree.swarm.names import Member


def is_majority(electorate: Sequence[Member], answered: Collection[Member]) -> bool:
    """Whether those who answered decide for this electorate: more than half, or exactly half with the senior among them.

    Args:
        electorate: senior first; an empty one, which no correct record has, is decided by nobody.

    Source: protocol section 3.1.
    """
    votes = sum(1 for member in electorate if member in answered)
    if 2 * votes == len(electorate):
        return votes > 0 and electorate[0] in answered
    return 2 * votes > len(electorate)
