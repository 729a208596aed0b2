"""When an iteration is decided."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarmfree.protocol.names import Member


def is_majority(electorate: Sequence[Member], answered: Collection[Member]) -> bool:
    """Whether these answers decide: more than half of the electorate, or half of it with the
    senior.

    Args:
        electorate: senior first; an empty one, which no correct record has, is decided by nobody.

    Source: protocol section 3.1.
    """
    votes = sum(1 for member in electorate if member in answered)
    if 2 * votes == len(electorate):
        return votes > 0 and electorate[0] in answered
    return 2 * votes > len(electorate)


def may_decide(electorate: Sequence[Member], answered: Collection[Member], ended: Collection[Member]) -> bool:
    """Whether these answers decide: a majority, or every member of the electorate that has not
    ended.

    Where each life of the electorate has either answered or is proven to have ended, nobody is left
    who could decide otherwise, or who could know of a decision that those who answered do not know:
    no split is possible, and nothing is forced.

    Args:
        electorate: senior first.
        answered: who promised, or stored the record.
        ended: lives that are proven to have ended; silence proves nothing.

    Source: protocol section 3.1. Differs: the second half, which lets a minority go on at once
    where the others are proven dead.
    """
    living = [member for member in electorate if member not in ended]
    accounted = 0 < len(living) < len(electorate) and all(member in answered for member in living)
    return accounted or is_majority(electorate, answered)
