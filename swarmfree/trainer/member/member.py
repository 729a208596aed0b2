"""A member's books: promises, sealed records, steps. What they may come to `policy.promises`
decides; here it is stored, and done.

Claim, Open, Seal and Commit come one at a time; a Heartbeat, a Build and the call to another
lineage wait for none of them. So whoever has waited for the device asks once more before it stores
anything. A member follows one coordinator, and no other one while it hears that one.
Source: protocol sections 3.1 to 3.4.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from swarmfree.policy import promises
from swarmfree.policy.block_split import split_after, split_of_plan
from swarmfree.policy.election import electorate_of, is_of_later_founder, may_lead
from swarmfree.policy.evidence import Voters, is_elected, why_unproven
from swarmfree.policy.permissions import remembered
from swarmfree.policy.promises import Promises
from swarmfree.policy.retention import log_dtype, log_length, logged_iteration_count
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.events import Note, Stepped
from swarmfree.protocol.evidence import promise_bytes, vote_bytes
from swarmfree.protocol.messages import (
    Build,
    Claim,
    Commit,
    Committed,
    Heartbeat,
    HeartbeatAnswer,
    Open,
    Promise,
    Seal,
    Sealed,
)
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint, Member, Term, base_of
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import MicrobatchSet, Record, StageEntry
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.context import Context
from swarmfree.trainer.device import Device, Rank
from swarmfree.trainer.guest_room import GuestRoom
from swarmfree.trainer.member.auditor import Auditor
from swarmfree.trainer.member.averaging import Averaging
from swarmfree.trainer.member.preparation import Preparation
from swarmfree.trainer.pipeline.gradient_sums import SumBook
from swarmfree.trainer.pipeline.hop import Hop
from swarmfree.trainer.pipeline.source import Source
from swarmfree.trainer.pipeline.stage_replica import StageReplica
from swarmfree.trainer.pipeline.work_table import WorkTable
from swarmfree.trainer.recovery.activation_log import ActivationLog, LogLimits, What
from swarmfree.trainer.recovery.log_packing import EnginePacking
from swarmfree.trainer.replica_state import NO_PAST, ReplicaState
from swarmfree.trainer.tasks import Signal, Tasks, within

TICK_S = 0.25
"""How long this peer waits for a heartbeat before it counts a tick of silence."""
SILENT_FOR_LONG = 1 << 30

Act = Callable[[], Coroutine[Any, Any, Reply]]


class StageMember:
    """Handles Claim, Open, Seal, Commit and Heartbeat for the stage that this peer holds.

    Attributes:
        waiting_for: what the coordinator last said the swarm waits for.
        heartbeat_came: told at every heartbeat.
        tied: told when something has changed between this peer and its coordinator: what it waits
            for, silence, its leave.
        heartbeat_count: how many heartbeats have come, and calls to another lineage.
        promised_s: when it promised somebody's claim last, the first one of each since a heartbeat.
        admitted: who has a place and is in no plan, as heartbeats have told, and when they did
            last.
        placed: peer ids of those of them that have a stage, or make or copy it, as the last
            heartbeat told.
        silent_ticks: how many of this peer's own ticks have passed since the last heartbeat; see
            `trainer.membership`.
        donors: whom this peer copied its state from; it keeps up with them until it is a member.
        successor: whom a coordinator that leaves has named, None otherwise.
        activation_log: this peer's activation log.
        after_step: called in the same device work as a step, right after it.
        guest_room: what it offers a guest.
        preparation: the stage that it holds, as another split cuts it.
    """

    def __init__(self, context: Context, group: asyncio.TaskGroup) -> None:
        """A member that holds nothing yet; its device and background work run inside `group`."""
        self.context = context
        self.replica_state = ReplicaState(context)
        self.guest_room = GuestRoom()
        self.device = Device(context.ports.executor, context.ports.clock)
        self.book = SumBook(context.me, context.ports.engine)
        self._owned = tuple(Tasks(group) for _ in range(5))
        working, feeding, averaging, following, self._idle = self._owned
        self.table = WorkTable(working, context.local.cache_bytes_max)
        hop = Hop(context)
        self.hop = hop
        bounds = LogLimits(
            logged_iteration_count(context.manifest),
            context.kept_mb_max * 10**6,
            context.kept_ram_mb_max * 10**6,
            partial(log_length, context.manifest, own_mb_max=context.local.disk_mb_max),
        )
        dtype = log_dtype(context.manifest)
        packing = None if dtype == "wire" else EnginePacking(self.device, context.ports.engine, dtype)
        self.activation_log = ActivationLog(context.ports.shelf, bounds, context.now_s, packing)
        self.after_step: Callable[[], None] = lambda: None
        self.stage_replica = StageReplica(
            context, self.replica_state, self.device, self.book, self.table, hop, self.activation_log
        )
        self.source = Source(context, self.replica_state, self.device, self.book, self.table, hop, feeding, self.tell_news)
        self.averaging = Averaging(context, self.replica_state, self.device, self.book, averaging)
        self.preparation = Preparation(context, self.replica_state, self.device, following)
        self.auditor = Auditor(context, self.replica_state, self.device, self.table, self.averaging)
        self.waiting_for = ""
        self.heartbeat_came, self.tied = Signal(), Signal()
        self.silent_ticks = 0
        self.heartbeat_count = 0
        self.promised_s, self._promised = -math.inf, set[str]()
        self.admitted: Mapping[Member, float] = {}
        self.placed: Collection[str] = ()
        self.successor: Member | None = None
        self.donors: tuple[Endpoint, ...] = ()
        self._stalled_ticks = 0
        self._progress = 0
        self._news = 1
        self._news_signal = Signal()
        self._acts: asyncio.Queue[tuple[Act, asyncio.Future[Reply]]] = asyncio.Queue(maxsize=64)

    def everything(self) -> tuple[Tasks, ...]:
        """List all background work of this member, to be cancelled at the end."""
        return self._owned

    def tell_news(self) -> None:
        """Answer the coordinator's heartbeat now, since something that it waits for has
        happened.
        """
        self._news += 1
        self._news_signal.tell()

    async def keep(self) -> None:
        """Run for ever: do the acts that change the replica's state, one at a time."""
        while True:
            act, future = await self._acts.get()
            try:
                reply = await act()
            except Refused as refusal:
                if not future.done():
                    future.set_exception(refusal)
                    future.exception()
            else:
                if not future.done():
                    future.set_result(reply)

    async def _in_turn(self, act: Act) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        await self._acts.put((act, future))
        return await asyncio.shield(future)

    async def claim(self, sender: Endpoint, request: Claim) -> Reply:
        """Promise to follow a new coordinator, or refuse with the reason."""
        return await self._in_turn(lambda: self._claim(sender, request))

    async def open(self, sender: Endpoint, request: Open) -> Reply:
        """Promise the plan's position and start its work.

        Whoever has made the plan knows it at once, also while its device hangs: its roster goes
        when it leads no longer. Not the first one, which another founder may pass over: this peer
        could not drop it.
        """
        if sender.member == self.context.me and self.replica_state.has_begun:
            self.replica_state.known_plan = request.plan
        return await self._in_turn(lambda: self._open(sender, request))

    async def seal(self, request: Seal) -> Reply:
        """Store the record."""
        return await self._in_turn(lambda: self._seal(request))

    async def commit(self, request: Commit, sender: Endpoint | None = None) -> Reply:
        """Step with a decided record; without a sender, one that this peer has asked for.

        Raises:
            Refused: see `policy.promises.commit`; `unproven`, its evidence does not suffice.
        """
        until_s, record, is_held = self.context.now_s() + self.context.timing.hold_s, request.record, False
        while True:
            heard = self.heartbeat_came.count
            try:
                return await self._in_turn(partial(self._commit, record, sender, is_held=is_held))
            except Refused as refusal:
                # Not in its turn: anybody may say this, and all others would wait for it
                is_over = refusal.kind is not RefusalKind.UNPROVEN or record.iteration < self.replica_state.iteration
                if is_over or not await self._waited_for_heartbeat(sender, heard, until_s):
                    raise
                is_held = True

    async def install(
        self,
        term: Term,
        stage: int,
        iteration: int,
        lineage: str,
        record: Record | None,
        past: Mapping[int, str] = NO_PAST,
        *,
        is_copy: bool = False,
    ) -> None:
        """Hold a stage's state that was built here for the coordinator of this term, with what that
        one knows of the past.
        """

        async def act() -> Reply:
            await self._end_work(Refused(RefusalKind.STALE, "the stage was built anew"))
            self.replica_state.install(stage, iteration, lineage, record, past)
            self.replica_state.known_in, self.replica_state.is_copy = term, is_copy
            self.averaging.forget()
            self.tell_news()
            return Reply(Committed(iteration))

        await self._in_turn(act)

    async def hold_snapshot(self, snapshot: Snapshot) -> None:
        """Hold the state that lay on this peer's disk and has been loaded into the engine."""
        held, replica_state = snapshot.held, self.replica_state

        async def act() -> Reply:
            replica_state.install(held.stage, held.iteration, held.lineage, snapshot.record, snapshot.past)
            # It was written after a step with a decided record
            replica_state.is_committed_state = replica_state.is_from_disk = True
            self.averaging.forget()
            self.tell_news()
            return Reply(Committed(held.iteration))

        await self._in_turn(act)

    async def rejoin(self, sender: Endpoint, successor: Endpoint) -> None:
        """Leave the coordinator, whose lineage lost, and join the swarm of `successor` again.

        What this peer holds counts for nothing there.

        The state stays, since it may be what the other lineage began with; so does a vote, which
        nobody has twice.

        Raises:
            Refused: `stale`, while another coordinator is heard.
        """
        replica_state = self.replica_state

        def rejoined() -> Promises:
            hears_another = self.hears_another(sender)
            return promises.rejoin(replica_state.promises, sender, successor, replica_state.held(), hears_another=hears_another)

        left = rejoined()  # its words are not obeyed from here on, and no vote is given twice
        replica_state.promises = replace(replica_state.promises, abandoned=left.abandoned, renounced=left.renounced)

        async def act() -> Reply:
            rejoined()  # whoever is heard by now keeps the work
            await self._end_work(Refused(RefusalKind.STALE, "another lineage won"))
            left = replica_state.known_plan or replica_state.left_plan
            replica_state.promises, replica_state.plan, replica_state.known_plan = rejoined(), None, None
            replica_state.left_plan = left
            self.silent_ticks, self.successor = SILENT_FOR_LONG, None
            replica_state.moved.tell()
            return Reply(Committed(replica_state.iteration))

        await self._in_turn(act)
        self.heartbeat_count += 1  # a campaign under way would go on by the plan that is dropped
        self.heartbeat_came.tell()
        self.tied.tell()

    async def forget_plan(self) -> None:
        """Drop the plan of a founder that disappeared before anything was sealed; another one was
        named.
        """
        replica_state = self.replica_state
        plan = replica_state.known_plan

        async def act() -> Reply:
            if replica_state.known_plan is plan:  # else somebody has opened another one meanwhile
                await self._end_work(Refused(RefusalKind.STALE, "another founder was named"))
                replica_state.plan = replica_state.known_plan = None
                replica_state.moved.tell()
            return Reply(Committed(replica_state.iteration))

        await self._in_turn(act)

    async def let_go(self, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Drop the stage that is held, since another state is about to be built here; whether it
        was dropped.

        Args:
            unless: asked in this member's turn; nothing is dropped where it is so.
        """
        is_kept = False

        async def act() -> Reply:
            nonlocal is_kept
            is_kept = unless()
            if is_kept:
                return Reply(Committed(self.replica_state.iteration))
            await self._end_work(Refused(RefusalKind.STALE, "the stage is being built anew"))
            self.activation_log.set_aside(self.replica_state.stage)
            self.preparation.drop()
            await self.preparation.give_up_copies()
            self.replica_state.stage, self.replica_state.plan = ABSENT, None
            self.replica_state.moved.tell()
            return Reply(Committed(self.replica_state.iteration))

        await self._in_turn(act)
        return not is_kept

    @property
    def may_lead_alone(self) -> bool:
        """Whether what this peer holds may be gone on from under it, by the plan that it knows or
        has left, at the latest once nobody else has answered for long.
        """
        state, me = self.replica_state, self.context.me
        plan, has_left = state.known_plan or state.left_plan, state.left_plan is not None
        if plan is None or state.stage == ABSENT:
            return False
        electorate = electorate_of(state.newest_record, plan)
        return may_lead(plan, electorate, me, (), is_over=state.is_through, has_waited=True, has_left=has_left)

    @property
    def hears_coordinator(self) -> bool:
        """Whether a coordinator that makes progress sent a heartbeat within
        `coordinator_silence_s`.

        The time is counted in this peer's own ticks.
        """
        return not self._is_silent and not self.is_stalled

    @property
    def _is_silent(self) -> bool:
        return self.silent_ticks * TICK_S >= self.context.timing.coordinator_silence_s

    @property
    def is_stalled(self) -> bool:
        """Whether the coordinator sends heartbeats and waits for nothing, but made no progress for
        `stall_s`.

        The time is counted in this peer's own ticks. One that is silent does not stall: it may lead
        again, and is asked for a place then.
        """
        return self._stalled_ticks * TICK_S >= self.context.timing.stall_s

    def lose_coordinator(self) -> None:
        """Note that this peer leads no longer: the next claim gets its promise.

        If it gave way to another coordinator, it follows that one.
        """
        replica_state = self.replica_state
        if replica_state.coordinator is not None and replica_state.coordinator.member == self.context.me:
            replica_state.promises = replace(replica_state.promises, coordinator=None)
        self.silent_ticks = SILENT_FOR_LONG
        self.tied.tell()

    def count_tick(self) -> None:
        """Count one more `TICK_S` without a heartbeat."""
        was_silent, was_stalled = self._is_silent, self.is_stalled
        self.silent_ticks += 1
        is_silent = was_silent or self._is_silent
        self._stalled_ticks = 0 if is_silent else self._stalled_ticks + 1
        if not (was_silent or was_stalled) and (is_silent or self.is_stalled):
            self.tied.tell()

    def name_successor(self, sender: Endpoint, successor: Member) -> None:
        """Note who may claim the lead, where it is the coordinator that leaves and says so."""
        coordinator = self.replica_state.coordinator
        if coordinator is None or coordinator.member != sender.member:
            return
        self.successor = successor
        self.heartbeat_came.tell()
        self.tied.tell()

    def hears_another(self, sender: Endpoint) -> bool:
        """Whether this member has recently heard a coordinator other than `sender`."""
        coordinator = self.replica_state.coordinator
        if coordinator is None or sender.member in {coordinator.member, self.successor}:
            return False
        return self.hears_coordinator

    def promised_build(self, sender: Endpoint, request: Build) -> Promises:
        """Return the promises after this Build is accepted; see `policy.promises.build`."""
        forced, hears_another = request.record.forced if request.record is not None else (), self.hears_another(sender)
        self._require_following(request.position.term, request.iteration, request.lineage, forced, hears_another=hears_another)
        return promises.build(self.replica_state.promises, sender, request, hears_another=hears_another)

    async def heartbeat(self, sender: Endpoint, request: Heartbeat) -> Reply:
        """Answer how this member stands: at once if there is news, else after `hold_s`.

        Raises:
            Refused: see `policy.promises.heartbeat`; `not_yet`, this member hears another
                coordinator, and a majority has not signed for this one; `past`, from one that this
                member does not follow yet, and that leads what gives way to the state held here.
        """
        began_s = self.context.now_s()
        replica_state, before = self.replica_state, self.replica_state.coordinator
        hears_another = self.hears_another(sender) and not self._may_lead_here(sender, request)
        where = request.position.iteration, request.lineage, request.forced
        self._require_following(request.position.term, *where, hears_another=hears_another)
        replica_state.promises = promises.heartbeat(replica_state.promises, sender, request, hears_another=hears_another)
        self.context.forget_asked()
        if request.progress != self._progress or request.waiting_for or before != sender:
            self._stalled_ticks = 0
        self._progress = request.progress
        now_s, lease_s = self.context.now_s(), self.context.timing.lease_s
        self.admitted = remembered(self.admitted, request.admitted, now_s, lease_s)
        self.placed = {member.peer_id for member in request.admitted[: request.placed]}
        self.silent_ticks, self.successor = 0, None
        self.promised_s, self._promised = -math.inf, set()
        self.heartbeat_count += 1
        self.guest_room.ask(request.adopted)
        if request.waiting_for != self.waiting_for:
            self.waiting_for = request.waiting_for
            self.tied.tell()
        self.heartbeat_came.tell()
        if request.hold_s > 0 and self._news == request.seen:
            await self._news_signal.wait(request.hold_s)
        working = replica_state.plan is not None and replica_state.base != ""
        measuring = self.source if replica_state.stage == ENDS_STAGE else self.stage_replica
        answer = HeartbeatAnswer(
            news=self._news,
            position=replica_state.promised,
            iteration=replica_state.iteration,
            base=replica_state.told_base,
            partial_sums=self.book.partial_sums() if working else (),
            stored=self.table.stored_offsets(replica_state.first_microbatch) if working else MicrobatchSet(),
            share_done=self.source.share_done and replica_state.follows_promised,
            losses=self.source.losses(),
            evaluation=self.source.evaluation,
            seconds_per_microbatch=measuring.seconds_per_microbatch,
            stage=replica_state.stage,
            ends_iteration=replica_state.ends_iteration,
            ends_lineage=replica_state.ends_lineage,
            shadows=replica_state.shadows,
            log_since=self.activation_log.since,
            lateness=self.lateness(),
            work_done=self.work_done,
            room_bytes=self.guest_room.room_bytes(),
            host=self.guest_room.host,
            held_s=self.context.now_s() - began_s,
            links=self.context.ports.network.link_rates(),
        )
        return Reply(answer)

    def _require_following(
        self, term: Term, iteration: int, lineage: str, forced: tuple[int, ...], *, hears_another: bool
    ) -> None:
        """Refuse a coordinator that is not followed yet, and that leads what gives way to the state
        held here: before its term is looked at, since whoever only hears that it is too low has
        this member leave its lineage. Where another coordinator is heard, that one's word counts.
        """
        promised = self.replica_state.promised
        if promised is None or (term != promised.term and not hears_another):
            self.replica_state.require_following(iteration, lineage, forced)

    def _may_lead_here(self, sender: Endpoint, request: Heartbeat) -> bool:
        """Whether this member has just asked this coordinator for a place, or a majority has
        promised that one; False where it shows no promises.

        Raises:
            Refused: `not_yet`, it shows others: what the other coordinator says may have to end
                first.
        """
        replica_state, term = self.replica_state, request.position.term
        if sender.member in self.context.asked:
            return True
        if request.evidence is None or not promises.is_new_term(replica_state.promises, request.position):
            return False
        if not promises.may_be_shown(replica_state.promises, term):
            return False
        electorate = electorate_of(replica_state.newest_record, replica_state.known_plan)
        if not is_elected(request.evidence, term, electorate, self.context.run, self.context.ports.network.verify):
            raise Refused(RefusalKind.NOT_YET, f"no majority that is known here has signed for term {term.number}")
        return True

    def lateness(self) -> float:
        """How many times its device, or what its corpus is read from, has exceeded its limit; 0 =
        not yet.
        """
        return max(self.device.lateness(self.context.timing.silence_s), self.source.data_lateness())

    @property
    def work_done(self) -> int:
        """A number that grows while a build makes progress: device work done and payload frames
        received.
        """
        return self.device.done_count + self.context.ports.network.frames_received

    async def _claim(self, sender: Endpoint, request: Claim) -> Reply:
        replica_state = self.replica_state
        replica_state.promises = promises.claim(replica_state.promises, sender, request, hears_another=self.hears_another(sender))
        if sender.member != self.context.me and not request.only_asking:
            replica_state.take_back()  # its own claim is made from where it stands
            if sender.member.peer_id not in self._promised:  # those that claim again and again hold nobody up
                self._promised.add(sender.member.peer_id)
                self.promised_s = self.context.now_s()
        last, plan = replica_state.newest_record, replica_state.known_plan
        later = self.context.incarnations.later_than(electorate_of(last, plan))
        said = promise_bytes(self.context.run, request.position.term, self.context.me)
        signature = b"" if request.only_asking else self.context.ports.network.sign(said)
        where = (replica_state.stage, replica_state.opened, replica_state.is_committed_state, later, signature)
        return Reply(Promise(replica_state.iteration, replica_state.sealed, replica_state.sealed_at, plan, *where))

    async def _open(self, sender: Endpoint, request: Open) -> Reply:
        plan, replica_state = request.plan, self.replica_state
        replica_state.promises = promises.open_plan(
            replica_state.promises, sender, request, replica_state.held(), hears_another=self.hears_another(sender)
        )
        if replica_state.iteration == plan.iteration - 1 and plan.last_record is not None:
            promises.follow(plan.last_record, replica_state.held())
            self._require_proven(plan.last_record, sender)
            await self._apply(plan.last_record)
        promises.begin(replica_state.promises, request, replica_state.held())
        if await self._cut(split_of_plan(plan, self.context.manifest), "another cut was opened"):
            # A higher promise may have come
            promises.begin(replica_state.promises, request, replica_state.held())
        await self._require_known(plan)
        if plan != replica_state.plan:
            new_base = plan.base != replica_state.base
            if new_base:
                await self._end_work(Refused(RefusalKind.STALE, "another base was opened"))
                # A higher promise may have come
                promises.begin(replica_state.promises, request, replica_state.held())
            replica_state.plan, replica_state.base, replica_state.known_plan, replica_state.opened = (
                plan,
                plan.base,
                plan,
                plan.base,
            )
            if replica_state.is_from_disk:
                self.silent_ticks = 0  # it is not left over, whatever becomes of the heartbeats
            replica_state.known_in, replica_state.kept_from = plan.position.term, None
            replica_state.is_from_disk = replica_state.is_paused = False
            replica_state.is_committed_state |= replica_state.stage not in {
                rebuilt.stage for rebuilt in plan.rebuilt
            }  # what the last record left
            self.hop.follow(plan)
            # With the same base the work that is there goes on, and so does the share
            self.source.follow(plan)
            self._idle.cancel_all()  # parts that have their digest already are not done again
            self._idle.start(self.averaging.digest_when_idle(), "state digest")
            replica_state.moved.tell()
        sealed = replica_state.sealed if replica_state.sealed and replica_state.sealed.iteration == plan.iteration else None
        sealed_at = replica_state.sealed_at if sealed is not None else None
        return Reply(
            Promise(
                replica_state.iteration,
                sealed,
                sealed_at,
                None,
                replica_state.stage,
                replica_state.opened,
                replica_state.is_committed_state,
            )
        )

    async def _cut(self, split: BlockSplit, why: str) -> bool:
        """Have what is held cut so, whatever is under way; whether it was cut otherwise before.

        Raises:
            Refused: `gone`, it was not prepared.
        """
        replica_state = self.replica_state
        if replica_state.stage == ABSENT or split == replica_state.split:
            return False
        self.preparation.require(split)
        self._idle.cancel_all()
        await self._end_work(Refused(RefusalKind.STALE, why))
        has_others = replica_state.split.blocks_of(replica_state.stage) != split.blocks_of(replica_state.stage)
        await self.preparation.follow(split)
        if has_others:
            self.stage_replica.forget_pace()
            self.averaging.forget()
        return True

    async def hold_as_recorded(self) -> None:
        """Have what is held cut as the last record says: it is about to be kept beside that record,
        and the plan in force is not worked on any more.

        Raises:
            Refused: `gone`, only what another cut left is here.
        """

        def recorded() -> BlockSplit:
            return split_after(self.replica_state.newest_record, self.context.manifest)

        async def act() -> Reply:
            await self._cut(recorded(), "what is held here is kept")
            return Reply(Committed(self.replica_state.iteration))

        # Only then in turn: a step before it whose average nobody has would end with nothing held
        if self.replica_state.split != recorded():
            await self._in_turn(act)

    async def _require_known(self, plan: Plan) -> None:
        """Whether the plan's coordinator knows what is held here: it was opened in this base
        before, is what the plan says was built, or where the stage was not rebuilt it is a
        committed state, or that coordinator had it copied.

        Another one, or one that has not heard of the build, may take the member for one that still
        holds what the last record left.

        Raises:
            Refused: `gone`, it does not.
        """
        replica_state = self.replica_state
        if plan.base == replica_state.opened:
            return
        digests = [rebuilt.state_digest for rebuilt in plan.rebuilt if rebuilt.stage == replica_state.stage]
        is_copied = replica_state.is_copy and replica_state.known_in == plan.position.term
        if not digests and (replica_state.is_committed_state or is_copied):
            return
        if await self.averaging.state_digest() not in digests:
            raise Refused(
                RefusalKind.GONE, f"what was built here for iteration {plan.iteration} is not what this plan begins with"
            )

    async def _seal(self, request: Seal) -> Reply:
        replica_state = self.replica_state
        stored = promises.seal(replica_state.promises, request, replica_state.held())
        if request.record.iteration == replica_state.iteration:
            # Else nobody could step with it, and what the run has learned would be lost
            self.preparation.require(split_after(request.record, self.context.manifest))
        replica_state.promises = stored
        lineage = request.record.lineage()
        vote = vote_bytes(self.context.run, lineage, request.position.term, self.context.me)
        return Reply(Sealed(lineage, self.context.ports.network.sign(vote)))

    async def _commit(self, record: Record, sender: Endpoint | None, *, is_held: bool) -> Reply:
        if promises.commit(record, self.replica_state.held()):
            self._require_proven(record, sender)
            await self._apply(record)
        elif is_held and self.replica_state.past.get(record.iteration + 1) != record.lineage():
            raise Refused(RefusalKind.UNPROVEN, f"record {record.iteration} is not known to be the one that was decided")
        return Reply(Committed(self.replica_state.iteration))

    async def _waited_for_heartbeat(self, sender: Endpoint | None, heard: int, until_s: float) -> bool:
        """Whether one came since `heard` of them had, or there was time for one where another
        coordinator than the sender is heard: what a new one says first may overtake its heartbeat.
        """
        left_s = until_s - self.context.now_s()
        if left_s <= 0 or sender is None:
            return False
        if self.heartbeat_came.count == heard:
            if not self.hears_another(sender):
                return False
            await self.heartbeat_came.wait(left_s)
        return True

    def _require_proven(self, record: Record, sender: Endpoint | None) -> None:
        """Check that the record before this one names those who have signed it.

        Raises:
            Refused: `unproven`.
        """
        last, plan = self.replica_state.newest_record, self.replica_state.known_plan
        me, known = self.context.me, self.replica_state.known_peers()
        # Its own vote says nothing of others, but all where it leads itself
        is_own = record.evidence is not None and record.evidence.term.member == me
        known = known | {me.peer_id} if is_own or (sender is not None and sender.member == me) else known - {me.peer_id}
        is_led = sender is None or not self.hears_another(sender)
        # Before the first record no other plan names who decides: those of a forced side do not
        decides = None if self._is_passed_over(record) else self.replica_state.founders_plan
        # Another side's plan than of the one that had this built may name nobody who decides there
        is_newcomer = last is None and (plan is None or decides is None or self.replica_state.known_in != plan.position.term)
        if record.evidence is not None and self._is_stored_too(record, sender, known):
            known |= {record.evidence.term.member.peer_id}
        electorate = electorate_of(last, decides)
        voters = Voters(self.context.run, me, electorate, None if is_newcomer else known, is_led)
        if why := why_unproven(record, voters, self.context.ports.network.verify):
            raise Refused(RefusalKind.UNPROVEN, why)

    def _is_stored_too(self, record: Record, sender: Endpoint | None, known: Collection[str]) -> bool:
        """Whether this peer has stored the same record itself, perhaps for another coordinator, and
        one that had a place gives it, and so could have signed it.
        """
        sealed = self.replica_state.sealed
        is_known = sender is not None and sender.member.peer_id in known
        return is_known and sealed is not None and sealed.lineage() == record.lineage()

    def _is_passed_over(self, record: Record) -> bool:
        """Whether the plan that is known here, without a record or a vote, is of an earlier founder
        than the one under whom this record was decided: it knows nobody who decided.
        """
        plan = self.replica_state.known_plan
        if plan is None or record.evidence is None or self.replica_state.records_held:
            return False
        return is_of_later_founder(record.evidence.term.number, plan.position.term.number)

    async def _apply(self, record: Record) -> None:
        replica_state, engine = self.replica_state, self.context.ports.engine
        promises.follow(record, replica_state.held())
        await self._cut(split_after(record, self.context.manifest), "the model is cut otherwise")
        entry = record.stages[replica_state.stage]
        if await self.averaging.state_digest() != entry.state_digest:
            if record.base == base_of(record.before, ()):
                # Nothing was rebuilt or disputed, so it is not what its lineage has
                replica_state.is_committed_state, replica_state.opened = False, ""
            raise Refused(RefusalKind.GONE, f"record {record.iteration} starts stage {replica_state.stage} from another state")
        # Also if the average cannot be had, so that it stays there
        replica_state.is_committed_state = True
        activations = self._activations(record)
        # First, so that no round that is still under way writes into the average that is fetched
        await self._end_work(Refused(RefusalKind.PAST, f"iteration {record.iteration} is committed"))
        is_here = self.averaging.kept == (record.iteration, entry.sum_digest)
        if not (is_here or await self._fetch_average(record.iteration, entry)):
            raise Refused(RefusalKind.GONE, f"nobody of stage {replica_state.stage} keeps the average of {record.iteration}")
        if record.split is not None and record.split.since == record.iteration:
            self.activation_log.clear()  # what crossed other boundaries is of no use to a replay
        self._log(record, activations)

        def step() -> None:
            engine.step(entry.scalars)
            replica_state.apply(record)
            self.after_step()

        await self.device.run(Rank.STEP, 0, step)
        self.preparation.drop()
        replica_state.promises = promises.forget_vote(replica_state.promises, replica_state.iteration)
        replica_state.moved.tell()
        self.context.tell(Stepped(replica_state.iteration, replica_state.lineage))

    def _activations(self, record: Record) -> Mapping[What, bytes] | None:
        """What this peer sent on and back; None where it was away, or computed for another base."""
        return self.table.activations() if self.activation_log.is_kept and self.replica_state.base == record.base else None

    def _log(self, record: Record, activations: Mapping[What, bytes] | None) -> None:
        """Keep what this peer sent on and back; one that has none begins its log anew."""
        if activations is None:
            self.activation_log.clear()
            return
        before = self.activation_log.length.reason
        self.activation_log.keep(record.iteration, record.base, activations)
        if self.activation_log.length.reason not in {"", before}:
            self.context.tell(Note(self.activation_log.length.reason))

    async def _end_work(self, why: Refused) -> None:
        """End everything that belongs to the present base; nothing new can begin on it from here
        on.
        """
        self.replica_state.base = ""
        self.source.stop()
        self.averaging.stop(why)
        self.table.close(why)
        await self.device.run(Rank.BOOKS, 0, self.book.clear)

    async def _fetch_average(self, iteration: int, entry: StageEntry) -> bool:
        """Get a missed average from the siblings that are known here, else from those that the
        record names: who comes from another side of a split, or was away for long, does not know
        them.
        """
        siblings = self._siblings()
        if await self.averaging.fetch(iteration, entry.sum_digest, siblings):
            return True
        try:  # whoever leads waits for this
            announced = await within(self.context.timing.silence_s, self.context.ports.directory.announcements())
        except TimeoutError:
            return False
        there = [a.endpoint for a in announced if a.endpoint.member in entry.members]
        others = tuple(endpoint for endpoint in there if endpoint not in {self.context.here, *siblings})
        return await self.averaging.fetch(iteration, entry.sum_digest, others)

    def _siblings(self) -> tuple[Endpoint, ...]:
        plan = self.replica_state.plan
        if plan is None:
            return self.donors
        return tuple(r.endpoint for r in plan.replicas[self.replica_state.stage] if r.endpoint.member != self.context.me)
