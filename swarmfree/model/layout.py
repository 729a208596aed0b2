"""Where every parameter of a stage lies in the stage's flat vector, and how that vector is cut into
parts.

A pure function of the manifest, the split and the stage number, without torch, so that a peer knows
the parts of a stage that it does not hold. It allocates nothing and moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import ENDS_STAGE
from swarmfree.protocol.split import BlockSplit
from swarmfree.protocol.weight_shapes import block_shapes, ends_shapes

LINE_FLOATS = 16
"""Every parameter and every part starts at a multiple of so many floats: 64 bytes, one cache line.

Matrix products may round differently on differently aligned operands, so a parameter has the same
alignment in every stage and in the whole model. The floats between two parameters are zero for
ever.
"""
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's place.

    Args:
        name: as in Hugging Face's `LlamaForCausalLM`; blocks carry their number in the whole model.
        shape: of the parameter.
        start: first float of the flat vector that is its.
    """

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """One past its last float."""
        return self.start + math.prod(self.shape)

    @property
    def decays(self) -> bool:
        """Whether weight decay applies: to matrices, not to gains."""
        return len(self.shape) > 1


@dataclass(frozen=True, slots=True)
class Part:
    """One range of the flat vector: what is copied, merged and averaged at once.

    Args:
        block: number of its block within the stage, from 0; stage 0 counts as one block.
        start, stop: floats; parts follow each other without gap.
    """

    block: int
    start: int
    stop: int

    @property
    def floats(self) -> int:
        """Number of floats in this part."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """One stage's flat vector.

    Args:
        stage: which.
        slots: parameters in the order of Hugging Face's state dict.
        parts: in order; all blocks of all stages are cut alike: part p is range ``p % n`` of block
            ``p // n``, n parts a block.
        size: floats of the vector.
        blocks: of the whole model that it has.
    """

    stage: int
    slots: tuple[Slot, ...]
    parts: tuple[Part, ...]
    size: int
    blocks: range = range(0)


def _up_to_line(floats: int) -> int:
    return -(-floats // LINE_FLOATS) * LINE_FLOATS


def _place(shapes: Iterable[tuple[str, tuple[int, ...]]], start: int) -> tuple[list[Slot], int]:
    slots: list[Slot] = []
    for name, shape in shapes:
        slots.append(Slot(name, shape, start))
        start += _up_to_line(math.prod(shape))
    return slots, start


def _cut(block: int, start: int, stop: int, floats_max: int) -> list[Part]:
    """As few ranges as fit under `floats_max`, as even as lines allow, so that owners of parts have
    equal work.
    """
    each = _up_to_line(-(-(stop - start) // -(-(stop - start) // floats_max)))
    return [Part(block, at, min(at + each, stop)) for at in range(start, stop, each)]


def layout_of(manifest: Manifest, stage: int, split: BlockSplit | None = None) -> Layout:
    """Lay out one stage.

    Args:
        manifest: the run's.
        stage: 0 for the ends, 1..L for the body.
        split: how the model is cut; None = as the run begins.

    Returns:
        Slots and parts; no part holds more than ``ring.part_bytes`` of weights or straddles two
        blocks.
    """
    assert 0 <= stage < manifest.stage_count, f"stage {stage} of {manifest.stage_count}"
    floats_max = manifest.ring.part_bytes // FLOAT_BYTES
    if stage == ENDS_STAGE:
        slots, size = _place(ends_shapes(manifest.model).items(), 0)
        return Layout(stage, tuple(slots), tuple(_cut(0, 0, size, floats_max)), size)
    all_slots: list[Slot] = []
    parts: list[Part] = []
    size = 0
    blocks = (split or manifest.split).blocks_of(stage)
    for index, block in enumerate(blocks):
        slots, stop = _place(block_shapes(manifest.model, block).items(), size)
        all_slots += slots
        parts += _cut(index, size, stop, floats_max)
        size = stop
    return Layout(stage, tuple(all_slots), tuple(parts), size, blocks)
