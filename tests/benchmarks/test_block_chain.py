"""Blocks that go from engine to engine are one chain of states, or it is said of which that is not
so.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import cuts
from benchmarks.block_chain import ENDS, BlockStep, Chain, chain_of, chains, read_steps
from benchmarks.paced_fork_server import Pace, _PacedEngine
from benchmarks.paced_swarm import run_of
from swarmfree.lab.chaos.loss_judge import scalars_of
from swarmfree.model.engine import TorchEngine
from swarmfree.protocol.split import BlockSplit
from tests.engine_blocks import hold, read_blocks

MANIFEST = run_of(4, 2, 1)
ITERATIONS = 5


def _step(engine: _PacedEngine, iteration: int) -> None:
    """With an average that depends on the iteration alone."""
    for part in range(engine.part_count(engine._stage)):
        floats = engine.sum_bytes(part) // 4
        engine.keep_average(part, struct.pack(f"<{floats}f", *(0.001 * (iteration + 1) for _ in range(floats))))
    engine.step(scalars_of(MANIFEST, iteration, [1.0])[0])
    engine.clear()


def _blocks_go_on(folder: Path, *, weights_only: bool) -> dict[str, int]:
    """Two blocks of a stage go on in an engine that holds one of them and one more."""
    folder.mkdir()
    pace = folder / "pace.json"
    Pace(0.0, 0.0).write(pace)
    first, second, ends = (_PacedEngine(TorchEngine(MANIFEST, 1), MANIFEST, pace, name) for name in ("a", "b", "source"))
    for stage, engine in enumerate((ends, first, second)):
        engine.draw(stage, 0)
    for iteration in range(2):
        for engine in (ends, first, second):
            _step(engine, iteration)
    split = BlockSplit((0, 4))
    parts = [*read_blocks(first, MANIFEST.split, 1, range(2)), *read_blocks(second, MANIFEST.split, 2, range(2, 4))]
    third = _PacedEngine(TorchEngine(MANIFEST, 1), MANIFEST, pace, "b")
    hold(third, split, 2, parts)
    if weights_only:
        third.blank(2)
        for part, data in enumerate(parts):
            third.write_state(part, data[: len(data) // 3], weights_only=True)
    for iteration in range(2, ITERATIONS):
        _step(ends, iteration)
        _step(third, iteration)
    found = {block: chain for block, chain in chains(read_steps(folder)).items() if chain.fault}
    assert found.keys() == (set(range(4)) if weights_only else set())
    return cuts.blocks_off(folder, ITERATIONS)


def test_blocks_that_go_on_elsewhere_are_one_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From real engines; moments that are lost on the way are seen in each block."""
    monkeypatch.setattr(cuts, "BLOCKS", 4)
    assert _blocks_go_on(tmp_path / "whole", weights_only=False) == {"handed_over": 4, "blocks_off": 0}
    assert _blocks_go_on(tmp_path / "weights", weights_only=True) == {"handed_over": 0, "blocks_off": 4}


def test_a_block_that_nobody_steps_or_too_rarely_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration that was committed has a step of every block."""
    monkeypatch.setattr(cuts, "BLOCKS", 2)
    steps = [BlockStep(ENDS, "a", "b", "s"), BlockStep(ENDS, "b", "c", "s"), BlockStep(0, "a", "b", "p")]
    monkeypatch.setattr(cuts, "read_steps", lambda _: steps)
    assert cuts.blocks_off(tmp_path, 2) == {"handed_over": 0, "blocks_off": 2}
    assert cuts.blocks_off(tmp_path, 1) == {"handed_over": 0, "blocks_off": 1}


def _of(*steps: str) -> list[BlockStep]:
    return [BlockStep(0, step[0], step[1], step[2:] or "p") for step in steps]


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (_of("ab", "bc", "cd"), Chain(3, 0, "")),
        (_of("cd", "ab", "bc"), Chain(3, 0, "")),
        (_of("abp", "bcq", "cdp"), Chain(3, 2, "")),
        (_of("abp", "abq", "bcq", "bcp", "cdq"), Chain(3, 0, "")),
        (_of("abp", "bcp", "bcq", "cdq"), Chain(3, 1, "")),
    ],
    ids=["one", "in any order", "there and back", "two replicas", "one more, who goes on"],
)
def test_a_chain(steps: list[BlockStep], found: Chain) -> None:
    """Two engines may do the same step; somebody new is a hand-over."""
    assert chain_of(steps) == found


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        (_of("ab", "cd"), "2 states come from no step"),
        (_of("ab", "bc", "bd"), "a state became two"),
        (_of("ab", "cb"), "2 states come from no step"),
        (_of("ab", "bc", "ca"), "0 states come from no step"),
        (_of("ab", "xy", "yx"), "2 steps follow no other one"),
        (_of("ab", "bc", "cb"), "a state comes from two"),
    ],
    ids=["other bytes", "two outcomes", "two ways to one", "a circle", "a circle beside it", "back again"],
)
def test_no_chain(steps: list[BlockStep], word: str) -> None:
    """What it says depends on where the steps part."""
    assert word in chain_of(steps).fault


def test_a_line_that_was_cut_short_is_no_step(tmp_path: Path) -> None:
    """A peer may be killed as it writes."""
    whole = SimpleNamespace(block=0, before="a", after="b", engine="p")
    (tmp_path / "p.jsonl").write_text('{"block": 0, "before": "a", "after": "b", "engine": "p"}\n{"block": 1, "bef', "ascii")
    (one,) = read_steps(tmp_path)
    assert vars(whole) == {name: getattr(one, name) for name in vars(whole)}
