"""The organiser's watch for the death of all: whom it names, and how long it waits before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from swarmfree.protocol.announcement import Announcement, PeerState
from swarmfree.protocol.errors import PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.manifest import Manifest, StagesSection
from swarmfree.protocol.messages import GetRecord, HeldSnapshot, PlanAnswer, RecordAnswer
from swarmfree.protocol.names import ABSENT, PROTOCOL_REVISION, Endpoint, Founder, Member
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.trainer.resume_watch import HOLDERS_ASKED, LOOK_S, SETS_ASKED, ResumeWatch
from tests.builders import make_record

LAST = make_record(iteration=49, loss=2.0)
L = LAST.lineage()
MANIFEST = Manifest(stages=StagesSection(body=2))
TIMING = MANIFEST.timing


def announced(peer_id: str, *, serves: bool = False, can_feed: bool = False) -> Announcement:
    """What the directory shows of a peer."""
    endpoint = Endpoint(Member(peer_id, "1" * 16), (f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_id}",))
    state, stage = (PeerState.SERVING, 1) if serves else (PeerState.STANDBY, ABSENT)
    return Announcement(endpoint, state, stage, 7 if serves else 0, L, 1.0, 0.0, can_feed, PROTOCOL_REVISION, 1e12)


def holds(*stages: int, iteration: int = 50, passed_over: str = "") -> PlanAnswer:
    """The answer of a peer with these on its disk, that is not led."""
    held = tuple(HeldSnapshot(stage, iteration, L) for stage in stages)
    return PlanAnswer(None, "", snapshots=held, passed_over=passed_over)


WHOLE = {"a": holds(0), "c": holds(1), "d": holds(2)}


class World:
    """Directory, network and clock of one watch; three stages."""

    def __init__(self, **answers: PlanAnswer) -> None:
        """These are announced, and answer so; a name with `feeds` in it can feed."""
        self.there = {peer: announced(peer, can_feed="feeds" in peer) for peer in answers}
        self.answers = dict(answers)
        self.named, self.said = [Founder(1, "First")], list[str]()
        self.time_s, self.calls = 100.0, 0
        self.had_place: tuple[str, ...] | None = ("sleeper", "a", "c", "d")
        self.left = {L: LAST}
        self.late = PlanAnswer(None, "")
        self.given: Order | None = None
        self.unix_s = 0.0
        self.start()

    def start(self) -> None:
        """The bootstrap node comes anew, with what it has named."""
        here = cast("Any", self)
        self.watch = ResumeWatch(here, here, here, MANIFEST, self.said.append)

    async def announcements(self) -> tuple[Announcement, ...]:
        """Who is announced."""
        return tuple(self.there.values())

    async def founder(self) -> Founder:
        """Who was named last."""
        return self.named[-1]

    async def name(self, founder: Founder) -> None:
        """Keep it."""
        self.named.append(founder)

    async def call(self, to: Endpoint, request: object, *, silence_s: float) -> Reply:
        """Answer as was chosen; with these as its electorate, where a record is asked for."""
        assert silence_s == TIMING.silence_s / 2
        self.calls += 1
        if to.member.peer_id not in self.answers:
            raise PeerUnreachable("nobody is there")
        if isinstance(request, GetRecord):
            if request.iteration != ABSENT:
                return Reply(RecordAnswer(self._left_by(to.member.peer_id, request)))
            if self.had_place is None:
                raise Refused(RefusalKind.NOT_YET, "no record is held here")
            # An earlier life of each
            return Reply(RecordAnswer(make_record(electorate=tuple(Member(peer, "0" * 16) for peer in self.had_place))))
        return Reply(self.answers[to.member.peer_id])

    def _left_by(self, peer: str, request: GetRecord) -> Record:
        """The record that a set on its disk was left by, whatever it holds."""
        held = [(one.iteration, one.lineage) for one in self.answers[peer].snapshots]
        if (request.iteration + 1, request.lineage) not in held or request.lineage not in self.left:
            raise Refused(RefusalKind.NOT_YET, "no snapshot of that lineage lies here")
        return self.left[request.lineage]

    def now_s(self) -> float:
        """Monotonic."""
        return self.time_s

    def wall_s(self) -> float:
        """Unix."""
        return self.unix_s

    def order(self) -> Order | None:
        """What the organiser wants."""
        return self.given

    async def look(self, seconds: float) -> list[Founder]:
        """Look for so long; who was named meanwhile."""
        before, until_s = len(self.named), self.time_s + seconds
        while self.time_s < until_s:
            await self.watch._look()
            self.time_s += LOOK_S
        return self.named[before:]


@pytest.mark.parametrize(("unix_s", "given", "spent"), [(5000.5, None, 5000), (5000.0, 6000, 6000), (5000.0, 4000, 5000)])
async def test_orders_that_were_given_before_are_spent(unix_s: float, given: int | None, spent: int) -> None:
    """Those that this node's clock says are past, and the one that it knows, whatever clock dated
    it.
    """
    world = World(**WHOLE)
    world.unix_s, world.given = unix_s, Order(given, Halting.PAUSE) if given else None
    wait_s = TIMING.join_wait_s if given else TIMING.silence_s
    assert [founder.spent for founder in await world.look(wait_s + 2 * LOOK_S)] == [spent]


async def test_an_order_to_stop_that_all_did_not_outlive_is_obeyed_afterwards() -> None:
    """The run is not over: what was taken for obeyed is said to be due, once."""
    world = World(**WHOLE)
    world.unix_s, world.given = 5000.0, Order(4000, Halting.STOP)
    assert [founder.spent for founder in await world.look(TIMING.silence_s + 2 * LOOK_S)] == [3999]
    assert len([said for said in world.said if "the order to stop has not ended the run" in said]) == 1
    world.named.append(Founder(3, "a", spent=4000))
    assert [founder.spent for founder in await world.look(2 * TIMING.coordinator_silence_s + 200)][:1] == [5000]


async def test_a_set_with_every_stage_is_gone_on_from() -> None:
    """Soon, with a later number, by one of its holders that can feed; another one where that leads
    nobody.
    """
    world = World(body=holds(1), other=holds(2), feeds=holds(0), feeds_too=holds(0))
    assert await world.look(TIMING.silence_s + 2 * LOOK_S) == [Founder(2, "feeds", 50, L, is_whole=True)]
    assert await world.look(2 * TIMING.coordinator_silence_s) == []
    assert await world.look(2 * TIMING.coordinator_silence_s) == [Founder(3, "feeds_too", 50, L, is_whole=True)]


async def test_who_leads_or_is_led_is_left_alone() -> None:
    """One that hears a coordinator, or has a plan; nobody else is asked while it answers so."""
    led = announced("leads").endpoint
    world = World(**WHOLE, b=PlanAnswer(None, "", led))
    assert await world.look(200.0) == []
    assert world.calls < 2 * 200.0 / LOOK_S
    world.answers["b"] = PlanAnswer(cast("Any", object()), "", records=50)
    assert await world.look(200.0) == []
    world.answers["b"] = PlanAnswer(cast("Any", object()), "", records=49)  # others decided one without it
    assert await world.look(TIMING.silence_s + 2 * LOOK_S) == [Founder(2, "a", 50, L, is_whole=True)]


def asleep(*, waits: bool = True, records: int = 40, **others: PlanAnswer) -> World:
    """A coordinator that stood still while the others went on; what those answer who are back."""
    leads = PlanAnswer(cast("Any", object()), "a stage is lost" if waits else "", announced("sleeper").endpoint, records)
    return World(sleeper=leads, **others)


BACK = {"a": holds(0, passed_over="sleeper"), "c": holds(1, passed_over="sleeper"), "d": holds(2, passed_over="sleeper")}


async def test_one_that_leads_from_before_what_all_have_on_their_disks_is_passed_over() -> None:
    """As a laptop that slept through a pause: else it made anew what they have."""
    assert await asleep(**BACK).look(TIMING.silence_s + 2 * LOOK_S) == [Founder(2, "a", 50, L, is_whole=True)]
    begun = asleep(waits=False)
    assert await begun.look(2 * LOOK_S) == []
    late = asleep(**BACK)
    begun.there, begun.answers = late.there, late.answers
    assert await begun.look(TIMING.silence_s + 2 * LOOK_S) == [Founder(2, "a", 50, L, is_whole=True)], "once it waits"
    followed = asleep(**BACK, e=PlanAnswer(cast("Any", object()), "", announced("sleeper").endpoint, 40))
    assert await followed.look(TIMING.silence_s + 2 * LOOK_S) == [Founder(2, "a", 50, L, is_whole=True)]


@pytest.mark.parametrize(
    "world",
    [
        asleep(**(BACK | {"c": holds(1)})),  # one whose stage nobody else has follows it
        asleep(**(BACK | {"c": holds(1, passed_over="another")})),
        asleep(**(BACK | {"c": holds(0, passed_over="sleeper")})),  # a stage is on no disk
        asleep(**(BACK | {"c": holds(1, iteration=60, passed_over="sleeper")})),  # of another set
        asleep(**BACK, waits=False),  # it trains
        asleep(**BACK, records=50),  # it has stepped, and its plan is older
        asleep(**BACK, e=PlanAnswer(None, "", announced("leads").endpoint)),  # another one leads
        asleep(**BACK, e=PlanAnswer(cast("Any", object()), "", records=50)),  # some choose a coordinator
    ],
    ids=["followed", "of-another", "no-stage", "no-set", "trains", "has-stepped", "led-by-another", "chosen"],
)
async def test_who_may_go_on_is_not_passed_over(world: World) -> None:
    """Every stage of one set has to lie on the disk of somebody who passes it over."""
    assert await world.look(300.0) == []


@pytest.mark.parametrize(("followers", "is_named"), [(1, True), (2, False)])
async def test_more_of_those_that_had_a_place_pass_it_over_than_follow_it(followers: int, *, is_named: bool) -> None:
    """One of each stage does not take a run over from the others, the coordinator among them; nor
    does it go on from what strangers say they have.
    """
    follows = PlanAnswer(cast("Any", object()), "", announced("sleeper").endpoint, 40)
    names = [f"f{number}" for number in range(followers)]
    stranger = PlanAnswer(None, "", snapshots=tuple(HeldSnapshot(stage, 90, L) for stage in range(3)))
    world = asleep(**BACK, **dict.fromkeys(names, follows), x=stranger, y=holds(1, iteration=90), z=holds(2, iteration=90))
    world.had_place = ("sleeper", "a", "c", "d", *names)
    named = await world.look(TIMING.silence_s + 2 * LOOK_S if is_named else 300.0)
    assert named == ([Founder(2, "a", 50, L, is_whole=True)] if is_named else [])


@pytest.mark.parametrize("had_place", [("sleeper", "a", "c"), ("sleeper",), None])
async def test_only_who_had_a_place_beside_a_coordinator_passes_it_over(had_place: tuple[str, ...] | None) -> None:
    """Strangers that say they hold every stage of a set take no run over that waits for one."""
    world = asleep(**BACK)
    world.had_place = had_place
    assert await world.look(300.0) == []


async def test_one_that_serves_and_does_not_answer_is_waited_for() -> None:
    """It may lead a side that this node does not reach; for two leases, or until it is announced no
    more.
    """
    world = World(**WHOLE)
    world.there["gone"] = announced("gone", serves=True)
    assert await world.look(2 * TIMING.lease_s) == []
    assert await world.look(3 * LOOK_S) == [Founder(2, "a", 50, L, is_whole=True)]
    world = World(**WHOLE)
    world.there["gone"] = announced("gone", serves=True)
    assert await world.look(TIMING.silence_s + 2 * LOOK_S) == []
    del world.there["gone"]
    assert await world.look(2 * LOOK_S) == [Founder(2, "a", 50, L, is_whole=True)]


async def test_a_stage_that_is_missing_is_waited_for() -> None:
    """As long as a joiner is, from when the last one came; then it is gone on without."""
    world = World(a=holds(0))
    assert await world.look(TIMING.join_wait_s - LOOK_S) == []
    world.there["b"], world.answers["b"] = announced("b"), holds(1)
    assert await world.look(TIMING.join_wait_s - LOOK_S) == []
    assert await world.look(3 * LOOK_S) == [Founder(2, "a", 50, L)]
    assert any("nobody has come back with stage 2" in said for said in world.said)
    assert "nobody has stage 2 of it" in world.said[-1]


async def test_a_later_set_is_waited_for_a_moment() -> None:
    """Where somebody has a part of a later one; answers that are lost in between begin no new
    wait.
    """
    world = World(**WHOLE, b=holds(2, iteration=100))
    assert await world.look(TIMING.silence_s + 2 * LOOK_S) == []
    told = world.answers.pop("b")
    assert await world.look(LOOK_S) == []
    world.answers["b"] = told
    assert await world.look(2.5 * TIMING.coordinator_silence_s - 3 * LOOK_S) == []
    assert await world.look(3 * LOOK_S) == [Founder(2, "a", 50, L, is_whole=True)]


async def test_what_can_be_read_no_more_is_not_gone_on_from() -> None:
    """Its holder tells of it no longer; nor is one that nobody can have had."""
    world = World(a=holds(0), b=holds(1, iteration=0))
    assert await world.look(LOOK_S) == []
    world.answers["a"] = PlanAnswer(None, "")
    assert await world.look(300.0) == []


async def test_without_any_snapshot_it_says_so() -> None:
    """And names nobody: who has one may come yet."""
    world = World(a=PlanAnswer(None, ""))
    assert await world.look(300.0) == []
    assert any("nobody who answers has a snapshot" in said for said in world.said)


def sides(*, paused: Halting = Halting.PAUSE) -> World:
    """A forced side of a split with every stage of iteration 60, by an order that nobody has obeyed
    before; all of another one, which a majority had decided up to 50, are to come.
    """
    forced = make_record(iteration=59, forced=(40,), order=9, halt=paused)
    disks = [(HeldSnapshot(stage, 60, forced.lineage()),) for stage in range(3)]
    answers = {f"few{stage}": PlanAnswer(None, "", snapshots=disk) for stage, disk in enumerate(disks)}
    world = World(**answers)
    world.left[forced.lineage()] = forced
    return world


def come_back(world: World) -> str:
    """Those of the majority are there; the lineage that they hold."""
    decided = make_record(iteration=49, order=8, halt=Halting.PAUSE)
    world.left[decided.lineage()] = decided
    for stage in range(3):
        peer = f"many{stage}"
        world.there[peer] = announced(peer)
        world.answers[peer] = PlanAnswer(None, "", snapshots=(HeldSnapshot(stage, 50, decided.lineage()),))
    return decided.lineage()


async def test_a_side_that_was_forced_and_paused_waits_for_those_that_were_not() -> None:
    """People start one machine after the other. It is named where nobody comes for `join_wait_s`,
    as at once where it was no pause that it ended with.
    """
    world = sides()
    assert await world.look(TIMING.join_wait_s - 3 * LOOK_S) == []
    assert any("no majority's" in line for line in world.said)
    lineage = come_back(world)
    named = await world.look(TIMING.join_wait_s)
    assert [(one.iteration, one.lineage) for one in named[:1]] == [(50, lineage)]
    assert any("iteration 60, at which others paused without a majority, is dropped" in line for line in world.said)
    assert "iteration 60, which was passed over when the run went on before, is dropped" in world.said[-1]

    alone = sides()
    named = await alone.look(TIMING.join_wait_s + TIMING.silence_s)
    assert [one.iteration for one in named] == [60]
    died = sides(paused=Halting.NOT)
    named = await died.look(TIMING.silence_s + 3 * LOOK_S)
    assert [one.iteration for one in named] == [60]


async def test_a_pause_of_an_hour_takes_nothing_from_what_is_waited_for_afterwards() -> None:
    """The node looks on while nobody is there; and what they had told before they died once more
    counts as new.
    """
    world = sides()
    there, answers = world.there, world.answers
    world.there, world.answers = (
        {"led": announced("led", serves=True)},
        {"led": PlanAnswer(None, "", coordinator=announced("led").endpoint)},
    )
    assert await world.look(3600.0) == []
    world.there, world.answers = dict(there), dict(answers)
    assert await world.look(TIMING.join_wait_s - 5 * LOOK_S) == []
    for seconds in (3600.0, 100.0):
        world.there, world.answers = {}, {}
        assert await world.look(seconds) == []
        world.there, world.answers = dict(there), dict(answers)
        assert await world.look(TIMING.join_wait_s - 5 * LOOK_S) == []
    lineage = come_back(world)
    assert [one.lineage for one in (await world.look(TIMING.join_wait_s))[:1]] == [lineage]

    world = World(**WHOLE)
    assert await world.look(LOOK_S) == []
    there, world.there = world.there, {}
    assert await world.look(100.0) == []
    world.there = {"a": there["a"]}
    assert await world.look(TIMING.join_wait_s - 5 * LOOK_S) == []
    world.there = there
    assert [one.is_whole for one in (await world.look(TIMING.silence_s + 3 * LOOK_S))[:1]] == [True]


@pytest.mark.parametrize("is_forced", [True, False])
async def test_one_that_tells_something_new_each_second_holds_up_nobody(*, is_forced: bool) -> None:
    """What nobody else has a part of is no news."""
    world = sides() if is_forced else World(**WHOLE)
    for second in range(100):
        older = HeldSnapshot(2, 10 + second % 40, f"{second:064x}")
        later = (HeldSnapshot(2, 900, L),) * (second % 2)
        world.answers["old"], world.there["old"] = PlanAnswer(None, "", snapshots=(*later, older)), announced("old")
        await world.look(LOOK_S)
    assert [one.iteration for one in world.named[1:2]] == [60 if is_forced else 50]


async def test_records_that_were_told_once_count_where_nobody_answers_any_more() -> None:
    """As what lies on their disks does: a node that reaches one side only has known better."""
    world = sides()
    lineage = come_back(world)
    assert await world.look(2 * LOOK_S) == []
    for peer in [peer for peer in world.answers if peer.startswith("many")]:
        del world.answers[peer]
    named = await world.look(TIMING.join_wait_s)
    assert [(one.iteration, one.lineage) for one in named[:1]] == [(50, lineage)]


@pytest.mark.parametrize("are_others_there", [True, False])
async def test_a_set_whose_record_nobody_tells_is_not_gone_on_from_at_once(*, are_others_there: bool) -> None:
    """It may be a side that was forced."""
    world = sides()
    if are_others_there:
        come_back(world)
    world.left = {}
    assert await world.look(TIMING.join_wait_s - 3 * LOOK_S) == []
    assert any("of which nobody tells the last record" in line for line in world.said)
    assert [one.iteration for one in await world.look(6 * LOOK_S)] == [60]


async def test_a_side_that_was_forced_is_known_by_what_lies_on_the_disks_whatever_is_held() -> None:
    """Those of one that a genesis had passed over hold an older set since then; and who is loading
    holds nothing.
    """
    world = sides()
    lineage = come_back(world)
    for stage in range(3):
        older = HeldSnapshot(stage, 40, "c" * 64)
        world.answers[f"few{stage}"] = PlanAnswer(None, "", snapshots=(older, *world.answers[f"few{stage}"].snapshots))
    world.named = [Founder(2, "many0", 50, lineage, 9, is_whole=True)]
    assert [one.lineage for one in (await world.look(TIMING.silence_s + 3 * LOOK_S))[:1]] == [lineage]


async def test_sets_that_are_invented_do_not_make_the_node_call_without_end() -> None:
    """A few are asked for in each look, those first that were asked for least often: what is true
    is found among them.
    """
    world = sides()
    lineage = come_back(world)
    invented = tuple(HeldSnapshot(2, 900 + number, f"{number:064x}") for number in range(100))
    for liar in (f"liar{number}" for number in range(HOLDERS_ASKED + 1)):
        world.there[liar], world.answers[liar] = announced(liar), PlanAnswer(None, "", snapshots=invented)
    named = list[Founder]()
    for _ in range(int(TIMING.join_wait_s)):
        before = world.calls
        named += await world.look(LOOK_S)
        assert world.calls - before <= len(world.answers) + SETS_ASKED * HOLDERS_ASKED
    assert [one.lineage for one in named[:1]] == [lineage]


async def test_machines_that_come_one_by_one_with_what_a_majority_decided_are_waited_for() -> None:
    """Beside a forced side that is there and further: each begins the wait anew."""
    world, late = sides(), sides()
    lineage = come_back(late)
    for peer in ("many0", "many1", "many2"):
        assert await world.look(TIMING.join_wait_s - 5 * LOOK_S) == []
        world.there[peer], world.answers[peer] = late.there[peer], late.answers[peer]
        world.left |= late.left
    assert [one.lineage for one in (await world.look(TIMING.silence_s + 3 * LOOK_S))[:1]] == [lineage]


async def test_a_later_part_of_the_side_that_goes_on_is_waited_for_beside_a_forced_one() -> None:
    """All of the one have died; the other one, which was passed over, is further than both."""
    world = sides()
    resumed, later = (make_record(iteration=one - 1, forced=(45,), order=9) for one in (52, 58))
    for last, stages in ((resumed, range(3)), (later, range(2))):
        world.left[last.lineage()] = last
        for stage in stages:
            told = world.answers.get(f"many{stage}", PlanAnswer(None, "")).snapshots
            held = HeldSnapshot(stage, last.iteration + 1, last.lineage())
            world.there[f"many{stage}"] = announced(f"many{stage}")
            world.answers[f"many{stage}"] = PlanAnswer(None, "", snapshots=(held, *told))
    world.named = [Founder(2, "many0", 45, "d" * 64, 9, is_whole=True)]
    assert await world.look(TIMING.silence_s + 5 * LOOK_S) == []
    world.there["late"] = announced("late")
    world.answers["late"] = PlanAnswer(None, "", snapshots=(HeldSnapshot(2, 58, later.lineage()),))
    assert [one.iteration for one in (await world.look(TIMING.silence_s + 3 * LOOK_S))[:1]] == [58]


async def test_what_was_named_gives_way_to_what_a_majority_paused_with_by_another_order() -> None:
    """Its founder has led nobody, and the genesis has spent both orders."""
    world = sides()
    world.unix_s = 5000.0
    assert [one.iteration for one in await world.look(TIMING.join_wait_s + 3 * LOOK_S)] == [60]
    lineage = come_back(world)
    assert [one.lineage for one in (await world.look(TIMING.join_wait_s + 3 * LOOK_S))[:1]] == [lineage]


async def test_an_order_that_the_set_has_obeyed_is_spent_whatever_the_clock_says() -> None:
    """This node's is behind, and it has forgotten the order."""
    last = make_record(iteration=49, order=1300, halt=Halting.PAUSE)
    world = World(**{f"a{n}": PlanAnswer(None, "", snapshots=(HeldSnapshot(n, 50, last.lineage()),)) for n in range(3)})
    world.left[last.lineage()], world.unix_s = last, 1000.0
    assert [one.spent for one in await world.look(TIMING.silence_s + 2 * LOOK_S)] == [1300]


def some_of_two_sets(*, has_paused: bool = True) -> World:
    """Each stage of 50, left by its decided record, and two of three of 60, by the next order."""
    before, after = (
        make_record(iteration=49, order=8, halt=Halting.PAUSE),
        make_record(iteration=59, order=9, halt=Halting.PAUSE if has_paused else Halting.NOT),
    )
    old, new = (HeldSnapshot(0, 50, before.lineage()),), HeldSnapshot(0, 60, after.lineage())
    both = {stage: (replace(new, stage=stage), replace(old[0], stage=stage)) for stage in (1, 2)}
    world = World(
        a=PlanAnswer(None, "", snapshots=old), **{f"b{n}": PlanAnswer(None, "", snapshots=disk) for n, disk in both.items()}
    )
    world.left |= {before.lineage(): before, after.lineage(): after}
    world.late = PlanAnswer(None, "", snapshots=(new,))
    return world


@pytest.mark.parametrize(("has_paused", "waits_s"), [(True, TIMING.join_wait_s), (False, 2.5 * TIMING.coordinator_silence_s)])
async def test_the_rest_of_what_was_paused_is_waited_for_as_a_joiner_is(*, has_paused: bool, waits_s: float) -> None:
    """Each stage of it lies on a disk; where all have died instead, it may not, and a moment is
    enough.
    """
    world = some_of_two_sets(has_paused=has_paused)
    assert await world.look(waits_s - 2 * LOOK_S) == []
    assert any("with the rest of iteration 60" in said for said in world.said) is has_paused
    world.there["b0"], world.answers["b0"] = announced("b0"), world.late
    assert [one.iteration for one in await world.look(TIMING.silence_s + 3 * LOOK_S)] == [60]
    alone = some_of_two_sets(has_paused=has_paused)
    assert [one.iteration for one in await alone.look(waits_s + TIMING.silence_s + 3 * LOOK_S)] == [50]


async def test_what_was_left_before_the_last_order_to_pause_is_not_gone_on_from_at_once() -> None:
    """Those that were not there when the run went on are switched on first."""
    world = World(**WHOLE)
    last = make_record(iteration=49, order=8, halt=Halting.PAUSE)
    world.answers = {f"a{n}": PlanAnswer(None, "", snapshots=(HeldSnapshot(n, 50, last.lineage()),)) for n in range(3)}
    world.there = {peer: announced(peer) for peer in world.answers}
    world.left[last.lineage()] = last
    world.named, world.given = [Founder(2, "a", 50, last.lineage(), 8)], Order(9, Halting.PAUSE)
    assert await world.look(TIMING.join_wait_s - LOOK_S) == []
    assert any("with what the last order to pause has left" in said for said in world.said)
    assert [one.iteration for one in await world.look(3 * LOOK_S)] == [50]


async def test_one_that_takes_the_newest_set_away_again_and_again_holds_up_nobody() -> None:
    """It is there for some seconds of each minute, with a stage that nobody else has; without it an
    older set is whole.
    """
    world = some_of_two_sets()
    for second in range(int(3 * TIMING.join_wait_s + 60)):
        life, is_on = second // 43, second % 43 < 4
        endpoint = Endpoint(Member("b0", f"{life:016x}"), ("/ip4/127.0.0.1/tcp/4001/p2p/b0",))
        world.there["b0"] = replace(announced("b0"), endpoint=endpoint)
        world.answers.pop("b0", None)
        if second % 43 > 4 + TIMING.lease_s:
            del world.there["b0"]
        if is_on:
            world.answers["b0"] = world.late
        if await world.look(LOOK_S):
            break
    assert [one.iteration for one in world.named[1:]] == [60]


async def test_one_that_dies_again_and_again_holds_up_nobody() -> None:
    """It comes back under the same name with what it has told before, each time as a new life; one
    that always tells something new is not waited for longer than three times as long.
    """
    for tells_news, within_s in ((False, TIMING.join_wait_s + 10.0), (True, 3 * TIMING.join_wait_s + 10.0)):
        world = sides()
        for life in range(12):
            peer = "few2"
            endpoint = Endpoint(Member(peer, f"{life:016x}"), (f"/ip4/127.0.0.1/tcp/4001/p2p/{peer}",))
            world.there[peer] = replace(announced(peer), endpoint=endpoint)
            if tells_news:
                older = HeldSnapshot(2, 10 + life, f"{life:064x}")
                world.answers["old"] = PlanAnswer(None, "", snapshots=(older,))
                world.there["old"] = announced("old")
            if await world.look(TIMING.join_wait_s / 2):
                break
        assert {one.iteration for one in world.named[1:]} == {60}
        assert world.time_s - 100.0 < within_s + TIMING.join_wait_s / 2
