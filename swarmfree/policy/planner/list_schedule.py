"""When an iteration is through where every microbatch has a route of its own: devices work through
lists, backward before forward, older before newer, as `trainer.device` does.

This covers what a closed form cannot: replicas that share a stage, peers of unequal speed, a peer
that serves several stages, and microbatches that were rerouted from a lost one.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Work(NamedTuple):
    """One piece of device work of a microbatch: a tuple, since an estimate makes thousands.

    Args:
        device: whose.
        seconds: it takes.
        is_backward: goes before every forward that waits at the same device.
        link_s: seconds that its input is under way, from the end of the piece before.
    """

    device: Hashable
    seconds: float
    is_backward: bool
    link_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """How a schedule went.

    Args:
        seconds: until the last piece was done.
        busy_s: device -> seconds of work.
        held_max: device -> most microbatches at once whose forward had begun there and whose last
            piece there was not done.
    """

    seconds: float
    busy_s: Mapping[Hashable, float]
    held_max: Mapping[Hashable, int]


def list_schedule(chains: Sequence[Sequence[Work]], credits: int | None = None) -> Timeline:
    """Play an iteration.

    Args:
        chains: per microbatch, older first: its pieces of work in order. The device of the first
            piece is its source.
        credits: how many microbatches of one source are in flight at once; None = all.

    Raises:
        ValueError: a microbatch without work, or fewer than one credit.
    """
    if not all(chains) or (credits is not None and credits < 1):
        raise ValueError("every microbatch has work, and a source feeds one at least")
    return _ListScheduler(chains, credits).play()


class _ListScheduler:
    def __init__(self, chains: Sequence[Sequence[Work]], credits: int | None) -> None:
        self._chains = chains
        self._events: list[tuple[float, int, int, int]] = []  # seconds, 0 = done or 1 = arrives, microbatch, piece
        self._ready: dict[Hashable, list[tuple[bool, int, int]]] = {}
        self._working: set[Hashable] = set()
        self._waiting: dict[Hashable, list[int]] = {}
        self._busy_s: dict[Hashable, float] = {}
        self._held: dict[Hashable, int] = {}
        self._held_max: dict[Hashable, int] = {}
        self._last = [{work.device: piece for piece, work in enumerate(chain)} for chain in chains]
        self._first = [{work.device: piece for piece, work in reversed(list(enumerate(chain)))} for chain in chains]
        for number, chain in enumerate(chains):
            self._waiting.setdefault(chain[0].device, []).append(number)
        for waiting in self._waiting.values():
            waiting.reverse()
        for source, waiting in self._waiting.items():
            for _ in range(len(waiting) if credits is None else min(credits, len(waiting))):
                self._feed(source, 0.0)

    def _feed(self, source: Hashable, now_s: float) -> None:
        if self._waiting[source]:
            heapq.heappush(self._events, (now_s, 1, self._waiting[source].pop(), 0))

    def play(self) -> Timeline:
        now_s = 0.0
        while self._events:
            now_s = self._events[0][0]
            touched: dict[Hashable, None] = {}
            # All that happens at one moment is known before a device chooses.
            while self._events and self._events[0][0] == now_s:
                _, arrives, number, piece = heapq.heappop(self._events)
                work = self._chains[number][piece]
                touched[work.device] = None
                if arrives:
                    heapq.heappush(self._ready.setdefault(work.device, []), (not work.is_backward, number, piece))
                else:
                    self._finish(number, piece, now_s)
            for device in touched:
                self._begin_next(device, now_s)
        return Timeline(now_s, self._busy_s, self._held_max)

    def _begin_next(self, device: Hashable, now_s: float) -> None:
        ready = self._ready.get(device)
        if not ready or device in self._working:
            return
        _, number, piece = heapq.heappop(ready)
        work = self._chains[number][piece]
        if self._first[number][device] == piece:
            self._held[device] = self._held.get(device, 0) + 1
            self._held_max[device] = max(self._held_max.get(device, 0), self._held[device])
        self._working.add(device)
        self._busy_s[device] = self._busy_s.get(device, 0.0) + work.seconds
        heapq.heappush(self._events, (now_s + work.seconds, 0, number, piece))

    def _finish(self, number: int, piece: int, now_s: float) -> None:
        chain = self._chains[number]
        device = chain[piece].device
        self._working.discard(device)
        if self._last[number][device] == piece:
            self._held[device] -= 1
        if piece + 1 < len(chain):
            heapq.heappush(self._events, (now_s + chain[piece + 1].link_s, 1, number, piece + 1))
        else:
            self._feed(chain[0].device, now_s)


def bound_s(chains: Sequence[Sequence[Work]]) -> float:
    """Seconds that no schedule of these microbatches is through before: for every device, the
    shortest way to its first piece, all its work, and the shortest way from its last piece to the
    end.

    It equals 1F1B's exact time where all stages are equal (Odyssey's equation 9).
    """
    least: dict[Hashable, list[float]] = {}  # device -> way to it, work, way from it
    for chain in chains:
        first: dict[Hashable, float] = {}
        last: dict[Hashable, float] = {}
        work_s: dict[Hashable, float] = {}
        now_s = 0.0
        for work in chain:
            now_s += work.link_s
            first.setdefault(work.device, now_s)
            now_s += work.seconds
            last[work.device] = now_s
            work_s[work.device] = work_s.get(work.device, 0.0) + work.seconds
        for device, begun_s in first.items():
            to_s, done_s, from_s = least.setdefault(device, [begun_s, 0.0, now_s - last[device]])
            least[device] = [min(to_s, begun_s), done_s + work_s[device], min(from_s, now_s - last[device])]
    return max((sum(parts) for parts in least.values()), default=0.0)
