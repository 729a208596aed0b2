"""The bootstrap node of a rehearsal: the organiser's watch, as the real node runs it, which can be
killed and started again in its folder.

It calls peers through the same network as they do, so that breaks and losses befall it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from swarmfree.protocol.names import Endpoint, Founder, Member
from swarmfree.sim.directory import MemoryDirectory
from swarmfree.sim.loop import OWNER
from swarmfree.sim.peer_ports import Pace, VirtualClock
from swarmfree.sim.simulated_peer import Stage
from swarmfree.sim.transcript import Transcript
from swarmfree.trainer.end_watch import EndWatch
from swarmfree.trainer.founder_watch import FoundersWatch
from swarmfree.trainer.resume_watch import ResumeWatch

PEER_ID, PORT = "QmBootstrap", 4000


class OrganisersMemory(MemoryDirectory):
    """Implements `OrganisersDirectory`; what it has named once stands in its folder, and is
    published again after a restart.
    """

    async def name(self, founder: Founder) -> None:
        """Publish after a delay."""
        await self._travel()
        if not self._hub.geneses or founder.number > self._hub.geneses[-1].number:
            self._hub.geneses.append(founder)
        self._founder = self._hub.geneses[-1]


class Bootstrap:
    """The bootstrap node, life after life.

    Args:
        stage: what it shares with the peers.
        group: where it runs.
        transcript: what it does.
    """

    def __init__(self, stage: Stage, group: asyncio.TaskGroup, transcript: Transcript) -> None:
        """It is down."""
        self._stage, self._group, self._transcript = stage, group, transcript
        self._life_count = 0
        self._endpoint: Endpoint | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether it runs, and still watches."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin to watch."""
        if self.is_up:
            return
        self._life_count += 1
        member = Member(PEER_ID, f"{self._life_count:08x}{0:08x}")
        self._endpoint = Endpoint(member, (f"/ip4/127.0.0.1/tcp/{PORT}/p2p/{PEER_ID}",))
        self._transcript.tell(str(member), "the bootstrap node begins to watch")
        context = Context()
        context.run(OWNER.set, f"{PEER_ID}.{member.incarnation}")
        self._task = self._group.create_task(self._watch(self._endpoint), name="bootstrap node", context=context)

    def kill(self) -> None:
        """It dies at once."""
        if self.is_up and self._task is not None and self._endpoint is not None:
            self._transcript.tell(str(self._endpoint.member), "killed")
            self._stage.hub.detach(self._endpoint.member)
            self._task.cancel()
            self._task = None

    async def _watch(self, endpoint: Endpoint) -> None:
        stage, pace = self._stage, Pace()
        clock = VirtualClock(stage.loop, 0.0, 0.0)
        network = stage.hub.attach(endpoint, _spawn_nothing, Context())
        directory = OrganisersMemory(stage.directory, clock.wall_s, lambda: True, pace)

        def tell(what: str) -> None:
            self._transcript.tell(str(endpoint.member), what)

        try:
            await FoundersWatch(directory, network, clock, stage.setup.manifest.timing, tell).keep()
            tell("sees that the run has begun")
            manifest = stage.setup.manifest
            async with asyncio.TaskGroup() as group:
                if manifest.recovery.snapshot_every:
                    group.create_task(ResumeWatch(directory, network, clock, manifest, tell).keep(), name="resume watch")
                await EndWatch(directory, network, manifest).keep()
                tell("says that the run is over")
                stage.checks.called_over(stage.written)
                stage.directory.is_over = True
        finally:
            stage.hub.detach(endpoint.member)


def _spawn_nothing(work: Coroutine[Any, Any, None], name: str, context: Context) -> asyncio.Task[None]:
    raise AssertionError(f"nobody calls the bootstrap node: {name}, {work}, {context}")
