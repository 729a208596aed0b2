"""A stage that loses its only replica with no standby there: another stage's peer takes in a guest
for it, and a newcomer takes its place, in a swarm of real processes.
"""

from __future__ import annotations

import statistics
import sys

import pytest

from swarmfree.lab.summary import summarise
from swarmfree.lab.swarm import SwarmExit
from swarmfree.protocol.events import IterationCommitted, MemberLeft, StageAdopted
from tests.real_swarm.kill_world import training
from tests.real_swarm.real_swarm import Processes

pytestmark = pytest.mark.timeout(600)

ADOPTED_WITHIN_S = 60.0
"""On a machine that does nothing else it takes eight seconds: five are waited for a newcomer."""


async def test_a_lost_stage_is_adopted_until_a_newcomer_comes(processes: Processes) -> None:
    """The only replica of stage 1 is killed for good: training goes on with a guest of one of the
    others. A newcomer copies its state while iterations commit, and the guest leaves.
    """
    async with training(processes, 'mode = "checkfree"', (1, 1, 1), iterations=100_000, standbys=0) as (world, running):
        (victim,) = world.audience.state.replicas(1)
        await world.kill(victim.name)
        await world.until(lambda: bool(world.told(StageAdopted)), "stage 1 is adopted", ADOPTED_WITHIN_S)
        (adopted,) = world.told(StageAdopted)
        assert isinstance(adopted.event, StageAdopted) and adopted.event.stage == 1
        host = world.audience.state.guests_of(1)[0].host
        assert host in {"peer-1", "peer-2", "peer-3"} - {victim.name}
        await world.until_next_commit()
        (story,) = world.audience.state.lost_stages
        await world.until(lambda: world.audience.state.lost_stages[0].resumed_s is not None, "training goes on")
        story = world.audience.state.lost_stages[0]
        assert story.killed_s is not None and story.resumed_s is not None
        told = f"{adopted.event.seconds:.1f} s ({adopted.event.predicted_s:.1f} s predicted), next commit after"
        sys.stdout.write(f"adopted after {told} {story.resumed_s - story.killed_s:.1f} s\n")
        count = len(world.audience.state.commits)
        await world.until(lambda: len(world.audience.state.commits) >= count + 8, "eight iterations with the guest")
        cost = summarise(world.audience.state, 0, "")["lost_stages"][0]
        with_guest = f"{cost['iteration_while_adopted_s']} s ({cost['iteration_predicted_s']} s predicted)"
        before_s = statistics.median(commit.seconds for commit in world.audience.state.commits[: count - 1])
        sys.stdout.write(f"an iteration took {before_s:.3f} s before, {with_guest} with the guest\n")

        await world.swarm.join("joiner-1")
        gone = lambda: [h for h in world.told(MemberLeft) if isinstance(h.event, MemberLeft) and h.event.stage == 1]  # noqa: E731
        await world.until(lambda: bool(gone()), "the guest has left")
        assert [peer.name for peer in world.audience.state.replicas(1)] == ["joiner-1"]
        assert not world.audience.state.guests
        await world.until_next_commit()
        await world.until_next_commit()
        assert len(world.audience.state.lost_stages) == 1, "no stage was lost as the guest left"
        commits = [h for h in world.told(IterationCommitted) if isinstance(h.event, IterationCommitted)]
        numbers = [h.event.iteration for h in commits if isinstance(h.event, IterationCommitted)]
        assert sorted(set(numbers)) == list(range(len(set(numbers)))), "no iteration is lost"
        world.swarm.stop(SwarmExit(0))
        await running
    await processes.require_nothing_left()
