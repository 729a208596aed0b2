"""A host and its guests, each of which lives as the test says: when one begins, and what becomes of
its host when it ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from swarmfree.policy.planner.adoption import guest_bytes
from swarmfree.protocol.errors import DeviceStuck, PeerUnreachable, SwarmfreeError
from swarmfree.protocol.events import Event, Note
from swarmfree.protocol.local_config import LocalConfig
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.messages import Farewell, GetPlan, PlanAnswer
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint
from swarmfree.protocol.plan import Replica
from swarmfree.protocol.ports import Ports, Reply
from swarmfree.protocol.records import SetSplit
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer import guest
from swarmfree.trainer.guest import GUESTS_MAX, run_with_guest
from swarmfree.trainer.guest_room import GuestRoom
from swarmfree.trainer.peer import NO_HOOKS, End, Hooks
from tests.builders import make_ports, make_record
from tests.mutants.alone import ME, SIBLING, A, plan

T = TypeVar("T")
MANIFEST = Manifest()
NEEDED = guest_bytes(MANIFEST, 1)
AMPLE = 10 * max(guest_bytes(MANIFEST, stage) for stage in range(MANIFEST.stage_count))
LEAVE_S = MANIFEST.timing.leave_s


class Life:
    """One peer that does nothing but live.

    Attributes:
        room: what it offers a guest, and was asked for.
        standby, can_feed: as it was told to begin.
    """

    def __init__(self, ports: Ports, local: LocalConfig, hooks: Hooks, *, is_over: bool) -> None:
        self.ports, self.hooks, self.standby, self.can_feed = ports, hooks, local.standby, local.can_feed
        self.room, self.stage, self.is_over = GuestRoom(), ABSENT, is_over
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.tasks = SimpleNamespace(start=lambda work, _: work.close())

    @property
    def stage_member(self) -> object:
        """What a host looks at."""
        state = SimpleNamespace(stage=self.stage, is_over=self.is_over, newest_record=None)
        return SimpleNamespace(guest_room=self.room, replica_state=state)

    def end(self, end: End) -> None:
        """Implements `Peer.end`."""
        if not self.ended.done():
            self.ended.set_result(end)


class House:
    """A host, its room for guests, and all of them; implements `GuestPorts` and `Journal`.

    Attributes:
        lives: those that have begun, the host first.
        opened: slot, whether it may feed, and memory of each guest that was begun.
        fails: what keeps the next guest from being opened.
    """

    def __init__(self, room_bytes: int, held: Mapping[int, int]) -> None:
        self.room_bytes, self.held_stages = room_bytes, held
        self.lives, self.opened, self.told = list[Life](), list[tuple[int, bool, int]](), list[Event]()
        self.fails: Exception | None = None
        self.is_over = False
        self.hooks = NO_HOOKS

    @property
    def host(self) -> Life:
        """The host."""
        return self.lives[0]

    def ask(self, stage: int) -> None:
        """The host's coordinator asks for a guest."""
        self.host.room.ask(stage)

    def tell(self, event: Event) -> None:
        """Implements `Journal.tell`."""
        self.told.append(event)

    def forget(self, slot: int) -> None:
        """Implements `GuestPorts.forget`."""

    def open(self, slot: int, *, can_feed: bool, needed_bytes: int) -> AbstractAsyncContextManager[Ports]:
        """Implements `GuestPorts.open`."""
        return self._open(slot, can_feed=can_feed, needed_bytes=needed_bytes)

    @asynccontextmanager
    async def _open(self, slot: int, *, can_feed: bool, needed_bytes: int) -> AsyncIterator[Ports]:
        self.opened.append((slot, can_feed, needed_bytes))
        if self.fails is not None:
            raise self.fails
        yield self.ports()

    def ports(self) -> Ports:
        """Of anybody here."""
        return make_ports(journal=self, guests=self, network=SimpleNamespace(here=ME))

    async def run_peer(self, ports: Ports, _m: Manifest, local: LocalConfig, _r: random.Random, hooks: Hooks = NO_HOOKS) -> int:
        """A life; in place of `trainer.peer.run_peer`."""
        life = Life(ports, local, hooks, is_over=self.is_over)
        self.lives.append(life)
        assert hooks.begun is not None
        hooks.begun(life)  # type: ignore[arg-type]
        end = await asyncio.shield(life.ended)
        if end.code:
            raise (DeviceStuck if end.stuck else SwarmfreeError)(end.why)
        return end.code

    def notes(self) -> str:
        """What operators read."""
        return "; ".join(event.text for event in self.told if isinstance(event, Note))


def play(
    monkeypatch: pytest.MonkeyPatch,
    story: Callable[[House], Awaitable[T]],
    *,
    room_bytes: int = AMPLE,
    held: Mapping[int, int] | None = None,
    hooks: Hooks = NO_HOOKS,
) -> T:
    """What comes of a story in a house, in virtual time; the host ends well after it."""

    async def main() -> T:
        house = House(room_bytes, held or {})
        monkeypatch.setattr(guest, "run_peer", house.run_peer)
        async with asyncio.TaskGroup() as group:
            living = group.create_task(run_with_guest(house.ports(), MANIFEST, LocalConfig("x"), random.Random(0), hooks))
            await asyncio.sleep(0.1)
            found = await story(house)
            for life in house.lives:
                life.end(End(0, "done"))
            await living
        return found

    return run_virtual(main)


def test_a_guest_comes_for_each_stage_that_is_asked_for_up_to_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other: while one has no stage yet, its host offers no room and takes in no
    other one; each stands by, and only one for the ends gets the text.
    """

    async def story(house: House) -> list[int]:
        rooms = [house.host.room.room_bytes()]
        for count, stage in enumerate((2, ENDS_STAGE, 3, 1)):
            house.ask(stage)
            await asyncio.sleep(0.1)
            rooms.append(house.host.room.room_bytes())
            house.ask(1)
            await asyncio.sleep(20.0)
            if count < GUESTS_MAX:
                house.lives[-1].stage = stage
        assert [life.standby for life in house.lives] == [False, True, True, True]
        assert [life.can_feed for life in house.lives[1:]] == [False, True, False]
        assert house.opened == [(slot, s == ENDS_STAGE, guest_bytes(MANIFEST, s)) for slot, s in enumerate((2, ENDS_STAGE, 3))]
        return rooms

    assert play(monkeypatch, story) == [AMPLE, 0, 0, 0, 0]


def test_a_guest_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is nobody's guest."""

    async def story(house: House) -> list[str]:
        house.ask(2)
        await asyncio.sleep(0.1)
        return [life.room.host for life in house.lives]

    assert play(monkeypatch, story) == ["", ME.member.peer_id]


@pytest.mark.parametrize("failure", [OSError("none is left"), RuntimeError("none is left"), SwarmfreeError("none is left")])
def test_a_stage_is_asked_for_again_where_its_guest_has_ended(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """One whose guest serves it is not; one whose guest has ended, or could not begin, is after
    five seconds, and the slot is free again.
    """

    async def story(house: House) -> list[int]:
        house.fails, counts = failure, list[int]()
        house.ask(2)
        await asyncio.sleep(0.1)
        house.fails = None
        for wait_s in (0.0, 4.5, 1.0):
            await asyncio.sleep(wait_s)
            counts.append(len(house.opened))
        house.lives[1].stage = 2
        await asyncio.sleep(30.0)
        counts.append(len(house.opened))
        house.lives[1].end(End(0, "others serve all stages"))
        await asyncio.sleep(5.5)
        counts.append(len(house.opened))
        assert {slot for slot, _, _ in house.opened} == {0}
        assert "its guest has ended: none is left" in house.notes()
        return counts

    assert play(monkeypatch, story) == [1, 1, 2, 2, 3]


def test_a_guest_that_got_another_stage_does_not_count_for_the_one_it_came_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken in for stage 3, and stage 1 was lost meanwhile: asked for stage 3 once more, its
    host takes in another one, since no other peer may have room.
    """

    async def story(house: House) -> list[tuple[int, bool, int]]:
        house.ask(3)
        await asyncio.sleep(1.0)
        house.lives[1].stage = 1
        await asyncio.sleep(6.0)
        return house.opened

    assert [slot for slot, _, _ in play(monkeypatch, story)] == [0, 1]


@pytest.mark.parametrize(("room_bytes", "count"), [(NEEDED - 1, 0), (NEEDED, 1)])
def test_memory_is_looked_at_when_a_guest_comes_and_when_one_comes_back(
    monkeypatch: pytest.MonkeyPatch, room_bytes: int, count: int
) -> None:
    """What the coordinator knows may be old, and so may be what an earlier life has left: what does
    not fit does not begin, and of a snapshot that is not used for that a line is told.
    """

    async def ask(house: House) -> int:
        house.ask(1)
        await asyncio.sleep(1.0)
        return len(house.opened)

    async def come_back(house: House) -> int:
        assert ("snapshot of stage 1 is not used" in house.notes()) is (count == 0)
        return len(house.opened)

    assert play(monkeypatch, ask, room_bytes=room_bytes) == count
    assert play(monkeypatch, come_back, room_bytes=room_bytes, held={2: 1}) == count


def test_a_device_that_hangs_in_a_guest_s_work_ends_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share its thread, so the host would wait for ever, and count nothing of that as its own
    work; what else ends a guest leaves its host alone.
    """

    async def story(house: House, end: End) -> None:
        house.ask(1)
        await asyncio.sleep(1.0)
        house.lives[1].end(end)
        await asyncio.sleep(1.0)

    async def fall(house: House) -> bool:
        await story(house, End(1, "out of memory"))
        return house.host.ended.done()

    assert not play(monkeypatch, fall)
    with pytest.raises(ExceptionGroup) as failed:
        play(monkeypatch, lambda house: story(house, End(1, "the device is stuck", stuck=True)))
    assert failed.group_contains(DeviceStuck, match="the device is stuck")


def test_a_guest_that_cannot_end_well_is_a_failure_of_its_host_once_the_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only one that has its stage's weights."""

    async def story(house: House) -> None:
        house.is_over = True
        house.ask(1)
        await asyncio.sleep(1.0)
        house.lives[1].end(End(1, "its disk is full"))
        await asyncio.sleep(1.0)

    with pytest.raises(ExceptionGroup) as failed:
        play(monkeypatch, story)
    assert failed.group_contains(SwarmfreeError, match="its guest: its disk is full")


@pytest.mark.parametrize(("after_s", "waited_s"), [(3.0, 3.0), (10 * LEAVE_S, LEAVE_S)])
def test_a_host_that_ends_well_waits_for_its_guests_as_for_whoever_leaves(
    monkeypatch: pytest.MonkeyPatch, after_s: float, waited_s: float
) -> None:
    """They were told the same; longer than `leave_s` nobody waits."""

    async def main() -> float:
        house, loop = House(AMPLE, {0: 2}), asyncio.get_running_loop()
        monkeypatch.setattr(guest, "run_peer", house.run_peer)
        async with asyncio.TaskGroup() as group:
            living = group.create_task(run_with_guest(house.ports(), MANIFEST, LocalConfig("x"), random.Random(0)))
            await asyncio.sleep(0.1)
            house.lives[1].stage = 2
            begun_s = loop.time()
            loop.call_later(after_s, lambda: house.lives[1].end(End(0, "left")))
            house.host.end(End(0, "left"))
            await living
        return loop.time() - begun_s

    assert run_virtual(main) == pytest.approx(waited_s, abs=0.01)


def test_what_asks_the_host_asks_its_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    """To leave, and to keep weights, each as often as it is said; who is about to leave takes in
    nobody.
    """
    leave, keep = asyncio.Event(), asyncio.Event()

    async def story(house: House) -> None:
        house.ask(1)
        await asyncio.sleep(0.1)
        keeps = [life.hooks.keep for life in house.lives]
        assert len(keeps) == 2
        for _ in range(2):
            keep.set()
            await asyncio.sleep(0.1)
            for each in keeps:
                assert each is not None and each is not keep and each.is_set()
                each.clear()
        assert all(life.hooks.leave is leave for life in house.lives)
        house.lives[1].stage = 1
        assert house.host.room.room_bytes() == AMPLE
        leave.set()
        assert house.host.room.room_bytes() == 0

    play(monkeypatch, story, hooks=Hooks(leave, keep))


class Guest:
    """What a guest knows of itself, as the test says; a coordinator answers what it asks.

    Attributes:
        replaced: the coordinator's plan names another one in its place.
        others_live: that one is there.
        has_plan: the coordinator has made one.
        forgotten, ended_s: what it kept was removed, and when it has ended.
    """

    def __init__(self, *, stage: int, is_named: bool, hears: bool, replaced: bool = False) -> None:
        self.replaced, self.forgotten, self.has_plan, self.others_live = replaced, False, True, True
        self.ended_s: float | None = None
        own = plan(1)
        self.replica_state = SimpleNamespace(stage=stage, plan=own if is_named else None, coordinator=A, iteration=0)
        self.stage_member = SimpleNamespace(replica_state=self.replica_state, hears_coordinator=hears)
        self.context = SimpleNamespace(me=ME.member, here=ME, call=self._call)
        self.builder = SimpleNamespace(making=None)
        self.coordinator: Leading | None = None
        self.asked = list[str]()

    async def _call(self, to: Endpoint, request: object) -> Reply:
        if to == SIBLING and not self.others_live:
            raise PeerUnreachable("nobody listens")
        assert to in {A, SIBLING}
        self.asked.append(type(request).__name__)
        told = plan(1)
        there = SIBLING if self.replaced else ME
        told = replace(told, replicas=(told.replicas[0], (Replica(there),), told.replicas[2]))
        return Reply(PlanAnswer(told if self.has_plan else None, "") if isinstance(request, GetPlan) else Farewell())

    def end(self, end: End) -> None:
        """Implements `Peer.end`."""
        assert end.code == 0
        self.ended_s = asyncio.get_running_loop().time()

    def forget(self) -> None:
        """What it kept is removed."""
        assert self.ended_s is None
        self.forgotten = True


class Leading:
    """A guest's own lead."""

    def __init__(self) -> None:
        self.done = list[str]()
        self.roster = SimpleNamespace(hand_over=self._hand_over)

    async def release(self, _: Endpoint) -> None:
        """Implements `Coordinator.release`."""
        self.done.append("released")

    async def _hand_over(self) -> None:
        self.done.append("handed over")


def lives(own: Guest, *, for_s: float = 200.0, then: Callable[[], None] = lambda: None, after_s: float = 0.0) -> Guest:
    """It lives for so long, or until it ends; something happens meanwhile."""

    async def main() -> None:
        asyncio.get_running_loop().call_later(after_s, then)
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await guest._stay_until_replaced(own, own.forget)  # type: ignore[arg-type]

    run_virtual(main)
    assert own.forgotten is (own.ended_s is not None)
    return own


@pytest.mark.parametrize(("hears", "ends_s"), [(True, 15.0), (False, 60.0)])
def test_a_guest_that_gets_no_stage_ends(*, hears: bool, ends_s: float) -> None:
    """It waits longer where nobody leads: whoever comes to lead may need it. What it builds is
    waited for, however long that takes.
    """
    own = lives(Guest(stage=ABSENT, is_named=False, hears=hears))
    assert own.ended_s == pytest.approx(ends_s, abs=1.5)
    building = Guest(stage=ABSENT, is_named=False, hears=hears)
    building.builder.making = object()
    lives(building, then=lambda: setattr(building.builder, "making", None), after_s=100.0)
    assert building.ended_s == pytest.approx(100.0 + ends_s, abs=1.5)


@pytest.mark.parametrize("hears", [True, False])
def test_a_guest_that_serves_stays_until_somebody_else_does(*, hears: bool) -> None:
    """It says goodbye again and again; where it hears nobody its plan may be over, and it says
    nothing, but stays with its stage.
    """
    assert lives(Guest(stage=1, is_named=True, hears=hears)).ended_s is None
    own = Guest(stage=1, is_named=True, hears=True)
    lives(own, then=lambda: setattr(own, "replaced", True), after_s=30.5)
    assert own.ended_s == pytest.approx(31.0)
    assert own.asked[:4] == ["Goodbye", "GetPlan"] * 2
    assert "Goodbye" not in lives(Guest(stage=1, is_named=True, hears=False)).asked


def test_a_guest_that_was_fenced_keeps_what_may_be_the_last_state() -> None:
    """Its plan does not name it any more: it asks each fifteen seconds whether somebody else serves
    its stage.
    """
    assert lives(Guest(stage=1, is_named=False, hears=True)).ended_s is None
    assert lives(Guest(stage=1, is_named=False, hears=True, replaced=True)).ended_s == pytest.approx(15.0, abs=1.5)
    unplanned = Guest(stage=1, is_named=False, hears=True)
    unplanned.has_plan = False  # a successor has yet to make one
    assert lives(unplanned).ended_s is None
    lonely = Guest(stage=1, is_named=False, hears=True, replaced=True)
    lonely.others_live = False  # the plan is older than the loss for which the guest came
    assert lives(lonely).ended_s is None
    lonely = Guest(stage=1, is_named=False, hears=True, replaced=True)
    lonely.others_live, lonely.replica_state.iteration = False, -1  # they have gone on since, with others
    assert lives(lonely).ended_s is not None


def test_a_guest_that_leads_hands_over_once_it_is_released() -> None:
    """Where it leads no longer after its own release, as others serve all stages, there is nothing
    to hand over; it says no goodbye to itself.
    """
    own = Guest(stage=1, is_named=True, hears=False)
    own.coordinator = lead = Leading()
    lives(own, for_s=0.5)
    assert lead.done == ["released", "handed over"]
    assert not own.asked
    assert own.ended_s is None


def test_a_guest_needs_what_its_stage_has_by_now() -> None:
    """As the last record cuts it: a host with room for what the stage had when the run began takes
    it with fewer blocks, and not with more.
    """
    first = len(MANIFEST.blocks_of(1))
    for blocks, fits in ((first + 1, False), (first, True), (0, True)):
        record = make_record(split=SetSplit((blocks, *(MANIFEST.split.counts[1:])), 1))
        host = guest._Host.__new__(guest._Host)
        host._manifest, host._guests = MANIFEST, cast("Any", SimpleNamespace(room_bytes=NEEDED))
        state = SimpleNamespace(newest_record=record)
        host._peer = cast("Any", SimpleNamespace(stage_member=SimpleNamespace(replica_state=state)))
        assert host._fits(1) is fits
