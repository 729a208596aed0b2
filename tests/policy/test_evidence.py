"""What the signatures that travel with a record prove: to a member that knows the record before it,
and to a coordinator that meets another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from swarmfree.policy.election import NOBODY
from swarmfree.policy.evidence import Voters, assemble, is_elected, is_told_by, why_unproven
from swarmfree.protocol.evidence import Evidence, Vote, promise_bytes, vote_bytes
from swarmfree.protocol.names import Member, Term
from swarmfree.protocol.records import Record
from swarmfree.sim import signatures
from tests.builders import make_record, voted

A, B, C, D, E, X = (Member(name, f"{1:08x}{0:08x}") for name in "abcdex")
B_AGAIN = Member("b", f"{2:08x}{0:08x}")
T1, T2 = Term(1, A), Term(2, B)
RUN = "run"
KNOWN = frozenset("abcde")
RECORD = make_record(iteration=1, term=T1, electorate=(A, B, C, D))
FORCED = replace(RECORD, forced=(1,))
FORCED_BEFORE = replace(RECORD, forced=(0,))


@dataclass(frozen=True, slots=True)
class Row:
    """A record that comes to a member, and whether it is believed.

    Args:
        what: one line.
        record: with its votes.
        says: part of why it is not believed; empty where it is.
        me: the member.
        electorate: by the record before.
        known: whom the member knows.
        is_led: it comes from who leads here.
    """

    what: str
    record: Record
    says: str = ""
    me: Member = E
    electorate: Sequence[Member] = (A, B, C)
    known: frozenset[str] | None = KNOWN
    is_led: bool = True


def forged(record: Record, by: Member, *names: Member) -> Record:
    """With votes in these names by one key."""
    votes = [Vote(m, signatures.sign(by.peer_id, vote_bytes(RUN, record.lineage(), record.term, m))) for m in names]
    return replace(record, evidence=Evidence(record.term, tuple(votes)))


def mixed(record: Record) -> Record:
    """Two votes of one term and one of another."""
    one, other = voted(record, A), voted(record, B, term=T2)
    assert one.evidence is not None
    assert other.evidence is not None
    return replace(record, evidence=Evidence(T1, one.evidence.votes + other.evidence.votes))


BY_FEW, BY_STRANGERS, NOT_MINE = "comes from nobody who leads here", "signed by nobody who is known", "but not by this peer"
ROWS = (
    Row("a majority has signed", voted(RECORD, A, B)),
    Row("a majority has signed, and it comes from anybody", voted(RECORD, B, C), is_led=False),
    Row("half with the senior", voted(RECORD, A), electorate=(A, B), is_led=False),
    Row("half without the senior", voted(RECORD, B), BY_FEW, electorate=(A, B), is_led=False),
    Row("a majority, in the term of a successor", voted(RECORD, B, C, term=T2), is_led=False),
    Row("nobody has signed", RECORD, "without a signature"),
    Row("no vote is in it", replace(RECORD, evidence=Evidence(T1, ())), "without a signature"),
    Row("one of three has, and it comes from who does not lead", voted(RECORD, A), BY_FEW, is_led=False),
    Row("one key has signed in all names", forged(RECORD, C, A, B, C), BY_FEW, is_led=False),
    Row("votes of two terms are no majority", mixed(RECORD), BY_FEW, is_led=False),
    Row("a later life has no vote", voted(RECORD, A, B_AGAIN), BY_FEW, is_led=False),
    Row("another record's votes", replace(FORCED, evidence=voted(RECORD, A, B, C).evidence), BY_FEW, is_led=False),
    Row("votes in another run", voted(RECORD, A, B, C, run="other"), BY_STRANGERS),
    # Fewer than a majority: whoever is left
    Row("one of three, from who leads: the others have ended", voted(RECORD, A)),
    Row("the same, as this one had a vote and has given it", voted(RECORD, A), me=A),
    Row("the same, as this one had a vote and has not", voted(RECORD, A), NOT_MINE, me=B),
    Row("the same, as its vote is forged", forged(RECORD, A, A, B), NOT_MINE, me=B),
    Row("what was forced once is not forced again", voted(FORCED_BEFORE, A), NOT_MINE, me=B),
    # Forced
    Row("one of three, forced, from who leads", voted(FORCED, A), me=B),
    Row("one of three, forced, from who does not lead", voted(FORCED, A), BY_FEW, me=B, is_led=False),
    Row("a majority, though forced", voted(FORCED, A, B), is_led=False),
    Row("somebody who is known, and has no vote", voted(FORCED, D), me=B),
    Row("a later life of one who is known", voted(FORCED, B_AGAIN), me=C),
    Row("a stranger, forced", voted(FORCED, X), BY_STRANGERS),
    Row("a stranger in the name of one who is known", forged(FORCED, X, A), BY_STRANGERS),
    Row("a stranger beside one who is known", voted(FORCED, X, D)),
    Row("the first one, at a newcomer that knows nobody", voted(RECORD, X), electorate=(NOBODY,), known=None),
    Row("the same without a vote", RECORD, "without a signature", electorate=(NOBODY,), known=None),
    Row("the same from who does not lead", voted(RECORD, X), BY_FEW, electorate=(NOBODY,), known=None, is_led=False),
    Row("nobody votes, as the founder is gone", voted(FORCED, A), electorate=(NOBODY,)),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_what_a_member_believes(row: Row) -> None:
    """One record, one member, its answer."""
    why = why_unproven(row.record, Voters(RUN, row.me, row.electorate, row.known, row.is_led), signatures.verify)
    assert (row.says in why) if row.says else not why, why


@pytest.mark.parametrize(
    ("what", "record", "leader", "believed"),
    [
        ("who had it stored", voted(RECORD, A, B), A, True),
        ("a voter of it", voted(RECORD, A, B), D, True),
        ("a successor, which had it stored again", voted(RECORD, B, term=T2), B, True),
        ("who is in no record", voted(RECORD, A, B), X, False),
        ("a stranger in its own record", voted(replace(RECORD, term=Term(9, X), electorate=(X,)), X), X, False),
        ("the same in all names", forged(replace(RECORD, term=Term(9, X), electorate=(X,)), X, A, B, X), X, False),
        ("a known one beside", voted(replace(RECORD, term=Term(9, X), electorate=(X,)), X, D), X, True),
        ("no votes", RECORD, A, False),
        ("no record", None, A, False),
    ],
)
def test_whom_a_coordinator_believes(what: str, record: Record | None, leader: Member, believed: bool) -> None:  # noqa: FBT001 - an answer
    """A leader that is unknown here by the record that it shows."""
    assert is_told_by(record, leader, KNOWN, RUN, signatures.verify) is believed, what


@pytest.mark.parametrize(
    ("voters", "chosen"),
    [
        ((A, B, C, D, E), (A, B, C)),
        ((A, C, D, E), (A, C, D)),
        ((B, C, D, E), (B, C, D)),
        ((A, X), (A, X)),
        ((E, X), (E, X)),
        ((A, B, C, D, E, X), (A, B, C)),
    ],
)
def test_as_few_votes_travel_as_decide(voters: tuple[Member, ...], chosen: tuple[Member, ...]) -> None:
    """Of five, seniors first; all where they do not decide."""
    given = voted(RECORD, *voters).evidence
    assert given is not None
    assert [vote.member for vote in assemble(given, (A, B, C, D, E)).votes] == [*chosen]


def test_the_coordinators_own_vote_travels_with_those_that_decide() -> None:
    """It names who had the record stored, whether or not it has a vote, or its vote is needed."""
    for leader in (E, X):
        given = voted(RECORD, A, B, C, leader, term=Term(3, leader)).evidence
        assert given is not None
        assert [vote.member for vote in assemble(given, (A, B, C, D, E)).votes] == [A, B, C, leader]


A_AGAIN = Member("a", f"{2:08x}{0:08x}")


def promised(*voters: Member, run: str = RUN, term: Term = T2, forged: Sequence[Member] = ()) -> Evidence:
    """Promises of a term, of which some are signed by a stranger."""
    keys = {voter: X.peer_id if voter in forged else voter.peer_id for voter in voters}
    return Evidence(T2, tuple(Vote(voter, signatures.sign(key, promise_bytes(run, term, voter))) for voter, key in keys.items()))


@pytest.mark.parametrize(
    ("what", "evidence", "elected"),
    [
        ("a majority", promised(B, C, D), True),
        ("half with the senior", promised(A, B), True),
        ("half without the senior", promised(B, C), False),
        ("nobody", promised(), False),
        ("strangers, too, who do not count", promised(X, E, B), False),
        ("a later life of a voter", promised(A_AGAIN, B), False),
        ("a majority, of which one has not signed", promised(B, C, D, forged=[D]), False),
        ("one that has, and others that have not", promised(A, B, C, D, forged=[B, C, D]), False),
        ("a majority, and one that has not signed", promised(A, B, C, D, forged=[D]), True),
        ("a majority, of another term of its own", promised(B, C, D, term=replace(T2, number=3)), False),
        ("a majority, of the same number of another one", promised(B, C, D, term=Term(2, A)), False),
        ("a majority, of an earlier life of its", promised(B, C, D, term=Term(2, B_AGAIN)), False),
        ("a majority, in another run", promised(B, C, D, run="another"), False),
    ],
)
def test_who_is_elected(what: str, evidence: Evidence, elected: bool) -> None:  # noqa: FBT001 - an answer
    """By a majority of those that decide here, each of which has signed this term of this run."""
    assert is_elected(evidence, T2, (A, B, C, D), RUN, signatures.verify) == elected, what


def test_no_vote_is_a_promise() -> None:
    """Each promise names run, term, who leads in it and who promises, for a purpose of its own."""
    said = b'["run","",2,"b","0000000100000000","c","0000000100000000"]'
    assert promise_bytes(RUN, T2, C) == b"swarmfree promise 1:" + said
    assert vote_bytes(RUN, "", T2, C) == b"swarmfree vote 1:" + said
