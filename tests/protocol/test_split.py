"""Where a model is cut, and what moves from one cut to another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.manifest import Manifest, ModelSection, StagesSection
from swarmfree.protocol.split import BlockMove, BlockSplit, block_moves, even_split, lacking

COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any).map(tuple)


def test_a_run_begins_with_a_split_as_even_as_can_be() -> None:
    """The first stages have one block more; it is what the manifest says of each stage."""
    assert even_split(7, 3) == BlockSplit((3, 2, 2))
    manifest = Manifest(model=ModelSection(blocks=7), stages=StagesSection(body=3))
    assert [manifest.blocks_of(stage) for stage in range(4)] == [range(0), range(3), range(3, 5), range(5, 7)]
    assert manifest.split == even_split(7, 3)


def test_a_stage_without_blocks_is_vacant() -> None:
    """The ends, which never have any, are not."""
    split = BlockSplit((3, 0, 3))
    assert split.in_use == (1, 3)
    assert [split.is_vacant(stage) for stage in range(4)] == [False, False, True, False]
    assert split.blocks_of(2) == range(3, 3)


@given(COUNTS)
def test_each_block_is_in_one_stage(counts: tuple[int, ...]) -> None:
    """In that one whose range has it."""
    split = BlockSplit(counts)
    for block in range(split.blocks):
        assert [stage for stage in range(split.body + 1) if block in split.blocks_of(stage)] == [split.stage_of(block)]
    with pytest.raises(ValueError, match=f"block {split.blocks} of"):
        split.stage_of(split.blocks)


@pytest.mark.parametrize("counts", [(), (0, 0), (3, -1)])
def test_what_is_no_split(counts: tuple[int, ...]) -> None:
    """No stages, no blocks, or less than none."""
    with pytest.raises(ValueError, match="no stage may have less than none"):
        BlockSplit(counts)


def test_six_blocks_over_three_stages_go_over_two_and_back() -> None:
    """Each of the two that stay takes the block beside its own, and gives it back."""
    three, two = even_split(6, 3), BlockSplit((3, 0, 3))
    assert block_moves(three, two) == (BlockMove(range(2, 3), 2, 1), BlockMove(range(3, 4), 2, 3))
    assert block_moves(two, three) == (BlockMove(range(2, 3), 1, 2), BlockMove(range(3, 4), 3, 2))


@given(COUNTS.flatmap(lambda counts: st.tuples(st.just(counts), st.permutations(counts).map(tuple))))
def test_moves_lead_from_one_split_to_the_other(both: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Who gives what moves and gets what comes to it has exactly its new range, and nothing moves
    twice.
    """
    old, new = (BlockSplit(counts) for counts in both)
    held = {stage: set(old.blocks_of(stage)) for stage in range(1, old.body + 1)}
    for move in block_moves(old, new):
        assert held[move.giver] >= set(move.blocks)
        held[move.giver] -= set(move.blocks)
        held[move.taker] |= set(move.blocks)
    assert held == {stage: set(new.blocks_of(stage)) for stage in range(1, new.body + 1)}
    for stage in range(1, new.body + 1):
        came = {block for move in block_moves(old, new) if move.taker == stage for block in move.blocks}
        assert came == set(lacking(old.blocks_of(stage), new.blocks_of(stage)))


def test_splits_of_two_models_have_no_moves() -> None:
    """Nor those of as many blocks over more stages."""
    for other in (BlockSplit((3, 4)), BlockSplit((2, 2, 2))):
        with pytest.raises(ValueError, match="do not cut the same model"):
            block_moves(BlockSplit((3, 3)), other)
