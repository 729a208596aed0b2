"""A decided record that may have overtaken the heartbeat of whoever has sent it: how long it is
held.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Commit
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.records import float64_bits
from tests.builders import voted
from tests.mutants.alone import ME, SIBLING, A, Alone, D, play, word
from tests.mutants.tables_evidence import next_record


@pytest.mark.parametrize("sender", [A, None])
def test_an_unproven_record_of_whom_it_hears_is_refused_at_once(sender: Endpoint | None) -> None:
    """No heartbeat would change what is known of it."""

    async def story(alone: Alone) -> tuple[str, float]:
        request = Commit(voted(await next_record(alone)))
        began_s = alone.context.now_s()
        return await word(alone.stage_member.commit(request, sender)), round(alone.context.now_s() - began_s, 1)

    assert play(story) == ("unproven", 0.0)


def test_it_is_looked_at_once_more_when_the_time_is_up() -> None:
    """Who was heard is heard no longer by then."""

    async def story(alone: Alone) -> str:
        request = Commit(voted(await next_record(alone, forced=(1,)), SIBLING.member))
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(word(alone.stage_member.commit(request, D)))
            await asyncio.sleep(0.5)
            alone.stage_member.silent_ticks = 1000
        return asked.result()

    assert play(story) == "Committed"


def test_what_others_say_meanwhile_does_not_wait_for_it() -> None:
    """Anybody may say it, as often as it likes: it holds up neither a vote nor a step."""

    async def story(alone: Alone) -> tuple[str, float]:
        entry = await next_record(alone)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(word(alone.stage_member.commit(Commit(entry), D)))
            await asyncio.sleep(0.1)
            began_s = alone.context.now_s()
            decided = Commit(voted(entry, A.member, SIBLING.member, ME.member))
            return await word(alone.stage_member.commit(decided, A)), round(alone.context.now_s() - began_s, 1)

    assert play(story) == ("Committed", 0.0)


@pytest.mark.parametrize(("loss", "came_to"), [(1.0, "Committed"), (2.0, "unproven")])
def test_one_that_another_record_has_overtaken_is_refused_and_the_same_is_not(loss: float, came_to: str) -> None:
    """Whoever says it is not told that this member has stepped by its word."""

    async def story(alone: Alone) -> str:
        entry = await next_record(alone)
        said = Commit(replace(entry, loss_bits=float64_bits(loss)))
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(word(alone.stage_member.commit(said, D)))
            await asyncio.sleep(0.1)
            decided = Commit(voted(entry, A.member, SIBLING.member, ME.member))
            assert await word(alone.stage_member.commit(decided, A)) == "Committed"
        return asked.result()

    assert play(story) == came_to
