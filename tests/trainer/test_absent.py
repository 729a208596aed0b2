"""Whom a coordinator calls for once a stage is lost, and who may copy it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.errors import PeerSilent
from swarmfree.protocol.messages import Hello
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.trainer.coordinator.absent import ABSENT_MAX, Absent
from swarmfree.trainer.coordinator.assignment import ABSENT, _is_a_step_behind
from swarmfree.trainer.coordinator.leadership import Present
from swarmfree.trainer.coordinator.participant import Participant
from swarmfree.trainer.incarnations import Incarnations
from tests.mutants.alone import ME, SIBLING, A, Alone, assigning, at, endpoint, leading, play, record, second_life

E = endpoint("e")


def _holder(number: int, *, life: str = "1", stage: int = 1, iteration: int = ABSENT) -> Participant:
    hello = Hello(can_feed=False, standby=False, corpus_hash="", stage=stage, iteration=iteration)
    return Participant(Endpoint(Member(f"peer{number}", life), ()), hello, stage, number, built=iteration == ABSENT)


def test_the_last_ones_are_called_for_once() -> None:
    """Of one stage, as many as are remembered, and none that is here again in another life."""
    context = SimpleNamespace(now_s=lambda: 0.0, timing=SimpleNamespace(silence_s=2.0), incarnations=Incarnations())
    absent = Absent(cast("Any", context))
    for number in range(ABSENT_MAX + 2):
        absent.add(_holder(number, stage=2 if number == 4 else 1))
    context.incarnations.hear([_holder(3, life="2").member])
    called = [participant.member.peer_id for participant, _ in absent.take(1)]
    assert called == [f"peer{number}" for number in range(2, ABSENT_MAX + 2) if number not in {3, 4}]
    assert absent.take(1) == []


def test_who_is_called_for_has_shown_what_it_showed_before_it_was_fenced() -> None:
    """So no old hello counts against it."""
    before, called = _holder(1), _holder(1)
    before.prove()
    called.recall(before)
    assert called.is_proven


@pytest.mark.parametrize(("in_vain", "is_called"), [(E, True), (ME, False)])
def test_who_was_called_for_in_vain_is_not_remembered(in_vain: Endpoint, *, is_called: bool) -> None:
    """One that falls silent beside a sibling is called for when that is lost, but for the very one
    that nobody could reach before: whether another one could not be reached says nothing of it.
    """

    async def story(alone: Alone) -> None:
        lead = leading(alone.context, present=Present(5, "1" * 64, record()))
        _, roster = assigning(alone.context, alone.tasks, lead)
        for one in (SIBLING, ME):
            roster.admit(one, Hello(False, False, ""), 1, built=True, is_ours=True, opened=at(1))
        silent = roster.get(ME.member)
        assert silent is not None
        roster.given_up.append(silent if in_vain is ME else roster.admit(in_vain, Hello(False, False, ""), 1))
        await roster.judge(silent, PeerSilent("it does not answer"))
        assert roster.get(ME.member) is None
        roster.fence(SIBLING.member, "nobody listens")
        assert (roster.get(ME.member) is not None) is is_called

    play(story, second_life(A))


@pytest.mark.parametrize(
    ("held", "iteration", "is_behind"),
    [(4, 5, True), (5, 5, False), (3, 5, False), (ABSENT, 5, False), (ABSENT, 0, False)],
)
def test_who_holds_nothing_is_no_step_behind(held: int, iteration: int, is_behind: bool) -> None:  # noqa: FBT001 - a row of a table
    """In the first iteration either: whoever holds nothing may copy."""
    holder = _holder(0, iteration=held)
    holder.vouch()
    assert _is_a_step_behind(holder, iteration) is is_behind
