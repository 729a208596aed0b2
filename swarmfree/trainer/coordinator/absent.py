"""Holders that were fenced while their stage had others, and whose life may go on: when those are
lost, they are called for.

Source: protocol section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from swarmfree.protocol.errors import CallFailed, PeerUnreachable, RefusalKind, Refused
from swarmfree.protocol.messages import HeartbeatAnswer
from swarmfree.protocol.names import ABSENT
from swarmfree.trainer.context import Context
from swarmfree.trainer.coordinator.participant import Participant

ABSENT_MAX = 32


def is_over(error: CallFailed) -> bool:
    """Whether a peer's life has ended, or refuses: nothing listens at its address, or another life.

    A peer that was away forbids the words of a coordinator that it does not know yet: that counts
    as silence.
    """
    is_answer = isinstance(error, Refused) and error.kind not in {RefusalKind.FORBIDDEN, RefusalKind.NOT_ADMITTED}
    return is_answer or (isinstance(error, PeerUnreachable) and error.refused)


def knows_too_little(error: CallFailed) -> bool:
    """Whether a peer refuses as it does not know yet who leads, what was decided before, or whose
    signatures prove it: it may still come to where the others are.
    """
    return isinstance(error, Refused) and error.kind in {RefusalKind.NOT_YET, RefusalKind.UNPROVEN}


class Absent:
    """Them by peer, and since when each has been missing; those that went first are forgotten
    first, and before all who only began to copy.
    """

    def __init__(self, context: Context) -> None:
        """Nobody is missing."""
        self._context = context
        self._gone: dict[str, tuple[Participant, float]] = {}

    def add(self, participant: Participant) -> None:
        """A participant is about to be fenced though its life may go on; what it holds may be a
        step behind.
        """
        if participant.stage != ABSENT and (_has_held(participant) or participant.copies == participant.stage):
            since_s = participant.missing_since_s(self._context.now_s(), self._context.timing.silence_s)
            self._gone[participant.member.peer_id] = participant, since_s
            if len(self._gone) > ABSENT_MAX:
                # Newcomers may come, begin to copy and go as often as they like
                copiers = (peer_id for peer_id, (gone, _) in self._gone.items() if not _has_held(gone))
                del self._gone[next(copiers, next(iter(self._gone)))]

    def vouch(self, base: str) -> None:
        """A record of this base is decided: who worked on it holds what that begins with, also
        where it had been rebuilt.
        """
        for participant, _ in self._gone.values():
            if participant.answer is not None and participant.answer.base == base:
                participant.vouch()

    def discard(self, peer_id: str) -> None:
        """This peer is there again, in the same life or another one."""
        self._gone.pop(peer_id, None)

    def keeper_missed_s(self, past: Mapping[int, str]) -> float:
        """Since when the last keeper of a copy of the ends, of this past, is missing that may live;
        minus infinity for none.
        """
        missed = [(participant, since_s) for participant, since_s in self._gone.values() if _keeps(participant.answer, past)]
        ended = self._context.incarnations.ended([participant.member for participant, _ in missed])
        return max((since_s for participant, since_s in missed if participant.member not in ended), default=-math.inf)

    def take(self, stage: int) -> list[tuple[Participant, float]]:
        """Those of one stage that may live, which are missing no longer: whoever asks calls for
        them.
        """
        found = [(participant, since_s) for participant, since_s in self._gone.values() if participant.stage == stage]
        for participant, _ in found:
            self.discard(participant.member.peer_id)
        ended = self._context.incarnations.ended([participant.member for participant, _ in found])
        return [(participant, since_s) for participant, since_s in found if participant.member not in ended]


def _has_held(participant: Participant) -> bool:
    """Whether it is known to have held its stage's state."""
    return participant.built or participant.held(participant.stage) >= 0


def _keeps(answer: HeartbeatAnswer | None, past: Mapping[int, str]) -> bool:
    return answer is not None and past.get(answer.ends_iteration) == answer.ends_lineage
