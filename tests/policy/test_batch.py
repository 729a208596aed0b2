"""The batch that the organiser sets: how many microbatches, which data, which rate."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmfree.policy.batch import fed_before, microbatches_after, microbatches_of, next_batch, rate_factor
from swarmfree.policy.data_order import SequenceOrder
from swarmfree.policy.record import Circumstances, StageAverage, make_record
from swarmfree.protocol.errors import ConfigError, ProtocolViolation
from swarmfree.protocol.manifest import BatchSection, Manifest, RunSection, StagesSection
from swarmfree.protocol.message_bounds import MessageBounds
from swarmfree.protocol.messages import RecordAnswer
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.records import (
    Record,
    SetBatch,
    bits_float32,
    float32_bits,
    float64_bits,
    record_from_json,
    record_to_json,
)
from swarmfree.protocol.validation import check_message
from tests.wire.wire_samples import ALICE, ENTRY, PLAN, RECORD


def _manifest(base: int = 4, most: int = 64, warmup: int = 0, rate: float = 1e-3, clip: str = "global") -> Manifest:
    manifest = Manifest(batch=BatchSection(rows=2, microbatches=base, microbatches_max=most))
    return replace(manifest, optimizer=replace(manifest.optimizer, rate=rate, warmup_iterations=warmup, clip=clip))


def _records(manifest: Manifest, orders: dict[int, int], iterations: int) -> list[Record]:
    """Records of a run whose organiser sets batches in these iterations."""
    records, last = list[Record](), None
    for iteration in range(iterations):
        count = microbatches_after(last, manifest)
        order = Order(iteration + 1, Halting.NOT, orders[iteration]) if iteration in orders else None
        batch = next_batch(last, iteration, count, order, manifest)
        tokens = count * manifest.batch.rows * manifest.model.tokens_per_row
        last = replace(RECORD, iteration=iteration, tokens=tokens, batch=batch)
        records.append(last)
    return records


@given(
    base=st.integers(1, 8),
    orders=st.dictionaries(st.integers(0, 19), st.integers(1, 64), max_size=6),
    sequences=st.integers(1, 90),
)
def test_an_epoch_shows_each_sequence_once_whatever_the_batch(base: int, orders: dict[int, int], sequences: int) -> None:
    """Each iteration's data begins where that of the one before ended."""
    manifest, order = _manifest(base), SequenceOrder(5, sequences)
    shown, last = list[int](), None
    for record in _records(manifest, orders, 20):
        first, count = fed_before(last, record.iteration, manifest), microbatches_of(record, manifest)
        rows = range(first * manifest.batch.rows, (first + count) * manifest.batch.rows)
        shown += [order.sequence_of(position) for position in rows]
        last = record
        assert record_from_json(record_to_json(record)) == record
    for epoch in range(0, len(shown) - sequences + 1, sequences):
        assert sorted(shown[epoch : epoch + sequences]) == list(range(sequences))


def test_the_rate_follows_the_batch_as_the_paper_says() -> None:
    """``LR_new = LR_old * B_new / B_old`` from one batch to the next; the manifest's batch has the
    manifest's rate.
    """
    manifest = _manifest(base=4)
    batches = [4, 8, 8, 32, 6, 4]
    records = _records(manifest, dict(enumerate(batches[1:])), len(batches))
    factors = [rate_factor(before.batch, before.iteration + 1, manifest) for before in records[:-1]]
    old = [(1.0, 4), *zip(factors, batches[1:], strict=False)]
    for (lr_old, batch_old), lr_new, batch_new in zip(old, factors, batches[1:], strict=False):
        assert lr_new == pytest.approx(lr_old * batch_new / batch_old, rel=1e-12)
    assert factors == [2.0, 2.0, 8.0, 1.5, 1.0]
    assert rate_factor(None, 3, manifest) == 1.0


def test_the_rate_is_reached_in_equal_steps_from_where_it_was() -> None:
    """Also where another batch is set before it was reached."""
    manifest = _manifest(base=4, warmup=4)
    last, factors = None, list[float]()
    for record in _records(manifest, {1: 12, 3: 4}, 9):
        factors.append(rate_factor(last.batch if last is not None else None, record.iteration, manifest))
        last = record
    assert factors == [1.0, 1.0, 1.5, 2.0, 1.75, 1.5, 1.25, 1.0, 1.0]


@pytest.mark.parametrize("clip", ["global", "stage", "none"])
def test_a_set_batch_steps_as_a_run_that_began_with_it(clip: str) -> None:
    """A stage divides by the manifest's tokens: sums are twice as large with twice the batch, and
    what is done with them is half.
    """
    was_set, began = _manifest(4, 8, clip=clip), _manifest(8, 8, rate=2e-3, clip=clip)
    last = replace(RECORD, stages=RECORD.stages[:1], batch=next_batch(None, 0, 4, Order(7, Halting.NOT, 8), was_set))
    plan = replace(PLAN, last_record=last, microbatches=8, position=replace(PLAN.position, iteration=1))

    def made(manifest: Manifest, before: Record, times: float) -> Record:
        average = StageAverage("ab", float64_bits(9.0 * times * times), "cd", (ALICE,))
        told = Circumstances([times * 0.25] * 8, "", {}, frozenset(), forced=False, seniority={ALICE: 0})
        return make_record(replace(plan, last_record=before), [average], manifest, told)

    found, right = made(was_set, last, 2.0), made(began, replace(last, batch=None), 1.0)
    assert (found.loss_bits, found.tokens) == (right.loss_bits, right.tokens)
    (one,), (other,) = found.stages, right.stages
    assert 2 * bits_float32(one.scalars.grad_scale) == pytest.approx(bits_float32(other.scalars.grad_scale), rel=1e-6)
    assert replace(one.scalars, grad_scale=0) == replace(other.scalars, grad_scale=0)
    assert found.batch is not None
    assert (found.batch.microbatches, found.batch.fed, found.batch.since) == (8, 12, 1)
    assert right.batch is None


def test_the_most_is_no_less_than_what_a_run_begins_with() -> None:
    """0 means no more than that."""
    assert (BatchSection(8, 8).most, BatchSection(8, 8, 32).most) == (8, 32)
    with pytest.raises(ConfigError, match="microbatches_max = 7: must be 0 or at least"):
        BatchSection(8, 8, 7)


@pytest.mark.parametrize(
    ("iterations", "base", "most", "words"),
    [
        (1, 1 << 31, 0, "batch.microbatches = 2147483648: must be at most 2,147,483,647"),
        (1, 8, 1 << 31, "batch.microbatches_max = 2147483648: must be at most 2,147,483,647"),
        ((1 << 22) + 3, 8, (1 << 31) - 1, "run.iterations = 4194307, each of 2147483647 microbatches at most: more than"),
    ],
)
def test_each_microbatch_of_a_run_has_a_number(iterations: int, base: int, most: int, words: str) -> None:
    """Else a run would end with the iteration whose names do not fit into a message."""
    with pytest.raises(ConfigError, match=words):
        Manifest(run=RunSection(iterations=iterations), batch=BatchSection(8, base, most))
    Manifest(run=RunSection(iterations=1 << 22), batch=BatchSection(8, 8, (1 << 31) - 1))


def test_a_halt_says_nothing_of_the_batch() -> None:
    """The record that obeys it has the batch of before, and so goes on whoever resumes."""
    manifest = _manifest(base=4, warmup=4)
    last = _records(manifest, {1: 12}, 3)[-1]
    for halt in (Halting.PAUSE, Halting.STOP):
        batch = next_batch(last, 3, 12, Order(9, halt), manifest)
        assert last.batch is not None
        assert batch == replace(last.batch, fed=last.batch.fed + 12)
        assert next_batch(None, 0, 4, Order(9, halt), manifest) is None


@given(
    base=st.integers(1, 8),
    most=st.integers(8, 64),
    warmup=st.integers(0, 6),
    orders=st.dictionaries(st.integers(0, 19), st.integers(1, 64), max_size=9),
)
def test_what_records_say_of_the_batch_is_within_the_bounds_of_messages(
    base: int, most: int, warmup: int, orders: dict[int, int]
) -> None:
    """Whatever is set and when, the largest batch in every iteration among it: no honest record is
    refused.
    """
    manifest = replace(_manifest(base, most, warmup), run=RunSection(iterations=20), stages=StagesSection(body=3))
    bounds = MessageBounds.of(manifest)
    for record in _records(manifest, {iteration: min(count, most) for iteration, count in orders.items()}, 20):
        sized = replace(record, stages=(replace(ENTRY, sums=()),) * manifest.stage_count)
        check_message(RecordAnswer(sized), bounds)
    full = _records(replace(manifest, batch=replace(manifest.batch, microbatches=most)), {0: most}, 20)[-1]
    assert full.batch is not None and full.batch.fed == 20 * most
    check_message(RecordAnswer(replace(full, stages=(replace(ENTRY, sums=()),) * manifest.stage_count)), bounds)


@pytest.mark.parametrize(
    "change",
    [
        {"microbatches": 0},
        {"microbatches": 65},
        {"fed": 0},
        {"fed": 7 * 64 + 1},
        {"since": 0},
        {"since": 8},
        {"factor_bits": float32_bits(-0.5)},
        {"factor_bits": float32_bits(65.0)},
        {"factor_bits": float32_bits(math.nan)},
        {"factor_bits": float32_bits(math.inf)},
    ],
)
def test_no_other_batch_is_taken_from_a_record(change: dict[str, int]) -> None:
    """A batch of nothing, of more than was agreed, from a time to come, of a rate that is none."""
    manifest = replace(_manifest(), run=RunSection(iterations=20), stages=StagesSection(body=3))
    bounds, entries = MessageBounds.of(manifest), (replace(ENTRY, sums=()),) * manifest.stage_count
    sound = SetBatch(64, 7 * 64, 7, float32_bits(1.0))
    record = replace(RECORD, iteration=6, stages=entries, batch=sound)
    check_message(RecordAnswer(record), bounds)
    with pytest.raises(ProtocolViolation):
        check_message(RecordAnswer(replace(record, batch=replace(sound, **change))), bounds)
