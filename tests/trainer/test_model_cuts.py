"""When a coordinator cuts the model anew by the planner's word."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.planner.allocation import ReplicaLimits
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, Link, PeerProfile
from swarmfree.policy.planner.measured_fleet import MeasuredCopy
from swarmfree.policy.planner.model_size import BYTES_PER_PARAMETER, block_parameters
from swarmfree.policy.planner.resplit import SplitOutlook, best_split, block_state_bytes
from swarmfree.policy.planner.scores import StageRecovery
from swarmfree.policy.planner.single_moves import MoveOutlook
from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.events import ModelCut
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, StagesSection
from swarmfree.protocol.messages import Prepared
from swarmfree.protocol.names import Member, Term
from swarmfree.protocol.records import SetSplit
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.coordinator import model_cuts
from swarmfree.trainer.coordinator.model_cuts import COUNTS_S, ModelCuts
from swarmfree.trainer.member.preparation import cut_bytes
from tests.builders import make_entry, make_record

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
            tell=lambda _: None,
            local=SimpleNamespace(cut_after_s=cut_after_s),
            now_s=lambda: self.now_s,
            manifest=MANIFEST,
            run="run",
        )
        self.present = SimpleNamespace(record=None)
        self.cut: tuple[int, ...] = ()
        term = Term(1, Member("s", "1"))
        self.lead = SimpleNamespace(present=self.present, term=term, iteration=1, attempt=0, cut_anew=self.take)
        self.context = context
        self.roster = SimpleNamespace(is_deposed=False, participants=list, holders=self.holders)
        self.copies = list[MeasuredCopy]()
        assignment = SimpleNamespace(has_rebuilt=False, cut=lambda _: None, copies=self.copies)
        self.cuts = ModelCuts(*cast("Any", (context, self.lead, self.roster, assignment, self)))

    def holders(self, stage: int) -> tuple[Any, ...]:
        """As the roster has them."""
        return (SimpleNamespace(host=self.host if stage == 2 else ""),)

    def has_cut(self, *counts: int) -> None:
        """The model is cut so since the last record."""
        self.present.record, self.split = make_record(iteration=5, split=SetSplit(counts, 5)), counts

    def take(self, counts: tuple[int, ...]) -> None:
        """The next plan is cut so."""
        self.cut = self.lead.cut = counts

    def outlook(self) -> tuple[Fleet, ExecutionPlan, MoveOutlook]:
        """As `MoveWatch` has it."""
        stays = "ac" if self.host else "abc"
        block_s = {name: 0.3 * (3 if name == self.slow else 1) for name in stays} | {"s": 1e-6}
        peers = tuple(PeerProfile(n, s / 3, 2 * s / 3, 1 << 60, math.inf, failures_per_hour=0.1) for n, s in block_s.items())
        outlook = MoveOutlook((), ReplicaLimits(8, 1), Link(0.0, self.rate).seconds, 0.05, StageRecovery(30.0), 600.0)
        served = (("s",), ("a",), () if self.host else ("b",), ("c",))
        return Fleet(peers), ExecutionPlan((0, *self.split), served), outlook

    def within(self, seconds: float) -> tuple[int, ...]:
        """Blocks of each stage as soon as another cut is due; empty where none is by then."""
        wish = self.next_wish(seconds)
        return () if wish is None else wish.split.counts

    def next_wish(self, seconds: float) -> Any:
        """How the model should be cut, as soon as that is due; None where nothing is by then."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 1.0
            if (wish := self.cuts._wish()) is not None:
                return wish
        return None


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


@pytest.mark.parametrize("is_prepared", [True, False])
@pytest.mark.parametrize("is_opened", [True, False])
def test_a_cut_is_told_once_it_is_opened(monkeypatch: pytest.MonkeyPatch, *, is_prepared: bool, is_opened: bool) -> None:
    """Once, with all that the swarm has waited for it; one that comes to nothing is not told."""
    world, took_s, opened_s = World("b", rate=2e6), 3.0, 0.5
    told: list[ModelCut] = []
    world.context.tell = lambda event: told.extend([event] if isinstance(event, ModelCut) else [])

    async def prepared(_: object, wish: BlockSplit) -> dict[int, str] | None:
        world.now_s += took_s
        changed = [stage for stage in (1, 2, 3) if wish.blocks_of(stage) != MANIFEST.split.blocks_of(stage)]
        return dict.fromkeys(changed, "x") if is_prepared else None

    world.lead.present.record = make_record(stages=(make_entry(members=(Member("a", "1"),)),) * 4)
    monkeypatch.setattr(world.cuts, "_prepared", prepared)
    while not world.cut and world.now_s < 100.0:
        world.now_s += 1.0
        asyncio.run(world.cuts.consider())
    assert bool(world.cut) is is_prepared
    assert not told
    if not is_opened:
        world.lead.cut = ()
    world.now_s += opened_s
    world.cuts.opened()
    assert [event.seconds for event in told] == [took_s + opened_s] * (is_prepared and is_opened)
    world.now_s += 1.0
    world.cuts.opened()
    assert len(told) == (is_prepared and is_opened)


def prepare_for(world: World, answers: dict[str, tuple[int, float, float]], split: tuple[int, ...]) -> dict[int, str] | None:
    """Have peers prepare: name -> stage, seconds until it answers, and for how long its device says
    that it worked.
    """

    async def call(endpoint: str, _: object) -> object:
        _, waits_s, worked_s = answers[endpoint]
        await asyncio.sleep(waits_s)
        return SimpleNamespace(message=Prepared("digest", worked_s, 10 * (endpoint != "d")))

    async def story() -> dict[int, str] | None:
        world.context.now_s = asyncio.get_running_loop().time
        world.lead.claim = lambda: None
        world.lead.present.iteration, world.lead.present.lineage = 1, "f" * 64
        world.roster.calls, world.context.timing = SimpleNamespace(call=call), MANIFEST.timing
        asked = [SimpleNamespace(member=Member(name, "1"), endpoint=name, stage=answers[name][0]) for name in answers]
        return await world.cuts._prepared(cast("Any", asked), BlockSplit(split))

    return run_virtual(story)


@pytest.mark.parametrize("told_s", [1.5, 4.0, 1e9, 0.0])
def test_what_each_member_took_foretells_the_next_cut(told_s: float) -> None:
    """For as many bytes, those that it lacked and those that it laid out, each for itself: who is
    last need not be who copies most. Whatever a member says, its device has worked for as long as
    that took at most; joins and moves are foretold by their own.
    """
    world = World("b")
    world.has_cut(1, 1, 4)
    # The last one of them has had it prepared before, or says so
    prepare_for(world, {"a": (1, 0.5, 0.5), "b": (2, 2.0, 0.0), "d": (2, 0.1, 0.0)}, (0, 3, 3))
    assert [each for _, each in world.cuts._copied] == [MeasuredCopy(2 * block_state_bytes(MANIFEST), 2.0)]
    assert not world.cuts._laid_out
    # It is the last record that says what a stage had
    prepare_for(world, {"b": (2, 3.0, 0.0)}, (2, 1, 3))
    assert [each for _, each in world.cuts._copied][1:] == [MeasuredCopy(block_state_bytes(MANIFEST), 3.0)]
    world = World("b")
    prepare_for(world, {"a": (1, 0.5, 0.5), "b": (2, 4.0, told_s), "c": (3, 1.0, 1.0)}, (1, 4, 1))
    block, worked_s = block_state_bytes(MANIFEST), min(told_s, 4.0)
    laid_out = [MeasuredCopy(block, 0.5), *[MeasuredCopy(4 * block, worked_s)] * (worked_s > 0), MeasuredCopy(block, 1.0)]
    assert [each for _, each in world.cuts._laid_out] == laid_out
    assert [each for _, each in world.cuts._copied] == [MeasuredCopy(2 * block, 4.0 - worked_s)] * (worked_s < 4.0)
    assert not world.copies
    world.copies.append(MeasuredCopy(2 * block, 1e9))  # a join: it foretells nothing here
    world.context.now_s = lambda: world.now_s
    found = world.next_wish(HOLD_S + 20)
    assert found is not None
    assert sorted(found.split.counts) == [1, 2, 3]
    copied_s = (4.0 - worked_s) / 2 if worked_s < 4.0 else block / 1e6  # as joins have it
    laid_out_s = 3 * worked_s / 4 if worked_s else 3 / 1.5
    assert found.predicted_s == pytest.approx(copied_s + laid_out_s)


def test_a_member_that_once_stood_still_keeps_nobody_from_a_cut_for_ever() -> None:
    """What it took counts for an hour; then copies are foretold by joins again."""
    world, stood_still = World("b"), MeasuredCopy(block_state_bytes(MANIFEST), 600.0)
    for measured in (world.cuts._copied, world.cuts._laid_out):
        measured.append((0.0, stood_still))
    assert world.within(60.0) == ()
    world.now_s = COUNTS_S - 20.0
    assert world.within(19.0) == ()
    assert sorted(world.within(3 * HOLD_S)) == [1, 2, 3]


def test_a_stage_that_a_guest_serves_alone_is_left_without_blocks() -> None:
    """Its host does the work of two: three blocks at two peers are faster. It is given none again
    as long as a guest serves it, and its share once somebody has come.
    """
    world = World(host="a")
    assert world.within(HOLD_S - 1) == ()
    assert world.within(HOLD_S + 3) == (3, 0, 3)
    world.has_cut(3, 0, 3)
    assert world.within(200.0) == ()
    world.host = ""
    assert world.within(100.0) == (2, 2, 2)


def test_nothing_is_planned_with_a_host_that_leaves() -> None:
    """Its guest goes with it: the stage comes back elsewhere first."""
    assert World(host="d").within(100.0) == ()


def test_who_never_prepares_is_waited_for_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that never answers costs the longest wait there is each time: in an hour the swarm
    waits for less than a sixth of it, and a cut rests as ever once one has been prepared.
    """
    world, waits_s = World("b"), list[float]()
    better = best_split(
        *world.outlook()[:2],
        MANIFEST,
        SplitOutlook({}, Link(0.0, 1e9).seconds, Link(0.0, 1e9).seconds, 0.05, StageRecovery(30.0), 600.0),
    )
    monkeypatch.setattr(model_cuts, "best_split", lambda *_: better)
    answers: list[dict[int, str] | None] = []

    async def prepared(*_: object) -> dict[int, str] | None:
        waits_s.append(world.now_s)
        world.now_s += MANIFEST.timing.join_wait_s
        return answers.pop() if answers else None

    world.lead.present.record = make_record(stages=(make_entry(members=(Member("a", "1"),)),) * 4)
    monkeypatch.setattr(world.cuts, "_prepared", prepared)

    async def consider_for(seconds: float) -> int:
        before, until_s = len(waits_s), world.now_s + seconds
        while world.now_s < until_s:
            world.now_s += 1.0
            await world.cuts.consider()
        return len(waits_s) - before

    hour_s = 3600.0
    failed = asyncio.run(consider_for(hour_s))
    assert 3 <= failed < hour_s / MANIFEST.timing.join_wait_s / 6
    assert better is not None
    split = better.split
    answers += [{stage: "x" for stage in (1, 2, 3) if split.blocks_of(stage) != MANIFEST.split.blocks_of(stage)}]
    asyncio.run(consider_for(hour_s))
    assert world.cut == split.counts
    assert waits_s[failed + 1] - waits_s[failed] <= MANIFEST.timing.join_wait_s + 5 * HOLD_S
    assert waits_s[failed + 2] - waits_s[failed + 1] <= MANIFEST.timing.join_wait_s + 2 * 5 * HOLD_S


@pytest.mark.parametrize("counts", [(1, 3, 2), (4, 0, 2), (2, 2, 2)])
def test_memory_for_another_cut_is_that_of_an_engine(counts: tuple[int, ...]) -> None:
    """Of all blocks that the stage has then: it is there beside the one that holds what is."""
    for stage, after in enumerate(counts, start=1):
        assert cut_bytes(MANIFEST, BlockSplit(counts), stage) == BYTES_PER_PARAMETER * after * block_parameters(MANIFEST.model)


def test_nobody_waits_for_what_the_others_prepare_once_one_refuses() -> None:
    """One has moved on, and another one would take half a minute: the swarm trains on at once."""

    async def call(endpoint: str, _: object) -> object:
        if endpoint == "b":
            raise Refused(RefusalKind.GONE, "not here")
        await asyncio.sleep(30.0)
        return SimpleNamespace(message=Prepared("digest", 30.0, 0))

    async def story() -> float:
        world = World()
        world.lead.claim = lambda: None
        world.lead.present.iteration, world.lead.present.lineage = 1, "f" * 64
        world.roster.calls = SimpleNamespace(call=call)
        world.context.timing = MANIFEST.timing
        asked = [SimpleNamespace(member=Member(name, "1"), endpoint=name, stage=1) for name in "abc"]
        begun_s = asyncio.get_running_loop().time()
        assert await world.cuts._prepared(cast("Any", asked), BlockSplit((3, 1, 2))) is None
        return asyncio.get_running_loop().time() - begun_s

    assert run_virtual(story) < 1.0
