"""Validation: whether a message can be what a correct peer of this run says. One function per
message; each network asks before anybody acts on it.

What passes here may still be wrong, late, or not its sender's to say; it does not break an index,
an assertion or a loop of whoever takes it. Nothing here knows who spoke: that is told by whoever
raises on.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any

from swarmfree.protocol import message_bounds as most
from swarmfree.protocol import messages as says
from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, Replay, Restore, Stay
from swarmfree.protocol.errors import ProtocolViolation
from swarmfree.protocol.evidence import Evidence
from swarmfree.protocol.message_bounds import MessageBounds
from swarmfree.protocol.messages import Header, Request, Response, Segment
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint, Member, Position, Term, WorkKey, WorkKind
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import (
    ContributionDigest,
    MicrobatchSet,
    PartialSum,
    Record,
    Roll,
    StageEntry,
    StepScalars,
    TensorDigests,
    bits_float32,
    bits_float64,
)

Check = Callable[[Any, MessageBounds], None]
SQUARED_NORM_MAX = 1e300
MEMBERS_KEPT = 4096
REPLICA_SUMS = 4
"""A member has some kinds of sums, and one for each microbatch that was redone."""


def check_names(header: Header) -> None:
    """Names of usual length, and a few addresses.

    Raises:
        ProtocolViolation: it is none.
    """
    _name("run", header.run)
    _name("incarnation", header.receiver_incarnation)
    _endpoint(header.sender)


def check_message(message: Request | Response, bounds: MessageBounds) -> None:
    """Whether a request or a response is one of this run.

    Raises:
        ProtocolViolation: what was found, and what was expected.
    """
    try:
        _CHECKS[type(message)](message, bounds)
    except ProtocolViolation as error:
        raise ProtocolViolation(f"{type(message).__name__}: {error}") from None


def check_fit(request: Request, response: Response) -> None:
    """Whether a response has no more parts than were asked for.

    Raises:
        ProtocolViolation: it has.
    """
    if isinstance(response, says.State | says.ShadowPart) and isinstance(request, says.GetState | says.GetShadow):
        _count("parts", response.sizes, max(1, request.count))
    if isinstance(response, says.State) and isinstance(request, says.GetState):
        proven = max(1, len(response.sizes)) if request.weights_only and request.to_export else 0
        _within("digests of moments", len(response.moment_digests), 2 * proven, 2 * proven)


def payload_bytes_max(message: Request | Response | type[Any], bounds: MessageBounds) -> int:
    """How many bytes may follow a message of this kind at most."""
    kind = message if isinstance(message, type) else type(message)
    if kind in {says.Train, says.Loss, says.Trained, says.LossAnswer}:
        return bounds.tensor_bytes
    if kind is says.Pulled:
        return 2 * bounds.tensor_bytes  # packed for a log, it has scales beside it
    if kind in {says.Reduce, says.Reduced, says.Average, says.ContributionAnswer}:
        return bounds.part_bytes
    if kind in {says.State, says.ShadowPart}:
        return bounds.state_bytes
    return 1 << 20 if kind is says.ManifestAnswer else 0


# ---- plain values --------------------------------------------------------------------------------


def _within(what: str, value: float, least: float, highest: float) -> None:
    if not least <= value <= highest:
        raise ProtocolViolation(f"{what} {value:,}; {least:,} to {highest:,} expected")


def _count(what: str, values: Collection[object], highest: int, least: int = 0) -> None:
    if not least <= len(values) <= highest:
        raise ProtocolViolation(f"{len(values):,} {what}; {least:,} to {highest:,} expected")


def _finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise ProtocolViolation(f"{what} {value}; a finite number expected")


def _text(what: str, value: str) -> None:
    if len(value) > most.TEXT_LETTERS_MAX:
        raise ProtocolViolation(f"{what} of {len(value):,} letters; at most {most.TEXT_LETTERS_MAX:,} expected")


def _short(what: str, value: str, letters_max: int) -> None:
    if len(value) > letters_max or not (value.isascii() and value.isprintable()):
        raise ProtocolViolation(f"{what} of {len(value):,} letters; at most {letters_max} printable ones expected")


def _name(what: str, value: str) -> None:
    _short(what, value, most.NAME_LETTERS_MAX)


def _hash(what: str, value: str) -> None:
    _short(what, value, most.HASH_LETTERS_MAX)


def _stage(stage: int, bounds: MessageBounds, least: int = 0) -> None:
    _within("stage", stage, least, bounds.stage_count - 1)


def _iteration(iteration: int, bounds: MessageBounds, least: int = 0) -> None:
    _within("iteration", iteration, least, bounds.iterations)


def _offsets(what: str, offsets: Collection[int], highest: int) -> None:
    """Different numbers below a bound."""
    _count(what, offsets, highest)
    for offset in offsets:
        _within(what, offset, 0, highest - 1)
    if len(set(offsets)) != len(offsets):
        raise ProtocolViolation(f"{what}: one of them twice")


def _forced(forced: Collection[int], bounds: MessageBounds) -> None:
    _count("forced iterations", forced, bounds.iterations)
    for iteration in forced:
        _within("forced iteration", iteration, 0, bounds.iterations - 1)


# ---- names ---------------------------------------------------------------------------------------


@lru_cache(MEMBERS_KEPT)
def _member(member: Member) -> None:
    """Keep those of a swarm that are no violation: nearly every message names some."""
    _name("peer id", member.peer_id)
    _name("incarnation", member.incarnation)


def _members(what: str, members: Collection[Member], highest: int, least: int = 0) -> None:
    _count(what, members, highest, least)
    for member in members:
        _member(member)


def _endpoint(endpoint: Endpoint) -> None:
    _member(endpoint.member)
    _count("addresses", endpoint.addresses, most.ADDRESSES_MAX)
    for address in endpoint.addresses:
        _short("address", address, most.ADDRESS_LETTERS_MAX)


def _endpoints(what: str, endpoints: Collection[Endpoint], highest: int, least: int = 1) -> None:
    _count(what, endpoints, highest, least)
    for endpoint in endpoints:
        _endpoint(endpoint)


def _term(term: Term) -> None:
    _within("term", term.number, 0, most.TERM_MAX)
    _member(term.member)


def _position(position: Position, bounds: MessageBounds) -> None:
    _term(position.term)
    _iteration(position.iteration, bounds)
    _within("attempt", position.attempt, 0, most.COUNTER_MAX)
    _within("revision", position.revision, 0, most.COUNTER_MAX)


def _key(key: WorkKey, bounds: MessageBounds) -> None:
    """A microbatch of its iteration, or a held-out window that there is."""
    _iteration(key.iteration, bounds)
    _hash("base", key.base)
    _stage(key.stage, bounds)
    if key.kind is WorkKind.EVALUATE:
        _within("window", key.microbatch, 0, bounds.windows - 1)
    elif bounds.is_exact:
        first = key.iteration * bounds.microbatches
        _within("microbatch", key.microbatch, first, first + bounds.microbatches - 1)


# ---- books ---------------------------------------------------------------------------------------


def _microbatches(microbatches: MicrobatchSet, bounds: MessageBounds) -> None:
    if microbatches.mask < 0 or microbatches.mask >> bounds.microbatches:
        raise ProtocolViolation(f"a set with a microbatch beyond the {bounds.microbatches:,} of an iteration")


def _partial_sums(partial_sums: Collection[PartialSum], bounds: MessageBounds) -> None:
    _count("partial sums", partial_sums, REPLICA_SUMS * most.REPLICAS_MAX * bounds.microbatches)
    for partial_sum in partial_sums:
        _member(partial_sum.id.member)
        _within("number of a partial sum", partial_sum.id.number, 0, most.TALLY_MAX)
        _microbatches(partial_sum.microbatches, bounds)
        _offsets("offsets of a partial sum", partial_sum.order, bounds.microbatches)


def _number(bits: str) -> float:
    try:
        return bits_float64(bits)
    except (ValueError, struct.error):
        raise ProtocolViolation(f"{bits[: most.HASH_LETTERS_MAX]!r}; the 16 hex digits of a number expected") from None


def _squared_norm(bits: str) -> None:
    norm = _number(bits)
    if not 0 <= norm < SQUARED_NORM_MAX:
        raise ProtocolViolation(f"squared norm {norm:g}; finite and 0 or more expected")


def _entry(entry: StageEntry, bounds: MessageBounds) -> None:
    _hash("digest of a sum", entry.sum_digest)
    _hash("digest of a state", entry.state_digest)
    _squared_norm(entry.squared_norm_bits)
    _within("steps", entry.step_count, 0, most.COUNTER_MAX)
    for name in StepScalars.__slots__:
        _finite(name, bits_float32(getattr(entry.scalars, name)))
    _finite("rate factor", bits_float32(entry.rate_scale_bits))
    _members("members", entry.members, most.REPLICAS_MAX)
    _count("contributions", entry.sums, most.REPLICAS_MAX)
    for contribution in entry.sums:
        _count("partial sums", contribution, REPLICA_SUMS * bounds.microbatches)
        for offsets in contribution:
            _offsets("offsets of a partial sum", offsets, bounds.microbatches)


def _stages(stages: Collection[object], bounds: MessageBounds) -> None:
    _count("stages", stages, bounds.stage_count, bounds.stage_count if bounds.is_exact else 0)


def _evidence(evidence: Evidence | None, bounds: MessageBounds) -> None:
    """Each voter once; whether it has signed is looked at by who knows it."""
    if evidence is None:
        return
    _term(evidence.term)
    _members("votes", {vote.member for vote in evidence.votes}, bounds.members, len(evidence.votes))
    for vote in evidence.votes:
        _signature(vote.signature)


def _signature(signature: bytes) -> None:
    _within("bytes of a signature", len(signature), 1, most.SIGNATURE_BYTES_MAX)


def _record(record: Record | None, bounds: MessageBounds, iteration: int | None = None) -> None:
    """A whole record, of one iteration where that is known; there may be none."""
    if record is None:
        return
    _within("iteration of a record", record.iteration, 0, bounds.iterations - 1)
    if bounds.is_exact and iteration is not None and record.iteration != iteration:
        raise ProtocolViolation(f"the record of iteration {record.iteration}; that of {iteration} expected")
    _hash("lineage", record.before)
    _term(record.term)
    _within("attempt", record.attempt, 0, most.COUNTER_MAX)
    _hash("base", record.base)
    _stages(record.stages, bounds)
    for entry in record.stages:
        _entry(entry, bounds)
    _finite("loss", record.loss)
    _within("tokens", record.tokens, 0, most.TALLY_MAX)
    _members("voters", record.electorate, bounds.members)
    _forced(record.forced, bounds)
    _evidence(record.evidence, bounds)
    _within("order", record.order, 0, most.TALLY_MAX)
    if record.batch is not None:
        _within("microbatches that were set", record.batch.microbatches, 1, bounds.microbatches)
        _within("microbatches that were fed", record.batch.fed, 1, (record.iteration + 1) * bounds.microbatches)
        _within("iteration since which", record.batch.since, 1, record.iteration + 1)
        _within("factor of the rate", bits_float32(record.batch.factor_bits), 0, bounds.microbatches)
    if record.split is not None:
        _split(record.split.counts, bounds)
        _within("iteration since which the model is cut so", record.split.since, 1, record.iteration)


def _split(counts: Sequence[int], bounds: MessageBounds) -> None:
    """All body stages together have the blocks of the model; one may have none."""
    _count("stages of a split", counts, bounds.stage_count - 1, bounds.stage_count - 1 if bounds.is_exact else 1)
    for count in counts:
        _within("blocks of a stage", count, 0, bounds.blocks)
    if not sum(counts) or (bounds.is_exact and sum(counts) != bounds.blocks):
        raise ProtocolViolation(f"a split into {sum(counts)} blocks; {bounds.blocks} expected")


def _plan(plan: Plan | None, bounds: MessageBounds) -> None:
    """Each share is that of a source of this very plan; the record in it is that of the iteration
    before.
    """
    if plan is None:
        return
    _position(plan.position, bounds)
    _hash("base", plan.base)
    _hash("lineage", plan.lineage)
    _stages(plan.replicas, bounds)
    for replicas in plan.replicas:
        _endpoints("replicas", [replica.endpoint for replica in replicas], most.REPLICAS_MAX, int(bounds.is_exact))
        for replica in replicas:
            _within("speed", replica.speed, 0, most.COUNTER_MAX)
    _count("shares", plan.shares, most.REPLICAS_MAX)
    sources = {replica.endpoint.member for replica in plan.replicas[ENDS_STAGE]} if bounds.is_exact else None
    for share in plan.shares:
        _member(share.source)
        if sources is not None and share.source not in sources:
            raise ProtocolViolation("a share of a peer that is no source of this plan")
        _offsets("offsets of a share", share.offsets, bounds.microbatches)
        _offsets("windows of a share", share.windows, bounds.windows)
        _offsets("offsets that were another's", share.taken, bounds.microbatches)
        _within("credits", share.credits, 1, most.COUNTER_MAX)
    _within("microbatches", plan.microbatches, 0, bounds.microbatches)
    _record(plan.last_record, bounds, plan.iteration - 1)
    if plan.split:
        _split(plan.split, bounds)
    _count("excluded peers", plan.excluded, most.EXCLUDED_MAX)
    for peer_id in plan.excluded:
        _name("peer id", peer_id)
    _count("rebuilt stages", plan.rebuilt, bounds.stage_count)
    for rebuilt in plan.rebuilt:
        _stage(rebuilt.stage, bounds)
        _hash("digest of a state", rebuilt.state_digest)
        _within("steps", rebuilt.steps, ABSENT, most.COUNTER_MAX)
        _within("disputes", rebuilt.disputes, 0, most.COUNTER_MAX)


# ---- joining -------------------------------------------------------------------------------------


def _hello(hello: says.Hello, bounds: MessageBounds) -> None:
    _hash("hash of a corpus", hello.corpus_hash)
    _stage(hello.stage, bounds, ABSENT)
    _iteration(hello.iteration, bounds)
    _hash("lineage", hello.lineage)
    if hello.forced != says.GIVEN_UP:
        _forced(hello.forced, bounds)
    _name("peer id", hello.host)


def _place(place: says.Place, bounds: MessageBounds) -> None:
    _endpoint(place.coordinator)
    _stage(place.stage, bounds, ABSENT)
    _text("what is waited for", place.waiting_for)


def _build(build: says.Build, bounds: MessageBounds) -> None:
    _position(build.position, bounds)
    _iteration(build.iteration, bounds)
    _hash("lineage", build.lineage)
    _record(build.record, bounds, build.iteration - 1)
    _count("lineages", build.past, min(build.iteration, most.PAST_MAX))
    for lineage in build.past:
        _hash("lineage", lineage)
    _action(build.action, build.iteration, bounds)


def _action(action: BuildAction, iteration: int, bounds: MessageBounds) -> None:
    _stage(action.stage, bounds)
    _text("reason", action.reason)
    if isinstance(action, CopyKept | Stay | Restore | Replay):
        _within("iteration of what is kept", action.iteration, 0, iteration)
    match action:
        case Fresh():
            _within("salt", action.salt, 0, most.TALLY_MAX)
        case Copy():
            _endpoints("donors", action.donors, most.REPLICAS_MAX)
        case Merge():
            _neighbours((action.before, action.after), (action.stage, action.before_stage, action.after_stage), bounds)
            for name in ("weight_before", "weight_after"):
                _within(name, bits_float32(getattr(action, name)), 0, 1)
        case CopyNeighbour():
            _neighbours((action.donor,), (action.stage, action.donor_stage), bounds)
        case CopyKept() | Restore():
            _endpoint(action.holder)
            if isinstance(action, CopyKept):
                _hash("lineage", action.lineage)
        case Replay():
            _within("first stage of a replay", action.first, 1, action.stage)
            _endpoints("holders", action.holders, bounds.stage_count)
            _within("last stage of a replay", action.last, action.stage, bounds.stage_count - 1)
            _endpoints("members before", action.before, most.REPLICAS_MAX)
            _endpoints("members after", action.after, most.REPLICAS_MAX)


def _neighbours(donors: Collection[Endpoint], stages: Iterable[int], bounds: MessageBounds) -> None:
    """Of the body alone: the ends have no blocks that could stand for others."""
    _endpoints("donors", donors, most.REPLICAS_MAX)
    for stage in stages:
        _stage(stage, bounds, 1)


def _built(built: says.Built, bounds: MessageBounds) -> None:
    _hash("digest of a state", built.state_digest)
    _within("seconds", built.seconds, 0, most.SECONDS_MAX)
    _within("bytes", built.received_bytes, 0, most.TALLY_MAX)
    _iteration(built.iteration, bounds)


def _prepare(prepare: says.Prepare, bounds: MessageBounds) -> None:
    _position(prepare.position, bounds)
    _stage(prepare.stage, bounds, 1)
    _iteration(prepare.iteration, bounds)
    _hash("lineage", prepare.lineage)
    _split(prepare.split, bounds)


def _prepared(prepared: says.Prepared, _: MessageBounds) -> None:
    _hash("digest of a state", prepared.state_digest)
    _within("parts", prepared.missing, 0, most.PARTS_MAX)


# ---- claims, heartbeats, records -----------------------------------------------------------------


def _promise(promise: says.Promise, bounds: MessageBounds) -> None:
    _iteration(promise.iteration, bounds)
    _record(promise.sealed, bounds)
    if promise.sealed_at is not None:
        _position(promise.sealed_at, bounds)
    _plan(promise.plan, bounds)
    _stage(promise.stage, bounds, ABSENT)
    _hash("base", promise.base)
    _members("newer lives", promise.newer_lives, bounds.members)
    _within("bytes of a signature", len(promise.signature), 0, most.SIGNATURE_BYTES_MAX)


def _heartbeat(heartbeat: says.Heartbeat, bounds: MessageBounds) -> None:
    _position(heartbeat.position, bounds)
    _within("news", heartbeat.seen, 0, most.TALLY_MAX)
    _within("seconds to hold it", heartbeat.hold_s, 0, bounds.hold_s)
    _text("what is waited for", heartbeat.waiting_for)
    _within("progress", heartbeat.progress, 0, most.TALLY_MAX)
    _members("admitted", heartbeat.admitted, most.ADMITTED_MAX)
    _within("that have a stage", heartbeat.placed, 0, len(heartbeat.admitted))
    _hash("lineage", heartbeat.lineage)
    _forced(heartbeat.forced, bounds)
    _stage(heartbeat.adopted, bounds, ABSENT)
    _evidence(heartbeat.evidence, bounds)


def _heartbeat_answer(answer: says.HeartbeatAnswer, bounds: MessageBounds) -> None:
    _within("news", answer.news, 0, most.TALLY_MAX)
    if answer.position is not None:
        _position(answer.position, bounds)
    _iteration(answer.iteration, bounds)
    _hash("base", answer.base)
    _partial_sums(answer.partial_sums, bounds)
    _microbatches(answer.stored, bounds)
    _offsets("losses", [loss.offset for loss in answer.losses], bounds.microbatches)
    if answer.evaluation is not None:
        _within("tokens", answer.evaluation.tokens, 0, most.TALLY_MAX)
        _offsets("windows", answer.evaluation.windows, bounds.windows)
    _within("seconds per microbatch", answer.seconds_per_microbatch, 0, most.SECONDS_MAX)
    _stage(answer.stage, bounds, ABSENT)
    for iteration in (answer.ends_iteration, answer.log_since):
        _iteration(iteration, bounds, ABSENT)
    _count("shadows", answer.shadows, 2 * bounds.stage_count)
    for shadow in answer.shadows:
        _stage(shadow.stage, bounds)
        _iteration(shadow.iteration, bounds)
        _hash("lineage", shadow.lineage)
    _hash("lineage", answer.ends_lineage)
    _within("lateness", answer.lateness, 0, most.SECONDS_MAX)
    _within("work", answer.work_done, 0, most.TALLY_MAX)
    _within("room", answer.room_bytes, 0, most.TALLY_MAX)
    _name("peer id", answer.host)
    _within("seconds that it was held", answer.held_s, 0, most.SECONDS_MAX)
    _count("links", answer.links, most.LINKS_MAX)
    for link in answer.links:
        _name("peer id", link.peer_id)
        _within("bytes a second", link.bytes_per_s, most.BYTES_S_MIN, most.BYTES_S_MAX)


def _seal(seal: says.Seal, bounds: MessageBounds) -> None:
    _position(seal.position, bounds)
    _record(seal.record, bounds)


def _sealed(sealed: says.Sealed, _: MessageBounds) -> None:
    _hash("lineage", sealed.lineage)
    _signature(sealed.signature)


# ---- repair and averaging ------------------------------------------------------------------------


def _segment(segment: Segment, bounds: MessageBounds) -> None:
    _within("offset", segment.offset, 0, bounds.microbatches - 1)
    _within("number of a redo", segment.number, 1, most.NUMBER_MAX)
    _within("first position", segment.first, 1, bounds.stage_count - 1)
    _endpoints("redoers", segment.redoers, bounds.stage_count - segment.first)
    _endpoint(segment.before)
    _endpoint(segment.after)
    _count("wanted stages", segment.wanted, bounds.stage_count)
    for stage in segment.wanted:
        _stage(stage, bounds)


def _redo(redo: says.Redo, bounds: MessageBounds) -> None:
    _position(redo.position, bounds)
    _hash("base", redo.base)
    _count("segments", redo.segments, bounds.microbatches * bounds.stage_count)
    for segment in redo.segments:
        _segment(segment, bounds)


def _redone(redone: says.Redone, bounds: MessageBounds) -> None:
    _microbatches(redone.done, bounds)
    _count("tensors that are gone", redone.gone, 2 * bounds.microbatches * bounds.stage_count)
    for offset, stage in redone.gone:
        _within("offset", offset, 0, bounds.microbatches - 1)
        _stage(stage, bounds)


def _take_roll(request: says.TakeRoll, bounds: MessageBounds) -> None:
    _position(request.position, bounds)
    _roll(request.roll, bounds)


def _roll(roll: Roll, bounds: MessageBounds) -> None:
    _iteration(roll.iteration, bounds)
    _hash("base", roll.base)
    _stage(roll.stage, bounds)
    _partial_sums(roll.partial_sums, bounds)
    _endpoints("members of a roll", roll.members, most.REPLICAS_MAX)
    _within("rotation", roll.rotation, 0, most.NUMBER_MAX)


def _report(report: says.Report, _: MessageBounds) -> None:
    """Its norm may be no number: then training diverges, which is for all members of a stage to
    say.
    """
    _hash("round", report.round)
    _hash("digest of a sum", report.sum_digest)
    _hash("digest of a state", report.state_digest)
    _may_be_norm(report.squared_norm_bits)
    _count("digests of parts", report.part_digests, most.PARTS_MAX)
    for digest in report.part_digests:
        _hash("digest of a part", digest)


def _may_be_norm(bits: str) -> None:
    norm = _number(bits)
    if norm < 0:
        raise ProtocolViolation(f"squared norm {norm:g}; 0 or more expected")


def _round_failed(failed: says.RoundFailed, _: MessageBounds) -> None:
    _hash("round", failed.round)
    _member(failed.suspect)
    _text("why", failed.why)


def _part_of_round(request: says.Reduce | says.GetContribution, _: MessageBounds) -> None:
    _hash("round", request.round)
    _within("part", request.part, 0, most.PARTS_MAX)


# ---- work ----------------------------------------------------------------------------------------


def _train(train: says.Train, bounds: MessageBounds) -> None:
    """Where it is part of a redo, its stage lies in the segment."""
    key, segment = train.key, train.segment
    _key(key, bounds)
    _within("tries", train.attempt_number, 0, most.COUNTER_MAX)
    _endpoint(train.source)
    if segment is None:
        return
    _segment(segment, bounds)
    if bounds.routes is None:
        return
    if key.kind is not WorkKind.TRAIN or key.stage == ENDS_STAGE:
        raise ProtocolViolation("a redo of an evaluation, or of the ends; one of a body stage expected")
    _within("position in a redo", bounds.routes.route(key.microbatch).position(key.stage), segment.first, segment.last)


# ---- averages and state --------------------------------------------------------------------------


def _get_record(request: says.GetRecord, bounds: MessageBounds) -> None:
    _iteration(request.iteration, bounds, ABSENT)
    _hash("lineage", request.lineage)


def _get_average(request: says.GetAverage, bounds: MessageBounds) -> None:
    _iteration(request.iteration, bounds)
    _hash("digest of a sum", request.sum_digest)
    _within("part", request.part, 0, most.PARTS_MAX)


def _get_parts(request: says.GetState | says.GetShadow, bounds: MessageBounds) -> None:
    _stage(request.stage, bounds)
    _iteration(request.iteration, bounds, ABSENT)
    _within("part", request.part, 0, most.PARTS_MAX)
    _within("count of parts", request.count, 0, most.PARTS_MAX)
    if isinstance(request, says.GetState):
        _hash("lineage", request.lineage)
        if request.split:
            _split(request.split, bounds)
        if request.digests_only:
            _stage(request.stage, bounds, 1)
            if request.weights_only or request.to_export or not request.lineage:
                raise ProtocolViolation("digests are of a whole state, for whoever builds: of one lineage, and not to export")


def _state(state: says.State, bounds: MessageBounds) -> None:
    _within("parts", state.part_count, 0, most.PARTS_MAX)
    _iteration(state.iteration, bounds)
    _count("parts", state.sizes, most.PARTS_MAX)
    _count("digests of moments", state.moment_digests, 2 * most.PARTS_MAX)
    for digest in state.moment_digests:
        _hash("digest of a moment", digest)


def _shadow_part(part: says.ShadowPart, bounds: MessageBounds) -> None:
    _iteration(part.iteration, bounds)
    _hash("lineage", part.lineage)
    _count("parts", part.sizes, most.PARTS_MAX)


def _plan_answer(answer: says.PlanAnswer, bounds: MessageBounds) -> None:
    _plan(answer.plan, bounds)
    _text("what is waited for", answer.waiting_for)
    _text("the last move", answer.last_move)
    _text("what holds up an order", answer.held_up)
    _name("peer id", answer.host)
    if answer.coordinator is not None:
        _endpoint(answer.coordinator)
    _within("records", answer.records, 0, bounds.iterations)
    _count("snapshots", answer.snapshots, most.SNAPSHOTS_MAX)
    for held in (*answer.snapshots, *([answer.fetching] if answer.fetching is not None else [])):
        _stage(held.stage, bounds)
        _iteration(held.iteration, bounds)
        _hash("lineage", held.lineage)


# ---- audits --------------------------------------------------------------------------------------


def _get_account(request: says.GetAccount, bounds: MessageBounds) -> None:
    _position(request.position, bounds)
    _hash("base", request.base)
    _hash("round", request.round)


def _account(account: says.Account | says.Audit, bounds: MessageBounds) -> None:
    """Each microbatch once; of each part each contributor once at most."""
    _offsets("offsets of an account", [digests.offset for digests in account.work], bounds.microbatches)
    for digests in account.work:
        _tensor_digests(digests)
    _count("contributions", account.contributions, most.CONTRIBUTIONS_MAX)
    for contribution in account.contributions:
        _contribution(contribution)
    if len({(one.part, one.member) for one in account.contributions}) != len(account.contributions):
        raise ProtocolViolation("contributions: one of them twice")


def _tensor_digests(digests: TensorDigests) -> None:
    for digest in (digests.entered, digests.sent, digests.returned, digests.answered):
        _hash("digest of a tensor", digest)


def _contribution(contribution: ContributionDigest) -> None:
    _within("part", contribution.part, 0, most.PARTS_MAX)
    _member(contribution.member)
    _hash("digest of a contribution", contribution.digest)


def _audit(audit: says.Audit, bounds: MessageBounds) -> None:
    _position(audit.position, bounds)
    _roll(audit.roll, bounds)
    _member(audit.subject)
    _account(audit, bounds)


def _audit_answer(answer: says.AuditAnswer, bounds: MessageBounds) -> None:
    _within("compared", answer.checked, 0, most.COUNTER_MAX)
    _within("unproven", answer.unproven, 0, most.COUNTER_MAX)
    _count("findings", answer.findings, most.FINDINGS_MAX)
    for finding in answer.findings:
        _within("index of a finding", finding.index, 0, max(most.PARTS_MAX, bounds.microbatches))
        _hash("digest", finding.claimed)
        _hash("digest", finding.found)
        _within("distance", finding.distance, 0, says.DISTANCE_MAX)


# ---- endings and other lineages ------------------------------------------------------------------


def _goodbye(goodbye: says.Goodbye, _: MessageBounds) -> None:
    _text("why", goodbye.why)
    if goodbye.successor is not None:
        _endpoint(goodbye.successor)


def _meet(meet: says.Meet | says.Met, bounds: MessageBounds) -> None:
    _iteration(meet.iteration, bounds)
    _hash("lineage", meet.lineage)
    _forced(meet.forced, bounds)
    if meet.term is not None:
        _term(meet.term)
    _record(meet.record, bounds)
    if isinstance(meet, says.Met) and meet.coordinator is not None:
        _endpoint(meet.coordinator)


def _nothing(_: object, __: MessageBounds) -> None:
    """It says nothing."""


_CHECKS: dict[type[Any], Check] = {
    says.Hello: _hello,
    says.Place: _place,
    says.Build: _build,
    says.Built: _built,
    says.Prepare: _prepare,
    says.Prepared: _prepared,
    says.Claim: lambda claim, bounds: _position(claim.position, bounds),
    says.Open: lambda request, bounds: _plan(request.plan, bounds),
    says.Promise: _promise,
    says.Heartbeat: _heartbeat,
    says.HeartbeatAnswer: _heartbeat_answer,
    says.Redo: _redo,
    says.Redone: _redone,
    says.TakeRoll: _take_roll,
    says.Report: _report,
    says.OtherPartialSums: lambda answer, bounds: _partial_sums(answer.partial_sums, bounds),
    says.RoundFailed: _round_failed,
    says.Seal: _seal,
    says.Sealed: _sealed,
    says.Commit: lambda commit, bounds: _record(commit.record, bounds),
    says.Committed: lambda committed, bounds: _iteration(committed.iteration, bounds),
    says.Train: _train,
    says.Trained: _nothing,
    says.Loss: lambda loss, bounds: _key(loss.key, bounds),
    says.LossAnswer: _nothing,
    says.Pull: lambda pull, bounds: _key(pull.key, bounds),
    says.Pulled: _nothing,
    says.Reduce: _part_of_round,
    says.Reduced: lambda reduced, _: _may_be_norm(reduced.squared_norm_bits),
    says.GetAverage: _get_average,
    says.Average: _nothing,
    says.GetState: _get_parts,
    says.State: _state,
    says.GetShadow: _get_parts,
    says.ShadowPart: _shadow_part,
    says.GetRecord: _get_record,
    says.RecordAnswer: lambda answer, bounds: _record(answer.record, bounds),
    says.GetPlan: _nothing,
    says.PlanAnswer: _plan_answer,
    says.GetManifest: _nothing,
    says.ManifestAnswer: _nothing,
    says.Goodbye: _goodbye,
    says.Farewell: lambda farewell, _: _text("note", farewell.note),
    says.Meet: _meet,
    says.Met: _meet,
    says.GetAccount: _get_account,
    says.Account: _account,
    says.Audit: _audit,
    says.AuditAnswer: _audit_answer,
    says.GetContribution: _part_of_round,
    says.ContributionAnswer: _nothing,
}
