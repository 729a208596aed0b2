"""The model alone, stage by stage: single stages can be lost and brought back. The recovery study
trains it.

A lost stage comes back from logged activations, copies or neighbours. Forward and backward are
those of `Alone`; on the way the model keeps the boundary activations: what a stage got, what it
gave, and the gradient of what it gave. The same tensors cross the network in the swarm. Swapped
routes run every second microbatch through both ends of the body in the other order (CheckFree+,
section 4.3).

Letters: ``B`` rows, ``T`` tokens per row, ``D`` width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import Tensor

from swarmfree.lab.reference_training import Alone
from swarmfree.model.codec import float_bytes
from swarmfree.model.merge import merge_floats
from swarmfree.model.optimizer import canonical_step
from swarmfree.model.passes import BatchShape
from swarmfree.model.shadow import from_int8, to_int8
from swarmfree.model.stages import draw_weights
from swarmfree.protocol.manifest import SWAP_STAGES_MIN, LogDtype, Manifest
from swarmfree.protocol.ports import Tokens
from swarmfree.protocol.records import StepScalars, float32_bits
from swarmfree.protocol.routes import Routes


@dataclass(frozen=True, slots=True)
class BoundaryActivations:
    """One microbatch at one stage: what came in and went out, and the gradient of what went out,
    each (B, T, D).
    """

    entered: Tensor
    left: Tensor
    returned: Tensor


@dataclass(frozen=True, slots=True)
class StageCopy:
    """Everything a stage holds: flat float32 vectors."""

    weights: Tensor
    first_moment: Tensor
    second_moment: Tensor


@dataclass(frozen=True, slots=True)
class StudyLog:
    """One iteration of the activation log: by stage, its microbatches in order and the scalars it
    was stepped with.
    """

    activations: dict[int, tuple[BoundaryActivations, ...]]
    scalars: tuple[StepScalars, ...]


class Staged(Alone):
    """The model of a run on one machine, whose stages can be lost.

    Attributes:
        log: the last iterations, oldest first.
        passes: of a microbatch through a body stage so far, forward and backward, in whatever is
            learned: iterations, replays and refits.
    """

    def __init__(
        self,
        manifest: Manifest,
        tokens: Tokens,
        *,
        threads: int = 1,
        swaps: bool = False,
        log_iterations: int = 0,
        log_dtype: LogDtype = "wire",
    ) -> None:
        """First weights, as `Alone`.

        Args:
            swaps: every second microbatch goes through stages 2, 1, .., L, L-1; needs four body
                stages.
            log_iterations: how many iterations of activations are kept.
            log_dtype: what they are rounded to.
        """
        super().__init__(manifest, tokens, threads=threads)
        assert not swaps or manifest.stages.body >= SWAP_STAGES_MIN, "swapped routes need four body stages"
        self._routes = Routes.of(manifest.stages.body, swaps=swaps)
        self._activations: dict[int, list[BoundaryActivations]] = {}
        self.log: deque[StudyLog] = deque(maxlen=log_iterations)
        self._log_dtype, self._shape = log_dtype, BatchShape.of(manifest)
        self.passes = 0

    def route(self, number: int) -> list[int]:
        """Body stages in the order in which microbatch `number` goes through them."""
        return list(self._routes.route(number).stages)

    def _through(self, stage: int, x: Tensor) -> Tensor:
        self.passes += 1
        for block in self.manifest.blocks_of(stage):
            x = self.model.model["layers"][block](x, self.model.cos, self.model.sin)  # type: ignore[index]
        return x

    def differentiate(self, iteration: int, groups: Sequence[Sequence[int]] | None = None, twice: int | None = None) -> float:
        """Compute gradients like `Alone`, and keep the activations until the step."""
        self._activations = {stage: [] for stage in range(1, self.manifest.stage_count)}
        return super().differentiate(iteration, groups, twice)

    def _differentiate_microbatch(self, number: int) -> float:
        tokens = self.microbatch(number)
        x = self.model.model["embed_tokens"](tokens[:, :-1])
        seen: list[tuple[int, Tensor, Tensor]] = []
        for stage in self.route(number):
            entered, x = x, self._through(stage, x)
            x.retain_grad()
            seen.append((stage, entered, x))
        logits = self.model.lm_head(self.model.model["norm"](x))
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        (losses.sum() / self.manifest.tokens_per_iteration).backward()  # type: ignore[no-untyped-call]
        if self.log.maxlen:
            for stage, entered, left in seen:
                assert left.grad is not None, "retained"
                kept = (self._as_kept(tensor) for tensor in (entered.detach(), left.detach(), left.grad))
                self._activations[stage].append(BoundaryActivations(*kept))
        return losses.detach().double().sum().item() / self.manifest.tokens_per_iteration

    def _as_kept(self, tensor: Tensor) -> Tensor:
        """What comes back out of an activation log."""
        shape, dtype = self._shape, self._log_dtype
        if dtype == "wire":
            return tensor
        room = bytearray(shape.packed_bytes(dtype))
        shape.pack(shape.encode(tensor), dtype, room)
        return shape.decode(shape.unpack(bytes(room), dtype))

    def step(self, scalars_of: Callable[[list[float]], Sequence[StepScalars]]) -> list[float]:
        """Step every stage with the gradients at hand; the squared gradient norm of each before
        clipping.
        """
        gradients = [self.flat_gradient(stage) for stage in range(self.manifest.stage_count)]
        norms = [torch.dot(g.double(), g.double()).item() for g in gradients]
        scalars = tuple(scalars_of(norms))
        for state, gradient, numbers in zip(self.stages, gradients, scalars, strict=True):
            canonical_step(state, gradient, numbers)
        if self.log.maxlen:
            self.log.append(StudyLog({stage: tuple(activations) for stage, activations in self._activations.items()}, scalars))
        return norms

    # ---- losing and bringing back ----------------------------------------------------------------

    def copy(self, stage: int) -> StageCopy:
        """Copy everything that a stage holds."""
        state = self.stages[stage]
        return StageCopy(state.weights.clone(), state.first_moment.clone(), state.second_moment.clone())

    def put(self, stage: int, copy: StageCopy) -> None:
        """Put a copy back into its stage."""
        state = self.stages[stage]
        state.weights.copy_(copy.weights)
        state.first_moment.copy_(copy.first_moment)
        state.second_moment.copy_(copy.second_moment)

    def lose(self, stage: int) -> None:
        """Lose a stage: its weights and moments become zero."""
        state = self.stages[stage]
        for vector in (state.weights, state.first_moment, state.second_moment):
            vector.zero_()

    def draw(self, stage: int, salt: int) -> None:
        """Draw other first weights for a stage; its moments become zero."""
        self.lose(stage)
        state = self.stages[stage]
        draw_weights(self.manifest, state.layout, state.weights, salt)

    def merge(self, stage: int, before: int, after: int, weights: tuple[float, float]) -> None:
        """Make a stage the weighted mean of two stages with as many blocks, as CheckFree does;
        moments zero.
        """
        vectors = [[float_bytes(self.stages[neighbour].weights)] for neighbour in (before, after)]
        bits = [float32_bits(weight) for weight in weights]
        self.lose(stage)
        merge_floats(vectors[0], vectors[1], bits[0], bits[1], self.stages[stage].weights)

    def shadow(self, stage: int) -> bytes:
        """Return the stage's plain shadow."""
        return to_int8(self.stages[stage].weights)

    def restore(self, stage: int, shadow: bytes) -> None:
        """Restore a stage's weights from a plain shadow; its moments become zero."""
        self.lose(stage)
        target = self.stages[stage].weights
        target.copy_(from_int8(shadow, len(target)))

    def replay(
        self,
        stages: Sequence[int],
        logged: Sequence[StudyLog],
        scalars_of: Callable[[int, int, StepScalars], StepScalars] | None = None,
    ) -> None:
        """Run lost stages, which are as their shadows were, alone through the iterations since:
        from full ones bit for bit where they were.

        Args:
            stages: consecutive ones, plain routes.
            logged: the iterations since the shadows; only the outer two boundaries are read.
            scalars_of: (place in the log from 0, stage, logged scalars) -> those to step with; the
                logged ones where it is None.
        """
        for place, entry in enumerate(logged):
            self.model.zero_grad(set_to_none=True)
            for first, last in zip(entry.activations[stages[0]], entry.activations[stages[-1]], strict=True):
                x = first.entered.clone().requires_grad_()
                for stage in stages:
                    x = self._through(stage, x)
                x.backward(last.returned)  # type: ignore[no-untyped-call]
            for stage in stages:
                logged_ones = entry.scalars[stage]
                scalars = logged_ones if scalars_of is None else scalars_of(place, stage, logged_ones)
                canonical_step(self.stages[stage], self.flat_gradient(stage), scalars)

    def refit(self, stage: int, logged: Sequence[StudyLog], steps: int, scalars_of: Callable[[int], StepScalars]) -> None:
        """Fit the stage as it is to what its neighbours saw go in and out: mean squared error, one
        logged iteration a step, moments zero after.

        Args:
            steps: how many.
            scalars_of: step number from 0 -> scalars.
        """
        state = self.stages[stage]
        for step in range(steps):
            self.model.zero_grad(set_to_none=True)
            activations = logged[step % len(logged)].activations[stage]
            for each in activations:
                wrong = self._through(stage, each.entered) - each.left
                (wrong.square().mean() / len(activations)).backward()  # type: ignore[no-untyped-call]
            canonical_step(state, self.flat_gradient(stage), scalars_of(step))
        state.first_moment.zero_()
        state.second_moment.zero_()
