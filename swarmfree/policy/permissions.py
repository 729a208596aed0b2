"""Who may say what: one table of every message, the roles that may send it, and what it must match.
Pure; what has no row is refused.

The connection proves which peer calls (`wire.certificate`); what that peer is to the receiver is
read from the receiver's own books, never from the message. Whether the word can be obeyed now
(terms, bases, rounds) others decide: `policy.promises`, and the handlers.
Source: protocol, "Who may say what".
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, assert_never

from swarmfree.protocol.message_bounds import ADMITTED_MAX
from swarmfree.protocol.messages import (
    Audit,
    Build,
    Claim,
    EndRun,
    FollowSuccessor,
    GetAccount,
    GetState,
    Goodbye,
    GoodbyePurpose,
    Heartbeat,
    JoinOther,
    Loss,
    Meet,
    Open,
    Prepare,
    Pull,
    Redo,
    ReleaseMember,
    Request,
    Seal,
    TakeRoll,
    Train,
    WriteWeights,
)
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Member, Term, WorkKey, WorkKind
from swarmfree.protocol.routes import Routes

TERM_STEP_MAX = 1_000_000
"""So much higher than the promised one may the number of a term be: no number from which one cannot
count on.
"""


REMEMBERED_MAX = 4 * ADMITTED_MAX
"""So many, told of last, are known: a coordinator that lies fills no memory."""


class Role(enum.StrEnum):
    """What a caller is to the peer that it calls."""

    COORDINATOR = "coordinator"
    """Whom the receiver follows, or was told by its coordinator to follow."""
    MEMBER = "member"
    """In the newest plan that the receiver knows, an elector of its last record, or with a place in
    the swarm that it coordinates.
    """
    ASKED = "asked"
    """Whom the receiver itself has asked for a place."""
    BEFORE = "before"
    """A replica of the stage before, on this microbatch's route."""
    AFTER = "after"
    """A replica of the stage after, on this microbatch's route."""
    SIBLING = "sibling"
    """A replica of the receiver's stage."""
    ADMITTED = "admitted"
    """With a place, but in no plan yet: it stands by, builds or copies. The receiver's coordinator
    has told of it within `lease_s`.
    """
    UNTOLD = "untold"
    """Any peer of the run, while the receiver hears no coordinator that could tell it who has come.
    """
    PEER = "peer"
    """Any peer of the run, with a place or without; the organiser is one."""


ROLES = tuple(Role)
"""In the order in which they are looked for: most calls come from whom the receiver follows."""


class Match(enum.StrEnum):
    """What a message must agree with, besides its sender's role."""

    OWN_TERM = "own term"
    """The term that it names is the sender's own."""
    NEAR_TERM = "near term"
    """Its number is at most `TERM_STEP_MAX` above the promised one."""


@dataclass(frozen=True, slots=True)
class Row:
    """Who may send a message, and what it must match."""

    roles: frozenset[Role]
    matches: tuple[Match, ...] = ()


class Knowledge(Protocol):
    """What the receiver knows of the swarm; a message asks for two or three of these."""

    @property
    def stage(self) -> int:
        """Held by the receiver, `ABSENT` for none."""

    @property
    def iteration(self) -> int:
        """The one that its state is ready for."""

    @property
    def term_number(self) -> int:
        """Of the term that it has promised, 0 before the first."""

    @property
    def followed(self) -> Collection[Member]:
        """Its coordinator, and the successor that this one named."""

    @property
    def stages(self) -> Mapping[Member, int]:
        """Of each member of the newest plan that it knows, and of those before it that began with
        the same base.
        """

    @property
    def electors(self) -> Collection[Member]:
        """Who decides on the next record."""

    @property
    def participants(self) -> Collection[Member]:
        """Who has a place in the swarm that it coordinates; nobody where it does not."""

    @property
    def asked(self) -> Collection[Member]:
        """Whom it has asked for a place."""

    @property
    def admitted(self) -> Collection[Member]:
        """Of whom its coordinator has told, besides those in the plan."""

    @property
    def is_told(self) -> bool:
        """It hears a coordinator, or is one."""

    @property
    def routes(self) -> Routes:
        """Of the run's microbatches."""


@dataclass(frozen=True, slots=True)
class View:
    """Knowledge as values; see `Knowledge` for each."""

    stage: int
    iteration: int
    term_number: int
    followed: Collection[Member]
    stages: Mapping[Member, int]
    electors: Collection[Member]
    participants: Collection[Member]
    asked: Collection[Member]
    admitted: Collection[Member]
    is_told: bool
    routes: Routes


LEADERS = frozenset({Role.COORDINATOR, Role.MEMBER, Role.ASKED})
ANYBODY = frozenset({Role.PEER})
_WITH_A_PLACE = Row(frozenset({Role.COORDINATOR, Role.MEMBER, Role.ADMITTED, Role.UNTOLD}))
_IN_ITS_TERM = Row(LEADERS, (Match.OWN_TERM, Match.NEAR_TERM))

TABLE: Mapping[str, Row] = MappingProxyType(
    {
        "Hello": Row(ANYBODY),
        "Build": _IN_ITS_TERM,
        "Prepare": _IN_ITS_TERM,
        "Claim": _IN_ITS_TERM,
        "Claim, only asking": Row(ANYBODY, (Match.OWN_TERM, Match.NEAR_TERM)),
        "Open": _IN_ITS_TERM,
        "Heartbeat": _IN_ITS_TERM,
        "Redo": _IN_ITS_TERM,
        "TakeRoll": _IN_ITS_TERM,
        "Seal": _IN_ITS_TERM,
        "Commit": Row(LEADERS),
        "Train": Row(frozenset({Role.BEFORE})),
        "Loss": Row(frozenset({Role.BEFORE})),
        # A sibling audits
        "Pull of an output": Row(frozenset({Role.AFTER, Role.SIBLING})),
        "Pull of an answer": Row(frozenset({Role.BEFORE, Role.SIBLING})),
        "Pull of the past": _WITH_A_PLACE,
        # Who is in the roll the handler knows
        "Reduce": Row(frozenset({Role.MEMBER, Role.SIBLING})),
        "GetAverage": _WITH_A_PLACE,
        "GetState": _WITH_A_PLACE,
        # Whoever is let in could ask for a place, and then for all of it
        "GetState, to export": Row(ANYBODY),
        "GetShadow": _WITH_A_PLACE,
        # Whoever watches a run reads them; they hold no weights
        "GetRecord": Row(ANYBODY),
        "GetPlan": Row(ANYBODY),
        "GetManifest": Row(ANYBODY),
        "Goodbye, the run is over": Row(LEADERS),
        "Goodbye, rejoin": Row(LEADERS),
        # From whoever leads no longer it says nothing, as where it comes twice
        "Goodbye, a successor": Row(LEADERS),
        "Goodbye": Row(ANYBODY),
        "Meet": Row(ANYBODY, (Match.OWN_TERM,)),
        "GetAccount": _IN_ITS_TERM,
        "Audit": _IN_ITS_TERM,
        # As Reduce: who has lost its stage since has no siblings
        "GetContribution": Row(frozenset({Role.MEMBER, Role.SIBLING})),
    }
)
"""By the name of the message, and after it what kind of it is meant."""


def refusal(request: Request, sender: Member, view: Knowledge) -> str | None:
    """Why this caller may not send this message to a peer that knows this; None where it may."""
    kind = kind_of(request, view)
    row = TABLE.get(kind)
    if row is None:
        return f"{kind}: nobody may send it"
    if not any(_has_role(role, request, sender, view) for role in ROLES if role in row.roles):
        return f"{kind} from {sender}: that is none of {', '.join(sorted(row.roles))} here"
    term = term_of(request)
    if Match.OWN_TERM in row.matches and (term is None or term.member != sender):
        return f"{kind} from {sender}: the term is {term.member if term else 'nobody'}'s"
    if Match.NEAR_TERM in row.matches and term is not None and term.number > view.term_number + TERM_STEP_MAX:
        return f"{kind} from {sender}: its term is more than {TERM_STEP_MAX:,} above {view.term_number}"
    return None


def is_for_admitted(request: Request, view: Knowledge) -> bool:
    """Whether who is admitted may send it: word of them may be on its way."""
    row = TABLE.get(kind_of(request, view))
    return row is not None and Role.ADMITTED in row.roles


def remembered(told: Mapping[Member, float], admitted: Collection[Member], now_s: float, lease_s: float) -> dict[Member, float]:
    """Of whom a coordinator has told, and when last: one that is in no list any more may be in a
    plan that is on its way, or have a coordinator to whom it has yet to say hello.
    """
    if (*told,) == (*admitted,):  # as nearly always
        return dict.fromkeys(told, now_s)
    fresh = dict.fromkeys(admitted, now_s)
    # Those of before come as they were told, the oldest first
    kept = {member: then_s for member, then_s in told.items() if now_s - then_s < lease_s and member not in fresh} | fresh
    return kept if len(kept) <= REMEMBERED_MAX else dict([*kept.items()][-REMEMBERED_MAX:])


def believed_number(told: int, promised: int) -> int:
    """Of the number of a term that somebody says it has promised: no more than a claim may start
    above without being refused as too far.
    """
    return min(told, promised + TERM_STEP_MAX // 2)


def kind_of(request: Request, view: Knowledge) -> str:
    """Which row of the table a message has, at a peer that knows this."""
    name = type(request).__name__
    match request:
        case Claim(only_asking=True):
            return f"{name}, only asking"
        case GetState(weights_only=True, to_export=True):
            return f"{name}, to export"
        case Pull(key=key) if key.iteration < view.iteration:
            return f"{name} of the past"
        case Pull(side=side):
            return f"{name} of an {side}"
        case Goodbye():
            return _kind_of_goodbye(request.purpose)
        case _:
            return name


def _kind_of_goodbye(purpose: GoodbyePurpose) -> str:
    match purpose:
        case EndRun() | WriteWeights():
            return "Goodbye, the run is over"
        case JoinOther():
            return "Goodbye, rejoin"
        case FollowSuccessor():
            return "Goodbye, a successor"
        case ReleaseMember():
            return "Goodbye"
        case _:
            assert_never(purpose)


def term_of(request: Request) -> Term | None:
    """The term that a message names, if it does."""
    match request:
        case Build(position=position) | Claim(position=position) | Heartbeat(position=position) | Seal(position=position):
            return position.term
        case Redo(position=position) | TakeRoll(position=position) | GetAccount(position=position) | Audit(position=position):
            return position.term
        case Prepare(position=position):
            return position.term
        case Open(plan=plan):
            return plan.position.term
        case Meet(term=term):
            return term
        case _:
            return None


def roles_of(request: Request, sender: Member, view: Knowledge) -> frozenset[Role]:
    """What the sender is to the receiver, as far as this message goes."""
    return frozenset(role for role in ROLES if _has_role(role, request, sender, view))


def _has_role(role: Role, request: Request, sender: Member, view: Knowledge) -> bool:
    match role:
        case Role.PEER:
            return True
        case Role.COORDINATOR:
            return sender in view.followed
        case Role.MEMBER:
            return sender in view.stages or sender in view.electors or sender in view.participants
        case Role.ASKED:
            return sender in view.asked
        case Role.BEFORE | Role.AFTER:
            if not isinstance(request, Train | Loss | Pull):
                return False
            before, after = _neighbours(request.key, view)
            return view.stages.get(sender) == (before if role is Role.BEFORE else after)
        case Role.SIBLING:
            return view.stages.get(sender, ABSENT) == view.stage != ABSENT
        case Role.ADMITTED:
            return sender in view.admitted
        case Role.UNTOLD:
            return not view.is_told
        case _:
            assert_never(role)


def _neighbours(key: WorkKey, view: Knowledge) -> tuple[int, int]:
    """The stages before and after this work's, on its microbatch's route; the ends are before the
    first and after the last.
    """
    route = view.routes.route(key.microbatch, trains=key.kind is WorkKind.TRAIN)
    if key.stage == ENDS_STAGE:
        return route.last, route.first
    if key.stage not in route.stages:
        return ABSENT, ABSENT
    place = route.position(key.stage)
    return route.at(place - 1), route.at(place + 1)
