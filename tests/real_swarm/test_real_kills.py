"""Real kills, one after the other in one swarm of real processes, and what must come of each
(SIGKILL, as a power cut would be).

Four stages, two replicas in each of 1 to 3, two peers on standby. The bounds are the promises of
the protocol; how long processes take to start is not bounded, since nobody waits for them.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from swarmfree.cockpit.observed_events import InviteKept, PeerEvent, ProcessKilled
from swarmfree.cockpit.state import LostMember
from swarmfree.lab.processes import Child, command_of, descendants
from swarmfree.lab.swarm import BOOTSTRAP, SwarmExit
from swarmfree.protocol.events import DirectoryReplaced, Event, Repaired
from tests.real_swarm.kill_world import (
    NOTICED_WITHIN_S,
    WHOLE,
    World,
    lose_stage,
    require_in_time,
    tell,
    training,
)
from tests.real_swarm.real_swarm import UP_WITHIN_S, Processes, code_of

pytestmark = pytest.mark.timeout(600)
REST_S = 0.2


async def lose_one(world: World) -> LostMember:
    """Kill one replica of stage 2 in mid-iteration."""
    await world.until_whole(1, 2, 3)
    state = world.audience.state
    await world.kill(state.replicas(2)[0].name)
    seen = len(state.lost_members)
    await world.until(
        lambda: len(s := world.audience.state.lost_members) > seen and s[-1].resumed_s is not None, "it goes on without one"
    )
    return world.audience.state.lost_members[-1]


async def lose_p2pd(world: World) -> None:
    """Kill the libp2p daemon of one peer of stage 2: a new one takes its place within 3 s, and
    nobody is lost.
    """
    lost = len(world.audience.state.lost_members)
    victim = world.audience.state.replicas(2)[0]
    (daemon,) = [p for p in descendants(victim.pid) if command_of(p).startswith("p2pd")]
    await world.until_mid_iteration()
    daemon.kill()
    killed_s = time.time()
    await world.until(lambda: bool(world.told(DirectoryReplaced)), "a new p2pd")
    (replaced,) = world.told(DirectoryReplaced)
    assert replaced.name == victim.name
    assert replaced.time_s - killed_s <= NOTICED_WITHIN_S
    await world.until_next_commit()
    assert world.audience.state.commits[-1].time_s - killed_s <= world.limit_s()
    (fresh,) = [p for p in descendants(victim.pid) if command_of(p).startswith("p2pd")]
    assert fresh.pid != daemon.pid
    assert len(world.audience.state.lost_members) == lost


async def lose_bootstrap(world: World) -> str:
    """Kill the bootstrap node: nobody is lost and training goes on; the invite that `status` gave
    before.
    """
    (invite,) = bootstrap_lines(world)
    status = json.loads(await world.processes.look("status", invite, "--json", "--patience", str(UP_WITHIN_S)))
    lost = len(world.audience.state.lost_members)
    await world.kill(BOOTSTRAP)
    killed_s = time.time()
    await world.until_next_commit()
    assert world.audience.state.commits[-1].time_s - killed_s <= world.limit_s()
    assert len(world.audience.state.lost_members) == lost
    return str(status["invite"])


def bootstrap_lines(world: World) -> list[str]:
    """The invite that the bootstrap node printed."""
    return [Path(h.path).read_text(encoding="utf-8").strip() for h in world.audience.observed_events if isinstance(h, InviteKept)]


async def join_late(world: World, invite: str) -> Child:
    """A peer that was never there comes through other peers, since the bootstrap node is gone, and
    is given a place.
    """
    processes = world.processes
    (old,) = bootstrap_lines(world)
    assert invite.startswith("swarmfree1") and invite != old
    arguments = ("--folder", str(processes.folder / "late"), "--no-feed", "--log", "json", "--patience", str(UP_WITHIN_S))
    late = await processes.start("late", "peer", invite, *arguments)
    await world.until(lambda: bool(processes.told("late", "Started")), "the late peer is up")
    who = processes.told("late", "Started")[0]["peer_id"]

    def placed() -> list[Event]:
        told = [h.event for h in world.audience.observed_events if isinstance(h, PeerEvent)]
        return [event for event in told if getattr(event, "member", "") == who]

    await world.until(lambda: bool(placed()), "the late peer is given a place")
    return late


async def test_real_kills_one_after_the_other(processes: Processes) -> None:
    """A swarm outlives SIGKILL of a replica, of each body stage, of a p2pd and of the bootstrap
    node, takes a late peer in, ends as its organiser orders, and leaves nothing.
    """
    await processes.starter()  # from which the one that joins late is forked
    async with training(processes, rest_s=REST_S) as (world, running):
        await require_in_time_and_repaired(world)
        for stage, action in ((1, "CopyNeighbour"), (2, "Merge"), (3, "CopyNeighbour")):
            story = await lose_stage(world, stage)
            tell(f"stage {stage}", story)
            assert (story.stage, story.action) == (stage, action), story
            assert len(story.victims) == 2
            require_in_time(world, story)
        await lose_p2pd(world)
        invite = await lose_bootstrap(world)
        late = await join_late(world, invite)
        state = world.audience.state
        assert [s.stage for s in state.lost_stages] == [1, 2, 3]
        assert len([h for h in world.audience.observed_events if isinstance(h, ProcessKilled)]) == len(state.kills) == 8
        assert len(state.lost_members) == 7, "nobody is taken for dead who was not killed"
        for lost in state.lost_members:
            require_in_time(world, lost)
        processes.listening()
        sys.stdout.write(f"story over after {state.committed_count} iterations\n")
        key = str(processes.folder / "report" / "peers" / BOOTSTRAP / "organiser.key")
        assert "to stop:" in await processes.look("stop", invite, "--organiser", key)
        assert await running == SwarmExit(0)
        assert await code_of(late, 10) == 0
    await processes.require_nothing_left()
    state = world.audience.state
    assert [c.iteration for c in state.commits] == list(range(len(state.commits)))
    assert len(state.weights) == len(WHOLE)
    assert sorted(p.name for p in (processes.folder / "report").iterdir()) == ["events.jsonl", "invite", "logs", "weights"]


async def require_in_time_and_repaired(world: World) -> None:
    """One replica dies in mid-iteration: its stage is not lost, and what died with it is done again
    in one iteration, and its commit says so.
    """
    lost = await lose_one(world)
    tell("one replica", lost)
    assert lost.stage == 2
    require_in_time(world, lost)
    assert not world.audience.state.lost_stages
    redone = Counter[int]()
    for repaired in world.told(Repaired):
        assert isinstance(repaired.event, Repaired)
        redone[repaired.event.iteration] += sum(len(offsets) for _, offsets in repaired.event.redone)
    commits = world.audience.state.commits
    assert [commit.iteration for commit in commits] == list(range(len(commits)))
    assert {commit.iteration for commit in commits if commit.redone} <= set(redone) <= {lost.resumed_iteration}
    assert all(commit.redone <= redone[commit.iteration] for commit in commits)
