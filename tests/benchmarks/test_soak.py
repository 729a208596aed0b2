"""What a soak's verdict is made of; the soak itself takes hours, and is no test."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks import soak
from benchmarks.soak_figures import Sample, by_minute, grown, longest_gap_s, slope, slopes, undecided
from benchmarks.soak_swarm import CHURNED, STEADY, Counts, Soak, _named, drawn_blows

EVERY_S = 15.0


def sampled(rss_mb: list[float], name: str = "peer-1", pid: int = 7) -> list[Sample]:
    """A process that was looked at every 15 s."""
    return [Sample(EVERY_S * number, name, pid, {"rss_mb": value, "handles": 40.0}) for number, value in enumerate(rss_mb)]


def wandering(draw: random.Random, per_h: float) -> list[float]:
    """An hour of memory that comes and goes, and grows."""
    level, found = 0.0, []
    for number in range(240):
        level = 0.8 * level + draw.gauss(0.0, 0.3)
        found.append(200.0 + level + per_h * number / 240)
    return found


def test_a_line_is_found_with_its_error() -> None:
    """Exact points have no error; a zigzag has one, and its slope."""
    exact = slope([(0.0, 1.0), (1800.0, 2.0), (3600.0, 3.0)])
    assert (exact.per_h, exact.last) == pytest.approx((2.0, 3.0))
    assert exact.error == pytest.approx(0.0, abs=1e-9)
    zigzag = slope([(900.0 * number, float(number % 2)) for number in range(9)])
    assert abs(zigzag.per_h) < 1e-9 < zigzag.error


@pytest.mark.parametrize("seed", range(5))
def test_growth_is_told_from_coming_and_going(seed: int) -> None:
    """Memory that wanders by a megabyte is flat; 12 MB an hour on top of that are found."""
    draw = random.Random(seed)
    assert not grown(slopes(sampled(wandering(draw, 0.0)), 0.0))
    (line,) = grown(slopes(sampled(wandering(draw, 12.0)), 0.0))
    assert line.startswith("peer-1: rss_mb grows by 1")
    assert not grown(slopes(sampled(wandering(draw, 12.0)), 0.0), spared=["peer-1"])


def test_one_handle_in_twenty_minutes_is_found() -> None:
    """Whole numbers that never go down again, beside memory that does not move."""
    leaking = [Sample(EVERY_S * n, "bootstrap", 1, {"rss_mb": 90.0, "handles": float(n // 80)}) for n in range(240)]
    (line,) = grown(slopes(leaking, 0.0))
    assert line.startswith("bootstrap: handles grows by 2")


def test_what_is_not_shown_to_hold_is_told() -> None:
    """Steps of eleven megabytes hide a slope: that is no fault, and not shown to be none; nor is a
    process of which there were too few samples.
    """
    stepped = sampled([280.0 + 11.0 * (number % 37 < 3) + 4.0 * number / 240 for number in range(240)])
    assert not grown(slopes(stepped, 0.0))
    (line,) = undecided(stepped, 0.0)
    assert line.startswith("peer-1: rss_mb may grow by ")
    assert not undecided(stepped, 0.0, spared=["peer-1"])
    assert not undecided(sampled([280.0] * 240), 0.0)
    seldom = [Sample(EVERY_S * number, "peer-3", 8, {"threads": 9.0}) for number in range(19)]
    assert undecided(seldom, 0.0) == ["peer-3: threads was seen too seldom"]
    leaking = sampled([280.0 + 12.0 * number / 240 for number in range(240)])
    assert grown(slopes(leaking, 0.0)) and not undecided(leaking, 0.0), "a fault is told as one"


def test_one_thread_more_is_a_pool_that_grew() -> None:
    """A step of one is no leak, however sure the line is; two are. gRPC's pool may grow by some."""
    for kind, step, is_leak in (
        ("threads", 1, False),
        ("threads", 3, True),
        ("grpc_threads", 3, False),
        ("grpc_threads", 9, True),
    ):
        stepped = [Sample(EVERY_S * n, "bootstrap", 1, {kind: 9.0 + step * (n >= 80)}) for n in range(160)]
        assert bool(grown(slopes(stepped, 0.0))) == is_leak


def test_threads_are_counted_by_name() -> None:
    """By the system's, as gRPC names its own; what the system does not say counts as none."""
    waits = "open('/proc/self/comm', 'w').write('event_engine'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert (_named(child.pid, "event_engine"), _named(child.pid, "python")) == (1, 0)
        child.communicate(b"\n")
    assert _named(child.pid, "event_engine") == 0


def test_all_folders_together_may_grow_as_each_may() -> None:
    """Three megabytes an hour in six folders are no more than half of one in each."""
    for name, is_much in (("peer-1", True), ("folders", False)):
        filled = [Sample(EVERY_S * n, name, 0, {"disk_mb": 3.0 * n / 240 + 0.01 * (n % 3)}) for n in range(240)]
        assert bool(grown(slopes(filled, 0.0))) == is_much


def test_a_process_in_anothers_place_begins_anew() -> None:
    """A daemon that was replaced is judged by its own samples, and only where they are enough."""
    before = sampled([100.0] * 100, pid=7)
    after = [Sample(1500.0 + EVERY_S * n, "peer-1", 8, {"rss_mb": 10.0}) for n in range(19)]
    assert not slopes([*before, *after], 0.0)
    after.append(Sample(1800.0, "peer-1", 8, {"rss_mb": 10.0}))
    found = slopes([*before, *after], 0.0)
    assert set(found) == {("peer-1", "rss_mb")}
    assert found["peer-1", "rss_mb"].last == pytest.approx(10.0)


def test_commits_are_counted_by_the_minute() -> None:
    """A minute without any is seen, as is the time from the last one to the end."""
    times_s = [10.0, 20.0, 70.0, 200.0]
    assert by_minute(times_s, 0.0, 250.0) == [2, 1, 0, 1]
    assert longest_gap_s(times_s, 0.0, 250.0) == 130.0
    assert longest_gap_s(times_s, 0.0, 400.0) == 200.0


def test_the_seed_says_what_befalls_whom() -> None:
    """Every kind of blow comes, with and without a new folder, and to nobody who is left alone."""
    blows = [blow for seed in range(30) for blow in drawn_blows(random.Random(seed))]
    assert blows == [blow for seed in range(30) for blow in drawn_blows(random.Random(seed))]
    assert {blow.name for blow in blows} == set(CHURNED)
    assert not {blow.name for blow in blows} & set(STEADY)
    assert {(blow.act, blow.anew) for blow in blows} >= {("kill", True), ("kill", False), ("leave", True), ("leave", False)}
    assert any(blow.act == "freeze" for blow in blows)


@pytest.mark.parametrize("is_ended", [False, True])
def test_too_little_was_seen_only_where_nobody_ended_it(*, is_ended: bool) -> None:
    """Ctrl-C before anything can be judged finds no fault; a time that was asked for does."""
    faults, over = list[str](), asyncio.Event()
    if is_ended:
        over.set()
    observer = SimpleNamespace(state=SimpleNamespace(commits=()))
    fake = SimpleNamespace(observer=observer, over=over, samples=sampled([1.0]), counts=Counts(), fault=faults.append)
    found = soak.figures(cast("Soak", fake), {}, 0.0, 30.0)
    assert any(line.startswith("too short") for line in faults) == (not is_ended)
    assert len(faults) == (0 if is_ended else 3)
    assert soak.so_far(found | {"faults": 0}, 120.0) == (
        "ended before its time, after 0.5 of 120 minutes: 0 iterations, 0 kills, 0 leaves, 0 freezes, 0 attacks, 0 faults"
    )


@pytest.mark.parametrize(("number", "code"), [(None, 1), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_tells_in_the_exit_code(monkeypatch: pytest.MonkeyPatch, number: int | None, code: int) -> None:
    """A fault counts where nobody ended it."""

    async def measure(_: soak.Choices, __: Path, faults: list[str], signals: list[int]) -> dict[str, float]:
        faults.append("a fault")
        signals.extend([] if number is None else [number])
        return {}

    monkeypatch.setattr(soak, "measure", measure)
    assert soak.main([]) == code
