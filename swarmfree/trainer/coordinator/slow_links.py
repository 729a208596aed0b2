"""Members whose links hold up the others leave their stages, and stand by, with what was measured
of them while they served.

Who is to is decided in `policy.planner.slow_links`. Nothing is copied for it, so several leave as
the same iteration begins, as many as a majority can do without; the others with the next ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from swarmfree.policy.planner.measured_fleet import MeasuredPeer
from swarmfree.policy.planner.moves import MovePeer
from swarmfree.policy.planner.slow_links import RatedStandbys
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.assignment import Assignment
from swarmfree.trainer.coordinator.leadership import Leadership
from swarmfree.trainer.coordinator.measured_peers import measured_peer
from swarmfree.trainer.coordinator.roster import Roster


class SlowLinks:
    """Who stands by for its link.

    Attributes:
        rated: who was to leave last, and what is expected of it.
    """

    def __init__(self, context: Context, lead: Leadership, roster: Roster, assignment: Assignment) -> None:
        """Nobody."""
        self._context, self._lead, self._roster, self._assignment = context, lead, roster, assignment
        self.rated: RatedStandbys | None = None
        self._queue = deque[tuple[MovePeer, float]]()
        self._measured: dict[str, MeasuredPeer] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether some are still to leave."""
        return bool(self._queue)

    def standbys(self) -> tuple[MeasuredPeer, ...]:
        """Those who stand by for it, as they were measured."""
        there = {g.member.peer_id for g in self._roster.participants() if g.rests}
        return tuple(peer for name, peer in self._measured.items() if name in there)

    def queue(self, rated: RatedStandbys) -> None:
        """These are to leave, and nobody else."""
        self.rated, self._queue = rated, deque(zip(rated.moves, rated.rates, strict=True))

    def clear(self) -> None:
        """Whoever has not left stays."""
        self._queue.clear()

    def look(self) -> list[MovePeer]:
        """Stages are filled, and an iteration is about to be opened: have some leave.

        Returns:
            Who has left. Who cannot any more, because it is not where the swarm is or its stage
            has nobody else that is, stays for good; all do where a stage is lost, or this peer
            leads no longer.
        """
        left = list[MovePeer]()
        stages = range(self._context.manifest.stage_count)
        if self._roster.is_deposed or not all(map(self._roster.holders, stages)):
            self._queue.clear()
        ready = [
            [g for g in self._roster.of_stage(s) if g.is_member and g.is_heard and g.iteration == self._lead.iteration]
            for s in stages
        ]
        while self._queue:
            move, rate = self._queue[0]
            leaver = next((g for g in ready[move.giver] if g.member.peer_id == move.peer), None)
            if leaver is None or leaver.member == self._context.me or len(ready[move.giver]) == 1:
                self._queue.popleft()
                continue
            voters = {g.member for stage in ready for g in stage if g is not leaver}
            if not self._lead.may_decide({*voters, self._context.me}):
                break
            self._queue.popleft()
            ready[move.giver].remove(leaver)
            known = replace(measured_peer(leaver, move.giver), links=(), bytes_per_s=rate)
            self._measured = {name: peer for name, peer in self._measured.items() if self._assignment.is_resting(name)}
            self._measured[move.peer] = known
            self._assignment.stand_by(leaver)
            left.append(move)
        return left
