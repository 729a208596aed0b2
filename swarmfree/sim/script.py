"""Scenarios: a script sees every message of a rehearsal and lets things happen at exactly that moment, where rates and schedules hit by chance."""

from __future__ import annotations

from dataclasses import dataclass

from swarmfree.sim.cast import Cast
from swarmfree.sim.faults import Fate
from swarmfree.sim.mischief import Mischief
from swarmfree.sim.network import MemoryHub, Outcome
from swarmfree.swarm.messages import Request
from swarmfree.swarm.names import Endpoint, Member


@dataclass(frozen=True, slots=True)
class Moment:
    """A request that sets out, or an outcome of its handler.

    Args:
        sender, receiver: of the request.
        request: what was asked.
        outcome: what the handler came to; None as the request sets out.
    """

    sender: Endpoint
    receiver: Endpoint
    request: Request
    outcome: Outcome | None


class Director:
    """What a script can do.

    Args:
        hub: the network.
        cast: the peers.
        mischief: knows the newest plan.
    """

    def __init__(self, hub: MemoryHub, cast: Cast, mischief: Mischief) -> None:
        """Nothing has been done."""
        self.hub, self._cast, self._mischief = hub, cast, mischief

    def members(self, stage: int) -> tuple[Member, ...]:
        """Living members of a stage by the newest plan, sorted."""
        plan = self._mischief.plan
        named = {replica.endpoint.member for replica in plan.replicas[stage]} if plan is not None else set()
        return tuple(sorted(member for member, life in self._cast.lives.items() if member in named and life.is_alive))

    def kill(self, *members: Member) -> None:
        """These die now; somebody comes for each as the plan of faults says."""
        for member in members:
            life = self._cast.lives.get(member)
            if life is not None and life.is_alive:
                self._cast.kill(life, "kill", "by the script")

    def freeze(self, member: Member, duration_s: float) -> None:
        """This one stands still for so long."""
        life = self._cast.lives.get(member)
        if life is not None and life.is_alive:
            self._cast.freeze(life, duration_s)

    def join(self) -> None:
        """A newcomer starts."""
        self._cast.join(standby=False)

    def cut(self, one: Member, other: Member) -> None:
        """These two hear nothing of each other from now on."""
        self.hub.cuts |= {(one.peer_id, other.peer_id), (other.peer_id, one.peer_id)}


class Script:
    """A scenario; this one does nothing."""

    def see(self, director: Director, moment: Moment) -> None:
        """A message sets out, or a handler has ended."""

    def fate(self, sender: Endpoint, receiver: Endpoint, request: Request) -> Fate | None:
        """What the network does with this call; None = as drawn."""
        del sender, receiver, request
        return None
