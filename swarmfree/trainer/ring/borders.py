"""The border log: what this peer sent on and sent back in past iterations, so that a lost neighbour stage can be replayed.

The outputs and answers that repair pulls anyway are kept on when their iteration is committed: on the shelf, since the last full shadows and somewhat
longer, and within bounds. Nothing of it travels until a stage is lost. Source: design section 6, rung 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmfree.swarm.names import WorkKey
from swarmfree.swarm.ports import Shelf
from swarmfree.trainer.tasks import Signal

NONE = -1


@dataclass(slots=True, eq=False)
class Logged:
    """One iteration's borders: where each microbatch lies in the blob, and the blob until it is on the shelf."""

    iteration: int
    base: str
    places: dict[tuple[int, bool], tuple[int, int]] = field(default_factory=dict)
    size_bytes: int = 0
    blob: bytes | None = None

    @property
    def name(self) -> str:
        """On the shelf."""
        return f"border-{self.iteration}-{self.base}"


class Borders:
    """This peer's border log.

    Args:
        shelf: where it is kept.
        iterations_max: so many of the last ones are kept; 0 = none.
        bytes_max: of all of them; the oldest go first.
    """

    def __init__(self, shelf: Shelf, iterations_max: int, bytes_max: int) -> None:
        """Empty."""
        self._shelf, self._iterations_max, self._bytes_max = shelf, iterations_max, bytes_max
        self._logged: deque[Logged] = deque()
        self._fresh: deque[Logged] = deque()
        self._filled = Signal()
        self.size_bytes = 0

    @property
    def since(self) -> int:
        """The iteration from which on the log is whole; `NONE` without one."""
        return self._logged[0].iteration if self._logged else NONE

    @property
    def is_kept(self) -> bool:
        """Whether there is a log at all."""
        return self._iterations_max > 0

    def keep(self, iteration: int, base: str, outputs: Mapping[int, bytes], answers: Mapping[int, bytes]) -> None:
        """An iteration is committed: keep its borders, by microbatch; after a gap the log begins anew."""
        if not self.is_kept:
            return
        if self._logged and self._logged[-1].iteration != iteration - 1:
            self.clear()
        entry, pieces = Logged(iteration, base), []
        for is_answer, found in ((False, outputs), (True, answers)):
            for microbatch, data in found.items():
                entry.places[microbatch, is_answer] = entry.size_bytes, len(data)
                entry.size_bytes += len(data)
                pieces.append(data)
        entry.blob = b"".join(pieces)
        self._logged.append(entry)
        self._fresh.append(entry)
        self.size_bytes += entry.size_bytes
        while len(self._logged) > self._iterations_max or (self.size_bytes > self._bytes_max and self._logged):
            self._drop(self._logged.popleft())
        self._filled.tell()

    def clear(self) -> None:
        """Forget everything: this peer has missed an iteration, or is about to hold another stage."""
        while self._logged:
            self._drop(self._logged.popleft())

    def _drop(self, entry: Logged) -> None:
        self.size_bytes -= entry.size_bytes
        if entry.blob is None:
            self._shelf.drop(entry.name)
        entry.blob = b""

    async def serve(self) -> None:
        """Put what is new on the shelf, for ever; where the disk refuses, the log begins anew."""
        while True:
            while self._fresh:
                entry = self._fresh.popleft()
                if not entry.blob:
                    continue
                if not await self._shelf.put(entry.name, entry.blob):
                    self.clear()
                elif entry in self._logged:
                    entry.blob = None
                else:
                    self._shelf.drop(entry.name)
            await self._filled.wait()

    async def find(self, key: WorkKey, *, answer: bool) -> bytes | None:
        """What was sent on, or back, for a microbatch of a past iteration; None where it is not kept."""
        for entry in self._logged:
            if (entry.iteration, entry.base) == (key.iteration, key.base):
                place = entry.places.get((key.microbatch, answer))
                if place is None:
                    return None
                start, size = place
                if entry.blob is not None:
                    return entry.blob[start : start + size]
                return await self._shelf.get(entry.name, start, size)
        return None
