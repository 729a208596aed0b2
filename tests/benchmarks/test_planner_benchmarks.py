"""What the figures of the planner's benchmarks are made of; the swarms themselves are played by
`make check`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import estimator, moves, reactions
from benchmarks.paced_fork_server import Pace
from benchmarks.paced_swarm import BLOCK_S, HEAD_S, Knowledge, gaps_s, run_of
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, measured_fleet
from swarmfree.protocol.events import MoveDecided, MoveFailed, MoveMeasured


def test_what_messages_take_in_the_first_shape_is_added_to_all_others() -> None:
    """The first one does not count: its prediction is what was measured."""
    found = {
        estimator.REFERENCE: estimator.Outcome(2.0, 2.5),
        "even_2": estimator.Outcome(1.0, 1.5),
        "even_3": estimator.Outcome(1.0, 1.25),
        "dead_2": estimator.Outcome(2.0, 2.0),
    }
    assert estimator.report(found) == {
        "messages_s": 0.5,
        "even_1_predicted_s": 2.5,
        "even_1_measured_s": 2.5,
        "even_2_predicted_s": 1.5,
        "even_2_measured_s": 1.5,
        "even_3_predicted_s": 1.5,
        "even_3_measured_s": 1.25,
        "dead_2_predicted_s": 2.5,
        "dead_2_measured_s": 2.0,
        "median_error_devices_alone": 0.2,
        "worst_error_devices_alone": 0.3333,
        "median_error": 0.2,
        "worst_error": 0.25,
    }


def test_ten_shapes_are_measured() -> None:
    """Even and uneven stages, one to three replicas, a slowed peer, a dead one; each leaves a peer
    in every stage.
    """
    shapes = estimator.SHAPES.values()
    assert len(shapes) >= 9
    assert {shape.replicas for shape in shapes} == {1, 2, 3}
    assert any(shape.slowed for shape in shapes)
    assert any(shape.blocks % estimator.BODY for shape in shapes)
    assert all(shape.dead.count(stage) < shape.replicas for shape in shapes for stage in shape.dead)


def test_what_a_coordinator_tells_is_a_fleet_and_a_plan() -> None:
    """Of peers that take as long as the pace says an iteration takes what the schedule does."""
    manifest = run_of(2, 2, 1)
    peers = (MeasuredPeer("s", 0, HEAD_S), MeasuredPeer("a", 1, BLOCK_S), MeasuredPeer("b", 2, BLOCK_S))
    known = Knowledge(peers, manifest)
    assert known.plan.replicas == (("s",), ("a",), ("b",))
    count = manifest.batch.microbatches
    assert count * BLOCK_S < known.devices_s < (count + 2) * BLOCK_S + HEAD_S
    assert gaps_s([1.0, 1.5, 4.0]) == [0.5, 2.5]


def test_the_plans_are_all_that_there_are() -> None:
    """Of three usual and three slowed peers; the best one has both stages equally fast."""
    assert len(moves.PLANS) == 7
    assert all(sum(counts) == moves.REPLICAS for plan in moves.PLANS for counts in zip(*plan, strict=True))
    assert moves.words_of(((1, 3), (2, 0))) == "usss | uu"
    assert min(moves.PLANS, key=moves.expected_s) in {((1, 2), (2, 1)), ((1, 3), (2, 0))}


def test_a_move_is_held_against_the_fastest_plan() -> None:
    """Tokens/s are as the seconds of an iteration, the other way round."""
    moved = moves.Moved(30.0, 30.5, 4.0, 3.2, 3.1, 0.5, 0.4, 4.4)
    found = moves.report(moved, {moves.PLANS[0]: 5.0, moves.PLANS[1]: 3.04})
    assert found["of_best_plan"] == 0.95
    assert (found["best_plan_s"], found["plans"]) == (3.04, 2)
    assert found["longest_over_slowed"] == 1.1


def test_what_is_predicted_is_held_against_what_was_measured() -> None:
    """As a share of that; too little and too much count alike."""
    costs = [
        reactions.Cost(1.5, 1.0, 2.0, 4.0),
        reactions.Cost(1.0, 2.0, 4.0, 4.0),
        reactions.Cost(1.0, 1.0, 5.0, 4.0),
    ]
    assert reactions.figures("moves", costs) == {
        "moves_transition": 0.5,
        "moves_transition_most": 0.5,
        "moves_iteration": 0.25,
        "moves_iteration_most": 0.5,
        "moves_times": 3,
    }


async def test_each_move_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two are measured at once, and where one between them comes to nothing."""
    measured = [MoveMeasured("peer-1", 2, 1, 9, float(number), 2.0, 3.0, 4.0) for number in range(1, 4)]
    failed = MoveFailed("peer-1", 2, 1, 9, "it has died")
    coming, slowed, told = [[measured[0]], [failed], measured[1:]], list[str](), list[MoveMeasured | MoveFailed]()

    async def until(_: str, is_so: Callable[[], bool], __: float) -> None:
        assert not is_so()
        told.extend(coming.pop(0))
        assert is_so()

    async def nothing(*_: object) -> None:
        """The swarm goes on."""

    @contextlib.asynccontextmanager
    async def paced(*_: object) -> AsyncIterator[SimpleNamespace]:
        swarm = SimpleNamespace(
            commits=nothing, until=until, told=lambda kind: (("peer-0", one) for one in told if isinstance(one, kind))
        )
        yield SimpleNamespace(swarm=swarm, start=nothing, of_stage=lambda stage: (f"stage {stage}",), slow=slowed.extend)

    monkeypatch.setattr(reactions, "paced", paced)
    right = [reactions.Cost(2.0, one.transition_s, 4.0, 3.0) for one in measured]
    assert await reactions.measure_moves(3) == reactions.figures("moves", right) | {"moves_failed": 1}
    assert slowed == ["stage 2", "stage 1", "stage 2"]


async def test_moves_while_devices_waver_are_counted_before_and_after_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is decided before a stage becomes slower counts as one too many; the others are
    those of the stage that is.
    """
    paces: list[dict[str, float]] = []
    decided: list[float] = []

    @contextlib.asynccontextmanager
    async def paced(*_: object) -> AsyncIterator[SimpleNamespace]:
        async def nothing(*_: object) -> None: ...

        def slow(slower: dict[str, float]) -> None:
            paces.append(slower)
            decided.append(time.time())  # a move at each change, the first one before the stage is slow

        def told(kind: type, since_s: float = 0.0) -> list[tuple[float, object]]:
            return [(at_s, None) for at_s in decided if at_s >= since_s] if kind is MoveDecided else []

        swarm = SimpleNamespace(commits=nothing, told=told)
        yield SimpleNamespace(swarm=swarm, start=nothing, of_stage=lambda stage: [f"{stage}a", f"{stage}b"], slow=slow)

    monkeypatch.setattr(moves, "paced", paced)
    monkeypatch.setattr(moves, "commit_times_s", lambda _: [0.0, time.time()])
    found = await moves.measure_wavering(0.4, 1)
    usual = [pace for pace in paces if max(pace.values()) < moves.SLOWED / 2]
    assert found == {"moves_before": len(usual), "moves_after": len(paces) - len(usual), "moves_failed": 0, "iterations": 1}
    assert all(1 - moves.WAVERS <= factor <= 1 + moves.WAVERS for pace in usual for factor in pace.values())
    assert usual[0] != usual[1]
    assert {name for name, factor in paces[-1].items() if factor > moves.SLOWED / 2} == {"2a", "2b"}


def test_a_head_takes_its_share_of_the_work() -> None:
    """Else a source, of which only that is known, would count as another machine than the rest."""
    manifest = reactions.manifest_of(3, 3, 1)
    pace = reactions.pace_of(manifest, 0.1)
    peers = [MeasuredPeer("source", 0, pace.head_s), *(MeasuredPeer(f"peer-{n}", n, pace.block_s) for n in (1, 2, 3))]
    fleet = measured_fleet(peers, manifest)
    assert fleet is not None
    assert {round(peer.block_s, 9) for peer in fleet.peers} == {0.1}


def test_a_pace_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Peers look it up at each piece of work."""
    pace = Pace(0.1, 0.2, {"peer-1": 3.0}, moves=True)
    pace.write(tmp_path / "pace.json")
    assert Pace.read(tmp_path / "pace.json") == pace


@pytest.mark.live_benchmark
@pytest.mark.timeout(180)
async def test_a_shape_is_measured() -> None:
    """A swarm whose devices sleep takes about as long as was predicted of them."""
    outcome = await estimator.measure(estimator.Shape(3, 1, slowed=((2, 2.0),)), 2, Pace(BLOCK_S, HEAD_S))
    assert 0.9 < outcome.measured_s / outcome.devices_s < 1.5
