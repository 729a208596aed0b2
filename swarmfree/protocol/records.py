"""The books: partial sums, rolls, records and the lineage they chain into.

Pure values with canonical bytes. Nothing here decides; `policy` does. Floats that must be the same
on all peers travel as bits.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swarmfree.protocol.evidence import Evidence
from swarmfree.protocol.names import Endpoint, Member, PartialSumId, Term
from swarmfree.protocol.order import Halting

GENESIS_LINEAGE = "0" * 64


def float32_bits(value: float) -> int:
    """The 32 bits of `value` rounded to float32, as an unsigned integer."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def bits_float32(bits: int) -> float:
    """The float32 that `bits` stand for; inverse of `float32_bits`."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def float64_bits(value: float) -> str:
    """The 64 bits of `value` as 16 hex digits, so that equal numbers have equal text."""
    return struct.pack(">d", value).hex()


def bits_float64(bits: str) -> float:
    """The float64 that 16 hex digits stand for; inverse of `float64_bits`."""
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])


@dataclass(frozen=True, slots=True)
class MicrobatchSet:
    """A set of microbatches of one iteration as a bit mask: bit k is the iteration's microbatch k.

    Bits are relative to the iteration's first microbatch, so that a set stays M/8 bytes long
    however long the run is.

    Kept relative so that it stays M/8 bytes however long the run is.
    """

    mask: int = 0

    @staticmethod
    def of(offsets: Iterable[int]) -> MicrobatchSet:
        """Make the set of these offsets from the iteration's first microbatch."""
        mask = 0
        for offset in offsets:
            mask |= 1 << offset
        return MicrobatchSet(mask)

    @staticmethod
    def full(count: int) -> MicrobatchSet:
        """Make the set of all microbatches of an iteration of `count`."""
        return MicrobatchSet((1 << count) - 1)

    def offsets(self) -> tuple[int, ...]:
        """List the offsets in ascending order."""
        mask, found, offset = self.mask, [], 0
        while mask:
            if mask & 1:
                found.append(offset)
            mask >>= 1
            offset += 1
        return tuple(found)

    def __contains__(self, offset: int) -> bool:
        return bool(self.mask >> offset & 1)

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __or__(self, other: MicrobatchSet) -> MicrobatchSet:
        return MicrobatchSet(self.mask | other.mask)

    def __and__(self, other: MicrobatchSet) -> MicrobatchSet:
        return MicrobatchSet(self.mask & other.mask)

    def __sub__(self, other: MicrobatchSet) -> MicrobatchSet:
        return MicrobatchSet(self.mask & ~other.mask)


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A gradient sum of one member, and the microbatches in it.

    The sum is final: it is divided by the iteration's number of tokens.

    Args:
        id: its name.
        microbatches: what is in it.
        order: the same as offsets, in the order in which they were added; float32 sums depend on
            it.

    Source: protocol section 3.5.
    """

    id: PartialSumId
    microbatches: MicrobatchSet
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Roll:
    """The disjoint partial sums of one stage that count, and which member reduces which part.

    Args:
        iteration: the optimizer step.
        base: what the work started from.
        stage: whose gradient.
        partial_sums: in the order in which they are summed.
        members: sorted; all of them end up with the average, also those without an partial sum.
        rotation: raised after a mismatch, so that parts change owner.

    Part p is owned by ``members[(p + rotation) % len(members)]``. The round is the digest of all of
    it, so one name means one roll.
    Source: protocol section 3.6.
    """

    iteration: int
    base: str
    stage: int
    partial_sums: tuple[PartialSum, ...]
    members: tuple[Endpoint, ...]
    rotation: int = 0
    _round: str = field(default="", init=False, repr=False, compare=False)  # computed once

    def round(self) -> str:
        """16 hex digits that name this roll in every chunk."""
        if self._round:
            return self._round
        content = [
            self.iteration,
            self.base,
            self.stage,
            [[a.id.member.peer_id, a.id.member.incarnation, a.id.number, a.microbatches.mask] for a in self.partial_sums],
            [[e.member.peer_id, e.member.incarnation] for e in self.members],
            self.rotation,
        ]
        object.__setattr__(self, "_round", hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16])
        return self._round

    def owner(self, part: int) -> Endpoint:
        """Return the member that sums part `part`."""
        return self.members[(part + self.rotation) % len(self.members)]

    def of(self, member: Member) -> tuple[PartialSum, ...]:
        """Return the member's own partial sums in the roll's order."""
        return tuple(a for a in self.partial_sums if a.id.member == member)

    def contributors(self) -> tuple[Member, ...]:
        """List the members with a partial sum in the roll, in the order in which their sums are
        added.
        """
        return tuple(dict.fromkeys(a.id.member for a in self.partial_sums))

    def sums(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Order in which the average is added up: by contributor, by its partial sums, offsets in
        order.
        """
        return tuple(tuple(a.order for a in self.of(member)) for member in self.contributors())


@dataclass(frozen=True, slots=True)
class StepScalars:
    """All numbers of one optimizer step of one stage, each as float32 bits, so that every replica
    steps with the same ones.

    One element's step, every operation rounded once (see `model.optimizer`)::

        g = sum * grad_scale;  m = m * beta1 + g * one_minus_beta1;  v = v * beta2 + (g * g) *
        one_minus_beta2
        w = w * decay - step_size * (m / (sqrt(v) / root_bias2 + eps))

    `decay` applies to parameters of two or more dimensions only. Source: protocol section 5;
    Loshchilov and Hutter, AdamW.
    """

    grad_scale: int
    beta1: int
    one_minus_beta1: int
    beta2: int
    one_minus_beta2: int
    root_bias2: int
    eps: int
    step_size: int
    decay: int


@dataclass(frozen=True, slots=True)
class StageEntry:
    """What a record says about one stage.

    Args:
        sum_digest: digest of the averaged gradient.
        squared_norm_bits: its squared L2 norm before clipping, float64 bits.
        state_digest: of the weights and moments the iteration started from.
        step_count: optimizer steps this stage has done after this one; a rebuilt stage counts its
            own.
        rate_scale_bits: float32 bits of the stage's own rate factor (1 unless rebuilt).
        scalars: what to step with.
        members: who reported.
        sums: how the average was added up, where the run keeps activation logs: by contributor, by
            its partial sums, offsets in order; else empty.
    """

    sum_digest: str
    squared_norm_bits: str
    state_digest: str
    step_count: int
    rate_scale_bits: int
    scalars: StepScalars
    members: tuple[Member, ...]
    sums: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def squared_norm(self) -> float:
        """Squared L2 norm of the stage's gradient before clipping."""
        return bits_float64(self.squared_norm_bits)


@dataclass(frozen=True, slots=True)
class SetBatch:
    """The batch of the iterations after a record, once the organiser has set one.

    Args:
        microbatches: of each iteration.
        fed: how many microbatches all iterations up to this record have had: where the data goes
            on.
        since: the first iteration that has so many.
        factor_bits: float32 bits of the factor of the learning rate in the iteration before that.
    """

    microbatches: int
    fed: int
    since: int
    factor_bits: int


@dataclass(frozen=True, slots=True)
class Record:
    """What is sealed about one committed iteration.

    Args:
        iteration: its number, from 0.
        before: lineage of the record before, `GENESIS_LINEAGE` for the first.
        term, attempt: who sealed it and in which try; not part of the lineage, so a successor's
            re-seal changes nothing.
        base: what the work started from.
        stages: index = stage.
        loss_bits: float64 bits of the mean loss in nats per token: microbatch losses added in order
            of number.
        tokens: how many tokens were predicted.
        evaluation_bits: float64 bits of the held-out loss, nats per token, taken before this
            iteration's work; empty if none was.
        electorate: who votes on the next iteration, senior first.
        forced: iterations so far that were sealed without a majority.
        order: number of the newest order that was obeyed so far; 0 for none.
        halt: whether this is the last record, by that order.
        batch: of the iterations that follow; None as long as the manifest says it.
        evidence: who has stored it, signed; None until it is decided. Records with other evidence
            are equal.

    Source: protocol section 3.1.
    """

    iteration: int
    before: str
    term: Term
    attempt: int
    base: str
    stages: tuple[StageEntry, ...]
    loss_bits: str
    tokens: int
    evaluation_bits: str
    electorate: tuple[Member, ...]
    forced: tuple[int, ...] = ()
    order: int = 0
    halt: Halting = Halting.NOT
    batch: SetBatch | None = None
    evidence: Evidence | None = field(default=None, compare=False)
    _lineage: str = field(default="", init=False, repr=False, compare=False)  # computed once

    @property
    def loss(self) -> float:
        """Mean training loss, nats per token."""
        return bits_float64(self.loss_bits)

    @property
    def evaluation(self) -> float | None:
        """Held-out loss before this iteration, nats per token."""
        return bits_float64(self.evaluation_bits) if self.evaluation_bits else None

    def lineage(self) -> str:
        """Return the hash of the chain up to this record.

        It is SHA-256 over the lineage before and this record without term and attempt.
        """
        if not self._lineage:
            content = record_to_json(self)
            del content["term"], content["attempt"]
            object.__setattr__(self, "_lineage", hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest())
        return self._lineage


def _member_to_json(member: Member) -> list[str]:
    return [member.peer_id, member.incarnation]


def record_to_json(record: Record) -> dict[str, Any]:
    """Convert a record to JSON values: the canonical form that its lineage hashes.

    `record_from_json` is the inverse.
    """
    batch = record.batch
    return {
        "iteration": record.iteration,
        "before": record.before,
        "term": [record.term.number, *_member_to_json(record.term.member)],
        "attempt": record.attempt,
        "base": record.base,
        "stages": [
            {
                "sum_digest": s.sum_digest,
                "squared_norm": s.squared_norm_bits,
                "state_digest": s.state_digest,
                "step_count": s.step_count,
                "rate_scale": s.rate_scale_bits,
                "scalars": [getattr(s.scalars, name) for name in StepScalars.__slots__],
                "members": [_member_to_json(m) for m in s.members],
                "sums": [[list(offsets) for offsets in partial_sums] for partial_sums in s.sums],
            }
            for s in record.stages
        ],
        "loss": record.loss_bits,
        "tokens": record.tokens,
        "evaluation": record.evaluation_bits,
        "electorate": [_member_to_json(m) for m in record.electorate],
        "forced": list(record.forced),
        "order": record.order,
        "halt": str(record.halt),
        **({} if batch is None else {"batch": [batch.microbatches, batch.fed, batch.since, batch.factor_bits]}),
    }


def record_from_json(content: Mapping[str, Any]) -> Record:
    """Read what `record_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: the content is not a record.
    """
    number, peer_id, incarnation = content["term"]
    return Record(
        iteration=int(content["iteration"]),
        before=str(content["before"]),
        term=Term(int(number), Member(peer_id, incarnation)),
        attempt=int(content["attempt"]),
        base=str(content["base"]),
        stages=tuple(
            StageEntry(
                sum_digest=s["sum_digest"],
                squared_norm_bits=s["squared_norm"],
                state_digest=s["state_digest"],
                step_count=int(s["step_count"]),
                rate_scale_bits=int(s["rate_scale"]),
                scalars=StepScalars(*[int(x) for x in s["scalars"]]),
                members=tuple(Member(*m) for m in s["members"]),
                sums=tuple(
                    tuple(tuple(int(offset) for offset in offsets) for offsets in partial_sums) for partial_sums in s["sums"]
                ),
            )
            for s in content["stages"]
        ),
        loss_bits=str(content["loss"]),
        tokens=int(content["tokens"]),
        evaluation_bits=str(content["evaluation"]),
        electorate=tuple(Member(*m) for m in content["electorate"]),
        forced=tuple(int(iteration) for iteration in content["forced"]),
        order=int(content["order"]),
        halt=Halting(content["halt"]),
        batch=SetBatch(*[int(number) for number in content["batch"]]) if "batch" in content else None,
    )


@dataclass(frozen=True, slots=True)
class TensorDigests:
    """What went through one member for one microbatch, by digests; empty where there is none.

    Args:
        offset: of the microbatch.
        entered: what came from the stage before; of the ends, what their loss was computed from.
        sent: what was sent on; of the ends, the embedding.
        returned: the gradient that came from the stage after; of the ends, that of the embedding.
        answered: the gradient that was sent back; of the ends, that of the loss.
    """

    offset: int
    entered: str
    sent: str
    returned: str
    answered: str


@dataclass(frozen=True, slots=True)
class ContributionDigest:
    """Digest of what one member contributed to one part of an average."""

    part: int
    member: Member
    digest: str


@dataclass(frozen=True, slots=True)
class Microloss:
    """The loss of one microbatch: its share of the iteration's mean, in nats per token of the
    iteration.
    """

    offset: int
    loss_bits: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out loss found by a source before training work began."""

    loss_bits: str
    tokens: int
    windows: tuple[int, ...] = field(default=())
