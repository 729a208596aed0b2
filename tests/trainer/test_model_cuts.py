"""When a coordinator cuts the model anew by the planner's word."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.policy.planner.allocation import ReplicaLimits
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.policy.planner.single_moves import MoveOutlook
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, StagesSection
from swarmfree.protocol.names import Member, Term
from swarmfree.protocol.records import SetSplit
from swarmfree.trainer.coordinator.model_cuts import ModelCuts
from tests.builders import make_record

MODEL = ModelSection(width=64, blocks=6, heads=2, kv_heads=1, mlp_width=64, tokens_per_row=8, vocabulary=8)
MANIFEST = Manifest(model=MODEL, stages=StagesSection(body=3), batch=BatchSection(microbatches=12), ring=RingSection(credits=12))
PLAN = ExecutionPlan((0, 2, 2, 2), (("s",), ("a",), ("b",), ("c",)))
HOLD_S = 10.0


class World:
    """What such a coordinator looks at; `slow` is the peer that takes three times as long, and
    `host` has a guest in the second stage, that nobody else serves.
    """

    def __init__(self, slow: str = "", *, cut_after_s: float = HOLD_S, rate: float = 1e6, host: str = "") -> None:
        self.now_s, self.is_under_way, self.slow, self.rate, self.host = 0.0, False, slow, rate, host
        self.split = PLAN.blocks[1:]
        context = SimpleNamespace(
            ports=SimpleNamespace(cuts=()),
            local=SimpleNamespace(cut_after_s=cut_after_s),
            now_s=lambda: self.now_s,
            manifest=MANIFEST,
            run="run",
        )
        self.present = SimpleNamespace(record=None)
        lead = SimpleNamespace(present=self.present, term=Term(1, Member("s", "1")), iteration=1)
        self.cuts = ModelCuts(*cast("Any", (context, lead, self, None, self)))

    def holders(self, stage: int) -> tuple[Any, ...]:
        """As the roster has them."""
        return (SimpleNamespace(host=self.host if stage == 2 else ""),)

    def cut(self, *counts: int) -> None:
        """The model is cut so since the last record."""
        self.present.record, self.split = make_record(iteration=5, split=SetSplit(counts, 5)), counts

    def outlook(self) -> tuple[Fleet, ExecutionPlan, MoveOutlook]:
        """As `MoveWatch` has it."""
        stays = "ac" if self.host else "abc"
        block_s = {name: 0.3 * (3 if name == self.slow else 1) for name in stays} | {"s": 1e-6}
        peers = tuple(PeerProfile(n, s / 3, 2 * s / 3, 1 << 60, math.inf, failures_per_hour=0.1) for n, s in block_s.items())
        outlook = MoveOutlook((), ReplicaLimits(8, 1), self.rate, 0.05, StageRecovery(30.0), 600.0)
        served = (("s",), ("a",), () if self.host else ("b",), ("c",))
        return Fleet(peers), ExecutionPlan((0, *self.split), served), outlook

    def within(self, seconds: float) -> tuple[int, ...]:
        """Blocks of each stage as soon as another cut is due; empty where none is by then."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 1.0
            if (wish := self.cuts._wish()) is not None:
                return wish.split.counts
        return ()


def test_a_better_cut_has_to_be_better_for_a_while() -> None:
    """Once to twice as long as the option says; nothing is cut where all are alike, nor without the
    option.
    """
    world = World("b")
    assert world.within(HOLD_S - 1) == ()
    assert sorted(world.within(HOLD_S + 3)) == [1, 2, 3]
    assert World().within(100.0) == ()
    assert World("b", cut_after_s=0.0).within(100.0) == ()


def test_after_a_cut_the_next_one_rests() -> None:
    """Three times as long, however much better another one looks."""
    world = World("b")
    assert world.within(100.0)
    world.slow = "a"
    begun_s = world.now_s
    assert world.within(100.0)[0] == 1
    assert world.now_s - begun_s >= 3 * HOLD_S


def test_one_change_at_a_time_and_none_that_costs_more_than_it_brings() -> None:
    """Not while a peer moves, nor over a link so slow that the swarm would wait for too long."""
    world = World("b")
    world.is_under_way = True
    assert world.within(100.0) == ()
    assert World("b", rate=1.0).within(100.0) == ()


def test_what_is_expected_is_said() -> None:
    """Why, and how long the transfer and an iteration take."""
    world = World("b")
    world.now_s = 1.0
    assert world.cuts._wish() is None
    world.now_s = 100.0
    wish = world.cuts._wish()
    assert wish is not None
    assert "an iteration takes" in wish.reason
    assert wish.predicted_iteration_s < wish.iteration_s
    assert wish.predicted_s > 0


def test_a_stage_that_a_guest_serves_alone_is_left_without_blocks() -> None:
    """Its host does the work of two: three blocks at two peers are faster. It is given none again
    as long as a guest serves it, and its share once somebody has come.
    """
    world = World(host="a")
    assert world.within(HOLD_S - 1) == ()
    assert world.within(HOLD_S + 3) == (3, 0, 3)
    world.cut(3, 0, 3)
    assert world.within(200.0) == ()
    world.host = ""
    assert world.within(100.0) == (2, 2, 2)


def test_nothing_is_planned_with_a_host_that_leaves() -> None:
    """Its guest goes with it: the stage comes back elsewhere first."""
    assert World(host="d").within(100.0) == ()
