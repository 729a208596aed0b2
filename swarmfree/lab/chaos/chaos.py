"""Chaos over a local swarm: carries out a plan, strike by strike, and watches that training goes on
within its bound.

Every peer listens on a port of its own and announces a door of the `proxy` before it. What the
numbers should be is for a `Judge` to say, who hears all that is told; here is who does the
striking, and what can be said without knowing any number: agreement, progress, nothing left.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from swarmfree.cockpit.observed_events import ObservedEvent, RunDescribed
from swarmfree.cockpit.state import SwarmState
from swarmfree.lab.chaos.agreement import Agreement
from swarmfree.lab.chaos.bounds import Disturbance, calm_s
from swarmfree.lab.chaos.fault_proxy import Cut, Delay, Fault, Hole, Proxy
from swarmfree.lab.chaos.held_ports import HOST, HeldPorts
from swarmfree.lab.chaos.leak_check import Traces
from swarmfree.lab.chaos.plan import (
    ON_NETWORK,
    Candidate,
    ChaosPlan,
    Sparing,
    Strike,
    StrikeKind,
    choose_joiner,
    take_aim,
)
from swarmfree.lab.chaos.watchdog import Watch
from swarmfree.lab.swarm import BOOTSTRAP, LocalSwarm, SwarmExit, SwarmOrder
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.manifest import Manifest

UP_WITHIN_S = 240.0
CALM_COMMITS = 10
SETTLE_S = 6.0
WATCH_S = 0.5
LEFT_WITHIN_S = 5.0
INTERRUPTED, TERMINATED, OUTPUT_CLOSED = 130, 143, 141


class Judge(Protocol):
    """Who can say whether the numbers are the right ones."""

    def hear(self, observed_event: ObservedEvent) -> None:
        """Hear one event."""
        ...

    def violations(self) -> list[str]:
        """What was found wrong so far, one line each."""
        ...


@dataclass(frozen=True, slots=True)
class ChaosOrder:
    """What to do.

    Args:
        swarm: what to start; ports, announcements and traces are added here.
        plan: the strikes.
        sparing: who is never struck.
        peers_max: so many peers at once; nobody joins beyond.
        temporary: the swarm's folder for temporary files, new and empty.
    """

    swarm: SwarmOrder
    plan: ChaosPlan
    sparing: Sparing
    peers_max: int
    temporary: Path


@dataclass(slots=True)
class ChaosResult:
    """What came of it.

    Args:
        done: strikes that were carried out, by kind; `idle`: those that found nobody, by kind.
        violations: one line each; empty if every invariant held.
        longest_s: longest time from one commit to the next, and `longest_bound_s` what was allowed
            for it.
        calm: what an undisturbed iteration was allowed.
        commits: iterations committed.
        steps: steps of engines that were compared.
        ports: how many ports were looked after.
        struck_s: how long strikes were made.
    """

    done: Counter[StrikeKind] = field(default_factory=Counter)
    idle: Counter[StrikeKind] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    longest_bound_s: float = 0.0
    calm: float = 0.0
    commits: int = 0
    steps: int = 0
    ports: int = 0
    struck_s: float = 0.0


class Chaos:
    """One chaos run, from the first process to the last look for leftovers.

    Attributes:
        result: what is known so far.
    """

    def __init__(
        self, order: ChaosOrder, manifest: Manifest, judge: Judge, hear: Callable[[ObservedEvent, SwarmState], None]
    ) -> None:
        """Prepare; `run` does it."""
        self.result = ChaosResult()
        self._order, self._manifest, self._judge, self._hear_further = order, manifest, judge, hear
        self._traces = Traces(order.temporary, order.swarm.folder)
        self._agreement = Agreement(manifest.tokens_per_iteration)
        self._ports: dict[str, int] = {}
        self._doors: dict[str, int] = {}
        self._held_ports = HeldPorts()
        swarm = dataclasses.replace(
            order.swarm,
            own_arguments=self._own_arguments,
            program=self._traces.program(order.swarm.program),
            fork_server=self._traces.program(order.swarm.fork_server),
        )
        described = RunDescribed.of(time.time(), manifest)
        self._swarm = LocalSwarm(swarm, described, self._hear)
        self._over = asyncio.Event()
        self._watch = Watch(manifest)
        self._unsound: set[str] = set()
        self._frozen: set[str] = set()
        self._joiner_count = 0

    @property
    def state(self) -> SwarmState:
        """What is known of the swarm."""
        return self._swarm.state

    def stop(self, ending: SwarmExit) -> None:
        """End it; the first call decides how it is said to have ended."""
        self._swarm.stop(ending)
        self._over.set()

    async def run(self) -> SwarmExit:
        """Start the swarm, strike it, end it, and look what is left."""
        names = [f"peer-{number}" for number in range(1, self._order.swarm.peer_count + 1)]
        names += [f"standby-{number}" for number in range(1, self._order.swarm.standby_count + 1)]
        with self._held_ports:
            async with Proxy(HOST, lambda: random.Random(f"{self._order.plan.seed} jitter")) as proxy:
                for name in names:
                    await self._open_door(proxy, name)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._conduct(tasks, proxy))
                    ending = await self._swarm.run()
                    self._over.set()
        ended: list[str] = []
        if ending.code not in {0, INTERRUPTED, TERMINATED, OUTPUT_CLOSED}:
            ended = [f"I6: the run ended by itself: {ending.line}"]
        left = await asyncio.to_thread(self._traces.wait_for_nothing, LEFT_WITHIN_S)
        found = [*self._agreement.violations, *self._judge.violations(), *self._watch.violations, *ended]
        self.result.violations = [*found, *(f"left behind: {line}" for line in left)]
        self.result.commits, self.result.steps = self.state.committed_count, self._agreement.step_count
        self.result.longest_s, self.result.longest_bound_s = self._watch.longest_s, self._watch.longest_bound_s
        self.result.calm = self._watch.calm_s
        return ending

    # ---- ports -----------------------------------------------------------------------------------

    async def _open_door(self, proxy: Proxy, name: str) -> None:
        if name not in self._ports:
            self._ports[name] = self._held_ports.take()
            self._doors[name] = (await proxy.open(name, self._ports[name])).port

    def _own_arguments(self, name: str) -> tuple[str, ...]:
        if name == BOOTSTRAP:
            return ()
        return ("--port", str(self._ports[name]), "--announce", f"{HOST}:{self._doors[name]}")

    # ---- listening -------------------------------------------------------------------------------

    def _hear(self, observed_event: ObservedEvent, state: SwarmState) -> None:
        self._watch.hear(observed_event, state)
        self._agreement.hear(observed_event)
        self._judge.hear(observed_event)
        self._hear_further(observed_event, state)
        if self._watch.is_on and (self._agreement.violations or self._judge.violations()):
            self.stop(SwarmExit(1, "an invariant did not hold"))

    # ---- conducting ------------------------------------------------------------------------------

    async def _conduct(self, tasks: asyncio.TaskGroup, proxy: Proxy) -> None:
        try:
            if not await self._until(self._is_whole, UP_WITHIN_S):
                self.stop(
                    SwarmExit(1, f"not every stage had its peers, and {CALM_COMMITS} iterations, within {UP_WITHIN_S:.0f} s")
                )
                return
            self._watch.calm_s = calm_s([c.seconds for c in self.state.commits[-CALM_COMMITS:]])
            await asyncio.to_thread(self._traces.look, proxy.ports())
            self._watch.is_on = True
            self._swarm.say("chaos", f"begins: {len(self._order.plan.strikes)} strikes in {self._order.plan.duration_s:.0f} s")
            tasks.create_task(self._notice_standstill(proxy))
            await self._strike_all(tasks, proxy)
            await self._heal(proxy)
            self.result.ports = await asyncio.to_thread(self._traces.look, proxy.ports())
            if not self._over.is_set():
                self.stop(SwarmExit(0))
        except SwarmfreeError as error:
            self.stop(SwarmExit(1, str(error)))

    def _is_whole(self) -> bool:
        return len(self._watch.serving) >= self._order.swarm.peer_count and self.state.committed_count >= CALM_COMMITS

    async def _until(self, is_so: Callable[[], bool], within_s: float) -> bool:
        """Wait until something is so; False where it takes too long, or all is over."""
        until_s = time.monotonic() + within_s
        while not self._over.is_set() and not is_so():
            if time.monotonic() > until_s:
                return False
            await self._pause(0.1)
        return not self._over.is_set()

    async def _pause(self, seconds: float) -> None:
        """Wait, unless all is over before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._over.wait()

    async def _notice_standstill(self, proxy: Proxy) -> None:
        """Notice also an iteration that never ends, and start somebody where a stage is lost and
        nobody waits for a place.
        """
        while not self._over.is_set() and self._watch.is_on:
            await self._pause(WATCH_S)
            if not self._over.is_set():
                await self._replace_lost(proxy)
            if not self._over.is_set() and self._watch.overdue(time.time()):
                self.stop(SwarmExit(1, "training does not go on"))

    async def _strike_all(self, tasks: asyncio.TaskGroup, proxy: Proxy) -> None:
        begun_s = time.monotonic()
        for strike in self._order.plan.strikes:
            await self._pause(begun_s + strike.at_s - time.monotonic())
            if self._over.is_set():
                break
            if strike.kind is StrikeKind.JOIN:
                await self._join(proxy, strike)
            else:
                self._strike(tasks, proxy, strike)
        await self._pause(begun_s + self._order.plan.duration_s - time.monotonic())
        self.result.struck_s = time.monotonic() - begun_s

    async def _heal(self, proxy: Proxy) -> None:
        """End all that lasts, and wait for a commit after it."""
        for name in tuple(self._unsound):
            self._relieve(proxy, name)
        self._swarm.say("chaos", "ends; everything is healed")
        healed_s = time.time()
        committed = self.state.committed_count
        await self._until(lambda: self.state.committed_count > committed + 1 and time.time() > healed_s + SETTLE_S, UP_WITHIN_S)
        self._watch.is_on = False

    # ---- striking --------------------------------------------------------------------------------

    def _candidates(self) -> list[Candidate]:
        sources = {f"peer-{number}" for number in range(1, self._order.swarm.feeder_count + 1)}
        return [
            Candidate(
                p.name,
                p.stage,
                is_serving=p.name in self._watch.serving,
                is_sound=p.name not in self._unsound,
                is_coordinator=p.name == self.state.coordinator,
                can_feed=p.name in sources,
            )
            for p in self.state.peers
            if p.is_alive and p.role != BOOTSTRAP
        ]

    def _strike(self, tasks: asyncio.TaskGroup, proxy: Proxy, strike: Strike) -> None:
        aim = take_aim(strike, self._order.plan.seed, self._candidates(), self._order.sparing)
        if not aim.names:
            self.result.idle[strike.kind] += 1
            self._swarm.say("chaos", f"{strike}: {aim.reason}")
            return
        self.result.done[strike.kind] += 1
        now_s = time.time()
        for name in aim.names:
            stage = self.state.stage_of(name)
            self._swarm.say("chaos", f"{strike}: {name}" + (f" of stage {stage}" if stage is not None else ""))
            late_s = strike.latency_s + strike.jitter_s
            is_brief = strike.kind in {StrikeKind.KILL, StrikeKind.WIPE}
            ends_s = now_s if is_brief else now_s + strike.for_s + SETTLE_S
            self._watch.disturb(Disturbance(name, now_s, ends_s, late_s))
            self._carry_out(tasks, proxy, strike, name)

    def _carry_out(self, tasks: asyncio.TaskGroup, proxy: Proxy, strike: Strike, name: str) -> None:
        match strike.kind:
            case StrikeKind.KILL | StrikeKind.WIPE:
                self._swarm.kill(name, "chaos")
            case StrikeKind.TERMINATE:
                self._watch.serving.discard(name)
                self._swarm.send(name, signal.SIGTERM)
            case StrikeKind.FREEZE:
                self._swarm.send(name, signal.SIGSTOP)
                self._frozen.add(name)
            case _:
                self._fail(proxy, name, fault_of(strike))
        if strike.for_s > 0:
            self._unsound.add(name)
            tasks.create_task(self._relieve_later(proxy, name, strike.for_s), name=f"relieve {name}")

    async def _relieve_later(self, proxy: Proxy, name: str, after_s: float) -> None:
        await self._pause(after_s)
        self._relieve(proxy, name)
        await self._pause(SETTLE_S)
        self._unsound.discard(name)

    def _relieve(self, proxy: Proxy, name: str) -> None:
        self._fail(proxy, name, None)
        if name in self._frozen:
            self._frozen.discard(name)
            self._swarm.send(name, signal.SIGCONT)

    def _fail(self, proxy: Proxy, name: str, fault: Fault | None) -> None:
        door = proxy.door(name)
        assert door is not None, f"{name} has a door"
        door.fail(fault)

    async def _join(self, proxy: Proxy, strike: Strike) -> None:
        peers = [p for p in self.state.peers if p.role != BOOTSTRAP]
        if sum(p.is_alive for p in peers) >= self._order.peers_max:
            self.result.idle[strike.kind] += 1
            self._swarm.say("chaos", f"{strike}: nobody, the swarm is full")
            return
        self.result.done[strike.kind] += 1
        newcomer = f"joiner-{self._joiner_count + 1}"
        name = choose_joiner(strike, self._order.plan.seed, [p.name for p in peers if not p.is_alive], newcomer)
        self._joiner_count += name == newcomer
        await self._open_door(proxy, name)
        self._swarm.say("chaos", f"{strike}: {name}" + ("" if name == newcomer else ", again"))
        await self._swarm.join(name)

    async def _replace_lost(self, proxy: Proxy) -> None:
        """Without a replica, and without anybody who could become one, a stage stays lost: that is
        no fault of the swarm.
        """
        peers = [p for p in self.state.peers if p.role != BOOTSTRAP and p.is_alive]
        lost = [stage for stage in range(self._manifest.stage_count) if not self.state.replicas(stage)]
        if lost and not any(p.stage < 0 and p.name not in self._unsound for p in peers):
            self._joiner_count += 1
            name = f"joiner-{self._joiner_count}"
            await self._open_door(proxy, name)
            self._swarm.say("chaos", f"stage {lost[0]} is lost and nobody stands by: {name} is started")
            await self._swarm.join(name)


def fault_of(strike: Strike) -> Fault:
    """What a strike on the network does to a door."""
    assert strike.kind in ON_NETWORK, f"{strike.kind} is no strike on the network"
    if strike.kind is StrikeKind.DELAY:
        return Delay(strike.latency_s, strike.jitter_s)
    return Cut() if strike.kind is StrikeKind.CUT else Hole()
