"""The engine: one stage's tensors and arithmetic behind the `Engine` port, in torch on the
processor.

It ties the other files of this room together and keeps what a stage needs between calls: state,
graphs, sums, the average. It decides nothing, knows no peer and does no I/O. All calls come from
one thread, one at a time; the constructor may run on another.

Torch keeps the number of threads per calling thread: a thread that has worked before does not
notice a change made elsewhere. So the engine sets it on the thread that calls it, whenever that
thread has another number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarmfree.model import passes
from swarmfree.model.block_digests import block_ranges, stage_digest
from swarmfree.model.codec import float_bytes, floats, write_floats
from swarmfree.model.layout import FLOAT_BYTES, Layout, Part, layout_of
from swarmfree.model.memory import Digests, Reserve, vector_digest
from swarmfree.model.merge import merge_floats
from swarmfree.model.optimizer import canonical_step
from swarmfree.model.shadow import from_int8, to_int8
from swarmfree.model.stages import BodyStage, Ends, StageState, blank_stage, draw_part, draw_weights
from swarmfree.model.sums import GradientSums, add_up, relative_distance
from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.engine_port import Pieces, Writable
from swarmfree.protocol.manifest import LogDtype, Manifest
from swarmfree.protocol.records import StepScalars
from swarmfree.protocol.split import BlockSplit


class TorchEngine:
    """Implements `swarmfree.protocol.engine_port.Engine`; what each method promises is written
    there.

    Args:
        manifest: the run's.
        threads: torch threads of the device.
    """

    def __init__(self, manifest: Manifest, threads: int) -> None:
        """Hold no stage yet; nothing is allocated."""
        assert threads >= 1, f"{threads} threads"
        self._manifest = manifest
        self._threads = threads
        self._shape = passes.BatchShape.of(manifest)
        self._split = manifest.split
        self._layouts: dict[int, Layout] = {}
        self._state: StageState | None = None
        self._sums: GradientSums | None = None
        self._graphs: dict[int, passes.Graph] = {}
        self._average: Tensor | None = None
        self._average_parts: set[int] = set()
        self._average_is_old = False
        self._digests: Digests | None = None
        self._reserve = Reserve()

    # -- state

    def follow(self, split: BlockSplit) -> None:
        """Cut stages so from here on; what has other blocks then is let go."""
        if self._state is not None and split.blocks_of(self._state.layout.stage) != self._state.layout.blocks:
            self.unload()
        self._split = split
        self._layouts.clear()

    def part_count(self, stage: int) -> int:
        """Number of parts of a stage, held or not."""
        return len(self._layout(stage).parts)

    def draw(self, stage: int, salt: int) -> None:
        """Hold `stage` with first weights, moments zero."""
        self.blank(stage)
        state = self._held()
        draw_weights(self._manifest, state.layout, state.weights, salt)

    def reserve(self, stage: int, part: int) -> None:
        """Take the memory of one part of the stage that is held next; nothing, while one is
        held.
        """
        if self._state is None:
            self._reserve.take(self._layout(stage), part)

    def blank(self, stage: int) -> None:
        """Hold `stage` with everything zero."""
        self._settle()
        self.unload()
        self._state = blank_stage(self._manifest, stage, self._reserve.give(self._layout(stage).size), self._split)
        self._sums = GradientSums(self._state.layout, self._state.parameters())
        self._digests = Digests(self._state)

    def copy_part(self, part: int, other: TorchEngine, there: int) -> None:
        """Copy weights and moments, and the digest where it is known."""
        here, beyond = self._part(part), other._part(there)
        assert here.floats == beyond.floats, f"{here.floats} floats for {beyond.floats}"
        other._held_digests().take(there, self._held_digests(), part)
        own, others = self._held().vectors(weights_only=False), other._held().vectors(weights_only=False)
        for mine, its in zip(own, others, strict=True):
            its[beyond.start : beyond.stop] = mine[here.start : here.stop]

    def swap(self, other: TorchEngine) -> None:
        """Exchange states and splits; nothing is copied."""
        self.clear()  # no buffer of gradients goes with what is exchanged
        other.clear()
        held, split = (self._state, self._digests), self._split
        self._take(other._state, other._digests, other._split)
        other._take(*held, split)

    def _take(self, state: StageState | None, digests: Digests | None, split: BlockSplit) -> None:
        self._settle()
        self.unload()
        self._split, self._state, self._digests = split, state, digests
        self._layouts.clear()
        self._sums = GradientSums(state.layout, state.parameters()) if state is not None else None

    def unload(self) -> None:
        """Hold nothing."""
        self._graphs.clear()
        self._state = self._sums = self._average = self._digests = None
        self._average_parts.clear()

    def read_state(self, part: int, *, weights_only: bool) -> bytes:
        """One part's weights, or weights and both moments."""
        where = self._part(part)
        return float_bytes(*(v[where.start : where.stop] for v in self._held().vectors(weights_only=weights_only)))

    def write_state(self, part: int, data: bytes, *, weights_only: bool) -> None:
        """Inverse of `read_state`.

        Raises:
            ValueError: wrong length.
        """
        state, where = self._held(), self._part(part)
        vectors, size_bytes = state.vectors(weights_only=weights_only), where.floats * FLOAT_BYTES
        if len(data) != (expected := size_bytes * len(vectors)):
            raise ValueError(f"{len(data):,} bytes for part {part} of stage {state.layout.stage}; {expected:,} expected")
        self._held_digests().change(part, moments=not weights_only)
        for index, vector in enumerate(vectors):
            write_floats(vector[where.start : where.stop], memoryview(data)[index * size_bytes : (index + 1) * size_bytes])

    def read_shadow(self, part: int) -> bytes:
        """One part's weights in blocks of int8."""
        where = self._part(part)
        return to_int8(self._held().weights[where.start : where.stop])

    def write_shadow(self, part: int, data: bytes) -> None:
        """Inverse of `read_shadow`, but for rounding; moments zero.

        Raises:
            ValueError: wrong length.
        """
        state, where = self._held(), self._part(part)
        state.weights[where.start : where.stop] = from_int8(data, where.floats)
        digests = self._held_digests()
        digests.change(part, moments=False)
        if not digests.rests(part):
            state.first_moment[where.start : where.stop] = state.second_moment[where.start : where.stop] = 0.0
            digests.rest(part)

    def merge_state(
        self, part: int, before: Pieces, after: Pieces, weight_before: int, weight_after: int, mode: MergeMode
    ) -> None:
        """Weights of one part from its neighbours' parts; `RANDOM` draws instead, anew for other
        weight bits.

        Raises:
            ValueError: a donor that counts has the wrong length.
        """
        self._settle()
        state, where = self._held(), self._part(part)
        target = state.weights[where.start : where.stop]
        self._held_digests().change(part, moments=False)
        if mode is MergeMode.RANDOM:
            target.copy_(draw_part(self._manifest, state.layout, part, f"random {weight_before:08x} {weight_after:08x}"))
        else:
            merge_floats(before, after, weight_before, weight_after, target)

    def state_digest(self) -> str:
        """BLAKE3 over the blocks' BLAKE3."""
        return self._held_digests().whole()

    def digest_part(self, part: int) -> tuple[str, str, str]:
        """What `state_digest` needs of one part."""
        weights, first_moment, second_moment = self._held_digests().of(part)
        return weights.hex(), first_moment.hex(), second_moment.hex()

    def export(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """Hugging Face name -> (shape, float32 bytes)."""
        state = self._held()
        return {slot.name: (slot.shape, float_bytes(state.weights[slot.start : slot.stop])) for slot in state.layout.slots}

    # -- work of the body

    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Blocks with a graph kept under `ticket`.

        Raises:
            ValueError: wrong length.
        """
        self._settle()
        self._graphs[ticket], out = passes.run_forward(self._body(), self._shape, activations)
        return out

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """Add the weight gradient to `partial_sum`, drop the graph, return the input gradient.

        Raises:
            ValueError: wrong length; graph and partial sum are as before.
            KeyError: no graph under this ticket.
            RuntimeError: the partial sum is void. An exception in the middle of the pass makes it
                so.
        """
        self._settle()
        decoded = self._shape.decode(gradient)
        entry_gradient = self._backward(self._take_graph(ticket), decoded, partial_sum)
        assert entry_gradient is not None, "activations of the body always have a gradient"
        return self._shape.encode(entry_gradient)

    def forward_only(self, activations: bytes) -> bytes:
        """The same output as `forward`, no graph."""
        self._settle()
        return passes.run_forward_only(self._body(), self._shape, activations)

    def packed_bytes(self, size_bytes: int, dtype: LogDtype) -> int:  # noqa: ARG002 (of this run, all are alike)
        """Return the length of activations once packed, in bytes."""
        return self._shape.packed_bytes(dtype)

    def pack(self, data: bytes, dtype: LogDtype, room: Writable) -> None:
        """Pack activations for an activation log."""
        self._shape.pack(data, dtype, room)

    def unpack(self, data: bytes, dtype: LogDtype) -> bytes:
        """Inverse of `pack`, but for rounding."""
        return self._shape.unpack(data, dtype)

    # -- work of the ends

    def embed(self, ticket: int, tokens: bytes) -> bytes:
        """Embed a microbatch and keep its graph.

        Raises:
            ValueError: wrong length.
            IndexError: a token is outside the vocabulary.
        """
        self._settle()
        self._graphs[ticket], out = passes.run_embed(self._ends(), self._shape, tokens)
        return out

    def embed_only(self, tokens: bytes) -> bytes:
        """The same output, nothing kept."""
        self._settle()
        return passes.run_embed_only(self._ends(), self._shape, tokens)

    def embed_backward(self, ticket: int, gradient: bytes, partial_sum: int) -> None:
        """Add the embedding's gradient to `partial_sum`; errors as in `backward`."""
        self._settle()
        decoded = self._shape.decode(gradient)
        self._backward(self._take_graph(ticket), decoded, partial_sum)

    def loss(self, activations: bytes, tokens: bytes, partial_sum: int) -> tuple[bytes, float]:
        """Gradient of the activations, and this microbatch's share of the iteration's mean loss;
        errors as in `backward`.
        """
        self._settle()
        graph, share = passes.start_loss(self._ends(), self._shape, activations, tokens)
        entry_gradient = self._backward(graph, passes.loss_gradient(graph, self._shape), partial_sum)
        assert entry_gradient is not None, "activations of the ends always have a gradient"
        return self._shape.encode(entry_gradient), share

    def loss_only(self, activations: bytes, tokens: bytes) -> float:
        """Mean nats per token of the microbatch; no gradient."""
        self._settle()
        return passes.run_loss_only(self._ends(), self._shape, activations, tokens)

    def forget(self, ticket: int) -> None:
        """Drop a kept graph, if it is there."""
        self._graphs.pop(ticket, None)

    # -- sums

    def sum_bytes(self, part: int) -> int:
        """How long one part of a sum is."""
        return self._part(part).floats * FLOAT_BYTES

    def contribution(self, partial_sums: Sequence[int], part: int) -> bytes:
        """One part of the sum of these partial sums, added in this order.

        Raises:
            KeyError: nothing was added to one of them.
            RuntimeError: one of them is void.
        """
        where = self._part(part)
        return float_bytes(self._held_sums().read(partial_sums, where.start, where.stop))

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """Sum in order and its squared L2 norm; errors as in `add_up`."""
        self._settle()
        return add_up(contributions)

    def distance(self, found: bytes, expected: bytes, *, is_sum: bool) -> float:
        """Relative L2 distance of two parts of a sum, or of two tensors that travel."""
        self._settle()
        if len(found) != len(expected):
            return math.inf
        read = floats if is_sum else self._shape.decode
        return relative_distance(read(found), read(expected))

    def keep_average(self, part: int, data: bytes) -> None:
        """Keep one part of the average; the first one after a step or a `clear` begins a new one.
        `ValueError`: wrong length.
        """
        where = self._part(part)
        if len(data) != where.floats * FLOAT_BYTES:
            raise ValueError(f"{len(data):,} bytes for part {part} of an average; {where.floats * FLOAT_BYTES:,} expected")
        if self._average is None:
            self._average = torch.empty(self._held().layout.size)
        if self._average_is_old:
            self._average_parts.clear()
            self._average_is_old = False
        write_floats(self._average[where.start : where.stop], data)
        self._average_parts.add(part)

    def read_average(self, part: int) -> bytes:
        """One kept part.

        Raises:
            KeyError: it is not kept.
        """
        where = self._part(part)
        if self._average is None or part not in self._average_parts:
            raise KeyError(f"part {part} of the average is not kept")
        return float_bytes(self._average[where.start : where.stop])

    def average_digest(self) -> str:
        """BLAKE3 over the blocks' BLAKE3.

        Raises:
            KeyError: a part is missing.
        """
        average = self._whole_average()
        ranges = block_ranges(self._held().layout)
        return stage_digest([vector_digest(average[start:stop]).digest() for start, stop in ranges])

    def step(self, scalars: StepScalars) -> None:
        """One canonical AdamW step with the kept average.

        Raises:
            KeyError: a part of the average is missing.
        """
        self._settle()
        self._held_digests().change_all()
        canonical_step(self._held(), self._whole_average(), scalars)
        self._average_is_old = True

    def step_part(self, part: int, average: bytes, scalars: StepScalars) -> None:
        """The same step of one part alone, with its average from outside.

        Raises:
            ValueError: wrong length.
        """
        self._settle()
        where = self._part(part)
        self._held_digests().change(part, moments=True)
        canonical_step(self._held(), floats(average, where.floats), scalars, where.start, where.stop)

    def void(self, partial_sum: int) -> None:
        """Forget one sum, whatever state it is in."""
        self._held_sums().forget(partial_sum)

    def clear(self) -> None:
        """Forget all sums and graphs; the average stays until the next `keep_average`."""
        self._graphs.clear()
        if self._sums is not None:
            self._sums.clear()
        self._average_is_old = True

    # -- inside

    def _settle(self) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _layout(self, stage: int) -> Layout:
        if stage not in self._layouts:
            self._layouts[stage] = layout_of(self._manifest, stage, self._split)
        return self._layouts[stage]

    def _held(self) -> StageState:
        assert self._state is not None, "no stage is held"
        return self._state

    def _held_digests(self) -> Digests:
        assert self._digests is not None, "no stage is held"
        return self._digests

    def _held_sums(self) -> GradientSums:
        assert self._sums is not None, "no stage is held"
        return self._sums

    def _body(self) -> BodyStage:
        module = self._held().module
        assert isinstance(module, BodyStage), "stage 0 has no blocks"
        return module

    def _ends(self) -> Ends:
        module = self._held().module
        assert isinstance(module, Ends), "a body stage has no ends"
        return module

    def _part(self, part: int) -> Part:
        parts = self._held().layout.parts
        if not 0 <= part < len(parts):
            raise IndexError(f"part {part} of a stage of {len(parts)}")
        return parts[part]

    def _take_graph(self, ticket: int) -> passes.Graph:
        if ticket not in self._graphs:
            raise KeyError(f"ticket {ticket}: no graph is kept")
        return self._graphs.pop(ticket)

    def _backward(self, graph: passes.Graph, gradient: Tensor, partial_sum: int) -> Tensor | None:
        with self._held_sums().adding_to(partial_sum):
            return passes.run_backward(graph, gradient)

    def _whole_average(self) -> Tensor:
        layout = self._held().layout
        missing = set(range(len(layout.parts))) - self._average_parts
        if missing:
            raise KeyError(f"parts {sorted(missing)} of the average are not kept")
        return self._average if self._average is not None else torch.empty(0)
