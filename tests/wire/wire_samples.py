"""One filled value of every message, written out by hand, and the bytes it had when the protocol
was laid down.

`python tests/wire/wire_samples.py` (with the project on the path) writes the golden bytes anew; do
that only for a new protocol revision.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from swarmfree.protocol import actions, messages
from swarmfree.protocol.evidence import Evidence, Vote
from swarmfree.protocol.messages import Header, Request, Response
from swarmfree.protocol.names import Endpoint, Member, PartialSumId, Position, Side, Term, WorkKey, WorkKind
from swarmfree.protocol.plan import Plan, Rebuilt, Replica, Share
from swarmfree.protocol.records import (
    ContributionDigest,
    Evaluation,
    MicrobatchSet,
    Microloss,
    PartialSum,
    Record,
    Roll,
    SetBatch,
    SetSplit,
    StageEntry,
    StepScalars,
    TensorDigests,
    float64_bits,
)
from swarmfree.wire.codec_messages import RPCS, Rpc, encode_request, encode_response, rpc_of

GOLDEN = Path(__file__).parent / "golden"
LINEAGE = "ab" * 32
BASE = "0123456789abcdef"

ALICE = Member("QmAlice", "00000000000000a1")
BOB = Member("QmBob", "00000000000000b0")
AT_ALICE = Endpoint(ALICE, ("/ip4/127.0.0.1/tcp/4001/p2p/QmAlice", "/dns/alice.example/tcp/4001/p2p/QmAlice"))
AT_BOB = Endpoint(BOB, ("/ip4/127.0.0.1/tcp/4002/p2p/QmBob",))
HEADER = Header("cd" * 32, 2, AT_ALICE, BOB.incarnation)
POSITION = Position(Term(3, ALICE), 7, 1, 2)
KEY = WorkKey(7, BASE, WorkKind.TRAIN, 57, 2)
PARTIAL_SUMS = (
    PartialSum(PartialSumId(ALICE, 0), MicrobatchSet.of((0, 2, 9)), (2, 0, 9)),
    PartialSum(PartialSumId(BOB, 1), MicrobatchSet()),
)
ROLL = Roll(7, BASE, 2, PARTIAL_SUMS, (AT_ALICE, AT_BOB), 1)
SCALARS = StepScalars(0x3F800000, 0x3F666666, 0x3DCCCCD0, 0x3F733333, 0x3D4CCCD0, 0x3F000000, 0x322BCC77, 0x3A83126F, 0x3F7FFF58)
ENTRY = StageEntry("11" * 32, float64_bits(2.5), "22" * 32, 8, 0x3F800000, SCALARS, (ALICE, BOB), (((2, 0, 9), (1,)), ((3,),)))
RECORD = Record(
    7, LINEAGE, POSITION.term, 1, BASE, (ENTRY, ENTRY), float64_bits(3.25), 8192, float64_bits(3.5), (ALICE, BOB), (2, 5)
)
RECORD = replace(RECORD, evidence=Evidence(POSITION.term, (Vote(ALICE, b"by alice"), Vote(BOB, b"by bob"))))
FIRST_RECORD = Record(0, "0" * 64, Term(0, ALICE), 0, BASE, (ENTRY,), float64_bits(5.5), 8192, "", (ALICE,))
PLAN = Plan(
    POSITION,
    BASE,
    LINEAGE,
    ((Replica(AT_ALICE, 2),), (), (Replica(AT_ALICE), Replica(AT_BOB, 3))),
    (Share(ALICE, (0, 1, 3), (0, 1), 4), Share(BOB, (2,), (), 1, (2,))),
    RECORD,
    8,
    (Rebuilt(2, "22" * 32, rate_scaled=True), Rebuilt(3, "33" * 32, False, -1, 1), Rebuilt(4, "44" * 32, False, 12)),
    ("QmMallory",),
)
DIGESTS = (TensorDigests(2, "aa" * 16, "bb" * 16, "cc" * 16, "dd" * 16), TensorDigests(0, "aa" * 16, "", "", "dd" * 16))
CONTRIBUTIONS = (ContributionDigest(0, ALICE, "ee" * 16), ContributionDigest(3, BOB, "ff" * 16))
FINDING = messages.AuditFinding(messages.Audited.CONTRIBUTION, 3, "ee" * 16, "ff" * 16, 99.0)
SEGMENT = messages.Segment(5, 1, 2, (AT_ALICE, AT_BOB), AT_BOB, AT_ALICE, (3,))
MERGE = actions.Merge(2, AT_ALICE, AT_BOB, 1, 3, 0x3F400000, 0x3E800000, 3.0, 1.0, "both neighbours of stage 2 are there")

REQUESTS: dict[str, Request] = {
    "hello": messages.Hello(can_feed=True, standby=False, corpus_hash="ee" * 32),
    "hello_again": messages.Hello(True, False, "ee" * 32, 2, 7, LINEAGE, (2, 5)),
    "hello_of_a_guest": messages.Hello(False, True, "", host=BOB.peer_id),
    "claim": messages.Claim(POSITION, only_asking=True),
    "seal_split": messages.Seal(POSITION, replace(RECORD, split=SetSplit((2, 1, 3), 6))),
    "open_split": messages.Open(replace(PLAN, split=(2, 1, 3))),
    "prepare": messages.Prepare(POSITION, 2, 7, LINEAGE, (2, 1, 3)),
    "prepare_ahead": messages.Prepare(POSITION, 2, 7, LINEAGE, (2, 1, 3), ahead=True),
    "get_state_of_a_split": messages.GetState(2, 7, LINEAGE, 4, weights_only=False, count=8, split=(2, 1, 3)),
    "get_state_digests": messages.GetState(2, 7, LINEAGE, 4, weights_only=False, count=8, digests_only=True),
    "seal_batch": messages.Seal(POSITION, replace(RECORD, batch=SetBatch(6, 61, 5, 0x40000000))),
    "meet": messages.Meet(7, LINEAGE, (2, 5), POSITION.term, whole=True, record=RECORD),
    "build_fresh": messages.Build(POSITION, actions.Fresh(1, 4, "nobody has it"), 0, "0" * 64, None),
    "build_copy": messages.Build(
        POSITION, actions.Copy(1, (AT_ALICE, AT_BOB), "a sibling lives"), 7, LINEAGE, RECORD, ("1" * 64, "2" * 64)
    ),
    "build_merge": messages.Build(POSITION, MERGE, 7, LINEAGE, RECORD),
    "build_kept": messages.Build(POSITION, actions.CopyKept(0, AT_ALICE, 6, "one iteration behind", LINEAGE), 7, LINEAGE, RECORD),
    "build_stay": messages.Build(POSITION, actions.Stay(2, 5, "its own state, two iterations old"), 7, LINEAGE, RECORD),
    "build_restore": messages.Build(POSITION, actions.Restore(2, AT_BOB, 5, "it keeps a shadow"), 7, LINEAGE, RECORD),
    "build_replay": messages.Build(
        POSITION,
        actions.Replay(2, 2, (AT_BOB, AT_BOB), 5, (AT_BOB,), (AT_BOB, AT_BOB), "borders were kept"),
        7,
        LINEAGE,
        RECORD,
    ),
    "get_shadow": messages.GetShadow(2, 3),
    "get_full_shadow": messages.GetShadow(2, 3, 50),
    "get_shadow_parts": messages.GetShadow(2, 3, count=4),
    "build_neighbour": messages.Build(POSITION, actions.CopyNeighbour(3, AT_ALICE, 2, "end of the body"), 7, LINEAGE, RECORD),
    "open": messages.Open(PLAN),
    "open_first": messages.Open(Plan(Position(Term(0, ALICE), 0, 0, 0), BASE, "0" * 64, ((),), (), None, 8)),
    "heartbeat": messages.Heartbeat(
        POSITION, 12, 1.5, "two replicas of stage 2", 77, (BOB,), LINEAGE, (3, 5), 2, RECORD.evidence
    ),
    "redo": messages.Redo(POSITION, BASE, (SEGMENT,)),
    "roll": messages.TakeRoll(POSITION, ROLL),
    "seal": messages.Seal(POSITION, RECORD),
    "commit": messages.Commit(FIRST_RECORD),
    "train": messages.Train(KEY, 0, AT_ALICE),
    "train_redo": messages.Train(WorkKey(7, BASE, WorkKind.EVALUATE, 0, 1), 1, AT_ALICE, SEGMENT),
    "loss": messages.Loss(KEY.at(0)),
    "pull": messages.Pull(KEY, Side.ANSWER),
    "reduce": messages.Reduce(BASE, 3, contributes=True),
    "roll_detailed": messages.TakeRoll(POSITION, ROLL, detailed=True),
    "get_average": messages.GetAverage(6, "33" * 32, 1),
    "get_average_at_once": messages.GetAverage(6, "33" * 32, 1, at_once=True),
    "get_state": messages.GetState(2, 7, LINEAGE, 4, weights_only=True, count=8),
    "get_state_to_export": messages.GetState(2, 7, LINEAGE, 4, weights_only=True, count=8, to_export=True),
    "get_record": messages.GetRecord(-1),
    "get_record_of_a_snapshot": messages.GetRecord(41, LINEAGE),
    "get_plan": messages.GetPlan(),
    "get_manifest": messages.GetManifest(),
    "goodbye": messages.Goodbye(
        run_over=True, finished=True, why="all iterations are done", write_weights=True, all_written=True
    ),
    "get_account": messages.GetAccount(POSITION, BASE, "fedcba9876543210"),
    "audit": messages.Audit(POSITION, ROLL, BOB, DIGESTS, CONTRIBUTIONS),
    "get_contribution": messages.GetContribution(BASE, 3),
    "goodbye_successor": messages.Goodbye(False, False, "another lineage won", False, AT_BOB, True),
}

RESPONSES: dict[str, tuple[str, Response]] = {
    "place": ("Hello", messages.Place(AT_ALICE, -1, "one replica of stage 3", accepted=True)),
    "built": ("Build", messages.Built("22" * 32, 0.75, 123_456_789, 7)),
    "prepared": ("Prepare", messages.Prepared("22" * 32)),
    "prepared_ahead": ("Prepare", messages.Prepared("", 9)),
    "promise": ("Open", messages.Promise(7, RECORD, POSITION)),
    "claimed": ("Claim", messages.Promise(7, RECORD, POSITION, PLAN, newer_lives=(BOB,), signature=b"by alice")),
    "met": ("Meet", messages.Met(7, LINEAGE, (2, 5), AT_BOB, POSITION.term, whole=True, follows=True, record=RECORD)),
    "met_nobody": ("Meet", messages.Met(0, "0" * 64, (), None, None, whole=False)),
    "promise_empty": ("Open", messages.Promise(0, None)),
    "beat_answer": (
        "Heartbeat",
        messages.HeartbeatAnswer(
            13,
            POSITION,
            7,
            BASE,
            PARTIAL_SUMS,
            MicrobatchSet.of((1, 63)),
            share_done=True,
            losses=(Microloss(0, float64_bits(0.5)), Microloss(3, float64_bits(0.625))),
            evaluation=Evaluation(float64_bits(3.5), 4096, (0, 1, 2)),
            seconds_per_microbatch=0.125,
            stage=2,
            ends_iteration=6,
            shadows=(messages.KeptShadow(3, 5), messages.KeptShadow(1, 50, full=True, lineage=LINEAGE)),
            log_since=-1,
            ends_lineage=LINEAGE,
            lateness=1.5,
            work_done=17,
            room_bytes=3_000_000_000,
            held_s=0.75,
            links=(messages.LinkRate("QmOther", 12.5e6),),
            host=BOB.peer_id,
        ),
    ),
    "beat_answer_empty": (
        "Heartbeat",
        messages.HeartbeatAnswer(
            0, None, 0, "", (), MicrobatchSet(), share_done=False, losses=(), evaluation=None, seconds_per_microbatch=0.0
        ),
    ),
    "redone": ("Redo", messages.Redone(MicrobatchSet.of((5,)), ((4, 2), (6, 0)))),
    "report_detailed": ("Roll", messages.Report(BASE, "11" * 32, float64_bits(2.5), "22" * 32, ("aa" * 8, "bb" * 8))),
    "shadow_part": ("GetShadow", messages.ShadowPart(5)),
    "full_shadow_part": ("GetShadow", messages.ShadowPart(50, LINEAGE)),
    "shadow_parts": ("GetShadow", messages.ShadowPart(5, sizes=(1000, 1000, 900))),
    "report": ("Roll", messages.Report(BASE, "11" * 32, float64_bits(2.5), "22" * 32)),
    "other_partial_sums": ("Roll", messages.OtherPartialSums(PARTIAL_SUMS)),
    "round_failed_spoilt": ("Roll", messages.RoundFailed(BASE, BOB, "its sum is not finite", spoilt=True)),
    "round_failed": ("Roll", messages.RoundFailed(BASE, BOB, "it does not answer")),
    "sealed": ("Seal", messages.Sealed(LINEAGE, b"signature")),
    "committed": ("Commit", messages.Committed(8)),
    "trained": ("Train", messages.Trained()),
    "loss_answer": ("Loss", messages.LossAnswer(float64_bits(0.0078125))),
    "pulled": ("Pull", messages.Pulled()),
    "reduced": ("Reduce", messages.Reduced(float64_bits(1e-300))),
    "average": ("GetAverage", messages.Average()),
    "state": ("GetState", messages.State(9, 7, (4096, 1024))),
    "state_to_export": ("GetState", messages.State(9, 7, (), (LINEAGE, LINEAGE))),
    "record_answer": ("GetRecord", messages.RecordAnswer(RECORD)),
    "plan_answer": ("GetPlan", messages.PlanAnswer(PLAN, "", AT_ALICE, 8)),
    "plan_answer_move": ("GetPlan", messages.PlanAnswer(None, "", AT_ALICE, 8, (), "4f2a1b moves from stage 1 to stage 2: why")),
    "plan_answer_guest": ("GetPlan", messages.PlanAnswer(None, "", AT_ALICE, 8, host="QmHost")),
    "plan_answer_empty": ("GetPlan", messages.PlanAnswer(None, "a replica of stage 2")),
    "plan_answer_snapshots": ("GetPlan", messages.PlanAnswer(None, "", snapshots=(messages.HeldSnapshot(2, 50, LINEAGE),))),
    "plan_answer_fetching": ("GetPlan", messages.PlanAnswer(None, "", fetching=messages.HeldSnapshot(2, 50, LINEAGE))),
    "account": ("GetAccount", messages.Account(DIGESTS, CONTRIBUTIONS)),
    "audit_answer": ("Audit", messages.AuditAnswer(12, 1, (FINDING,))),
    "audit_answer_empty": ("Audit", messages.AuditAnswer(0, 0)),
    "contribution_answer": ("GetContribution", messages.ContributionAnswer()),
    "manifest_answer": ("GetManifest", messages.ManifestAnswer()),
    "farewell": ("Goodbye", messages.Farewell("good luck", all_written=True)),
}
BY_NAME: dict[str, Rpc] = {rpc.name: rpc for rpc in RPCS}
PAYLOAD_SIZE_BYTES = 300


def request_bytes(name: str) -> bytes:
    """The sample request as it travels; with a payload announced where it may have one."""
    rpc = rpc_of(REQUESTS[name])
    size_bytes = PAYLOAD_SIZE_BYTES if rpc.request_has_payload else 0
    return encode_request(rpc, HEADER, REQUESTS[name], size_bytes, waits=name == "train_redo")


def response_bytes(name: str) -> bytes:
    """The sample response as it travels; with a payload announced where it may have one."""
    rpc_name, response = RESPONSES[name]
    rpc = BY_NAME[rpc_name]
    return encode_response(rpc, response, PAYLOAD_SIZE_BYTES if rpc.response_has_payload else 0)


def golden(side: str, name: str) -> bytes:
    """The bytes that were laid down."""
    return bytes.fromhex((GOLDEN / f"{side}_{name}.hex").read_text(encoding="ascii"))


def _lay_down(side: str, name: str, data: bytes) -> None:
    digits = data.hex()
    lines = [digits[start : start + 120] for start in range(0, len(digits), 120)]
    (GOLDEN / f"{side}_{name}.hex").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for sample in REQUESTS:
        _lay_down("request", sample, request_bytes(sample))
    for sample in RESPONSES:
        _lay_down("response", sample, response_bytes(sample))
