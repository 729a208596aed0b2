"""Where a model is cut: how many blocks each body stage has, and what moves from one cut to the
next. Pure.

Blocks bear the numbers that they have in the whole model, so a split says which range each stage
has. Source: decision 24.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import accumulate

from swarmfree.protocol.names import ENDS_STAGE


@dataclass(frozen=True, slots=True)
class BlockSplit:
    """How many blocks each body stage has.

    Args:
        counts: index = stage - 1; a stage with none is vacant: its members pass on what they get.
            At least one stage has blocks.
    """

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 0 or not any(self.counts):
            raise ValueError(f"{list(self.counts)} blocks for the body stages: no stage may have less than none, nor all none")

    @property
    def blocks(self) -> int:
        """Blocks of the model."""
        return sum(self.counts)

    @property
    def body(self) -> int:
        """Body stages, with those that are vacant."""
        return len(self.counts)

    @property
    def in_use(self) -> tuple[int, ...]:
        """Body stages that have blocks, in order."""
        return tuple(stage for stage, count in enumerate(self.counts, start=1) if count)

    def blocks_of(self, stage: int) -> range:
        """Return the blocks of a stage; none for the ends."""
        if stage == ENDS_STAGE:
            return range(0)
        start = sum(self.counts[: stage - 1])
        return range(start, start + self.counts[stage - 1])

    def stage_of(self, block: int) -> int:
        """Return the stage that has a block.

        Raises:
            ValueError: the model has no such block.
        """
        for stage, stop in enumerate(accumulate(self.counts), start=1):
            if 0 <= block < stop:
                return stage
        raise ValueError(f"block {block} of {self.blocks}")

    def is_vacant(self, stage: int) -> bool:
        """Whether a stage has no blocks. The ends have none either, and are not vacant."""
        return stage != ENDS_STAGE and not self.counts[stage - 1]


@functools.cache
def even_split(blocks: int, body: int) -> BlockSplit:
    """Cut a model as evenly as can be; the first ``blocks % body`` stages have one block more."""
    each, extra = divmod(blocks, body)
    return BlockSplit(tuple(each + (stage < extra) for stage in range(body)))


@dataclass(frozen=True, slots=True)
class BlockMove:
    """Blocks that go from one stage to another.

    Args:
        blocks: consecutive, by their numbers in the whole model.
        giver: stage that has them.
        taker: stage that is to have them.
    """

    blocks: range
    giver: int
    taker: int


def block_moves(old: BlockSplit, new: BlockSplit) -> tuple[BlockMove, ...]:
    """List what moves from one split to another, in order of the blocks.

    Raises:
        ValueError: they are not of one model.
    """
    if (old.blocks, old.body) != (new.blocks, new.body):
        raise ValueError(f"{list(old.counts)} and {list(new.counts)} do not cut the same model into the same stages")
    found: list[BlockMove] = []
    for block in range(new.blocks):
        giver, taker = old.stage_of(block), new.stage_of(block)
        if giver == taker:
            continue
        last = found[-1] if found else None
        if last is not None and (last.blocks.stop, last.giver, last.taker) == (block, giver, taker):
            found[-1] = BlockMove(range(last.blocks.start, block + 1), giver, taker)
        else:
            found.append(BlockMove(range(block, block + 1), giver, taker))
    return tuple(found)


def lacking(held: range, wanted: range) -> tuple[int, ...]:
    """List the blocks of one range that another one has not."""
    return tuple(block for block in wanted if block not in held)
