"""Snapshots in a folder: there whole or not at all, and nothing damaged is believed."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import resource
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.storage import snapshots as snapshots_module
from swarmfree.storage.snapshots import FolderSnapshots, write_tensors
from tests.wire.wire_samples import RECORD

RUN = "cd" * 32
PARTS = [bytes(range(24)), b"\1" * 12]
SNAPSHOT = Snapshot(2, RECORD, {RECORD.iteration: RECORD.before, RECORD.iteration + 1: RECORD.lineage()}, len(PARTS))


async def written(folder: Path, snapshot: Snapshot = SNAPSHOT) -> FolderSnapshots:
    """A folder with this one in it."""
    snapshots = FolderSnapshots(folder, RUN)
    await snapshots.write(snapshot, PARTS, ())
    return snapshots


async def test_the_next_life_finds_what_was_written(tmp_path: Path) -> None:
    """Record, past and every part come back as they were, to the bit."""
    (await written(tmp_path)).close()
    again = FolderSnapshots(tmp_path, RUN)
    assert again.held() == (SNAPSHOT.held,)
    assert await again.read(SNAPSHOT.held) == SNAPSHOT
    assert [await again.read_part(SNAPSHOT.held, part) for part in range(2)] == PARTS


async def test_what_is_not_to_be_kept_goes(tmp_path: Path) -> None:
    """The newest comes first, and with it goes all but what was named."""
    other = Snapshot(1, RECORD, {}, len(PARTS))
    snapshots = await written(tmp_path)
    await snapshots.write(other, PARTS, (SNAPSHOT.held,))
    assert set(snapshots.held()) == {SNAPSHOT.held, other.held}
    await snapshots.write(other, PARTS, ())
    assert snapshots.held() == (other.held,)
    snapshots.clear()
    assert not list(tmp_path.iterdir())


def numbered(number: int, size_bytes: int = 16) -> tuple[Snapshot, list[bytes]]:
    """One of its own, and its only part."""
    record = replace(RECORD, iteration=number)
    return Snapshot(2, record, {number: record.before}, 1), [bytes([number]) * size_bytes]


async def test_the_next_one_is_written_over_one_that_is_no_longer_needed(tmp_path: Path) -> None:
    """In the same file, whose memory in the system's cache is used again; nothing of it stays, also
    where it was longer.
    """
    snapshots = FolderSnapshots(tmp_path, RUN)
    sizes = (1 << 16, 64, 32, 1 << 10, 16)
    stories = [numbered(number, size) for number, size in enumerate(sizes)]
    files = list[int]()
    for number, (snapshot, parts) in enumerate(stories):
        kept = [stories[number - 1][0].held] if number else []
        await snapshots.write(snapshot, parts, kept)
        files.append(snapshots.place(snapshot.held).stat().st_ino)
        assert set(snapshots.held()) == {snapshot.held, *kept}
        assert await snapshots.read_part(snapshot.held, 0) == parts[0]
        assert snapshots.place(snapshot.held).stat().st_size < sizes[number] + 4096
    assert files[3:] == files[:2]
    assert len(list(snapshots._folder.iterdir())) == 3
    snapshots.clear()
    assert not list(tmp_path.iterdir())


async def test_a_backup_by_hard_links_stays_what_it_is(tmp_path: Path) -> None:
    """As `cp -al` and `rsync --link-dest` make them, of whole ones and of the spare one."""
    snapshots, kept = FolderSnapshots(tmp_path, RUN), dict[Path, bytes]()
    for number in range(6):
        await snapshots.write(*numbered(number), ())
        for place in list(snapshots._folder.iterdir()):
            link = tmp_path / f"{number}{place.name}"
            link.hardlink_to(place)
            kept[link] = place.read_bytes()
    assert len(kept) > 6
    assert all(link.read_bytes() == content for link, content in kept.items())


async def test_a_spare_file_of_somebody_else_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back by root, or made read-only: this peer may remove it, and not write."""
    snapshots = FolderSnapshots(tmp_path, RUN)
    for number in range(3):
        await snapshots.write(*numbered(number), ())
    spare = snapshots._folder / ".spare"
    before = spare.read_bytes()
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
    with spare.open("rb") as file:
        await snapshots.write(*numbered(3), ())
        assert file.read() == before


async def test_the_old_name_of_a_spare_file_is_gone_before_it_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the disk: after a loss of power it would stand for a whole snapshot with another one's
    content.
    """
    steps, real = list[bytes](), snapshots_module.flush_to_disk

    def flush(path: Path) -> None:
        steps.extend(place.read_bytes() for place in path.glob(".iteration-*"))
        real(path)

    snapshots = FolderSnapshots(tmp_path, RUN)
    for number in range(3):
        await snapshots.write(*numbered(number), ())
    before = (snapshots._folder / ".spare").read_bytes()
    monkeypatch.setattr(snapshots_module, "flush_to_disk", flush)
    await snapshots.write(*numbered(3), ())
    assert steps == [before]


async def test_a_spare_file_is_opened_as_it_is_and_the_state_begins_at_a_multiple_of_eight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut to nothing first, what it has in the system's cache were given back."""
    real, sizes = snapshots_module.write_tensors, list[int]()

    def watched(file: IO[bytes], metadata: dict[str, str], parts: Sequence[bytes]) -> None:
        sizes.append(os.fstat(file.fileno()).st_size)
        real(file, metadata, parts)

    monkeypatch.setattr(snapshots_module, "write_tensors", watched)
    snapshots = FolderSnapshots(tmp_path, RUN)
    for number in range(12):
        snapshot, parts = numbered(number)
        await snapshots.write(snapshot, parts, ())
        content = snapshots.place(snapshot.held).read_bytes()
        assert int.from_bytes(content[:8], "little") % 8 == 0
    assert sizes[:2] == [0, 0]
    assert all(sizes[2:])


async def test_what_this_life_writes_and_fetches_at_once_both_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run may go on while a fetch lasts, or lose its coordinator while a snapshot is written:
    neither takes the other's file for what an earlier life has left.
    """
    snapshots, real, writing, may_end = FolderSnapshots(tmp_path, RUN), write_tensors, threading.Event(), threading.Event()

    def slow(file: IO[bytes], metadata: dict[str, str], parts: Sequence[bytes]) -> None:
        writing.set()
        assert may_end.wait(10)
        real(file, metadata, parts)

    async def may_replace() -> None:
        return

    monkeypatch.setattr(snapshots_module, "write_tensors", slow)
    fetched = replace(SNAPSHOT, stage=1).held
    async with asyncio.TaskGroup() as group:
        write = group.create_task(snapshots.write(*numbered(1), ()))
        await asyncio.to_thread(writing.wait, 10)
        asyncio.get_running_loop().call_later(0.1, may_end.set)
        async with snapshots.received(fetched, may_replace) as file:
            await write
            await snapshots.write(*numbered(2), [numbered(1)[0].held])
            file.write(b"what was fetched")
    assert set(snapshots.held()) == {numbered(1)[0].held, numbered(2)[0].held, fetched}
    assert len(list(snapshots._folder.iterdir())) == 3


async def test_what_comes_from_elsewhere_has_reached_the_disk_before_it_may_take_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may last, and whoever else has what lies there may be gone by then."""
    steps, real = list[str](), snapshots_module.flush_to_disk

    def flush(path: Path) -> None:
        steps.append("flush names" if path.is_dir() else "flush")
        if path.is_dir():
            assert SNAPSHOT.held in snapshots.held(), "removed before the name of what replaces it has reached the disk"
        real(path)

    async def may_replace() -> None:
        steps.append("may replace" if SNAPSHOT.held in snapshots.held() else "nothing is there")

    snapshots, other = await written(tmp_path), replace(SNAPSHOT.held, stage=1)
    monkeypatch.setattr(snapshots_module, "flush_to_disk", flush)
    async with snapshots.received(other, may_replace) as file:
        file.write(b"all of it")
    assert steps == ["flush", "may replace", "flush names"]
    assert snapshots.held() == (other,)


async def test_a_file_that_is_open_is_not_written_over(tmp_path: Path) -> None:
    """Who copies it to a bucket gets what it was, however many are written meanwhile."""
    snapshots = FolderSnapshots(tmp_path, RUN)
    stories = [numbered(number) for number in range(5)]
    await snapshots.write(*stories[0], ())
    content = snapshots.place(stories[0][0].held).read_bytes()
    with snapshots.opened(stories[0][0].held) as one, snapshots.opened(stories[0][0].held) as other:
        for snapshot, parts in stories[1:4]:
            await snapshots.write(snapshot, parts, ())
        assert one.read() == other.read() == content
    assert snapshots.held() == (stories[3][0].held,)
    with pytest.raises(SwarmfreeError, match="reading failed: No such file"), snapshots.opened(stories[0][0].held):
        pass
    with snapshots.opened(stories[3][0].held):
        pass
    await snapshots.write(*stories[4], ())
    assert (snapshots._folder / ".spare").exists(), "nobody reads it any more"


async def test_what_somebody_has_removed_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks of the writer."""
    snapshots = await written(tmp_path)
    gone = replace(SNAPSHOT, record=replace(RECORD, iteration=1)).held
    monkeypatch.setattr(snapshots, "held", lambda: (gone,))
    await snapshots.write(*numbered(3), ())


async def test_another_runs_snapshots_are_not_seen(tmp_path: Path) -> None:
    """Also where a file of another run was put among them."""
    place = next(((await written(tmp_path))._folder).iterdir())
    assert FolderSnapshots(tmp_path, "ef" * 32).held() == ()
    stranger = tmp_path / ("ef" * 8) / place.name
    stranger.parent.mkdir()
    stranger.write_bytes(place.read_bytes())
    with pytest.raises(SwarmfreeError, match="do not agree"):
        await FolderSnapshots(tmp_path, "ef" * 32).read(SNAPSHOT.held)


async def as_before(snapshots: FolderSnapshots) -> None:
    """Write it as versions did that hashed with SHA-256."""
    place = snapshots.place(SNAPSHOT.held)
    with safe_open(place, "numpy") as file:
        header, tensors = json.loads(file.metadata()["swarmfree"]), {name: file.get_tensor(name) for name in file.offset_keys()}
    del header["blake3"]
    header["sha256"] = [hashlib.sha256(part).hexdigest() for part in PARTS]
    save_file(tensors, place, {"swarmfree": json.dumps(header)})


async def test_what_a_version_before_has_written_is_read_and_checked(tmp_path: Path) -> None:
    """It hashed with SHA-256, and what it has left is the run's state."""
    snapshots = await written(tmp_path)
    await as_before(snapshots)
    assert await snapshots.read(SNAPSHOT.held) == SNAPSHOT
    assert [await snapshots.read_part(SNAPSHOT.held, part) for part in range(2)] == PARTS
    place = snapshots.place(SNAPSHOT.held)
    place.write_bytes(place.read_bytes()[:-1] + b"\2")
    with pytest.raises(SwarmfreeError, match="part 1 is not what was written"):
        await snapshots.read_part(SNAPSHOT.held, 1)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "gone"])
async def test_a_damaged_snapshot_is_refused_with_its_name(tmp_path: Path, damage: str) -> None:
    """A file that was cut, changed, emptied or removed gives no part of a state."""
    snapshots = await written(tmp_path)
    place = next(snapshots._folder.iterdir())
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    match damage:
        case "cut":
            place.write_bytes(place.read_bytes()[:-4])
        case "bit":
            place.write_bytes(content)
        case "empty":
            place.write_bytes(b"")
        case _:
            place.unlink()
    with pytest.raises(SwarmfreeError, match=f"{place.name}: no snapshot that can be read"):
        await snapshots.read_part(SNAPSHOT.held, 1)


@pytest.mark.parametrize("changed", [{"past": []}, {"past": {"1e999": "", "2": ""}}, {"stage": float("inf")}, {"record": []}])
async def test_a_header_that_makes_no_sense_is_refused_in_one_line(tmp_path: Path, changed: dict[str, object]) -> None:
    """Its bits have no hash of their own; a peer that starts passes it over, and does not end."""
    snapshots = await written(tmp_path)
    place = snapshots.place(SNAPSHOT.held)
    with safe_open(place, "numpy") as file:
        header, tensors = json.loads(file.metadata()["swarmfree"]), {name: file.get_tensor(name) for name in file.offset_keys()}
    save_file(tensors, place, {"swarmfree": json.dumps(header | changed)})
    with pytest.raises(SwarmfreeError, match=f"{place.name}: no snapshot that can be read"):
        await snapshots.read(SNAPSHOT.held)


async def test_a_disk_that_fills_up_is_told_of_in_one_line(tmp_path: Path) -> None:
    """In the middle of the file, in whatever words the library has for that; nothing torn stays."""
    snapshots = await written(tmp_path)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(SwarmfreeError, match="writing failed: "):
            await snapshots.write(Snapshot(1, RECORD, {}, 1), [bytes(1 << 16)], ())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [place.name for place in snapshots._folder.iterdir()] == [snapshots.place(SNAPSHOT.held).name]


async def test_what_a_killed_life_had_begun_to_write_goes(tmp_path: Path) -> None:
    """With the next one that is written; a storm of restarts would fill the disk with such."""
    await written(tmp_path)
    snapshots = FolderSnapshots(tmp_path, RUN)
    torn = snapshots._folder / f".{snapshots.place(SNAPSHOT.held).name}.0123abcd"
    torn.write_bytes(b"half of it")
    assert snapshots.held() == (SNAPSHOT.held,)
    await snapshots.write(Snapshot(1, RECORD, {}, len(PARTS)), PARTS, ())
    assert not torn.exists()


async def test_what_a_killed_life_had_begun_to_fetch_goes_and_a_fetch_takes_the_spare_file(tmp_path: Path) -> None:
    """With the next fetch: a disk with room for one more than is kept has room for it, however many
    lives were killed in the middle of one. What is longer in the spare file is cut off.
    """
    await written(tmp_path)
    snapshots = FolderSnapshots(tmp_path, RUN)
    torn = snapshots._folder / f".{snapshots.place(SNAPSHOT.held).name}.0123abcd"
    torn.write_bytes(b"half of it")
    (snapshots._folder / ".spare").write_bytes(b"a" * 4096)
    fetched = replace(SNAPSHOT, stage=1).held

    async def may_replace() -> None:
        return

    async with snapshots.received(fetched, may_replace) as file:
        assert len(list(snapshots._folder.iterdir())) == 2, "what is kept, and what comes"
        file.write(b"what was fetched")
    assert [place.name for place in snapshots._folder.iterdir()] == [snapshots.place(fetched).name]
    assert snapshots.place(fetched).read_bytes() == b"what was fetched"


async def test_one_backup_by_a_hard_link_is_enough(tmp_path: Path) -> None:
    """Of a whole one alone, that became the spare one later."""
    snapshots, link = FolderSnapshots(tmp_path, RUN), tmp_path / "backup"
    await snapshots.write(*numbered(1), ())
    place = snapshots.place(numbered(1)[0].held)
    link.hardlink_to(place)
    content = place.read_bytes()
    for number in (2, 3):
        await snapshots.write(*numbered(number), ())
    assert link.read_bytes() == content


async def test_nobody_opens_one_while_it_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look whether somebody reads it and its removal, or between its opening and the
    word that it is read, it would be written over.
    """
    snapshots, real_open, real_replace = FolderSnapshots(tmp_path, RUN), Path.open, Path.replace
    steps = list[tuple[str, bool]]()
    for number in (1, 2):
        await snapshots.write(*numbered(number), [numbered(1)[0].held])

    def opened(self: Path, *how: Any) -> Any:
        if not self.name.startswith("."):
            steps.append(("opened", snapshots._removal.locked()))
        return real_open(self, *how)

    def replaced(self: Path, target: Path) -> Path:
        if target.name == ".spare":
            steps.append(("removed", snapshots._removal.locked()))
        return real_replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        patched.setattr(Path, "replace", replaced)
        with snapshots.opened(numbered(2)[0].held):
            pass
        await snapshots.write(*numbered(3), ())
    assert steps == [("opened", True), ("removed", True), ("removed", True)]


async def test_a_snapshot_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    """So that a backup under another account may read it, as far as the umask lets it."""
    snapshots, umask = FolderSnapshots(tmp_path, RUN), os.umask(0o022)
    try:
        await snapshots.write(*numbered(1), ())
    finally:
        os.umask(umask)
    assert snapshots.place(numbered(1)[0].held).stat().st_mode & 0o777 == 0o644


async def test_of_several_that_are_open_none_is_written_over(tmp_path: Path) -> None:
    """Whichever was opened first."""
    snapshots = FolderSnapshots(tmp_path, RUN)
    one, other = numbered(1), numbered(2)
    await snapshots.write(*one, ())
    await snapshots.write(*other, (one[0].held,))
    with snapshots.opened(one[0].held) as first, snapshots.opened(other[0].held) as second:
        expected = [snapshots.place(each.held).read_bytes() for each, _ in (one, other)]
        for number in (3, 4, 5):
            await snapshots.write(*numbered(number), ())
        assert [first.read(), second.read()] == expected


async def test_a_disk_that_lets_nothing_be_removed_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept would fill it, and nobody knew; the new one lies there all the same."""
    snapshots, real = FolderSnapshots(tmp_path, RUN), Path.replace
    await snapshots.write(*numbered(1), ())

    def refused(self: Path, target: Path) -> Path:
        if target.name == ".spare":
            raise PermissionError(13, "Permission denied")
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", refused)
        with pytest.raises(SwarmfreeError, match="removing an older snapshot failed: Permission denied"):
            await snapshots.write(*numbered(2), ())
    assert snapshots.held() == (numbered(2)[0].held, numbered(1)[0].held)


async def test_a_full_disk_says_how_much_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts together."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(snapshots_module, "write_tensors", full)
    with pytest.raises(SwarmfreeError, match=r"about 12\.3 MB are wanted"):
        await FolderSnapshots(tmp_path, RUN).write(*numbered(1, 12_300_000), ())


async def test_who_reads_a_file_last_keeps_it_what_it_is(tmp_path: Path) -> None:
    """Another one that has read it as well has closed it before."""
    snapshots = FolderSnapshots(tmp_path, RUN)
    snapshot, parts = numbered(1)
    await snapshots.write(snapshot, parts, ())
    content = snapshots.place(snapshot.held).read_bytes()
    with snapshots.opened(snapshot.held) as file:
        with snapshots.opened(snapshot.held):
            pass
        for number in (2, 3):
            await snapshots.write(*numbered(number), ())
        assert file.read() == content
