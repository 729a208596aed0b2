"""How far a GPU's sums of gradients, and the weights after some steps, are from a processor's: what
an audit or a replay between machines of two kinds would find.

Ten iterations of one microbatch each of the small model, from the same first weights, each side by
itself, with the steps of `benchmarks.gpu_step`, and activations of bfloat16 between stages.
Distances are relative, by the L2 norm, the largest of all stages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from benchmarks.gpu_passes import CASES, HOPS, PRODUCTS, Kind, Pipeline
from benchmarks.gpu_step import scalars_at, step_on_gpu
from swarmfree.model.sums import relative_distance

ITERATIONS, ROWS = 10, 4
SIDES = {f"gpu_{products}": Kind(products, strict=True, hop="leaves") for products in PRODUCTS}


def measure(_rounds: int) -> Mapping[str, object]:
    """Distances of the first sum, of the tenth, and of the weights then."""
    with torch.device("cpu"):
        mine = list(_train("cpu", Kind("float32", strict=False, hop="leaves")))
    found: dict[str, object] = {}
    for name, kind in SIDES.items():
        with torch.device("cuda"):
            other = list(_train("cuda", kind))
        for iteration, what in ((0, "first_sum"), (ITERATIONS - 1, f"sum_{ITERATIONS}"), (ITERATIONS, "weights")):
            pairs = zip(mine[iteration], other[iteration], strict=True)
            found[f"distance_{name}_{what}"] = max(relative_distance(a, b) for a, b in pairs)
        print(
            f"{name}: " + ", ".join(f"{key.rpartition(name + '_')[2]} {found[key]:.2e}" for key in found if name in key),
            flush=True,
        )
    return found


def _train(device: str, kind: Kind) -> Iterator[list[Tensor]]:
    """Each iteration's sums, by stage, and after all the weights."""
    case = dataclasses.replace(CASES["small"], rows=ROWS)
    pipeline = Pipeline(case.manifest)
    draw = torch.Generator().manual_seed(5)
    states = [[w, torch.zeros_like(w), torch.zeros_like(w)] for w in pipeline.weights]
    for iteration in range(ITERATIONS):
        tokens = torch.randint(32_000, (ROWS, case.tokens_per_row + 1), generator=draw, device="cpu").to(device)
        with kind.switched_on():
            pipeline.train(tokens, HOPS[kind.hop])
        sums = pipeline.take_gradients()
        for state, gradient in zip(states, sums, strict=True):
            step_on_gpu(state, gradient, scalars_at(iteration + 1), 1 << 22)
        yield [gradient.cpu() for gradient in sums]
    yield [w.cpu() for w in pipeline.weights]
