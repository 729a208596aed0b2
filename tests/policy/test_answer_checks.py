"""Answers that cannot be what was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmfree.policy.answer_checks import fitting_plan, fitting_record
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica
from tests.builders import make_entry, make_record

ONE = Endpoint(Member("p", "0" * 16), ("/memory/p",))
ENTRY = make_entry(members=(ONE.member,))
RECORD = make_record(iteration=4, before="l", stages=(ENTRY, ENTRY), electorate=(ONE.member,))
PLAN = Plan(Position(Term(1, ONE.member), 5, 0, 1), "b", "l", ((Replica(ONE),),) * 2, (), RECORD, 4)


@pytest.mark.parametrize(("iteration", "stages", "fits"), [(4, 2, True), (ABSENT, 2, True), (3, 2, False), (4, 3, False)])
def test_a_record_fits_its_iteration_and_the_stages_of_the_run(iteration: int, stages: int, fits: bool) -> None:  # noqa: FBT001
    """Of another iteration or another number of stages it is none."""
    assert (fitting_record(RECORD, iteration, stages) is RECORD) == fits
    assert fitting_record(None, iteration, stages) is None


@pytest.mark.parametrize(
    "wrong",
    [
        replace(PLAN, replicas=PLAN.replicas[:1]),
        replace(PLAN, replicas=(PLAN.replicas[0], ())),
        replace(PLAN, last_record=replace(RECORD, iteration=3)),
        replace(PLAN, last_record=replace(RECORD, stages=())),
        None,
    ],
)
def test_a_plan_serves_every_stage(wrong: Plan | None) -> None:
    """One that leaves a stage empty, or goes on from a record that is not the one before, is
    none.
    """
    assert fitting_plan(PLAN, 2) is PLAN
    assert fitting_plan(replace(PLAN, last_record=None), 2) is not None
    assert fitting_plan(wrong, 2) is None
