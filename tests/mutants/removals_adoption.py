"""Rules of adoption, each with a way to take it out; see `removals`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import pytest

from swarmfree.policy.planner.adoption import ChosenHost, HostCandidate, choose_host
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, Hello, PlanAnswer
from swarmfree.protocol.names import ENDS_STAGE, Endpoint
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer import guest
from swarmfree.trainer.coordinator import adoption
from swarmfree.trainer.coordinator.adoption import StageAdoption
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.peer import Peer
from tests.mutants.alone import A


def time_for_a_newcomer(patch: pytest.MonkeyPatch) -> None:
    """A lost stage is adopted at once."""
    patch.setattr(adoption, "ADOPT_WAIT_S", 0.0)


def time_after_a_guest(patch: pytest.MonkeyPatch) -> None:
    """A stage counts as deserted since it was lost first, also where a guest has served it."""

    def careless(self: StageAdoption, stages: Iterable[int], now_s: float) -> None:
        self._deserted_since_s |= {stage: self._deserted_since_s.get(stage, now_s) for stage in stages}

    patch.setattr(StageAdoption, "_note_deserted", careless)


def cost_of_an_earlier_loss(patch: pytest.MonkeyPatch) -> None:
    """What a guest was to cost is kept, also where a newcomer took the stage in its place."""
    patch.setattr(StageAdoption, "_is_taken", lambda self, stage: False)


def nothing_beside_a_holder(patch: pytest.MonkeyPatch) -> None:
    """A stage is adopted although somebody who is about to leave, or is waited for, holds it."""
    patch.setattr(StageAdoption, "_is_deserted", lambda self, stage: True)


def spare_before_a_guest(patch: pytest.MonkeyPatch) -> None:
    """A stage is adopted although another one has a replica to spare."""
    look = StageAdoption.look

    def careless(self: StageAdoption, lost: Iterable[int], spared: Collection[int]) -> None:
        del spared
        look(self, lost, ())

    patch.setattr(StageAdoption, "look", careless)


def another_host(patch: pytest.MonkeyPatch) -> None:
    """Whoever was asked in vain is asked again and again."""

    def careless(stage: int, candidates: Sequence[HostCandidate], manifest: Manifest, split: BlockSplit) -> ChosenHost | None:
        return choose_host(stage, [replace(candidate, tries=0) for candidate in candidates], manifest, split)

    patch.setattr(adoption, "choose_host", careless)


def room_of_a_host(patch: pytest.MonkeyPatch) -> None:
    """Whoever is near is asked, whatever memory it has."""

    def careless(stage: int, candidates: Sequence[HostCandidate], manifest: Manifest, split: BlockSplit) -> ChosenHost | None:
        return choose_host(stage, [replace(candidate, room_bytes=1 << 40) for candidate in candidates], manifest, split)

    patch.setattr(adoption, "choose_host", careless)


def place_of_a_guest(patch: pytest.MonkeyPatch) -> None:
    """A guest takes the place of another guest, and leaves the lost stage to nobody."""

    def careless(self: Assignment, participant: Participant, stage: int) -> bool:
        return stage != ENDS_STAGE or self._may_feed(participant.hello)

    patch.setattr(Assignment, "_may_take", careless)


def leavers_beside_a_lost_stage(patch: pytest.MonkeyPatch) -> None:
    """A newcomer relieves whoever is about to leave, and a stage that nobody holds stays lost."""

    def careless(self: Assignment, without: str = "") -> list[int]:
        stages = range(self._context.manifest.stage_count)
        return [sum(g.member.peer_id != without for g in self._roster.of_stage(stage)) for stage in stages]

    patch.setattr(Assignment, "_counts", careless)


def guest_that_nobody_replaces(patch: pytest.MonkeyPatch) -> None:
    """A guest that is let go takes its stage for served by others."""

    async def careless(_: Peer) -> bool:
        return True

    patch.setattr(guest, "_is_replaced", careless)


def guest_that_the_dead_replace(patch: pytest.MonkeyPatch) -> None:
    """Whoever a plan names in a guest's place is taken for there."""

    async def careless(peer: Peer) -> bool:
        told = (await peer.context.call(A, GetPlan())).expect(PlanAnswer)
        assert told.plan is not None
        others = [replica.endpoint for replica in told.plan.replicas[peer.stage_member.replica_state.stage]]
        return peer.context.here not in others

    patch.setattr(guest, "_is_replaced", careless)


def guest_of_an_excluded_host(patch: pytest.MonkeyPatch) -> None:
    """Who was excluded comes back as a guest of its own."""

    def careless(self: Coordinator, sender: Endpoint, hello: Hello) -> bool:
        del hello
        return sender.member.peer_id in self.lead.excluded

    patch.setattr(Coordinator, "_is_excluded", careless)
