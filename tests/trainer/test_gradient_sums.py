"""The book of partial sums: which microbatch is in which sum."""

from __future__ import annotations

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Member
from swarmfree.sim.integer_engine import IntegerEngine
from swarmfree.trainer.pipeline.gradient_sums import SumBook, SumKind

ME = Member("p", "0" * 16)


def _book() -> SumBook:
    engine = IntegerEngine(Manifest())
    engine.draw(1, 0)
    return SumBook(ME, engine)


def test_first_tries_and_retries_go_to_different_sums() -> None:
    """So that a microbatch held twice never spoils the sum of those held once."""
    book = _book()
    sure, retried = book.number_for(SumKind.SURE, 0), book.number_for(SumKind.RETRIED, 1)
    book.enter(sure, 0)
    book.enter(retried, 1)
    assert [a.microbatches.offsets() for a in book.partial_sums()] == [(0,), (1,)]


def test_a_frozen_sum_takes_no_more() -> None:
    """What comes after a roll goes to a new sum."""
    book = _book()
    number = book.number_for(SumKind.SURE, 0)
    book.enter(number, 0)
    book.freeze()
    assert book.number_for(SumKind.SURE, 1) != number


def test_the_same_microbatch_never_enters_one_sum_twice() -> None:
    """A redo of what is already in the open sum opens another one."""
    book = _book()
    number = book.number_for(SumKind.RETRIED, 4)
    book.enter(number, 4)
    assert book.number_for(SumKind.RETRIED, 4) != number
    assert book.number_for(SumKind.RETRIED, 5) != number


def test_a_void_sum_is_forgotten_with_all_its_microbatches() -> None:
    """An error in the middle of a backward pass spoils the whole sum; it is never told."""
    book = _book()
    number = book.number_for(SumKind.SURE, 0)
    book.enter(number, 0)
    book.void(number)
    assert book.partial_sums() == ()
    assert book.number_for(SumKind.SURE, 0) != number
