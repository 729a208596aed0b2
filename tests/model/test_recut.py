"""Blocks that move between stages are bit for bit what they were, and so is what they compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_world import GROUPED, EngineRing, RandomTokens, manifest_of, scalars_of

from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RunSection, StagesSection
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.sim.integer_tokens import IntegerTokens
from swarmfree.trainer.recovery.recut import parts_of_block, recut, set_aside

TORCH = manifest_of(replace(GROUPED, blocks=6))
INTEGER = Manifest(
    run=RunSection(seed=5),
    model=ModelSection(width=8, blocks=6, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=3),
    batch=BatchSection(rows=2, microbatches=4),
)
WAY = [(3, 0, 3), (2, 2, 2), (1, 4, 1), (0, 0, 6), (2, 2, 2)]
"""Over two stages, over three again, and further."""


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

    def copy(self, stage: int) -> Engine:
        """As a member of another stage has one that it followed."""
        engine = self.new_engine()
        engine.follow(self.split)
        engine.blank(stage)
        for part in range(engine.part_count(stage)):
            engine.write_state(part, self.all[stage].read_state(part, weights_only=False), weights_only=False)
        return engine

    def cut(self, new: BlockSplit) -> None:
        """Have all stages hold their new ranges."""
        copies = {stage: self.copy(stage) for stage in self.split.in_use}
        for stage in range(1, self.split.body + 1):
            recut(self.all[stage], stage, self.split, new, {other: each for other, each in copies.items() if other != stage})
        self.split = new
        self.engines = [self.all[0], *(self.all[stage] for stage in new.in_use)]

    def step_all(self, number: int) -> None:
        """An optimizer step of every stage in use."""
        for stage in (0, *self.split.in_use):
            engine = self.all[stage]
            for part in range(engine.part_count(stage)):
                engine.keep_average(part, engine.reduce([engine.contribution((0,), part)])[0])
            engine.step(scalars_of(number))
            engine.clear()

    def blocks(self) -> list[bytes]:
        """Weights and moments of each block."""
        found = []
        for block in range(self.split.blocks):
            stage = self.split.stage_of(block)
            parts = parts_of_block(self.all[stage], self.split, stage, block)
            found.append(b"".join(self.all[stage].read_state(part, weights_only=False) for part in parts))
        return found


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


def test_what_is_given_away_is_kept_with_its_average() -> None:
    """For who has not got it yet."""
    ring = CutRing(INTEGER, integers=True)
    ring.train(0, IntegerTokens(INTEGER, 40).microbatch(0))
    ring.step_all(1)
    digests, averages = ring.all[2].state_digest(), ring.all[2].average_digest()
    former = ring.new_engine()
    set_aside(ring.all[2], 2, ring.split, former)
    ring.cut(BlockSplit((3, 0, 3)))
    assert (former.state_digest(), former.average_digest()) == (digests, averages)
