"""Keeping a copy of the ends: a member of the body follows stage 0 in the background, so that it
outlives its last source.

The copy is downloaded as a joiner's is, then stepped by each iteration's average, whole or not at
all. It is called complete only once its digest was
in a record or a plan, and each average is checked by digest, too. A complete copy is given away,
however old it is, until a newer one is complete: it may be the last. All its device work goes last,
and nobody waits for it.
Source: protocol section 3.10, CheckFree+. Differs: a record that is stored, but not decided yet,
already brings the average.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from swarmfree.policy.part_batches import given, state_batch
from swarmfree.policy.retention import keepers_of_ends
from swarmfree.protocol.engine_port import Engine
from swarmfree.protocol.errors import CallFailed, RefusalKind, Refused
from swarmfree.protocol.messages import GetAverage, GetState, State
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint
from swarmfree.protocol.pieces import sizes_of
from swarmfree.protocol.plan import Plan, Rebuilt
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record, StepScalars
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.recovery.state_copy import CopyTarget, StateCopy
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import Signal, Tasks

LANES = 2
RETRY_S = 1.0
PAUSE_S, PAUSE_MAX_S = 0.25, 20.0
"""Before the copy is loaded again; doubled each time until a step succeeds: one that cannot keep up
is no burden.
"""
KEPT_ITERATIONS = 4
"""A copy that no plan asks for is dropped by a plan that is so much further: others are complete by
then.
"""


@dataclass(slots=True, eq=False)
class EndsCopy:
    """A copy of the ends in an engine of its own.

    Args:
        engine: that holds it.
        level: the iteration that all parts are ready for.
        lineage: of the last record in it; empty while nobody has vouched for it.
        digest: of the copy as it is; empty where it has not been taken.
        average: iteration and digest of the average that is here.
        is_whole: False while it is being stepped.
        is_followed: False once it has to be loaded again.
        is_rebuilt: it is the ends of that iteration only while a plan says so that is worked on,
            since they were rebuilt and have not stepped.
    """

    engine: Engine
    level: int
    lineage: str = ""
    digest: str = ""
    average: tuple[int, str] | None = None
    is_whole: bool = True
    is_followed: bool = True
    is_rebuilt: bool = False


class EndsKeeper:
    """Keeps a copy of stage 0 up to date, as long as the plan makes this peer a keeper.

    Attributes:
        tasks: loading, while there is nothing to follow.
    """

    def __init__(self, context: Context, replica_state: ReplicaState, device: Device, tasks: Tasks) -> None:
        """Keep nothing yet."""
        self._context = context
        self._replica_state = replica_state
        self._device = device
        self.tasks = tasks
        self._offered: EndsCopy | None = None  # complete
        self._loaded: EndsCopy | None = None  # newer, but nobody has vouched for it yet
        self._copying: StateCopy | None = None
        self._plan: Plan | None = None  # that makes this peer a keeper
        self._donors: tuple[Endpoint, ...] = ()
        self._base = ""
        self._average_is_gone = False  # as far as the last donor asked could tell
        self._loads = 0
        self._spare: Engine | None = None  # what is loaded lies in here
        self._turned = Signal()

    def look(self) -> None:
        """Note that a record was stored: its average can be fetched already."""
        self._turned.tell()

    async def keep(self) -> None:
        """Run for ever: start, redirect and stop the copy as plans say."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_plans(), name="plans of a keeper")
            group.create_task(self._run(), name="copy of the ends")

    async def get_state(self, request: GetState) -> Reply:
        """Return parts of the copy, if it is at exactly the iteration and lineage asked for.

        Raises:
            Refused: `gone` without a complete copy, and where it is another; `not_yet` where it is
                behind, or being stepped.
        """
        if self._offered is not None and self._replica_state.ends_iteration < request.iteration:
            await self._turned.wait(self._context.timing.hold_s)
        copy = self._offered
        if copy is None:
            raise Refused(RefusalKind.GONE, "this peer keeps no complete copy of the ends")

        count = copy.engine.part_count(ENDS_STAGE)
        batch = state_batch(self._context.manifest, weights_only=request.weights_only)
        parts = given(request.count, batch, request.part, count)

        def read() -> tuple[bool, int, str, list[bytes]]:
            data = [copy.engine.read_state(part, weights_only=request.weights_only) for part in parts]
            return copy.is_whole, copy.level, copy.lineage, data

        is_whole, iteration, lineage, pieces = await self._device.run(Rank.BOOKS, 0, read)
        if not is_whole or iteration < request.iteration:
            raise Refused(RefusalKind.NOT_YET, f"the copy of the ends kept here is ready for iteration {iteration}")
        if (iteration, lineage) != (request.iteration, request.lineage):
            raise Refused(RefusalKind.GONE, f"the copy of the ends kept here is at iteration {iteration}, lineage {lineage[:8]}")
        return Reply(State(count, iteration, sizes_of(pieces)), pieces=pieces)

    def has(self, request: GetState) -> bool:
        """Whether this peer keeps exactly the state that is asked for."""
        replica_state = self._replica_state
        return (replica_state.ends_iteration, replica_state.ends_lineage) == (request.iteration, request.lineage)

    # ---- plans -----------------------------------------------------------------------------------

    async def _follow_plans(self) -> None:
        replica_state, seen = self._replica_state, None
        while True:
            plan = replica_state.plan if replica_state.stage != ABSENT else None
            if plan is not seen:
                seen = plan
                self._follow_plan(plan)
            self._turned.tell()
            await replica_state.moved.wait()

    def _follow_plan(self, plan: Plan | None) -> None:
        count = self._context.manifest.recovery.ends_copies
        if plan is not None and self._context.me in keepers_of_ends(plan, count):
            self._plan, self._donors = plan, tuple(replica.endpoint for replica in plan.replicas[ENDS_STAGE])
            if self._copying is not None:
                self._copying.donors = self._donors
            if _rebuilt_ends(plan) is not None and plan.base != self._base:
                self.tasks.cancel_all()  # from here on the ends are what was rebuilt
            return
        self._plan, self._loads = None, 0
        self.tasks.cancel_all()
        copy = self._offered
        if plan is not None and copy is not None and copy.is_whole and plan.iteration >= copy.level + KEPT_ITERATIONS:
            self._offer(None)

    async def _run(self) -> None:
        """Follow what is here while that is possible; else load a copy into memory of its own,
        beside the one that is offered. Until the peer ends.
        """
        while not self.tasks.is_closed:  # which ends a load sooner than this
            plan = self._plan
            self._check_rebuilt()
            if plan is None:
                self._loaded, self._spare, self._base = None, None, ""
                await self._turned.wait()
                continue
            if plan.base != self._base:
                self._base = plan.base
                if self._offered is not None and _rebuilt_ends(plan) is not None:
                    self._offered.is_followed = True  # it may be what was rebuilt
            copy = self._loaded or self._offered
            if copy is None or not copy.is_followed:
                self._loaded = None
                await asyncio.wait({self.tasks.start(self._load(), "load a copy of the ends")})
                continue
            try:
                copy.is_followed = await self._follow(copy)
            except CallFailed:
                copy.is_followed = False
                if not copy.is_whole and copy is self._offered:
                    self._offer(None)

    def _check_rebuilt(self) -> None:
        """Rebuilt ends of a base that came to nothing are nobody's: no record begins with them. A
        base that changes for another stage keeps them.
        """
        copy, replica_state = self._offered, self._replica_state
        if copy is None or not copy.is_rebuilt or not copy.is_whole:
            return
        record = replica_state.record_of(copy.level)
        rebuilt = _rebuilt_ends(replica_state.plan) if replica_state.plan is not None and replica_state.base else None
        if record is not None and record.stages[ENDS_STAGE].state_digest == copy.digest:
            copy.is_rebuilt = False
        elif rebuilt is None or rebuilt.state_digest != copy.digest:
            self._offer(None)

    def _offer(self, copy: EndsCopy | None) -> None:
        """This copy is complete; the last one is not needed any more."""
        if copy is not None and copy is self._loaded:
            self._loaded = self._spare = None
        self._offered = copy
        self._tell()

    def _tell(self) -> None:
        whole = self._offered if self._offered is not None and self._offered.is_whole else None
        self._replica_state.keep_ends(*(ABSENT, "") if whole is None else (whole.level, whole.lineage))
        self._turned.tell()

    # ---- the copy --------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Download a copy; all its parts are at one iteration then, but nobody has vouched for
        it.
        """
        device, replica_state = self._device, self._replica_state
        if self._loads:
            await self._turned.wait(min(PAUSE_MAX_S, PAUSE_S * 2 ** min(self._loads, 10)))
        self._loads += 1
        if self._spare is None:
            self._spare = await device.run(Rank.IDLE, 0, self._context.ports.spare_engine)
        engine = self._spare
        await device.run(Rank.IDLE, 0, partial(engine.blank, ENDS_STAGE))
        place = CopyTarget(engine, device, Rank.IDLE, LANES)
        self._copying = StateCopy(self._context, place, ENDS_STAGE, self._donors, replica_state.iteration, None)
        try:
            await self._copying.run()
            self._loaded = EndsCopy(engine, self._copying.level)
        except CallFailed:
            pass  # no donor answers; the next plan may name others
        finally:
            self._copying = None

    async def _follow(self, copy: EndsCopy) -> bool:
        """Step by the next record, if it is there; False where the copy has to be loaded again."""
        replica_state, plan = self._replica_state, self._plan
        is_ahead = copy.level > replica_state.iteration or (
            copy.level == replica_state.iteration and copy.lineage != replica_state.lineage
        )
        if copy.lineage and is_ahead:
            return False  # of another lineage than what this peer holds
        rebuilt = _rebuilt_ends(plan) if plan is not None and copy.level <= plan.iteration else None
        if plan is not None and rebuilt is not None:
            if await self._state_digest(copy) == rebuilt.state_digest:
                if (copy.level, copy.lineage) != (plan.iteration, plan.lineage):
                    copy.level, copy.lineage, copy.is_rebuilt = plan.iteration, plan.lineage, True
                self._offer(copy)
            elif copy.level == plan.iteration:
                return False
        record = replica_state.record_of(copy.level)
        if record is None:
            sealed = replica_state.sealed
            if sealed is not None and sealed.iteration == copy.level and copy.average != _key(sealed):
                await self._fetch(copy, sealed)
            if replica_state.record_of(copy.level) is None:
                await self._turned.wait(RETRY_S)
            return replica_state.record_of(copy.level) is not None or replica_state.iteration <= copy.level
        if copy.lineage not in {"", record.before} or await self._state_digest(copy) != record.stages[ENDS_STAGE].state_digest:
            return False
        if copy.average == _key(record) or await self._fetch(copy, record):
            await self._step(copy, record)
        elif self._average_is_gone:
            return False
        else:
            await self._turned.wait(RETRY_S)
        return True

    async def _fetch(self, copy: EndsCopy, record: Record) -> bool:
        """Get this record's average of the ends; whether it is here. All of it is downloaded first,
        since a source keeps it for one iteration.
        """
        engine, device = copy.engine, self._device
        iteration, sum_digest = _key(record)
        copy.average, self._average_is_gone = None, True
        count, parts = engine.part_count(ENDS_STAGE), list[bytes]()
        for donor in self._donors:
            try:
                while len(parts) < count:
                    request = GetAverage(iteration, sum_digest, len(parts))
                    parts.append((await self._context.call(donor, request)).payload)
            except Refused:
                continue
            except CallFailed:
                self._average_is_gone = False  # it may answer again
        if len(parts) < count:
            return False
        if await device.run(Rank.IDLE, 0, partial(_kept_digest, engine, parts)) == sum_digest:
            copy.average = (iteration, sum_digest)
        return copy.average is not None

    async def _step(self, copy: EndsCopy, record: Record) -> None:
        """The optimizer step, in small pieces; nobody gets a part meanwhile. A plan does not
        interrupt it: half a step is no copy.
        """
        engine, device = copy.engine, self._device
        copy.is_whole, copy.digest = False, ""
        self._tell()
        scalars = record.stages[ENDS_STAGE].scalars
        for part in range(engine.part_count(ENDS_STAGE)):
            await device.run(Rank.IDLE, part, partial(_step_part, engine, part, scalars))
        copy.level, copy.lineage, copy.average, copy.is_whole, self._loads = record.iteration + 1, record.lineage(), None, True, 0
        copy.is_rebuilt = False
        self._offer(copy)

    async def _state_digest(self, copy: EndsCopy) -> str:
        if not copy.digest:
            copy.digest = await self._device.run(Rank.IDLE, 0, copy.engine.state_digest)
        return copy.digest


def _kept_digest(engine: Engine, parts: list[bytes]) -> str:
    """One piece of work: the digest takes longer than all the copies."""
    for part, data in enumerate(parts):
        engine.keep_average(part, data)
    return engine.average_digest()


def _step_part(engine: Engine, part: int, scalars: StepScalars) -> None:
    engine.step_part(part, engine.read_average(part), scalars)


def _key(record: Record) -> tuple[int, str]:
    """What an average is asked for by."""
    return record.iteration, record.stages[ENDS_STAGE].sum_digest


def _rebuilt_ends(plan: Plan) -> Rebuilt | None:
    return next((rebuilt for rebuilt in plan.rebuilt if rebuilt.stage == ENDS_STAGE), None)
