"""Members of which a coordinator, or a candidate, has not heard yet: who is asked, and for whom it
waits.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from swarmfree.protocol.errors import PeerSilent, RefusalKind, Refused
from swarmfree.protocol.messages import Claim, Heartbeat, Hello, Request
from swarmfree.protocol.names import Endpoint, Term
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.coordinator.roster import Roster
from tests.mutants.alone import ME, SIBLING, A, Alone, D, at, beat_answer, play, second_life
from tests.mutants.tables_evidence import _promises
from tests.mutants.tables_roster import _roster

GONE = Refused(RefusalKind.GONE, "no")


def test_who_has_told_what_it_holds_is_not_asked_again_as_it_cannot_step() -> None:
    """It may be silent by then, and its word counts."""

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool, bool, int]:
        alone.line.answer = lambda to, request: Reply(beat_answer(1))
        called = roster.admit(ME, Hello(False, False, ""), 1, built=True, is_ours=True)
        await roster.ask(called)
        asked = list[Request]()

        def silent(to: Endpoint, request: Request) -> Reply:
            asked.append(request)
            raise PeerSilent("nothing")

        alone.line.answer = silent
        await roster.judge(called, GONE)
        return roster.get(ME.member) is called, called.is_heard, called.built, len(asked)

    assert _roster(story, D) == (True, True, False, 0)


def test_who_comes_anew_as_it_is_asked_what_it_holds_keeps_its_place() -> None:
    """What it was asked before counts for nothing."""

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        def anew(to: Endpoint, request: Request) -> Reply:
            roster.fence(ME.member, "test")
            roster.admit(ME, Hello(False, False, ""), 1, built=True, is_ours=True)
            alone.line.answer = lambda to, request: Reply(beat_answer(1))
            return Reply(beat_answer(2))

        alone.line.answer = anew
        called = roster.admit(ME, Hello(False, False, ""), 1, built=True, is_ours=True, silent_since_s=0.0)
        await roster.judge(called, GONE)
        return roster.get(ME.member) not in {None, called}, called.is_heard

    assert _roster(story, D) == (True, False)


def test_each_that_claims_is_waited_for_once_until_a_heartbeat_comes() -> None:
    """From whatever address, in whatever life, and however many take turns: a candidate would wait
    for ever.
    """

    async def story(alone: Alone) -> list[float]:
        member, found = alone.stage_member, list[float]()
        member.lose_coordinator()
        elsewhere = replace(D, addresses=("/memory/elsewhere",))
        for number, where in enumerate((D, elsewhere, second_life(D), SIBLING, D, SIBLING), 2):
            await member.claim(where, Claim(at(1, Term(number, where.member)), only_asking=False))
            found.append(alone.context.now_s() - member.promised_s)
            await asyncio.sleep(1.0)
        await member.heartbeat(SIBLING, Heartbeat(at(1, Term(7, SIBLING.member)), 0, 0.0))
        found.append(member.promised_s)
        member.lose_coordinator()
        await member.claim(D, Claim(at(1, Term(9, D.member)), only_asking=False))
        return [*found, alone.context.now_s() - member.promised_s]

    assert play(story) == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, -math.inf, 0.0]


def test_one_that_says_again_and_again_that_it_is_past_holds_up_no_broadcast() -> None:
    """Where a record is sealed that is asked again, and here it counts as silent soon."""

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        def past(to: Endpoint, request: Request) -> Reply:
            raise Refused(RefusalKind.PAST, "no")

        alone.line.answer = past
        roster._lead.is_sealing = True
        called = roster.admit(ME, Hello(False, False, ""), 1, built=True, is_ours=True)
        began_s = alone.context.now_s()
        await roster.judge(called, GONE)
        return roster.get(ME.member) is called and not called.is_heard, alone.context.now_s() - began_s < 4.0

    assert _roster(story, D) == (True, True)


def test_an_answer_that_takes_as_long_as_it_may_counts() -> None:
    """Nobody is silent before `silence_s`."""

    async def story(alone: Alone, roster: Roster) -> bool:
        alone.line.answer = lambda to, request: Reply(beat_answer(1))
        alone.line.delay_s = 0.9 * alone.context.timing.silence_s
        called = roster.admit(ME, Hello(False, False, ""), 1, built=True, is_ours=True, silent_since_s=0.0)
        await roster.judge(called, GONE)
        return called.is_heard

    assert _roster(story, D)


def test_what_one_says_that_was_not_heard_yet_counts_as_from_all_others() -> None:
    """It forbids what is said; or it hears another one still, which deposes nobody that was
    elected.
    """

    async def story(alone: Alone, roster: Roster, kind: RefusalKind) -> tuple[bool, bool]:
        def refused(to: Endpoint, request: Request) -> Reply:
            raise Refused(kind, "no")

        alone.line.answer, roster._lead.evidence = refused, _promises(alone, SIBLING, D, A)
        called = roster.admit(ME, Hello(False, False, ""), 1, built=True, is_ours=True)
        await roster.judge(called, GONE)
        return called.forbids, roster.get(ME.member) is called

    assert _roster(lambda alone, roster: story(alone, roster, RefusalKind.FORBIDDEN), D)[0]
    assert _roster(lambda alone, roster: story(alone, roster, RefusalKind.FRESH), D) == (False, True)
