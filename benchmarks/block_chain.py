"""Whether blocks are byte for byte what they were wherever they go on: each step of an engine says
what its blocks were before and after it, and all those of a block have to make one chain.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from swarmfree.model.block_digests import block_digests
from swarmfree.model.layout import layout_of
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.split import BlockSplit

ENDS = -1
"""Stands for what stage 0 has, embedding and head."""


def held_blocks(engine: Engine, manifest: Manifest, split: BlockSplit, stage: int) -> dict[int, str]:
    """Block -> hex digest of its weights and moments, of what the engine holds."""
    layout = layout_of(manifest, stage, split)
    parts = [tuple(bytes.fromhex(each) for each in engine.digest_part(part)) for part in range(len(layout.parts))]
    return (
        dict(zip(layout.blocks or (ENDS,), (each.hex() for each in block_digests(layout, parts)), strict=True)) if parts else {}
    )


@dataclass(frozen=True, slots=True)
class BlockStep:
    """What an optimizer step made of one block.

    Args:
        block: its number in the model, or `ENDS`.
        before, after: digests.
        engine: which engine did it, of which peer.
    """

    block: int
    before: str
    after: str
    engine: str


def write_steps(folder: Path, engine: str, before: Mapping[int, str], after: Mapping[int, str]) -> None:
    """Append one step of an engine to its own file; a process may be killed at any time."""
    lines = [json.dumps(asdict(BlockStep(block, before[block], after[block], engine))) + "\n" for block in before]
    with (folder / f"{engine}.jsonl").open("a", encoding="ascii") as file:
        file.write("".join(lines))


def read_steps(folder: Path) -> Iterator[BlockStep]:
    """All steps that were written whole."""
    for path in sorted(folder.glob("*.jsonl")):
        yield from (
            BlockStep(**json.loads(line)) for line in path.read_text("ascii").splitlines(keepends=True) if line[-1] == "\n"
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """All steps of one block.

    Args:
        steps: that follow one another from its first state on.
        handed_over: how often it went on in an engine that did not do the step before.
        fault: why it is no chain; empty where it is.
    """

    steps: int
    handed_over: int
    fault: str


def chain_of(steps: Iterable[BlockStep]) -> Chain:
    """What the steps of one block make.

    Two engines may do the same step: replicas, who replays, and who prepares another cut.
    """
    engines: dict[tuple[str, str], set[str]] = {}
    for step in steps:
        engines.setdefault((step.before, step.after), set()).add(step.engine)
    first = {before for before, _ in engines} - {after for _, after in engines}
    if len(first) != 1:
        return Chain(0, 0, f"{len(first)} states come from no step, where one should")
    if len(engines) != len({before for before, _ in engines}):
        return Chain(0, 0, "a state became two")
    if len(engines) != len({after for _, after in engines}):
        return Chain(0, 0, "a state comes from two")
    after_of = dict(engines.keys())
    state, holders = first.pop(), list[Collection[str]]()
    while state in after_of and len(holders) < len(after_of):
        holders.append(engines[state, after_of[state]])
        state = after_of[state]
    if len(holders) != len(engines):
        return Chain(len(holders), 0, f"{len(engines) - len(holders)} steps follow no other one")
    return Chain(len(holders), sum(bool(set(later) - set(one)) for one, later in itertools.pairwise(holders)), "")


def chains(steps: Iterable[BlockStep]) -> dict[int, Chain]:
    """Block -> its chain, also that of the ends."""
    of_block: dict[int, list[BlockStep]] = {}
    for step in steps:
        of_block.setdefault(step.block, []).append(step)
    return {block: chain_of(own) for block, own in sorted(of_block.items())}
