"""Evidence that a record is decided: what its voters signed as they stored it.

Pure values, and the bytes that are signed; who signs and who checks is `Network`'s and
`policy.evidence`'s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from swarmfree.protocol.names import Member, Term

PURPOSE = b"swarmfree vote 1:"
VOTES_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Vote:
    """What one voter signed.

    Args:
        member: who stored the record.
        signature: over `vote_bytes`, with whatever it takes to check it against the peer id.
    """

    member: Member
    signature: bytes


@dataclass(frozen=True, slots=True)
class Evidence:
    """The votes with which a record was decided.

    Args:
        term: in which they were asked for; votes of several terms prove nothing together.
        votes: of the electorate, senior first, as few as decide; and the coordinator's own.
    """

    term: Term
    votes: tuple[Vote, ...]


@lru_cache(VOTES_KEPT)
def vote_bytes(run: str, lineage: str, term: Term, voter: Member) -> bytes:
    """What a voter signs: that it has stored the record with which this lineage ends, as asked in
    this term.

    Args:
        run: fingerprint of the manifest.
        lineage: which names the record, its electorate and all records before it.
        term: of the Seal, not of the record: a successor has the same record stored anew.
        voter: in its present life.
    """
    said = [run, lineage, term.number, term.member.peer_id, term.member.incarnation, voter.peer_id, voter.incarnation]
    return PURPOSE + json.dumps(said, separators=(",", ":")).encode()
