"""What a peer fetches from the store, and what it tells of meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.resume import SnapshotSet
from swarmfree.policy.snapshot_store import is_needed
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.messages import HeldSnapshot, PlanAnswer
from swarmfree.protocol.names import ABSENT
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.snapshot_fetcher import HOPELESS_S, LOOKS_UP_S, SnapshotFetcher

MayReplace = Callable[[], Awaitable[None]]
L = "a" * 64
OLD, NEW = HeldSnapshot(1, 10, L), HeldSnapshot(1, 20, L)


class World:
    """One peer that feeds, of a run of two stages, and another one as it answers."""

    def __init__(self, mine: tuple[HeldSnapshot, ...], stored: tuple[HeldSnapshot, ...]) -> None:
        self.disk, self.there, self.told = list(mine), list(stored), list[str]()
        self.said = list[HeldSnapshot | None]()
        self.fetched, self.refuses, self.loaded, self.now_s = list[HeldSnapshot](), "", 0, 0.0
        self.other, self.crowd = PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 20, L),)), 0
        timing = SimpleNamespace(silence_s=2.0, join_wait_s=60.0)
        self.ports = ports = SimpleNamespace(snapshot_store=self, directory=self, network=self, tokens=None)
        context = SimpleNamespace(
            ports=ports,
            timing=timing,
            manifest=SimpleNamespace(stage_count=2),
            me=SimpleNamespace(peer_id="me"),
            now_s=lambda: self.now_s,
            tell=lambda event: self.told.append(event.text),
            rng=random.Random(0),
        )
        self.state = SimpleNamespace(coordinator=None, stage=ABSENT, is_from_disk=False)
        self.member = member = SimpleNamespace(replica_state=self.state, hears_coordinator=False)
        keeper = SimpleNamespace(held=lambda: tuple(self.disk), arrived=self.disk.append)
        self.fetcher = SnapshotFetcher(cast("Any", context), cast("Any", member), cast("Any", keeper), self.load)

    where = "s3://bucket"

    async def load(self, _: object) -> None:
        """Hold it."""
        self.loaded += 1

    async def stored(self) -> tuple[HeldSnapshot, ...]:
        """What is there."""
        if self.refuses:
            raise SwarmfreeError(self.refuses)
        return tuple(self.there)

    async def fetch(self, held: HeldSnapshot, _may: MayReplace) -> None:
        """Bring it to the disk."""
        self.fetched.append(held)
        self.said.append(self.fetcher.fetching)
        if held not in self.there:
            raise SwarmfreeError("it is not what was uploaded")

    async def announcements(self) -> list[Any]:
        """The other one, and as many more."""
        members = [SimpleNamespace(peer_id=f"other{number or ''}") for number in range(1 + self.crowd)]
        return [SimpleNamespace(endpoint=SimpleNamespace(member=member), can_feed=True) for member in members]

    async def call(self, *_: object, **__: object) -> Any:
        """What it says."""
        return SimpleNamespace(expect=lambda _: self.other)


async def test_what_no_disk_has_is_fetched_and_held() -> None:
    """After a second look that finds all as it was; the older one on the disk is told of no more
    until then.
    """
    world = World((OLD,), (NEW, OLD))
    assert world.fetcher.offered() == (OLD,)
    await world.fetcher._look()
    assert not world.fetched, "others may be about to come"
    await world.fetcher._look()
    assert (world.fetched, world.loaded) == ([NEW], 1)
    assert world.fetcher.offered() == (NEW,)
    assert (world.said, world.fetcher.fetching) == ([NEW], None)
    assert world.told == ["fetches stage 1 before iteration 20 from s3://bucket"]


async def test_while_somebody_leads_nothing_is_fetched() -> None:
    """Nor where somebody may lead by its plan."""
    world = World((OLD,), (NEW,))
    world.other = PlanAnswer(cast("Any", object()), "", None, 3)
    for _ in range(3):
        await world.fetcher._look()
    assert not world.fetched
    assert world.fetcher.offered() == (OLD,)


async def test_what_cannot_be_fetched_leaves_what_there_is() -> None:
    """It is told of in one line, and what lies on the disk counts again after half of
    `join_wait_s`, whatever others tell meanwhile.
    """
    world = World((OLD,), (NEW,))
    await world.fetcher._look()
    world.there = [NEW]

    async def refused(held: HeldSnapshot, _may: MayReplace) -> None:
        world.fetched.append(held)
        raise SwarmfreeError("s3://bucket/x: it is not what was uploaded")

    world.fetch = refused  # type: ignore[method-assign]
    for now_s in (1.0, 2.0, 30.0, 31.0, 32.0, 90.0):
        world.now_s = now_s
        if now_s == 30.0:
            world.other = PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 20, L), HeldSnapshot(0, 10, L)))
        await world.fetcher._look()
        assert world.fetcher.offered() == ((OLD,) if now_s >= 31.0 else ())
    assert world.loaded == 0
    assert [line for line in world.told if "passed over" in line] == [
        "a snapshot is passed over: s3://bucket/x: it is not what was uploaded"
    ]
    assert len(world.told) == 2
    assert len(world.fetched) == 3, "not again at once"


async def looks_twice(world: World) -> None:
    """So that it fetches."""
    for _ in range(2):
        await world.fetcher._look()


@pytest.mark.parametrize("has_another", [False, True])
def test_what_nobody_needs_any_more_gives_way_to_what_is_missing(*, has_another: bool) -> None:
    """Only where there is something else to fetch: whoever has it now may be gone a moment later.
    It has not failed then.
    """
    ends = HeldSnapshot(0, 20, L)
    world, ended_s = World((), (ends, NEW) if has_another else (ends,)), list[float]()
    world.ports.tokens, world.other = object(), PlanAnswer(None, "")

    async def slow(held: HeldSnapshot, _may: MayReplace) -> None:
        world.fetched.append(held)
        world.other = PlanAnswer(None, "", snapshots=(ends,))
        try:
            await asyncio.sleep(600.0)
        finally:
            ended_s.append(asyncio.get_running_loop().time())

    world.fetch = slow  # type: ignore[method-assign]

    async def play() -> None:
        begun_s = asyncio.get_running_loop().time()
        await looks_twice(world)
        ended_s[:] = [one_s - begun_s for one_s in ended_s]
        await world.fetcher._look()

    run_virtual(play)
    assert [one.stage for one in world.fetched] == ([0, 1] if has_another else [0])
    assert world.loaded == 1
    assert ended_s[0] == (6.0 if has_another else 600.0)
    assert not any("passed over" in line for line in world.told)


ENDS, ENDS_LATER = HeldSnapshot(0, 20, L), HeldSnapshot(0, 30, L)


def fetched_meanwhile(world: World, tells: dict[float, tuple[HeldSnapshot, ...]], takes_s: float = 60.0) -> list[float]:
    """Fetches for so long; so many seconds after it began the other one tells of something else.
    How long each fetch lasted.
    """
    lasted_s = list[float]()

    async def slow(held: HeldSnapshot, may_replace: MayReplace) -> None:
        world.fetched.append(held)
        begun_s = asyncio.get_running_loop().time()
        try:
            while (second := asyncio.get_running_loop().time() - begun_s) < takes_s:
                world.other = PlanAnswer(None, "", snapshots=tells.get(second, world.other.snapshots))
                await asyncio.sleep(1.0)
            await may_replace()
        finally:
            lasted_s.append(asyncio.get_running_loop().time() - begun_s)

    world.fetch = slow  # type: ignore[method-assign]
    return lasted_s


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_later_set_that_can_be_had_goes_before_what_is_fetched(*, has_failed: bool) -> None:
    """Its other part has come to a disk meanwhile. Not while its own fetch has just failed."""
    world = World((), (NEW, HeldSnapshot(1, 30, L)))
    lasted_s = fetched_meanwhile(world, {5.0: (ENDS_LATER,)})
    world.fetcher._failed = {HeldSnapshot(1, 30, L): ("", 1.0 if has_failed else 0.0, 2.0)}
    run_virtual(lambda: looks_twice(world))
    assert world.fetched[0] == NEW
    assert lasted_s[0] == (60.0 if has_failed else 10.0), "three looks have found it"


def test_one_of_several_that_a_later_set_lacks_stops_no_fetch() -> None:
    """Nobody may be there for the others."""
    world = World((), (NEW, ENDS_LATER, HeldSnapshot(1, 30, L)))
    world.ports.tokens = object()
    world.there = [NEW]
    lasted_s = fetched_meanwhile(world, {})

    async def play() -> None:
        await world.fetcher._look()
        stored = (NEW, ENDS_LATER, HeldSnapshot(1, 30, L))
        await world.fetcher._fetch(NEW, stored)

    run_virtual(play)
    assert (world.fetched, lasted_s) == ([NEW], [60.0])


def test_what_fails_again_and_again_goes_after_what_has_not() -> None:
    """A disk may have no room for the ends, say; where nothing else is missing it is tried on."""
    later = HeldSnapshot(1, 30, L)
    world = World((), (NEW, later))
    world.fetcher._context.now_s = lambda: asyncio.get_running_loop().time()  # type: ignore[misc,assignment]
    world.other = PlanAnswer(None, "", snapshots=(ENDS_LATER, ENDS))

    async def full(held: HeldSnapshot, _may: MayReplace) -> None:
        world.fetched.append(held)
        if held == later:
            raise SwarmfreeError("disk full")
        world.disk.append(held)

    world.fetch = full  # type: ignore[method-assign]

    async def play() -> None:
        for _ in range(60):
            await world.fetcher._look()
            await asyncio.sleep(1.0)

    run_virtual(play)
    assert world.fetched[:4] == [later, later, later, NEW]
    assert later in world.fetched[4:], "the other one lies on the disk"


def test_what_has_failed_three_times_goes_first_again_once_it_may_be_tried() -> None:
    """The link was bad for 14 seconds, and the older one takes ten minutes."""
    later = HeldSnapshot(1, 30, L)
    world, begun_s = World((), (NEW, later)), list[tuple[int, float]]()
    world.fetcher._context.now_s = lambda: asyncio.get_running_loop().time()  # type: ignore[misc,assignment]
    world.other = PlanAnswer(None, "", snapshots=(ENDS_LATER, ENDS))

    async def fetch(held: HeldSnapshot, _may: MayReplace) -> None:
        now_s = asyncio.get_running_loop().time()
        begun_s.append((held.iteration, now_s))
        if held == NEW:
            await asyncio.sleep(600.0)
        elif now_s < 14.0:
            raise SwarmfreeError("a bad link")

    world.fetch = fetch  # type: ignore[method-assign]

    async def play() -> None:
        while not world.loaded:
            await world.fetcher._look()
            await asyncio.sleep(1.0)

    run_virtual(play)
    assert [iteration for iteration, _ in begun_s] == [30, 30, 30, 20, 30]
    assert 14.0 <= begun_s[-1][1] <= 14.0 + HOPELESS_S


@pytest.mark.parametrize("fetches", [False, True])
def test_another_that_has_the_same_keeps_it_where_it_fetches_nothing(*, fetches: bool) -> None:
    """Also one that comes later by name, as the first one has died."""
    world, names = keeper_of_ends(), ["a0"]
    world.ports.directory = SimpleNamespace(announcements=lambda: asyncio.sleep(0, _others(*names)))
    ended_s = list[float]()

    async def fetch(_: HeldSnapshot, may_replace: MayReplace) -> None:
        await asyncio.sleep(10.0)
        await may_replace()
        ended_s.append(asyncio.get_running_loop().time())

    world.fetch = fetch  # type: ignore[method-assign]

    async def play() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(looks_twice(world))
            await asyncio.sleep(5.0)
            names[:] = ["z0"]
            world.other = PlanAnswer(None, "", snapshots=(ENDS,), fetching=ENDS_LATER if fetches else None)
            await asyncio.sleep(25.0)
            world.other = PlanAnswer(None, "", snapshots=(ENDS,))

    run_virtual(play)
    assert (ended_s[0] >= 30.0) == fetches
    assert world.loaded == 1


def test_what_alone_is_missing_is_tried_on_however_often_it_has_failed() -> None:
    """There may be room, or a bucket, some day."""
    world = World((), (NEW,))
    world.there = []  # so that each fetch fails
    world.fetcher._context.now_s = lambda: asyncio.get_running_loop().time()  # type: ignore[misc,assignment]

    async def play() -> None:
        for _ in range(200):
            announced, _, offers = await world.fetcher._ask()
            if (held := world.fetcher._chosen(announced, offers, (NEW,))) is not None:
                await world.fetcher._fetch(held, (NEW,))
            await asyncio.sleep(1.0)

    run_virtual(play)
    assert len(world.fetched) == 7, "after 2, 4, 8, 16, 32 and 64 seconds"


@pytest.mark.parametrize("is_led_between", [False, True])
def test_a_later_set_stops_a_fetch_once_more_after_somebody_has_led(*, is_led_between: bool) -> None:
    """That was another resume."""
    world = World((), (NEW, HeldSnapshot(1, 30, L)))
    world.fetcher._gone_before.add(HeldSnapshot(1, 30, L))
    lasted_s = fetched_meanwhile(world, {5.0: (ENDS_LATER,)})

    async def play() -> None:
        world.state.coordinator, world.member.hears_coordinator = object(), is_led_between
        async with asyncio.TaskGroup() as group:
            kept = group.create_task(world.fetcher.keep())
            await asyncio.sleep(1.5)
            kept.cancel()
        world.state.coordinator = None
        await looks_twice(world)

    run_virtual(play)
    assert lasted_s[0] == (10.0 if is_led_between else 60.0)


def test_a_later_set_that_is_there_in_single_looks_stops_no_fetch() -> None:
    """Three running have to find it."""
    world = World((), (NEW, HeldSnapshot(1, 30, L)))
    tells = {second: (ENDS_LATER,) if second // 4 % 2 else (ENDS,) for second in (4.0 * turn for turn in range(1, 15))}
    lasted_s = fetched_meanwhile(world, tells)
    run_virtual(lambda: looks_twice(world))
    assert lasted_s == [60.0]


def test_who_has_left_a_fetch_for_a_later_set_goes_back_where_that_is_gone() -> None:
    """Its holder was on for a moment; and once alone, whatever comes and goes."""
    world = World((), (NEW, HeldSnapshot(1, 30, L)))
    lasted_s = fetched_meanwhile(world, {0.0: (ENDS_LATER,), 20.0: (ENDS,)}, 100.0)

    async def play() -> None:
        while not world.loaded and asyncio.get_running_loop().time() < 1000.0:
            await world.fetcher._look()
            await asyncio.sleep(1.0)

    run_virtual(play)
    assert [one.iteration for one in world.fetched] == [20, 30, 20]
    assert lasted_s == [6.0, 24.0, 100.0]


def test_a_later_set_whose_holder_comes_and_goes_stops_one_fetch_alone() -> None:
    """It would never end."""
    world = World((), (NEW, HeldSnapshot(1, 30, L)))
    comes = {5.0 + 20.0 * turn: (ENDS_LATER,) for turn in range(20)} | {10.0 + 20.0 * turn: (ENDS,) for turn in range(20)}
    lasted_s = fetched_meanwhile(world, comes, 100.0)

    async def play() -> None:
        while not world.loaded and asyncio.get_running_loop().time() < 1000.0:
            await world.fetcher._look()
            await asyncio.sleep(1.0)

    run_virtual(play)
    assert lasted_s[-1] == 100.0
    assert len(lasted_s) <= 3


@pytest.mark.parametrize(("back_s", "has_come"), [(1e9, False), (30.0, True)])
def test_a_last_copy_is_not_replaced(back_s: float, *, has_come: bool) -> None:
    """The other one that had the same has died; it may be back before the fetch has ended. Others
    wait no longer than `join_wait_s`, and this one as long as the run does not go on.
    """
    world, told = keeper_of_ends(), list[bool]()
    lasted_s = fetched_meanwhile(world, {0.0: (), back_s: (ENDS,)})

    async def play() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(looks_twice(world))
            for _ in range(10):
                await asyncio.sleep(59.0)
                told.append(world.fetcher.fetching == NEW)
            world.state.stage = 1

    run_virtual(play)
    assert (world.fetched, world.loaded) == ([NEW], int(has_come))
    assert told == [True, not has_come, *[False] * 8]
    assert (lasted_s == [60.0]) == has_come
    assert any("nobody else has what lies here" in line for line in world.told) == (not has_come)


@pytest.mark.parametrize("takes_s", [0.0, 1.0])
def test_who_has_the_same_is_looked_for_once_all_has_come(takes_s: float) -> None:
    """However soon that is: the other one has died as it came."""
    world = keeper_of_ends()
    lasted_s = fetched_meanwhile(world, {}, takes_s)

    async def play() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(looks_twice(world))
            while not world.fetched:
                await asyncio.sleep(0)
            world.other = PlanAnswer(None, "")
            await asyncio.sleep(100.0)
            assert not lasted_s
            world.other = PlanAnswer(None, "", snapshots=(ENDS,))

    run_virtual(play)
    assert world.loaded == 1


def keeper_of_ends() -> World:
    """One that has the ends, as another one has that comes after it, and is to fetch the rest."""
    world = World((ENDS,), (ENDS, NEW))
    world.ports.tokens, world.ports.directory = object(), SimpleNamespace(announcements=lambda: asyncio.sleep(0, _others("a0")))
    world.fetcher._context.now_s = lambda: asyncio.get_running_loop().time()  # type: ignore[misc,assignment]
    return world


def test_what_comes_once_another_has_the_same_again_is_taken() -> None:
    """It waits for that, for so long."""
    world = keeper_of_ends()
    lasted_s = fetched_meanwhile(world, {0.0: ()})

    async def play() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(looks_twice(world))
            await asyncio.sleep(80.0)
            assert not world.loaded
            world.other = PlanAnswer(None, "", snapshots=(ENDS,))

    run_virtual(play)
    assert world.loaded == 1
    assert 80.0 <= lasted_s[0] <= 80.0 + 2 * LOOKS_UP_S + 1.0


def test_a_fetch_of_one_that_has_nothing_replaces_no_copy() -> None:
    """Whoever dies; nor where what it has is of another set."""
    for mine in ((), (OLD,), (HeldSnapshot(0, 20, "b" * 64),)):
        world = World(mine, (NEW, ENDS))
        lasted_s = fetched_meanwhile(world, {0.0: ()})
        run_virtual(lambda world=world: looks_twice(world))  # type: ignore[misc]
        assert (world.fetched, lasted_s) == ([NEW], [60.0])


@pytest.mark.parametrize(("comes_s", "begun_s"), [(1.0, 10.0), (1000.0, 1.0)])
def test_what_stays_missing_is_fetched_whoever_comes_and_goes(comes_s: float, begun_s: float) -> None:
    """Others that are about to come may have it: where nobody new does, it is fetched at once."""
    world, fetched_s = World((OLD,), (NEW,)), list[float]()

    async def fetch(held: HeldSnapshot, _may: MayReplace) -> None:
        fetched_s.append(world.now_s)
        world.disk.append(held)

    async def play() -> None:
        for second in range(30):
            world.now_s = float(second)
            world.crowd = int(second / comes_s)
            await world.fetcher._look()

    world.fetch = fetch  # type: ignore[method-assign]
    run_virtual(play)
    assert fetched_s == [begun_s]


async def test_each_stage_that_comes_hides_what_is_older_once_more() -> None:
    """The next one may be for a peer to fetch that cannot, and begins late."""
    world = World((OLD,), (NEW, HeldSnapshot(0, 20, L)))
    world.other = PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 10, L),))

    async def never(held: HeldSnapshot, _may: MayReplace) -> None:
        raise SwarmfreeError("disk full")

    world.fetch = never  # type: ignore[method-assign]
    shown = []
    for now_s in (0.0, 1.0, 32.0, 33.0, 34.0, 35.0, 66.0, 67.0):
        world.now_s = now_s
        if now_s == 33.0:
            world.other = PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 20, L),))
        await world.fetcher._look()
        shown.append(bool(world.fetcher.offered()))
    assert shown == [True, False, True, False, False, False, True, True]


async def test_one_that_slept_does_not_keep_others_from_fetching() -> None:
    """Nobody goes on from before what lies on disks whole."""
    world = World((OLD,), (NEW,))
    plan = cast("Any", object())
    world.other = PlanAnswer(plan, "", None, 9, snapshots=(HeldSnapshot(0, 10, L), HeldSnapshot(0, 20, L)))
    for _ in range(2):
        await world.fetcher._look()
    assert world.fetched == [NEW]
    world.fetched.clear()
    world.other = PlanAnswer(plan, "", None, 10, snapshots=world.other.snapshots)
    for _ in range(2):
        await world.fetcher._look()
    assert not world.fetched


def test_what_a_resume_needs() -> None:
    """Not what another disk has, nor what is older than a whole set from which the run goes on."""
    point = SnapshotSet(30, L, (), ("a", "b"))
    part, none = SnapshotSet(30, L, (1,), ("a",)), dict[str, tuple[HeldSnapshot, ...]]()
    assert not is_needed(NEW, none, "me", point)
    assert is_needed(NEW, none, "me", None), "something may come that counts more"
    assert is_needed(NEW, none, "me", part)
    assert is_needed(HeldSnapshot(1, 30, "b" * 64), none, "me", point)
    assert not is_needed(NEW, {"a": (NEW,)}, "me", None)
    assert is_needed(NEW, {"me": (NEW,), "a": (ENDS, HeldSnapshot(1, 20, "b" * 64))}, "me", None)


async def test_a_store_that_refuses_is_told_of_once() -> None:
    """It keeps nobody from beginning the run for longer than `join_wait_s`: it may have snapshots
    of it, or the run may be a new one.
    """
    world = World((OLD,), (NEW,))
    assert "the store has snapshots of it" in await world.fetcher.are_stored()
    world.refuses = "s3://bucket: nobody answers"
    for world.now_s in (10.0, 30.0, 69.0):
        await world.fetcher._look()
        assert await world.fetcher.are_stored() == (
            "waits for s3://bucket to say whether it has snapshots of this run, for 60 s at most"
        )
    assert world.told == ["no snapshot is fetched, and those on disks count alone: s3://bucket: nobody answers"]
    world.now_s = 70.0
    assert not await world.fetcher.are_stored()
    assert world.told[1:] == ["begins the run anew: s3://bucket has not said for 60 s whether it has snapshots of it"]
    assert world.fetcher.offered() == (OLD,)
    world.refuses, world.there = "", []
    assert not await world.fetcher.are_stored()
    world.refuses = "s3://bucket: nobody answers"
    assert await world.fetcher.are_stored(), "it has answered meanwhile: its silence begins anew"


async def test_who_has_got_a_place_meanwhile_keeps_what_it_holds() -> None:
    """A fetch may take minutes: by then it may serve, and what it serves is newer."""
    world = World((OLD,), (NEW,))

    async def fetch(held: HeldSnapshot, _may: MayReplace) -> None:
        world.fetched.append(held)
        world.state.stage = 1

    world.fetch = fetch  # type: ignore[method-assign]
    for _ in range(2):
        await world.fetcher._look()
    assert (world.fetched, world.loaded) == ([NEW], 0)


def _others(*names: str) -> list[Any]:
    return [SimpleNamespace(endpoint=SimpleNamespace(member=SimpleNamespace(peer_id=name)), can_feed=True) for name in names]


def test_what_was_missing_before_somebody_led_is_missing_anew() -> None:
    """Its holder may come back as all the others do."""
    world = World((OLD,), (NEW,))
    world.fetch = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign,assignment]

    async def play() -> None:
        await world.fetcher._look()
        world.state.coordinator, world.member.hears_coordinator = object(), True
        async with asyncio.TaskGroup() as group:
            kept = group.create_task(world.fetcher.keep())
            await asyncio.sleep(5.0)
            kept.cancel()
        world.now_s, world.state.coordinator = 100.0, None
        await world.fetcher._look()
        assert not world.loaded
        await world.fetcher._look()

    run_virtual(play)
    assert world.loaded == 1


def test_what_is_older_is_hidden_anew_where_all_die_once_more() -> None:
    """They have gone on meanwhile, and nothing later lies anywhere."""
    world = World((OLD,), (HeldSnapshot(0, 20, L), NEW))
    world.fetch = lambda *_: asyncio.sleep(60.0)  # type: ignore[method-assign,assignment]
    is_shown = list[bool]()

    async def play() -> None:
        for world.now_s, is_led in ((0.0, False), (100.0, True), (200.0, False)):
            world.state.coordinator, world.member.hears_coordinator = object() if is_led else None, is_led
            async with asyncio.TaskGroup() as group:
                kept = group.create_task(world.fetcher.keep())
                await asyncio.sleep(5.0)
                kept.cancel()
            is_shown.append(bool(world.fetcher.offered()))

    run_virtual(play)
    assert is_shown == [False, True, False]


async def test_one_whose_stage_comes_and_goes_hides_nothing_again() -> None:
    """As many stages lay on disks before."""
    world = World((OLD,), (NEW, HeldSnapshot(0, 20, L)))
    gone, back = PlanAnswer(None, ""), world.other

    async def never(held: HeldSnapshot, _may: MayReplace) -> None:
        raise SwarmfreeError("disk full")

    world.fetch = never  # type: ignore[method-assign]
    for number in range(40):
        world.now_s, world.other = number * 2.0, back if number // 4 % 2 else gone
        await world.fetcher._look()
    assert world.fetcher.offered() == (OLD,)


async def test_others_are_asked_and_not_for_long() -> None:
    """Its own plan, and who is silent, keep it from nothing."""
    world = World((OLD,), (NEW,))
    shown, real, asked = await world.announcements(), world.call, list[tuple[str, float]]()
    me = SimpleNamespace(endpoint=SimpleNamespace(member=SimpleNamespace(peer_id="me")), can_feed=True)

    async def call(to: Any, *_: object, silence_s: float) -> Any:
        asked.append((to.member.peer_id, silence_s))
        return await real()

    world.call, world.announcements = call, lambda: asyncio.sleep(0, [me, *shown])  # type: ignore[method-assign,assignment]
    await world.fetcher._look()
    assert asked == [("other", 1.0)]


def test_what_has_just_gone_is_not_fetched_for_what_has_long_been_missing() -> None:
    """Its holder may be back in a moment; and only those that can feed are chosen for the ends."""
    world, ends = World((), (HeldSnapshot(0, 20, L), NEW)), HeldSnapshot(0, 20, L)
    feeds = SimpleNamespace(endpoint=SimpleNamespace(member=SimpleNamespace(peer_id="a")), can_feed=True)
    chosen = list[HeldSnapshot | None]()
    for world.now_s, theirs in ((0.0, (NEW,)), (15.0, ()), (16.0, ())):
        chosen.append(world.fetcher._chosen(cast("Any", [feeds]), {"a": (), "z": theirs, "me": ()}, (ends, NEW)))
    assert chosen == [None, None, NEW]
    feeds.can_feed = False
    assert world.fetcher._chosen(cast("Any", [feeds]), {"a": (), "z": (), "me": ()}, (ends, NEW)) is None, "a has that one"
