"""The activation log: what this peer sent on and sent back in past iterations.

A lost neighbour stage is replayed from it. When an iteration is committed, the log keeps the
tensors that a repair could have pulled. In the background it packs them and moves them to memory of
their own; older iterations go to the shelf. The log reaches back a little further than the last
shadows, and its size is bounded. It sends nothing until a stage is lost.

Source: design section 6, method 2.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swarmfree.policy.retention import LogLength
from swarmfree.protocol.engine_port import Writable
from swarmfree.protocol.errors import CallFailed
from swarmfree.protocol.names import ABSENT, Side, WorkKey
from swarmfree.protocol.ports import Shelf
from swarmfree.trainer.recovery.buffer_pool import Buffer, BufferPool
from swarmfree.trainer.tasks import Signal

SPARE = 8
"""One in so many bytes of memory may lie spare between two iterations; more where an iteration has
more.
"""

BATCH_BYTES = 2 << 20
"""So much is packed and moved at a time: enough for what surrounds it to cost nothing, too little
for anybody to wait.
"""

SETTLE_AFTER, SETTLE_AFTER_MAX_S = 0.3, 5.0
"""So much of the time between two iterations passes before one is packed and moved: right after a
commit, stages wait for the first microbatches, and whatever one of them does besides delays all
that come after it.
"""

What = tuple[int, Side]
"""Microbatch and side."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds of an activation log.

    Args:
        iterations: so many of the last ones; 0 = none.
        size_bytes: of all of them and of the shadows beside them; the oldest go first.
        ram_bytes: of these, so many in memory; older ones lie on the shelf.
        fits: how long a log may be whose iterations came with so many bytes and are kept in so
            many.
    """

    iterations: int
    size_bytes: int
    ram_bytes: int
    fits: Callable[[int, int], LogLength] | None = None


class Packing(Protocol):
    """Port that packs logged tensors into fewer bytes, and unpacks them."""

    def size_bytes(self, data: bytes) -> int:
        """Length of `data` in bytes once it is packed."""
        ...

    async def pack(self, tensors: Sequence[tuple[bytes, Writable]]) -> None:
        """Pack each tensor into the buffer beside it.

        Raises:
            CallFailed: it cannot be packed.
        """
        ...

    async def unpack(self, data: bytes) -> bytes:
        """Unpack one tensor; the result differs from the original by rounding only.

        Raises:
            CallFailed: it cannot be unpacked.
        """
        ...


@dataclass(slots=True, eq=False)
class LoggedIteration:
    """The activations of one iteration, and where each of them lies.

    A tensor is at first in `fresh`, as it came; then in `buffers`, packed, in memory of the log; at
    last in a blob on the shelf, at (start, size) in `places`. `number` counts what was ever logged.
    """

    number: int
    iteration: int
    base: str
    fresh: dict[What, bytes]
    settle_at_s: float
    buffers: dict[What, Buffer] = field(default_factory=dict)
    places: dict[What, tuple[int, int]] = field(default_factory=dict)
    is_shelved: bool = False
    is_dropped: bool = False

    @property
    def name(self) -> str:
        """Name of the iteration's blob on the shelf; the log of another stage may have the same
        iteration.
        """
        return f"activations-{self.number}-{self.iteration}-{self.base}"


class ActivationLog:
    """This peer's activation log.

    Args:
        shelf: where it is kept when memory is full.
        bounds: how much is kept.
        now_s: of a steady clock.
        packing: how tensors are made smaller; None = they are kept as they are.

    Attributes:
        length: how long it may be.
        beside_bytes: of shadows, which are kept within the same bounds.
    """

    def __init__(self, shelf: Shelf, bounds: LogLimits, now_s: Callable[[], float], packing: Packing | None = None) -> None:
        """Empty."""
        self._shelf, self._bounds, self._now_s, self._packing = shelf, bounds, now_s, packing
        self._kept_at_s = now_s()
        self._logged: deque[LoggedIteration] = deque()
        self._former: deque[LoggedIteration] = deque()
        self._former_stage = ABSENT
        self._number = 0
        self._changed = Signal()
        self._pool = BufferPool(bounds.ram_bytes // SPARE)
        self.ram_bytes = self.shelf_bytes = self.beside_bytes = 0
        self.length = LogLength(bounds.iterations)

    @property
    def size_bytes(self) -> int:
        """Bytes that the log holds, in memory and on the shelf."""
        return self.ram_bytes + self.shelf_bytes

    @property
    def claim_bytes(self) -> int:
        """Bytes that shadows must leave to the log: its full length as soon as it has an
        iteration.
        """
        return max(self.size_bytes, self.length.size_bytes) if self._logged else 0

    @property
    def since(self) -> int:
        """First iteration from which the log has no gap; `ABSENT` while it is empty."""
        return self._logged[0].iteration if self._logged else ABSENT

    @property
    def is_kept(self) -> bool:
        """Whether this run keeps activation logs at all."""
        return self._bounds.iterations > 0

    def keep(self, iteration: int, base: str, tensors: Mapping[What, bytes]) -> None:
        """Add the activations of a committed iteration; after a gap the log starts again with it.

        Args:
            iteration: the committed one.
            base: that its work started from.
            tensors: (microbatch, side) -> wire bytes.
        """
        if not self.is_kept:
            return
        size_bytes = sum(map(len, tensors.values()))
        if self._bounds.fits is not None:
            kept = self._packing.size_bytes if self._packing is not None else len
            self.length = self._bounds.fits(size_bytes, sum(map(kept, tensors.values())))
        if not self.length.iterations or (self._logged and self._logged[-1].iteration != iteration - 1):
            self.clear()
        if not self.length.iterations:
            return
        since_s, self._kept_at_s = self._kept_at_s, self._now_s()
        settle_at_s = self._kept_at_s + min(SETTLE_AFTER_MAX_S, SETTLE_AFTER * (self._kept_at_s - since_s))
        self._logged.append(LoggedIteration(self._number, iteration, base, dict(tensors), settle_at_s))
        self._number += 1
        self.ram_bytes += size_bytes
        self._pool.spare_bytes_max = max(self._pool.spare_bytes_max, min(size_bytes, self._bounds.ram_bytes))
        while self._former and self._over_bytes() > 0:
            self._drop(self._former.popleft())
        while len(self._logged) > self.length.iterations or (self._logged and self._over_bytes() > 0):
            self._drop(self._logged.popleft())
        self._changed.tell()

    def _over_bytes(self) -> int:
        """How much more is kept than may be; what lies spare goes first."""
        over_bytes = self.size_bytes + self._pool.spare_bytes + self.beside_bytes - self._bounds.size_bytes
        return over_bytes - self._pool.shrink(over_bytes)

    def clear(self) -> None:
        """Drop all iterations of the stage that is held, because this peer missed one."""
        while self._logged:
            self._drop(self._logged.popleft())

    def set_aside(self, stage: int) -> None:
        """Begin a log of another stage; the one of `stage` stays until that is built.

        Whoever rebuilds a lost neighbour needs the activations that it logged itself.

        Args:
            stage: the one that was held, `ABSENT` if a build before this one failed.
        """
        if stage == ABSENT:
            self.clear()
            return
        self.forget_former()
        self._former, self._logged, self._former_stage = self._logged, self._former, stage

    def forget_former(self) -> None:
        """Drop the log of the stage that was held before; the other one is built."""
        while self._former:
            self._drop(self._former.popleft())

    def _drop(self, entry: LoggedIteration) -> None:
        entry.is_dropped = True
        if entry.is_shelved:
            self.shelf_bytes -= sum(size for _, size in entry.places.values())
            self._shelf.drop(entry.name)
        self._leave_memory(entry)

    def _leave_memory(self, entry: LoggedIteration) -> None:
        for what in (*entry.fresh, *entry.buffers):
            self._forget(entry, what)

    def _forget(self, entry: LoggedIteration, what: What) -> None:
        """A tensor that is in memory."""
        if what in entry.fresh:
            self.ram_bytes -= len(entry.fresh.pop(what))
            return
        buffer = entry.buffers.pop(what)
        self.ram_bytes -= len(buffer)
        self._pool.give(buffer)

    # ---- in the background -----------------------------------------------------------------------

    async def serve(self) -> None:
        """Run for ever: move old iterations to the shelf while memory is full, and pack new ones.

        If packing or writing fails, the log drops everything and starts again.
        """
        while True:
            oldest = next((each for each in self._logged if not each.is_shelved), None)
            is_ready = oldest is not None and (self._packing is None or not oldest.fresh)
            if oldest is not None and is_ready and self.ram_bytes > self._bounds.ram_bytes:
                await self._shelve(oldest)
            elif (fresh := next((each for each in self._logged if each.fresh), None)) is not None:
                wait_s = fresh.settle_at_s - self._now_s()
                if wait_s <= 0 or not await self._changed.wait(wait_s):
                    await self._settle(fresh)
            else:
                await self._changed.wait()

    async def _settle(self, entry: LoggedIteration) -> None:
        """Pack its tensors, some at a time, and move them to memory of the log."""
        for batch in _batches(entry.fresh):
            # The others were forgotten meanwhile
            names = [what for what in batch if what in entry.fresh]
            if not names:
                continue
            try:
                buffers = await self._moved([entry.fresh[what] for what in names])
            except CallFailed:
                self.clear()
                return
            for what, buffer in zip(names, buffers, strict=True):
                if what in entry.fresh:
                    self._forget(entry, what)
                    entry.buffers[what] = buffer
                    self.ram_bytes += len(buffer)
                else:
                    self._pool.give(buffer)

    async def _moved(self, tensors: Sequence[bytes]) -> Sequence[Buffer]:
        """Packed, if they are, in memory of the log."""
        if self._packing is None:
            await asyncio.sleep(0)
            return [self._pool.take(data) for data in tensors]
        buffers = [self._pool.room(self._packing.size_bytes(data)) for data in tensors]
        await self._packing.pack(list(zip(tensors, buffers, strict=True)))
        return buffers

    async def _shelve(self, entry: LoggedIteration) -> None:
        places, start = {}, 0
        tensors: dict[What, Buffer] = {**entry.fresh, **entry.buffers}
        for what, tensor in tensors.items():
            places[what] = start, len(tensor)
            start += len(tensor)
        is_kept = await self._shelf.put(entry.name, b"".join(tensors.values()))
        if entry.is_dropped:
            self._shelf.drop(entry.name)
        elif is_kept:
            self._leave_memory(entry)
            entry.places, entry.is_shelved = places, True
            self.shelf_bytes += start
        else:
            self.clear()

    # ---- answers ---------------------------------------------------------------------------------

    async def find(self, key: WorkKey, side: Side) -> bytes | None:
        """Return a logged tensor of a past iteration, None if the log does not have it.

        An unpacked tensor is the one that crossed the wire; a packed one is near it.

        Raises:
            CallFailed: it cannot be unpacked.
        """
        former = await self.find_former(key, side)
        return former if former is not None else await self._find(self._logged, key, side)

    async def find_former(self, key: WorkKey, side: Side) -> bytes | None:
        """Return what `find` would, only from the log of the stage that this peer held before.

        Raises:
            CallFailed: it cannot be unpacked.
        """
        return await self._find(self._former, key, side) if key.stage == self._former_stage else None

    async def _find(self, entries: Iterable[LoggedIteration], key: WorkKey, side: Side) -> bytes | None:
        what = key.microbatch, side
        for entry in entries:
            if (entry.iteration, entry.base) == (key.iteration, key.base):
                if what in entry.fresh:
                    return entry.fresh[what]
                if what in entry.buffers:
                    kept: bytes | None = bytes(entry.buffers[what])
                else:
                    kept = await self._shelf.get(entry.name, *entry.places[what]) if what in entry.places else None
                return kept if kept is None or self._packing is None else await self._packing.unpack(kept)
        return None


def _batches(tensors: Mapping[What, bytes]) -> Iterator[list[What]]:
    """All of these, in order, not much more than `BATCH_BYTES` together."""
    names, size_bytes = list[What](), 0
    for what, data in list(tensors.items()):
        names.append(what)
        size_bytes += len(data)
        if size_bytes >= BATCH_BYTES:
            yield names
            names, size_bytes = [], 0
    if names:
        yield names
