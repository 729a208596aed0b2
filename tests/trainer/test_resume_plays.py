"""What a run goes on from, and how soon, however people switch their machines on: drawn plays."""

from __future__ import annotations

import pytest

from tests.trainer.resume_plays import Broken, Play

PLAYS, RESUMES = 300, 3


@pytest.mark.parametrize("first", range(0, PLAYS, 75))
async def test_a_run_goes_on_from_what_counts_most_of_what_was_there(first: int) -> None:
    """No set that is not whole is named beside one that is; none that counts less than another one
    that was there; none that may be dropped before others had time to come; and one is, in the end.
    """
    for seed in range(first, first + 75):
        play = Play(seed)
        try:
            await play.run(RESUMES)
        except Broken as broken:
            pytest.fail("\n".join([f"seed {seed}: {broken}", *play.story]))
