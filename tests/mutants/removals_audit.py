"""Rules of audits, each with a way to take it out; see `removals`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from swarmfree.policy import audit
from swarmfree.policy.audit import Verdict
from swarmfree.protocol.messages import Account, AuditAnswer
from swarmfree.protocol.names import Member, Term
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Roll
from swarmfree.trainer.coordinator.audits import Audits
from swarmfree.trainer.election import Election, Poll


def voice_of_the_silent(patch: pytest.MonkeyPatch) -> None:
    """More than half of those that answer convicts, however large their stage is."""
    judge = audit.judge

    def careless(subject: Member, answers: Mapping[Member, AuditAnswer], siblings: Collection[Member]) -> Verdict:
        return judge(subject, answers, [member for member in siblings if member in answers])

    patch.setattr(audit, "judge", careless)


def due_until_audited(patch: pytest.MonkeyPatch) -> None:
    """Whose audit came to nothing is no more due than before."""
    note_due = Audits._note_due

    def careless(self: Audits, case: Any) -> None:
        before = self._since.get(case.subject.peer_id, case.plan.iteration)
        note_due(self, case)
        self._since[case.subject.peer_id] = before

    patch.setattr(Audits, "_note_due", careless)


def base_of_a_convict(patch: pytest.MonkeyPatch) -> None:
    """Who can show nothing, since it has left the base meanwhile, is convicted."""

    async def careless(self: Audits, *_: Any) -> bool:
        return True

    patch.setattr(Audits, "_are_still_there", careless)


def account_of_a_base(patch: pytest.MonkeyPatch) -> None:
    """Who stands by its base and never accounts for it goes on contributing."""

    async def careless(self: Audits, *_: Any) -> None:
        return

    patch.setattr(Audits, "_note_withheld", careless)


def contributions_that_are_shown(patch: pytest.MonkeyPatch) -> None:
    """Who gave something else than it should, and does not show what, goes on
    contributing.
    """
    patch.setattr(audit, "is_withheld", lambda *_: False)


def whole_account(patch: pytest.MonkeyPatch) -> None:
    """An account may leave out what was contributed."""

    def careless(account: Account, roll: Roll, subject: Member, part_count: int) -> bool:
        del part_count
        return {digests.offset for digests in account.work}.issuperset(audit.offsets_of(roll, subject))

    patch.setattr(audit, "is_complete", careless)


def slow_auditors_last(patch: pytest.MonkeyPatch) -> None:
    """Who never finishes an audit is asked as often as others, and each time waited for."""
    auditors = audit.auditors

    def careless(
        subject: Member, members: Iterable[Member], base: str, number: int, slow: Collection[str] = ()
    ) -> tuple[Member, ...]:
        del slow
        return auditors(subject, members, base, number)

    patch.setattr(audit, "auditors", careless)


def vote_of_the_convicted(patch: pytest.MonkeyPatch) -> None:
    """Who is excluded has its vote on who leads until the next record."""
    ask, may_decide = Election._ask, Election._may_decide

    async def asks(self: Election, term: Term, plan: Plan, *, only_asking: bool) -> Poll:
        return await ask(self, term, replace(plan, excluded=()), only_asking=only_asking)

    patch.setattr(Election, "_ask", asks)
    patch.setattr(Election, "_may_decide", lambda self, plan, poll: may_decide(self, replace(plan, excluded=()), poll))


def leap_in_a_disputed_base(patch: pytest.MonkeyPatch) -> None:
    """Where states were disputed, or somebody was convicted, any norm is let pass."""
    is_alarmed = Audits._is_alarmed

    def careless(self: Audits, plan: Plan, *arguments: Any) -> bool:
        return not plan.rebuilt and is_alarmed(self, plan, *arguments)

    patch.setattr(Audits, "_is_alarmed", careless)


def undisturbed_borders(patch: pytest.MonkeyPatch) -> None:
    """Accounts are compared also where work was done again elsewhere, which may round otherwise."""
    look = Audits._look

    async def careless(self: Audits, *arguments: Any, is_undisturbed: bool) -> Verdict:
        del is_undisturbed
        return await look(self, *arguments, is_undisturbed=True)

    patch.setattr(Audits, "_look", careless)
