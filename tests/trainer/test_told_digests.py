"""A member tells digests of parts of what it holds, in place of the parts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swarmfree.protocol.messages import GetState
from swarmfree.trainer.member import queries
from swarmfree.trainer.recovery.recut import digests_of_parts
from tests.mutants.alone import A, Alone, play


def request_of(alone: Alone, count: int = 1) -> GetState:
    """For parts of what it holds."""
    return GetState(1, 0, alone.replica_state.lineage, 0, weights_only=False, count=count, digests_only=True)


def test_who_tells_digests_gives_nothing_away() -> None:
    """Nobody copies its stage by that."""

    async def story(alone: Alone) -> None:
        before = alone.replica_state.gave_s
        await queries.get_state(alone.stage_member, request_of(alone), A.member)
        assert alone.replica_state.gave_s == before

    play(story)


def test_digests_are_not_read_for_a_state() -> None:
    """Somebody asks for both at once."""

    async def story(alone: Alone) -> None:
        asked = (replace(request_of(alone), digests_only=False), request_of(alone))
        async with asyncio.TaskGroup() as group:
            state, told = (group.create_task(queries.get_state(alone.stage_member, each, A.member)) for each in asked)
        assert list(state.result().pieces) == [alone.engine.read_state(0, weights_only=False)]
        assert list(told.result().pieces) == digests_of_parts(alone.engine, [0])

    play(story)


def test_digests_of_all_parts_come_in_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few parts of a state do."""

    async def story(alone: Alone) -> int:
        count = alone.engine.part_count(1)
        assert count > 1
        return count - len((await queries.get_state(alone.stage_member, request_of(alone, count), A.member)).pieces)

    monkeypatch.setattr(queries, "state_batch", lambda *_, **__: 1)
    assert play(story) == 0
