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

from benchmarks import churn_live, flexitrain, live, pauses, reach, recovery, restart, survival
from benchmarks.live import LiveFailed
from benchmarks.survival_world import RUN, Setting
from swarmfree.lab.runs import DEFAULT_RUN, run_file
from swarmfree.policy.retention import has_full_shadows, replays_exactly
from swarmfree.protocol.config import load_run, read_run
from swarmfree.protocol.events import EndsDrawnAnew, MemberLeft, MemberLost, StageBuilt, Started


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


async def test_median_and_longest_pause_of_each_kind_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the swarm that its kind asks for; how many came back bit for bit is told where the text
    says that they do, and an iteration is as long as in the slowest swarm.
    """
    played: list[tuple[str, Setting]] = []
    found = iter([(1.0, True), (9.0, False), (2.0, False, ("Merge",)), (4.0, False, ("Copy", "Merge"))])

    async def pause(world: Any, kind: str, _: int) -> pauses.Pause:
        played.append((kind, world.setting))
        return pauses.Pause(*next(found))

    def swarm_of(setting: Setting) -> Any:
        gap_s = 0.3 if setting == pauses.KEEPING else 0.4
        commits = [SimpleNamespace(time_s=time_s * gap_s) for time_s in (0, 1, 2, 9)]
        return contextlib.nullcontext(SimpleNamespace(setting=setting, state=SimpleNamespace(commits=commits)))

    monkeypatch.setattr(pauses, "living", swarm_of)
    monkeypatch.setattr(pauses, "pause", pause)
    figures = await pauses.run(["stage", "merge"], 2)
    assert played == [(kind, pauses.KINDS[kind]) for kind in ("stage", "stage", "merge", "merge")]
    assert figures == {
        "iteration_s": 0.4,
        "rounds": 2,
        "stage_s": 5.0,
        "stage_s_max": 9.0,
        "stage_exact": 1,
        "merge_s": 3.0,
        "merge_s_max": 4.0,
        "merge_merged": 2,
    }


def test_a_pause_in_which_nothing_was_merged_is_none_of_a_merge() -> None:
    """Who comes back with the stage, or holds it, makes merges neither shorter nor more; and nobody
    has a snapshot of it.
    """
    merged, stayed = pauses.Pause(0.5, is_exact=False, actions=("Merge",)), pauses.Pause(0.3, is_exact=True, actions=("Stay",))
    assert pauses.figures_of("merge", [stayed, merged, stayed]) == {"merge_s": 0.5, "merge_s_max": 0.5, "merge_merged": 1}
    assert pauses.figures_of("merge", [stayed]) == {"merge_merged": 0}
    assert pauses.figures_of("stage", [stayed]) == {"stage_s": 0.3, "stage_s_max": 0.3, "stage_exact": 1}
    merging = read_run(
        RUN.format(body=3, replicas=2, microbatches=6, recovery=pauses.MERGING.recovery), "pauses"
    ).manifest.recovery
    assert (merging.mode, merging.snapshot_every) == ("checkfree", 0)


def test_nobody_is_missed_at_once_of_whom_nothing_is_told() -> None:
    """No time stands for who was not told to be missed, and how many were is told."""
    lost = {"south-1": 14.0, "south-2": 16.5, "east-1": 99.0}
    assert reach.missed(lost, {"south-1", "south-2", "south-3"}, 10.0) == {"missed": 2.0, "missed_s": 6.5}
    assert reach.missed({}, {"south-1"}, 10.0) == {"missed": 0.0}


def test_a_restart_is_not_over_when_something_is_done_again() -> None:
    """The first iteration that nobody had done ends it; commits of those before are told apart."""
    commits = [(20.0, 7), (21.0, 8), (22.0, 9), (23.0, 10), (24.0, 11)]
    assert restart.first_new_s(commits, 9) == 23.0
    assert restart.first_new_s(commits, 6) == 20.0
    assert restart.first_new_s(commits, 11) is None


class _Struck:
    """A swarm whose coordinator needs 3 s to kill, opens iteration 7 meanwhile and commits it, and
    opens the next one when it has noticed.
    """

    def __init__(self) -> None:
        self.now_s = 100.0
        self.did: list[str] = []
        self.state = SimpleNamespace(coordinator="peer-2", commits=[SimpleNamespace(time_s=t) for t in (90.0, 92.0, 94.0)])

    async def until_whole(self, commits: int) -> None:
        self.did.append(f"whole {commits}")

    async def commits(self, count: int) -> None:
        self.did.append(f"commits {count}")

    def only(self, _: int) -> SimpleNamespace:
        return SimpleNamespace(name="peer-1")

    def kill(self, *names: str) -> float:
        self.did.append(f"kill {' '.join(names)}")
        self.now_s += 3.0
        return self.now_s

    def vanish(self, *names: str) -> float:
        self.did.append("vanish")
        return self.kill(*names)

    async def until(self, _: str, is_so: Callable[[], bool], __: float) -> None:
        assert is_so()

    def resumed_s(self, since_s: float) -> float:
        assert since_s == 103.0, "an iteration that was opened before the last SIGKILL is not the next one"
        return 110.0

    def events(self, kind: type, _: float) -> Iterator[tuple[float, str, Any]]:
        built = StageBuilt(0, 7, "CopyKept", "QmA", 0.1, 1, "ab", exact=False)
        return iter([(109.0, "peer-2", built)] if kind is StageBuilt else [])

    async def come_back(self, *names: str) -> None:
        self.did.append(f"back {' '.join(names)}")


@pytest.mark.parametrize("kind", ["ends", "silent_ends"])
async def test_a_pause_counts_from_before_the_first_kill_and_nobody_returns_within_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins at a drawn moment of an iteration, when copies are of any age; who was killed comes
    back afterwards; a machine that vanishes closes nothing.
    """
    world, slept = _Struck(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(pauses.time, "time", lambda: world.now_s)
    monkeypatch.setattr(pauses.asyncio, "sleep", sleep)
    found = await pauses.pause(world, kind, 0)  # type: ignore[arg-type]
    commits, share = pauses.wait_share(kind, 0)
    vanishes = ["vanish"] if kind == "silent_ends" else []
    assert world.did == [f"whole {2 * pauses.SHADOW_EVERY}", f"commits {commits}", *vanishes, "kill peer-1", "back peer-1"]
    assert found == pauses.Pause(10.0, is_exact=False, actions=("CopyKept",))
    assert slept == [share * 2.0]


def test_a_merge_is_one_of_two_neighbours() -> None:
    """An end of the body is copied from its only neighbour, which says nothing of a merge; other
    kinds strike every stage, and both of its replicas.
    """

    def replicas(stage: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=f"{stage}{which}") for which in "ab"]

    state = SimpleNamespace(coordinator="0a", replicas=replicas)
    world: Any = SimpleNamespace(state=state, follower_stage=lambda number: 1 + number % pauses.KEEPING.body)
    assert [pauses.whom(world, "merge", number) for number in range(3)] == [["2a", "2b"]] * 3
    assert [pauses.whom(world, "stage", number) for number in range(3)] == [["1a", "1b"], ["2a", "2b"], ["3a", "3b"]]
    assert [pauses.whom(world, "silent_replica", number) for number in range(4)] == [["1a"], ["2b"], ["3a"], ["1b"]]


def test_kills_come_at_any_moment_and_to_copies_of_any_age() -> None:
    """Neither right after a commit each time nor right after a copy."""
    drawn = [pauses.wait_share(kind, number) for kind in pauses.KINDS for number in range(pauses.ROUNDS)]
    commits, shares = zip(*drawn, strict=True)
    assert len(set(commits)) > pauses.SHADOW_EVERY / 2
    assert max(commits) < pauses.SHADOW_EVERY
    assert min(shares) < 0.2
    assert max(shares) > 0.8


def test_nobody_helps_a_struck_swarm() -> None:
    """Who is killed stays away until the pause is over, whoever stands by may take any stage,
    copies are those that are bit for bit; closed ports and silence are measured apart.
    """
    for kind, setting in pauses.KINDS.items():
        assert not setting.respawns, kind
        assert setting.all_feed, kind
        assert setting.has_doors == kind.startswith("silent_"), kind
    manifest = read_run(RUN.format(body=3, replicas=2, recovery=pauses.KEEPING.recovery, microbatches=6), "pauses").manifest
    assert has_full_shadows(manifest)
    assert replays_exactly(manifest)
    assert manifest.recovery.shadow_every == load_run(run_file(DEFAULT_RUN)).manifest.recovery.shadow_every


def test_what_was_lost_is_exact_or_not() -> None:
    """A stage that is made anew is as it was or is not; a replica that copies its sibling has lost
    nothing.
    """
    copied, exact, near = (
        StageBuilt(1, 7, action, "QmA", 0.1, 1, "ab", exact=exact)
        for action, exact in (("Copy", False), ("Replay", True), ("Restore", False))
    )
    assert pauses.is_exact([copied], [])
    assert pauses.is_exact([exact, copied], [])
    assert not pauses.is_exact([near, copied], [])
    assert not pauses.is_exact([], [EndsDrawnAnew(7, "no copy is left")])


def test_a_death_is_timed_from_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However long the sender of SIGKILL then waits for a processor, while others notice
    already.
    """
    now_s = [50.0]

    def send(_: int) -> None:
        now_s[0] += 2.0

    swarm = live.LiveSwarm(tmp_path, tmp_path / "run", tmp_path / "text")
    swarm._children["peer-1"] = SimpleNamespace(pid=1, is_alive=False, send=send)  # type: ignore[assignment]
    monkeypatch.setattr(live, "descendants", lambda _: ())
    monkeypatch.setattr(live.time, "time", lambda: now_s[0])
    assert (swarm.kill("peer-1"), swarm.dismiss("peer-1")) == (50.0, 52.0)


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
