"""Stages that are killed whole, in a swarm of real processes, and come back from what a neighbour
keeps.
"""

from __future__ import annotations

import sys

import pytest

from swarmfree.lab.swarm import SwarmExit
from tests.real_swarm.kill_world import lose_stage, require_in_time, tell, training
from tests.real_swarm.real_swarm import Processes

pytestmark = pytest.mark.timeout(600)

ONE_EACH = (1, 1, 1, 1)
REST_S = 0.1
RESTORED = 'shadow_every = 3\nshadow_kind = "full"\nbest = "restore"'


async def test_real_stages_come_back_from_their_shadows(processes: Processes) -> None:
    """Stage 3, then stages 1 and 2 together, are killed: each comes back from the full shadow that
    a neighbour keeps, and the loss does not notice.
    """
    async with training(processes, RESTORED, ONE_EACH, rest_s=REST_S) as (world, running):
        await world.until(lambda: world.audience.state.committed_count >= 8, "two shadows of each stage")
        story = await lose_stage(world, 3)
        tell("stage 3", story)
        assert (story.stage, story.action) == (3, "Restore"), story
        assert "keeps a shadow" in story.reason
        require_in_time(world, story)
        await world.until_whole(1, 2, 3)
        losses = [commit.loss for commit in world.audience.state.commits]
        seen = len(world.audience.state.lost_stages)
        await world.kill(*(peer.name for stage in (1, 2) for peer in world.audience.state.replicas(stage)))
        both = lambda: [s for s in world.audience.state.lost_stages[seen:] if s.resumed_s is not None]  # noqa: E731
        await world.until(lambda: len(both()) >= 2, "stages 1 and 2 are restored")
        assert {(s.stage, s.action) for s in both()} == {(1, "Restore"), (2, "Restore")}
        await world.until_next_commit()
        after = world.audience.state.commits[len(losses)].loss
        sys.stdout.write(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} before the second loss, {after:.3f} after\n")
        assert after < losses[-1] + 0.2 * (losses[0] - losses[-1])
        world.swarm.stop(SwarmExit(0))
        await running
    await processes.require_nothing_left()
