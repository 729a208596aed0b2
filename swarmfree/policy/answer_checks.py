"""Whether what a peer answers can be what was asked for, before anybody builds on it. Pure.

An answer that does not fit counts as none: the next peer is asked. Who vouches for what fits is
another matter, see `lineages`.
"""

from __future__ import annotations

from swarmfree.protocol.names import ABSENT
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record


def fitting_record(record: Record | None, iteration: int, stage_count: int) -> Record | None:
    """Return the record if it is of `iteration` (`ABSENT` = any) and has `stage_count` stages, else
    None.
    """
    if record is None or len(record.stages) != stage_count or iteration not in {ABSENT, record.iteration}:
        return None
    return record


def fitting_plan(plan: Plan | None, stage_count: int) -> Plan | None:
    """Return the plan if every one of `stage_count` stages has a replica and its last record fits,
    else None.
    """
    if plan is None or len(plan.replicas) != stage_count or not all(plan.replicas):
        return None
    last = plan.last_record
    return plan if last is None or fitting_record(last, plan.iteration - 1, stage_count) is not None else None
