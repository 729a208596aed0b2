"""Values of the protocol and ports of a peer with every field filled in: a test names only those
that matter to it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NoReturn, cast

from swarmfree.protocol.evidence import Evidence, Vote, promise_bytes, vote_bytes
from swarmfree.protocol.messages import Claim, Promise
from swarmfree.protocol.names import Member, Term
from swarmfree.protocol.ports import Ports
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, StageEntry, StepScalars, float64_bits
from swarmfree.sim import signatures

SOMEBODY = Member("QmSomebody", "0" * 16)


class Absent:
    """Stands for a port that a test does not have; whoever uses it is told its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        message = f"this test has no {self._name}, and {attribute} of it was used"
        raise AttributeError(message)


def make_ports(**ports: object) -> Ports:
    """The ports that are named; `tokens` is None, how much memory is free is not known, and the
    others are absent unless given.
    """
    filled: dict[str, object] = {field.name: Absent(field.name) for field in fields(Ports)}
    return Ports(**cast("dict[str, Any]", {**filled, "tokens": None, "free_bytes": lambda: None, **ports}))


def make_entry(**changes: Any) -> StageEntry:
    """What a record says about one stage, after one step of one member."""
    entry: dict[str, Any] = {
        "sum_digest": "average",
        "squared_norm_bits": float64_bits(1.0),
        "state_digest": "state",
        "step_count": 1,
        "rate_scale_bits": 0,
        "scalars": StepScalars(1, 2, 3, 4, 5, 6, 7, 8, 9),
        "members": (SOMEBODY,),
    }
    return StageEntry(**{**entry, **changes})


def make_record(*, electorate: tuple[Member, ...] = (SOMEBODY,), loss: float = 1.0, **changes: Any) -> Record:
    """The first record of a run, without stages; its term is the first one of the senior voter.

    Args:
        electorate: as in the record.
        loss: its `loss_bits` are made of this.
        changes: other fields.
    """
    record: dict[str, Any] = {
        "iteration": 0,
        "before": GENESIS_LINEAGE,
        "term": Term(1, electorate[0]),
        "attempt": 0,
        "base": "0" * 16,
        "stages": (),
        "tokens": 1,
        "evaluation_bits": "",
    }
    return Record(**{**record, "electorate": electorate, "loss_bits": float64_bits(loss), **changes})


def voted(record: Record, *voters: Member, term: Term | None = None, run: str = "run") -> Record:
    """The record with the votes of these members, as memory networks sign; by default in its own
    term.
    """
    at = term or record.term
    votes = [Vote(m, signatures.sign(m.peer_id, vote_bytes(run, record.lineage(), at, m))) for m in voters]
    return replace(record, evidence=Evidence(at, tuple(votes)))


def signed(promise: Promise, claim: Claim, voter: Member, run: str = "run") -> Promise:
    """The promise with its signature, as memory networks sign."""
    said = promise_bytes(run, claim.position.term, voter)
    return promise if claim.only_asking else replace(promise, signature=signatures.sign(voter.peer_id, said))
