"""A newcomer that is not admitted, by whom that counts, and when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from swarmfree.protocol.errors import Excluded, RefusalKind, Refused
from swarmfree.protocol.messages import Hello, Place, Request
from swarmfree.protocol.names import ABSENT, Endpoint, Founder
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.membership import Membership
from tests.mutants.alone import SIBLING, A, Alone, play
from tests.trainer.test_election import announced

USED_UP = Refused(RefusalKind.NOT_ADMITTED, "ticket used up: it is for 1")
CONVICTED = Refused(RefusalKind.EXCLUDED, "an audit has found")


def _ends(refusal: Refused, *, by_coordinator: bool, had_place: bool = False, follows: bool = False) -> bool:
    """Whether a newcomer ends within a minute; A coordinates, and SIBLING sends it on."""

    async def story(alone: Alone) -> bool:
        def answer(to: Endpoint, request: Request) -> Reply:
            if isinstance(request, Hello) and (to == A) is by_coordinator:
                raise refusal
            return Reply(Place(A, ABSENT, "", accepted=to == A))

        async def lead(inherited: object) -> bool:
            return inherited is not None

        async def is_over() -> bool:
            return False

        async def founder() -> Founder:
            return Founder(1, A.member.peer_id)

        shown = [announced(SIBLING, 1)]
        directory = SimpleNamespace(founder=founder, is_over=is_over, announcements=partial(asyncio.sleep, 0, shown))
        alone.line.answer = answer
        context = replace(alone.context, ports=replace(alone.context.ports, directory=directory))  # type: ignore[arg-type]
        membership = Membership(context, alone.stage_member, alone.tasks, lead)
        membership._had_place = had_place
        alone.replica_state.stage = ABSENT
        if follows:
            alone.replica_state.promises = replace(alone.replica_state.promises, coordinator=A)
        try:
            async with asyncio.timeout(60.0):
                await membership._ask_for_place()
        except Excluded as excluded:
            assert refusal.detail in str(excluded)
            return True
        except TimeoutError:
            return False
        return False

    return play(story)


@pytest.mark.parametrize(
    ("by_coordinator", "had_place", "ends"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_whom_the_coordinator_does_not_admit_ends(*, by_coordinator: bool, had_place: bool, ends: bool) -> None:
    """A member sends it on to the coordinator, which refuses its ticket, though the run has begun:
    it ends with the reason. A refusal by a member alone is none, since that gives no places; and
    who had a place before is of this run.
    """
    assert _ends(USED_UP, by_coordinator=by_coordinator, had_place=had_place) is ends


@pytest.mark.parametrize(("follows", "by_coordinator", "ends"), [(True, True, True), (False, True, True), (True, False, False)])
def test_whom_an_audit_has_convicted_ends_at_its_coordinators_word(*, follows: bool, by_coordinator: bool, ends: bool) -> None:
    """At once where it follows that one, and in its next life, which follows nobody, after three
    rounds; a member that says so is nobody's coordinator.
    """
    assert _ends(CONVICTED, by_coordinator=by_coordinator, follows=follows) is ends
