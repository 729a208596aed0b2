"""Who may lead next, and when a claim stands. Pure; a candidate asks before it claims.

Source: protocol section 3.2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarmfree.protocol.names import ENDS_STAGE, Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record

NOBODY = Member("", "")
"""Votes on the first iteration where its founder is not known: no majority can come together, so
going on is forced.
"""
FORCED_WITHOUT_ALL = 3
"""A minority that does not hold every stage waits so many times `split_wait_s`: going on costs it
those stages.
"""
LOOK_S = 8.0
"""So long a candidate asks the members of the last plan; then it looks whether somebody is
announced who leads elsewhere.
"""
TERMS_OF_A_GENESIS = 1000
"""A founder leads in the first of these: whoever has promised an earlier founder, or a candidate
meanwhile, follows a later one.
"""


def founders_term(number: int) -> int:
    """Term number in which the founder named by genesis `number` leads."""
    return 1 + TERMS_OF_A_GENESIS * (number - 1)


def is_of_later_founder(term_number: int, than: int) -> bool:
    """Whether a term belongs to a founder that was named after the one of another term."""
    return (term_number - 1) // TERMS_OF_A_GENESIS > (than - 1) // TERMS_OF_A_GENESIS


def is_founders(term_number: int) -> bool:
    """Whether this term belongs to a founder, which leads until the first record."""
    return term_number % TERMS_OF_A_GENESIS == 1


def claim_order(plan: Plan, electorate: Sequence[Member]) -> tuple[Member, ...]:
    """Sort the plan's members by who may claim the lead first: sources, then seniority, then name.

    Args:
        plan: the newest one known.
        electorate: of the next commit, senior first.
    """
    seniority = {member: place for place, member in enumerate(electorate)}

    def key(member: Member) -> tuple[bool, int, Member]:
        return plan.stage_of(member) != ENDS_STAGE, seniority.get(member, len(seniority)), member

    return tuple(sorted(plan.names(), key=key))


def rank(plan: Plan, electorate: Sequence[Member], me: Member, gone: Collection[Member]) -> int:
    """How many live members may claim the lead before `me`, in `claim_order`."""
    before = 0
    for member in claim_order(plan, electorate):
        if member == me:
            break
        before += member not in gone
    return before


def may_lead(
    plan: Plan,
    electorate: Sequence[Member],
    me: Member,
    there: Collection[Member],
    *,
    is_over: bool,
    has_waited: bool,
    has_left: bool = False,
) -> bool:
    """Whether this peer may claim the lead among those who answer: they obey nobody who is a
    stranger to them.

    Who has dropped out of the plan leads only as an elector or alone where nothing is left to
    decide and its own stage may not be written, and only as one that had a place who is alone for
    long where something is: all that the plan names may have ended, and it may hold what is left.
    Electors that have all dropped out choose among themselves.

    Args:
        plan: the newest one known, of those who answer too.
        electorate: of the next commit.
        there: who would promise.
        is_over: this peer has done all iterations of the run.
        has_waited: nobody has led it for so long that one alone may go on.
        has_left: this peer was told to rejoin, and the plan is of those whom it was to join.
    """
    if plan.stage_of(me) is not None:
        return True
    votes = me in electorate
    others = {*plan.names(), *(() if votes else electorate)}
    is_alone = not others.intersection(there)
    return (votes or is_alone) if is_over else (has_waited and (has_left or votes) and is_alone)


def electorate_of(last_record: Record | None, plan: Plan | None) -> tuple[Member, ...]:
    """Members that vote on the next commit: those that the last record names, or the founder alone.

    Args:
        last_record: the last committed record, None before the first.
        plan: any plan of the first iteration; needed only before the first record.
    """
    if last_record is not None:
        return last_record.electorate
    if plan is not None and is_founders(plan.position.term.number):
        return (plan.position.term.member,)
    return (NOBODY,)
