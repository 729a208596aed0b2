"""What a member may promise, seal and apply: what it has promised and one request, and what it has
promised then. Pure.

A member asks at the moment at which it stores the answer, and once more after everything that it
has waited for: a Heartbeat, a Build and the call to another lineage do not wait for the word that
is under way. What the state is made of, and whether a coordinator is heard, others know.
Source: protocol sections 3.1, 3.2, 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarmfree.protocol.errors import RefusalKind, Refused
from swarmfree.protocol.messages import Build, Claim, Heartbeat, Open, Seal
from swarmfree.protocol.names import ABSENT, Endpoint, Member, Position, Term
from swarmfree.protocol.records import Record


@dataclass(frozen=True, slots=True, order=True)
class Renounced:
    """The highest term that a member had promised in a lineage that it left.

    The term still binds the member's vote in that lineage.
    """

    lineage: str
    term: Term


@dataclass(frozen=True, slots=True)
class Promises:
    """What a member has promised, and to whom.

    Args:
        promised: the highest position, None before the first one and after the member has left a
            lineage.
        coordinator: who made that claim, None while this member knows of nobody.
        sealed: the stored record that is not applied yet: the member's vote.
        sealed_at: position of the Seal that brought it; one in a higher position replaces it.
        abandoned: terms whose coordinators this member obeys no longer.
        renounced: what it had promised in the lineage that it left last.
    """

    promised: Position | None = None
    coordinator: Endpoint | None = None
    sealed: Record | None = None
    sealed_at: Position | None = None
    abandoned: frozenset[Term] = frozenset()
    renounced: Renounced | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A member and the state that it holds.

    Args:
        me: the member.
        stage: that it serves, `ABSENT` for none.
        iteration: the one that the state is ready for.
        lineage: of the last applied record.
        records: applied ones, as far as they are kept.
    """

    me: Member
    stage: int
    iteration: int
    lineage: str
    records: Sequence[Record] = ()


def claim(promises: Promises, sender: Endpoint, request: Claim, *, hears_another: bool) -> Promises:
    """Promise to follow a new coordinator, unless the request is only a question.

    Raises:
        Refused: see `admit`.
    """
    admit(promises, request.position, hears_another=hears_another)
    return promises if request.only_asking else replace(promises, promised=request.position, coordinator=sender)


def open_plan(promises: Promises, sender: Endpoint, request: Open, held: Held, *, hears_another: bool) -> Promises:
    """Promise a plan's position, before any await; `begin` says later whether work on it may begin.

    Raises:
        Refused: see `admit`; `failed`, the plan has this member at another stage than the one that
            it holds.
    """
    plan = request.plan
    admit(promises, plan.position, hears_another=hears_another)
    if held.stage == ABSENT or plan.stage_of(held.me) != held.stage:
        raise Refused(RefusalKind.FAILED, f"this peer holds stage {held.stage}, the plan has it elsewhere")
    return replace(promises, promised=plan.position, coordinator=sender)


def begin(promises: Promises, request: Open, held: Held) -> None:
    """Check again, after an await, that work on a promised plan may begin.

    Raises:
        Refused: `gone`, the state is not the one that the plan starts from; `behind` and
            `superseded`, see `admit`.
    """
    plan = request.plan
    if held.iteration != plan.iteration or held.lineage != plan.lineage:
        raise Refused(
            RefusalKind.GONE,
            f"this peer stands at iteration {held.iteration}, lineage {held.lineage[:8]}; "
            f"the plan is for {plan.iteration}, lineage {plan.lineage[:8]}",
        )
    admit(promises, plan.position, hears_another=False)  # this coordinator was followed already


def heartbeat(promises: Promises, sender: Endpoint, request: Heartbeat, *, hears_another: bool) -> Promises:
    """Follow the coordinator with the highest term; one with a lower term leads no longer.

    Args:
        hears_another: another coordinator is heard, and nothing shows that a majority has promised
            this one.

    Raises:
        Refused: `behind`, from a coordinator whose term is over; `fresh` for a higher term while
            another coordinator is heard.
    """
    _refuse_abandoned(promises, request.position)
    promised = promises.promised
    if is_new_term(promises, request.position):
        if promised is not None and hears_another:
            raise _fresh(promised)
        promised = request.position
    elif promised is not None and request.position.term < promised.term:
        raise _behind(promised)
    if (promised, sender) == (promises.promised, promises.coordinator):
        return promises
    return replace(promises, promised=promised, coordinator=sender)


def is_new_term(promises: Promises, position: Position) -> bool:
    """Whether this coordinator was not promised to yet, nor any later one."""
    return promises.promised is None or position.term > promises.promised.term


def may_be_shown(promises: Promises, term: Term) -> bool:
    """Whether what was promised in this term may count here: not where its coordinator led, in this
    term or a later one, a lineage that this member has left. Whoever leaves one takes back what it
    promised there, and the signatures stay.
    """
    return not any(term.member == left.member and term <= left for left in promises.abandoned)


def build(promises: Promises, sender: Endpoint, request: Build, *, hears_another: bool) -> Promises:
    """Promise the position of a Build; the caller checks whether the present state may be replaced.

    Raises:
        Refused: see `admit`.
    """
    admit(promises, request.position, hears_another=hears_another)
    return replace(promises, promised=request.position, coordinator=sender)


def seal(promises: Promises, request: Seal, held: Held) -> Promises:
    """Store a record, which is the member's vote for it, in exactly the term that was promised; an
    applied record is not stored again, but voted for.

    Raises:
        Refused: `behind`, for a lower term than the one promised, here or in the lineage when this
            member left it; `stale`, another record of that iteration was applied; `not_yet`, the
            term was not promised yet, which a heartbeat may change, or the record does not follow
            the last one here; `superseded`, a later Seal was stored.
    """
    record, promised, renounced = request.record, promises.promised, promises.renounced
    if promised is not None and request.position.term < promised.term:
        raise _behind(promised)
    if renounced is not None and renounced.lineage == record.before and request.position.term < renounced.term:
        raise Refused(RefusalKind.BEHIND, "this peer promised a higher term in that lineage", renounced.term.number)
    if is_new_term(promises, request.position):
        raise Refused(
            RefusalKind.NOT_YET, f"term {request.position.term.number} of {request.position.term.member} was not promised"
        )
    if record.iteration < held.iteration:
        applied = next((applied for applied in held.records if applied.iteration == record.iteration), None)
        if applied is None or applied.lineage() != record.lineage():
            raise Refused(RefusalKind.STALE, f"another record of iteration {record.iteration} was applied here")
        return promises
    if record.iteration > held.iteration or record.before != held.lineage:
        raise Refused(RefusalKind.NOT_YET, f"this peer is at iteration {held.iteration}, lineage {held.lineage[:8]}")
    if promises.sealed_at is not None and request.position < promises.sealed_at:
        raise Refused(RefusalKind.SUPERSEDED, "a later Seal was already stored")
    return replace(promises, sealed=record, sealed_at=request.position)


def commit(record: Record, held: Held) -> bool:
    """Whether to step with a decided record: False if it was applied already.

    A decided record needs no promise.

    Raises:
        Refused: `gone`, it does not follow the state that is held, or none is; `not_yet`, records
            before it are missing.
    """
    if record.iteration > held.iteration:
        raise Refused(RefusalKind.NOT_YET, f"this peer is at iteration {held.iteration}")
    if record.iteration < held.iteration:
        return False
    follow(record, held)
    return True


def follow(record: Record, held: Held) -> None:
    """Check that a record follows the state that the member holds.

    Raises:
        Refused: `gone`, it does not, or no state is held.
    """
    if held.stage == ABSENT or record.before != held.lineage:
        raise Refused(RefusalKind.GONE, f"record {record.iteration} does not follow lineage {held.lineage[:8]}")


def rejoin(promises: Promises, sender: Endpoint, successor: Endpoint, held: Held, *, hears_another: bool) -> Promises:
    """Leave a coordinator whose lineage lost against another one, and follow that one's
    coordinator.

    The member has promised nothing afterwards, but its vote in the old lineage stays bound.

    Raises:
        Refused: `stale`, while another coordinator than `sender` is heard.
    """
    if hears_another:
        raise Refused(RefusalKind.STALE, f"{sender.member} is not this peer's coordinator")
    abandoned, renounced = promises.abandoned, promises.renounced
    if promises.promised is not None:
        left = Renounced(held.lineage, promises.promised.term)
        abandoned |= {left.term}
        renounced = left if renounced is None or renounced.lineage != left.lineage else max(renounced, left)
    # The successor leads: perhaps one that had slept, and leads no longer, had this peer leave it.
    abandoned = frozenset(term for term in abandoned if term.member != successor.member)
    return replace(promises, promised=None, coordinator=successor, abandoned=abandoned, renounced=renounced)


def forget_vote(promises: Promises, iteration: int) -> Promises:
    """Drop the stored vote if its record lies before `iteration`, the one that the state is ready
    for.
    """
    if promises.sealed is None or promises.sealed.iteration >= iteration:
        return promises
    return replace(promises, sealed=None, sealed_at=None)


def admit(promises: Promises, position: Position, *, hears_another: bool) -> None:
    """Check whether a coordinator may have this member's promise for a position.

    Raises:
        Refused: `behind` for a lower term than the one promised, or one of a lineage that gave way;
            `superseded` for an older word of the same coordinator; `fresh` for a higher term while
            another coordinator is heard.
    """
    _refuse_abandoned(promises, position)
    promised = promises.promised
    if promised is None:
        return
    if position.term < promised.term:
        raise _behind(promised)
    if position < promised:
        raise Refused(RefusalKind.SUPERSEDED, f"revision {promised.revision} was promised, {position.revision} is older")
    if position.term > promised.term and hears_another:
        raise _fresh(promised)


def _refuse_abandoned(promises: Promises, position: Position) -> None:
    if position.term in promises.abandoned:
        raise Refused(RefusalKind.BEHIND, f"the lineage of term {position.term.number} gave way to another one")


def _fresh(promised: Position) -> Refused:
    return Refused(RefusalKind.FRESH, f"coordinator {promised.term.member} is heard", promised.term.number)


def _behind(promised: Position) -> Refused:
    return Refused(RefusalKind.BEHIND, f"promised term {promised.term.number} to {promised.term.member}", promised.term.number)
