"""Rules of a pause, each with a way to take it out; see `removals`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from swarmfree.policy.resume import SnapshotSet
from swarmfree.protocol.records import Record
from swarmfree.trainer import resume_watch
from swarmfree.trainer.coordinator.pause import RunPause
from swarmfree.trainer.replica_state import ReplicaState


def sides_that_paused_together(patch: pytest.MonkeyPatch) -> None:
    """Of two sides of a split that paused by one order the one that is further goes on, whatever it
    was forced to (When all have died).
    """

    def careless(last_records: Mapping[SnapshotSet, Record], newest: SnapshotSet) -> SnapshotSet:
        del last_records
        return newest

    patch.setattr(resume_watch, "of_one_pause", careless)


def pause_that_is_held_up(patch: pytest.MonkeyPatch) -> None:
    """Who holds a state after which the run was to pause, twice, has nothing left to do (Stopped by
    will).
    """
    patch.setattr(ReplicaState, "is_held_up", False)


def pause_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that claimed with a majority ends the run in a pause without one, though stages
    are not written (Stopped by will).
    """

    def careless(self: RunPause) -> None:
        del self

    patch.setattr(RunPause, "_require_force", careless)
