"""Tokens/s of a whole model on one GPU, its stages one after the other, by the project's own
modules; and whether a second pass has the bits of the first.

Letters: ``B`` rows, ``T`` tokens per row, ``D`` width.
"""

from __future__ import annotations

import functools
import gc
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_step import seconds_of
from swarmfree.model.layout import layout_of
from swarmfree.model.passes import Graph, run_backward
from swarmfree.model.stages import BodyStage, Ends, build_stage, draw_weights
from swarmfree.model.sums import GradientSums
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, StagesSection


@dataclass(frozen=True, slots=True)
class Case:
    """One of CheckFree's models (Table 4); MLP width and vocabulary, of which it says nothing, are
    4 D and 32,000.

    Args:
        rows: of a microbatch.
        body: stages beside the ends.
    """

    width: int
    heads: int
    blocks: int
    tokens_per_row: int
    rows: int
    body: int

    @property
    def manifest(self) -> Manifest:
        """Of a run of this model."""
        model = ModelSection(
            width=self.width,
            blocks=self.blocks,
            heads=self.heads,
            kv_heads=self.heads,
            mlp_width=4 * self.width,
            tokens_per_row=self.tokens_per_row,
            vocabulary=32_000,
        )
        return Manifest(model=model, stages=StagesSection(body=self.body), batch=BatchSection(rows=self.rows, microbatches=1))

    @property
    def flops_per_token(self) -> int:
        """Of a forward and a backward pass: six for each weight that multiplies, and attention."""
        weights = self.blocks * 16 * self.width**2 + 32_000 * self.width
        return 6 * weights + 12 * self.blocks * self.width * self.tokens_per_row


CASES: Mapping[str, Case] = {
    "small": Case(width=512, heads=8, blocks=12, tokens_per_row=512, rows=32, body=4),
    "medium": Case(width=1024, heads=16, blocks=24, tokens_per_row=1024, rows=8, body=6),
    "large": Case(width=2048, heads=16, blocks=24, tokens_per_row=4096, rows=1, body=6),
}
PRODUCTS = ("float32", "tf32", "bfloat16")
MATRIX = 8192
Hop = Callable[[Tensor], Tensor]


class Pipeline:
    """All stages of a model, with the gradient sums of one microbatch each."""

    def __init__(self, manifest: Manifest) -> None:
        """Draw first weights, on torch's default device."""
        self.stages: list[Ends | BodyStage] = []
        self.weights: list[Tensor] = []
        self.sums: list[GradientSums] = []
        self._tokens_per_iteration = manifest.tokens_per_iteration
        for stage in range(manifest.stage_count):
            layout = layout_of(manifest, stage)
            drawn = torch.zeros(layout.size, device="cpu")
            draw_weights(manifest, layout, drawn, 0)
            self.weights.append(drawn.to(torch.get_default_device()))
            module = build_stage(manifest, layout, self.weights[-1])
            self.stages.append(module)
            self.sums.append(GradientSums(layout, [module.get_parameter(slot.name) for slot in layout.slots]))

    def train(self, tokens: Tensor, hop: Hop) -> None:
        """Forward and backward of one microbatch (B, T + 1)."""
        ends = self.stages[0]
        assert isinstance(ends, Ends)
        embedded = ends.embed(tokens[:, :-1])
        graphs, x = [Graph(None, embedded)], embedded
        for stage in self.stages[1:]:
            entry = hop(x.detach()).requires_grad_()
            x = stage(entry)
            graphs.append(Graph(entry, x))
        entry = hop(x.detach()).requires_grad_()
        losses = ends.token_losses(entry, tokens[:, 1:])
        gradient = torch.full_like(losses, 1.0 / self._tokens_per_iteration)
        for graph, sums in zip((Graph(entry, losses), *reversed(graphs)), (self.sums[0], *reversed(self.sums)), strict=True):
            with sums.adding_to(0):
                back = run_backward(graph, gradient)
            if back is not None:
                gradient = hop(back.float())

    def take_gradients(self) -> list[Tensor]:
        """A copy of each stage's sum, which is empty then."""
        taken = [sums.read([0], 0, len(weights)).clone() for sums, weights in zip(self.sums, self.weights, strict=True)]
        self.clear()
        return taken

    def repeat(self, train: Callable[[], None]) -> tuple[bool, int]:
        """Whether `train`, done again, comes to the same bits; and their sum, to be compared with
        another machine's.
        """
        passes = []
        for _ in range(2):
            train()
            passes.append([gradient.view(torch.int32) for gradient in self.take_gradients()])
        return all(map(torch.equal, *passes)), sum(int(bits.sum(dtype=torch.int64)) for bits in passes[0])

    def clear(self) -> None:
        """Empty the sums."""
        for sums in self.sums:
            sums.clear()


def stays(x: Tensor) -> Tensor:
    """Activations that the next stage finds on the same GPU."""
    return x.clone()


def leaves(x: Tensor) -> Tensor:
    """Activations that leave the GPU as bytes of bfloat16 and come back to it, as those of two
    peers beside each other would.
    """
    sent = x.to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes()
    return torch.frombuffer(bytearray(sent), dtype=torch.bfloat16).view(x.shape).to(x.device).float()


class Pinned:
    """As `leaves`, by way of two buffers that the GPU reads and writes by itself: one copy to bytes
    and one from them are left to the processor.
    """

    def __init__(self) -> None:
        """Take the buffers when the first activations come."""
        self._out = self._back = torch.empty(0, dtype=torch.bfloat16, device="cpu")

    def __call__(self, x: Tensor) -> Tensor:
        """There and back."""
        if self._out.numel() != x.numel():
            self._out, self._back = (
                torch.empty(x.numel(), dtype=torch.bfloat16, device="cpu", pin_memory=True) for _ in range(2)
            )
        self._out.copy_(x.to(torch.bfloat16).view(-1))
        sent = self._out.view(torch.int16).numpy().tobytes()
        self._back.view(torch.int16).numpy()[:] = np.frombuffer(sent, dtype=np.int16)
        return self._back.cuda(non_blocking=True).float().view(x.shape)


HOPS: Mapping[str, Hop] = {"stays": stays, "leaves": leaves, "pinned": Pinned()}


@dataclass(frozen=True, slots=True)
class Kind:
    """How passes are done.

    Args:
        products: one of `PRODUCTS`.
        strict: by deterministic algorithms.
        hop: one of `HOPS`.
    """

    products: str
    strict: bool
    hop: str

    def __str__(self) -> str:
        """As figures name it."""
        return f"{self.products}_{'strict' if self.strict else 'free'}_{self.hop}"

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """Torch's switches, for a while."""
        torch.backends.cuda.matmul.allow_tf32 = self.products == "tf32"
        torch.use_deterministic_algorithms(self.strict)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nobody reads it here
        try:
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.products == "bfloat16"):
                yield
        finally:
            torch.use_deterministic_algorithms(mode=False)
            torch.backends.cuda.matmul.allow_tf32 = False


def measure(rounds: int) -> Mapping[str, object]:
    """Tokens/s, medians; all kinds of a model in turn in every round."""
    flops = _product_flops()
    print(f"a product of two bfloat16 matrices: {flops / 1e12:.0f} TFLOP/s", flush=True)
    found: dict[str, object] = {"product_tflops": round(flops / 1e12)}
    for name, case in CASES.items():
        found |= _measure_one(name, case, rounds, flops)
        gc.collect()
        torch.cuda.empty_cache()
    return found


def _product_flops() -> float:
    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    return 2 * MATRIX**3 * 10 / seconds_of(lambda: [a @ b for _ in range(10)])


def _measure_one(name: str, case: Case, rounds: int, flops: float) -> Mapping[str, object]:
    found: dict[str, object] = {}
    kinds = [Kind(*kind) for kind in itertools.product(PRODUCTS, (False, True), HOPS)]
    times: dict[Kind, list[float]] = {kind: [] for kind in kinds}
    repeated: dict[Kind, tuple[bool, int]] = {}
    with torch.device("cuda"):
        pipeline = Pipeline(case.manifest)
        torch.manual_seed(0)
        tokens = torch.randint(32_000, (case.rows, case.tokens_per_row + 1))
        for turn in range(rounds + 1):
            for kind in kinds:
                train = functools.partial(pipeline.train, tokens, HOPS[kind.hop])
                with kind.switched_on():
                    if turn:
                        times[kind].append(seconds_of(train))
                        pipeline.clear()
                    else:  # it warms up as well
                        repeated[kind] = pipeline.repeat(train)
    for kind, taken in times.items():
        rate = case.rows * case.tokens_per_row / statistics.median(taken)
        share = rate * case.flops_per_token / flops
        found[f"{name}_{kind}"], found[f"{name}_{kind}_of_product"] = round(rate), round(share, 3)
        same, bits = repeated[kind]
        found[f"{name}_{kind}_repeats"] = same
        repeats = f"same bits twice, {bits}" if same else "other bits the second time"
        print(f"{name}_{kind}: {rate:,.0f} tokens/s, {share:.1%} of a product's rate, {repeats}", flush=True)
    found[f"{name}_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return found
