"""Who takes which place of a new plan, so that the least has to be copied.

Source: Odyssey (arXiv 2508.21613), section IV-B: a bipartite matching, by Kuhn and Munkres.
Differs: weights in bytes, and a variant for links that copy at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet


@dataclass(frozen=True, slots=True)
class PlaceMatch:
    """A peer takes a place.

    Args:
        place: number in the new plan.
        peer: number in the list of peers.
        cost: what it lacks there.
    """

    place: int
    peer: int
    cost: float


def copy_costs(
    wanted: Sequence[Collection[int]], held: Sequence[Collection[int]], weight: Mapping[int, float] | None = None
) -> list[list[float]]:
    """What each peer lacks for each place: row = place, column = peer.

    Args:
        wanted: index = place; the blocks it needs.
        held: index = peer; the blocks that it has.
        weight: bytes of each block; None counts blocks, as the paper does.
    """
    owned = [set(blocks) for blocks in held]
    return [[math.fsum(1.0 if weight is None else weight[b] for b in set(need) - have) for have in owned] for need in wanted]


def least_copies(costs: Sequence[Sequence[float]], *, at_once: bool = False) -> tuple[PlaceMatch, ...]:
    """Give each place a peer of its own.

    Args:
        costs: row = place, column = peer; at least as many peers as places.
        at_once: the copies go over links of their own at the same time, so that the largest one
            counts first, and their sum only where that is equal. Else the sum counts alone.

    Returns:
        By place.

    Raises:
        ValueError: there are fewer peers than places.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - a peer starts without scipy

    if not costs:
        return ()
    if len(costs[0]) < len(costs):
        raise ValueError(f"{len(costs)} places need as many peers, and there are {len(costs[0])}")
    if at_once:
        limit = _least_maximum(costs)
        # Above the limit a copy costs more than all copies within it together.
        forbidden = 1.0 + sum(max((c for c in row if c <= limit), default=0.0) for row in costs)
        places, peers = linear_sum_assignment([[c if c <= limit else forbidden for c in row] for row in costs])
    else:
        places, peers = linear_sum_assignment(costs)
    return tuple(PlaceMatch(place, peer, costs[place][peer]) for place, peer in zip(places.tolist(), peers.tolist(), strict=True))


def _least_maximum(costs: Sequence[Sequence[float]]) -> float:
    """The smallest cost within which each place still finds a peer of its own."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - a peer starts without scipy
    from scipy.sparse.csgraph import maximum_bipartite_matching  # noqa: PLC0415 - as that

    levels = sorted({c for row in costs for c in row})
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        within = csr_array([[c <= levels[middle] for c in row] for row in costs])
        if (maximum_bipartite_matching(within, perm_type="column") >= 0).all():
            high = middle
        else:
            low = middle + 1
    return levels[low]


def keep_places(old: ExecutionPlan, new: ExecutionPlan, fleet: Fleet, stage_bytes: Sequence[float]) -> ExecutionPlan:
    """Exchange equal peers in a new plan, so that the least has to be copied.

    Peers are equal whose profiles differ by name alone. Where each serves one stage, whoever serves
    a stage of the new plan already keeps it, and all others lack theirs whole: no matching copies
    less. Else `least_copies` decides.

    Args:
        old: who holds what now; may name peers that are not in the fleet any more.
        new: to be taken.
        fleet: the peers of the new plan.
        stage_bytes: index = stage; what a copy of it takes.
    """
    held, wanted = old.stages_of, new.stages_of
    classes: dict[object, list[str]] = {}
    for peer in fleet.peers:
        classes.setdefault(replace(peer, name=""), []).append(peer.name)
    weight = dict(enumerate(stage_bytes))
    place_of: dict[str, tuple[int, ...]] = {}
    for names in classes.values():
        places = [wanted[name] for name in names if name in wanted]
        if any(len(held.get(name, ())) > 1 for name in names) or any(len(place) > 1 for place in places):
            costs = copy_costs(places, [held.get(name, ()) for name in names], weight)
            place_of |= {names[found.peer]: places[found.place] for found in least_copies(costs)}
        else:
            place_of |= _incumbents_first(names, places, held)
    replicas: list[list[str]] = [[] for _ in new.blocks]
    for name, stages in place_of.items():
        for stage in stages:
            replicas[stage].append(name)
    return ExecutionPlan(new.blocks, tuple(tuple(sorted(names)) for names in replicas))


def _incumbents_first(
    names: Sequence[str], places: Sequence[tuple[int, ...]], held: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    open_places: dict[tuple[int, ...], int] = {}
    for place in places:
        open_places[place] = open_places.get(place, 0) + 1
    kept, others = {}, []
    for name in names:
        place = held.get(name, ())
        if open_places.get(place):
            kept[name] = place
            open_places[place] -= 1
        else:
            others.append(name)
    left = [place for place, count in sorted(open_places.items()) for _ in range(count)]
    # Standbys before those that serve elsewhere: a plan may leave some without a place.
    others.sort(key=lambda name: (name in held, name))
    return kept | dict(zip(others, left, strict=False))
