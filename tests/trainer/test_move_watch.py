"""A coordinator's watch on its plan: when it moves whom, and what it tells of it. Peers are what a
text says, and time is what a test says.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmfree.policy.planner.measured_fleet import MeasuredCopy
from swarmfree.policy.planner.single_moves import state_bytes
from swarmfree.policy.quorum import is_majority
from swarmfree.protocol.events import MoveDecided, MoveFailed, MoveMeasured
from swarmfree.protocol.manifest import BatchSection, Manifest, ModelSection, RingSection, RunSection, StagesSection
from swarmfree.protocol.messages import Built, HeartbeatAnswer, Hello
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Replica
from swarmfree.protocol.records import MicrobatchSet
from swarmfree.protocol.split import BlockSplit
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.measured_peers import known_fleet, known_peers, stage_speeds
from swarmfree.trainer.coordinator.move_watch import PACES, RESTS, SEARCH_S, MoveWatch
from swarmfree.trainer.coordinator.participant import Participant, Participants
from tests.builders import make_record

HOLD_S, USUAL_S, SLOWED = 20.0, 0.3, 3.0
COORDINATOR = "s"


def endpoint(name: str) -> Endpoint:
    """A peer of one letter."""
    return Endpoint(Member(name, "1"), (f"/memory/{name}",))


def answer_of(stage: int, iteration: int, seconds: float) -> HeartbeatAnswer:
    """What a peer tells that holds a stage."""
    return HeartbeatAnswer(
        1, None, iteration, "", (), MicrobatchSet(), share_done=False, losses=(), evaluation=None,
        seconds_per_microbatch=seconds, stage=stage,
    )  # fmt: skip


class Roster(Participants):
    """Who is there; asking changes nothing but what a test has happen then."""

    is_deposed = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.dies: set[str] = set()

    async def ask(self, participant: Participant) -> None:
        """Whoever is to die is found out."""
        self.asked.append(participant.member.peer_id)
        if participant.member.peer_id in self.dies:
            self.lose(participant.member.peer_id)

    def lose(self, name: str) -> None:
        """A peer is gone."""
        del self._participants[endpoint(name).member]

    def add(self, participant: Participant) -> None:
        """A peer is there."""
        self._participants[participant.member] = participant


class World:
    """A watch, and all that it looks at.

    Args:
        text: stages from `|`, a letter for each peer: ``s|abc|def``.
        slow: those that take `SLOWED` times as long.
        iterations: of the run.
        move_after_s: how long a plan has to be the better one.
        usual_s: of a microbatch.
    """

    def __init__(
        self, text: str, slow: str = "", *, iterations: int = 100_000, move_after_s: float = HOLD_S, usual_s: float = USUAL_S
    ) -> None:
        self.now_s, self.told, self.roster = 0.0, [], Roster()
        self.copied_s: dict[Member, float] = {}
        self.copies = deque[MeasuredCopy]()
        stages = text.split("|")
        self.manifest = Manifest(
            run=RunSection(iterations=iterations),
            model=ModelSection(
                width=64, blocks=len(stages) - 1, heads=2, kv_heads=1, mlp_width=64, tokens_per_row=8, vocabulary=8
            ),
            stages=StagesSection(body=len(stages) - 1, replicas_max=8),
            batch=BatchSection(microbatches=6),
            ring=RingSection(credits=6),
        )
        self.electorate = [endpoint(name).member for stage in stages for name in stage]
        self.lead = SimpleNamespace(
            iteration=1,
            attempt=0,
            plan=None,
            term=Term(1, endpoint(COORDINATOR).member),
            may_decide=self._may_decide,
            present=SimpleNamespace(record=None),
        )
        for number, (name, stage) in enumerate((name, stage) for stage, names in enumerate(stages) for name in names):
            seconds = 0.003 if stage == 0 else usual_s * (SLOWED if name in slow else 1)
            self.roster.add(
                Participant(
                    endpoint(name),
                    Hello(can_feed=False, standby=False, corpus_hash=""),
                    stage,
                    number,
                    built=True,
                    built_at=1,
                    opened=Position(self.lead.term, 1, 0, 1),
                    answer=answer_of(stage, 1, seconds),
                )
            )
        self.open()
        context = SimpleNamespace(
            now_s=lambda: self.now_s,
            tell=self.told.append,
            local=SimpleNamespace(move_after_s=move_after_s),
            timing=self.manifest.timing,
            manifest=self.manifest,
            me=endpoint(COORDINATOR).member,
            run="run",
        )
        assignment: Any = SimpleNamespace(
            copied_s=self.copied_s, copies=self.copies, move=self._move, _resting={}, _context=context, _roster=self.roster
        )
        for method in (Assignment.stand_by, Assignment.is_resting, Assignment.end_rests):
            setattr(assignment, method.__name__, partial(method, assignment))
        self.assignment = assignment
        self.watch = MoveWatch(cast("Any", context), cast("Any", self.lead), cast("Any", self.roster), cast("Any", assignment))

    @property
    def state_bytes(self) -> int:
        """Of a stage of the body."""
        return state_bytes(self.manifest, 1)

    def _may_decide(self, members: set[Member]) -> bool:
        return is_majority(self.electorate, members)

    def _move(self, participant: Participant, stage: int) -> None:
        participant.lose()
        participant.place(stage)

    def peer(self, name: str) -> Participant:
        """One that is there."""
        found = self.roster.get(endpoint(name).member)
        assert found is not None
        return found

    def tell_of(self, name: str, seconds: float, stage: int | None = None) -> None:
        """Its next heartbeat."""
        peer = self.peer(name)
        peer.answer = answer_of(peer.stage if stage is None else stage, self.lead.iteration, seconds)

    def open(self) -> None:
        """The plan is of all that hold their stage."""
        groups = ([g for g in self.roster.of_stage(s) if g.is_member] for s in range(self.manifest.stage_count))
        replicas = [[Replica(g.endpoint) for g in group] for group in groups]
        self.lead.plan = SimpleNamespace(replicas=replicas, split=(), last_record=None)

    def arrive(self, name: str, stage: int, seconds: float = USUAL_S) -> None:
        """A peer that was moved has copied its stage, and is in the plan."""
        peer = self.peer(name)
        peer.hold(self.lead.iteration, is_ours=True)
        peer.promise(Position(self.lead.term, self.lead.iteration, 0, 1), peer.builds)
        self.copied_s[peer.member] = self.now_s
        self.tell_of(name, seconds, stage)
        self.open()

    async def iterate(self, seconds: float = 1.0, count: int = 1, *, is_clean: bool = True) -> None:
        """So many iterations are committed, and the next one is about to be opened."""
        for _ in range(count):
            self.now_s += seconds
            record = make_record(iteration=self.lead.iteration)
            self.lead.iteration += 1
            for peer in self.roster.members():
                peer.reach(self.lead.iteration)
            self.open()
            self.watch.committed(record, seconds, is_clean=is_clean)
            await self.watch.consider()

    async def until_moved(self, seconds: float = 1.0, within_s: float = 120.0) -> MoveDecided:
        """Iterate until a peer is moved."""
        count = len(self.of(MoveDecided))
        while len(self.of(MoveDecided)) == count:
            assert self.now_s < within_s, "nobody was moved"
            await self.iterate(seconds)
        return cast("MoveDecided", self.of(MoveDecided)[-1])

    def of(self, kind: type[Any]) -> list[Any]:
        """What was told of one kind."""
        return [event for event in self.told if isinstance(event, kind)]


# ---- what is known -------------------------------------------------------------------------------


def test_what_a_peer_measured_in_another_stage_tells_nothing_of_this_one() -> None:
    """One that was moved counts as the median, until it tells of its new stage; who is about to
    leave does not count.
    """
    world = World("s|abc|def", slow="f")
    world.peer("a").place(2)
    told = {peer.name: (peer.stage, peer.microbatch_s) for peer in known_peers(world.roster, world.manifest)}
    assert told["a"] == (2, 0.0)
    assert told["b"] == (1, USUAL_S)
    known = known_fleet(world.roster, world.manifest)
    assert known is not None
    assert known[0].by_name["a"].block_s == pytest.approx(USUAL_S)
    assert [len(names) for names in known[1].replicas] == [1, 2, 4]
    for without, usual in (("", 2), ("b", 1), ("x", 2)):
        speeds = stage_speeds(world.roster, world.manifest, without=without)
        assert speeds is not None
        assert speeds[1:] == pytest.approx([usual / USUAL_S, 3 / USUAL_S + 1 / (SLOWED * USUAL_S)])
    world.tell_of("a", 0.7)
    world.peer("b").leave()
    told = {peer.name: (peer.stage, peer.microbatch_s) for peer in known_peers(world.roster, world.manifest)}
    assert told["a"] == (2, 0.7)
    assert "b" not in told


def test_a_guest_tells_how_fast_a_source_is() -> None:
    """A source is taken to be as fast as the body, until its guest has told of blocks; a peer of
    the body has told of its own, and who is not there hosts nobody. The plan is of members, as
    before.
    """
    world = World("s|abc|def")
    world.tell_of("s", 0.5 * USUAL_S)
    before = known_fleet(world.roster, world.manifest)
    for host, seconds in (("s", 0.0), ("x", 0.8), ("a", 0.8), ("s", 0.9)):
        peer = world.peer("f")
        peer.answer = replace(answer_of(2, 1, seconds), host=host)
        after = known_fleet(world.roster, world.manifest)
        assert before is not None and after is not None
        assert after[1] == before[1]
        assert after[0].by_name.keys() == before[0].by_name.keys()
        assert after[0].by_name["s"].block_s == pytest.approx(seconds if seconds and host == "s" else USUAL_S)
        assert after[0].by_name["a"].block_s == pytest.approx(USUAL_S)


# ---- when somebody is moved ----------------------------------------------------------------------


async def test_a_better_place_has_to_be_better_for_a_while() -> None:
    """Once to twice `move_after_s` after the coordinator has begun and rested; nobody is moved in
    even stages, without a setting, or before iterations were measured.
    """
    world = World("s|abc|def", slow="def")
    decided = await world.until_moved()
    assert HOLD_S < world.now_s <= 2 * HOLD_S + 10
    assert (decided.giver, decided.taker) == (1, 2)
    assert world.peer(decided.member).stage == 2
    for other in (World("s|abc|def"), World("s|abc|def", slow="def", move_after_s=0.0)):
        await other.iterate(4.0, count=40)
        assert not other.told
    hasty = World("s|abc|def", slow="def", move_after_s=1e-9)
    await hasty.iterate(count=2)
    assert not hasty.told
    await hasty.iterate(count=2)
    assert hasty.of(MoveDecided)


async def test_it_is_not_looked_after_each_short_iteration() -> None:
    """Eight times while a place has to be the better one, however short iterations are."""
    world = World("s|abc|def", usual_s=0.01)
    looks: list[float] = []
    known, world.watch._best = world.watch._best, lambda: looks.append(world.now_s) or known()  # type: ignore[method-assign,func-returns-value]
    await world.iterate(0.5, count=120)
    assert 18 <= len(looks) <= 25
    await world.iterate(3.0, count=10)
    assert len(looks) >= 28


async def test_iterations_that_did_work_twice_are_no_measure() -> None:
    """Nor are those with somebody who is about to leave; and while one is attempted again nobody is
    moved.
    """
    world = World("s|abc|def", slow="def")
    await world.iterate(4.0, count=30, is_clean=False)
    assert not world.told
    leaving = World("s|abc|def", slow="def")
    await leaving.iterate(4.0)
    leaving.peer("b").leave()  # it is in the plan, and nothing is known of it any more
    leaving.watch.committed(make_record(iteration=2), 4.0, is_clean=True)
    assert len(leaving.watch._unexplained_s) == 1
    again = World("s|abc|def", slow="def")
    again.lead.attempt = 1
    await again.iterate(4.0, count=30)
    assert not again.told


async def test_a_stage_that_wavers_as_giver_keeps_the_taker_waiting_no_longer() -> None:
    """Which of two like stages gives changes at every look; the taker is the same."""
    world = World("s|abc|def|ghi", slow="ghi")
    while not world.told:
        assert world.now_s < 2 * HOLD_S + 10
        for name, turn in itertools.product("abcdef", (world.lead.iteration % 2,)):
            world.tell_of(name, USUAL_S * (0.9 if (name in "abc") == bool(turn) else 1.0))
        await world.iterate()
    assert world.of(MoveDecided)[0].taker == 3


async def test_where_iterations_are_long_so_are_the_waits() -> None:
    """Of 12 s, twice as long as `SHORT_S`: a move waits for twice as long, once three of them were
    measured.
    """
    world = World("s|abc|def", slow="def", usual_s=5 * USUAL_S)
    await world.until_moved(seconds=12.0)
    assert 36 + 2 * HOLD_S <= world.now_s <= 36 + 4 * HOLD_S + 12


async def test_after_a_move_the_next_one_rests() -> None:
    """The first one is over after five iterations, and then another stage is slowed: nobody is
    moved before `RESTS` times the wait has gone by since the first one was.
    """
    world = World("s|abcd|efgh|ijkl", slow="efgh")
    first = await world.until_moved()
    first_s = world.now_s
    await world.iterate()
    world.arrive(first.member, 2)
    await world.iterate(count=PACES + 1)
    assert world.of(MoveMeasured)
    for name in "ijkl":
        world.tell_of(name, 4 * USUAL_S * SLOWED)
    second = await world.until_moved(within_s=400.0)
    assert second.taker == 3
    assert world.now_s - first_s >= RESTS * HOLD_S


async def test_only_one_moves_at_a_time() -> None:
    """While a peer is on its way nobody else is moved, however long that takes."""
    world = World("s|abcd|efgh|ijkl", slow="efgh")
    await world.until_moved()
    for name in "ijkl":
        world.tell_of(name, 4 * USUAL_S * SLOWED)
    await world.iterate(5.0, count=int(SEARCH_S / 5) - 5)
    assert len(world.told) == 1


async def test_near_the_end_of_the_run_a_long_copy_is_not_worth_it() -> None:
    """A copy takes five minutes; a peer is moved where an hour is left, and not where two minutes
    are, down to the last iteration.
    """
    for left_s, is_moved in ((3600, True), (120, False)):
        world = World("s|abc|def", slow="def", iterations=1 + left_s // 4)
        world.copies.extend([MeasuredCopy(world.state_bytes, 300.0)] * 2)
        await world.iterate(4.0, count=30)
        assert bool(world.of(MoveDecided)) is is_moved
    assert world.lead.iteration == world.manifest.run.iterations


async def test_a_copy_is_expected_to_take_as_long_as_the_last_ones_of_the_body() -> None:
    """The median of those nearest to it in size; those of before the first commit, when all load at
    once, count while there are no others. Without any, 100 Mbit/s.
    """
    alike, others = ((3, 9.0), (1, 1.0), (1, 4.0), (1, 2.0)), ((3, 9.0), (9, 9.0))
    for since, expected_s in ((alike, 2.0), (others, 3.0), ((), 7.0)):
        world = World("s|abc|def", slow="def")
        world.copies.extend([MeasuredCopy(world.state_bytes, 7.0, is_first=True)] * 4)
        world.copies.extend(MeasuredCopy(count * world.state_bytes, took_s) for count, took_s in since)
        assert (await world.until_moved()).predicted_transition_s == pytest.approx(expected_s)
    first = World("s|abc|def", slow="def")
    assert (await first.until_moved()).predicted_transition_s < 0.1


def test_a_copy_is_as_large_as_the_model_was_cut_then() -> None:
    """A later cut changes nothing of what came; stage 0 has another size, one without blocks none:
    they say nothing, nor does what took no time. Whether anything was committed before is kept.
    """
    manifest, copies = World("s|abc|def").manifest, deque[MeasuredCopy]()
    built = Built("digest", 2.0, 0, 1, exact=True)
    context = SimpleNamespace(now_s=lambda: 1.0, manifest=manifest)
    for counts, record in (((1, 1), None), ((2, 0), make_record(iteration=1))):
        of = SimpleNamespace(copied_s={}, copies=copies, _split=BlockSplit(counts), _context=context, _roster=Roster())
        of._lead = SimpleNamespace(present=SimpleNamespace(record=record))
        for stage in range(3):
            for seconds in (2.0, 0.0):
                Assignment._note_copy(cast("Any", of), endpoint("a").member, stage, replace(built, seconds=seconds))
    one = state_bytes(manifest, 1, 1)
    assert list(copies) == [MeasuredCopy(one, 2.0, is_first=True)] * 2 + [MeasuredCopy(2 * one, 2.0)]


# ---- who is moved --------------------------------------------------------------------------------


async def test_who_leaves_or_is_silent_or_coordinates_stays() -> None:
    """Of four alike the last one would be moved, but it coordinates, one is waited for, and one is
    about to leave: the first one is, and nobody where it cannot be spared.
    """
    for text, moved in (("s|abcde|fgh", {"a", "b"}), ("s|acd|fgh", set())):
        world = World(text, slow="fgh")
        world.watch._context.me = endpoint("d").member
        world.peer("c").miss(0.0)
        if "e" in text:
            world.peer("e").leave()
        await world.iterate(2.5, count=20)
        assert {event.member for event in world.of(MoveDecided)} <= moved
        assert bool(world.told) == bool(moved)


async def test_those_of_both_stages_are_asked_first() -> None:
    """One that died a moment ago is found out, and nobody leaves its stage then."""
    world = World("s|abc|def", slow="def")
    world.roster.dies = {"b"}
    await world.iterate(2.5, count=20)
    assert set(world.roster.asked[:6]) == set("abcdef")
    assert "b" not in {peer.member.peer_id for peer in world.roster.participants()}
    assert not world.told


async def test_a_second_replica_is_worth_a_change_however_little_it_brings() -> None:
    """A stage hangs on one peer that is as fast as three others: iterations become no shorter."""
    world = World("s|a|bcd|efg", slow="bcdefg")
    assert world.manifest.recovery
    for _ in range(3):
        await world.iterate(50.0)
    decided = await world.until_moved(seconds=50.0, within_s=5000.0)
    assert decided.taker == 1
    assert "hangs on one peer" in decided.reason


# ---- what is told of it --------------------------------------------------------------------------


async def test_a_move_is_measured_beside_what_was_expected() -> None:
    """From the word to the state, and the median of the first iterations with the peer there."""
    world = World("s|abc|def", slow="def")
    decided = await world.until_moved(seconds=4.0)
    assert decided.iteration_s == pytest.approx(4.0)
    world.now_s += 1.5
    world.arrive(decided.member, 2)
    for seconds in (9.0, 1.0, 1.2, 1.1, 9.0):
        assert not world.of(MoveMeasured)
        await world.iterate(seconds)
    (measured,) = world.of(MoveMeasured)
    assert measured.transition_s == pytest.approx(1.5)
    assert measured.iteration_s == pytest.approx(1.2)
    assert measured.predicted_iteration_s == decided.predicted_iteration_s
    assert measured.predicted_transition_s == decided.predicted_transition_s
    assert (measured.giver, measured.taker, measured.iteration) == (1, 2, world.lead.iteration - 1)
    assert world.watch.last_move == f"{measured.member} {measured.words}"


async def test_iterations_of_minutes_are_measured_as_well() -> None:
    """Five of them take longer than a peer may that serves nothing."""
    world = World("s|abc|def", slow="def", usual_s=100 * USUAL_S)
    decided = await world.until_moved(seconds=300.0, within_s=1e5)
    await world.iterate(300.0, 2)
    world.arrive(decided.member, 2, 100 * USUAL_S)
    await world.iterate(300.0, PACES)
    assert PACES * 300.0 > SEARCH_S
    assert not world.of(MoveFailed)
    assert world.of(MoveMeasured)


@pytest.mark.parametrize(
    ("happens", "why"),
    [("dies", "it is gone"), ("elsewhere", "it was given another place since"), ("idles", "it does not hold the stage yet")],
)
async def test_why_nothing_came_of_a_move(happens: str, why: str) -> None:
    """It is gone, was needed elsewhere, or never came to serve."""
    world = World("s|abc|def", slow="def")
    decided = await world.until_moved()
    if happens == "dies":
        world.roster.lose(decided.member)
    if happens == "elsewhere":
        world.peer(decided.member).place(1)
    await world.iterate(5.0, count=1 if happens != "idles" else int(SEARCH_S / 5) + 1)
    (failed,) = world.of(MoveFailed)
    assert failed.why == why
    assert (failed.member, failed.giver, failed.taker) == (decided.member, 1, 2)


async def test_a_copy_that_was_expected_to_take_long_may() -> None:
    """A state of an hour's copy has three hours."""
    world = World("s|abc|def", slow="def")
    world.copies.append(MeasuredCopy(world.state_bytes, 600.0))
    decided = await world.until_moved(within_s=1e4)
    assert decided.predicted_transition_s == pytest.approx(600.0)
    await world.iterate(20.0, count=int(2 * SEARCH_S / 20))
    assert not world.of(MoveFailed)
    await world.iterate(20.0, count=int(SEARCH_S / 20) + 1)
    assert world.of(MoveFailed)


async def test_who_is_gone_counts_among_failures() -> None:
    """Ten deaths in a minute: the next one is expected soon, and fewer moves pay."""
    world = World("s|abcdefgh|ijklmnop|qrtu")
    await world.iterate(count=3)
    for name in "abcdeijkl":
        world.roster.lose(name)
    await world.iterate()
    assert world.watch._lost == 9
    assert world.watch._peer_hours == pytest.approx((3 * 21 + 12) / 3600)
