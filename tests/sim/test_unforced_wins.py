"""What a majority decided is not undone by what was forced (I3), and a rebuilt stage comes from its
own past (I2).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.actions import BuildAction, CopyKept, Replay, Restore, Stay
from swarmfree.protocol.events import LineageDropped
from swarmfree.protocol.messages import Build, Built, Commit, Goodbye, Open, Promise
from swarmfree.protocol.messages import Farewell as Heard
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.ports import Reply
from swarmfree.protocol.records import Record
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.holdings import Everybody
from swarmfree.sim.invariants import Checks
from tests.mutants.alone import plan
from tests.sim.test_invariants import EVERYONE, MANIFEST, MEMBERS, POSITION, Story

LATER = Position(Term(2, MEMBERS[1]), 1, 0, 1)


class Mortals(Everybody):
    """Some have died."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[Member] = set()

    def is_alive(self, member: Member) -> bool:
        """Unless it has died."""
        return member not in self.dead


def split() -> tuple[Story, Mortals, Record, Record]:
    """Record 1 is decided by all three, and a forced one of the same iteration, with other sums, is
    committed by one alone.
    """
    story, lives = Story(), Mortals()
    story.checks = Checks(MANIFEST, None, lambda: 1.5, story.found.append, lives)
    story.whole(0)
    record = story.record(1)
    entry = replace(record.stages[1], sum_digest="ab")
    other = replace(record, stages=(record.stages[0], entry, *record.stages[2:]), forced=(1,))
    story.seal(record)
    story.checks.asked(EVERYONE[0], Commit(record), b"")
    story.seal(other, voters=(), position=LATER)
    story.checks.asked(EVERYONE[1], Commit(other), b"")
    assert story.found == [], "both may be there as long as they have not met"
    return story, lives, record, other


def drop(story: Story, loser: Record, winner: Record) -> None:
    """A coordinator says that its lineage gave way."""
    told = LineageDropped(loser.iteration + 1, len(loser.forced), loser.lineage(), winner.iteration + 1, winner.lineage())
    story.checks.told(EVERYONE[0].member, told)


def test_a_forced_record_does_not_undo_a_decided_one() -> None:
    """Where lineages meet the forced one gives way; the other way round is found, and who had
    stored what is lost is named.
    """
    story, _, record, other = split()
    drop(story, other, record)
    assert story.found == []
    drop(story, record, other)
    assert story.the_one().invariant == "I3"
    assert "stored by peer0.1, peer1.1, peer2.1, is undone" in story.the_one().text


def test_a_lineage_may_give_way_to_the_beginning_of_another_one() -> None:
    """Whoever has only what came before the decided record undoes nothing, unless it is that record
    that is dropped.
    """
    story, _, record, other = split()
    before = LineageDropped(2, 1, other.lineage(), 1, record.before)
    story.checks.told(EVERYONE[0].member, before)
    assert story.found == []
    story.checks.told(EVERYONE[0].member, replace(before, forced=0, lineage=record.lineage()))
    assert story.the_one().invariant == "I3"


def test_what_only_the_dead_stored_may_be_undone() -> None:
    """One of the three that lives is enough to keep it; none, and it is nobody's fault."""
    story, lives, record, other = split()
    lives.dead = {*MEMBERS}
    drop(story, record, other)
    assert story.found == []
    lives.dead.remove(MEMBERS[2])
    drop(story, record, other)
    assert "stored by peer2.1, is undone" in story.the_one().text


def test_whoever_was_sent_home_has_not_died() -> None:
    """Members that end because another side of the split said that the run is over still hold what
    they decided.
    """
    story, lives, record, other = split()
    story.checks.answered(EVERYONE[2], Goodbye(run_over=True, finished=True, why=""), Reply(Heard()))
    lives.dead = {*MEMBERS}
    drop(story, record, other)
    assert "stored by peer2.1, is undone" in story.the_one().text


@pytest.mark.parametrize("microbatches", [0, 4])
def test_who_wrote_for_a_pause_that_came_to_nothing_was_not_sent_home(microbatches: int) -> None:
    """It is in the plan of a later iteration, and may die like any other; a plan of none is that of
    the end.
    """
    story, lives, record, other = split()
    story.checks.answered(EVERYONE[2], Goodbye(run_over=True, finished=False, why="", write_weights=True), Reply(Heard()))
    opened = Open(replace(plan(2, iteration=2), microbatches=microbatches))
    story.checks.answered(EVERYONE[2], opened, Reply(Promise(2, None)))
    lives.dead = {*MEMBERS}
    drop(story, record, other)
    assert bool(story.found) == (microbatches == 0)


def test_who_wrote_and_ended_for_a_pause_was_not_sent_home() -> None:
    """Its disk comes back with another life; where nobody reaches that, the run goes on without it,
    as it does without the dead.
    """
    story, lives, record, other = split()
    story.checks.answered(EVERYONE[2], Goodbye(run_over=True, finished=True, why="", write_weights=True), Reply(Heard()))
    story.checks.paused(MEMBERS[2])
    lives.dead = {*MEMBERS}
    drop(story, record, other)
    assert story.found == []


def test_the_same_sums_sealed_again_undo_nothing() -> None:
    """A successor without a majority that finds the record and seals it as forced has kept what was
    trained.
    """
    story, _, record, _ = split()
    again = replace(record, forced=(1,), electorate=MEMBERS[1:])
    story.seal(again, voters=(), position=LATER)
    drop(story, record, again)
    assert story.found == []


def test_what_stands_on_a_forced_record_falls_with_it() -> None:
    """On the losing side there are records without force, too, after the first forced one."""
    story, _, record, other = split()
    after = replace(other, iteration=2, before=other.lineage())
    story.seal(after, position=LATER)
    drop(story, after, record)
    assert story.found == []


def test_the_run_does_not_end_without_a_decided_record() -> None:
    """At the end, too, the lineage that is complete has whatever a majority had decided."""
    story, _, record, other = split()
    last = replace(record, iteration=1, before=record.before)
    assert last.lineage() == record.lineage()
    story.checks._check_undone({0: record.before, 1: other.lineage()}, [record.lineage()], "the run ended without it")
    assert "is undone: the run ended without it" in story.the_one().text


def test_a_third_side_may_yet_be_met() -> None:
    """Whoever had only what both sides began with gives way to the forced one: what the other one
    decided is nobody's loss so far.
    """
    story, _, record, other = split()
    before = LineageDropped(1, 0, record.before, 2, other.lineage())
    story.checks.told(EVERYONE[0].member, before)
    assert story.found == []


def test_two_sides_may_both_come_to_the_end() -> None:
    """Sides that never meet both train all iterations: neither has undone the other one's, forced
    as one of them may be.
    """
    story, _, record, other = split()
    for last in (
        replace(record, iteration=2, before=record.lineage(), forced=(1, 2)),
        replace(other, iteration=2, before=other.lineage()),
    ):
        story.seal(last, position=LATER)
        story.checks.asked(EVERYONE[0], Commit(last), b"")
    story.checks._manifest = replace(MANIFEST, run=replace(MANIFEST.run, iterations=3))
    story.checks.finished([(stage, {}) for stage in range(MANIFEST.stage_count)])
    assert story.found == []


# ---- rebuilds ------------------------------------------------------------------------------------


def order(story: Story, action: BuildAction) -> Build:
    """It is ordered for iteration 2, after two records."""
    build = Build(POSITION, action, 2, story.lineage, None)
    story.checks.asked(EVERYONE[0], build, b"")
    return build


@pytest.mark.parametrize(
    "action",
    [
        Restore(2, EVERYONE[1], 9, "seven iterations too new", full=True),
        Replay(2, 2, (EVERYONE[1],), 9, (), (), ""),
        CopyKept(0, EVERYONE[1], 3, ""),
        Stay(2, 3, ""),
    ],
)
def test_nothing_comes_from_the_future(action: BuildAction) -> None:
    """A state of a later iteration is one of another lineage, whatever its age of minus seven is
    said to cost.
    """
    story = Story()
    story.whole(0)
    story.whole(1)
    order(story, replace(action, iteration=2))
    assert story.found == []
    order(story, action)
    assert (story.the_one().invariant, "is to come from a state of iteration" in story.the_one().text) == ("I2", True)


@pytest.mark.parametrize("kind", [Restore, Stay])
def test_a_rebuilt_stage_is_of_its_own_lineage(kind: type[Restore | Stay]) -> None:
    """Any state of the stage in this lineage's past will do, and none of another one, though some
    member once had it.
    """
    story = Story()
    past = story.states[2]
    for iteration in range(2):
        story.whole(iteration)
    foreign = arithmetic.drawn(MANIFEST.run.seed, MANIFEST.split, 7, 2)
    story.checks._rebuilds.add("f" * 64, 2, arithmetic.state_digest(foreign))
    action = Restore(2, EVERYONE[1], 0, "", full=True) if kind is Restore else Stay(2, 0, "")
    newcomer = Endpoint(Member("new", "1"), ())
    for state, is_right in ((past, True), (foreign, False)):
        story.checks.state_seen(arithmetic.state_digest(state), state)
        built = Built(arithmetic.state_digest(state), 0.1, 9, 2)
        story.checks.answered(newcomer, order(story, action), Reply(built))
        assert bool(story.found) != is_right
    assert story.the_one().invariant == "I2"


def test_a_plain_shadow_is_of_its_own_lineage() -> None:
    """Its parts may be of several iterations, each of them of this lineage."""
    story = Story()
    story.whole(0)
    foreign = tuple(arithmetic.PartState(part.weights) for part in arithmetic.drawn(MANIFEST.run.seed, MANIFEST.split, 7, 2))
    digest = arithmetic.state_digest(foreign)
    story.checks.state_seen(digest, foreign)
    story.checks._rebuilds.add("f" * 64, 2, digest)
    build = Build(POSITION, Restore(2, EVERYONE[1], 0, ""), 1, story.lineage, None)
    story.checks.answered(Endpoint(Member("new", "1"), ()), build, Reply(Built(digest, 0.1, 9, 1)))
    assert "never had in this lineage" in story.the_one().text


def test_a_copy_of_the_ends_is_of_its_own_lineage() -> None:
    """A copy that is behind names the record that it stands on; one that is not in this lineage's
    past is found as it is ordered.
    """
    story = Story()
    first = story.whole(0)
    story.whole(1)
    order(story, CopyKept(0, EVERYONE[1], 1, "", lineage=first.lineage()))
    assert story.found == []
    order(story, CopyKept(0, EVERYONE[1], 1, "", lineage="f" * 64))
    assert "from a copy of another lineage" in story.the_one().text


@pytest.mark.parametrize(
    ("leader", "paused", "dead", "beside", "is_found"),
    [
        (1, False, (), {}, True),
        (1, True, (), {}, False),
        (1, False, (2,), {}, False),
        (1, False, (), {2: "with it"}, False),
        (1, False, (), {2: "before"}, False),
        (1, False, (), {2: "elsewhere"}, False),
        (0, False, (), {}, False),
        (0, False, (), {1: "before", 2: "before"}, False),
    ],
    ids=["forced", "paused", "one-has-died", "one-has-come-along", "one-is-behind", "one-is-no-kin", "not-forced", "alone"],
)
def test_a_forced_side_calls_no_run_over_beside_a_majority(
    leader: int,
    paused: bool,  # noqa: FBT001 - tables
    dead: tuple[int, ...],
    beside: dict[int, str],
    is_found: bool,  # noqa: FBT001 - tables
) -> None:
    """Two of the three that decide what follows record 0 live, and stand on what they have decided
    since: the third one, that went on by force, may not end the run.
    """
    story, lives, record, other = split()
    story.checks._now_s = lambda: 10.0
    lives.dead = {MEMBERS[member] for member in dead}
    places = {"with it": other.lineage(), "before": record.before, "elsewhere": "f" * 64, "": record.lineage()}
    for member in range(3):
        lineage = places[{1: "with it", **beside}.get(member, "")]
        story.checks._holdings.stepped(MEMBERS[member], member, lineage, 1.5)
    for _ in range(2):
        story.checks.asked(EVERYONE[leader], Goodbye(run_over=True, finished=True, why="", paused=paused), b"")
    assert [violation.invariant for violation in story.found] == ["N5"] * is_found


@pytest.mark.parametrize("lives_on", [False, True])
def test_a_second_record_of_an_iteration_is_excused_where_nobody_lives_who_stored_the_first(lives_on: bool) -> None:  # noqa: FBT001 - tables
    """Those that are left decide it anew, once the lives of all others are proven to have ended."""
    story, lives, record, _ = split()
    again = replace(record, stages=(record.stages[0], replace(record.stages[1], sum_digest="ef"), *record.stages[2:]))
    lives.dead = {*MEMBERS[1:]} if lives_on else {*MEMBERS}
    story.seal(again, position=LATER)
    story.checks.asked(EVERYONE[0], Commit(again), b"")
    text = "two records of iteration 1 were committed"
    assert [violation.text.split(":")[0] for violation in story.found if violation.invariant == "I3"] == [text] * lives_on
