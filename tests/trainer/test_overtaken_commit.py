"""A decided record that may have overtaken the heartbeat of whoever has sent it: how long it is
held.
"""

from __future__ import annotations

import asyncio

import pytest

from swarmfree.protocol.messages import Commit
from swarmfree.protocol.names import Endpoint
from tests.builders import voted
from tests.mutants.alone import SIBLING, A, Alone, D, play, word
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
