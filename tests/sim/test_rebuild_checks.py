"""What the checks say of states that were copied, apart from whole stories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.protocol.actions import Copy, Stay
from swarmfree.protocol.messages import Build, Built
from swarmfree.protocol.names import Endpoint, Member, Position, Term
from swarmfree.protocol.records import SetSplit
from swarmfree.protocol.split import BlockSplit
from swarmfree.sim import integer_arithmetic as arithmetic
from swarmfree.sim.commit_chain import Chain
from swarmfree.sim.integer_arithmetic import State
from swarmfree.sim.rebuilds import Rebuilds
from tests.builders import make_record

SOMEBODY = Member("somebody", "1")
NOTHING, OTHER = arithmetic.state_digest(()), "other"


@pytest.mark.parametrize(("stage", "digest", "is_odd"), [(2, NOTHING, False), (2, OTHER, True), (1, NOTHING, True)])
def test_a_copy_of_a_stage_without_blocks_is_right_if_it_is_nothing(stage: int, digest: str, *, is_odd: bool) -> None:
    """Also where nobody of that stage has stepped with the last record: there is but one state of
    it. With bytes it is wrong, and so is nothing where a stage has blocks.
    """
    record = make_record(iteration=0, split=SetSplit((2, 0), 0))
    states: dict[str, State] = {NOTHING: (), OTHER: arithmetic.drawn(1, BlockSplit((2, 0)), 0, 1)}
    rebuilds = Rebuilds(None, Chain({}), {record.lineage(): record}, states, {})
    action = Copy(stage, (Endpoint(SOMEBODY, ("/memory/somebody",)),), "")
    build = Build(Position(Term(1, SOMEBODY), 0, 0, 1), action, 1, record.lineage(), record)
    assert rebuilds.check(SOMEBODY, build, Built(digest, 0.1, 0, 1)) == ""
    assert bool(rebuilds.odd_copier(record.lineage(), stage, digest)) == is_odd


@pytest.mark.parametrize(
    ("kept", "elsewhere", "is_odd"),
    [(NOTHING, False, False), (OTHER, False, True), (NOTHING, True, True)],
    ids=["kept", "something-else", "in-another-lineage"],
)
def test_a_copy_that_is_told_before_what_it_was_copied_from_is_right(kept: str, *, elsewhere: bool, is_odd: bool) -> None:
    """A holder is told to keep its state, a sibling copies that, and answers first: it is odd only
    as long as nobody is known to have kept those bytes in this lineage.
    """
    record, rival = make_record(iteration=0), make_record(iteration=0, loss=2.0)
    states: dict[str, State] = {NOTHING: (), OTHER: arithmetic.drawn(1, BlockSplit((2, 0)), 0, 1)}
    rebuilds = Rebuilds(None, Chain({}), {one.lineage(): one for one in (record, rival)}, states, {})
    position = Position(Term(1, SOMEBODY), 0, 0, 1)
    copy = Build(position, Copy(1, (Endpoint(SOMEBODY, ("/memory/somebody",)),), ""), 1, record.lineage(), record)
    rebuilds.check(SOMEBODY, copy, Built(NOTHING, 0.1, 0, 1))
    assert rebuilds.odd_copier(record.lineage(), 1, NOTHING)
    lineage = rival.lineage() if elsewhere else record.lineage()
    rebuilds.check(SOMEBODY, replace(copy, action=Stay(1, 0, ""), lineage=lineage), Built(kept, 0.1, 0, 1))
    assert bool(rebuilds.odd_copier(record.lineage(), 1, NOTHING)) == is_odd
