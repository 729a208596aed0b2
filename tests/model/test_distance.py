"""The relative distance by which an audit compares two results."""

from __future__ import annotations

import math

import pytest
import torch

from swarmfree.model.engine import TorchEngine
from swarmfree.model.sums import relative_distance
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, StagesSection


@pytest.mark.parametrize(
    ("found", "expected", "distance"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([-3.0, -4.0], [3.0, 4.0], 2.0),
        ([300.0, 400.0], [3.0, 4.0], 99.0),
        ([0.0, 0.0], [3.0, 4.0], 1.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1.0, 0.0], [0.0, 0.0], math.inf),
        ([math.nan, 0.0], [3.0, 4.0], math.inf),
        ([math.inf, 0.0], [3.0, 4.0], math.inf),
        ([3.03, 4.04], [3.0, 4.0], 0.01),
    ],
)
def test_the_distance_is_relative_to_what_was_expected(found: list[float], expected: list[float], distance: float) -> None:
    """|found - expected| / |expected|; what is no number is as far as can be."""
    assert relative_distance(torch.tensor(found), torch.tensor(expected)) == pytest.approx(distance, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_reads_sums_as_float32_and_tensors_as_they_travel(dtype: str) -> None:
    """And takes what has another length for something else."""
    manifest = Manifest(
        model=ModelSection(width=8, blocks=1, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=2),
        stages=StagesSection(body=1),
        batch=BatchSection(rows=1, microbatches=1),
        ring=RingSection(wire_dtype=dtype),  # type: ignore[arg-type]
    )
    engine, kind = TorchEngine(manifest, threads=1), {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    one = torch.ones(16, dtype=kind).view(torch.uint8).numpy().tobytes()
    two = (2 * torch.ones(16, dtype=kind)).view(torch.uint8).numpy().tobytes()
    assert engine.distance(two, one, is_sum=False) == 1.0
    assert engine.distance(one[:-2], one, is_sum=False) == math.inf
    sums = [torch.full((3,), value).numpy().tobytes() for value in (1.0, 3.0)]
    assert engine.distance(sums[1], sums[0], is_sum=True) == 2.0
