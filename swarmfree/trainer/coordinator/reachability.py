"""Whoever is to get a place is called back first: one that nobody can call would hold it in vain.

Source: protocol, "A run's life".
"""

from __future__ import annotations

from swarmfree.protocol.errors import PeerSilent, PeerUnreachable, ProtocolViolation, RefusalKind, Refused
from swarmfree.protocol.events import Note
from swarmfree.protocol.messages import GetPlan
from swarmfree.protocol.names import Endpoint
from swarmfree.protocol.peer_limits import Allowance
from swarmfree.trainer.context import Context

SOMEBODY_ELSE = frozenset({RefusalKind.WRONG_RUN, RefusalKind.WRONG_REVISION, RefusalKind.WRONG_INCARNATION})
TOLD_MAX = 256
CALL_SILENCES = 3 / 8
"""The newcomer waits half a silence for its answer; it must hear within that time that nobody
answered where it is, or it takes us for silent.
"""


class Reachability:
    """A coordinator's calls back."""

    def __init__(self, context: Context) -> None:
        """Nobody was called."""
        self._context = context
        self._told: set[str] = set()
        limits = context.local.limits
        self._hellos = Allowance(limits.hellos_max, limits.hellos_per_s, context.now_s())

    async def require(self, newcomer: Endpoint) -> None:
        """Call a newcomer where it says that it is.

        Raises:
            Refused: `unreached`, nobody answers there, or somebody else does; `not_yet`, too many
                come.
        """
        if self._hellos.is_spent(self._context.now_s()):
            raise Refused(RefusalKind.NOT_YET, "too many peers ask this one for a place: ask again")
        self._hellos.spend(1, self._context.now_s())
        try:
            await self._context.call(newcomer, GetPlan(), silence_s=CALL_SILENCES * self._context.timing.silence_s)
        except (PeerUnreachable, PeerSilent, ProtocolViolation) as error:
            raise self._refusal(newcomer) from error
        except Refused as refusal:
            if refusal.kind in SOMEBODY_ELSE:
                raise self._refusal(newcomer) from refusal
        self._told.discard(_complaint(newcomer))

    def _refusal(self, newcomer: Endpoint) -> Refused:
        """It is told every time, everybody here once."""
        complaint = _complaint(newcomer)
        if complaint not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(complaint)
            self._context.tell(Note(complaint))
        return Refused(
            RefusalKind.UNREACHED,
            f"nobody can reach you at {newcomer.where}: open the port, or start with --announce HOST:PORT",
        )


def _complaint(newcomer: Endpoint) -> str:
    return f"{newcomer.member} gets no place: nobody can reach it at {newcomer.where}"
