"""What the signatures that travel with a record or a claim prove, to a peer that knows the record
before it. Pure; how a signature is checked is handed in.

A record that a majority of its electorate has signed is believed from anybody. Two ways of deciding
leave fewer: a forced record, and one that everybody decided who is left. Such a record is its
coordinator's word, and believed only with the signature of a peer that is known here.
Source: protocol, "Evidence".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from swarmfree.policy.quorum import is_majority
from swarmfree.protocol.evidence import Evidence, Vote, promise_bytes, vote_bytes
from swarmfree.protocol.names import Member, Term
from swarmfree.protocol.records import Record

Verify = Callable[[str, bytes, bytes], bool]
"""Whether the peer with this id has signed these bytes so."""


@dataclass(frozen=True, slots=True)
class Voters:
    """What a peer knows as it looks at a record.

    Args:
        run: fingerprint of the manifest.
        me: this peer.
        electorate: by the record before, senior first.
        known: peer ids that had a place, as far as this peer's records and plan say; None where it
            has neither: a newcomer knows nobody.
        is_led: whoever gives the record leads here, or was asked for it: nobody else is followed.
    """

    run: str
    me: Member
    electorate: Sequence[Member]
    known: Collection[str] | None
    is_led: bool


def assemble(evidence: Evidence, electorate: Sequence[Member]) -> Evidence:
    """As few of these votes as decide, seniors first; all where they do not. The coordinator's own
    always stays: it names who led.

    Args:
        evidence: all votes, checked already.
        electorate: that decides on the record, senior first.
    """
    by_member = {vote.member: vote for vote in evidence.votes}
    chosen: dict[Member, Vote] = {}
    for member in electorate:
        if member in by_member and not is_majority(electorate, chosen):
            chosen[member] = by_member[member]
    if not is_majority(electorate, chosen):
        chosen |= by_member
    leader = evidence.term.member
    if leader in by_member:
        chosen[leader] = by_member[leader]
    return Evidence(evidence.term, tuple(chosen.values()))


def is_signed(vote: Vote, lineage: str, term: Term, run: str, verify: Verify) -> bool:
    """Whether a vote for the record with which this lineage ends is its voter's."""
    return verify(vote.member.peer_id, vote_bytes(run, lineage, term, vote.member), vote.signature)


def is_promised(vote: Vote, term: Term, run: str, verify: Verify) -> bool:
    """Whether the promise of a term is its voter's."""
    return verify(vote.member.peer_id, promise_bytes(run, term, vote.member), vote.signature)


def is_elected(evidence: Evidence, term: Term, electorate: Sequence[Member], run: str, verify: Verify) -> bool:
    """Whether a majority of this electorate has promised this term.

    Args:
        evidence: what the coordinator of that term shows.
        electorate: by the last record here, senior first; the coordinator may know a later one.
    """
    electors = {vote.member: vote for vote in evidence.votes if vote.member in electorate}
    if evidence.term != term or not is_majority(electorate, electors):
        return False
    return is_majority(electorate, [member for member, vote in electors.items() if is_promised(vote, term, run, verify)])


def _is_vote_of(record: Record, vote: Vote, run: str, verify: Verify) -> bool:
    return record.evidence is not None and is_signed(vote, record.lineage(), record.evidence.term, run, verify)


def why_unproven(record: Record, voters: Voters, verify: Verify) -> str:
    """Say why a record is not believed; empty where it is."""
    votes = record.evidence.votes if record.evidence is not None else ()
    electors = {vote.member: vote for vote in votes if vote.member in voters.electorate}
    if is_majority(voters.electorate, electors):
        signed = [member for member, vote in electors.items() if _is_vote_of(record, vote, voters.run, verify)]
        if is_majority(voters.electorate, signed):
            return ""
    what = f"record {record.iteration}"
    if not votes:
        return f"{what} came without a signature"
    if not voters.is_led:
        return f"{what} is signed by {len(electors)} of {len(voters.electorate)} voters, and comes from nobody who leads here"
    is_forced = record.iteration in record.forced
    own = electors.get(voters.me)
    is_own = own is not None and _is_vote_of(record, own, voters.run, verify)
    if voters.me in voters.electorate and not is_own and not is_forced:
        return f"{what} was decided by fewer than a majority, but not by this peer, which had a vote"
    if voters.known is not None and not is_signed_by_known(record, voters.known, voters.run, verify):
        return f"{what} is signed by nobody who is known here"
    return ""


def is_signed_by_known(record: Record, known: Collection[str], run: str, verify: Verify) -> bool:
    """Whether one of these peers has signed a record, in whichever life."""
    votes = record.evidence.votes if record.evidence is not None else ()
    looked_at = {vote.member.peer_id: vote for vote in votes if vote.member.peer_id in known}
    return any(_is_vote_of(record, vote, run, verify) for vote in looked_at.values())


def is_told_by(record: Record | None, leader: Member, known: Collection[str], run: str, verify: Verify) -> bool:
    """Whether a peer that says it leads where this record ends can be believed so far: a peer that
    is known here has signed it, and it names that leader, as who had it stored or as a voter.

    The electorate that decided on it is not known here: it is named by a record of the other side.

    Args:
        record: the newest one there.
        leader: whose connection proves who it is.
        known: peer ids that had a place here.
    """
    if record is None or record.evidence is None:
        return False
    if leader != record.evidence.term.member and leader not in record.electorate:
        return False
    return is_signed_by_known(record, known, run, verify)
