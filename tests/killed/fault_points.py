"""Every step in which a snapshot is written: a process can be killed there, or the system refuse.

A step is a call by which the disk is asked or changed, once before it and once after it; of the
file's content also each eighth. ``python -m tests.killed.fault_points FIRST COUNT`` kills so many
writers with SIGKILL, each at a drawn step of a drawn story, and looks at what the next life finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from swarmfree.policy.resume import worth_keeping
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.storage import snapshots
from swarmfree.storage.snapshots import FolderSnapshots, write_tensors
from tests.wire.wire_samples import RECORD

RUN = "cd" * 32
CALLS = ("mkdir", "open", "fsync", "replace", "unlink", "listdir", "scandir")
PIECES = 8
PART_BYTES = 1 << 14


@contextlib.contextmanager
def struck(strike: Callable[[int, str], None]) -> Iterator[None]:
    """Call `strike` with the number and the name of each step of the block."""
    count = 0

    def step(name: str) -> None:
        nonlocal count
        count += 1
        strike(count - 1, name)

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **options: Any) -> Any:
            step(f"before {name}")
            done = call(*arguments, **options)
            if name not in {"open", "scandir"}:  # else a descriptor would be lost
                step(f"after {name}")
            return done

        return around

    def write_in_pieces(file: IO[bytes], metadata: dict[str, str], parts: Sequence[bytes]) -> None:
        write_tensors(whole := io.BytesIO(), metadata, parts)
        content = whole.getvalue()
        step("before content")
        for piece in range(PIECES):
            file.write(content[len(content) * piece // PIECES : len(content) * (piece + 1) // PIECES])
            file.flush()
            step(f"content {piece + 1} of {PIECES}")

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, watched(name, getattr(os, name)))
        patch.setattr(snapshots, "write_tensors", write_in_pieces)
        yield


def snapshot_of(number: int) -> tuple[Snapshot, list[bytes]]:
    """The snapshot with this number of one lineage, and its parts."""
    record = replace(RECORD, iteration=10 * number)
    past = {10 * before + 1: replace(RECORD, iteration=10 * before).lineage() for before in range(number + 1)}
    draw = random.Random(number)
    parts = [draw.randbytes(PART_BYTES) for _ in range(3)]
    return Snapshot(2, record, past, len(parts)), parts


async def write(folder: Path, number: int) -> None:
    """Write it as a peer does: with the one that is to stay beside it."""
    snapshot, parts = snapshot_of(number)
    port = FolderSnapshots(folder, RUN)
    try:
        await port.write(snapshot, parts, worth_keeping(port.held(), snapshot.held.iteration, snapshot.past))
    finally:
        port.close()


async def whole(folder: Path) -> set[int]:
    """Numbers of the snapshots that are told of, each of which is read to the last bit.

    Raises:
        SwarmfreeError: one of them is damaged.
        AssertionError: one of them is another one.
    """
    port = FolderSnapshots(folder, RUN)
    try:
        found = {held.iteration // 10: held for held in port.held()}
        for number, held in found.items():
            snapshot, parts = snapshot_of(number)
            assert await port.read(held) == snapshot
            assert [await port.read_part(held, part) for part in range(len(parts))] == parts
        return set(found)
    finally:
        port.close()


def leftovers(folder: Path) -> list[str]:
    """What lies there and is no snapshot, nor the one that the next is written over."""
    names = {
        FolderSnapshots(folder, RUN).place(HeldSnapshot(2, 10 * n + 1, snapshot_of(n)[0].held.lineage)).name for n in range(12)
    }
    return [place.name for place in folder.rglob("*") if place.is_file() and place.name not in {*names, ".spare"}]


def killed(seed: int, steps: Counter[str]) -> None:
    """One story: some snapshots, perhaps a writer that was killed before, one killed at a drawn
    step, and the next life.

    Raises:
        AssertionError: something that was whole is not, or the next life cannot go on.
    """
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="swarmfree-killed-") as name:
        folder = Path(name)
        number = draw.randrange(4)
        for before in range(number):
            asyncio.run(write(folder, before))
        for _ in range(draw.choice((1, 1, 2))):
            had = asyncio.run(whole(folder))
            at = _die(folder, number, draw)
            steps[at.rstrip("0123456789 of")] += 1
            found = asyncio.run(whole(folder))
            kept = had if number not in found else {max(had)} if had else set()
            assert found >= kept, f"seed {seed}, {at}: {found} are left of {had}"
            assert found <= had | {number}, f"seed {seed}, {at}: {found} are there after {had}"
        asyncio.run(write(folder, number + 1))
        kept = {max(found)} if found else set()
        assert asyncio.run(whole(folder)) == kept | {number + 1}, f"seed {seed}, {at}: the next life keeps something else"
        assert not leftovers(folder), f"seed {seed}, {at}: {leftovers(folder)} stay"


def _die(folder: Path, number: int, draw: random.Random) -> str:
    """Have a child of this process write, and be killed; the step at which it was."""
    steps: list[str] = []
    with tempfile.TemporaryDirectory(prefix="swarmfree-counted-") as copy:
        _copy(folder, Path(copy))
        with struck(lambda _, name: steps.append(name)):
            asyncio.run(write(Path(copy), number))
    chosen = draw.randrange(len(steps))

    def strike(count: int, _: str) -> None:
        if count == chosen:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        with struck(strike):
            asyncio.run(write(folder, number))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"step {chosen} of {len(steps)} was not reached"
    return steps[chosen]


def _copy(folder: Path, to: Path) -> None:
    for place in folder.rglob("*"):
        if place.is_file():
            target = to / place.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(place.read_bytes())


def main(first: int, count: int) -> None:
    """Play so many stories, and say where the writers died."""
    steps = Counter[str]()
    for seed in range(first, first + count):
        killed(seed, steps)
    told = ", ".join(f"{times} {name}" for name, times in sorted(steps.items()))
    sys.stdout.write(f"{count} stories, {sum(steps.values())} writers killed ({told}): always whole, nothing left behind\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
