"""The small ports of one rehearsed peer: device, clock, weights, journal.

Each belongs to one life of one peer and falls silent with it: what a killed peer's last steps would
still tell or write does not count.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from swarmfree.protocol.errors import SwarmfreeError
from swarmfree.protocol.events import Event
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.snapshot import Snapshot
from swarmfree.sim.loop import VirtualLoop

T = TypeVar("T")
Disk = dict[HeldSnapshot, tuple[Snapshot, tuple[bytes, ...]]]

WALL_START_S = 1_700_000_000.0
WRITE_S = 0.01
WORK_SPREAD_MAX = 1.5
"""The longest piece of a device's work takes so many times as long as its mean."""


@dataclass(slots=True)
class Pace:
    """How fast one peer is at the moment: 1 is as drawn, 3 takes three times as long.

    Args:
        compute: of its device, for what it begins now.
        begun: the same for what it does at the moment.
        before: the same for what it did before that.
        disk: of its disk: what it writes, and its directory, which keeps its records there.
        write_s: time of writes that the device has not waited for yet.
        stuck: whatever the device does next never ends.
        raises: the next piece of the device's work raises.
        shelf_wait_s: everything that the shelf does takes so much longer.
        shelf_refuses: the shelf takes nothing, and finds nothing.
        refuses_weights: whether the weights of a stage cannot be written.
    """

    compute: float = 1.0
    begun: float = 1.0
    before: float = 1.0
    disk: float = 1.0
    write_s: float = 0.0
    stuck: bool = False
    raises: bool = False
    shelf_wait_s: float = 0.0
    shelf_refuses: bool = False
    refuses_weights: Callable[[int], bool] = lambda _: False

    def waited_s(self) -> float:
        """Time of the writes since this was last asked."""
        write_s, self.write_s = self.write_s, 0.0
        return write_s


class VirtualClock:
    """Virtual time with this peer's own zero and skew, so that comparing clocks of two peers fails
    in rehearsal already.
    """

    def __init__(self, loop: VirtualLoop, zero_s: float, skew_s: float) -> None:
        """Set it."""
        self._loop, self._zero_s, self._skew_s = loop, zero_s, skew_s
        # What whoever looks at it on the device finds: as it begins, after that as it ends
        self.looks_s: list[float] = []

    def now_s(self) -> float:
        """Monotonic seconds."""
        ahead_s = 0.0
        if self.looks_s:
            ahead_s = self.looks_s.pop(0) if len(self.looks_s) > 1 else self.looks_s[0]
        return self._loop.time() + self._zero_s + ahead_s

    def wall_s(self) -> float:
        """Unix seconds."""
        return WALL_START_S + self._loop.time() + self._skew_s


class DeviceError(RuntimeError):
    """What a rehearsed device raises, so that its own peer may fall by it, and nobody else."""


class VirtualExecutor:
    """The device: work is done at once, its result comes after a drawn virtual time.

    So work whose caller is cancelled in between is done all the same, as on a real device thread.

    Args:
        clock: the peer's; work that looks at it twice finds its own time between the two looks.
        rng: stream of the compute times.
        seconds_per_work: their mean; drawn between half and one and a half of it.
        pace: slower at times.
    """

    def __init__(self, clock: VirtualClock, rng: random.Random, seconds_per_work: float, pace: Pace) -> None:
        """Idle."""
        self._pace = pace
        self._clock, self._rng, self._seconds_per_work = clock, rng, seconds_per_work
        self._free_s = 0.0
        self._waiting = False

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work`; the device is busy with it until the result comes, also where nobody waits for
        that any more.
        """
        assert not self._waiting, "one caller at a time"
        now_s = asyncio.get_running_loop().time()
        begin_s = max(now_s, self._free_s)
        self._pace.before, self._pace.begun = self._pace.begun, self._pace.compute
        work_s = self._pace.begun * self._seconds_per_work * self._rng.uniform(0.5, WORK_SPREAD_MAX)
        self._free_s = begin_s + work_s
        self._waiting = True
        try:
            if self._pace.raises:
                await asyncio.sleep(self._free_s - now_s)
                # Not before: until then nobody may fall who is needed once this peer falls by it
                self._pace.raises = False
                raise DeviceError("out of memory")
            self._clock.looks_s = [begin_s - now_s, begin_s - now_s + work_s]
            try:
                result = work()
            except BaseException:
                self._free_s = begin_s  # nobody waits for it: what has no result takes no time
                raise
            finally:
                self._clock.looks_s = []
            if self._pace.stuck:
                await asyncio.get_running_loop().create_future()
            self._free_s += self._pace.waited_s()
            await asyncio.sleep(self._free_s - now_s)
        finally:
            self._waiting = False
        return result


class MemoryWeights:
    """Keeps the weights that are written at the end: stage -> tensors, once per write; the device
    waits for the disk.
    """

    def __init__(
        self, written: list[tuple[int, dict[str, tuple[tuple[int, ...], bytes]]]], is_alive: Callable[[], bool], pace: Pace
    ) -> None:
        """`written` is shared by all peers."""
        self._written, self._is_alive, self._pace = written, is_alive, pace

    def write(self, stage: int, tensors: dict[str, tuple[tuple[int, ...], bytes]], iteration: int | None = None) -> str:
        """Keep them; nobody asks for any before the end.

        Raises:
            SwarmfreeError: there is no room.
        """
        assert iteration is None, "the end has no iteration"
        if self._pace.refuses_weights(stage):
            raise SwarmfreeError(f"memory/stage-{stage}: no space left on device")
        self._pace.write_s += WRITE_S * self._pace.disk
        if self._is_alive():
            self._written.append((stage, tensors))
        return f"memory/stage-{stage}"


class MemoryShelf:
    """Keeps blobs in memory; `pace` says whether it is slow, or refuses, at the moment."""

    def __init__(self, pace: Pace | None = None) -> None:
        """Empty."""
        self._pace = pace or Pace()
        self._blobs: dict[str, bytes] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is kept."""
        return tuple(self._blobs)

    @property
    def size_bytes(self) -> int:
        """Of what is kept."""
        return sum(map(len, self._blobs.values()))

    async def put(self, name: str, data: bytes) -> bool:
        """Keep it."""
        await self._wait()
        if self._pace.shelf_refuses:
            self._blobs.pop(name, None)
            return False
        self._blobs[name] = data
        return True

    async def _wait(self) -> None:
        if self._pace.shelf_wait_s:
            await asyncio.sleep(self._pace.shelf_wait_s)

    async def get(self, name: str, start: int = 0, size: int | None = None) -> bytes | None:
        """What is kept."""
        await self._wait()
        data = None if self._pace.shelf_refuses else self._blobs.get(name)
        return None if data is None else data[start:] if size is None else data[start : start + size]

    def drop(self, name: str) -> None:
        """Keep it no longer."""
        self._blobs.pop(name, None)

    async def clear(self) -> None:
        """Keep nothing any more."""
        self._blobs.clear()


class MemorySnapshots:
    """One peer's snapshots, which its next life finds again.

    Args:
        disk: of the peer, whoever lives there.
        is_alive: whether this life still writes.
        pace: of its disk.
    """

    def __init__(self, disk: Disk, is_alive: Callable[[], bool], pace: Pace) -> None:
        """Find what lies there."""
        self._disk, self._is_alive, self._pace = disk, is_alive, pace

    def held(self) -> tuple[HeldSnapshot, ...]:
        """Newest first."""
        return tuple(sorted(self._disk, key=lambda held: (-held.iteration, held.stage, held.lineage)))

    async def write(self, snapshot: Snapshot, parts: Sequence[bytes], keep: Sequence[HeldSnapshot]) -> None:
        """Keep it, some time later.

        Raises:
            SwarmfreeError: the disk refuses.
        """
        await asyncio.sleep(WRITE_S * self._pace.disk)
        if self._pace.shelf_refuses:
            raise SwarmfreeError("memory/snapshots: no space left on device")
        if self._is_alive():
            self._disk[snapshot.held] = snapshot, tuple(parts)
            for old in [old for old in self._disk if old != snapshot.held and old not in keep]:
                del self._disk[old]

    async def read(self, held: HeldSnapshot) -> Snapshot:
        """What is held.

        Raises:
            SwarmfreeError: it is gone.
        """
        return self._found(held)[0]

    async def read_part(self, held: HeldSnapshot, part: int) -> bytes:
        """One part of it.

        Raises:
            SwarmfreeError: it is gone.
        """
        await asyncio.sleep(0)
        return self._found(held)[1][part]

    def _found(self, held: HeldSnapshot) -> tuple[Snapshot, tuple[bytes, ...]]:
        if held not in self._disk:
            raise SwarmfreeError(f"memory/snapshots: nothing of iteration {held.iteration}")
        return self._disk[held]


class MemorySnapshotStore:
    """The store of a run, which all peers share.

    Args:
        stored: what lies there.
        disk: of the peer, whoever lives there.
        is_alive: whether this life still writes.
        pace: of its disk, and of its way to the store.
    """

    where = "memory/store"

    def __init__(self, stored: Disk, disk: Disk, is_alive: Callable[[], bool], pace: Pace) -> None:
        """Find what is there."""
        self._stored, self._disk, self._is_alive, self._pace = stored, disk, is_alive, pace

    async def _travel(self) -> None:
        await asyncio.sleep(WRITE_S * self._pace.disk)
        if self._pace.shelf_refuses:
            raise SwarmfreeError(f"{self.where}: nobody answers")

    async def stored(self) -> tuple[HeldSnapshot, ...]:
        """All that is there, newest first.

        Raises:
            SwarmfreeError: it refuses.
        """
        await self._travel()
        return tuple(sorted(self._stored, key=lambda held: (-held.iteration, held.stage, held.lineage)))

    async def upload(self, held: HeldSnapshot) -> None:
        """Copy one there.

        Raises:
            SwarmfreeError: it refuses, or the disk has it no more.
        """
        await self._travel()
        if held not in self._disk:
            raise SwarmfreeError(f"memory/snapshots: nothing of iteration {held.iteration}")
        if self._is_alive():
            self._stored.setdefault(held, self._disk[held])

    async def fetch(self, held: HeldSnapshot, may_replace: Callable[[], Awaitable[None]]) -> None:
        """Copy one from there, in place of what the disk has of its set.

        Raises:
            SwarmfreeError: it refuses, or has it no more; or it may not take that place.
        """
        await self._travel()
        if held not in self._stored:
            raise SwarmfreeError(f"{self.where}: nothing of iteration {held.iteration}")
        await may_replace()
        if self._is_alive():
            for one in [one for one in self._disk if (one.iteration, one.lineage) == (held.iteration, held.lineage)]:
                del self._disk[one]
            self._disk[held] = self._stored[held]

    async def prune(self, before: int) -> None:
        """Remove what is older.

        Raises:
            SwarmfreeError: it refuses.
        """
        await self._travel()
        for held in [held for held in self._stored if held.iteration < before and self._is_alive()]:
            self._stored.pop(held, None)


class MemoryJournal:
    """Hands every event of a living peer on."""

    def __init__(self, tell: Callable[[Event], None], is_alive: Callable[[], bool]) -> None:
        """`tell` gets the events."""
        self._tell, self._is_alive = tell, is_alive

    def tell(self, event: Event) -> None:
        """Keep one event."""
        if self._is_alive():
            self._tell(event)
