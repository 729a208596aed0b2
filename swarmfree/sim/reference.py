"""What should have come out: sums, losses and states computed from the integer model alone, without
any swarm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from swarmfree.policy.recovery import donor_block
from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, Replay, Restore, Stay
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.records import StepScalars
from swarmfree.protocol.routes import routes_of
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.integer_arithmetic import EMBEDDING_PARTS, PartState, State, Tensor, Words
from swarmfree.sim.integer_tokens import IntegerTokens


@dataclass(frozen=True, slots=True)
class StageSum:
    """The average that a stage should have: bytes of its parts, their digest, the squared norm."""

    parts: tuple[bytes, ...]
    digest: str
    squared_norm: float


@dataclass(frozen=True, slots=True)
class IterationSums:
    """What one iteration should come to: index = stage."""

    sums: tuple[StageSum, ...]
    loss: float


class IntegerReference:
    """The whole model in one place.

    Args:
        manifest: of the run.
        tokens: the corpus; its rows name their sequence.
    """

    def __init__(self, manifest: Manifest, tokens: IntegerTokens) -> None:
        """Nothing shown yet."""
        self._manifest, self._tokens = manifest, tokens
        self._microbatches = manifest.batch.most
        self._routes = routes_of(manifest)
        self._shown: dict[int, set[int]] = {}  # epoch -> sequences; only counted

    def name_of(self, tensor: bytes) -> tuple[bool, int]:
        """(is for training, microbatch or window) of a tensor on the ring."""
        decoded = Tensor.decode(tensor)
        return decoded.kind == arithmetic.TRAINING, decoded.number

    def iteration(self, iteration: int, states: Sequence[State], places: range, split: BlockSplit | None = None) -> IterationSums:
        """Sums and loss of an iteration that starts from these states, index = stage, and has the
        microbatches at these places of the data; `split` is how the model is cut, None = the
        manifest's way.
        """
        split = split or self._manifest.split
        totals: list[list[Words]] = [
            [np.zeros(arithmetic.VALUE_WORDS + self._microbatches, dtype="<u8") for _ in state] for state in states
        ]
        first = iteration * self._microbatches
        loss = 0.0
        for number, place in enumerate(places, start=first):
            loss += self._microbatch(number, place, states, totals, split)
        return IterationSums(tuple(_stage_sum(stage) for stage in totals), loss)

    def _microbatch(
        self, number: int, place: int, states: Sequence[State], totals: list[list[Words]], split: BlockSplit
    ) -> float:
        """Add one microbatch to the totals; returns its loss."""
        ends, body = arithmetic.weights_of(states[0]), [arithmetic.block_weights(state) for state in states]
        tokens = self._tokens.microbatch(number, place)

        def count(stage: int, parts: range, *pieces: bytes) -> None:
            for part in parts:
                name = arithmetic.part_name(stage, split.blocks_of(stage).start, part)
                totals[stage][part] += arithmetic.weight_gradient(name, self._microbatches, number, pieces)

        output, route = arithmetic.embed(ends, tokens), self._routes.route(number)
        entered: dict[int, tuple[Tensor, ...]] = {}
        for stage in route.stages:
            entered[stage] = arithmetic.forward(split.blocks_of(stage).start, body[stage], output)
            output = entered[stage][-1]
        returned, loss = arithmetic.loss(ends, output, tokens)
        count(0, range(EMBEDDING_PARTS, len(states[0])), ends, output.encode(), tokens)
        for stage in reversed(route.stages):
            chain = arithmetic.backward(split.blocks_of(stage).start, body[stage], entered[stage], returned)
            for index, weights in enumerate(body[stage]):
                count(stage, arithmetic.parts_of_block(index), weights, entered[stage][index].encode(), chain[index + 1].encode())
            returned = chain[0]
        count(0, range(EMBEDDING_PARTS), ends, tokens, returned.encode())
        return loss

    def difference(self, iteration: int, wrong: tuple[bytes, ...] | None, right: StageSum) -> str:
        """Why a sum is not the right one: which microbatches count how often, and should once."""
        if wrong is None:
            return "the recorded sum is not the right one, and no member ever held it"
        first = iteration * self._microbatches
        for part, found in enumerate(wrong):
            due = arithmetic.counts(right.parts[part])
            off = [f"microbatch {first + k} counts {n} times" for k, n in enumerate(arithmetic.counts(found)) if n != due[k]]
            if off:
                return f"{', '.join(off)} in part {part} (once expected)"
        parts = [part for part, (found, expected) in enumerate(zip(wrong, right.parts, strict=True)) if found != expected]
        return f"every microbatch counts once, but parts {parts} hold gradients of other weights, inputs or returned gradients"

    def show(self, iteration: int, places: range) -> str:
        """Count the sequences at these places of the data as shown in an iteration; a sentence if
        one was shown in this epoch before.
        """
        rows = self._manifest.batch.rows
        for number in places:
            rows_shown = np.frombuffer(self._tokens.microbatch(number), dtype="<i4").reshape(rows, -1)
            for row, sequence in enumerate(rows_shown[:, 0]):
                epoch = (number * rows + row) // self._tokens.sequence_count
                shown = self._shown.setdefault(epoch, set())
                if int(sequence) in shown:
                    return f"microbatch {number} of iteration {iteration} shows sequence {sequence} twice in epoch {epoch}"
                shown.add(int(sequence))
        return ""

    def evaluation(self, states: Sequence[State], split: BlockSplit | None = None) -> float:
        """Mean held-out loss of these states; `split` as for `iteration`."""
        split = split or self._manifest.split
        ends, body = arithmetic.weights_of(states[0]), [arithmetic.block_weights(state) for state in states]
        count = self._manifest.run.evaluate_windows
        total = 0.0
        for number in range(count):
            tokens = self._tokens.window(number)
            tensor = arithmetic.embed(ends, tokens)
            for stage in range(1, len(states)):
                tensor = arithmetic.forward(split.blocks_of(stage).start, body[stage], tensor)[-1]
            total += arithmetic.loss(ends, tensor, tokens)[1]
        return total / count

    def built(self, action: BuildAction, versions: Callable[[int], Iterable[State]], split: BlockSplit | None = None) -> set[str]:
        """Digests that a rebuilt stage may have, given the known states of a stage; empty where
        nothing is known of the donors. `split` as for `iteration`.
        """
        split = split or self._manifest.split
        match action:
            case Fresh(stage=stage, salt=salt):
                states = [arithmetic.drawn(self._manifest.run.seed, split, salt, stage)]
            case Restore() | Stay():
                # Parts of several iterations, see `is_restored`, and what was trained from such or
                # from a merge
                return set()
            case Copy(stage=stage) | CopyKept(stage=stage) | Replay(stage=stage):
                states = list(versions(stage))
            case CopyNeighbour(donor_stage=donor_stage):
                states = [
                    tuple(PartState(part.weights) for part in self._aligned(split, action.stage, donor_stage, state))
                    for state in versions(donor_stage)
                ]
            case Merge():
                states = [
                    self._merged(split, action, before, after)
                    for before in versions(action.before_stage)
                    for after in versions(action.after_stage)
                ]
        return {arithmetic.state_digest(state) for state in states}

    def is_restored(self, state: State, seen: Iterable[State]) -> bool:
        """Whether every part has weights that the stage once had, and no moments."""
        there = [found for found in seen if len(found) == len(state)]
        known = [{found[index].weights for found in there} for index in range(len(state))]
        return all(part == PartState(part.weights) and part.weights in known[index] for index, part in enumerate(state))

    def stepped(self, state: State, average: Sequence[bytes], scalars: StepScalars) -> str:
        """Digest of a stage's state after the step with this average."""
        parts = zip(state, average, strict=True)
        return arithmetic.state_digest(tuple(arithmetic.stepped(part, total, scalars) for part, total in parts))

    def _merged(self, split: BlockSplit, action: Merge, before: State, after: State) -> State:
        pairs = zip(
            self._aligned(split, action.stage, action.before_stage, before),
            self._aligned(split, action.stage, action.after_stage, after),
            strict=True,
        )
        weights, mode = (action.weight_before, action.weight_after), self._manifest.recovery.merge
        return tuple(arithmetic.merged(b.weights, a.weights, *weights, mode) for b, a in pairs)

    def _aligned(self, split: BlockSplit, stage: int, donor_stage: int, donor: State) -> State:
        """The donor's parts at the same relative depth, one for each part of the stage."""
        blocks, donor_blocks = len(split.blocks_of(stage)), len(split.blocks_of(donor_stage))
        found: list[PartState] = []
        for block in range(blocks):
            first = arithmetic.PARTS_PER_BLOCK * donor_block(block, blocks, donor_blocks)
            found.extend(donor[first : first + arithmetic.PARTS_PER_BLOCK])
        return tuple(found)

    def cut(self, states: Sequence[State], old: BlockSplit, new: BlockSplit) -> tuple[State, ...]:
        """The same blocks as another split has them; index = stage."""
        parts = [part for state in states[1:] for part in state]
        count = arithmetic.PARTS_PER_BLOCK
        assert len(parts) == count * old.blocks, f"{len(parts)} parts of {old.blocks} blocks"
        ranges = (new.blocks_of(stage) for stage in range(1, new.body + 1))
        return states[0], *(tuple(parts[count * r.start : count * r.stop]) for r in ranges)

    def exported(self, stage: int, state: State) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """What a stage with this state writes at the end."""
        shape = (arithmetic.STATE_BYTES // 4,)
        return {f"stage.{stage}.part.{index}": (shape, part.weights) for index, part in enumerate(state)}


def _stage_sum(stage: list[Words]) -> StageSum:
    parts = tuple(part.tobytes() for part in stage)
    norm = 0.0
    for part in parts:
        norm += arithmetic.squared_norm(part)
    return StageSum(parts, arithmetic.sum_digest(parts), norm)
