"""The record of an iteration, put together from averages and losses. Pure."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from swarmfree.policy.batch import next_batch, rate_factor, sum_scale
from swarmfree.policy.block_split import recorded_split
from swarmfree.policy.retention import replays_exactly
from swarmfree.policy.schedule import clip_factors, learning_rate, step_scalars
from swarmfree.protocol.events import IterationCommitted
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import HeartbeatAnswer
from swarmfree.protocol.names import Member
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import (
    Record,
    StageEntry,
    bits_float32,
    bits_float64,
    float32_bits,
    float64_bits,
)

UNSCALED = float32_bits(1.0)
SQUARED_NORM_MAX = 1e300
"""Of one stage; the sum over all stages stays finite."""


@dataclass(frozen=True, slots=True)
class StageAverage:
    """A complete average of one stage, as its members reported it."""

    sum_digest: str
    squared_norm_bits: str
    state_digest: str
    members: tuple[Member, ...]
    sums: tuple[tuple[tuple[int, ...], ...], ...] = ()


def is_norm(bits: str) -> bool:
    """Whether these float64 bits can be a squared norm. Infinity and NaN can: the model diverges
    then.
    """
    try:
        norm = bits_float64(bits)
    except (ValueError, struct.error):
        return False
    return not math.isfinite(norm) or 0 <= norm < SQUARED_NORM_MAX


def agreed_norm(reported: Sequence[str]) -> str:
    """The squared norm, float64 bits, that most members of one average report; of as many a finite
    one, then the senior's.

    They have the same bytes, so honest ones differ in nothing: one that lies about its norm neither
    ends the run nor turns clipping off.

    Args:
        reported: by members with one digest, senior first; one at least.
    """
    counts = Counter(reported)
    return max(counts, key=lambda bits: (counts[bits], math.isfinite(bits_float64(bits))))


def has_fed(answer: HeartbeatAnswer | None, plan: Plan) -> bool:
    """Whether a source has finished its share of exactly this plan.

    What it says of an older plan with the same base may cover a smaller share.
    """
    if answer is None or answer.base != plan.base or answer.position is None or answer.position < plan.position:
        return False
    return answer.share_done


def losses_of(answers: Sequence[HeartbeatAnswer], count: int) -> dict[int, float]:
    """Collect the losses that sources reported: offset -> nats per token of the iteration."""
    told = (loss for answer in answers for loss in answer.losses)
    return {loss.offset: bits_float64(loss.loss_bits) for loss in told if loss.offset in range(count)}


def mean_evaluation(answers: Sequence[HeartbeatAnswer]) -> str | None:
    """Mean held-out loss over all windows as float64 bits; None if no source was asked to
    evaluate.
    """
    evaluations = [answer.evaluation for answer in answers if answer.evaluation is not None]
    windows = sum(len(e.windows) for e in evaluations)
    if not windows:
        return None
    total = 0.0  # a plain loop: `sum` adds floats differently from Python 3.12 on
    for evaluation in evaluations:
        total += bits_float64(evaluation.loss_bits) * len(evaluation.windows)
    return float64_bits(total / windows)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What goes into a record besides averages.

    Args:
        losses: by offset, nats per token of the iteration.
        evaluation: float64 bits or empty.
        restarted: stage rebuilt since the last record -> optimizer steps that its moments hold.
        rate_scaled: those of them that start with the run's rate factor.
        forced: this iteration has no majority.
        seniority: order of admission by member.
        order: of the organiser that this record obeys; None for none.
    """

    losses: Sequence[float]
    evaluation: str
    restarted: Mapping[int, int]
    rate_scaled: AbstractSet[int]
    forced: bool
    seniority: Mapping[Member, int]
    order: Order | None = None


def divergence(record: Record, manifest: Manifest) -> str:
    """Say why a record must not be sealed: its loss or a gradient is not finite. Empty if all are.

    A single peer's wrong sums never get here: where those of others are finite its round fails, and
    it is excluded.
    """
    wrong = [f"the loss is {record.loss}"] if not math.isfinite(record.loss) else []
    norms = ((stage, entry.squared_norm) for stage, entry in enumerate(record.stages))
    wrong += [f"the squared norm of stage {stage}'s gradient is {norm}" for stage, norm in norms if not math.isfinite(norm)]
    if not wrong:
        return ""
    # The factor of a batch that was set is left out: what is said is the run config's own
    rate = learning_rate(manifest.optimizer, manifest.run.iterations, record.iteration)
    cure = "lower optimizer.rate, or raise optimizer.warmup_iterations"
    return f"training diverged in iteration {record.iteration} at learning rate {rate:.4g}: {wrong[0]}; {cure}"


def make_record(plan: Plan, averages: Sequence[StageAverage], manifest: Manifest, circumstances: Circumstances) -> Record:
    """Make the record of an iteration: clipping, rates and step scalars are computed here once, as
    bits.

    Args:
        averages: index = stage.
    """
    last = plan.last_record
    scale = sum_scale(plan.microbatches, manifest)
    factors = clip_factors(manifest.optimizer, [scale * scale * bits_float64(a.squared_norm_bits) for a in averages])
    rate_scale = rate_factor(last.batch if last is not None else None, plan.iteration, manifest)
    entries = []
    for stage, (average, factor) in enumerate(zip(averages, factors, strict=True)):
        before = 0 if last is None else last.stages[stage].step_count
        step_count = circumstances.restarted.get(stage, before) + 1
        rate_bits = UNSCALED if last is None else last.stages[stage].rate_scale_bits
        if stage in circumstances.rate_scaled:
            rate_bits = float32_bits(manifest.recovery.rate_factor)
        entries.append(
            StageEntry(
                sum_digest=average.sum_digest,
                squared_norm_bits=average.squared_norm_bits,
                state_digest=average.state_digest,
                step_count=step_count,
                rate_scale_bits=rate_bits,
                scalars=step_scalars(
                    manifest.optimizer,
                    manifest.run.iterations,
                    plan.iteration,
                    step_count,
                    rate_scale * bits_float32(rate_bits),
                    scale * factor,
                ),
                members=average.members,
                sums=average.sums if replays_exactly(manifest) else (),
            )
        )
    reporters = {member for average in averages for member in average.members}
    youngest = len(circumstances.seniority)
    electorate = sorted(reporters, key=lambda m: (circumstances.seniority.get(m, youngest), m))
    order = circumstances.order
    loss = 0.0
    for part in circumstances.losses:
        loss += part
    return Record(
        iteration=plan.iteration,
        before=plan.lineage,
        term=plan.position.term,
        attempt=plan.position.attempt,
        base=plan.base,
        stages=tuple(entries),
        loss_bits=float64_bits(scale * loss),
        tokens=plan.microbatches * manifest.batch.rows * manifest.model.tokens_per_row,
        evaluation_bits=circumstances.evaluation,
        electorate=tuple(electorate),
        forced=(last.forced if last is not None else ()) + (plan.iteration,) * circumstances.forced,
        order=order.number if order is not None else last.order if last is not None else 0,
        halt=order.halt if order is not None else Halting.NOT,
        batch=next_batch(last, plan.iteration, plan.microbatches, order, manifest),
        split=recorded_split(plan, manifest),
    )


def committed_event(record: Record, seconds: float, redone: int) -> IterationCommitted:
    """Make the event that reports a committed record.

    Args:
        seconds: since its first Open; 0 where another coordinator sealed it.
        redone: contributions that were done again.
    """
    return IterationCommitted(
        iteration=record.iteration,
        attempt=record.attempt,
        loss=record.loss,
        evaluation=record.evaluation,
        tokens=record.tokens,
        seconds=seconds,
        squared_norms=[entry.squared_norm for entry in record.stages],
        lineage=record.lineage(),
        redone=redone,
        forced=len(record.forced),
    )
