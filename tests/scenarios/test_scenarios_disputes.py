"""Scenarios of merges that are disputed by one that lies, or beside one that lies: no coordinator that is right gives up its office."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swarmfree.sim.directory import MemoryDirectory
from swarmfree.swarm.announcement import Announcement
from swarmfree.trainer.life.peer import Peer
from tests.scenarios.scenario_world import lines, play
from tests.scenarios.test_scenarios_norms import LOST_AT, merging
from tests.scenarios.test_scenarios_replay import lose


@pytest.mark.parametrize("wait_s", [1.0, 9.0])
def test_a_directory_that_does_not_answer_costs_no_builder(wait_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder looks into it for two seconds in all, however long one look takes, and goes by the record then."""
    honest, at_once = Peer._announcement, MemoryDirectory._travel

    async def slow(self: MemoryDirectory) -> None:
        if asyncio.get_running_loop().time() > wait_s:
            await asyncio.sleep(wait_s)
        await at_once(self)

    def old(self: Peer) -> Announcement:
        announcement = honest(self)
        return replace(announcement, iteration=announcement.iteration - 1) if announcement.stage == 3 else announcement

    monkeypatch.setattr(MemoryDirectory, "_travel", slow)
    monkeypatch.setattr(Peer, "_announcement", old)
    result = play(merging(), lose(2, iteration=LOST_AT))
    assert lines(result, "StageBuilt", "stage=2", "action=Merge")
    assert not lines(result, "MemberLost", "it did nothing")
