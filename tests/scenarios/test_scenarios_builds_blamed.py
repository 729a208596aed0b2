"""Scenarios of builds that fail by the fault of one: others are not blamed for it, and not given
up.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.actions import CopyKept
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import GetState, State
from swarmfree.protocol.names import Member
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.device import WorkFailed
from swarmfree.trainer.member import queries
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.recovery.builder import Builder, Building
from tests.scenarios.scenario_world import lines, play
from tests.scenarios.test_scenarios_builds_late import one_copy
from tests.scenarios.test_scenarios_norms import LOST_AT, merging
from tests.scenarios.test_scenarios_replay import lose


@pytest.mark.parametrize("stages", [(1,), (3,), (1, 3)])
@pytest.mark.parametrize("refuses", [True, False])
def test_a_merge_goes_on_with_siblings_of_those_that_do_not_give_their_weights(
    monkeypatch: pytest.MonkeyPatch, *, stages: tuple[int, ...], refuses: bool
) -> None:
    """They refuse, or say other sizes than they send: no builder is barred for it."""
    honest, bad = queries.get_state, dict[int, Member]()

    async def wrong(stage_member: StageMember, request: GetState, *asker: Member) -> Reply:
        reply = await honest(stage_member, request, *asker)
        if (
            not request.weights_only
            or request.stage not in stages
            or bad.setdefault(request.stage, stage_member.context.me) != stage_member.context.me
        ):
            return reply
        if refuses:
            raise Refused(RefusalKind.FAILED, "cannot be read")
        assert isinstance(reply.message, State), "that is what was asked for"
        return Reply(replace(reply.message, sizes=(1, 2)), pieces=reply.pieces)

    monkeypatch.setattr(queries, "get_state", wrong)
    result = play(merging(), lose(2, iteration=LOST_AT))
    assert set(bad) == set(stages)
    assert lines(result, "StageBuilt", "stage=2", "action=Merge")
    assert not lines(result, "MemberLost", "build of stage 2")


def test_a_builder_without_room_does_not_cost_the_only_copy_of_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails by itself as often as it is asked, and is barred; the next one builds the ends from
    the same copy.
    """
    honest, unable = Builder._kept_parts, list[Member]()

    async def failing(self: Builder, building: Building, action: CopyKept, parts: range) -> None:
        if unable in ([], [self._context.me]):
            unable[:] = [self._context.me]
            raise WorkFailed("MemoryError: no room")
        await honest(self, building, action, parts)

    monkeypatch.setattr(Builder, "_kept_parts", failing)
    result = play(one_copy(), lose(0))
    assert unable
    assert lines(result, "StageBuilt", "stage=0", "action=CopyKept", "exact=True")
    assert not lines(result, "EndsDrawnAnew")
