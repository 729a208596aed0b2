"""Which nodes are lost when, and what is counted while they are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from swarmfree.lab.study.goodput import TrainingPace, play_trace
from swarmfree.lab.study.node_trace import NodeEvent, NodeTrace, hazard_per_s, poisson_trace, spot_trace


def there_after(nodes: int, trace: NodeTrace) -> list[int]:
    """How many nodes are there after each event; a fault where one comes twice or goes twice."""
    present, counts = set(range(nodes)), []
    for event in trace:
        assert (event.node in present) is event.is_loss
        (present.remove if event.is_loss else present.add)(event.node)
        counts.append(len(present))
    return counts


def test_a_poisson_trace_loses_as_many_as_its_rate_says() -> None:
    """10 % an hour for nine hours leave 0.9^9 of the nodes, the same seed the same ones; with
    others that come within ten minutes nearly all are there.
    """
    trace = poisson_trace(2000, 0.1, 9, random.Random(1))
    assert there_after(2000, trace)[-1] == pytest.approx(2000 * 0.9**9, rel=0.05)
    assert trace == poisson_trace(2000, 0.1, 9, random.Random(1))
    assert hazard_per_s(0.1) * 3600 == pytest.approx(-math.log(0.9))
    counts = there_after(200, poisson_trace(200, 0.1, 9, random.Random(2), rejoin_s=600.0))
    assert 0.97 < sum(counts) / len(counts) / 200 < 1


def test_a_spot_trace_is_like_the_recorded_one() -> None:
    """About three quarters of what is asked for is there, never more than that and never nobody;
    about six of ten are taken away within an hour, and half of the moments take one alone.
    """
    traces = [spot_trace(32, 11.4, random.Random(seed)) for seed in range(10)]
    counts = [count for trace in traces for count in there_after(32, trace)]
    assert min(counts) >= 1
    assert max(counts) == 32
    mean = sum(counts) / len(counts)
    assert 18 < mean < 28
    losses = [event.at_s for trace in traces for event in trace if event.is_loss]
    assert 0.4 < len(losses) / (10 * 11.4 * mean) < 0.8
    alone = sum(losses.count(moment) == 1 for moment in set(losses))
    assert 0.35 < alone / len(set(losses)) < 0.65


class Scripted:
    """A system that answers from a list."""

    def __init__(self, *paces: TrainingPace) -> None:
        """The first answer is that of `begin`."""
        self.paces, self.told = list(paces), list[tuple[str, float, float]]()

    def begin(self, nodes: Sequence[int]) -> TrainingPace:
        """The first pace."""
        return self._next("begin", float(len(nodes)), 0.0)

    def lose(self, node: int, now_s: float, done: float) -> TrainingPace:
        """The next pace."""
        return self._next(f"lose {node}", now_s, done)

    def join(self, node: int, now_s: float, done: float) -> TrainingPace:
        """The next pace."""
        return self._next(f"join {node}", now_s, done)

    def wake(self, now_s: float, done: float) -> TrainingPace:
        """The next pace."""
        return self._next("wake", now_s, done)

    def _next(self, what: str, now_s: float, done: float) -> TrainingPace:
        self.told.append((what, now_s, done))
        return self.paces.pop(0)


def test_what_is_done_taken_back_and_stood_is_counted() -> None:
    """Ten iterations, a loss in the middle of the eleventh that takes back a half and 30 s; a wake;
    nothing at all after the second loss, until a node comes.
    """
    system = Scripted(
        TrainingPace(10.0), TrainingPace(20.0, 30.0, 0.5, 195.0), TrainingPace(10.0), TrainingPace(math.inf), TrainingPace(5.0)
    )
    trace = (NodeEvent(105.0, 0, is_loss=True), NodeEvent(215.0, 1, is_loss=True), NodeEvent(300.0, 9, is_loss=False))
    found = play_trace(system, 3, trace, 400.0)
    assert system.told == [
        ("begin", 3.0, 0.0),
        ("lose 0", 105.0, 10.5),
        ("wake", 195.0, 13.0),  # 60 s of 20 s each
        ("lose 1", 215.0, 15.0),
        ("join 9", 300.0, 15.0),
    ]
    assert (found.iterations, found.redone, found.stood_s) == (35.0, 0.5, 30.0 + 85.0)
    assert found.curve == ((0.0, 0.1), (105.0, 0.0), (135.0, 0.05), (195.0, 0.1), (215.0, 0.0), (300.0, 0.2))


def test_who_stands_for_one_event_does_not_go_on_for_another() -> None:
    """A node that comes while a system restarts does not shorten that; a loss makes it longer."""
    system = Scripted(TrainingPace(1.0), TrainingPace(1.0, 100.0), TrainingPace(1.0), TrainingPace(1.0, 100.0))
    trace = (NodeEvent(10.0, 0, is_loss=True), NodeEvent(20.0, 7, is_loss=False), NodeEvent(60.0, 1, is_loss=True))
    assert play_trace(system, 3, trace, 200.0).stood_s == 150.0
