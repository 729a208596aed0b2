"""Small peers on a memory hub, for tests of the network alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import Context

from swarmfree.protocol.messages import Request
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Handler
from swarmfree.sim.faults import CALM, FaultPlan
from swarmfree.sim.loop import OWNER, VirtualLoop, run_virtual
from swarmfree.sim.memory_call import Outcome
from swarmfree.sim.network import MemoryHub, MemoryNetwork

RUN = "f" * 64


class Seen:
    """What a hub told its watch."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.faults: list[str] = []

    def asked(self, sender: Endpoint, receiver: Endpoint, request: Request, payload: bytes) -> None:
        """Not kept."""

    def answered(self, sender: Endpoint, receiver: Endpoint, request: Request, outcome: Outcome) -> None:
        """Kept."""
        self.outcomes.append(outcome)

    def befell(self, what: str) -> None:
        """Kept."""
        self.faults.append(what)


class World:
    """A hub, and a way to put peers on it."""

    def __init__(self, plan: FaultPlan, group: asyncio.TaskGroup, run: str = RUN) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop, self.group, self.seen = loop, group, Seen()
        self.hub = MemoryHub(loop, run, plan, random.Random(3), self.seen)

    def peer(self, name: str, handler: Handler | None = None, incarnation: str = "1") -> MemoryNetwork:
        """A peer that answers with `handler`; its tasks belong to its name."""
        context = Context()
        context.run(OWNER.set, name)
        endpoint = Endpoint(Member(name, incarnation), (f"/memory/{name}",))
        network = self.hub.attach(
            endpoint, lambda work, task_name, inner: self.group.create_task(work, name=task_name, context=inner), context
        )
        if handler is not None:
            network.serve(handler)
        return network

    async def as_peer(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` as a task of this peer."""
        context = Context()
        context.run(OWNER.set, name)

        async def body() -> None:
            await work()

        await self.group.create_task(body(), context=context)


def in_world(story: Callable[[World], Awaitable[None]], plan: FaultPlan = CALM) -> None:
    """Play `story` on a hub with these faults; leftover handlers are cancelled at its end."""

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            world = World(plan, group)
            await story(world)
            for task in world.loop.tasks_of("b") + world.loop.tasks_of("a"):
                task.cancel()

    run_virtual(main)
