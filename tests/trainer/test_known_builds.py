"""What a member holds that was built for one coordinator, and the plans of another one: two bases
would be one else, and gradients through both states would count in one sum.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from swarmfree.protocol.actions import Copy
from swarmfree.protocol.messages import Build, HeartbeatAnswer, Hello, Open, State
from swarmfree.protocol.names import Endpoint, Term, base_of
from swarmfree.protocol.plan import Plan, Rebuilt
from swarmfree.protocol.ports import Reply
from swarmfree.trainer.coordinator.assignment import _may_be_the_last
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.recovery.builder import Building
from tests.mutants.alone import LATER, ME, OTHER_LINEAGE, SIBLING, TERM, A, Alone, D, at, plan, play, record, voted_commit, word
from tests.mutants.alone import beat_answer as heartbeat

ITERATION = 5


def _holding(alone: Alone) -> str:
    """It holds what the coordinator of `TERM` had it build, not opened yet; the digest."""
    alone.replica_state.install(1, ITERATION, OTHER_LINEAGE, replace(record(), iteration=ITERATION - 1))
    alone.replica_state.known_in = TERM
    return alone.engine.state_digest()


def _plan(term: Term, base: str = "b0", *rebuilt: Rebuilt) -> Plan:
    return replace(plan(1, term, base, iteration=ITERATION, lineage=OTHER_LINEAGE), rebuilt=rebuilt)


def _built(stage: int, digest: str) -> Rebuilt:
    return Rebuilt(stage, digest, rate_scaled=False)


@pytest.mark.parametrize(
    ("stage", "is_right", "answer"),
    [(None, True, "gone"), (1, True, "Promise"), (1, False, "gone"), (2, True, "gone")],
    ids=["nothing", "these bytes", "others", "at another stage"],
)
def test_another_coordinators_plan_has_to_name_what_was_built(stage: int | None, is_right: bool, answer: str) -> None:  # noqa: FBT001 - tables
    """Bytes of the very stage."""

    async def story(alone: Alone) -> str:
        digest = _holding(alone) if is_right else "ab" * 32
        _holding(alone)
        rebuilt = () if stage is None else (_built(stage, digest),)
        return await word(alone.stage_member.open(D, Open(_plan(LATER, "b1", *rebuilt))))

    assert play(story) == answer


def test_what_a_copy_learns_of_the_past_is_the_builds() -> None:
    """A commit that comes meanwhile stands in the past that is kept with the state."""

    async def story(alone: Alone) -> bool:
        alone.line.answer = lambda to, request: Reply(State(1, ITERATION), b"")
        copy = Build(at(2), Copy(1, (D,), "copy it"), ITERATION, OTHER_LINEAGE, None)
        building = Building(copy, {ITERATION: OTHER_LINEAGE}, asyncio.get_running_loop().create_future())
        await alone.builder._begin_copy(building, (D,))
        return building.copying is not None and building.copying.past is building.past

    assert play(story)


def test_the_base_in_which_it_was_opened_is_known_and_no_other_one_that_does_not_name_it() -> None:
    """Opened by the first coordinator as rebuilt; the next one goes on in that base, and then in
    another one, in which it would be what the last record left.
    """

    async def story(alone: Alone) -> list[str]:
        mine = _built(1, _holding(alone))
        plans: list[tuple[Endpoint, Plan]] = [
            (A, _plan(TERM, "b0", mine)),
            (D, _plan(LATER, "b0", _built(1, "ab" * 32))),
            (D, replace(_plan(LATER, "b1"), position=replace(_plan(LATER).position, revision=2))),
        ]
        found = []
        for sender, one in plans:
            found.append(await word(alone.stage_member.open(sender, Open(one))))
            alone.stage_member.lose_coordinator()
        return found

    assert play(story) == ["Promise", "Promise", "gone"]


def test_a_state_of_another_lineage_is_not_what_it_was() -> None:
    """To be kept as the decided one it takes more than the same stage and iteration."""

    async def story(alone: Alone, lineage: str) -> bool:
        _holding(alone)
        alone.replica_state.is_committed_state = True
        alone.replica_state.install(1, ITERATION, lineage, None)
        return alone.replica_state.is_committed_state

    assert [play(partial(story, lineage=lineage)) for lineage in (OTHER_LINEAGE, "e" * 64)] == [True, False]


def test_a_record_that_begins_with_another_state_takes_the_voucher() -> None:
    """But not where something was rebuilt in its base: the stage may have been, while this member
    was away with what its lineage had before.
    """

    async def story(alone: Alone, rebuilt: tuple[tuple[int, str], ...]) -> tuple[str, bool, str]:
        _holding(alone)
        state = alone.replica_state
        state.is_committed_state, state.opened = True, "b0"
        base = base_of(OTHER_LINEAGE, rebuilt)
        other = replace(record(state="ab" * 32, before=OTHER_LINEAGE), iteration=ITERATION, base=base)
        return await word(voted_commit(alone, other)), state.is_committed_state, state.opened

    assert [play(partial(story, rebuilt=rebuilt)) for rebuilt in ((), ((1, "x"),))] == [("gone", False, ""), ("gone", True, "b0")]


def test_who_can_vouch_is_no_member_of_a_plan_that_has_its_stage_rebuilt() -> None:
    """What its lineage had before is not what the others of that base work with, unless the bytes
    are the same.
    """

    async def story(alone: Alone, digest: str) -> str:
        mine = _holding(alone)
        alone.replica_state.is_committed_state = True
        return await word(alone.stage_member.open(A, Open(_plan(TERM, "b1", _built(1, digest or mine)))))

    assert [play(partial(story, digest=digest)) for digest in ("ab" * 32, "")] == ["gone", "Promise"]


def _participant(endpoint: Endpoint, answer: HeartbeatAnswer | None, *, is_heard: bool = True) -> Participant:
    found = Participant(endpoint, Hello(False, False, ""), 1, 0, answer=answer, is_ours=True)
    found.miss(None if is_heard else 1.0)
    return found


def test_a_newcomer_keeps_a_state_that_may_be_the_last() -> None:
    """It copies nothing while all that hold a newer one are only called for; one that has none, or
    beside one that is heard, does.
    """
    heard, called_for = _participant(SIBLING, None), _participant(D, None, is_heard=False)
    keeps, has_none = _participant(ME, heartbeat(1)), _participant(ME, None)
    assert _may_be_the_last(keeps, [called_for])
    assert not _may_be_the_last(keeps, [called_for, heard])
    assert not _may_be_the_last(has_none, [called_for])


def test_a_participant_that_answers_forbids_no_more() -> None:
    """It was away, and follows again."""
    participant = _participant(ME, None)
    participant.forbid()
    participant.hear(heartbeat(1), 0.0)
    assert not participant.forbids


def test_who_has_told_what_it_built_is_in_no_doubt_any_more() -> None:
    """A holder that may have built meanwhile tells of a later iteration: it holds nothing. Once it
    has built anew, and stepped with that, it holds what it has.
    """
    participant = Participant(
        SIBLING, Hello(can_feed=False, standby=False, corpus_hash=""), 1, 0, built=True, built_at=1, is_ours=True
    )
    participant.doubt(replace(participant, keeps=False))
    participant.hear(heartbeat(1, iteration=2), 0.0)
    assert not participant.built
    participant.hold(2, is_ours=False)
    participant.hear(heartbeat(1, iteration=3), 0.0)
    assert participant.built
    assert participant.iteration == 3
