"""Blocks that move between stages are bit for bit what they were, and so is what they compute."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from model_world import GROUPED, EngineRing, RandomTokens, manifest_of, scalars_of

from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RunSection, StagesSection
from swarmfree.protocol.split import BlockSplit, lacking
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.trainer.engine_probe import EngineProbe, bare
from swarmfree.trainer.recovery.recut import begin_cut, copy_block, exchange, write_parts
from tests.engine_blocks import hold, read_blocks

TORCH = manifest_of(replace(GROUPED, blocks=6))
INTEGER = Manifest(
    run=RunSection(seed=5),
    model=ModelSection(width=8, blocks=6, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=3),
    batch=BatchSection(rows=2, microbatches=4),
)
WAY = [(3, 0, 3), (2, 2, 2), (1, 4, 1), (0, 0, 6), (2, 2, 2)]
"""Over two stages, over three again, and further; a stage without blocks passes on what it gets."""


class CutRing(EngineRing):
    """A ring whose model is cut anew between two iterations."""

    def __init__(self, manifest: Manifest, *, integers: bool) -> None:
        """Draw first weights everywhere."""
        super().__init__(manifest)
        self.manifest, self.integers, self.split = manifest, integers, manifest.split
        self.all = [self.new_engine() for _ in range(manifest.stage_count)]
        for stage, engine in enumerate(self.all):
            engine.draw(stage, 0)
        self.engines = list(self.all)

    def new_engine(self) -> Engine:
        """One that holds nothing."""
        return IntegerEngine(self.manifest) if self.integers else TorchEngine(self.manifest, 1)

    def cut(self, new: BlockSplit) -> None:
        """Have all stages hold their new ranges."""
        blocks = self.blocks()
        for stage in range(1, self.split.body + 1):
            parts = [part for block in new.blocks_of(stage) for part in blocks[block]]
            hold(self.all[stage], new, stage, parts)
        self.split = new

    def step_all(self, number: int) -> None:
        """An optimizer step of every stage, also of those without blocks."""
        for stage, engine in enumerate(self.all):
            for part in range(engine.part_count(stage)):
                engine.keep_average(part, engine.reduce([engine.contribution((0,), part)])[0])
            assert engine.average_digest()
            engine.step(scalars_of(number))
            engine.clear()

    def blocks(self) -> list[list[bytes]]:
        """Weights and moments of each block, part by part."""
        places = ((block, self.split.stage_of(block)) for block in range(self.split.blocks))
        return [read_blocks(self.all[stage], self.split, stage, range(block, block + 1)) for block, stage in places]


@pytest.mark.parametrize("integers", [True, False], ids=["integers", "torch"])
def test_a_run_that_is_cut_anew_is_the_one_that_is_not(integers: bool) -> None:  # noqa: FBT001 - which engine
    """Weights, moments and losses, to the bit, over three stages, two, three again, one."""
    manifest = INTEGER if integers else TORCH
    tokens = IntegerTokens(manifest, 40) if integers else RandomTokens(manifest)
    moving, still = CutRing(manifest, integers=integers), CutRing(manifest, integers=integers)
    losses: dict[CutRing, list[float]] = {moving: [], still: []}
    for number, counts in enumerate(WAY):
        for ring in (moving, still):
            data = tokens.microbatch(number)
            losses[ring].append(ring.train(number, data))
            ring.step_all(number + 1)
        before = moving.blocks()
        moving.cut(BlockSplit(counts))
        assert moving.blocks() == before == still.blocks()
    assert losses[moving] == losses[still]
    assert len(set(losses[moving])) == len(WAY)
    digests = [ring.all[stage].state_digest() for ring in (moving, still) for stage in range(4)]
    assert digests[:4] == digests[4:]


@pytest.mark.parametrize("integers", [True, False], ids=["integers", "torch"])
@pytest.mark.parametrize("counts", [(3, 1, 2), (1, 4, 1), (4, 0, 2), (1, 0, 5), (0, 6, 0)])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("probes", [(0, 0), (1, 1), (1, 2), (0, 1), (2, 0)])
def test_two_cuts_of_a_stage_are_exchanged(
    integers: bool,  # noqa: FBT001 - which engine
    counts: tuple[int, ...],
    stage: int,
    probes: tuple[int, int],
) -> None:
    """And exchanged back, to the bit, however deep either engine is seen into, whether its digests
    were known or not; nothing of the work of one cut is left in the other.
    """
    ring, new = CutRing(INTEGER if integers else TORCH, integers=integers), BlockSplit(counts)
    ring.train(0, (IntegerTokens(INTEGER, 40) if integers else RandomTokens(TORCH)).microbatch(0))
    ring.step_all(1)
    blocks, old, bare_engines = ring.blocks(), ring.split, (ring.all[stage], ring.new_engine())
    engine, other = (seen_into(each, depth) for each, depth in zip(bare_engines, probes, strict=True))
    assert (bare(engine), bare(other)) == bare_engines
    if probes[0] < probes[1]:
        engine.state_digest()
    expected = ring.new_engine()
    hold(expected, new, stage, [part for block in new.blocks_of(stage) for part in blocks[block]])
    begin_cut(other, new, stage)
    own, each = old.blocks_of(stage), len(blocks[0])
    for index, block in enumerate(new.blocks_of(stage)):
        if block in own:
            copy_block(engine, old, other, new, stage, block)
        else:
            write_parts(other, each * index, blocks[block])
    before, prepared = engine.state_digest(), other.state_digest()
    assert prepared == expected.state_digest()
    exchange(engine, old, other, new)
    assert (engine.state_digest(), other.state_digest()) == (prepared, before)
    assert (engine.part_count(stage), other.part_count(stage)) == (each * len(new.blocks_of(stage)), each * len(own))
    if new.blocks_of(stage):
        with pytest.raises((AssertionError, KeyError, ValueError)):
            engine.read_average(0)
    assert read_blocks(engine, new, stage, new.blocks_of(stage)) == [p for b in new.blocks_of(stage) for p in blocks[b]]
    exchange(engine, new, other, old)
    assert (engine.state_digest(), other.state_digest()) == (before, prepared)
    assert read_blocks(engine, old, stage, own) == [part for block in own for part in blocks[block]]
    given_up = lacking(new.blocks_of(stage), own)
    assert all(read_blocks(engine, old, stage, range(block, block + 1)) == blocks[block] for block in given_up)


def seen_into(engine: Engine, depth: int) -> Engine:
    """An engine behind so many probes."""
    for _ in range(depth):
        engine = cast("Engine", EngineProbe(engine))
    return engine


@pytest.mark.parametrize("is_first", [True, False])
def test_no_gradient_goes_with_a_cut_that_is_exchanged(is_first: bool) -> None:  # noqa: FBT001 - whose turn it is
    """Its buffer is as large as the weights, and would be kept as long as the way back is."""
    ring, new = CutRing(TORCH, integers=False), BlockSplit((3, 1, 2))
    engine, other = cast("TorchEngine", ring.all[1]), cast("TorchEngine", ring.new_engine())
    hold(other, new, 1, [part for block in ring.blocks()[:3] for part in block])
    parameters = list(engine._body().parameters())
    ring.train(0, RandomTokens(TORCH).microbatch(0))
    assert any(parameter.grad is not None for parameter in parameters)
    if is_first:
        exchange(engine, ring.split, other, new)
    else:
        exchange(other, new, engine, ring.split)
    assert all(parameter.grad is None for parameter in parameters)


def test_a_swapped_engine_counts_the_parts_that_it_holds() -> None:
    """Also before it is told of the split."""
    ring, new = CutRing(TORCH, integers=False), BlockSplit((3, 1, 2))
    engine, other, blocks = ring.all[1], ring.new_engine(), ring.blocks()
    hold(other, new, 1, [part for block in blocks[:3] for part in block])
    assert (engine.part_count(1), other.part_count(1)) == (2 * len(blocks[0]), 3 * len(blocks[0]))
    engine.swap(other)
    assert (engine.part_count(1), other.part_count(1)) == (3 * len(blocks[0]), 2 * len(blocks[0]))


class Watched(EngineProbe):
    """Knows how often its state came from elsewhere, and how it is cut."""

    times = 0
    cut: tuple[int, ...] = ()

    def replaced(self) -> None:
        """Once more."""
        self.times += 1

    def follow(self, split: BlockSplit) -> None:
        """As the engine does."""
        self.cut = split.counts
        self._engine.follow(split)


def test_whoever_sees_into_an_engine_learns_that_it_is_cut_anew() -> None:
    """That its state is another one, and how it is cut."""
    ring, new = CutRing(INTEGER, integers=True), BlockSplit((3, 1, 2))
    engine, other = Watched(ring.all[1]), ring.new_engine()
    hold(other, new, 1, [part for block in ring.blocks()[:3] for part in block])
    exchange(cast("Engine", engine), ring.split, other, new)
    assert (engine.times, engine.cut) == (1, new.counts)


def test_engines_that_were_exchanged_train_on_as_if_nothing_had_been() -> None:
    """To the bit, cut anew, and cut back."""
    new, tokens = BlockSplit((3, 1, 2)), RandomTokens(TORCH)
    moving, still = CutRing(TORCH, integers=False), CutRing(TORCH, integers=False)
    losses: dict[CutRing, list[float]] = {moving: [], still: []}
    for number, turn in enumerate([None, (moving.split, new), None, (new, moving.split), None]):
        if turn is not None:
            before, after = turn
            blocks, others = moving.blocks(), [moving.new_engine() for _ in range(3)]
            for stage, other in enumerate(others, start=1):
                hold(other, after, stage, [part for block in after.blocks_of(stage) for part in blocks[block]])
                exchange(moving.all[stage], before, other, after)
            moving.split = after
        for ring in (moving, still):
            losses[ring].append(ring.train(number, tokens.microbatch(number)))
            ring.step_all(number + 1)
    assert losses[moving] == losses[still]
    assert moving.blocks() == still.blocks()


def test_a_stage_whose_blocks_stay_is_held_through_a_cut_of_others() -> None:
    """One that gets others is let go."""
    for ring in (CutRing(INTEGER, integers=True), CutRing(TORCH, integers=False)):
        held = [ring.all[stage].state_digest() for stage in (0, 3)]
        for stage in (0, 2, 3):
            ring.all[stage].follow(BlockSplit((3, 1, 2)))
        assert [ring.all[stage].state_digest() for stage in (0, 3)] == held
        with pytest.raises((AssertionError, IndexError)):
            ring.all[2].read_state(0, weights_only=False)
