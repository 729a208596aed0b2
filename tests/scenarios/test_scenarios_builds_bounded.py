"""Scenarios of builders that get somewhere: those on slow links are waited for, and those that
never end are not.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Merge, Restore
from swarmfree.protocol.manifest import TimingSection
from swarmfree.protocol.messages import Build, Heartbeat, HeartbeatAnswer
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Reply
from swarmfree.sim.bounds import Bounds
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.script import Director, Moment
from swarmfree.sim.setup import Setup
from swarmfree.trainer.member.member import StageMember
from tests.scenarios.scenario_world import Once, lines, play, reaching
from tests.scenarios.test_scenarios_builds_late import Hangs, one_copy
from tests.scenarios.test_scenarios_norms import merging
from tests.scenarios.test_scenarios_replay import actions, logged, lose

ANSWER_S = 28.0
"""That one answer takes on its way to a builder; it may do nothing for 20 s."""

ENDLESS_S = 120.0
"""Four times those 20 s, the transfer of a small state, and what finding another builder takes."""


class Builders(Once):
    """Kills a stage, and knows who builds it."""

    def __init__(self, setup: Setup, stage: int) -> None:
        killing = lose(stage, iteration=setup.manifest.run.iterations - 2)
        super().__init__(killing._fits, killing._strike)
        self.stage = stage
        self.now: set[Member] = set()

    def see(self, director: Director, moment: Moment) -> None:
        """A Build sets out, or is answered."""
        super().see(director, moment)
        if self.struck and isinstance(moment.request, Build) and not isinstance(moment.request.action, Copy):
            (self.now.add if moment.outcome is None else self.now.discard)(moment.receiver.member)


def slow_links(monkeypatch: pytest.MonkeyPatch, script: Builders) -> None:
    """Whatever comes to a builder takes long, frame by frame."""
    honest = MemoryHub.transfer_s

    def slow(self: MemoryHub, sender: Member, receiver: Member, size_bytes: int) -> float:
        return ANSWER_S if size_bytes and receiver in script.now else honest(self, sender, receiver, size_bytes)

    monkeypatch.setattr(MemoryHub, "transfer_s", slow)


@pytest.mark.parametrize(
    ("setup", "stage", "action"),
    [(merging(), 2, Merge), (one_copy(), 0, CopyKept)],
)
def test_a_builder_on_a_slow_link_is_waited_for(
    setup: Setup, stage: int, action: type[BuildAction], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer takes longer than a builder may do nothing, and its frames arrive all the while:
    it is asked once, and fenced by nobody.
    """
    script = Builders(setup, stage)
    slow_links(monkeypatch, script)
    result = play(setup, script)
    for event in ("RecoveryDecided", "StageBuilt"):
        assert len(lines(result, event, f"stage={stage}", f"action={action.__name__}")) == 1
    assert not lines(result, "MemberLost", "it did nothing")


def test_a_replay_on_a_slow_link_gives_way_to_the_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged does not come in time, though it comes: the same builder takes the shadow that
    it keeps, and is fenced by nobody.
    """
    script = Builders(logged(), 2)
    slow_links(monkeypatch, script)
    result = play(logged(), script)
    assert [*actions(result).items()] == [("2", "Restore")]
    assert len(lines(result, "RecoveryDecided", "stage=2", "action=Replay")) == 1
    assert lines(result, "StageBuilt", "stage=2", "action=Restore")
    assert not lines(result, "MemberLost", "it did nothing")


def endless(monkeypatch: pytest.MonkeyPatch, script: Hangs) -> None:
    """The device of whoever hangs does something for ever: each heartbeat tells of more. Checks
    wait as long as the coordinator may.
    """
    honest, done, bounds_of = StageMember.heartbeat, count(1), Bounds.of

    async def busy(self: StageMember, sender: Endpoint, request: Heartbeat) -> Reply:
        reply = await honest(self, sender, request)
        if self.context.me in script.hung and isinstance(reply.message, HeartbeatAnswer):
            reply.message = replace(reply.message, work_done=reply.message.work_done + next(done))
        return reply

    def patient(timing: TimingSection, *, is_lossy: bool) -> Bounds:
        return replace(bounds_of(timing, is_lossy=is_lossy), rebuild_s=ENDLESS_S)

    monkeypatch.setattr(StageMember, "heartbeat", busy)
    monkeypatch.setattr(Bounds, "of", staticmethod(patient))


@pytest.mark.parametrize(
    ("setup", "stage", "action"),
    [
        (replace(merging(), standbys=2), 2, Merge),
        (reaching("restore", logged(standbys=2)), 1, Restore),
        (one_copy(), 0, CopyKept),
        (reaching("merge", replace(merging(), standbys=2)), 1, CopyNeighbour),
    ],
)
def test_a_builder_that_never_ends_does_not_hold_the_swarm(
    setup: Setup, stage: int, action: type[BuildAction], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is barred once everything could have been done four times, and the next one builds the
    stage in the same way.
    """
    script = Hangs(stage, action)
    endless(monkeypatch, script)
    result = play(replace(setup, progress_bound_s=ENDLESS_S), script)
    (hung,) = script.hung
    assert len(lines(result, "MemberLost", str(hung), f"it has not built stage {stage}")) == 1
    assert lines(result, "StageBuilt", f"stage={stage}", f"action={action.__name__}")
    assert not lines(result, "EndsDrawnAnew")
