"""The snapshots port over a folder: one safetensors file for each, there whole or not at all.

A file holds one float32 tensor for each part of the stage's state, weights, first and second
moments one after the other, and in its header what the snapshot is of, the last record, and a
BLAKE3 of each part. Writing and hashing happen on a thread of their own.

One file that is no longer needed stays as a spare, and the next snapshot is written over it. A new
file costs many times as much, since the system has to find and clear memory for what it caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.records import record_from_json, record_to_json
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.storage.atomic_files import flush_to_disk, place_whole, told_in_one_line

SNAPSHOTS, SUFFIX = "snapshots", ".safetensors"
_NAME = re.compile(r"iteration-(\d{9})-stage-(\d+)-([0-9a-f]{64})\.safetensors")
CHECKSUMS: dict[str, Callable[..., Any]] = {"blake3": blake3, "sha256": hashlib.sha256}
"""By name; the second one in what versions before have written."""
_PAST_KEPT = 4096
_SPARE = ".spare"


class FolderSnapshots:
    """A folder of snapshots of one run, this peer's own.

    Args:
        folder: made where the first one is written.
        run: the manifest's fingerprint; files of another run are passed over.
    """

    def __init__(self, folder: Path, run: str) -> None:
        """Nothing is read yet."""
        self._folder, self._run = _folder_of(folder, run), run
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="swarmfree-snapshots")
        self._read, self._removal = list[HeldSnapshot](), threading.Lock()
        self._is_swept = False

    def held(self) -> tuple[HeldSnapshot, ...]:
        """Whole ones, newest first, by their names."""
        return _held(self._folder)

    @staticmethod
    def lying_in(folder: Path, run: str) -> tuple[HeldSnapshot, ...]:
        """Those of a folder in which nobody writes now: see `held`."""
        return _held(_folder_of(folder, run))

    async def write(self, snapshot: Snapshot, parts: Sequence[bytes], keep: Sequence[HeldSnapshot]) -> None:
        """Write one, then remove all others but those in `keep`.

        Raises:
            SwarmfreeError: the disk is full or refuses; what was there is there.
        """
        await asyncio.get_running_loop().run_in_executor(self._pool, self._write, snapshot, parts, keep)

    async def read(self, held: HeldSnapshot) -> Snapshot:
        """What a file says of itself.

        Raises:
            SwarmfreeError: it is damaged, of another run, or gone.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: self._head(held)[0])

    async def read_part(self, held: HeldSnapshot, part: int) -> bytes:
        """One part of the state, whose hash is looked at.

        Raises:
            SwarmfreeError: it is damaged, or gone.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read_part, held, part)

    @contextlib.contextmanager
    def opened(self, held: HeldSnapshot) -> Iterator[IO[bytes]]:
        """Its file, which stays what it is while it is open, also once later ones have taken its
        place.

        Raises:
            SwarmfreeError: it is gone, or cannot be read.
        """
        place = self.place(held)
        with told_in_one_line(place, "reading"), contextlib.ExitStack() as stack:
            with self._removal:
                file = stack.enter_context(place.open("rb"))
                self._read.append(held)
            stack.callback(self._read.remove, held)
            yield file

    def place(self, held: HeldSnapshot) -> Path:
        """Where it lies."""
        return self._folder / f"iteration-{held.iteration:09}-stage-{held.stage}-{held.lineage}{SUFFIX}"

    @contextlib.asynccontextmanager
    async def received(self, held: HeldSnapshot, may_replace: Callable[[], Awaitable[None]]) -> AsyncIterator[IO[bytes]]:
        """Take in a file that was written elsewhere: it lies here once the block has ended well, in
        place of other stages of its set, and it may take that place.

        Args:
            held: what it is of.
            may_replace: as in `protocol.ports`, asked once all has reached the disk.

        Raises:
            SwarmfreeError: the disk is full or refuses; nothing is left behind.
        """
        place = self.place(held)
        temporary = place.with_name(f".{place.name}.{uuid4().hex[:8]}")

        def take_in() -> None:
            temporary.replace(place)
            flush_to_disk(self._folder)
            for other in self.held():
                if (other.iteration, other.lineage) == (held.iteration, held.lineage) and other != held:
                    self.place(other).unlink(missing_ok=True)

        with told_in_one_line(place, "writing"):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._pool, self._take_spare, temporary)
                with temporary.open("r+b") as file:
                    yield file
                    file.truncate()
                await loop.run_in_executor(self._pool, flush_to_disk, temporary)
                await may_replace()
                await loop.run_in_executor(self._pool, take_in)
            finally:
                temporary.unlink(missing_ok=True)

    def close(self) -> None:
        """Finish what is being written."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def clear(self) -> None:
        """Remove all of this run: it is over."""
        self.close()
        with contextlib.suppress(OSError):
            for place in self._folder.iterdir():
                place.unlink()
            self._folder.rmdir()

    def _write(self, snapshot: Snapshot, parts: Sequence[bytes], keep: Sequence[HeldSnapshot]) -> None:
        held = snapshot.held
        since = held.iteration - _PAST_KEPT
        header = {
            "run": self._run,
            "stage": held.stage,
            "iteration": held.iteration,
            "record": record_to_json(snapshot.record),
            "past": {str(iteration): lineage for iteration, lineage in snapshot.past.items() if iteration > since},
            "blake3": [blake3(data).hexdigest() for data in parts],
        }
        place_whole(self.place(held), lambda temporary: self._save(temporary, header, parts), sum(map(len, parts)))
        for old in self.held():
            if old != held and old not in keep:
                with told_in_one_line(self.place(old), "removing an older snapshot"):
                    self._remove(old)

    def _remove(self, old: HeldSnapshot) -> None:
        with self._removal, contextlib.suppress(FileNotFoundError):
            if old in self._read:
                self.place(old).unlink()
            else:
                self.place(old).replace(self._folder / _SPARE)

    def _save(self, temporary: Path, header: dict[str, object], parts: Sequence[bytes]) -> None:
        self._take_spare(temporary)
        with temporary.open("r+b") as file:
            write_tensors(file, {"swarmfree": json.dumps(header)}, parts)
            file.truncate()

    def _take_spare(self, temporary: Path) -> None:
        """Make a file of this name, of the spare one where there is one, for whoever writes it from
        its beginning and cuts off what is left.
        """
        if not self._is_swept:  # once, since what this life writes has such a name too
            for torn in self._folder.glob(".iteration-*"):
                torn.unlink(missing_ok=True)
            self._is_swept = True
        with contextlib.suppress(FileNotFoundError):
            (self._folder / _SPARE).replace(temporary)
            is_writable = os.access(temporary, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
            if temporary.stat().st_nlink > 1 or not is_writable:  # a backup keeps it, or somebody else owns it
                temporary.unlink()
            flush_to_disk(self._folder)  # else its name of before may outlive what is in it
        temporary.touch()

    def _head(self, held: HeldSnapshot) -> tuple[Snapshot, str, list[str]]:
        """What the file says of itself, and the checksum of each part: which, and its values."""
        with self._opened(held) as file:
            header = json.loads((file.metadata() or {})["swarmfree"])
            checksum, found = checksum_in(header)
            hashes = [str(digest) for digest in found]
            past = {int(iteration): str(lineage) for iteration, lineage in header["past"].items()}
            snapshot = Snapshot(int(header["stage"]), record_from_json(header["record"]), past, len(hashes))
            if header["run"] != self._run or snapshot.held != held or len(file.keys()) != len(hashes):
                raise ValueError("its name, its run and what is in it do not agree")
            return snapshot, checksum, hashes

    def _read_part(self, held: HeldSnapshot, part: int) -> bytes:
        _, checksum, hashes = self._head(held)
        with self._opened(held) as file:
            data = bytes(np.asarray(file.get_tensor(_tensor(part)), "<f4").tobytes())
            if CHECKSUMS[checksum](data).hexdigest() != hashes[part]:
                raise ValueError(f"part {part} is not what was written: the disk has changed it")
            return data

    @contextlib.contextmanager
    def _opened(self, held: HeldSnapshot) -> Iterator[Any]:
        place = self.place(held)
        try:
            with safe_open(place, "numpy") as file:
                yield file
        except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SwarmfreeError(f"{place}: no snapshot that can be read: {error}") from error


def checksum_in(said: Mapping[str, Any]) -> tuple[str, Any]:
    """Which one a header or a record holds, and its value.

    Raises:
        LookupError: none.
    """
    name = next((name for name in CHECKSUMS if name in said), "blake3")
    return name, said[name]


def write_tensors(file: IO[bytes], metadata: dict[str, str], parts: Sequence[bytes]) -> None:
    """Write a file in the format of safetensors, one float32 vector for each part; the library
    itself begins a new file each time.
    """
    ends = itertools.accumulate(map(len, parts), initial=0)
    tensors = {
        _tensor(part): {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}
        for part, (begin, end) in enumerate(itertools.pairwise(ends))
    }
    head = json.dumps({"__metadata__": metadata, **tensors}).encode()
    head += b" " * (-len(head) % 8)
    for content in (len(head).to_bytes(8, "little"), head, *parts):
        file.write(content)


def _folder_of(folder: Path, run: str) -> Path:
    return folder / run[:16]


def _held(folder: Path) -> tuple[HeldSnapshot, ...]:
    try:
        names = [match for place in folder.iterdir() if (match := _NAME.fullmatch(place.name))]
    except OSError:
        return ()
    found = [HeldSnapshot(int(match[2]), int(match[1]), match[3]) for match in names]
    return tuple(sorted(found, key=lambda held: (-held.iteration, held.stage, held.lineage)))


def _tensor(part: int) -> str:
    return f"part-{part:06}"
