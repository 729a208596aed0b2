"""Who may lead next, and when a claim stands. Pure; a candidate asks before it claims.

Source: protocol section 3.2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarmfree.protocol.names import ENDS_STAGE, Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record

NOBODY = Member("", "")
"""Votes on the first iteration where its founder is not known: no majority can come together, so going on is forced."""
TERMS_OF_A_GENESIS = 1000
"""A founder leads in the first of these: whoever has promised an earlier founder, or a candidate meanwhile, follows a later one."""


def founders_term(number: int) -> int:
    """In which term the founder of a genesis leads."""
    return 1 + TERMS_OF_A_GENESIS * (number - 1)


def is_founders(term_number: int) -> bool:
    """Whether a founder leads in this term, as long as there is no record."""
    return term_number % TERMS_OF_A_GENESIS == 1


def claim_order(plan: Plan, electorate: Sequence[Member]) -> tuple[Member, ...]:
    """Members of the plan in the order in which they may claim the lead: sources first, then by seniority, then by name.

    Args:
        plan: the newest one known.
        electorate: of the next commit, senior first.
    """
    seniority = {member: place for place, member in enumerate(electorate)}

    def key(member: Member) -> tuple[bool, int, Member]:
        return plan.stage_of(member) != ENDS_STAGE, seniority.get(member, len(seniority)), member

    return tuple(sorted({endpoint.member for endpoint in plan.members()}, key=key))


def rank(plan: Plan, electorate: Sequence[Member], me: Member, gone: Collection[Member]) -> int:
    """How many others may claim before `me`: those before it in `claim_order` that are not known to be gone."""
    before = 0
    for member in claim_order(plan, electorate):
        if member == me:
            break
        before += member not in gone
    return before


def electorate_of(last_record: Record | None, plan: Plan | None) -> tuple[Member, ...]:
    """Who decides on the next commit: as the last record says; on the first one the founder alone.

    Args:
        last_record: the last committed record, None before the first.
        plan: any plan of the first iteration; needed only before the first record.
    """
    if last_record is not None:
        return last_record.electorate
    if plan is not None and is_founders(plan.position.term.number):
        return (plan.position.term.member,)
    return (NOBODY,)
