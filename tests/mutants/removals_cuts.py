"""Rules of a model that is cut anew, each with a way to take it out; see `removals`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from swarmfree.policy import recovery
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import Committed, GetState, Prepare
from swarmfree.protocol.names import Member
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.coordinator import coordinator, recovery_choice
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.model_cuts import ModelCuts
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.member import preparation, queries
from swarmfree.trainer.member.averaging import Averaging, Round
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.member.preparation import Preparation
from swarmfree.trainer.recovery import block_copies
from swarmfree.trainer.recovery.block_copies import BlockCopies
from swarmfree.trainer.replica_state import ReplicaState


def prepared_before_it_counts(patch: pytest.MonkeyPatch) -> None:
    """A member opens, and stores, whatever cut it is told of."""
    patch.setattr(Preparation, "require", lambda self, split: None)


def way_back_from_a_cut(patch: pytest.MonkeyPatch) -> None:
    """What a member held before a plan was cut anew is let go at once."""
    follow = Preparation.follow

    async def careless(self: Preparation, split: BlockSplit) -> None:
        await follow(self, split)
        self.drop()

    patch.setattr(Preparation, "follow", careless)


def way_back_from_two_cuts(patch: pytest.MonkeyPatch) -> None:
    """Another cut is prepared in the place of what a member held before the plan was cut anew."""
    required = Preparation._require_held

    def careless(self: Preparation, request: Prepare) -> None:
        with patch.context() as beside:
            beside.setattr(ReplicaState, "is_cut_as_recorded", True)
            required(self, request)

    patch.setattr(Preparation, "_require_held", careless)


def kept_as_recorded(patch: pytest.MonkeyPatch) -> None:
    """What is held is kept, on a disk or for a later iteration, as a plan has cut it."""

    async def careless(self: StageMember) -> None:
        del self

    patch.setattr(StageMember, "hold_as_recorded", careless)


def kept_in_turn(patch: pytest.MonkeyPatch) -> None:
    """What is held is kept only after the step that is under way, though no cut is to be taken
    back.
    """

    async def careless(self: StageMember) -> None:
        async def act() -> Reply:
            return Reply(Committed(self.replica_state.iteration))

        await self._in_turn(act)

    patch.setattr(StageMember, "hold_as_recorded", careless)


def memory_for_a_cut(patch: pytest.MonkeyPatch) -> None:
    """Another cut is prepared whether there is memory for it or not."""

    def careless(manifest: Manifest, new: BlockSplit, stage: int) -> int:
        del manifest, new, stage
        return 0

    patch.setattr(preparation, "cut_bytes", careless)


def contribution_after_its_round(patch: pytest.MonkeyPatch) -> None:
    """A contribution is looked at whether its round is still under way or not."""
    check, summed = Averaging._check_contribution, Averaging._summed

    async def careless(self: Averaging, current: Round, part: int) -> tuple[bytes, float]:
        if current is not self._round:
            check(self, current, current.roll.contributors()[0], part, 0)
        return await summed(self, current, part)

    patch.setattr(Averaging, "_summed", careless)


def one_preparation_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """As many cuts are prepared beside each other as are asked for."""
    patch.setattr(Preparation, "prepare", Preparation._prepare)


def cut_of_a_state(patch: pytest.MonkeyPatch) -> None:
    """A part is given by its number, however the model is cut for who asks."""
    get_state = queries.get_state

    async def careless(stage_member: object, request: GetState, *asker: Member) -> Reply:
        return await get_state(cast("queries.StageMember", stage_member), replace(request, split=()), *asker)

    patch.setattr(queries, "get_state", careless)


def cut_of_a_plain_shadow(patch: pytest.MonkeyPatch) -> None:
    """Parts of a shadow are given by a cut that no record has, and may never have."""
    patch.setattr(ReplicaState, "is_cut_as_recorded", True)


def cut_of_a_shadow(patch: pytest.MonkeyPatch) -> None:
    """A lost stage is restored from a shadow of other blocks."""
    patch.setattr(recovery_choice, "cut_since", lambda last: 0)


def prepared_by_everybody(patch: pytest.MonkeyPatch) -> None:
    """The model is cut anew by whoever was first to have prepared it."""
    settled = ModelCuts._prepared

    async def careless(self: ModelCuts, asked: list[Participant], wish: BlockSplit) -> dict[int, str] | None:
        found: dict[int, str] = {}
        for participant in asked:
            found |= await settled(self, [participant], wish) or {}
        return found

    patch.setattr(ModelCuts, "_prepared", careless)


def stage_that_is_lost_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """The next plan is cut anew although a stage of it is rebuilt as it was cut before."""
    patch.setattr(ModelCuts, "look", lambda self: None)


def joiners_of_a_cut(patch: pytest.MonkeyPatch) -> None:
    """Who has copied its stage is let into a plan that is cut otherwise, and holds others up."""
    admissible = Assignment.admissible

    def careless(self: Assignment, participant: Participant) -> bool:
        lead, cut = self._lead, self._lead.cut
        lead.cut = ()
        try:
            return admissible(self, participant)
        finally:
            lead.cut = cut

    patch.setattr(Assignment, "admissible", careless)


def cut_of_a_successor(patch: pytest.MonkeyPatch) -> None:
    """A successor goes on with stages that it takes for rebuilt, by a cut that nobody else has."""

    def careless(plan: Plan) -> Plan:
        return plan

    patch.setattr(coordinator, "uncut", careless)


def stage_without_blocks(patch: pytest.MonkeyPatch) -> None:
    """A stage without blocks is made anew when it is lost, and its neighbours of it."""
    patch.setattr(recovery, "_vacant", lambda last: frozenset())


def guests_of_a_cut(patch: pytest.MonkeyPatch) -> None:
    """A guest counts as about to leave, though it stays: while one serves nothing is cut anew."""
    settled = ModelCuts._is_settled

    def strict(self: ModelCuts, participant: Participant) -> bool:
        return settled(self, participant) and not participant.leaving

    patch.setattr(ModelCuts, "_is_settled", strict)


def proven_copies(patch: pytest.MonkeyPatch) -> None:
    """What was copied ahead counts as what the members hold that gave it."""

    async def careless(self: BlockCopies, *_: object) -> bool:
        del self
        return True

    patch.setattr(BlockCopies, "_is_proven", careless)


def copies_that_nobody_wants(patch: pytest.MonkeyPatch) -> None:
    """Blocks that nobody asks for any more are followed for good."""
    patch.setattr(block_copies, "UNASKED_SILENCES", 1 << 30)


def copied_before_the_stop(patch: pytest.MonkeyPatch) -> None:
    """The swarm stops for a cut as soon as it is wished for, and waits for all that has to come."""
    patch.setattr(ModelCuts, "_is_copied", lambda self, *_: True)


def copies_of_another_swarm(patch: pytest.MonkeyPatch) -> None:
    """The model is cut for those that were there as blocks began to be copied."""
    is_copied = ModelCuts._is_copied

    def careless(self: ModelCuts, wish: object, old: BlockSplit, asked: list[Participant]) -> bool:
        if self._copying is not None:
            self._copying.members = frozenset(g.member for g in asked)
            self._copying.missing |= {g.member: 0 for g in asked}
        return is_copied(self, cast("Any", wish), old, asked)

    patch.setattr(ModelCuts, "_is_copied", careless)
