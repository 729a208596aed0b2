"""Which record obeys an order, and what is the last one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.policy.halt import due_order, is_paused, is_stopped, pauses, spent_before
from swarmfree.policy.record import Circumstances, StageAverage, make_record
from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.records import float64_bits
from tests.wire.wire_samples import ALICE, PLAN, RECORD

NOT, PAUSE, STOP = Halting


@pytest.mark.parametrize(
    ("number", "last", "spent", "is_due"),
    [
        (None, None, 0, False),
        (5, None, 0, True),  # before the first record
        (5, None, 5, False),  # given before the run went on
        (6, None, 5, True),
        (5, (0, NOT), 0, True),
        (5, (4, NOT), 0, True),
        (5, (5, NOT), 0, False),  # obeyed, and gone on since
        (5, (6, NOT), 0, False),  # older than what was obeyed
        (5, (5, PAUSE), 0, True),  # the record before obeyed, and the run goes on: a stage was not written
        (5, (5, PAUSE), 5, False),  # it was resumed from there
        (6, (5, PAUSE), 5, True),
        (6, (5, PAUSE), 6, False),
        (4, (5, PAUSE), 0, False),
    ],
)
def test_an_order_is_obeyed_once(number: int | None, last: tuple[int, Halting] | None, spent: int, *, is_due: bool) -> None:
    """By the record that comes next, where it is newer than all that were obeyed or are spent."""
    order = Order(number, PAUSE) if number is not None else None
    record = replace(RECORD, order=last[0], halt=last[1]) if last is not None else None
    assert due_order(order, record, spent) == (order if is_due else None)


@pytest.mark.parametrize(
    ("halt", "number", "spent", "paused", "stopped"),
    [(NOT, 5, 0, False, False), (PAUSE, 5, 4, True, False), (PAUSE, 5, 5, False, False), (STOP, 5, 9, False, True)],
)
def test_what_the_last_record_says(halt: Halting, number: int, spent: int, *, paused: bool, stopped: bool) -> None:
    """A pause is over once the run has gone on; a stop never is."""
    record = replace(RECORD, order=number, halt=halt)
    assert (is_paused(record, spent), is_stopped(record), pauses(None, record, spent)) == (paused, stopped, paused)
    assert not is_paused(None, 0)
    assert not is_stopped(None)


def test_an_order_to_stop_makes_nobody_pause() -> None:
    """Who was away in a stop waits for its weights instead."""
    assert not pauses(Order(5, STOP), None, 0)
    assert pauses(Order(5, PAUSE), None, 0)


@pytest.mark.parametrize(
    ("order", "expected"),
    [(None, (5, NOT)), (Order(6, PAUSE), (6, PAUSE)), (Order(6, STOP), (6, STOP))],
)
def test_a_record_keeps_which_order_was_obeyed_last(order: Order | None, expected: tuple[int, Halting]) -> None:
    """And says that it is the last one only where it obeys one itself."""
    plan = replace(PLAN, last_record=replace(RECORD, order=5, halt=PAUSE))
    average = StageAverage("11" * 32, float64_bits(1.0), "22" * 32, (ALICE,))
    circumstances = Circumstances([1.0], "", {}, frozenset(), forced=False, seniority={ALICE: 0}, order=order)
    record = make_record(plan, [average] * len(RECORD.stages), Manifest(), circumstances)
    assert (record.order, record.halt) == expected
    first = make_record(replace(plan, last_record=None), [average], Manifest(), replace(circumstances, order=None))
    assert (first.order, first.halt) == (0, NOT)


@pytest.mark.parametrize("dated", [4000, 9000])
def test_a_run_goes_on_from_a_pause_whatever_clock_dated_it(dated: int) -> None:
    """The organiser's may be ahead of the bootstrap node's, which has forgotten the order as it
    started again: the record that obeyed is the one that the genesis names.
    """
    record = replace(RECORD, order=dated, halt=PAUSE)
    named = Founder(2, "peer", record.iteration + 1, record.lineage(), 5000)
    for last, founder, spent in (
        (record, named, max(dated, 5000)),
        (record, replace(named, lineage="another"), 5000),
        (record, replace(named, iteration=record.iteration), 5000),
        (None, named, 5000),
        (record, None, 0),
    ):
        assert spent_before(founder, last) == spent
    assert not is_paused(record, spent_before(named, record))
