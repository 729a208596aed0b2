"""Where the model is cut in an iteration, and whether that is changed. Pure.

It follows from the record before, as the batch does: so whoever takes over, joins, replays or goes
on from a snapshot cuts alike. Source: decision 24.
"""

from __future__ import annotations

from dataclasses import replace

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.names import base_of
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record, SetSplit
from swarmfree.protocol.split import BlockSplit


def split_after(last: Record | None, manifest: Manifest) -> BlockSplit:
    """How the model is cut in a record's iteration, and after it.

    Args:
        last: the record; None before the first.
        manifest: of the run.
    """
    return manifest.split if last is None or last.split is None else BlockSplit(last.split.counts)


def cut_since(last: Record | None) -> int:
    """The first iteration that was cut as the one of a record; 0 where the model was never cut
    anew.
    """
    return 0 if last is None or last.split is None else last.split.since


def split_of_plan(plan: Plan, manifest: Manifest) -> BlockSplit:
    """How the model is cut in the iteration of a plan."""
    return BlockSplit(plan.split) if plan.split else split_after(plan.last_record, manifest)


def recorded_split(plan: Plan, manifest: Manifest) -> SetSplit | None:
    """The split that the record of a plan's iteration says; None where the model was never cut
    anew.
    """
    last = plan.last_record
    if not plan.split or split_of_plan(plan, manifest) == split_after(last, manifest):
        return last.split if last is not None else None
    return SetSplit(plan.split, plan.iteration)


def uncut(plan: Plan) -> Plan:
    """The same plan without a cut that no record has: nothing has stepped by it, so that each
    member still has its stage as it was.
    """
    if not plan.split:
        return plan
    return replace(plan, split=(), rebuilt=(), base=base_of(plan.lineage, ()))
