"""What a coordinator makes of builds that came to nothing: what is tried again, and for how
long.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest

from swarmfree.protocol.actions import BuildAction, Copy, Merge, Replay, Restore
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.messages import Build, Built, Hello, KeptShadow, Request
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.participant import Participant
from tests.mutants.alone import ME, SIBLING, A, Alone, D, assigning, at, beat_answer, leading, play, record, second_life

LIMIT_S = 5.0
REPLAY = Replay(1, 1, (D,), 0, (A,), (D,), "its shadow and logs")
RESTORE = Restore(1, D, 0, "its shadow")
MERGE = Merge(1, A, D, 0, 2, 0, 0, 1.0, 1.0, "both neighbours live")


def asked(action: BuildAction) -> Build:
    """For this action."""
    return Build(at(2), action, 1, GENESIS_LINEAGE, record())


def lead(alone: Alone) -> tuple[Assignment, Participant]:
    """The places of a swarm, and the participant that builds; D keeps a shadow of stage 1."""
    assignment, roster = assigning(alone.context, alone.tasks, leading(alone.context))
    keeper = roster.admit(D, Hello(False, False, ""), 2, built=True)
    keeper.answer = replace(beat_answer(2), shadows=(KeptShadow(1, 0, full=True, lineage=GENESIS_LINEAGE),))
    return assignment, roster.admit(ME, Hello(False, False, ""), 1)


@pytest.mark.parametrize("kind", [RefusalKind.TOO_SLOW, RefusalKind.DISPUTED, RefusalKind.FAILED])
def test_a_shadow_that_was_refused_for_good_is_not_tried_again(kind: RefusalKind) -> None:
    """Before the next commit; one that only failed has a second try."""

    async def story(alone: Alone) -> None:
        assignment, participant = lead(alone)
        left = []
        for _ in range(2):
            await assignment._refused(participant, asked(RESTORE), Refused(kind, "it cannot be built"), 0)
            left.append(len(assignment._choice.shadows(assignment._roster)))
        assert left == ([1, 0] if kind is RefusalKind.FAILED else [0, 0])
        assignment.committed()
        assert len(assignment._choice.shadows(assignment._roster)) == 1

    play(story, second_life(A))


def test_two_builders_that_never_ended_are_enough() -> None:
    """Each is barred; the shadow, whose holder may be at fault, is not used again before the next
    commit.
    """

    async def story(alone: Alone) -> None:
        assignment, participant = lead(alone)
        left = []
        for _ in range(2):
            assignment._timed_out(participant, RESTORE, LIMIT_S, is_endless=True)
            left.append(len(assignment._choice.shadows(assignment._roster)))
            assert assignment._roster.is_barred(ME.member)
            assert assignment._roster.get(ME.member) is None
        assert left == [1, 0]

    play(story, second_life(A))


def test_a_build_that_ended_late_says_nothing_of_who_is_called_for_since() -> None:
    """Its heartbeats had the builder fenced, and as the last holder called for, before the build's
    time was over.
    """

    async def story(alone: Alone) -> None:
        assignment, builder = lead(alone)
        builder.is_ours, builder.answer = True, beat_answer(1)
        builder.begin_build(keeps=True)
        assignment._roster._absent.add(builder)
        assignment._roster.fence(ME.member, "it does not answer")
        called = assignment._roster.get(ME.member)
        assignment._timed_out(builder, RESTORE, LIMIT_S, is_endless=False)
        assert called not in {None, builder}
        assert assignment._roster.get(ME.member) is called

    play(story, second_life(A))


def test_a_copy_of_who_is_out_of_reach_says_nothing_of_who_copies() -> None:
    """Nothing has come within the time that it has: the holder is as silent to the copier as to the
    coordinator.
    """

    async def story(alone: Alone) -> None:
        assignment, copier = lead(alone)
        for _ in range(9):
            assignment._timed_out(copier, Copy(1, (SIBLING,), "copy it"), LIMIT_S, is_endless=False)
        await assignment._refused(copier, asked(RESTORE), Refused(RefusalKind.FAILED, "40 bytes; 48 expected"), 0)
        assert not assignment._roster.is_barred(ME.member)

    play(story, second_life(A))


def test_a_promise_that_is_heard_of_once_the_state_is_lost_counts_for_no_later_one() -> None:
    """Also where nothing else has been built by then."""

    async def story(alone: Alone) -> None:
        _, participant = lead(alone)
        participant.hold(1, is_ours=True)
        before = participant.builds
        participant.lose()
        participant.promise(at(2), before)
        participant.begin_build()
        participant.hold(1, is_ours=True)
        assert participant.is_joiner

    play(story, second_life(A))


def test_a_stage_that_was_there_in_between_is_put_off_again() -> None:
    """A rival calls, and the stage comes back; long after that, before any commit, it is lost once
    more as another rival calls.
    """

    async def story(alone: Alone) -> None:
        assignment, _ = lead(alone)
        roster, merge = assignment._roster, assignment._partition_merge
        roster.admit(A, Hello(False, False, ""), 0, built=True)
        merge._await_kin("Qm1")
        assert assignment._waits_for_others(MERGE)
        roster.admit(SIBLING, Hello(False, False, ""), 1, built=True)
        await assignment.fill()
        await asyncio.sleep(2 * merge.expects_at_most_s)
        roster.fence(SIBLING.member, "it is gone once more")
        merge._await_kin("Qm2")
        assert assignment._waits_for_others(MERGE)

    play(story, second_life(A))


@pytest.mark.parametrize(("action", "is_replay"), [(REPLAY, True), (RESTORE, False), (MERGE, False)])
def test_progress_gains_time_for_everything_but_a_replay(action: BuildAction, *, is_replay: bool) -> None:
    """The builder's device does one piece after the other, and the build takes three times the
    bound; for a replay there is a shadow. It is asked once: each call stays open at the builder.
    """

    async def story(alone: Alone) -> None:
        assignment, participant = lead(alone)
        begun_s, calls = alone.context.now_s(), Counter[str]()

        async def call(to: Endpoint, request: Request, payload: bytes = b"", **_: object) -> Reply:
            calls[type(request).__name__] += 1
            while (spent_s := alone.context.now_s() - begun_s) < 3 * LIMIT_S:
                participant.answer = replace(beat_answer(1), work_done=int(10 * spent_s))
                await asyncio.sleep(0.5)
            return Reply(Built("digest", 1.0, 0, 1))

        alone.line.call = call  # type: ignore[assignment, method-assign]
        if is_replay:
            with pytest.raises(Refused) as refused:
                await assignment._ask_in_time(participant, asked(action), LIMIT_S)
            assert refused.value.kind is RefusalKind.TOO_SLOW
        else:
            assert (await assignment._ask_in_time(participant, asked(action), LIMIT_S)).state_digest == "digest"
        assert alone.context.now_s() - begun_s == pytest.approx(LIMIT_S if is_replay else 3 * LIMIT_S, abs=0.6)
        assert calls["Build"] == 1

    play(story, second_life(A))


@pytest.mark.parametrize(("lasts_s", "calls", "is_built"), [(3.0, 7, True), (3.0, 4, False)])
def test_a_link_that_breaks_now_and_then_costs_no_build(lasts_s: float, calls: int, *, is_built: bool) -> None:
    """Six times in a build that gets on; one that does not is given up."""

    async def story(alone: Alone) -> None:
        assignment, participant = lead(alone)
        calls_made = list[Request]()

        async def call(to: Endpoint, request: Request, payload: bytes = b"", **_: object) -> Reply:
            if not isinstance(request, Build):
                await asyncio.sleep(1.0)
                return Reply(replace(beat_answer(1), work_done=len(calls_made) if is_built else 0))
            calls_made.append(request)
            await asyncio.sleep(lasts_s)
            if len(calls_made) <= 6:
                raise PeerUnreachable("the link broke")
            return Reply(Built("digest", 1.0, 0, 1))

        alone.line.call = call  # type: ignore[assignment, method-assign]
        with nullcontext() if is_built else pytest.raises(PeerUnreachable):
            assert (await assignment._ask_in_time(participant, asked(MERGE), 4 * LIMIT_S)) is not None
        assert len(calls_made) == calls

    play(story, second_life(A))


@pytest.mark.parametrize("is_back", [True, False])
def test_a_build_is_waited_for_until_somebody_holds_its_stage(*, is_back: bool) -> None:
    """It gets on all the while; who was out of reach is heard again after three seconds."""

    async def story(alone: Alone) -> None:
        assignment, participant = lead(alone)
        begun_s = alone.context.now_s()

        async def call(to: Endpoint, request: Request, payload: bytes = b"", **_: object) -> Reply:
            await asyncio.sleep(1.0)
            spent_s = alone.context.now_s() - begun_s
            if not isinstance(request, Build):
                return Reply(replace(beat_answer(1), work_done=int(10 * spent_s)))
            await asyncio.sleep(2.0)
            if is_back:
                assignment._roster.admit(SIBLING, Hello(False, False, ""), 1, built=True)
            await asyncio.sleep(7.0)
            return Reply(Built("digest", 1.0, 0, 1))

        alone.line.call = call  # type: ignore[assignment, method-assign]
        built = await assignment._ask_in_time(participant, asked(MERGE), LIMIT_S)
        assert (built is None) == is_back
        assert alone.context.now_s() - begun_s == pytest.approx(3.1 if is_back else 10.0, abs=0.1)

    play(story, second_life(A))


@pytest.mark.parametrize(
    ("action", "limit_s"), [(Copy(1, (SIBLING,), "it is out of reach"), LIMIT_S), (MERGE, LIMIT_S + LIMIT_S / 8)]
)
def test_that_a_copier_makes_room_is_no_progress(action: BuildAction, limit_s: float) -> None:
    """One piece of device work says of a copy from somebody out of reach nothing yet."""

    async def story(alone: Alone) -> None:
        assignment, participant = lead(alone)
        begun_s = alone.context.now_s()

        async def call(to: Endpoint, request: Request, payload: bytes = b"", **_: object) -> Reply:
            participant.answer = replace(beat_answer(1), work_done=1)
            await asyncio.sleep(100.0)
            return Reply(Built("digest", 1.0, 0, 1))

        alone.line.call = call  # type: ignore[assignment, method-assign]
        with pytest.raises(TimeoutError):
            await assignment._ask_in_time(participant, asked(action), LIMIT_S)
        assert alone.context.now_s() - begun_s == pytest.approx(limit_s, abs=0.1)

    play(story, second_life(A))


def test_a_replay_that_failed_twice_gives_way_to_the_shadow_and_that_to_the_neighbours() -> None:
    """Also one of a shadow that is as new as the swarm, for which no log is needed: should its
    bytes be wrong, no method that begins with them ends.
    """

    async def story(alone: Alone) -> list[str]:
        assignment, participant = lead(alone)
        roster, choice = assignment._roster, assignment._choice
        assert assignment._lead.present.record is None
        assignment._lead.commit(record())
        keeper = roster.get(D.member)
        assert keeper is not None
        lineage = assignment._lead.present.lineage
        keeper.answer = replace(beat_answer(2), iteration=1, shadows=(KeptShadow(1, 1, full=True, lineage=lineage),))
        roster.admit(A, Hello(False, False, ""), 0, built=True)
        chosen = []
        for _ in range(5):
            action = choice.choose(1, roster)
            chosen.append(type(action).__name__)
            await assignment._refused(participant, asked(action), Refused(RefusalKind.FAILED, "40 bytes; 48 expected"), 0)
        return chosen

    assert play(story, second_life(A)) == ["Replay", "Replay", "Restore", "Restore", "CopyNeighbour"]


def test_signed_norms_are_those_of_one_loss() -> None:
    """With the next commit they are past: what a builder disputes then is looked at anew, and costs
    nobody the lead.
    """

    async def story(alone: Alone) -> None:
        assignment, participant = lead(alone)
        other = Refused(RefusalKind.DISPUTED, "other weights")
        handed_over: list[bool] = []

        async def hand_over() -> None:
            handed_over.append(True)

        class Directory:
            async def announcements(self) -> list[Announcement]:
                return [
                    Announcement(who, PeerState.SERVING, stage, 1, GENESIS_LINEAGE, 4.0 + stage, 0.1, False, 1, 1e9)
                    for who, stage in ((A, 0), (D, 2))
                ]

        assignment._roster.hand_over = hand_over
        object.__setattr__(alone.context.ports, "directory", Directory())
        for _ in range(2):
            await assignment._refused(participant, asked(MERGE), other, 0)
            assignment.committed()
        assert not handed_over
        for _ in range(2):
            await assignment._refused(participant, asked(MERGE), other, 0)
        assert handed_over == [True]

    play(story, second_life(A))
