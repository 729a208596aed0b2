"""Whose fault it is that members of a stage hold different averages, or that a sum is not finite.
Pure.

Source: protocol sections 3.6 (on a mismatch the part's owner differs from at least one) and 8.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from swarmfree.protocol.names import Member

OWNER, DISSENTER = 2, 1


def two_faced(owners: Sequence[Member], reported: Mapping[Member, Sequence[str]], seniority: Sequence[Member]) -> Member | None:
    """Name the member that most likely sent or reported different bytes to different members.

    For each part on which reports differ, both the part's owner and the minority are suspects. An
    owner that sends different bytes is suspect in all of its own parts; a member that reports wrong
    digests is suspect in every part.

    Args:
        owners: index = part.
        reported: digest of each part, by member.
        seniority: senior first; of two that are equally suspect the junior is named.

    Returns:
        The suspect, None if all reports agree.
    """
    suspicion: Counter[Member] = Counter()
    for part, owner in enumerate(owners):
        found = Counter(digests[part] if part < len(digests) else "" for digests in reported.values())
        if len(found) < 2:
            continue
        suspicion[owner] += OWNER
        common, count = found.most_common(1)[0]
        if 2 * count > len(reported):
            suspicion.update({m: DISSENTER for m, digests in reported.items() if tuple(digests[part : part + 1]) != (common,)})
    there = [member for member in seniority if suspicion[member]]
    return max(there, key=lambda member: (suspicion[member], there.index(member))) if there else None


def spoilt(squared_norms: Sequence[float]) -> tuple[int, ...]:
    """Indices of contributions that are not finite, if at least one contribution is finite.

    If all are infinite or NaN, the model diverges and no peer is at fault: the result is empty.
    """
    wrong = tuple(index for index, norm in enumerate(squared_norms) if not math.isfinite(norm))
    return wrong if len(wrong) < len(squared_norms) else ()
