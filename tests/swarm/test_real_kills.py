"""Real kills, one after the other in one swarm of real processes, and what must come of each (SIGKILL, as a power cut would be).

Four stages, two replicas in each of 1 to 3, two peers on standby, and who is killed is started again. A stage is killed when it and the standbys
are whole. The bounds are the promises of the protocol; how long processes take to start is not bounded, since nobody waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest

from swarmfree.cockpit.happenings import ProcessKilled, RunDescribed, Told
from swarmfree.cockpit.state import LostMember, LostStage
from swarmfree.lab.processes import Child, command_of, descendants
from swarmfree.lab.swarm import BOOTSTRAP, Ending, LocalSwarm, SwarmOrder
from swarmfree.swarm.config import load_run
from swarmfree.swarm.events import DirectoryReplaced, Repaired, RoundRetried
from tests.swarm.real_swarm import UP_WITHIN_S, Audience, Processes, code_of, write_run

pytestmark = pytest.mark.timeout(600)

ITERATIONS = 320
WHOLE = (1, 2, 2, 2)
STANDBYS = 2
NOTICED_WITHIN_S = 3.0
RESUMED_WITHIN_S = 5.0


@dataclasses.dataclass
class World:
    """A swarm that trains, and what is heard of it."""

    processes: Processes
    swarm: LocalSwarm
    audience: Audience
    invite: str = ""

    async def until(self, is_so: Callable[[], bool], what: str, within_s: float = UP_WITHIN_S) -> None:
        """Wait for something while the swarm trains; its end is a failure."""
        state = lambda: self.audience.state  # noqa: E731 - the newest one
        await self.audience.waiters.until(lambda: state().is_over or is_so(), what, within_s)
        assert is_so(), f"all {ITERATIONS} iterations were over before: {what}"

    async def until_whole(self, *stages: int) -> None:
        """Wait until these stages have their replicas, as members of an iteration that is open, and the standbys wait."""
        audience = self.audience

        def is_whole() -> bool:
            counts = audience.member_counts
            return all(counts[stage] == WHOLE[stage] for stage in stages) and audience.standby_count() >= STANDBYS

        await self.until(is_whole, f"stages {stages} have their replicas, and {STANDBYS} standbys wait")

    async def until_next_commit(self) -> None:
        """Wait for one more commit."""
        before = self.audience.state.committed_count
        await self.until(lambda: self.audience.state.committed_count > before, "one more commit")

    async def until_mid_iteration(self) -> None:
        """Wait until an iteration has been opened and its work is under way."""
        before = self.audience.state.iteration
        await self.until(lambda: self.audience.state.iteration > before, "the next iteration is opened")

    async def kill(self, *names: str) -> None:
        """SIGKILL to processes in mid-iteration, all within a moment."""
        await self.until_mid_iteration()
        for name in names:
            self.swarm.kill(name, "test")

    def told(self, kind: type[object]) -> list[Told]:
        """What was told of one kind of event."""
        return [h for h in self.audience.happenings if isinstance(h, Told) and isinstance(h.event, kind)]

    def limit_s(self) -> float:
        """How long after a kill the next commit may come: 5 s and one iteration."""
        return RESUMED_WITHIN_S + statistics.median(c.seconds for c in self.audience.state.commits)


@contextlib.asynccontextmanager
async def training(
    processes: Processes, recovery: str = 'mode = "checkfree"'
) -> AsyncIterator[tuple[World, asyncio.Task[Ending]]]:
    """A swarm of seven peers, two standbys and a bootstrap node in which every stage has its replicas and training goes on."""
    run = write_run(
        processes.folder,
        iterations=ITERATIONS,
        stages="body = 3\nreplicas_min = 2\nreplicas_max = 2",
        microbatches=16,
        recovery=recovery,
    )
    manifest = load_run(run).manifest
    await processes.starter()
    report = processes.folder / "report"
    report.mkdir()
    order = SwarmOrder(
        report, 7, STANDBYS, run_arguments=("--run", str(run)), peer_arguments=("--patience", str(UP_WITHIN_S)), respawn=True
    )
    audience = Audience(report, processes.waiters)
    described = RunDescribed(time.time(), "small", ITERATIONS, manifest.stage_count, manifest.tokens_per_iteration)
    swarm = LocalSwarm(dataclasses.replace(order, program=processes.program, stem=processes.stem), described, audience)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(swarm.run())
        world = World(processes, swarm, audience)
        try:
            await world.until(lambda: audience.state.committed_count >= 3, "three commits")
            yield world, running
        finally:
            swarm.stop(Ending(1, "the test is over"))
            with contextlib.suppress(asyncio.CancelledError):
                await running
            audience.close()


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


async def lose_stage(world: World, stage: int) -> LostStage:
    """Kill all replicas of a stage in mid-iteration."""
    await world.until_whole(stage)
    seen = len(world.audience.state.lost_stages)
    await world.kill(*(peer.name for peer in world.audience.state.replicas(stage)))
    await world.until(
        lambda: len(s := world.audience.state.lost_stages) > seen and s[-1].resumed_s is not None, f"stage {stage} is rebuilt"
    )
    return world.audience.state.lost_stages[-1]


def require_in_time(world: World, lost: LostMember | LostStage) -> None:
    """It was noticed within 3 s of SIGKILL, and the next commit came within 5 s and one iteration."""
    assert lost.killed_s is not None, lost
    assert lost.resumed_s is not None, lost
    assert lost.noticed_s - lost.killed_s <= NOTICED_WITHIN_S, lost
    assert lost.resumed_s - lost.killed_s <= world.limit_s(), lost


def tell(what: str, lost: LostMember | LostStage) -> None:
    """Say the figures of one loss, for ``pytest -rP``."""
    assert lost.killed_s is not None and lost.resumed_s is not None, lost
    noticed_s, resumed_s = lost.noticed_s - lost.killed_s, lost.resumed_s - lost.killed_s
    sys.stdout.write(f"{what}: noticed after {noticed_s:.2f} s, next commit after {resumed_s:.2f} s\n")


async def lose_p2pd(world: World) -> None:
    """Kill the libp2p daemon of one peer of stage 2: a new one takes its place within 3 s, and nobody is lost."""
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
    """Kill the bootstrap node: nobody is lost and training goes on; the invite that `status` gave before."""
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
    notes = [str(getattr(h.event, "text", "")) for h in world.audience.happenings if isinstance(h, Told) and h.name == "local"]
    return [note.removeprefix("invite ") for note in notes if note.startswith("invite swarmfree1")]


async def join_late(world: World, invite: str) -> Child:
    """A peer that was never there comes through other peers, since the bootstrap node is gone, and is given a place."""
    processes = world.processes
    (old,) = bootstrap_lines(world)
    assert invite.startswith("swarmfree1") and invite != old
    arguments = ("--folder", str(processes.folder / "late"), "--no-feed", "--log", "json", "--patience", str(UP_WITHIN_S))
    late = await processes.start("late", "peer", invite, *arguments)
    await world.until(lambda: bool(processes.told("late", "Started")), "the late peer is up")
    who = processes.told("late", "Started")[0]["peer_id"]
    placed = lambda: [h.event for h in world.audience.happenings if isinstance(h, Told) and getattr(h.event, "member", "") == who]  # noqa: E731
    await world.until(lambda: bool(placed()), "the late peer is given a place")
    return late


async def test_real_kills_one_after_the_other(processes: Processes) -> None:
    """A swarm outlives SIGKILL of a replica, of each body stage, of a p2pd and of the bootstrap node, takes a late peer in, and leaves nothing."""
    async with training(processes) as (world, running):
        await require_in_time_and_repaired(world)
        for stage, action in ((1, "CopyNeighbour"), (2, "Merge"), (3, "CopyNeighbour")):
            story = await lose_stage(world, stage)
            tell(f"stage {stage}", story)
            assert (story.stage, story.action) == (stage, action), story
            assert len(story.victims) == 2
            require_in_time(world, story)
        await lose_p2pd(world)
        late = await join_late(world, await lose_bootstrap(world))
        state = world.audience.state
        assert [s.stage for s in state.lost_stages] == [1, 2, 3]
        assert len([h for h in world.audience.happenings if isinstance(h, ProcessKilled)]) == len(state.kills) == 8
        assert len(state.lost_members) == 7, "nobody is taken for dead who was not killed"
        for lost in state.lost_members:
            require_in_time(world, lost)
        processes.listening()
        sys.stdout.write(f"story over after {state.committed_count} of {ITERATIONS} iterations\n")
        assert await running == Ending(0)
        assert await code_of(late, 10) == 0
    await processes.require_nothing_left()
    state = world.audience.state
    assert [c.iteration for c in state.commits] == list(range(ITERATIONS))
    assert len(state.weights) == len(WHOLE)
    assert sorted(p.name for p in (processes.folder / "report").iterdir()) == ["events.jsonl", "logs", "weights"]


async def test_real_stages_come_back_from_their_shadows(processes: Processes) -> None:
    """Stage 2, then stages 1 and 2 together, are killed: each comes back from the shadow that a neighbour keeps, and the loss does not notice."""
    async with training(processes, "shadow_every = 5") as (world, running):
        await world.until(lambda: world.audience.state.committed_count >= 12, "two shadows of each stage")
        story = await lose_stage(world, 2)
        tell("stage 2", story)
        assert (story.stage, story.action) == (2, "Restore"), story
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
        world.swarm.stop(Ending(0))
        await running
    await processes.require_nothing_left()


async def require_in_time_and_repaired(world: World) -> None:
    """One replica dies in mid-iteration: its stage is not lost, and work that died with it is done again, if there was any."""
    lost = await lose_one(world)
    tell("one replica", lost)
    assert lost.stage == 2
    require_in_time(world, lost)
    assert not world.audience.state.lost_stages
    assert {h.name for h in world.told(Repaired)} | {h.name for h in world.told(RoundRetried)} <= {
        p.name for p in world.audience.state.peers
    }
