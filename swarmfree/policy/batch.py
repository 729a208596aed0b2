"""How many microbatches an iteration has, where its data begins, and what its learning rate is
multiplied by, where the organiser sets another batch during the run. Pure.

All of it follows from the record before: so whoever takes over, joins, replays or goes on from a
snapshot has the same batch. The learning rate follows the batch: R times as many tokens, R times
the rate, reached in equal steps within the run's warm-up.
Source: elastic harness, "Learning Rate Rescaling"; Goyal et al., Accurate, Large Minibatch SGD,
linear scaling and gradual warm-up. Differs: the factor is relative to the manifest's batch, so that
setting that again ends with exactly the manifest's rate.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.order import Order
from swarmfree.protocol.records import Record, SetBatch, bits_float32, float32_bits


def microbatches_after(last: Record | None, manifest: Manifest) -> int:
    """How many microbatches the iteration after a record has."""
    return manifest.batch.microbatches if last is None or last.batch is None else last.batch.microbatches


def microbatches_of(record: Record, manifest: Manifest) -> int:
    """How many microbatches the iteration of a record had."""
    return record.tokens // (manifest.batch.rows * manifest.model.tokens_per_row)


def fed_before(last: Record | None, iteration: int, manifest: Manifest) -> int:
    """How many microbatches all iterations before this one have had: where its data begins.

    Args:
        last: the record before; None where there is none, or none was kept.
        iteration: this one.
        manifest: of the run.
    """
    return iteration * manifest.batch.microbatches if last is None or last.batch is None else last.batch.fed


def sum_scale(microbatches: int, manifest: Manifest) -> float:
    """By what sums and losses of an iteration are multiplied: stages divide by the tokens of the
    manifest's batch.
    """
    return manifest.batch.microbatches / microbatches


def rate_factor(batch: SetBatch | None, iteration: int, manifest: Manifest) -> float:
    """Factor of the learning rate in an iteration.

    Args:
        batch: of the record before.
        iteration: this one.
        manifest: of the run.
    """
    if batch is None:
        return 1.0
    target, before = batch.microbatches / manifest.batch.microbatches, bits_float32(batch.factor_bits)
    warmed = (iteration - batch.since + 1) / max(1, manifest.optimizer.warmup_iterations)
    return target if warmed >= 1 else before + (target - before) * warmed


def next_batch(
    last: Record | None, iteration: int, microbatches: int, order: Order | None, manifest: Manifest
) -> SetBatch | None:
    """The batch that the record of an iteration says; None where nobody has ever set one.

    Args:
        last: the record before.
        iteration: this one.
        microbatches: it had.
        order: that this record obeys.
        manifest: of the run.
    """
    before = last.batch if last is not None else None
    fed = fed_before(last, iteration, manifest) + microbatches
    if order is None or not order.microbatches:
        return None if before is None else replace(before, fed=fed)
    return SetBatch(order.microbatches, fed, iteration + 1, float32_bits(rate_factor(before, iteration, manifest)))
