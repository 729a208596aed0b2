"""What a successor goes on from: the promises it got, the newest plan and the sealed record among
them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swarmfree.protocol.evidence import Evidence
from swarmfree.protocol.messages import Hello, Promise
from swarmfree.protocol.names import ABSENT, Endpoint, Term
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import Record


@dataclass(frozen=True, slots=True)
class InheritedParticipant:
    """A member that follows the successor, with its place or its state.

    The place is the one in the last plan; a member outside that plan brings the state that it
    holds.

    Args:
        is_committed_state: its state is that of this lineage, in any base.
        returned: the iteration that this state is ready for, `ABSENT` for a member of the
            plan.
    """

    endpoint: Endpoint
    hello: Hello
    stage: int
    built: bool
    is_committed_state: bool
    returned: int = ABSENT


@dataclass(frozen=True, slots=True)
class Takeover:
    """Where the last coordinator was, as far as the members that promised can tell.

    Args:
        term: of the successor.
        revision: the last one used in that term.
        iteration: undecided.
        lineage, record: of the last committed one; None before the first.
        plan: the newest anybody has, None before the first.
        sealed: a record of this iteration and lineage that somebody stored: it may be decided, and
            no other one may be.
        forced: no majority promised within `split_wait_s`.
        promises: who follows.
        seniority: members, senior first.
        past: iteration -> lineage that a state ready for it stands on.
        records: older ones that the successor keeps, which say who had a place.
        called: stage -> others that hold its state on their disks, where a run goes on from
            snapshots: they are waited for.
        is_whole: each of those stages was there when this successor was named.
        evidence: the promises, signed; None where there are none.
    """

    term: Term
    revision: int
    iteration: int
    lineage: str
    record: Record | None
    plan: Plan | None
    sealed: Record | None
    forced: bool
    promises: Mapping[Endpoint, Promise]
    seniority: tuple[Endpoint, ...]
    past: Mapping[int, str]
    called: Mapping[int, tuple[Endpoint, ...]] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    is_whole: bool = False
    evidence: Evidence | None = None

    @property
    def places(self) -> Plan | None:
        """The newest plan, where it may be of this past: who gave way to another lineage, and has
        built a state of that, knows the plan that it has left.
        """
        plan = self.plan
        return plan if plan is not None and self.past.get(plan.iteration, plan.lineage) == plan.lineage else None

    def participants(self) -> tuple[InheritedParticipant, ...]:
        """List the members that promised, senior first, each with its place or the state that it
        holds.

        A member whose state is more than one record behind, or of another stage, must load its
        state again. One that was opened in the base of the last record, or of the sealed one, holds
        what that begins with, also where its stage had been rebuilt.
        """
        plan = self.places
        begins = {(record.iteration, record.base) for record in (self.record, self.sealed) if record is not None}
        found = []
        for endpoint in self.seniority:
            promise = self.promises.get(endpoint)
            planned = plan.stage_of(endpoint.member) if plan is not None else None
            if promise is None:
                continue
            stage, returned = (promise.stage, promise.iteration) if planned is None else (planned, ABSENT)
            # It may tell of its state in no heartbeat before it is to be kept
            hello = Hello(stage == 0, standby=False, corpus_hash="", stage=promise.stage, iteration=promise.iteration)
            is_current = promise.iteration in {self.iteration, self.iteration - 1} and promise.stage == stage
            same_base = plan is not None and promise.base == plan.base
            is_rebuilt = plan is not None and any(rebuilt.stage == stage for rebuilt in plan.rebuilt)
            replaced = is_rebuilt and (planned is None or not same_base)
            is_ours = promise.is_committed_state or (promise.iteration, promise.base) in begins
            built = stage != ABSENT and is_current and (is_ours or same_base) and not replaced
            found.append(InheritedParticipant(endpoint, hello, stage, built, is_ours, returned))
        return tuple(found)


def newest_sealed(promises: Iterable[Promise], lineage: str) -> Record | None:
    """Return the sealed record of this lineage with the highest position among the promises, if
    any.

    A member that has joined another lineage keeps its vote on the one that it left.

    Source: protocol section 3.1.
    """
    sealed = [
        (promise.sealed_at, promise.sealed)
        for promise in promises
        if promise.sealed is not None and promise.sealed_at is not None and promise.sealed.before == lineage
    ]
    return max(sealed, key=lambda pair: pair[0])[1] if sealed else None


def newest_plan(plans: Iterable[Plan | None]) -> Plan | None:
    """Return the plan of the latest iteration; among several, the one with the highest position.

    The iteration comes first, because a later term may have begun further back.
    """
    known = [plan for plan in plans if plan is not None]
    return max(known, key=lambda plan: (plan.iteration, plan.position)) if known else None
