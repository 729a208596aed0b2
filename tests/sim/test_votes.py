"""Votes and promises as members tell them: who holds a record, when it is decided, and what must
not be stored or promised.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.protocol.names import Member, Position, Term
from swarmfree.protocol.records import GENESIS_LINEAGE, Record
from swarmfree.sim.votes import Votes
from tests.builders import make_record

FIVE = tuple(Member(f"peer{k}", "1") for k in range(5))
FIRST, SECOND = Term(1, FIVE[0]), Term(2, FIVE[1])


def record(iteration: int, before: str, *, base: str = "0" * 16, forced: tuple[int, ...] = ()) -> Record:
    """A record without stages."""
    return make_record(iteration=iteration, before=before, base=base, electorate=FIVE, forced=forced)


class Story:
    """Five members, of which `dead` have ended, and two rival records after the first one."""

    def __init__(self) -> None:
        self.dead: set[Member] = set()
        self.first = record(0, GENESIS_LINEAGE)
        self.one, self.other = (record(1, self.first.lineage(), base=digit * 16) for digit in "12")
        self.records = {known.lineage(): known for known in (self.first, self.one, self.other)}
        self.votes = Votes(self.records, lambda member: member not in self.dead)

    def store(self, held: Record, *members: int, term: Term = FIRST, revision: int = 1) -> str:
        """These say that they have stored it; the last complaint about that."""
        complaints = [self.votes.stored(FIVE[k], Position(term, held.iteration, 0, revision), held.lineage()) for k in members]
        return complaints[-1]


def test_a_record_is_decided_by_those_who_hold_it() -> None:
    """Nobody is presumed to have stored, not the coordinator that sealed it either: three of five
    decide, and half with the senior would.
    """
    story = Story()
    assert not story.store(story.one, 1, 2)
    assert not story.votes.is_decided(story.one.lineage())
    story.store(story.one, 3)
    assert story.votes.is_decided(story.one.lineage())


def test_a_vote_that_was_replaced_counts_no_more() -> None:
    """Two who store another record later hold the first one no longer; what was decided before
    stays decided.
    """
    story = Story()
    story.store(story.one, 1, 2)
    story.store(story.other, 1, 2, term=SECOND)
    story.store(story.one, 3)
    assert story.votes.holders(story.one.lineage()) == (FIVE[3],)
    assert not story.votes.is_decided(story.one.lineage())
    story.store(story.other, 0)
    story.store(story.one, 0, 1, 2, term=Term(3, FIVE[2]))
    assert story.votes.is_decided(story.other.lineage()), "by three at one moment"


def test_all_who_live_decide_where_somebody_has_died() -> None:
    """Two of five decide once the other three have ended, but not while one of these lives, nor as
    long as everybody does.
    """
    story = Story()
    story.store(story.one, 3, 4)
    story.dead |= {FIVE[0], FIVE[1]}
    assert not story.votes.is_decided(story.one.lineage())
    story.dead.add(FIVE[2])
    assert story.votes.is_decided(story.one.lineage())
    story.dead.clear()
    assert story.votes.is_decided(story.one.lineage()), "once is for ever"
    empty = Story()
    empty.dead |= set(FIVE)
    assert not empty.votes.is_decided(empty.one.lineage()), "nobody holds it"


def test_the_founder_decides_on_the_first_record() -> None:
    """It alone votes before there is a record; who that is, the first coordinator's word tells."""
    story = Story()
    assert not story.votes.is_decided(story.first.lineage())
    story.votes.founded(FIRST)
    story.store(story.first, 1, 2, 3, 4)
    assert not story.votes.is_decided(story.first.lineage())
    story.store(story.first, 0)
    assert story.votes.is_decided(story.first.lineage())


def test_a_forced_record_is_what_it_says() -> None:
    """It is decided without votes, and not among those that were decided without force."""
    story = Story()
    forced = replace(story.one, forced=(1,))
    story.records[forced.lineage()] = forced
    assert story.votes.is_decided(forced.lineage())
    assert not story.votes.unforced


def test_whoever_gives_up_its_lineage_votes_no_more() -> None:
    """A vote that was dropped with a lineage is gone; a record that was applied stays held."""
    story = Story()
    story.store(story.one, 1, 2)
    story.votes.stepped(FIVE[2], story.one.lineage())
    for member in FIVE[1:3]:
        story.votes.dropped(member)
    assert story.votes.holders(story.one.lineage()) == (FIVE[2],)


def test_an_older_seal_must_not_replace_a_newer_one() -> None:
    """A member that stores a rival record in a lower position, or under a lower term than it has
    promised, is found.
    """
    story = Story()
    assert not story.store(story.one, 1, revision=5)
    assert not story.store(story.one, 1, revision=4), "the same record once more"
    assert "in the place of one that was sealed after it" in story.store(story.other, 1, revision=4)
    assert not story.votes.promised(FIVE[2], Position(SECOND, 1, 0, 1))
    assert "had promised term 2" in story.store(story.one, 2)


def test_a_promise_is_kept() -> None:
    """A member that promises a lower term after a higher one is found; whoever joined another
    lineage begins anew.
    """
    story = Story()
    assert not story.votes.promised(FIVE[2], Position(SECOND, 1, 0, 1))
    assert "promised term 1 after term 2" in story.votes.promised(FIVE[2], Position(FIRST, 1, 0, 9))
    story.votes.dropped(FIVE[2])
    assert not story.votes.promised(FIVE[2], Position(FIRST, 1, 0, 9))


def test_answers_of_one_moment_come_in_any_order() -> None:
    """A member that goes on answers a heartbeat with a higher term before the Seal that it stored
    first; a moment later that would be a fault.
    """
    story, seal = Story(), Position(FIRST, 1, 0, 1)
    assert not story.votes.promised(FIVE[2], Position(SECOND, 1, 0, 1), 29.6)
    assert not story.votes.stored(FIVE[2], seal, story.one.lineage(), 29.6)
    assert not story.votes.promised(FIVE[2], Position(SECOND, 1, 0, 2), 30.0), "the same term: that was promised before"
    assert "had promised term 2" in story.votes.stored(FIVE[2], seal, story.one.lineage(), 30.0)
    assert "promised term 1 after term 2" in story.votes.promised(FIVE[2], seal, 30.0)
