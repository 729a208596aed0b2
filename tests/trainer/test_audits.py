"""A coordinator's audits of one stage whose replicas account and audit as they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.policy.audit import Verdict
from swarmfree.protocol.events import Note, PeerExcluded
from swarmfree.protocol.messages import AuditAnswer
from swarmfree.protocol.names import Member
from swarmfree.trainer.coordinator.audits import CONFLICTS_MAX
from tests.mutants.tables_audit import FOUND, LAST, NO_ANSWER, NOTHING, B, Bench, C, D, bench, disputed_by_two_at_once, named

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
