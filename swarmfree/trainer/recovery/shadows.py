"""Keeping shadows: a member fetches copies of its neighbour stages' state every few dozen
iterations, slowly, in the background.

A plain shadow, int8 weights, is renewed part by part, in place: its age is that of its oldest part,
and parts of different iterations go together as well as they do in an old copy. A full one has
weights and both moments of one iteration: the senior of the stage puts its state by on its shelf as
it steps, holders fetch that from it, and the last whole one is kept until the next one is whole.
Nothing waits for any of it: reading is the last thing a donor's device does, and the parts of one
shadow are spread over a share of the iterations until the next one. Standbys ask the coordinator
for its plan now and then, and keep shadows of some stages, too: of what is lost further than next
to a holder. All shadows lie on the shelf, within what `recovery.kept_mb_max` and this peer's owner
leave beside the activation log: where they do not fit, the oldest goes first.
Source: design section 6, methods 2 and 3.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from swarmfree.policy.answer_checks import fitting_plan
from swarmfree.policy.block_split import split_after
from swarmfree.policy.part_batches import given
from swarmfree.policy.retention import has_full_shadows, shadow_batch, shadows_of, standby_shadows
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import GetPlan, GetShadow, KeptShadow, PlanAnswer, ShadowPart
from swarmfree.protocol.names import ABSENT, ENDS_STAGE
from swarmfree.protocol.pieces import parts_of, sizes_of
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.recovery.activation_log import ActivationLog
from swarmfree.trainer.recovery.recut import cut_part_count
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import Signal

SPREAD = 0.25
"""The share of the time between two shadows over which one is fetched."""
FULL_KEPT = 2
"""Full shadows of one stage: adjacent lost stages are replayed from an iteration of which all have
one, and holders are not renewed at once.
"""
PAUSE_MAX_S = 1.0
RETRY_S = 2.0
LOOK_MIN_S, LOOK_MAX_S = 2.0, 30.0
LOOKS = 8
"""How long iterations take is measured over so many: a look comes at any time within one."""


@dataclass(slots=True)
class Shadow:
    """A plain shadow of one stage: iteration, size and lineage of each part that this peer has.

    `begun_at` is the iteration at which its last renewal began, `ABSENT` before the first.
    """

    stage: int
    parts: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    count: int = 0
    begun_at: int = ABSENT

    def name(self, part: int) -> str:
        """Name of one part's blob on the shelf."""
        return f"plain-{self.stage}-{part}"

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts on the shelf."""
        return sum(size for _, size, _ in self.parts.values())

    @property
    def is_complete(self) -> bool:
        """Whether every part of the stage is here."""
        return 0 < self.count == len(self.parts)

    @property
    def iteration(self) -> int:
        """Iteration of the oldest part."""
        return min(self.parts.values())[0]

    @property
    def lineage(self) -> str:
        """Lineage of the oldest parts; empty if those of one iteration are of several lineages."""
        oldest = {lineage for iteration, _, lineage in self.parts.values() if iteration == self.iteration}
        return oldest.pop() if len(oldest) == 1 else ""


@dataclass(frozen=True, slots=True)
class FullShadow:
    """A whole state of a stage on the shelf, and the iteration and lineage that it is ready for."""

    stage: int
    iteration: int
    lineage: str
    part_count: int
    size_bytes: int = 0

    def name(self, part: int) -> str:
        """Name of one part's blob on the shelf."""
        return f"shadow-{self.stage}-{self.iteration}-{self.lineage[:8]}-{part}"


class ShadowKeeper:
    """Handles GetShadow and keeps the shadows that the plan assigns to this peer."""

    def __init__(self, context: Context, replica_state: ReplicaState, device: Device, activation_log: ActivationLog) -> None:
        """Keep nothing yet."""
        self._context, self._replica_state, self._device, self._activation_log = context, replica_state, device, activation_log
        self._shadows: dict[int, Shadow] = {}
        self._iteration_s = 0.0
        self._bytes_max = context.kept_mb_max * 10**6
        self._no_room: dict[int, int] = {}
        self._full: dict[int, list[FullShadow]] = {}  # newest last
        self._put_by: tuple[FullShadow, list[bytes]] | None = None
        self._own: FullShadow | None = None
        self._own_bytes = 0
        self._shelved = Signal()
        self._is_full = has_full_shadows(context.manifest)
        self._split = context.manifest.split

    async def keep(self) -> None:
        """Run for ever: renew each assigned shadow when it is due."""
        recovery, replica_state = self._context.manifest.recovery, self._replica_state
        if not recovery.keeps_shadows:
            return
        since: tuple[int, float] | None = None
        while True:
            stands_by = replica_state.stage == ABSENT
            plan = await self._others_plan() if stands_by else replica_state.plan
            if plan is not None:
                iteration, now_s = plan.iteration if stands_by else replica_state.iteration, self._context.now_s()
                if since is not None and iteration >= since[0] + (LOOKS if self._iteration_s else 1):
                    self._iteration_s = (now_s - since[1]) / (iteration - since[0])
                    since = None
                since = (iteration, now_s) if since is None or iteration < since[0] else since
                self._follow_cut(split_after(plan.last_record, self._context.manifest))
                due = self._due(plan, recovery.shadow_every)
                if due is not None and not plan.split:
                    if not await self._renew(plan, due):
                        await replica_state.moved.wait(RETRY_S)
                    continue
            look_s = min(LOOK_MAX_S, max(LOOK_MIN_S, SPREAD * recovery.shadow_every * self._iteration_s))
            await replica_state.moved.wait(look_s if stands_by else None)

    def _follow_cut(self, split: BlockSplit) -> None:
        """What is kept of stages that had other blocks is of no use, once a record says so."""
        if split == self._split:
            return
        self._split = split
        for stage in list(self._shadows):
            self._forget(stage)
        gone = [shadow for held in self._full.values() for shadow in held]
        gone += [self._own] if self._own is not None else []
        self._full, self._own, self._own_bytes, self._put_by = {}, None, 0, None
        for shadow in gone:
            self._drop(shadow)
        self._tell()

    def _part_count(self, stage: int) -> int:
        """Parts of a stage, however the engine here cuts stages just now."""
        return cut_part_count(self._context.ports.engine, self._replica_state.split, self._split, stage)

    async def _others_plan(self) -> Plan | None:
        """What the coordinator does, as a standby sees it."""
        coordinator = self._replica_state.coordinator
        if coordinator is None or coordinator.member == self._context.me:
            return None
        try:
            answer = (await self._context.call(coordinator, GetPlan())).expect(PlanAnswer)
        except CallFailed:
            return None
        return fitting_plan(answer.plan, self._context.manifest.stage_count)

    def _mine(self, plan: Plan) -> tuple[int, ...]:
        """The stages of which this peer keeps a shadow; of one without blocks there is none."""
        me = self._context.me
        mine = standby_shadows(plan, me) if self._replica_state.stage == ABSENT else shadows_of(plan, me)
        return tuple(stage for stage in mine if not self._split.is_vacant(stage))

    def _due(self, plan: Plan, every: int) -> int | None:
        """The stage whose shadow has to be renewed most; forgets those that are no longer this
        peer's.
        """
        if self._is_full:
            return self._due_full(plan, every)
        mine = self._mine(plan)
        for stage in [stage for stage in self._shadows if stage not in mine]:
            self._forget(stage)
        for stage in mine:
            self._shadows.setdefault(stage, Shadow(stage))
        self._tell()
        waits = {stage: plan.iteration - shadow.begun_at for stage, shadow in self._shadows.items() if plan.iteration > 0}
        late = [stage for stage in mine if stage in waits and (self._shadows[stage].begun_at == ABSENT or waits[stage] >= every)]
        late = [stage for stage in late if not self._was_full(stage, every)]
        return max(late, key=lambda stage: waits[stage], default=None)

    def _forget(self, stage: int) -> None:
        shadow = self._shadows.pop(stage)
        for part in shadow.parts:
            self._context.ports.shelf.drop(shadow.name(part))

    async def _renew(self, plan: Plan, stage: int) -> bool:
        """Fetch every part once, some at a time; whether all came, and are kept."""
        if self._is_full:
            return await self._renew_full(plan, stage)
        shadow, manifest = self._shadows[stage], self._context.manifest
        begun_at = max(plan.iteration, self._replica_state.iteration)
        shadow.count, batch = self._part_count(stage), shadow_batch(manifest)
        pause_s = SPREAD * manifest.recovery.shadow_every * self._iteration_s / -(-shadow.count // batch)
        donors, part = [replica.endpoint for replica in plan.replicas[stage]], 0
        while part < shadow.count:
            for turn in range(len(donors)):
                asked = GetShadow(stage, part, count=min(batch, shadow.count - part))
                try:
                    reply = await self._context.call(donors[(part // batch + turn) % len(donors)], asked)
                    found = reply.expect(ShadowPart)
                    came = parts_of(reply.pieces, found.sizes, asked.count)
                except CallFailed:
                    continue
                if await self._is_ours(plan, found):
                    break
            else:
                return False
            for pieces in came:
                if not await self._keep_part(shadow, part, found, b"".join(pieces)):
                    return False
                part += 1
            await asyncio.sleep(min(PAUSE_MAX_S, pause_s))
        shadow.begun_at = begun_at
        self._tell()
        return True

    async def _is_ours(self, plan: Plan, found: ShadowPart) -> bool:
        """Not of another lineage, as far as is known here: a member that comes from another side of
        a split may hold what it had there.
        """
        replica_state = self._replica_state
        if replica_state.stage != ABSENT and found.iteration == replica_state.iteration + 1:
            await replica_state.moved.wait(
                RETRY_S
            )  # the donor has stepped first: after which record is known here a moment later
        known = (
            {plan.iteration: plan.lineage}
            if replica_state.stage == ABSENT
            else {plan.iteration: plan.lineage} | replica_state.past
        )
        is_ahead = replica_state.stage != ABSENT and found.iteration > replica_state.iteration
        return not is_ahead and known.get(found.iteration, found.lineage) == found.lineage

    async def _keep_part(self, shadow: Shadow, part: int, found: ShadowPart, data: bytes) -> bool:
        """Put it on the shelf; False, and nothing is kept of the stage, where there is no room, and
        where it was forgotten meanwhile.
        """
        shelf, stage = self._context.ports.shelf, shadow.stage
        if not self._has_room(stage, len(data)) or not await shelf.put(shadow.name(part), data):
            if self._shadows.get(stage) is shadow:
                self._forget(stage)
            return False
        if self._shadows.get(stage) is not shadow:
            shelf.drop(shadow.name(part))
            return False
        shadow.parts[part] = found.iteration, len(data), found.lineage
        return True

    def _tell(self) -> None:
        complete = [(stage, shadow) for stage, shadow in sorted(self._shadows.items()) if shadow.is_complete]
        kept = [KeptShadow(stage, shadow.iteration, lineage=shadow.lineage) for stage, shadow in complete]
        full = [shadow for _, held in sorted(self._full.items()) for shadow in held]
        kept += [KeptShadow(shadow.stage, shadow.iteration, full=True, lineage=shadow.lineage) for shadow in full]
        self._replica_state.keep_shadows(tuple(kept))

    def _has_room(self, stage: int, size_bytes: int) -> bool:
        """Whether so much more can be kept for a stage. Older full shadows go first, of any stage
        that has a newer one; then what is renewed.
        """
        log = self._activation_log
        while self._size_bytes + size_bytes + log.claim_bytes > self._bytes_max:
            older = [held[0] for held in self._full.values() if len(held) > 1] or self._full.get(stage, [])[:1]
            if not older and log.claim_bytes:  # of no use without a shadow
                log.clear()
                continue
            if not older:
                self._no_room[stage] = self._replica_state.iteration
                return False
            oldest = min(older, key=lambda shadow: shadow.iteration)
            held = self._full.pop(oldest.stage)[1:]
            if held:
                self._full[oldest.stage] = held
            self._drop(oldest)
            self._tell()
        log.beside_bytes = self._size_bytes + size_bytes
        return True

    @property
    def _size_bytes(self) -> int:
        """Of all shadows on the shelf."""
        full = sum(shadow.size_bytes for held in self._full.values() for shadow in held)
        return full + self._own_bytes + sum(shadow.size_bytes for shadow in self._shadows.values())

    # ---- full shadows ----------------------------------------------------------------------------

    def after_step(self) -> None:
        """Read the whole state for a full shadow, if one is due and this peer is the senior of its
        stage.

        It runs in the device work of the step, so that no later step changes what it reads.
        """
        if not self._is_full:
            return
        replica_state, engine = self._replica_state, self._context.ports.engine
        plan, stage = replica_state.plan, replica_state.stage
        if plan is None or stage == ENDS_STAGE or replica_state.iteration % self._context.manifest.recovery.shadow_every:
            return
        if plan.replicas[stage][0].endpoint.member == self._context.me:
            parts = [engine.read_state(part, weights_only=False) for part in range(engine.part_count(stage))]
            size_bytes = sum(map(len, parts))
            self._put_by = FullShadow(stage, replica_state.iteration, replica_state.lineage, len(parts), size_bytes), parts

    async def keep_own(self) -> None:
        """Run for ever: write this peer's own state to the shelf when one was read, and drop the
        older one.
        """
        while self._is_full:
            if self._put_by is not None:
                (shadow, parts), self._put_by = self._put_by, None
                before, self._own, self._own_bytes = self._own, None, 0
                if before is not None and before != shadow:
                    self._drop(before)
                if self._has_room(shadow.stage, shadow.size_bytes):
                    self._own_bytes = shadow.size_bytes
                    is_kept = await self._shelve(shadow, parts)
                    self._own, self._own_bytes = (shadow, shadow.size_bytes) if is_kept else (None, 0)
                self._shelved.tell()
                continue
            await self._replica_state.moved.wait()

    async def _shelve(self, shadow: FullShadow, parts: list[bytes]) -> bool:
        for part, data in enumerate(parts):
            if not await self._context.ports.shelf.put(shadow.name(part), data):
                self._drop(shadow)
                return False
        return True

    def _drop(self, shadow: FullShadow) -> None:
        if shadow == self._own or shadow in self._full.get(shadow.stage, ()):
            return
        for part in range(shadow.part_count):
            self._context.ports.shelf.drop(shadow.name(part))

    def _due_full(self, plan: Plan, every: int) -> int | None:
        """The stage whose full shadow has to be renewed most; forgets those that are no longer this
        peer's.
        """
        mine = self._mine(plan)
        for stage in [stage for stage in self._full if stage not in mine]:
            for shadow in self._full.pop(stage):
                self._drop(shadow)
        self._tell()
        newest = plan.iteration // every * every
        ages = {stage: newest - (self._full[stage][-1].iteration if stage in self._full else 0) for stage in mine}
        due = [stage for stage in mine if ages[stage] > 0 and not self._was_full(stage, every)]
        return max(due, key=lambda stage: ages[stage], default=None)

    def _was_full(self, stage: int, every: int) -> bool:
        """Whether there was no room for this stage a short while ago."""
        return stage in self._no_room and self._replica_state.iteration < self._no_room[stage] + every

    async def _renew_full(self, plan: Plan, stage: int) -> bool:
        """Fetch every part of the newest full shadow; whether all came, and are kept."""
        shelf, every = self._context.ports.shelf, self._context.manifest.recovery.shadow_every
        iteration, count = plan.iteration // every * every, self._part_count(stage)
        donor, shadow, size_bytes = plan.replicas[stage][0].endpoint, None, 0
        pause_s = SPREAD * every * self._iteration_s / count
        for part in range(count):
            try:
                reply = await self._context.call(donor, GetShadow(stage, part, iteration))
            except CallFailed:
                reply = None
            found = reply.message if reply is not None else None
            if isinstance(found, ShadowPart) and reply is not None:
                shadow = shadow or FullShadow(stage, iteration, found.lineage, count)
                size_bytes += len(reply.payload)
                fits = found.lineage == shadow.lineage and self._has_room(stage, size_bytes)
                if fits and await shelf.put(shadow.name(part), reply.payload):
                    await asyncio.sleep(min(PAUSE_MAX_S, pause_s))
                    continue
            if shadow is not None:
                self._drop(shadow)
            return False
        assert shadow is not None, "a stage has at least one part"
        shadow = replace(shadow, size_bytes=size_bytes)
        held = [each for each in self._full.get(stage, ()) if each.iteration != iteration]
        self._full[stage] = [*held, shadow][-FULL_KEPT:]
        for old in held[:-1]:
            self._drop(old)
        self._tell()
        return True

    def _find(self, request: GetShadow) -> FullShadow | None:
        held = [*self._full.get(request.stage, ()), *([self._own] if self._own is not None else [])]
        return next((each for each in held if (each.stage, each.iteration) == (request.stage, request.iteration)), None)

    async def _get_full(self, request: GetShadow) -> Reply:
        """One part of a full shadow; one of this peer's own that is due is waited for."""
        until_s = self._context.now_s() + self._context.timing.hold_s
        while (held := self._find(request)) is None and self._replica_state.stage == request.stage:
            left_s = until_s - self._context.now_s()
            newer = self._own is not None and self._own.iteration > request.iteration
            if left_s <= 0 or newer:
                break
            await self._shelved.wait(left_s)
        if held is None:
            raise Refused(
                RefusalKind.GONE, f"no full shadow of stage {request.stage} at iteration {request.iteration} is kept here"
            )
        data = await self._context.ports.shelf.get(held.name(request.part))
        if data is None:
            raise Refused(RefusalKind.GONE, f"part {request.part} of the shadow of stage {request.stage} is not kept any more")
        return Reply(ShadowPart(held.iteration, held.lineage), data)

    # ---- answers ---------------------------------------------------------------------------------

    async def get(self, request: GetShadow) -> Reply:
        """Return parts of the stage that this peer serves, or one part of a shadow that it keeps.

        Raises:
            Refused: `gone`, this peer has neither.
        """
        if request.iteration != ABSENT:
            return await self._get_full(request)
        replica_state, engine = self._replica_state, self._context.ports.engine
        if replica_state.stage == request.stage and not replica_state.is_cut_as_recorded:
            raise Refused(RefusalKind.GONE, "the model is cut otherwise here than the last record says")
        if replica_state.stage == request.stage and replica_state.is_committed_state:
            batch, count = shadow_batch(self._context.manifest), engine.part_count(request.stage)
            parts = given(request.count, batch, request.part, count)

            def read() -> tuple[int, str, list[bytes]] | None:
                if replica_state.stage != request.stage:  # let go meanwhile: what lies there is being built
                    return None
                return replica_state.iteration, replica_state.lineage, [engine.read_shadow(part) for part in parts]

            found = await self._device.run(Rank.IDLE, request.part, read)
            if found is None:
                raise Refused(RefusalKind.GONE, f"stage {request.stage} was let go")
            iteration, lineage, pieces = found
            return Reply(ShadowPart(iteration, lineage, sizes=sizes_of(pieces)), pieces=pieces)
        held = self._shadows.get(request.stage)
        if held is None or request.part not in held.parts:
            raise Refused(RefusalKind.GONE, f"this peer keeps no shadow of stage {request.stage}")
        iteration, _, lineage = held.parts[request.part]
        kept = await self._context.ports.shelf.get(held.name(request.part))
        if kept is None:
            raise Refused(RefusalKind.GONE, f"part {request.part} of the shadow of stage {request.stage} is not kept any more")
        return Reply(ShadowPart(iteration, lineage), kept)
