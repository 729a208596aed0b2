"""A plan of the same base that comes again and again: what it begins is under way once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from swarmfree.protocol.messages import Heartbeat, Open, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Executor, Reply
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.device import Rank
from swarmfree.trainer.member import averaging
from tests.mutants.alone import ME, SIBLING, A, Alone, beat_answer, plan, play
from tests.mutants.tables_lead import answer
from tests.mutants.tables_roster import _roster


def test_one_digest_of_a_state_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine plans come while the device does what takes an hour, and each state has several parts to
    digest.
    """
    monkeypatch.setattr(averaging, "DIGEST_BYTES", 1)  # a part at a time

    async def an_hour(work: object) -> None:
        await asyncio.sleep(3600.0)

    async def story(alone: Alone) -> list[Rank]:
        device = alone.stage_member.device
        for revision in range(1, 10):
            await alone.stage_member.open(A, Open(plan(revision)))
            await asyncio.sleep(0.1)
            device._executor = cast("Executor", SimpleNamespace(run=an_hour))
        return [entry[3] for entry in device._heap if not entry[-1].done()]

    assert play(story) == [Rank.IDLE]


@pytest.mark.parametrize(("base", "takes"), [("loaded since", True), ("b0", False)])
def test_a_plan_is_opened_again_at_whoever_tells_of_another_base_for_long(base: str, *, takes: bool) -> None:
    """For `silence_s`. Who holds the plan takes nothing back that another member needs."""

    async def story(alone: Alone, roster: Roster) -> tuple[bool, bool]:
        there, opened = roster.get(ME.member), roster._lead.plan
        assert there is not None
        assert opened is not None
        there.opened, timing = opened.position, alone.context.timing

        def one(to: Endpoint, request: Request) -> Reply:
            told = base if takes else opened.base
            return Reply(beat_answer(1, base=told)) if isinstance(request, Heartbeat) else answer(to, request)

        alone.line.answer, alone.line.delay_s, roster.must_replan = one, 0.2, not takes
        alone.tasks.start(roster._watch(there), "watch")
        await asyncio.sleep(timing.silence_s)
        early = roster.must_replan
        await asyncio.sleep(1.0)
        return early, roster.must_replan

    assert _roster(story, ME, SIBLING) == (not takes, True)
