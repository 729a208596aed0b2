"""The books: floats as bits, sets of microbatches, rolls and the chain of records."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from swarmfree.protocol.names import Endpoint, Member, PartialSumId, Term, base_of
from swarmfree.protocol.records import (
    GENESIS_LINEAGE,
    MicrobatchSet,
    PartialSum,
    Record,
    Roll,
    StepScalars,
    bits_float32,
    bits_float64,
    float32_bits,
    float64_bits,
    record_from_json,
    record_to_json,
)
from tests.builders import make_entry, make_record

MEMBERS = tuple(Member(f"Qm{name}", f"{number:016x}") for number, name in enumerate("abcd"))
ENDPOINTS = tuple(Endpoint(member, (f"/ip4/127.0.0.1/tcp/{4000 + number}",)) for number, member in enumerate(MEMBERS))
OFFSETS = st.sets(st.integers(0, 300))


def record(iteration: int = 0, before: str = GENESIS_LINEAGE) -> Record:
    """A record of one stage and two members."""
    entry = make_entry(
        sum_digest="ab",
        squared_norm_bits=float64_bits(2.5),
        state_digest="cd",
        rate_scale_bits=float32_bits(1.1),
        scalars=StepScalars(*range(9)),
        members=MEMBERS[:2],
    )
    return make_record(
        iteration=iteration,
        before=before,
        term=Term(3, MEMBERS[0]),
        attempt=1,
        base="0123456789abcdef",
        stages=(entry,),
        loss=5.5,
        tokens=8192,
        electorate=MEMBERS,
    )


@given(value=st.floats(width=32, allow_nan=False))
def test_float32_bits_come_back(value: float) -> None:
    """A float32 written as bits is the same number, zero's sign included."""
    assert math.copysign(1, bits_float32(float32_bits(value))) == math.copysign(1, value)
    assert bits_float32(float32_bits(value)) == value


@given(value=st.floats(allow_nan=False))
def test_float64_bits_come_back(value: float) -> None:
    """A float64 written as hex digits is the same number."""
    assert bits_float64(float64_bits(value)) == value
    assert len(float64_bits(value)) == 16


@given(one=OFFSETS, other=OFFSETS)
def test_microbatch_sets_are_sets(one: set[int], other: set[int]) -> None:
    """Union, intersection, difference, membership and size agree with Python's sets."""
    left, right = MicrobatchSet.of(one), MicrobatchSet.of(other)
    assert (left | right).offsets() == tuple(sorted(one | other))
    assert (left & right).offsets() == tuple(sorted(one & other))
    assert (left - right).offsets() == tuple(sorted(one - other))
    assert len(left) == len(one)
    assert all(offset in left for offset in one)
    assert bool(left) == bool(one)


def test_a_full_set_has_every_microbatch_once() -> None:
    """The set of all eight is the offsets 0 to 7."""
    assert MicrobatchSet.full(8).offsets() == tuple(range(8))
    assert not MicrobatchSet.full(0)


def roll(**changes: object) -> Roll:
    """Three partial sums of two members."""
    partial_sums = tuple(PartialSum(PartialSumId(MEMBERS[number % 2], number), MicrobatchSet(1 << number)) for number in range(3))
    return dataclasses.replace(Roll(5, "b" * 16, 2, partial_sums, ENDPOINTS[:2]), **changes)  # type: ignore[arg-type]


def test_a_round_names_exactly_one_roll() -> None:
    """Whatever differs between two rolls, their rounds differ; where a member lives does not
    matter.
    """
    partial_sums = roll().partial_sums
    others = [
        roll(),
        roll(iteration=6),
        roll(base="c" * 16),
        roll(stage=1),
        roll(partial_sums=partial_sums[::-1]),
        roll(partial_sums=partial_sums[:2]),
        roll(partial_sums=(*partial_sums[:2], dataclasses.replace(partial_sums[2], microbatches=MicrobatchSet(9)))),
        roll(members=ENDPOINTS[:3]),
        roll(rotation=1),
    ]
    assert len({other.round() for other in others}) == len(others)
    moved = tuple(dataclasses.replace(endpoint, addresses=()) for endpoint in ENDPOINTS[:2])
    assert roll(members=moved).round() == roll().round()


def test_every_part_has_an_owner_and_rotation_changes_it() -> None:
    """Parts go round the members; a rotation gives each part to the next one."""
    assert [roll().owner(part) for part in range(4)] == [ENDPOINTS[0], ENDPOINTS[1], ENDPOINTS[0], ENDPOINTS[1]]
    assert roll(rotation=1).owner(0) == ENDPOINTS[1]
    assert [partial_sum.id.number for partial_sum in roll().of(MEMBERS[0])] == [0, 2]


def test_a_record_comes_back_from_json() -> None:
    """Through JSON text and back it is the same record with the same lineage."""
    found = record_from_json(json.loads(json.dumps(record_to_json(record()))))
    assert found == record()
    assert found.lineage() == record().lineage()
    assert (found.loss, found.evaluation, found.stages[0].squared_norm) == (5.5, None, 2.5)


def test_lineage_is_the_same_whoever_seals() -> None:
    """A successor that seals the same record under its own term and attempt makes the same
    lineage.
    """
    assert dataclasses.replace(record(), term=Term(9, MEMBERS[3]), attempt=4).lineage() == record().lineage()


def test_lineage_is_of_everything_else() -> None:
    """Any other difference is another lineage, and so is another record before it."""
    base = record()
    others = [
        base,
        dataclasses.replace(base, iteration=1),
        dataclasses.replace(base, before="1" * 64),
        dataclasses.replace(base, base="f" * 16),
        dataclasses.replace(base, stages=(dataclasses.replace(base.stages[0], sum_digest="xx"),)),
        dataclasses.replace(base, loss_bits=float64_bits(5.6)),
        dataclasses.replace(base, tokens=1),
        dataclasses.replace(base, evaluation_bits=float64_bits(1.0)),
        dataclasses.replace(base, electorate=MEMBERS[::-1]),
        dataclasses.replace(base, forced=(1,)),
    ]
    assert len({other.lineage() for other in others}) == len(others)


def test_base_is_of_lineage_and_rebuilt_stages() -> None:
    """Work starts elsewhere after another record or a rebuild; the order in which rebuilds are told
    does not matter.
    """
    plain, rebuilt = base_of("a", ()), base_of("a", ((1, "x"), (2, "y")))
    assert len({plain, rebuilt, base_of("b", ()), base_of("a", ((1, "y"), (2, "x")))}) == 4
    assert base_of("a", ((2, "y"), (1, "x"))) == rebuilt
    assert len(plain) == 16


def test_terms_are_ordered_by_number_then_peer_then_incarnation() -> None:
    """No two claims are equal, and all peers agree which is higher."""
    terms = [Term(1, MEMBERS[3]), Term(2, MEMBERS[0]), Term(2, Member("Qma", "f")), Term(2, MEMBERS[1])]
    assert all(low < high for low, high in pairwise(terms))
    assert max(terms) is terms[-1]
