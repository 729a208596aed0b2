"""The same model trained alone: one process, one module, plain PyTorch. What the swarm is compared
with.

Forward and backward of the whole model per microbatch, gradients accumulated by autograd, no bytes,
no parts, no ring. First weights, data order and loss are the run's, so that with the same step
scalars the loss curve is the swarm's to rounding. Two
optimizers: the canonical step with scalars that the caller computes, and what a PyTorch user would
take (fused AdamW and `clip_grad_norm_`).

Letters: ``B`` rows, ``T`` tokens per row, ``D`` width, ``V`` vocabulary.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swarmfree.model.codec import decode_tokens
from swarmfree.model.llama import Llama
from swarmfree.model.optimizer import canonical_step
from swarmfree.model.stages import StageState, attach, blank_stage, draw_weights
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.ports import Tokens
from swarmfree.protocol.records import StepScalars

Groups = Sequence[Sequence[int]]
"""Offsets of an iteration's microbatches: each group is summed alone in its order, then the groups'
sums are added in order.
"""

Grouping = Callable[[int], Groups]
"""Iteration -> groups."""

Scalars = Callable[[int, list[float]], Sequence[StepScalars]]
"""(iteration, squared gradient norm of every stage before clipping) -> step scalars of every
stage.
"""


@dataclass(frozen=True, slots=True)
class Twice:
    """A planted mistake, for a control: in `iteration`, the gradient of the microbatch at `offset`
    counts twice.
    """

    iteration: int
    offset: int


class Alone:
    """The model of a run on one machine.

    Args:
        manifest: the run's.
        tokens: the corpus.
        threads: torch threads of the calling thread.
    """

    def __init__(self, manifest: Manifest, tokens: Tokens, *, threads: int = 1) -> None:
        """Draw the run's first weights (salt 0)."""
        torch.set_num_threads(threads)
        self.manifest = manifest
        self.stages: list[StageState] = []
        self.model = Llama(manifest.model)
        self._tokens = tokens
        for stage in range(manifest.stage_count):
            state = blank_stage(manifest, stage)
            draw_weights(manifest, state.layout, state.weights, salt=0)
            attach(self.model, state.layout, state.weights)
            self.stages.append(state)

    def microbatch(self, number: int) -> Tensor:
        """Training tokens (B, T + 1) int64."""
        return decode_tokens(self._tokens.microbatch(number), (self.manifest.batch.rows, self.manifest.model.tokens_per_row + 1))

    def evaluate(self) -> float:
        """Mean held-out loss over the run's windows, nats per token."""
        return self.loss_of([self._tokens.window(window) for window in range(self.manifest.run.evaluate_windows)])

    def loss_of(self, windows: Sequence[bytes]) -> float:
        """Mean loss over any windows, nats per token; each as one of `Tokens`."""
        shape = (self.manifest.batch.rows, self.manifest.model.tokens_per_row + 1)
        with torch.inference_mode():
            losses = [self.model.token_losses(decode_tokens(window, shape)) for window in windows]
        return sum(x.double().sum().item() for x in losses) / sum(x.numel() for x in losses)

    def differentiate(self, iteration: int, groups: Groups | None = None, twice: int | None = None) -> float:
        """Leave one iteration's gradient in the parameters' ``grad``.

        Args:
            iteration: the optimizer step.
            groups: how microbatches are summed; None = all in one, ascending.
            twice: offset of a microbatch whose gradient is to count twice.

        Returns:
            The mean loss, nats per token: shares of the microbatches added in float64 in order of
            number.
        """
        count = self.manifest.batch.microbatches
        shares: dict[int, float] = {}
        total: list[Tensor] | None = None
        for group in [range(count)] if groups is None else groups:
            self.model.zero_grad(set_to_none=True)
            for offset in group:
                for _ in range(2 if offset == twice else 1):
                    shares[offset] = self._differentiate_microbatch(iteration * count + offset)
            if total is None:
                total = [_gradient(p) for p in self.model.parameters()]
            else:
                total = [torch.add(t, _gradient(p)) for t, p in zip(total, self.model.parameters(), strict=True)]
        assert total is not None, "groups must hold something"
        assert sorted(shares) == list(range(count)), "groups must hold every microbatch of the iteration"
        for parameter, gradient in zip(self.model.parameters(), total, strict=True):
            parameter.grad = gradient
        return sum(shares[offset] for offset in range(count))

    def _differentiate_microbatch(self, number: int) -> float:
        losses = self.model.token_losses(self.microbatch(number))
        (losses.sum() / self.manifest.tokens_per_iteration).backward()  # type: ignore[no-untyped-call]
        return losses.detach().double().sum().item() / self.manifest.tokens_per_iteration

    def flat_gradient(self, stage: int) -> Tensor:
        """The stage's gradient as a flat vector of its layout."""
        state = self.stages[stage]
        flat = torch.zeros(state.layout.size)
        for slot in state.layout.slots:
            flat[slot.start : slot.stop] = _gradient(self.model.get_parameter(slot.name)).flatten()
        return flat

    def step_canonically(self, iteration: int, scalars: Scalars) -> None:
        """One canonical AdamW step of every stage with the gradients at hand."""
        gradients = [self.flat_gradient(stage) for stage in range(self.manifest.stage_count)]
        norms = [torch.dot(g.double(), g.double()).item() for g in gradients]
        for state, gradient, numbers in zip(self.stages, gradients, scalars(iteration, norms), strict=True):
            canonical_step(state, gradient, numbers)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "a backward pass must come first"
    return parameter.grad


def shuffled(manifest: Manifest, seed: int) -> Grouping:
    """Another order of summation for every iteration: a permutation of the microbatches, cut into
    random groups.
    """
    count = manifest.batch.microbatches

    def groups(iteration: int) -> Groups:
        draw = random.Random(f"{seed} {iteration}")
        order = draw.sample(range(count), count)
        cuts = [0, *sorted(draw.sample(range(1, count), draw.randrange(count))), count]
        return [order[start:stop] for start, stop in itertools.pairwise(cuts)]

    return groups


def train_canonically(
    alone: Alone, scalars: Scalars, *, iterations: int, grouping: Grouping | None = None, twice: Twice | None = None
) -> Iterator[float]:
    """Train with the canonical step; yields every iteration's mean loss in nats per token.

    Args:
        alone: the model; it is changed.
        scalars: step scalars, from the run's own schedule and clipping.
        iterations: how many.
        grouping: order of summation; None = ascending, in one sum.
        twice: a planted mistake.
    """
    for iteration in range(iterations):
        doubled = twice.offset if twice is not None and twice.iteration == iteration else None
        loss = alone.differentiate(iteration, None if grouping is None else grouping(iteration), doubled)
        alone.step_canonically(iteration, scalars)
        yield loss


def train_fused(alone: Alone, *, iterations: int, rate: Callable[[int], float] | None = None) -> Iterator[float]:
    """Train with torch's fused AdamW and `clip_grad_norm_`; yields every iteration's mean loss in
    nats per token.

    Args:
        alone: the model; it is changed.
        iterations: how many.
        rate: learning rate of an iteration; None = the run's peak rate throughout.
    """
    section = alone.manifest.optimizer
    parameters = list(alone.model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": section.weight_decay},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=section.rate,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        fused=True,
    )
    for iteration in range(iterations):
        loss = alone.differentiate(iteration)
        if section.clip != "none":
            nn.utils.clip_grad_norm_(parameters, section.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = section.rate if rate is None else rate(iteration)
        optimizer.step()
        yield loss
