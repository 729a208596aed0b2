"""Keeping shadows: a member fetches int8 copies of its neighbour stages' weights every few dozen iterations, slowly, in the background.

A shadow is renewed part by part, in place: its age is that of its oldest part, and parts of different iterations go together as well as they do in an
old copy. Nothing waits for it: reading is the last thing a donor's device does, and the parts of one shadow are spread over a share of the iterations
until the next one. Source: design section 6, rung 3. Differs: standbys keep none, since no plan reaches them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from swarmfree.policy.keepers import shadows_of
from swarmfree.swarm.errors import CallFailed, RefusalKind, Refused
from swarmfree.swarm.messages import GetShadow, KeptShadow, ShadowPart
from swarmfree.swarm.plan import Plan
from swarmfree.swarm.ports import Reply
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.member import MemberBooks
from swarmfree.trainer.iteration.standing import NO_STAGE
from swarmfree.trainer.ring.device import Rank

SPREAD = 0.25
"""The share of the time between two shadows over which one is fetched."""
PAUSE_MAX_S = 1.0
RETRY_S = 2.0


@dataclass(slots=True)
class Shadow:
    """What is kept of one stage: bytes and iteration of each part; `begun_at` is when it was last begun to be renewed, -1 = never."""

    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    count: int = 0
    begun_at: int = -1

    @property
    def is_complete(self) -> bool:
        """Every part is here."""
        return 0 < self.count == len(self.parts)

    @property
    def iteration(self) -> int:
        """Of its oldest part."""
        return min(iteration for iteration, _ in self.parts.values())


class ShadowKeeper:
    """Handles GetShadow, and keeps the shadows that the plan gives this peer."""

    def __init__(self, context: Context, books: MemberBooks) -> None:
        """Keep nothing yet."""
        self._context, self._books = context, books
        self._shadows: dict[int, Shadow] = {}
        self._iteration_s = 0.0

    async def keep(self) -> None:
        """Renew what is due, for ever."""
        recovery, standing = self._context.manifest.recovery, self._books.standing
        if not recovery.keeps_shadows:
            return
        since: tuple[int, float] | None = None
        while True:
            plan = standing.plan if standing.stage != NO_STAGE else None
            if plan is not None:
                now_s = self._context.now_s()
                if since is not None and standing.iteration > since[0]:
                    self._iteration_s = (now_s - since[1]) / (standing.iteration - since[0])
                since = (standing.iteration, now_s) if since is None or standing.iteration != since[0] else since
                due = self._due(plan, recovery.shadow_every)
                if due is not None:
                    if not await self._renew(plan, due):
                        await asyncio.sleep(RETRY_S)
                    continue
            await standing.moved.wait()

    def _due(self, plan: Plan, every: int) -> int | None:
        """The stage whose shadow has to be renewed most; forgets those that are no longer this peer's."""
        mine = shadows_of(plan, self._context.me)
        self._shadows = {stage: self._shadows.get(stage, Shadow()) for stage in mine}
        self._tell()
        waits = {stage: plan.iteration - shadow.begun_at for stage, shadow in self._shadows.items() if plan.iteration > 0}
        late = [stage for stage in mine if stage in waits and (self._shadows[stage].begun_at < 0 or waits[stage] >= every)]
        return max(late, key=lambda stage: waits[stage], default=None)

    async def _renew(self, plan: Plan, stage: int) -> bool:
        """Fetch every part once; whether all came."""
        shadow, engine = self._shadows[stage], self._context.ports.engine
        begun_at = self._books.standing.iteration
        shadow.count = engine.part_count(stage)
        pause_s = SPREAD * self._context.manifest.recovery.shadow_every * self._iteration_s / shadow.count
        donors = [replica.endpoint for replica in plan.replicas[stage]]
        for part in range(shadow.count):
            for turn in range(len(donors)):
                try:
                    reply = await self._context.call(donors[(part + turn) % len(donors)], GetShadow(stage, part))
                except CallFailed:
                    continue
                assert isinstance(reply.message, ShadowPart), "the network checks response types"
                shadow.parts[part] = (reply.message.iteration, reply.payload)
                break
            else:
                return False
            await asyncio.sleep(min(PAUSE_MAX_S, pause_s))
        shadow.begun_at = begun_at
        self._tell()
        return True

    def _tell(self) -> None:
        kept = [KeptShadow(stage, shadow.iteration) for stage, shadow in sorted(self._shadows.items()) if shadow.is_complete]
        self._books.standing.shadows = tuple(kept)

    async def get(self, request: GetShadow) -> Reply:
        """One part: of the stage that this peer holds, or of a shadow that it keeps.

        Raises:
            Refused: `gone`, this peer has neither.
        """
        standing, engine = self._books.standing, self._context.ports.engine
        if standing.stage == request.stage and standing.vouched:

            def read() -> tuple[int, bytes]:
                return standing.iteration, engine.read_shadow(request.part)

            iteration, data = await self._books.device.run(Rank.IDLE, request.part, read)
            return Reply(ShadowPart(iteration), data)
        held = self._shadows.get(request.stage)
        if held is None or request.part not in held.parts:
            raise Refused(RefusalKind.GONE, f"this peer keeps no shadow of stage {request.stage}")
        iteration, data = held.parts[request.part]
        return Reply(ShadowPart(iteration), data)
