"""What a peer holds, cut anew: blocks that stay and blocks that were copied, beside what it was.

All of it goes by bytes: nothing is computed, so each block is bit for bit what it was. Source:
decision 24.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.split import BlockSplit


def parts_of_block(engine: Engine, split: BlockSplit, stage: int, block: int) -> range:
    """Return the parts of a block within its stage; blocks have equally many.

    Args:
        engine: that follows this split.
        split: by which the stage has the block.
        stage: of the body.
        block: its number in the whole model.
    """
    blocks = split.blocks_of(stage)
    count = engine.part_count(stage) // len(blocks)
    return range(count * (block - blocks.start), count * (block - blocks.start + 1))


def cut_part_count(engine: Engine, held: BlockSplit, split: BlockSplit, stage: int) -> int:
    """Return the number of parts of a stage by a split that the engine need not follow.

    Args:
        engine: any.
        held: that it follows.
        split: by which the parts are counted.
        stage: of the body.
    """
    first = held.in_use[0]
    return engine.part_count(first) // len(held.blocks_of(first)) * len(split.blocks_of(stage))


def read_blocks(engine: Engine, split: BlockSplit, stage: int, blocks: range) -> list[bytes]:
    """Weights and moments of some blocks of a held stage, part by part."""
    parts = (part for block in blocks for part in parts_of_block(engine, split, stage, block))
    return [engine.read_state(part, weights_only=False) for part in parts]


def hold(engine: Engine, split: BlockSplit, stage: int, parts: Sequence[bytes]) -> None:
    """Have an engine follow a split and hold a stage with these weights and moments; a vacant one
    has no parts.
    """
    engine.follow(split)
    engine.blank(stage)
    for part, data in enumerate(parts):
        engine.write_state(part, data, weights_only=False)


def exchange(engine: Engine, split: BlockSplit, other: Engine, other_split: BlockSplit, stage: int) -> None:
    """Exchange what two engines hold of a stage, each as its split cuts it.

    Args:
        engine, split: one.
        other, other_split: the other one.
        stage: of the body.
    """
    here = read_blocks(engine, split, stage, split.blocks_of(stage))
    there = read_blocks(other, other_split, stage, other_split.blocks_of(stage))
    hold(engine, other_split, stage, there)
    hold(other, split, stage, here)
