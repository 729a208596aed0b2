"""One member, one request, and its answer: what it may promise, seal and apply, row by row.

Every row begins with the same member: `b`, at stage 1, ready for iteration 2 of lineage R1. What a
row says of it is what differs. In the manner of raft's vote tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest

from swarmfree.policy import promises as rules
from swarmfree.policy.promises import Held, Promises, Renounced
from swarmfree.protocol.actions import Fresh
from swarmfree.protocol.errors import Refused
from swarmfree.protocol.messages import Build, Claim, Commit, Heartbeat, Open, Seal
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica, Share
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from tests.builders import make_entry, make_record

Request = Claim | Open | Heartbeat | Build | Seal | Commit

A, ME, C, D = (Endpoint(Member(name, "1" * 16), (f"/memory/{name}",)) for name in "abcd")
T1, T2, T3 = Term(1, A.member), Term(2, D.member), Term(3, A.member)
ELSEWHERE = "f" * 64


def at(term: Term, revision: int = 5, iteration: int = 2) -> Position:
    """A position."""
    return Position(term, iteration, 0, revision)


def record(iteration: int, before: str, loss: float = 1.0) -> Record:
    """Of three stages; all four decide on the next one."""
    stages = (make_entry(members=(ME.member,)),) * 3
    electorate = (A.member, ME.member, C.member, D.member)
    return make_record(iteration=iteration, before=before, term=T1, base="b0", stages=stages, loss=loss, electorate=electorate)


R0 = record(0, GENESIS_LINEAGE)
R1 = record(1, R0.lineage())
R2, OTHER_R2, R3 = record(2, R1.lineage()), record(2, R1.lineage(), 2.0), record(3, "e" * 64)
STRANGE_R1, STRANGE_R2 = record(1, R0.lineage(), 2.0), record(2, ELSEWHERE)


def plan(position: Position, mine: int = 1, lineage: str = "") -> Plan:
    """A plan of all four; this member is at stage `mine`, 0 for nowhere."""
    stages = tuple(
        tuple(Replica(e) for e in (*others, *((ME,) if stage == mine else ()))) for stage, others in enumerate(((A,), (C,), (D,)))
    )
    if mine == 0:
        stages = ((Replica(A),), (Replica(C),), (Replica(D),))
    return Plan(position, "b0", lineage or R1.lineage(), stages, (Share(A.member, (0,), (), 2),), None, 1)


def claimed(position: Position) -> Claim:
    """A claim in earnest."""
    return Claim(position, only_asking=False)


def asked(position: Position) -> Claim:
    """A question before a claim."""
    return Claim(position, only_asking=True)


def opened(position: Position, mine: int = 1, lineage: str = "") -> Open:
    """A plan is opened."""
    return Open(plan(position, mine, lineage))


def heartbeat(position: Position) -> Heartbeat:
    """A coordinator heartbeats."""
    return Heartbeat(position, 0, 0.0)


def build(position: Position) -> Build:
    """A stage is built here."""
    return Build(position, Fresh(1, 0, "lost"), 2, R1.lineage(), R1)


@dataclass(frozen=True, slots=True)
class Row:
    """A request to a member, and its answer.

    Args:
        name: what is true.
        sender: who asks.
        request: for what.
        answer: the kind of the refusal, empty for none; of a Commit also whether it steps.
        becomes: the highest position promised afterwards; where a row names none, nothing changes
            there.
        follows: the coordinator afterwards; where a row names none, it is the same.
        stores: what is stored at this position afterwards; where a row names nothing, the vote is
            the same.
        promised: before.
        coordinator: before.
        sealed: before, with the position of its Seal.
        abandoned: terms that it obeys no longer.
        renounced: the highest term it had promised in its present lineage, before it came back to
            it.
        hears: another coordinator than the sender is heard.
        stage: that it holds.
        says: words of the refusal.
    """

    name: str
    sender: Endpoint
    request: Request
    answer: str = ""
    becomes: Position | None = None
    follows: Endpoint | None = None
    stores: Record | None = None
    promised: Position | None = at(T1)  # noqa: RUF009 - a frozen value
    coordinator: Endpoint | None = A
    sealed: tuple[Record, Position] | None = None
    abandoned: frozenset[Term] = frozenset()
    renounced: Term | None = None
    hears: bool = False
    stage: int = 1
    says: str = ""

    @property
    def before(self) -> Promises:
        """What is promised before."""
        sealed, sealed_at = self.sealed or (None, None)
        renounced = None if self.renounced is None else Renounced(R1.lineage(), self.renounced)
        return Promises(self.promised, self.coordinator, sealed, sealed_at, self.abandoned, renounced)

    @property
    def held(self) -> Held:
        """The member and its state."""
        return Held(ME.member, self.stage, 2, R1.lineage(), (R0, R1))


GAVE_WAY = frozenset({T1})

ROWS = (
    # ---- Claim
    Row("the first claim is promised", D, claimed(at(T2)), promised=None, coordinator=None, becomes=at(T2), follows=D),
    Row("a higher term is promised", D, claimed(at(T2)), becomes=at(T2), follows=D),
    Row("a higher term is not promised while another is heard", D, claimed(at(T2)), "fresh", hears=True, says="is heard"),
    Row("a claim of the promised term comes twice", D, claimed(at(T2)), promised=at(T2), coordinator=D),
    Row(
        "the promised term is obeyed, whoever is heard",
        D,
        claimed(at(T2, 6)),
        promised=at(T2),
        becomes=at(T2, 6),
        follows=D,
        hears=True,
    ),
    Row("an older claim of the promised term", D, claimed(at(T2, 4)), "superseded", promised=at(T2), says="5 was promised, 4"),
    Row("an earlier iteration of the promised term", D, claimed(at(T2, 9, 1)), "superseded", promised=at(T2)),
    Row("a lower term", A, claimed(at(T1, 9)), "behind", promised=at(T2), coordinator=D, says="promised term 2 to d."),
    Row("a lower term is behind also while another is heard", A, claimed(at(T1, 9)), "behind", promised=at(T2), hears=True),
    Row("the same number of a lower member", A, claimed(at(Term(2, A.member))), "behind", promised=at(T2)),
    Row("the same number of a higher member", D, claimed(at(T2)), promised=at(Term(2, A.member)), becomes=at(T2), follows=D),
    Row("a term that gave way", A, claimed(at(T1)), "behind", promised=None, abandoned=GAVE_WAY, says="term 1 gave way"),
    Row("a later term of whoever gave way", A, claimed(at(T3)), abandoned=GAVE_WAY, promised=None, becomes=at(T3), follows=A),
    Row("whoever only asks is promised nothing", D, asked(at(T2))),
    Row("whoever only asks is told of a coordinator", D, asked(at(T2)), "fresh", hears=True),
    Row("whoever only asks is told that it is behind", A, asked(at(T1)), "behind", promised=at(T2)),
    Row("a claim leaves the vote", D, claimed(at(T2)), sealed=(R2, at(T1, 4)), becomes=at(T2), follows=D),
    # ---- Open
    Row("the first plan is promised", A, opened(at(T1)), promised=None, coordinator=None, becomes=at(T1), follows=A),
    Row("the next revision is promised", A, opened(at(T1, 6)), becomes=at(T1, 6)),
    Row("the same Open comes twice", A, opened(at(T1))),
    Row("an older Open of the same coordinator", A, opened(at(T1, 4)), "superseded", says="revision 5 was promised, 4 is older"),
    Row("a plan of a higher term", D, opened(at(T2, 1)), becomes=at(T2, 1), follows=D),
    Row("a plan of a higher term while another is heard", D, opened(at(T2)), "fresh", hears=True),
    Row("a plan of a lower term", A, opened(at(T1, 9)), "behind", promised=at(T2), coordinator=D, says="promised term 2"),
    Row("a plan of a lineage that gave way", A, opened(at(T1, 9)), "behind", promised=None, abandoned=GAVE_WAY),
    Row(
        "a plan that has this member elsewhere",
        A,
        opened(at(T1, 6), 2),
        "failed",
        says="holds stage 1, the plan has it elsewhere",
    ),
    Row("a plan that does not name this member", A, opened(at(T1, 6), 0), "failed"),
    Row("a plan for a member without a state", A, opened(at(T1, 6)), "failed", stage=-1, says="holds stage -1"),
    Row("a plan that is refused makes nobody its coordinator", D, opened(at(T2), 2), "failed", coordinator=None),
    Row("a plan of another lineage is promised, not begun", A, opened(at(T1, 6), 1, ELSEWHERE), "gone", becomes=at(T1, 6)),
    # ---- Heartbeat
    Row("the first heartbeat is followed", A, heartbeat(at(T1)), promised=None, coordinator=None, becomes=at(T1), follows=A),
    Row(
        "a heartbeat of the promised term promises no more", A, heartbeat(at(T1, 9)), coordinator=None, becomes=at(T1), follows=A
    ),
    Row("an older heartbeat of the promised term is one, too", A, heartbeat(at(T1, 1))),
    Row("a heartbeat of a higher term", D, heartbeat(at(T2, 1)), becomes=at(T2, 1), follows=D),
    Row(
        "a heartbeat of a higher term while another is heard",
        D,
        heartbeat(at(T2)),
        "fresh",
        hears=True,
        says="coordinator a.111 is heard",
    ),
    Row("the first heartbeat while another is heard", D, heartbeat(at(T2)), promised=None, hears=True, becomes=at(T2), follows=D),
    Row("a heartbeat of the promised term while another is heard", D, heartbeat(at(T1)), hears=True, follows=D),
    Row("a heartbeat of a lower term", A, heartbeat(at(T1, 9)), "behind", promised=at(T2), coordinator=D, says="promised term 2"),
    Row(
        "a heartbeat of a lineage that gave way", A, heartbeat(at(T1)), "behind", promised=None, coordinator=D, abandoned=GAVE_WAY
    ),
    # ---- Build
    Row("the first build is promised", A, build(at(T1)), promised=None, coordinator=None, stage=-1, becomes=at(T1), follows=A),
    Row("a build of the promised term", A, build(at(T1, 6)), becomes=at(T1, 6)),
    Row("an older build of the promised term", A, build(at(T1, 4)), "superseded"),
    Row("a build of a higher term", D, build(at(T2)), becomes=at(T2), follows=D),
    Row("a build of a higher term while another is heard", D, build(at(T2)), "fresh", hears=True),
    Row("a build of a lower term", A, build(at(T1, 9)), "behind", promised=at(T2), coordinator=D),
    Row("a build of a lineage that gave way", A, build(at(T1)), "behind", promised=None, abandoned=GAVE_WAY),
    # ---- Seal
    Row("a record that follows is stored", A, Seal(at(T1), R2), stores=R2),
    Row("no record is stored before anything is promised", A, Seal(at(T1), R2), "not_yet", promised=None, says="not promised"),
    Row("a Seal of a higher term", D, Seal(at(T2), R2), "not_yet", says="term 2 of d.111 was not promised"),
    Row(
        "a Seal of the same number of a higher member",
        D,
        Seal(at(Term(1, D.member)), R2),
        "not_yet",
        says="term 1 of d.111 was not promised",
    ),
    Row("a record that was applied, in a higher term", D, Seal(at(T2), R1), "not_yet", says="was not promised"),
    Row("a Seal of a lower term", A, Seal(at(T1, 9), R2), "behind", promised=at(T2), says="promised term 2 to d."),
    Row("an older position of the promised term is stored where none is", A, Seal(at(T1, 1), R2), stores=R2),
    Row("a later Seal replaces an earlier one", A, Seal(at(T1, 6), OTHER_R2), sealed=(R2, at(T1)), stores=OTHER_R2),
    Row("the same Seal comes twice", A, Seal(at(T1), R2), sealed=(R2, at(T1)), stores=R2),
    Row(
        "an earlier Seal replaces no later one",
        A,
        Seal(at(T1, 4), OTHER_R2),
        "superseded",
        sealed=(R2, at(T1)),
        says="later Seal",
    ),
    Row("a record of another lineage", A, Seal(at(T1), STRANGE_R2), "not_yet", says="at iteration 2"),
    Row("a record of a later iteration", A, Seal(at(T1), R3), "not_yet"),
    Row("a record that was applied is no vote", A, Seal(at(T1), R1)),
    Row(
        "another record of an iteration that was applied",
        A,
        Seal(at(T1), STRANGE_R1),
        "stale",
        says="another record of iteration 1",
    ),
    Row(
        "a lower term than was renounced here, by one that has promised nothing since",
        A,
        Seal(at(T1), R2),
        "behind",
        promised=None,
        renounced=T2,
        says="in that lineage",
    ),
    Row("a lower term than was renounced here", A, Seal(at(T1), R2), "behind", renounced=T2, says="in that lineage"),
    Row("the term that was renounced here", D, Seal(at(T2), R2), promised=at(T2), renounced=T2, stores=R2),
    Row("a higher term than was renounced here", A, Seal(at(T3), R2), promised=at(T3), renounced=T2, stores=R2),
    Row(
        "a lower term than was renounced in another lineage",
        A,
        Seal(at(T1), STRANGE_R2),
        "not_yet",
        renounced=T2,
        says="at iteration 2",
    ),
    # ---- Commit
    Row("a record that follows is applied", A, Commit(R2), "steps"),
    Row("a decided record needs no promise", A, Commit(R2), "steps", promised=at(T3), abandoned=GAVE_WAY, renounced=T2),
    Row("another record than the stored one may be decided", A, Commit(OTHER_R2), "steps", sealed=(R2, at(T1))),
    Row("a record that was applied is applied once", A, Commit(R1)),
    Row("a decided record of another lineage", A, Commit(STRANGE_R2), "gone", says="record 2 does not follow lineage"),
    Row("a decided record of a later iteration", A, Commit(R3), "not_yet", says="at iteration 2"),
    Row("a decided record for a member without a state", A, Commit(R2), "gone", stage=-1),
)


def answer(row: Row) -> tuple[str, Promises]:
    """The answer to a row's request, and what is promised then; a refusal changes nothing."""
    now, held = row.before, row.held
    try:
        match row.request:
            case Claim():
                now = rules.claim(now, row.sender, row.request, hears_another=row.hears)
            case Open():
                now = rules.open_plan(now, row.sender, row.request, held, hears_another=row.hears)
                rules.begin(now, row.request, held)
            case Heartbeat():
                now = rules.heartbeat(now, row.sender, row.request, hears_another=row.hears)
            case Build():
                now = rules.build(now, row.sender, row.request, hears_another=row.hears)
            case Seal():
                now = rules.seal(now, row.request, held)
            case Commit(record=decided):
                return "steps" if rules.commit(decided, held) else "", now
    except Refused as refusal:
        assert row.says in refusal.detail
        return str(refusal.kind), now
    return "", now


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_one_request_to_one_member(row: Row) -> None:
    """The answer is the row's, and so is what is promised, followed and stored afterwards; nothing
    else changes.
    """
    said, now = answer(row)
    assert said == row.answer
    right = replace(row.before, promised=row.becomes or row.promised, coordinator=row.follows or row.coordinator)
    if row.stores is not None:
        assert isinstance(row.request, Seal)
        right = replace(right, sealed=row.stores, sealed_at=row.request.position)
    assert now == right


def test_no_vote_is_given_below_a_promise_in_the_same_lineage() -> None:
    """Whatever words come in whatever order, calls to leave and to come back among them: no Seal is
    stored below a term that was promised before.
    """
    held = Held(ME.member, 1, 2, R1.lineage(), (R0, R1))
    terms = (T1, T2, T3)
    words: list[Callable[[Promises], Promises]] = [
        *(partial(rules.claim, sender=A, request=claimed(at(term)), hears_another=False) for term in terms),
        *(partial(rules.heartbeat, sender=A, request=heartbeat(at(term)), hears_another=False) for term in terms),
        *(partial(rules.seal, request=Seal(at(term), R2), held=held) for term in terms),
        *(partial(rules.rejoin, sender=A, successor=to, held=held, hears_another=False) for to in (A, D)),
    ]
    reached, fresh = set[tuple[Promises, int]](), {(Promises(), 0)}
    while fresh:
        now, highest = fresh.pop()
        reached.add((now, highest))
        for word in words:
            try:
                after = word(now)
            except Refused:
                continue
            if after.sealed_at is not None and after.sealed_at != now.sealed_at:
                assert after.sealed_at.term.number >= highest
            promised = after.promised.term.number if after.promised is not None else 0
            fresh |= {(after, max(highest, promised))} - reached
    assert len(reached) > len(words) ** 2, "words that change nothing show nothing"


def test_whoever_leaves_a_lineage_renounces_the_highest_term_that_it_promised_there() -> None:
    """It has promised nothing afterwards, and obeys neither that term nor an earlier one that it
    left; only the successor's again.
    """
    held = Held(ME.member, 1, 2, R1.lineage())
    left = rules.rejoin(Promises(at(T2), D), D, A, held, hears_another=False)
    assert left == Promises(None, A, abandoned=frozenset({T2}), renounced=Renounced(R1.lineage(), T2))
    twice = rules.rejoin(replace(left, promised=at(T1)), A, C, held, hears_another=False)
    assert twice == Promises(None, C, abandoned=frozenset({T1, T2}), renounced=Renounced(R1.lineage(), T2))
    back = rules.rejoin(twice, C, D, replace(held, lineage=ELSEWHERE), hears_another=False)
    assert back == replace(twice, coordinator=D, abandoned=frozenset({T1}))


def test_whoever_hears_another_coordinator_leaves_nobody() -> None:
    """A call to another lineage is not obeyed from anybody but one's own coordinator, while that
    one is heard.
    """
    with pytest.raises(Refused, match=r"stale: a\.111 is not this peer's coordinator"):
        rules.rejoin(Promises(at(T2), D), A, C, Held(ME.member, 1, 2, R1.lineage()), hears_another=True)


def test_a_plan_that_was_overtaken_does_not_begin() -> None:
    """What came while an Open waited decides: a higher term, a later word of the same coordinator,
    a lineage that was left.
    """
    held, request = Held(ME.member, 1, 2, R1.lineage()), opened(at(T1))
    now = rules.open_plan(Promises(), A, request, held, hears_another=False)
    rules.begin(now, request, held)
    for meanwhile, kind in (
        (rules.heartbeat(now, D, heartbeat(at(T2)), hears_another=False), "behind"),
        (rules.build(now, D, build(at(T2)), hears_another=False), "behind"),
        (rules.build(now, A, build(at(T1, 6)), hears_another=False), "superseded"),
        (rules.rejoin(now, A, D, held, hears_another=False), "behind"),
    ):
        with pytest.raises(Refused, match=kind):
            rules.begin(meanwhile, request, held)


def test_a_vote_lasts_until_its_iteration_is_applied() -> None:
    """A record is forgotten when the state is ready for a later iteration, and stays where an older
    state is loaded.
    """
    voted = Promises(at(T1), A, R2, at(T1))
    assert rules.forget_vote(voted, 3) == Promises(at(T1), A)
    assert rules.forget_vote(voted, 2) == rules.forget_vote(voted, 1) == voted


def test_no_promise_of_a_lineage_that_was_left_is_shown() -> None:
    """Not that of the term in which it was left, nor of an earlier one of the same coordinator; a
    later one counts, and so does another coordinator's.
    """
    left = Promises(abandoned=frozenset({T3}))
    assert [rules.may_be_shown(left, term) for term in (T1, T3, Term(4, A.member), T2)] == [False, False, True, True]
    assert rules.may_be_shown(Promises(), T3)
