"""Bounds on time by hand-made scenes: a takeover, a lead that stays, fencing, a rebuild, everybody
back (I6, N2).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pytest

from swarmfree.protocol.events import IterationCommitted, LineageDropped, MemberLost, Placed, StageBuilt, Stepped, TookOver
from swarmfree.protocol.manifest import Manifest, ModelSection, StagesSection
from swarmfree.protocol.messages import Commit
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.sim import bounds, partitions
from swarmfree.sim.bounds import Bounds
from swarmfree.sim.faults import CALM, FaultPlan
from swarmfree.sim.liveness import Liveness
from swarmfree.sim.loop import VirtualLoop
from swarmfree.sim.network import MemoryHub
from swarmfree.sim.peer_ports import Pace
from swarmfree.sim.population import Cast
from swarmfree.sim.rehearsal import may_disbelieve
from tests.mutants.alone import record
from tests.sim.network_world import RUN, Seen

MANIFEST = Manifest(
    model=ModelSection(width=8, blocks=2, heads=2, kv_heads=1, mlp_width=8, tokens_per_row=3),
    stages=StagesSection(body=2, replicas_max=2, sources_max=2),
)
NAMES = ("leader", "source", "one", "sibling", "two", "other")
BEFORE = "1" * 64
LIMITS = Bounds.of(MANIFEST.timing, is_lossy=False)


@dataclass
class Life:
    """As much of a life as is looked at."""

    member: Member
    can_feed: bool = False
    standby: bool = False
    leaving: bool = False
    pace: Pace = field(default_factory=Pace)


class Troupe:
    """As much of a cast as is looked at."""

    def __init__(self) -> None:
        self.lives: dict[Member, Life] = {}
        self.changed_s = 0.0


class Scene:
    """Two sources, of which one leads, and two replicas of each of two stages; time goes by a
    second at a time.
    """

    def __init__(self, faults: FaultPlan = CALM) -> None:
        self.loop = VirtualLoop(time_limit_s=1000.0)
        self.hub, self.troupe = MemoryHub(self.loop, RUN, faults, random.Random(1), Seen()), Troupe()
        self.found: list[str] = []
        self.watch = Liveness(
            MANIFEST, self.hub, cast("Cast", self.troupe), lambda invariant, text: self.found.append(f"{invariant}: {text}")
        )
        for name in NAMES:
            self.come(name)
        members = [Member(name, "1") for name in NAMES]
        self.leader = members[0]
        self.newest = replace(record(before=BEFORE), electorate=tuple(members))
        self.plan(*([members[k], members[k + 1]] for k in (0, 2, 4)))

    def plan(self, *stages: list[Member], revision: int = 1, split: tuple[int, ...] = ()) -> None:
        """The leader sends this plan."""
        replicas = tuple(tuple(Replica(Endpoint(member, ())) for member in stage) for stage in stages)
        position = Position(Term(1, self.leader), 5, 0, revision)
        self.watch.see(Plan(position, "0" * 16, BEFORE, replicas, (), None, 4, split=split), self.leader)

    def come(self, name: str, *, standby: bool = False, can_feed: bool = False) -> Member:
        """A life begins."""
        member = Member(name, "1")
        self.hub.attach(Endpoint(member, (f"/memory/{name}",)), _never, Context())
        self.troupe.lives[member] = Life(member, can_feed, standby)
        return member

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something at this time."""
        self.loop.call_later(seconds, what)

    def play(self, seconds: int, *, leads: bool = True) -> list[str]:
        """Look every second; a leader that leads commits as often. What was found."""

        async def looks() -> None:
            for _ in range(seconds):
                if leads and self.hub.is_alive(self.leader):
                    self.watch.told(self.leader, IterationCommitted(4, 0, 1.0, None, 9, 1.0, [], "1" * 64))
                self.watch.look(self.newest)
                await asyncio.sleep(1.0)

        self.loop.run_until_complete(self.loop.create_task(looks(), name="looks"))
        self.loop.close()
        return self.found


def _never(work: Coroutine[Any, Any, None], name: str, context: Context) -> asyncio.Task[None]:
    raise AssertionError("nobody is called here")


def test_a_whole_swarm_is_fine() -> None:
    """Nothing is found where nothing happens, nor where a newcomer is a standby by its own will or
    as all places are taken.
    """
    scene = Scene()
    scene.come("late")
    scene.come("patient", standby=True)
    assert scene.play(100) == []


@pytest.mark.parametrize("survivors", [4, 3])
def test_a_dead_coordinator_has_a_successor(survivors: int) -> None:
    """Where a majority lives, somebody takes over in time; where none does, everybody waits."""
    scene = Scene()
    for name in NAMES[1:-survivors]:
        scene.hub.detach(Member(name, "1"))
    scene.after(5.0, lambda: scene.hub.detach(scene.leader))
    found = scene.play(int(LIMITS.takeover_s) + 10)
    assert bool(found) == (survivors == 4)
    assert not found or "nobody took over" in found[0]


def test_a_dead_coordinator_has_no_successor_while_whom_a_majority_needs_hangs() -> None:
    """A peer whose device hangs in what it does first promises nothing until it ends by that."""
    scene = Scene()
    for name in NAMES[1:-4]:
        scene.hub.detach(Member(name, "1"))
    scene.after(5.0, lambda: scene.hub.detach(scene.leader))
    scene.troupe.lives[Member(NAMES[-1], "1")].pace.stuck = True
    assert scene.play(int(LIMITS.takeover_s) + 10) == []


def test_a_dead_coordinator_has_no_successor_among_those_that_have_gone_over() -> None:
    """Two of four have stepped with another side since: whom they left has no majority, and they
    have a coordinator.
    """
    scene = Scene()
    for name in NAMES[1:-4]:
        scene.hub.detach(Member(name, "1"))
    scene.after(5.0, lambda: scene.hub.detach(scene.leader))
    for name in NAMES[-2:]:
        scene.watch.told(Member(name, "1"), Stepped(5, "e" * 64))
    assert scene.play(int(LIMITS.takeover_s) + 10) == []


def test_another_lineage_that_counts_more_has_a_coordinator_of_its_own() -> None:
    """The dead one led a side that has lost, and needs no successor among the majority of the side
    that goes on, whose plan is yet to come.
    """
    scene = Scene()
    scene.after(5.0, lambda: scene.hub.detach(scene.leader))
    scene.after(LIMITS.takeover_s, lambda: setattr(scene, "newest", replace(scene.newest, before="2" * 64)))
    assert scene.play(int(LIMITS.takeover_s) + 10) == []


def test_a_takeover_in_time_is_fine() -> None:
    """The successor's first word counts."""
    scene = Scene()
    scene.after(5.0, lambda: scene.hub.detach(scene.leader))
    scene.after(10.0, lambda: scene.watch.told(Member("source", "1"), TookOver(2, 5, 5, forced=False)))
    scene.after(10.0, lambda: scene.plan([Member("source", "1")], *([Member(n, "1") for n in NAMES[k : k + 2]] for k in (2, 4))))
    assert scene.play(40) == []


@pytest.mark.parametrize(("forced", "at_s", "is_late"), [(False, 19.0, False), (False, 21.0, True), (True, 21.0, False)])
def test_the_lead_does_not_wander_in_calm(forced: bool, at_s: float, is_late: bool) -> None:  # noqa: FBT001 - tables
    """Long after the last trouble nobody takes over, but without a majority after a long wait."""
    scene = Scene()
    scene.after(at_s, lambda: scene.watch.told(Member("one", "1"), TookOver(2, 5, 6, forced=forced)))
    assert bool(scene.play(30)) == is_late
    lossy = Scene(replace(CALM, request_loss_rate=0.1))
    lossy.after(at_s, lambda: lossy.watch.told(Member("one", "1"), TookOver(2, 5, 6, forced=forced)))
    assert lossy.play(30) == [], "there messages get lost, and that is trouble"
    hung = Scene()
    hung.after(5.0, lambda: setattr(hung.troupe.lives[Member("two", "1")].pace, "stuck", True))
    hung.after(at_s, lambda: hung.watch.told(Member("one", "1"), TookOver(2, 5, 6, forced=forced)))
    assert hung.play(30) == [], "a device hangs, and its coordinator gets nowhere"


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("fenced", [True, False])
def test_a_silent_member_with_siblings_is_fenced(frozen: bool, fenced: bool) -> None:  # noqa: FBT001 - tables
    """Whether it died or stands still, the coordinator says so in time."""
    scene, member = Scene(), Member("sibling", "1")
    scene.after(5.5, lambda: scene.hub.freeze(member) if frozen else scene.hub.detach(member))
    if fenced:
        scene.after(8.5, lambda: scene.watch.told(scene.leader, MemberLost(str(member), member.peer_id, 1, "silent")))
    found = scene.play(20)
    assert bool(found) == (not fenced)
    assert fenced or "has siblings, and is not fenced" in found[0]


@pytest.mark.parametrize("apart", [("sibling",), NAMES[1:]], ids=["its sibling", "everybody"])
def test_the_last_one_that_is_heard_is_waited_for(apart: tuple[str, ...]) -> None:
    """Nobody is fenced for silence whose sibling is out of the coordinator's reach, nor by a
    coordinator that leads nobody any more.
    """
    scene = Scene()
    scene.after(4.5, lambda: scene.hub.begin_break(partitions.partition(apart)))
    scene.after(5.5, lambda: scene.hub.detach(Member("one", "1")))
    assert not [text for text in scene.play(20) if "and is not fenced" in text]


def test_who_was_fenced_before_it_died_need_not_be_fenced_again() -> None:
    """Messages got lost, and the coordinator knows it is gone; where it is in the next plan it is a
    member again.
    """
    for again in (False, True):
        scene, member = Scene(), Member("sibling", "1")
        scene.after(
            4.5,
            lambda scene=scene, member=member: scene.watch.told(
                scene.leader, MemberLost(str(member), member.peer_id, 1, "silent")
            ),
        )
        if again:
            scene.after(
                5.0, lambda scene=scene: scene.plan(*([Member(n, "1") for n in NAMES[k : k + 2]] for k in (0, 2, 4)), revision=2)
            )
        scene.after(5.5, lambda scene=scene, member=member: scene.hub.detach(member))
        assert bool(scene.play(20)) == again


def test_a_lost_stage_is_rebuilt_where_somebody_is_there() -> None:
    """A newcomer that waits beside a lost stage for longer than a build takes is found; without
    anybody to build there is nothing to find.
    """
    for comes in (True, False):
        scene = Scene()
        for name in ("two", "other"):
            scene.hub.detach(Member(name, "1"))
        if comes:
            scene.come("late")
        found = scene.play(int(LIMITS.rebuild_s) + 3, leads=False)
        assert bool([text for text in found if "in stage 2 lives" in text]) == comes


@pytest.mark.parametrize(
    ("later_s", "forced", "is_found"), [(4, True, False), (int(LIMITS.rebuild_s) + 4, True, True), (4, False, True)]
)
def test_who_went_on_without_a_majority_rebuilds_from_then_on(later_s: int, *, forced: bool, is_found: bool) -> None:
    """The bound counts from there; a takeover by a majority changes nothing (2761722: 92 s had gone
    by as a lead was forced, and the stage counted as late at once).
    """
    scene, taken_s = Scene(), int(LIMITS.rebuild_s) - 1
    for name in ("two", "other"):
        scene.hub.detach(Member(name, "1"))
    scene.come("late")
    taken = TookOver(2, 5, 5, forced=forced)
    scene.after(taken_s + 0.5, lambda: scene.watch.told(scene.leader, taken))
    found = scene.play(taken_s + later_s, leads=False)
    assert bool([text for text in found if "in stage 2 lives" in text]) == is_found


def test_everybody_is_back() -> None:
    """Half a minute in reach of a coordinator that has a place to give: whoever has none then is
    found; whoever was away meanwhile has more time.
    """
    scene = Scene()
    late = scene.come("late")
    scene.plan([Member("leader", "1")], *([Member(n, "1") for n in NAMES[k : k + 2]] for k in (2, 4)))
    assert scene.play(50) == [], "it cannot feed, and every other stage is full"
    for is_away in (True, False):
        scene = Scene()
        late = scene.come("late")
        scene.plan(*([Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])))
        if is_away:
            scene.after(20.5, partial(scene.hub.begin_break, partitions.mute(late.peer_id)))
        found = [text for text in scene.play(int(bounds.SETTLED_S) + 5) if text.startswith("N2")]
        assert bool(found) != is_away
        assert is_away or "late.1 is in reach" in found[0]


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_stage_without_blocks_has_one_place(*, is_cut: bool) -> None:
    """Who waits beside it has waited for nothing yet as it gets blocks again (seed 2930266 with
    cuts).
    """
    scene, stages = Scene(), [[Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])]
    scene.come("late")
    scene.plan(*stages, split=(2, 0))
    if is_cut:
        scene.after(bounds.SETTLED_S, lambda: scene.plan(*stages, revision=2, split=(1, 1)))
    found = [text for text in scene.play(2 * int(bounds.SETTLED_S) + 5) if text.startswith("N2")]
    assert bool(found) == is_cut
    assert not found or f"in reach for {bounds.SETTLED_S:.0f} s" in found[0]


@pytest.mark.parametrize(("calm_s", "found_s"), [(None, 60), (100.5, 60), (40.5, 51), (0.0, 31)])
def test_time_in_which_messages_get_lost_counts_half(calm_s: float | None, found_s: int) -> None:
    """Every question may be asked once more then; as it becomes calm, what was waited before does
    not count twice as much at once.
    """
    scene = Scene(replace(CALM, request_loss_rate=0.1))
    scene.come("late")
    scene.plan(*([Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])))
    if calm_s is not None:
        scene.after(calm_s, lambda: setattr(scene.hub, "calm", True))
    found = [text for text in scene.play(found_s + 5) if text.startswith("N2")]
    assert f"late.1 is in reach for {found_s} s" in found[0]


def test_who_has_its_state_waits_for_the_next_plan() -> None:
    """An iteration may take half a minute, and only the next Open names who has built its stage
    meanwhile, or was given a place and has stepped with the last record; a later plan that does not
    is found, and so is one that steps and steps with no place.
    """
    built, stepped = StageBuilt(2, 5, "Copy", "late", 1.0, 9, "0" * 16), Stepped(5, BEFORE)
    for event, is_placed, again, is_found in (
        (built, False, False, False),
        (built, False, True, True),
        (stepped, True, False, False),
        (stepped, True, True, True),
        (stepped, False, False, True),
    ):
        scene = Scene()
        late = scene.come("late")
        stages = [[Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])]
        scene.plan(*stages)
        if is_placed:
            scene.after(10.5, partial(scene.watch.told, scene.leader, Placed(late.peer_id, 2)))
        scene.after(20.5, partial(scene.watch.told, late, event))
        if again:
            scene.after(25.5, partial(scene.plan, *stages, revision=2))
            scene.after(26.5, partial(scene.watch.told, late, stepped))
        found = [text for text in scene.play(int(bounds.SETTLED_S) + 40) if text.startswith("N2")]
        assert bool(found) == is_found, (event, is_placed, again)


@pytest.mark.parametrize(
    ("lineage", "before", "again", "is_found"),
    [(BEFORE, 2, False, False), (BEFORE, 2, True, True), (BEFORE, 1, False, True), ("2" * 64, 2, False, True)],
)
def test_who_comes_back_with_its_state_waits_for_the_next_plan(lineage: str, before: int, again: bool, is_found: bool) -> None:  # noqa: FBT001 - tables
    """A member was fenced and says hello with the state that the plan goes on from (seed 2490185,
    with a liar): only the next Open names it. One that comes to another stage, or with another
    state, has it still to build.
    """
    scene = Scene()
    late = scene.come("late")
    stages = [[Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])]
    scene.watch.told(scene.leader, Placed(late.peer_id, before))
    scene.watch.told(late, Stepped(5, lineage))
    scene.after(5.5, partial(scene.plan, *stages))
    scene.after(10.5, partial(scene.watch.told, scene.leader, Placed(late.peer_id, 2)))
    if again:
        scene.after(25.5, partial(scene.plan, *stages, revision=2))
    assert any(text.startswith("N2") for text in scene.play(int(bounds.SETTLED_S) + 40)) == is_found


@pytest.mark.parametrize(
    ("met_s", "taken_s", "is_late"), [(None, 40.0, True), (30.0, 40.0, False), (30.0, 55.0, True), (64.0, 69.0, True)]
)
def test_sides_of_a_split_take_their_time_to_meet(met_s: float | None, taken_s: float, is_late: bool) -> None:  # noqa: FBT001 - tables
    """A coordinator that still looks for others, long after a split has ended, gives way to the one
    that goes on, which then claims again where its term is the lower one; not for ever.
    """
    for ended_s in (5.0, -100.0):
        scene = Scene()
        split = partitions.partition(["one", "sibling"])
        if ended_s > 0:
            scene.hub.begin_break(split)
            scene.after(ended_s, partial(scene.hub.end_break, split))
        for by_s, coordinator in ((met_s, Member("one", "1")), (taken_s - 1.0, scene.leader)):
            if by_s is not None:
                scene.after(by_s, partial(scene.watch.looks_beyond, coordinator))
        scene.after(taken_s, partial(scene.watch.told, scene.leader, TookOver(3, 5, 6, forced=False)))
        assert bool(scene.play(70)) == (is_late or ended_s < 0)


def test_who_led_another_lineage_has_its_time_from_the_meeting() -> None:
    """Two sides meet no sooner than `remeet_s` after a break is mended: half a minute begins as one
    of them is dropped.
    """
    scene = Scene()
    late = scene.come("late")
    scene.plan(*([Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])))
    scene.after(20.5, lambda: scene.watch.told(late, LineageDropped(0, 0, "0" * 64, 4, "1" * 64)))
    found = scene.play(int(bounds.SETTLED_S) + 25)
    assert found
    assert "in reach for 30 s" in found[0]
    assert late.peer_id in found[0]
    assert scene.watch._met_s == 20.5


def test_a_leader_without_a_majority_gives_no_places() -> None:
    """A break parts it from most of its electorate: whoever is on its side waits as it does; parted
    from few, it still has places to give.
    """
    for parted in (NAMES[1:5], NAMES[1:2]):
        scene = Scene()
        scene.come("late")
        scene.plan(*([Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])))
        scene.hub.begin_break(partitions.partition(parted))
        found = [text for text in scene.play(int(bounds.SETTLED_S) + 5) if text.startswith("N2")]
        assert bool(found) == (len(parted) == 1)


def test_a_leader_without_a_stage_gives_no_places() -> None:
    """The only replica of a stage is out of its reach, though not out of everybody's: until that is
    rebuilt nothing is opened.
    """
    scene = Scene()
    scene.come("late")
    scene.plan(*([Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])))
    scene.hub.begin_break(partitions.cut(NAMES[0], NAMES[4]))
    assert [text for text in scene.play(int(bounds.SETTLED_S) + 5) if text.startswith("N2")] == []


@pytest.mark.parametrize(("others", "base", "is_found"), [(0, "0", False), (1, "0", True), (0, "1", True)])
def test_a_leader_gives_no_places_while_a_stage_hangs_in_its_average(others: int, base: str, is_found: bool) -> None:  # noqa: FBT001 - tables
    """Whoever came meanwhile waits with the others for that stage; not where one replica of it
    works, nor where the average is of a base before.
    """
    scene = Scene()
    scene.come("late")
    for name in ("source", "sibling", *(() if others else ("two",))):
        scene.hub.detach(Member(name, "1"))
    scene.plan(*([Member(n, "1") for n in names] for names in (NAMES[:1], NAMES[2:3], NAMES[5 - others :])))
    scene.watch.average(base * 16)
    scene.troupe.lives[Member("other", "1")].pace.stuck = True
    found = [text for text in scene.play(int(bounds.SETTLED_S) + 5) if text.startswith("N2")]
    assert bool(found) == is_found


@pytest.mark.parametrize(("stage", "is_kept"), [(1, True), (2, False), (-1, False)])
def test_who_is_kept_for_a_stage_that_hangs_waits_for_it(stage: int, is_kept: bool) -> None:  # noqa: FBT001 - tables
    """Its place is in a stage whose last replica hangs, and that it builds next: it is moved to no
    other. Half a minute begins when that is over.
    """
    scene = Scene()
    late = scene.come("late")
    for name in ("sibling", "other"):
        scene.hub.detach(Member(name, "1"))
    scene.watch.told(scene.leader, Placed(late.peer_id, stage))
    scene.plan(*([Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:3], NAMES[4:5])))
    pace = scene.troupe.lives[Member("one", "1")].pace
    pace.stuck = True
    scene.after(40.5, lambda: setattr(pace, "stuck", False))
    found = [text for text in scene.play(int(bounds.SETTLED_S) + 45) if text.startswith("N2")]
    assert "in reach for 30 s, 2 places" in found[0] if is_kept else "in reach for 30 s, 1 places" in found[0]


def test_a_place_may_be_promised_to_somebody_else() -> None:
    """One place, two that could have it, and one of these came a moment ago: it may be that
    one's.
    """
    scene = Scene()
    scene.come("late")
    scene.plan(*([Member(n, "1") for n in names] for names in (NAMES[:2], NAMES[2:4], NAMES[4:5])))
    scene.loop.call_later(25.5, scene.come, "later")
    assert [text for text in scene.play(int(bounds.SETTLED_S) + 5) if text.startswith("N2")] == []


def test_a_forced_record_is_disbelieved_until_two_sides_have_met() -> None:
    """Whoever was parted hears its own side's coordinator; a record of a majority is believed at
    once.
    """
    asked = [
        (forced, quiet_s, may_disbelieve(Commit(replace(record(), iteration=5, forced=forced)), quiet_s, MANIFEST.timing))
        for forced in ((5,), (4,))
        for quiet_s in (LIMITS.meeting_s - 1, LIMITS.meeting_s + 1)
    ]
    assert [forced for forced, _, may in asked if may] == [(5,)]
    assert asked[0][2]
