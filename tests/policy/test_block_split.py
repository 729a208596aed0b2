"""Where the model is cut in an iteration follows from the record before, and the plan."""

from __future__ import annotations

from dataclasses import replace

from swarmfree.policy.block_split import cut_since, recorded_split, split_after, split_of_plan, uncut
from swarmfree.protocol.manifest import Manifest, ModelSection, StagesSection
from swarmfree.protocol.names import Member, Position, Term, base_of
from swarmfree.protocol.plan import Plan, Rebuilt
from swarmfree.protocol.records import SetSplit, record_from_json, record_to_json
from swarmfree.protocol.split import BlockSplit
from tests.builders import make_record

MANIFEST = Manifest(model=ModelSection(blocks=6), stages=StagesSection(body=3))
CUT = make_record(iteration=4, split=SetSplit((3, 1, 2), 2))
PLAN = Plan(Position(Term(1, Member("a", "1")), 5, 0, 1), "base", CUT.lineage(), (), (), CUT, 4)


def test_a_run_begins_as_the_manifest_cuts_it() -> None:
    """And stays so as long as no record says otherwise."""
    assert split_after(None, MANIFEST) == split_after(make_record(), MANIFEST) == BlockSplit((2, 2, 2))
    assert cut_since(None) == cut_since(make_record()) == 0
    assert recorded_split(replace(PLAN, last_record=None), MANIFEST) is None
    assert recorded_split(replace(PLAN, last_record=make_record()), MANIFEST) is None


def test_a_record_says_how_its_iteration_was_cut() -> None:
    """And so are those that follow, until one says otherwise."""
    assert split_after(CUT, MANIFEST) == split_of_plan(PLAN, MANIFEST) == BlockSplit((3, 1, 2))
    assert cut_since(CUT) == 2
    assert recorded_split(PLAN, MANIFEST) == CUT.split
    anew = replace(PLAN, split=(1, 4, 1))
    assert split_of_plan(anew, MANIFEST) == BlockSplit((1, 4, 1))
    assert recorded_split(anew, MANIFEST) == SetSplit((1, 4, 1), 5)
    assert recorded_split(replace(PLAN, split=(3, 1, 2)), MANIFEST) == CUT.split


def test_the_cut_is_part_of_the_lineage() -> None:
    """Two records that differ in it alone are of two lineages, and it outlives a disk."""
    assert CUT.lineage() != replace(CUT, split=None).lineage() != replace(CUT, split=SetSplit((3, 1, 2), 3)).lineage()
    assert record_from_json(record_to_json(CUT)) == CUT


def test_a_cut_that_no_record_has_can_be_taken_back() -> None:
    """What was prepared for it counts as rebuilt no more, and the base is that of the record."""
    anew = replace(PLAN, split=(1, 4, 1), rebuilt=(Rebuilt(1, "digest", rate_scaled=False),))
    assert uncut(anew) == replace(PLAN, base=base_of(PLAN.lineage, ()))
    assert uncut(PLAN) is PLAN
