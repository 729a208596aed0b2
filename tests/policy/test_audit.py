"""Whose work is computed again, who computes it, and whom what comes out convicts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from swarmfree.policy import audit
from swarmfree.policy.audit import Verdict, Waited
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import DISTANCE_MAX, Account, AuditAnswer, Audited, AuditFinding
from swarmfree.protocol.names import ENDS_STAGE, Endpoint, Member, PartialSumId
from swarmfree.protocol.records import ContributionDigest, MicrobatchSet, PartialSum, Roll, TensorDigests
from swarmfree.protocol.routes import straight

A, B, C, D, E = (Member(f"Qm{name}", "00") for name in "ABCDE")
X, Y = Member("QmX", "00"), Member("QmY", "00")
BASE = "0123456789abcdef"

LONG = Waited(99, 99)
NOTHING = AuditAnswer(10, 0)
ROUNDING = AuditAnswer(10, 0, (AuditFinding(Audited.CONTRIBUTION, 1, "a", "b", audit.TOLERANCE),))
FOUND = AuditAnswer(10, 0, (AuditFinding(Audited.OUTPUT, 3, "c1a1med", "f0und", 2.0),))
IN_PART = replace(FOUND, unproven=4)


# ---- who -----------------------------------------------------------------------------------------


def test_nobody_is_audited_where_audits_are_off_or_a_member_is_alone() -> None:
    """A share of 0 is off, and alone there is nobody to ask."""
    assert audit.choose_subjects({1: (A, B, C)}, {A: LONG}, 0.0, BASE, 1) == {}
    assert audit.choose_subjects({1: (A,)}, {A: LONG}, 1.0, BASE, 1) == {}
    assert audit.choose_subjects({1: (A,), 2: (B, C)}, {A: LONG}, 1.0, BASE, 1).keys() == {2}


def test_everybody_is_audited_within_the_inverse_of_the_share() -> None:
    """Whatever is drawn: of three members each waits at most 20 iterations at a share of 0.05; and
    some wait far less.
    """
    stages = {1: (A, B, C), 2: (D, E)}
    since = dict.fromkeys((A, B, C, D, E), 0)
    waits: list[int] = []
    for iteration in range(2000):
        waited = {member: Waited(iteration - then, iteration - then) for member, then in since.items()}
        for subject in audit.choose_subjects(stages, waited, 0.05, f"base {iteration}", iteration).values():
            waits.append(waited[subject].audited)
            since[subject] = iteration
    assert max(waits) <= 20
    assert min(waits) <= 2
    often = len(since) / 20
    assert often <= len(waits) / 2000 <= 2.5 * often, "one to two times the share, more in the smaller stage"


def test_stages_audit_in_the_same_iterations() -> None:
    """One audit beside another costs no time."""
    chosen = [audit.choose_subjects({1: (A, B, C), 2: (D, E)}, {}, 0.05, BASE, number) for number in range(1000)]
    assert {tuple(subjects) for subjects in chosen} == {(), (1, 2)}


def test_members_are_drawn_alike_and_as_often_as_the_share_says() -> None:
    """Besides those who are due: at 0.2 each of two in one of five iterations."""
    chosen = [audit.choose_subjects({1: (A, B)}, {}, 0.2, BASE, number).get(1) for number in range(4000)]
    for member in (A, B):
        assert chosen.count(member) == pytest.approx(4000 * 0.2, rel=0.1)


def test_who_is_due_goes_first() -> None:
    """The longest first, and the other stages use the time; one whose audit has just come to
    nothing keeps nobody from theirs.
    """
    waited = {A: Waited(1, 1), B: Waited(8, 8), C: Waited(9, 9)}
    for number in range(50):
        subjects = audit.choose_subjects({1: (A, B, C), 2: (D, E)}, waited, 0.1, BASE, number)
        assert subjects[1] == C
        failed = audit.choose_subjects({1: (A, B, C)}, {**waited, C: Waited(9, 1)}, 0.1, BASE, number)
        assert failed[1] == B
        assert subjects[2] in {D, E}


def test_who_is_audited_depends_on_what_the_coordinator_has_drawn() -> None:
    """The base alone, which everybody knows, says nothing."""
    assert len({audit.choose_subjects({1: (A, B, C)}, {}, 0.2, BASE, number).get(1) for number in range(40)}) == 4
    assert len({audit.auditors(A, (A, B, C), BASE, number) for number in range(20)}) == 2


@pytest.mark.parametrize(
    ("norm", "before", "is_alarming"),
    [(16.0, 1.0, False), (16.1, 1.0, True), (0.0, 1.0, False), (1.0, 0.0, True), (math.inf, 1.0, True), (math.nan, 1.0, True)],
)
def test_a_gradient_that_has_grown_fourfold_is_looked_at_at_once(norm: float, before: float, *, is_alarming: bool) -> None:
    """Squared norms; what is no number as well."""
    assert audit.is_alarming(norm, before) == is_alarming


def test_nobody_audits_itself() -> None:
    """All siblings are asked, in some order."""
    assert sorted(audit.auditors(B, (A, B, C, D), BASE, 7)) == [A, C, D]


def test_who_did_not_finish_its_last_audit_is_asked_last() -> None:
    """Whatever is drawn."""
    assert {audit.auditors(A, (A, B, C, D), BASE, number, (C.peer_id,))[-1] for number in range(20)} == {C}


def test_an_audit_is_waited_for_by_what_the_iteration_took() -> None:
    """And never longer than a joiner."""
    timing = TimingSection(silence_s=2.0, join_wait_s=60.0)
    assert audit.limit_s(0.0, timing) == 4.0
    assert audit.limit_s(5.0, timing) == 24.0
    assert audit.limit_s(500.0, timing) == 60.0


# ---- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("siblings", "answers", "convicted", "suspects", "is_final"),
    [
        ((B, C), {B: NOTHING}, (), (), True),
        ((B, C), {B: ROUNDING}, (), (), True),
        ((B, C), {B: FOUND}, (), (A, B), False),
        ((B, C), {B: FOUND, C: FOUND}, (A,), (), True),
        ((B, C), {B: FOUND, C: NOTHING}, (B,), (), True),
        ((B, C), {B: FOUND, C: IN_PART}, (A,), (), True),
        ((B,), {B: FOUND}, (), (A, B), True),
        ((B,), {B: NOTHING}, (), (), True),
        ((B, C, D), {B: FOUND, C: FOUND}, (), (A, B, C), False),
        ((B, C, D), {B: FOUND, C: FOUND, D: NOTHING}, (), (A, B, C), True),
        ((B, C, D), {B: FOUND, C: NOTHING, D: NOTHING}, (B,), (), True),
        ((B, C, D, E), {B: FOUND, C: FOUND, D: FOUND}, (A,), (), True),
        ((B, C, D, E), {B: FOUND, C: FOUND, D: NOTHING, E: NOTHING}, (B, C), (), True),
    ],
)
def test_more_than_half_of_a_stage_convicts(
    siblings: tuple[Member, ...],
    answers: dict[Member, AuditAnswer],
    convicted: tuple[Member, ...],
    suspects: tuple[Member, ...],
    is_final: bool,  # noqa: FBT001
) -> None:
    """The audited one where so many find something, its accusers where so many find nothing, and it
    is one of those; else nobody.
    """
    verdict = audit.judge(A, answers, siblings)
    assert (verdict.convicted, verdict.suspects, verdict.is_final) == (convicted, suspects, is_final)


def test_an_honest_majority_convicts_no_honest_member_and_always_the_liar() -> None:
    """In stages of up to seven, whoever the liars are, whoever is audited and whatever they say."""
    for count in range(3, 8):
        members = [Member(f"Qm{k}", "00") for k in range(count)]
        for liars in range((count - 1) // 2 + 1):
            lying, honest = set(members[:liars]), members[liars:]
            for subject in members:
                siblings = [member for member in members if member != subject]
                truth = FOUND if subject in lying else NOTHING
                for lie in (FOUND, NOTHING):
                    answers = {member: lie if member in lying else truth for member in siblings}
                    verdict = audit.judge(subject, answers, siblings)
                    assert not set(verdict.convicted) & set(honest)
                    if subject in lying:
                        assert subject in verdict.convicted


def test_the_evidence_says_what_was_given_and_what_was_computed() -> None:
    """A line for each finding, with its auditor."""
    (line, *_) = audit.judge(A, {B: FOUND, C: FOUND}, (B, C)).evidence
    assert line == f"{B} computed f0und for output 3, c1a1med was given: off by 2"


@pytest.mark.parametrize(
    ("answer", "is_of_use"),
    [(NOTHING, True), (FOUND, True), (IN_PART, True), (AuditAnswer(10, 1), False), (AuditAnswer(0, 0), False)],
)
def test_who_could_not_compare_everything_acquits_nobody(answer: AuditAnswer, *, is_of_use: bool) -> None:
    """But what differs differs, whatever else is missing."""
    assert audit.is_of_use(answer) == is_of_use


# ---- accounts ------------------------------------------------------------------------------------

SUMS = (
    PartialSum(PartialSumId(A, 0), MicrobatchSet.of((0, 3)), (3, 0)),
    PartialSum(PartialSumId(A, 2), MicrobatchSet.of((4,)), (4,)),
    PartialSum(PartialSumId(B, 0), MicrobatchSet.of((1, 2)), (1, 2)),
)
ROLL = Roll(0, BASE, 2, SUMS, tuple(Endpoint(member, ()) for member in (A, B, C)))
"""Part 0 is owned by A, 1 by B, 2 by C."""


def went(offset: int, *, entered: str = "", sent: str = "", returned: str = "", answered: str = "") -> TensorDigests:
    """What went through a member; named after microbatch and border unless given."""
    return TensorDigests(
        offset, entered or f"{offset} in", sent or f"{offset} out", returned or f"{offset} back", answered or f"{offset} up"
    )


def around(offset: int, here: TensorDigests) -> tuple[TensorDigests, TensorDigests]:
    """What members of the stages before and after say where all agree with `here`."""
    before = went(offset, sent=here.entered, returned=here.answered)
    after = went(offset, entered=here.sent, answered=here.returned)
    return before, after


def whole_account() -> Account:
    """Of A: what went through it, what it gave, and what came for part 0."""
    gave = ((0, A), (0, B), (1, A), (2, A))
    return Account(
        tuple(went(offset) for offset in (0, 1, 3, 4)), tuple(ContributionDigest(part, one, f"{part}{one}") for part, one in gave)
    )


def lacks(number: int, **digests: str) -> Account:
    """The same without one microbatch, or with other digests of it."""
    whole = whole_account()
    changed = () if not digests else (replace(whole.work[number], **digests),)
    return replace(whole, work=(*whole.work[:number], *changed, *whole.work[number + 1 :]))


@pytest.mark.parametrize(
    ("account", "is_complete"),
    [
        (whole_account(), True),
        (lacks(1), True),  # that microbatch is in none of its sums
        (lacks(3), False),
        *((lacks(0, **{digest: ""}), False) for digest in ("entered", "sent", "returned", "answered")),
        *((replace(whole_account(), contributions=whole_account().contributions[:k]), False) for k in range(4)),
        (replace(whole_account(), contributions=whole_account().contributions[1:]), False),
    ],
)
def test_an_account_is_complete_where_it_names_all_that_an_audit_needs(account: Account, *, is_complete: bool) -> None:
    """What is in the sums, with all its digests, what was given, and what came for its own parts;
    more may be there.
    """
    assert audit.is_complete(account, ROLL, A, 3) == is_complete
    assert audit.offsets_of(ROLL, A) == (3, 0, 4)


def test_an_account_is_complete_without_what_its_sender_cannot_have() -> None:
    """Who has no sum has given nothing; who took a share of the ends over lacks digests."""
    others = tuple(ContributionDigest(2, one, "b") for one in (A, B))
    assert audit.is_complete(Account((), others), ROLL, C, 3)
    assert not audit.is_complete(Account(()), ROLL, C, 3)
    assert audit.is_complete(lacks(0, entered=""), replace(ROLL, stage=ENDS_STAGE), A, 3)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, set()),
        ({"entered": "other"}, {X}),
        ({"answered": "other"}, {X}),
        ({"sent": "other"}, {Y}),
        ({"returned": "other"}, {Y}),
        ({"entered": "other", "returned": "other"}, {X, Y}),
    ],
)
def test_what_passed_a_border_has_one_digest(changes: dict[str, str], found: set[Member]) -> None:
    """Who says otherwise is in dispute with whoever is on the other side."""
    before, after = around(0, went(0))
    accounts = {1: {X: Account((before,))}, 2: {A: Account((replace(went(0), **changes),))}, 3: {Y: Account((after,))}}
    assert audit.disputes(2, A, accounts, {0: straight(3)}) == found


def test_the_ends_stand_at_both_ends_of_a_route() -> None:
    """Their loss is computed from what the last stage sent, their embedding goes to the first."""
    ends = went(0)
    first, last = went(0, entered=ends.sent, answered=ends.returned), went(0, sent=ends.entered, returned=ends.answered)
    accounts = {0: {A: Account((ends,))}, 1: {X: Account((first,))}, 2: {Y: Account((last,))}}
    assert audit.disputes(ENDS_STAGE, A, accounts, {0: straight(2)}) == set()
    accounts[1] = {X: Account((replace(first, entered="other"),))}
    assert audit.disputes(ENDS_STAGE, A, accounts, {0: straight(2)}) == {X}


def test_what_several_did_or_somebody_lacks_is_no_dispute() -> None:
    """Nobody knows whose tensor went on; a source that took a share over has no gradient of the
    embedding.
    """
    before, after = around(0, went(0))
    other = Account((replace(before, sent="other"),))
    here = {A: Account((went(0),))}
    assert audit.disputes(2, A, {1: {X: other, Y: Account((before,))}, 2: here, 3: {}}, {0: straight(3)}) == set()
    twice = {**here, B: Account((went(0, sent="mine"),))}
    assert audit.disputes(2, A, {1: {X: other}, 2: twice, 3: {}}, {0: straight(3)}) == set()
    lacking = Account((replace(after, answered=""),))
    assert audit.disputes(2, A, {1: {}, 2: here, 3: {Y: lacking}}, {0: straight(3)}) == set()


def test_an_auditor_is_told_what_owner_and_contributor_both_say() -> None:
    """Of the sibling's own parts all that it received; where the two say otherwise, nothing, and
    they are in dispute.
    """
    accounts = {
        A: Account((), tuple(ContributionDigest(*one) for one in ((0, A, "a0"), (0, B, "b0"), (1, A, "a1"), (2, A, "a2")))),
        B: Account((), tuple(ContributionDigest(*one) for one in ((1, A, "a1"), (1, B, "b1"), (0, B, "b0")))),
        C: Account((), tuple(ContributionDigest(*one) for one in ((2, A, "other"), (2, B, "b2")))),
    }
    told = {(one.part, one.member): one.digest for one in audit.received(ROLL, A, accounts)}
    assert told == {(0, A): "a0", (0, B): "b0", (1, A): "a1"}
    assert audit.disputed_sums(ROLL, A, accounts) == {C}
    assert audit.disputed_sums(ROLL, C, accounts) == {A}
    assert audit.disputed_sums(ROLL, B, accounts) == set()
    # What is said of a part by somebody who does not own it counts for nothing
    accounts[C] = replace(accounts[C], contributions=(ContributionDigest(0, B, "made up"),))
    assert audit.disputed_sums(ROLL, B, accounts) == set()


@pytest.mark.parametrize(
    ("disputed_by", "member_count", "is_liar"),
    [((X,), 1, False), ((X,), 2, False), ((X, Y), 2, True), ((X,), 3, False), ((X, Y), 3, True), ((X, Y), 5, False)],
)
def test_who_is_in_dispute_with_more_than_a_minority_lies(
    disputed_by: tuple[Member, ...],
    member_count: int,
    *,
    is_liar: bool,
) -> None:
    """At least one of them is honest; with a single one it is word against word."""
    assert audit.is_liar_by_disputes(disputed_by, member_count) == is_liar


def test_what_is_not_shown_is_as_far_off_as_can_be() -> None:
    """So it is never taken for rounding."""
    assert audit.differs(AuditAnswer(1, 0, (AuditFinding(Audited.SUM, 0, "", "", DISTANCE_MAX),)))
    assert math.isfinite(DISTANCE_MAX)
    assert Verdict() == audit.judge(A, {}, (B, C))
