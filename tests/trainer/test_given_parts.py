"""What a member gives of its state, and what it takes that for."""

from __future__ import annotations

import asyncio
import math

import pytest

from swarmfree.protocol.messages import GetState, State
from swarmfree.protocol.pieces import parts_of
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.member.queries import get_state
from tests.mutants.alone import Alone, play


@pytest.mark.parametrize("weights_only", [True, False])
def test_only_whoever_wants_weights_alone_makes_another_stage_of_them(*, weights_only: bool) -> None:
    """Then a stage beside this one is lost, and this peer's norm is announced at once, once; who
    copies all of its state is a sibling.
    """

    async def story(alone: Alone) -> None:
        renewed = []
        for _ in range(2):
            moved = alone.tasks.start(alone.replica_state.moved.wait(), "told")
            await asyncio.sleep(0.01)
            for _ in range(2):
                await get_state(alone.stage_member, GetState(1, 0, GENESIS_LINEAGE, 0, weights_only=weights_only))
            renewed.append(moved.done())
        assert alone.replica_state.wanted == (GENESIS_LINEAGE if weights_only else "")
        assert renewed == [weights_only, False]

    play(story)


def test_what_is_exported_comes_with_what_proves_it() -> None:
    """Its moments' digests, and the weights' own, are those that the engine's state has; nobody is
    told that a stage is lost, and what can wait waits for no exporter.
    """

    async def story(alone: Alone) -> None:
        asked = GetState(1, 0, GENESIS_LINEAGE, 0, weights_only=True, count=99, to_export=True)
        reply = await get_state(alone.stage_member, asked)
        assert isinstance(reply.message, State)
        moments = [digest for part in range(alone.engine.part_count(1)) for digest in alone.engine.digest_part(part)[1:]]
        assert reply.message.moment_digests == tuple(moments)
        assert alone.replica_state.wanted == "" and alone.replica_state.gave_s == -math.inf

    play(story)


@pytest.mark.parametrize(("count", "sizes"), [(0, 0), (1, 0), (2, 2), (99, None)])
def test_several_parts_come_with_their_sizes_and_one_without(count: int, sizes: int | None) -> None:
    """So whoever asks for one, as those do who know no more, gets an answer that it knows."""

    async def story(alone: Alone) -> None:
        reply = await get_state(alone.stage_member, GetState(1, 0, GENESIS_LINEAGE, 0, weights_only=True, count=count))
        assert isinstance(reply.message, State)
        there = alone.engine.part_count(1)
        assert len(reply.message.sizes) == (there if sizes is None else sizes)
        found = [b"".join(pieces) for pieces in parts_of(reply.pieces, reply.message.sizes, max(1, count))]
        assert found == [alone.engine.read_state(part, weights_only=True) for part in range(max(1, min(count, there)))]

    play(story)
