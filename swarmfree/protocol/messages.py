"""What peers say to each other, as frozen values. `wire` turns them into protobuf; `sim` passes
them as they are.

Every call is: one request and at most one payload of bytes, progress frames while it runs, one
response and at most one payload. Every request can be repeated: the second one joins the work in
progress or gets the stored answer (protocol section 6). A "no" is `errors.Refused`.

Payloads: tensors in the run's wire dtype (Train, Loss, Pull), float32 sums (Reduce, GetAverage),
state (GetState), text (GetManifest).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from swarmfree.protocol.actions import BuildAction
from swarmfree.protocol.evidence import Evidence
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position, Side, Term, WorkKey
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import (
    GENESIS_LINEAGE,
    ContributionDigest,
    Evaluation,
    MicrobatchSet,
    Microloss,
    PartialSum,
    Record,
    Roll,
    TensorDigests,
)
from swarmfree.protocol.remote_text import RemoteText

GIVEN_UP = (ABSENT,)
"""In place of forced iterations: the sender gives its state up for whatever the receiver has; such
a state loses against every other.
"""


@dataclass(frozen=True, slots=True)
class Header:
    """Fields that every request carries; the receiver checks them before anything else.

    Args:
        run: fingerprint of the manifest.
        revision: protocol revision of the sender.
        sender: who asks.
        receiver_incarnation: which life of the receiver is meant; empty = any.
    """

    run: str
    revision: int
    sender: Endpoint
    receiver_incarnation: str


# ---- joining -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks for a place in the run; a newcomer sends it to any member.

    Args:
        can_feed: may be a source.
        standby: would rather wait for a lost stage.
        corpus_hash: of the corpus it holds, empty if none.
        stage: whose state it holds, `ABSENT` for none that it can vouch for: a member that was
            fenced keeps its state.
        iteration: the iteration that its state is ready for.
        lineage: of the last record in it, empty for a peer that neither vouches for a state nor is
            a member.
        forced: iterations of that lineage's records that had no majority; `GIVEN_UP` where it is
            given up for whatever the receiver has.
        host: peer id of the peer in whose process it lives, as its guest; empty = it is none.
    """

    can_feed: bool
    standby: bool
    corpus_hash: str
    stage: int = ABSENT
    iteration: int = 0
    lineage: str = ""
    forced: tuple[int, ...] = GIVEN_UP
    host: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Answers Hello with a place, or with the coordinator to ask instead.

    Args:
        coordinator: whom to listen to; where this is not the answerer, ask there.
        stage: the stage given, `ABSENT` = standby.
        waiting_for: one sentence on what the run is missing, empty if nothing.
        accepted: False where the answerer is not the coordinator.
    """

    coordinator: Endpoint
    stage: int
    waiting_for: RemoteText
    accepted: bool


@dataclass(frozen=True, slots=True)
class Build:
    """Orders a newcomer or standby to make a stage's state; the coordinator sends it.

    Args:
        position: the claim it belongs to.
        action: fresh, copy, merge, copy of a neighbour, or from a kept copy.
        iteration: version of the donors' state, and of the state to be made: the iteration it is
            ready for.
        lineage: of the last committed record.
        record: the last committed record, if any.
        past: lineages of the iterations right before this one, oldest first, as far back as the
            coordinator knows them.
    """

    position: Position
    action: BuildAction
    iteration: int
    lineage: str
    record: Record | None
    past: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """Answers Build: the state is made.

    It tells the state's digest, what making it took, the iteration that it is ready for, and
    whether a lost state came back exactly.
    """

    state_digest: str
    seconds: float
    received_bytes: int
    iteration: int
    exact: bool = False


# ---- books ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Opens an iteration: the coordinator claims a position and sends the plan."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Claim:
    """Asks a member to follow a new coordinator, which cannot make a plan yet.

    Args:
        position: the claim.
        only_asking: would you promise? Nothing is promised yet, so that a candidate whom nobody
            follows disturbs nobody.

    Source: protocol sections 3.1, 3.2. Differs: asked twice.
    """

    position: Position
    only_asking: bool


@dataclass(frozen=True, slots=True)
class Promise:
    """Answers Claim and Open: the member accepts no lower position from now on, and says what it
    holds.

    Args:
        iteration: the receiver's own iteration after catching up.
        sealed: the sealed record of that iteration, if one is held.
        sealed_at: position of the Seal that brought it; the highest one counts.
        plan: the newest plan it has, so that a successor goes on where the last coordinator was;
            only in answer to a Claim.
        stage: whose state it holds, `ABSENT` for none.
        base: that its state was last opened in, empty if none.
        is_committed_state: its state came out of a decided step, so it is that of its lineage in
            any base.
        newer_lives: heard from by the receiver, of peers whose earlier lives are in its electorate:
            those have ended.
        signature: over `promise_bytes`; only in answer to a Claim in earnest.
    """

    iteration: int
    sealed: Record | None
    sealed_at: Position | None = None
    plan: Plan | None = None
    stage: int = ABSENT
    base: str = ""
    is_committed_state: bool = False
    newer_lives: tuple[Member, ...] = ()
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Asks a member for news; the coordinator always has one under way to each member.

    The member answers at once when it has news, else after `hold_s`.

    Args:
        position: the coordinator's present claim.
        seen: number of the last news it has got from this member, 0 for none.
        hold_s: how long the member may wait for news, seconds; 0 = answer now.
        waiting_for: what the swarm waits for, for people; empty if nothing.
        progress: grows whenever the coordinator gets somewhere; a lead that only heartbeats is
            none.
        admitted: who has a place and is in no plan that the member has promised: whoever stands
            by, builds or copies, and everybody where the newest plan has not reached it. The member
            lets them have what it lets members have.
        lineage: of the last record before the position's iteration.
        forced: iterations of that lineage that were sealed without a majority.
        adopted: the lost stage for which the member is to take in a guest; `ABSENT` for none.
        evidence: the promises by which the coordinator's claim stands, signed; only to a member
            that has not promised the term, and None where the coordinator has none to show.
        placed: so many of `admitted`, the first ones, have a stage, or make or copy it, and are
            served like members, however many others stand by and call.
    """

    position: Position
    seen: int
    hold_s: float
    waiting_for: RemoteText = ""
    progress: int = 0
    admitted: tuple[Member, ...] = ()
    lineage: str = GENESIS_LINEAGE
    forced: tuple[int, ...] = ()
    adopted: int = ABSENT
    evidence: Evidence | None = None
    placed: int = 0


@dataclass(frozen=True, slots=True)
class LinkRate:
    """How fast payloads come from one peer.

    Args:
        peer_id: of the sender.
        bytes_per_s: that have come from it, while something came.
    """

    peer_id: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class KeptShadow:
    """A complete shadow that the answering member keeps.

    Args:
        stage: whose.
        iteration: of its oldest part.
        full: with moments.
        lineage: of the last record before that part; empty where it is not known.
    """

    stage: int
    iteration: int
    full: bool = False
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Answers Heartbeat: what the member holds, has done and keeps for others.

    Args:
        news: number of its latest news, from 1.
        position: the highest claim it has promised; None before the first.
        iteration: the iteration its state is ready for.
        base: base of the work it holds; without a plan, of a state that it cannot vouch for, the
            one that this was opened in.
        partial_sums: its sums of this base.
        stored: microbatches whose output and answer it can still give to a repair.
        share_done: (source) every microbatch of its share came back.
        losses: (source) of the microbatches that came back.
        evaluation: (source) held-out loss of this attempt, if asked for.
        seconds_per_microbatch: compute of its own, forward and backward, of a source that of the
            ends, smoothed; 0 if not measured.
        stage: whose state it holds, `ABSENT` for none.
        ends_iteration: the iteration that its copy of stage 0 is ready for, `ABSENT` without
            a complete one.
        shadows: of other stages, complete ones.
        log_since: the iteration from which on its activation log is whole; `ABSENT` without
            one.
        ends_lineage: of the last record in its copy of stage 0; empty without a complete one.
        lateness: how many times over its limit the present piece of its device's work is; 0 = it is
            not.
        work_done: pieces of work that its device has done, and frames of payloads that it has
            received; it grows while a build makes progress.
        room_bytes: memory that it would give a guest; 0 = it takes in none, or none more.
        host: peer id of the peer in whose process it lives, as its guest; empty = it is none.
        held_s: how long the member has held this question: it may wait for news.
        links: how fast payloads came to it from others.
    """

    news: int
    position: Position | None
    iteration: int
    base: str
    partial_sums: tuple[PartialSum, ...]
    stored: MicrobatchSet
    share_done: bool
    losses: tuple[Microloss, ...]
    evaluation: Evaluation | None
    seconds_per_microbatch: float
    stage: int = ABSENT
    ends_iteration: int = ABSENT
    shadows: tuple[KeptShadow, ...] = ()
    log_since: int = ABSENT
    ends_lineage: str = ""
    lateness: float = 0.0
    work_done: int = 0
    room_bytes: int = 0
    host: str = ""
    held_s: float = 0.0
    links: tuple[LinkRate, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one microbatch's route that is redone, positions first..last.

    On a straight route positions are the numbers of the stages.

    Args:
        offset: the microbatch.
        number: redo number; the same number is the same redo.
        redoers: one per position of the segment.
        before: holder of the stored output at position first - 1 (of the embedding, where first =
            1).
        after: holder of the stored answer at position last + 1 (of the loss, where last = L).
        wanted: stages whose contribution is missing; the others redo the microbatch only to pass it
            on, and their sums must not have it.

    Source: protocol section 3.8. Differs: what is redone beyond need is not kept.
    """

    offset: int
    number: int
    first: int
    redoers: tuple[Endpoint, ...]
    before: Endpoint
    after: Endpoint
    wanted: tuple[int, ...]

    @property
    def last(self) -> int:
        """The last position of the segment."""
        return self.first + len(self.redoers) - 1


@dataclass(frozen=True, slots=True)
class Redo:
    """Orders the first redoer of each segment to compute these microbatches again; the coordinator
    sends it.
    """

    position: Position
    base: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Redone:
    """Answers Redo: the offsets that are done, and (offset, stage) of tensors that turned out to be
    gone.
    """

    done: MicrobatchSet
    gone: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TakeRoll:
    """Orders the members of a stage to average this roll; the coordinator sends it.

    The protocol's text calls this message `Roll`.

    Args:
        detailed: members had different averages in the last round: report part by part.
    """

    position: Position
    roll: Roll
    detailed: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Answers TakeRoll: the member has the whole average.

    Args:
        round: which roll.
        sum_digest: digest of the average, over its parts in order.
        squared_norm_bits: float64 bits; part norms, taken by their owners, added in order of parts.
        state_digest: of weights and moments this iteration started from.
        part_digests: of each part of the average, where the roll asked for them.
    """

    round: str
    sum_digest: str
    squared_norm_bits: str
    state_digest: str
    part_digests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherPartialSums:
    """Answers TakeRoll with the member's own list, which differs from the roll; the round does not
    happen.
    """

    partial_sums: tuple[PartialSum, ...]


@dataclass(frozen=True, slots=True)
class RoundFailed:
    """Answers TakeRoll: the round failed; names the suspect and the reason. All partial sums are
    kept.

    Args:
        spoilt: what the suspect gave is of no use to anybody: not finite where that of others is,
            or of a wrong length.
    """

    round: str
    suspect: Member
    why: RemoteText
    spoilt: bool = False


@dataclass(frozen=True, slots=True)
class Seal:
    """Asks a member to store this record; with a majority of the electorate the iteration is
    committed.
    """

    position: Position
    record: Record


@dataclass(frozen=True, slots=True)
class Sealed:
    """Answers Seal: the record is stored, or an equal one was applied already.

    Args:
        lineage: of the record.
        signature: the receiver's vote, see `protocol.evidence`, in the term of the Seal.
    """

    lineage: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """Orders a step: the record of this lineage is decided."""

    record: Record


@dataclass(frozen=True, slots=True)
class Committed:
    """Answers Commit: the step is done, and the state is ready for `iteration`."""

    iteration: int


# ---- work ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Train:
    """Asks a replica to run one microbatch forward, pass it on, and return the input's gradient.

    The payload is the activations (B, T, D).

    Args:
        key: the work at the receiver's stage.
        attempt_number: `try` of the protocol: 0 at first, raised by whoever calls a sibling, drives
            again or redoes.
        source: who computes the loss.
        segment: where this is part of a redo, its segment; else None.

    The response's payload is the gradient of the input (B, T, D), empty for evaluation.
    """

    key: WorkKey
    attempt_number: int
    source: Endpoint
    segment: Segment | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """Answers Train: the microbatch came back through the receiver."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Asks the source for the loss of a microbatch; the last body stage sends it.

    The payload is that stage's output (B, T, D); the response's payload is the gradient of it.
    """

    key: WorkKey


@dataclass(frozen=True, slots=True)
class LossAnswer:
    """Answers Loss: the microbatch's share of the iteration's mean loss, nats per token, float64
    bits.
    """

    loss_bits: str


@dataclass(frozen=True, slots=True)
class Pull:
    """Asks a holder for a stored tensor, for a redo or for a replay; the response's payload is its
    bytes.
    """

    key: WorkKey
    side: Side


@dataclass(frozen=True, slots=True)
class Pulled:
    """Answers Pull; the payload is the stored bytes."""


# ---- averaging and state -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sends a member's contribution to one part, float32, to the part's owner.

    The response brings the sum. The protocol's text calls that message `Broadcast`.

    Args:
        contributes: False where the member has no partial sum in the roll; then the payload is
            empty.
    """

    round: str
    part: int
    contributes: bool


@dataclass(frozen=True, slots=True)
class Reduced:
    """Answers Reduce: the summed part is the payload; its squared norm is float64 bits."""

    squared_norm_bits: str


@dataclass(frozen=True, slots=True)
class GetAverage:
    """Asks for one part of the average of an iteration: a sibling that has missed it, or who copies
    the stage.

    Args:
        at_once: beside the receiver's own step, of who follows some of its blocks for another cut.
    """

    iteration: int
    sum_digest: str
    part: int
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Average:
    """Answers GetAverage; the payload is the part, float32."""


# ---- audits --------------------------------------------------------------------------------------


class Audited(enum.StrEnum):
    """What of a member's work an auditor compares: what it sent on for a microbatch, what it sent
    back, what it contributed to a part, what it answered as the owner of a part.
    """

    OUTPUT = "output"
    ANSWER = "answer"
    CONTRIBUTION = "contribution"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class GetAccount:
    """Asks a member for its account of the work of one base; the coordinator sends it.

    Args:
        position: the claim it belongs to.
        base: of the work.
        round: of the average, in whose contributions the account ends.
    """

    position: Position
    base: str
    round: str


@dataclass(frozen=True, slots=True)
class Account:
    """Answers GetAccount: what went through the member, by digests.

    Args:
        work: by microbatch, each once.
        contributions: what it received as owner of a part, and what it contributed to the others.
    """

    work: tuple[TensorDigests, ...]
    contributions: tuple[ContributionDigest, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """Orders a member to compute a sibling's share of an iteration again; the coordinator sends it.

    Args:
        position: the claim it belongs to.
        roll: whose average was made; the sibling's partial sums stand in it.
        subject: the sibling.
        work: what the sibling says went through it, of the microbatches in those sums.
        contributions: of the sibling, as the owners of the parts received them; of all
            contributors, as the sibling received them for its own parts.
    """

    position: Position
    roll: Roll
    subject: Member
    work: tuple[TensorDigests, ...]
    contributions: tuple[ContributionDigest, ...]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that a sibling did otherwise than the auditor.

    Args:
        what: of its work.
        index: the microbatch's offset, or the part.
        claimed: digest of what the sibling gave.
        found: digest of what the auditor computed.
        distance: relative L2 distance of the two, at most `DISTANCE_MAX`, which also stands for
            what the sibling does not show.
    """

    what: Audited
    index: int
    claimed: str
    found: str
    distance: float


DISTANCE_MAX = 1e9


@dataclass(frozen=True, slots=True)
class AuditAnswer:
    """Answers Audit.

    Args:
        checked: how many tensors and parts were compared.
        unproven: how many could not be, since what they need is not there any more.
        findings: what differs, the largest distances first.
    """

    checked: int
    unproven: int
    findings: tuple[AuditFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class GetContribution:
    """Asks a sibling for what it contributed to one part, since an audit is under way."""

    round: str
    part: int


@dataclass(frozen=True, slots=True)
class ContributionAnswer:
    """Answers GetContribution; the payload is the contribution, float32."""


@dataclass(frozen=True, slots=True)
class GetState:
    """Asks a donor, or a keeper of a copy, for parts of a stage's state: up to `count` from `part`
    on.

    Args:
        iteration: that the state is to be ready for: exactly this one to build from (`lineage`
            given), this or a later one to join (`lineage` empty).
        weights_only: weights (merge) or weights and both moments, one after the other (copy).
        to_export: with weights alone: to take them out of the run, so with what proves them.
        split: by which parts are counted, of whoever holds its stage as it is cut otherwise none
            is wanted; empty = as the donor has it.
        digests_only: in place of each part those of its weights, first and second moment, one after
            the other.
    """

    stage: int
    iteration: int
    lineage: str
    part: int
    weights_only: bool
    count: int = 1
    to_export: bool = False
    split: tuple[int, ...] = ()
    digests_only: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    """Asks a member to have its stage as another split cuts it, beside what it holds.

    Nothing changes by it; a plan that is cut so makes it what the member holds.

    Args:
        position: the claim of the coordinator that asks.
        stage: of the member.
        iteration: that the state is ready for.
        lineage: of the last committed record.
        split: blocks of each body stage.
        ahead: only copy what is lacking, while training goes on, and follow it; it is answered once
            all of it is there, or after `hold_s`.
    """

    position: Position
    stage: int
    iteration: int
    lineage: str
    split: tuple[int, ...]
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """Answers Prepare: it is there.

    Args:
        state_digest: of what was prepared; empty where it is copied ahead.
        missing: parts that have not come yet, of what is copied ahead.
    """

    state_digest: str
    missing: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Answers GetState; the payload is the parts, one after the other, as long as `sizes` says.

    They are ready for `iteration`.

    Args:
        moment_digests: BLAKE3 of each part's first and second moment, where weights are exported:
            with them whoever has the weights alone can compute the state digest of a record.
    """

    part_count: int
    iteration: int
    sizes: tuple[int, ...] = ()
    moment_digests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GetShadow:
    """Asks for parts of a stage's shadow: a plain one, int8, or the full one of an iteration.

    A member of that stage gives it as it is now, up to `count` parts at once, or as it put it by at
    that iteration; a holder as it was kept.
    """

    stage: int
    part: int
    iteration: int = ABSENT
    count: int = 1


@dataclass(frozen=True, slots=True)
class ShadowPart:
    """Answers GetShadow: the payload is the part as it was at `iteration`; a full one follows
    `lineage`.

    Several follow one after the other, as long as `sizes` says.
    """

    iteration: int
    lineage: str = ""
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GetRecord:
    """Asks for the applied record of an iteration; `ABSENT` asks for the newest one.

    Args:
        iteration: of the record.
        lineage: with it, the record is asked for that a snapshot on the receiver's disk was left
            by, whatever the receiver holds.
    """

    iteration: int
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class RecordAnswer:
    """Answers GetRecord with the record."""

    record: Record


@dataclass(frozen=True, slots=True)
class GetPlan:
    """Asks for the plan in force: for `status`, a member that missed Open, or the organiser's
    watch.
    """


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A snapshot that lies on the answering peer's disk.

    Args:
        stage: whose.
        iteration: that it is ready for.
        lineage: of the last record before that iteration.
    """

    stage: int
    iteration: int
    lineage: str


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """Answers GetPlan with the plan, and says whether a coordinator goes on with it.

    Args:
        plan: in force, None before the first Open.
        waiting_for: what the run waits for, empty if nothing.
        coordinator: whom the answering peer hears, itself where it coordinates; None if nobody.
        records: how many of its lineage it holds, applied or not.
        snapshots: on its disk, the one that it holds first; told while it hears no coordinator.
        last_move: whom the answering peer, where it coordinates, moved to another stage last, and
            what that is expected to bring, or came to; empty where it has moved nobody.
        host: peer id of the peer in whose process it lives, as its guest; empty = it is none.
        is_committed_state: the state that it holds is what the last record left, and not made in
            place of that since.
        passed_over: peer id of a coordinator that it does not follow, since that leads from before
            what lies on its disk; empty = none.
        held_up: what holds up the organiser's order, where it coordinates; empty = nothing.
        fetching: what it fetches from the run's store, to have it on its disk, where nobody leads
            it; None for nothing.
    """

    plan: Plan | None
    waiting_for: RemoteText
    coordinator: Endpoint | None = None
    records: int = 0
    snapshots: tuple[HeldSnapshot, ...] = ()
    last_move: RemoteText = ""
    host: str = ""
    is_committed_state: bool = False
    passed_over: str = ""
    held_up: RemoteText = ""
    fetching: HeldSnapshot | None = None

    def goes_on(self, least: int) -> bool:
        """Whether the answering peer is led, or may elect a coordinator by its plan, and holds as
        many records as that.
        """
        return self.coordinator is not None or (self.plan is not None and self.records >= least)


@dataclass(frozen=True, slots=True)
class GetManifest:
    """Asks for the manifest's canonical bytes."""


@dataclass(frozen=True, slots=True)
class ManifestAnswer:
    """Answers GetManifest; the payload is the bytes."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender, or the whole run, ends.

    Args:
        run_over: True from the coordinator: everybody ends; obeyed from anybody else only by
            whoever has followed nobody for long.
        finished: the run did all its iterations.
        why: one line for people.
        write_weights: with `run_over`: the receiver writes its stage's weights, answers when that
            is done, and stays.
        successor: from a coordinator that leaves: who may claim at once; from one that lost against
            another lineage: whom to join anew.
        rejoin: that other lineage won: what is held here counts for nothing there.
        all_written: with `write_weights` or `paused`: every stage is written, and nothing is to do;
            whoever leads next waits for none that is missing.
        paused: with `run_over`: the run only stops for a while; what is written are snapshots.

    A member that leaves gets its answer when it is no longer needed: until then it goes on with
    what it began. The flags travel; `purpose` says which of five messages they make.
    """

    run_over: bool
    finished: bool
    why: RemoteText
    write_weights: bool = False
    successor: Endpoint | None = None
    rejoin: bool = False
    all_written: bool = False
    paused: bool = False

    @property
    def purpose(self) -> GoodbyePurpose:
        """What the receiver is to do."""
        if self.run_over:
            return WriteWeights(self.all_written) if self.write_weights else EndRun(self.finished, self.paused)
        if self.successor is None:
            return ReleaseMember()
        return JoinOther(self.successor) if self.rejoin else FollowSuccessor(self.successor)


@dataclass(frozen=True, slots=True)
class EndRun:
    """Purpose of a Goodbye: the run is over, and the receiver ends.

    Args:
        finished: all iterations are done, or it was stopped or paused.
        paused: the run only stops for a while.
    """

    finished: bool
    paused: bool = False


@dataclass(frozen=True, slots=True)
class WriteWeights:
    """Purpose of a Goodbye: the run is over; the receiver writes its stage's weights and stays.

    Args:
        all_written: every stage is written already.
    """

    all_written: bool


@dataclass(frozen=True, slots=True)
class FollowSuccessor:
    """Purpose of a Goodbye: the coordinator leaves, and `successor` may claim the lead at once."""

    successor: Endpoint


@dataclass(frozen=True, slots=True)
class JoinOther:
    """Purpose of a Goodbye: the lineage lost; the receiver joins the swarm of `successor` again."""

    successor: Endpoint


@dataclass(frozen=True, slots=True)
class ReleaseMember:
    """Purpose of a Goodbye: the sender leaves and asks its coordinator to release it."""


GoodbyePurpose = EndRun | WriteWeights | FollowSuccessor | JoinOther | ReleaseMember


@dataclass(frozen=True, slots=True)
class Meet:
    """Compares the state of two swarms of one run; a coordinator sends it to a peer outside its
    own.

    Args:
        iteration: how many iterations are committed.
        lineage: of the last record.
        forced: which of them were sealed without a majority.
        term: of the sender's claim; of two coordinators of one lineage the one with the lower term
            gives way.
        whole: it goes on: every stage is served, and a majority follows.
        record: the last one, with its evidence; None before the first.

    Source: protocol section 3.4.
    """

    iteration: int
    lineage: str
    forced: tuple[int, ...]
    term: Term
    whole: bool
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Met:
    """Answers Meet: the state of the receiver's swarm, its coordinator, and the highest promised
    term.

    The coordinator is None if the receiver knows none.

    Args:
        follows: the sender's last record lies in the receiver's own past, so that the sender's
            lineage is the beginning of this one.
        record: the last one, with its evidence; None before the first.
    """

    iteration: int
    lineage: str
    forced: tuple[int, ...]
    coordinator: Endpoint | None
    term: Term | None
    whole: bool
    follows: bool = False
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Farewell:
    """Answers Goodbye: the receiver has heard it.

    Args:
        note: one line for people; empty if nothing is to be said.
        all_written: the weights of every stage are written, as a coordinator has said.
    """

    note: RemoteText = field(default="")
    all_written: bool = False


BooksRequest = (
    Hello
    | Build
    | Prepare
    | Claim
    | Open
    | Heartbeat
    | Seal
    | Commit
    | GetState
    | GetShadow
    | GetRecord
    | GetPlan
    | GetManifest
    | Goodbye
    | Meet
)
"""Requests about places, plans, records and states; all others are about the work on microbatches
and its average.
"""

Request = (
    Hello
    | Build
    | Prepare
    | Claim
    | Open
    | Heartbeat
    | Redo
    | TakeRoll
    | Seal
    | Commit
    | Train
    | Loss
    | Pull
    | Reduce
    | GetAverage
    | GetState
    | GetShadow
    | GetRecord
    | GetPlan
    | GetManifest
    | Goodbye
    | Meet
    | GetAccount
    | Audit
    | GetContribution
)
Response = (
    Place
    | Built
    | Prepared
    | Promise
    | HeartbeatAnswer
    | Redone
    | Report
    | OtherPartialSums
    | RoundFailed
    | Sealed
    | Committed
    | Trained
    | LossAnswer
    | Pulled
    | Reduced
    | Average
    | State
    | ShadowPart
    | RecordAnswer
    | PlanAnswer
    | ManifestAnswer
    | Farewell
    | Met
    | Account
    | AuditAnswer
    | ContributionAnswer
)
