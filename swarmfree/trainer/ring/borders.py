"""The border log: what this peer got, sent on and sent back in past iterations, so that a lost neighbour stage can be replayed or refitted.

The tensors that repair pulls anyway are kept on when their iteration is committed: the newest in memory, the others on the shelf, since the last
shadows and somewhat longer, and within bounds. Nothing of it travels until a stage is lost. Source: design section 6, rungs 2 and 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmfree.swarm.names import Side, WorkKey
from swarmfree.swarm.ports import Shelf
from swarmfree.trainer.tasks import Signal

NONE = -1


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept.

    Args:
        iterations: so many of the last ones; 0 = none.
        size_bytes: of all of them; the oldest go first.
        ram_bytes: of these, so many in memory; older ones lie on the shelf.
        inputs: iterations of which inputs are kept as well, for a refit.
    """

    iterations: int
    size_bytes: int
    ram_bytes: int
    inputs: int


@dataclass(slots=True, eq=False)
class Logged:
    """One iteration's borders: the tensors while they are in memory, then where each lies in the blob on the shelf."""

    iteration: int
    base: str
    tensors: dict[tuple[int, Side], bytes]
    size_bytes: int
    places: dict[tuple[int, Side], tuple[int, int]] = field(default_factory=dict)
    is_leaving: bool = False
    is_shelved: bool = False
    is_dropped: bool = False

    @property
    def name(self) -> str:
        """On the shelf."""
        return f"border-{self.iteration}-{self.base}"


class Borders:
    """This peer's border log.

    Args:
        shelf: where it is kept when memory is full.
        bounds: how much is kept.
    """

    def __init__(self, shelf: Shelf, bounds: Bounds) -> None:
        """Empty."""
        self._shelf, self._bounds = shelf, bounds
        self._logged: deque[Logged] = deque()
        self._filled = Signal()
        self.size_bytes = self.ram_bytes = 0

    @property
    def since(self) -> int:
        """The iteration from which on the log is whole; `NONE` without one."""
        return self._logged[0].iteration if self._logged else NONE

    @property
    def is_kept(self) -> bool:
        """Whether there is a log at all."""
        return self._bounds.iterations > 0

    def keep(self, iteration: int, base: str, tensors: Mapping[tuple[int, Side], bytes]) -> None:
        """An iteration is committed: keep its borders, by microbatch; after a gap the log begins anew."""
        if not self.is_kept:
            return
        if self._logged and self._logged[-1].iteration != iteration - 1:
            self.clear()
        entry = Logged(iteration, base, dict(tensors), sum(map(len, tensors.values())))
        self._logged.append(entry)
        self.size_bytes += entry.size_bytes
        self.ram_bytes += entry.size_bytes
        if len(self._logged) > self._bounds.inputs:
            self._drop_inputs(self._logged[-1 - self._bounds.inputs])
        while len(self._logged) > self._bounds.iterations or (self.size_bytes > self._bounds.size_bytes and self._logged):
            self._drop(self._logged.popleft())
        if self.ram_bytes > self._bounds.ram_bytes:
            self._filled.tell()

    def clear(self) -> None:
        """Forget everything: this peer has missed an iteration, or is about to hold another stage."""
        while self._logged:
            self._drop(self._logged.popleft())

    def _drop_inputs(self, entry: Logged) -> None:
        """Of an iteration that is too old for a refit, and still in memory."""
        inputs = [] if entry.is_leaving else [what for what in entry.tensors if what[1] is Side.INPUT]
        spared = sum(len(entry.tensors.pop(what)) for what in inputs)
        entry.size_bytes -= spared
        self.size_bytes -= spared
        self.ram_bytes -= spared

    def _drop(self, entry: Logged) -> None:
        self.size_bytes -= entry.size_bytes
        entry.is_dropped = True
        if entry.is_shelved:
            self._shelf.drop(entry.name)
        else:
            self.ram_bytes -= entry.size_bytes
            entry.tensors = {}

    async def serve(self) -> None:
        """Put the oldest on the shelf while memory is full, for ever; where the disk refuses, the log begins anew."""
        while True:
            while self.ram_bytes > self._bounds.ram_bytes:
                entry = next(entry for entry in self._logged if not entry.is_shelved)
                await self._shelve(entry)
            await self._filled.wait()

    async def _shelve(self, entry: Logged) -> None:
        places, start, entry.is_leaving = {}, 0, True
        for what, data in entry.tensors.items():
            places[what] = start, len(data)
            start += len(data)
        is_kept = await self._shelf.put(entry.name, b"".join(entry.tensors.values()))
        if entry.is_dropped:
            self._shelf.drop(entry.name)
        elif is_kept:
            entry.places, entry.tensors, entry.is_shelved = places, {}, True
            self.ram_bytes -= entry.size_bytes
        else:
            self.clear()

    async def find(self, key: WorkKey, side: Side) -> bytes | None:
        """A tensor of a microbatch of a past iteration; None where it is not kept."""
        for entry in self._logged:
            if (entry.iteration, entry.base) == (key.iteration, key.base):
                what = key.microbatch, side
                if not entry.is_shelved:
                    return entry.tensors.get(what)
                if what not in entry.places:
                    return None
                return await self._shelf.get(entry.name, *entry.places[what])
        return None
