"""The canonical AdamW step: what it computes, and that its bytes depend on nothing but its
inputs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from model_world import MODELS, bits_equal, manifest_of, scalars_of
from torch import Tensor

from swarmfree.model.layout import Layout
from swarmfree.model.optimizer import CHUNK_FLOATS, canonical_step, segments_of
from swarmfree.model.stages import StageState, blank_stage
from swarmfree.protocol.manifest import ModelSection
from swarmfree.protocol.records import StepScalars, bits_float32


def numpy_step(state: StageState, gradient: Tensor, scalars: StepScalars) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The docstring's equation in numpy float32, the whole vector at once: weights and moments
    after the step.
    """
    s = {name: np.float32(bits_float32(getattr(scalars, name))) for name in StepScalars.__slots__}
    w, m, v = (x.numpy().copy() for x in (state.weights, state.first_moment, state.second_moment))
    g = gradient.numpy() * s["grad_scale"]
    m = m * s["beta1"] + g * s["one_minus_beta1"]
    v = v * s["beta2"] + (g * g) * s["one_minus_beta2"]
    decays = np.zeros(state.layout.size, dtype=bool)
    for slot in state.layout.slots:
        decays[slot.start : slot.stop] = slot.decays
    w = np.where(decays, w * s["decay"], w) - (m / (np.sqrt(v) / s["root_bias2"] + s["eps"])) * s["step_size"]
    return w, m, v


def wild_floats(count: int, seed: int) -> Tensor:
    """Floats of all sizes from denormal to large, with zeros of both signs among them."""
    draw = np.random.default_rng(seed)
    values = draw.standard_normal(count) * 10.0 ** draw.uniform(-44, 3, count)
    values[draw.random(count) < 0.05] = 0.0
    values[draw.random(count) < 0.05] = -0.0
    return torch.from_numpy(values.astype(np.float32))


def wild_vector(layout: Layout, seed: int) -> Tensor:
    """Floats of all sizes in the parameters' places, zero between them."""
    values, vector = wild_floats(layout.size, seed), torch.zeros(layout.size)
    for slot in layout.slots:
        vector[slot.start : slot.stop] = values[slot.start : slot.stop]
    return vector


def wild_state(model: ModelSection, stage: int) -> StageState:
    """A stage whose weights and moments are of all sizes, and zero between parameters."""
    state = blank_stage(manifest_of(model), stage)
    state.weights.copy_(wild_vector(state.layout, 1))
    state.first_moment.copy_(wild_vector(state.layout, 2))
    state.second_moment.copy_(wild_vector(state.layout, 3).abs())
    return state


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_step_has_the_bits_of_its_equation(model: ModelSection, stage: int) -> None:
    """Three steps equal numpy's float32 arithmetic, one rounding per operation, bit for bit,
    denormals included.
    """
    state = wild_state(model, stage)
    for step in (1, 2, 1000):
        gradient = wild_vector(state.layout, 10 + step)
        scalars = scalars_of(step, grad_scale=0.37)
        expected = numpy_step(state, gradient, scalars)
        canonical_step(state, gradient, scalars)
        for found, wanted in zip((state.weights, state.first_moment, state.second_moment), expected, strict=True):
            assert bits_equal(found, torch.from_numpy(wanted))


def test_chunks_do_not_show() -> None:
    """A stage larger than several chunks has the same bits as the whole vector at once."""
    large = ModelSection(width=128, blocks=3, heads=4, kv_heads=2, mlp_width=352)
    state = wild_state(large, 1)
    assert state.layout.size > 2 * CHUNK_FLOATS
    gradient = wild_vector(state.layout, 5)
    expected = numpy_step(state, gradient, scalars_of())
    canonical_step(state, gradient, scalars_of())
    assert bits_equal(state.weights, torch.from_numpy(expected[0]))


def test_the_step_is_adamw() -> None:
    """Ten steps stay within float32 rounding of torch.optim.AdamW with the same numbers."""
    state = blank_stage(manifest_of(), 1)
    torch.manual_seed(0)
    state.weights.normal_()
    parameters = [torch.nn.Parameter(p.detach().clone()) for p in state.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    for step in range(1, 11):
        gradient = torch.randn(state.layout.size)
        for slot, parameter in zip(state.layout.slots, parameters, strict=True):
            parameter.grad = gradient[slot.start : slot.stop].view(slot.shape).clone()
        optimizer.step()
        canonical_step(state, gradient, scalars_of(step, rate=1e-2, weight_decay=0.1))
        for found, wanted in zip(state.parameters(), parameters, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_decay_shrinks_matrices_only() -> None:
    """With no gradient at all a step multiplies matrices by the decay and leaves gains alone."""
    for stage in (0, 1):
        state = blank_stage(manifest_of(), stage)
        state.weights.fill_(1.0)
        scalars = scalars_of(rate=0.5, weight_decay=0.5)
        canonical_step(state, torch.zeros(state.layout.size), scalars)
        for slot, parameter in zip(state.layout.slots, state.parameters(), strict=True):
            assert set(parameter.flatten().tolist()) == {bits_float32(scalars.decay) if slot.decays else 1.0}


def test_segments_cover_the_vector() -> None:
    """Segments follow each other without gap and give every parameter its own rule."""
    for stage in (0, 1):
        layout = blank_stage(manifest_of(MODELS["odd"]), stage).layout
        segments = segments_of(layout)
        assert [s.stop for s in segments] == [s.start for s in segments[1:]] + [layout.size]
        assert segments[0].start == 0
        for slot in layout.slots:
            (home,) = [s for s in segments if s.start <= slot.start and slot.stop <= s.stop]
            assert home.decays is slot.decays


def test_gaps_stay_zero() -> None:
    """The floats between parameters are zero after steps with the minus zeros that an unused gap of
    a sum holds.
    """
    state = blank_stage(manifest_of(MODELS["odd"]), 1)
    for step in (1, 2):
        canonical_step(state, torch.full((state.layout.size,), -0.0), scalars_of(step))
    assert not state.weights.any()
    assert not state.second_moment.any()


def test_the_square_root_is_rounded_correctly() -> None:
    """Numpy's float32 square root is the exact root rounded once, for every mantissa and both
    parities of the exponent.
    """
    every = np.arange(0x3F800000, 0x40800000, dtype=np.uint32).view(np.float32)
    found = np.sqrt(every)
    # Rounding the float64 root is right: no root of a 24-bit number lies so near the middle of two
    # floats that 53 bits cannot tell.
    assert np.array_equal(found.view(np.uint32), np.sqrt(every.astype(np.float64)).astype(np.float32).view(np.uint32))


STEP_AND_PRINT = """
import sys
import torch
from test_optimizer import digest_after_steps
torch.set_num_threads(int(sys.argv[1]))
print(torch.backends.cpu.get_cpu_capability(), digest_after_steps())
"""


def digest_after_steps() -> str:
    """Five steps of a stage with floats of all sizes; a hash of weights and moments."""
    state = wild_state(ModelSection(width=128, blocks=3, heads=4, kv_heads=2, mlp_width=352), 1)
    for step in range(1, 6):
        canonical_step(state, wild_vector(state.layout, step), scalars_of(step, grad_scale=0.9))
    vectors = (state.weights, state.first_moment, state.second_moment)
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in vectors)).hexdigest()


def test_the_bytes_do_not_depend_on_vector_unit_or_threads() -> None:
    """Processes held to no vector unit with one thread, and to AVX2 with two, step to the same
    bytes as this one.
    """
    here = digest_after_steps()
    found = {}
    processes = []
    for capability, threads in (("default", 1), ("avx2", 2)):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ATEN_CPU_CAPABILITY": capability}
        command = [sys.executable, "-c", STEP_AND_PRINT, str(threads)]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        name, digest = out.split()
        found[name] = digest
    assert "DEFAULT" in found
    assert set(found.values()) == {here}, found
