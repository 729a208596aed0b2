"""How many iterations a training system completes while nodes are lost and come: one loop for all
systems, which differ in what they answer to an event.

Pure, in virtual time. Between two events a system either stands still or has one pace; an event may
take back some of what was done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from swarmfree.lab.study.node_trace import NodeTrace

WAKES_MAX = 100_000
"""More wakes than this between two events of a trace are a fault of the system that asks."""


@dataclass(frozen=True, slots=True)
class TrainingPace:
    """How a system goes on from an event.

    Args:
        iteration_s: seconds of an iteration; infinite = nothing is done until the next event.
        stand_s: seconds that nothing is done first.
        back: iterations that are done again, a part of the present one among them.
        wake_s: the system is asked again then; infinite = not before something happens.
    """

    iteration_s: float
    stand_s: float = 0.0
    back: float = 0.0
    wake_s: float = math.inf


class ElasticSystem(Protocol):
    """A training system that goes on when nodes are lost or come.

    What it is told of: the moment, seconds from the beginning; and how many iterations are done,
    with the part of the present one.
    """

    def begin(self, nodes: Sequence[int]) -> TrainingPace:
        """These nodes are there, and training begins."""

    def lose(self, node: int, now_s: float, done: float) -> TrainingPace:
        """A node that was there is lost."""

    def join(self, node: int, now_s: float, done: float) -> TrainingPace:
        """A node has come."""

    def wake(self, now_s: float, done: float) -> TrainingPace:
        """The moment has come for which the system asked."""


@dataclass(frozen=True, slots=True)
class PlayedTrace:
    """What a system did under a trace.

    Args:
        iterations: done at the end, nothing counted twice.
        stood_s: seconds that nothing was done.
        redone: iterations that were done again.
        curve: (seconds, iterations a second from then on), at each change.
    """

    iterations: float
    stood_s: float
    redone: float
    curve: tuple[tuple[float, float], ...]


def play_trace(system: ElasticSystem, nodes: int, trace: NodeTrace, duration_s: float) -> PlayedTrace:
    """Play a trace to a system that has not begun.

    Args:
        system: changed by this.
        nodes: there at the beginning, numbered from 0.
        trace: in order of time.
        duration_s: until when.
    """
    clock = _TraceClock(system.begin(range(nodes)))
    for event in trace:
        if event.at_s >= duration_s:
            break
        _wake_until(system, clock, event.at_s)
        clock.run_until(event.at_s)
        answer = system.lose if event.is_loss else system.join
        clock.take(answer(event.node, clock.now_s, clock.done))
    _wake_until(system, clock, duration_s)
    clock.run_until(duration_s)
    return PlayedTrace(clock.done, clock.stood_s, clock.redone, tuple(clock.curve))


def _wake_until(system: ElasticSystem, clock: _TraceClock, until_s: float) -> None:
    for _ in range(WAKES_MAX):
        if clock.pace.wake_s >= until_s:
            return
        clock.run_until(max(clock.now_s, clock.pace.wake_s))
        clock.take(system.wake(clock.now_s, clock.done))
    raise AssertionError(f"a system asked {WAKES_MAX:,} times to be woken before {until_s:.0f} s")


class _TraceClock:
    def __init__(self, pace: TrainingPace) -> None:
        self.pace, self.now_s, self.done, self.redone, self.stood_s = pace, 0.0, 0.0, 0.0, 0.0
        self._stands_until_s = pace.stand_s
        self.curve: list[tuple[float, float]] = []
        self._note()

    def run_until(self, until_s: float) -> None:
        begins_s = min(until_s, max(self.now_s, self._stands_until_s))
        if self.pace.iteration_s < math.inf:
            if self.now_s < self._stands_until_s <= until_s:
                self.curve.append((begins_s, 1 / self.pace.iteration_s))
            self.done += (until_s - begins_s) / self.pace.iteration_s
            self.stood_s += begins_s - self.now_s
        else:
            self.stood_s += until_s - self.now_s
        self.now_s = until_s

    def take(self, pace: TrainingPace) -> None:
        back = min(pace.back, self.done)
        self.done -= back
        self.redone += back
        # Whoever still stands for an earlier event does so until that is over
        self._stands_until_s = max(self._stands_until_s, self.now_s + pace.stand_s)
        self.pace = pace
        self._note()

    def _note(self) -> None:
        stands = self.now_s < self._stands_until_s or self.pace.iteration_s == math.inf
        self.curve.append((self.now_s, 0.0 if stands else 1 / self.pace.iteration_s))
