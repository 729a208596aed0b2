"""Cutting what a peer holds anew: blocks that stay, that were copied, and that are given away.

All of it is one piece of device work between two iterations, by bytes: nothing is computed, so each
block is bit for bit what it was. Source: decision 23.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def recut(engine: Engine, stage: int, old: BlockSplit, new: BlockSplit, copies: Mapping[int, Engine]) -> None:
    """Hold a stage as another split has it.

    Args:
        engine: that holds it as `old` has it; afterwards it follows `new`, and holds nothing where
            the stage is vacant then.
        stage: of the body.
        old, new: the splits.
        copies: stage -> an engine that holds it as `old` has it, at the same iteration: of all
            stages from which blocks come.
    """
    found: list[bytes] = []
    for block in new.blocks_of(stage):
        giver = old.stage_of(block)
        source = engine if giver == stage else copies[giver]
        parts = parts_of_block(source, old, giver, block)
        found += [source.read_state(part, weights_only=False) for part in parts]
    engine.follow(new)
    if found:
        engine.blank(stage)
    for part, data in enumerate(found):
        engine.write_state(part, data, weights_only=False)


def set_aside(engine: Engine, stage: int, old: BlockSplit, former: Engine) -> None:
    """Have another engine hold what this one does, with its average, so that it can still be given
    to who needs it.

    Args:
        engine: that holds the stage.
        stage: of the body.
        old: that it follows.
        former: holds it afterwards.
    """
    former.follow(old)
    former.blank(stage)
    for part in range(engine.part_count(stage)):
        former.write_state(part, engine.read_state(part, weights_only=False), weights_only=False)
        former.keep_average(part, engine.read_average(part))
