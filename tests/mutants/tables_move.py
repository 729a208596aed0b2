"""A coordinator that is about to move a peer: what it looks at once more."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.quorum import is_majority
from swarmfree.policy.retention import keepers_of_ends
from swarmfree.protocol.manifest import Manifest, StagesSection
from swarmfree.protocol.messages import Hello
from swarmfree.protocol.names import Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.coordinator.move_watch import MoveWatch
from swarmfree.trainer.coordinator.participant import Participant, Participants
from tests.mutants.alone import at, endpoint

PLACES = {"s": 0, "a": 1, "b": 1, "c": 1, "d": 2, "e": 2}
PRESENT = 5


def move_among(
    *,
    behind: Sequence[str] = (),
    silent: Sequence[str] = (),
    gone: Sequence[str] = (),
    joining: Sequence[str] = (),
    away: int = 0,
    full: bool = False,
    is_deposed: bool = False,
) -> bool:
    """Whether `a` of three may go to a stage of two, where these are a step behind, do not answer,
    are not there, or are in no plan yet; where so many more voters are on another side, the stage
    has room for two, or this coordinator leads no longer.
    """
    there = Participants()
    for number, (name, stage) in enumerate(PLACES.items()):
        if name in gone:
            continue
        participant = Participant(
            endpoint(name),
            Hello(can_feed=False, standby=False, corpus_hash=""),
            stage,
            number,
            built=True,
            built_at=PRESENT - (name in behind),
            opened=None if name in joining else at(1),
            silent_since_s=0.0 if name in silent else None,
        )
        there._participants[participant.member] = participant
    electorate = [endpoint(name).member for name in (*PLACES, *(f"away{number}" for number in range(away)))]

    def may_decide(answered: set[Member]) -> bool:
        return is_majority(electorate, answered)

    roster = cast("Any", there)
    roster.is_deposed = is_deposed
    manifest = Manifest(stages=StagesSection(body=2, replicas_max=2 if full else 4))
    context = SimpleNamespace(
        now_s=lambda: 0.0, local=SimpleNamespace(move_after_s=20.0), manifest=manifest, me=endpoint("s").member
    )
    lead = SimpleNamespace(iteration=PRESENT, may_decide=may_decide, present=SimpleNamespace(record=None))
    watch = MoveWatch(cast("Any", context), cast("Any", lead), roster, cast("Any", None))
    mover = there.get(endpoint("a").member)
    return mover is not None and watch._may_move(mover, MovePeer(endpoint("a").member.peer_id, 1, 2))


def those_it_leaves_and_joins() -> list[bool]:
    """All are there; one of two that it leaves is behind; one of them is silent; nobody whom it
    would copy from is where the swarm is; stage 0 has nobody; one that it would copy from is gone;
    those who stay are half of ten with the senior, and less than half of eleven; its new stage is
    full; another one leads; another stage is lost; one that it leaves is in no plan yet.
    """
    return [
        move_among(),
        move_among(behind=["b"]),
        move_among(silent=["c"]),
        move_among(behind=["d", "e"]),
        move_among(gone=["s", "d"], behind=["e"]),
        move_among(gone=["e"]),
        move_among(away=4),
        move_among(away=5),
        move_among(full=True),
        move_among(is_deposed=True),
        move_among(gone=["s"]),
        move_among(joining=["b"]),
    ]


def keepers_beside_slow_replicas() -> list[str]:
    """Of two stages of two and three: all are alike; the first of the last stage is a third as
    fast; it is asked for nothing; all of a stage are slow; one is half as fast.
    """
    return [keepers(ab, cde) for ab, cde in (("88", "888"), ("88", "383"), ("88", "088"), ("88", "333"), ("48", "888"))]


def keepers(*speeds: str) -> str:
    """Who keeps the ends, in order: replicas `a`, `b`, .. of these relative speeds."""
    names = iter("abcdefgh")
    source = (Replica(endpoint("s")),)
    body = tuple(tuple(Replica(endpoint(next(names)), int(speed)) for speed in stage) for stage in speeds)
    position = Position(Term(1, source[0].endpoint.member), PRESENT, 0, 1)
    plan = Plan(position, "b", GENESIS_LINEAGE, (source, *body), (), None, 8)
    return "".join(member.peer_id for member in keepers_of_ends(plan, 8))
