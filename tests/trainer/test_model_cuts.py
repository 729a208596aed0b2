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
from swarmfree.protocol.messages import Prepare, Prepared
from swarmfree.protocol.names import Member, Term
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import SetSplit
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim.loop import run_virtual
from swarmfree.trainer.coordinator import model_cuts
from swarmfree.trainer.coordinator.model_cuts import COUNTS_S, ModelCuts
from swarmfree.trainer.member.preparation import cut_bytes
from swarmfree.trainer.tasks import Tasks
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
        self.cuts = ModelCuts(*cast("Any", (context, self.lead, self.roster, assignment, self, self)))

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
    assert wish.after_s < wish.before_s
    assert wish.transition_s > wish.before_s + wish.stop_s / 2 > wish.before_s


@pytest.mark.parametrize("is_prepared", [True, False])
@pytest.mark.parametrize("is_opened", [True, False])
def test_a_cut_is_told_once_it_is_opened(monkeypatch: pytest.MonkeyPatch, *, is_prepared: bool, is_opened: bool) -> None:
    """Once, with all that the swarm has waited for it, and how long ago it was decided; one that
    comes to nothing is not told, but how long it was copied foretells others.
    """
    world, took_s, opened_s, rest_s, copied_s = World("b", rate=2e6), 3.0, 0.5, 5.0, 3.0
    told: list[ModelCut] = []
    world.context.tell = lambda event: told.extend([event] if isinstance(event, ModelCut) else [])

    async def prepared(_: object, wish: BlockSplit) -> dict[int, str] | None:
        world.now_s += took_s
        changed = [stage for stage in (1, 2, 3) if wish.blocks_of(stage) != MANIFEST.split.blocks_of(stage)]
        return dict.fromkeys(changed, "x") if is_prepared else None

    def copied(wish: Any, old: BlockSplit, _: object) -> bool:
        since_s = world.now_s - copied_s
        world.cuts._copying = model_cuts._Copying(wish, old, frozenset(), since_s - rest_s, copied_s=since_s)
        return True

    world.lead.present.record = make_record(stages=(make_entry(members=(Member("a", "1"),)),) * 4)
    monkeypatch.setattr(world.cuts, "_prepared", prepared)
    monkeypatch.setattr(world.cuts, "_is_copied", copied)
    while not world.cut and world.now_s < 100.0:
        world.now_s += 1.0
        asyncio.run(world.cuts.consider())
    assert bool(world.cut) is is_prepared
    assert not told
    if not is_opened:
        world.lead.cut = ()
    world.now_s += opened_s
    world.cuts.opened()
    stop_s = took_s + opened_s
    assert [(e.seconds, e.transition_s) for e in told] == [(stop_s, rest_s + copied_s + stop_s)] * (is_prepared and is_opened)
    copies = [copy for _, copy in world.cuts._copies]
    assert copies[:1] == [MeasuredCopy(block_state_bytes(MANIFEST), rest_s, is_first=True)]
    assert not any(copy.is_first for copy in copies[1:])
    stops = [stop for _, stop in world.cuts._stops]
    assert stops == [MeasuredCopy(block_state_bytes(MANIFEST), took_s + opened_s, is_first=True)] * (is_prepared and is_opened)
    world.now_s += 1.0
    world.cuts.opened()
    assert len(told) == (is_prepared and is_opened)


def test_what_a_cut_took_foretells_the_next_one() -> None:
    """For as many bytes, of whoever has most to fetch or to give: before the first one, a copy of
    an average of these, as joins have it; afterwards cuts alone, and the first one only as long as
    there is no other.
    """
    block = block_state_bytes(MANIFEST)
    world = World("b")
    world.copies.append(MeasuredCopy(2 * block, 1e9))
    found = world.next_wish(HOLD_S + 20)
    assert found is not None
    assert sorted(found.split.counts) == [1, 2, 3]
    assert found.carried_bytes == block
    assert found.stop_s == pytest.approx(block / 3 / world.rate)
    world = World("b")
    world.cuts._stops += [(0.0, MeasuredCopy(2 * block, 1.0)), (0.0, MeasuredCopy(4 * block, 9.0))]
    found = world.next_wish(HOLD_S + 20)
    assert found is not None
    assert found.stop_s == pytest.approx(0.5)
    world = World("b")
    world.cuts._stops += [(0.0, MeasuredCopy(block, 9.0, is_first=True)), (0.0, MeasuredCopy(4 * block, 1.0))]
    found = world.next_wish(HOLD_S + 20)
    assert found is not None
    assert found.stop_s == pytest.approx(0.25)


def test_how_long_blocks_were_copied_foretells_the_next_cut() -> None:
    """As joins do before the first one; by then an iteration has begun for each that has ended."""
    block = block_state_bytes(MANIFEST)
    for took, iterations in ((0.01, 1), (2.5, 3)):
        world = World("b")
        before_s = world.next_wish(HOLD_S + 20).before_s
        world = World("b")
        world.cuts._copies.append((0.0, MeasuredCopy(block, took * before_s)))
        world.cuts._stops.append((0.0, MeasuredCopy(block, 0.5)))
        wish = world.next_wish(HOLD_S + 20)
        assert wish.transition_s == pytest.approx(iterations * before_s + 0.5)


def test_copies_are_there_when_the_last_member_says_so() -> None:
    """Not when it is looked at, nor later, though the last average lacks now and then."""
    copying = Copying(World(), {"a": [4, 2, 0, 3, 0], "b": 0})
    assert copying.play(0.0, 5.0) == [False, True]
    under_way = copying.world.cuts._copying
    assert under_way is not None
    assert under_way.copied_s == pytest.approx(2 * model_cuts.ASK_S)


def test_a_member_that_once_stood_still_keeps_nobody_from_a_cut_for_ever() -> None:
    """What it took counts for an hour; then copies are foretold by joins again."""
    world, stood_still = World("b"), MeasuredCopy(block_state_bytes(MANIFEST), 600.0)
    world.cuts._stops.append((0.0, stood_still))
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
    monkeypatch.setattr(world.cuts, "_is_copied", lambda *_: True)

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
        return SimpleNamespace(message=Prepared("digest"))

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


class Copying:
    """A coordinator whose members copy what they lack, each as it is told to."""

    def __init__(self, world: World, answers: dict[str, Any]) -> None:
        self.world, self.answers, self.asked = world, answers, list[str]()
        self.told: list[str] = []
        world.context.tell = lambda event: self.told.append(str(event))
        world.lead.present.iteration, world.lead.present.lineage = 1, "f" * 64
        world.lead.claim = lambda: None
        world.roster.calls, world.context.timing = SimpleNamespace(call=self.call), MANIFEST.timing
        self.members = [SimpleNamespace(member=Member(name, "1"), endpoint=name, stage=1) for name in answers]

    async def call(self, endpoint: str, request: Prepare) -> Reply:
        """What it says; a list has one answer for each time."""
        assert request.ahead
        self.asked.append(endpoint)
        answer = self.answers[endpoint]
        answer = answer.pop(0) if isinstance(answer, list) and len(answer) > 1 else answer
        answer = answer[0] if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return Reply(Prepared("", answer))

    def is_copied(self, counts: tuple[int, ...] = (3, 1, 2), *, old: tuple[int, ...] = (2, 2, 2), members: int = 9) -> bool:
        """As an iteration begins."""
        wish = model_cuts._Wish(BlockSplit(counts), "")
        if self.world.cuts._have_failed(self.world.cuts._copying):
            return False
        return self.world.cuts._is_copied(wish, BlockSplit(old), cast("Any", self.members[:members]))

    def play(self, *looks_s: float, **last: Any) -> list[bool]:
        """At each of these moments, whether all have copied; the last time as it is then."""

        async def story() -> list[bool]:
            found, loop = list[bool](), asyncio.get_running_loop()
            self.world.context.now_s = loop.time
            begun_s = loop.time()
            async with asyncio.TaskGroup() as group:
                tasks = Tasks(group)
                self.world.cuts._tasks = tasks
                for turn, look_s in enumerate(looks_s):
                    await asyncio.sleep(begun_s + look_s - loop.time())
                    found.append(self.is_copied(**(last if turn == len(looks_s) - 1 else {})))
                tasks.close()
            return found

        return run_virtual(story)


def test_a_cut_waits_until_all_have_copied() -> None:
    """They are asked again and again, as those that are asked no more give their copies up; nobody
    else waits for it.
    """
    copying = Copying(World(), {"a": [4, 2, 0], "b": 0})
    assert copying.play(0.0, 0.2, 0.8, 1.2) == [False, False, False, True]
    assert copying.asked == ["a", "b"] * 3
    assert copying.world.cuts.is_under_way
    assert Copying(World(), {"a": 0, "b": 1}).play(0.0, 50.0) == [False, False]


@pytest.mark.parametrize("last", [{"members": 1}, {"old": (3, 2, 1)}], ids=["another swarm", "another cut"])
def test_copies_for_what_was_planned_otherwise_are_dropped(last: dict[str, Any]) -> None:
    """Who is there has changed, or how the model is cut: it is planned anew."""
    copying = Copying(World(), {"a": 0, "b": 0})
    assert copying.play(0.0, 5.0, **last) == [False, False]
    assert not copying.world.cuts.is_under_way
    assert not any("stays" in told for told in copying.told)
    assert sum("copied no longer" in told for told in copying.told) == 1


@pytest.mark.parametrize("answer", [Refused(RefusalKind.EXHAUSTED, "no memory"), 1], ids=["refuses", "never ends"])
def test_copies_that_come_to_nothing_are_not_waited_for(answer: Any) -> None:
    """One has no memory for it, or never gets all: that is said, and the next try comes later."""
    world = World()
    copying = Copying(world, {"a": answer, "b": 0})
    limit_s = model_cuts.COPYING_WAITS * MANIFEST.timing.join_wait_s
    at_s = 1.0 if isinstance(answer, Exception) else limit_s + 1
    assert copying.play(0.0, at_s) == [False, False]
    assert not world.cuts.is_under_way
    assert sum("stays cut as [2, 2, 2]" in told for told in copying.told) == 1
    assert world.cuts._failures == 1


@pytest.mark.parametrize("why", ["rebuilt", "restarted", "never", "members"])
def test_copies_do_not_keep_peers_from_moving_for_good(why: str) -> None:
    """While blocks are copied nobody moves. Where the model cannot be cut any more, or not for long
    since somebody loads its stage, they are given up.
    """
    world = World()
    copying = Copying(world, {"a": 0, "b": 0})
    world.lead.present.record = make_record(stages=(make_entry(members=(Member("a", "1"),)),) * 4)
    world.roster.participants = lambda: [
        SimpleNamespace(stage=1, member=Member("z", "1"), is_heard=True, is_member=False, leaving=False, host="")
    ]
    world.roster.get = lambda _: None
    copying.play(0.0)
    assert world.cuts.is_under_way
    world.context.now_s = lambda: world.now_s
    if why == "rebuilt":
        world.cuts._assignment.has_rebuilt = True  # type: ignore[misc]
    elif why == "restarted":
        world.lead.attempt = 1
    elif why == "never":
        world.lead.present.record = None
    asyncio.run(world.cuts.consider())
    assert world.cuts.is_under_way == (why == "members")
    world.now_s = 1e6
    asyncio.run(world.cuts.consider())
    assert not world.cuts.is_under_way


@pytest.mark.parametrize("why", ["lost", "rebuilt"])
def test_nothing_is_copied_while_a_stage_is_lost(why: str) -> None:
    """A guest may need the memory: nobody is asked to copy any more, though the swarm stands."""
    world = World()
    copying = Copying(world, {"a": 3, "b": 3})
    copying.play(0.0, 2.0)
    assert world.cuts.is_under_way
    world.lead.cut, world.roster.lost = (), lambda: {1} if why == "lost" else set()
    world.cuts._assignment.has_rebuilt = why == "rebuilt"  # type: ignore[misc]
    for _ in range(2):
        world.cuts.look()
        assert not world.cuts.is_under_way
    assert sum("copied no longer: a stage was lost" in told for told in copying.told) == 1


def test_who_is_slow_to_answer_keeps_nobody_from_being_asked() -> None:
    """Each is asked on its own: one that is silent has no other one give its copies up."""
    copying = Copying(World(), {"a": 0, "b": 0})
    call = copying.call

    async def slow(endpoint: str, request: Prepare) -> Reply:
        await asyncio.sleep(60.0 * (endpoint == "b"))
        return await call(endpoint, request)

    copying.world.roster.calls = SimpleNamespace(call=slow)
    copying.play(0.0, 10.0)
    assert copying.asked.count("a") >= 15


def test_a_rehearsed_cut_foretells_none() -> None:
    """It does not say what it carries."""
    world = World("b")
    world.lead.cut = (3, 1, 2)
    world.cuts._begun = model_cuts._Begun(model_cuts._Wish(BlockSplit((3, 1, 2)), "the rehearsal says so"), 0.0, 0.0)
    world.now_s = 1.0
    world.cuts.opened()
    assert not world.cuts._stops
    world.lead.cut = ()
    assert world.within(60.0)


def test_copies_have_their_time() -> None:
    """Ten times as long as a joiner."""
    copying = Copying(World(), {"a": 1, "b": 0})
    copying.play(0.0, model_cuts.COPYING_WAITS * MANIFEST.timing.join_wait_s - 1)
    assert copying.world.cuts.is_under_way


def test_who_leads_no_longer_asks_nobody() -> None:
    """To copy anything."""
    copying = Copying(World(), {"a": 1, "b": 0})
    copying.world.roster.is_deposed = True
    copying.play(0.0, 5.0)
    assert not copying.asked


def test_a_wish_of_a_later_iteration_waits_for_it() -> None:
    """All is copied before."""
    world = World()
    copying = Copying(world, {"a": 0, "b": 0})
    copying.play(0.0, 1.0)
    wish = model_cuts._Wish(BlockSplit((3, 1, 2)), "", iteration=2)
    world.context.now_s = lambda: 1.0

    def is_copied() -> bool:
        return world.cuts._is_copied(wish, BlockSplit((2, 2, 2)), cast("Any", copying.members))

    assert not is_copied()
    world.lead.iteration = 2
    assert is_copied()
