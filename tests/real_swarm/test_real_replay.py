"""Stages that are killed whole, in a swarm of real processes with one replica each, or two.

They are replayed bit for bit from full shadows and activation logs; on swapped routes (CheckFree+)
the ends of the body are copied from their partners.
"""

from __future__ import annotations

import math
import sys

import pytest

from swarmfree.cockpit.observed_events import PeerEvent
from swarmfree.cockpit.state import LostStage
from swarmfree.lab.swarm import SwarmExit
from swarmfree.protocol.events import Note, StageBuilt
from tests.real_swarm.kill_world import World, lose_stage, tell, training
from tests.real_swarm.real_swarm import Processes

pytestmark = pytest.mark.timeout(600)

WHOLE, PAIRS = (1, 1, 1, 1), (1, 2, 2)
EVERY = 4
KEPT = f'shadow_every = {EVERY}\nshadow_kind = "full"'
TWO_SHADOWS = 2 * EVERY + 2
"""Iterations after which each stage has had two of them taken."""


async def test_the_ends_of_the_body_are_copied_from_their_partners_on_swapped_routes(processes: Processes) -> None:
    """CheckFree+ in real processes: stage 1 comes from 2, the last one from the one before it, and
    training goes on.
    """
    async with training(processes, 'mode = "checkfree+"', (1, 1, 1, 1, 1), standbys=1, rest_s=0.1) as (world, running):
        for stage, partner in ((1, 2), (4, 3)):
            story = await lose_stage(world, stage)
            tell(f"stage {stage}", story)
            assert (story.stage, story.action) == (stage, "CopyNeighbour"), story
            assert f"copy stage {partner}" in story.reason
            await world.until_next_commit()
        assert all(math.isfinite(commit.loss) for commit in world.audience.state.commits)
        world.swarm.stop(SwarmExit(0))
        await running
    await processes.require_nothing_left()


def built(world: World, stage: int) -> StageBuilt:
    """How a stage came back last; who copies a sibling then, or drew first weights, is another
    matter.
    """
    other = {"Fresh", "Copy"}
    events = [h.event for h in world.told(StageBuilt) if isinstance(h.event, StageBuilt) and h.event.action not in other]
    return [event for event in events if event.stage == stage][-1]


async def test_stages_are_replayed_bit_for_bit(processes: Processes) -> None:
    """Stage 1, a middle one and the last one, then two adjacent ones at once: sums, states and
    digests are those of the records.
    """
    async with training(processes, KEPT, WHOLE) as (world, running):
        await world.until(lambda: world.audience.state.committed_count >= TWO_SHADOWS, "two full shadows of each stage")
        for stage in (1, 2, 3):
            story = await lose_stage(world, stage)
            tell(f"stage {stage}", story)
            require_replayed(world, stage, story)
            await until_shadowed(world)
        seen = len(world.audience.state.lost_stages)
        await world.until_whole(1, 2, 3)
        await world.kill(*(peer.name for stage in (2, 3) for peer in world.audience.state.replicas(stage)))
        both = lambda: [s for s in world.audience.state.lost_stages[seen:] if s.resumed_s is not None]  # noqa: E731
        await world.until(lambda: len(both()) >= 2, "stages 2 and 3 are replayed")
        for stage, story in zip((2, 3), sorted(both(), key=lambda s: s.stage), strict=True):
            tell(f"stages 2 and 3, stage {stage}", story)
            require_replayed(world, stage, story)
        notes = [told.event.text for told in world.told(Note) if isinstance(told, PeerEvent) and isinstance(told.event, Note)]
        assert not [note for note in notes if "replay" in note], "everything was bit for bit"
        world.swarm.stop(SwarmExit(0))
        await running
    await processes.require_nothing_left()


async def test_a_stage_of_two_replicas_is_replayed_bit_for_bit(processes: Processes) -> None:
    """The records hold the order of the partial sums of both: their sums are repeated, and then the
    second replica copies the first.
    """
    async with training(processes, KEPT, PAIRS) as (world, running):
        await world.until(lambda: world.audience.state.committed_count >= TWO_SHADOWS, "two full shadows of each stage")
        story = await lose_stage(world, 1)
        tell("stage 1 of two replicas", story)
        require_replayed(world, 1, story)
        await world.until_whole(1)
        await world.until_next_commit()
        world.swarm.stop(SwarmExit(0))
        await running
    await processes.require_nothing_left()


def require_replayed(world: World, stage: int, story: LostStage) -> None:
    """It was replayed, exactly."""
    event = built(world, stage)
    assert (story.stage, story.action) == (stage, "Replay"), story
    sys.stdout.write(f"stage {stage} for iteration {event.iteration}: {event.seconds:.2f} s, {event.received_bytes:,} bytes\n")
    assert (event.action, event.exact) == ("Replay", True), event


async def until_shadowed(world: World) -> None:
    """Wait until everybody has had a full shadow taken again, and whoever came is a member."""
    begun = world.audience.state.committed_count
    await world.until(lambda: world.audience.state.committed_count >= begun + TWO_SHADOWS, "two more full shadows")
