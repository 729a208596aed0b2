"""Evidence that a record is decided, or that a claim stands: what the voters signed as they stored
the one, or promised the other.

Pure values, and the bytes that are signed; who signs and who checks is `Network`'s and
`policy.evidence`'s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from swarmfree.protocol.names import Member, Term

PURPOSE = b"swarmfree vote 1:"
PROMISE_PURPOSE = b"swarmfree promise 1:"
VOTES_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Vote:
    """What one voter signed.

    Args:
        member: who stored the record, or promised.
        signature: over `vote_bytes` or `promise_bytes`, with whatever it takes to check it against
            the peer id.
    """

    member: Member
    signature: bytes


@dataclass(frozen=True, slots=True)
class Evidence:
    """The votes with which a record was decided, or the promises by which a claim stands.

    Args:
        term: in which they were asked for, or that was promised; votes of several terms prove
            nothing together.
        votes: of the electorate, senior first, as few as decide, and the coordinator's own; of
            promises all that were given.
    """

    term: Term
    votes: tuple[Vote, ...]


def vote_bytes(run: str, lineage: str, term: Term, voter: Member) -> bytes:
    """What a voter signs: that it has stored the record with which this lineage ends, as asked in
    this term.

    Args:
        run: fingerprint of the manifest.
        lineage: which names the record, its electorate and all records before it.
        term: of the Seal, not of the record: a successor has the same record stored anew.
        voter: in its present life.
    """
    return PURPOSE + _said(run, lineage, term, voter)


def promise_bytes(run: str, term: Term, voter: Member) -> bytes:
    """What a member signs that follows no lower term than this one from now on.

    Args:
        run: fingerprint of the manifest.
        term: of the claim.
        voter: in its present life.
    """
    return PROMISE_PURPOSE + _said(run, "", term, voter)


@lru_cache(VOTES_KEPT)
def _said(run: str, lineage: str, term: Term, voter: Member) -> bytes:
    said = [run, lineage, term.number, term.member.peer_id, term.member.incarnation, voter.peer_id, voter.incarnation]
    return json.dumps(said, separators=(",", ":")).encode()
