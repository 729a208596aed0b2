"""Scenarios of merges whose weights somebody lies about: the newcomer takes the norms that the
neighbours have signed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarmfree.protocol.actions import BuildAction, Merge
from swarmfree.protocol.announcement import Announcement
from swarmfree.protocol.records import float32_bits
from swarmfree.sim.rehearsal import RehearsalResult
from swarmfree.sim.setup import Setup
from swarmfree.trainer.coordinator.recovery_choice import RecoveryChoice
from swarmfree.trainer.peer import Peer
from tests.scenarios.scenario_world import lines, play, reaching, swarm, unhurried
from tests.scenarios.test_scenarios_replay import lose

LOST_AT = 3


def merging() -> Setup:
    """A swarm that knows no shadows."""
    setup = unhurried(reaching("merge", swarm(standbys=1)), iterations=5)
    recovery = replace(setup.manifest.recovery, merge="norm2")
    return replace(setup, manifest=replace(setup.manifest, recovery=recovery))


def said(result: RehearsalResult, event: str, name: str) -> list[str]:
    """Values of one field of the events about stage 2."""
    told = [line for line in lines(result, event, "stage=2") if f" {name}=" in line]
    return [line.split(f" {name}=")[1].split()[0] for line in told]


def test_a_newcomer_computes_the_weights_itself_from_what_the_neighbours_have_signed() -> None:
    """Both renew what they announce as soon as they are asked for weights; what comes out is what
    the coordinator ordered.
    """
    result = play(merging(), lose(2, iteration=LOST_AT))
    assert lines(result, "StageBuilt", "stage=2", "action=Merge")
    assert said(result, "DirectoryNorms", "signed") == ["2"]
    for name in ("weight_before", "weight_after"):
        assert said(result, "DirectoryNorms", name) == said(result, "RecoveryDecided", name)[-1:]


def test_a_coordinator_that_lies_about_the_weights_is_refused_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says the same again once it has looked, is refused again, and gives up its office; its
    successor orders what was signed.
    """
    honest, liars = RecoveryChoice.choose, []

    def lying(self: RecoveryChoice, *arguments: Any, **named: Any) -> BuildAction:
        action = honest(self, *arguments, **named)
        if not isinstance(action, Merge) or liars not in ([], [self._context.me]):
            return action
        liars[:] = [self._context.me]
        return replace(action, weight_before=float32_bits(0.5), weight_after=float32_bits(0.5))

    monkeypatch.setattr(RecoveryChoice, "choose", lying)
    result = play(merging(), lose(2, iteration=LOST_AT))
    ordered = said(result, "RecoveryDecided", "weight_before")
    assert ordered[:2] == ["0.5", "0.5"]
    assert lines(result, "TookOver", "term=2")
    assert len(lines(result, "StageBuilt", "stage=2", "action=Merge")) == 1
    assert said(result, "DirectoryNorms", "weight_before")[-1] == ordered[-1] != "0.5"


def test_norms_that_the_neighbours_have_signed_count_more_than_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator takes the record's, is refused, looks into the directory, and orders what is
    signed there; it keeps its office.
    """
    honest = Peer._announcement

    def louder(self: Peer) -> Announcement:
        announcement = honest(self)
        return replace(announcement, squared_norm=announcement.squared_norm * ((announcement.stage == 1 and 3) or 1))

    monkeypatch.setattr(Peer, "_announcement", louder)
    result = play(merging(), lose(2, iteration=LOST_AT))
    ordered = said(result, "RecoveryDecided", "weight_before")
    assert len(ordered) == 2
    before, after = (float(weight) / (1 - float(weight)) for weight in ordered)
    assert after == pytest.approx(3 * before, rel=1e-3)
    assert said(result, "DirectoryNorms", "weight_before") == [ordered[1], ordered[1]]
    assert not lines(result, "TookOver", "term=2")


def test_a_neighbour_whose_announcement_stays_old_counts_by_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is slow: after two seconds the sealed record's norm is taken for it."""
    honest = Peer._announcement

    def old(self: Peer) -> Announcement:
        announcement = honest(self)
        return replace(announcement, iteration=announcement.iteration - 1) if announcement.stage == 3 else announcement

    monkeypatch.setattr(Peer, "_announcement", old)
    result = play(merging(), lose(2, iteration=LOST_AT))
    assert said(result, "DirectoryNorms", "signed") == ["1"]
    assert said(result, "DirectoryNorms", "weight_before") == said(result, "RecoveryDecided", "weight_before")
