"""What of the GPU benchmark a processor can show: that it computes what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_bits import numpy_step, wild_floats
from benchmarks.gpu_passes import CASES, Case, Pipeline, leaves, stays
from benchmarks.gpu_step import scalars_at, step_on_gpu
from swarmfree.model.llama import Llama


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and exit code 1."""
    monkeypatch.setattr("sys.argv", ["gpu"])
    assert gpu.main() == 1
    assert capsys.readouterr().err == (
        "benchmarks.gpu: torch finds no GPU here; run it where torch.cuda.is_available() is true\n"
    )


def test_its_pipeline_has_the_gradients_of_the_whole_model() -> None:
    """Stage by stage, the sums of one microbatch are those of one module alone."""
    case = Case(width=32, heads=2, blocks=4, tokens_per_row=8, rows=2, body=2)
    tokens = torch.randint(32_000, (2, 9), generator=torch.Generator().manual_seed(1))
    pipeline = Pipeline(case.manifest)
    pipeline.train(tokens, stays)
    whole = Llama(case.manifest.model)
    whole.load_state_dict({name: p for stage in pipeline.stages for name, p in stage.state_dict().items()})
    whole.token_losses(tokens).mean().backward()  # type: ignore[no-untyped-call]
    alone = {name: p.grad for name, p in whole.named_parameters()}
    for stage in pipeline.stages:
        for name, parameter in stage.named_parameters():
            torch.testing.assert_close(parameter.grad, alone.pop(name))
    assert not alone


def test_what_leaves_comes_back_as_bfloat16_rounds_it() -> None:
    """Bytes there and back."""
    x = torch.randn(3, 5, 7)
    assert torch.equal(leaves(x), x.bfloat16().float())


def test_its_step_is_the_equation_but_for_the_root() -> None:
    """On a processor torch's root may be off by one unit in the last place; nothing else is."""
    draw = np.random.default_rng(3)
    vectors, gradient = [np.abs(wild_floats(draw, 4096)) for _ in range(3)], wild_floats(draw, 4096)
    stepped = [torch.from_numpy(v.copy()) for v in vectors]
    step_on_gpu(stepped, torch.from_numpy(gradient), scalars_at(2), 1000)
    weights, first, second = numpy_step(vectors, gradient, scalars_at(2))
    assert np.array_equal(stepped[1].numpy(), first)
    assert np.array_equal(stepped[2].numpy(), second)
    np.testing.assert_allclose(stepped[0].numpy(), weights, rtol=1e-5)


def test_work_per_token_is_counted() -> None:
    """Within a hundredth of 0.44, 2.91 and 12.5 billion operations, counted elsewhere."""
    counted = [case.flops_per_token / 1e9 for case in CASES.values()]
    assert counted == pytest.approx([0.44, 2.91, 12.5], rel=0.01)
