"""Of what the benchmarks count, that which would otherwise be counted in the swarm's favour."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import psutil
import pytest

from benchmarks import churn_live, flexitrain, pauses, recovery, survival
from benchmarks.live import LiveFailed
from benchmarks.survival_world import Setting
from swarmfree.protocol.events import MemberLeft, MemberLost, Started


class _Played:
    """As much of a live swarm as a fall needs: who is struck at 10 s is missed at 13 s."""

    def __init__(self, *, leaves: bool) -> None:
        gone = MemberLeft("QmA.1", "QmA", 1) if leaves else MemberLost("QmA.1", "QmA", 1, "silent")
        self._events: list[tuple[float, Any]] = [(13.0, gone), (20.0, Started("QmB", "2", "127.0.0.1:1"))]

    def kill(self, _: str) -> float:
        return 10.0

    dismiss = kill

    async def start(self, _: str) -> float:
        return 14.0

    async def pass_time(self, _: float) -> None:
        pass

    async def ended(self, _: str) -> int:
        return 0

    async def until(self, _: str, is_so: Callable[[], bool]) -> None:
        assert is_so()

    def is_member(self, _: str) -> bool:
        return True

    def endpoint(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(member=SimpleNamespace(peer_id="QmA"))

    def told(self, kind: type, since_s: float, _: str = "") -> Iterator[tuple[float, Any]]:
        return ((time_s, event) for time_s, event in self._events if isinstance(event, kind) and time_s >= since_s)


@pytest.mark.parametrize(("leaves", "until_s"), [(False, 10.0), (True, 15.0)])
async def test_a_replica_that_leaves_is_capacity_until_its_process_has_ended(
    leaves: bool,  # noqa: FBT001 - a case
    until_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it still trains after SIGTERM is no gift, nor is what it does after its goodbye; who is
    killed is gone at once.
    """
    monkeypatch.setattr(churn_live.time, "time", lambda: 15.0)
    falls = churn_live._Falls(_Played(leaves=leaves), churn_live.LivePlan())  # type: ignore[arg-type]
    falls.there.append("replica-0")
    await falls.fall(leaves=leaves)
    assert falls.changes == [(until_s, -1), (20.0, +1)]


class _Watched(_Played):
    """A live swarm that becomes faster as it goes."""

    def __init__(self, *_: object) -> None:
        super().__init__(leaves=True)
        self.said: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def start(self, name: str, *, feeds: bool = False) -> float:
        return await super().start(name) if not feeds else 0.0

    def cpu_s(self) -> float:
        return 0.0

    def told(self, kind: type, since_s: float = 0.0, name: str = "") -> Iterator[tuple[float, Any]]:
        return super().told(kind, since_s, name)


async def test_of_each_number_of_replicas_the_faster_time_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The ideal is not what a swarm does that has just been started: one is watched again after the
    trace, as two are.
    """
    rates = iter([100.0, 180.0, 190.0, 110.0])

    async def watch(*_: object) -> float:
        return next(rates)

    monkeypatch.setattr(churn_live, "prepare_job", lambda *_: SimpleNamespace(run_file="", text_file=""))
    monkeypatch.setattr(churn_live, "LiveSwarm", _Watched)
    monkeypatch.setattr(churn_live, "_watch", watch)
    monkeypatch.setattr(churn_live.Commits, "by", lambda *_: 0.0)
    story = await churn_live.measure(churn_live.RUN, tmp_path, churn_live.LivePlan(falls=0))
    assert story.speeds == {1: 110.0, 2: 190.0}


def test_weights_of_a_merge_are_checked_beyond_their_bound() -> None:
    """By the squared norms; where these differ by more than ten times, ten to one."""
    assert survival.by_formula(3.0, 1.0) == (0.75, 0.25)
    assert survival.by_formula(1.0, 100.0) == pytest.approx((1 / 11, 10 / 11), rel=1e-6)
    assert survival.by_formula(100.0, 1.0) == pytest.approx((10 / 11, 1 / 11), rel=1e-6)


async def test_a_majority_that_does_not_come_back_counts_with_all_that_was_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest of all rounds is told, not of those alone that went well."""
    found = iter([5.0, 0.0])

    async def lose(_: object) -> float:
        if seconds := next(found):
            return seconds
        raise LiveFailed("nobody commits")

    monkeypatch.setattr(survival, "living", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(survival, "lose_majority", lose)
    assert await survival.majority(2) == {"majority_rounds": 2, "majority_held": 1, "majority_s_max": survival.WAITED_S}


async def test_a_pause_counts_to_the_commit_after_it_and_the_longest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Median and largest of each kind, in the swarm that its kind asks for."""
    played: list[tuple[str, str]] = []
    found = iter([1.0, 9.0, 2.0, 4.0])

    async def pause(world: Any, kind: str, _: int) -> float:
        played.append((kind, world.recovery))
        return next(found)

    def swarm_of(setting: Setting) -> Any:
        commits = [SimpleNamespace(seconds=seconds) for seconds in (0.2, 0.4, 0.3)]
        return contextlib.nullcontext(SimpleNamespace(recovery=setting.recovery, state=SimpleNamespace(commits=commits)))

    monkeypatch.setattr(pauses, "living", swarm_of)
    monkeypatch.setattr(pauses, "pause_s", pause)
    figures = await pauses.run(["stage", "merge"], 2)
    assert played == [(kind, pauses.KINDS[kind].recovery) for kind in ("stage", "stage", "merge", "merge")]
    assert figures == {"iteration_s": 0.3, "stage_s": 5.0, "stage_s_max": 9.0, "merge_s": 3.0, "merge_s_max": 4.0}


def test_the_most_memory_is_not_missed_between_two_looks() -> None:
    """What was taken and given back at once is known all the same, where the system tells."""
    if not recovery.peak_bytes(os.getpid()):
        pytest.skip("this system does not tell")
    data = np.ones(1 << 26, dtype=np.uint8)
    held = psutil.Process().memory_info().rss
    del data
    assert recovery.peak_bytes(os.getpid()) >= held - (1 << 20)


def test_what_a_small_stage_makes_worse_is_told_of_each_size() -> None:
    """Beside the figures of the largest one."""
    small, large = ({"transfer_over_plain": a, "memory_over_state": b, "resumed_s": 1.0} for a, b in ((0.3, 1.3), (0.5, 1.1)))
    assert recovery.last_line({"20 MB": small, "400 MB": large}) == large | {
        "transfer_over_plain_20_MB": 0.3,
        "memory_over_state_20_MB": 1.3,
        "transfer_over_plain_400_MB": 0.5,
        "memory_over_state_400_MB": 1.1,
    }


def test_throughput_is_kept_of_the_faster_training_without_failures() -> None:
    """Whichever of the two it was."""
    slow, fast = (flexitrain.Story(2.0, rate, 0, 0, 0, (), 0.0) for rate in (900.0, 1000.0))
    assert flexitrain.faster(slow, fast) is flexitrain.faster(fast, slow) is fast
