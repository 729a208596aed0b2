"""Messages of every type that look right and hold what harms: sound ones in which some values are
others of the same type.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import operator
import os
import random
from dataclasses import replace
from typing import Any, TypeVar

from swarmfree.protocol import actions, messages
from swarmfree.protocol.messages import Request, Response
from swarmfree.protocol.names import Endpoint, Side, WorkKey, WorkKind
from swarmfree.protocol.plan import Rebuilt
from swarmfree.protocol.records import (
    GENESIS_LINEAGE,
    ContributionDigest,
    Evaluation,
    MicrobatchSet,
    Microloss,
    PartialSum,
    PartialSumId,
    Roll,
    StepScalars,
    TensorDigests,
    float32_bits,
    float64_bits,
)
from swarmfree.sim.integer_arithmetic import ACTIVATION, TRAINING, Tensor
from tests.mutants.alone import LATER, ME, SIBLING, A, D, at, beat_answer, endpoint, plan, record

T = TypeVar("T")
FUZZ_CASES = int(os.environ.get("SWARMFREE_FUZZ_CASES", "0"))
"""All of one run; 0 for a few, always the same ones."""
SWARM_CASES = FUZZ_CASES // 20
"""Those of them that a whole swarm plays."""
MALLORY = endpoint("mallory")
SIGNATURES = (b"", b"0", b"\xff" * 16, bytes(731), bytes(1024), bytes(1025))
SENDERS = (MALLORY, A, SIBLING, D)
LINEAGE = record().lineage()
ONE = float64_bits(1.0)
SCALARS = StepScalars(*[float32_bits(0.5)] * 9)
SUM = PartialSum(PartialSumId(SIBLING.member, 0), MicrobatchSet.of((0, 1)), (0, 1))
MINE = PartialSum(PartialSumId(ME.member, 0), MicrobatchSet())
SEGMENT = messages.Segment(1, 1, 1, (ME, D), A, A, (1,))
KEY = WorkKey(0, "b0", WorkKind.TRAIN, 1, 1)
RECORD = replace(record(), stages=tuple(replace(entry, scalars=SCALARS) for entry in record().stages))
NEXT = plan(1, iteration=1, lineage=LINEAGE, base="b1")
BUILD = messages.Build(at(1), actions.Fresh(1, 0, "nobody has it"), 0, GENESIS_LINEAGE, None)
LATER_BUILD = replace(BUILD, iteration=1, lineage=LINEAGE, record=RECORD, past=(GENESIS_LINEAGE,))
HALF = float32_bits(0.5)
AUDITED = Roll(0, "b0", 1, (SUM, MINE), (ME, SIBLING))
DIGESTS = (TensorDigests(0, "aa" * 16, "bb" * 16, "cc" * 16, "dd" * 16), TensorDigests(1, "aa" * 16, "", "", "dd" * 16))
CONTRIBUTIONS = (ContributionDigest(0, SIBLING.member, "ee" * 16), ContributionDigest(1, ME.member, "ff" * 16))
FINDING = messages.AuditFinding(messages.Audited.CONTRIBUTION, 1, "ee" * 16, "ff" * 16, 99.0)
BUILT_OF: tuple[actions.BuildAction, ...] = (
    actions.Copy(1, (SIBLING, MALLORY), "a sibling lives"),
    actions.Merge(1, A, D, 1, 2, HALF, HALF, 1.0, 1.0, "both neighbours live"),
    actions.CopyNeighbour(1, D, 2, "one neighbour lives"),
    actions.CopyKept(0, D, 0, "it keeps a copy", LINEAGE),
    actions.Stay(1, 0, "its own state"),
    actions.Restore(1, D, 0, "its shadow"),
    actions.Restore(1, D, 0, "its shadow", full=True),
    actions.Replay(1, 1, (D,), 0, (A,), (D,), "logs and a shadow"),
)

REQUESTS: tuple[Request, ...] = (
    messages.Hello(can_feed=True, standby=False, corpus_hash=""),
    messages.Hello(True, False, "", 1, 0, GENESIS_LINEAGE, ()),
    BUILD,
    replace(BUILD, action=actions.Fresh(0, 1, "nobody has it")),
    *(replace(LATER_BUILD, action=action, position=at(3, iteration=1)) for action in BUILT_OF),
    messages.Prepare(at(2), 1, 0, GENESIS_LINEAGE, (1, 2)),
    messages.Prepare(at(2, LATER), 2, 1, LINEAGE, (2, 1)),
    messages.Prepare(at(2), 1, 0, GENESIS_LINEAGE, (2, 1), ahead=True),
    messages.Claim(at(1, LATER), only_asking=False),
    messages.Claim(at(1, LATER), only_asking=True),
    messages.Open(plan(2)),
    messages.Open(plan(3)),
    messages.Open(replace(NEXT, last_record=RECORD, rebuilt=(Rebuilt(1, "s", rate_scaled=True),))),
    messages.Heartbeat(at(2), 0, 0.5),
    messages.Heartbeat(at(2, LATER), 3, 1.0, "a replica", 9),
    messages.Redo(at(2), "b0", (SEGMENT,)),
    messages.TakeRoll(at(2), Roll(0, "b0", 1, (SUM, MINE), (ME, SIBLING))),
    messages.TakeRoll(at(3), Roll(0, "b0", 1, (SUM,), (ME, SIBLING), 1), detailed=True),
    messages.Seal(at(2), RECORD),
    messages.Commit(RECORD),
    messages.Train(KEY, 0, A),
    messages.Train(KEY, 1, A, SEGMENT),
    messages.Train(replace(KEY, kind=WorkKind.EVALUATE), 0, A),
    messages.Loss(replace(KEY, stage=0)),
    messages.Pull(KEY, Side.OUTPUT),
    messages.Pull(replace(KEY, stage=0), Side.ANSWER),
    messages.Reduce(Roll(0, "b0", 1, (SUM,), (ME, SIBLING), 1).round(), 0, contributes=True),
    messages.GetAverage(0, "average", 0),
    messages.GetState(1, 0, GENESIS_LINEAGE, 0, weights_only=True, count=2),
    messages.GetState(0, 0, "", 0, weights_only=False),
    messages.GetState(0, 0, "", 0, weights_only=False, to_export=True),
    messages.GetState(1, 0, GENESIS_LINEAGE, 0, weights_only=False, count=2, digests_only=True),
    messages.GetShadow(1, 0),
    messages.GetShadow(2, 0, 50, 3),
    messages.GetRecord(-1),
    messages.GetRecord(6, "33" * 32),
    messages.GetPlan(),
    messages.GetManifest(),
    messages.Goodbye(run_over=False, finished=False, why="farewell"),
    messages.Goodbye(run_over=False, finished=False, why="another", successor=D, rejoin=True),
    messages.Meet(1, LINEAGE, (), LATER, whole=True),
    messages.Meet(1, LINEAGE, (), LATER, whole=True, record=RECORD),
    messages.GetAccount(at(2), "b0", "round"),
    messages.Audit(at(2), AUDITED, SIBLING.member, DIGESTS, CONTRIBUTIONS),
    messages.GetContribution("round", 0),
)
"""No word that the run is over: whom that is believed from is another matter."""

BEAT = replace(
    beat_answer(1),
    partial_sums=(SUM,),
    stored=MicrobatchSet.of((0, 1)),
    share_done=True,
    losses=tuple(Microloss(offset, ONE) for offset in range(4)),
    evaluation=Evaluation(ONE, 3, (0, 1)),
    shadows=(messages.KeptShadow(1, 0, full=True),),
    ends_iteration=0,
)
ANSWERS: dict[type[Any], tuple[Response, ...]] = {
    messages.Hello: (messages.Place(A, -1, "", accepted=True), messages.Place(D, 1, "a replica", accepted=False)),
    messages.Build: (messages.Built("state", 0.1, 10, 0), messages.Built("other", 0.1, 10, 1, exact=True)),
    messages.Prepare: (messages.Prepared("state"), messages.Prepared("", 3)),
    messages.Claim: (messages.Promise(0, None), messages.Promise(1, RECORD, at(2), NEXT, 1, "b0", True, (ME.member,))),
    messages.Open: (messages.Promise(0, None, stage=1), messages.Promise(0, RECORD, at(2), None, 1, "b0")),
    messages.Heartbeat: (beat_answer(1), BEAT, replace(BEAT, stage=2), replace(BEAT, stage=0)),
    messages.Redo: (messages.Redone(MicrobatchSet.of((1,)), ((1, 2),)),),
    messages.TakeRoll: (
        messages.Report("round", "average", ONE, "state"),
        messages.OtherPartialSums((SUM,)),
        messages.RoundFailed("round", ME.member, "silent", spoilt=True),
    ),
    messages.Seal: (messages.Sealed(LINEAGE, b"signature"),),
    messages.Commit: (messages.Committed(1),),
    messages.Train: (messages.Trained(),),
    messages.Loss: (messages.LossAnswer(ONE),),
    messages.Pull: (messages.Pulled(),),
    messages.Reduce: (messages.Reduced(ONE),),
    messages.GetAverage: (messages.Average(),),
    messages.GetState: (messages.State(4, 0), messages.State(4, 1, (16, 16))),
    messages.GetShadow: (messages.ShadowPart(0), messages.ShadowPart(0, LINEAGE, (16, 16))),
    messages.GetRecord: (messages.RecordAnswer(RECORD),),
    messages.GetPlan: (
        messages.PlanAnswer(plan(2), ""),
        messages.PlanAnswer(NEXT, "a replica", D, 3),
        messages.PlanAnswer(None, "", fetching=messages.HeldSnapshot(2, 6, "33" * 32)),
    ),
    messages.GetManifest: (messages.ManifestAnswer(),),
    messages.Goodbye: (messages.Farewell("well"),),
    messages.GetAccount: (messages.Account(DIGESTS, CONTRIBUTIONS),),
    messages.Audit: (messages.AuditAnswer(2, 1, (FINDING,)), messages.AuditAnswer(0, 0)),
    messages.GetContribution: (messages.ContributionAnswer(),),
    messages.Meet: (
        messages.Met(1, LINEAGE, (), D, LATER, whole=True),
        messages.Met(1, LINEAGE, (), D, LATER, whole=True, record=RECORD),
    ),
}
TENSOR = Tensor(ACTIVATION, TRAINING, 1, b"12345678").encode()
PAYLOADS = (b"", b"x", bytes(16), TENSOR, TENSOR, bytes(64), bytes(1000))

INTEGERS = (-1, 0, 0, 1, 1, 2, 3, 4, 5, 99, 100, 2**31 - 1, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1)
FLOATS = (0.0, -0.0, 0.5, 1.0, 3.0, -1.0, 1e-300, 1e300, math.inf, -math.inf, math.nan)
TEXTS = ("", "b0", "b1", "x", GENESIS_LINEAGE, LINEAGE, "state", "average", "f" * 64, "\x1b[2J", "\n", "x" * 10_000)
MASKS = (0, 1, 0b1111, 0b10000, 1 << 40, (1 << 5000) - 1)
ENDPOINTS = (ME, A, SIBLING, D, MALLORY, Endpoint(ME.member, ()), Endpoint(endpoint("nobody").member, ("",)))
BITS_32 = frozenset({*StepScalars.__slots__, "rate_scale_bits", "weight_before", "weight_after"})


def payload(rng: random.Random) -> bytes:
    """Of a message that may have one."""
    return rng.choice(PAYLOADS)


def spoiled(value: T, rng: random.Random, rate: float) -> T:
    """The same message, in which each value is another one of its type at a rate."""
    found: T = _spoiled(value, rng, rate, "") if rate else value
    return found


@functools.cache
def _names(kind: type[Any]) -> tuple[str, ...] | None:
    """The fields that a value of this type is made of; None where it is no dataclass."""
    return tuple(f.name for f in dataclasses.fields(kind) if f.init) if dataclasses.is_dataclass(kind) else None


def _spoiled(value: Any, rng: random.Random, rate: float, name: str) -> Any:
    is_wild = rng.random() < rate
    if isinstance(value, Endpoint):
        return rng.choice(ENDPOINTS) if is_wild else value
    if isinstance(value, MicrobatchSet):
        return MicrobatchSet(rng.choice(MASKS)) if is_wild else value
    if (names := _names(type(value))) is not None:
        before = [getattr(value, each) for each in names]
        after = [_spoiled(held, rng, rate, each) for held, each in zip(before, names, strict=True)]
        is_same = all(map(operator.is_, before, after))
        return value if is_same else type(value)(**dict(zip(names, after, strict=True)))
    if isinstance(value, tuple):
        several = [_spoiled(each, rng, rate, name) for each in value]
        if is_wild and several:
            return tuple(rng.choices(several, k=rng.choice((0, 1, 2, 5, 100))))
        return value if all(map(operator.is_, value, several)) else tuple(several)
    return _wild(value, rng, name) if is_wild else value


def _wild(value: Any, rng: random.Random, name: str) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, enum.Enum):
        return rng.choice(list(type(value)))
    if isinstance(value, int):
        return rng.getrandbits(32) if name in BITS_32 else rng.choice(INTEGERS)
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str):
        return float64_bits(rng.choice(FLOATS)) if name.endswith("_bits") else rng.choice(TEXTS)
    if isinstance(value, bytes):
        return rng.choice(SIGNATURES)
    assert value is None, f"{name} is of a type that is not spoiled: {value!r}"
    return None
