"""What the benchmark of malformed calls takes for wrong, and a few calls against a real swarm."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import attacked
from benchmarks.live import LiveFailed, Said
from swarmfree.protocol.events import Event, IterationCommitted, MemberLost, PeerExcluded, TookOver
from tests.attacks.malformed_calls import Caller, outcomes

COMMITTED = IterationCommitted(5, 0, 1.0, None, attacked.RUN.tokens_per_iteration, 1.0, [], "a")


def judged(*events: Event, dead: str = "", since_s: float = 0.0) -> list[str]:
    """What is wrong with a swarm that told these, one a second."""
    said = [Said(float(at_s), "source", event) for at_s, event in enumerate((replace(COMMITTED, iteration=0), *events), 1)]
    swarm = SimpleNamespace(
        said=said,
        is_alive=lambda name: name != dead,
        told=lambda kind, since_s: [(s.time_s, s.event) for s in said if isinstance(s.event, kind) and s.time_s >= since_s],
    )
    return attacked.wrong(cast("Any", swarm), since_s)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([replace(COMMITTED, iteration=1)], ""),
        ([replace(COMMITTED, iteration=1, attempt=1)], "iteration 1 was opened again"),
        ([replace(COMMITTED, iteration=0, lineage="b")], "two records of iteration 0"),
        ([MemberLost("one.abc", "one", 1, "silent")], "one.abc was missed: silent"),
        ([PeerExcluded("one", "one.abc", 1, 4, [], [])], "one.abc was excluded"),
        ([TookOver(2, 5, 3, forced=False)], "term 2 began at iteration 5"),
    ],
)
def test_what_should_not_have_been_is_said(events: list[Event], words: str) -> None:
    """Since the attack began: what a start takes is no fault."""
    found = judged(*events)
    assert any(words in line for line in found) if words else not found
    before = judged(*events, since_s=10.0)
    assert bool(before) == ("two records" in words)


def test_a_peer_that_has_ended_is_wrong() -> None:
    """Whatever it has told."""
    assert judged(dead="peer-1") == ["peer-1 has ended"]


async def test_attacks_are_compared_with_the_rests_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last is as slow as half of the time, and the others as fast as the rests."""
    now_s, said, slow = [0.0], list[Said](), list[float]()

    async def train(seconds: float) -> None:
        ends_s = now_s[0] + seconds
        while now_s[0] < ends_s:
            now_s[0] += 1.0
            if not (slow and int(now_s[0]) % 2):
                said.append(Said(now_s[0], "source", replace(COMMITTED, iteration=len(said), tokens=100)))

    class Counted(attacked.Attack):
        """Makes ten calls a turn; the third one is felt."""

        async def strike(self, seconds: float) -> tuple[float, float]:
            """Attack."""
            self.told["made"] = self.made + 10
            slow.extend([1.0] * (self.made == 30))
            begun_s = now_s[0]
            await train(seconds)
            slow.clear()
            return begun_s, now_s[0]

    monkeypatch.setattr(attacked.time, "time", lambda: now_s[0])
    monkeypatch.setattr(attacked.asyncio, "sleep", train)
    await train(4.0)
    swarm = SimpleNamespace(said=said, commit_past=lambda _: train(4.0))
    ratios = await attacked.in_turns(cast("Any", swarm), Counted(), 30, 20.0)
    assert ratios == pytest.approx([1.0, 1.0, 0.5], abs=0.06)


def test_one_core_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Swarm and attacker would share it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    with pytest.raises(LiveFailed, match="cores of their own"):
        attacked.halves()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4}, raising=False)
    assert attacked.halves() == ({0}, {2, 4})


def test_what_calls_came_to_is_counted_over_all_names() -> None:
    """By the answer, whatever was sent."""
    order = {"run": "ab" * 32, "revision": 1, "seed": 1, "entry_points": [], "ticket": "00", "ticket_key": "11" * 32}
    callers = [Caller(order, number) for number in range(2)]
    for caller in callers:
        caller.told.update({"garbage: INVALID_ARGUMENT": 2, "any_message: INVALID_ARGUMENT": 1, "any_message: OK": 1})
    assert outcomes(callers) == {"INVALID_ARGUMENT": 6, "OK": 2}
    assert callers[0].papers.peer_id != callers[1].papers.peer_id


@pytest.mark.live_benchmark
@pytest.mark.timeout(400)
async def test_a_few_calls_against_a_real_swarm() -> None:
    """Nothing is wrong; the pace is that of a few seconds, in which all may be used at once."""
    command = (sys.executable, "-m", "benchmarks.attacked", "--quick")
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 0, told.decode()[-3000:]
    found = json.loads(out.splitlines()[-1])
    assert found["calls"] >= attacked.QUICK_CALLS
    assert found["refused"] > 0
    assert found["compared"] > attacked.SETTLED
