"""What a coordinator counts as progress: who hears its heartbeats follows it as long as that
grows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.messages import Hello
from tests.mutants.alone import ME, A, Alone, assigning, beat_answer, leading, play, second_life


@pytest.mark.parametrize("built", [True, False])
def test_the_work_of_a_builder_is_progress_and_that_of_a_member_is_not(*, built: bool) -> None:
    """A swarm that computes and seals nothing gets nowhere; one that waits for a long build does.
    What has nothing to do moves nothing.
    """

    async def story(alone: Alone) -> None:
        _, roster = assigning(alone.context, alone.tasks, leading(alone.context))
        participant = roster.admit(ME, Hello(False, False, ""), 1, built=built)
        participant.answer = replace(beat_answer(1), work_done=7)
        before = roster._count_progress()
        assert roster._count_progress() == before
        participant.answer = replace(beat_answer(1), work_done=8)
        assert roster._count_progress() == before + (0 if built else 1)

    play(story, second_life(A))
