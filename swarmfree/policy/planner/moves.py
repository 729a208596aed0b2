"""Which peers go to another stage: standbys first, then from the stages that have the most speed
for their work to the one that has the least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swarmfree.policy.planner.allocation import ReplicaLimits, fits
from swarmfree.policy.planner.fleet import ExecutionPlan, Fleet, PeerProfile
from swarmfree.protocol.names import ABSENT

GAIN_MIN = 0.01
"""A further move is worth while if the slowest stage takes at least this share less."""
GIVERS = 3
"""So many stages, those with the most speed, are looked at for somebody to move."""


@dataclass(frozen=True, slots=True)
class MovePeer:
    """A peer goes to another stage.

    Args:
        peer: its name.
        giver: the stage that it leaves; `ABSENT` for a standby.
        taker: the stage that it goes to.
    """

    peer: str
    giver: int
    taker: int

    def __str__(self) -> str:
        """For an operator."""
        where = "who stands by, comes to" if self.giver == ABSENT else f"moves from stage {self.giver} to"
        return f"{self.peer}{',' * (self.giver == ABSENT)} {where} stage {self.taker}"


def stage_loads(fleet: Fleet, plan: ExecutionPlan, work: Sequence[float]) -> list[float]:
    """Seconds of one microbatch in each stage, its replicas working side by side; infinite where
    there is none.
    """
    speeds = [sum(1 / fleet.by_name[name].block_s for name in names) for names in plan.replicas]
    return [w / v if v else math.inf for w, v in zip(work, speeds, strict=True)]


class MovePlanner:
    """Moves peers one after the other; nobody twice, and nobody who serves several stages."""

    def __init__(
        self, fleet: Fleet, plan: ExecutionPlan, work: Sequence[float], needs: Sequence[int], limits: ReplicaLimits
    ) -> None:
        """Nobody has moved.

        Args:
            fleet: who is there.
            plan: who serves what.
            work: index = stage; blocks.
            needs: index = stage; bytes of one replica.
            limits: on replicas.
        """
        self._work, self._needs, self._limits = work, needs, limits
        stages_of = plan.stages_of
        self._fleet = fleet
        self._members = [{name: 1 / fleet.by_name[name].block_s for name in names} for names in plan.replicas]
        self._bound = {name for name, stages in stages_of.items() if len(stages) > 1}
        self._standbys = sorted((p for p in fleet.peers if p.name not in stages_of), key=lambda p: (p.block_s, p.name))
        self._speeds = [math.fsum(members.values()) for members in self._members]
        self._blocks = plan.blocks
        self.moves: list[MovePeer] = []

    @property
    def plan(self) -> ExecutionPlan:
        """Who serves what after the moves."""
        return ExecutionPlan(self._blocks, tuple(tuple(sorted(members)) for members in self._members))

    def fill(self) -> bool:
        """Move somebody to each empty stage; say whether all of them have somebody now."""
        empty = [stage for stage, members in enumerate(self._members) if not members]
        return all(self._move_to(stage, math.inf) for stage in empty)

    def help_slowest(self) -> bool:
        """Move somebody to the slowest stage; say whether that was worth while."""
        loads = [self._load(stage, 0.0) for stage in range(len(self._work))]
        slowest = max(range(len(loads)), key=lambda stage: (loads[stage], -stage))
        return self._move_to(slowest, (1 - GAIN_MIN) * loads[slowest])

    def _load(self, stage: int, more: float) -> float:
        speed = self._speeds[stage] + more
        return self._work[stage] / speed if speed > 0 else math.inf

    def _move_to(self, taker: int, load_max: float) -> bool:
        """The move after which the slowest stage is fastest, if it is fast enough; of equal ones a
        standby, then one that leaves two behind.
        """
        if len(self._members[taker]) >= self._limits.of(taker):
            return False
        loads = {stage: self._load(stage, 0.0) for stage in range(len(self._work)) if self._members[stage]}
        slowest = sorted(loads, key=lambda stage: -loads[stage])[: GIVERS + 2]
        free = next((peer for peer in self._standbys if fits(peer, taker, self._needs)), None)
        candidates = [] if free is None else [(ABSENT, free)]
        able = [stage for stage in loads if stage != taker and len(self._members[stage]) > 1]
        for giver in sorted(able, key=lambda stage: (loads[stage], stage))[:GIVERS]:
            candidates += [(giver, peer) for peer in self._levelling(giver, taker)]

        def after(giver: int, peer: PeerProfile) -> tuple[float, bool, bool, str]:
            gained = 1 / peer.block_s
            load = max((loads[s] for s in slowest if s not in {giver, taker}), default=0.0)
            load = max(load, self._load(taker, gained))
            if giver == ABSENT:
                return load, False, False, peer.name
            return max(load, self._load(giver, -gained)), True, len(self._members[giver]) == 2, peer.name

        giver, peer = min(candidates, key=lambda each: after(*each), default=(ABSENT, None))
        if peer is None or after(giver, peer)[0] > load_max:
            return False
        self._take(giver, peer, taker)
        return True

    def _levelling(self, giver: int, taker: int) -> list[PeerProfile]:
        """The two members of a stage whose speeds come nearest to making it as fast as another one:
        the next slower and the next faster.
        """
        work, speeds = self._work, self._speeds
        wanted = (work[taker] * speeds[giver] - work[giver] * speeds[taker]) / (work[taker] + work[giver])
        able = [
            (speed, name)
            for name, speed in self._members[giver].items()
            if name not in self._bound and fits(self._fleet.by_name[name], taker, self._needs)
        ]
        slower = max((each for each in able if each[0] <= wanted), default=None)
        faster = min((each for each in able if each[0] > wanted), default=None)
        return [self._fleet.by_name[each[1]] for each in (slower, faster) if each is not None]

    def _take(self, giver: int, peer: PeerProfile, taker: int) -> None:
        speed = 1 / peer.block_s
        if giver == ABSENT:
            self._standbys.remove(peer)
        else:
            del self._members[giver][peer.name]
            self._speeds[giver] -= speed
        self._members[taker][peer.name] = speed
        self._speeds[taker] += speed
        self._bound.add(peer.name)
        self.moves.append(MovePeer(peer.name, giver, taker))
