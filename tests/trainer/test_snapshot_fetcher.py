"""What a peer fetches from the store, and what it tells of meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.snapshot_store import is_in_vain
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.messages import HeldSnapshot, PlanAnswer
from swarmfree.protocol.names import ABSENT
from swarmfree.trainer import snapshot_fetcher
from swarmfree.trainer.snapshot_fetcher import SnapshotFetcher

L = "a" * 64
OLD, NEW = HeldSnapshot(1, 10, L), HeldSnapshot(1, 20, L)


class World:
    """One peer that feeds, of a run of two stages, and another one as it answers."""

    def __init__(self, mine: tuple[HeldSnapshot, ...], stored: tuple[HeldSnapshot, ...]) -> None:
        self.disk, self.there, self.told = list(mine), list(stored), list[str]()
        self.said = list[str]()
        self.fetched, self.refuses, self.loaded, self.now_s = list[HeldSnapshot](), "", 0, 0.0
        self.other = PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 20, L),))
        timing = SimpleNamespace(silence_s=2.0, join_wait_s=60.0)
        ports = SimpleNamespace(snapshot_store=self, directory=self, network=self, tokens=None)
        context = SimpleNamespace(
            ports=ports,
            timing=timing,
            manifest=SimpleNamespace(stage_count=2),
            me=SimpleNamespace(peer_id="me"),
            now_s=lambda: self.now_s,
            tell=lambda event: self.told.append(event.text),
        )
        self.state = SimpleNamespace(coordinator=None, stage=ABSENT, is_from_disk=False)
        member = SimpleNamespace(replica_state=self.state, hears_coordinator=False)
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

    async def fetch(self, held: HeldSnapshot) -> None:
        """Bring it to the disk."""
        self.fetched.append(held)
        self.said.append(self.fetcher.fetches)
        if held not in self.there:
            raise SwarmfreeError("it is not what was uploaded")

    async def announcements(self) -> list[Any]:
        """The other one."""
        return [SimpleNamespace(endpoint=SimpleNamespace(member=SimpleNamespace(peer_id="other")), can_feed=True)]

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
    assert (world.said, world.fetcher.fetches) == (["fetches stage 1 before iteration 20 from s3://bucket"], "")
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

    async def refused(held: HeldSnapshot) -> None:
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


@pytest.mark.parametrize(
    ("tells", "is_needed"),
    [
        ((HeldSnapshot(0, 20, L),), True),
        ((HeldSnapshot(1, 20, L),), False),
        ((HeldSnapshot(0, 30, L),), True),
        ((HeldSnapshot(0, 10, L), HeldSnapshot(1, 10, "b" * 64)), True),
    ],
)
async def test_what_nobody_needs_any_more_is_fetched_in_silence(
    tells: tuple[HeldSnapshot, ...], *, is_needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another disk has it by now, so that no resume waits for it; whoever said so may have lied, or
    die. A part of a later set, or an older one, needs it still.
    """
    monkeypatch.setattr(snapshot_fetcher, "LOOKS_UP_S", 0.01)
    world, before = World((OLD,), (NEW,)), PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 20, L),))

    async def slow(held: HeldSnapshot) -> None:
        world.fetched.append(held)
        for other in (before, PlanAnswer(None, "", snapshots=tells), before):
            world.other = other
            await asyncio.sleep(0.1)
            world.said.append(world.fetcher.fetches)

    world.fetch = slow  # type: ignore[method-assign]
    for _ in range(2):
        await world.fetcher._look()
    assert (world.fetched, world.loaded) == ([NEW], 1)
    assert [bool(said) for said in world.said] == [True, is_needed, True]
    assert world.fetcher.fetches == ""


async def test_each_stage_that_comes_hides_what_is_older_once_more() -> None:
    """The next one may be for a peer to fetch that cannot, and begins late."""
    world = World((OLD,), (NEW, HeldSnapshot(0, 20, L)))
    world.other = PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 10, L),))

    async def never(held: HeldSnapshot) -> None:
        raise SwarmfreeError("disk full")

    world.fetch = never  # type: ignore[method-assign]
    shown = []
    for now_s in (0.0, 1.0, 32.0, 33.0, 34.0, 35.0, 66.0, 67.0):
        world.now_s = now_s
        if now_s == 33.0:
            world.other = PlanAnswer(None, "", snapshots=(HeldSnapshot(0, 20, L),))
        await world.fetcher._look()
        shown.append(bool(world.fetcher.offered()))
    assert shown == [True, False, True, True, False, False, True, True]


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


def test_a_later_set_that_is_whole_needs_no_fetch() -> None:
    """An older one, or a part, does."""
    whole = {"a": (HeldSnapshot(0, 30, L),), "b": (HeldSnapshot(1, 30, L),)}
    assert is_in_vain(NEW, whole, (), 2)
    assert is_in_vain(NEW, {"a": whole["a"]}, whole["b"], 2), "its own part counts"
    assert not is_in_vain(NEW, {"a": ()}, (NEW,), 2), "and does not by itself"
    assert not is_in_vain(HeldSnapshot(1, 30, "b" * 64), whole, (), 2)
    assert not is_in_vain(NEW, whole, (), 3)
    assert not is_in_vain(NEW, {}, (), 2)


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

    async def fetch(held: HeldSnapshot) -> None:
        world.fetched.append(held)
        world.state.stage = 1

    world.fetch = fetch  # type: ignore[method-assign]
    for _ in range(2):
        await world.fetcher._look()
    assert (world.fetched, world.loaded) == ([NEW], 0)
