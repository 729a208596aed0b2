"""Do a GPU's operations have the processor's bits? Each result that the project needs to be the
same everywhere, GPU beside numpy or beside the project's own code for the processor.

Square roots of all floats that have one; the others of floats drawn by their bits, denormals and
infinities among them. Two results that are no numbers count as equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_step import scalars_at, step_on_gpu
from swarmfree.model.codec import decode_activations, encode_activations
from swarmfree.model.shadow import quantised
from swarmfree.protocol.records import StepScalars, bits_float32

CHUNK = 1 << 25
DRAWN_CHUNKS = 8
DIVISOR = 0.4375019371509552
ROOTS = range(0, 0x7F800001, CHUNK)
"""Bits of zero up to infinity."""


def compare() -> Mapping[str, object]:
    """How many results differ, of how many."""
    found: dict[str, object] = {}
    for name, compared in _comparisons().items():
        count = differing = 0
        for mine, other in compared():
            count += len(mine)
            differing += _differing(mine, other)
        found[f"bits_{name}"] = [differing, count]
        print(f"{name}: {differing:,} of {count:,} differ", flush=True)
    return found


def _comparisons() -> Mapping[str, Callable[[], Iterator[tuple[np.ndarray, Tensor]]]]:
    pairs: dict[str, tuple[Callable[..., np.ndarray], Callable[..., Tensor]]] = {
        "multiply": (np.multiply, torch.mul),
        "add": (np.add, torch.add),
        "subtract": (np.subtract, torch.sub),
        "divide": (np.divide, torch.div),
    }
    number = np.float32(DIVISOR)
    held = torch.tensor(float(number), device="cuda")
    alone: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[Tensor], Tensor]]] = {
        "multiply_by_number": (lambda x: x * number, lambda x: x * float(number)),
        "divide_by_number": (lambda x: x / number, lambda x: x / float(number)),
        "divide_by_held_number": (lambda x: x / number, lambda x: x / held),
        "to_bfloat16": (
            lambda x: (
                decode_activations(encode_activations(torch.from_numpy(x), "bfloat16"), (1, 1, len(x)), "bfloat16")
                .flatten()
                .numpy()
            ),
            lambda x: x.to(torch.bfloat16).float(),
        ),
    }
    return {
        "square_root": _roots,
        **{name: lambda sides=sides: _drawn(2, *sides) for name, sides in pairs.items()},  # type: ignore[misc]
        **{name: lambda sides=sides: _drawn(1, *sides) for name, sides in alone.items()},  # type: ignore[misc]
        "shadow": _shadows,
        "canonical_step": _steps,
    }


def _roots() -> Iterator[tuple[np.ndarray, Tensor]]:
    for start in ROOTS:
        x = np.arange(start, min(start + CHUNK, ROOTS.stop), dtype=np.uint32).view(np.float32)
        yield np.sqrt(x), torch.from_numpy(x).cuda().sqrt()


def _drawn(operands: int, mine: Callable[..., np.ndarray], other: Callable[..., Tensor]) -> Iterator[tuple[np.ndarray, Tensor]]:
    draw = np.random.default_rng(0)
    for _ in range(DRAWN_CHUNKS):
        given = [draw.integers(0, 1 << 32, CHUNK, dtype=np.uint32).view(np.float32) for _ in range(operands)]
        with np.errstate(all="ignore"):
            yield mine(*given), other(*(torch.from_numpy(x).cuda() for x in given))


def _shadows() -> Iterator[tuple[np.ndarray, Tensor]]:
    draw = np.random.default_rng(1)
    for _ in range(DRAWN_CHUNKS):
        weights = torch.from_numpy(draw.standard_normal(CHUNK, dtype=np.float32))
        for mine, other in zip(quantised(weights), quantised(weights.cuda()), strict=True):
            yield mine.flatten().numpy(), other.flatten()


def _steps() -> Iterator[tuple[np.ndarray, Tensor]]:
    """Three steps, one after the other."""
    draw = np.random.default_rng(2)
    mine = [wild_floats(draw) for _ in range(3)]
    mine[2] = np.abs(mine[2])
    theirs = [torch.from_numpy(v.copy()).cuda() for v in mine]
    for iteration in (1, 2, 1000):
        gradient, scalars = wild_floats(draw), scalars_at(iteration)
        with np.errstate(all="ignore"):
            mine = numpy_step(mine, gradient, scalars)
        step_on_gpu(theirs, torch.from_numpy(gradient).cuda(), scalars, CHUNK)
        yield from zip(mine, theirs, strict=True)


def wild_floats(draw: np.random.Generator, count: int = CHUNK) -> np.ndarray:
    """Floats of all sizes from denormal to large, zeros of both signs among them."""
    values = (draw.standard_normal(count) * 10.0 ** draw.uniform(-44, 3, count)).astype(np.float32)
    values[draw.random(count) < 0.05] *= 0.0
    return values


def numpy_step(vectors: list[np.ndarray], gradient: np.ndarray, scalars: StepScalars) -> list[np.ndarray]:
    """The equation of `StepScalars`, of floats that all decay."""
    s = {name: np.float32(bits_float32(getattr(scalars, name))) for name in StepScalars.__slots__}
    w, m, v = vectors
    g = gradient * s["grad_scale"]
    m = m * s["beta1"] + g * s["one_minus_beta1"]
    v = v * s["beta2"] + (g * g) * s["one_minus_beta2"]
    return [w * s["decay"] - s["step_size"] * (m / (np.sqrt(v) / s["root_bias2"] + s["eps"])), m, v]


def _differing(mine: np.ndarray, other: Tensor) -> int:
    found = other.cpu().numpy()
    if mine.dtype != np.float32:
        return int(np.count_nonzero(mine != found))
    unequal = mine.view(np.uint32) != found.view(np.uint32)
    return int(np.count_nonzero(unequal & ~(np.isnan(mine) & np.isnan(found))))
