"""A snapshot's writer is killed, or refused by the disk, at every step: what was whole stays whole,
training goes on, and the next one is written.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.protocol.events import Note
from swarmfree.protocol.records import Record
from swarmfree.storage.snapshots import FolderSnapshots
from swarmfree.trainer.snapshot_keeper import SnapshotKeeper
from tests.killed.fault_points import RUN, leftovers, snapshot_of, struck, whole, write

REFUSALS = ((errno.ENOSPC,), (errno.EIO, errno.EROFS, errno.EACCES))
"""Only of a full disk is anything else said than of the others, which refuse in turn."""


def test_a_writer_that_is_killed_at_any_step_leaves_a_whole_snapshot() -> None:
    """SIGKILL to a child process; `make check` plays 200 stories."""
    command = (sys.executable, "-m", "tests.killed.fault_points", "0", "30")
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("30 stories, ")


class Member:
    """What a keeper sees of a member that steps when it is told to."""

    def __init__(self, folder: Path) -> None:
        """Nothing is due, and nothing was told."""
        self.notes: list[str] = []
        self.stage, self.is_over, self.moved = 2, False, self
        self._idle, self._told = asyncio.Event(), asyncio.Event()
        self._port = FolderSnapshots(folder, RUN)
        engine = SimpleNamespace(part_count=lambda _: 3, read_state=lambda part, weights_only: self._parts[part])
        context = SimpleNamespace(
            ports=SimpleNamespace(snapshots=self._port, engine=engine),
            manifest=SimpleNamespace(recovery=SimpleNamespace(snapshot_every=1)),
            tell=lambda event: self.notes.append(cast("Note", event).text),
        )
        self._keeper = SnapshotKeeper(cast("Any", context), cast("Any", SimpleNamespace(replica_state=self)))

    async def wait(self) -> None:
        """The keeper has done what was due."""
        self._idle.set()
        await self._told.wait()
        self._told.clear()

    @property
    def newest_record(self) -> Record:
        """The newest one."""
        return self._record

    async def step(self, *numbers: int) -> None:
        """Step so many times; the keeper writes each before the next.

        Raises:
            ExceptionGroup: what the keeper has ended with.
        """
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keeper.keep())
            for number in numbers:
                snapshot, self._parts = snapshot_of(number)
                self._record, self.iteration, self.past = snapshot.record, snapshot.held.iteration, snapshot.past
                self._keeper.after_step()
                self._idle.clear()
                self._told.set()
                await self._idle.wait()
            keeping.cancel()


async def steps_of(folder: Path) -> list[str]:
    """Steps of a write that also removes an older snapshot, and what a killed writer has left."""
    await fill(folder)
    names: list[str] = []
    with struck(lambda _, name: names.append(name)):
        await write(folder, 3)
    return names


async def fill(folder: Path) -> None:
    """Three writes, so that two snapshots are there, and a file that was begun."""
    for number in range(3):
        await write(folder, number)
    held = next(place for place in folder.rglob("*.safetensors"))
    held.with_name(f".{held.name}.0123abcd").write_bytes(b"half of it")


@pytest.mark.parametrize("numbers", REFUSALS, ids=lambda numbers: "-".join(errno.errorcode[number] for number in numbers))
async def test_a_disk_that_refuses_at_any_step_is_told_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...]
) -> None:
    """For two snapshots long, and again after it has recovered; what was whole stays whole, and
    what comes once the disk is well is written.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody pulls the plug here
    names = await steps_of(tmp_path / "counted")
    placed = names.index("after replace")
    assert "before fsync" in names[placed : names.index("before unlink", placed)], "its name lasts before older ones go"
    assert {"before fsync", "before replace", "before unlink", "content 4 of 8"} <= set(names)
    for chosen, name in enumerate(names):
        folder = tmp_path / str(chosen)
        await fill(folder)

        def refuse(count: int, said: str, chosen: int = chosen, name: str = name) -> None:
            if count >= chosen and said == name:
                raise OSError(numbers[chosen % len(numbers)], "refused")

        member = Member(folder)
        for newest in (4, 8):
            before = len(member.notes)
            with struck(refuse):
                await member.step(newest - 1, newest)
            found = await whole(folder)
            assert found & {newest - 2, newest - 1, newest}, f"{name}: only {found} are left"
            told = member.notes[before:]
            assert len(told) == 1 or (not told and newest in found), f"{name}: {told}, and {found} are there"
            assert all("\n" not in line and "training goes on: " in line for line in told)
            await member.step(newest + 1, newest + 2)
            assert await whole(folder) == {newest + 1, newest + 2}, name
            assert not leftovers(folder), name
            assert len(member.notes) == before + len(told), f"{name}: told of a disk that is well"
