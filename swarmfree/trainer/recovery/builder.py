"""Building a stage's state at a newcomer: drawn, copied, from a kept copy or a shadow, replayed, or
made from its neighbours.

Parts are streamed and used as they come: a merge never holds both neighbours, only the parts in
flight. The same call twice joins the first. A copy of a sibling is made while training goes on
(`copying`); everything else is built while the swarm waits.
Source: CheckFree Algorithm 1; design section 6.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from swarmfree.policy.block_split import split_after
from swarmfree.policy.fork_choice import forced_later
from swarmfree.policy.part_batches import batches, state_batch
from swarmfree.policy.promises import Promises
from swarmfree.policy.recovery import donor_block
from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Merge, Replay, Restore, Stay
from swarmfree.protocol.engine_port import Pieces
from swarmfree.protocol.errors import CallFailed, PeerSilent, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.events import Note, Placed
from swarmfree.protocol.messages import Build, Built, GetShadow, GetState, ShadowPart, State
from swarmfree.protocol.names import ABSENT, Endpoint, Term
from swarmfree.protocol.peer_status import Made
from swarmfree.protocol.pieces import parts_of
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank, WorkFailed
from swarmfree.trainer.recovery.activation_log import ActivationLog
from swarmfree.trainer.recovery.merge_check import check_weights
from swarmfree.trainer.recovery.replay import StageReplay
from swarmfree.trainer.recovery.state_copy import CopyTarget, StateCopy
from swarmfree.trainer.replica_state import ReplicaState
from swarmfree.trainer.tasks import Tasks, each

PARTS_IN_FLIGHT = 3
CALLS_IN_FLIGHT = 2
"""To each donor, of some parts each."""
ASKS = 6
GIVERS_MAX = 64
"""Of first weights."""
FINAL = frozenset({RefusalKind.TOO_SLOW, RefusalKind.DISPUTED})
"""What a coordinator has to know of a build that failed: it is not to be tried in the same way
again.
"""
OF_A_COPY = FINAL | {RefusalKind.NOT_YET}
"""Of a copy also that the donor lives, and gives nothing to this side."""


@dataclass(slots=True, eq=False)
class Building:
    """One build under way, and the future that its callers wait for."""

    request: Build
    past: dict[int, str]
    done: asyncio.Future[Built]
    received_bytes: int = 0
    exact: bool = False
    copying: StateCopy | None = None

    def copies_what(self, request: Build, past: Mapping[int, str]) -> bool:
        """Whether this is a copy under way of the stage that another request has copied, too, on
        the same lineage and also from its donors: its link to the coordinator may have broken, or
        another one leads.

        Args:
            past: iteration -> lineage, of that request.
        """
        if self.copying is None or self.done.done() or not isinstance(request.action, Copy):
            return False
        named = {donor.member for donor in request.action.donors}
        known = past.keys() & self.past.keys()
        is_ours = bool(known) and all(past[iteration] == self.past[iteration] for iteration in known)
        # What another one has given may be a part of another lineage by now
        are_there = all(donor.member in named for donor in self.copying.donors)
        return is_ours and are_there and self.request.action.stage == request.action.stage

    def join(self, request: Build, past: Mapping[int, str]) -> None:
        """Answer this request with the copy under way, which goes on with its donors."""
        assert self.copying is not None, "a copy is under way"
        assert isinstance(request.action, Copy), "a copy is asked for"
        self.request, self.copying.donors = request, request.action.donors
        self.past |= past

    def goes_back_to(self, iteration: int, lineage: str) -> bool:
        """Whether a state ready for `iteration`, after the record of `lineage`, lies in the build's
        own past.

        Lineages are known only for a while; further back the answer is yes.
        """
        return iteration <= self.request.iteration and self.past.get(iteration, lineage) == lineage


class Books(Protocol):
    """What a build needs of the member whose state it makes; `member.member` implements it."""

    replica_state: ReplicaState
    device: Device
    activation_log: ActivationLog

    def promised_build(self, sender: Endpoint, request: Build) -> Promises:
        """Return the member's promises after it has accepted this Build.

        Raises:
            Refused: as `policy.promises.build`.
        """

    async def let_go(self) -> bool:
        """Drop the stage that the member holds; whether it was dropped."""

    async def hold_as_recorded(self) -> None:
        """Have what is held cut as the last record says.

        Raises:
            Refused: `gone`.
        """

    async def install(
        self,
        term: Term,
        stage: int,
        iteration: int,
        lineage: str,
        record: Record | None,
        past: Mapping[int, str],
        *,
        is_copy: bool,
    ) -> None:
        """Hold the stage that was built in this term, ready for `iteration` after the record of
        `lineage`.
        """


KeepUp = Callable[[tuple[Endpoint, ...]], Awaitable[None]]


class Builder:
    """Handles Build.

    Attributes:
        made: what was built here last.
    """

    def __init__(self, context: Context, stage_member: Books, tasks: Tasks, keep_up: KeepUp) -> None:
        """Nothing built; `keep_up` is called with the donors of a copy, until this peer is a
        member.
        """
        self._context = context
        self._keep_up = keep_up
        self._stage_member = stage_member
        self._tasks = tasks
        self._building: Building | None = None
        self.made: Made | None = None

    @property
    def making(self) -> BuildAction | None:
        """The recovery action that is under way, None if there is none."""
        return None if self._building is None or self._building.done.done() else self._building.request.action

    async def build(self, sender: Endpoint, request: Build) -> Reply:
        """Make the stage's state, or join the same build under way or done, whose answer may have
        been lost; a copy under way of the same stage and lineage is joined, too.

        Raises:
            Refused: as `policy.promises.build`; `past`, what is held here goes on from there, so
                that whoever asks leads a beginning only; `gone`, the state that is to be kept is of
                another lineage; `failed` when no donor could give what was asked.
        """
        replica_state = self._stage_member.replica_state
        # Nothing is waited for until it is stored
        promises = self._stage_member.promised_build(sender, request)
        past = dict(enumerate((*request.past, request.lineage), request.iteration - len(request.past)))
        if isinstance(request.action, Stay) and self._is_kept(request, request.action):
            self._check_lineage(past.get(replica_state.iteration, replica_state.lineage), request.record)
        current = self._building
        if current is None or current.request != request:
            forced = request.record.forced if request.record is not None else ()
            replica_state.require_following(request.iteration, request.lineage, forced)
            replica_state.promise(promises)
            if current is not None and current.copies_what(request, past):
                current.join(request, past)
            else:
                current = self._begin_anew(request, past)
        return Reply(await asyncio.shield(current.done))

    def _begin_anew(self, request: Build, past: dict[int, str]) -> Building:
        """Begin a build, in place of the one under way."""
        self._tasks.cancel_all()
        if self._building is not None and not self._building.done.done():
            self._building.done.set_exception(Refused(RefusalKind.SUPERSEDED, "another build was asked for"))
            self._building.done.exception()
        self._building = building = Building(request, past, asyncio.get_running_loop().create_future())
        self._tasks.start(self._run(building), f"build stage {request.action.stage}")
        return building

    async def load(self, load: Callable[[], Awaitable[None]]) -> None:
        """Have a state loaded from this peer's disk, unless one is being built; a Build that comes
        meanwhile ends that.
        """
        if self.making is None:
            self._tasks.cancel_all()

            async def loading() -> None:
                await load()

            await asyncio.wait({self._tasks.start(loading(), "load a snapshot")})

    def _is_kept(self, request: Build, action: Stay) -> bool:
        """Whether the state here is as new as the coordinator knew, or newer: this peer may have
        stepped since it told.
        """
        return action.iteration <= self._stage_member.replica_state.iteration <= request.iteration

    def _check_lineage(self, lineage: str, record: Record | None) -> None:
        """A state of another lineage is not kept as one of this; where it counts more, whoever asks
        leads what gives way.
        """
        replica_state = self._stage_member.replica_state
        if replica_state.lineage != lineage:
            newest, led = replica_state.newest_record, record.forced if record is not None else ()
            counts_more = newest is not None and forced_later(newest.forced, led)
            kind = RefusalKind.PAST if counts_more else RefusalKind.GONE
            raise Refused(kind, f"what this peer holds is of lineage {replica_state.lineage[:8]}, not of {lineage[:8]}")

    async def _run(self, building: Building) -> None:
        request, engine = building.request, self._context.ports.engine
        begun_s = self._context.now_s()
        try:
            if isinstance(request.action, Copy):
                await self._begin_copy(building, request.action.donors)
            if not isinstance(request.action, Stay):
                await self._stage_member.let_go()
                await self._follow(self._split_of(request))
            level, record = await self._make(request, building)
            request, building.copying = building.request, None  # others may have joined, and no more do
            digest = await self._stage_member.device.run(Rank.BOOKS, 0, engine.state_digest)
            lineage = request.lineage if record is None else record.lineage()
            await self._follow(split_after(record, self._context.manifest))  # a copy may have gone through a cut of others
            held = request.action.stage, level, lineage, record, building.past
            is_copy = isinstance(request.action, Copy)
            await self._stage_member.install(request.position.term, *held, is_copy=is_copy)
            if isinstance(request.action, Stay):  # what is kept may have stepped until its turn came
                digest = await self._stage_member.device.run(Rank.BOOKS, 0, engine.state_digest)
            self._stage_member.activation_log.forget_former()
        except CallFailed as error:
            own = RefusalKind.EXHAUSTED if isinstance(error, WorkFailed) else RefusalKind.FAILED
            told = OF_A_COPY if isinstance(request.action, Copy) else FINAL
            kind = error.kind if isinstance(error, Refused) and error.kind in told else own
            building.done.set_exception(Refused(kind, f"build of stage {request.action.stage}: {error}"))
            building.done.exception()
            self._building = None
            return
        self._context.tell(Placed(self._context.me.peer_id, request.action.stage))
        seconds = self._context.now_s() - begun_s
        self.made = Made(request.action, request.iteration, seconds, building.received_bytes, building.exact)
        building.done.set_result(Built(digest, seconds, building.received_bytes, level, building.exact))
        if isinstance(request.action, Copy):
            await self._keep_up(request.action.donors)

    async def _begin_copy(self, building: Building, donors: tuple[Endpoint, ...]) -> None:
        """Begin a copy; who was told to rejoin, or holds an older state of that stage, gives
        nothing up before a first part is here.
        """
        request, target = building.request, CopyTarget(self._context.ports.engine, self._stage_member.device)
        copying = StateCopy(self._context, target, request.action.stage, donors, request.iteration, request.record)
        copying.past = building.past
        replica_state = self._stage_member.replica_state
        is_older = replica_state.stage == request.action.stage and replica_state.iteration < request.iteration
        if replica_state.left_plan is not None or is_older:
            await copying.begin()
        building.copying = copying

    async def _make(self, request: Build, building: Building) -> tuple[int, Record | None]:
        """Make the state; the iteration it is ready for and the record before that."""
        engine, device, stage = self._context.ports.engine, self._stage_member.device, request.action.stage
        match request.action:
            case Stay() as action:
                await self._stage_member.hold_as_recorded()
                held = self._stage_member.replica_state
                is_cut_so = held.split.blocks_of(stage) == self._split_of(request).blocks_of(stage)
                if held.stage != stage or not is_cut_so or not self._is_kept(request, action):
                    raise Refused(RefusalKind.GONE, f"this peer is at iteration {held.iteration} of stage {held.stage}")
            case Fresh(salt=salt):
                await self._begin(building, stage, salt)
            case Copy() | CopyKept() | CopyNeighbour() | Merge() | Replay() | Restore() as action:
                await device.run(Rank.BOOKS, 0, lambda: engine.blank(stage))
                return await self._make_of_others(request, building, action)
            case _ as action:
                assert_never(action)
        return request.iteration, request.record

    async def _follow(self, split: BlockSplit) -> None:
        """Have the engine cut stages so."""
        replica_state, engine = self._stage_member.replica_state, self._context.ports.engine

        def follow() -> None:
            engine.follow(split)
            replica_state.cut(split)

        if split != replica_state.split:
            await self._stage_member.device.run(Rank.BOOKS, 0, follow)

    def _split_of(self, request: Build) -> BlockSplit:
        """How the model is cut for which a stage is built."""
        return split_after(request.record, self._context.manifest)

    async def _begin(self, building: Building, stage: int, salt: int) -> None:
        """Hold first weights: those that the manifest names the digests of, else drawn ones.

        A stage that is made anew later is drawn where nobody has the former any more.
        """
        engine, device = self._context.ports.engine, self._stage_member.device
        if self._context.manifest.init_digest(stage):
            try:
                await self._take_first_weights(building, stage)
            except CallFailed as error:
                if salt == 0:
                    raise
                self._context.tell(Note(f"stage {stage} is drawn: {error}"))
            else:
                return
        await device.run(Rank.BOOKS, 0, lambda: engine.draw(stage, salt))

    async def _take_first_weights(self, building: Building, stage: int) -> None:
        """Have the weights that the run begins with from whoever has them, this peer first, then
        who leads: strangers with many names come after it. Who can feed a run that begins has them.

        Raises:
            CallFailed: nobody has them, or what was given has another digest.
        """
        engine, device, ports = self._context.ports.engine, self._stage_member.device, self._context.ports
        leader = building.request.position.term.member
        announced = sorted(
            await ports.directory.announcements(),
            key=lambda a: (a.endpoint.member != leader, not a.can_feed, a.endpoint.member),
        )
        others = [a.endpoint for a in announced if a.endpoint.member != self._context.me][:GIVERS_MAX]
        expected, last = self._context.manifest.init_digest(stage), "nobody else is announced"
        split = self._split_of(building.request)
        for giver in (*((self._context.here,) if ports.first_weights is not None else ()), *others):
            await device.run(Rank.BOOKS, 0, lambda: engine.blank(stage))
            try:
                await self._parts(split, stage, lambda parts, giver=giver: self._first_parts(building, giver, stage, parts))  # type: ignore[misc]
            except CallFailed as error:
                last = str(error)
                continue
            if (found := await device.run(Rank.BOOKS, 0, engine.state_digest)).startswith(expected):
                return
            last = f"what {giver.member} gave has the digest {found[: len(expected)]}, not {expected}"
        raise Refused(RefusalKind.FAILED, f"nobody gives the weights that the run begins with (peer --init-from): {last}")

    async def _first_parts(self, building: Building, giver: Endpoint, stage: int, parts: range) -> None:
        asked = GetState(stage, 0, GENESIS_LINEAGE, parts.start, weights_only=True, count=len(parts), to_export=True)
        await self._write(parts, await self._get_parts(building, giver, asked), weights_only=True)

    async def _make_of_others(
        self, request: Build, building: Building, action: Copy | CopyKept | CopyNeighbour | Merge | Replay | Restore
    ) -> tuple[int, Record | None]:
        engine, device, stage = self._context.ports.engine, self._stage_member.device, action.stage
        split = self._split_of(request)
        match action:
            case Copy():
                copying = building.copying
                assert copying is not None, "its first part is here"
                await copying.run()
                building.received_bytes = copying.received_bytes
                return copying.level, copying.record
            case Replay():
                replaying = StageReplay(self._context, device, self._stage_member.activation_log, request, action)
                await replaying.run()
                building.received_bytes, building.exact = replaying.received_bytes, replaying.exact
            case CopyKept():
                building.exact = action.iteration == request.iteration
                await self._parts(split, stage, lambda parts: self._kept_parts(building, action, parts), weights_only=False)
            case Restore():
                await each(
                    range(engine.part_count(stage)), lambda part: self._shadow_part(building, action, part), PARTS_IN_FLIGHT
                )
            case CopyNeighbour(donor=donor, donor_stage=donor_stage):
                await self._parts(split, stage, lambda parts: self._neighbour_parts(building, donor, donor_stage, parts))
            case Merge():
                await self._parts(split, stage, lambda parts: self._merge_parts(building, action, parts))
                # Whoever gave weights has announced its norm by now
                await check_weights(self._context, request, action)
            case _:
                assert_never(action)
        return request.iteration, request.record

    async def _parts(
        self, split: BlockSplit, stage: int, some: Callable[[range], Awaitable[None]], *, weights_only: bool = True
    ) -> None:
        batch = state_batch(self._context.manifest, weights_only=weights_only)
        await each(
            batches(self._context.ports.engine.part_count(stage), self._per_block(split, stage), batch), some, CALLS_IN_FLIGHT
        )

    async def _fill(self, parts: range, write: Callable[[int], None]) -> None:
        """Write some parts, and make their digests while their bytes are at hand."""
        engine = self._context.ports.engine

        def fill() -> None:
            for part in parts:
                write(part)
                engine.digest_part(part)

        await self._stage_member.device.run(Rank.BOOKS, parts.start, fill)

    async def _kept_parts(self, building: Building, action: CopyKept, parts: range) -> None:
        """Parts with their moments; the holder gives them at exactly the action's iteration and
        lineage, so all parts belong together.
        """
        lineage = action.lineage or building.request.lineage
        asked = GetState(action.stage, action.iteration, lineage, parts.start, weights_only=False, count=len(parts))
        await self._write(parts, await self._get_parts(building, action.holder, asked), weights_only=False)

    async def _write(self, parts: range, found: list[Pieces], *, weights_only: bool) -> None:
        engine = self._context.ports.engine
        data = [b"".join(pieces) for pieces in found]
        await self._fill(parts, lambda part: engine.write_state(part, data[part - parts.start], weights_only=weights_only))

    async def _shadow_part(self, building: Building, action: Restore, part: int) -> None:
        engine = self._context.ports.engine
        asked = GetShadow(action.stage, part, action.iteration if action.full else ABSENT)
        reply = await self._get(building, (action.holder,), asked)
        found, data = reply.expect(ShadowPart), reply.payload
        # Its holder tells of the oldest part only
        if not building.goes_back_to(found.iteration, found.lineage):
            what = f"ready for iteration {found.iteration} after record {found.lineage[:8]}"
            raise Refused(RefusalKind.DISPUTED, f"part {part} of the shadow of stage {action.stage} is {what}, not of this past")

        def write(part: int) -> None:
            if action.full:
                engine.write_state(part, data, weights_only=False)
            else:
                engine.write_shadow(part, data)

        await self._fill(range(part, part + 1), write)

    async def _neighbour_parts(self, building: Building, donor: Endpoint, donor_stage: int, parts: range) -> None:
        found = await self._get_parts(building, donor, self._weights_of(building, donor_stage, parts))
        await self._write(parts, found, weights_only=True)

    async def _merge_parts(self, building: Building, action: Merge, parts: range) -> None:
        engine, mode = self._context.ports.engine, self._context.manifest.recovery.merge
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._get_or_failure(building, donor, donor_stage, parts))
                for donor, donor_stage in ((action.before, action.before_stage), (action.after, action.after_stage))
            ]
        before, after = (task.result() for task in tasks)
        if isinstance(before, CallFailed):
            raise before
        if isinstance(after, CallFailed):
            raise after

        def merge(part: int) -> None:
            here = part - parts.start
            engine.merge_state(part, before[here], after[here], action.weight_before, action.weight_after, mode)

        await self._fill(parts, merge)

    async def _get_or_failure(
        self, building: Building, donor: Endpoint, donor_stage: int, parts: range
    ) -> list[Pieces] | CallFailed:
        try:
            return await self._get_parts(building, donor, self._weights_of(building, donor_stage, parts))
        except CallFailed as error:
            return error

    def _per_block(self, split: BlockSplit, stage: int) -> int:
        """Parts of one block: they never straddle blocks and all blocks have equally many. The ends
        have no blocks, nor has a vacant stage.
        """
        return max(1, math.ceil(self._context.ports.engine.part_count(stage) / max(1, len(split.blocks_of(stage)))))

    def _weights_of(self, building: Building, donor_stage: int, parts: range) -> GetState:
        """The donor's parts at the same relative depth."""
        request, split = building.request, self._split_of(building.request)
        stage, per_block = request.action.stage, self._per_block(split, request.action.stage)
        blocks, donor_blocks = len(split.blocks_of(stage)), len(split.blocks_of(donor_stage))
        there = donor_block(parts.start // per_block, blocks, donor_blocks) * per_block + parts.start % per_block
        return GetState(
            donor_stage, request.iteration, request.lineage, there, weights_only=True, count=len(parts), split=split.counts
        )

    async def _get_parts(self, building: Building, donor: Endpoint, asked: GetState) -> list[Pieces]:
        """All parts that are asked for, in as many answers as the donor makes of them."""
        found: list[Pieces] = []
        while (left := asked.count - len(found)) > 0:
            reply = await self._get(building, (donor,), replace(asked, part=asked.part + len(found), count=left))
            found += parts_of(reply.pieces, reply.expect(State).sizes, left)
        return found

    async def _get(self, building: Building, donors: tuple[Endpoint, ...], request: GetState | GetShadow) -> Reply:
        waits = self._context.backoff_s()
        last: CallFailed = PeerUnreachable(f"stage {request.stage} has no donor")
        for ask in range(ASKS):
            donor = donors[ask % len(donors)]
            try:
                reply = await self._context.call(donor, request)
            except (PeerUnreachable, PeerSilent) as error:
                last = error
            except Refused as refusal:
                if refusal.kind is not RefusalKind.NOT_YET and len(donors) == 1:
                    raise
                last = refusal
            else:
                building.received_bytes += reply.size_bytes
                return reply
            await asyncio.sleep(next(waits))
        raise last
