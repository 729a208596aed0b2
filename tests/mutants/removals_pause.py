"""Rules of a pause, each with a way to take it out; see `removals`."""

from __future__ import annotations

import pytest

from swarmfree.policy import resume
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.records import Record
from swarmfree.trainer import resume_watch
from swarmfree.trainer.access_control import AccessControl
from swarmfree.trainer.coordinator.pause import RunPause
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper


def sides_that_paused_together(patch: pytest.MonkeyPatch) -> None:
    """Of two sides of a split that have paused the one that is further goes on, whatever it was
    forced to (When all have died).
    """
    patch.setattr(resume, "_paused_at_once", lambda _one, _other, _named: False)


def side_that_a_genesis_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A set that the last genesis passed over goes on as soon as its holders are there, over what
    the run has done since (When all have died).
    """
    patch.setattr(resume, "is_passed_over", lambda _point, _last, _named: False)


def forced_side_that_comes_first(patch: pytest.MonkeyPatch) -> None:
    """A side of a split that was forced and has paused goes on at once, where those of the majority
    are switched on later (When all have died).
    """
    patch.setattr(resume_watch, "may_be_dropped", lambda _point, _last, _named: False)


def stage_that_is_fetched(patch: pytest.MonkeyPatch) -> None:
    """A run goes on without a stage that somebody is fetching from the run's store (When all have
    died).
    """
    patch.setattr(resume_watch.ResumeWatch, "_who_is_waited_for", lambda *_: "")


def record_of_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Who has a set on its disk tells the record of what it holds, which may be another one, or
    nothing yet (When all have died).
    """

    async def newest(self: SnapshotKeeper, lineage: str) -> Record:
        del lineage
        if (record := self._stage_member.replica_state.newest_record) is None:
            raise Refused(RefusalKind.NOT_YET, "no record is held here")
        return record

    patch.setattr(SnapshotKeeper, "record_of", newest)


def part_of_what_was_paused(patch: pytest.MonkeyPatch) -> None:
    """Where some of those are back that paused with a later set, an older one goes on as soon as it
    is whole (When all have died).
    """
    patch.setattr(resume_watch, "parts_to_wait_for", lambda _parts, _last_records, _newest, _named: ())


def set_from_before_the_last_order(patch: pytest.MonkeyPatch) -> None:
    """What was left before the last order to pause goes on as soon as it is whole, though others
    have obeyed that (When all have died).
    """
    patch.setattr(resume_watch, "is_left_before", lambda _order, _last, _named: False)


def side_that_is_a_stranger(patch: pytest.MonkeyPatch) -> None:
    """Who had a place before a split shares what those of no standing have (What is looked at
    before anybody acts).
    """
    patch.setattr(AccessControl, "_had_place", lambda _self, _peer_id: False)


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
