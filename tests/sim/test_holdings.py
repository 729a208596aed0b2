"""Rebuilds (N1) and forced takeovers (N5) that need not be, by hand-made histories: who holds which
state, and whether it was in reach.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.actions import BuildAction, Copy, CopyKept, CopyNeighbour, Fresh, Restore, Stay
from swarmfree.protocol.messages import Build
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.sim import bounds, partitions
from swarmfree.sim.history import History
from swarmfree.sim.holdings import Holdings
from tests.builders import make_record

LEADER, HOLDER, OTHER = (Member(name, "1") for name in ("leader", "holder", "other"))
AT = {member: Endpoint(member, (f"/memory/{member.peer_id}",)) for member in (LEADER, HOLDER, OTHER)}
POSITION = Position(Term(1, LEADER), 7, 0, 1)
OLDER = "e" * 64
BEFORE = make_record(iteration=5, before=OLDER, term=POSITION.term, electorate=(LEADER,))
LAST = replace(BEFORE, iteration=6, before=BEFORE.lineage())
MERGED = CopyNeighbour(2, AT[OTHER], 1, "")


class Story:
    """A leader, and one that holds stage 2 since long ago; it is 100 s now."""

    def __init__(self, stage: int = 2, lineage: str = LAST.lineage()) -> None:
        self.now_s = 0.0
        self.history, self.alive, self.stuck = History(lambda: self.now_s), {LEADER, HOLDER, OTHER}, set[Member]()
        self.holdings = Holdings(self)
        self.hold(HOLDER, stage, lineage)
        self.now_s = 100.0

    def hold(self, member: Member, stage: int, lineage: str, revision: int = POSITION.revision) -> None:
        """A member has a state, and a plan has the member."""
        self.holdings.stepped(member, stage, lineage, self.now_s)
        replicas = tuple((Replica(AT[member]),) if place == stage else () for place in range(3))
        self.holdings.opened(Plan(replace(POSITION, revision=revision), "0" * 16, lineage, replicas, (), LAST, 4))

    def copied(self, member: Member, stage: int, lineage: str) -> None:
        """A member has a sibling's state from now on."""
        build = Build(POSITION, Copy(stage, (AT[OTHER],), ""), 7, lineage, None)
        self.holdings.built(member, build, lineage, self.now_s)

    def made(self, member: Member, action: BuildAction, record: Record = LAST) -> None:
        """A member has made the lost stage 2 after this record, and a plan has the member."""
        lineage = record.lineage()
        self.holdings.built(member, Build(POSITION, action, record.iteration + 1, lineage, record), lineage, self.now_s)
        self.holdings.opened(Plan(POSITION, "0" * 16, lineage, ((), (), (Replica(AT[member]),)), (), record, 4))

    def is_alive(self, member: Member) -> bool:
        """As the story says."""
        return member in self.alive

    def is_stuck(self, member: Member) -> bool:
        """As the story says."""
        return member in self.stuck

    def order(self, action: BuildAction, record: Record | None = LAST) -> str:
        """The leader has it built: what is found."""
        lineage = record.lineage() if record is not None else GENESIS_LINEAGE
        build = Build(POSITION, action, 7 if record is not None else 0, lineage, record)
        return self.holdings.needless(LEADER, build, self.now_s, {OLDER, BEFORE.lineage(), lineage})


@pytest.mark.parametrize("action", [MERGED, Fresh(2, 7, ""), Restore(2, AT[OTHER], 5, ""), Stay(2, 5, "")])
def test_nothing_but_a_copy_while_the_present_state_is_in_reach(action: BuildAction) -> None:
    """Every other way of making a stage is found, and who holds it is named; a copy never is, nor
    anything before the first record.
    """
    assert "although holder.1, in reach for 100.0 s, holds the present state" in Story().order(action)
    assert not Story().order(Copy(2, (AT[HOLDER],), ""))
    assert not Story().order(action, record=None)


def test_whoever_keeps_the_present_state_makes_nothing() -> None:
    """A member that stays at the iteration at which everybody is loses no step, so that nobody's
    state is better.
    """
    assert not Story().order(Stay(2, 7, ""))


def test_a_copy_of_the_ends_is_as_good_where_no_step_is_lost() -> None:
    """It has the very bytes; one that is a step behind is found."""
    source = Story(stage=0)
    assert not source.order(CopyKept(0, AT[OTHER], 7, ""))
    assert "holds the present state" in source.order(CopyKept(0, AT[OTHER], 6, ""))


@pytest.mark.parametrize(("led_s", "is_needless"), [(1.0, False), (7.0, True)])
def test_a_new_coordinator_has_to_hear_of_whom_no_plan_names(led_s: float, is_needless: bool) -> None:  # noqa: FBT001 - tables
    """It knows the members of the last plan that has come to it at once, and others when they have
    said hello.
    """
    story = Story()
    story.holdings.took_over(LEADER, 100.0 - led_s)
    assert story.order(MERGED)
    other = Plan(replace(POSITION, revision=POSITION.revision + 1), "0" * 16, LAST.lineage(), ((), (), ()), (), LAST, 4)
    story = Story()
    story.holdings.took_over(LEADER, 100.0 - led_s)
    story.holdings.opened(other)
    assert bool(story.order(MERGED)) == is_needless
    late = Story()  # one that was deposed names the holder in a plan of its own after that
    late.holdings.opened(other)
    late.holdings.took_over(LEADER, 100.0 - led_s)
    deposed = replace(POSITION, term=Term(1, OTHER), revision=9)
    late.holdings.opened(replace(other, position=deposed, replicas=((), (), (Replica(AT[HOLDER]),))))
    build = Build(replace(POSITION, term=Term(2, LEADER)), MERGED, 7, LAST.lineage(), LAST)
    assert bool(late.holdings.needless(LEADER, build, 100.0, {LAST.lineage()})) == is_needless


@pytest.mark.parametrize(
    ("led_s", "number", "has_promised", "has_stepped", "is_needless"),
    [
        (8.0, 2, False, False, False),
        (8.0, 2, True, False, True),
        (8.0, 2, False, True, True),
        (10.0, 2, False, False, False),
        (10.0, 1, False, False, True),
    ],
)
def test_another_coordinator_cannot_tell_what_a_copy_is(
    led_s: float,
    number: int,
    has_promised: bool,  # noqa: FBT001 - tables
    has_stepped: bool,  # noqa: FBT001 - tables
    is_needless: bool,  # noqa: FBT001 - tables
) -> None:
    """A joiner copies, and a plan names it; only the coordinator that had it copy knows what it has
    until it promises that plan, or steps.
    """
    story = Story(lineage=BEFORE.lineage())
    story.now_s = 91.0
    story.copied(OTHER, 2, LAST.lineage())
    story.alive.remove(HOLDER)
    plan = Plan(replace(POSITION, revision=2), "0" * 16, LAST.lineage(), ((), (), (Replica(AT[OTHER]),)), (), LAST, 4)
    story.holdings.opened(plan)
    story.holdings.took_over(LEADER, 100.0 - led_s)
    if has_promised:
        story.holdings.promised(OTHER, plan)
    if has_stepped:
        story.holdings.stepped(OTHER, 2, LAST.lineage(), story.now_s)
    story.now_s = 100.0
    build = Build(replace(POSITION, term=replace(POSITION.term, number=number)), MERGED, 7, LAST.lineage(), LAST)
    assert bool(story.holdings.needless(LEADER, build, story.now_s, {LAST.lineage()})) == is_needless


def test_the_dead_and_the_stuck_hold_nothing() -> None:
    """A life that has ended, a device that hangs, and an engine that is filled with something else
    are no reason to wait.
    """
    dead, stuck, filled = Story(), Story(), Story()
    dead.alive.remove(HOLDER)
    stuck.stuck.add(HOLDER)
    filled.holdings.lost(HOLDER)
    assert [story.order(MERGED) for story in (dead, stuck, filled)] == ["", "", ""]


def test_who_was_let_go_is_not_called_back() -> None:
    """The other holder of its stage dies while the leaver is on its way out; one that was let go
    although it was the last one still counts.
    """
    story = Story()
    story.hold(OTHER, 2, LAST.lineage(), revision=2)
    story.now_s += 9.0
    story.holdings.let_go(str(HOLDER))
    story.alive.remove(OTHER)
    assert not story.order(MERGED)
    last = Story()
    last.holdings.let_go(str(HOLDER))
    assert last.order(MERGED)


def test_a_copy_counts_after_a_moment() -> None:
    """A joiner that has just copied may not be known yet; three seconds later it is."""
    story = Story(lineage=BEFORE.lineage())
    story.copied(OTHER, 2, LAST.lineage())
    story.alive.remove(HOLDER)
    story.now_s += 2.9
    assert not story.order(MERGED)
    story.now_s += 0.2
    assert story.order(Fresh(2, 7, ""))
    nobodys = Story(stage=1)
    nobodys.copied(OTHER, 2, LAST.lineage())
    nobodys.now_s += 9.0
    assert not nobodys.order(MERGED), "what it was copied from was never anybody's"


@pytest.mark.parametrize(
    ("first", "again", "is_needless"), [(MERGED, MERGED, False), (Restore(2, AT[OTHER], 5, ""), MERGED, True)]
)
def test_what_was_made_and_has_not_stepped_may_be_made_again(first: BuildAction, again: BuildAction, is_needless: bool) -> None:  # noqa: FBT001 - tables
    """The same way gives the same state; a worse one does not, and no way gives a state that has
    stepped, or a copy of it.
    """
    story = Story(stage=1)
    story.made(OTHER, first)
    assert bool(story.order(again)) == is_needless
    stepped, copied = Story(stage=1), Story(stage=1)
    stepped.made(OTHER, first)
    stepped.holdings.stepped(OTHER, 2, LAST.lineage(), stepped.now_s)
    assert stepped.order(again)
    copied.made(OTHER, first)
    copied.copied(HOLDER, 2, LAST.lineage())
    copied.holdings.lost(OTHER)
    copied.now_s += 9.0
    assert not copied.order(first), "a copy of what was made is no better than that"
    before = Story(stage=1)
    before.made(OTHER, first, BEFORE)
    assert bool(before.order(again)) == is_needless, "also one step later, where it was not there for that step"


def test_another_lineage_is_no_present_state() -> None:
    """What was trained on another side of a split is not the stage."""
    assert not Story(lineage="f" * 64).order(MERGED)


def test_a_state_one_step_behind_is_better_than_none() -> None:
    """Where a stage is made from its neighbours, or drawn, one that lacks the last step alone would
    do; a shadow may be taken instead of it.
    """
    assert "the state one step before" in Story(lineage=BEFORE.lineage()).order(MERGED)
    assert not Story(lineage=BEFORE.lineage()).order(Restore(2, AT[OTHER], 6, ""))


def test_a_step_counts_once_it_may_have_been_told() -> None:
    """Until then its coordinator knows who has just stepped as one step behind."""
    story = Story(lineage=LAST.before)
    story.holdings.stepped(HOLDER, 2, LAST.lineage(), 99.9)
    assert "holds the state one step before" in story.order(MERGED)
    assert not story.order(Stay(2, 6, ""))
    told = Story(lineage=LAST.before)
    told.holdings.stepped(HOLDER, 2, LAST.lineage(), 99.0)
    assert "holds the present state" in told.order(Stay(2, 6, ""))


@pytest.mark.parametrize(("out_s", "is_needless"), [(0.5, True), (3.9, True), (4.1, False), (20.0, False)])
@pytest.mark.parametrize("frozen", [True, False])
def test_whoever_is_out_of_reach_is_waited_for_a_while(out_s: float, is_needless: bool, frozen: bool) -> None:  # noqa: FBT001 - tables
    """Four seconds of a pause, or of a cut in either direction, before a state is given up."""
    story = Story()
    story.now_s = 100.0 - out_s
    if frozen:
        story.history.froze(HOLDER)
    else:
        story.history.broke(partitions.mute(HOLDER.peer_id))
    story.now_s = 100.0
    assert bool(story.order(MERGED)) == is_needless


@pytest.mark.parametrize(
    ("asker", "parted", "is_needless"),
    [(LEADER, True, False), (OTHER, True, True), (LEADER, False, True)],
    ids=["then-parted", "another-asks", "nothing-else"],
)
def test_heartbeats_without_an_answer_are_silence_before_a_break(asker: Member, parted: bool, is_needless: bool) -> None:  # noqa: FBT001 - tables
    """Who was not heard for two seconds, and then was out of reach for three, was silent for five;
    answers that are lost to one in reach excuse nobody, nor do those to another.
    """
    story = Story()
    story.now_s = 97.0
    story.history.missed(asker, HOLDER, 95.0)
    if parted:
        story.history.broke(partitions.mute(HOLDER.peer_id))
    story.now_s = 100.0
    assert bool(story.order(MERGED)) == is_needless


@pytest.mark.parametrize(("back_s", "is_needless"), [(5.9, False), (6.1, True)])
def test_whoever_is_back_for_a_while_counts(back_s: float, is_needless: bool) -> None:  # noqa: FBT001 - tables
    """After a long absence six seconds in reach are enough to be found again."""
    story, cut = Story(), partitions.cut(LEADER.peer_id, HOLDER.peer_id)
    story.now_s = 80.0
    story.history.broke(cut)
    story.now_s = 100.0 - back_s
    story.history.mended(cut)
    story.now_s = 100.0
    assert bool(story.order(MERGED)) == is_needless


@pytest.mark.parametrize(("open_s", "is_needless"), [(None, False), (5.9, False), (6.1, True)])
def test_where_nobody_listens_a_life_has_ended(open_s: float | None, is_needless: bool) -> None:  # noqa: FBT001 - tables
    """A peer that nobody can call is like one that is dead to who calls it, and counts again six
    seconds after it can be called; what a coordinator holds itself it needs no port for.
    """
    story, own = Story(), Story()
    own.hold(LEADER, 2, LAST.lineage())
    own.alive.remove(HOLDER)
    own.history.shut(LEADER)
    assert "although leader.1" in own.order(MERGED)
    story.now_s = 80.0
    story.history.shut(HOLDER)
    if open_s is not None:
        story.now_s = 100.0 - open_s
        story.history.opened(HOLDER)
    story.now_s = 100.0
    assert bool(story.order(MERGED)) == is_needless


def test_a_break_elsewhere_is_no_excuse() -> None:
    """Only what lies between the two counts."""
    story = Story()
    story.history.broke(partitions.cut(LEADER.peer_id, OTHER.peer_id))
    assert story.order(MERGED)


def test_what_was_just_built_counts_once_a_plan_has_it() -> None:
    """Nobody may have heard of it, or wanted it in the end; a plan that names the builder shows
    that somebody did.
    """
    story = Story(lineage="f" * 64)
    build = Build(POSITION, MERGED, 7, LAST.lineage(), LAST)
    story.holdings.built(OTHER, build, LAST.lineage(), 0.0)
    assert not story.order(MERGED)
    replicas = ((), (), (Replica(AT[OTHER]),))
    story.holdings.opened(Plan(POSITION, "0" * 16, LAST.lineage(), replicas, (), LAST, 4))
    assert "although other.1" in story.order(Fresh(2, 7, ""))


def test_the_ends_are_not_drawn_while_anything_of_them_is_left() -> None:
    """A source with however old a state, or a keeper's copy, is better than new weights; a copy is
    taken from a keeper, and that is fine.
    """
    old = Story(stage=0, lineage=OLDER)
    assert "an older state" in old.order(Fresh(0, 7, ""))
    kept = Story()
    kept.holdings.heartbeat_came(HOLDER, 6, BEFORE.lineage())
    assert "a copy for iteration 6" in kept.order(Fresh(0, 7, ""))
    assert not kept.order(CopyKept(0, AT[HOLDER], 6, ""))


def test_a_copy_of_what_another_side_went_on_to_is_of_no_use() -> None:
    """A keeper followed the other side of a split, and now a coordinator in a lineage that has none
    of its iterations; so did a source.
    """
    story = Story()
    story.holdings.heartbeat_came(HOLDER, 68, "f" * 64)
    assert not story.order(Fresh(0, 7, ""))
    assert not Story(stage=0, lineage="f" * 64).order(Fresh(0, 7, ""))


def test_the_last_copy_of_the_ends_is_not_given_up() -> None:
    """A keeper may forget its copy while a source lives; one that does so when none lives has
    thrown the ends away.
    """
    story = Story()
    story.hold(OTHER, 0, LAST.lineage())
    story.holdings.heartbeat_came(HOLDER, 6, BEFORE.lineage())
    story.holdings.heartbeat_came(HOLDER, -1, "")
    story.alive.remove(OTHER)
    assert not story.order(Fresh(0, 7, ""))
    story.holdings.heartbeat_came(HOLDER, 6, BEFORE.lineage())
    story.holdings.heartbeat_came(HOLDER, -1, "")
    assert "a copy for iteration 6" in story.order(Fresh(0, 8, ""))


def test_one_order_is_looked_at_once() -> None:
    """A Build that is sent again, as its answer was lost, is no new decision."""
    story = Story()
    assert story.order(MERGED)
    assert not story.order(MERGED)


@pytest.mark.parametrize(("base", "is_needless"), [("0" * 16, True), ("1" * 16, False)])
def test_what_another_coordinator_had_made_counts_for_who_goes_on_from_it(base: str, is_needless: bool) -> None:  # noqa: FBT001 - tables
    """A plan names a member with a shadow of the lost stage, and is promised: a successor that
    opens another base has never seen that plan.
    """
    story = Story(stage=1)
    story.now_s = 50.0
    story.made(OTHER, Restore(2, AT[HOLDER], 5, ""))
    plan = Plan(POSITION, "0" * 16, LAST.lineage(), ((), (), (Replica(AT[OTHER]),)), (), LAST, 4)
    story.holdings.promised(OTHER, plan)
    position = replace(POSITION, term=Term(2, LEADER))
    story.holdings.took_over(LEADER, 60.0)
    story.holdings.opened(replace(plan, position=position, base=base, replicas=((), (), ())))
    story.now_s = 100.0
    build = Build(position, MERGED, 7, LAST.lineage(), LAST)
    assert bool(story.holdings.needless(LEADER, build, 100.0, {LAST.lineage()})) == is_needless


@pytest.mark.parametrize(("base", "is_needless"), [("0" * 16, True), ("1" * 16, False)])
def test_who_has_opened_nothing_goes_on_from_the_newest_plan_that_it_knows(base: str, is_needless: bool) -> None:  # noqa: FBT001 - tables
    """A coordinator leads again after a split; what was made in its earlier term was promised on
    the other side meanwhile, in a plan of another base that nobody has told it of.
    """
    story = Story(stage=1)
    story.now_s = 50.0
    story.made(OTHER, Restore(2, AT[HOLDER], 5, ""))
    elsewhere = Position(Term(2, HOLDER), 7, 0, 1)
    stages = ((), (), (Replica(AT[OTHER]),))
    story.holdings.promised(OTHER, Plan(elsewhere, base, LAST.lineage(), stages, (), LAST, 4))
    position = replace(POSITION, term=Term(2, LEADER))
    story.holdings.took_over(LEADER, 60.0)
    build = Build(position, MERGED, 7, LAST.lineage(), LAST)
    assert bool(story.holdings.needless(LEADER, build, 100.0, {LAST.lineage()})) == is_needless
    story.holdings.knows(LEADER, Plan(elsewhere, base, LAST.lineage(), stages, (), LAST, 4))
    build = replace(build, position=replace(position, revision=2))
    assert story.holdings.needless(LEADER, build, 100.0, {LAST.lineage()})


NEWEST = replace(LAST, electorate=(LEADER, HOLDER, OTHER))


@pytest.mark.parametrize("case", ["as it is", "dead", "stuck", "parted", "parted before", "deaf", "elsewhere", "empty"])
def test_nobody_goes_on_by_force_beside_those_who_decide(case: str) -> None:
    """Of three voters one is the leader, one cannot be asked, and the third holds the same lineage:
    that is a majority, unless that one is dead, hangs, is or was just out of reach, cannot be
    called, stands on another lineage, or holds nothing.
    """
    story = Story()
    story.alive.remove(OTHER)
    story.hold(LEADER, 1, NEWEST.lineage())
    apart = partitions.partition([HOLDER.peer_id])
    match case:
        case "dead":
            story.alive.remove(HOLDER)
        case "stuck":
            story.stuck.add(HOLDER)
        case "parted" | "parted before":
            story.history.broke(apart)
        case "deaf":
            story.history.shut(HOLDER)
        case "empty":
            story.holdings.lost(HOLDER)
    if case == "parted before":
        story.history.mended(apart)
        story.now_s += bounds.REACHED_S - 0.1
    found = story.holdings.needless_force(LEADER, "goes on", NEWEST, lambda _: case != "elsewhere")
    assert bool(found) == (case == "as it is")
    if case == "parted before":
        story.now_s += 0.2
        assert "holder.1, leader.1" in story.holdings.needless_force(LEADER, "goes on", NEWEST, lambda _: True)
