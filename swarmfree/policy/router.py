"""Which replica is asked for which microbatch: a function of the plan, so that every caller asks
the same one first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.plan import Plan, Replica, Share
from swarmfree.protocol.records import MicrobatchSet

SPEED_LEVELS = 16


def interleave(weights: Sequence[int], count: int) -> tuple[int, ...]:
    """Deal `count` turns to `len(weights)` takers in proportion to their weights, spread evenly.

    Smooth weighted round robin: each turn everyone gains its weight, the richest takes the turn and
    pays the total. Ties go to the lower index.

    Args:
        weights: whole numbers, one at least above 0; who has 0 never takes a turn.
        count: how many turns.

    Returns:
        The taker of each turn.
    """
    total = sum(weights)
    credit = [0] * len(weights)
    turns = []
    for _ in range(count):
        credit = [held + weight for held, weight in zip(credit, weights, strict=True)]
        winner = credit.index(max(credit))
        credit[winner] -= total
        turns.append(winner)
    return tuple(turns)


def candidates(plan: Plan, stage: int, offset: int) -> tuple[Endpoint, ...]:
    """List the replicas of `stage` in the order in which a caller asks them for microbatch
    `offset`.

    The primary is the first, then its siblings follow in turn.
    """
    replicas = plan.replicas[stage]
    primary = interleave([r.speed for r in replicas], offset + 1)[offset]
    return tuple(replicas[(primary + k) % len(replicas)].endpoint for k in range(len(replicas)))


def speeds(seconds_per_microbatch: Sequence[float], count: int = 0) -> tuple[int, ...]:
    """Relative speeds 1..`SPEED_LEVELS` from measured seconds; a replica without one counts as the
    median.

    A replica so slow that its stage is through sooner without it has speed 0: it stays a member,
    steps and averages with the others, and is asked only where they fail. Not in the protocol's
    list.

    Args:
        seconds_per_microbatch: own compute per microbatch, 0 where unknown.
        count: microbatches to be dealt; 0 = everybody is asked.
    """
    known = sorted(s for s in seconds_per_microbatch if s > 0)
    if not known:
        return tuple(1 for _ in seconds_per_microbatch)
    median = known[len(known) // 2]
    seconds = [s if s > 0 else median for s in seconds_per_microbatch]
    dealt = _levels(seconds)
    while count and sum(map(bool, dealt)) > 1:
        slowest = max((k for k, level in enumerate(dealt) if level), key=lambda k: seconds[k])
        fewer = _levels([s if dealt[k] and k != slowest else math.inf for k, s in enumerate(seconds)])
        if _through_s(fewer, seconds, count) >= _through_s(dealt, seconds, count):
            break
        dealt = fewer
    return dealt


def _levels(seconds: Sequence[float]) -> tuple[int, ...]:
    """Levels by seconds, 0 for whoever takes for ever."""
    fastest = min(seconds)
    return tuple(max(1, round(SPEED_LEVELS / 2 * fastest / s)) if s < math.inf else 0 for s in seconds)


def _through_s(dealt: Sequence[int], seconds: Sequence[float], count: int) -> float:
    """When the last replica of a stage is through, seconds of compute."""
    turns = Counter(interleave(dealt, count))
    return max(turn_count * seconds[taker] for taker, turn_count in turns.items())


def deal_shares(replicas: Sequence[Replica], count: int) -> tuple[tuple[int, ...], ...]:
    """Offsets of the microbatches that each source feeds, in proportion to its speed."""
    turns = interleave([r.speed for r in replicas], count) if count else ()
    return tuple(tuple(k for k, taker in enumerate(turns) if taker == index) for index in range(len(replicas)))


def deal_again(shares: Sequence[Share], live: Collection[Member], sources: Sequence[Member], credits: int) -> tuple[Share, ...]:
    """Deal the shares of lost sources to the live ones; a live source keeps the share it has.

    Args:
        shares: as they were dealt, or dealt again.
        live: who still counts.
        sources: live members of stage 0, at least one; those without a share may get one.
        credits: for those.

    Source: protocol section 3.7.
    """
    kept = {share.source: share for share in shares if share.source in live}
    for member in sources:
        kept.setdefault(member, Share(member, (), (), credits))
    takers = sorted(kept)
    offsets = sorted(offset for share in shares if share.source not in live for offset in share.offsets)
    windows = sorted(window for share in shares if share.source not in live for window in share.windows)
    dealt = []
    for turn, taker in enumerate(takers):
        share = kept[taker]
        more = tuple(offsets[turn :: len(takers)])
        dealt.append(
            Share(
                source=taker,
                offsets=share.offsets + more,
                windows=share.windows + tuple(windows[turn :: len(takers)]),
                credits=share.credits,
                taken=share.taken + more,
            )
        )
    return tuple(dealt)


def deal_elsewhere(shares: Sequence[Share], missing: MicrobatchSet, sums: Mapping[Member, MicrobatchSet]) -> tuple[Share, ...]:
    """Deal microbatches that their sources have done, but in sums that overlap with those that
    count, or that are not told, to sources that have not done them: each has a sum of its own
    there.

    Args:
        shares: as they were dealt; unchanged where nothing of that kind is missing.
        missing: in no sum of stage 0 that counts. Where all sums are told, at least one source's
            first share counts, so that there always is a source that has not done one of them.
        sums: what each source has done, as far as the coordinator knows.

    Source: protocol section 3.7.
    """
    dealt = {share.source: share for share in shares}
    for share in shares:
        for offset in sorted(set(share.offsets) & set((missing & sums.get(share.source, MicrobatchSet())).offsets())):
            taker = next((t for t in dealt.values() if offset not in sums.get(t.source, MicrobatchSet())), None)
            if taker is not None:
                giver = dealt[share.source]
                left, known = (tuple(each for each in some if each != offset) for some in (giver.offsets, giver.taken))
                dealt[giver.source] = replace(giver, offsets=left, taken=known)
                dealt[taker.source] = replace(taker, offsets=(*taker.offsets, offset), taken=(*taker.taken, offset))
    return tuple(dealt.values())
