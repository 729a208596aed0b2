"""A swarm of real processes that trains while whole stages of it are killed: what the tests of
kills and of replays share.

Who is killed is started again. A stage is killed when it and the standbys are whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable

from swarmfree.cockpit.observed_events import PeerEvent, RunDescribed
from swarmfree.cockpit.state import LostMember, LostStage
from swarmfree.lab.swarm import LocalSwarm, SwarmExit, SwarmOrder
from swarmfree.protocol.config import load_run
from tests.real_swarm.real_swarm import REST_S, UP_WITHIN_S, Audience, Processes, write_run

ITERATIONS = 1000  # stopped long before
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
    whole: tuple[int, ...] = WHOLE
    standbys: int = STANDBYS

    async def until(self, is_so: Callable[[], bool], what: str, within_s: float = UP_WITHIN_S) -> None:
        """Wait for something while the swarm trains; its end is a failure."""
        state = lambda: self.audience.state  # noqa: E731 - the newest one
        await self.audience.waiters.until(lambda: state().is_over or is_so(), what, within_s)
        assert is_so(), f"all iterations were over before: {what}"

    async def until_whole(self, *stages: int) -> None:
        """Wait until these stages have their replicas, as members of an iteration that is open, and
        the standbys wait.
        """
        audience = self.audience

        def is_whole() -> bool:
            counts = audience.member_counts
            return all(counts[stage] == self.whole[stage] for stage in stages) and audience.standby_count() >= self.standbys

        await self.until(is_whole, f"stages {stages} have their replicas, and {self.standbys} standbys wait")

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

    def told(self, kind: type[object]) -> list[PeerEvent]:
        """What was told of one kind of event."""
        return [h for h in self.audience.observed_events if isinstance(h, PeerEvent) and isinstance(h.event, kind)]

    def limit_s(self) -> float:
        """How long after a kill the next commit may come: 5 s and one iteration."""
        return RESUMED_WITHIN_S + statistics.median(c.seconds for c in self.audience.state.commits)


@contextlib.asynccontextmanager
async def training(
    processes: Processes,
    recovery: str = 'mode = "checkfree"',
    whole: tuple[int, ...] = WHOLE,
    microbatches: int = 4,
    iterations: int = ITERATIONS,
    standbys: int = STANDBYS,
    rest_s: float = REST_S,
) -> AsyncIterator[tuple[World, asyncio.Task[SwarmExit]]]:
    """A swarm of one source, these body stages, standbys and a bootstrap node in which every stage
    has its replicas and training goes on, with sources that rest. Without standbys nobody comes for
    who is killed.
    """
    run = write_run(
        processes.folder,
        iterations=iterations,
        stages=f"body = {len(whole) - 1}\nreplicas_min = {whole[1]}\nreplicas_max = {whole[1]}",
        microbatches=microbatches,
        recovery=recovery,
        blocks=len(whole) - 1,
    )
    manifest = load_run(run).manifest
    report = processes.folder / "report"
    report.mkdir()
    order = SwarmOrder(
        report,
        sum(whole),
        standbys,
        run_arguments=("--run", str(run)),
        peer_arguments=("--patience", str(UP_WITHIN_S)),
        respawn=standbys > 0,
    )
    audience = Audience(report, processes.waiters)
    described = RunDescribed(time.time(), "small", iterations, manifest.stage_count, manifest.tokens_per_iteration)
    swarm = LocalSwarm(
        dataclasses.replace(order, program=processes.program, fork_server=processes.resting_fork_server(rest_s)),
        described,
        audience,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(swarm.run())
        world = World(processes, swarm, audience, whole, standbys)
        try:
            await world.until(lambda: audience.state.committed_count >= 3, "three commits")
            assert len(processes.living()) > 2 * (sum(whole) + standbys), (
                "each and its p2pd are found, or none would be missed at the end"
            )
            yield world, running
        finally:
            swarm.stop(SwarmExit(1, "the test is over"))
            with contextlib.suppress(asyncio.CancelledError):
                await running
            audience.close()


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
    """It was noticed within 3 s of SIGKILL, and the next commit came within 5 s and one
    iteration.
    """
    assert lost.killed_s is not None, lost
    assert lost.resumed_s is not None, lost
    assert lost.noticed_s - lost.killed_s <= NOTICED_WITHIN_S, lost
    assert lost.resumed_s - lost.killed_s <= world.limit_s(), lost


def tell(what: str, lost: LostMember | LostStage) -> None:
    """Say the figures of one loss, for ``pytest -rP``."""
    assert lost.killed_s is not None and lost.resumed_s is not None, lost
    noticed_s, resumed_s = lost.noticed_s - lost.killed_s, lost.resumed_s - lost.killed_s
    sys.stdout.write(f"{what}: noticed after {noticed_s:.2f} s, next commit after {resumed_s:.2f} s\n")
