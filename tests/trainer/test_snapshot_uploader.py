"""Copying snapshots to the store: the newest, once, and never in anybody's way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.snapshot_store import TAKEN_OVER_S
from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.trainer import snapshot_uploader
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from swarmfree.trainer.snapshot_uploader import SnapshotUploader
from swarmfree.trainer.tasks import Signal
from tests.wire.wire_samples import RECORD

pytestmark = pytest.mark.timeout(20)
L = "a" * 64


class Store:
    """What a test lets through."""

    where = "s3://bucket"

    def __init__(self) -> None:
        self.opens, self.fails = asyncio.Event(), False
        self.begun, self.there, self.pruned = list[HeldSnapshot](), list[HeldSnapshot](), list[int]()
        self.changed = Signal()

    async def upload(self, held: HeldSnapshot) -> None:
        """As slow as the test wants it."""
        self.begun.append(held)
        self.changed.tell()
        await self.opens.wait()
        if self.fails:
            raise SwarmfreeError("s3://bucket: nobody answers")
        self.there.append(held)
        self.changed.tell()

    async def stored(self) -> tuple[HeldSnapshot, ...]:
        """What is there."""
        return tuple(self.there)

    async def prune(self, before: int) -> None:
        """Older ones go."""
        self.pruned.append(before)

    async def until(self, count: int) -> None:
        """So many uploads have begun."""
        while len(self.begun) < count:
            await self.changed.wait()


class World:
    """One peer of a stage, its store and what it tells."""

    def __init__(self, *replicas: str) -> None:
        self.store, self.told, self.now_s = Store(), list[Any](), 0.0
        self.replicas = replicas or ("me",)
        member = lambda peer: SimpleNamespace(endpoint=SimpleNamespace(member=SimpleNamespace(peer_id=peer)))  # noqa: E731 - said once
        state = SimpleNamespace(past=dict.fromkeys(range(100), L))
        state.known_plan = SimpleNamespace(replicas=((), tuple(member(peer) for peer in self.replicas)))
        self.state, self.member = state, member
        context = SimpleNamespace(
            ports=SimpleNamespace(snapshot_store=self.store),
            manifest=SimpleNamespace(recovery=SimpleNamespace(snapshot_every=10), stage_count=1),
            me=SimpleNamespace(peer_id="me"),
            now_s=lambda: self.now_s,
            tell=lambda event: self.told.append(event.text),
        )
        self.uploader = SnapshotUploader(cast("Any", context), cast("Any", SimpleNamespace(replica_state=state)))


def held(iteration: int) -> HeldSnapshot:
    """Of the one stage."""
    return HeldSnapshot(1, iteration, L)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks and tries again at once."""
    for name in ("LOOK_S", "BACKOFF_S", "BACKOFF_S_MAX"):
        monkeypatch.setattr(snapshot_uploader, name, 0.001)


@contextlib.asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While a test looks."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        yield
        for task in tasks:
            task.cancel()


async def test_where_uploads_fall_behind_the_newest_wins() -> None:
    """One is under way; of those that come meanwhile only the last one follows."""
    world = World()
    async with running(world.uploader.keep()):
        world.uploader.offer(held(10))
        await world.store.until(1)
        for iteration in (20, 30, 40):
            world.uploader.offer(held(iteration))
        world.store.opens.set()
        await world.store.until(2)
        await asyncio.sleep(0.01)
    assert world.store.begun == world.store.there == [held(10), held(40)]


async def test_a_store_that_fails_is_told_of_once_and_catches_up() -> None:
    """Twenty tries and three snapshots later there is one line; with the first success another."""
    world = World()
    world.store.fails = True
    world.store.opens.set()
    async with running(world.uploader.keep()):
        for number in (1, 2, 3):
            world.uploader.offer(held(10 * number))
            await world.store.until(len(world.store.begun) + 7)
        assert len(world.told) == 1, world.told
        assert world.told[0].startswith("no snapshot is copied, and training goes on: s3://bucket: nobody answers")
        world.store.fails = False
        while not world.store.there:
            await world.store.changed.wait()
        await asyncio.sleep(0.01)
    assert world.store.there == [held(30)]
    assert world.told[1:] == ["snapshots are copied to s3://bucket again"]


async def test_another_replica_copies_it_where_the_first_one_has_died() -> None:
    """Before that it asks the store for nothing."""
    world = World("first", "me")
    world.store.opens.set()
    async with running(world.uploader.keep()):
        world.uploader.offer(held(20))
        for now_s in (0.0, TAKEN_OVER_S - 1):
            world.now_s = now_s
            await asyncio.sleep(0.01)
            assert not world.store.begun
        world.state.known_plan = SimpleNamespace(replicas=((), (world.member("me"),)))
        await world.store.until(1)


async def test_the_turn_of_one_that_cannot_copy_is_taken_at_once() -> None:
    """Where snapshots come before its turn is taken over; it is asked again the time after."""
    world = World("first", "me")
    world.store.opens.set()
    begun = dict[int, bool]()
    async with running(world.uploader.keep()):
        for iteration in (20, 30, 40, 50, 60, 70, 80):
            world.now_s += TAKEN_OVER_S - 1
            world.uploader.offer(held(iteration))
            await asyncio.sleep(0.02)
            begun[iteration] = held(iteration) in world.store.there
            if iteration == 60:
                world.store.there.append(held(60))  # by then the other one can
    assert begun == {20: False, 30: True, 40: True, 50: True, 60: False, 70: True, 80: False}


async def test_old_sets_go_after_a_new_one_is_whole() -> None:
    """All before the last two."""
    world = World()
    world.store.opens.set()
    world.store.there = [HeldSnapshot(0, 10, L), HeldSnapshot(0, 20, L)]
    async with running(world.uploader.keep()):
        world.uploader.offer(HeldSnapshot(0, 30, L))
        while not world.store.pruned:
            await asyncio.sleep(0.001)
    assert world.store.pruned == [20]


async def test_the_keeper_offers_what_lies_on_the_disk_and_waits_for_no_store() -> None:
    """Only what was written; the next one is written while the store hangs."""
    world, written = World(), list[HeldSnapshot]()

    class Disk:
        fails = True

        def held(self) -> tuple[HeldSnapshot, ...]:
            return tuple(written)

        async def write(self, snapshot: Snapshot, *_: object) -> None:
            if self.fails:
                raise SwarmfreeError("disk full")
            written.append(snapshot.held)

    disk, moved = Disk(), Signal()
    engine = SimpleNamespace(read_state=lambda *_, **__: b"state", part_count=lambda _: 1)
    state = SimpleNamespace(stage=1, iteration=10, is_over=False, newest_record=RECORD, past={}, moved=moved)
    context = SimpleNamespace(
        ports=SimpleNamespace(snapshots=disk, engine=engine),
        manifest=SimpleNamespace(recovery=SimpleNamespace(snapshot_every=10)),
        tell=lambda _: None,
    )
    keeper = SnapshotKeeper(cast("Any", context), cast("Any", SimpleNamespace(replica_state=state)), world.uploader.offer)
    async with running(keeper.keep(), world.uploader.keep()):
        keeper.after_step()
        moved.tell()
        await asyncio.sleep(0.01)
        assert not world.store.begun
        disk.fails = False
        for count in (1, 2):
            keeper.after_step()
            while len(written) < count:
                moved.tell()
                await asyncio.sleep(0)
        await world.store.until(1)
    assert not world.store.there
