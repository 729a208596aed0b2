"""Two folders with one identity: who is told, and that a peer that was started again is not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.messages import GetManifest, ManifestAnswer, Request
from swarmfree.protocol.names import ABSENT, Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.membership import Membership
from swarmfree.trainer.other_lives import life_announced_since, life_that_answers
from tests.mutants.alone import ME, SIBLING, Alone, play
from tests.trainer.test_election import announced

LEASE_S = 30.0
EARLIER = Endpoint(Member(ME.member.peer_id, f"{0:016x}"), ("/ip4/192.0.2.7/tcp/4002/p2p/Qm",))


def _until(endpoint: Endpoint, expires_s: float) -> Announcement:
    return replace(announced(endpoint, 1), expires_s=expires_s)


@pytest.mark.parametrize(
    ("shown", "answer", "found"),
    [
        (EARLIER, None, EARLIER),
        (EARLIER, PeerUnreachable("no process listens"), None),
        (EARLIER, PeerSilent("frozen, or its machine is gone"), None),
        (EARLIER, Refused(RefusalKind.WRONG_INCARNATION, "a third life is there, or this one"), None),
        (ME, None, None),
        (SIBLING, None, None),
    ],
)
async def test_only_a_life_that_answers_goes_on(shown: Endpoint, answer: CallFailed | None, found: Endpoint | None) -> None:
    """A peer that was killed, or frozen, and is started again is alone; other peers are others."""

    async def call(to: Endpoint, request: Request, *, silence_s: float) -> Reply:
        assert (to, request) == (EARLIER, GetManifest()) and silence_s > 0
        if answer is not None:
            raise answer
        return Reply(ManifestAnswer())

    directory = SimpleNamespace(announcements=partial(asyncio.sleep, 0, (_until(shown, LEASE_S),)))
    assert await life_that_answers(cast("Any", directory), cast("Any", SimpleNamespace(call=call)), ME.member) == found


def test_a_directory_that_does_not_answer_holds_nobody_up() -> None:
    """Who begins goes on after a moment, as if nobody was there."""

    async def story(alone: Alone) -> Endpoint | None:
        directory = SimpleNamespace(announcements=partial(asyncio.sleep, 1000.0, ()))
        async with asyncio.timeout(10.0):
            return await life_that_answers(cast("Any", directory), alone.context.ports.network, ME.member)

    assert play(story) is None


@pytest.mark.parametrize(
    ("shown", "expires_s", "is_told"),
    [
        (EARLIER, 1002.0 + LEASE_S, False),  # announced itself as this life began, and may have ended
        (EARLIER, 1010.0 + LEASE_S, True),
        (ME, 1010.0 + LEASE_S, False),
        (SIBLING, 1010.0 + LEASE_S, False),
    ],
)
def test_a_life_that_announces_itself_beside_this_one_is_another(*, shown: Endpoint, expires_s: float, is_told: bool) -> None:
    """The last words of a life that has ended are no sign of one."""
    found = life_announced_since([_until(shown, expires_s)], ME.member, 1000.0, LEASE_S)
    assert found == (EARLIER.member if is_told else None)


def test_a_newcomer_is_told_once_that_it_is_not_alone() -> None:
    """It may be the one that was copied from: both wait, and a person decides."""

    async def story(alone: Alone) -> list[str]:
        async def founder() -> None:
            return None

        async def is_over() -> bool:
            return False

        async def lead(inherited: object) -> bool:
            return inherited is not None

        async def announcements() -> list[Announcement]:
            return [_until(EARLIER, alone.context.ports.clock.wall_s() + alone.context.timing.lease_s)]

        directory = SimpleNamespace(founder=founder, is_over=is_over, announcements=announcements)
        context = replace(alone.context, ports=replace(alone.context.ports, directory=cast("Any", directory)))
        membership = Membership(context, alone.stage_member, alone.tasks, lead)
        alone.replica_state.stage = ABSENT
        try:
            async with asyncio.timeout(20.0):
                await membership._ask_for_place()
        except TimeoutError:
            pass
        return [event.text for event in alone.line.told if hasattr(event, "text")]

    (line,) = play(story)
    assert str(EARLIER.member) in line and "identity.key" in line
