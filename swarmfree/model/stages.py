"""The model cut into stages: stage 0 holds both ends, stages 1..L hold whole blocks; and the first
draw of their weights.

A stage's weights and its two moments are three flat float32 vectors laid out by `layout`; the
modules' parameters are views into the first, so that step, merge, copy and digest are work on
ranges. Passes, sums and steps are other files' work.

Letters: ``B`` rows, ``T`` tokens per row, ``D`` width, ``E`` head width, ``V`` vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
from torch import Tensor, nn

from swarmfree.model.codec import zero_floats
from swarmfree.model.layers import Block, RMSNorm, rotary_angles
from swarmfree.model.layout import Layout, Slot, layout_of
from swarmfree.protocol.manifest import Manifest, ModelSection
from swarmfree.protocol.names import ENDS_STAGE
from swarmfree.protocol.split import BlockSplit


class Ends(nn.Module):
    """Stage 0: token embedding, final norm and head, the head untied from the embedding."""

    def __init__(self, model: ModelSection) -> None:
        """Hold the three under their Hugging Face names."""
        super().__init__()
        # Not nn.Embedding(V, D): its random draw on the meta device loads all of torch._dynamo: a
        # second, and a temporary folder.
        embed_tokens = nn.Embedding.from_pretrained(torch.empty(model.vocabulary, model.width), freeze=False)  # type: ignore[no-untyped-call]
        norm = RMSNorm(model.width, model.norm_eps)
        self.model = nn.ModuleDict({"embed_tokens": embed_tokens, "norm": norm})
        self.lm_head = nn.Linear(model.width, model.vocabulary, bias=False)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, D)."""
        out: Tensor = self.model["embed_tokens"](tokens)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, V)."""
        out: Tensor = self.lm_head(self.model["norm"](x))
        return out

    def token_losses(self, x: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy in nats of every predicted token: (B, T, D) and (B, T) -> (B * T,)."""
        return F.cross_entropy(self.logits(x).flatten(0, 1), targets.flatten(), reduction="none")


class BodyStage(nn.Module):
    """A body stage: consecutive blocks, named by their number in the whole model."""

    def __init__(self, model: ModelSection, blocks: Sequence[int], cos: Tensor, sin: Tensor) -> None:
        """Hold `blocks`; `cos` and `sin` (T, E) are no weights."""
        super().__init__()
        self.model = nn.ModuleDict({"layers": nn.ModuleDict({str(block): Block(model) for block in blocks})})
        self.cos, self.sin = cos, sin

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        for block in self.model["layers"].values():  # type: ignore[operator]
            x = block(x, self.cos, self.sin)
        return x


def build_stage(manifest: Manifest, layout: Layout, weights: Tensor) -> Ends | BodyStage:
    """Make a stage's module on top of its flat vector.

    Args:
        manifest: the run's.
        layout: of the stage.
        weights: flat float32 vector of its size; the parameters become views into it.
    """
    cos, sin = rotary_angles(manifest.model)
    # No memory and no random draws for weights that are replaced at once
    with torch.device("meta"):
        module = Ends(manifest.model) if layout.stage == ENDS_STAGE else BodyStage(manifest.model, layout.blocks, cos, sin)
    attach(module, layout, weights)
    return module


def attach(module: nn.Module, layout: Layout, weights: Tensor) -> None:
    """Make every parameter that `layout` names a view into the flat vector `weights`."""
    for slot in layout.slots:
        owner, _, name = slot.name.rpartition(".")
        view = weights[slot.start : slot.stop].view(slot.shape)
        setattr(module.get_submodule(owner), name, nn.Parameter(view))


@dataclass(frozen=True, slots=True)
class StageState:
    """One held stage.

    Args:
        layout: where what lies.
        module: the layers; parameters are views into `weights`.
        weights, first_moment, second_moment: flat float32 vectors.
    """

    layout: Layout
    module: Ends | BodyStage
    weights: Tensor
    first_moment: Tensor
    second_moment: Tensor

    def vectors(self, *, weights_only: bool) -> tuple[Tensor, ...]:
        """Weights, or weights and both moments."""
        return (self.weights,) if weights_only else (self.weights, self.first_moment, self.second_moment)

    def parameters(self) -> list[nn.Parameter]:
        """List the parameters in the order of the layout's slots."""
        return [self.module.get_parameter(slot.name) for slot in self.layout.slots]


def blank_stage(manifest: Manifest, stage: int, memory: Sequence[Tensor] = (), split: BlockSplit | None = None) -> StageState:
    """Hold a stage with everything zero.

    Args:
        manifest, stage, split: as for `layout_of`.
        memory: three vectors of zeros, of the stage's length, to be used; taken anew where there
            are none.
    """
    layout = layout_of(manifest, stage, split)
    weights, first_moment, second_moment = memory or [zero_floats(layout.size) for _ in range(3)]
    return StageState(layout, build_stage(manifest, layout, weights), weights, first_moment, second_moment)


def _generator(*name: object) -> torch.Generator:
    """A generator seeded by a hash of `name`. Torch's CPU generator keeps 32 bits of it."""
    digest = hashlib.sha256("|".join(str(part) for part in name).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


def draw_slot(target: Tensor, slot: Slot, init_std: float, *name: object) -> None:
    """Fill one parameter, or a piece of it, with first weights: N(0, init_std) for matrices, 1 for
    gains.

    Args:
        target: flat view of the parameter or piece.
        slot: which parameter.
        init_std: standard deviation.
        name: whatever the draw is to depend on.
    """
    if slot.decays:
        target.normal_(0.0, init_std, generator=_generator(*name))
    else:
        target.fill_(1.0)


def draw_weights(manifest: Manifest, layout: Layout, weights: Tensor, salt: int) -> None:
    """First draw of a stage's weights, from (run seed, salt, stage, parameter name) alone.

    Torch's normal draw gives other bits on other vector units, so one replica draws and its
    siblings copy the bytes.

    Args:
        manifest: gives seed and ``init_std``.
        layout: of the stage.
        weights: flat vector, filled in place.
        salt: 0 for the run's first weights, another for every redraw.
    """
    for slot in layout.slots:
        target = weights[slot.start : slot.stop]
        draw_slot(target, slot, manifest.model.init_std, manifest.run.seed, salt, layout.stage, slot.name)


def draw_part(manifest: Manifest, layout: Layout, part: int, salt: object) -> Tensor:
    """Random weights for one part, for the merge that ignores its donors.

    Args:
        manifest: gives seed and ``init_std``.
        layout: of the stage.
        part: which.
        salt: makes one rebuild differ from the next.

    Returns:
        Float32 vector of the part's length; zero between parameters.
    """
    where = layout.parts[part]
    drawn = torch.zeros(where.floats)
    for slot in layout.slots:
        start, stop = max(slot.start, where.start), min(slot.stop, where.stop)
        if start < stop:
            target = drawn[start - where.start : stop - where.start]
            draw_slot(target, slot, manifest.model.init_std, manifest.run.seed, salt, layout.stage, slot.name, start)
    return drawn
