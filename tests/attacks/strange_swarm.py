"""Strangers in a whole swarm in virtual time: they may take part, have no place, and can call and
be called by everybody.
"""

from __future__ import annotations

from contextvars import Context

from swarmfree.protocol.messages import (
    Claim,
    GetAverage,
    GetManifest,
    GetPlan,
    GetRecord,
    GetShadow,
    GetState,
    Goodbye,
    Hello,
    Meet,
    Place,
    Pull,
    ReleaseMember,
    Request,
)
from swarmfree.protocol.names import Endpoint, Member
from swarmfree.protocol.ports import Handler, Reply
from swarmfree.sim.loop import OWNER
from swarmfree.sim.memory_call import Outcome
from swarmfree.sim.network import MemoryNetwork, NetworkWatch
from swarmfree.sim.script import Director, Moment, Script

OPEN_TO_ALL = (Hello, Meet, GetManifest, GetPlan, GetRecord)
"""What anybody of the run may say, by docs/protocol.md; of Claim and Goodbye one kind."""
READINGS = (GetState, GetShadow, GetAverage, Pull)
"""What is given to whoever may take part while no coordinator is heard, see docs/security.md."""


def is_open_to_all(request: Request) -> bool:
    """Whether who has no place may be answered."""
    match request:
        case Claim(only_asking=is_open):
            return is_open
        case Goodbye(purpose=purpose):
            return isinstance(purpose, ReleaseMember)
        case _:
            return isinstance(request, OPEN_TO_ALL + READINGS)


class Unheeding:
    """Keeps strangers' traffic from the checks, which take everybody's word for honest; and notes
    where a stranger was obeyed.

    Args:
        watch: the rehearsal's own.
        strangers: peer ids.
    """

    def __init__(self, watch: NetworkWatch, strangers: set[str]) -> None:
        """Nobody was obeyed."""
        self._watch, self._strangers = watch, strangers
        self.obeyed: list[str] = []
        self._placed = set[Member]()  # a place was free: members say more

    def asked(self, sender: Endpoint, receiver: Endpoint, request: Request, payload: bytes) -> None:
        """Of the swarm."""
        if not self._is_strange(sender, receiver):
            self._watch.asked(sender, receiver, request, payload)

    def answered(self, sender: Endpoint, receiver: Endpoint, request: Request, outcome: Outcome) -> None:
        """Of the swarm."""
        if not self._is_strange(sender, receiver):
            self._watch.answered(sender, receiver, request, outcome)
        elif not isinstance(outcome, Reply) or sender.member.peer_id not in self._strangers:
            return
        elif isinstance(outcome.message, Place):
            self._placed |= {sender.member} if outcome.message.accepted else set()
        elif sender.member not in self._placed and not is_open_to_all(request):
            self.obeyed.append(f"{receiver.member} answered {sender.member}: {request}")

    def befell(self, what: str) -> None:
        """Told."""
        self._watch.befell(what)

    def _is_strange(self, sender: Endpoint, receiver: Endpoint) -> bool:
        return not self._strangers.isdisjoint((sender.member.peer_id, receiver.member.peer_id))


class Infiltration(Script):
    """Strangers that come as the first message sets out.

    Args:
        count: how many.

    Attributes:
        watch: who was obeyed; there once they have come.
    """

    def __init__(self, count: int) -> None:
        """Nobody has come."""
        self._count = count
        self.watch: Unheeding | None = None

    def see(self, director: Director, moment: Moment) -> None:
        """Come, at the first one."""
        del moment
        if self.watch is None:
            hub, ids = director.hub, [f"QmStranger{number}" for number in range(self._count)]
            self.watch = hub.watch = Unheeding(hub.watch, {*ids})
            for number, peer_id in enumerate(ids):
                address = f"/ip4/127.0.0.1/tcp/{9001 + number}/p2p/{peer_id}"
                self._come(director, Endpoint(Member(peer_id, "00000001000000aa"), (address,)))

    def _come(self, director: Director, here: Endpoint) -> None:
        context = Context()
        context.run(OWNER.set, here.member.peer_id)
        loop = director.hub.loop
        network = director.hub.attach(here, lambda work, name, inner: loop.create_task(work, name=name, context=inner), context)
        network.serve(self.handler(here))
        loop.create_task(self.live(director, network), context=context)

    def handler(self, here: Endpoint) -> Handler:
        """What one of them answers."""
        raise NotImplementedError

    async def live(self, director: Director, network: MemoryNetwork) -> None:
        """What one of them does."""
        raise NotImplementedError
