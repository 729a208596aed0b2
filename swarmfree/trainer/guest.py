"""A guest: a second member in this peer's process, for a stage that everybody else has left.

It is a peer like any other, with a name, a life and a folder of its own. It comes as a standby, is
given the lost stage, and says goodbye as soon as it serves it: by the rules for whoever leaves as
the last of its stage, it stays until somebody else has its state. It ends with its host.
Source: decision 20.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from swarmfree.policy.block_split import split_after
from swarmfree.policy.planner.adoption import GUEST_WAIT_S, guest_bytes
from swarmfree.protocol.errors import CallFailed, DeviceStuck, Refused, SwarmfreeError
from swarmfree.protocol.events import Note
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import GetPlan, Goodbye, PlanAnswer
from swarmfree.protocol.names import ABSENT, ENDS_STAGE
from swarmfree.protocol.ports import GuestPorts, Ports
from swarmfree.trainer.guest_room import GuestRoom
from swarmfree.trainer.peer import NO_HOOKS, End, Hooks, Peer, run_peer
from swarmfree.trainer.tasks import Signal, Tasks

ALONE_S = 60.0
"""Who has no state and hears no coordinator for so long is of no use."""
AGAIN_S = 5.0
"""So often it is looked whether the guest that was asked for is still there."""
GUESTS_MAX = 3
"""Of one host, as far as there is memory."""
LOOK_S = 1.0


async def run_with_guest(
    ports: Ports, manifest: Manifest, local: LocalConfig, rng: random.Random, hooks: Hooks = NO_HOOKS
) -> int:
    """Run one peer as `run_peer` does, and guests beside it whenever its coordinator asks for one.

    Args:
        ports: the outside; where its `guests` is None no guest comes.
        manifest, local, rng, hooks: see `run_peer`; what asks the host to leave, or to keep its
            weights, asks its guests as well.

    Returns:
        What `run_peer` returns for the host.

    Raises:
        SwarmfreeError: see `run_peer`; also where the run is over, and a guest could not write its
            stage.
    """
    if ports.guests is None:
        return await run_peer(ports, manifest, local, rng, hooks)
    failure: SwarmfreeError | None = None
    code = 0
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group)
        host = _Host(ports, ports.guests, manifest, local, rng, hooks)

        def begin(peer: Peer) -> None:
            host.begin(peer, tasks)
            if hooks.begun is not None:
                hooks.begun(peer)

        try:
            own = replace(hooks, keep=host.share(hooks.keep, tasks), begun=begin)
            code = await run_peer(ports, manifest, local, rng, own)
        except SwarmfreeError as error:
            failure = error
        else:
            await host.settle()
        tasks.close()
    if failure is not None:
        raise failure
    if host.failure:
        raise SwarmfreeError(host.failure)
    return code


class _Host:
    """Takes in guests, each in a slot of its own.

    A device that is stuck in a guest's piece of work is stuck for the host as well: it ends.

    Attributes:
        failure: what kept a guest from ending well, where the run is over.
    """

    def __init__(
        self,
        ports: Ports,
        guests: GuestPorts,
        manifest: Manifest,
        local: LocalConfig,
        rng: random.Random,
        hooks: Hooks,
    ) -> None:
        self._ports, self._guests, self._manifest, self._local, self._rng = ports, guests, manifest, local, rng
        self._hooks = hooks
        self._room = GuestRoom()
        self._peer: Peer | None = None
        self._there: dict[int, Peer | None] = {}
        self._stages: dict[int, int] = {}  # slot -> what its guest was taken in for
        self._keeps: dict[int, asyncio.Event] = {}
        self._changed = Signal()
        self._is_ending = False
        self.failure = ""

    def share(self, keep: asyncio.Event | None, tasks: Tasks) -> asyncio.Event | None:
        """What the host waits for in place of `keep`, so that its guests are asked with it."""
        if keep is None:
            return None
        own = asyncio.Event()

        async def pass_on() -> None:
            while True:
                await keep.wait()
                keep.clear()
                for each in (own, *self._keeps.values()):
                    each.set()

        tasks.start(pass_on(), "keep weights of all")
        return own

    def begin(self, peer: Peer, tasks: Tasks) -> None:
        """The host is up; who lived here with it before is back with the state that it left."""
        self._room = peer.stage_member.guest_room
        self._room.room_bytes = lambda: self._guests.room_bytes if self._has_room else 0
        self._peer = peer
        for slot, stage in self._guests.held_stages.items():
            if self._fits(stage):
                self._start(slot, stage, tasks)
            else:
                self._ports.journal.tell(Note(f"has no memory for its guest, whose snapshot of stage {stage} is not used"))
        tasks.start(self._watch(tasks), "guests")

    async def settle(self) -> None:
        """The host has ended well: its guests, that were told the same, do so now; nobody waits for
        them longer than for whoever leaves.
        """
        self._is_ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._manifest.timing.leave_s):
                while self._there:
                    await self._changed.wait()

    @property
    def _has_room(self) -> bool:
        """Whether a slot is free, and nobody waits for a stage here."""
        leave = self._hooks.leave
        is_about_to_end = self._is_ending or (leave is not None and leave.is_set())
        return not is_about_to_end and len(self._there) < GUESTS_MAX and not any(map(_waits, self._there.values()))

    def _fits(self, stage: int) -> bool:
        """Whether there is memory for it; what the coordinator knows may be old."""
        return self._guests.room_bytes >= self._needed_bytes(stage)

    def _needed_bytes(self, stage: int) -> int:
        """As the model is cut by the last record that the host knows."""
        record = self._peer.stage_member.replica_state.newest_record if self._peer is not None else None
        return guest_bytes(self._manifest, stage, split_after(record, self._manifest))

    def _is_served(self, stage: int) -> bool:
        """Whether a guest is here for this stage: one that has another one by now is not."""
        return stage in {
            self._stages[slot] if guest is None or _waits(guest) else guest.stage_member.replica_state.stage
            for slot, guest in self._there.items()
        }

    async def _watch(self, tasks: Tasks) -> None:
        """Take in a guest for whatever stage the coordinator asks for, once, and again where that
        one has ended meanwhile.
        """
        while True:
            await self._room.told.wait(None if self._room.asked == ABSENT else AGAIN_S)
            asked = self._room.asked
            if asked != ABSENT and not self._is_served(asked) and self._has_room and self._fits(asked):
                self._start(next(slot for slot in range(GUESTS_MAX) if slot not in self._there), asked, tasks)

    def _start(self, slot: int, stage: int, tasks: Tasks) -> None:
        self._there[slot], self._stages[slot], self._keeps[slot] = None, stage, asyncio.Event()
        tasks.start(self._live(slot, stage), f"guest {slot}")

    async def _live(self, slot: int, stage: int) -> None:
        can_feed, needed_bytes = stage == ENDS_STAGE, self._needed_bytes(stage)
        local = replace(self._local, standby=True, can_feed=can_feed)
        tell, host = self._ports.journal.tell, self._ports.network.here.member.peer_id

        def begin(guest: Peer) -> None:
            self._there[slot] = guest
            guest.stage_member.guest_room.host = host
            guest.tasks.start(_stay_until_replaced(guest, partial(self._guests.forget, slot)), "guest")

        try:
            async with self._guests.open(slot, can_feed=can_feed, needed_bytes=needed_bytes) as ports:
                tell(Note(f"takes in a guest, {ports.network.here.member}, for a stage that everybody has left"))
                rng = random.Random(self._rng.getrandbits(64))
                await run_peer(ports, self._manifest, local, rng, replace(self._hooks, keep=self._keeps[slot], begun=begin))
        except DeviceStuck as error:
            if self._peer is not None:
                self._peer.end(End(1, str(error), stuck=True))  # its thread is the host's, too
        except (SwarmfreeError, OSError, RuntimeError) as error:  # no thread or file is left: its host lives on
            tell(Note(f"its guest has ended: {error}"))
            guest = self._there[slot]
            if guest is not None and guest.stage_member.replica_state.is_over:
                self.failure = f"its guest: {error}"
        finally:
            del self._there[slot], self._stages[slot], self._keeps[slot]
            self._changed.tell()


def _waits(guest: Peer | None) -> bool:
    """Whether a guest is not up yet, or has no stage yet."""
    return guest is None or guest.stage_member.replica_state.stage == ABSENT


async def _stay_until_replaced(guest: Peer, forget: Callable[[], None]) -> None:
    """Serve a stage until somebody else does, then end; end as well where none is given."""
    replica_state, idle_s = guest.stage_member.replica_state, 0.0
    while True:
        if _serves(guest):
            idle_s = 0.0
            if await _is_let_go(guest):
                break
        elif guest.builder.making is not None:
            idle_s = 0.0
        elif idle_s >= (GUEST_WAIT_S if guest.stage_member.hears_coordinator else ALONE_S):
            if replica_state.stage == ABSENT or await _is_replaced(guest):
                break
            idle_s = 0.0
        await asyncio.sleep(LOOK_S)
        idle_s += LOOK_S
    forget()
    guest.end(End(0, "others serve all stages"))


def _serves(guest: Peer) -> bool:
    """Whether the plan in force, of whoever is heard, names it."""
    plan = guest.stage_member.replica_state.plan
    is_led = guest.coordinator is not None or guest.stage_member.hears_coordinator
    return is_led and plan is not None and plan.stage_of(guest.context.me) is not None


async def _is_let_go(guest: Peer) -> bool:
    """Say goodbye, as whoever leaves, but stay for however long it takes; whether somebody else
    serves the stage now. One that leads hands over the lead then.
    """
    coordinator, me = guest.stage_member.replica_state.coordinator, guest.context.me
    if guest.coordinator is not None:
        with suppress(Refused):
            await guest.coordinator.release(guest.context.here)
            if guest.coordinator is not None:
                await guest.coordinator.roster.hand_over()
        return False
    if coordinator is None or coordinator.member == me:
        return False
    why = "a guest stays until somebody else serves its stage"
    try:
        await guest.context.call(coordinator, Goodbye(run_over=False, finished=False, why=why))
    except CallFailed:
        return False
    return await _is_replaced(guest)


async def _is_replaced(guest: Peer) -> bool:
    """Whether others serve its stage, by the plan of whoever leads, and one of them is there: a
    guest that was fenced is let go as well, and may hold the last state, and the plan may be older
    than the loss for which it came.
    """
    replica_state, me = guest.stage_member.replica_state, guest.context.me
    if replica_state.coordinator is None or replica_state.coordinator.member == me or replica_state.stage == ABSENT:
        return False
    try:
        told = (await guest.context.call(replica_state.coordinator, GetPlan())).expect(PlanAnswer)
    except CallFailed:
        return False
    if told.plan is None:
        return False
    others = [replica.endpoint for replica in told.plan.replicas[replica_state.stage]]
    if any(other.member == me for other in others):
        return False
    if told.plan.iteration > replica_state.iteration:
        return bool(others)  # they have gone on with those
    for other in others:
        with suppress(CallFailed):
            await guest.context.call(other, GetPlan())
            return True
    return False
