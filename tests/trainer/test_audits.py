"""A coordinator's audits of one stage whose replicas account and audit as they are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swarmfree.policy.audit import Verdict
from swarmfree.protocol.events import Note, PeerExcluded, PeersSuspected
from swarmfree.protocol.messages import Account, AuditAnswer, Hello
from swarmfree.protocol.names import Member, PartialSumId
from swarmfree.protocol.plan import Replica
from swarmfree.protocol.records import ContributionDigest, MicrobatchSet, PartialSum
from swarmfree.trainer.coordinator.audits import CONFLICTS_MAX, Audits, _Case
from tests.mutants.alone import A, endpoint
from tests.mutants.tables_audit import (
    FOUND,
    LAST,
    NO_ANSWER,
    NOTHING,
    STAGE,
    B,
    Bench,
    C,
    D,
    bench,
    disputed_by_two_at_once,
    named,
)

NOBODY = {("", "")}


def test_a_disputed_average_is_made_again_once_for_both_and_three_times_at_most() -> None:
    """Member and owner may both be audited; the average is dropped once."""
    assert disputed_by_two_at_once() == [(1,)] * 3 + [()] * 2


@pytest.mark.parametrize(
    ("says", "verdict"),
    [
        ({C: FOUND, D: FOUND}, ("b", "")),
        ({C: FOUND, D: NOTHING}, ("c", "")),
        ({C: FOUND, D: NO_ANSWER}, ("", "b c")),
        ({C: NO_ANSWER, D: NO_ANSWER}, ("", "")),
    ],
)
def test_two_of_three_convict(says: dict[Member, AuditAnswer], verdict: tuple[str, str]) -> None:
    """Whoever is asked first. One that can say nothing has no voice; who asks it asks the other."""

    async def story(there: Bench, number: int) -> tuple[str, str]:
        there.says = says
        return named(await there.look(B, number=number))

    found = {bench(lambda there, number=number: story(there, number)) for number in range(4)}
    assert found - NOBODY == {verdict} - NOBODY  # where the first that is asked finds nothing, nobody else is


def test_an_audit_that_never_ends_is_given_up() -> None:
    """A person reads of it, and the other sibling is asked."""

    async def story(there: Bench) -> tuple[list[str], float]:
        there.slow, begun_s = {C, D}, there.context.now_s()
        await there.look(B)
        return [event.text for event in there.told if isinstance(event, Note)], there.context.now_s() - begun_s

    notes, took_s = bench(story)
    assert len(notes) == 2
    assert all("did not finish an audit of stage 1" in note for note in notes)
    assert took_s < 60


@pytest.mark.parametrize("who", [B, C, LAST])
def test_an_account_that_never_comes_is_given_up(who: Member) -> None:
    """Of the member that is audited, a sibling, or a neighbour: signs of life are no account."""

    async def story(there: Bench) -> tuple[bool, float]:
        there.stalls, begun_s = {who}, there.context.now_s()
        for _ in range(3):
            await there.look(B)
        return there.roster.is_barred(who), there.context.now_s() - begun_s

    is_barred, took_s = bench(story)
    assert is_barred == (who == B)
    assert took_s < 30


def test_who_was_audited_is_not_due_again() -> None:
    """At a share of 0.2 and three replicas each is due after two iterations."""

    async def story(there: Bench) -> list[set[str]]:
        there.subjects(0, range(1))
        found = []
        for member in (B, C):
            await there.look(member, iteration=2)
            found.append(there.subjects(2, range(20)))
        return found

    assert bench(story, share=0.2) == [{"c", "d"}, {"d"}]


def test_conflicts_and_bases_of_the_past_are_forgotten() -> None:
    """However many peers come and go."""

    async def story(there: Bench) -> tuple[int, int]:
        for number in range(99):
            there.audits._conflict(there.plan, Member(f"stranger {number}", "00"), [C], ())
            there.audits.begin(replace(there.plan, base=f"b{number}"))
        return len(there.audits._conflicts), len(there.audits._opened)

    assert bench(story) == (CONFLICTS_MAX, 1)


def test_who_is_convicted_at_a_border_is_told_once_and_with_its_own_stage() -> None:
    """By whichever stage's audit."""

    async def story(there: Bench) -> list[tuple[str, int]]:
        for _ in range(2):
            there.audits._carry_out(there.plan, 2, Verdict((B,), (), (C, D), ("evidence",)))
        return [(event.peer_id, event.stage) for event in there.told if isinstance(event, PeerExcluded)]

    assert bench(story) == [("b", 1)]


def test_who_left_and_came_back_as_accounts_were_asked_for_is_not_convicted() -> None:
    """What it could show went with its base."""

    async def story(there: Bench) -> object:
        there.says = dict.fromkeys((B, D), FOUND)

        def again(account: Account) -> Account:
            there.roster.admit(endpoint("c"), Hello(False, standby=False, corpus_hash=""), STAGE, built=True)
            return account

        there.changes[C] = again
        return named(await there.look(C))

    assert bench(story) == ("", "")


def test_verdicts_come_in_one_order_whoever_answers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one names the stage that is void."""

    async def look(_: Audits, case: _Case, *__: object, **___: object) -> Verdict:
        await asyncio.sleep(1.0 if case.subject == B else 0.0)
        return Verdict((case.subject,))

    async def story(there: Bench) -> object:
        monkeypatch.setattr(Audits, "_look", look)
        cases = [_Case(there.plan, there.roll, subject, 7) for subject in (B, C)]
        found = await there.audits._verdicts(there.plan, there.rolls(there.roll), cases, is_undisturbed=False)
        return [verdict.convicted for _, verdict in found]

    assert bench(story) == [(B,), (C,)]


def test_a_stage_far_away_that_accounts_not_hides_no_dispute() -> None:
    """Where others are audited as well, accounts of more than the neighbours are there."""

    async def story(there: Bench) -> object:
        other = ContributionDigest(0, C, "other")
        there.changes[B] = lambda account: replace(
            account, contributions=tuple(other if (one.part, one.member) == (0, C) else one for one in account.contributions)
        )
        there.roster.admit(endpoint("x"), Hello(False, False, ""), 3, built=True)
        there.plan = replace(there.plan, replicas=(*there.plan.replicas, (Replica(endpoint("x")),)))
        case = _Case(there.plan, there.roll, C, 7)
        accounts = await there.audits._accounts(there.plan, there.rolls(there.roll), [case])
        known = {member: there.roster.get(member) for member in (B, C, D)}
        await there.audits._look(case, {**accounts, 3: {}}, known, is_undisturbed=True)
        return any(isinstance(event, PeersSuspected) for event in there.told)

    assert bench(story)


def test_both_ends_of_a_route_account_for_what_a_source_has_done() -> None:
    """What it sent on, and what came back to it."""

    async def story(there: Bench) -> object:
        sums = (PartialSum(PartialSumId(A.member, 0), MicrobatchSet.of((0,)), (0,)),)
        roll = replace(there.roll, stage=0, partial_sums=sums, members=(A,))
        return there.audits._around(_Case(there.plan, roll, A.member, 7))

    assert bench(story) == {0, 1, 2}


def test_who_is_overdue_stays_so_and_who_was_tried_in_vain_comes_after_the_others() -> None:
    """Else one that nobody can audit takes the turn of all others."""

    async def story(there: Bench) -> object:
        there.subjects(0, [0])  # all are seen
        there.says = dict.fromkeys((B, D), NO_ANSWER)
        await there.look(C, iteration=3)
        chosen = there.subjects(4, range(5))
        there.audits._since["c"] = -50
        there.audits._note_due(_Case(there.plan, there.roll, C, 7))
        return "c" in chosen, there.audits._since["c"]

    assert bench(story, share=0.25) == (False, -50)
