"""The table of who may say what, walked: each message in each role, against what stands in
docs/protocol.md.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from swarmfree.policy.permissions import (
    REMEMBERED_MAX,
    TABLE,
    TERM_STEP_MAX,
    Match,
    Role,
    View,
    believed_number,
    is_for_admitted,
    kind_of,
    refusal,
    remembered,
    roles_of,
    term_of,
)
from swarmfree.protocol.actions import Fresh
from swarmfree.protocol.messages import (
    Audit,
    Build,
    Claim,
    Commit,
    GetAccount,
    GetAverage,
    GetContribution,
    GetManifest,
    GetPlan,
    GetRecord,
    GetShadow,
    GetState,
    Goodbye,
    Heartbeat,
    Hello,
    Loss,
    Meet,
    Open,
    Prepare,
    Pull,
    Redo,
    Reduce,
    Request,
    Seal,
    TakeRoll,
    Train,
)
from swarmfree.protocol.names import ABSENT, ENDS_STAGE, Endpoint, Member, Position, Side, Term, WorkKey, WorkKind
from swarmfree.protocol.plan import Plan
from swarmfree.protocol.records import GENESIS_LINEAGE, Record, Roll
from swarmfree.protocol.routes import Routes

SENDER, OTHER = Member("QmSender", "1" * 16), Member("QmOther", "2" * 16)
THERE = Endpoint(SENDER, ("/ip4/127.0.0.1/tcp/1/p2p/QmSender",))
BASE = "0" * 16
ITERATION, STAGE, BODY = 5, 2, 3
PROMISED = 7


def position(number: int = PROMISED + 1, member: Member = SENDER) -> Position:
    """A claim."""
    return Position(Term(number, member), ITERATION, 0, 1)


def key(stage: int = STAGE, iteration: int = ITERATION, microbatch: int = 20) -> WorkKey:
    """Work of this iteration."""
    return WorkKey(iteration, BASE, WorkKind.TRAIN, microbatch, stage)


def record() -> Record:
    """A record whose content nobody looks at."""
    return Record.__new__(Record)


def plan(at: Position) -> Plan:
    """A plan whose position alone is looked at."""
    return Plan(at, BASE, GENESIS_LINEAGE, (), (), None, 4)


def messages(at: Position) -> dict[str, Request]:
    """One message of each kind, in this position."""
    roll = Roll.__new__(Roll)
    return {
        "Hello": Hello(can_feed=True, standby=False, corpus_hash=""),
        "Build": Build(at, Fresh(1, 0, "first"), 0, GENESIS_LINEAGE, None),
        "Prepare": Prepare(at, 1, 0, GENESIS_LINEAGE, (1, 1, 1)),
        "Claim": Claim(at, only_asking=False),
        "Claim, only asking": Claim(at, only_asking=True),
        "Open": Open(plan(at)),
        "Heartbeat": Heartbeat(at, 0, 0.0),
        "Redo": Redo(at, BASE, ()),
        "TakeRoll": TakeRoll(at, roll),
        "Seal": Seal(at, record()),
        "Commit": Commit(record()),
        "Train": Train(key(), 0, THERE),
        "Loss": Loss(key()),
        "Pull of an output": Pull(key(), Side.OUTPUT),
        "Pull of an answer": Pull(key(), Side.ANSWER),
        "Pull of the past": Pull(key(iteration=ITERATION - 1), Side.OUTPUT),
        "Reduce": Reduce("round", 0, contributes=True),
        "GetAverage": GetAverage(0, "digest", 0),
        "GetState": GetState(1, 0, "", 0, weights_only=False),
        "GetState, to export": GetState(1, 0, "", 0, weights_only=True, to_export=True),
        "GetShadow": GetShadow(1, 0),
        "GetRecord": GetRecord(-1),
        "GetPlan": GetPlan(),
        "GetManifest": GetManifest(),
        "Goodbye, the run is over": Goodbye(run_over=True, finished=True, why=""),
        "Goodbye, rejoin": Goodbye(run_over=False, finished=False, why="", successor=THERE, rejoin=True),
        "Goodbye, a successor": Goodbye(run_over=False, finished=False, why="", successor=THERE),
        "Goodbye": Goodbye(run_over=False, finished=False, why=""),
        "Meet": Meet(0, GENESIS_LINEAGE, (), at.term, whole=True),
        "GetAccount": GetAccount(at, BASE, "round"),
        "Audit": Audit(at, roll, OTHER, (), ()),
        "GetContribution": GetContribution("round", 0),
    }


STRANGER = View(STAGE, ITERATION, PROMISED, (), {}, (), (), (), (), True, Routes.of(BODY, swaps=False))
"""What a peer knows that follows somebody, and to which the sender is nobody."""
VIEWS = {
    Role.COORDINATOR: replace(STRANGER, followed=(SENDER,)),
    Role.MEMBER: replace(STRANGER, electors=(SENDER,)),
    Role.ASKED: replace(STRANGER, asked=(SENDER,)),
    Role.BEFORE: replace(STRANGER, stages={SENDER: STAGE - 1}),
    Role.AFTER: replace(STRANGER, stages={SENDER: STAGE + 1}),
    Role.SIBLING: replace(STRANGER, stages={SENDER: STAGE}),
    Role.ADMITTED: replace(STRANGER, admitted=(SENDER,)),
    Role.UNTOLD: replace(STRANGER, is_told=False),
    Role.PEER: STRANGER,
}


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """The table of docs/protocol.md: message -> who may send it, what it must match."""
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = text.split("\n## Who may say what\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|(?: ([^|]*))?\|$", section.split("| message |")[1], re.MULTILINE)
    return {name: (set(who.split(", ")), set(filter(None, must.strip().split(", ")))) for name, who, must in rows}


def test_the_table_is_the_documented_one() -> None:
    """Each row of the code stands in docs/protocol.md, and no other."""
    assert documented() == {name: ({*row.roles}, {*row.matches}) for name, row in TABLE.items()}


def test_every_message_has_a_row() -> None:
    """Each request of the protocol has a row, and each row is of one."""
    assert {re.split(r"[, ]", name)[0] for name in TABLE} == {kind.__name__ for kind in get_args(Request)}
    assert set(messages(position())) == set(TABLE)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("name", sorted(messages(position())))
def test_a_message_is_taken_from_the_roles_of_its_row_alone(name: str, role: Role) -> None:
    """Each message in each role: whoever stands in the documented row may send it, nobody else."""
    request, view = messages(position())[name], VIEWS[role]
    assert kind_of(request, view) == name
    held = roles_of(request, SENDER, view)
    # Work alone has a direction
    assert role in held or (role in {Role.BEFORE, Role.AFTER} and Role.MEMBER in held)
    assert (refusal(request, SENDER, view) is None) == bool(documented()[name][0] & held)
    if role not in {Role.BEFORE, Role.AFTER, Role.SIBLING}:  # who has those is a member, too
        assert held <= {role, Role.PEER}


def test_who_is_admitted_is_remembered_for_a_lease() -> None:
    """Whoever is told of no more is one for a lease yet, and of all that are told of the last ones
    are known.
    """
    told = remembered({}, [SENDER], 10.0, 30.0)
    assert remembered(told, [OTHER], 39.0, 30.0) == {SENDER: 10.0, OTHER: 39.0}
    assert remembered(told, [OTHER], 40.0, 30.0) == {OTHER: 40.0}
    many = [Member(f"Qm{number}", "1" * 16) for number in range(REMEMBERED_MAX)]
    assert remembered(told, many, 11.0, 30.0) == dict.fromkeys(many, 11.0)


def test_state_waits_for_word_of_who_is_admitted() -> None:
    """A stranger is refused at once, but what whoever is admitted may ask for: word of that may
    be on its way.
    """
    waits = {name for name, request in messages(position()).items() if is_for_admitted(request, STRANGER)}
    assert waits == {"GetState", "GetShadow", "GetAverage", "Pull of the past"}


def test_a_message_without_a_row_is_refused() -> None:
    """Nobody may send what the table does not name, not even the coordinator."""

    class Surprise:
        """A message of a later protocol."""

    assert refusal(Surprise(), SENDER, VIEWS[Role.COORDINATOR]) == "Surprise: nobody may send it"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if Match.OWN_TERM in row.matches])
@pytest.mark.parametrize("role", [Role.COORDINATOR, Role.MEMBER, Role.ASKED])
def test_nobody_speaks_in_anothers_term(name: str, role: Role) -> None:
    """A term is its own member's: also the coordinator may not speak in that of somebody else."""
    assert refusal(messages(position(member=OTHER))[name], SENDER, VIEWS[role])
    assert refusal(messages(position())[name], SENDER, VIEWS[role]) is None


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if Match.NEAR_TERM in row.matches])
def test_terms_grow_by_steps(name: str) -> None:
    """A term far above the promised one is refused, whoever names it; one up to the bound is
    not.
    """
    view = VIEWS[Role.COORDINATOR]
    assert refusal(messages(position(PROMISED + TERM_STEP_MAX))[name], SENDER, view) is None
    assert refusal(messages(position(PROMISED + TERM_STEP_MAX + 1))[name], SENDER, view)
    assert refusal(messages(position(2**64 - 1))[name], SENDER, view)


def test_a_lie_about_what_was_promised_leaves_the_next_claim_in_reach() -> None:
    """A candidate that is told of a term far above its own claims in one that others take."""
    view = VIEWS[Role.MEMBER]
    assert believed_number(PROMISED + 3, PROMISED) == PROMISED + 3
    claim = Claim(position(believed_number(10**15, PROMISED) + 1), only_asking=False)
    assert refusal(claim, SENDER, view) is None


def test_rows_with_a_term_check_it() -> None:
    """Each message that names a term has to name its sender's."""
    named = {name for name, request in messages(position()).items() if term_of(request) is not None}
    assert named == {name for name, row in TABLE.items() if Match.OWN_TERM in row.matches}


def test_a_stranger_ends_nobody() -> None:
    """Who has no stage is told that the run is over by whom it has asked for a place, as by its
    coordinator; by nobody else.
    """
    over = Goodbye(run_over=True, finished=True, why="")
    for stage in (STAGE, ABSENT):
        assert refusal(over, SENDER, replace(STRANGER, stage=stage))
        assert refusal(over, SENDER, replace(STRANGER, stage=stage, asked=(SENDER,))) is None


@pytest.mark.parametrize("swaps", [False, True])
def test_work_goes_along_the_route_of_its_microbatch(*, swaps: bool) -> None:
    """Train and Loss come from the stage before on that microbatch's route; its output is pulled by
    the one after, its answer by the one before, and both by a sibling that audits.
    """
    routes, body = Routes.of(4, swaps=swaps), 4
    for microbatch in (20, 21):
        route = routes.route(microbatch)
        for place in range(1, body + 2):
            stage, before, after = route.at(place), route.at(place - 1), route.at(place + 1)
            if stage == ENDS_STAGE:
                after = route.first
            for at in range(body + 1):
                view = replace(STRANGER, stage=stage, stages={SENDER: at}, routes=routes)
                work = key(stage, microbatch=microbatch)
                assert (refusal(Train(work, 0, THERE), SENDER, view) is None) == (at == before)
                assert (refusal(Loss(work), SENDER, view) is None) == (at == before)
                assert (refusal(Pull(work, Side.ANSWER), SENDER, view) is None) == (at in {before, stage})
                assert (refusal(Pull(work, Side.OUTPUT), SENDER, view) is None) == (at in {after, stage})
    nowhere = key(stage=body + 1)
    assert refusal(Train(nowhere, 0, THERE), SENDER, replace(STRANGER, stages={SENDER: body}, routes=routes))
