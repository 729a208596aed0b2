"""One peer's life: be found, get a place, build its state, serve, coordinate when it is its turn,
and end.

Source: design sections 4 and 7, protocol sections 3.2 to 3.4, 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from swarmfree.policy.fork_choice import Tip
from swarmfree.policy.takeover import Takeover
from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import CallFailed, DeviceStuck, Diverged, Excluded, RefusalKind, Refused, RunEnded, SwarmfreeError
from swarmfree.protocol.events import Ended, Note, Started, TookOver
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import (
    Audit,
    BooksRequest,
    Build,
    Claim,
    Commit,
    EndRun,
    Farewell,
    FollowSuccessor,
    GetAccount,
    GetAverage,
    GetContribution,
    GetManifest,
    GetPlan,
    GetRecord,
    GetShadow,
    GetState,
    Goodbye,
    Header,
    Heartbeat,
    Hello,
    JoinOther,
    Loss,
    ManifestAnswer,
    Meet,
    Met,
    Open,
    Place,
    Prepare,
    Pull,
    RecordAnswer,
    Redo,
    Reduce,
    ReleaseMember,
    Request,
    Seal,
    TakeRoll,
    Train,
    WriteWeights,
)
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, PROTOCOL_REVISION, Endpoint, Founder
from swarmfree.protocol.ports import Incoming, Ports, Reply
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.access_control import AccessControl
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.coordinator import Coordinator
from swarmfree.trainer.coordinator.handoff import end_run
from swarmfree.trainer.coordinator.partition_merge import Rival
from swarmfree.trainer.coordinator.pause import GO_ON, NOWHERE, PAUSED
from swarmfree.trainer.coordinator.roster import Deposed
from swarmfree.trainer.member import queries
from swarmfree.trainer.member.catch_up import keep_up
from swarmfree.trainer.member.member import StageMember
from swarmfree.trainer.membership import WAITS_FROM_DISK, Membership
from swarmfree.trainer.pause_watch import wait_until_left_over
from swarmfree.trainer.recovery.builder import Builder
from swarmfree.trainer.recovery.ends_copy import EndsKeeper
from swarmfree.trainer.recovery.preallocation import keep_room
from swarmfree.trainer.recovery.shadows import ShadowKeeper
from swarmfree.trainer.run_end import RunEnd
from swarmfree.trainer.snapshot_fetcher import SnapshotFetcher
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from swarmfree.trainer.snapshot_uploader import SnapshotUploader
from swarmfree.trainer.tasks import Tasks


@dataclass(frozen=True, slots=True)
class End:
    """How a peer's life ends; `paused`: the run is not over; `stuck`: its device hangs."""

    code: int
    why: str
    paused: bool = False
    stuck: bool = False


STAYS_S = 60.0
"""A peer whose disk refuses what it holds, and that nobody else may have, stays so long in a pause.
"""


class Peer:
    """One peer, assembled; it dispatches incoming calls."""

    def __init__(self, context: Context, group: asyncio.TaskGroup) -> None:
        """Assemble; nothing runs yet."""
        self.context = context
        self.tasks = Tasks(group)
        self.stage_member = StageMember(context, group)
        self._building = Tasks(group)
        self.builder = Builder(context, self.stage_member, self._building, partial(keep_up, context, self.stage_member))
        self.has_announced = False
        self.coordinator: Coordinator | None = None
        self._stays = "", math.inf  # with the state of which lineage, in a pause, and until when
        self._keeping = Tasks(group)
        self.uploader = SnapshotUploader(context, self.stage_member)
        self.snapshots = SnapshotKeeper(context, self.stage_member, self.uploader.offer)
        self.fetcher = SnapshotFetcher(context, self.stage_member, self.snapshots, self._load)
        self.membership = Membership(context, self.stage_member, self._keeping, self._lead, self._load, self.fetcher.are_stored)
        self.keeper = EndsKeeper(context, self.stage_member.replica_state, self.stage_member.device, Tasks(group))
        self.shadows = ShadowKeeper(
            context, self.stage_member.replica_state, self.stage_member.device, self.stage_member.activation_log
        )
        self.stage_member.after_step = self._after_step
        self._coordination = Tasks(group)
        self.ending = RunEnd(context, self.stage_member, self.tasks, self.snapshots)
        self.access_control = AccessControl(context, self.stage_member, lambda: self.coordinator)
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Start all background work: serve calls, announce this peer, look for a place."""
        self.context.handler = self.context.ports.network.serve(self.handle, self.access_control.standing_of)
        here = self.context.here
        self.context.tell(Started(here.member.peer_id, here.member.incarnation, here.addresses[0]))
        self.tasks.start(self.stage_member.device.serve(), "device")
        self.tasks.start(self.stage_member.keep(), "stage_member")
        self.tasks.start(self._announce(), "announce")
        self.tasks.start(self._count_ticks(), "ticks")
        self.tasks.start(self.stage_member.activation_log.serve(), "activation log")
        self.tasks.start(self.keeper.keep(), "keeper of the ends")
        self.tasks.start(self.shadows.keep(), "keeper of shadows")
        self.tasks.start(self.shadows.keep_own(), "own shadows")
        self.tasks.start(self.snapshots.keep(), "snapshots")
        self.tasks.start(self.uploader.keep(), "upload of snapshots")
        self.tasks.start(self.fetcher.keep(), "fetch of a snapshot")
        self.tasks.start(keep_room(self.context, self.stage_member.replica_state, self.stage_member.device), "room for a stage")
        self.tasks.start(self._join(), "join")
        self.tasks.start(self._leave_if_left_over(), "look for a pause")

    def _after_step(self) -> None:
        self.shadows.after_step()
        self.snapshots.after_step()

    async def _load(self, founder: Founder | None) -> None:
        """Hold what lies on this peer's disk: what the genesis names, else the newest that is no
        later; a Build ends that.
        """
        held = self.snapshots.held()
        if founder is not None:
            where = founder.iteration, founder.lineage
            held = tuple(
                sorted(
                    (one for one in held if one.iteration <= founder.iteration),
                    key=lambda one: (one.iteration, one.lineage) != where,
                )
            )
        if held:
            await self.builder.load(partial(self.snapshots.load, held))

    def everything(self) -> tuple[Tasks, ...]:
        """List all background work, to be cancelled at the end."""
        return (self.tasks, self._coordination, self._building, self._keeping, self.keeper.tasks, *self.stage_member.everything())

    def end(self, end: End) -> None:
        """End this peer; the first reason given counts."""
        if not self.ended.done():
            self.ended.set_result(end)

    async def handle(self, header: Header, request: Request, incoming: Incoming) -> Reply:
        """Answer one call.

        Raises:
            Refused: no.
        """
        await self.access_control.require(header.sender.member, request)
        stage_member = self.stage_member
        match request:
            case Train():
                return await stage_member.stage_replica.train(request, incoming)
            case Loss():
                return await stage_member.source.loss(request, incoming)
            case Pull():
                return await stage_member.stage_replica.pull(request)
            case Redo():
                return await stage_member.stage_replica.redo(request)
            case Reduce():
                return await stage_member.averaging.reduce(header.sender.member, request, incoming)
            case TakeRoll():
                return await stage_member.averaging.take(request)
            case GetAverage():
                return await stage_member.averaging.get_average(request)
            case GetAccount():
                return await stage_member.auditor.account(request)
            case Audit():
                return await stage_member.auditor.audit(request)
            case GetContribution():
                return await stage_member.auditor.contribution(request)
            case _:
                return await self._handle_books(header, request)

    async def _handle_books(self, header: Header, request: BooksRequest) -> Reply:
        stage_member = self.stage_member
        match request:
            case Heartbeat():
                return await stage_member.heartbeat(header.sender, request)
            case Claim():
                return await stage_member.claim(header.sender, request)
            case Open():
                return await stage_member.open(header.sender, request)
            case Seal():
                reply = await stage_member.seal(request)
                self.keeper.look()
                stage_member.preparation.look()
                return reply
            case Commit():
                return await stage_member.commit(request, header.sender)
            case GetState(to_export=True):
                return await queries.get_state(stage_member, request, header.sender.member)
            case GetState(stage=stage) if stage == ENDS_STAGE and (
                stage_member.replica_state.stage != stage or self.keeper.has(request)
            ):
                return await self.keeper.get_state(request)
            case GetState():
                return await queries.get_state(stage_member, request, header.sender.member)
            case GetShadow():
                return await self.shadows.get(request)
            case GetRecord(lineage=lineage) if lineage:
                return Reply(RecordAnswer(await self.snapshots.record_of(lineage)))
            case GetRecord():
                return await queries.get_record(stage_member, request)
            case GetPlan():
                mine = self.coordinator
                told = (mine.last_move, mine.held_up) if mine is not None else ("", "", self.fetcher.fetching)
                return await queries.get_plan(stage_member, self.fetcher.offered(), *told)
            case Build():
                return await self.builder.build(header.sender, request)
            case Prepare():
                return await stage_member.preparation.prepare(request)
            case Hello():
                return Reply(await self._hello(header.sender, request))
            case Meet():
                return Reply(self._meet(header.sender, request))
            case GetManifest():
                return Reply(ManifestAnswer(), self.context.manifest.canonical())
            case Goodbye():
                return await self._goodbye(header.sender, request)
            case _:
                assert_never(request)

    async def _hello(self, sender: Endpoint, request: Hello) -> Place:
        self.context.incarnations.hear([sender.member])
        if self.coordinator is not None:
            return await self.coordinator.receive(sender, request)
        coordinator = self.stage_member.replica_state.coordinator
        led = coordinator is not None and self.stage_member.hears_coordinator
        if not led and self.stage_member.replica_state.stage != ABSENT and self.stage_member.replica_state.has_begun:
            choosing = "the run has begun, and its members are choosing a coordinator"
            raise Refused(RefusalKind.BEHIND, WAITS_FROM_DISK if self.stage_member.replica_state.is_from_disk else choosing)
        if coordinator is None or not led:
            raise Refused(RefusalKind.NOT_YET, "this peer hears no coordinator")
        return Place(coordinator, ABSENT, self.stage_member.waiting_for, accepted=False)

    def _meet(self, sender: Endpoint, request: Meet) -> Met:
        record = self.stage_member.replica_state.newest_record
        if self.coordinator is not None:
            record = self.coordinator.lead.decided
            theirs = Tip(request.forced, request.iteration, request.lineage)
            rival = Rival(theirs, request.term, sender, request.whole, record=request.record)
            self.coordinator.partition_merge.hear(rival)
        tip = Tip.of(record)
        leads = self.context.here if self.coordinator is not None else self.stage_member.replica_state.coordinator
        promised = self.stage_member.replica_state.promised
        term = self.coordinator.lead.term if self.coordinator is not None else promised.term if promised is not None else None
        whole = self.coordinator is not None and self.coordinator.is_whole()
        past = self.coordinator.lead.past if self.coordinator is not None else self.stage_member.replica_state.past
        follows = request.lineage != tip.lineage and past.get(request.iteration) == request.lineage
        hears = self.stage_member.hears_coordinator
        return Met(tip.iterations, tip.lineage, tip.forced, leads if hears else None, term, whole, follows, record)

    async def _goodbye(self, sender: Endpoint, request: Goodbye) -> Reply:
        match request.purpose:
            case EndRun(finished=finished, paused=paused):
                mine = self.coordinator
                if mine is not None and await mine.partition_merge.loses_to(sender):
                    # Its own swarm follows nobody else
                    await end_run(self.context, mine.roster, (), (), request.why, paused=paused)
                else:
                    self.ending.require_lead(sender)
                if request.all_written:
                    self.ending.hear_all_written()
                end = await self._end_of_pause(request.why) if paused else End(0 if finished else 1, request.why)
                if end is None:
                    raise Refused(RefusalKind.FAILED, "what this peer holds lies on no disk yet")
                self.end(end)
            case WriteWeights(all_written=all_written):
                self.ending.require_lead(sender)
                if all_written:
                    return self.ending.hear_all_written()
                return await self.ending.write()
            case JoinOther(successor=successor):
                await self.stage_member.rejoin(sender, successor)
            case FollowSuccessor(successor=successor):
                self.stage_member.name_successor(sender, successor.member)
            case ReleaseMember():
                if self.coordinator is None:
                    raise Refused(RefusalKind.NOT_YET, "this peer does not coordinate")
                await self.coordinator.release(sender)
            case _ as purpose:
                assert_never(purpose)
        return Reply(Farewell())

    async def leave(self) -> None:
        """Leave without harm, then end.

        The peer hands over the lead, finishes its work, and hands over or writes a stage that it
        alone may hold.
        """
        waits = self.context.backoff_s()
        if self.coordinator is not None:
            await self.coordinator.roster.hand_over(is_sound=True)
        wait_s = self.context.timing.leave_s if self.stage_member.replica_state.stage != ABSENT else 0.0
        until_s = self.context.now_s() + wait_s
        while self.context.now_s() < until_s:
            request = Goodbye(run_over=False, finished=False, why="this peer leaves")
            coordinator = self.stage_member.replica_state.coordinator
            if coordinator is None or coordinator.member == self.context.me:
                if self.stage_member.replica_state.plan is None:
                    break  # never had a place
                await asyncio.sleep(next(waits))
                continue
            try:
                async with asyncio.timeout(max(0.1, until_s - self.context.now_s())):
                    await self.context.call(coordinator, request)
                break
            except (CallFailed, TimeoutError):
                await asyncio.sleep(next(waits))
        # The run is not over; else this may be the last that can write the stage
        with contextlib.suppress(Refused):
            await self.ending.write()
        self.end(End(0, "left"))

    async def _leave_if_left_over(self) -> None:
        while True:
            await wait_until_left_over(self.context, self.stage_member, lambda: self.coordinator is not None)
            end = await self._end_of_pause(f"{PAUSED}, while this peer was away: {GO_ON}")
            if end is not None and not self.stage_member.hears_coordinator:
                break  # nobody has led it while it wrote
        self.end(end)

    async def _end_of_pause(self, why: str) -> End | None:
        """How this peer leaves in a pause; None while what it holds may lie on no disk. A peer
        whose disk refuses stays, and tries again, but not for ever: those that come back take it
        for one that goes on.
        """
        if await self.snapshots.keep_now() or self.ending.is_on_a_disk:
            return End(0, why, paused=True)
        now_s, lineage = self.context.now_s(), self.stage_member.replica_state.lineage
        of, until_s = self._stays
        self._stays = (of, until_s) if of == lineage else (lineage, now_s + STAYS_S)
        return End(1, f"{why}; {NOWHERE}", paused=True) if now_s >= self._stays[1] else None

    async def _count_ticks(self) -> None:
        try:
            await self.membership.count_ticks()
        except DeviceStuck as error:
            self.end(End(1, str(error), stuck=True))

    async def _join(self) -> None:
        try:
            await self.membership.keep()
        except RunEnded as error:
            self.end(End(3, str(error)))
        except Excluded as error:
            self.end(End(4, str(error)))

    def _make_coordinator(self, inherited: Takeover | None) -> Coordinator:
        return Coordinator(self.context, self._coordination, inherited, self.membership.genesis)

    async def _lead(self, inherited: Takeover | None) -> None:
        """Coordinate until the run is over or this peer leads no longer."""
        self.coordinator = coordinator = self._make_coordinator(inherited)
        if inherited is None:
            # Who founds does not stand by: it alone decides on the first iteration, and only
            # members decide.
            coordinator.hello(self.context.here, replace(self.membership.hello(), standby=False))
        else:
            self.context.tell(TookOver(inherited.term.number, inherited.iteration, len(inherited.promises), inherited.forced))
        try:
            why = await coordinator.run()
        except Diverged as diverged:
            self.end(End(1, str(diverged)))
            return
        except Excluded as excluded:
            self.end(End(4, str(excluded)))
            return
        except Deposed as deposed:
            self.context.tell(Note(f"coordinates no longer: {deposed}"))
            return
        finally:
            self.coordinator = None
            self.stage_member.lose_coordinator()
        end = None if coordinator.has_paused else End(0, why)
        while end is None:
            end = await self._end_of_pause(why)
            if self.stage_member.hears_coordinator:
                return  # somebody goes on, and needs what is held here
            if end is None:
                await asyncio.sleep(self.context.timing.silence_s)  # nobody is led meanwhile, and this peer claims nothing
        self.end(end)

    async def _announce(self) -> None:
        """Keep announcement and papers up to date; at once when its place changes, the run begins
        or ends, or a neighbour is lost.
        """
        timing, replica_state = self.context.timing, self.stage_member.replica_state
        stage_told, lineage_told, announced_s, published_s = ABSENT - 1, "", -math.inf, -math.inf
        phase_told = (False, False)
        while True:
            now_s = self.context.now_s()
            is_wanted = lineage_told != replica_state.lineage == replica_state.wanted
            # Others found nothing as soon as they know; who watches learns the end, or the pause
            phase = replica_state.iteration > 0, replica_state.is_through
            if replica_state.stage != stage_told or phase != phase_told or is_wanted or now_s - announced_s >= timing.lease_s / 3:
                stage_told, lineage_told, announced_s = replica_state.stage, replica_state.lineage, now_s
                phase_told = phase
                await self.context.ports.directory.announce(self._announcement())
                self.has_announced = True
                continue  # it may have to be renewed by now
            if now_s - published_s >= timing.papers_lease_s / 3:
                await self.context.ports.directory.publish_run(timing.papers_lease_s)
                published_s = now_s
            await self.stage_member.replica_state.moved.wait(timing.lease_s / 3)

    async def announce_end(self) -> None:
        """Announce that all weights are written, where they are: nobody who is killed does, so who
        watches the run takes it for over by that.
        """
        if self.ending.is_all_written:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.context.timing.silence_s):
                    await self.context.ports.directory.announce(self._announcement())

    def _announcement(self) -> Announcement:
        replica_state, context = self.stage_member.replica_state, self.context
        record = replica_state.newest_record
        # Who holds a snapshot serves nothing with it yet
        stage = ABSENT if replica_state.is_from_disk else replica_state.stage
        state = PeerState.LEAVING if self.ending.is_all_written else PeerState.SERVING
        entry = record.stages[stage] if record is not None and stage != ABSENT else None
        return Announcement(
            endpoint=context.here,
            state=state if stage != ABSENT else PeerState.STANDBY,
            stage=stage,
            iteration=0 if replica_state.is_from_disk else replica_state.announced_iteration,
            lineage=GENESIS_LINEAGE if replica_state.is_from_disk else replica_state.lineage,
            squared_norm=entry.squared_norm if entry is not None else 0.0,
            seconds_per_microbatch=self.stage_member.stage_replica.seconds_per_microbatch,
            # Who stands by founds no run that others would: it offers to feed with its second word,
            # or once it knows of a coordinator.
            # A run that begins with given weights is founded by who has them
            can_feed=context.ports.tokens is not None
            and (
                not context.manifest.model.init_digests or context.ports.first_weights is not None or replica_state.iteration > 0
            )
            and (not context.local.standby or self.has_announced or replica_state.coordinator is not None),
            revision=PROTOCOL_REVISION,
            expires_s=context.ports.clock.wall_s() + context.timing.lease_s,
        )


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a process asks of its peer while that runs, and hears of it.

    Args:
        leave: once set, the peer leaves: within `leave_s`, and without harm where that is long
            enough.
        keep: whenever it is set, the weights of this peer's stage are written as they are then, and
            it is cleared.
        paused: set where the peer has ended since the run pauses.
        begun: called once with the peer that has begun, for whoever looks at it.
    """

    leave: asyncio.Event | None = None
    keep: asyncio.Event | None = None
    paused: asyncio.Event | None = None
    begun: Callable[[Peer], None] | None = None


NO_HOOKS = Hooks()


async def run_peer(ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks = NO_HOOKS) -> int:
    """Run one peer from its first announcement to the end of the run.

    Args:
        ports: the outside; the network must be up.
        manifest: of the run.
        local: this machine's choices.
        rng: randomness for back-off.
        hooks: of the process around it.

    Returns:
        0 when the run did all its iterations, was stopped or pauses, or this peer has left.

    Raises:
        DeviceStuck: this peer's device does not come back.
        SwarmfreeError: the weights that it was to write are not written, or training diverged.
        RunEnded: the run was over before this peer came, or a newer life of it has its place.
        Excluded: the swarm does not want this peer.
    """
    end = End(1, "never began")
    async with asyncio.TaskGroup() as group:
        peer = Peer(Context(ports, manifest, local, rng, manifest.fingerprint()), group)
        peer.start()
        if hooks.begun is not None:
            hooks.begun(peer)
        if hooks.leave is not None:
            peer.tasks.start(_leave_when_told(peer, hooks.leave), "leave")
        if hooks.keep is not None:
            peer.tasks.start(_keep_when_told(peer, hooks.keep), "keep weights")
        try:
            end = await asyncio.shield(peer.ended)
            if end.code == 0 and peer.ending.failure:
                end = End(1, peer.ending.failure)
            if end.paused and hooks.paused is not None:
                hooks.paused.set()
            if end.code == 0 and not end.paused:
                await peer.announce_end()
            peer.context.tell(Ended(end.code, end.why))
        finally:
            for tasks in peer.everything():
                tasks.close()
    if end.stuck:
        raise DeviceStuck(end.why)
    if end.code == 1:
        raise SwarmfreeError(end.why)
    if end.code == 3:
        raise RunEnded(end.why)
    if end.code == 4:
        raise Excluded(end.why)
    return end.code


async def _leave_when_told(peer: Peer, leave: asyncio.Event) -> None:
    await leave.wait()
    await peer.leave()


async def _keep_when_told(peer: Peer, keep: asyncio.Event) -> None:
    while True:
        await keep.wait()
        keep.clear()
        await peer.ending.keep()
