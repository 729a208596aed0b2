"""Every recovery method, forced once by the run's configuration, in a swarm of real processes:
SIGKILL of all replicas of a stage. Replays and full shadows have tests of their own.
"""

from __future__ import annotations

import math

import pytest

from swarmfree.lab.swarm import SwarmExit
from swarmfree.protocol.events import StageBuilt
from tests.real_swarm.kill_world import World, lose_stage, require_in_time, tell, training
from tests.real_swarm.real_swarm import Processes

pytestmark = pytest.mark.timeout(600)

ONE_EACH = (1, 1, 1, 1)
REST_S = 0.1
METHODS = {
    "a plain shadow": ('best = "replay"\nshadow_kind = "plain"\nshadow_every = 2', (2, "Restore")),
    "a merge": ('best = "merge"', (2, "Merge")),
    "a copy, then the ends": ('mode = "checkfree"\nmerge = "copy"', (2, "CopyNeighbour"), (0, "CopyKept")),
    "new weights": ('mode = "checkfree"\nmerge = "random"', (2, "Fresh")),
}
SHOWN = {"a merge"}
"""By `test_real_kills`."""


def built(world: World, stage: int) -> StageBuilt:
    """How a stage was built last."""
    return [h.event for h in world.told(StageBuilt) if isinstance(h.event, StageBuilt) and h.event.stage == stage][-1]


@pytest.mark.parametrize("method", [pytest.param(m, marks=pytest.mark.live_benchmark) if m in SHOWN else m for m in METHODS])
async def test_each_recovery_method_can_be_forced(processes: Processes, method: str) -> None:
    """Each stage comes back that way, in time, and training goes on with losses that are
    numbers.
    """
    recovery, *losses = METHODS[method]
    standbys = len(losses)  # where the ends are lost as well, one alone did not always bring them back
    async with training(processes, recovery, ONE_EACH, standbys=standbys, rest_s=REST_S) as (world, running):
        await world.until(lambda: world.audience.state.committed_count >= 6, "what is kept is kept")
        for stage, action in losses:
            story = await lose_stage(world, stage)
            tell(f"{method}: {action}", story)
            event = built(world, stage)
            assert (story.action, event.action) == (action, action), story
            assert event.exact == (action == "CopyKept"), event
            # The only source led, so that another one has to take over first
            if action != "CopyKept":
                require_in_time(world, story)
            await world.until_next_commit()
        assert all(math.isfinite(commit.loss) for commit in world.audience.state.commits)
        world.swarm.stop(SwarmExit(0))
        await running
    await processes.require_nothing_left()
