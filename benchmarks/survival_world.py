"""A small swarm of real processes that is struck and watched by `benchmarks.survival`: ports that
stay, links that can be cut, states by digest.

Every peer listens on a port of its own through all its lives, behind a door of `survival_links`
where links are to be cut, and tells every step of its engine. Who is killed is started again under
its old identity, one second later or when it is told to come back; it is forked from a process that
has loaded everything, so the seconds that a start takes elsewhere are in nobody's way.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.live import LiveFailed
from benchmarks.survival_links import HOST, Links
from swarmfree.cockpit.observed_events import ObservedEvent, PeerEvent, RunDescribed
from swarmfree.cockpit.state import PeerPicture, SwarmState
from swarmfree.lab.chaos.held_ports import HeldPorts
from swarmfree.lab.chaos.leak_check import Traces
from swarmfree.lab.swarm import BOOTSTRAP, FORK_SERVER_COMMAND, LocalSwarm, SwarmExit, SwarmOrder
from swarmfree.protocol.config import load_run
from swarmfree.protocol.events import EngineStepped, IterationCommitted, Opened, RecoveryDecided, StageBuilt, Stepped

E = TypeVar("E")
UP_WITHIN_S = 120.0
LEFT_WITHIN_S = 5.0
RESPAWN_AFTER_S = 1.0
LOOK_S = 0.01
ENDS = 0
KEEPING = frozenset({"Copy", "Stay"})
"""Actions that replace nobody's state: a newcomer beside a sibling, and a member that keeps what it
has.
"""
SHADOWS = "shadow_every = 5"
MICROBATCHES = 6
RUN = """\
[run]
name = "survival"
seed = 11
iterations = 100000
evaluate_every = 0
evaluate_windows = 2

[model]
width = 32
blocks = {body}
heads = 2
kv_heads = 1
mlp_width = 64
tokens_per_row = 32

[batch]
rows = 2
microbatches = {microbatches}

[ring]
part_bytes = 16384

[stages]
body = {body}
replicas_max = {replicas}

[recovery]
{recovery}
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """How large the swarm is: one source, body stages, replicas of each of them, standbys; how it
    brings stages back, and what its processes are.

    Args:
        has_doors: links can be cut; a port of a peer that has died answers nobody then, but it is
            not closed.
        respawns: who is killed comes back by itself, `RESPAWN_AFTER_S` later.
        all_feed: any peer may take the ends, and not the first one alone.
        microbatches: in each iteration.
        settled: iterations that have to go well before the swarm is called whole.
    """

    body: int
    replicas: int
    standbys: int
    recovery: str = SHADOWS
    fork_server: tuple[str, ...] = FORK_SERVER_COMMAND
    has_doors: bool = True
    respawns: bool = True
    all_feed: bool = False
    microbatches: int = MICROBATCHES
    settled: int = 8

    @property
    def peers(self) -> int:
        """How many take places."""
        return 1 + self.body * self.replicas


class World:
    """A swarm, what was told in it, and what can be done to it."""

    def __init__(self, folder: Path, setting: Setting, traces: Traces) -> None:
        """Prepare; `living` runs it."""
        self.setting, self._folder = setting, folder
        run_file = folder / "run.toml"
        sizes = {"body": setting.body, "replicas": setting.replicas, "microbatches": setting.microbatches}
        run_file.write_text(RUN.format(**sizes, recovery=setting.recovery))
        manifest = load_run(run_file).manifest
        self._ports: dict[str, int] = {}
        self._doors: dict[str, int] = {}
        self.held_ports = HeldPorts()
        order = SwarmOrder(
            folder / "report",
            setting.peers,
            setting.standbys,
            run_arguments=("--run", str(run_file)),
            peer_arguments=("--patience", "60", "--watch-engine"),
            own_arguments=self._own_arguments,
            feeder_count=setting.peers if setting.all_feed else 1,
            do_standbys_feed=setting.all_feed,
            respawn=setting.respawns,
            respawn_after_s=RESPAWN_AFTER_S,
            program=traces.program(SwarmOrder(folder, 0).program),
            fork_server=traces.program(setting.fork_server),
        )
        described = RunDescribed(
            time.time(), "survival", manifest.run.iterations, manifest.stage_count, manifest.tokens_per_iteration
        )
        self.told: list[PeerEvent] = []
        self.member_counts: tuple[int, ...] = ()
        self.ending: SwarmExit | None = None
        self._heard = asyncio.Event()
        self.swarm = LocalSwarm(order, described, self._hear)
        self.links = Links(lambda: {p.pid: p.name for p in self.swarm.state.peers if p.is_alive})

    def _hear(self, observed_event: ObservedEvent, _: SwarmState) -> None:
        if isinstance(observed_event, PeerEvent):
            self.told.append(observed_event)
            if isinstance(observed_event.event, Opened):
                self.member_counts = tuple(len(members) for members in observed_event.event.members)
        self._heard.set()

    def _own_arguments(self, name: str) -> tuple[str, ...]:
        if name == BOOTSTRAP:
            return ()
        door = ("--announce", f"{HOST}:{self._doors[name]}") if name in self._doors else ()
        return ("--port", str(self._ports[name]), *door)

    async def run(self) -> None:
        """Live to the end."""
        names = [f"peer-{number + 1}" for number in range(self.setting.peers)]
        for name in (*names, *(f"standby-{number + 1}" for number in range(self.setting.standbys))):
            self._ports[name] = self.held_ports.take()
            if self.setting.has_doors:
                self._doors[name] = await self.links.open(name, self._ports[name])
        self.ending = await self.swarm.run()
        self._heard.set()

    # ---- waiting and reading ---------------------------------------------------------------------

    @property
    def state(self) -> SwarmState:
        """What is known now."""
        return self.swarm.state

    async def until(self, what: str, is_so: Callable[[], bool], within_s: float = UP_WITHIN_S) -> None:
        """Wait for something.

        Raises:
            LiveFailed: it takes longer, or the swarm has ended.
        """
        try:
            async with asyncio.timeout(within_s):
                while not is_so():
                    if self.ending is not None:
                        raise LiveFailed(f"the swarm has ended ({self.ending.line}) before: {what}")
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            raise LiveFailed(f"not within {within_s:g} s: {what}; waits for {self.state.waiting_for or 'nothing'}") from None

    async def until_whole(self, commits: int = 0) -> None:
        """Wait until every stage has its replicas as members, the standbys wait, and so many
        iterations went well; 0 = as many as the setting says.
        """
        setting = self.setting
        whole = (1, *([setting.replicas] * setting.body))

        def is_whole() -> bool:
            waiting = [p for p in self.state.standbys() if p.member]
            return self.member_counts == whole and len(waiting) >= setting.standbys

        await self.until("the swarm is whole", is_whole)
        await self.commits(commits or setting.settled)
        await self.until("the swarm is whole", is_whole)

    async def commits(self, count: int, within_s: float = UP_WITHIN_S) -> None:
        """Wait for so many more commits."""
        wanted = self.state.committed_count + count
        await self.until(f"{count} commits", lambda: self.state.committed_count >= wanted, within_s)

    def events(self, kind: type[E], since_s: float = 0.0) -> Iterator[tuple[float, str, E]]:
        """(when, who, what) of one kind of event, told from `since_s` on."""
        for told in self.told:
            if isinstance(told.event, kind) and told.time_s >= since_s:
                yield told.time_s, told.name, told.event

    def only(self, stage: int) -> PeerPicture:
        """The only replica of a stage."""
        (peer,) = self.state.replicas(stage)
        return peer

    def follower_stage(self, number: int) -> int:
        """A body stage whose replicas do not coordinate: another one for each number."""
        stages = [
            s for s in range(1, self.setting.body + 1) if self.state.coordinator not in {p.name for p in self.state.replicas(s)}
        ]
        return stages[number % len(stages)]

    def resumed_s(self, since_s: float) -> float | None:
        """When the first iteration that was opened after `since_s` was committed."""
        opened: set[int] = set()
        for told in self.told:
            if told.time_s > since_s and isinstance(told.event, Opened):
                opened.add(told.event.iteration)
            if told.time_s > since_s and isinstance(told.event, IterationCommitted) and told.event.iteration in opened:
                return told.time_s
        return None

    def rebuilds(self, since_s: float) -> list[str]:
        """What was decided or built instead of a state that was there: "stage by action", in
        order.
        """
        found = [(t, e.stage, e.action) for t, _, e in self.events(RecoveryDecided, since_s)]
        found += [(t, e.stage, e.action) for t, _, e in self.events(StageBuilt, since_s)]
        return list(dict.fromkeys(f"{stage} by {action}" for _, stage, action in sorted(found) if action not in KEEPING))

    def breaks(self, stage: int, since_s: float) -> list[str]:
        """Steps of a stage of one replica since then that do not begin in the state in which the
        one before ended.
        """
        last = ""
        found = []
        for time_s, name, step in self.events(EngineStepped):
            if step.stage == stage:
                if last not in {"", step.before} and time_s >= since_s:
                    found.append(f"{name} stepped stage {stage} from {step.before[:8]}; the step before ended in {last[:8]}")
                last = step.after
        return found

    def states(self, name: str, until_s: float) -> dict[int, str]:
        """Digests of the states that a peer told until then, by the iteration that each is ready
        for.
        """
        found: dict[int, str] = {}
        last, ready = "", 0
        for told in self.told:
            if told.name == name and told.time_s <= until_s:
                match told.event:
                    case EngineStepped(after=after):
                        last, ready = after, ready + 1
                        found[ready] = last  # where it dies before it says for which
                    case Stepped(iteration=iteration):
                        ready = iteration
                        found[ready] = last
                    case _:
                        pass
        return found

    # ---- striking --------------------------------------------------------------------------------

    def kill(self, *names: str) -> float:
        """SIGKILL to all of them; the time before the first one."""
        before_s = time.time()
        for name in names:
            self.swarm.kill(name, "survival")
        return before_s

    def vanish(self, *names: str) -> float:
        """SIGKILL to all of them, and nothing tells the others: no connection is closed or refused
        until the links are mended, as where a machine loses its power; the time before that.
        """
        assert self.setting.has_doors, "without doors the system closes their connections"
        before_s = time.time()
        self.links.cut_off(*names)
        self.kill(*names)
        return before_s

    async def come_back(self, *names: str) -> None:
        """Start those that were killed once more, behind links that are good again."""
        self.links.mend()
        await self.until("the killed have ended", lambda: not any(p.is_alive for p in self.state.peers if p.name in names))
        for name in names:
            await self.swarm.join(name)

    async def freeze(self, name: str, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        self.swarm.send(name, signal.SIGSTOP)
        await asyncio.sleep(for_s)
        self.swarm.send(name, signal.SIGCONT)


@contextlib.asynccontextmanager
async def living(setting: Setting) -> AsyncIterator[World]:
    """A swarm that trains, whole; nothing of it is left afterwards.

    Raises:
        LiveFailed: it does not come up, or something is left.
    """
    with tempfile.TemporaryDirectory(prefix="swarmfree-survival-", ignore_cleanup_errors=True) as name:
        folder, temporary = Path(name) / "world", Path(name) / "tmp"
        temporary.mkdir()
        (folder / "report").mkdir(parents=True)
        traces = Traces(temporary, folder)
        world = World(folder, setting, traces)
        with world.held_ports:
            async with world.links, asyncio.TaskGroup() as tasks:
                running = tasks.create_task(world.run())
                try:
                    await world.until_whole()
                    yield world
                finally:
                    world.links.mend()
                    world.swarm.stop(SwarmExit(0))
                    await running
        left = await asyncio.to_thread(traces.wait_for_nothing, LEFT_WITHIN_S)
        if left:
            raise LiveFailed(f"left behind: {'; '.join(left)}")
