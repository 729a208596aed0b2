"""Where a run goes on when all have died, by what lies on the disks of those that came back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.policy.resume import (
    SnapshotSet,
    is_left_before,
    may_be_dropped,
    parts_to_wait_for,
    resume_point,
    side_to_go_on,
    worth_keeping,
)
from swarmfree.protocol.messages import HeldSnapshot
from swarmfree.protocol.names import Founder
from swarmfree.protocol.order import Halting, Order
from swarmfree.protocol.records import Record
from tests.builders import make_record

L, M = "a" * 64, "b" * 64


def held(stage: int, iteration: int, lineage: str = L) -> HeldSnapshot:
    """A snapshot."""
    return HeldSnapshot(stage, iteration, lineage)


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        pytest.param({}, None, id="nobody"),
        pytest.param({"a": [held(0, 4)], "b": [held(1, 4)]}, (4, L, ()), id="whole"),
        pytest.param({"a": [held(0, 8), held(0, 4)], "b": [held(1, 8), held(1, 4)]}, (8, L, ()), id="the newest of two"),
        pytest.param({"a": [held(0, 8), held(0, 4)], "b": [held(1, 4)]}, (4, L, ()), id="whole before newer"),
        pytest.param({"a": [held(0, 8)], "b": [held(0, 4)]}, (8, L, (1,)), id="the newest where none is whole"),
        pytest.param({"a": [held(0, 4)], "b": [held(1, 4, M)]}, (4, L, (1,)), id="lineages are not mixed"),
        pytest.param({"a": [held(0, 4), held(1, 4)]}, (4, L, (1,)), id="nobody holds two stages"),
    ],
)
def test_the_run_goes_on_from_the_newest_set_that_is_whole(
    offers: dict[str, list[HeldSnapshot]], expected: tuple[int, str, tuple[int, ...]] | None
) -> None:
    """Stages of one iteration and lineage make a set; where none is whole, the one with most."""
    point = resume_point(offers, 2)
    assert (point and (point.iteration, point.lineage, point.missing)) == expected


def test_of_a_set_its_holders_are_told() -> None:
    """Who has nothing of it is none, whatever else is there."""
    point = resume_point({"a": [held(0, 4)], "b": [held(1, 4)], "c": [held(1, 2)]}, 2)
    assert point is not None
    assert point.holders == ("a", "b")


FIRST = Founder(1, "a", spent=4)


def left(iteration: int, *forced: int, order: int = 9, halt: Halting = Halting.PAUSE) -> Record:
    """The last record of a set."""
    return make_record(iteration=iteration - 1, forced=forced, order=order, halt=halt)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([left(7, 2), left(5)], 5, id="one was forced"),
        pytest.param([left(7, 2), left(5, 3)], 5, id="one was forced later"),
        pytest.param([left(7, 3), left(5, 2)], 7, id="the newest was forced later"),
        pytest.param([left(7, 6), left(5)], 7, id="forced after the other one, whose past it may have"),
        pytest.param([left(7, 2, 6), left(5, 2)], 7, id="forced again after the other one"),
        pytest.param([left(7, 2), left(5, order=8)], 5, id="by another order"),
        pytest.param([left(7, 2), left(5, order=3)], 7, id="the other one by an order that was obeyed before"),
        pytest.param([left(7, 2, order=3), left(5, order=3)], 5, id="both by one of before the last genesis"),
        pytest.param([left(7, 2, order=4), left(5, order=8)], 7, id="one by the last that was spent"),
        pytest.param([left(7, 2, halt=Halting.STOP), left(5, halt=Halting.STOP)], 7, id="they have not paused, but stopped"),
        pytest.param([left(7, 2, order=3608), left(5, order=8)], 5, id="by another order of that hour"),
        pytest.param([left(7, 2, order=3609), left(5, order=8)], 7, id="by another order, hours later"),
        pytest.param([left(7, 2), left(5, halt=Halting.NOT)], 7, id="the other one has not paused"),
        pytest.param([left(7, 2, halt=Halting.NOT), left(5)], 7, id="the newest has not paused"),
        pytest.param([None, left(5)], 7, id="nobody tells the record of the newest"),
        pytest.param([left(7, 2), None], 7, id="nobody tells the record of the other one"),
    ],
)
def test_of_sides_that_paused_together_the_one_goes_on_that_would_win(records: list[Record | None], expected: int) -> None:
    """What a majority decided is not given up for what was forced, though that is further; a set in
    the past of another one is.
    """
    newest, other = SnapshotSet(7, L, (), ("a",)), SnapshotSet(5, M, (), ("b",))
    told = {point: record for point, record in zip((newest, other), records, strict=True) if record is not None}
    assert side_to_go_on(told, newest, FIRST).iteration == expected


@pytest.mark.parametrize(
    ("newest", "other", "expected"),
    [
        pytest.param(left(11, 2, order=3), left(8, 5), 8, id="what was passed over comes back"),
        pytest.param(left(11, 2, order=3, halt=Halting.NOT), left(8, 5, halt=Halting.NOT), 8, id="and all have died"),
        pytest.param(left(11, 2, order=3), left(5, order=3), 5, id="and nothing was decided since"),
        pytest.param(left(11, 5, 9, halt=Halting.NOT), left(8, 5, halt=Halting.NOT), 11, id="both go on from the genesis"),
        pytest.param(left(11, order=3), left(8, 5), 11, id="it was never forced"),
        pytest.param(left(11, 2, halt=Halting.NOT), left(8, 2, halt=Halting.NOT), 11, id="neither goes on from the genesis"),
        pytest.param(left(11, 3, halt=Halting.NOT), left(5, 4, halt=Halting.NOT), 11, id="nor does one of that iteration"),
        pytest.param(left(11, 2, order=3), None, 11, id="nobody tells the record of the other one"),
    ],
)
def test_what_a_genesis_has_passed_over_does_not_come_back(newest: Record, other: Record | None, expected: int) -> None:
    """What goes on from it is not given up for that, though it is not so far; unless fork choice
    says otherwise, as where a majority went on without that genesis.
    """
    is_named = other is not None and other.iteration == 4 and other.halt is Halting.PAUSE
    named = Founder(2, "b", 5, M if is_named else "c" * 64, 4, is_whole=True)
    points = SnapshotSet(11, L, (), ("a",)), SnapshotSet(other.iteration + 1 if other is not None else 8, M, (), ("b",))
    told = {point: record for point, record in zip(points, (newest, other), strict=True) if record is not None}
    assert side_to_go_on(told, points[0], named).iteration == expected


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (left(7, 2), True),
        (left(7), False),
        (left(7, 2, halt=Halting.NOT), False),
        (left(7, 2, order=3), False),
        (left(7, 2, order=4), False),
        (left(7, 2, halt=Halting.STOP), False),
        (None, True),
    ],
)
def test_a_forced_side_that_paused_is_not_gone_on_from_at_once(last: Record | None, *, expected: bool) -> None:
    """Others may be switched on a minute later; who was forced where the run was resumed is no side
    of its own.
    """
    point, named = SnapshotSet(7, L, (), ("a",)), Founder(2, "b", 5, M, 3)
    assert may_be_dropped(point, last, FIRST) is expected
    assert not may_be_dropped(point, left(9, 2, 5), named)
    assert may_be_dropped(point, left(9, 2, 5, 6), named)
    assert may_be_dropped(point, left(9, 2), None)


def test_a_set_that_a_genesis_has_passed_over_is_not_gone_on_from_at_once() -> None:
    """Whoever has what has gone on from it may be switched on later; what was named itself is that,
    and so is all where the run has only begun.
    """
    point, named = SnapshotSet(7, L, (), ("a",)), Founder(2, "b", 5, M, 3)
    last = left(7, 2, halt=Halting.NOT)
    assert may_be_dropped(point, last, named)
    assert not may_be_dropped(point, last, replace(named, iteration=7, lineage=L))
    assert not may_be_dropped(point, last, FIRST)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param(left(8, 2, order=3), 8, id="by the same order"),
        pytest.param(left(8, 2, order=1), 8, id="by another order of that hour, before the genesis"),
        pytest.param(left(8, 2, 5, order=3), 11, id="but was forced sooner"),
        pytest.param(left(8, 2, halt=Halting.NOT, order=3), 11, id="but has not paused"),
    ],
)
def test_what_was_named_gives_way_to_a_side_that_paused_with_it_and_counts_more(other: Record, expected: int) -> None:
    """Nothing has gone on from it, so that nothing but itself is lost: its founder led nobody."""
    points = SnapshotSet(11, L, (), ("a",)), SnapshotSet(8, M, (), ("b",))
    told = dict(zip(points, (left(11, 2, 6, order=3), other), strict=True))
    assert side_to_go_on(told, points[0], Founder(2, "a", 11, L, 4)).iteration == expected


@pytest.mark.parametrize(
    ("last", "whole", "is_waited_for"),
    [
        pytest.param(left(9), left(7), True, id="it was paused"),
        pytest.param(left(9, halt=Halting.NOT), left(7), False, id="all died, and it may be whole nowhere"),
        pytest.param(left(9, 2), left(7), False, id="it would lose"),
        pytest.param(left(9, 2), left(7, order=3), True, id="by another order"),
        pytest.param(left(9), None, True, id="nobody tells the record of the other one"),
    ],
)
def test_a_part_of_what_was_paused_is_waited_for(last: Record, whole: Record | None, *, is_waited_for: bool) -> None:
    """Each stage lay on a disk before the first peer left."""
    part, point = SnapshotSet(9, L, (), ()), SnapshotSet(7, M, (), ("a",))
    found = parts_to_wait_for({part: last}, {point: whole} if whole is not None else {}, point, FIRST)
    assert found == ((part,) if is_waited_for else ())


def test_what_a_genesis_has_passed_over_is_not_waited_for() -> None:
    """It would give way if it were whole; what goes on from there, and came later, would not."""
    named = Founder(2, "b", 5, M, 4)
    part, point = SnapshotSet(11, L, (), ()), SnapshotSet(8, M, (), ("a",))
    assert parts_to_wait_for({part: left(11, 2, order=3)}, {point: left(8, 5, halt=Halting.NOT)}, point, named) == ()
    assert parts_to_wait_for({part: left(11, 5)}, {point: left(8, 5, halt=Halting.NOT)}, point, named) == (part,)


def test_each_part_is_looked_at() -> None:
    """Also behind one that all have died with."""
    died, part, point = SnapshotSet(11, "c" * 64, (), ()), SnapshotSet(9, L, (), ()), SnapshotSet(7, M, (), ("a",))
    parts = {died: left(11, halt=Halting.NOT), part: left(9)}
    assert parts_to_wait_for(parts, {point: left(7)}, point, FIRST) == (part,)


def test_of_a_part_and_a_set_of_one_iteration_the_name_tells() -> None:
    """Which of them is the newest, as where both are whole."""
    first, second = SnapshotSet(7, L, (), ("a",)), SnapshotSet(7, M, (), ("b",))
    one, days_later = left(7, order=9), left(7, order=999_999)
    assert parts_to_wait_for({second: one}, {first: days_later}, first, FIRST) == ()
    assert parts_to_wait_for({first: one}, {second: days_later}, second, FIRST) == (first,)


def test_a_part_of_what_a_majority_paused_with_is_waited_for_beside_what_is_further() -> None:
    """Its machines are switched on one by one, after those of a side that was forced."""
    part, point = SnapshotSet(7, L, (), ()), SnapshotSet(9, M, (), ("a",))
    assert parts_to_wait_for({part: left(7)}, {point: left(9, 2)}, point, FIRST) == (part,)
    assert parts_to_wait_for({part: left(7, 2)}, {point: left(9, 3)}, point, FIRST) == ()
    assert parts_to_wait_for({part: left(7)}, {}, point, FIRST) == (), "the other one's record is told by nobody"


@pytest.mark.parametrize(
    ("order", "last", "expected"),
    [
        (None, left(7), False),
        (Order(9, Halting.PAUSE), left(7), False),
        (Order(10, Halting.PAUSE), left(7), True),
        (Order(10, Halting.PAUSE), None, True),
        (Order(10, Halting.STOP), left(7), False),
        (Order(10, Halting.NOT, microbatches=4), left(7), False),
        (Order(5, Halting.PAUSE), left(7, order=3), True),
        (Order(4, Halting.PAUSE), left(7, order=3), False),
    ],
)
def test_an_order_to_pause_says_that_there_is_something_later(
    order: Order | None, last: Record | None, *, expected: bool
) -> None:
    """Unless the run has gone on since, and so all that were there had obeyed it."""
    assert is_left_before(order, last, FIRST) is expected
    assert not is_left_before(Order(9, Halting.PAUSE), left(7), None)
    assert is_left_before(Order(1, Halting.PAUSE), None, None)


def test_a_set_that_loses_does_not_change_which_one_wins() -> None:
    """Of three pauses each is within an hour of the next one."""
    points = [SnapshotSet(iteration, str(iteration) * 32, (), ("a",)) for iteration in (70, 60, 50)]
    records = left(70, 40, order=6004), left(60, 45, order=3004), left(50, order=5)
    told = dict(zip(points, records, strict=True))
    assert side_to_go_on(told, points[0], FIRST) == points[2]
    assert side_to_go_on(told, points[1], FIRST) == points[2]


def test_however_long_a_chain_of_pauses_is_it_is_followed_to_its_end() -> None:
    """Each within an hour of the next one, and each counts more than the one before: as many as
    liars care to invent.
    """
    count = 1100
    points = [SnapshotSet(5000 - number, f"{number:064x}", (), ("a",)) for number in range(count)]
    told = {point: left(point.iteration, number + 1, order=3600 * (number + 2)) for number, point in enumerate(points)}
    assert side_to_go_on(told, points[0], FIRST) == points[-1]


def test_pauses_without_a_genesis_that_is_known_count_by_one_order_alone() -> None:
    """A node that has lost its folder cannot tell what was spent."""
    newest, other = SnapshotSet(7, L, (), ("a",)), SnapshotSet(5, M, (), ("b",))
    assert side_to_go_on({newest: left(7, 2), other: left(5)}, newest, None) == other
    assert side_to_go_on({newest: left(7, 2), other: left(5, order=8)}, newest, None) == newest


def test_one_older_snapshot_of_the_same_past_is_kept() -> None:
    """Not two, none of a lineage that was left, and none that is later: it went on before that. But
    of those that go on from the one that is written two stay.
    """
    past = {4: L, 6: L, 8: L}
    there = [held(0, 4), held(0, 6), held(1, 8, M), held(0, 12)]
    assert worth_keeping(there, 10, past) == (held(0, 6),)
    assert worth_keeping([held(1, 8, M)], 10, past) == ()
    later = [held(0, iteration) for iteration in (12, 14, 16)]
    assert worth_keeping([*there, *later], 10, past, later) == (held(0, 16), held(0, 14), held(0, 6))
