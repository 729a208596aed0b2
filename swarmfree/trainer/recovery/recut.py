"""What a peer holds, cut anew: blocks that stay and blocks that were copied, beside what it was.

All of it goes by bytes: nothing is computed, so each block is bit for bit what it was. Source:
decision 24.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.messages import GetState
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.engine_probe import bare


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


def begin_cut(other: Engine, split: BlockSplit, stage: int) -> None:
    """Have an engine that holds nothing hold a stage as this split cuts it, all zero."""
    other.follow(split)
    other.blank(stage)


def copy_block(engine: Engine, held: BlockSplit, other: Engine, split: BlockSplit, stage: int, block: int) -> None:
    """Copy weights and moments of a block that a stage has by both splits.

    Args:
        engine, held: that holds the stage, and the split that it follows.
        other, split: that is given the block, and the split that it follows.
        stage: of the body.
        block: its number in the whole model.
    """
    places = zip(parts_of_block(engine, held, stage, block), parts_of_block(other, split, stage, block), strict=True)
    for here, there in places:
        engine.copy_part(here, bare(other), there)


def write_parts(engine: Engine, first: int, parts: Sequence[bytes]) -> None:
    """Write weights and moments of parts that follow one another.

    Raises:
        ValueError: wrong length.
    """
    for part, data in enumerate(parts, start=first):
        engine.write_state(part, data, weights_only=False)


def digests_of_parts(engine: Engine, parts: Sequence[int]) -> list[bytes]:
    """Digests of parts of a held stage: of weights, first and second moment, one after the other;
    32 bytes each.
    """
    return [bytes.fromhex("".join(engine.digest_part(part))) for part in parts]


def read_parts(engine: Engine, parts: Sequence[int], request: GetState) -> list[bytes]:
    """Read what somebody asks for of parts of a held stage: each one's digests, its weights, or
    its weights and moments.
    """
    if request.digests_only:
        return digests_of_parts(engine, parts)
    return [engine.read_state(part, weights_only=request.weights_only) for part in parts]


def exchange(engine: Engine, held: BlockSplit, other: Engine, split: BlockSplit) -> None:
    """Exchange what two engines hold of a stage, each as its split cuts it.

    Args:
        engine, held: one.
        other, split: the other one.
    """
    engine.swap(bare(other))
    # Whoever sees into an engine learns by this how it is cut
    engine.follow(split)
    other.follow(held)
