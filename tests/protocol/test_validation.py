"""What no correct peer says is refused by a sentence before anybody acts on it, and nothing else
is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.protocol import actions, messages
from swarmfree.protocol.errors import ProtocolViolation
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RunSection, StagesSection
from swarmfree.protocol.message_bounds import ADDRESSES_MAX, TERM_MAX, TEXT_LETTERS_MAX, MessageBounds
from swarmfree.protocol.messages import Request, Response
from swarmfree.protocol.names import Endpoint, Member, Position, Side, Term, WorkKey, WorkKind
from swarmfree.protocol.plan import Plan, Replica, Share
from swarmfree.protocol.records import MicrobatchSet, Microloss, PartialSum, Roll, SetSplit, float32_bits, float64_bits
from swarmfree.protocol.validation import check_fit, check_message, check_names, payload_bytes_max
from tests.wire.wire_samples import (
    ALICE,
    AT_ALICE,
    AT_BOB,
    BASE,
    ENTRY,
    HEADER,
    LINEAGE,
    PARTIAL_SUMS,
    RECORD,
    REQUESTS,
    RESPONSES,
    SEGMENT,
)

MANIFEST = Manifest(
    run=RunSection(iterations=20, evaluate_windows=4),
    model=ModelSection(blocks=6),
    stages=StagesSection(body=4, replicas_max=2),
    batch=BatchSection(microbatches=12),
)
BOUNDS = MessageBounds.of(MANIFEST)
AT = Position(Term(3, ALICE), 7, 1, 2)
FAR = replace(AT, term=Term(2**64 - 1, ALICE))
ENTRIES = (replace(ENTRY, sums=()),) * MANIFEST.stage_count
RECORD_6 = replace(RECORD, iteration=6, stages=ENTRIES)
PLACES = tuple((Replica(AT_ALICE), Replica(AT_BOB)) for _ in range(MANIFEST.stage_count))
PLAN = Plan(AT, BASE, LINEAGE, PLACES, (Share(ALICE, (0, 1), (0, 1), 4),), RECORD_6, 12)
KEY = WorkKey(7, BASE, WorkKind.TRAIN, 7 * 12 + 5, 2)
ROLL = Roll(7, BASE, 2, PARTIAL_SUMS, (AT_ALICE, AT_BOB))
BUILD = messages.Build(AT, actions.Fresh(1, 4, "nobody has it"), 7, LINEAGE, RECORD_6)
HEARTBEAT = messages.Heartbeat(AT, 12, 1.5)
MERGE = actions.Merge(2, AT_ALICE, AT_BOB, 1, 3, float32_bits(0.5), float32_bits(0.5), 1.0, 1.0, "both neighbours live")
REPLAY = actions.Replay(2, 2, (AT_BOB,), 5, (AT_BOB,), (AT_BOB,), "borders were kept")
NAN = float64_bits(math.nan)
TAKE_ROLL = messages.TakeRoll(AT, ROLL)
REDO = messages.Redo(AT, BASE, (SEGMENT,))
CUT = (1, 2, 1, 2)

SOUND: tuple[Request, ...] = (
    HEARTBEAT,
    BUILD,
    replace(BUILD, action=MERGE),
    replace(BUILD, action=REPLAY),
    messages.Open(PLAN),
    messages.Seal(AT, RECORD_6),
    messages.Commit(RECORD_6),
    messages.Commit(replace(RECORD_6, split=SetSplit(CUT, 6))),
    messages.Open(replace(PLAN, split=CUT)),
    messages.Prepare(AT, 2, 7, LINEAGE, CUT),
    messages.GetState(2, 7, LINEAGE, 0, weights_only=False, split=CUT),
    TAKE_ROLL,
    REDO,
    messages.Train(KEY, 0, AT_ALICE),
    messages.Train(KEY, 1, AT_ALICE, SEGMENT),
    messages.Loss(replace(KEY, stage=0)),
)


def with_entry(**changes: Any) -> messages.Commit:
    """A commit whose last stage is another."""
    return messages.Commit(replace(RECORD_6, stages=(*ENTRIES[:-1], replace(ENTRIES[-1], **changes))))


def with_plan(**changes: Any) -> messages.Open:
    """An open of another plan."""
    return messages.Open(replace(PLAN, **changes))


def with_share(**changes: Any) -> messages.Open:
    """An open of a plan with another share."""
    return with_plan(shares=(replace(PLAN.shares[0], **changes),))


def with_action(action: actions.BuildAction) -> messages.Build:
    """A build of something else."""
    return replace(BUILD, action=action)


def with_segment(**changes: Any) -> messages.Redo:
    """Another redo."""
    return replace(REDO, segments=(replace(SEGMENT, **changes),))


def with_sum(**changes: Any) -> messages.TakeRoll:
    """A roll of another sum."""
    return replace(TAKE_ROLL, roll=replace(ROLL, partial_sums=(replace(PARTIAL_SUMS[0], **changes),)))


MANY = Endpoint(ALICE, AT_ALICE.addresses[:1] * (ADDRESSES_MAX + 1))
UNSOUND: tuple[tuple[Request, str], ...] = (
    (replace(HEARTBEAT, position=FAR), f"term 18,446,744,073,709,551,615; 0 to {TERM_MAX:,} expected"),
    (replace(HEARTBEAT, position=replace(AT, revision=2**32 - 1)), "revision 4,294,967,295"),
    (replace(HEARTBEAT, position=replace(AT, iteration=21)), "iteration 21; 0 to 20 expected"),
    (replace(HEARTBEAT, hold_s=math.inf), "seconds to hold it inf"),
    (replace(HEARTBEAT, hold_s=math.nan), "seconds to hold it nan"),
    (replace(HEARTBEAT, hold_s=-1.0), "seconds to hold it -1.0"),
    (replace(HEARTBEAT, waiting_for="x" * (TEXT_LETTERS_MAX + 1)), "what is waited for of 8,193 letters"),
    (replace(HEARTBEAT, adopted=5), "stage 5; -1 to 4 expected"),
    (messages.Hello(False, True, "", host="x" * 65), "peer id of 65 letters"),
    (messages.Claim(FAR, only_asking=True), "term"),
    (messages.Meet(7, LINEAGE, (2**63,), AT.term, whole=True), "forced iteration"),
    (messages.Hello(True, False, "", 2, -1, LINEAGE, ()), "iteration -1"),
    (messages.Hello(True, False, "", 5, 7, LINEAGE, ()), "stage 5; -1 to 4 expected"),
    (messages.Commit(replace(RECORD_6, stages=())), "0 stages; 5 to 5 expected"),
    (messages.Commit(replace(RECORD_6, iteration=20)), "iteration of a record 20"),
    (messages.Commit(replace(RECORD_6, loss_bits=NAN)), "loss nan"),
    (messages.Seal(AT, replace(RECORD_6, before="\n")), "lineage of 1 letters"),
    (with_entry(squared_norm_bits=float64_bits(-1.0)), "squared norm -1"),
    (with_entry(squared_norm_bits=NAN), "squared norm nan"),
    (with_entry(scalars=replace(ENTRY.scalars, step_size=float32_bits(math.inf))), "step_size inf"),
    (with_plan(replicas=((), *PLACES[1:])), "0 replicas; 1 to 64 expected"),
    (with_plan(replicas=PLACES[1:]), "4 stages; 5 to 5 expected"),
    (with_plan(replicas=((Replica(MANY),), *PLACES[1:])), "9 addresses"),
    (with_plan(last_record=replace(RECORD_6, iteration=5)), "the record of iteration 5; that of 6 expected"),
    (with_plan(microbatches=13), "microbatches 13"),
    (with_plan(split=(1, 2, 1)), "3 stages of a split; 4 to 4 expected"),
    (with_plan(split=(1, 2, -1, 4)), "blocks of a stage -1; 0 to 6 expected"),
    (with_plan(split=(0, 0, 0, 0)), "a split into 0 blocks; 6 expected"),
    (with_plan(split=(1, 2, 1, 3)), "a split into 7 blocks; 6 expected"),
    (messages.Commit(replace(RECORD_6, split=SetSplit(CUT, 7))), "iteration since which the model is cut so 7; 1 to 6"),
    (messages.Commit(replace(RECORD_6, split=SetSplit((), 6))), "0 stages of a split"),
    (messages.Prepare(AT, 0, 7, LINEAGE, CUT), "stage 0; 1 to 4 expected"),
    (messages.Prepare(AT, 2, 7, LINEAGE, ()), "0 stages of a split"),
    (messages.GetState(2, 7, LINEAGE, 0, weights_only=False, split=(6,)), "1 stages of a split"),
    (with_share(offsets=(12,)), "offsets of a share 12"),
    (with_share(offsets=(1, 1)), "offsets of a share: one of them twice"),
    (with_share(windows=(2**40,)), "windows of a share"),
    (with_share(credits=0), "credits 0"),
    (with_share(source=Member("QmNobody", "")), "a share of a peer that is no source of this plan"),
    (with_action(replace(MERGE, before_stage=0)), "stage 0; 1 to 4 expected"),
    (with_action(replace(MERGE, weight_before=float32_bits(math.nan))), "weight_before nan"),
    (with_action(actions.Copy(1, (), "nobody")), "0 donors; 1 to 64 expected"),
    (with_action(actions.CopyNeighbour(3, AT_BOB, 9, "it lives")), "stage 9"),
    (with_action(replace(REPLAY, holders=())), "0 holders"),
    (with_action(replace(REPLAY, first=0)), "first stage of a replay 0"),
    (with_action(replace(REPLAY, iteration=8)), "iteration of what is kept 8"),
    (replace(BUILD, past=("a",) * 8), "8 lineages; 0 to 7 expected"),
    (replace(TAKE_ROLL, roll=replace(ROLL, members=())), "0 members of a roll; 1 to 64 expected"),
    (with_sum(microbatches=MicrobatchSet(1 << 12)), "a set with a microbatch beyond the 12"),
    (with_sum(order=(12,)), "offsets of a partial sum 12"),
    (with_segment(redoers=()), "0 redoers"),
    (with_segment(first=4), "2 redoers; 1 to 1 expected"),
    (with_segment(first=0), "first position 0"),
    (with_segment(offset=12), "offset 12"),
    (with_segment(number=0), "number of a redo 0"),
    (messages.Train(replace(KEY, kind=WorkKind.EVALUATE, microbatch=2**40), 0, AT_ALICE), "window 1,099,511,627,776; 0 to 3"),
    (messages.Train(replace(KEY, microbatch=7 * 12 - 1), 0, AT_ALICE), "microbatch 83; 84 to 95 expected"),
    (messages.Train(replace(KEY, stage=4), 1, AT_ALICE, SEGMENT), "position in a redo 4; 2 to 3 expected"),
    (messages.Train(replace(KEY, kind=WorkKind.EVALUATE, microbatch=0), 1, AT_ALICE, SEGMENT), "a redo of an evaluation"),
    (messages.Loss(replace(KEY, stage=0, microbatch=8 * 12)), "microbatch 96"),
    (messages.Pull(replace(KEY, stage=2**31), Side.ANSWER), "stage 2,147,483,648"),
    (messages.Reduce(BASE, 2**31, contributes=True), "part 2,147,483,648"),
    (messages.GetState(2, 7, LINEAGE, 0, weights_only=True, count=2**31), "count of parts"),
    (messages.GetState(0, 7, LINEAGE, 0, weights_only=False, digests_only=True), "stage 0; 1 to 4 expected"),
    (messages.GetState(2, 7, LINEAGE, 0, weights_only=True, digests_only=True), "digests are of a whole state"),
    (messages.GetState(2, 7, LINEAGE, 0, weights_only=False, to_export=True, digests_only=True), "digests are of a whole"),
    (messages.GetState(2, 7, "", 0, weights_only=False, digests_only=True), "digests are of a whole state"),
    (messages.Prepared("", 2**31), "parts"),
    (messages.GetShadow(2, 0, -2), "iteration -2"),
    (messages.GetRecord(2**40), "iteration"),
    (messages.GetRecord(0, "a" * 129), "lineage"),
    (messages.Goodbye(run_over=True, finished=False, why="x" * 9000), "why of 9,000 letters"),
)

_, SAMPLE = RESPONSES["beat_answer"]
assert isinstance(SAMPLE, messages.HeartbeatAnswer)
BEAT = replace(SAMPLE, stored=MicrobatchSet(0b11), shadows=())
HELD = messages.HeldSnapshot(2, 10, LINEAGE)
ANSWERS: tuple[tuple[Response, str], ...] = (
    (replace(BEAT, seconds_per_microbatch=math.nan), "seconds per microbatch nan"),
    (replace(BEAT, lateness=-2.0), "lateness -2.0"),
    (replace(BEAT, stored=MicrobatchSet(1 << 63)), "a set with a microbatch beyond"),
    (replace(BEAT, losses=(Microloss(12, NAN),)), "losses 12"),
    (replace(BEAT, iteration=2**40), "iteration 1,099,511,627,776"),
    (replace(BEAT, stage=9), "stage 9"),
    (replace(BEAT, held_s=-1.0), "seconds that it was held -1.0"),
    (replace(BEAT, links=(messages.LinkRate("Qm", 1.0),) * 9), "9 links"),
    (replace(BEAT, links=(messages.LinkRate("Qm", math.nan),)), "bytes a second nan"),
    (replace(BEAT, links=(messages.LinkRate("Qm", 1e-300),)), "bytes a second 1e-300"),
    (replace(BEAT, links=(messages.LinkRate("Qm\nHost", 1.0),)), "peer id"),
    (
        replace(BEAT, partial_sums=(PartialSum(PARTIAL_SUMS[0].id, MicrobatchSet(), (1, 1)),)),
        "offsets of a partial sum: one of them twice",
    ),
    (messages.Built("", math.inf, 1, 7), "seconds inf"),
    (messages.Promise(7, None, FAR), "term"),
    (messages.Promise(7, None, None, replace(PLAN, replicas=())), "0 stages"),
    (messages.Report(BASE, "", float64_bits(-1.0), ""), "squared norm -1"),
    (messages.Reduced(float64_bits(-math.inf)), "squared norm -inf"),
    (messages.Redone(MicrobatchSet(), ((12, 1),)), "offset 12"),
    (messages.State(2**31, 7), "parts"),
    (messages.PlanAnswer(replace(PLAN, position=FAR), ""), "term"),
    (messages.PlanAnswer(None, "", host="Qm\nHost"), "peer id"),
    (messages.PlanAnswer(None, "", held_up="x" * 8193), "what holds up an order of 8,193 letters"),
    (messages.PlanAnswer(None, "", snapshots=(HELD, messages.HeldSnapshot(-1, 10, LINEAGE))), "stage -1"),
    (messages.PlanAnswer(None, "", snapshots=(HELD, messages.HeldSnapshot(2, -1, LINEAGE))), "iteration -1"),
    (messages.PlanAnswer(None, "", snapshots=(HELD, messages.HeldSnapshot(2, 10, "x" * 1000))), "lineage"),
    (messages.PlanAnswer(None, "", fetching=messages.HeldSnapshot(-1, 10, LINEAGE)), "stage -1"),
    (messages.PlanAnswer(None, "", fetching=messages.HeldSnapshot(2, -1, LINEAGE)), "iteration -1"),
    (messages.PlanAnswer(None, "", fetching=messages.HeldSnapshot(2, 10, "x" * 1000)), "lineage"),
    (messages.Met(7, LINEAGE, (), None, FAR.term, whole=True), "term"),
    (messages.Committed(-1), "iteration -1"),
)


@pytest.mark.parametrize("request_name", sorted(REQUESTS))
def test_what_some_run_may_say_is_sound_where_the_run_is_not_known(request_name: str) -> None:
    """The widest bounds refuse none of the samples."""
    check_message(REQUESTS[request_name], MessageBounds())
    check_names(HEADER)


@pytest.mark.parametrize("name", sorted(RESPONSES))
def test_every_sample_of_an_answer_is_sound(name: str) -> None:
    """Also of answers."""
    check_message(RESPONSES[name][1], MessageBounds())


@pytest.mark.parametrize("request_", SOUND, ids=lambda request: type(request).__name__)
def test_a_usual_request_is_sound(request_: Request) -> None:
    """What correct peers of this run say passes."""
    check_message(request_, BOUNDS)


@pytest.mark.parametrize(("unsound", "why"), UNSOUND, ids=lambda value: value if isinstance(value, str) else None)
def test_a_request_that_nobody_makes_is_refused_by_its_fault(unsound: Request, why: str) -> None:
    """The sentence names the message, what was found and what was expected."""
    with pytest.raises(ProtocolViolation) as caught:
        check_message(unsound, BOUNDS)
    assert str(caught.value).startswith(f"{type(unsound).__name__}: {why}")


@pytest.mark.parametrize(("unsound", "why"), ANSWERS, ids=lambda value: value if isinstance(value, str) else None)
def test_an_answer_that_nobody_gives_is_refused_by_its_fault(unsound: Response, why: str) -> None:
    """Those who ask are as safe as those who are asked."""
    with pytest.raises(ProtocolViolation) as caught:
        check_message(unsound, BOUNDS)
    assert str(caught.value).startswith(f"{type(unsound).__name__}: {why}")


def test_no_more_parts_than_were_asked_for_are_an_answer() -> None:
    """Their sizes are a list, too."""
    asked = messages.GetState(2, 7, LINEAGE, 0, weights_only=True, count=2)
    check_fit(asked, messages.State(9, 7, (1, 1)))
    exported = messages.GetState(2, 7, LINEAGE, 0, weights_only=True, count=2, to_export=True)
    check_fit(exported, messages.State(9, 7, (1, 1), (LINEAGE,) * 4))
    for state in (messages.State(9, 7, (1, 1), (LINEAGE,) * 3), messages.State(9, 7, (1, 1))):
        with pytest.raises(ProtocolViolation, match="digests of moments"):
            check_fit(exported, state)
    with pytest.raises(ProtocolViolation, match="3 parts; 0 to 2 expected"):
        check_fit(asked, messages.State(9, 7, (1, 1, 1)))


def test_a_name_is_a_short_line() -> None:
    """A header's names hold no line breaks, escapes or novels."""
    for name in ("x" * 65, "a\nb", "a\x1b[2J", "\N{SNOWMAN}"):
        with pytest.raises(ProtocolViolation, match="peer id of"):
            check_names(replace(HEADER, sender=Endpoint(Member(name, ""), ())))


def test_a_payload_is_bounded_by_its_message() -> None:
    """A microbatch is as large as the run's tensors, a part as large as a part, and most messages
    bring nothing.
    """
    tensor_bytes = 8 * 128 * 128 * 4
    assert payload_bytes_max(messages.Train(KEY, 0, AT_ALICE), BOUNDS) == tensor_bytes
    assert payload_bytes_max(messages.Reduce(BASE, 0, contributes=True), BOUNDS) == MANIFEST.ring.part_bytes
    assert payload_bytes_max(HEARTBEAT, BOUNDS) == 0
