"""A batch that is set on the way: where its data begins, what a record makes of it, and who knows
it afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.policy.record import Circumstances, StageAverage, make_record
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import WorkKey, WorkKind
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.records import Record, SetBatch, bits_float32, float32_bits, float64_bits
from tests.mutants.alone import MANIFEST, Alone, play
from tests.wire.wire_samples import ALICE, PLAN, RECORD

BATCH = SetBatch(6, 25, 5, float32_bits(1.0))
SET_MANIFEST = replace(
    MANIFEST,
    batch=replace(MANIFEST.batch, microbatches_max=8),
    optimizer=replace(MANIFEST.optimizer, clip="none", warmup_iterations=0, schedule="constant"),
)


def place_after_a_set_batch() -> object:
    """Where in the data the second microbatch of an iteration lies, after a record with and without
    a batch that was set.
    """

    async def story(alone: Alone) -> list[int]:
        state, found = alone.replica_state, []
        key = WorkKey(8, "b0", WorkKind.TRAIN, 8 * MANIFEST.batch.most + 1, 1)
        for batch in (BATCH, None):
            last = replace(RECORD, iteration=7, batch=batch)
            state.plan = replace(PLAN, last_record=last, position=replace(PLAN.position, iteration=8))
            found.append(state.place_of(key))
        return found

    return play(story)


def _recorded(batch: SetBatch | None, order: Order | None, manifest: Manifest = SET_MANIFEST) -> Record:
    last = replace(RECORD, iteration=6, stages=RECORD.stages[:1], batch=batch)
    average = StageAverage("ab", float64_bits(9.0), "cd", (ALICE,))
    plan = replace(PLAN, last_record=last, microbatches=batch.microbatches if batch is not None else 4)
    told = Circumstances([0.5] * plan.microbatches, "", {}, frozenset(), forced=False, seniority={ALICE: 0}, order=order)
    return make_record(plan, [average], manifest, told)


def step_with_a_set_batch() -> object:
    """Size of the step beside that of the manifest's batch, and the factor of its gradient."""
    was_set, usual = (_recorded(batch, None).stages[0].scalars for batch in (BATCH, None))
    ratio = bits_float32(was_set.step_size) / bits_float32(usual.step_size)
    return round(ratio, 3), round(bits_float32(was_set.grad_scale), 3)


def loss_of_a_set_batch() -> object:
    """The mean of the microbatches' losses, each of which is its share of the manifest's tokens."""
    return _recorded(BATCH, None).loss, _recorded(None, None).loss


def batch_of_the_next_record() -> object:
    """What records say after one that set a batch."""
    first = _recorded(None, Order(9, Halting.NOT, 6))
    second = _recorded(first.batch, None)
    return [None if each.batch is None else (each.batch.microbatches, each.batch.fed) for each in (first, second)]
