"""The engine with integers: a stage whose gradients are unique numbers, so that "exactly once" is
an exact equality.

It implements `engine_port.Engine` on `integer_arithmetic`. It is as strict as a device would be
careless: a gradient that belongs to another microbatch than its ticket, or a forgotten ticket, is
an error here and silent nonsense there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from swarmfree.protocol.actions import MergeMode
from swarmfree.protocol.engine_port import Pieces, Writable
from swarmfree.protocol.manifest import LogDtype, Manifest
from swarmfree.protocol.names import ABSENT
from swarmfree.protocol.records import StepScalars
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.integer_arithmetic import EMBEDDING_PARTS, STATE_BYTES, PartState, State, Tensor, Words


class IntegerEngine:
    """One stage in integers; see `engine_port.Engine` for what each method promises.

    Args:
        manifest: seed and microbatches per iteration.
    """

    def __init__(self, manifest: Manifest) -> None:
        """Hold no stage."""
        self._manifest, self._split, self._microbatches = manifest, manifest.split, manifest.batch.most
        self.unload()

    # -- state
    def follow(self, split: BlockSplit) -> None:
        """Cut stages so from here on; what has other blocks then is let go."""
        if self._stage != ABSENT and split.blocks_of(self._stage) != self._split.blocks_of(self._stage):
            self.unload()
        self._split = split

    def part_count(self, stage: int) -> int:
        """Number of parts of a stage."""
        return arithmetic.part_count(self._split, stage)

    def draw(self, stage: int, salt: int) -> None:
        """Hold drawn weights."""
        self._hold(stage, arithmetic.drawn(self._manifest.run.seed, self._split, salt, stage))

    def reserve(self, stage: int, part: int) -> None:
        """Nothing needs to be taken."""
        assert part < self.part_count(stage), f"part {part} of a stage of {self.part_count(stage)}"

    def blank(self, stage: int) -> None:
        """Hold zeros."""
        self._hold(stage, (PartState(bytes(STATE_BYTES)),) * self.part_count(stage))

    def copy_part(self, part: int, other: IntegerEngine, there: int) -> None:
        """Copy weights and moments."""
        other._set(there, self._state[part])

    def swap(self, other: IntegerEngine) -> None:
        """Exchange states and splits."""
        stage, state = self._stage, self.state
        self._split, other._split = other._split, self._split
        self._hold(other._stage, other.state)
        other._hold(stage, state)

    def unload(self) -> None:
        """Hold nothing."""
        self._hold(ABSENT, ())

    def _hold(self, stage: int, state: State) -> None:
        self._stage, self._state = stage, list(state)
        self._first = self._split.blocks_of(stage).start if stage != ABSENT else 0
        self._weights_name: tuple[bytes, ...] | None = None
        self._average: dict[int, bytes] = {}
        self._tickets: dict[int, bytes | tuple[Tensor, ...]] = {}
        self._sums: dict[int, list[Words]] = {}

    @property
    def state(self) -> State:
        """Weights and moments as they are."""
        return tuple(self._state)

    @property
    def stage(self) -> int:
        """The stage held, `ABSENT` if none."""
        return self._stage

    def read_state(self, part: int, *, weights_only: bool) -> bytes:
        """One part's weights, or weights and both moments."""
        state = self._state[part]
        return state.weights if weights_only else state.weights + state.first + state.second

    def write_state(self, part: int, data: bytes, *, weights_only: bool) -> None:
        """Inverse of `read_state`."""
        expected = STATE_BYTES if weights_only else 3 * STATE_BYTES
        if len(data) != expected:
            raise ValueError(f"{len(data)} bytes for a part; {expected} expected")
        held = self._state[part]
        moments = (held.first, held.second) if weights_only else (data[STATE_BYTES : 2 * STATE_BYTES], data[2 * STATE_BYTES :])
        self._set(part, PartState(data[:STATE_BYTES], *moments))

    def read_shadow(self, part: int) -> bytes:
        """Return the weights exactly: integers need no rounding."""
        return self._state[part].weights

    def write_shadow(self, part: int, data: bytes) -> None:
        """Hold these weights, without moments."""
        if len(data) != STATE_BYTES:
            raise ValueError(f"{len(data)} bytes for a part's shadow; {STATE_BYTES} expected")
        self._set(part, PartState(data))

    def merge_state(
        self, part: int, before: Pieces, after: Pieces, weight_before: int, weight_after: int, mode: MergeMode
    ) -> None:
        """One part from both neighbours."""
        sides = [b"".join(pieces) for pieces in (before, after)]
        if any(len(side) != STATE_BYTES for side in sides):
            raise ValueError(f"{len(sides[0])} and {len(sides[1])} bytes to merge; {STATE_BYTES} expected of each")
        merged, held = arithmetic.merged(sides[0], sides[1], weight_before, weight_after, mode), self._state[part]
        # As in torch: moments are the builder's to clear
        self._set(part, PartState(merged.weights, held.first, held.second))

    def _set(self, part: int, state: PartState) -> None:
        self._state[part] = state
        self._weights_name = None

    @property
    def _blocks(self) -> tuple[bytes, ...]:
        """Weights of each block; of the ends all in one."""
        if self._weights_name is None:
            weights = arithmetic.block_weights(self.state) if self._stage else (arithmetic.weights_of(self.state),)
            self._weights_name = weights
        return self._weights_name

    @property
    def _weights(self) -> bytes:
        assert self._stage == 0, "only the ends are one"
        return self._blocks[0]

    def state_digest(self) -> str:
        """Hex digest over weights and moments."""
        return arithmetic.state_digest(self.state)

    def digest_part(self, part: int) -> tuple[str, str, str]:
        """Nothing is put off."""
        state = self._state[part]
        weights, first, second = (hashlib.sha256(vector).hexdigest() for vector in (state.weights, state.first, state.second))
        return weights, first, second

    def export(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """A tensor per part."""
        shape = (STATE_BYTES // 4,)
        return {f"stage.{self._stage}.part.{index}": (shape, part.weights) for index, part in enumerate(self._state)}

    # -- work of the body
    def forward(self, ticket: int, activations: bytes) -> bytes:
        """Output of this stage; the input is kept."""
        assert self._stage > 0, "only a body stage goes forward"
        tensor = Tensor.decode(activations)
        assert ticket not in self._tickets, f"ticket {ticket} is in use"
        chain = arithmetic.forward(self._first, self._blocks, tensor)
        self._tickets[ticket] = chain
        return chain[-1].encode()

    def backward(self, ticket: int, gradient: bytes, partial_sum: int) -> bytes:
        """Add the weight gradient, return the input gradient."""
        entered, returned = self._tickets.pop(ticket), Tensor.decode(gradient)
        assert not isinstance(entered, bytes), f"ticket {ticket} is an embedding's"
        assert (returned.kind, returned.number) == (entered[0].kind, entered[0].number), (
            f"the gradient of microbatch {returned.number} came back for microbatch {entered[0].number}"
        )
        chain = arithmetic.backward(self._first, self._blocks, entered, returned)
        for index, weights in enumerate(self._blocks):
            pieces = (weights, entered[index].encode(), chain[index + 1].encode())
            self._add(partial_sum, arithmetic.parts_of_block(index), returned.number, pieces)
        return chain[0].encode()

    def forward_only(self, activations: bytes) -> bytes:
        """The same output, nothing kept."""
        assert self._stage > 0, "only a body stage goes forward"
        return arithmetic.forward(self._first, self._blocks, Tensor.decode(activations))[-1].encode()

    def packed_bytes(self, size_bytes: int, dtype: LogDtype) -> int:
        """Return the packed length in bytes: the data and a mark that names `dtype`."""
        return len(dtype) + 1 + size_bytes

    def pack(self, data: bytes, dtype: LogDtype, room: Writable) -> None:
        """Marked as packed; an integer cannot be rounded."""
        room[:] = f"{dtype} ".encode() + data

    def unpack(self, data: bytes, dtype: LogDtype) -> bytes:
        """Return the data as it was before packing, after a check of its mark."""
        mark = f"{dtype} ".encode()
        assert data.startswith(mark), f"unpacked as {dtype} what was not packed so"
        return data[len(mark) :]

    # -- work of the ends
    def embed(self, ticket: int, tokens: bytes) -> bytes:
        """What goes to stage 1; the tokens are kept."""
        assert ticket not in self._tickets, f"ticket {ticket} is in use"
        self._tickets[ticket] = tokens
        return self.embed_only(tokens)

    def embed_only(self, tokens: bytes) -> bytes:
        """The same, nothing kept."""
        assert self._stage == 0, "only the ends embed"
        return arithmetic.embed(self._weights, tokens).encode()

    def embed_backward(self, ticket: int, gradient: bytes, partial_sum: int) -> None:
        """Add the embedding's gradient."""
        tokens, returned = self._tickets.pop(ticket), Tensor.decode(gradient)
        assert isinstance(tokens, bytes), f"ticket {ticket} is a body stage's"
        assert arithmetic.tokens_name(tokens) == (returned.kind, returned.number), (
            f"the gradient of microbatch {returned.number} came back for tokens of {arithmetic.tokens_name(tokens)}"
        )
        self._add(partial_sum, range(EMBEDDING_PARTS), returned.number, (self._weights, tokens, gradient))

    def loss(self, activations: bytes, tokens: bytes, partial_sum: int) -> tuple[bytes, float]:
        """Loss and the gradient of `activations`; adds the head's gradient."""
        tensor = self._checked(activations, tokens)
        gradient, value = arithmetic.loss(self._weights, tensor, tokens)
        pieces = (self._weights, activations, tokens)
        self._add(partial_sum, range(EMBEDDING_PARTS, self.part_count(0)), tensor.number, pieces)
        return gradient.encode(), value

    def loss_only(self, activations: bytes, tokens: bytes) -> float:
        """Return the loss, and keep no gradient."""
        return arithmetic.loss(self._weights, self._checked(activations, tokens), tokens)[1]

    def _checked(self, activations: bytes, tokens: bytes) -> Tensor:
        assert self._stage == 0, "only the ends know the loss"
        tensor = Tensor.decode(activations)
        assert arithmetic.tokens_name(tokens) == (tensor.kind, tensor.number), (
            f"activations of microbatch {tensor.number} meet the tokens of {arithmetic.tokens_name(tokens)}"
        )
        return tensor

    def forget(self, ticket: int) -> None:
        """Drop a kept input."""
        self._tickets.pop(ticket, None)

    @property
    def kept_numbers(self) -> tuple[int, ...]:
        """Microbatches whose input is kept, of all tickets."""
        return tuple(arithmetic.tokens_name(t)[1] if isinstance(t, bytes) else t[0].number for t in self._tickets.values())

    # -- sums
    def _add(self, partial_sum: int, parts: range, number: int, pieces: tuple[bytes, ...]) -> None:
        held = self._sums.get(partial_sum)
        if held is None:
            held = self._sums[partial_sum] = [self._zero() for _ in range(self.part_count(self._stage))]
        for part in parts:
            name = arithmetic.part_name(self._stage, self._first, part)
            held[part] += arithmetic.weight_gradient(name, self._microbatches, number, pieces)

    def _zero(self) -> Words:
        return np.zeros(arithmetic.VALUE_WORDS + self._microbatches, dtype="<u8")

    def sum_bytes(self, part: int) -> int:
        """All alike."""
        assert 0 <= part < len(self._state), f"part {part} of a stage of {len(self._state)}"
        return 8 * (arithmetic.VALUE_WORDS + self._microbatches)

    def contribution(self, partial_sums: Sequence[int], part: int) -> bytes:
        """One part of the sum of these partial sums; one that is not there is an error."""
        total = self._zero()
        for partial_sum in partial_sums:
            total += self._sums[partial_sum][part]
        return total.tobytes()

    def reduce(self, contributions: Sequence[bytes]) -> tuple[bytes, float]:
        """Sum and squared norm."""
        total = self._zero().tobytes()
        for contribution in contributions:
            total = arithmetic.add(total, contribution)
        return total, arithmetic.squared_norm(total)

    def distance(self, found: bytes, expected: bytes, *, is_sum: bool) -> float:
        """Integers are equal or have nothing to do with each other."""
        del is_sum
        return 0.0 if found == expected else math.inf

    def keep_average(self, part: int, data: bytes) -> None:
        """Keep one part of the average."""
        if len(data) != self.sum_bytes(part):
            raise ValueError(f"{len(data)} bytes for a part of an average")
        self._average[part] = data

    def read_average(self, part: int) -> bytes:
        """Give it back."""
        return self._average[part]

    def average_digest(self) -> str:
        """Hex digest over all parts."""
        return arithmetic.sum_digest(self._whole_average())

    def _whole_average(self) -> tuple[bytes, ...]:
        return tuple(self._average[part] for part in range(self.part_count(self._stage)))

    def step(self, scalars: StepScalars) -> None:
        """Step every part with the kept average."""
        for part, average in enumerate(self._whole_average()):
            self._set(part, arithmetic.stepped(self._state[part], average, scalars))

    def step_part(self, part: int, average: bytes, scalars: StepScalars) -> None:
        """Step one part with this average."""
        if len(average) != self.sum_bytes(part):
            raise ValueError(f"{len(average)} bytes for a part of an average")
        self._set(part, arithmetic.stepped(self._state[part], average, scalars))

    def void(self, partial_sum: int) -> None:
        """Forget one sum."""
        self._sums.pop(partial_sum, None)

    def clear(self) -> None:
        """Forget all sums and graphs."""
        self._sums.clear()
        self._tickets.clear()
