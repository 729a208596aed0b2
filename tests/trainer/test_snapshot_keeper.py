"""What a peer tells of the snapshots on its disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.errors import RefusalKind, Refused, SwarmfreeError
from swarmfree.protocol.messages import GetRecord, HeldSnapshot, RecordAnswer
from swarmfree.protocol.names import ABSENT
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.trainer import peer
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from tests.builders import make_record
from tests.mutants.alone import Alone, play, record
from tests.wire.wire_samples import RECORD

L = "a" * 64
NEWER, OLDER = HeldSnapshot(1, 100, L), HeldSnapshot(1, 50, L)


class Disk:
    """Two snapshots, none of which can be read."""

    asked: tuple[HeldSnapshot, ...] = ()

    def held(self) -> tuple[HeldSnapshot, ...]:
        """By their names."""
        return NEWER, OLDER

    async def read(self, held: HeldSnapshot) -> None:
        """Nothing is whole."""
        self.asked = (*self.asked, held)
        raise SwarmfreeError("the disk has changed it")


async def test_what_cannot_be_read_is_told_of_no_more() -> None:
    """Else the run would go on from there for ever, and never from the older ones."""
    disk, told = Disk(), list[object]()

    async def let_go(*, unless: Callable[[], bool]) -> bool:
        return not unless()

    recovery = SimpleNamespace(snapshot_every=50)
    context = SimpleNamespace(
        ports=SimpleNamespace(snapshots=disk, engine=None), manifest=SimpleNamespace(recovery=recovery), tell=told.append
    )
    member = SimpleNamespace(
        replica_state=SimpleNamespace(coordinator=None, is_from_disk=False, plan=None), device=None, let_go=let_go
    )
    keeper = SnapshotKeeper(cast("Any", context), cast("Any", member))
    assert keeper.held() == (NEWER, OLDER)
    await keeper.load((NEWER,))
    assert keeper.held() == (OLDER,)
    assert disk.asked == (NEWER,)
    assert "passed over: the disk has changed it" in str(told)


async def test_the_record_that_a_set_was_left_by_is_told_from_its_file() -> None:
    """Whatever is held, and while it is loaded; of each file it is read once, and of one that
    cannot be read, or is not there, nobody is told anything.
    """
    there, read = [HeldSnapshot(1, RECORD.iteration + 1, RECORD.lineage()), OLDER], list[HeldSnapshot]()

    class Folder:
        def held(self) -> tuple[HeldSnapshot, ...]:
            return tuple(there)

        async def read(self, held: HeldSnapshot) -> Snapshot:
            read.append(held)
            if held == OLDER:
                raise SwarmfreeError("the disk has changed it")
            return Snapshot(1, RECORD, {}, 1)

    manifest = SimpleNamespace(recovery=SimpleNamespace(snapshot_every=50))
    context = SimpleNamespace(ports=SimpleNamespace(snapshots=Folder(), engine=None), manifest=manifest)
    keeper = SnapshotKeeper(cast("Any", context), cast("Any", None))
    for _ in range(2):
        assert await keeper.record_of(RECORD.lineage()) == RECORD
    assert read == [there[0]]
    for lineage, why in ((L, "cannot be read: the disk has changed it"), ("b" * 64, "no snapshot of that lineage lies here")):
        with pytest.raises(Refused, match=why) as refused:
            await keeper.record_of(lineage)
        assert refused.value.kind is RefusalKind.NOT_YET
    here = SimpleNamespace(stage_member=None, snapshots=keeper)
    reply = await peer.Peer._handle_books(cast("Any", here), cast("Any", None), GetRecord(7, RECORD.lineage()))
    assert reply.expect(RecordAnswer).record == RECORD
    del there[0]
    with pytest.raises(Refused, match="no snapshot of that lineage"):
        await keeper.record_of(RECORD.lineage())


def keeper_of(disk: object) -> SnapshotKeeper:
    """Of a peer that keeps snapshots there, or none."""
    manifest = SimpleNamespace(recovery=SimpleNamespace(snapshot_every=50))
    context = SimpleNamespace(ports=SimpleNamespace(snapshots=disk, engine=None), manifest=manifest)
    return SnapshotKeeper(cast("Any", context), cast("Any", None))


async def test_records_of_two_sets_are_kept_as_long_as_these_lie_there() -> None:
    """What lies there again is read again."""
    left = {
        HeldSnapshot(1, one.iteration + 1, one.lineage()): one for one in (make_record(iteration=9), make_record(iteration=19))
    }
    (first, second), there, read = left, list(left), list[HeldSnapshot]()

    class Folder:
        def held(self) -> tuple[HeldSnapshot, ...]:
            return tuple(there)

        async def read(self, held: HeldSnapshot) -> Snapshot:
            read.append(held)
            return Snapshot(1, left[held], {}, 1)

    keeper = keeper_of(Folder())
    for held in (first, second, first, second):
        assert await keeper.record_of(held.lineage) == left[held]
    assert read == [first, second]
    there.remove(first)
    await keeper.record_of(second.lineage)
    there.append(first)
    await keeper.record_of(first.lineage)
    assert read == [first, second, first]


async def test_nobody_is_told_the_record_of_what_is_damaged() -> None:
    """Nor by a peer that keeps no snapshots."""
    keeper = keeper_of(Disk())
    keeper._damaged = {NEWER, OLDER}
    for one in (keeper, keeper_of(None)):
        with pytest.raises(Refused, match="no snapshot of that lineage") as refused:
            await one.record_of(L)
        assert refused.value.kind is RefusalKind.NOT_YET


def test_without_a_lineage_the_record_that_is_held_is_told() -> None:
    """No disk is asked."""

    async def story(alone: Alone) -> int:
        alone.replica_state.apply(record())
        here = SimpleNamespace(stage_member=alone.stage_member, snapshots=keeper_of(None))
        reply = await peer.Peer._handle_books(cast("Any", here), cast("Any", None), GetRecord(-1))
        return reply.expect(RecordAnswer).record.iteration

    assert play(story) == record().iteration


@pytest.mark.parametrize(
    ("stage", "iteration", "is_over", "every", "is_due"),
    [
        (1, 50, False, 50, True),
        (0, 100, False, 50, True),
        (1, 51, False, 50, False),
        (1, 100, True, 50, False),
        (ABSENT, 50, False, 50, False),
        (1, 50, False, 0, False),
    ],
)
def test_a_snapshot_is_due_in_some_steps(stage: int, iteration: int, *, is_over: bool, every: int, is_due: bool) -> None:
    """At each multiple, of the stage that is held, but not once all iterations are done: the
    weights are written then.
    """
    read: list[int] = []

    def read_state(part: int, *, weights_only: bool) -> bytes:
        assert not weights_only, "with moments"
        read.append(part)
        return b"state"

    engine = SimpleNamespace(read_state=read_state, part_count=lambda _: 2)
    state = SimpleNamespace(stage=stage, iteration=iteration, is_over=is_over, newest_record=RECORD, past={})
    manifest = SimpleNamespace(recovery=SimpleNamespace(snapshot_every=every))
    context = SimpleNamespace(ports=SimpleNamespace(snapshots=Disk(), engine=engine), manifest=manifest)
    SnapshotKeeper(cast("Any", context), cast("Any", SimpleNamespace(replica_state=state))).after_step()
    assert read == ([0, 1] if is_due else [])


async def test_what_is_written_for_a_pause_that_fails_goes_first() -> None:
    """It is tried again after each iteration: the set that all stages have, also the one whose
    disk is full, lies there meanwhile.
    """
    there = [NEWER, OLDER]

    class Folder:
        def held(self) -> tuple[HeldSnapshot, ...]:
            return tuple(there)

        async def write(self, snapshot: Snapshot, _: object, keep: tuple[HeldSnapshot, ...]) -> None:
            there[:] = [snapshot.held, *keep]

    past, state = {50: L, 100: L}, SimpleNamespace(stage=1, past={})

    async def run(_: object, __: int, work: Callable[[], object]) -> object:
        return work()

    engine = SimpleNamespace(read_state=lambda *_, **__: b"state", part_count=lambda _: 1)
    context = SimpleNamespace(
        ports=SimpleNamespace(snapshots=Folder(), engine=engine),
        manifest=SimpleNamespace(recovery=SimpleNamespace(snapshot_every=50)),
    )

    async def hold_as_recorded() -> None:
        pass

    member = SimpleNamespace(replica_state=state, device=SimpleNamespace(run=run), hold_as_recorded=hold_as_recorded)
    keeper = SnapshotKeeper(cast("Any", context), cast("Any", member))
    for iteration in (103, 104, 105):
        record = replace(RECORD, iteration=iteration - 1)
        state.iteration, state.lineage, state.past = iteration, record.lineage(), {**past, iteration: record.lineage()}
        past[iteration] = record.lineage()
        state.newest_record = record
        await keeper.write_now()
        assert [one.iteration for one in there] == [iteration, 100]


async def test_a_later_one_that_cannot_be_read_is_not_kept() -> None:
    """It would take the place of one that can be."""
    kept: list[tuple[HeldSnapshot, ...]] = []

    class Damaged(Disk):
        async def write(self, _: Snapshot, __: object, keep: tuple[HeldSnapshot, ...]) -> None:
            kept.append(keep)

    context = SimpleNamespace(
        ports=SimpleNamespace(snapshots=Damaged(), engine=None),
        manifest=SimpleNamespace(recovery=SimpleNamespace(snapshot_every=50)),
    )
    keeper = SnapshotKeeper(cast("Any", context), cast("Any", SimpleNamespace()))
    await keeper._write(Snapshot(1, replace(RECORD, iteration=59), {50: L}, 0), [])
    assert kept == [(OLDER,)]


async def test_a_disk_that_refuses_is_told_of_once_a_minute_and_anew_after_it_took_something() -> None:
    """A pause that is held up has it written every five seconds."""
    now_s, told, is_full = [100.0], list[str](), [True]

    class Folder:
        """Empty, and full at times."""

        def held(self) -> tuple[()]:
            """Nothing."""
            return ()

        async def write(self, *_: object) -> None:
            """If there is room."""
            if is_full[0]:
                raise SwarmfreeError("no space")

    async def run(_: object, __: int, work: Callable[[], object]) -> object:
        return work()

    async def hold_as_recorded() -> None:
        """It does."""

    state = SimpleNamespace(stage=1, iteration=RECORD.iteration + 1, lineage=RECORD.lineage(), past={}, newest_record=RECORD)
    state.is_committed_state, state.is_from_disk = True, False
    engine = SimpleNamespace(read_state=lambda *_, **__: b"", part_count=lambda _: 1)
    context = SimpleNamespace(
        ports=SimpleNamespace(snapshots=Folder(), engine=engine),
        manifest=SimpleNamespace(recovery=SimpleNamespace(snapshot_every=50)),
        now_s=lambda: now_s[0],
        tell=lambda note: told.append(note.text),
    )
    member = SimpleNamespace(replica_state=state, device=SimpleNamespace(run=run), hold_as_recorded=hold_as_recorded)
    keeper, said = SnapshotKeeper(cast("Any", context), cast("Any", member)), list[int]()
    for after_s, full in ((0.0, True), (59.0, True), (60.0, True), (70.0, False), (71.0, True)):
        now_s[0], is_full[0] = 100.0 + after_s, full
        assert await keeper.keep_now() is not full
        said.append(len(told))
    assert said == [1, 1, 2, 2, 3]
