"""Whole blocks of engines, read and written."""

from __future__ import annotations

from collections.abc import Sequence

from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.recovery.recut import begin_cut, parts_of_block


def read_blocks(engine: Engine, split: BlockSplit, stage: int, blocks: range) -> list[bytes]:
    """Weights and moments of some blocks of a held stage, part by part."""
    parts = (part for block in blocks for part in parts_of_block(engine, split, stage, block))
    return [engine.read_state(part, weights_only=False) for part in parts]


def hold(engine: Engine, split: BlockSplit, stage: int, parts: Sequence[bytes]) -> None:
    """Have an engine follow a split and hold a stage with these weights and moments; a vacant one
    has no parts.
    """
    begin_cut(engine, split, stage)
    for part, data in enumerate(parts):
        engine.write_state(part, data, weights_only=False)
