"""Keeping a copy of the ends: a member of the body follows stage 0 in the background, so that it outlives its last source.

The copy is downloaded as a joiner's is, then stepped by each iteration's average, whole or not at all. It is called complete only once its digest was
in a record or a plan, and each average is checked by digest, too. All its device work goes last, and nobody waits for it.
Source: protocol section 3.10, CheckFree+. Differs: a record that is stored, but not decided yet, already brings the average.
"""

from __future__ import annotations

from functools import partial

from swarmfree.policy.keepers import keepers_of_ends
from swarmfree.swarm.books import Record, StepScalars
from swarmfree.swarm.engine_port import Engine
from swarmfree.swarm.errors import CallFailed, RefusalKind, Refused
from swarmfree.swarm.messages import GetAverage, GetState, State
from swarmfree.swarm.names import ENDS_STAGE, Endpoint
from swarmfree.swarm.plan import Plan, Rebuilt
from swarmfree.swarm.ports import Reply
from swarmfree.trainer.context import Context
from swarmfree.trainer.iteration.member import MemberBooks
from swarmfree.trainer.iteration.standing import NO_STAGE
from swarmfree.trainer.life.copying import UNKNOWN, Copying, Place
from swarmfree.trainer.ring.device import Rank
from swarmfree.trainer.tasks import Signal, Tasks

LANES = 2
RETRY_S = 1.0
PAUSE_S, PAUSE_MAX_S = 0.25, 20.0
"""Before the copy is loaded again; doubled each time until a step succeeds: one that cannot keep up is no burden."""


class EndsKeeper:
    """This peer's copy of stage 0, while the plan makes it a keeper.

    Attributes:
        tasks: loading and following, while there is a copy.
    """

    def __init__(self, context: Context, books: MemberBooks, tasks: Tasks) -> None:
        """Keep nothing yet."""
        self._context = context
        self._books = books
        self.tasks = tasks
        self._engine: Engine | None = None
        self._copying: Copying | None = None
        self._donors: tuple[Endpoint, ...] = ()
        self._base = ""
        self._level = UNKNOWN  # the iteration that all parts are ready for; unknown while they differ
        self._lineage = ""  # of the last record in the copy; empty until its digest was checked
        self._digest = ""  # of the copy as it is; empty where it has not been taken
        self._average: tuple[int, str] | None = None  # iteration and digest of the average that is here
        self._average_is_gone = False  # as far as the last donor asked could tell
        self._loads = 0
        self._turned = Signal()

    def look(self) -> None:
        """A record was stored: its average can be fetched already."""
        self._turned.tell()

    async def keep(self) -> None:
        """Begin, redirect and end with the plans, for ever."""
        standing, seen = self._books.standing, None
        while True:
            plan = standing.plan if standing.stage != NO_STAGE else None
            if plan is not seen:
                seen = plan
                self._follow_plan(plan)
            self._turned.tell()
            await standing.moved.wait()

    async def get_state(self, request: GetState) -> Reply:
        """One part of the copy, at exactly the asked iteration and lineage.

        Raises:
            Refused: `gone` without a complete copy, and where it is further; `not_yet` where it is behind, or being stepped.
        """
        if self._engine is not None and self._books.standing.ends_iteration < request.iteration:
            await self._turned.wait(self._context.timing.hold_s)
        engine = self._engine
        if engine is None or not self._lineage:
            raise Refused(RefusalKind.GONE, "this peer keeps no complete copy of the ends")

        def read() -> tuple[int, str, bytes]:
            return self._level, self._lineage, engine.read_state(request.part, weights_only=request.weights_only)

        iteration, lineage, data = await self._books.device.run(Rank.BOOKS, 0, read)
        if iteration < request.iteration:
            raise Refused(RefusalKind.NOT_YET, f"the copy of the ends kept here is ready for iteration {iteration}")
        if (iteration, lineage) != (request.iteration, request.lineage):
            raise Refused(RefusalKind.GONE, f"the copy of the ends kept here is at iteration {iteration}, lineage {lineage[:8]}")
        return Reply(State(engine.part_count(ENDS_STAGE), iteration), data)

    # ---- plans -------------------------------------------------------------------------------------------------------

    def _follow_plan(self, plan: Plan | None) -> None:
        count = self._context.manifest.recovery.ends_copies
        if plan is None or self._context.me not in keepers_of_ends(plan, count):
            self.tasks.cancel_all()
            self._engine, self._base, self._loads = None, "", 0
            self._lose()
            return
        self._donors = tuple(replica.endpoint for replica in plan.replicas[ENDS_STAGE])
        if self._copying is not None:
            self._copying.donors = self._donors
        rebuilt = _rebuilt_ends(plan)
        if rebuilt is not None and plan.base != self._base:  # from here on the ends are what was rebuilt
            self.tasks.cancel_all()
            self._lineage = ""
            self._tell()
            self.tasks.start(self._run(plan, rebuilt), "copy of the ends")
        elif not len(self.tasks):
            self.tasks.start(self._run(plan, None), "copy of the ends")
        self._base = plan.base

    async def _run(self, plan: Plan, rebuilt: Rebuilt | None) -> None:
        """Have a copy and follow, for ever; begin with what is here, if that is what was rebuilt."""
        if rebuilt is not None and self._level != UNKNOWN and await self._state_digest() == rebuilt.state_digest:
            self._level, self._lineage = plan.iteration, plan.lineage
            self._tell()
        else:
            self._lose()
        while True:
            try:
                if self._level == UNKNOWN:
                    await self._load()
                if await self._is_as_rebuilt():
                    await self._follow()
            except CallFailed:
                pass  # no donor answers; the next plan may name others
            self._lose()
            await self._turned.wait(min(PAUSE_MAX_S, PAUSE_S * 2 ** min(self._loads, 10)))

    def _lose(self) -> None:
        """What is here is of no use any more."""
        self._level, self._lineage, self._digest, self._average = UNKNOWN, "", "", None
        self._tell()

    def _tell(self) -> None:
        self._books.standing.ends_iteration = self._level if self._lineage else UNKNOWN
        self._turned.tell()

    # ---- the copy ----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Download the copy; all its parts are at one iteration then, but nobody has vouched for it."""
        device, standing = self._books.device, self._books.standing
        if self._engine is None:
            self._engine = await device.run(Rank.IDLE, 0, self._context.ports.spare_engine)
        engine = self._engine
        self._loads += 1
        await device.run(Rank.IDLE, 0, partial(engine.blank, ENDS_STAGE))
        place = Place(engine, device, Rank.IDLE, LANES)
        self._copying = Copying(self._context, place, ENDS_STAGE, self._donors, standing.iteration, None)
        try:
            await self._copying.run()
            self._level = self._copying.level
        finally:
            self._copying = None

    async def _is_as_rebuilt(self) -> bool:
        """False where the plan in force says that the ends are other ones; where it says that they are these, the copy is complete."""
        plan = self._books.standing.plan
        rebuilt = _rebuilt_ends(plan) if plan is not None and plan.iteration == self._level else None
        if plan is None or rebuilt is None:
            return True
        if await self._state_digest() != rebuilt.state_digest:
            return False
        self._lineage = plan.lineage
        self._tell()
        return True

    async def _follow(self) -> None:
        """Step by one record after the other; return when the copy has to be loaded again."""
        standing = self._books.standing
        while True:
            record = standing.record_of(self._level)
            if record is None and standing.iteration > self._level:
                return
            if record is None:
                sealed = standing.sealed
                if sealed is not None and sealed.iteration == self._level and self._average != _key(sealed):
                    await self._fetch(sealed)
                if standing.record_of(self._level) is None:
                    await self._turned.wait(RETRY_S)
                continue
            if self._lineage not in {"", record.before} or await self._state_digest() != record.stages[ENDS_STAGE].state_digest:
                return
            if self._average == _key(record) or await self._fetch(record):
                await self._step(record)
            elif self._average_is_gone:
                return
            else:
                await self._turned.wait(RETRY_S)

    async def _fetch(self, record: Record) -> bool:
        """Get this record's average of the ends; whether it is here. All of it is downloaded first, since a source keeps it for one iteration."""
        engine, device = self._held(), self._books.device
        iteration, sum_digest = _key(record)
        self._average, self._average_is_gone = None, True
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
            self._average = (iteration, sum_digest)
        return self._average is not None

    async def _step(self, record: Record) -> None:
        """The optimizer step, in small pieces; nobody gets a part meanwhile."""
        engine, device = self._held(), self._books.device
        self._level, self._digest = UNKNOWN, ""
        self._tell()
        scalars = record.stages[ENDS_STAGE].scalars
        for part in range(engine.part_count(ENDS_STAGE)):
            await device.run(Rank.IDLE, part, partial(_step_part, engine, part, scalars))
        self._level, self._lineage, self._average, self._loads = record.iteration + 1, record.lineage(), None, 0
        self._tell()

    async def _state_digest(self) -> str:
        if not self._digest:
            self._digest = await self._books.device.run(Rank.IDLE, 0, self._held().state_digest)
        return self._digest

    def _held(self) -> Engine:
        assert self._engine is not None, "there is a copy"
        return self._engine


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
