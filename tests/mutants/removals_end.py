"""Rules of a run's end, each with a way to take it out; see `removals`."""

from __future__ import annotations

import math

import pytest

from swarmfree.protocol.ports import Reply
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator import coordinator as coordination
from swarmfree.trainer.coordinator import handoff
from swarmfree.trainer.coordinator.handoff import tell_all_written
from swarmfree.trainer.coordinator.partition_merge import PartitionMerge
from swarmfree.trainer.coordinator.quorum_watch import QuorumWatch
from swarmfree.trainer.coordinator.roster import Roster
from swarmfree.trainer.run_end import RunEnd


def lineage_of_weights(patch: pytest.MonkeyPatch) -> None:
    """What a member has written of a stage counts on any lineage that it joins later, and that all
    is written as well (A run's life, 8).
    """
    write = RunEnd.write

    async def careless(self: RunEnd) -> Reply:
        state = self._stage_member.replica_state
        if self._writes[0] == state.stage:
            self._writes = state.stage, state.lineage
        self._all_written_of = self._all_written_of and state.lineage
        return await write(self)

    patch.setattr(RunEnd, "write", careless)


def time_for_who_is_cut_off(patch: pytest.MonkeyPatch) -> None:
    """Without a majority a stage that nobody holds is given up as if those who held it had ended
    well (A run's life, 8).
    """
    check = QuorumWatch.check

    def careless(self: QuorumWatch, *, must: bool = False, building: bool = False, until_s: float = math.inf) -> bool:
        timing = self._context.timing
        sooner_s = timing.join_wait_s - timing.coordinator_silence_s if self._lead.may_force else 0.0
        return check(self, must=must, building=building, until_s=until_s - sooner_s)

    patch.setattr(QuorumWatch, "check", careless)


def everybody_knows_that_all_is_written(patch: pytest.MonkeyPatch) -> None:
    """Only the coordinator knows that every stage is written (A run's life, 8)."""

    async def careless(context: Context, roster: Roster) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(roster, "participants", lambda: [g for g in Roster.participants(roster) if g.member == context.me])
            await tell_all_written(context, roster)

    patch.setattr(coordination, "tell_all_written", careless)


def others_that_gather(patch: pytest.MonkeyPatch) -> None:
    """A run ends without a stage beside peers that have not heard of the side that is through (A
    run's life, 8).
    """

    async def careless(self: PartitionMerge) -> set[str]:
        return set()

    patch.setattr(PartitionMerge, "beyond", careless)


def strangers_that_gather(patch: pytest.MonkeyPatch) -> None:
    """Whoever is announced under new names puts the end of a run off, again and again (A run's
    life, 8).
    """

    async def careless(self: PartitionMerge) -> set[str]:
        return {a.endpoint.member.peer_id for a in await self._context.ports.directory.announcements()}

    patch.setattr(PartitionMerge, "beyond", careless)


def who_comes_as_others_write(patch: pytest.MonkeyPatch) -> None:
    """Who comes for a lost stage as the others are written is told to end at once (A run's life,
    8).
    """
    patch.setattr(coordination.Coordinator, "_came", lambda self, stages: set())


def last_record_again(patch: pytest.MonkeyPatch) -> None:
    """Who does not hold the last state of its stage as that is to be written goes on counting as
    its holder (A run's life, 8).
    """
    patch.setattr(handoff, "_stands_elsewhere", lambda failure: False)
