"""Scenarios of merges that are disputed by one that lies, or beside one that lies: no coordinator
that is right gives up its office.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swarmfree.protocol.actions import Merge
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Build, Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.sim.directory import MemoryDirectory
from swarmfree.sim.faults import Fate
from swarmfree.trainer.context import Context
from swarmfree.trainer.peer import Peer
from swarmfree.trainer.recovery import builder
from tests.scenarios.scenario_world import Once, lines, play, reaching, swarm, unhurried
from tests.scenarios.test_scenarios_norms import LOST_AT, merging
from tests.scenarios.test_scenarios_replay import lose

UNHEARD = Fate(request_delay_s=0.002, payload_delay_s=0.001, response_delay_s=0.002, request_lost=True)


class NobodyElse(Once):
    """Kills a stage, and those who come for it later reach nobody."""

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """Eight peers are there from the beginning."""
        del request
        return UNHEARD if max(sender.member.peer_id, receiver.member.peer_id) > "QmPeer08" else None


def test_a_newcomer_that_always_disputes_deposes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only one: the coordinator, whose weights are right, bars it after some tries, and a
    replica of another stage is moved.
    """
    honest = builder.check_weights
    liars: list[Member] = []

    async def lying(context: Context, request: Build, action: Merge) -> None:
        if liars in ([], [context.me]):
            liars[:] = [context.me]
            raise Refused(RefusalKind.DISPUTED, "other norms were signed")
        await honest(context, request, action)

    monkeypatch.setattr(builder, "check_weights", lying)
    killing, setup = lose(2, iteration=LOST_AT), merging()
    setup = replace(setup, faults=replace(setup.faults, respawn_rate=0.0))
    result = play(setup, NobodyElse(killing._fits, killing._strike))
    assert len(lines(result, "MemberLost", str(liars[0]), "disputed")) == 1
    assert not lines(result, "TookOver")


def test_two_merges_at_once_beside_neighbours_that_sign_other_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are refused, and what is signed counts for both: neither wipes out what the other one
    has found, and nobody gives up the lead.
    """
    honest = Peer._announcement

    def louder(self: Peer) -> Announcement:
        announcement = honest(self)
        return replace(announcement, squared_norm=announcement.squared_norm * (3 if announcement.stage in {1, 5} else 1))

    monkeypatch.setattr(Peer, "_announcement", louder)
    setup = unhurried(reaching("merge", swarm(body=5, standbys=2)), iterations=5)
    setup = replace(setup, manifest=replace(setup.manifest, recovery=replace(setup.manifest.recovery, merge="norm2")))
    result = play(setup, lose(2, 4, iteration=LOST_AT))
    assert lines(result, "StageBuilt", "stage=2", "action=Merge")
    assert lines(result, "StageBuilt", "stage=4", "action=Merge")
    assert not lines(result, "TookOver")


@pytest.mark.parametrize("wait_s", [1.0, 9.0])
def test_a_directory_that_does_not_answer_costs_no_builder(wait_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder looks into it for two seconds in all, however long one look takes, and goes by
    the record then.
    """
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
