"""A plan of the same base that comes again and again: what it begins is under way once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from swarmfree.protocol.messages import Open
from swarmfree.protocol.ports import Executor
from swarmfree.trainer.device import Rank
from swarmfree.trainer.member import averaging
from tests.mutants.alone import A, Alone, plan, play


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
