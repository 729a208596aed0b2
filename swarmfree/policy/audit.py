"""Audits: whose work of an iteration a sibling computes again, which sibling, and what follows from
what siblings found. Pure.

Randomness comes in as a number that nobody but the coordinator knew before. An honest majority of a
stage convicts no honest member and always the liar; what a minority says convicts nobody.
Source: decision 18.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import Account, AuditAnswer, Audited, AuditFinding
from swarmfree.protocol.names import ENDS_STAGE, Member
from swarmfree.protocol.records import ContributionDigest, Roll, TensorDigests
from swarmfree.protocol.routes import Route

TOLERANCE = 0.01
"""Relative L2 distance up to which two results are the same: other hardware rounds otherwise, and
nothing that spoils learning is as near.
"""
DISPUTED_BY_MIN = 2
"""Members of one stage; with fewer, it is one word against another."""
EVIDENCE_MAX = 4
NOT_SHOWN = 0.0
"""Told as the distance of a contribution that differs, and that its member does not show."""
ALARM_FACTOR = 16.0
"""Of squared norms: four times as large. Honest gradients seldom grow so, and then it costs an
audit.
"""
LIMIT_FACTOR = 4
"""An audit takes about as long as the share that it computes again took; beyond so many times what
the whole iteration took, it is given up.
"""


# ---- who -----------------------------------------------------------------------------------------


def drawn(base: str, number: int, name: str) -> float:
    """A number in [0, 1) that follows from the base, from what the coordinator has drawn for this
    iteration, and from a name.
    """
    digest = hashlib.sha256(f"{base}|{number:x}|{name}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / (1 << 56)


@dataclass(frozen=True, slots=True)
class Waited:
    """Iterations since a member was last audited, or first seen, and since that was last tried."""

    audited: int
    tried: int


NOT_WAITED = Waited(0, 0)


def choose_subjects(
    stages: Mapping[int, Sequence[Member]], waited: Mapping[Member, Waited], share: float, base: str, number: int
) -> dict[int, Member]:
    """Choose whose work of this iteration is computed again: one member of each stage, or nobody's.

    All stages audit in the same iterations, since one audit beside another costs no time: with a
    probability that gives each member of the largest stage its share, and whenever somebody is due,
    who was not audited for 1 / share iterations, less the members of its stage. Who is due goes
    first, and of those one whose last audit did not come to nothing just now; else one is drawn.

    Args:
        stages: members of each, all of them there; a stage of one has nobody who could be asked.
        waited: of each, where it is known.
        share: see `RunSection.audit_share`.
        base: of the iteration's work.
        number: see `drawn`.
    """
    stages = {stage: members for stage, members in sorted(stages.items()) if len(members) > 1}
    if share <= 0 or not stages:
        return {}
    due = {
        stage: [member for member in members if waited.get(member, NOT_WAITED).audited >= 1 / share - len(members)]
        for stage, members in stages.items()
    }
    largest = max(len(members) for members in stages.values())
    if not any(due.values()) and drawn(base, number, "iteration") >= share * largest:
        return {}

    def rank(member: Member) -> tuple[float, Member]:
        return drawn(base, number, f"subject {member.peer_id}"), member

    def due_rank(member: Member) -> tuple[int, int, tuple[float, Member]]:
        since = waited.get(member, NOT_WAITED)
        return -since.tried, -since.audited, rank(member)

    return {stage: min(due[stage], key=due_rank) if due[stage] else min(members, key=rank) for stage, members in stages.items()}


def is_alarming(squared_norm: float, before: float) -> bool:
    """Whether a gradient is so much larger than that of the iteration before that everybody is
    audited at once: a lie that does much harm in one step is seldom a small one.
    """
    return not squared_norm <= ALARM_FACTOR * before


def auditors(
    subject: Member, members: Iterable[Member], base: str, number: int, slow: Collection[str] = ()
) -> tuple[Member, ...]:
    """List the subject's siblings in the order in which they are asked.

    Args:
        subject: whose work it is.
        members: of its stage.
        base, number: see `drawn`.
        slow: peer ids of those that did not finish their last audit; they come last.
    """

    def rank(member: Member) -> tuple[bool, float, Member]:
        return member.peer_id in slow, drawn(base, number, f"auditor {member.peer_id}"), member

    return tuple(sorted((member for member in members if member != subject), key=rank))


def limit_s(iteration_s: float, timing: TimingSection) -> float:
    """How long an audit is waited for, where the iteration has taken `iteration_s` so far."""
    return min(timing.join_wait_s, 2 * timing.silence_s + LIMIT_FACTOR * iteration_s)


# ---- what is compared ----------------------------------------------------------------------------


def offsets_of(roll: Roll, subject: Member) -> tuple[int, ...]:
    """Microbatches in the subject's partial sums, in the order in which they were added."""
    return tuple(offset for partial_sum in roll.of(subject) for offset in partial_sum.order)


def is_complete(account: Account, roll: Roll, subject: Member, part_count: int) -> bool:
    """Whether an account has all that an audit needs: each microbatch in the subject's sums, what
    it contributed to each part, and what came for the parts that it owns. Who took a share of the
    ends over has not got every digest of it.
    """
    told = {
        work.offset
        for work in account.work
        if roll.stage == ENDS_STAGE or all((work.entered, work.sent, work.returned, work.answered))
    }
    contributors = roll.contributors()
    wanted = {(part, subject) for part in range(part_count) if subject in contributors}
    wanted |= {(part, member) for part in range(part_count) if roll.owner(part).member == subject for member in contributors}
    return told.issuperset(offsets_of(roll, subject)) and wanted <= {(one.part, one.member) for one in account.contributions}


def received(roll: Roll, subject: Member, accounts: Mapping[Member, Account]) -> tuple[ContributionDigest, ...]:
    """What owners of parts received: from the subject, as far as it says the same, and, as far as
    it is the owner, from all contributors.

    Args:
        roll: whose average was made.
        subject: whose work is looked at.
        accounts: of the members of its stage.
    """
    gave = _given(subject, accounts)
    return tuple(
        one
        for owner, account in sorted(accounts.items())
        for one in account.contributions
        if roll.owner(one.part).member == owner
        and (owner == subject or (one.member == subject and gave.get(one.part) == one.digest))
    )


def _given(subject: Member, accounts: Mapping[Member, Account]) -> dict[int, str]:
    """What a member says it contributed, by part."""
    account = accounts.get(subject)
    return {one.part: one.digest for one in account.contributions if one.member == subject} if account is not None else {}


def disputes(
    stage: int, subject: Member, accounts: Mapping[int, Mapping[Member, Account]], routes: Mapping[int, Route]
) -> frozenset[Member]:
    """Members of the stages around whose account of what passed between them and the subject is
    another one than the subject's.

    What more than one member of a stage did is left out: nobody knows whose tensor went on.

    Args:
        stage: the subject's.
        accounts: by stage and member; of the subject, its siblings, and the stages around.
        routes: by offset, of the microbatches to look at.
    """
    mine = {digests.offset: digests for digests in accounts[stage][subject].work}
    found = set[Member]()
    for offset, route in routes.items():
        if offset not in mine or len(_those_with(accounts[stage], offset)) != 1:
            continue
        if stage == ENDS_STAGE:
            before, after = route.last, route.first
        else:
            before, after = route.at(route.position(stage) - 1), route.after(stage)
        here = mine[offset]
        for member, there in _those_with(accounts.get(before, {}), offset, alone=True):
            if _is_other(there.sent, here.entered) or _is_other(there.returned, here.answered):
                found.add(member)
        for member, there in _those_with(accounts.get(after, {}), offset, alone=True):
            if _is_other(there.entered, here.sent) or _is_other(there.answered, here.returned):
                found.add(member)
    return frozenset(found)


def _is_other(there: str, here: str) -> bool:
    """Whether two digests differ; who took a share over has not got all of them."""
    return bool(there and here) and there != here


def _those_with(accounts: Mapping[Member, Account], offset: int, *, alone: bool = False) -> list[tuple[Member, TensorDigests]]:
    """Who did this microbatch; with `alone`, nobody where they are several."""
    found = [
        (member, digests) for member, account in sorted(accounts.items()) for digests in account.work if digests.offset == offset
    ]
    return found if not alone or len(found) == 1 else []


def disputed_sums(roll: Roll, subject: Member, accounts: Mapping[Member, Account]) -> frozenset[Member]:
    """Members of the stage that account otherwise than the subject for what one of them contributed
    to a part that the other owns.
    """
    gave = {member: _given(member, accounts) for member in accounts}
    return frozenset(
        one.member if owner == subject else owner
        for owner, account in accounts.items()
        for one in account.contributions
        if roll.owner(one.part).member == owner
        and owner != one.member
        and subject in {owner, one.member}
        and _is_other(one.digest, gave.get(one.member, {}).get(one.part, ""))
    )


def is_liar_by_disputes(disputed_by: Collection[object], member_count: int) -> bool:
    """Whether a member in dispute with these members of one stage lies: with an honest majority
    there, at least one of them is honest.

    Args:
        disputed_by: members of that stage.
        member_count: how many it has.
    """
    return len(disputed_by) >= max(DISPUTED_BY_MIN, (member_count - 1) // 2 + 1)


# ---- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from what siblings found.

    Args:
        convicted: who has no place any more.
        suspects: of whom one lies, where it cannot be told which.
        by: who found it and who agrees.
        evidence: a line for each of the first findings.
        is_final: nobody who was not asked yet could change it.
    """

    convicted: tuple[Member, ...] = ()
    suspects: tuple[Member, ...] = ()
    by: tuple[Member, ...] = ()
    evidence: tuple[str, ...] = ()
    is_final: bool = True


def differs(answer: AuditAnswer) -> bool:
    """Whether something is further off than rounding."""
    return any(finding.distance > TOLERANCE for finding in answer.findings)


def is_of_use(answer: AuditAnswer) -> bool:
    """Whether an answer says something: everything was compared, or something differs."""
    return differs(answer) or (answer.checked > 0 and not answer.unproven)


def is_withheld(answers: Iterable[AuditAnswer], member_count: int) -> bool:
    """Whether more than half of a stage says that a contribution of another member differs, and is
    not shown.

    Args:
        answers: of its siblings.
        member_count: how many made the average.
    """
    found = [any(one.what is Audited.CONTRIBUTION and one.distance == NOT_SHOWN for one in answer.findings) for answer in answers]
    return 2 * sum(found) > member_count


def judge(subject: Member, answers: Mapping[Member, AuditAnswer], siblings: Collection[Member]) -> Verdict:
    """Decide by more than half of the stage; the subject itself counts as one that finds nothing.

    Args:
        subject: whose work it was.
        answers: of those siblings that could compare everything, or found something.
        siblings: all that made the average, asked or not: who is silent now has a voice, too.
    """
    accusers = tuple(sorted(member for member, answer in answers.items() if differs(answer)))
    if not accusers:
        return Verdict()
    others = tuple(sorted({subject, *(member for member in answers if member not in accusers)}))
    evidence = _lines(accusers, answers)
    majority = (len(siblings) + 1) // 2 + 1
    if len(accusers) >= majority:
        return Verdict((subject,), (), accusers, evidence)
    if len(others) >= majority:
        return Verdict(accusers, (), others, evidence)
    is_final = all(member in answers for member in siblings)
    return Verdict((), (subject, *accusers), accusers, evidence, is_final)


def _lines(accusers: Iterable[Member], answers: Mapping[Member, AuditAnswer]) -> tuple[str, ...]:
    found = [(member, finding) for member in accusers for finding in answers[member].findings]
    return tuple(_line(member, finding) for member, finding in found[:EVIDENCE_MAX])


def _line(member: Member, finding: AuditFinding) -> str:
    where = f"{finding.what} {finding.index}"
    return f"{member} computed {finding.found[:16]} for {where}, {finding.claimed[:16]} was given: off by {finding.distance:.3g}"
