"""Which averagings can run at the same time, where pipelines are cut in different places.

A block is averaged by all peers that hold it. Two averagings that share a peer wait for each other;
the rest go on side by side. How to pack them is the colouring of a graph.

Source: Odyssey (arXiv 2508.21613), section IV-B. Differs: blocks with the same owners are one
averaging, which never needs more rounds than one for each block, and in the paper's example half.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharedBlocks:
    """Consecutive blocks that the same peers hold.

    Args:
        blocks: their numbers.
        owners: who averages them.
    """

    blocks: range
    owners: frozenset[Hashable]


def shared_blocks(owners: Sequence[Collection[Hashable]]) -> tuple[SharedBlocks, ...]:
    """Join consecutive blocks that have the same owners.

    Args:
        owners: index = block; who holds it.
    """
    found, start = [], 0
    for group, blocks in itertools.groupby(map(frozenset, owners)):
        stop = start + sum(1 for _ in blocks)
        found.append(SharedBlocks(range(start, stop), group))
        start = stop
    return tuple(found)


def averaging_rounds(segments: Sequence[SharedBlocks]) -> tuple[tuple[SharedBlocks, ...], ...]:
    """Pack averagings into rounds in which nobody has two.

    Where every peer holds blocks in one piece, the rounds are as few as possible: as many as the
    most segments that one peer holds. Two segments then conflict if one peer spans both, and so all
    between them: an interval graph, which greedy colouring in order of position colours best.
    Elsewhere the better of that order and DSATUR is taken.
    """
    import networkx as nx  # noqa: PLC0415 - a peer starts without networkx

    graph = nx.Graph()
    graph.add_nodes_from(range(len(segments)))
    held: dict[Hashable, list[int]] = {}
    for number, segment in enumerate(segments):
        for owner in segment.owners:
            held.setdefault(owner, []).append(number)
    for numbers in held.values():
        graph.add_edges_from(itertools.combinations(numbers, 2))
    colourings = [nx.greedy_color(graph, strategy=lambda g, _: sorted(g)), nx.greedy_color(graph, strategy="DSATUR")]
    colours = min(colourings, key=lambda found: max(found.values(), default=-1))
    count = max(colours.values(), default=-1) + 1
    return tuple(tuple(s for number, s in enumerate(segments) if colours[number] == colour) for colour in range(count))
