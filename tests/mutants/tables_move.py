"""A coordinator that is about to move a peer: what it looks at once more."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from swarmfree.policy.planner.fleet import ExecutionPlan
from swarmfree.policy.planner.measured_fleet import MeasuredPeer, measured_fleet
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.planner.slow_links import RatedStandbys
from swarmfree.policy.quorum import is_majority
from swarmfree.policy.retention import keepers_of_ends
from swarmfree.protocol.manifest import Manifest, StagesSection
from swarmfree.protocol.messages import Hello, LinkRate
from swarmfree.protocol.names import ABSENT, Member, Position, Term
from swarmfree.protocol.plan import Plan, Replica
from swarmfree.protocol.records import GENESIS_LINEAGE
from swarmfree.trainer.coordinator.move_watch import MoveWatch
from swarmfree.trainer.coordinator.participant import Participant, Participants
from swarmfree.trainer.coordinator.slow_links import SlowLinks
from tests.mutants.alone import at, endpoint

PLACES = {"s": 0, "a": 1, "b": 1, "c": 1, "d": 2, "e": 2}
PRESENT = 5


class Swarm:
    """A source and two stages of three and two, as their coordinator knows them.

    Args:
        behind, silent, gone, joining: these are a step behind, do not answer, are not there, or are
            in no plan yet.
        away: so many more voters are on another side.
        full: a stage has room for two.
        is_deposed: this coordinator leads no longer.
        me: who coordinates.
    """

    def __init__(
        self,
        *,
        behind: Sequence[str] = (),
        silent: Sequence[str] = (),
        gone: Sequence[str] = (),
        joining: Sequence[str] = (),
        away: int = 0,
        full: bool = False,
        is_deposed: bool = False,
        me: str = "s",
    ) -> None:
        self.there = Participants()
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
            self.there._participants[participant.member] = participant
        self._electorate = [endpoint(name).member for name in (*PLACES, *(f"away{number}" for number in range(away)))]
        roster = cast("Any", self.there)
        roster.is_deposed = is_deposed
        manifest = Manifest(stages=StagesSection(body=2, replicas_max=2 if full else 4))
        context = SimpleNamespace(
            now_s=lambda: 0.0, local=SimpleNamespace(move_after_s=20.0), manifest=manifest, me=endpoint(me).member
        )
        lead = SimpleNamespace(iteration=PRESENT, may_decide=self._may_decide, present=SimpleNamespace(record=None))
        self.parts: tuple[Any, Any, Any] = context, lead, roster

    def _may_decide(self, answered: set[Member]) -> bool:
        return is_majority(self._electorate, answered)


def move_among(**more: Any) -> bool:
    """Whether `a` of three may go to a stage of two, in such a `Swarm`."""
    swarm = Swarm(**more)
    watch = MoveWatch(*swarm.parts, cast("Any", None))
    mover = swarm.there.get(endpoint("a").member)
    return mover is not None and watch._may_move(mover, MovePeer(endpoint("a").member.peer_id, 1, 2))


def leave_among(*names: str, **more: Any) -> str:
    """Who of these leaves to stand by for its link, in such a `Swarm`."""
    swarm = Swarm(**more)
    links = SlowLinks(*swarm.parts, cast("Any", SimpleNamespace(stand_by=Participant.rest, is_resting=lambda _: True)))
    moves = tuple(MovePeer(endpoint(name).member.peer_id, PLACES[name], ABSENT) for name in names)
    links.queue(RatedStandbys(moves, (1.0,) * len(moves), ExecutionPlan((), ()), 2.0, 1.0, 2.0))
    return "".join(move.peer for move in links.look())


def those_who_leave_for_their_links() -> list[str]:
    """Two of a stage of three may; not all three, nor both of the other one; one that is behind, is
    silent, is in no plan yet, is gone or coordinates stays; its siblings are behind, so that it is
    the last; so many as eight, ten and eleven voters can do without; a stage is lost; another one
    leads.
    """
    return [
        leave_among("a", "b"),
        leave_among("a", "b", "c"),
        leave_among("d", "e"),
        leave_among("a", behind=["a"]),
        leave_among("a", silent=["a"]),
        leave_among("a", joining=["a"]),
        leave_among("a", gone=["a"]),
        leave_among("a", "b", me="a"),
        leave_among("a", behind=["b", "c"]),
        leave_among("a", "b", away=2),
        leave_among("a", "b", away=4),
        leave_among("a", "b", away=5),
        leave_among("a", gone=["d", "e"]),
        leave_among("a", is_deposed=True),
    ]


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


def links_of_two() -> list[float]:
    """Bytes a second of two replicas that tell of each other alone, and of three that tell of each
    other: the third one is slow.
    """
    found = []
    for names in ("ab", "abc"):
        peers = [
            MeasuredPeer(name, 1, 0.1, links=tuple(LinkRate(o, 1.0 if "c" in {o, name} else 2.0) for o in names if o != name))
            for name in names
        ]
        fleet = measured_fleet(peers, Manifest())
        assert fleet is not None
        found += [peer.bytes_per_s for peer in fleet.peers]
    return found
