"""The canonical step on a GPU: the operations of `swarmfree.model.optimizer`, each in a kernel of
its own, and its time beside torch's AdamW.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from swarmfree.policy.schedule import step_scalars
from swarmfree.protocol.manifest import OptimizerSection
from swarmfree.protocol.records import StepScalars, bits_float32

FLOATS = 100_000_000
CHUNKS = (1 << 16, 1 << 20, 1 << 22, 1 << 24, FLOATS)


def scalars_at(iteration: int) -> StepScalars:
    """Those of one step of a run of a thousand, by the defaults of a run; a clipped one."""
    return step_scalars(OptimizerSection(), 1000, iteration, iteration, 1.0, 0.37)


def step_on_gpu(vectors: Sequence[Tensor], gradient: Tensor, scalars: StepScalars, chunk: int) -> None:
    """`canonical_step` of floats that all decay, with torch's square root.

    Args:
        vectors: weights and both moments, on the GPU, changed in place.
        gradient: of their length.
        scalars: float32 bits.
        chunk: floats stepped at once.
    """
    s = {name: bits_float32(getattr(scalars, name)) for name in StepScalars.__slots__}
    # Torch multiplies by the inverse of a divisor that the GPU does not hold.
    root_bias2 = torch.tensor(s["root_bias2"], device=gradient.device)
    scratch = torch.empty(2, chunk, device=gradient.device)
    for weights, first, second, given in zip(*(torch.split(v, chunk) for v in (*vectors, gradient)), strict=True):
        g, term = scratch[0, : len(given)], scratch[1, : len(given)]
        torch.mul(given, s["grad_scale"], out=g)
        torch.mul(first, s["beta1"], out=first)
        torch.mul(g, s["one_minus_beta1"], out=term)
        torch.add(first, term, out=first)
        torch.mul(second, s["beta2"], out=second)
        torch.mul(g, g, out=term)
        torch.mul(term, s["one_minus_beta2"], out=term)
        torch.add(second, term, out=second)
        torch.sqrt(second, out=term)
        torch.div(term, root_bias2, out=term)
        torch.add(term, s["eps"], out=term)
        torch.div(first, term, out=term)
        torch.mul(term, s["step_size"], out=term)
        torch.mul(weights, s["decay"], out=weights)
        torch.sub(weights, term, out=weights)


def seconds_of(work: Callable[[], object]) -> float:
    """How long the GPU is at it, seconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def measure(rounds: int) -> Mapping[str, object]:
    """Milliseconds for 100 million weights, all sides in turn; medians."""
    vectors = [torch.randn(FLOATS, device="cuda") for _ in range(2)]
    vectors.append(torch.rand(FLOATS, device="cuda"))
    gradient, scalars = torch.randn(FLOATS, device="cuda"), scalars_at(10)
    sides: dict[str, Callable[[], object]] = {
        f"canonical_{chunk}": lambda chunk=chunk: step_on_gpu(vectors, gradient, scalars, chunk)  # type: ignore[misc]
        for chunk in CHUNKS
    }
    for name, options in {"foreach": {"foreach": True}, "fused": {"fused": True}}.items():
        parameter = torch.nn.Parameter(vectors[0].clone())
        parameter.grad = gradient
        sides[name] = torch.optim.AdamW([parameter], **options).step  # type: ignore[arg-type]
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, work in sides.items():
            took = seconds_of(work)
            if turn:  # the first warms up
                times[name].append(took)
    found = {f"step_{name}_ms": round(statistics.median(taken) * 1000, 2) for name, taken in times.items()}
    print(f"a step of {FLOATS:,} weights, ms: {found}", flush=True)
    return found
